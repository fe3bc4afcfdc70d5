"""Compaction in running sessions: the requests, the usage, the breakdown of the window, and crashes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.engine.test_compaction import FIRST, WORDS, page, shown_text
from tests.kit.counting_model import CountingModel, is_summary
from tests.kit.sessions import PATIENCE, finish_run, list_user_texts, resume_run, run_to_end, select_events
from tests.kit.strict import StrictModel
from treadle import Agent, CallFinished, Limits, ToolContext, tool
from treadle.engine.context import Projection
from treadle.errors import Conflict, ModelError
from treadle.events import ContextCompacted, MessageReceived, ModelFailed, SignalDetected, TextDelta
from treadle.log.in_memory import InMemoryLog
from treadle.log.sqlite import SqliteLog
from treadle.messages import Reply, Request, Usage, estimate_messages, estimate_text, estimate_tools
from treadle.testing import ScriptedModel, call, crash_points, say
from treadle.tools.todo import todo


class Reader:
    """Reads one page per turn, plans sometimes, and answers at the end. `plans` has the plan at each request."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.plans: list[str] = []
        self.plan = ""

    def __call__(self, request: Request, number: int) -> Any:
        self.plans.append(self.plan)
        if request.tool_choice == "none":
            return "I stop for now."
        if number >= self.turns:
            return "All pages are counted."
        if number % 40 == 1:
            self.plan = f"chapter {number}"
            items = [{"text": self.plan, "status": "doing"}, {"text": "the index", "status": "pending"}]
            return call("todo", items=items)
        return say(f"I turn to page {number}.", call("page", number=number))


async def open_session(model: Any, store: Any = ":memory:", turns: int = 200, **options: Any) -> Any:
    limits = Limits(turns=turns, calls=1000)
    return Agent(StrictModel(model), tools=[page, todo], limits=limits, **options).session(store)


async def test_three_hundred_turns_in_a_window_of_4096_tokens(tmp_path: Path) -> None:
    reader, turns = Reader(300), 0
    model = CountingModel(reader)
    async with await open_session(model, tmp_path / "long.db") as session:
        outcome = await run_to_end(session, FIRST)
        while outcome.reason == "turn_limit":
            turns += outcome.turns
            async with session.continue_() as run:
                outcome = await run.wait()
            assert outcome is not None
        assert outcome.reason == "answered", outcome.error
        assert model.refused == 0 and turns + outcome.turns >= 299
        for number, (request, plan) in enumerate(zip(model.requests, reader.plans, strict=True)):
            assert FIRST in shown_text(request)
            assert plan in shown_text(request), f"request {number} is without {plan!r}"
        facts = await session.facts()
        compactions = select_events(facts, ContextCompacted)
        assert len(compactions) > 5 and all(fact.tokens_after < fact.tokens_before for fact in compactions)
        assert not [fact for fact in select_events(facts, SignalDetected) if fact.kind == "compaction_failed"]
        for number in (one for one in range(2, 299) if one % 40 != 1):
            assert await session._log.search(f"marker{number}x"), f"page {number} cannot be found any more"  # pyright: ignore[reportPrivateUsage]
    # The cost of a turn does not grow with the number of turns before it.
    sizes = [sum(len(shown_text(one)) for one in model.requests[start : start + 100]) for start in (50, 150)]
    assert sizes[1] < sizes[0] * 1.25
    assert model.read < 300 * 4096


async def test_the_prefix_only_grows_between_compactions_and_tools_are_sorted() -> None:
    model = CountingModel(Reader(60))
    async with await open_session(model) as session:
        await run_to_end(session, FIRST)  # the strict model refuses a request that changes what was shown before
        changes = [fact.seq for fact in select_events(await session.facts(), ContextCompacted)]
    assert len({id(request.render_cache) for request in model.requests}) == 1 + len(changes)
    assert {tuple(spec.name for spec in request.tools) for request in model.requests} == {("page", "todo")}
    assert len({request.system for request in model.requests}) == 1


@pytest.mark.parametrize(
    "words", ["ещё одна длинная история о городе у реки. ", "東京の長い物語をもう一度話してください。", "🙂🚲🌧️ "]
)
async def test_a_conversation_in_any_script_fits_the_window(words: str) -> None:
    model = CountingModel(lambda request, number: f"{number}: {words}" * 3, window=2048, summary=f"- {words}" * 40)
    async with await open_session(model) as session:
        for number in range(25):
            outcome = await run_to_end(session, f"{number}: " + words * 20)
            assert outcome.reason == "answered", outcome
        facts = await session.facts()
    assert model.refused == 0 and len(model.summaries) > 1
    assert not [fact for fact in select_events(facts, SignalDetected) if fact.kind == "compaction_failed"]
    assert all("0: " + words in shown_text(request) for request in model.requests)


