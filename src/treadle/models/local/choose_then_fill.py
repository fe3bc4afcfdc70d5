"""Tools for models of less than about a billion parameters: choose one by scoring, then fill in its arguments.

Such a model cannot decide and write a call in one go, but it can do each part when that part is narrow. The request
is split into clauses. Each clause gets one tool or none, and then the model writes the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from treadle.events import TextDelta
from treadle.knowledge.builtin_instructions import INSTRUCTIONS
from treadle.messages import Json, Reply, Request, ToolSpec, Usage
from treadle.models.base import ModelEvent
from treadle.models.local import argument_values, gbnf, plain_reply, quote_result
from treadle.models.local.argument_values import ValueSources
from treadle.models.local.chat_prompt import ChatPrompt, Conversation, Turn, split_conversation
from treadle.models.local.driver import Driver, build_options
from treadle.models.local.gbnf import encode_json
from treadle.models.local.llama_process import LlamaEngine, Progress
from treadle.models.local.model_cache import ModelCache
from treadle.models.local.plain_reply import SentenceReader
from treadle.models.local.request_text import FILLERS, extract_words, split_clauses
from treadle.models.local.tool_choice import CLEAR_LEAD, ToolChooser, list_example_requests, shares_telling_word
from treadle.models.local.weights import SMALL

ANSWER_TOKENS = 400
MOST_TOOL_SETS = 8
ARGUMENT_TOKENS = 300
LONGEST_SYSTEM = 400
"""Characters of instructions that are shown to a small model. Longer instructions only confuse it and are left out."""

AGAINST_LOOPS: dict[str, Json] = {
    "dry_multiplier": 0.8,
    "dry_allowed_length": 4,
    "dry_penalty_last_n": ANSWER_TOKENS,
    "dry_sequence_breakers": ['"'],  # a line's end is one by default, and these loops go on line by line
}

ClauseResult = tuple[str, str]
"""A clause of the request and what was found for it, if anything."""


class RequestPlan(Struct):
    """The clauses that are done, and the tool to call next for the clause in `sources`."""

    steps: list[ClauseResult]
    sources: ValueSources
    next_tool: ToolSpec | None = None


def count_answer_tokens(request: Request) -> int:
    """How many tokens an answer may have."""
    return ANSWER_TOKENS if request.max_tokens is None else request.max_tokens


def _select_system(request: Request) -> list[Turn]:
    """The instructions, unless they are long, or those of a built-in agent: a small model would chat about them."""
    is_own = request.system.startswith(tuple(INSTRUCTIONS.values()))
    return [("system", request.system)] if 0 < len(request.system) <= LONGEST_SYSTEM and not is_own else []


class ChooseThenFill(Driver):
    """Drives a small model. It keeps nothing of a session: each decision follows from the messages."""

    def __init__(
        self, engine: LlamaEngine, name: str, chat: ChatPrompt, cache: ModelCache, progress: Progress | None
    ) -> None:
        super().__init__(engine, name, chat)
        self._cache = cache
        self._progress = progress
        self._is_embedded = engine.path.name == SMALL
        self._choosers: dict[str, ToolChooser] = {}

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        conversation = split_conversation(request.messages)
        plan = await self._plan(() if request.tool_choice == "none" else request.tools, conversation)
        if request.tool_choice == "required" and not plan.next_tool and not conversation.finished_calls:
            earlier = [text for _, text in reversed(conversation.earlier_turns)]
            plan.sources = ValueSources.collect(conversation.request, [], earlier)
            plan.next_tool = await self._choose_tool(request.tools, plan.sources, is_required=True)
        if plan.next_tool:
            limit = ARGUMENT_TOKENS if request.max_tokens is None else min(ARGUMENT_TOKENS, request.max_tokens)
            arguments, usage = await self._fill_arguments(plan.next_tool, plan.sources, limit)
            if arguments is None:
                yield Reply(finish="length", usage=usage, model=self._name)
                return
            for event in self._build_call(plan.next_tool.name, arguments, usage):
                yield event
            return
        async with aclosing(self._answer(request, conversation, plan.steps)) as events:
            async for event in events:
                yield event

    async def _plan(self, tools: Sequence[ToolSpec], conversation: Conversation) -> RequestPlan:
        """Match the results so far with the clauses, and choose a tool for the first clause without one."""
        plan = RequestPlan(steps=[], sources=ValueSources(""))
        request = conversation.request
        results = [quote_result.clean_result(result) or "(nothing)" for _, result in conversation.finished_calls]
        if tools:
            starters = {each.split(" ", 1)[0].lower() for tool in tools for each in list_example_requests(tool)}
            earlier = (request, *(text for _, text in reversed(conversation.earlier_turns)))
            for clause in split_clauses(request, starters):
                plan.sources = ValueSources.collect(clause, [found for _, found in plan.steps if found], earlier)
                tool = await self._choose_tool(tools, plan.sources)
                if tool and not results:
                    plan.next_tool = tool
                    return plan
                plan.steps.append((clause, results.pop(0) if tool else ""))
        plan.steps += [(request, result) for result in results]
        return plan

    async def _answer(
        self, request: Request, conversation: Conversation, steps: list[ClauseResult]
    ) -> AsyncGenerator[ModelEvent, None]:
        """Answer each clause from its result, or freely where nothing was found."""
        found = [result for _, result in steps if result]
        if not found or request.output_schema is not None:
            steps = [("\n\n".join([conversation.request, *found]), "")]
        limit = count_answer_tokens(request)
        reply = Reply(model=self._name)
        for clause, result in steps:
            if reply.usage.output_tokens >= limit:
                reply = msgspec.structs.replace(reply, finish="length")
                break
            if reply.text:
                yield TextDelta(text="\n")
            async with aclosing(self._answer_clause(request, conversation, (clause, result), reply)) as events:
                async for event in events:
                    if isinstance(event, Reply):
                        reply = event
                    else:
                        yield event
        is_free = request.output_schema is None and not request.sampling.stop and reply.finish != "length"
        if is_free and not found and self._is_embedded and plain_reply.needs_hint(request.messages):
            hint = f"\n\n{plain_reply.HINT}"
            yield TextDelta(text=hint)
            reply = msgspec.structs.replace(reply, text=reply.text + hint)
        yield reply

    async def _answer_clause(
        self, request: Request, conversation: Conversation, step: ClauseResult, before: Reply
    ) -> AsyncGenerator[ModelEvent, None]:
        """Answer one clause. If the answer begins like an earlier reply, it is asked for again without those."""
        limit = count_answer_tokens(request) - before.usage.output_tokens
        prompt, options, sentences = await self._prepare_answer(request, conversation, step, limit)
        async with aclosing(self._stream_text(prompt, options, before, sentences)) as events:
            async for event in events:
                if isinstance(event, Reply) and sentences and sentences.is_copy:
                    before = msgspec.structs.replace(before, usage=event.usage)
                else:
                    yield event
        if sentences and sentences.is_copy:
            conversation = msgspec.structs.replace(conversation, earlier_turns=())
            async with aclosing(self._answer_clause(request, conversation, step, before)) as events:
                async for event in events:
                    yield event

    async def _prepare_answer(
        self, request: Request, conversation: Conversation, step: ClauseResult, limit: int
    ) -> tuple[str, dict[str, Json], SentenceReader | None]:
        """The prompt for one clause, the engine's options, and what reads the sentences of a plain reply."""
        clause, result = step
        options = build_options(request, temperature=0, tokens=limit) | {"n_predict": limit}
        if result:
            quote = quote_result.shorten_result(result, clause)
            options |= {"temperature": 0, "grammar": quote_result.build_grammar(clause, quote)}
            return quote_result.build_prompt(clause, quote), options, None
        turns: list[Turn] = [*_select_system(request), *conversation.earlier_turns, ("user", clause)]
        if request.output_schema is not None:
            return await self._chat.render(turns), AGAINST_LOOPS | options, None
        asks_for_fact = plain_reply.asks_for_fact(clause)
        suited = dict(plain_reply.FACTS if asks_for_fact else plain_reply.SMALL_TALK)
        if self._is_embedded:
            suited["grammar"] = plain_reply.LATIN
        if request.sampling.temperature is None:
            del options["temperature"]
        prompt = await self._chat.render(turns, by_template=not asks_for_fact)
        # A limit of the caller's, and log-probabilities of each token, ask for the model's text as it is.
        if limit <= plain_reply.MOST_TOKENS or "n_probs" in options:
            return prompt, suited | options, None
        said = plain_reply.list_said(conversation.earlier_turns, clause)
        return prompt, suited | options | {"n_predict": plain_reply.MOST_TOKENS}, SentenceReader(said)

    async def _choose_tool(
        self, tools: Sequence[ToolSpec], sources: ValueSources, is_required: bool = False
    ) -> ToolSpec | None:
        """The likeliest tool whose arguments can be found, unless a plain answer is likelier."""
        if not is_required and all(word in FILLERS for word in extract_words(sources.clause)):
            return None  # it says too little, like a greeting. Ranking takes seconds after the engine has started.
        key = repr(tools)
        if key not in self._choosers:
            if len(self._choosers) >= MOST_TOOL_SETS:
                self._choosers.clear()
            self._choosers[key] = ToolChooser(self._engine, self._chat, tools, self._cache)
        chooser = self._choosers[key]
        offered = {tool.name: tool for tool in tools}
        for name, lead in (await chooser.rank_tools(sources.clause, self._progress)).items():
            tool = offered[name]
            # Nonsense may have a clear lead. It must not become a command.
            is_clear = lead >= CLEAR_LEAD and not argument_values.is_written_freely(tool)
            is_likely = is_clear or (lead > 0 and shares_telling_word(tool, sources.clause))
            is_meant = is_required or is_likely or argument_values.needs_only_named_file(tool, sources)
            if is_meant and argument_values.can_fill(tool, sources):
                return tool
        return None

    async def _fill_arguments(self, tool: ToolSpec, sources: ValueSources, limit: int) -> tuple[str | None, Usage]:
        """The arguments as JSON, or None when the model did not finish them within the limit."""
        schema, values = argument_values.narrow_arguments(tool, sources)
        if (only := argument_values.find_only_arguments(schema, values)) is not None:
            return encode_json(only), Usage()
        examples = "".join(f"Request: {request}\n{encode_json(arguments)}\n\n" for request, arguments in tool.examples)
        rules = {name: gbnf.build_choice(each) for name, each in values.items()}
        piece = await self._engine.complete(
            f"{tool.description}\n\n{examples}Request: {sources.clause}\n",
            {"grammar": gbnf.build_schema_grammar(schema, rules), "temperature": 0, "n_predict": limit},
        )
        return None if piece.finish == "length" else piece.content, piece.usage
