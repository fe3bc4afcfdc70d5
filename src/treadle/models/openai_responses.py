"""OpenAI Responses, stateless: requests. Replies are read in responses_reader.py.

Nothing is stored at the provider. Reasoning comes encrypted and goes back unchanged to the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from treadle.messages import (
    Call,
    FilePart,
    ImagePart,
    Json,
    Message,
    ModelMessage,
    Part,
    Request,
    ResultMessage,
    TextPart,
    ToolSpec,
    UserMessage,
)
from treadle.models.request_parts import (
    IdRule,
    MessageBuffer,
    decode_own_state,
    decode_text_file,
    describe_unreadable_file,
    encode,
    encode_arguments,
    fit_tool_name,
    get_buffer,
)
from treadle.models.responses_reader import ResponsesReader
from treadle.models.strict_schema import is_strict

_IDS = IdRule(longest=64)
_OURS = frozenset(("model", "input", "instructions", "stream", "tools", "store"))


class _Item(Struct):
    type: str = ""


_type = msgspec.json.Decoder(_Item)


class OpenAIResponses:
    """The wire format of one model behind the Responses API. `seed` and `stop` have no place in it."""

    path = "/responses"

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        max_output: int | None = None,
        accepts_sampling: bool = True,
        asks_encrypted_reasoning: bool = True,
    ) -> None:
        self._model = model
        self._owner = f"{provider}:{model}"
        self._key = f"responses:{self._owner}"
        self._max_output = max_output
        self._samples = accepts_sampling
        self._encrypted = asks_encrypted_reasoning

    def build_body(self, request: Request, window: int | None) -> bytes:
        known = get_buffer(request, self._key)
        known.extend(request.messages, self._fragment, None)
        limit = request.max_tokens
        if limit is not None and self._max_output is not None:
            limit = min(limit, self._max_output)
        # The provider refuses a limit below 16.
        cap = b"" if limit is None else b',"max_output_tokens":%d' % max(limit, 16)
        data = known.take_prefix(len(request.messages))
        return b"".join((self._head(request, known)[:-1], cap, b',"input":[', data[1:], b"]}"))

    def open_reader(self, request: Request, sent: int) -> ResponsesReader:
        return ResponsesReader(self._owner, sent=sent)

    def _head(self, request: Request, known: MessageBuffer) -> bytes:
        key = (
            request.system,
            request.tools,
            request.tool_choice,
            request.sampling,
            request.output_schema,
            request.session_id,
        )
        if known.head_key != key:
            known.head, known.head_key = encode(self._fields(request)), key
        return known.head

    def _fields(self, request: Request) -> dict[str, Json]:
        sampling = request.sampling
        fields: dict[str, Json] = {"model": self._model, "stream": True, "store": False}
        if self._encrypted:
            fields["include"] = ["reasoning.encrypted_content"]
        if request.system.strip():
            fields["instructions"] = request.system
        if request.session_id:
            fields["prompt_cache_key"] = request.session_id[:64]
        if sampling.temperature is not None and self._samples:
            fields["temperature"] = sampling.temperature
        if sampling.top_p is not None and self._samples:
            fields["top_p"] = sampling.top_p
        fields |= {k: v for k, v in sampling.extra.items() if k not in _OURS}
        if (schema := request.output_schema) is not None:
            form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict(schema)}
            fields["text"] = {**fields.get("text", {}), "format": form}
        if request.tools:
            fields["tools"] = [_tool(tool) for tool in request.tools]
            fields["tool_choice"] = _choice(request, fields.get("tool_choice"))
        for name in ("tool_choice", "parallel_tool_calls"):
            if not request.tools or fields.get(name) == "auto":
                fields.pop(name, None)
        return fields

    def _fragment(self, message: Message, state: None) -> tuple[bytes, None]:
        match message:
            case ModelMessage():
                items = self._model_items(message)
            case ResultMessage():
                items = [_output(message)]
            case UserMessage():
                content = _content(message.parts)
                items = [encode({"role": "user", "content": content})] if content else []
        return b"".join(b"," + item for item in items), None

    def _model_items(self, message: ModelMessage) -> list[bytes]:
        calls = [_call(call) for call in message.calls]
        state = decode_own_state(message, self._key)
        if state is None:
            said = [encode({"role": "assistant", "content": message.text})] if message.text.strip() else []
            return said + calls
        items: list[bytes] = []
        place = 0
        for item in state.items:
            if _type.decode(item).type != "function_call":
                items.append(bytes(item))
            elif place < len(calls):
                items.append(calls[place])
                place += 1
        items += calls[place:]
        # Reasoning must be followed by what it led to; calls that were not kept leave it alone.
        while items and _type.decode(items[-1]).type == "reasoning":
            items.pop()
        return items


def _call(call: Call) -> bytes:
    return encode(
        {
            "type": "function_call",
            "call_id": _IDS.fit(call.id),
            "name": fit_tool_name(call.tool),
            "arguments": encode_arguments(call).decode(),
        }
    )


def _output(message: ResultMessage) -> bytes:
    output: Json = message.text
    if message.parts:
        text = TextPart(message.text)
        output = [_part(part) for part in ((text, *message.parts) if message.text else message.parts)]
    return encode({"type": "function_call_output", "call_id": _IDS.fit(message.call_id), "output": output})


def _content(parts: Sequence[Part]) -> str | list[dict[str, Json]]:
    if all(isinstance(part, TextPart) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, TextPart))
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Json]:
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart():
            url = part.url or f"data:{part.media_type};base64,{part.data}"
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case FilePart(media_type="application/pdf"):
            data = f"data:{part.media_type};base64,{part.data}"
            return {"type": "input_file", "filename": part.name, "file_data": data}
        case FilePart():
            text = decode_text_file(part)
            shown = f"{part.name}:\n{text}" if text is not None else describe_unreadable_file(part)
            return {"type": "input_text", "text": shown}


def _tool(tool: ToolSpec) -> dict[str, Json]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


def _choice(request: Request, wanted: Any) -> Any:
    """The choice of tools; a tool's name stands for the call of that tool."""
    if request.tool_choice == "none" or wanted is None:
        return request.tool_choice
    if not isinstance(wanted, str) or wanted in ("auto", "none", "required"):
        return wanted
    return {"type": "function", "name": wanted}
