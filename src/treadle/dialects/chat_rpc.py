"""The chat of JSON-RPC clients: `agents.chat.event` notifications of kind token, tool_call, tool_result,
approval_pending, done and error. The envelope of JSON-RPC itself is in jsonrpc.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from treadle.dialects.base import Pieces, approval_id, asked
from treadle.events import (
    LIMIT_REASONS,
    ApprovalRequested,
    CallFinished,
    Event,
    InputRequested,
    ModelFailed,
    ModelReplied,
    RunFinished,
    RunStarted,
    TextDelta,
    TurnStarted,
)
from treadle.messages import Json

METHOD = "agents.chat.event"
Status: TypeAlias = Literal["success", "max_turns", "error", "cancelled"]


class ChatEvent(Struct, frozen=True, omit_defaults=True, tag_field="kind"):
    """The `params` of one notification."""

    session_id: str


class Token(ChatEvent, frozen=True, tag="token"):
    text: str


class ToolCall(ChatEvent, frozen=True, tag="tool_call"):
    id: str
    name: str
    arguments: str


class ToolResult(ChatEvent, frozen=True, tag="tool_result"):
    id: str
    name: str
    ok: bool
    status: str
    output: str


class ApprovalPending(ChatEvent, frozen=True, tag="approval_pending"):
    """`questions` are there when the model asks for words, not for leave, and `options` where it suggests some."""

    approval_id: str
    call_id: str
    tool: str
    arguments: dict[str, Json]
    safety: str = ""
    why: str = ""
    digest: str = ""
    expires_at: float | None = None
    questions: tuple[str, ...] = ()
    options: tuple[tuple[str, ...], ...] = ()


class Done(ChatEvent, frozen=True, tag="done"):
    """`status` is one of four; `reason` says it exactly. A limit is never a success."""

    status: Status
    summary: str
    turns: int
    tools_called: tuple[str, ...]
    reason: str = ""
    can_continue: bool = False


class Error(ChatEvent, frozen=True, tag="error"):
    message: str
    recoverable: bool = False


class Notification(Struct, frozen=True):
    """A chat event as JSON-RPC carries it."""

    params: ChatEvent
    jsonrpc: str = "2.0"
    method: str = METHOD


class ChatRpcDialect:
    """Turns one session's events into notifications."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._called: list[str] = []
        self._pieces = Pieces()

    def feed(self, event: Event) -> Sequence[Notification]:
        """The notifications that one of our events amounts to."""
        return tuple(Notification(one) for one in self._events(event))

    def _events(self, event: Event) -> Sequence[ChatEvent]:
        session_id = self._session_id
        match event:
            case TextDelta():
                self._pieces.add(event.text)
                return (Token(session_id, event.text),)
            case RunStarted():
                self._called.clear()
            case TurnStarted():
                self._pieces.clear()
            case ModelReplied():
                self._called.extend(call.tool for call in event.calls)
                rest = self._pieces.rest(event.text)
                said = (Token(session_id, rest),) if rest else ()
                calls = (ToolCall(session_id, call.id, call.tool, call.arguments) for call in event.calls)
                return (*said, *calls)
            case CallFinished():
                ok = event.status == "ok"
                return (ToolResult(session_id, event.call_id, event.tool, ok, event.status, event.output),)
            case ApprovalRequested() | InputRequested():
                return (self._pending(event),)
            case ModelFailed():
                self._pieces.clear()
                if event.wait is not None:
                    return (Error(session_id, event.message, recoverable=True),)
            case RunFinished():
                done = Done(
                    session_id,
                    status_of(event),
                    event.answer,
                    event.turns,
                    tuple(self._called),
                    event.reason,
                    event.can_continue,
                )
                return (Error(session_id, event.error), done) if event.reason == "failed" else (done,)
            case _:
                pass
        return ()

    def _pending(self, fact: ApprovalRequested | InputRequested) -> ApprovalPending:
        name = approval_id(self._session_id, fact.call_id)
        what = asked(fact)
        return ApprovalPending(
            self._session_id,
            name,
            fact.call_id,
            what.tool,
            what.arguments,
            what.safety,
            what.why,
            what.digest,
            fact.expires_at,
            what.questions,
            what.options,
        )


def status_of(fact: RunFinished) -> Status:
    """The four-valued status of an ending."""
    if fact.reason in ("answered", "yielded"):
        return "success"
    if fact.reason in LIMIT_REASONS:
        return "max_turns"
    return "cancelled" if fact.reason == "cancelled" else "error"
