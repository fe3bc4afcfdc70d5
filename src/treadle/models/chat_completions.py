"""Chat Completions, requests and replies, for any OpenAI-compatible server.

Differences between vendors are data (`Quirks`), never a branch on a vendor's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from treadle.messages import (
    FilePart,
    FinishReason,
    ImagePart,
    Json,
    Message,
    ModelMessage,
    Part,
    Request,
    ResultMessage,
    TextPart,
    Usage,
    UserMessage,
)
from treadle.models.base import ModelEvent
from treadle.models.failures import ReportedFailure
from treadle.models.model_info import UNKNOWN_MODEL, ModelInfo
from treadle.models.reply_builder import InputTokenDetails, OutputTokenDetails, PendingCall, ReplyReader, add_cost
from treadle.models.request_parts import (
    MISSING,
    OPENAI_IDS,
    CarriedParts,
    IdRule,
    MessageBuffer,
    OpaqueState,
    WireFormat,
    add_tools,
    build_content,
    build_data_url,
    decode_own_state,
    decode_text_file,
    describe_file,
    describe_function,
    encode,
    encode_arguments,
    encode_state,
    fit_tool_name,
    get_buffer,
    read_raw,
)
from treadle.models.sse import MessageDecoder, MessageStream
from treadle.models.strict_schema import is_strict


class Quirks(Struct, frozen=True):
    """How one vendor's Chat Completions differ from OpenAI's. The defaults suit an unknown server."""

    limit_field: str = "max_tokens"
    seed_field: str = "seed"
    accepts_stream_options: bool = True
    schema_mode: Literal["json_schema", "json_object", "prompt"] = "json_schema"
    id_rule: IdRule = OPENAI_IDS
    recovers_text_calls: bool = True
    splits_think_tags: bool = True
    replays_reasoning: bool = False
    needs_thought_signatures: bool = False
    sends_cache_key: bool = False
    accepts_files: bool = False


_DUMMY_SIGNATURE = Raw(b'{"google":{"thought_signature":"skip_thought_signature_validator"}}')
_NO_QUIRKS = Quirks()
_OWN_FIELDS = frozenset(("model", "messages", "stream", "tools"))


class ChatCompletions(WireFormat):
    """The wire format of one model behind a Chat Completions endpoint."""

    protocol = "chat"
    path = "/chat/completions"

    def __init__(self, provider: str, model: str, quirks: Quirks = _NO_QUIRKS, info: ModelInfo = UNKNOWN_MODEL) -> None:
        super().__init__(provider, model, info)
        self.quirks = quirks
        self._last_head, self._last_head_key = b"", tuple[Any, ...]()

    def build_body(self, request: Request, window: int | None) -> bytes:
        buffer = get_buffer(request, self.key)
        buffer.extend(request.messages, self._write_message, CarriedParts())
        limit = self.limit_output(request)
        system = self._write_system(request)
        fragments = buffer.take_prefix(len(request.messages))
        return b"".join(
            (
                self._get_head(request, buffer),
                b"" if limit is None else b',"%b":%d' % (self.quirks.limit_field.encode(), limit),
                b',"messages":[',
                system,
                fragments if system else fragments[1:],
                b"]}",
            )
        )

    def open_reader(self, request: Request, sent: int) -> ChatReader:
        return ChatReader(self, request, sent)

    def _write_system(self, request: Request) -> bytes:
        text = request.system
        if request.output_schema is not None and self.quirks.schema_mode != "json_schema":
            schema = encode(request.output_schema).decode()
            text = f"{text}\n\nGive the final answer as one JSON object of this schema, nothing else: {schema}"
        return encode({"role": "system", "content": text.strip()}) if text.strip() else b""

    def _get_head(self, request: Request, buffer: MessageBuffer) -> bytes:
        """All but the messages and the token limit. It is serialised again only when it changes; sessions share it."""
        session = request.session_id if self.quirks.sends_cache_key else ""
        key = (request.tools, request.tool_choice, request.sampling, request.output_schema, session)
        if buffer.head_key != key:
            if self._last_head_key != key:
                self._last_head, self._last_head_key = encode(self._build_fields(request))[:-1], key
            buffer.head, buffer.head_key = self._last_head, self._last_head_key
        return buffer.head

    def _build_fields(self, request: Request) -> dict[str, Json]:
        quirks, sampling = self.quirks, request.sampling
        fields: dict[str, Json] = {"model": self.model, "stream": True}
        if quirks.accepts_stream_options:
            fields["stream_options"] = {"include_usage": True}
        if quirks.sends_cache_key and request.session_id:
            fields["prompt_cache_key"] = request.session_id[:64]
        fields |= self.build_sampling(request)
        if sampling.seed is not None:
            fields[quirks.seed_field] = sampling.seed
        if sampling.stop:
            fields["stop"] = sampling.stop
        if (schema := request.output_schema) is not None:
            if quirks.schema_mode == "json_schema":
                form = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
                fields["response_format"] = {"type": "json_schema", "json_schema": form}
            elif quirks.schema_mode == "json_object":
                fields["response_format"] = {"type": "json_object"}
        fields |= {k: v for k, v in sampling.extra.items() if k not in _OWN_FIELDS}
        add_tools(fields, request, describe_function, lambda name: {"type": "function", "function": {"name": name}})
        return fields

    def _write_message(self, message: Message, carried: CarriedParts) -> tuple[bytes, CarriedParts]:
        match message:
            case ModelMessage():
                return self._write_reply(message), CarriedParts(len(message.calls))
            case ResultMessage():
                call_id = self.quirks.id_rule.fit(message.call_id)
                fragment = b"," + encode({"role": "tool", "tool_call_id": call_id, "content": message.text})
                due, carried = carried.add_result(message)
                return fragment + self._write_user(due) if due else fragment, carried
            case UserMessage():
                return self._write_user(message.parts), carried

    def _write_reply(self, message: ModelMessage) -> bytes:
        if not message.calls:
            # A reply without words is no message to any provider.
            return b"," + encode({"role": "assistant", "content": message.text}) if message.text else b""
        state = decode_own_state(message, self.key)
        extras = state.items if state is not None else []
        calls: list[Json] = []
        for place, call in enumerate(message.calls):
            function = {"name": fit_tool_name(call.tool), "arguments": encode_arguments(call).decode()}
            entry: dict[str, Json] = {"id": self.quirks.id_rule.fit(call.id), "type": "function", "function": function}
            if place < len(extras) and bytes(extras[place]) != b"null":
                entry["extra_content"] = extras[place]
            elif self.quirks.needs_thought_signatures and state is None and place == 0:
                entry["extra_content"] = _DUMMY_SIGNATURE
            calls.append(entry)
        fields: dict[str, Json] = {"role": "assistant", "content": message.text or None, "tool_calls": calls}
        if self.quirks.replays_reasoning:
            if state is not None:
                fields |= state.fields
            else:
                # DeepSeek and Kimi refuse calls without reasoning. Another model's reasoning must not go to them.
                fields["reasoning_content"] = " "
        return b"," + encode(fields)

    def _write_user(self, parts: Sequence[Part]) -> bytes:
        content = build_content(parts, self._build_part)
        return b"," + encode({"role": "user", "content": content}) if content else b""

    def _build_part(self, part: Part) -> dict[str, Json]:
        match part:
            case TextPart():
                return {"type": "text", "text": part.text}
            case ImagePart():
                return {"type": "image_url", "image_url": {"url": part.url or build_data_url(part)}}
            case FilePart() if self.quirks.accepts_files and decode_text_file(part) is None:
                return {"type": "file", "file": {"filename": part.name, "file_data": build_data_url(part)}}
            case FilePart():
                return {"type": "text", "text": describe_file(part)}


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

    def join_thinking(self) -> str:
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


class _Usage(Struct, gc=False):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: InputTokenDetails | None = None
    completion_tokens_details: OutputTokenDetails | None = None
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
_NO_FUNCTION = _Function()
_NULL = Raw(b"null")


class ChatReader(ReplyReader[_Chunk]):
    """Reads chunks, and whole completions of servers that do not stream."""

    finishes_with_calls = ("stop", "calls", "filter", "other")

    def __init__(self, wire: ChatCompletions, request: Request, sent: int) -> None:
        quirks = wire.quirks
        super().__init__(
            wire,
            MessageStream(_CHUNKS),
            sent,
            tools=request.tools if quirks.recovers_text_calls and request.tool_choice != "none" else (),
            splits_think_tags=quirks.splits_think_tags,
        )
        self._replays_reasoning = quirks.replays_reasoning
        self._reasoning_details: list[Raw] = []
        self._reasoning_field = ""
        self._call_at: dict[int, PendingCall] = {}
        self._finish = ""
        self._usage: _Usage | None = None

    @property
    def is_done(self) -> bool:
        return self._stream.is_done

    @property
    def has_ended(self) -> bool:
        return self.is_done or bool(self._finish)

    def finish(self) -> list[ModelEvent]:
        deltas = super().finish()
        if self._finish == "error":
            raise ReportedFailure({"message": "the model broke off with an error, and nothing says which"})
        return deltas

    def _read(self, messages: Iterable[_Chunk]) -> None:
        builder, chunk = self._builder, None
        for chunk in messages:
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
                if reasoning := self._read_reasoning(delta):
                    builder.add_reasoning(reasoning)
                content = delta.content
                if content:
                    builder.add_text(content if isinstance(content, str) else "".join(p.text or "" for p in content))
                if delta.tool_calls:
                    for piece in delta.tool_calls:
                        builder.mark_changed(self._add_call_piece(piece))
                elif delta.refusal:
                    self._refusal.append(delta.refusal)
        if chunk is not None and chunk.model:
            self._model = chunk.model

    def _read_reasoning(self, delta: _Delta) -> str:
        """The reasoning in a delta, under whichever name the server gives it."""
        if delta.reasoning_details:
            self._reasoning_details += delta.reasoning_details
        if delta.reasoning_content:
            self._reasoning_field = "reasoning_content"
            return delta.reasoning_content
        if isinstance(delta.reasoning, str) and delta.reasoning:
            self._reasoning_field = "reasoning"
            return delta.reasoning
        if isinstance(delta.content, list):
            return "".join(piece.join_thinking() for piece in delta.content)
        return ""

    def _add_call_piece(self, piece: _ToolCall) -> PendingCall:
        """Add a piece to its call."""
        function = piece.function or _NO_FUNCTION
        call_id = str(piece.id or "")  # some servers count instead of naming
        call = self._find_call(piece.index, call_id, function)
        if call is None:
            call = self._builder.start_call()
            if piece.index is not None:
                self._call_at[piece.index] = call
        call.id = call.id or call_id
        if extra := read_raw(piece.extra_content):
            call.extra = Raw(extra)
        if function.name and function.name != call.name:
            call.name += function.name
        if isinstance(function.arguments, str):
            if function.arguments:
                call.arguments.append(function.arguments)
        elif function.arguments is not None:
            call.arguments.append(encode(function.arguments).decode())
        return call

    def _find_call(self, index: int | None, call_id: str, function: _Function) -> PendingCall | None:
        """The call that a piece belongs to, which servers say in many ways; None where a new call begins."""
        calls = self._builder.calls
        if index is not None:
            call = self._call_at.get(index)
        elif call_id:
            call = next((known for known in calls if known.id == call_id), None)
        else:
            call = calls[-1] if calls else None
        if call is None or not call.name:
            return call
        if call_id:
            # Some servers number every call 0. Others give every piece of one call an id of its own.
            goes_on = not call.is_complete() if call.arguments else not function.name
            is_other = bool(call.id and call_id != call.id and not goes_on)
        else:
            # The next call has the same index or none, and there is no id: it begins where a complete call has ended.
            is_other = bool(function.name and function.arguments and call.is_complete())
        return None if is_other else call

    def _read_finish(self) -> FinishReason:
        return _FINISH.get(self._finish, "other") if self._finish else "stop"

    def _build_usage(self, written: int) -> Usage:
        usage = self._usage
        if usage is None or (not usage.prompt_tokens and not usage.completion_tokens):
            return super()._build_usage(written)
        inputs = usage.prompt_tokens_details or InputTokenDetails()
        outputs = usage.completion_tokens_details or OutputTokenDetails()
        count = Usage(
            input_tokens=int(usage.prompt_tokens or 0),
            output_tokens=int(usage.completion_tokens or 0),
            cached_tokens=inputs.cached_tokens or usage.prompt_cache_hit_tokens or 0,
            reasoning_tokens=outputs.reasoning_tokens or 0,
        )
        if usage.cost is not None:
            return msgspec.structs.replace(count, cost=usage.cost)
        return add_cost(count, self._wire.info, inputs.cache_write_tokens or 0)

    def _build_opaque(self, reasoning: str) -> str:
        items = [call.extra or _NULL for call in self._builder.list_real_calls()]
        fields: dict[str, Raw] = {}
        if self._replays_reasoning and self._reasoning_details:
            fields["reasoning_details"] = Raw(encode(_merge_details(self._reasoning_details)))
        elif self._replays_reasoning and self._reasoning_field and reasoning:
            fields[self._reasoning_field] = Raw(encode(reasoning))
        if not fields and all(item is _NULL for item in items):
            return ""
        return encode_state(OpaqueState(owner=self._wire.key, items=items, fields=fields))


def _merge_details(details: list[Raw]) -> list[dict[str, Any]]:
    """Join the pieces of reasoning details that OpenRouter streams by index. Each goes back as one item."""
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
