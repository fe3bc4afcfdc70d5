"""A session as a list of messages that grows and changes: the frames of a chat page, and of the user-wide channel.

Feed it from the session's first fact. It must know the earlier messages to say which ones a rewind deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from treadle import events
from treadle.dialects.base import (
    FINISH_REASONS,
    EventTracker,
    Frame,
    build_approval_id,
    describe_question,
    parse_arguments,
)
from treadle.messages import Call, Json, render_parts

Role: TypeAlias = Literal["user", "assistant", "tool", "system"]
ChatState: TypeAlias = Literal["streaming", "idle", "needs_you"]
_CHARACTER_UNIT, _MAX_CHARACTERS, _MAX_PART, _UNITS = 1000, 999_999, 999, 10**9


class FramePosition(Struct, frozen=True):
    """How much of a session's frames a client has. As a number it grows with every frame.

    The client has every frame of the facts up to `seq`, the first `characters` of the message that is open there, and
    the first `part` frames of the next fact.
    """

    seq: int = 0
    characters: int = 0
    part: int = 0

    def to_number(self) -> float:
        """Return the position as one number: `seq`, and the rest as its fraction."""
        units = min(self.characters, _MAX_CHARACTERS) * _CHARACTER_UNIT + min(self.part, _MAX_PART)
        return self.seq + units / _UNITS if units else self.seq

    @classmethod
    def from_number(cls, number: float) -> FramePosition:
        """Read a position that `to_number` wrote."""
        seq = int(number)
        return cls(seq, *divmod(round((number - seq) * _UNITS), _CHARACTER_UNIT))


class ChatFrame(Frame, frozen=True, kw_only=True, omit_defaults=False):
    """A frame of one session. `seq` is its position: `?after=` takes it to go on behind this frame."""

    session_id: str = ""
    chat_id: str = ""
    seq: float = 0


class MessageFrame(ChatFrame, frozen=True):
    """A frame about one message."""

    message_id: str


class MessageStartedFrame(MessageFrame, frozen=True, tag="message_started"):
    """A message begins. `model` is the model that is asked for it, if that is known."""

    role: Role
    started_at: str
    model: str | None = None


class MessageDeltaFrame(MessageFrame, frozen=True, tag="delta"):
    """A fragment of a message's text."""

    content: str


class ReasoningDeltaFrame(MessageDeltaFrame, frozen=True, tag="reasoning_delta"):
    """A fragment of the model's reasoning."""


class CalledTool(Struct, frozen=True):
    """A tool call. `arguments_text` is what the model wrote, where that is no JSON object."""

    id: str
    name: str
    arguments: dict[str, Json]
    arguments_text: str | UnsetType = UNSET


class ToolCallFrame(MessageFrame, frozen=True, tag="tool_call"):
    """The model calls a tool."""

    tool_call: CalledTool


class MessageCompleteFrame(MessageFrame, frozen=True, tag="message_complete"):
    """A message is whole. `reason` says why it ended."""

    role: Role
    content: str
    reason: str
    started_at: str
    finished_at: str
    metadata: dict[str, Json] | None = None
    tokens_used: int | None = None
    completion_tokens: int | None = None
    ctx_used: int | None = None
    ctx_max: int | None = None
    model: str | None = None
    reasoning: str = ""


class UsageFrame(MessageFrame, frozen=True, tag="usage"):
    """What a reply used, and how full the model's window is."""

    tokens_used: int
    completion_tokens: int
    ctx_used: int
    ctx_max: int | None
    cost: float = 0.0


class MessageApprovalFrame(MessageFrame, frozen=True, tag="approval_request"):
    """A person must allow a call or answer `questions`."""

    id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Json]
    safety: str = ""
    why: str = ""
    rule: str = ""
    digest: str = ""
    expires_at: str | None = None
    questions: tuple[str, ...] = ()
    options: tuple[tuple[str, ...], ...] = ()


class ApprovalAnsweredFrame(MessageFrame, frozen=True, tag="approval_answered"):
    """Somebody has answered an `approval_request`."""

    tool_call_id: str
    decision: str
    by: str = ""


class ToolResultFrame(MessageFrame, frozen=True, tag="tool_result"):
    """A tool call of message `message_id` has ended. `artifact_id` names the whole output where it was cut."""

    tool_message_id: str
    tool_call_id: str
    output: str
    truncated: bool
    name: str
    status: str
    error: str | UnsetType = UNSET
    artifact_id: str | UnsetType = UNSET


class MessageErrorFrame(ChatFrame, frozen=True, tag="error"):
    """Something failed. `retry_in` is there when the model is asked again after so many seconds."""

    error: str
    reason: str
    message_id: str | None = None
    retry_in: float | UnsetType = UNSET


