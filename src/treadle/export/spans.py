"""Build tracing spans from a session's facts: run → turn → model call and tool calls, with times. Pure.

The log already has all data. Names and attributes follow the GenAI conventions of OpenTelemetry, so an exporter can
pass them on unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """An activity with a start and an end. `end` is None while it runs. `ok` means that it succeeded.

    `began` and `ended` are the facts that began and ended it.
    """

    id: str
    parent: str
    kind: SpanKind
    name: str
    start: float
    end: float | None = None
    ok: bool = True
    attributes: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    began: AnyFact | None = None
    ended: AnyFact | None = None


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
                self._finish(fact, "model", "turn")
                self._begin(fact, "run", "turn", f"turn {fact.turn}", {"treadle.wrap_up": fact.wrap_up or ""})
                if fact.turn:  # in turn 0 the model is not asked
                    self._begin(fact, "turn", "model", "chat", {})
            case ModelFailed():
                self._finish(fact, "model", ok=False, attributes={"error.type": fact.kind})
                if fact.wait is not None:
                    self._begin(fact, "turn", "model", "chat", {"treadle.attempt": fact.attempt + 1})
            case ModelReplied():
                reply: dict[str, Attribute] = {
                    "gen_ai.response.model": fact.model,
                    "gen_ai.usage.input_tokens": fact.usage.input_tokens,
                    "gen_ai.usage.output_tokens": fact.usage.output_tokens,
                    "gen_ai.response.finish_reason": fact.finish,
                }
                if fact.first_token is not None:
                    reply["treadle.first_token_seconds"] = fact.first_token
                self._finish(fact, "model", attributes=reply)
            case CallStarted():
                self._finish(fact, fact.call_id, ok=False)
                call: dict[str, Attribute] = {"gen_ai.tool.call.id": fact.call_id, "treadle.attempt": fact.attempt}
                self._begin(fact, "turn", "tool", f"execute_tool {fact.tool}", call, key=fact.call_id)
            case CallFinished():
                self._finish(fact, fact.call_id, ok=fact.status == "ok", attributes={"treadle.status": fact.status})
            case RunFinished():
                self._finish(fact, *(self._open.keys() - {"run"}))
                self._finish(fact, "run", ok=fact.reason == "answered", attributes={"treadle.reason": fact.reason})
            case _:
                pass

    def _begin(
        self, fact: AnyFact, parent: str, kind: SpanKind, name: str, attributes: dict[str, Attribute], key: str = ""
    ) -> None:
        above = self._open.get(parent)
        span = Span(
            f"{kind}:{fact.seq}", above.id if above else "", kind, name, fact.at, attributes=attributes, began=fact
        )
        self._open[key or kind] = span
        self.spans.append(span)

    def _finish(self, fact: AnyFact, *keys: str, ok: bool = True, attributes: Mapping[str, Attribute] = {}) -> None:
        for key in keys:
            span = self._open.pop(key, None)
            if span is not None:
                span.end, span.ok, span.ended = fact.at, ok, fact
                span.attributes.update(attributes)
