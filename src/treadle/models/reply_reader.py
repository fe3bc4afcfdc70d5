"""Reads a response while it arrives: bytes become messages, and messages become deltas and one reply. No network here.

All that has arrived together is decoded together, which costs a tenth of decoding it message by message. It becomes
one delta for each run of text, of reasoning, or of a call's arguments.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from treadle.engine.leaked_reasoning import ReasoningSplitter
from treadle.errors import ModelError
from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import Call, FinishReason, Json, Reply, SignedReasoning, ToolSpec, Usage
from treadle.models.base import ModelEvent
from treadle.models.wire_format import ReportedUsage, TokenDetails, WireFormat, estimate_tokens, new_call_id, read_type

T = TypeVar("T")
_LONGEST_EVENT = 1 << 24
_MOST_HELD = 1 << 26
"""How many bytes may come without the end of a message. Some messages hold images, but none is endless."""
_IGNORED_START = b"\xef\xbb\xbf \t\r\n"
"""Bytes without a meaning that may come before the first event: a byte order mark, and blanks."""


class MalformedStream(ValueError):
    """The stream has something that is not a message of this protocol."""


class MessageStream(Generic[T]):
    """The messages in a stream of bytes, wherever the bytes are cut when they arrive.

    `is_done` is set after `[DONE]`. `is_framed=False` is for streams of bare JSON lines. Some servers send one JSON
    document instead of events, under any content type: `join_document` returns it.
    """

    def __init__(self, decoder: MessageDecoder[T], *, is_framed: bool = True) -> None:
        self._is_framed = is_framed
        self._has_begun = False
        self._held = 0
        self._is_document = False
        self.decoder = decoder
        self._parts: list[bytes] = []
        self._unfinished = b""
        self.is_done = False

    def feed(self, data: bytes) -> Iterable[T]:
        """The messages that `data` completes. An error is raised after the messages before it."""
        if not self._has_begun:
            data = data.lstrip(_IGNORED_START)
            self._has_begun = bool(data)
            self._is_document = self._is_framed and data.startswith(b"{")
        cut = 0 if self._is_document else data.rfind(b"\n") + 1
        if not cut:
            self._parts.append(data)
            self._held += len(data)
            if self._held > _MOST_HELD:
                raise MalformedStream(f"{self._held} bytes without the end of a message")
            return []
        self._held = len(data) - cut
        if self._parts:
            self._parts.append(data[:cut])
            block = b"".join(self._parts)
            self._parts.clear()
        else:
            block = data[:cut]
        if cut < len(data):
            self._parts.append(data[cut:])
        return self._decode(self._extract_payloads(block))

    def finish(self) -> list[T]:
        """The messages that are left in a stream without its last line break."""
        if self._is_document:
            return []
        rest = b"".join(self._parts)
        self._parts.clear()
        found = list(self._decode(self._extract_payloads(rest))) if rest.strip() else []
        if self._unfinished:
            raise MalformedStream(_quote(self._unfinished))
        return found

    def join_document(self) -> bytes | None:
        """The response as one JSON document, or None where it is a stream."""
        return b"".join(self._parts).decode("utf-8", "replace").encode() if self._is_document else None

    def _extract_payloads(self, block: bytes) -> list[bytes]:
        lines = block.splitlines()
        if not self._is_framed:
            return [line for line in lines if line.strip()]
        # llama-server of 2024 and its descendants report a failure in a field of its own.
        if block.startswith(b"error:") or b"\nerror:" in block:
            lines = [b'data:{"error":%b}' % x[6:] if x.startswith(b"error:") else x for x in lines]
        return [line[5:] for line in lines if line.startswith(b"data:")]

    def _decode(self, payloads: list[bytes]) -> Iterable[T]:
        if self._is_framed:
            for place in range(len(payloads) - 1, max(len(payloads) - 3, -1), -1):
                if payloads[place].strip() == b"[DONE]":
                    self.is_done = True
                    del payloads[place:]
                    break
        if not payloads:
            return []
        if not self._unfinished:
            try:
                return self.decoder.many.decode(b"[%b]" % b",".join(payloads))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
        return self._decode_one_by_one(payloads)

    def _decode_one_by_one(self, payloads: Iterable[bytes]) -> Iterable[T]:
        """Decode slowly: for events over several `data` lines, and to say which message is bad."""
        for payload in payloads:
            if payload.strip() == b"[DONE]":
                self.is_done = True
                return
            if not payload.strip():
                continue
            text = self._unfinished + b"\n" + payload if self._unfinished else payload
            # Each attempt reads all of the text, so only a text that may end an object is tried.
            message = self._decode_message(text) if not self._unfinished or payload.rstrip().endswith(b"}") else None
            if message is not None:
                self._unfinished = b""
                yield message
            elif self._unfinished and (payload.startswith(b" {") or len(text) > _LONGEST_EVENT):
                raise MalformedStream(_quote(self._unfinished))
            else:
                self._unfinished = text

    def _decode_message(self, text: bytes) -> T | None:
        """The message in `text`, or None where the text is no complete JSON document."""
        try:
            return self.decoder.one.decode(text)
        except msgspec.ValidationError as error:
            if self.decoder.is_unknown_type(text):
                return self.decoder.shape()
            raise MalformedStream(f"{error}: {_quote(text)}") from None
        except (msgspec.DecodeError, RecursionError):
            pass
        except UnicodeDecodeError:
            text = text.decode("utf-8", "replace").encode()
        # Servers that cut strings in two send half a surrogate pair, which msgspec refuses.
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        clean = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        try:
            return self.decoder.one.decode(clean)
        except msgspec.DecodeError as error:
            raise MalformedStream(f"{error}: {_quote(text)}") from None


def decode_document(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """A response that is one JSON document."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedStream(f"{error}: {_quote(body)}") from None


