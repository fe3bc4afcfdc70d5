"""A session as a list of messages that grows and changes: the frames of a chat page, and the user-wide channel.

Feed it from the session's first fact: what a regeneration or a rewind takes away is known from what came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import field

from treadle.dialects.base import Frame, build_approval_id, describe_question
from treadle.events import (
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    Event,
    InputAnswered,
    InputRequested,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ReasoningDelta,
    Rewound,
    RunFinished,
    RunStarted,
    SessionRenamed,
    TextDelta,
    TurnStarted,
)
from treadle.messages import FinishReason, Json, render_parts

Role: TypeAlias = Literal["user", "assistant", "system"]
ChatState: TypeAlias = Literal["streaming", "idle", "needs_you"]
_FINISH: dict[FinishReason, str] = {
    "stop": "stop",
    "calls": "tool_calls",
    "length": "length",
    "filter": "content_filter",
    "other": "stop",
}


class MessageStartedFrame(Frame, frozen=True, tag="message_started"):
    message_id: str
    role: Role
    started_at: float
    session_id: str = ""


class MessageDeltaFrame(Frame, frozen=True, tag="delta"):
    message_id: str
    text: str


class ReasoningDeltaFrame(Frame, frozen=True, tag="reasoning_delta"):
    message_id: str
    text: str


class ToolCallFrame(Frame, frozen=True, tag="tool_call"):
    message_id: str
    tool_call_id: str
    name: str
    arguments: str


class ToolResultFrame(Frame, frozen=True, tag="tool_result"):
    message_id: str
    tool_call_id: str
    name: str
    content: str
    ok: bool
    truncated: bool
    status: str = ""
    artifact_id: str = ""


class MessageCompleteFrame(Frame, frozen=True, tag="message_complete"):
    message_id: str
    role: Role
    content: str
    reason: str
    started_at: float
    finished_at: float
    reasoning: str = ""
    model: str = ""
    tokens_used: int | None = None
    ctx_used: int | None = None
    ctx_max: int | None = None
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])


class UsageFrame(Frame, frozen=True, tag="usage"):
    message_id: str
    tokens_used: int
    ctx_used: int
    ctx_max: int | None
    cost: float = 0.0


class MessagesDeletedFrame(Frame, frozen=True, tag="messages_deleted"):
    message_ids: tuple[str, ...]


class SessionRenamedFrame(Frame, frozen=True, tag="session_renamed"):
    session_id: str
    name: str


class ChatRenamedFrame(Frame, frozen=True, tag="chat_renamed"):
    chat_id: str
    name: str


class SessionRewoundFrame(Frame, frozen=True, tag="session_rewound"):
    """The conversation went back, or forward again: what is shown is best loaded anew."""

    session_id: str
    to: int


class MessageApprovalFrame(Frame, frozen=True, tag="approval_request"):
    id: str
    message_id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Json]
    safety: str = ""
    why: str = ""
    rule: str = ""
    digest: str = ""
    expires_at: float | None = None
    questions: tuple[str, ...] = ()
    options: tuple[tuple[str, ...], ...] = ()


class ApprovalAnsweredFrame(Frame, frozen=True, tag="approval_answered"):
    tool_call_id: str
    decision: str
    by: str = ""


class MessageErrorFrame(Frame, frozen=True, tag="error"):
    message: str
    message_id: str = ""
    reason: str = ""
    retry_in: float | None = None


class ChatStatusFrame(Frame, frozen=True, tag="chat_status"):
    session_id: str
    chat_id: str
    status: ChatState
    name: str = ""


class MessageFramesDialect:
    """Turns one session's events into message frames. A message is never left open: whatever ends it is told."""

    def __init__(self, session_id: str, window: int | None = None) -> None:
        self._session_id = session_id
        self._window = window
        self._open = ""
        self._last = ""
        self._started_at = 0.0
        self._text: list[str] = []
        self._shown: list[tuple[int, str, Role]] = []

    def feed(self, event: Event) -> Sequence[Frame]:
        """The frames that one of our events amounts to."""
        match event:
            case TextDelta():
                self._text.append(event.text)
                return (MessageDeltaFrame(self._open or self._last, event.text),)
            case ReasoningDelta():
                return (ReasoningDeltaFrame(self._open or self._last, event.text),)
            case MessageReceived():
                return self._whole(event.seq, event.id, "user", event.at, render_parts(event.parts), "received")
            case TurnStarted():
                return (*self._abandon(event.at, "interrupted"), self._start(event.seq, event.at))
            case ModelReplied():
                return self._replied(event)
            case ModelFailed():
                return self._failed(event)
            case CallFinished():
                return (self._result(event),)
            case RunFinished():
                return self._finished(event)
            case _:
                return self._about(event)

    def _about(self, event: Event) -> Sequence[Frame]:
        """What is told beside the messages."""
        match event:
            case RunStarted() if event.trigger == "regenerate":
                return self._delete_after_user()
            case Rewound() if event.what != "files":
                return (*self._delete_after(event.to), SessionRewoundFrame(self._session_id, event.to))
            case SessionRenamed():
                return (
                    SessionRenamedFrame(self._session_id, event.name),
                    ChatRenamedFrame(self._session_id, event.name),
                )
            case ApprovalRequested() | InputRequested():
                return (self._question(event),)
            case ApprovalAnswered():
                return (ApprovalAnsweredFrame(event.call_id, event.decision, event.by),)
            case InputAnswered():
                return (ApprovalAnsweredFrame(event.call_id, "answered", event.by),)
            case _:
                return ()

    def _start(self, seq: int, at: float) -> Frame:
        self._open = self._last = f"msg_{seq}"
        self._started_at = at
        self._text.clear()
        self._shown.append((seq, self._open, "assistant"))
        return MessageStartedFrame(self._open, "assistant", at, self._session_id)

    def _whole(self, seq: int, message_id: str, role: Role, at: float, text: str, reason: str) -> Sequence[Frame]:
        self._shown.append((seq, message_id, role))
        return (
            MessageStartedFrame(message_id, role, at, self._session_id),
            MessageCompleteFrame(message_id, role, text, reason, at, at),
        )

    def _replied(self, fact: ModelReplied) -> Sequence[Frame]:
        before = () if self._open else (self._start(fact.seq, fact.at),)
        message_id, self._open = self._open, ""
        calls = [ToolCallFrame(message_id, call.id, call.tool, call.arguments) for call in fact.calls]
        usage = fact.usage
        ctx_used = usage.input_tokens + usage.output_tokens
        complete = MessageCompleteFrame(
            message_id,
            "assistant",
            fact.text,
            _FINISH[fact.finish],
            self._started_at,
            fact.at,
            reasoning=fact.reasoning,
            model=fact.model,
            tokens_used=usage.output_tokens,
            ctx_used=ctx_used,
            ctx_max=self._window,
        )
        used = UsageFrame(message_id, usage.output_tokens, ctx_used, self._window, usage.cost)
        return (*before, *calls, complete, used)

    def _failed(self, fact: ModelFailed) -> Sequence[Frame]:
        message_id = self._open
        if fact.wait is None:
            reason = "cancelled" if fact.kind == "cancelled" else "failed"
            return self._abandon(fact.at, reason, fact.partial)
        # It is asked again, and answers from the beginning: what it said so far is taken back.
        gone = (*self._abandon(fact.at, "failed", fact.partial), *self._delete((message_id,)))
        error = MessageErrorFrame(fact.message, message_id, fact.kind, round(fact.wait, 3))
        return (*gone, error, self._start(fact.seq, fact.at))

    def _abandon(self, at: float, reason: str, text: str = "") -> Sequence[Frame]:
        """Close the open message, if there is one, with what it has."""
        if not self._open:
            return ()
        message_id, self._open = self._open, ""
        said = text or "".join(self._text)
        return (MessageCompleteFrame(message_id, "assistant", said, reason, self._started_at, at),)

    def _result(self, fact: CallFinished) -> Frame:
        cut = fact.truncation
        return ToolResultFrame(
            self._last,
            fact.call_id,
            fact.tool,
            fact.output,
            fact.status == "ok",
            cut is not None,
            fact.status,
            cut.artifact if cut is not None else "",
        )

    def _question(self, fact: ApprovalRequested | InputRequested) -> Frame:
        name = build_approval_id(self._session_id, fact.call_id)
        what = describe_question(fact)
        return MessageApprovalFrame(
            name,
            self._last,
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

    def _finished(self, fact: RunFinished) -> Sequence[Frame]:
        closing = self._abandon(fact.at, fact.reason)
        failed = (MessageErrorFrame(fact.error, self._last, "failed"),) if fact.reason == "failed" else ()
        if not fact.can_continue:
            return (*closing, *failed)
        message_id = f"end_{fact.seq}"
        text = fact.error or f"The run stopped: {fact.reason.replace('_', ' ')}."
        metadata: dict[str, Json] = {"sentinel": fact.reason, "can_continue": True}
        self._shown.append((fact.seq, message_id, "system"))
        return (
            *closing,
            *failed,
            MessageStartedFrame(message_id, "system", fact.at, self._session_id),
            MessageCompleteFrame(message_id, "system", text, fact.reason, fact.at, fact.at, metadata=metadata),
        )

    def _delete_after_user(self) -> Sequence[Frame]:
        last = max((seq for seq, _, role in self._shown if role == "user"), default=0)
        return self._delete_after(last)

    def _delete_after(self, seq: int) -> Sequence[Frame]:
        return self._delete(tuple(message_id for at, message_id, _ in self._shown if at > seq))

    def _delete(self, message_ids: tuple[str, ...]) -> Sequence[Frame]:
        gone = set(message_ids)
        self._shown = [one for one in self._shown if one[1] not in gone]
        return (MessagesDeletedFrame(message_ids),) if message_ids else ()


class ChatStatusDialect:
    """What one session's facts mean for the list of chats: it streams, it is idle, or it needs you."""

    def __init__(self, session_id: str, status: ChatState = "idle") -> None:
        self._session_id = session_id
        self._status: ChatState = status
        self._pending: set[str] = set()
        self._name = ""

    def feed(self, event: Event) -> Sequence[ChatStatusFrame]:
        """A frame when the status or the name has changed."""
        before = (self._status, self._name)
        match event:
            case RunStarted():
                self._pending.clear()
                self._status = "streaming"
            case ApprovalRequested() | InputRequested():
                self._pending.add(event.call_id)
                self._status = "needs_you"
            case ApprovalAnswered() | InputAnswered() | CallFinished():
                self._pending.discard(event.call_id)
                self._status = "needs_you" if self._pending else "streaming"
            case RunFinished():
                self._status = "idle"
            case SessionRenamed():
                self._name = event.name
            case _:
                return ()
        if (self._status, self._name) == before:
            return ()
        return (ChatStatusFrame(self._session_id, self._session_id, self._status, self._name),)
