"""Chat Completions: requests to any OpenAI-compatible server. Replies are read in chat_reader.py.

What differs between vendors is data (`Quirks`), never a branch on a vendor's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Raw, Struct

from treadle.messages import (
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
from treadle.models.chat_reader import ChatReader
from treadle.models.request_parts import (
    OPENAI_IDS,
    CarriedParts,
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
from treadle.models.strict_schema import is_strict


class Quirks(Struct, frozen=True):
    """How one vendor's Chat Completions differ from OpenAI's. The defaults suit an unknown server."""

    limit_field: str = "max_tokens"
    max_output: int | None = None
    accepts_sampling: bool = True
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
_PLAIN = Quirks()
_OURS = frozenset(("model", "messages", "stream", "tools"))


class ChatCompletions:
    """The wire format of one model behind a Chat Completions endpoint."""

    path = "/chat/completions"

    def __init__(self, provider: str, model: str, quirks: Quirks = _PLAIN) -> None:
        self._model = model
        self._owner = f"{provider}:{model}"
        self._key = f"chat:{self._owner}"
        self._quirks = quirks
        self._last_head, self._head_of = b"", tuple[Any, ...]()

    def build_body(self, request: Request, window: int | None) -> bytes:
        known = get_buffer(request, self._key)
        known.extend(request.messages, self._fragment, CarriedParts())
        limit = request.max_tokens
        if limit is not None and self._quirks.max_output is not None:
            limit = min(limit, self._quirks.max_output)
        cap = b"" if limit is None else b',"%b":%d' % (self._quirks.limit_field.encode(), limit)
        system = self._system(request)
        fragments = known.take_prefix(len(request.messages))
        return b"".join(
            (
                self._head(request, known),
                cap,
                b',"messages":[',
                system,
                fragments if system else fragments[1:],
                b"]}",
            )
        )

    def open_reader(self, request: Request, sent: int) -> ChatReader:
        quirks = self._quirks
        return ChatReader(
            self._owner,
            request.tools if quirks.recovers_text_calls and request.tool_choice != "none" else (),
            sent=sent,
            think_tags=quirks.splits_think_tags,
            keep_reasoning=quirks.replays_reasoning,
        )

    def _system(self, request: Request) -> bytes:
        text = request.system
        if request.output_schema is not None and self._quirks.schema_mode != "json_schema":
            schema = encode(request.output_schema).decode()
            text = f"{text}\n\nGive the final answer as one JSON object of this schema, nothing else: {schema}"
        return encode({"role": "system", "content": text.strip()}) if text.strip() else b""

    def _head(self, request: Request, known: MessageBuffer) -> bytes:
        """All but the messages and the token limit; serialised again only when it differs, and shared by sessions."""
        session = request.session_id if self._quirks.sends_cache_key else ""
        key = (request.tools, request.tool_choice, request.sampling, request.output_schema, session)
        if known.head_key != key:
            if self._head_of != key:
                self._last_head, self._head_of = encode(self._fields(request))[:-1], key
            known.head, known.head_key = self._last_head, self._head_of
        return known.head

    def _fields(self, request: Request) -> dict[str, Json]:
        quirks, sampling = self._quirks, request.sampling
        fields: dict[str, Json] = {"model": self._model, "stream": True}
        if quirks.accepts_stream_options:
            fields["stream_options"] = {"include_usage": True}
        if quirks.sends_cache_key and request.session_id:
            fields["prompt_cache_key"] = request.session_id[:64]
        if sampling.temperature is not None and quirks.accepts_sampling:
            fields["temperature"] = sampling.temperature
        if sampling.top_p is not None and quirks.accepts_sampling:
            fields["top_p"] = sampling.top_p
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
        fields |= {k: v for k, v in sampling.extra.items() if k not in _OURS}
        if request.tools:
            fields["tools"] = [_tool(tool) for tool in request.tools]
            fields["tool_choice"] = _choice(request, fields.get("tool_choice"))
        for name in ("tool_choice", "parallel_tool_calls"):
            if not request.tools or fields.get(name) == "auto":
                fields.pop(name, None)
        return fields

    def _fragment(self, message: Message, carry: CarriedParts) -> tuple[bytes, CarriedParts]:
        match message:
            case ModelMessage():
                return self._model_fragment(message), CarriedParts(len(message.calls))
            case ResultMessage():
                return self._result_fragment(message, carry)
            case UserMessage():
                content = self._content(message.parts)
                return b"," + encode({"role": "user", "content": content}) if content else b"", carry

    def _model_fragment(self, message: ModelMessage) -> bytes:
        if not message.calls:
            # A reply without words is no message to any provider.
            return b"," + encode({"role": "assistant", "content": message.text}) if message.text else b""
        state = decode_own_state(message, self._key)
        extras = state.items if state is not None else []
        calls: list[Json] = []
        for place, call in enumerate(message.calls):
            function = {"name": fit_tool_name(call.tool), "arguments": encode_arguments(call).decode()}
            entry: dict[str, Json] = {
                "id": self._quirks.id_rule.fit(call.id),
                "type": "function",
                "function": function,
            }
            if place < len(extras) and bytes(extras[place]) != b"null":
                entry["extra_content"] = extras[place]
            elif self._quirks.needs_thought_signatures and state is None and place == 0:
                entry["extra_content"] = _DUMMY_SIGNATURE
            calls.append(entry)
        fields: dict[str, Json] = {"role": "assistant", "content": message.text or None, "tool_calls": calls}
        if self._quirks.replays_reasoning:
            if state is not None:
                fields |= state.fields
            else:
                # DeepSeek and Kimi refuse calls without any; another model's words would be foreign here.
                fields["reasoning_content"] = " "
        return b"," + encode(fields)

    def _result_fragment(self, message: ResultMessage, carry: CarriedParts) -> tuple[bytes, CarriedParts]:
        call_id = self._quirks.id_rule.fit(message.call_id)
        fragment = b"," + encode({"role": "tool", "tool_call_id": call_id, "content": message.text})
        due, carry = carry.add_result(message)
        if due:
            fragment += b"," + encode({"role": "user", "content": self._content(due)})
        return fragment, carry

    def _content(self, parts: Sequence[Part]) -> str | list[dict[str, Json]]:
        if all(isinstance(part, TextPart) for part in parts):
            return "\n".join(part.text for part in parts if isinstance(part, TextPart))
        return [self._part(part) for part in parts]

    def _part(self, part: Part) -> dict[str, Json]:
        match part:
            case TextPart():
                return {"type": "text", "text": part.text}
            case ImagePart():
                url = part.url or f"data:{part.media_type};base64,{part.data}"
                return {"type": "image_url", "image_url": {"url": url}}
            case FilePart():
                if (text := decode_text_file(part)) is not None:
                    return {"type": "text", "text": f"{part.name}:\n{text}"}
                if self._quirks.accepts_files:
                    data = f"data:{part.media_type};base64,{part.data}"
                    return {"type": "file", "file": {"filename": part.name, "file_data": data}}
                return {"type": "text", "text": describe_unreadable_file(part)}


def _tool(tool: ToolSpec) -> dict[str, Json]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _choice(request: Request, wanted: Any) -> Any:
    """The choice of tools; a tool's name stands for the call of that tool."""
    if request.tool_choice == "none" or wanted is None:
        return request.tool_choice
    if not isinstance(wanted, str) or wanted in ("auto", "none", "required"):
        return wanted
    return {"type": "function", "function": {"name": wanted}}
