"""A session as a list of messages that grows and changes: the frames of a chat page, and of the user-wide channel.

Feed it from the session's first fact. It must know the earlier messages to say which ones a rewind deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import field

from treadle import events
from treadle.dialects.base import FINISH_REASONS, EventTracker, Frame, build_approval_id, describe_question
from treadle.messages import Json, render_parts

Role: TypeAlias = Literal["user", "assistant", "system"]
ChatState: TypeAlias = Literal["streaming", "idle", "needs_you"]


class MessageFrame(Frame, frozen=True):
    """A frame about one message."""

    message_id: str


class MessageStartedFrame(MessageFrame, frozen=True, tag="message_started"):
    """A message begins."""

    role: Role
    started_at: float
    session_id: str = ""


class MessageDeltaFrame(MessageFrame, frozen=True, tag="delta"):
    """A fragment of a message's text."""

    text: str


class ReasoningDeltaFrame(MessageDeltaFrame, frozen=True, tag="reasoning_delta"):
    """A fragment of the model's reasoning."""


class ToolCallFrame(MessageFrame, frozen=True, tag="tool_call"):
    """The model calls a tool. `arguments` is the JSON text that it wrote."""

    tool_call_id: str
    name: str
    arguments: str


class MessageCompleteFrame(MessageFrame, frozen=True, tag="message_complete"):
    """A message is whole. `reason` says why it ended."""

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


class UsageFrame(MessageFrame, frozen=True, tag="usage"):
    """What a reply cost, and how full the model's window is."""

    tokens_used: int
    ctx_used: int
    ctx_max: int | None
    cost: float = 0.0


class MessageApprovalFrame(Frame, frozen=True, tag="approval_request"):
    """A person must allow a call or answer `questions`."""

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
    """Somebody has answered an `approval_request`."""

    tool_call_id: str
    decision: str
    by: str = ""


class ToolResultFrame(MessageFrame, frozen=True, tag="tool_result"):
    """A tool call has ended. `artifact_id` names the whole output where `content` was cut."""

    tool_call_id: str
    name: str
    content: str
    ok: bool
    truncated: bool
    status: str = ""
    artifact_id: str = ""


class MessageErrorFrame(Frame, frozen=True, tag="error"):
    """Something failed. `retry_in` is there when the model is asked again."""

    message: str
    message_id: str = ""
    reason: str = ""
    retry_in: float | None = None


class MessagesDeletedFrame(Frame, frozen=True, tag="messages_deleted"):
    """These messages are no longer part of the conversation."""

    message_ids: tuple[str, ...]


class ChatStatusFrame(Frame, frozen=True, tag="chat_status"):
    """What one session does now, for the list of chats."""

    session_id: str
    chat_id: str
    status: ChatState
    name: str = ""


class SessionRenamedFrame(Frame, frozen=True, tag="session_renamed"):
    """The session has a new name."""

    session_id: str
    name: str


class ChatRenamedFrame(Frame, frozen=True, tag="chat_renamed"):
    """The same as `session_renamed`, for clients that know chats."""

    chat_id: str
    name: str


class SessionRewoundFrame(Frame, frozen=True, tag="session_rewound"):
    """The conversation went back, or forward again. Clients should load it anew."""

    session_id: str
    to: int


