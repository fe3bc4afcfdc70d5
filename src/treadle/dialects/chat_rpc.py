"""The chat of JSON-RPC clients: `agents.chat.event` notifications of kind token, tool_call, tool_result,
approval_pending, done and error. The envelope of JSON-RPC itself is in jsonrpc.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from treadle import events
from treadle.dialects.base import EventTracker, QuestionFields, build_approval_id, describe_question, parse_arguments
from treadle.messages import Json

EVENT_METHOD = "agents.chat.event"
ChatOutcome: TypeAlias = Literal["success", "max_turns", "error", "cancelled"]


class ChatEvent(Struct, frozen=True, omit_defaults=True, tag_field="kind"):
    """The `params` of one notification."""

    session_id: str


class ChatToken(ChatEvent, frozen=True, tag="token"):
    """A fragment of the reply's text."""

    text: str


class ChatToolCall(ChatEvent, frozen=True, tag="tool_call"):
    """The model calls a tool. `arguments` is the JSON text that it wrote, and `params` is its value."""

    id: str
    name: str
    params: dict[str, Json]
    arguments: str


class ChatToolResult(ChatEvent, frozen=True, tag="tool_result"):
    """A tool call has ended. `output` is the same as `content`."""

    id: str
    name: str
    ok: bool
    status: str
    content: str
    output: str


class ChatApprovalPending(QuestionFields, frozen=True, kw_only=True, tag_field="kind", tag="approval_pending"):
    """A person must allow a call or answer `questions`."""

    session_id: str
    approval_id: str


class ChatDone(ChatEvent, frozen=True, tag="done"):
    """The run is over. `reason` says exactly how; a limit is never a success.

    `tools_called` are the tools of the successful calls.
    """

    status: ChatOutcome
    summary: str
    turns: int
    tools_called: tuple[str, ...]
    reason: str = ""
    can_continue: bool = False


class ChatError(ChatEvent, frozen=True, tag="error"):
    """The run failed and is over. No `done` follows."""

    message: str


class ChatNotification(Struct, frozen=True):
    """A chat event as JSON-RPC carries it."""

    params: ChatEvent | ChatApprovalPending
    jsonrpc: str = "2.0"
    method: str = EVENT_METHOD


class ChatRpcDialect:
    """Turns one session's events into notifications."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._tracker = EventTracker()

    def feed(self, event: events.Event) -> Sequence[ChatNotification]:
        return tuple(ChatNotification(params) for params in self._translate(event))

    def _translate(self, event: events.Event) -> Sequence[ChatEvent | ChatApprovalPending]:
        session_id = self._session_id
        text = self._tracker.track(event)
        tokens = (ChatToken(session_id, text),) if text else ()
        match event:
            case events.ModelReplied():
                calls = (
                    ChatToolCall(session_id, call.id, call.tool, parse_arguments(call.arguments) or {}, call.arguments)
                    for call in event.calls
                )
                return (*tokens, *calls)
            case events.CallFinished():
                ending = (event.status == "ok", event.status, event.output, event.output)
                return (ChatToolResult(session_id, event.call_id, event.tool, *ending),)
            case events.ApprovalRequested() | events.InputRequested():
                approval_id = build_approval_id(session_id, event.call_id)
                question = describe_question(event)
                return (ChatApprovalPending(session_id=session_id, approval_id=approval_id, **question),)
            case events.RunFinished(reason="failed"):
                return (ChatError(session_id, event.error),)
            case events.RunFinished():
                outcome, tools_called = classify_ending(event), tuple(self._tracker.tools_called)
                ending = (event.answer, event.turns, tools_called, event.reason, event.can_continue)
                return (ChatDone(session_id, outcome, *ending),)
            case _:
                return tokens


def classify_ending(fact: events.RunFinished) -> ChatOutcome:
    """One of the four outcomes of this dialect."""
    if fact.reason in ("answered", "yielded"):
        return "success"
    if fact.reason in events.LIMIT_REASONS:
        return "max_turns"
    return "cancelled" if fact.reason == "cancelled" else "error"
