"""Ollama's own chat API, requests and replies.

Its OpenAI-compatible API cannot set `num_ctx` and silently drops the beginning of a prompt that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

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
from treadle.models.failures import ReportedFailure
from treadle.models.reply_builder import ReplyReader, add_cost
from treadle.models.request_parts import (
    CarriedParts,
    MessageBuffer,
    WireFormat,
    describe_file,
    describe_function,
    encode,
    encode_arguments,
    estimate_tokens,
    fit_tool_name,
    get_buffer,
)
from treadle.models.sse import MessageDecoder, MessageStream

_OWN_FIELDS = frozenset(("model", "messages", "stream", "tools", "options", "tool_choice", "parallel_tool_calls"))


class OllamaChat(WireFormat):
    """The wire format of one model behind an Ollama server. `num_ctx` is the window that was asked for."""

    protocol = "ollama"
    path = "/api/chat"

    def build_body(self, request: Request, window: int | None) -> bytes:
        buffer = get_buffer(request, self.key)
        buffer.extend(request.messages, self._write_message, CarriedParts())
        data = buffer.take_prefix(len(request.messages))
        system = encode({"role": "system", "content": request.system}) if request.system.strip() else b""
        head = self._get_head(request, buffer, window)
        return b"".join((head, b',"messages":[', system, data if system else data[1:], b"]}"))

    def open_reader(self, request: Request, sent: int) -> OllamaReader:
        return OllamaReader(
            self,
            MessageStream(_LINES, is_framed=False),
            sent,
            tools=request.tools if request.tool_choice != "none" else (),
            splits_think_tags=True,
        )

    def _get_head(self, request: Request, buffer: MessageBuffer, window: int | None) -> bytes:
        """All but the messages."""
        key = (request.tools, request.tool_choice, request.sampling, request.output_schema, request.max_tokens, window)
        if buffer.head_key != key:
            buffer.head, buffer.head_key = encode(self._build_fields(request, window))[:-1], key
        return buffer.head

    def _build_fields(self, request: Request, window: int | None) -> dict[str, Json]:
        sampling = request.sampling
        values: dict[str, Json] = {
            "num_ctx": window,
            "num_predict": request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": sampling.stop or None,
        }
        options = {name: value for name, value in values.items() if value is not None}
        extra = sampling.extra
        if isinstance(own := extra.get("options"), Mapping):
            options |= cast("Mapping[str, Json]", own)
        # Without these two, a server that knows them cuts what does not fit instead of refusing it.
        fields: dict[str, Json] = {"model": self.model, "stream": True, "truncate": False, "shift": False}
        fields |= {name: value for name, value in extra.items() if name not in _OWN_FIELDS}
        fields["options"] = options
        # Ollama has no choice of tools: tools that may not be called are not shown.
        tools = request.tools if request.tool_choice != "none" else ()
        if request.output_schema is not None and not tools:
            fields["format"] = request.output_schema
        if tools:
            fields["tools"] = [describe_function(tool) for tool in tools]
        return fields

    def _write_message(self, message: Message, carried: CarriedParts) -> tuple[bytes, CarriedParts]:
        match message:
            case UserMessage():
                return b"," + encode(_build_user(message.parts)), carried
            case ModelMessage():
                fields: dict[str, Json] = {"role": "assistant", "content": message.text}
                if message.calls:
                    fields["tool_calls"] = [
                        {"function": {"name": fit_tool_name(call.tool), "arguments": Raw(encode_arguments(call))}}
                        for call in message.calls
                    ]
                is_empty = not message.text and not message.calls
                return b"" if is_empty else b"," + encode(fields), CarriedParts(len(message.calls))
            case ResultMessage():
                result = {"role": "tool", "tool_name": fit_tool_name(message.tool), "content": message.text}
                due, carried = carried.add_result(message)
                more = b"," + encode(_build_user(due)) if due else b""
                return b"," + encode(result) + more, carried


def _build_user(parts: Sequence[Part]) -> dict[str, Json]:
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        match part:
            case TextPart():
                texts.append(part.text)
            case ImagePart(data=data) if data:
                images.append(data)
            case ImagePart():
                texts.append(f"[an image at {part.url}, which cannot be fetched from here]")
            case FilePart():
                texts.append(describe_file(part))
    fields: dict[str, Json] = {"role": "user", "content": "\n".join(texts)}
    if images:
        fields["images"] = images
    return fields


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: dict[str, Any] | str | None = None


class _ToolCall(Struct, gc=False):
    id: str | None = None
    function: _Function | None = None


class _Message(Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Line(Struct, gc=False):
    model: str | None = None
    message: _Message | None = None
    done: bool | None = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: Any = None


_LINES = MessageDecoder(_Line)
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "load": "other", "unload": "other"}


class OllamaReader(ReplyReader[_Line]):
    """Reads lines of JSON, of which the last has the counts."""

    finishes_with_calls = ("stop", "calls", "other")
    _last: _Line | None = None

    @property
    def is_done(self) -> bool:
        return self._last is not None

    def _read(self, messages: Iterable[_Line]) -> None:
        for line in messages:
            if line.error:
                raise ReportedFailure(line.error)
            message = line.message
            if message is not None:
                if message.thinking:
                    self._builder.add_reasoning(message.thinking)
                if message.content:
                    self._builder.add_text(message.content)
                for call in message.tool_calls or ():
                    self._add_call(call)
            if line.done:
                self._last = line
                self._model = line.model or ""

    def _add_call(self, call: _ToolCall) -> None:
        function = call.function or _Function()
        pending = self._builder.start_call()
        pending.id, pending.name = call.id or "", function.name or ""
        arguments = function.arguments
        pending.arguments.append(arguments if isinstance(arguments, str) else encode(arguments or {}).decode())
        self._builder.mark_changed(pending)

    def _read_finish(self) -> FinishReason:
        reason = self._last.done_reason if self._last is not None else None
        return _FINISH.get(reason or "stop", "other")

    def _build_usage(self, written: int) -> Usage:
        last = self._last or _Line()
        has_count = last.eval_count is not None
        usage = Usage(
            input_tokens=last.prompt_eval_count or estimate_tokens(self._sent),
            output_tokens=last.eval_count or (0 if has_count else estimate_tokens(written)),
            estimated=not has_count or last.prompt_eval_count is None,
        )
        return add_cost(usage, self._wire.info)
