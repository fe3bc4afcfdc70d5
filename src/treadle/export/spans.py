"""Build tracing spans from a session's facts: run → turn → model call and tool calls, with times. Pure.

The log already has all data. Names and attributes follow the GenAI conventions of OpenTelemetry, so an exporter can
pass them on unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from treadle.events import (
    AnyFact,
    CallFinished,
    CallStarted,
    ModelFailed,
    ModelReplied,
    RunFinished,
    RunStarted,
    TurnStarted,
)

SpanKind = Literal["run", "turn", "model", "tool"]
Attribute = str | int | float | bool


@dataclass(slots=True)
class Span:
    """An activity with a start and an end. `end` is None while it runs. `ok` means that it succeeded."""

    id: str
    parent: str
    kind: SpanKind
    name: str
    start: float
    end: float | None = None
    ok: bool = True
    attributes: dict[str, Attribute] = field(default_factory=dict[str, Attribute])


def build_spans(facts: Iterable[AnyFact]) -> list[Span]:
    """Build the spans of facts, in the order of their start."""
    tracer = _Tracer()
    for fact in facts:
        tracer.add_fact(fact)
    return tracer.spans


class _Tracer:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._open: dict[str, Span] = {}

    def add_fact(self, fact: AnyFact) -> None:
        match fact:
            case RunStarted():
                self._begin(fact, "", "run", "invoke_agent", {"treadle.trigger": fact.trigger})
            case TurnStarted():
                self._finish(("model", "turn"), fact.at)
                self._begin(fact, "run", "turn", f"turn {fact.turn}", {"treadle.wrap_up": fact.wrap_up or ""})
                self._begin(fact, "turn", "model", "chat", {})
            case ModelFailed():
                self._finish(("model",), fact.at, ok=False, attributes={"error.type": fact.kind})
                if fact.wait is not None:
                    self._begin(fact, "turn", "model", "chat", {"treadle.attempt": fact.attempt + 1})
            case ModelReplied():
                reply: dict[str, Attribute] = {
                    "gen_ai.response.model": fact.model,
                    "gen_ai.usage.input_tokens": fact.usage.input_tokens,
                    "gen_ai.usage.output_tokens": fact.usage.output_tokens,
                    "gen_ai.response.finish_reason": fact.finish,
                }
                self._finish(("model",), fact.at, attributes=reply)
            case CallStarted():
                self._finish((fact.call_id,), fact.at, ok=False)
                attributes: dict[str, Attribute] = {
                    "gen_ai.tool.call.id": fact.call_id,
                    "treadle.attempt": fact.attempt,
                }
                self._begin(fact, "turn", "tool", f"execute_tool {fact.tool}", attributes, key=fact.call_id)
            case CallFinished():
                status: dict[str, Attribute] = {"treadle.status": fact.status}
                self._finish((fact.call_id,), fact.at, ok=fact.status == "ok", attributes=status)
            case RunFinished():
                reason: dict[str, Attribute] = {"treadle.reason": fact.reason}
                open_calls = tuple(key for key in self._open if key not in ("run", "turn", "model"))
                self._finish((*open_calls, "model", "turn"), fact.at)
                self._finish(("run",), fact.at, ok=fact.reason == "answered", attributes=reason)
            case _:
                pass

    def _begin(
        self, fact: AnyFact, parent: str, kind: SpanKind, name: str, attributes: dict[str, Attribute], key: str = ""
    ) -> None:
        above = self._open.get(parent)
        span = Span(f"{kind}:{fact.seq}", above.id if above else "", kind, name, fact.at, attributes=attributes)
        self._open[key or kind] = span
        self.spans.append(span)

    def _finish(
        self, keys: tuple[str, ...], at: float, *, ok: bool = True, attributes: dict[str, Attribute] | None = None
    ) -> None:
        for key in keys:
            span = self._open.pop(key, None)
            if span is not None:
                span.end, span.ok = at, ok
                span.attributes.update(attributes or {})
