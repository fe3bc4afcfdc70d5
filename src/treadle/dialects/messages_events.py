"""Replies in the format of Anthropic's Messages, whole and streamed as content blocks.

A bare model's calls are handed to the client. An agent's calls run here and are sent in the extension field `treadle`
of `ping` events, which every client ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from treadle import events
from treadle.dialects.base import Activity, EventTracker, ReplyFormat, RunExtension
from treadle.dialects.messages_requests import ThinkingMode, encode_state, simplify_request
from treadle.dialects.openai_chat import describe_failed_run
from treadle.messages import FinishReason, Json, Reply, Request, SignedReasoning, Usage

STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "calls": "tool_use",
    "length": "max_tokens",
    "filter": "refusal",
    "other": "end_turn",
}


class TextBlock(Struct):
    """Text of the answer."""

    text: str = ""
    type: str = "text"


class ThinkingBlock(Struct):
    """Reasoning, and the signature with which the client sends it back."""

    thinking: str = ""
    signature: str = ""
    type: str = "thinking"


class RedactedBlock(Struct):
    """State that only the provider reads. The client sends it back."""

    data: str
    type: str = "redacted_thinking"


class ToolUseBlock(Struct):
    """A call for the client to run. `input` is a JSON object."""

    id: str
    name: str
    input: Raw = Raw(b"{}")
    type: str = "tool_use"


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock


class MessagesUsage(Struct, frozen=True):
    """Tokens in Anthropic's form: those that were read from a cache are counted apart."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class MessageDocument(Struct, frozen=True):
    """The assistant's message."""

    id: str
    model: str
    content: tuple[ContentBlock, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage = MessagesUsage()
    type: str = "message"
    role: str = "assistant"
    treadle: RunExtension | UnsetType = UNSET


class MessagesEvent(Struct, frozen=True):
    """One event of a stream."""

    type: str
    index: int | UnsetType = UNSET
    message: MessageDocument | UnsetType = UNSET
    content_block: ContentBlock | UnsetType = UNSET
    delta: dict[str, Json] | UnsetType = UNSET
    usage: MessagesUsage | UnsetType = UNSET
    error: dict[str, str] | UnsetType = UNSET
    treadle: RunExtension | UnsetType = UNSET


class CallText(Struct):
    """A call as far as its pieces were sent, and its whole text once the reply is there."""

    text: str = ""
    whole: str = ""
    is_sent: bool = False


class MessagesDialect(ReplyFormat):
    """A reply in the format of Messages. The whole message has the blocks that a stream would have sent."""

    end_mark = b""
    has_error_events = True

    def __init__(self, message_id: str, model: str, thinking: ThinkingMode = "shown", input_tokens: int = 0) -> None:
        usage = MessagesUsage(input_tokens)
        self._message = MessageDocument(message_id, model, usage=usage)
        self._thinking = thinking
        self._blocks: list[ContentBlock] = []
        self._open: ContentBlock | None = None
        self._calls: dict[int, CallText] = {}
        self._open_call: CallText | None = None
        self._queue: list[Callable[[], Sequence[MessagesEvent]]] = []
        self._is_signed = False
        self._tracker = EventTracker()

    def begin(self) -> Sequence[MessagesEvent]:
        extension = RunExtension(self.session_id) if self.session_id else UNSET
        return (MessagesEvent("message_start", message=msgspec.structs.replace(self._message, treadle=extension)),)

    def feed(self, event: events.Event | Reply) -> Sequence[MessagesEvent]:
        if text := self._tracker.track(event):
            return self._write_in_turn(lambda: self._add_text(text))
        match event:
            case events.ReasoningDelta():
                return self._write_in_turn(lambda: self._add_thinking(event.text))
            case events.CallDelta() if not self.session_id:
                return self._add_call_piece(event)
            case Reply():
                return (*self._finish_reply(event), *self._end(self._build_reply(event)))
            case events.TurnStarted():
                return self._close_block()
            case events.RunFinished() if failure := describe_failed_run(event):
                error = {"type": "api_error", "message": failure.message, "code": failure.code}
                return (self._build_ping(event), MessagesEvent("error", error=error))
            case events.RunFinished():
                text = self._add_text(event.answer) if not self._has_text() and event.answer else ()
                return (*text, *self._close_block(), self._build_ping(event), *self._end(self._complete_run(event)))
            case _:
                return (self._build_ping(event),) if isinstance(event, Activity) else ()

    def feed_block(self, block: SignedReasoning) -> Sequence[MessagesEvent]:
        self._is_signed = True
        if self._thinking == "off":
            return ()
        fields = msgspec.json.decode(block.block, type=dict[str, Json])
        if fields.get("type") == "redacted_thinking":
            redacted = RedactedBlock(fields["data"])
            return self._write_in_turn(lambda: (*self._open_block(redacted), *self._close_block()))
        return self._write_in_turn(lambda: (*self._add_thinking(""), *self._close_block(fields["signature"])))

    def complete_reply(self, reply: Reply) -> MessageDocument:
        self._finish_reply(reply)
        shown = "".join(block.text for block in self._blocks if isinstance(block, TextBlock))
        if shown != reply.text and not self.session_id:
            # Calls or reasoning were found in the text, which only the reply shows.
            self._blocks, self._calls = [], {}
            self._finish_reply(reply)
        return self._build_reply(reply)

    def _build_reply(self, reply: Reply) -> MessageDocument:
        stop = "stop_sequence" if reply.stop_sequence else STOP_REASONS[reply.finish]
        return msgspec.structs.replace(
            self._message,
            content=tuple(self._blocks),
            stop_reason=stop,
            stop_sequence=reply.stop_sequence or None,
            usage=_build_usage(reply.usage),
        )

    def complete_run(self, ending: events.RunFinished | Reply, activity: Sequence[events.AnyFact]) -> MessageDocument:
        if isinstance(ending, Reply):
            document, facts = self.complete_reply(ending), tuple(activity)
        else:
            self.feed(ending)
            document, facts = self._complete_run(ending), (*activity, ending)
        return msgspec.structs.replace(document, treadle=RunExtension(self.session_id, events=facts))

    def simplify_request(self, request: Request) -> Request | None:
        return simplify_request(request)

    def _complete_run(self, ending: events.RunFinished) -> MessageDocument:
        stop = "max_tokens" if ending.reason in events.LIMIT_REASONS else "end_turn"
        content, usage = tuple(self._blocks), _build_usage(ending.usage)
        return msgspec.structs.replace(self._message, content=content, stop_reason=stop, usage=usage)

    def _end(self, message: MessageDocument) -> Sequence[MessagesEvent]:
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        return (MessagesEvent("message_delta", delta=delta, usage=message.usage), MessagesEvent("message_stop"))

    def _build_ping(self, event: events.AnyFact) -> MessagesEvent:
        return MessagesEvent("ping", treadle=RunExtension(self.session_id, event))

    # ── blocks ─────────────────────────────────────────────────────────────────────────────────────────

    def _has_text(self) -> bool:
        return any(isinstance(block, TextBlock) for block in self._blocks)

    def _open_block(self, block: ContentBlock) -> Sequence[MessagesEvent]:
        """Begin a block. The event has a copy, because the block grows."""
        closing = self._close_block()
        self._blocks.append(block)
        self._open = block
        return (*closing, self._build_event("content_block_start", content_block=msgspec.structs.replace(block)))

    def _close_block(self, signature: str = "") -> Sequence[MessagesEvent]:
        """End the open block. Thinking that the provider has not signed gets a signature of this server."""
        block, self._open = self._open, None
        if block is None:
            return ()
        self._open_call = None
        stop = self._build_event("content_block_stop")
        if not isinstance(block, ThinkingBlock):
            return (stop,)
        block.signature = signature or encode_state("")
        return (self._build_delta("signature_delta", signature=block.signature), stop)

    def _add_text(self, text: str) -> Sequence[MessagesEvent]:
        start = () if isinstance(self._open, TextBlock) else self._open_block(TextBlock())
        assert isinstance(self._open, TextBlock)
        self._open.text += text
        return (*start, self._build_delta("text_delta", text=text))

    def _add_thinking(self, text: str) -> Sequence[MessagesEvent]:
        if self._thinking == "off":
            return ()
        start = () if isinstance(self._open, ThinkingBlock) else self._open_block(ThinkingBlock())
        if not text or self._thinking == "omitted":
            return start
        assert isinstance(self._open, ThinkingBlock)
        self._open.thinking += text
        return (*start, self._build_delta("thinking_delta", thinking=text))

    def _write_in_turn(self, write: Callable[[], Sequence[MessagesEvent]]) -> Sequence[MessagesEvent]:
        """Write now, or later if a call is open that is not complete: blocks follow one another."""
        if not self._queue and (self._open_call is None or _is_object(self._open_call.text)):
            return write()
        self._queue.append(write)
        return ()

    def _add_call_piece(self, piece: events.CallDelta) -> Sequence[MessagesEvent]:
        call = self._calls.setdefault(piece.index, CallText())
        if call is not self._open_call:
            return self._write_in_turn(lambda: self._start_call(call, piece.tool, piece.arguments))
        added = [*self._grow_call(call, piece.arguments)]
        while self._queue and (self._open_call is None or _is_object(self._open_call.text)):
            added += self._queue.pop(0)()
        return added

    def _start_call(self, call: CallText, tool: str, arguments: str, call_id: str = "") -> Sequence[MessagesEvent]:
        """Begin the block of a call, or add to it. A call whose block has ended gets no more pieces."""
        start: Sequence[MessagesEvent] = ()
        if not call.is_sent:
            call_id = call_id or f"toolu_{self._message.id.removeprefix('msg_')}_{len(self._list_calls())}"
            start = self._open_block(ToolUseBlock(call_id, tool))
            call.is_sent, self._open_call = True, call
        return (*start, *self._grow_call(call, arguments)) if call is self._open_call else ()

    def _grow_call(self, call: CallText, arguments: str) -> Sequence[MessagesEvent]:
        call.text += arguments
        return (self._build_delta("input_json_delta", partial_json=arguments),) if arguments else ()

    def _finish_reply(self, reply: Reply) -> Sequence[MessagesEvent]:
        """Add what the reply has and no event has brought: its text, its state, calls and the rest of calls."""
        added: list[MessagesEvent] = []
        if reply.reasoning and not self._blocks:
            added += self._add_thinking(reply.reasoning)
        for index, call in zip(sorted(self._calls), reply.calls, strict=False):
            self._calls[index].whole = call.arguments
        while self._open_call is not None or self._queue:
            if (known := self._open_call) is not None:
                is_start = known.whole.startswith(known.text)
                added += self._grow_call(known, known.whole[len(known.text) :] if is_start else "")
                added += self._close_block()
            if self._queue:
                added += self._queue.pop(0)()
        if reply.text and not self._has_text():
            added += self._add_text(reply.text)
        has_state = reply.opaque and not self._is_signed and (self._thinking != "off" or reply.calls)
        if has_state:
            added += self._open_block(RedactedBlock(encode_state(reply.opaque)))
        for call in reply.calls[len(self._list_calls()) :]:
            own_id = call.id if self.session_id else ""  # an agent's id names its session
            added += self._start_call(CallText(), call.tool, _encode_object(call.arguments).decode(), own_id)
        for block, call in zip(self._list_calls(), reply.calls, strict=False):
            block.input = Raw(_encode_object(call.arguments))
        return (*added, *self._close_block())

    def _list_calls(self) -> list[ToolUseBlock]:
        return [block for block in self._blocks if isinstance(block, ToolUseBlock)]

    def _build_event(self, kind: str, **fields: Json) -> MessagesEvent:
        return MessagesEvent(kind, len(self._blocks) - 1, **fields)

    def _build_delta(self, kind: str, **fields: Json) -> MessagesEvent:
        return self._build_event("content_block_delta", delta={"type": kind, **fields})


def _build_usage(usage: Usage) -> MessagesUsage:
    fresh = max(0, usage.input_tokens - usage.cached_tokens)
    return MessagesUsage(fresh, usage.output_tokens, cache_read_input_tokens=usage.cached_tokens)


def _is_object(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _encode_object(arguments: str) -> bytes:
    """The arguments of a call as a JSON object, also where the model wrote something else."""
    if _is_object(arguments):
        return arguments.encode()
    return msgspec.json.encode({"invalid_arguments": arguments}) if arguments.strip() else b"{}"
