"""Counters in Prometheus' text format, fed by what this process stores. Labels have few values, and never ids."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

from treadle.events import AnyFact, CallFinished, ModelReplied, RunFinished, TurnStarted

_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TURNS_KEPT = 10_000
_TOOLS_KEPT = 200


class Histogram:
    """How long something took."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    def render_lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*_BOUNDS, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """What has happened since this server began."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()
        self._turns = 0
        self._calls: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._facts = 0
        self._first_token = Histogram()
        self._append = Histogram()
        self._asked: OrderedDict[str, float] = OrderedDict()
        self._tools: set[str] = set()

    def on_stored(self, session_id: str, facts: Sequence[AnyFact], seconds: float) -> None:
        """Count facts that were just stored."""
        self._append.add(seconds)
        self._facts += len(facts)
        for fact in facts:
            match fact:
                case TurnStarted():
                    self._turns += 1
                    self._asked[session_id] = time.perf_counter()
                    if len(self._asked) > _TURNS_KEPT:
                        self._asked.popitem(last=False)
                case ModelReplied():
                    self._asked.pop(session_id, None)
                    self._tokens["input"] += fact.usage.input_tokens
                    self._tokens["output"] += fact.usage.output_tokens
                    self._tokens["cached"] += fact.usage.cached_tokens
                case CallFinished():
                    self._calls[self._tool(fact.tool), fact.status] += 1
                case RunFinished():
                    self._runs[fact.reason] += 1
                case _:
                    pass

    def on_first_delta(self, session_id: str) -> None:
        """The first fragment of a reply is there."""
        asked = self._asked.pop(session_id, None)
        if asked is not None:
            self._first_token.add(time.perf_counter() - asked)

    def _tool(self, name: str) -> str:
        """A tool's name as a label; a model can make up any number of names, so they are not all kept."""
        if len(self._tools) < _TOOLS_KEPT:
            self._tools.add(name)
        return name if name in self._tools else "other"

    def render_text(self, gauges: dict[str, float]) -> str:
        """All of it, with `gauges` of the moment."""
        lines: list[str] = []

        def family(name: str, kind: str, about: str, samples: Iterator[str]) -> None:
            lines.extend((f"# HELP {name} {about}", f"# TYPE {name} {kind}", *samples))

        runs = (f'treadle_runs_total{{outcome="{name}"}} {n}' for name, n in sorted(self._runs.items()))
        family("treadle_runs_total", "counter", "Runs that ended, by outcome.", runs)
        family("treadle_turns_total", "counter", "Model calls begun.", iter((f"treadle_turns_total {self._turns}",)))
        calls = (
            f'treadle_tool_calls_total{{tool="{_label(tool)}",status="{status}"}} {n}'
            for (tool, status), n in sorted(self._calls.items())
        )
        family("treadle_tool_calls_total", "counter", "Tool calls that ended, by tool and status.", calls)
        tokens = (f'treadle_tokens_total{{kind="{kind}"}} {n}' for kind, n in sorted(self._tokens.items()))
        family("treadle_tokens_total", "counter", "Tokens, as the models report them.", tokens)
        family("treadle_facts_total", "counter", "Facts stored.", iter((f"treadle_facts_total {self._facts}",)))
        first = self._first_token.render_lines("treadle_first_token_seconds")
        family("treadle_first_token_seconds", "histogram", "From a turn's start to its first fragment.", first)
        append = self._append.render_lines("treadle_append_seconds")
        family("treadle_append_seconds", "histogram", "How long it took to store facts.", append)
        for name, value in gauges.items():
            family(name, "gauge", name.removeprefix("treadle_").replace("_", " ") + ".", iter((f"{name} {value:g}",)))
        return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