class MessageDecoder(Generic[T]):
    """The decoders for the messages of one protocol. They are built once, because building them is slow.

    `known` are the types of messages that are read. A provider may add others, of any shape.
    """

    def __init__(self, shape: type[T], known: frozenset[str] = frozenset()) -> None:
        self.shape = shape
        self.known = known
        self.one: msgspec.json.Decoder[T] = msgspec.json.Decoder(shape)
        self.many: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(list[shape])

    def is_unknown_type(self, text: bytes) -> bool:
        """Whether a message is of a type that is not read."""
        try:
            kind = read_type(text)
        except msgspec.ValidationError:
            return False
        return bool(self.known and kind and kind not in self.known)


def _quote(text: bytes) -> str:
    return repr(text[:200].decode("utf-8", "replace"))


class PendingCall(Struct):
    """One call as its pieces arrive.

    `sent` counts the argument pieces that were passed on. `initial_arguments` came with the call's beginning and
    count only where no pieces follow. `extra` is the provider's own data about the call.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = []
    initial_arguments: str = ""
    extra: Raw | None = None
    sent: int = -1

    def take_delta(self) -> CallDelta:
        """A delta of the pieces that were not passed on yet. The first one carries the tool's name."""
        name = self.name if self.sent < 0 else ""
        new = "".join(self.arguments[max(self.sent, 0) :])
        self.sent = len(self.arguments)
        return CallDelta(index=self.index, tool=name, arguments=new)

    def is_complete(self) -> bool:
        """Whether the arguments so far are a complete JSON object."""
        end = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        if not end.rstrip().endswith("}"):
            return False  # Some servers make us ask this for every piece, and decoding all of them takes long.
        try:
            msgspec.json.decode("".join(self.arguments))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class ReplyBuilder:
    """Collects the pieces of a reply. `take_deltas` returns the deltas since it was last called."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[PendingCall] = []
        self.logprobs: list[Json] = []
        self._logprobs_sent = 0
        self._deltas: list[ModelEvent] = []
        self._run: list[str] = []
        self._is_reasoning = False
        self._changed: list[PendingCall] = []
        self._splitter = ReasoningSplitter()

    def add_text(self, text: str) -> None:
        if self._is_reasoning:
            self._flush()
            self._is_reasoning = False
        self._run.append(text)

    def add_reasoning(self, text: str) -> None:
        if not self._is_reasoning:
            self._flush()
            self._is_reasoning = True
        self._run.append(text)

    def add_signed_block(self, block: bytes) -> None:
        """Pass on a complete block of reasoning, in its place among the deltas."""
        self._flush()
        self._deltas.append(SignedReasoning(block.decode()))

    def start_call(self) -> PendingCall:
        call = PendingCall(len(self.calls))
        self.calls.append(call)
        return call

    def mark_changed(self, call: PendingCall) -> None:
        """Note that a call has grown."""
        self._changed.append(call)

    def take_deltas(self) -> list[ModelEvent]:
        if self._run:
            self._flush()
        deltas = self._deltas
        self._deltas = []
        if self._changed:
            deltas += [call.take_delta() for call in self._changed if call.sent < len(call.arguments)]
            self._changed.clear()
        if self._logprobs_sent < len(self.logprobs):
            self._attach_logprobs(deltas)
        return deltas

    def finish(self) -> list[ModelEvent]:
        """The last deltas, including the text that was held back."""
        for call in self.calls:
            if call.initial_arguments and not call.arguments:
                call.arguments.append(call.initial_arguments)
                self.mark_changed(call)
        deltas = self.take_deltas()
        self._add_deltas(*self._splitter.finish())
        return deltas + self.take_deltas()

    def join_text(self) -> str:
        """The text so far, with pieces that no delta has carried yet: a failure may follow right behind them."""
        if self._run:
            self._flush()
        return "".join(self.texts)

    def join_texts(self) -> tuple[str, str]:
        """`(text, reasoning)` of the complete reply."""
        text, reasoning = "".join(self.texts), "".join(self.reasoning)
        return self._splitter.correct(text, reasoning) if self._splitter.misread else (text, reasoning)

    def build_calls(self, *, is_cut_off: bool) -> tuple[Call, ...]:
        """The calls. Missing arguments are an empty object, unless the reply was cut off before them."""
        calls: list[Call] = []
        ids: set[str] = set()
        for call in self.list_real_calls():
            arguments = "".join(call.arguments)
            arguments = arguments if is_cut_off or arguments.strip() else "{}"
            call_id = call.id if call.id and call.id not in ids else new_call_id()
            ids.add(call_id)
            calls.append(Call(call_id, call.name, arguments))
        return tuple(calls)

    def list_real_calls(self) -> list[PendingCall]:
        return [call for call in self.calls if call.name or call.arguments]

    def _attach_logprobs(self, deltas: list[ModelEvent]) -> None:
        """Put the log-probabilities that no delta has carried yet into the last delta of text, if there is one."""
        for place in range(len(deltas) - 1, -1, -1):
            if isinstance(delta := deltas[place], TextDelta):
                deltas[place] = TextDelta(text=delta.text, logprobs=tuple(self.logprobs[self._logprobs_sent :]))
                self._logprobs_sent = len(self.logprobs)
                return

    def _flush(self) -> None:
        text = "".join(self._run)
        self._run.clear()
        if self._is_reasoning:
            self._add_deltas("", text)
        elif text:
            self._add_deltas(*self._splitter.feed(text))

    def _add_deltas(self, text: str, reasoning: str) -> None:
        if reasoning:
            self.reasoning.append(reasoning)
            self._deltas.append(ReasoningDelta(text=reasoning))
        if text:
            self.texts.append(text)
            self._deltas.append(TextDelta(text=text))


FinishReasons = Mapping[str, FinishReason]


class ReplyReader(ABC, Generic[T]):
    """Turns the bytes of one response into deltas and one reply. Each protocol says what its messages mean.

    `sent` is the size of the request: tokens are estimated from it where the provider does not count them. Calls of
    `tools` are recovered where the model wrote them as text. `is_done` says that the reply is complete, though the
    connection may still be open.
    """

    finish_reasons: ClassVar[FinishReasons]
    """Our words for the provider's reasons to finish. An unknown reason is "other", and no reason is "stop"."""
    finishes_with_calls: ClassVar[tuple[FinishReason, ...]] = ("stop", "calls")
    """The reasons to finish that become "calls" when the reply has calls."""

    def __init__(
        self, wire: WireFormat, stream: MessageStream[T], sent: int, *, tools: tuple[ToolSpec, ...] = ()
    ) -> None:
        self.is_done = False
        self._wire = wire
        self._stream = stream
        self._sent = sent
        self._tools = tools
        self._builder = ReplyBuilder()
        self._refusal: list[str] = []
        self._finish_reason = ""
        self._usage: ReportedUsage | None = None
        self._model = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return self._builder.join_text()

    @property
    def has_ended(self) -> bool:
        """Whether the model has said why it stopped, so that at most its count of tokens is missing."""
        return self.is_done or bool(self._finish_reason)

    def feed(self, data: bytes) -> list[ModelEvent]:
        """The deltas in the next bytes."""
        self._read(self._stream.feed(data))
        return self._builder.take_deltas()

    def finish(self) -> list[ModelEvent]:
        """The deltas that are left after the last byte. Raises `ModelError` when the reply is not complete."""
        document = self._stream.join_document()
        if document is not None:
            self._read_document(document)
        self._read(self._stream.finish())
        deltas = self._builder.finish()
        if not self.has_ended:
            raise ModelError(
                f"{self._wire.owner} ended its stream before the reply was complete", kind="network", retryable=True
            )
        return deltas

    def build_reply(self) -> Reply:
        """The complete reply, after `finish`."""
        text, reasoning = self._builder.join_texts()
        finish = self.finish_reasons.get(self._finish_reason, "other") if self._finish_reason else "stop"
        calls = self._builder.build_calls(is_cut_off=finish == "length")
        if self._tools and not calls and any(mark in text for mark in "{<["):
            from treadle.models.text_calls import recover_calls

            text, found = recover_calls(text, self._tools)
            calls = tuple(Call(new_call_id(), call.tool, call.arguments) for call in found)
        if calls and finish in self.finishes_with_calls:
            finish = "calls"
        elif self._refusal:
            text, finish = text or "".join(self._refusal), "filter"
        written = len(text) + len(reasoning) + sum(len(call.arguments) for call in calls)
        return Reply(
            text=text,
            reasoning=reasoning,
            calls=calls,
            finish=finish,
            usage=self._build_usage(written),
            model=self._model or self._wire.model,
            opaque=self._build_opaque(reasoning),
            logprobs=tuple(self._builder.logprobs),
        )

    @abstractmethod
    def _read(self, arrived: Iterable[T], /) -> None:
        """Take in the next messages of the stream."""

    def _read_document(self, document: bytes) -> None:
        """Take in a response that is one JSON document instead of a stream."""
        self._read([decode_document(self._stream.decoder.one, document)])

    def _build_usage(self, written: int) -> Usage:
        """The provider's count, or an estimate from the size of the request and of what the model has written."""
        counts = self._usage or ReportedUsage()
        inputs, outputs = counts.prompt_tokens or counts.input_tokens, counts.completion_tokens or counts.output_tokens
        if not inputs and not outputs:
            usage = Usage(estimate_tokens(self._sent), estimate_tokens(written), estimated=True)
            return self._wire.add_cost(usage)
        read = counts.prompt_tokens_details or counts.input_tokens_details or TokenDetails()
        wrote = counts.completion_tokens_details or counts.output_tokens_details or TokenDetails()
        cached = read.cached_tokens or counts.prompt_cache_hit_tokens or 0
        usage = Usage(int(inputs or 0), int(outputs or 0), cached, wrote.reasoning_tokens or 0)
        if isinstance(counts.cost, int | float):
            return msgspec.structs.replace(usage, cost=counts.cost)
        return self._wire.add_cost(usage, read.cache_write_tokens or 0)

    def _build_opaque(self, reasoning: str) -> str:
        """State that this same model wants back unchanged."""
        return ""
