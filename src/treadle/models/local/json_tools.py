"""Tools for capable models without a call format of their own: one line of JSON under a grammar, then free text.

The model is told the tools in a few lines and must begin its reply with a call or with the word that it answers.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from treadle.events import CallDelta
from treadle.messages import (
    Call,
    Json,
    Message,
    ModelMessage,
    Reply,
    Request,
    ResultMessage,
    ToolSpec,
    UserMessage,
    render_parts,
)
from treadle.models.base import ModelEvent
from treadle.models.local import free_text as writing
from treadle.models.local import gbnf as grammar
from treadle.models.local.chat_prompt import ChatPrompt, Turn
from treadle.models.local.llama_process import LlamaEngine

ANSWER = '{"tool": "answer"}'
TEMPERATURE = 0.3
MOST_EXAMPLES = 12


class JsonTools:
    """Drives a model by a grammar that admits the offered calls or an answer."""

    def __init__(self, engine: LlamaEngine, chat: ChatPrompt, name: str) -> None:
        self._engine = engine
        self._chat = chat
        self._name = name

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        """One call, or the answer."""
        prompt = await self._chat.render(
            [*build_instructions(request.system, request.tools), *build_json_turns(request.messages)]
        )
        options = writing.build_options(request, temperature=TEMPERATURE, tokens=-1)
        if request.tools and request.tool_choice != "none":
            calls = [(tool.name, tool.parameters) for tool in request.tools]
            limits: dict[str, Json] = {
                "grammar": grammar.build_call_grammar(calls, None if request.tool_choice == "required" else ANSWER),
                "stop": [],
            }
            line = await self._engine.complete(prompt, options | limits)
            if line.content != ANSWER:
                for event in _called(line.content, self._name, line):
                    yield event
                return
        if request.tools:
            prompt += f"{ANSWER}\n"
        async with aclosing(writing.stream_text(self._engine, prompt, options, Reply(model=self._name))) as events:
            async for event in events:
                yield event


def _called(line: str, name: str, piece: writing.CompletionPiece) -> list[ModelEvent]:
    usage = writing.read_usage(piece)
    try:
        made = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return [Reply(finish="length", usage=usage, model=name)]
    arguments = _json(made["arguments"])
    call = Call(f"call_{secrets.token_hex(6)}", made["tool"], arguments)
    reply = Reply(calls=(call,), finish="calls", usage=usage, model=name)
    return [CallDelta(index=0, tool=call.tool, arguments=arguments), reply]


def build_instructions(system: str, tools: Sequence[ToolSpec]) -> list[Turn]:
    """The instructions: the system text, the tools in a line each, and how to call them."""
    if not tools:
        return [("system", system)] if system else []
    lines = [f"- {tool.name}({_signature(tool)}): {tool.description.strip().splitlines()[0]}" for tool in tools]
    shown = [(tool.name, *tool.examples[0]) for tool in tools if tool.examples][:MOST_EXAMPLES]
    examples = [f"{request}\n{_json({'tool': name, 'arguments': arguments})}" for name, request, arguments in shown]
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
    """The conversation in the format that `opening` asks for."""
    written: list[Turn] = []
    for message in messages:
        match message:
            case UserMessage(parts=parts):
                written.append(("user", render_parts(parts)))
            case ModelMessage(text=text, calls=calls):
                made = [f'{{"tool": {_json(call.tool)}, "arguments": {call.arguments}}}' for call in calls]
                written.append(("assistant", "\n".join(made) or f"{ANSWER}\n{text}"))
            case ResultMessage(tool=tool, text=text, ok=ok):
                written.append(("user", f"{'Result' if ok else 'Failure'} of {tool}:\n{text}"))
    return written


def _signature(tool: ToolSpec) -> str:
    properties: dict[str, Json] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    kinds = {name: schema.get("type", "any") for name, schema in properties.items()}
    return ", ".join(f"{name}{'' if name in required else '?'}: {kind}" for name, kind in kinds.items())


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
