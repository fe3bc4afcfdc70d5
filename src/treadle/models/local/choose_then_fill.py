"""Tools for models of less than about a billion parameters: choose one by scoring, then fill in its arguments.

Such a model cannot decide and write a call in one go, but it can do each part when that part is narrow. A request
is taken clause by clause; each clause is given to one tool or to none, and then the answer is written.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from treadle.engine.context import find_own_text
from treadle.events import CallDelta, TextDelta
from treadle.messages import Call, Json, Reply, Request, ResultMessage, ToolSpec, Usage
from treadle.models.base import ModelEvent
from treadle.models.local import argument_values as fill
from treadle.models.local import free_text as writing
from treadle.models.local import gbnf as grammar
from treadle.models.local import quote_result as answer
from treadle.models.local import request_text as text
from treadle.models.local.chat_prompt import ChatPrompt, Conversation, Turn, split_conversation
from treadle.models.local.llama_process import LlamaEngine, Progress
from treadle.models.local.model_cache import ModelCache
from treadle.models.local.tool_choice import ToolChooser, list_example_requests

ANSWER_TOKENS = 400
MOST_TOOL_SETS = 8
ARGUMENT_TOKENS = 300
LONGEST_SYSTEM = 400
"""Characters of instructions that a small model is told; longer ones only confuse it and are left out."""

AGAINST_LOOPS: dict[str, Json] = {
    "dry_multiplier": 0.8,
    "dry_allowed_length": 4,
    "dry_penalty_last_n": ANSWER_TOKENS,
    "dry_sequence_breakers": ['"'],  # a line's end is one by default, and these loops go on line by line
}

ClauseResult = tuple[str, str]
"""A clause of the request and what was found for it, if anything."""


class RequestPlan(Struct):
    """How far a request has come. `wanted` is the tool to call next, for the clause in `sources`."""

    steps: list[ClauseResult]
    sources: fill.ValueSources
    next_tool: ToolSpec | None = None


class ChooseThenFill:
    """Drives a small model. Holds nothing of a session: each decision follows from the messages."""

    def __init__(
        self, engine: LlamaEngine, chat: ChatPrompt, store: ModelCache, name: str, progress: Progress | None
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._store = store
        self._name = name
        self._progress = progress
        self._choosers: dict[str, ToolChooser] = {}

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        """The next call, or the answer."""
        now = split_conversation(request.messages)
        plan = await self._plan(() if request.tool_choice == "none" else request.tools, now)
        if request.tool_choice == "required" and not plan.next_tool and not now.finished_calls:
            plan.sources = fill.ValueSources.collect(now.request, [], [said for _, said in reversed(now.earlier_turns)])
            plan.next_tool = await self._pick(request.tools, plan.sources, required=True)
        if plan.next_tool:
            limit = ARGUMENT_TOKENS if request.max_tokens is None else min(ARGUMENT_TOKENS, request.max_tokens)
            arguments, usage = await self._arguments(plan.next_tool, plan.sources, limit)
            if arguments is None:
                yield Reply(finish="length", usage=usage, model=self._name)
                return
            yield CallDelta(index=0, tool=plan.next_tool.name, arguments=arguments)
            call = Call(f"call_{secrets.token_hex(6)}", plan.next_tool.name, arguments)
            yield Reply(calls=(call,), finish="calls", usage=usage, model=self._name)
            return
        async with aclosing(self._answer(request, now, plan.steps)) as events:
            async for event in events:
                yield event

    async def _plan(self, tools: Sequence[ToolSpec], now: Conversation) -> RequestPlan:
        """What was found for each clause so far, and the tool that the first open clause calls for."""
        plan = RequestPlan(steps=[], sources=fill.ValueSources(""))
        if not tools:
            plan.steps = [(now.request, _told(result)) for _, result in now.finished_calls]
            return plan
        starters = {request.split(" ", 1)[0].lower() for tool in tools for request in list_example_requests(tool)}
        waiting = list(now.finished_calls)
        for clause in text.split_clauses(now.request, starters):
            said = (now.request, *(words for _, words in reversed(now.earlier_turns)))
            plan.sources = fill.ValueSources.collect(clause, [found for _, found in plan.steps if found], said)
            tool = await self._pick(tools, plan.sources)
            if tool and not waiting:
                plan.next_tool = tool
                return plan
            plan.steps.append((clause, _told(waiting.pop(0)[1]) if tool else ""))
        plan.steps += [(now.request, _told(result)) for _, result in waiting]
        return plan

    async def _answer(
        self, request: Request, now: Conversation, steps: list[ClauseResult]
    ) -> AsyncGenerator[ModelEvent, None]:
        """What was found, step by step; freely where nothing was."""
        found = [result for _, result in steps if result]
        if not found or request.output_schema is not None:
            steps = [("\n\n".join([now.request, *found]), "")]
        options = AGAINST_LOOPS | writing.build_options(request, temperature=0, tokens=ANSWER_TOKENS)
        system: list[Turn] = [("system", request.system)] if 0 < len(request.system) <= LONGEST_SYSTEM else []
        told = Reply(model=self._name)
        for asked, result in steps:
            left = options["n_predict"] - told.usage.output_tokens
            if left <= 0:
                told = msgspec.structs.replace(told, finish="length")
                break
            limits: dict[str, Json] = {"n_predict": left}
            if result:
                quote = answer.shorten_result(result, asked)
                prompt = answer.build_prompt(asked, quote)
                limits |= {"temperature": 0, "grammar": answer.build_grammar(asked, quote)}
            else:
                prompt = await self._chat.render([*system, *now.earlier_turns, ("user", asked)])
            if told.text:
                yield TextDelta(text="\n")
            async with aclosing(writing.stream_text(self._engine, prompt, options | limits, told)) as events:
                async for event in events:
                    if isinstance(event, Reply):
                        told = event
                    else:
                        yield event
        yield told

    def _chooser(self, tools: Sequence[ToolSpec]) -> ToolChooser:
        key = repr(tools)
        if key not in self._choosers:
            if len(self._choosers) >= MOST_TOOL_SETS:
                self._choosers.clear()
            self._choosers[key] = ToolChooser(self._engine, self._chat, tools, self._store)
        return self._choosers[key]

    async def _pick(
        self, tools: Sequence[ToolSpec], sources: fill.ValueSources, required: bool = False
    ) -> ToolSpec | None:
        """The likeliest tool whose arguments can be found, unless a plain answer is likelier."""
        chooser = self._chooser(tools)
        offered = {tool.name: tool for tool in tools}
        answered = False
        for label in await chooser.rank_tools(sources.clause, self._progress):
            if label == chooser.answer_label:
                answered = not required
            elif fill.can_fill(offered[label], sources) and (
                not answered or fill.needs_only_named_file(offered[label], sources)
            ):
                return offered[label]
        return None

    async def _arguments(self, tool: ToolSpec, sources: fill.ValueSources, limit: int) -> tuple[str | None, Usage]:
        """The arguments as JSON; none when they were not finished within the limit."""
        schema, values = fill.narrow_arguments(tool, sources)
        if (only := fill.find_only_arguments(schema, values)) is not None:
            return _json(only), Usage()
        shots = "".join(f"Request: {request}\n{_json(arguments)}\n\n" for request, arguments in tool.examples)
        rules = {name: grammar.build_choice(each) for name, each in values.items()}
        piece = await self._engine.complete(
            f"{tool.description}\n\n{shots}Request: {sources.clause}\n",
            {"grammar": grammar.build_schema_grammar(schema, rules), "temperature": 0, "n_predict": limit},
        )
        return None if writing.read_finish(piece) == "length" else piece.content, writing.read_usage(piece)


def _told(result: ResultMessage) -> str:
    return find_own_text(result).strip() or "(nothing)"


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