async def test_instructions_larger_than_the_window_stop_the_run() -> None:
    model = CountingModel(lambda request, number: call("page", number=number), window=1200)
    async with await open_session(model, instructions=f"{WORDS} " * 38) as session:
        outcome = await run_to_end(session, FIRST)
        compactions = select_events(await session.facts(), ContextCompacted)
    assert outcome.reason == "failed" and outcome.can_continue
    assert outcome.error.endswith("tokens, but the window has 1200 (a compaction freed nothing; nothing is lost)")
    assert len(compactions) <= 4


async def test_a_first_request_that_is_too_long_fails_with_the_providers_numbers() -> None:
    refusal = "maximum context length is 4096 tokens, your messages have 9000"
    model = ScriptedModel(*[ModelError(refusal, kind="too_long")] * 3)
    async with Agent(StrictModel(model)).session() as session:
        outcome = await run_to_end(session, "Hello.")
    assert outcome.reason == "failed" and outcome.can_continue
    assert outcome.error == f"too_long: {refusal} (nothing can be left out; nothing is lost)"


async def test_requests_that_stay_too_long_fail_with_the_providers_numbers() -> None:
    refusal = "maximum context length is 100 tokens"

    def refuses(request: Request) -> Any:
        if is_summary(request):
            return "We read pages."
        if len(model.requests) > 6:
            return ModelError(refusal, kind="too_long")
        return call("page", number=len(model.requests))

    model = ScriptedModel(*[refuses] * 40)
    async with await open_session(model) as session:
        outcome = await run_to_end(session, FIRST)
        assert select_events(await session.facts(), ContextCompacted)
    assert outcome.reason == "failed" and outcome.error.startswith(f"too_long: {refusal} (")


class Unwilling(CountingModel):
    """Refuses to write summaries."""

    async def stream(self, request: Request) -> Any:
        if is_summary(request):
            raise ModelError("no notes today", kind="overloaded", retryable=True)
        async for event in super().stream(request):
            yield event


async def test_without_a_summary_from_the_model_one_is_built_from_the_log() -> None:
    model = Unwilling(Reader(60))
    model.hard = 3700  # less than the model says, so there seems to be more room than there is
    async with await open_session(model) as session:
        outcome = await run_to_end(session, FIRST)
        facts = await session.facts()
    assert outcome.reason == "answered", outcome.error
    assert model.refused and [fact for fact in select_events(facts, SignalDetected) if fact.kind == "compaction_failed"]
    assert all(FIRST in shown_text(request) for request in model.requests)


@pytest.mark.parametrize("share", [0.3, 0.45, 0.55])
async def test_a_session_with_long_instructions_goes_on(share: float) -> None:
    model = CountingModel(lambda request, number: f"{number}: {WORDS}" * 2, summary=f"- {WORDS} " * 30)
    async with await open_session(model, instructions="x" * int(4096 * 4 * share)) as session:
        for number in range(60):
            outcome = await run_to_end(session, f"{number}: {WORDS}")
            assert outcome.reason == "answered", outcome.error
        compactions = select_events(await session.facts(), ContextCompacted)
    assert model.refused == 0 and len(compactions) < 20


@pytest.mark.parametrize("before", [[], ["Hello."]])
async def test_a_message_that_is_too_long_ends_only_its_own_run(before: list[str]) -> None:
    model = CountingModel(lambda request, number: f"answer {number}")
    async with await open_session(model) as session:
        for text in before:
            await run_to_end(session, text)
        assert (await run_to_end(session, f"{WORDS} " * 200)).reason == "failed"
        outcome = await run_to_end(session, "Never mind. Are you there?")
        assert outcome.reason == "answered", outcome.error
        async with session.regenerate() as run:
            outcome = await run.wait()
    assert outcome is not None and outcome.reason == "answered"
    assert "Never mind" in shown_text(model.requests[-1]), "the regenerated question is never left out"


async def test_the_tokens_of_a_model_that_does_not_count_are_estimated() -> None:
    class Silent(CountingModel):
        async def stream(self, request: Request) -> Any:
            async for event in super().stream(request):
                yield replace(event, usage=Usage()) if isinstance(event, Reply) else event

    model = Silent(Reader(60))
    async with await open_session(model, instructions="x" * 4096) as session:
        outcome = await run_to_end(session, FIRST)
        found = await session.context()
    assert (outcome.reason, model.refused) == ("answered", 0), outcome.error
    assert outcome.usage.estimated and outcome.usage.output_tokens
    assert found.estimated and abs(found.used - count_last_tokens(model)) < 20


