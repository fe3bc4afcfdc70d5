"""Reads Chat Completions: chunks, and whole completions of servers that do not stream. No network here.

All that arrived together becomes one delta of each kind, in order; the reply is complete after the last byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from treadle.errors import ModelError
from treadle.messages import FinishReason, Reply, ToolSpec, Usage
from treadle.models.base import ModelEvent
from treadle.models.prices import add_cost
from treadle.models.reply_builder import PendingCall, ReplyBuilder, extract_text_calls
from treadle.models.reports import ReportedFailure
from treadle.models.request_parts import MISSING, OpaqueState, encode_state, estimate_tokens, read_raw
from treadle.models.sse import MalformedStream, MessageDecoder, MessageStream


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCall(Struct, gc=False):
    index: int | None = None
    id: str | int | None = None
    function: _Function | None = None
    extra_content: Raw = MISSING


class _Piece(Struct, gc=False):
    """A part of a content that is a list: text, or Mistral's thinking."""

    text: str | None = None
    thinking: str | list[_Piece] | None = None

    def thoughts(self) -> str:
        if isinstance(self.thinking, list):
            return "".join(piece.text or "" for piece in self.thinking)
        return self.thinking or ""


class _Delta(Struct, gc=False):
    content: str | list[_Piece] | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    reasoning_details: list[Raw] | None = None
    refusal: str | None = None


