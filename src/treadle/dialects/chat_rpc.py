"""The chat of JSON-RPC clients: `agents.chat.event` notifications of kind token, tool_call, tool_result,
approval_pending, done and error. The envelope of JSON-RPC itself is in jsonrpc.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from treadle.dialects.base import ReplyText, build_approval_id, describe_question
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

EVENT_METHOD = "agents.chat.event"
ChatOutcome: TypeAlias = Literal["success", "max_turns", "error", "cancelled"]


class ChatEvent(Struct, frozen=True, omit_defaults=True, tag_field="kind"):
    """The `params` of one notification."""

    session_id: str


class ChatToken(ChatEvent, frozen=True, tag="token"):
    text: str


class ChatToolCall(ChatEvent, frozen=True, tag="tool_call"):
    id: str
    name: str
    arguments: str


class ChatToolResult(ChatEvent, frozen=True, tag="tool_result"):
    id: str
    name: str
    ok: bool
    status: str
    output: str


class ChatApprovalPending(ChatEvent, frozen=True, tag="approval_pending"):
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


class ChatDone(ChatEvent, frozen=True, tag="done"):
    """`status` is one of four; `reason` says it exactly. A limit is never a success."""

    status: ChatOutcome
    summary: str
    turns: int
    tools_called: tuple[str, ...]
    reason: str = ""
    can_continue: bool = False


class ChatError(ChatEvent, frozen=True, tag="error"):
    message: str
    recoverable: bool = False


class ChatNotification(Struct, frozen=True):
    """A chat event as JSON-RPC carries it."""

    params: ChatEvent
    jsonrpc: str = "2.0"
    method: str = EVENT_METHOD


class ChatRpcDialect:
    """Turns one session's events into notifications."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._called: list[str] = []
        self._pieces = ReplyText()

    def feed(self, event: Event) -> Sequence[ChatNotification]:
        """The notifications that one of our events amounts to."""
        return tuple(ChatNotification(one) for one in self._events(event))

    def _events(self, event: Event) -> Sequence[ChatEvent]:
        session_id = self._session_id
        match event:
            case TextDelta():
                self._pieces.add(event.text)
                return (ChatToken(session_id, event.text),)
            case RunStarted():
                self._called.clear()
            case TurnStarted():
                self._pieces.clear()
            case ModelReplied():
                self._called.extend(call.tool for call in event.calls)
                rest = self._pieces.take_rest(event.text)
                said = (ChatToken(session_id, rest),) if rest else ()
                calls = (ChatToolCall(session_id, call.id, call.tool, call.arguments) for call in event.calls)
                return (*said, *calls)
            case CallFinished():
                ok = event.status == "ok"
                return (ChatToolResult(session_id, event.call_id, event.tool, ok, event.status, event.output),)
            case ApprovalRequested() | InputRequested():
                return (self._pending(event),)
            case ModelFailed():
                self._pieces.clear()
                if event.wait is not None:
                    return (ChatError(session_id, event.message, recoverable=True),)
            case RunFinished():
                done = ChatDone(
                    session_id,
                    classify_ending(event),
                    event.answer,
                    event.turns,
                    tuple(self._called),
                    event.reason,
                    event.can_continue,
                )
                return (ChatError(session_id, event.error), done) if event.reason == "failed" else (done,)
            case _:
                pass
        return ()

    def _pending(self, fact: ApprovalRequested | InputRequested) -> ChatApprovalPending:
        name = build_approval_id(self._session_id, fact.call_id)
        what = describe_question(fact)
        return ChatApprovalPending(
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


def classify_ending(fact: RunFinished) -> ChatOutcome:
    """The four-valued status of an ending."""
    if fact.reason in ("answered", "yielded"):
        return "success"
    if fact.reason in LIMIT_REASONS:
        return "max_turns"
    return "cancelled" if fact.reason == "cancelled" else "error"