async def test_a_run_continues_after_a_failed_compaction() -> None:
    model = Unwilling(Reader(40), window=2048)
    async with await open_session(model) as session:
        outcome = await run_to_end(session, FIRST)
        facts = await session.facts()
    assert outcome.reason == "answered", outcome.error
    failures = [fact for fact in select_events(facts, SignalDetected) if fact.kind == "compaction_failed"]
    assert failures and "no notes today" in failures[0].detail
    assert all(FIRST in shown_text(request) for request in model.requests)


async def test_a_model_that_cannot_summarize_is_not_asked_for_a_summary() -> None:
    class Small(CountingModel):
        can_summarize = False

    model = Small(Reader(30), window=2048)
    agent = Agent(model, tools=[page, todo])
    async with agent.session() as session:
        outcome = await run_to_end(session, FIRST)
        compactions = select_events(await session.facts(), ContextCompacted)
    assert outcome.reason == "answered" and model.summaries == [] and model.refused == 0
    assert [fact for fact in compactions if fact.kind == "summary"]
    assert all(FIRST in shown_text(request) for request in model.requests)


async def test_an_unknown_window_is_learned_from_a_refusal() -> None:
    model = CountingModel(Reader(60), window=None)
    async with await open_session(model) as session:
        outcome = await run_to_end(session, FIRST)
        facts = await session.facts()
    assert outcome.reason == "answered", outcome.error
    assert model.refused and select_events(facts, ContextCompacted)
    assert [fact.kind for fact in select_events(facts, ModelFailed)] == ["too_long"] * model.refused


async def test_the_usage_of_a_summary_counts_as_the_runs() -> None:
    model = CountingModel(Reader(60))
    async with await open_session(model) as session:
        outcome = await run_to_end(session, FIRST)
        state = await session.state()
    assert model.summaries
    assert outcome.usage.input_tokens == state.usage.input_tokens == model.read


async def test_a_run_can_be_cancelled_during_a_compaction() -> None:
    begun = asyncio.Event()

    class Slow(CountingModel):
        async def stream(self, request: Request) -> Any:
            if is_summary(request):
                begun.set()
                await asyncio.Event().wait()
            async for event in super().stream(request):
                yield event

    async with await open_session(Slow(Reader(60), window=2048)) as session:
        async with session.run(FIRST) as run:
            waiting = asyncio.create_task(run.wait())
            await asyncio.wait_for(begun.wait(), PATIENCE)
            outcome = await session.cancel()
            await waiting
        assert outcome is not None and outcome.reason == "cancelled"


async def test_a_compaction_on_request_can_be_undone() -> None:
    model = CountingModel(Reader(8), window=32_000)
    async with await open_session(model) as session:
        await run_to_end(session, FIRST)
        before = (await session.context()).used
        fact = await session.compact()
        assert fact is not None and fact.kind == "summary" and "it went on" in fact.summary
        assert (await session.context()).used < before
        await session.undo_compaction()
        assert (await session.context()).used == before
        with pytest.raises(Conflict, match="no compaction in effect"):
            await session.undo_compaction()
        await run_to_end(session, "and?")


async def test_a_new_session_has_nothing_to_compact() -> None:
    async with await open_session(CountingModel(Reader(2))) as session:
        assert await session.compact() is None
        assert select_events(await session.facts(), ContextCompacted) == []


async def test_pruned_output_can_be_read_again_under_the_id_of_its_call() -> None:
    seen: list[bytes] = []

    @tool(safety="safe")
    async def again(artifact: str, context: ToolContext) -> str:
        seen.append(await context.services.read_artifact(artifact))
        return "ok"

    lines = iter([call("page", id="p1", number=1), call("again", artifact="p1"), "Done."])
    model = CountingModel(lambda request, number: next(lines))
    agent = Agent(StrictModel(model), tools=[page, again])
    async with agent.session() as session:
        await run_to_end(session)
        assert b"marker1x" in seen[0]
        assert b"marker1x" in (await session.artifact("p1")).data


async def test_one_result_never_fills_a_small_window() -> None:
    @tool(safety="safe")
    async def novel() -> str:
        return "word " * 20_000

    lines = iter([call("novel", id="n1"), "Done."])
    model = CountingModel(lambda request, number: next(lines))
    async with Agent(StrictModel(model), tools=[novel]).session() as session:
        assert (await run_to_end(session)).reason == "answered"
        [done] = select_events(await session.facts(), CallFinished)
        assert len(done.output) < 2300 and done.truncation is not None
        assert len((await session.artifact(done.truncation.artifact)).data) == 100_000


@pytest.mark.parametrize(("words", "asked"), [(1, 0), (16, 1)])
async def test_a_summary_that_would_be_no_shorter_is_not_used(words: int, asked: int) -> None:
    """The model is not even asked if the entries that must stay are as long."""
    model = CountingModel(lambda request, number: "Yes.", summary="- " + "and then " * 60)
    async with Agent(StrictModel(model)).session() as session:
        await run_to_end(session, "tell " * words)
        await run_to_end(session, "more " * words)
        before, facts = await session.context(), await session.facts()
        assert await session.compact() is None and len(model.summaries) == asked
        assert await session.context() == before and await session.facts() == facts
        assert (await run_to_end(session, "one more")).answer == "Yes."


