"""The agentic loop as thirteen events (`POST /api/agent/run`): loop, iteration, generation, tools, signals.

Each is sent as `{"event": name, "data": {…}}`. A turn is called an iteration here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from treadle import events
from treadle.dialects.base import CallFields, EventTracker, QuestionFields, describe_question
from treadle.messages import Json

IterationOutcome: TypeAlias = Literal[
    "continue", "answer", "yielded", "stuck", "limit", "cancelled", "failed", "interrupted"
]


class LoopConfig(Struct, frozen=True, omit_defaults=True):
    """What the loop may use and run."""

    max_iterations: int
    max_tool_calls: int
    max_tokens: int | None
    auto_approve: tuple[str, ...]
    forbidden: tuple[str, ...]
    max_seconds: float | None = None
    working_dir: str = ""


class LoopToolResult(Struct, frozen=True):
    """What a tool call gave. A result whose output was cut is a `partial_success`.

    `treadle_status` is the status in our own log.
    """

    status: Literal["success", "partial_success", "failure", "denied"]
    data: str
    treadle_status: str


class Termination(Struct, frozen=True, omit_defaults=True):
    """Why the loop ended. `detail` is the reason in our own log, and empty when the log has none yet.

    Only `answer_provided` has `answer` and `confidence`. The confidence is null when the model gave none.
    """

    kind: Literal["natural", "resource", "external", "error"]
    reason: str
    detail: str
    answer: str | UnsetType = UNSET
    confidence: float | UnsetType | None = UNSET
    message: str = ""


class LoopSummary(Struct, frozen=True):
    """How the loop went, and whether it can go on."""

    termination: Termination
    iterations_completed: int
    tool_calls_made: int
    tokens_generated: int
    wall_time: float
    partial_answer: str | None
    can_resume: bool
    continuation_token: str | None


class LoopEvent(Struct, frozen=True, omit_defaults=True):
    """The `data` of one event."""


class LoopStarted(LoopEvent, frozen=True):
    """A run begins."""

    session_id: str
    config: LoopConfig
    run_id: str = ""
    trigger: str = "message"


class IterationStarted(LoopEvent, frozen=True):
    """A turn begins. `wrap_up` names the limit that was reached: this is the last turn, without tools."""

    iteration: int
    wrap_up: str = ""


class ContextCompressed(LoopEvent, frozen=True):
    """Older turns were shortened to make room."""

    strategy: str
    saved_tokens: int


class TokenGenerated(LoopEvent, frozen=True):
    """A fragment of the reply's text."""

    token: str


class LoopError(LoopEvent, frozen=True):
    """Something failed. `retry_in` is there when the model is asked again."""

    message: str
    recoverable: bool
    retry_in: float | None = None


class GenerationCompleted(LoopEvent, frozen=True):
    """The model's reply is whole."""

    content: str
    tokens: int
    reasoning: str = ""
    model: str = ""


class MetaSignalDetected(LoopEvent, frozen=True):
    """The model or the runtime signalled something, such as `stuck`."""

    signal: str
    detail: str = ""


class ToolCallDetected(CallFields, LoopEvent, frozen=True):
    """The model calls a tool. `arguments` is the JSON text that it wrote."""

    arguments: str = "{}"


class ToolApprovalRequired(QuestionFields, LoopEvent, frozen=True):
    """A person must allow the call or answer `questions`."""


class ToolExecutionStarted(CallFields, LoopEvent, frozen=True):
    """A tool runs."""

    arguments: dict[str, Json]
    attempt: int = 1


class ToolExecutionCompleted(LoopEvent, frozen=True):
    """A tool call has ended. `artifact` names the whole output where it was cut."""

    call_id: str
    result: LoopToolResult
    tool: str = ""
    duration: float = 0.0
    artifact: str = ""


class IterationCompleted(LoopEvent, frozen=True):
    """A turn is over."""

    iteration: int
    outcome: IterationOutcome


class LoopCompleted(LoopEvent, frozen=True):
    """The run is over."""

    summary: LoopSummary


