"""The registry of sessions as four events: session_started, session_updated, agent_event and session_ended.

Each is sent as `{"event": name, "data": {…}}`. An agent event has its kind in `type`, its fields beside it, and the
same fields in an object under the kind's name. A turn is called an iteration here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from treadle import events
from treadle.dialects.base import parse_arguments
from treadle.messages import Json, render_parts

RunStatus: TypeAlias = Literal["running", "awaiting_approval", "completed", "failed", "cancelled"]
MAX_THOUGHT = 500
"""Characters of a thought. A longer text is cut and ends with "..."."""
COUNTED_FIELDS = ("iteration", "max_iterations", "thoughts", "tool_calls", "results", "errors")
"""The numbers that a registry shows of a session."""
_MAX_OBJECTIVE = 2000


class ThoughtFields(Struct, frozen=True):
    """The text of a reply."""

    content: str


class ToolCallFields(Struct, frozen=True):
    """A call that the model wants. `input` is an object, or the text of the model where it is no JSON object."""

    id: str
    name: str
    input: Json


class ToolResultFields(Struct, frozen=True):
    """The result of a call."""

    id: str
    output: str
    success: bool


class ErrorFields(Struct, frozen=True):
    """A model call that is tried again, or the failure that ended the run."""

    message: str


class AgentEvent(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """What the agent did. `seq` is the position of its fact."""

    session_id: str
    seq: int
    at: float


class ThoughtEvent(AgentEvent, frozen=True, tag="thought"):
    content: str
    thought: ThoughtFields


class ToolCallEvent(AgentEvent, frozen=True, tag="tool_call"):
    id: str
    name: str
    input: Json
    tool_call: ToolCallFields


class ToolResultEvent(AgentEvent, frozen=True, tag="tool_result"):
    """`status` is the word of our own log."""

    id: str
    output: str
    success: bool
    tool_result: ToolResultFields
    name: str = ""
    status: str = ""


class ErrorEvent(AgentEvent, frozen=True, tag="error"):
    message: str
    error: ErrorFields


class SessionCounts(Struct):
    """What a registry shows of one session, counted from its facts. `errors` counts failed calls, too."""

    seq: int = 0
    name: str = ""
    objective: str = ""
    tools: tuple[str, ...] = ()
    last: events.RunFinished | None = None
    iteration: int = 0
    max_iterations: int = 0
    thoughts: int = 0
    tool_calls: int = 0
    results: int = 0
    errors: int = 0

    def add(self, fact: events.AnyFact) -> None:
        """Count one fact."""
        self.seq = fact.seq
        match fact:
            case events.SessionCreated():
                self.tools = fact.agent.tools
            case events.SessionRenamed():
                self.name = fact.name
            case events.MessageReceived():
                self.objective = self.objective or render_parts(fact.parts)[:_MAX_OBJECTIVE]
            case events.RunStarted():
                self.iteration, self.max_iterations = 0, fact.limits.turns
            case events.TurnStarted():
                self.iteration = fact.turn
            case events.ModelReplied():
                self.thoughts += bool(fact.text)
                self.tool_calls += len(fact.calls)
            case events.ModelFailed():
                self.errors += fact.wait is not None
            case events.CallFinished():
                self.results += 1
                self.errors += fact.status not in ("ok", "denied", "refused")
            case events.RunFinished():
                self.last = fact
                self.errors += fact.reason == "failed"
            case _:
                pass


class SessionStarted(Struct, frozen=True):
    """A run of a session begins."""

    session_id: str
    run_id: str
    name: str
    objective: str
    tools: tuple[str, ...]
    status: RunStatus
    max_iterations: int


class SessionUpdated(Struct, frozen=True, omit_defaults=True):
    """A session reached its next iteration, waits for a person, or goes on.

    `call_id` is the call that waits or waited.
    """

    session_id: str
    status: RunStatus
    iteration: int
    max_iterations: int
    thoughts: int
    tool_calls: int
    results: int
    errors: int
    call_id: str = ""


class SessionEnded(Struct, frozen=True):
    """A run of a session is over. `reason` is the reason in our own log."""

    session_id: str
    status: RunStatus
    reason: str
    iterations: int


class RegistryEnvelope(Struct, frozen=True):
    """A registry event as it is sent."""

    event: Literal["session_started", "session_updated", "agent_event", "session_ended"]
    data: SessionStarted | SessionUpdated | AgentEvent | SessionEnded


class RegistryDialect:
    """Turns one session's facts into registry events. Feed it from the session's first fact on."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._counts = SessionCounts()
        self._queued: dict[str, events.MessageMode] = {}
        self._is_requested = self._is_held = False

    @property
    def will_go_on(self) -> bool:
        """Whether another run follows the one that ended, for a message that came meanwhile."""
        return self._is_requested or bool(self._queued and not self._is_held)

    def feed(self, event: events.Event) -> Sequence[RegistryEnvelope]:
        if isinstance(event, events.Delta):
            return ()
        counts = self._counts
        counts.add(event)
        match event:
            case events.MessageReceived():
                self._queued[event.id] = event.mode
                self._is_held = False
            case events.MessageEdited() if not event.parts:
                self._queued.pop(event.id, None)
            case events.RunRequested():
                self._is_requested, self._is_held = True, False
            case events.CancelRequested():  # messages that wait are kept for the next one
                self._is_requested, self._is_held = False, bool(self._queued)
            case events.RunStarted():
                self._is_requested = False
                about = (event.run_id, counts.name, counts.objective, counts.tools)
                started = SessionStarted(self._session_id, *about, "running", event.limits.turns)
                return (RegistryEnvelope("session_started", started),)
            case events.TurnStarted():
                for message_id in event.messages:
                    self._queued.pop(message_id, None)
                return (self._update("running"),)
            case events.ApprovalRequested() | events.InputRequested():
                return (self._update("awaiting_approval", event.call_id),)
            case events.ApprovalAnswered() | events.InputAnswered():
                return (self._update("running", event.call_id),)
            case _:
                did = [RegistryEnvelope("agent_event", one) for one in build_agent_events(self._session_id, event)]
                if isinstance(event, events.RunFinished):
                    if event.reason != "answered" and all(mode == "follow_up" for mode in self._queued.values()):
                        self._is_held = True
                    ended = SessionEnded(self._session_id, classify_run(event), event.reason, event.turns)
                    did.append(RegistryEnvelope("session_ended", ended))
                return did
        return ()

    def _update(self, status: RunStatus, call_id: str = "") -> RegistryEnvelope:
        numbers = {name: getattr(self._counts, name) for name in COUNTED_FIELDS}
        updated = SessionUpdated(session_id=self._session_id, status=status, call_id=call_id, **numbers)
        return RegistryEnvelope("session_updated", updated)


