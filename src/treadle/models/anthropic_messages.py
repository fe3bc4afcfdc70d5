"""Anthropic Messages, requests and replies.

Results and user messages between two replies are one user turn, results first. Thinking goes back unchanged to the
model that thought it, and to no other. The stable prefix carries cache marks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, cast

import msgspec
from msgspec import Raw, Struct

from treadle import messages
from treadle.messages import FilePart, ImagePart, Json, ModelMessage, Part, Request, ResultMessage, TextPart, ToolSpec
from treadle.models import reply_reader, wire_format
from treadle.models.failures import ReportedFailure
from treadle.models.reply_reader import FinishReasons, MessageDecoder, MessageStream, PendingCall, ReplyReader
from treadle.models.request_options import OptionTable, merge_fields, write_to
from treadle.models.strict_schema import narrow_schema
from treadle.models.wire_format import ReportedUsage, WireFormat, encode, read_raw

_CACHE_MARK = b',"cache_control":{"type":"ephemeral"}}'
_IMAGE_TYPES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))
_DEFAULT_OUTPUT = 8192
_LEAST_OUTPUT = 4096
_LEAST_THINKING = 1024
_THINKING_BUDGETS = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 32_768}
_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "max"}
"""Anthropic's words for an effort, where they differ from OpenAI's."""
_SERVICE_TIERS = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}

_Turn = Literal["start", "open", "closed"]
_BEFORE_REPLY: dict[_Turn, bytes] = {"start": b"", "open": b"]},", "closed": b","}
_BEFORE_USER: dict[_Turn, bytes] = {
    "start": b'{"role":"user","content":[',
    "open": b",",
    "closed": b',{"role":"user","content":[',
}


class _Head(NamedTuple):
    """All of a request but its messages and limits. `digest` stands for the part that binds thinking."""

    key: tuple[Any, ...]
    data: bytes
    digest: bytes


class _State(NamedTuple):
    """The state after a message: the turn, a digest of all before it, and whether calls await a reply."""

    turn: _Turn
    digest: bytes
    loop: Literal["", "with thinking", "without thinking"] = ""


class AnthropicMessages(WireFormat):
    """The wire format of one model behind the Messages API.

    A thinking block goes back only where the system text, the tools and the messages before it are unchanged. Newer
    models refuse it anywhere else, after a compaction for instance.
    """

    protocol = "anthropic"
    path = "/messages"
    count_path = "/messages/count_tokens"
    count_fields = frozenset(("model", "messages", "system", "tools", "tool_choice", "thinking"))
    own_fields = frozenset(
        ("model", "messages", "stream", "tools", "system", "max_tokens", "thinking", "parallel_tool_calls")
    )
    options: ClassVar[OptionTable | None] = {
        "metadata": lambda value: {"metadata": {"user_id": value["user_id"]}} if "user_id" in (value or {}) else {},
        "safety_identifier": write_to("metadata.user_id"),
        "service_tier": lambda value: {"service_tier": _SERVICE_TIERS[value]} if value in _SERVICE_TIERS else {},
        "top_k": write_to("top_k"),
        "user": write_to("metadata.user_id"),
    }

    def build_body(self, request: Request, window: int | None) -> bytes:
        head = self._get_head(request)
        buffer, state = self._write_messages(request, head)
        is_open = state.turn == "open"
        end = buffer.find_end(len(request.messages))
        room = window - wire_format.estimate_tokens(end) if window is not None else None
        limits = encode(self._build_limits(request, state, room))[1:-1]
        marks = _find_cache_marks(request.messages, buffer.ends) if is_open else ()
        with memoryview(buffer.data) as data:  # a slice of the buffer itself would copy the whole history once more
            pieces: list[bytes | memoryview] = [head.data[:-1], b",", limits, b',"messages":[']
            at = 0
            for mark in marks:
                pieces += (data[at : mark - 1], _CACHE_MARK)
                at = mark
            pieces += (data[at:end], b"]}]}" if is_open else b"]}")
            return b"".join(pieces)

    def open_reader(self, request: Request, sent: int) -> AnthropicReader:
        head = self._get_head(request)
        _, state = self._write_messages(request, head)
        return AnthropicReader(self, sent, _build_prefix(head.digest, state.digest))

    def _write_messages(self, request: Request, head: _Head) -> tuple[wire_format.MessageBuffer, _State]:
        """The messages, serialised for this head: another head may need another choice of thinking."""
        buffer = wire_format.get_buffer(request, f"{self.key}:{head.digest.hex()}")
        write = partial(self._write_message, head.digest)
        return buffer, buffer.extend(request.messages, write, _State("start", b""))

    def _get_head(self, request: Request) -> _Head:
        key = (request.system, request.tools, request.tool_choice, request.sampling, request.output_schema)
        before = request.render_cache.get(self.key)
        if isinstance(before, _Head) and before.key == key:
            return before
        specs = request.tools
        if not specs:  # the provider wants the tools of earlier calls declared, also where none may be called
            called = (m.calls for m in request.messages if isinstance(m, ModelMessage))
            names = sorted({call.tool for calls in called for call in calls})
            specs = tuple(ToolSpec(wire_format.fit_tool_name(name), "", {"type": "object"}) for name in names)
        data = encode(self._build_fields(request, [_describe_tool(tool) for tool in specs]))
        bound = encode([request.system, [_describe_tool(tool) for tool in specs]])
        digest = hashlib.blake2b(bound, digest_size=16).digest()
        head = request.render_cache[self.key] = _Head(key, data, digest)
        return head

    def _build_fields(self, request: Request, tools: list[dict[str, Json]]) -> dict[str, Json]:
        sampling = request.sampling
        fields: dict[str, Json] = {"model": self.model, "stream": True}
        if tools:
            fields["tools"] = tools
        if request.system.strip():
            mark = {"type": "ephemeral"}
            fields["system"] = [{"type": "text", "text": request.system, "cache_control": mark}]
        elif tools:
            tools[-1]["cache_control"] = {"type": "ephemeral"}
        fields |= self.build_sampling(request)
        if (self._read_thinking(request) or {"type": "disabled"}).get("type") != "disabled":
            fields.pop("temperature", None)
        if stops := [stop for stop in sampling.stop if stop.strip()]:
            fields["stop_sequences"] = stops
        fields |= self.build_extra(request)
        if not self.info.accepts_sampling and (effort := sampling.extra.get("reasoning_effort")):
            fields = merge_fields({"output_config": {"effort": _EFFORTS.get(effort, effort)}}, fields)
        if request.output_schema is not None:
            form = {"type": "json_schema", "schema": narrow_schema(request.output_schema)}
            fields["output_config"] = {**fields.get("output_config", {}), "format": form}
        choice = fields.pop("tool_choice", request.tool_choice)
        if not request.tools or request.tool_choice == "none":
            choice = "none"
        choice = _build_tool_choice(choice, sampling.extra.get("parallel_tool_calls"))
        if tools and choice is not None:
            fields["tool_choice"] = choice
        return fields

    def _build_limits(self, request: Request, state: _State, room: int | None) -> dict[str, Json]:
        """The token limit, and thinking as far as the limit and the history allow it."""
        most = self.info.max_output or _DEFAULT_OUTPUT
        limit = min(request.max_tokens or most, most)
        if room is not None:
            limit = min(limit, max(room, _LEAST_OUTPUT))
        fields: dict[str, Json] = {"max_tokens": limit}
        wanted = self._read_thinking(request)
        if wanted is None:
            return fields
        if wanted.get("type") == "enabled":
            wanted["budget_tokens"] = min(wanted.get("budget_tokens", limit), limit - 1)
            # Manual thinking may not begin in the middle of a tool loop that began without it.
            if wanted["budget_tokens"] < _LEAST_THINKING or state.loop == "without thinking":
                return fields
        fields["thinking"] = wanted
        return fields

    def _read_thinking(self, request: Request) -> dict[str, Json] | None:
        """The thinking that a request asks for. Models that take an effort need no budget."""
        extra = request.sampling.extra
        thinking = self.read_own_fields(request).get("thinking", extra.get("thinking"))
        if isinstance(thinking, Mapping):
            return dict(cast("Mapping[str, Json]", thinking))
        budget = _THINKING_BUDGETS.get(str(extra.get("reasoning_effort")))
        if budget is None or not self.info.accepts_sampling or request.tool_choice == "required":
            return None
        return {"type": "enabled", "budget_tokens": budget}

    def _write_message(self, bound: bytes, message: messages.Message, state: _State) -> tuple[bytes, _State]:
        """The JSON of one message, and the state after it: the next message may join an open user turn."""
        loop = state.loop
        if isinstance(message, ModelMessage):
            blocks, has_thinking = self._write_reply(message, _build_prefix(bound, state.digest))
            loop = ("with thinking" if has_thinking else "without thinking") if message.calls else ""
            if not blocks:
                return b"", state
            start, turn = _BEFORE_REPLY[state.turn] + b'{"role":"assistant","content":[', "closed"
            data = b"%b%b]}" % (start, b",".join(blocks))
        else:
            if isinstance(message, ResultMessage):
                blocks = [self._write_result(message)]
            else:
                parts = messages.wrap_system(message)
                blocks = [encode(block) for part in parts if (block := _build_part(part)) is not None]
                blocks = blocks or [encode({"type": "text", "text": "(an empty message)"})]
            data, turn = _BEFORE_USER[state.turn] + b",".join(blocks), "open"
        return data, _State(turn, hashlib.blake2b(state.digest + data, digest_size=16).digest(), loop)

    def _write_reply(self, message: ModelMessage, prefix: str) -> tuple[list[bytes], bool]:
        """A reply's blocks, and whether they include thinking."""
        calls = [
            encode(
                {
                    "type": "tool_use",
                    "id": self.id_rule.fit(call.id),
                    "name": wire_format.fit_tool_name(call.tool),
                    "input": Raw(wire_format.encode_arguments(call)),
                }
            )
            for call in message.calls
        ]
        own = self.decode_own_state(message)
        if own is None or own.prefix not in ("", prefix):  # without a prefix it is the client who answers for its place
            text = [encode({"type": "text", "text": message.text})] if message.text.strip() else []
            return text + calls, False
        blocks = wire_format.merge_calls(own.items, calls, "tool_use", "thinking")
        return blocks, any("thinking" in wire_format.read_type(block) for block in blocks)

    def _write_result(self, message: ResultMessage) -> bytes:
        content: Json = message.text
        if message.parts:
            blocks = [_build_part(TextPart(message.text)), *(_build_part(part) for part in message.parts)]
            content = [block for block in blocks if block is not None]
        call_id = self.id_rule.fit(message.call_id)
        fields: dict[str, Json] = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        if not message.ok:
            fields["is_error"] = True
        return encode(fields)


