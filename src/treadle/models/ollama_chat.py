"""Ollama's own chat API, requests and replies.

Its OpenAI-compatible one cannot set `num_ctx` and silently drops the beginning of a prompt that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from treadle.errors import ModelError
from treadle.messages import (
    Call,
    FilePart,
    FinishReason,
    ImagePart,
    Json,
    Message,
    ModelMessage,
    Part,
    Reply,
    Request,
    ResultMessage,
    TextPart,
    ToolSpec,
    Usage,
    UserMessage,
)
from treadle.models.base import ModelEvent
from treadle.models.reply_builder import ReplyBuilder, extract_text_calls
from treadle.models.reports import ReportedFailure
from treadle.models.request_parts import (
    CarriedParts,
    MessageBuffer,
    decode_text_file,
    describe_unreadable_file,
    encode,
    encode_arguments,
    estimate_tokens,
    fit_tool_name,
    get_buffer,
)
from treadle.models.sse import MessageDecoder, MessageStream

_OURS = frozenset(("model", "messages", "stream", "tools", "options", "tool_choice", "parallel_tool_calls"))


class OllamaChat:
    """The wire format of one model behind an Ollama server. `num_ctx` is the window that was asked for."""

    path = "/api/chat"

    def __init__(self, provider: str, model: str) -> None:
        self._model = model
        self._owner = f"{provider}:{model}"
        self._key = f"ollama:{self._owner}"

    def build_body(self, request: Request, window: int | None) -> bytes:
        known = get_buffer(request, self._key)
        known.extend(request.messages, self._fragment, CarriedParts())
        data = known.take_prefix(len(request.messages))
        system = encode({"role": "system", "content": request.system}) if request.system.strip() else b""
        head = self._head(request, known, window)
        return b"".join((head, b',"messages":[', system, data if system else data[1:], b"]}"))

    def open_reader(self, request: Request, sent: int) -> OllamaReader:
        return OllamaReader(self._owner, request.tools if request.tool_choice != "none" else (), sent)

    def _head(self, request: Request, known: MessageBuffer, window: int | None) -> bytes:
        key = (request.tools, request.tool_choice, request.sampling, request.output_schema, request.max_tokens, window)
        if known.head_key != key:
            known.head, known.head_key = encode(self._fields(request, window))[:-1], key
        return known.head

    def _fields(self, request: Request, window: int | None) -> dict[str, Json]:
        sampling = request.sampling
        options: dict[str, Json] = {}
        if window is not None:
            options["num_ctx"] = window
        if request.max_tokens is not None:
            options["num_predict"] = request.max_tokens
        for name, value in (
            ("temperature", sampling.temperature),
            ("top_p", sampling.top_p),
            ("seed", sampling.seed),
        ):
            if value is not None:
                options[name] = value
        if sampling.stop:
            options["stop"] = sampling.stop
        extra = sampling.extra
        if isinstance(own := extra.get("options"), Mapping):
            options |= cast("Mapping[str, Json]", own)
        # Without these two a server that knows them refuses what does not fit, instead of cutting it.
        fields: dict[str, Json] = {"model": self._model, "stream": True, "truncate": False, "shift": False}
        fields |= {name: value for name, value in extra.items() if name not in _OURS}
        fields["options"] = options
        # It knows no choice of tools: those that may not be called are not shown.
        tools = request.tools if request.tool_choice != "none" else ()
        if request.output_schema is not None and not tools:
            fields["format"] = request.output_schema
        if tools:
            fields["tools"] = [_tool(tool) for tool in tools]
        return fields

    def _fragment(self, message: Message, carry: CarriedParts) -> tuple[bytes, CarriedParts]:
        match message:
            case UserMessage():
                return b"," + encode(_user(message.parts)), carry
            case ModelMessage():
                fields: dict[str, Json] = {"role": "assistant", "content": message.text}
                if message.calls:
                    fields["tool_calls"] = [_call(call) for call in message.calls]
                empty = not message.text and not message.calls
                return b"" if empty else b"," + encode(fields), CarriedParts(len(message.calls))
            case ResultMessage():
                result = {"role": "tool", "tool_name": fit_tool_name(message.tool), "content": message.text}
                due, carry = carry.add_result(message)
                more = b"," + encode(_user(due)) if due else b""
                return b"," + encode(result) + more, carry


def _user(parts: Sequence[Part]) -> dict[str, Json]:
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
                text = decode_text_file(part)
                texts.append(f"{part.name}:\n{text}" if text is not None else describe_unreadable_file(part))
    fields: dict[str, Json] = {"role": "user", "content": "\n".join(texts)}
    if images:
        fields["images"] = images
    return fields


def _call(call: Call) -> dict[str, Json]:
    return {"function": {"name": fit_tool_name(call.tool), "arguments": Raw(encode_arguments(call))}}


def _tool(tool: ToolSpec) -> dict[str, Json]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


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


class OllamaReader:
    """The reply of one exchange, in the making."""

    def __init__(self, owner: str, tools: tuple[ToolSpec, ...], sent: int) -> None:
        self._owner = owner
        self._tools = tools
        self._sent = sent
        self._stream = MessageStream(_LINES, is_framed=False)
        self._made = ReplyBuilder(think_tags=True)
        self._last: _Line | None = None

    @property
    def text(self) -> str:
        return self._made.join_text()

    @property
    def is_done(self) -> bool:
        return self._last is not None

    @property
    def has_ended(self) -> bool:
        return self.is_done

    def feed(self, data: bytes) -> list[ModelEvent]:
        self._read(self._stream.feed(data))
        return self._made.take_deltas()

    def finish(self) -> list[ModelEvent]:
        self._read(self._stream.finish())
        events = self._made.finish()
        if self._last is None:
            raise ModelError(
                f"{self._owner} ended its stream before the reply was complete", kind="network", retryable=True
            )
        return events

    def build_reply(self) -> Reply:
        last = self._last or _Line()
        text, thought = self._made.join_texts()
        finish = _FINISH.get(last.done_reason or "stop", "other")
        calls = self._made.build_calls(is_cut_off=finish == "length")
        if not calls and self._tools:
            text, calls = extract_text_calls(text, self._tools)
        if calls and finish != "length":
            finish = "calls"
        size = len(text) + len(thought) + sum(len(call.arguments) for call in calls)
        counted = last.eval_count is not None
        return Reply(
            text=text,
            reasoning=thought,
            calls=calls,
            finish=finish,
            usage=Usage(
                input_tokens=last.prompt_eval_count or estimate_tokens(self._sent),
                output_tokens=last.eval_count or (0 if counted else estimate_tokens(size)),
                estimated=not counted or last.prompt_eval_count is None,
            ),
            model=last.model or self._owner.partition(":")[2],
        )

    def _read(self, lines: Iterable[_Line]) -> None:
        made = self._made
        for line in lines:
            if line.error:
                raise ReportedFailure(line.error)
            message = line.message
            if message is not None:
                if message.thinking:
                    made.add_reasoning(message.thinking)
                if message.content:
                    made.add_text(message.content)
                for call in message.tool_calls or ():
                    self._call(call)
            if line.done:
                self._last = line

    def _call(self, call: _ToolCall) -> None:
        function = call.function or _Function()
        slot = self._made.start_call()
        slot.id, slot.name = call.id or "", function.name or ""
        given = function.arguments
        text = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
        slot.arguments.append(text)
        self._made.mark_changed(slot)
