"""Counts what this process stores, for Prometheus. Labels of metrics have few values and are never ids."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from treadle.events import AnyFact, CallFinished, ModelReplied, RunFinished, TurnStarted

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

_MAX_OPEN_TURNS = 10_000
_MAX_TOOL_LABELS = 200
_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


STORE_COUNTERS = {
    "claims": "Sessions that this node took, to run them.",
    "takeovers": "Sessions among them whose owner had not released them.",
    "fenced_writes": "Writes of this node that were refused, because another one had taken the session over.",
}
STORE_GAUGES = {
    "wakeup_lag": ("treadle_wakeup_lag_seconds", "How long the last message took from this node to this node."),
    "connections_used": ("treadle_store_connections_used", "Connections to the database that are at work."),
    "statements_waiting": ("treadle_store_statements_waiting", "Statements that wait for a connection."),
}
"""What a store that several machines share measures. Other stores have none of this."""


class Histogram:
    """How long something took."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    def build_family(self, name: str, description: str) -> HistogramMetricFamily:
        """The durations so far, as Prometheus reads them."""
        from prometheus_client.core import HistogramMetricFamily

        bounds = [*map(str, _BOUNDS), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        return HistogramMetricFamily(name, description, buckets=buckets, sum_value=self._sum)


class LogObserver:
    """The observer of the log. It runs for every stored fact, so it only counts. Rendering waits for a scrape."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()
        self._turns = 0
        self._calls: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._facts = 0
        self._first_token = Histogram()
        self._append = Histogram()
        self._turn_starts: OrderedDict[str, float] = OrderedDict()
        self._tools: set[str] = set()

    def on_stored(self, session_id: str, facts: Sequence[AnyFact], seconds: float) -> None:
        """Count facts that were just stored."""
        self._append.add(seconds)
        self._facts += len(facts)
        for fact in facts:
            match fact:
                case TurnStarted():
                    self._turns += 1
                    self._turn_starts[session_id] = time.perf_counter()
                    if len(self._turn_starts) > _MAX_OPEN_TURNS:
                        self._turn_starts.popitem(last=False)
                case ModelReplied():
                    self._turn_starts.pop(session_id, None)
                    self._tokens["input"] += fact.usage.input_tokens
                    self._tokens["output"] += fact.usage.output_tokens
                    self._tokens["cached"] += fact.usage.cached_tokens
                case CallFinished():
                    # A model can make up any number of tool names, so only the first ones become labels.
                    if len(self._tools) < _MAX_TOOL_LABELS:
                        self._tools.add(fact.tool)
                    self._calls[fact.tool if fact.tool in self._tools else "other", fact.status] += 1
                case RunFinished():
                    self._runs[fact.reason] += 1
                case _:
                    pass

    def on_first_delta(self, session_id: str) -> None:
        """Count the time from a turn's start to the first fragment of its reply."""
        started = self._turn_starts.pop(session_id, None)
        if started is not None:
            self._first_token.add(time.perf_counter() - started)

    def render_metrics(self, gauges: Mapping[str, float], measured: Mapping[str, float]) -> bytes:
        """All metrics in Prometheus' text format, with `gauges` of the moment and what the log has `measured`."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector

        families = [*self._build_families(gauges), *_build_store_families(measured)]

        class Snapshot(Collector):
            def collect(self) -> Iterator[Metric]:
                return iter(families)

        registry = CollectorRegistry()  # our own: the library's global one has collectors that we do not promise
        registry.register(Snapshot())
        return generate_latest(registry)

    def _build_families(self, gauges: Mapping[str, float]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        runs = CounterMetricFamily("treadle_runs", "Runs that ended, by outcome.", labels=["outcome"])
        for reason, count in sorted(self._runs.items()):
            runs.add_metric([reason], count)
        calls = CounterMetricFamily(
            "treadle_tool_calls", "Tool calls that ended, by tool and status.", labels=["tool", "status"]
        )
        for labels, count in sorted(self._calls.items()):
            calls.add_metric(labels, count)
        tokens = CounterMetricFamily("treadle_tokens", "Tokens, as the models report them.", labels=["kind"])
        for kind, count in sorted(self._tokens.items()):
            tokens.add_metric([kind], count)
        yield from (runs, calls, tokens)
        yield CounterMetricFamily("treadle_turns", "Model calls begun.", value=self._turns)
        yield CounterMetricFamily("treadle_facts", "Facts stored.", value=self._facts)
        yield self._first_token.build_family(
            "treadle_first_token_seconds", "From a turn's start to its first fragment."
        )
        yield self._append.build_family("treadle_append_seconds", "How long it took to store facts.")
        for name, value in gauges.items():
            yield GaugeMetricFamily(name, name.removeprefix("treadle_").replace("_", " ") + ".", value=value)


def _build_store_families(measured: Mapping[str, float]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for key, description in STORE_COUNTERS.items():
        if key in measured:
            yield CounterMetricFamily(f"treadle_{key}", description, value=measured[key])
    for key, (name, description) in STORE_GAUGES.items():
        if key in measured:
            yield GaugeMetricFamily(name, description, value=measured[key])
