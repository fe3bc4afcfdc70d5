"""The state of a session as a page draws it: what was said, what runs, what waits, and what it has cost.

A view depends on nothing but the facts. The web page computes the same JSON from the same facts while it follows a
session, so a change here is a change there.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle import events
from treadle.engine.compaction import TODO
from treadle.engine.state import CallState, RunState, State, Turn
from treadle.messages import Json, Part, TextPart, Usage

COST_DIGITS = 9
"""Sums of costs are rounded: other languages add the same numbers with another last digit."""

StateStatus = Literal["idle", "running", "waiting", "retrying"]
CallStage = Literal["asked", "allowed", "running", "queued"]


class QueuedMessage(Struct, frozen=True):
    """A message that no run has taken yet."""

    id: str
    text: str
    mode: events.MessageMode


class RunView(Struct, frozen=True):
    """The current run and what it has used."""

    id: str
    turns: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float

    @classmethod
    def from_state(cls, run: RunState) -> RunView:
        used = run.usage
        return cls(run.id, run.turns, run.calls, used.input_tokens, used.output_tokens, round(used.cost, COST_DIGITS))


class LastRunView(Struct, frozen=True):
    """How the last run ended."""

    reason: events.EndReason
    error: str
    can_continue: bool
    answer: str

    @classmethod
    def from_fact(cls, fact: events.RunFinished) -> LastRunView:
        return cls(fact.reason, fact.error, fact.can_continue, fact.answer)


class StateMessage(Struct, frozen=True):
    """A message of the user that a run has taken, or the text of a reply."""

    role: Literal["user", "assistant"]
    text: str
    seq: int


class StateCall(Struct, frozen=True):
    """A call of the conversation. `status` is how it ended, or how far it has come."""

    id: str
    tool: str
    status: events.CallStatus | CallStage


class StateUsage(Struct, frozen=True):
    """The tokens and the cost of the whole session."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost: float

    @classmethod
    def from_usage(cls, used: Usage) -> StateUsage:
        cost = round(used.cost, COST_DIGITS)
        return cls(used.input_tokens, used.output_tokens, used.cached_tokens, used.reasoning_tokens, cost)


class StateView(Struct, frozen=True):
    """Everything that a page shows of a session at one position.

    `messages` and `calls` are those of the conversation as it is now. `pending` has the calls with an open question.
    `rewound` counts the rewinds and regenerations so far, and `compacted` the compactions in effect.
    """

    seq: int
    name: str
    agent: str
    model: str
    access: events.Tier | None
    pinned: bool
    archived: bool
    status: StateStatus
    queue: tuple[QueuedMessage, ...]
    run: RunView | None
    last: LastRunView | None
    messages: tuple[StateMessage, ...]
    calls: tuple[StateCall, ...]
    pending: tuple[str, ...]
    changed_files: tuple[str, ...]
    usage: StateUsage
    plan: Json
    retry_at: float | None
    rewound: int
    compacted: int


def build_state_view(state: State) -> StateView:
    """Build what a page shows of a state."""
    turns = [entry for entry in state.entries if isinstance(entry, Turn)]
    return StateView(
        seq=state.seq,
        name=state.name,
        agent=state.agent,
        model=state.model or (state.created.model if state.created is not None else ""),
        access=state.access,
        pinned=state.pinned,
        archived=state.archived,
        status=find_session_status(state),
        queue=tuple(QueuedMessage(fact.id, render_text(fact.parts), fact.mode) for fact in state.queue),
        run=RunView.from_state(state.run) if state.run is not None else None,
        last=LastRunView.from_fact(state.last) if state.last is not None else None,
        messages=tuple(list_state_messages(state)),
        calls=tuple(
            StateCall(call.call.id, call.call.tool, find_call_status(call))
            for turn in turns
            for call in turn.calls.values()
        ),
        pending=tuple(question.call_id for question in state.pending),
        changed_files=tuple(state.changed_files),
        usage=StateUsage.from_usage(state.usage),
        plan=state.notes.get(TODO),
        retry_at=state.retry_at,
        rewound=len(state.rewound),
        compacted=len(state.compacted),
    )


def render_text(parts: tuple[Part, ...]) -> str:
    """Render the text of a message, without what is attached to it."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def find_call_status(call: CallState) -> events.CallStatus | CallStage:
    """Find how a call ended, or how far it has come."""
    if call.finished is not None:
        return call.finished.status
    if call.pending is not None:
        return "asked"
    if call.started is not None:
        return "running"
    return "allowed" if call.answer is not None and call.answer.decision == "allow" else "queued"


def find_session_status(state: State) -> StateStatus:
    """Find what the session does now."""
    if state.pending:
        return "waiting"
    if state.retry_at is not None:
        return "retrying"
    return "running" if state.run is not None else "idle"


def list_state_messages(state: State) -> list[StateMessage]:
    """List the messages that were taken and the texts of replies, in the conversation as it is now."""
    messages: list[StateMessage] = []
    for entry in state.entries:
        match entry:
            case events.MessageReceived():
                messages.append(StateMessage("user", render_text(entry.parts), entry.seq))
            case Turn(reply=events.ModelReplied() as reply) if reply.text:
                messages.append(StateMessage("assistant", reply.text, reply.seq))
            case _:
                pass
    return messages