EVENT_NAMES: dict[type[LoopEvent], str] = {
    LoopStarted: "loop_started",
    IterationStarted: "iteration_started",
    IterationCompleted: "iteration_completed",
    LoopCompleted: "loop_completed",
    TokenGenerated: "token_generated",
    GenerationCompleted: "generation_completed",
    ToolCallDetected: "tool_call_detected",
    ToolExecutionStarted: "tool_execution_started",
    ToolExecutionCompleted: "tool_execution_completed",
    ToolApprovalRequired: "tool_approval_required",
    MetaSignalDetected: "meta_signal_detected",
    ContextCompressed: "context_compressed",
    LoopError: "error",
}


class LoopEnvelope(Struct, frozen=True):
    """A loop event as it is sent."""

    event: str
    data: LoopEvent


_OUTCOMES: dict[events.EndReason, IterationOutcome] = {
    "answered": "answer",
    "yielded": "yielded",
    "stuck": "stuck",
    "cancelled": "cancelled",
    "failed": "failed",
}
_RESOURCES: dict[events.EndReason, str] = {
    "turn_limit": "max_iterations",
    "token_limit": "token_budget_exhausted",
    "cost_limit": "token_budget_exhausted",
    "time_limit": "wall_time_exceeded",
    "call_limit": "tool_call_limit_reached",
    "doom_loop": "tool_call_limit_reached",
}
# A call that exceeds the budget is refused. It has not run, like a denied one.
_RESULT_STATUSES: dict[events.CallStatus, Literal["success", "failure", "denied"]] = {
    "ok": "success",
    "denied": "denied",
    "refused": "denied",
}
RUN_CONTINUES_LATER = "The server is shutting down. The run is not lost: it goes on when the server starts again."


class LoopDialect:
    """Turns one session's events into loop events. Give it the session's first fact, or feed it from there."""

    def __init__(self, created: events.SessionCreated | None = None) -> None:
        self._created = created
        self._iteration = 0
        self._is_iteration_open = False
        self._started_at = self._latest_at = 0.0
        self._cancelled_by = ""
        self._tracker = EventTracker()

    def feed(self, event: events.Event) -> Sequence[LoopEnvelope]:
        if type(event) is events.TextDelta:  # nearly all events are fragments, and this dialect keeps no text
            return (_wrap(TokenGenerated(event.text)),)
        self._tracker.track(event)
        if isinstance(event, events.Fact):
            self._latest_at = event.at
        match event:
            case events.SessionCreated():
                self._created = event
            case events.RunStarted():
                self._started_at, self._iteration, self._cancelled_by = event.at, 0, ""
                return (_wrap(self._start_loop(event)),)
            case events.TurnStarted():
                completed = self._complete_iteration("continue")
                self._iteration, self._is_iteration_open = event.turn, True
                return (*completed, _wrap(IterationStarted(event.turn, event.wrap_up or "")))
            case events.CancelRequested():
                self._cancelled_by = event.by
            case events.RunFinished():
                return self._finish_run(event)
            case _:
                return tuple(_wrap(loop_event) for loop_event in _translate(event))
        return ()

    def end_for_shutdown(self) -> Sequence[LoopEnvelope]:
        """End the stream of an unfinished run because the server shuts down. The run goes on later."""
        summary = LoopSummary(
            termination=Termination("external", "system_shutdown", "", message=RUN_CONTINUES_LATER),
            iterations_completed=max(0, self._iteration - self._is_iteration_open),
            tool_calls_made=self._tracker.calls_started,
            tokens_generated=self._tracker.output_tokens,
            wall_time=self._measure_time(self._latest_at),
            partial_answer=None,
            can_resume=True,
            continuation_token=None,
        )
        return (*self._complete_iteration("interrupted"), _wrap(LoopCompleted(summary)))

    def _measure_time(self, now: float) -> float:
        return round(max(0.0, now - self._started_at), 3) if self._started_at else 0.0

    def _start_loop(self, fact: events.RunStarted) -> LoopStarted:
        created = self._created
        grant = created.grants[-1] if created is not None and created.grants else events.Grant()
        config = LoopConfig(
            max_iterations=fact.limits.turns,
            max_tool_calls=fact.limits.calls,
            max_tokens=fact.limits.tokens,
            auto_approve=grant.approve,
            forbidden=grant.forbid,
            max_seconds=fact.limits.seconds,
            working_dir=created.workspace if created is not None else "",
        )
        return LoopStarted(self._session_id, config, fact.run_id, fact.trigger)

    @property
    def _session_id(self) -> str:
        return self._created.session_id if self._created is not None else ""

    def _complete_iteration(self, outcome: IterationOutcome) -> tuple[LoopEnvelope, ...]:
        if not self._is_iteration_open:
            return ()
        self._is_iteration_open = False
        return (_wrap(IterationCompleted(self._iteration, outcome)),)

    def _finish_run(self, fact: events.RunFinished) -> Sequence[LoopEnvelope]:
        completed = self._complete_iteration(_OUTCOMES.get(fact.reason, "limit"))
        failed = (_wrap(LoopError(fact.error, recoverable=False)),) if fact.reason == "failed" else ()
        summary = LoopSummary(
            termination=self._describe_ending(fact),
            iterations_completed=fact.turns,
            tool_calls_made=fact.calls,
            tokens_generated=fact.usage.output_tokens,
            wall_time=self._measure_time(fact.at),
            partial_answer=None if fact.reason == "answered" else fact.answer or None,
            can_resume=fact.can_continue,
            continuation_token=build_continuation_token(self._session_id, fact) if fact.can_continue else None,
        )
        return (*completed, *failed, _wrap(LoopCompleted(summary)))

    def _describe_ending(self, fact: events.RunFinished) -> Termination:
        match fact.reason:
            case "answered" if not fact.answer:
                return Termination("natural", "task_complete", "answered")
            case "answered":
                return Termination("natural", "answer_provided", "answered", fact.answer, fact.confidence)
            case "yielded":
                return Termination("natural", "agent_yielded", "yielded")
            case "stuck":
                return Termination("natural", "agent_stuck", "stuck", message=fact.error)
            case "cancelled":
                reason = "operator_terminated" if self._cancelled_by == "operator" else "client_cancelled"
                return Termination("external", reason, "cancelled", message=fact.error)
            case "failed":
                return Termination("error", "failed", "failed", message=fact.error)
            case _:
                return Termination("resource", _RESOURCES[fact.reason], fact.reason)


