"""Ollama's own chat API, requests and replies.

Its OpenAI-compatible API cannot set `num_ctx` and silently drops the beginning of a prompt that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from msgspec import Raw, Struct

from treadle.messages import FilePart, ImagePart, Json, ModelMessage, Part, Request, ResultMessage, TextPart, Usage
from treadle.models import wire_format
from treadle.models.failures import ReportedFailure
from treadle.models.reply_reader import FinishReasons, MessageDecoder, MessageStream, ReplyReader
from treadle.models.request_options import OptionTable, merge_fields, write_to
from treadle.models.wire_format import CallPiece, FunctionPiece, ListFormat, encode, encode_arguments, fit_tool_name


class OllamaChat(ListFormat):
    """The wire format of one model behind an Ollama server. `num_ctx` is the window that was asked for."""

    protocol = "ollama"
    path = "/api/chat"
    own_fields = frozenset(("model", "messages", "stream", "tools", "tool_choice", "parallel_tool_calls"))
    head_fields = (*ListFormat.head_fields, "max_tokens")
    options: ClassVar[OptionTable | None] = {
        **{name: write_to(f"options.{name}") for name in ("frequency_penalty", "min_p", "presence_penalty", "top_k")},
        **{name: write_to(name) for name in ("logprobs", "top_logprobs")},
        "repetition_penalty": write_to("options.repeat_penalty"),
        "typical_p": write_to("options.typical_p"),
    }

    def open_reader(self, request: Request, sent: int) -> OllamaReader:
        return OllamaReader(self, request, sent)

    def _write_system(self, request: Request) -> bytes:
        return encode({"role": "system", "content": request.system}) if request.system.strip() else b""

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
        # Without these two, a server that knows them cuts what does not fit instead of refusing it.
        fields: dict[str, Json] = {"model": self.model, "stream": True, "truncate": False, "shift": False}
        fields = merge_fields({**fields, "options": options}, self.build_extra(request))
        # Ollama has no choice of tools: tools that may not be called are not shown.
        tools = request.tools if request.tool_choice != "none" else ()
        if request.output_schema is not None and not tools:
            fields["format"] = request.output_schema
        if tools:
            fields["tools"] = [wire_format.describe_function(tool) for tool in tools]
        return fields

    def _write_user(self, parts: Sequence[Part]) -> bytes:
        built = [self._build_part(part) for part in parts]
        fields: dict[str, Json] = {
            "role": "user",
            "content": "\n".join(part["text"] for part in built if "text" in part),
        }
        if images := [part["image"] for part in built if "image" in part]:
            fields["images"] = images
        return b"," + encode(fields)

    def _build_part(self, part: Part) -> dict[str, Json]:
        match part:
            case TextPart():
                return {"text": part.text}
            case ImagePart(data=data) if data:
                return {"image": data}
            case ImagePart():
                return {"text": f"[an image at {part.url}, which cannot be fetched from here]"}
            case FilePart():
                return {"text": wire_format.describe_file(part)}

    def _write_reply(self, message: ModelMessage) -> bytes:
        fields: dict[str, Json] = {"role": "assistant", "content": message.text}
        if message.calls:
            fields["tool_calls"] = [
                {"function": {"name": fit_tool_name(call.tool), "arguments": Raw(encode_arguments(call))}}
                for call in message.calls
            ]
        return b"," + encode(fields) if message.text or message.calls else b""

    def _write_result(self, message: ResultMessage) -> bytes:
        return b"," + encode({"role": "tool", "tool_name": fit_tool_name(message.tool), "content": message.text})


class _Message(Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[CallPiece] | None = None


class _Line(Struct, gc=False):
    model: str | None = None
    message: _Message | None = None
    done: bool | None = False
    done_reason: str | None = None
    logprobs: list[Json] | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: Any = None


_LINES = MessageDecoder(_Line)


class OllamaReader(ReplyReader[_Line]):
    """Reads lines of JSON, of which the last has the counts."""

    finish_reasons: ClassVar[FinishReasons] = {"stop": "stop", "length": "length"}
    finishes_with_calls = ("stop", "calls", "other")
    _last = _Line()

    def __init__(self, wire: OllamaChat, request: Request, sent: int) -> None:
        tools = request.tools if request.tool_choice != "none" else ()
        super().__init__(wire, MessageStream(_LINES, is_framed=False), sent, tools=tools)
        # Ollama has no option for one call at a time. The model can make the others after the first result.
        self._most_calls = 1 if request.sampling.extra.get("parallel_tool_calls") is False else None

    def _read(self, lines: Iterable[_Line]) -> None:
        for line in lines:
            if line.error:
                raise ReportedFailure(line.error)
            message = line.message
            if message is not None:
                if message.thinking:
                    self._builder.add_reasoning(message.thinking)
                if message.content:
                    self._builder.add_text(message.content)
                    self._builder.logprobs += line.logprobs or ()
                for call in message.tool_calls or ():
                    if self._most_calls is None or len(self._builder.calls) < self._most_calls:
                        self._add_call(call)
            if line.done:
                self.is_done, self._last = True, line
                self._model, self._finish_reason = line.model or "", line.done_reason or ""

    def _add_call(self, call: CallPiece) -> None:
        function = call.function or FunctionPiece()
        pending = self._builder.start_call()
        pending.id, pending.name = str(call.id or ""), function.name or ""
        arguments = function.arguments
        pending.arguments.append(arguments if isinstance(arguments, str) else encode(arguments or {}).decode())
        self._builder.mark_changed(pending)

    def _build_usage(self, written: int) -> Usage:
        last = self._last
        has_count = last.eval_count is not None
        usage = Usage(
            input_tokens=last.prompt_eval_count or wire_format.estimate_tokens(self._sent),
            output_tokens=last.eval_count or (0 if has_count else wire_format.estimate_tokens(written)),
            estimated=not has_count or last.prompt_eval_count is None,
        )
        return self._wire.add_cost(usage)
