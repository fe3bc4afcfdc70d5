"""Reads Anthropic Messages: events, and whole messages of proxies that do not stream. No network here."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from treadle.errors import ModelError
from treadle.messages import FinishReason, Reply, Usage
from treadle.models.base import ModelEvent
from treadle.models.prices import add_cost
from treadle.models.reply_builder import PendingCall, ReplyBuilder
from treadle.models.reports import ReportedFailure
from treadle.models.request_parts import MISSING, OpaqueState, encode_state, estimate_tokens, read_raw
from treadle.models.sse import MalformedStream, MessageDecoder, MessageStream


class _OutputDetails(Struct, gc=False):
    thinking_tokens: int | None = None


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _StopDetails(Struct, gc=False):
    explanation: str | None = None


class _Delta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Raw = MISSING
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None


class _Message(Struct, gc=False):
    model: str | None = None
    usage: _Usage | None = None
    content: list[Raw] | None = None
    stop_reason: str | None = None


class _Event(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: Raw = MISSING
    message: _Message | None = None
    usage: _Usage | None = None
    error: Any = None


class _Start(Struct):
    """What is looked at in a block's beginning; the block itself is kept raw."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = MISSING


_EVENTS = MessageDecoder(
    _Event,
    frozenset(
        ("message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "error")
    ),
)
_start = msgspec.json.Decoder(_Start)
_message = msgspec.json.Decoder(_Message)
_fields = msgspec.json.Decoder(dict[str, Raw])
_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "filter",
}


class _Block:
    """One content block as it grows."""

    __slots__ = ("citations", "json", "raw", "signature", "slot", "text", "type")

    def __init__(self, kind: str, raw: bytes, slot: PendingCall | None) -> None:
        self.type = kind
        self.raw = raw
        self.slot = slot
        self.text: list[str] = []
        self.json: list[str] = []
        self.signature: list[str] = []
        self.citations: list[Raw] = []

    def whole(self) -> bytes | None:
        """The block as it must go back, or None for one that is empty or was cut off before it was signed."""
        fields = _fields.decode(self.raw)
        match self.type:
            case "tool_use":
                return b'{"type":"tool_use"}'
            case "text":
                text = "".join(self.text)
                if not text.strip():
                    return None
                fields["text"] = _raw(text)
                if self.citations:
                    fields["citations"] = _raw(self.citations)
            case "thinking":
                fields["thinking"] = _raw("".join(self.text))
                if self.signature:
                    fields["signature"] = _raw("".join(self.signature))
                if bytes(fields.get("signature", b'""')) == b'""':
                    return None
            case _ if self.json:
                fields["input"] = Raw("".join(self.json).encode())
            case _:
                pass
        return msgspec.json.encode(fields)


