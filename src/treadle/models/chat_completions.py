"""Chat Completions, requests and replies, for any OpenAI-compatible server.

Differences between vendors are data (`Quirks`), never a branch on a vendor's name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, cast

import msgspec
from msgspec import Raw, Struct

from treadle.messages import FilePart, ImagePart, Json, ModelMessage, Part, Request, ResultMessage, TextPart
from treadle.models import wire_format
from treadle.models.base import ModelEvent
from treadle.models.failures import ReportedFailure
from treadle.models.model_info import UNKNOWN_MODEL, ModelInfo
from treadle.models.reply_reader import FinishReasons, MessageDecoder, MessageStream, PendingCall, ReplyReader
from treadle.models.strict_schema import describe_output
from treadle.models.wire_format import CallPiece, FunctionPiece, ListFormat, ReportedUsage, encode


class Quirks(Struct, frozen=True):
    """How one vendor's Chat Completions differ from OpenAI's. The defaults suit an unknown server."""

    limit_field: str = "max_tokens"
    seed_field: str = "seed"
    accepts_stream_options: bool = True
    schema_mode: Literal["json_schema", "json_object", "prompt"] = "json_schema"
    id_rule: wire_format.IdRule = wire_format.OPENAI_IDS
    recovers_text_calls: bool = True
    replays_reasoning: bool = False
    needs_thought_signatures: bool = False
    sends_cache_key: bool = False
    accepts_files: bool = False
    system_role: str = "system"


_DUMMY_SIGNATURE = Raw(b'{"google":{"thought_signature":"skip_thought_signature_validator"}}')
_NO_QUIRKS = Quirks()


class ChatCompletions(ListFormat):
    """The wire format of one model behind a Chat Completions endpoint."""

    protocol = "chat"
    path = "/chat/completions"
    own_fields = frozenset(("model", "messages", "stream", "tools"))

    def __init__(self, provider: str, model: str, quirks: Quirks = _NO_QUIRKS, info: ModelInfo = UNKNOWN_MODEL) -> None:
        super().__init__(provider, model, info)
        self.quirks = quirks
        self.id_rule, self.limit_field = quirks.id_rule, quirks.limit_field
        self.system_role = quirks.system_role
        if quirks.sends_cache_key:
            self.head_fields = (*self.head_fields, "session_id")

    def open_reader(self, request: Request, sent: int) -> ChatReader:
        return ChatReader(self, request, sent)

    def _write_system(self, request: Request) -> bytes:
        text = request.system
        if request.output_schema is not None and self.quirks.schema_mode != "json_schema":
            schema = encode(request.output_schema).decode()
            text = f"{text}\n\nGive the final answer as one JSON object of this schema, nothing else: {schema}"
        return encode({"role": "system", "content": text.strip()}) if text.strip() else b""

    def _build_fields(self, request: Request, window: int | None) -> dict[str, Json]:
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
                form = describe_output(schema, request.output_strict)
                fields["response_format"] = {"type": "json_schema", "json_schema": form}
            elif quirks.schema_mode == "json_object":
                fields["response_format"] = {"type": "json_object"}
        fields |= self.build_extra(request)
        wire_format.add_tools(fields, request, lambda function: {"type": "function", "function": function})
        return fields

    def _write_result(self, message: ResultMessage) -> bytes:
        call_id = self.id_rule.fit(message.call_id)
        return b"," + encode({"role": "tool", "tool_call_id": call_id, "content": message.text})

    def _write_reply(self, message: ModelMessage) -> bytes:
        if not message.calls:
            # A reply without words is no message to any provider.
            return b"," + encode({"role": "assistant", "content": message.text}) if message.text else b""
        state = self.decode_own_state(message)
        extras = state.items if state is not None else []
        calls: list[Json] = []
        for place, call in enumerate(message.calls):
            function = {
                "name": wire_format.fit_tool_name(call.tool),
                "arguments": wire_format.encode_arguments(call).decode(),
            }
            entry: dict[str, Json] = {"id": self.id_rule.fit(call.id), "type": "function", "function": function}
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

    def _build_part(self, part: Part) -> dict[str, Json]:
        match part:
            case TextPart():
                return {"type": "text", "text": part.text}
            case ImagePart():
                return {"type": "image_url", "image_url": {"url": part.url or wire_format.build_data_url(part)}}
            case FilePart() if self.quirks.accepts_files and wire_format.decode_text_file(part) is None:
                return {"type": "file", "file": {"filename": part.name, "file_data": wire_format.build_data_url(part)}}
            case FilePart():
                return {"type": "text", "text": wire_format.describe_file(part)}


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
    tool_calls: list[CallPiece] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    reasoning_details: list[Raw] | None = None
    refusal: str | None = None


class _Choice(Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    logprobs: Any = None


class _Vendor(Struct, gc=False):
    usage: ReportedUsage | None = None


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: ReportedUsage | None = None
    model: str | None = None
    error: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    x_groq: _Vendor | None = None


_CHUNKS = MessageDecoder(_Chunk)
_NO_FUNCTION = FunctionPiece()
_NULL = Raw(b"null")


class ChatReader(ReplyReader[_Chunk]):
    """Reads chunks, and whole completions of servers that do not stream."""

    finish_reasons: ClassVar[FinishReasons] = {
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
    finishes_with_calls = ("stop", "calls", "filter", "other")

    def __init__(self, wire: ChatCompletions, request: Request, sent: int) -> None:
        quirks = wire.quirks
        super().__init__(
            wire,
            MessageStream(_CHUNKS),
            sent,
            tools=request.tools if quirks.recovers_text_calls and request.tool_choice != "none" else (),
        )
        self._replays_reasoning = quirks.replays_reasoning
        self._reasoning_details: list[Raw] = []
        self._reasoning_field = ""
        self._call_at: dict[int, PendingCall] = {}

    def finish(self) -> list[ModelEvent]:
        deltas = super().finish()
        if self._finish_reason == "error":
            raise ReportedFailure({"message": "the model broke off with an error, and nothing says which"})
        return deltas

    def _read(self, chunks: Iterable[_Chunk]) -> None:
        builder, chunk = self._builder, None
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
                    self._finish_reason = choice.finish_reason
                if choice.logprobs is not None:
                    builder.logprobs += _read_logprobs(choice.logprobs)
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
        self.is_done = self._stream.is_done

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

    def _add_call_piece(self, piece: CallPiece) -> PendingCall:
        function = piece.function or _NO_FUNCTION
        call_id = str(piece.id or "")  # some servers count instead of naming
        call = self._find_call(piece.index, call_id, function)
        if call is None:
            call = self._builder.start_call()
            if piece.index is not None:
                self._call_at[piece.index] = call
        call.id = call.id or call_id
        if extra := wire_format.read_raw(piece.extra_content):
            call.extra = Raw(extra)
        if function.name and function.name != call.name:
            call.name += function.name
        if isinstance(function.arguments, str):
            if function.arguments:
                call.arguments.append(function.arguments)
        elif function.arguments is not None:
            call.arguments.append(encode(function.arguments).decode())
        return call

    def _find_call(self, index: int | None, call_id: str, function: FunctionPiece) -> PendingCall | None:
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

    def _build_opaque(self, reasoning: str) -> str:
        items = [call.extra or _NULL for call in self._builder.list_real_calls()]
        fields: dict[str, Raw] = {}
        if self._replays_reasoning and self._reasoning_details:
            fields["reasoning_details"] = Raw(encode(_merge_details(self._reasoning_details)))
        elif self._replays_reasoning and self._reasoning_field and reasoning:
            fields[self._reasoning_field] = Raw(encode(reasoning))
        if not fields and all(item is _NULL for item in items):
            return ""
        return self._wire.encode_own_state(items, fields)


def _read_logprobs(logprobs: Any) -> list[Json]:
    match logprobs:
        case {"content": [*entries]}:
            return entries
        case _:
            return []


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
