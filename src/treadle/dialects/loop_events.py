"""The agentic loop as thirteen events (`POST /api/agent/run`): loop, iteration, generation, tools, signals.

Each is sent as `{"event": name, "data": {…}}`. A turn is an iteration here, and a fact is never told twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from treadle.dialects.base import describe_question
from treadle.events import (
    ApprovalRequested,
    CallFinished,
    CallStarted,
    CancelRequested,
    ContextCompacted,
    EndReason,
    Event,
    Fact,
    Grant,
    InputRequested,
    Limits,
    ModelFailed,
    ModelReplied,
    RunFinished,
    RunStarted,
    SessionCreated,
    SignalDetected,
    TextDelta,
    TurnStarted,
)
from treadle.messages import Json

IterationOutcome: TypeAlias = Literal[
    "continue", "answer", "yielded", "stuck", "limit", "cancelled", "failed", "interrupted"
]


class LoopEvent(Struct, frozen=True, omit_defaults=True):
    """The `data` of one event."""


class LoopConfig(Struct, frozen=True, omit_defaults=True):
    """What the loop may use and run."""

    max_iterations: int
    max_tool_calls: int
    max_tokens: int | None
    auto_approve: tuple[str, ...]
    forbidden: tuple[str, ...]
    max_seconds: float | None = None
    working_dir: str = ""


class LoopStarted(LoopEvent, frozen=True):
    session_id: str
    config: LoopConfig
    run_id: str = ""
    trigger: str = "message"


class IterationStarted(LoopEvent, frozen=True):
    """`wrap_up` names the limit that was reached: the last iteration, without tools."""

    iteration: int
    wrap_up: str = ""


class IterationCompleted(LoopEvent, frozen=True):
    iteration: int
    outcome: IterationOutcome


class TokenGenerated(LoopEvent, frozen=True):
    token: str


class GenerationCompleted(LoopEvent, frozen=True):
    content: str
    tokens: int
    reasoning: str = ""
    model: str = ""


class ToolCallDetected(LoopEvent, frozen=True):
    call_id: str
    tool: str
    arguments: str = "{}"


class ToolApprovalRequired(LoopEvent, frozen=True):
    """Somebody must allow the call or, where there are `questions`, answer them; `options` are suggested for each."""

    call_id: str
    tool: str
    arguments: dict[str, Json]
    safety: str = ""
    why: str = ""
    rule: str = ""
    digest: str = ""
    expires_at: float | None = None
    questions: tuple[str, ...] = ()
    options: tuple[tuple[str, ...], ...] = ()


class ToolExecutionStarted(LoopEvent, frozen=True):
    call_id: str
    tool: str
    arguments: dict[str, Json]
    attempt: int = 1


class LoopToolResult(Struct, frozen=True):
    status: str
    data: str


class ToolExecutionCompleted(LoopEvent, frozen=True):
    call_id: str
    result: LoopToolResult
    tool: str = ""
    duration: float = 0.0
    artifact: str = ""


class MetaSignalDetected(LoopEvent, frozen=True):
    signal: str
    detail: str = ""


class ContextCompressed(LoopEvent, frozen=True):
    strategy: str
    saved_tokens: int


class LoopError(LoopEvent, frozen=True):
    message: str
    recoverable: bool
    retry_in: float | None = None


class Termination(Struct, frozen=True, omit_defaults=True):
    """Why the loop ended. `detail` is the ending as our own log names it; empty where the log has none yet.

    `answer` and `confidence` are there with `answer_provided`, which has no confidence (null) where none was told.
    """

    kind: Literal["natural", "resource", "external", "error"]
    reason: str
    detail: str
    answer: str | UnsetType = UNSET
    confidence: float | UnsetType | None = UNSET
    message: str = ""


class LoopSummary(Struct, frozen=True):
    termination: Termination
    iterations_completed: int
    tool_calls_made: int
    tokens_generated: int
    wall_time: float
    partial_answer: str | None
    can_resume: bool
    continuation_token: str | None


class LoopCompleted(LoopEvent, frozen=True):
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


_OUTCOMES: dict[EndReason, IterationOutcome] = {
    "answered": "answer",
    "yielded": "yielded",
    "stuck": "stuck",
    "cancelled": "cancelled",
    "failed": "failed",
}
_RESOURCES: dict[EndReason, str] = {
    "turn_limit": "max_iterations",
    "token_limit": "token_budget_exhausted",
    "cost_limit": "token_budget_exhausted",
    "time_limit": "wall_time_exceeded",
    "call_limit": "tool_call_limit_reached",
    "doom_loop": "tool_call_limit_reached",
}
RUN_CONTINUES_LATER = "the server is shutting down; the run is not lost, it goes on when the server is started again"


class LoopDialect:
    """Turns one session's events into loop events. Give it the session's first fact, or feed it from there."""

    def __init__(self, created: SessionCreated | None = None) -> None:
        self._created = created
        self._iteration = 0
        self._open = False
        self._started_at = self._latest = 0.0
        self._calls = self._tokens = 0
        self._cancelled_by = ""

    def feed(self, event: Event) -> Sequence[LoopEnvelope]:
        """The loop events that one of ours amounts to."""
        if type(event) is TextDelta:  # nearly all events are this one
            return (_sent(TokenGenerated(event.text)),)
        if isinstance(event, Fact):
            self._latest = event.at
        match event:
            case SessionCreated():
                self._created = event
            case RunStarted():
                self._started_at, self._iteration, self._cancelled_by = event.at, 0, ""
                self._calls = self._tokens = 0
                return (_sent(self._loop_started(event)),)
            case TurnStarted():
                closing = self._close("continue")
                self._iteration, self._open = event.turn, True
                return (*closing, _sent(IterationStarted(event.turn, event.wrap_up or "")))
            case CancelRequested():
                self._cancelled_by = event.by
            case RunFinished():
                return self._finished(event)
            case _:
                self._count(event)
                return tuple(_sent(one) for one in _plain(event))
        return ()

    def end_for_shutdown(self) -> Sequence[LoopEnvelope]:
        """The end of a stream whose run is not over, because the server shuts down: it goes on by itself later."""
        summary = LoopSummary(
            termination=Termination("external", "system_shutdown", "", message=RUN_CONTINUES_LATER),
            iterations_completed=max(0, self._iteration - self._open),
            tool_calls_made=self._calls,
            tokens_generated=self._tokens,
            wall_time=self._wall_time(self._latest),
            partial_answer=None,
            can_resume=True,
            continuation_token=None,
        )
        return (*self._close("interrupted"), _sent(LoopCompleted(summary)))

    def _count(self, event: Event) -> None:
        match event:
            case ModelReplied():
                self._tokens += event.usage.output_tokens
            case CallStarted() if event.attempt == 1:
                self._calls += 1
            case _:
                pass

    def _wall_time(self, now: float) -> float:
        return round(max(0.0, now - self._started_at), 3) if self._started_at else 0.0

    def _loop_started(self, fact: RunStarted) -> LoopStarted:
        created = self._created
        grant = created.grants[-1] if created is not None and created.grants else Grant()
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

    def _close(self, outcome: IterationOutcome) -> tuple[LoopEnvelope, ...]:
        if not self._open:
            return ()
        self._open = False
        return (_sent(IterationCompleted(self._iteration, outcome)),)

    def _finished(self, fact: RunFinished) -> Sequence[LoopEnvelope]:
        closing = self._close(_OUTCOMES.get(fact.reason, "limit"))
        failed = (_sent(LoopError(fact.error, recoverable=False)),) if fact.reason == "failed" else ()
        summary = LoopSummary(
            termination=self._termination(fact),
            iterations_completed=fact.turns,
            tool_calls_made=fact.calls,
            tokens_generated=fact.usage.output_tokens,
            wall_time=self._wall_time(fact.at),
            partial_answer=None if fact.reason == "answered" else fact.answer or None,
            can_resume=fact.can_continue,
            continuation_token=build_continuation_token(self._session_id, fact) if fact.can_continue else None,
        )
        return (*closing, *failed, _sent(LoopCompleted(summary)))

    def _termination(self, fact: RunFinished) -> Termination:
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


def build_continuation_token(session_id: str, fact: RunFinished) -> str:
    """Names the ending after which to go on: it can be used once, since going on moves the log."""
    return f"{session_id}.{fact.seq}"


def build_limits(max_iterations: int = 10, max_tool_calls: int = 50, max_tokens: int = 16384) -> Limits:
    """The budget of a run in this dialect's own words and with its own defaults."""
    return Limits(turns=max_iterations, calls=max_tool_calls, tokens=max_tokens)