def _find_cache_marks(messages: Sequence[messages.Message], ends: Sequence[int]) -> list[int]:
    """Where the last user turn ends, and the one before it.

    The cache looks back only some twenty blocks from a mark, and a turn with many calls is longer.
    """
    place = len(messages)
    last = ends[place - 1]
    while place and not isinstance(messages[place - 1], ModelMessage):
        place -= 1
    if place < 2 or isinstance(messages[place - 2], ModelMessage) or ends[place - 2] == last:
        return [last]
    return [ends[place - 2], last]


def _build_prefix(bound: bytes, digest: bytes) -> str:
    return hashlib.blake2b(bound + digest, digest_size=12).hexdigest()


def _describe_tool(tool: ToolSpec) -> dict[str, Json]:
    fields: dict[str, Json] = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
    return {**fields, "strict": True} if tool.strict else fields


def _build_part(part: Part) -> dict[str, Json] | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text} if part.text.strip() else None
        case ImagePart(url=url) if url:
            return {"type": "image", "source": {"type": "url", "url": url}}
        case ImagePart(media_type=kind) if kind in _IMAGE_TYPES:
            return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": part.data}}
        case ImagePart():
            return {"type": "text", "text": f"[an image of type {part.media_type} cannot be shown]"}
        case FilePart(media_type="application/pdf"):
            source = {"type": "base64", "media_type": "application/pdf", "data": part.data}
            return {"type": "document", "source": source, "title": part.name}
        case FilePart():
            text = wire_format.decode_text_file(part)
            if text is None or not text.strip():
                return {"type": "text", "text": wire_format.describe_unreadable_file(part)}
            source = {"type": "text", "media_type": "text/plain", "data": text}
            return {"type": "document", "source": source, "title": part.name}