class _Choice(Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _InputDetails(Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cost: float | None = None


class _Vendor(Struct, gc=False):
    usage: _Usage | None = None


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    x_groq: _Vendor | None = None


_CHUNKS = MessageDecoder(_Chunk)
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "calls",
    "function_call": "calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "filter",
    "safety": "filter",
    "SAFETY": "filter",
}


class ChatReader:
    """The reply of one exchange, in the making."""

    def __init__(
        self,
        owner: str,
        tools: tuple[ToolSpec, ...] = (),
        *,
        sent: int = 0,
        think_tags: bool = True,
        keep_reasoning: bool = False,
    ) -> None:
        self._owner = owner
        self._tools = tools
        self._sent = sent
        self._stream = MessageStream(_CHUNKS)
        self._made = ReplyBuilder(think_tags=think_tags)
        self._keep_reasoning = keep_reasoning
        self._refused: list[str] = []
        self._details: list[Raw] = []
        self._field = ""
        self._slot_at: dict[int, PendingCall] = {}
        self._finish = ""
        self._usage: _Usage | None = None
        self._model = ""

    @property
    def text(self) -> str:
        return self._made.join_text()

    @property
    def is_done(self) -> bool:
        return self._stream.is_done

    @property
    def has_ended(self) -> bool:
        return self.is_done or bool(self._finish)

    def feed(self, data: bytes) -> list[ModelEvent]:
        self._read(self._stream.feed(data))
        return self._made.take_deltas()

    def finish(self) -> list[ModelEvent]:
        document = self._stream.join_document()
        self._read(self._stream.finish() if document is None else [_completion(document)])
        events = self._made.finish()
        if self._finish == "error":
            raise ReportedFailure({"message": "the model broke off with an error, and nothing says which"})
        if not self.has_ended:
            raise ModelError(
                f"{self._owner} ended its stream before the reply was complete",
                kind="network",
                retryable=True,
            )
        return events

    def build_reply(self) -> Reply:
        text, thought = self._made.join_texts()
        finish = _FINISH.get(self._finish, "other") if self._finish else "stop"
        calls = self._made.build_calls(is_cut_off=finish == "length")
        if not calls and self._tools:
            text, calls = extract_text_calls(text, self._tools)
        if calls and finish != "length":
            finish = "calls"
        elif self._refused:
            text, finish = text or "".join(self._refused), "filter"
        return Reply(
            text=text,
            reasoning=thought,
            calls=calls,
            finish=finish,
            usage=self._counted(len(text) + len(thought) + sum(len(call.arguments) for call in calls)),
            model=self._model or self._owner.partition(":")[2],
            opaque=self._opaque(thought),
        )

    def _read(self, chunks: Iterable[_Chunk]) -> None:
        made, chunk = self._made, None
        for chunk in chunks:
            if chunk.error:
                raise ReportedFailure(chunk.error)
            if not chunk.choices and (said := chunk.message or chunk.detail):
                raise ReportedFailure({"message": said, "code": chunk.code})
            if chunk.usage is not None:
                self._usage = chunk.usage
            elif chunk.x_groq is not None:
                self._usage = chunk.x_groq.usage
            for choice in chunk.choices or ():
                if choice.index:
                    continue
                if choice.finish_reason:
                    self._finish = choice.finish_reason
                delta = choice.delta or choice.message
                if delta is None:
                    continue
                if thought := self._thinking(delta):
                    made.add_reasoning(thought)
                content = delta.content
                if content:
                    made.add_text(content if isinstance(content, str) else "".join(p.text or "" for p in content))
                if delta.tool_calls:
                    for piece in delta.tool_calls:
                        made.mark_changed(self._put(piece))
                elif delta.refusal:
                    self._refused.append(delta.refusal)
        if chunk is not None and chunk.model:
            self._model = chunk.model

    def _thinking(self, delta: _Delta) -> str:
        """The reasoning in a delta, under whichever name the server gives it."""
        if delta.reasoning_details:
            self._details += delta.reasoning_details
        if delta.reasoning_content:
            self._field = "reasoning_content"
            return delta.reasoning_content
        if isinstance(delta.reasoning, str) and delta.reasoning:
            self._field = "reasoning"
            return delta.reasoning
        if isinstance(delta.content, list):
            return "".join(piece.thoughts() for piece in delta.content)
        return ""

    def _put(self, piece: _ToolCall) -> PendingCall:
        """Add a piece to the call it belongs to, which servers say in many ways."""
        function = piece.function or _NOTHING
        slot = self._slot_for(piece, function)
        slot.id = slot.id or _id(piece)
        if extra := read_raw(piece.extra_content):
            slot.extra = Raw(extra)
        if function.name and function.name != slot.name:
            slot.name += function.name
        if isinstance(function.arguments, str):
            if function.arguments:
                slot.arguments.append(function.arguments)
        elif function.arguments is not None:
            slot.arguments.append(msgspec.json.encode(function.arguments).decode())
        return slot

    def _slot_for(self, piece: _ToolCall, function: _Function) -> PendingCall:
        slots, call_id = self._made.calls, _id(piece)
        if piece.index is not None:
            slot = self._slot_at.get(piece.index)
        elif call_id:
            slot = next((known for known in slots if known.id == call_id), None)
        else:
            slot = slots[-1] if slots else None
        if slot is not None and slot.name:
            if call_id:
                # Some servers number every call 0, others give every piece of one call an id of its own.
                goes_on = not slot.is_complete() if slot.arguments else not function.name
                other = bool(slot.id and call_id != slot.id and not goes_on)
            else:
                # The same index, or none, for the next call, and no id to tell by: a second whole call begins.
                other = bool(function.name and function.arguments and slot.is_complete())
            if other:
                slot = None
        if slot is None:
            slot = self._made.start_call()
            if piece.index is not None:
                self._slot_at[piece.index] = slot
        return slot

    def _opaque(self, thought: str) -> str:
        items = [slot.extra or _NULL for slot in self._made.list_real_calls()]
        fields: dict[str, Raw] = {}
        if self._keep_reasoning and self._details:
            fields["reasoning_details"] = Raw(msgspec.json.encode(_merged(self._details)))
        elif self._keep_reasoning and self._field and thought:
            fields[self._field] = Raw(msgspec.json.encode(thought))
        if not fields and all(item is _NULL for item in items):
            return ""
        return encode_state(OpaqueState(owner=f"chat:{self._owner}", items=items, fields=fields))

    def _counted(self, written: int) -> Usage:
        usage = self._usage
        if usage is None or (not usage.prompt_tokens and not usage.completion_tokens):
            return add_cost(self._owner, Usage(estimate_tokens(self._sent), estimate_tokens(written), estimated=True))
        inside, outside = usage.prompt_tokens_details, usage.completion_tokens_details
        cached = (inside.cached_tokens if inside is not None else None) or usage.prompt_cache_hit_tokens
        count = Usage(
            input_tokens=int(usage.prompt_tokens or 0),
            output_tokens=int(usage.completion_tokens or 0),
            cached_tokens=cached or 0,
            reasoning_tokens=(outside.reasoning_tokens if outside is not None else None) or 0,
        )
        if usage.cost is not None:
            return msgspec.structs.replace(count, cost=usage.cost)
        return add_cost(self._owner, count, (inside.cache_write_tokens if inside is not None else None) or 0)


def _id(piece: _ToolCall) -> str:
    """The id in a piece of a call; some servers count instead of naming."""
    return str(piece.id or "")


_NOTHING = _Function()
_NULL = Raw(b"null")


def _completion(body: bytes) -> _Chunk:
    try:
        return _CHUNKS.one.decode(body)
    except msgspec.DecodeError as error:
        raise MalformedStream(f"{error}: {body[:200].decode('utf-8', 'replace')!r}") from None


def _merged(details: list[Raw]) -> list[dict[str, Any]]:
    """OpenRouter streams its reasoning details in pieces by index; they go back as one item each."""
    items: dict[str, dict[str, Any]] = {}
    for place, raw in enumerate(details):
        piece: Any = msgspec.json.decode(raw)
        if not isinstance(piece, dict):
            continue
        piece = cast("dict[str, Any]", piece)
        key = f"{piece.get('index', place)} {piece.get('type')}"
        whole = items.setdefault(key, {})
        for name, value in piece.items():
            old = whole.get(name)
            if name in ("text", "summary", "data") and isinstance(old, str) and isinstance(value, str):
                whole[name] = old + value
            elif value is not None or old is None:
                whole[name] = value
    return list(items.values())