def _sent(event: LoopEvent) -> LoopEnvelope:
    return LoopEnvelope(EVENT_NAMES[type(event)], event)


def _plain(event: Event) -> Sequence[LoopEvent]:
    """What needs no memory of what came before."""
    match event:
        case ModelReplied():
            detected = (ToolCallDetected(call.id, call.tool, call.arguments) for call in event.calls)
            reply = GenerationCompleted(event.text, event.usage.output_tokens, event.reasoning, event.model)
            return (reply, *detected)
        case ModelFailed():
            return _failure(event)
        case ApprovalRequested() | InputRequested():
            return (_question(event),)
        case CallStarted():
            return (ToolExecutionStarted(event.call_id, event.tool, event.arguments, event.attempt),)
        case CallFinished():
            artifact = event.truncation.artifact if event.truncation is not None else ""
            result = LoopToolResult(event.status, event.output)
            return (ToolExecutionCompleted(event.call_id, result, event.tool, event.duration, artifact),)
        case SignalDetected():
            return (MetaSignalDetected(event.kind, event.detail),)
        case ContextCompacted():
            saved = max(0, event.tokens_before - event.tokens_after)
            return (ContextCompressed(event.kind, saved),)
        case _:
            return ()


def _failure(fact: ModelFailed) -> Sequence[LoopEvent]:
    """A failure without another attempt is told by the ending, once."""
    if fact.wait is None:
        return ()
    return (LoopError(fact.message, recoverable=True, retry_in=round(fact.wait, 3)),)


def _question(fact: ApprovalRequested | InputRequested) -> ToolApprovalRequired:
    what = describe_question(fact)
    return ToolApprovalRequired(
        fact.call_id,
        what.tool,
        what.arguments,
        what.safety,
        what.why,
        what.rule,
        what.digest,
        fact.expires_at,
        what.questions,
        what.options,
    )


def encode_envelope(envelope: LoopEnvelope) -> bytes:
    """The JSON of a loop event as it stands in `data:`."""
    return msgspec.json.encode(envelope)