def _build_tool_choice(choice: Any, parallel: Any) -> dict[str, Json] | None:
    """The neutral words for a choice of tools in Anthropic's form."""
    match choice:
        case None | "auto":
            fields = {"type": "auto"} if parallel is False else None
        case "none":
            fields = {"type": "none"}
        case "required" | "any":
            fields = {"type": "any"}
        case str():
            fields = {"type": "tool", "name": choice}
        case _:
            return choice
    if fields is not None and parallel is False and fields["type"] != "none":
        return {**fields, "disable_parallel_tool_use": True}
    return cast("dict[str, Json] | None", fields)


class _StopDetails(Struct, gc=False):
    explanation: str | None = None


class _Delta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Raw = wire_format.MISSING
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: _StopDetails | None = None


class _Message(Struct, gc=False):
    model: str | None = None
    usage: ReportedUsage | None = None
    content: list[Raw] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Event(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: Raw = wire_format.MISSING
    message: _Message | None = None
    usage: ReportedUsage | None = None
    error: Any = None


class _BlockStart(Struct):
    """The fields that are read from a block's beginning. The block itself is kept raw."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = wire_format.MISSING


_EVENTS = MessageDecoder(
    _Event,
    frozenset(
        (
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
            "error",
        )
    ),
)
_block_start = msgspec.json.Decoder(_BlockStart)
_message = msgspec.json.Decoder(_Message)
_fields = msgspec.json.Decoder(dict[str, Raw])


class _Block(Struct):
    """One content block as it grows."""

    type: str
    raw: bytes
    call: PendingCall | None = None
    text: list[str] = []
    json: list[str] = []
    signature: list[str] = []
    citations: list[Raw] = []

    def join(self) -> bytes | None:
        """The block as it must go back. None for a block that is empty or was cut off before it was signed."""
        fields = _fields.decode(self.raw)
        match self.type:
            case "tool_use":
                return b'{"type":"tool_use"}'
            case "text":
                text = "".join(self.text)
                if not text.strip():
                    return None
                fields["text"] = Raw(encode(text))
                if self.citations:
                    fields["citations"] = Raw(encode(self.citations))
            case "thinking":
                fields["thinking"] = Raw(encode("".join(self.text)))
                if self.signature:
                    fields["signature"] = Raw(encode("".join(self.signature)))
                if bytes(fields.get("signature", b'""')) == b'""':
                    return None
            case _ if self.json:
                fields["input"] = Raw("".join(self.json).encode())
            case _:
                pass
        return encode(fields)


class AnthropicReader(ReplyReader[_Event]):
    """Reads events, and whole messages of proxies that do not stream. `prefix` stands for the request."""

    finish_reasons: ClassVar[FinishReasons] = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "tool_use": "calls",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "refusal": "filter",
    }

    def __init__(self, wire: AnthropicMessages, sent: int, prefix: str) -> None:
        super().__init__(wire, MessageStream(_EVENTS), sent)
        self._prefix = prefix
        self._blocks: dict[int, _Block] = {}
        self._stop_sequence = ""

    def _read(self, events: Iterable[_Event]) -> None:
        for event in events:
            match event.type:
                case "content_block_delta":
                    if event.delta is not None:
                        self._grow_block(event.index, event.delta)
                case "content_block_start":
                    self._start_block(event.index, read_raw(event.content_block) or b"{}")
                case "content_block_stop":
                    self._end_block(event.index)
                case "message_start" if event.message is not None:
                    self._model = event.message.model or ""
                    self._add_usage(event.message.usage)
                case "message_delta":
                    self._add_usage(event.usage)
                    if event.delta is not None:
                        self._finish_reason = event.delta.stop_reason or self._finish_reason
                        self._stop_sequence = event.delta.stop_sequence or ""
                        if event.delta.stop_details is not None and event.delta.stop_details.explanation:
                            self._refusal = [event.delta.stop_details.explanation]
                case "message_stop":
                    self.is_done = True
                case _ if event.type == "error" or event.error:  # a proxy's own errors have no type
                    raise ReportedFailure(event.error)
                case _:
                    pass

    def _start_block(self, index: int, raw: bytes) -> None:
        start = _block_start.decode(raw)
        call: PendingCall | None = None
        if start.type == "tool_use":
            call = self._builder.start_call()
            call.id, call.name = start.id or "", start.name or ""
            if (arguments := read_raw(start.input)) != b"{}":
                call.initial_arguments = arguments.decode()
            self._builder.mark_changed(call)
        block = self._blocks[index] = _Block(start.type or "", raw, call)
        if start.text:
            block.text.append(start.text)
            self._builder.add_text(start.text)
        if start.thinking:
            block.text.append(start.thinking)
            self._builder.add_reasoning(start.thinking)

    def _grow_block(self, index: int, delta: _Delta) -> None:
        block = self._blocks.get(index)
        if block is None:
            raise reply_reader.MalformedStream(f"a piece of block {index}, which did not begin")
        if delta.text is not None:
            block.text.append(delta.text)
            self._builder.add_text(delta.text)
        elif delta.partial_json is not None:
            if block.call is None:
                block.json.append(delta.partial_json)
            elif delta.partial_json:
                block.call.arguments.append(delta.partial_json)
                self._builder.mark_changed(block.call)
        elif delta.thinking is not None:
            block.text.append(delta.thinking)
            self._builder.add_reasoning(delta.thinking)
        elif delta.signature is not None:
            block.signature.append(delta.signature)
        elif citation := read_raw(delta.citation):
            block.citations.append(Raw(citation))

    def _end_block(self, index: int) -> None:
        block = self._blocks.get(index)
        if block is not None and block.type in ("thinking", "redacted_thinking") and (whole := block.join()):
            self._builder.add_signed_block(whole)

    def build_reply(self) -> messages.Reply:
        reply = super().build_reply()
        return msgspec.structs.replace(reply, stop_sequence=self._stop_sequence) if self._stop_sequence else reply

    def _read_document(self, document: bytes) -> None:
        super()._read_document(document)  # it may be an error
        message = reply_reader.decode_document(_message, document)
        for index, raw in enumerate(message.content or ()):
            self._start_block(index, bytes(raw))
            self._end_block(index)
        self._model = message.model or ""
        self._stop_sequence = message.stop_sequence or ""
        self._finish_reason = message.stop_reason or ""
        self._add_usage(message.usage)

    def _add_usage(self, counts: ReportedUsage | None) -> None:
        """Take in counts. They come with the start and, complete, with the end: the later ones replace the earlier."""
        if self._usage is None or counts is None:
            self._usage = self._usage or counts
            return
        for name in counts.__struct_fields__:
            value = getattr(counts, name)
            if value is not None:
                setattr(self._usage, name, value)

    def _build_usage(self, written: int) -> messages.Usage:
        counts = self._usage
        if counts is None:
            return super()._build_usage(written)
        cache_read, cache_write = counts.cache_read_input_tokens or 0, counts.cache_creation_input_tokens or 0
        thinking = counts.output_tokens_details.thinking_tokens if counts.output_tokens_details is not None else None
        inputs = (counts.input_tokens or 0) + cache_read + cache_write
        usage = messages.Usage(inputs, counts.output_tokens or 0, cache_read, thinking or 0)
        return self._wire.add_cost(usage, cache_write)

    def _build_opaque(self, reasoning: str) -> str:
        """The blocks as they came, where they are more than text and calls."""
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        if all(block.type in ("text", "tool_use") for block in blocks):
            return ""
        items = [Raw(whole) for block in blocks if (whole := block.join()) is not None]
        return self._wire.encode_own_state(items, prefix=self._prefix)
