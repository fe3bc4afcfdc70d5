"""OpenAI Responses, requests and replies, stateless.

Nothing is stored at the provider. Reasoning comes encrypted and goes back unchanged to the same model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec
from msgspec import Raw, Struct

from treadle.messages import FilePart, ImagePart, Json, ModelMessage, Part, Request, ResultMessage, TextPart
from treadle.models import reply_reader, wire_format
from treadle.models.failures import ReportedFailure
from treadle.models.reply_reader import FinishReasons, MessageDecoder, MessageStream, PendingCall, ReplyReader
from treadle.models.request_options import OptionTable, build_option_error, merge_fields, write_to
from treadle.models.strict_schema import describe_output
from treadle.models.wire_format import ListFormat, ReportedUsage, encode, read_raw


class OpenAIResponses(ListFormat):
    """The wire format of one model behind the Responses API, which knows neither `seed` nor `stop`."""

    protocol = "responses"
    path = "/responses"
    own_fields = frozenset(("model", "input", "instructions", "stream", "tools", "store"))
    head_fields = (*ListFormat.head_fields, "system", "session_id")
    list_field = b"input"
    limit_field = "max_output_tokens"
    least_output = 16
    carries_parts = False
    system_role = "developer"
    options: ClassVar[OptionTable | None] = {
        **{name: write_to(name) for name in ("metadata", "parallel_tool_calls", "prompt_cache_key", "service_tier")},
        **{name: write_to(name) for name in ("prompt_cache_retention", "safety_identifier", "top_logprobs", "user")},
        "logprobs": lambda asked: {"include": ["message.output_text.logprobs"]} if asked else {},
        "reasoning_effort": write_to("reasoning.effort"),
        "verbosity": write_to("text.verbosity"),
    }

    def open_reader(self, request: Request, sent: int) -> ResponsesReader:
        return ResponsesReader(self, sent)

    def _build_fields(self, request: Request, window: int | None) -> dict[str, Json]:
        fields: dict[str, Json] = {"model": self.model, "stream": True, "store": False}
        if not self.model.startswith(("gpt-3", "gpt-4", "chatgpt")):  # those models have no reasoning
            fields["include"] = ["reasoning.encrypted_content"]
        if request.system.strip():
            fields["instructions"] = request.system
        if request.session_id:
            fields["prompt_cache_key"] = request.session_id[:64]
        fields |= self.build_sampling(request)
        if request.sampling.stop:
            raise build_option_error("stop", self.owner, "leave it out, or ask the same model as openai-chat:NAME")
        fields = merge_fields(fields, self.build_extra(request))
        if (schema := request.output_schema) is not None:
            form = {"type": "json_schema", **describe_output(schema, request.output_strict)}
            fields["text"] = {**fields.get("text", {}), "format": form}
        wire_format.add_tools(fields, request, lambda function: {"type": "function", **function})
        for tool in fields.get("tools", ()):
            tool.setdefault("strict", False)
        return fields

    def _write_result(self, message: ResultMessage) -> bytes:
        output: Json = message.text
        if message.parts:
            parts = (TextPart(message.text), *message.parts) if message.text else message.parts
            output = [self._build_part(part) for part in parts]
        call_id = self.id_rule.fit(message.call_id)
        return b"," + encode({"type": "function_call_output", "call_id": call_id, "output": output})

    def _write_reply(self, message: ModelMessage) -> bytes:
        items = [
            encode(
                {
                    "type": "function_call",
                    "call_id": self.id_rule.fit(call.id),
                    "name": wire_format.fit_tool_name(call.tool),
                    "arguments": wire_format.encode_arguments(call).decode(),
                }
            )
            for call in message.calls
        ]
        own = self.decode_own_state(message)
        if own is not None:
            items = wire_format.merge_calls(own.items, items, "function_call", "reasoning")
        elif message.text.strip():
            items.insert(0, encode({"role": "assistant", "content": message.text}))
        return b"".join(b"," + item for item in items)

    def _build_part(self, part: Part) -> dict[str, Json]:
        match part:
            case TextPart():
                return {"type": "input_text", "text": part.text}
            case ImagePart():
                return {
                    "type": "input_image",
                    "image_url": part.url or wire_format.build_data_url(part),
                    "detail": "auto",
                }
            case FilePart(media_type="application/pdf"):
                return {"type": "input_file", "filename": part.name, "file_data": wire_format.build_data_url(part)}
            case FilePart():
                return {"type": "input_text", "text": wire_format.describe_file(part)}


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    model: str | None = None
    status: str | None = None
    output: list[Raw] | None = None
    usage: ReportedUsage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _Event(Struct, gc=False):
    type: str = ""
    delta: Any = None
    output_index: int | None = 0
    summary_index: int | None = 0
    item: Raw = wire_format.MISSING
    logprobs: list[Json] | None = None
    response: _Response | None = None
    code: Any = None
    message: Any = None
    error: Any = None


class _Text(Struct):
    text: str | None = None
    refusal: str | None = None
    logprobs: list[Json] | None = None


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


class ResponsesReader(ReplyReader[_Event]):
    """Reads events, and whole responses of servers that do not stream."""

    finish_reasons: ClassVar[FinishReasons] = {"max_output_tokens": "length", "content_filter": "filter"}

    def __init__(self, wire: OpenAIResponses, sent: int) -> None:
        super().__init__(wire, MessageStream(_EVENTS), sent)
        self._calls: dict[int, PendingCall] = {}
        self._items: dict[int, bytes] = {}
        self._streamed: set[int] = set()

    def _read(self, events: Iterable[_Event]) -> None:
        for event in events:
            place = event.output_index or 0
            match event.type:
                case "response.output_text.delta":
                    self._streamed.add(place)
                    self._builder.add_text(str(event.delta))
                    self._builder.logprobs += event.logprobs or ()
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
                case _ if event.error:  # the form of a proxy's own errors
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
                    self._builder.logprobs += part.logprobs or ()
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
        self.is_done = True
        self._usage = response.usage
        self._model = response.model or ""
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        self._finish_reason = reason or ("incomplete" if response.status == "incomplete" else "")

    def _read_document(self, document: bytes) -> None:
        response = reply_reader.decode_document(_response, document)
        if response.output is None and not response.error:
            raise reply_reader.MalformedStream(repr(document[:200].decode()))
        self._end(response)

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
        return self._wire.encode_own_state(items)


_NO_ITEM = _Item()
