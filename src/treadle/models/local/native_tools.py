"""Tools in the model's own call format, through the engine's Chat Completions. For models that were taught one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from treadle.errors import ModelError
from treadle.messages import Json, Message, ModelMessage, Request, ResultMessage, UserMessage, render_parts, wrap_system
from treadle.models.base import ModelEvent
from treadle.models.chat_completions import ChatCompletions, Quirks
from treadle.models.failures import ReportedFailure
from treadle.models.local.driver import TEMPERATURE, build_options
from treadle.models.local.json_tools import JsonTools
from treadle.models.local.llama_process import build_refusal
from treadle.models.wire_format import describe_function

_PATH = "/v1/chat/completions"
_WIRE = ChatCompletions("local", "engine", Quirks(recovers_text_calls=False))


class NativeTools(JsonTools):
    """Drives a model that writes calls itself. The base takes over where it cannot."""

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        if request.tools and request.output_schema is not None:
            # The engine takes either tools or a grammar. The base can do both.
            async with aclosing(super().stream(request)) as events:
                async for event in events:
                    yield event
            return
        body = build_body(request)
        reader = _WIRE.open_reader(request, sent=len(msgspec.json.encode(body)))
        try:
            async with aclosing(self._engine.stream_blocks(_PATH, body)) as blocks:
                async for block in blocks:
                    for event in reader.feed(block):
                        yield event
            for event in reader.finish():
                yield event
        except (ModelError, ReportedFailure) as error:
            failure = build_refusal(error.error) if isinstance(error, ReportedFailure) else error
            failure.partial = reader.text
            raise failure from None
        yield replace(reader.build_reply(), model=self._name)


def build_body(request: Request) -> dict[str, Json]:
    """The request in the chat format."""
    options = build_options(request, temperature=TEMPERATURE, tokens=-1)
    options["max_tokens"] = options.pop("n_predict")
    if count := options.pop("n_probs", 0):
        options |= {"logprobs": True, "top_logprobs": count}
    system = [{"role": "system", "content": request.system}] if request.system else []
    body: dict[str, Json] = {"messages": [*system, *build_messages(request.messages)], **options}
    if request.tools:
        tools = [describe_function(tool) for tool in request.tools]
        parallel = request.sampling.extra.get("parallel_tool_calls") is not False
        body |= {"tools": tools, "tool_choice": request.tool_choice, "parallel_tool_calls": parallel}
    return body | {"stream": True, "stream_options": {"include_usage": True}, "cache_prompt": True}


def build_messages(messages: Sequence[Message]) -> list[Json]:
    """The conversation in the chat format."""
    built: list[Json] = []
    for message in messages:
        match message:
            case UserMessage():
                built.append({"role": "user", "content": render_parts(wrap_system(message))})
            case ModelMessage(text=text, calls=calls):
                entries = [
                    {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": call.arguments}}
                    for call in calls
                ]
                built.append({"role": "assistant", "content": text} | ({"tool_calls": entries} if entries else {}))
            case ResultMessage(call_id=call_id, text=text):
                built.append({"role": "tool", "tool_call_id": call_id, "content": text})
    return built
