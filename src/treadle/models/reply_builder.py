"""A reply while it arrives: text, reasoning, calls and usage, the same for every protocol. No network here.

All pieces that arrive together become one delta for each run of text, of reasoning, or of a call's arguments.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from treadle.errors import ModelError
from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import Call, FinishReason, Reply, ToolSpec, Usage
from treadle.models.base import ModelEvent
from treadle.models.model_info import ModelInfo
from treadle.models.request_parts import WireFormat, estimate_tokens
from treadle.models.sse import MessageStream

M = TypeVar("M")
_OPENING_TAG, _CLOSING_TAG = "<think>", "</think>"


class InputTokenDetails(Struct, gc=False):
    """How OpenAI's protocols break down the tokens of a request."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputTokenDetails(Struct, gc=False):
    """How the protocols break down the tokens of a reply: OpenAI counts reasoning, Anthropic thinking."""

    reasoning_tokens: int | None = None
    thinking_tokens: int | None = None


class ThinkSplitter:
    """Separates a `<think>` block from the answer in text that arrives in pieces.

    Only a block at the very beginning counts: a tag in the middle of an answer is part of the answer. A piece is
    held back only while it may be a part of a tag.
    """

    __slots__ = ("_held", "_mode")

    def __init__(self) -> None:
        self._mode: Literal["start", "reasoning", "gap", "text"] = "start"
        self._held: str = ""

    def feed(self, text: str) -> tuple[str, str]:
        """`(reasoning, text)` of this piece."""
        if self._mode == "text":
            return "", text
        if self._mode == "gap":
            return "", self._skip_empty_lines(text)
        text = self._held + text
        self._held = ""
        if self._mode == "start":
            bare = text.lstrip()
            if bare.startswith(_OPENING_TAG):
                self._mode = "reasoning"
                text = bare[len(_OPENING_TAG) :]
            elif _OPENING_TAG.startswith(bare):
                self._held = text
                return "", ""
            else:
                self._mode = "text"
                return "", text
        reasoning, tag, rest = text.partition(_CLOSING_TAG)
        if tag:
            self._mode = "gap"
            return reasoning, self._skip_empty_lines(rest)
        for length in range(min(len(_CLOSING_TAG) - 1, len(text)), 0, -1):
            if _CLOSING_TAG.startswith(text[-length:]):
                self._held = text[-length:]
                return text[:-length], ""
        return text, ""

    def finish(self) -> tuple[str, str]:
        """`(reasoning, text)` that was still held back when the text ended."""
        held, self._held = self._held, ""
        return (held, "") if self._mode == "reasoning" else ("", held)

    def _skip_empty_lines(self, text: str) -> str:
        """Drop the empty lines between a block and the answer."""
        text = text.lstrip("\n")
        if text:
            self._mode = "text"
        return text


def split_unopened_block(text: str) -> tuple[str, str]:
    """`(reasoning, text)` of a complete reply whose chat template swallowed the opening tag."""
    reasoning, tag, rest = text.partition(_CLOSING_TAG)
    return (reasoning.strip(), rest.lstrip()) if tag and _OPENING_TAG not in reasoning else ("", text)


class PendingCall:
    """One call as its pieces arrive.

    `sent` counts the argument pieces that were passed on. `initial_arguments` came with the call's beginning and
    count only where no pieces follow. `extra` is the provider's own data about the call.
    """

    __slots__ = ("arguments", "extra", "id", "index", "initial_arguments", "name", "sent")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.initial_arguments = ""
        self.extra: Raw | None = None
        self.sent = -1

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
        except msgspec.DecodeError:
            return False
        return True