class MessageFramesDialect:
    """Turns one session's events into message frames. Every message that starts is also completed."""

    def __init__(self, session_id: str, window: int | None = None) -> None:
        self._session_id = session_id
        self._window = window
        self._open_id = ""
        self._last_id = ""
        self._started_at = 0.0
        self._tracker = EventTracker()
        self._shown: list[tuple[int, str, Role]] = []

    def feed(self, event: events.Event) -> Sequence[Frame]:
        frames = self._translate_message(event) or self._translate_other(event)
        self._tracker.track(event)  # afterwards: a message that is broken off is completed with its text so far
        return frames

    def _translate_message(self, event: events.Event) -> Sequence[Frame]:
        match event:
            case events.TextDelta():
                return (MessageDeltaFrame(self._open_id or self._last_id, event.text),)
            case events.ReasoningDelta():
                return (ReasoningDeltaFrame(self._open_id or self._last_id, event.text),)
            case events.MessageReceived():
                self._shown.append((event.seq, event.id, "user"))
                text = render_parts(event.parts)
                return (
                    MessageStartedFrame(event.id, "user", event.at, self._session_id),
                    MessageCompleteFrame(event.id, "user", text, "received", event.at, event.at),
                )
            case events.TurnStarted():
                return (*self._abandon_message(event.at, "interrupted"), self._start_message(event.seq, event.at))
            case events.ModelReplied():
                return self._complete_message(event)
            case events.ModelFailed():
                return self._fail_message(event)
            case events.RunFinished():
                return self._finish_run(event)
            case _:
                return ()

    def _translate_other(self, event: events.Event) -> Sequence[Frame]:
        match event:
            case events.CallFinished():
                cut = event.truncation
                artifact_id = cut.artifact if cut is not None else ""
                is_ok, is_cut = event.status == "ok", cut is not None
                result = (event.call_id, event.tool, event.output, is_ok, is_cut, event.status, artifact_id)
                return (ToolResultFrame(self._last_id, *result),)
            case events.RunStarted() if event.trigger == "regenerate":
                return self._delete_after(max((seq for seq, _, role in self._shown if role == "user"), default=0))
            case events.Rewound() if event.what != "files":
                return (*self._delete_after(event.to), SessionRewoundFrame(self._session_id, event.to))
            case events.SessionRenamed():
                return (
                    SessionRenamedFrame(self._session_id, event.name),
                    ChatRenamedFrame(self._session_id, event.name),
                )
            case events.ApprovalRequested() | events.InputRequested():
                question = describe_question(event)
                call_id, tool = question.pop("call_id"), question.pop("tool")
                approval_id = build_approval_id(self._session_id, call_id)
                return (MessageApprovalFrame(approval_id, self._last_id, call_id, tool, **question),)
            case events.ApprovalAnswered():
                return (ApprovalAnsweredFrame(event.call_id, event.decision, event.by),)
            case events.InputAnswered():
                return (ApprovalAnsweredFrame(event.call_id, "answered", event.by),)
            case _:
                return ()

    def _start_message(self, seq: int, at: float) -> Frame:
        self._open_id = self._last_id = f"msg_{seq}"
        self._started_at = at
        self._shown.append((seq, self._open_id, "assistant"))
        return MessageStartedFrame(self._open_id, "assistant", at, self._session_id)

    def _complete_message(self, fact: events.ModelReplied) -> Sequence[Frame]:
        started = () if self._open_id else (self._start_message(fact.seq, fact.at),)
        message_id, self._open_id = self._open_id, ""
        usage = fact.usage
        ctx_used = usage.input_tokens + usage.output_tokens
        complete = MessageCompleteFrame(
            message_id,
            "assistant",
            fact.text,
            FINISH_REASONS[fact.finish],
            self._started_at,
            fact.at,
            reasoning=fact.reasoning,
            model=fact.model,
            tokens_used=usage.output_tokens,
            ctx_used=ctx_used,
            ctx_max=self._window,
        )
        return (
            *started,
            *(ToolCallFrame(message_id, call.id, call.tool, call.arguments) for call in fact.calls),
            complete,
            UsageFrame(message_id, usage.output_tokens, ctx_used, self._window, usage.cost),
        )

    def _fail_message(self, fact: events.ModelFailed) -> Sequence[Frame]:
        message_id = self._open_id
        if fact.wait is None:
            reason = "cancelled" if fact.kind == "cancelled" else "failed"
            return self._abandon_message(fact.at, reason, fact.partial)
        # The model is asked again and answers from the beginning, so its text so far is deleted.
        abandoned = self._abandon_message(fact.at, "failed", fact.partial)
        deleted = self._delete_messages((message_id,))
        error = MessageErrorFrame(fact.message, message_id, fact.kind, round(fact.wait, 3))
        return (*abandoned, *deleted, error, self._start_message(fact.seq, fact.at))

    def _abandon_message(self, at: float, reason: str, text: str = "") -> Sequence[Frame]:
        """Complete the open message, if there is one, with the text that it has."""
        if not self._open_id:
            return ()
        message_id, self._open_id = self._open_id, ""
        content = text or self._tracker.text
        return (MessageCompleteFrame(message_id, "assistant", content, reason, self._started_at, at),)

    def _finish_run(self, fact: events.RunFinished) -> Sequence[Frame]:
        frames = [*self._abandon_message(fact.at, fact.reason)]
        if fact.reason == "failed":
            frames.append(MessageErrorFrame(fact.error, self._last_id, "failed"))
        if fact.can_continue:
            message_id = f"end_{fact.seq}"
            text = fact.error or f"The run stopped: {fact.reason.replace('_', ' ')}."
            metadata: dict[str, Json] = {"sentinel": fact.reason, "can_continue": True}
            self._shown.append((fact.seq, message_id, "system"))
            frames += (
                MessageStartedFrame(message_id, "system", fact.at, self._session_id),
                MessageCompleteFrame(message_id, "system", text, fact.reason, fact.at, fact.at, metadata=metadata),
            )
        return frames

    def _delete_after(self, seq: int) -> Sequence[Frame]:
        return self._delete_messages(tuple(message_id for at, message_id, _ in self._shown if at > seq))

    def _delete_messages(self, message_ids: tuple[str, ...]) -> Sequence[Frame]:
        deleted = set(message_ids)
        self._shown = [message for message in self._shown if message[1] not in deleted]
        return (MessagesDeletedFrame(message_ids),) if message_ids else ()


class ChatStatusDialect:
    """Turns one session's facts into its status in the list of chats."""

    def __init__(self, session_id: str, status: ChatState = "idle") -> None:
        self._session_id = session_id
        self._status: ChatState = status
        self._tracker = EventTracker()
        self._name = ""

    def feed(self, event: events.Event) -> Sequence[ChatStatusFrame]:
        """Return a frame when the status or the name has changed."""
        before = (self._status, self._name)
        self._tracker.track(event)
        match event:
            case events.RunStarted():
                self._status = "streaming"
            case events.ApprovalRequested() | events.InputRequested():
                self._status = "needs_you"
            case events.ApprovalAnswered() | events.InputAnswered() | events.CallFinished():
                self._status = "needs_you" if self._tracker.open_questions else "streaming"
            case events.RunFinished():
                self._status = "idle"
            case events.SessionRenamed():
                self._name = event.name
            case _:
                return ()
        if (self._status, self._name) == before:
            return ()
        return (ChatStatusFrame(self._session_id, self._session_id, self._status, self._name),)