class AnthropicReader:
    """The reply of one exchange, in the making."""

    def __init__(self, owner: str, *, sent: int = 0, prefix: str = "") -> None:
        self._owner = owner
        self._prefix = prefix
        self._sent = sent
        self._stream = MessageStream(_EVENTS)
        self._made = ReplyBuilder()
        self._blocks: dict[int, _Block] = {}
        self._stop = ""
        self._why = ""
        self._usage = _Usage()
        self._counted = False
        self._model = ""
        self._done = False

    @property
    def text(self) -> str:
        return self._made.join_text()

    @property
    def is_done(self) -> bool:
        return self._done

    @property
    def has_ended(self) -> bool:
        return self._done or bool(self._stop)

    def feed(self, data: bytes) -> list[ModelEvent]:
        for event in self._stream.feed(data):
            self._read(event)
        return self._made.take_deltas()

    def finish(self) -> list[ModelEvent]:
        if (document := self._stream.join_document()) is not None:
            self._read_whole(document)
        for event in self._stream.finish():
            self._read(event)
        for block in self._blocks.values():
            # Arguments that came with the beginning of a call count where no pieces followed.
            if block.slot is not None and block.json and not block.slot.arguments:
                block.slot.arguments += block.json
                self._made.mark_changed(block.slot)
        events = self._made.finish()
        if not self.has_ended:
            raise ModelError(
                f"{self._owner} ended its stream before the reply was complete", kind="network", retryable=True
            )
        return events

    def build_reply(self) -> Reply:
        text, thought = self._made.join_texts()
        finish = _FINISH.get(self._stop, "other") if self._stop else "stop"
        calls = self._made.build_calls(is_cut_off=finish == "length")
        if calls and finish == "stop":
            finish = "calls"
        size = len(text) + len(thought) + sum(len(call.arguments) for call in calls)
        return Reply(
            text=text or self._why,
            reasoning=thought,
            calls=calls,
            finish=finish,
            usage=self._counts(size),
            model=self._model or self._owner.partition(":")[2],
            opaque=self._opaque(),
        )

    def _read(self, event: _Event) -> None:
        match event.type:
            case "content_block_delta":
                if event.delta is not None:
                    self._grow(event.index, event.delta)
            case "content_block_start":
                self._begin(event.index, read_raw(event.content_block) or b"{}")
            case "message_start" if event.message is not None:
                self._model = event.message.model or ""
                self._count(event.message.usage)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    self._stop = event.delta.stop_reason or self._stop
                    details = event.delta.stop_details
                    self._why = (details.explanation if details is not None else None) or self._why
            case "message_stop":
                self._done = True
            case "error":
                raise ReportedFailure(event.error)
            case _ if event.error:  # as proxies say it whatever they stand before
                raise ReportedFailure(event.error)
            case _:
                pass

    def _begin(self, index: int, raw: bytes) -> None:
        start = _start.decode(raw)
        slot: PendingCall | None = None
        if start.type == "tool_use":
            slot = self._made.start_call()
            slot.id, slot.name = start.id or "", start.name or ""
            self._made.mark_changed(slot)
        block = self._blocks[index] = _Block(start.type or "", raw, slot)
        if slot is not None and (whole := read_raw(start.input)) not in (b"", b"{}"):
            block.json.append(whole.decode())
        if start.text:
            block.text.append(start.text)
            self._made.add_text(start.text)
        if start.thinking:
            block.text.append(start.thinking)
            self._made.add_reasoning(start.thinking)

    def _grow(self, index: int, delta: _Delta) -> None:
        block = self._blocks.get(index)
        if block is None:
            raise MalformedStream(f"a piece of block {index}, which did not begin")
        if delta.text is not None:
            block.text.append(delta.text)
            self._made.add_text(delta.text)
        elif delta.partial_json is not None:
            if block.slot is None:
                block.json.append(delta.partial_json)
            elif delta.partial_json:
                block.slot.arguments.append(delta.partial_json)
                self._made.mark_changed(block.slot)
        elif delta.thinking is not None:
            block.text.append(delta.thinking)
            self._made.add_reasoning(delta.thinking)
        elif delta.signature is not None:
            block.signature.append(delta.signature)
        elif citation := read_raw(delta.citation):
            block.citations.append(Raw(citation))

    def _read_whole(self, body: bytes) -> None:
        """A message that was not streamed."""
        try:
            self._read(_EVENTS.one.decode(body))
            message = _message.decode(body)
        except msgspec.DecodeError as error:
            raise MalformedStream(f"{error}: {body[:200].decode('utf-8', 'replace')!r}") from None
        for index, raw in enumerate(message.content or ()):
            self._begin(index, bytes(raw))
        self._model = message.model or ""
        self._stop = message.stop_reason or ""
        self._count(message.usage)

    def _count(self, usage: _Usage | None) -> None:
        """Counts come with the start and, complete, with the end; the later ones replace the earlier."""
        if usage is None:
            return
        self._counted = True
        known = self._usage
        for name in _Usage.__struct_fields__:
            value = getattr(usage, name)
            if value is not None:
                setattr(known, name, value)

    def _counts(self, size: int) -> Usage:
        usage = self._usage
        if not self._counted:
            return add_cost(self._owner, Usage(estimate_tokens(self._sent), estimate_tokens(size), estimated=True))
        read, made = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        details = usage.output_tokens_details
        count = Usage(
            input_tokens=(usage.input_tokens or 0) + read + made,
            output_tokens=usage.output_tokens or 0,
            cached_tokens=read,
            reasoning_tokens=(details.thinking_tokens if details is not None else None) or 0,
        )
        return add_cost(self._owner, count, made)

    def _opaque(self) -> str:
        """The blocks as they came, where they are more than text and calls."""
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        if all(block.type in ("text", "tool_use") for block in blocks):
            return ""
        items = [Raw(whole) for block in blocks if (whole := block.whole()) is not None]
        return encode_state(OpaqueState(owner=f"anthropic:{self._owner}", items=items, prefix=self._prefix))


def _raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))
