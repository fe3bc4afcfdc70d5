"""The steps of a run with their times: model calls, tool calls, and waits for people and for the provider. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle import events
from treadle.export.spans import build_spans

StepKind = Literal["model", "tool", "person", "provider"]


class Step(Struct, frozen=True):
    """A piece of a run, and the facts that began and ended it. `is_ok` is false for what failed.

    What was not finished has no fact that ended it. The kinds `person` and `provider` are waits.
    """

    kind: StepKind
    label: str
    start: float
    end: float
    is_ok: bool = True
    turn: int = 0
    began: events.AnyFact | None = None
    ended: events.AnyFact | None = None


def split_runs(facts: Iterable[events.AnyFact]) -> list[list[events.AnyFact]]:
    """The facts of each run. Facts between runs are left out."""
    runs: list[list[events.AnyFact]] = []
    is_open = False
    for fact in facts:
        if isinstance(fact, events.RunStarted):
            runs.append([])
            is_open = True
        if is_open:
            runs[-1].append(fact)
        is_open = is_open and not isinstance(fact, events.RunFinished)
    return runs


def build_steps(facts: Sequence[events.AnyFact], end: float = 0.0) -> list[Step]:
    """Build the steps of one run in the order of their start. What was not finished lasts until `end`, or else until
    the last fact.
    """
    end = max(end, facts[-1].at)
    spans = build_spans(facts)
    turns = {span.id: span.began.turn for span in spans if isinstance(span.began, events.TurnStarted)}
    waits, steps = _build_waits(facts, end), list[Step]()
    retries = {id(step.began): step.end for step in waits if step.kind == "provider"}
    for span in spans:
        if span.kind in ("model", "tool"):
            start = min(max(span.start, retries.get(id(span.began), 0.0)), span.end or end)
            kind, label = ("model" if span.kind == "model" else "tool"), span.name.removeprefix("execute_tool ")
            turn = turns.get(span.parent, 0)
            steps.append(Step(kind, label, start, span.end or end, span.ok, turn, span.began, span.ended))
    return sorted(steps + waits, key=lambda step: step.start)


def _build_waits(facts: Sequence[events.AnyFact], end: float) -> list[Step]:
    """Build the waits, and the calls that were answered without a start, such as denied ones."""
    steps: list[Step] = []
    asked: dict[str, tuple[events.ApprovalRequested | events.InputRequested, int]] = {}
    started: set[str] = set()
    turn = 0
    for fact in facts:
        match fact:
            case events.TurnStarted():
                turn = fact.turn
            case events.CallStarted():
                started.add(fact.call_id)
            case events.CallFinished() if fact.call_id not in started:
                steps.append(Step("tool", fact.tool, fact.at, fact.at, fact.status == "ok", turn, None, fact))
            case events.ApprovalRequested() | events.InputRequested():
                asked[fact.call_id] = fact, turn
            case events.ApprovalAnswered() | events.InputAnswered() if fact.call_id in asked:
                question, at_turn = asked.pop(fact.call_id)
                steps.append(_build_question(question, fact.at, at_turn, fact))
            case events.ModelFailed(wait=wait) if wait is not None:
                until = min(fact.at + wait, end)
                steps.append(Step("provider", fact.kind.replace("_", " "), fact.at, until, turn=turn, began=fact))
            case events.RetryRequested() if steps and steps[-1].kind == "provider":
                steps[-1] = replace(steps[-1], end=min(steps[-1].end, fact.at), ended=fact)
            case _:
                pass
    is_over = isinstance(facts[-1], events.RunFinished)
    return steps + [
        _build_question(question, end, at, facts[-1] if is_over else None) for question, at in asked.values()
    ]


def _build_question(
    question: events.ApprovalRequested | events.InputRequested, end: float, turn: int, ended: events.AnyFact | None
) -> Step:
    return Step("person", getattr(question, "tool", "question"), question.at, end, True, turn, question, ended)
