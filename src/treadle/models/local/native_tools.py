"""Tools in the model's own call format, through the engine's chat endpoint. For models that were taught one."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct, field

from treadle.errors import ModelError
from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import (
    Call,
    FinishReason,
    Json,
    Message,
    ModelMessage,
    Reply,
    Request,
    ResultMessage,
    Usage,
    UserMessage,
    render_parts,
)
from treadle.models.base import ModelEvent
from treadle.models.local import free_text as writing
from treadle.models.local.json_tools import JsonTools
from treadle.models.local.llama_process import LlamaEngine

TEMPERATURE = 0.3
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "calls"}


class _Function(Struct):
    name: str | None = None
    arguments: str = ""


class _CallPiece(Struct):
    index: int = 0
    id: str | None = None
    function: _Function = field(default_factory=_Function)


class _Words(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_CallPiece] = field(default_factory=list[_CallPiece])


class _Choice(Struct):
    delta: _Words = field(default_factory=_Words)
    finish_reason: str | None = None


class _Cached(Struct):
    cached_tokens: int = 0


class _Counts(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached = field(default_factory=_Cached)


class _Chunk(Struct):
    choices: list[_Choice] = field(default_factory=list[_Choice])
    usage: _Counts | None = None


class NativeTools:
    """Drives a model that writes calls itself."""

    def __init__(self, engine: LlamaEngine, union: JsonTools, name: str) -> None:
        self._engine = engine
        self._union = union
        self._name = name

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        """Text, reasoning and calls as the model writes them."""
        if request.tools and request.output_schema is not None:
            # The engine takes either tools or a grammar; the union has both.
            async with aclosing(self._union.stream(request)) as events:
                async for event in events:
                    yield event
            return
        gathered = _Gathered(self._name)
        try:
            async with aclosing(self._engine.stream_events("/v1/chat/completions", build_body(request))) as chunks:
                async for data in chunks:
                    for event in gathered.take(msgspec.json.decode(data, type=_Chunk)):
                        yield event
        except ModelError as error:
            error.partial = gathered.text
            raise
        yield gathered.reply()


async def probe_tool_calls(engine: LlamaEngine) -> bool:
    """Whether the model, asked for something that only a tool can tell, calls that tool."""
    tool = {
        "name": "room_temperature",
        "description": "Measure the temperature in a room.",
        "parameters": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
    }
    question = {"role": "user", "content": "How warm is it in the kitchen right now?"}
    body: Json = {"messages": [question], "tools": [{"type": "function", "function": tool}], "temperature": 0}
    try:
        answer = await engine.post("/v1/chat/completions", body | {"max_tokens": 256})
        calls: list[Json] = answer["choices"][0]["message"].get("tool_calls") or []
        return any("room" in msgspec.json.decode(call["function"]["arguments"]) for call in calls)
    except (ModelError, msgspec.DecodeError):
        return False


def build_body(request: Request) -> dict[str, Json]:
    """The request in the chat format."""
    options = writing.build_options(request, temperature=TEMPERATURE, tokens=-1)
    options["max_tokens"] = options.pop("n_predict")
    system = [{"role": "system", "content": request.system}] if request.system else []
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in request.tools
    ]
    told: dict[str, Json] = {"messages": [*system, *build_messages(request.messages)], **options}
    if tools:
        told |= {"tools": tools, "tool_choice": request.tool_choice, "parallel_tool_calls": True}
    return told | {"stream": True, "stream_options": {"include_usage": True}, "cache_prompt": True}


def build_messages(given: Sequence[Message]) -> list[Json]:
    """The conversation in the chat format."""
    written: list[Json] = []
    for message in given:
        match message:
            case UserMessage(parts=parts):
                written.append({"role": "user", "content": render_parts(parts)})
            case ModelMessage(text=text, calls=calls):
                made = [
                    {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": call.arguments}}
                    for call in calls
                ]
                written.append({"role": "assistant", "content": text} | ({"tool_calls": made} if made else {}))
            case ResultMessage(call_id=call_id, text=text):
                written.append({"role": "tool", "tool_call_id": call_id, "content": text})
    return written


class _Gathered:
    """What has come of one reply."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.text = ""
        self._reasoning = ""
        self._calls: dict[int, _CallPiece] = {}
        self._finish: FinishReason = "other"
        self._counts = _Counts()

    def take(self, chunk: _Chunk) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        self._counts = chunk.usage or self._counts
        for choice in chunk.choices[:1]:
            if choice.finish_reason:
                self._finish = _FINISH.get(choice.finish_reason, "other")
            if thought := choice.delta.reasoning_content:
                self._reasoning += thought
                events.append(ReasoningDelta(text=thought))
            if words := choice.delta.content:
                self.text += words
                events.append(TextDelta(text=words))
            for piece in choice.delta.tool_calls:
                call = self._calls.setdefault(piece.index, _CallPiece(piece.index, piece.id, _Function("")))
                call.function.name = piece.function.name or call.function.name
                call.function.arguments += piece.function.arguments
                events.append(
                    CallDelta(index=piece.index, tool=piece.function.name or "", arguments=piece.function.arguments)
                )
        return events

    def reply(self) -> Reply:
        pieces = [piece for _, piece in sorted(self._calls.items())]
        calls = tuple(
            Call(piece.id or f"call_{secrets.token_hex(6)}", piece.function.name or "", piece.function.arguments)
            for piece in pieces
        )
        counts = self._counts
        usage = Usage(counts.prompt_tokens, counts.completion_tokens, counts.prompt_tokens_details.cached_tokens)
        return Reply(self.text, self._reasoning, calls, "calls" if calls else self._finish, usage, self._name)