class MessagesDeletedFrame(ChatFrame, frozen=True, tag="messages_deleted"):
    """These messages are no longer part of the conversation."""

    message_ids: tuple[str, ...]


class SessionRenamedFrame(ChatFrame, frozen=True, tag="session_renamed"):
    """The session has a new name."""

    name: str


class ChatRenamedFrame(SessionRenamedFrame, frozen=True, tag="chat_renamed"):
    """The same as `session_renamed`, for clients that know chats."""


class SessionRewoundFrame(ChatFrame, frozen=True, tag="session_rewound"):
    """The conversation went back, or forward again. Clients should load it anew."""

    to: int


class ChatStatusFrame(Frame, frozen=True, tag="chat_status", omit_defaults=False):
    """What one session does now and since when, for the list of chats."""

    session_id: str
    chat_id: str
    status: ChatState
    at: str
    name: str | UnsetType = UNSET


def format_time(at: float) -> str:
    """Format seconds since 1970 as an ISO 8601 time in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class OpenMessage(Struct):
    """The reply that is being written. The dialect has `text` of it, and the client has `received` characters."""

    id: str
    started_at: float
    text: list[str] = []
    length: int = 0
    received: int = 0
    is_resumed: bool = False


class MessageFramesDialect:
    """Turns one session's events into message frames. Every message that starts is also completed.

    `after` is the `seq` of the last frame that the client has. No frame up to it is returned. Only the reasoning of a
    message that is open there is not sent as fragments: `message_complete` has it whole.
    """

    def __init__(self, session_id: str, window: int | None = None, after: float = 0) -> None:
        self._session_id = session_id
        self._window = window
        self._after = FramePosition.from_number(after)
        self._seq = 0
        self._open: OpenMessage | None = None
        self._last_id = ""
        self._model: str | None = None
        self._tool_starts: dict[str, float] = {}
        self._has_shown_error = False
        self._shown: list[tuple[int, str, Role]] = []

    def feed(self, event: events.Event) -> Sequence[ChatFrame]:
        after, message = self._after, self._open
        if isinstance(event, events.Delta):
            fragment = self._translate_fragment(event)
            if fragment is None or self._seq < after.seq:
                return ()
            return (self._place(fragment, FramePosition(self._seq, message.received if message is not None else 0)),)
        frames = self._translate_message(event) or self._translate_other(event)
        self._seq = event.seq
        received = message.received if message is not None else 0
        if self._open is not message:  # the client has got all text that there is
            received = _MAX_CHARACTERS
        placed: list[ChatFrame] = []
        for part, frame in enumerate(frames, 1):
            if frame is None or event.seq <= after.seq or (event.seq == after.seq + 1 and part <= after.part):
                continue
            position = FramePosition(event.seq - 1, received, part)
            if part == len(frames):
                position = FramePosition(event.seq, received if self._open is message else 0)
            placed.append(self._place(frame, position))
        if event.seq == after.seq and self._open is not None:
            self._open.received, self._open.is_resumed = after.characters, True
        return placed

    def _place(self, frame: ChatFrame, position: FramePosition) -> ChatFrame:
        return replace(frame, session_id=self._session_id, chat_id=self._session_id, seq=position.to_number())

    def _translate_fragment(self, event: events.Delta) -> ChatFrame | None:
        message = self._open
        if message is None:
            return None
        if isinstance(event, events.ReasoningDelta):
            return None if message.is_resumed else ReasoningDeltaFrame(message.id, event.text)
        if not isinstance(event, events.TextDelta):
            return None
        unseen = event.text[max(0, message.received - message.length) :]
        message.text.append(event.text)
        message.length += len(event.text)
        message.received = max(message.received, message.length)
        return MessageDeltaFrame(message.id, unseen) if unseen else None

    def _translate_message(self, event: events.AnyFact) -> Sequence[ChatFrame | None]:
        """Translate a fact into frames. Where it depends on live text whether there is a frame, its place has None."""
        match event:
            case events.MessageReceived():
                return self._show_message(event, event.id, "user", render_parts(event.parts), "received")
            case events.TurnStarted():
                return (*self._abandon_message(event.at, "interrupted"), self._start_message(event.seq, event.at))
            case events.ModelReplied():
                return self._complete_message(event)
            case events.ModelFailed():
                return self._fail_message(event)
            case events.CallStarted() if event.call_id not in self._tool_starts:
                return (self._start_tool_message(event),)
            case events.CallFinished():
                return self._finish_call(event)
            case events.RunFinished():
                return self._finish_run(event)
            case _:
                return ()

    def _translate_other(self, event: events.AnyFact) -> Sequence[ChatFrame]:
        match event:
            case events.SessionCreated():
                self._model = event.model or None
            case events.SessionConfigured() if event.model or event.agent:
                self._model = event.model or None  # an agent may have a model of its own
            case events.RunStarted():
                self._has_shown_error = False
                if event.trigger == "regenerate":
                    return self._delete_after(max((seq for seq, _, role in self._shown if role == "user"), default=0))
            case events.Rewound() if event.what != "files":
                return (*self._delete_after(event.to), SessionRewoundFrame(event.to))
            case events.SessionRenamed():
                return (SessionRenamedFrame(event.name), ChatRenamedFrame(event.name))
            case events.ApprovalRequested() | events.InputRequested():
                question = describe_question(event)
                call_id, tool = question.pop("call_id"), question.pop("tool")
                question["expires_at"] = format_time(event.expires_at) if event.expires_at is not None else None
                approval_id = build_approval_id(self._session_id, call_id)
                return (MessageApprovalFrame(self._last_id, approval_id, call_id, tool, **question),)
            case events.ApprovalAnswered():
                return (ApprovalAnsweredFrame(self._last_id, event.call_id, event.decision, event.by),)
            case events.InputAnswered():
                return (ApprovalAnsweredFrame(self._last_id, event.call_id, "answered", event.by),)
            case _:
                pass
        return ()

    def _show_message(
        self, fact: events.MessageReceived | events.RunFinished, message_id: str, role: Role, text: str, reason: str
    ) -> Sequence[ChatFrame]:
        """Announce a message that is whole from the beginning."""
        self._shown.append((fact.seq, message_id, role))
        time = format_time(fact.at)
        metadata = _build_sentinel_metadata(fact) if isinstance(fact, events.RunFinished) else None
        return (
            MessageStartedFrame(message_id, role, time),
            MessageDeltaFrame(message_id, text),
            MessageCompleteFrame(message_id, role, text, reason, time, time, metadata),
        )

    def _start_message(self, seq: int, at: float) -> ChatFrame:
        self._open = OpenMessage(f"msg_{seq}", at)
        self._last_id = self._open.id
        self._shown.append((seq, self._open.id, "assistant"))
        return MessageStartedFrame(self._open.id, "assistant", format_time(at), self._model)

    def _complete_message(self, fact: events.ModelReplied) -> Sequence[ChatFrame | None]:
        started = None if self._open is not None else self._start_message(fact.seq, fact.at)
        message, self._open = self._open, None
        assert message is not None
        self._model = self._model or fact.model or None
        unseen = fact.text[message.received :] if fact.text.startswith("".join(message.text)) else ""
        written, used = fact.usage.output_tokens, fact.usage.input_tokens + fact.usage.output_tokens
        complete = MessageCompleteFrame(
            message.id,
            "assistant",
            fact.text,
            FINISH_REASONS[fact.finish],
            format_time(message.started_at),
            format_time(fact.at),
            tokens_used=used,
            completion_tokens=written,
            ctx_used=used,
            ctx_max=self._window,
            model=fact.model or self._model,
            reasoning=fact.reasoning,
        )
        return (
            started,
            MessageDeltaFrame(message.id, unseen) if unseen else None,
            *(ToolCallFrame(message.id, _describe_call(call)) for call in fact.calls),
            complete,
            UsageFrame(message.id, used, written, used, self._window, fact.usage.cost),
        )

    def _fail_message(self, fact: events.ModelFailed) -> Sequence[ChatFrame]:
        message_id = self._last_id
        if fact.kind == "cancelled":
            return self._abandon_message(fact.at, "cancelled", fact.partial)
        metadata: dict[str, Json] = {"kind": "error", "reason": fact.kind, "error": fact.message}
        abandoned = self._abandon_message(fact.at, "failed", fact.partial, metadata)
        if fact.wait is None:
            self._has_shown_error = bool(abandoned)
            return abandoned
        # The model is asked again and answers from the beginning, so its text so far is deleted.
        deleted = self._delete_messages((message_id,))
        error = MessageErrorFrame(fact.message, fact.kind, message_id, round(fact.wait, 3))
        return (*abandoned, *deleted, error, self._start_message(fact.seq, fact.at))

    def _abandon_message(
        self, at: float, reason: str, text: str = "", metadata: dict[str, Json] | None = None
    ) -> Sequence[ChatFrame]:
        """Complete the open message, if there is one, with the text that it has."""
        message, self._open = self._open, None
        if message is None:
            return ()
        times = format_time(message.started_at), format_time(at)
        content = text or "".join(message.text)
        complete = MessageCompleteFrame(message.id, "assistant", content, reason, *times, metadata, model=self._model)
        return (replace(complete, ctx_max=self._window),)

    def _start_tool_message(self, fact: events.CallStarted | events.CallFinished) -> ChatFrame:
        """Announce the message that has the result of a call."""
        message_id = f"tool_{fact.call_id}"
        self._tool_starts[fact.call_id] = fact.at
        self._shown.append((fact.seq, message_id, "tool"))
        return MessageStartedFrame(message_id, "tool", format_time(fact.at))

    def _finish_call(self, fact: events.CallFinished) -> Sequence[ChatFrame]:
        started = () if fact.call_id in self._tool_starts else (self._start_tool_message(fact),)
        times = format_time(self._tool_starts[fact.call_id]), format_time(fact.at)
        message_id, cut = f"tool_{fact.call_id}", fact.truncation
        result = ToolResultFrame(
            self._last_id,
            message_id,
            fact.call_id,
            fact.output,
            cut is not None,
            fact.tool,
            fact.status,
            error=UNSET if fact.status == "ok" else fact.output or fact.status,
            artifact_id=cut.artifact if cut is not None and cut.artifact else UNSET,
        )
        return (*started, result, MessageCompleteFrame(message_id, "tool", fact.output, fact.status, *times))

    def _finish_run(self, fact: events.RunFinished) -> Sequence[ChatFrame]:
        frames = [*self._abandon_message(fact.at, fact.reason)]
        if fact.reason == "failed":
            frames.append(MessageErrorFrame(fact.error, fact.reason, self._last_id or None))
        if fact.reason == "answered" or (fact.reason == "failed" and self._has_shown_error):
            return frames
        text = fact.error or f"The run stopped: {fact.reason.replace('_', ' ')}."
        frames += self._show_message(fact, f"end_{fact.seq}", "system", text, fact.reason)
        return frames

    def _delete_after(self, seq: int) -> Sequence[ChatFrame]:
        return self._delete_messages(tuple(message_id for at, message_id, _ in self._shown if at > seq))

    def _delete_messages(self, message_ids: tuple[str, ...]) -> Sequence[ChatFrame]:
        deleted = set(message_ids)
        self._shown = [message for message in self._shown if message[1] not in deleted]
        return (MessagesDeletedFrame(message_ids),) if message_ids else ()


def _describe_call(call: Call) -> CalledTool:
    arguments = parse_arguments(call.arguments)
    return CalledTool(call.id, call.tool, arguments or {}, call.arguments if arguments is None else UNSET)


def _build_sentinel_metadata(fact: events.RunFinished) -> dict[str, Json] | None:
    """Say for programs why a run stopped. A run that somebody cancelled, or that hands back, met no obstacle."""
    if fact.reason in ("cancelled", "yielded"):
        return None
    kind = "cap_hit" if fact.reason in events.LIMIT_REASONS else "error"
    kind = "doom_loop" if fact.reason == "doom_loop" else kind
    return {
        "kind": kind,
        "reason": fact.reason,
        "can_continue": fact.can_continue,
        "turns": fact.turns,
        "calls": fact.calls,
    }


class ChatStatusDialect:
    """Turns one session's facts into its status in the list of chats. It starts with the status that the list has."""

    def __init__(self, session_id: str, status: ChatState = "idle", name: str = "") -> None:
        self._session_id, self._name = session_id, name
        self._status: ChatState = status
        self._tracker = EventTracker()

    def feed(self, event: events.Event) -> Sequence[ChatStatusFrame]:
        """Return a frame when the session is new, or when its status or its name has changed."""
        before = None if isinstance(event, events.SessionCreated) else (self._status, self._name)
        self._tracker.track(event)
        match event:
            case events.SessionCreated():
                pass
            case events.RunStarted():
                self._status = "streaming"
            case events.ApprovalRequested() | events.InputRequested():
                self._status = "needs_you"
            case events.CallStarted(sandbox=events.CLIENT_SANDBOX):
                self._status = "needs_you"
            case events.ApprovalAnswered() | events.InputAnswered() | events.CallFinished():
                self._status = "needs_you" if self._tracker.open_questions else "streaming"
            case events.RunFinished():
                self._status = "idle"
            case events.SessionRenamed():
                self._name = event.name
            case _:
                return ()
        return (self.build_frame(event.at),) if (self._status, self._name) != before else ()

    def build_frame(self, at: float) -> ChatStatusFrame:
        """Build the frame of the present status. `at` is the time of its last change."""
        return ChatStatusFrame(self._session_id, self._session_id, self._status, format_time(at), self._name or UNSET)