async def test_the_breakdown_adds_up_to_what_the_provider_counted() -> None:
    @tool(safety="safe", name="read_file")
    async def read_file(path: str) -> str:
        return "line " * 300

    lines = iter([call("read_file", path="a"), "Done."])
    model = CountingModel(lambda request, number: next(lines))
    async with Agent(StrictModel(model), tools=[read_file], instructions="Be brief. " * 20).session() as session:
        empty = await session.context()
        assert empty.estimated and empty.system > 40 and empty.tools > 0
        await run_to_end(session, "read it")
        found = await session.context()
    assert not found.estimated and found.used == (count_last_tokens(model))
    assert found.system + found.tools + found.skills + found.files + found.history == found.used
    assert found.free == 4096 - found.used and found.files > found.history


async def test_the_breakdown_is_estimated_until_the_provider_counts_again() -> None:
    async with await open_session(CountingModel(Reader(8), window=32_000)) as session:
        await run_to_end(session, FIRST)
        assert not (await session.context()).estimated
        assert await session.compact() is not None
        assert (await session.context()).estimated
        await run_to_end(session, "and?")
        assert not (await session.context()).estimated
        await session.undo_compaction()
        assert (await session.context()).estimated


async def test_the_breakdown_is_right_after_an_undo_a_rewind_and_a_regeneration() -> None:
    async with await open_session(CountingModel(Reader(40)), turns=9) as session:

        async def is_known() -> bool:
            """Whether the reported tokens are close to the size of the next request."""
            shown = await session.context()
            messages = estimate_messages(Projection().build_messages(await session.state()))
            really = estimate_tools(tool.spec for tool in (page, todo)) + messages
            return abs(shown.used - really) < really // 5

        await run_to_end(session, FIRST)
        before = (await session.state()).seq
        await session.compact()
        for number in range(4):
            await run_to_end(session, f"go on, for the {number}th time")
        assert await is_known()
        await session.undo_compaction()
        assert await is_known()
        await finish_run(session.regenerate())
        await session.rewind(before, "conversation")
        assert await is_known()
        await session.undo_rewind()
        assert await is_known()


async def test_an_adapters_estimate_is_not_reported_as_a_count() -> None:
    guessed = Reply("Hello.", usage=Usage(11, 7, estimated=True))
    async with Agent(StrictModel(ScriptedModel(guessed))).session() as session:
        await run_to_end(session)
        found = await session.context()
    assert found.used == 18 and found.estimated


async def test_the_partial_text_of_a_stopped_model_is_counted() -> None:
    partial = WORDS * 20

    class Stopped(ScriptedModel):
        async def stream(self, request: Request) -> Any:
            if not self.requests:
                async for event in super().stream(request):
                    yield event
            else:
                yield TextDelta(text=partial)
                await asyncio.Event().wait()

    async with Agent(StrictModel(Stopped(say("Hello.", usage=Usage(100, 10))))).session() as session:
        await run_to_end(session)
        before = (await session.context()).used
        async with session.run("tell me all") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    break
        more = (await session.context()).used - before
    assert estimate_text(partial) < more < estimate_text(partial) + 20, "the message, and what was said before the stop"


def count_last_tokens(model: CountingModel) -> int:
    """Count the tokens of the last request and its reply like the provider."""
    last = model.requests[-1]
    return (
        estimate_text(last.system)
        + estimate_tools(last.tools)
        + estimate_messages(last.messages)
        + estimate_text("Done.")
    )


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_with_compactions_resumes_after_a_crash_at_any_fact(tmp_path: Path) -> None:
    log = InMemoryLog()
    model = CountingModel(Reader(16), window=1500)
    async with await open_session(model, log) as session:
        assert (await run_to_end(session, FIRST)).reason == "answered"
        points = await crash_points(session)
    assert any(isinstance(point.facts[-1], ContextCompacted) for point in points)
    for number, point in enumerate(points):
        store = InMemoryLog() if number % 4 else SqliteLog(tmp_path / f"{number}.db")
        await point.plant(store)
        again = CountingModel(Reader(3), window=1500)
        agent = Agent(StrictModel(again), tools=[page, todo])
        async with agent.session(store, id=point.session_id) as session:
            await resume_run(session)
            if any(isinstance(fact, MessageReceived) for fact in point.facts):
                assert all(FIRST in shown_text(request) for request in again.requests)
                await run_to_end(session, "and?")
                assert FIRST in shown_text(again.requests[-1]) and "and?" in list_user_texts(again.requests[-1])
        assert again.refused == 0
        await store.close()