def build_agent_events(session_id: str, fact: events.AnyFact) -> Sequence[AgentEvent]:
    """Build the agent events of one fact: none, one or more."""
    head = (session_id, fact.seq, fact.at)
    match fact:
        case events.ModelReplied():
            read = ((call, parse_arguments(call.arguments)) for call in fact.calls)
            calls = [
                ToolCallFields(call.id, call.tool, call.arguments if value is None else value) for call, value in read
            ]
            text = fact.text if len(fact.text) <= MAX_THOUGHT else f"{fact.text[:MAX_THOUGHT]}..."
            thoughts = (ThoughtEvent(*head, text, ThoughtFields(text)),) if text else ()
            return (*thoughts, *(ToolCallEvent(*head, call.id, call.name, call.input, call) for call in calls))
        case events.CallFinished():
            result = ToolResultFields(fact.call_id, fact.output, fact.status == "ok")
            fields = (result.id, result.output, result.success, result)
            return (ToolResultEvent(*head, *fields, fact.tool, fact.status),)
        case events.ModelFailed() if fact.wait is not None:  # the run's end reports a failure that is not retried
            return (ErrorEvent(*head, fact.message, ErrorFields(fact.message)),)
        case events.RunFinished(reason="failed"):
            return (ErrorEvent(*head, fact.error, ErrorFields(fact.error)),)
        case _:
            return ()


def classify_run(fact: events.RunFinished) -> RunStatus:
    """One of the five statuses. A limit is a failure; handing the turn back is a success."""
    if fact.reason in ("answered", "yielded"):
        return "completed"
    return "cancelled" if fact.reason == "cancelled" else "failed"