def build_continuation_token(session_id: str, fact: events.RunFinished) -> str:
    """Name the ending after which to go on. It works once, because going on moves the log."""
    return f"{session_id}.{fact.seq}"


def _wrap(event: LoopEvent) -> LoopEnvelope:
    return LoopEnvelope(EVENT_NAMES[type(event)], event)


def _translate(event: events.Event) -> Sequence[LoopEvent]:
    """The loop events of an event that needs no memory."""
    match event:
        case events.ModelReplied():
            detected = (ToolCallDetected(call.id, call.tool, call.arguments) for call in event.calls)
            reply = GenerationCompleted(event.text, event.usage.output_tokens, event.reasoning, event.model)
            return (reply, *detected)
        case events.ModelFailed() if event.wait is not None:  # the run's end reports a failure that is not retried
            return (LoopError(event.message, recoverable=True, retry_in=round(event.wait, 3)),)
        case events.ApprovalRequested() | events.InputRequested():
            return (ToolApprovalRequired(**describe_question(event)),)
        case events.CallStarted():
            return (ToolExecutionStarted(event.call_id, event.tool, event.arguments, event.attempt),)
        case events.CallFinished():
            return (_complete_execution(event),)
        case events.SignalDetected():
            return (MetaSignalDetected(event.kind, event.detail),)
        case events.ContextCompacted():
            return (ContextCompressed(event.kind, max(0, event.tokens_before - event.tokens_after)),)
        case _:
            return ()


def _complete_execution(fact: events.CallFinished) -> ToolExecutionCompleted:
    status, artifact = _RESULT_STATUSES.get(fact.status, "failure"), ""
    if fact.truncation is not None:
        status, artifact = "partial_success" if status == "success" else status, fact.truncation.artifact
    result = LoopToolResult(status, fact.output, fact.status)
    return ToolExecutionCompleted(fact.call_id, result, fact.tool, fact.duration, artifact)
