"""OpenAI Responses, requests and replies, stateless.

Nothing is stored at the provider. Reasoning comes encrypted and goes back unchanged to the same model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    ToolSpec,
    Usage,
    UserMessage,
)
from treadle.models.failures import ReportedFailure
from treadle.models.model_info import UNKNOWN_MODEL, ModelInfo
from treadle.models.reply_builder import InputTokenDetails, OutputTokenDetails, PendingCall, ReplyReader, add_cost
from treadle.models.request_parts import (
    LONGER_IDS,
    MISSING,
    MessageBuffer,
    OpaqueState,
    WireFormat,
    add_tools,
    build_content,
    build_data_url,
    decode_own_state,
    describe_file,
    encode,
    encode_arguments,
    encode_state,
    fit_tool_name,
    get_buffer,
    merge_calls,
    read_raw,
)
from treadle.models.sse import MalformedStream, MessageDecoder, MessageStream, decode_document
from treadle.models.strict_schema import is_strict

_OWN_FIELDS = frozenset(("model", "input", "instructions", "stream", "tools", "store"))
_LEAST_OUTPUT = 16


class OpenAIResponses(WireFormat):
    """The wire format of one model behind the Responses API, which knows neither `seed` nor `stop`."""

    protocol = "responses"
    path = "/responses"

    def __init__(
        self, provider: str, model: str, info: ModelInfo = UNKNOWN_MODEL, *, asks_encrypted_reasoning: bool = True
    ) -> None:
        super().__init__(provider, model, info)
        self._asks_encrypted_reasoning = asks_encrypted_reasoning

    def build_body(self, request: Request, window: int | None) -> bytes:
        buffer = get_buffer(request, self.key)
        buffer.extend(request.messages, self._write_message, None)
        limit = self.limit_output(request)
        cap = b"" if limit is None else b',"max_output_tokens":%d' % max(limit, _LEAST_OUTPUT)
        data = buffer.take_prefix(len(request.messages))
        return b"".join((self._get_head(request, buffer)[:-1], cap, b',"input":[', data[1:], b"]}"))

    def open_reader(self, request: Request, sent: int) -> ResponsesReader:
        return ResponsesReader(self, sent)

    def _get_head(self, request: Request, buffer: MessageBuffer) -> bytes:
        """All but the messages and the token limit."""
        key = (
            request.system,
            request.tools,
            request.tool_choice,
            request.sampling,
            request.output_schema,
            request.session_id,
        )
        if buffer.head_key != key:
            buffer.head, buffer.head_key = encode(self._build_fields(request)), key
        return buffer.head

    def _build_fields(self, request: Request) -> dict[str, Json]:
        fields: dict[str, Json] = {"model": self.model, "stream": True, "store": False}
        if self._asks_encrypted_reasoning:
            fields["include"] = ["reasoning.encrypted_content"]
        if request.system.strip():
            fields["instructions"] = request.system
        if request.session_id:
            fields["prompt_cache_key"] = request.session_id[:64]
        fields |= self.build_sampling(request)
        fields |= {k: v for k, v in request.sampling.extra.items() if k not in _OWN_FIELDS}
        if (schema := request.output_schema) is not None:
            form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict(schema)}
            fields["text"] = {**fields.get("text", {}), "format": form}
        add_tools(fields, request, _describe_tool, lambda name: {"type": "function", "name": name})
        return fields

    def _write_message(self, message: Message, state: None) -> tuple[bytes, None]:
        match message:
            case ModelMessage():
                items = self._write_reply(message)
            case ResultMessage():
                output: Json = message.text
                if message.parts:
                    parts = (TextPart(message.text), *message.parts) if message.text else message.parts
                    output = [_build_part(part) for part in parts]
                call_id = LONGER_IDS.fit(message.call_id)
                items = [encode({"type": "function_call_output", "call_id": call_id, "output": output})]
            case UserMessage():
                content = build_content(message.parts, _build_part)
                items = [encode({"role": "user", "content": content})] if content else []
        return b"".join(b"," + item for item in items), None

    def _write_reply(self, message: ModelMessage) -> list[bytes]:
        calls = [
            encode(
                {
                    "type": "function_call",
                    "call_id": LONGER_IDS.fit(call.id),
                    "name": fit_tool_name(call.tool),
                    "arguments": encode_arguments(call).decode(),
                }
            )
            for call in message.calls
        ]
        own = decode_own_state(message, self.key)
        if own is not None:
            return merge_calls(own.items, calls, "function_call", "reasoning")
        text = [encode({"role": "assistant", "content": message.text})] if message.text.strip() else []
        return text + calls


def _build_part(part: Part) -> dict[str, Json]:
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart():
            return {"type": "input_image", "image_url": part.url or build_data_url(part), "detail": "auto"}
        case FilePart(media_type="application/pdf"):
            return {"type": "input_file", "filename": part.name, "file_data": build_data_url(part)}
        case FilePart():
            return {"type": "input_text", "text": describe_file(part)}


def _describe_tool(tool: ToolSpec) -> dict[str, Json]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputTokenDetails | None = None
    output_tokens_details: OutputTokenDetails | None = None


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    model: str | None = None
    status: str | None = None
    output: list[Raw] | None = None
    usage: _Usage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _Event(Struct, gc=False):
    type: str = ""
    delta: Any = None
    output_index: int | None = 0
    summary_index: int | None = 0
    item: Raw = MISSING
    response: _Response | None = None
    code: Any = None
    message: Any = None
    error: Any = None


class _Text(Struct):
    text: str | None = None
    refusal: str | None = None


class _Item(Struct):
    """The fields that are read from an output item. The item itself is kept raw."""

    type: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    content: list[_Text] | None = None
    summary: list[_Text] | None = None


_EVENTS = MessageDecoder(
    _Event,
    frozenset(
        (
            "response.output_text.delta",
            "response.refusal.delta",
            "response.function_call_arguments.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning_text.delta",
            "response.reasoning_summary_part.added",
            "response.output_item.added",
            "response.output_item.done",
            "response.completed",
            "response.incomplete",
            "response.failed",
            "error",
        )
    ),
)
_item = msgspec.json.Decoder(_Item)
_fields = msgspec.json.Decoder(dict[str, Raw])
_response = msgspec.json.Decoder(_Response)
_FINISH: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "filter"}


class ResponsesReader(ReplyReader[_Event]):
    """Reads events, and whole responses of servers that do not stream."""

    def __init__(self, wire: OpenAIResponses, sent: int) -> None:
        super().__init__(wire, MessageStream(_EVENTS), sent)
        self._calls: dict[int, PendingCall] = {}
        self._items: dict[int, bytes] = {}
        self._streamed: set[int] = set()
        self._response: _Response | None = None

    @property
    def is_done(self) -> bool:
        return self._response is not None

    def _read(self, messages: Iterable[_Event]) -> None:
        for event in messages:
            place = event.output_index or 0
            match event.type:
                case "response.output_text.delta":
                    self._streamed.add(place)
                    self._builder.add_text(str(event.delta))
                case "response.function_call_arguments.delta":
                    self._streamed.add(place)
                    self._update_call(place, _NO_ITEM).arguments.append(str(event.delta))
                case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                    self._streamed.add(place)
                    self._builder.add_reasoning(str(event.delta))
                case "response.refusal.delta":
                    self._streamed.add(place)
                    self._refusal.append(str(event.delta))
                case "response.reasoning_summary_part.added" if event.summary_index:
                    self._builder.add_reasoning("\n\n")
                case "response.output_item.added" if read_raw(event.item):
                    item = _item.decode(event.item)
                    if item.type == "function_call":
                        self._update_call(place, item)
                case "response.output_item.done" if read_raw(event.item):
                    self._finish_item(place, event.item)
                case "response.completed" | "response.incomplete" | "response.failed":
                    self._end(event.response or _Response(status=event.type.removeprefix("response.")))
                case "error":
                    raise ReportedFailure(event.error or {"code": event.code, "message": event.message})
                case _ if event.error:  # a proxy's own form, whatever the protocol
                    raise ReportedFailure(event.error)
                case _:
                    pass

    def _update_call(self, place: int, item: _Item) -> PendingCall:
        call = self._calls.get(place)
        if call is None:
            call = self._calls[place] = self._builder.start_call()
        call.id, call.name = item.call_id or call.id, item.name or call.name
        self._builder.mark_changed(call)
        return call

    def _finish_item(self, place: int, raw: Raw) -> None:
        """Keep a finished item, and take in the parts of it that were not streamed."""
        whole = self._items[place] = bytes(raw).decode("utf-8", "replace").encode()
        item = _item.decode(whole)
        if item.type == "function_call":
            call = self._update_call(place, item)
            if place not in self._streamed and (arguments := item.arguments):
                call.arguments.append(arguments if isinstance(arguments, str) else encode(arguments).decode())
        elif place not in self._streamed:
            for part in item.content or ():
                if item.type == "message":
                    self._refusal += [part.refusal] if part.refusal else []
                    self._builder.add_text(part.text or "")
                elif item.type == "reasoning":
                    self._builder.add_reasoning(part.text or "")
            if item.type == "reasoning" and item.summary:
                self._builder.add_reasoning("\n\n".join(part.text or "" for part in item.summary))

    def _end(self, response: _Response) -> None:
        if response.status not in ("completed", "incomplete") and (response.error or response.status == "failed"):
            raise ReportedFailure(response.error or {"message": "the response failed, and nothing says why"})
        if not self._items:
            for place, raw in enumerate(response.output or ()):
                self._finish_item(place, raw)
        self._response = response
        self._model = response.model or ""

    def _read_document(self, document: bytes) -> None:
        response = decode_document(_response, document)
        if response.output is None and not response.error:
            raise MalformedStream(repr(document[:200].decode()))
        self._end(response)

    def _read_finish(self) -> FinishReason:
        response = self._response or _Response()
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        return _FINISH.get(reason or "", "other") if reason or response.status == "incomplete" else "stop"

    def _build_usage(self, written: int) -> Usage:
        usage = self._response.usage if self._response is not None else None
        if usage is None or (not usage.input_tokens and not usage.output_tokens):
            return super()._build_usage(written)
        inputs = usage.input_tokens_details or InputTokenDetails()
        outputs = usage.output_tokens_details or OutputTokenDetails()
        count = Usage(
            input_tokens=usage.input_tokens or 0,
            output_tokens=usage.output_tokens or 0,
            cached_tokens=inputs.cached_tokens or 0,
            reasoning_tokens=outputs.reasoning_tokens or 0,
        )
        return add_cost(count, self._wire.info, inputs.cache_write_tokens or 0)

    def _build_opaque(self, reasoning: str) -> str:
        """The items as they came, where there is reasoning among them.

        Messages and calls lose their ids: they name things that a stateless provider does not keep.
        """
        kinds = {place: _item.decode(raw).type for place, raw in self._items.items()}
        if all(kind in ("message", "function_call") for kind in kinds.values()):
            return ""
        items: list[Raw] = []
        for place in sorted(self._items):
            if kinds[place] == "function_call":
                items.append(Raw(b'{"type":"function_call"}'))
            elif kinds[place] == "message":
                fields = _fields.decode(self._items[place])
                fields.pop("id", None)
                items.append(Raw(encode(fields)))
            elif kinds[place] != "reasoning" or b'"encrypted_content"' in self._items[place]:
                items.append(Raw(self._items[place]))
        return encode_state(OpaqueState(owner=self._wire.key, items=items))


_NO_ITEM = _Item()
