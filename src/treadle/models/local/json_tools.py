"""Tools for capable models without a call format of their own: one line of JSON under a grammar, then free text.

The prompt lists the tools in a few lines. The model must begin its reply with a call, or with the line that says it
answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from treadle.events import TextDelta
from treadle.messages import (
    Json,
    Message,
    ModelMessage,
    Reply,
    Request,
    ResultMessage,
    ToolSpec,
    UserMessage,
    render_parts,
    wrap_system,
)
from treadle.models.base import ModelEvent
from treadle.models.local import gbnf
from treadle.models.local.chat_prompt import Turn
from treadle.models.local.driver import TEMPERATURE, Driver, build_options
from treadle.models.local.gbnf import encode_json
from treadle.models.local.llama_process import CompletionPiece
from treadle.models.local.loop_detector import BROKEN_CALL, LoopDetector

ANSWER = '{"tool": "answer"}'
MOST_EXAMPLES = 12


class JsonTools(Driver):
    """Drives a model by a grammar that admits the offered calls or an answer."""

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        prompt = await self._chat.render(
            [*build_instructions(request.system, request.tools), *build_json_turns(request.messages)]
        )
        options = build_options(request, temperature=TEMPERATURE, tokens=-1)
        if request.tools and request.tool_choice != "none":
            calls = [(tool.name, tool.parameters) for tool in request.tools]
            grammar = gbnf.build_call_grammar(
                calls, None if request.tool_choice == "required" else gbnf.quote_literal(ANSWER)
            )
            line, loops, last = "", LoopDetector(), CompletionPiece()
            async with aclosing(
                self._engine.stream_pieces(prompt, options | {"grammar": grammar, "stop": []})
            ) as pieces:
                async for last in pieces:
                    line += last.content
                    if loops.feed(last.content):
                        yield TextDelta(text=BROKEN_CALL)
                        yield Reply(BROKEN_CALL, finish="other", model=self._name)
                        return
            if line != ANSWER:
                usage = last.usage
                try:
                    call = msgspec.json.decode(line)
                except (msgspec.DecodeError, RecursionError):
                    yield Reply(finish="length", usage=usage, model=self._name)
                    return
                for event in self._build_call(call["tool"], encode_json(call["arguments"]), usage):
                    yield event
                return
        if request.tools:
            prompt += f"{ANSWER}\n"
        async with aclosing(self._stream_text(prompt, options)) as events:
            async for event in events:
                yield event


def build_instructions(system: str, tools: Sequence[ToolSpec]) -> list[Turn]:
    """The instructions: the system text, the tools in a line each, and how to call them."""
    if not tools:
        return [("system", system)] if system else []
    lines: list[str] = []
    for tool in tools:
        properties: dict[str, Json] = tool.parameters.get("properties", {})
        required = tool.parameters.get("required", ())
        kinds = {name: schema.get("type", "any") for name, schema in properties.items()}
        signature = ", ".join(f"{name}{'' if name in required else '?'}: {kind}" for name, kind in kinds.items())
        lines.append(f"- {tool.name}({signature}): {tool.description.strip().splitlines()[0]}")
    shown = [(tool.name, *tool.examples[0]) for tool in tools if tool.examples][:MOST_EXAMPLES]
    examples = [
        f"{request}\n{encode_json({'tool': name, 'arguments': arguments})}" for name, request, arguments in shown
    ]
    return [
        (
            "system",
            f"{system}\n\nYou can use these tools:\n{chr(10).join(lines)}\n\n"
            'Begin each reply with one line of JSON: {"tool": NAME, "arguments": {…}} to use a tool, '
            f"or {ANSWER} followed by your answer in plain words. Use a tool whenever one fits, "
            "and answer when you have its result.\n\nExamples:\n"
            + "\n".join([*examples, f"Hello!\n{ANSWER}\nHello! How can I help you?"]),
        )
    ]


def build_json_turns(messages: Sequence[Message]) -> list[Turn]:
    """The conversation in the format that the instructions ask for."""
    turns: list[Turn] = []
    for message in messages:
        match message:
            case UserMessage():
                turns.append(("user", render_parts(wrap_system(message))))
            case ModelMessage(text=text, calls=calls):
                lines = [f'{{"tool": {encode_json(call.tool)}, "arguments": {call.arguments}}}' for call in calls]
                turns.append(("assistant", "\n".join(lines) or f"{ANSWER}\n{text}"))
            case ResultMessage(tool=tool, text=text, ok=ok):
                turns.append(("user", f"{'Result' if ok else 'Failure'} of {tool}:\n{text}"))
    return turns
