"""Tools in the call format that a model was taught, under a grammar: no call can be malformed.

The format is read from the model's chat template, by rendering one call with it. Models that think before they answer
are not driven this way: the grammar would have to admit their thoughts.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import Struct

from treadle.errors import ModelError
from treadle.events import TextDelta
from treadle.messages import Json, Reply, Request, ToolSpec
from treadle.models.base import ModelEvent
from treadle.models.local import gbnf
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.driver import TEMPERATURE, build_options
from treadle.models.local.json_tools import JsonTools
from treadle.models.local.llama_process import EngineFacts, LlamaEngine
from treadle.models.local.loop_detector import BROKEN_CALL, LoopDetector
from treadle.models.local.native_tools import build_messages
from treadle.models.wire_format import describe_function

_CALL = re.compile(
    r'\s*(?P<opening>\S.{0,40}?"name":\s?")room_light(?P<middle>"[^{}]{0,40})\{"state": ?"dim"\}'
    r"(?P<closing>\s*\}\s*\]?(?:\s*</\w+>)?)",
    re.DOTALL,
)


class CallFormat(Struct, frozen=True):
    """The texts before a tool's name, between it and the arguments, and after the arguments."""

    opening: str
    middle: str
    closing: str

    def build_grammar(self, request: Request) -> str:
        """The grammar of one call of an offered tool, or of a text that does not begin like a call."""
        calls = [(tool.name, tool.parameters) for tool in request.tools]
        first = self.opening[0].replace("[", "\\[")
        text = rf"[^{first}\x00-\x20] [^\x00]*"
        frame = (self.opening, self.middle, self.closing)
        return gbnf.build_call_grammar(calls, None if request.tool_choice == "required" else text, frame)

    def split_call(self, text: str) -> tuple[str, str] | None:
        """The tool and the arguments of a call, or None when it was cut off."""
        name, middle, rest = text.removeprefix(self.opening).partition(self.middle)
        is_complete = middle and rest.endswith(self.closing)
        return (name, rest.removesuffix(self.closing)) if is_complete else None


class OwnFormat(JsonTools):
    """Drives a model by a grammar of its own call format. The base takes over where an answer has a schema."""

    def __init__(self, engine: LlamaEngine, name: str, chat: ChatPrompt, call_format: CallFormat) -> None:
        super().__init__(engine, name, chat)
        self._format = call_format

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        if not request.tools or request.tool_choice == "none" or request.output_schema is not None:
            async with aclosing(super().stream(request)) as events:
                async for event in events:
                    yield event
            return
        system: list[Json] = [{"role": "system", "content": request.system}] if request.system else []
        messages = [*system, *build_messages(request.messages)]
        for message in messages:
            message["content"] = message["content"].replace("<|", "< |")
        prompt = await _render(self._engine, messages, [describe_function(tool) for tool in request.tools])
        options = build_options(request, temperature=TEMPERATURE, tokens=-1)
        options["grammar"] = self._format.build_grammar(request)
        is_call: bool | None = None
        loops = LoopDetector()
        async with aclosing(self._stream_text(prompt, options)) as events:
            async for event in events:
                if isinstance(event, TextDelta) and is_call is None:
                    is_call = event.text.startswith(self._format.opening[0])
                if not is_call:
                    yield event
                elif isinstance(event, Reply):
                    for built in self._read_call(event):
                        yield built
                elif isinstance(event, TextDelta) and loops.feed(event.text):
                    yield TextDelta(text=BROKEN_CALL)
                    yield Reply(BROKEN_CALL, finish="other", model=self._name)
                    return

    def _read_call(self, reply: Reply) -> tuple[ModelEvent, ...]:
        call = self._format.split_call(reply.text)
        if call is None:
            return (Reply(finish="length", usage=reply.usage, model=self._name),)
        return self._build_call(*call, reply.usage)


async def read_call_format(engine: LlamaEngine, facts: EngineFacts) -> CallFormat | None:
    """The call format in the model's template, or None when it has none that a grammar can hold."""
    if "tools" not in facts.template or "<think>" in facts.template:
        return None
    tools: list[Json] = [describe_function(ToolSpec("room_light", "Set the light.", {"type": "object"}))]
    asked: Json = {"role": "user", "content": "Dim the light."}
    function = {"name": "room_light", "arguments": '{"state": "dim"}'}
    call: Json = {"id": "call00001", "type": "function", "function": function}
    called: Json = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: Json = {"role": "tool", "tool_call_id": "call00001", "content": "done"}
    try:
        before = await _render(engine, [asked], tools)
        after = await _render(engine, [asked, called, result], tools)
    except ModelError:
        return None
    found = _CALL.match(after.removeprefix(before)) if after.startswith(before) else None
    return msgspec.convert(found.groupdict(), CallFormat) if found else None


async def _render(engine: LlamaEngine, messages: list[Json], tools: list[Json]) -> str:
    return (await engine.post("/apply-template", {"messages": messages, "tools": tools}))["prompt"]