class ReplyBuilder:
    """Collects the pieces of a reply. `take_deltas` returns the deltas since it was last called."""

    __slots__ = ("_changed", "_deltas", "_is_reasoning", "_run", "_splitter", "calls", "reasoning", "texts")

    def __init__(self, *, splits_think_tags: bool = False) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[PendingCall] = []
        self._deltas: list[ModelEvent] = []
        self._run: list[str] = []
        self._is_reasoning = False
        self._changed: list[PendingCall] = []
        self._splitter = ThinkSplitter() if splits_think_tags else None

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
        return deltas

    def finish(self) -> list[ModelEvent]:
        """The last deltas, including the text that was held back."""
        for call in self.calls:
            if call.initial_arguments and not call.arguments:
                call.arguments.append(call.initial_arguments)
                self.mark_changed(call)
        deltas = self.take_deltas()
        if self._splitter is not None:
            self._add_deltas(*self._splitter.finish())
            deltas += self.take_deltas()
        return deltas

    def join_text(self) -> str:
        """The text so far, with pieces that no delta has carried yet: a failure may follow right behind them."""
        if self._run:
            self._flush()
        return "".join(self.texts)

    def join_texts(self) -> tuple[str, str]:
        """`(text, reasoning)` of the complete reply."""
        text, reasoning = "".join(self.texts), "".join(self.reasoning)
        if self._splitter is not None and not reasoning and _CLOSING_TAG in text:
            reasoning, text = split_unopened_block(text)
        return text, reasoning

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

    def _flush(self) -> None:
        text = "".join(self._run)
        self._run.clear()
        if self._is_reasoning:
            self._add_deltas(text, "")
        elif self._splitter is None:
            self._add_deltas("", text)
        elif text:
            self._add_deltas(*self._splitter.feed(text))

    def _add_deltas(self, reasoning: str, text: str) -> None:
        if reasoning:
            self.reasoning.append(reasoning)
            self._deltas.append(ReasoningDelta(text=reasoning))
        if text:
            self.texts.append(text)
            self._deltas.append(TextDelta(text=text))


class ReplyReader(ABC, Generic[M]):
    """Turns the bytes of one response into deltas and one reply. Each protocol says what its messages mean.

    `sent` is the size of the request: tokens are estimated from it where the provider does not count them. Calls of
    `tools` are recovered where the model wrote them as text.
    """

    finishes_with_calls: ClassVar[tuple[FinishReason, ...]] = ("stop", "calls")
    """The reasons to finish that become "calls" when the reply has calls."""

    def __init__(
        self,
        wire: WireFormat,
        stream: MessageStream[M],
        sent: int,
        *,
        tools: tuple[ToolSpec, ...] = (),
        splits_think_tags: bool = False,
    ) -> None:
        self._wire = wire
        self._stream = stream
        self._sent = sent
        self._tools = tools
        self._builder = ReplyBuilder(splits_think_tags=splits_think_tags)
        self._refusal: list[str] = []
        self._model = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return self._builder.join_text()

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the reply is complete, though the connection may still be open."""

    @property
    def has_ended(self) -> bool:
        """Whether the model has said why it stopped, so that at most its count of tokens is missing."""
        return self.is_done

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
        finish = self._read_finish()
        calls = self._builder.build_calls(is_cut_off=finish == "length")
        if not calls and self._tools:
            text, calls = extract_text_calls(text, self._tools)
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
        )

    @abstractmethod
    def _read(self, messages: Iterable[M]) -> None:
        """Take in the next messages of the stream."""

    def _read_document(self, document: bytes) -> None:
        """Take in a response that is one JSON document instead of a stream."""
        self._read([self._stream.decode_document(document)])

    @abstractmethod
    def _read_finish(self) -> FinishReason: ...

    def _build_usage(self, written: int) -> Usage:
        """An estimate, from the size of the request and of what the model has written."""
        usage = Usage(estimate_tokens(self._sent), estimate_tokens(written), estimated=True)
        return add_cost(usage, self._wire.info)

    def _build_opaque(self, reasoning: str) -> str:
        """What this same model wants back unchanged."""
        return ""


def add_cost(usage: Usage, info: ModelInfo, cache_write: int = 0) -> Usage:
    """`usage` with its cost in dollars. `cache_write` of its input tokens were written to a prompt cache."""
    if not (info.input or info.output):
        return usage
    fresh = max(0, usage.input_tokens - usage.cached_tokens - cache_write)
    dollars = (
        fresh * info.input
        + usage.cached_tokens * (info.input if info.cached is None else info.cached)
        + cache_write * (info.input if info.cache_write is None else info.cache_write)
        + usage.output_tokens * info.output
    )
    return msgspec.structs.replace(usage, cost=dollars / 1e6)


def extract_text_calls(text: str, tools: tuple[ToolSpec, ...]) -> tuple[str, tuple[Call, ...]]:
    """The text of a reply without the calls that are written in it, and those calls."""
    if not ("{" in text or "<" in text or "[" in text):
        return text, ()
    from treadle.models.text_calls import recover_calls

    rest, found = recover_calls(text, tools)
    return rest, tuple(Call(new_call_id(), call.tool, call.arguments) for call in found)


def new_call_id() -> str:
    """An id for a call that came without one."""
    return f"call_{uuid.uuid4().hex[:24]}"
