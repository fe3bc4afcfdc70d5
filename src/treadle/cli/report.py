"""The result of a one-shot run: the exit code and the JSON document. Built from events, without I/O."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct, field

from treadle.events import (
    LIMIT_REASONS,
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    Event,
    InputAnswered,
    InputRequested,
    ModelReplied,
    RunFinished,
    TurnStarted,
)
from treadle.messages import Json, Usage

ANSWERED, FAILED, USAGE, STOPPED, UNANSWERED, CANCELLED = 0, 1, 2, 3, 4, 130
"""The exit codes. Scripts rely on them."""

NOBODY_ASKED = "the command line"
"""The author of a denial when no user can be asked. It separates these denials from those of a user."""

Status = Literal["answered", "stopped", "failed", "waiting", "denied", "cancelled"]


class CallReport(Struct, frozen=True):
    tool: str
    status: str


class Report(Struct, frozen=True):
    """The JSON document that `--json` prints."""

    session_id: str
    status: Status
    reason: str
    answer: str
    turns: int
    calls: tuple[CallReport, ...]
    denied: tuple[dict[str, Json], ...]
    pending: tuple[dict[str, Json], ...]
    usage: Usage
    cost: float
    error: str

    @property
    def exit_code(self) -> int:
        if self.reason == "usage":
            return USAGE
        codes: dict[Status, int] = {"answered": ANSWERED, "failed": FAILED, "stopped": STOPPED, "cancelled": CANCELLED}
        return codes.get(self.status, UNANSWERED)

    def encode(self) -> bytes:
        """Encode the document as one line of UTF-8. It contains every usage field, even if it is zero."""
        usage = {name: getattr(self.usage, name) for name in Usage.__struct_fields__ if name != "cost"}
        return msgspec.json.encode({**msgspec.structs.asdict(self), "usage": usage}) + b"\n"


class ReportBuilder(Struct):
    """Collects the events of a run. `refused` are the questions, also of helpers, that no user could answer."""

    calls: list[CallReport] = field(default_factory=list[CallReport])
    denied: dict[str, dict[str, Json]] = field(default_factory=dict[str, dict[str, Json]])
    asked: dict[str, ApprovalRequested | InputRequested] = field(
        default_factory=dict[str, ApprovalRequested | InputRequested]
    )
    refused: list[ApprovalRequested | InputRequested] = field(default_factory=list[ApprovalRequested | InputRequested])
    turns: int = 0
    usage: Usage = Usage()

    def handle_event(self, event: Event) -> None:
        match event:
            case TurnStarted():
                self.turns += 1
            case ModelReplied():
                self.usage += event.usage
            case ApprovalRequested() | InputRequested():
                self.asked[event.call_id] = event
            case ApprovalAnswered() | InputAnswered():
                self._answered(event)
            case CallFinished():
                self.asked.pop(event.call_id, None)
                self.calls.append(CallReport(event.tool, event.status))
                self.usage += event.usage
                if event.status == "denied":
                    entry = {"tool": event.tool, "call_id": event.call_id, "why": event.output}
                    self.denied.setdefault(event.call_id, entry)
            case _:
                pass

    def _answered(self, answer: ApprovalAnswered | InputAnswered) -> None:
        question = self.asked.pop(answer.call_id, None)
        if question is None:
            return
        if answer.by != NOBODY_ASKED:  # somebody else answered first
            self.refused = [one for one in self.refused if one != question]
            return
        self.refused.append(question)
        self.denied[answer.call_id] = _describe_denied(question)

    def build_report(self, session_id: str, outcome: RunFinished | None) -> Report:
        """Build the report. Without an outcome the run waits for an answer."""
        pending = tuple(_describe_denied(question) for question in self.asked.values()) if outcome is None else ()
        status: Status = "waiting" if outcome is None else _status(outcome)
        if status == "answered" and self.refused:
            status = "denied"
        denied = [*self.denied.values()]
        denied.extend(
            entry for entry in map(_describe_denied, self.refused) if entry not in denied
        )  # the questions of helpers
        usage = outcome.usage if outcome is not None else self.usage
        return Report(
            session_id=session_id,
            status=status,
            reason="waiting" if outcome is None else outcome.reason,
            answer=outcome.answer if outcome is not None else "",
            turns=outcome.turns if outcome is not None else self.turns,
            calls=tuple(self.calls),
            denied=tuple(denied),
            pending=pending,
            usage=usage,
            cost=usage.cost,
            error=outcome.error if outcome is not None else "",
        )


def build_failure_report(reason: Literal["usage", "failed", "cancelled"], error: str, session_id: str = "") -> Report:
    """Build the report of a run that did not start."""
    status: Status = "cancelled" if reason == "cancelled" else "failed"
    return Report(session_id, status, reason, "", 0, (), (), (), Usage(), 0.0, error)


def _status(outcome: RunFinished) -> Status:
    if outcome.reason in ("answered", "failed", "cancelled"):
        return outcome.reason
    assert outcome.reason in LIMIT_REASONS or outcome.reason in ("stuck", "yielded")
    return "stopped"


def _describe_denied(question: ApprovalRequested | InputRequested) -> dict[str, Json]:
    if isinstance(question, ApprovalRequested):
        entry = {"tool": question.tool, "call_id": question.call_id, "arguments": question.arguments}
        return {**entry, "why": question.why, "rule": question.rule}
    return {"tool": "ask_user", "call_id": question.call_id, "questions": [one.text for one in question.questions]}
