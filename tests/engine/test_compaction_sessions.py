"""Compaction in running sessions: the requests, the usage, the breakdown of the window, and crashes."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.engine.test_compaction import FIRST, WORDS, page, render_request
from tests.kit import sessions as kit
from tests.kit.counting_model import CountingModel, is_summary
from tests.kit.sessions import PATIENCE, FinishedRun
from tests.kit.strict import StrictModel
from treadle import Agent, CallFinished, Limits, ToolContext, tool
from treadle.engine.context import Projection
from treadle.errors import Conflict, ModelError
from treadle.events import AnyFact, ContextCompacted, MessageReceived, ModelFailed, SignalDetected, TextDelta
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


def build_reader(model: Any, turns: int = 200, **options: Any) -> Agent:
    return Agent(StrictModel(model), tools=[page, todo], limits=Limits(turns=turns, calls=1000), **options)


def open_session(model: Any, store: Any = ":memory:", **options: Any) -> Any:
    return build_reader(model, **options).session(store)


async def read_book(model: Any, **options: Any) -> FinishedRun:
    """Run a reader to its answer, and check that every request has the first message."""
    run = await kit.run_agent(build_reader(model, **options), FIRST)
    assert run.reason == "answered", run.outcome.error
    assert all(FIRST in render_request(request) for request in model.requests)
    return run


def count_script(*lines: Any) -> CountingModel:
    """Build a model that counts and follows a script."""
    script = iter(lines)
    return CountingModel(lambda request, number: next(script))


def select_failures(facts: Iterable[AnyFact]) -> list[SignalDetected]:
    return [fact for fact in kit.select_events(facts, SignalDetected) if fact.kind == "compaction_failed"]


async def test_three_hundred_turns_in_a_window_of_4096_tokens(tmp_path: Path) -> None:
    reader, turns = Reader(300), 0
    model = CountingModel(reader)
    async with open_session(model, tmp_path / "long.db") as session:
        outcome = await kit.run_to_end(session, FIRST)
        while outcome.reason == "turn_limit":
            turns += outcome.turns
            outcome = await kit.finish_run(session.continue_())
        assert outcome.reason == "answered", outcome.error
        assert model.refused == 0 and turns + outcome.turns >= 299
        for number, (request, plan) in enumerate(zip(model.requests, reader.plans, strict=True)):
            assert FIRST in render_request(request)
            assert plan in render_request(request), f"request {number} is without {plan!r}"
        facts = await session.facts()
        compactions = kit.select_events(facts, ContextCompacted)
        assert len(compactions) > 5 and all(fact.tokens_after < fact.tokens_before for fact in compactions)
        assert not select_failures(facts)
        for number in (one for one in range(2, 299) if one % 40 != 1):
            assert await session._log.search(f"marker{number}x"), f"page {number} cannot be found any more"  # pyright: ignore[reportPrivateUsage]
    # The cost of a turn does not grow with the number of turns before it.
    sizes = [sum(len(render_request(one)) for one in model.requests[start : start + 100]) for start in (50, 150)]
    assert sizes[1] < sizes[0] * 1.25
    assert model.read < 300 * 4096


async def test_the_prefix_only_grows_between_compactions_and_tools_are_sorted() -> None:
    model = CountingModel(Reader(60))
    run = await read_book(model)  # the strict model refuses a request that changes what was shown before
    assert len({id(request.render_cache) for request in model.requests}) == 1 + len(run.select(ContextCompacted))
    assert {tuple(spec.name for spec in request.tools) for request in model.requests} == {("page", "todo")}
    assert len({request.system for request in model.requests}) == 1


@pytest.mark.parametrize(
    "words", ["ещё одна длинная история о городе у реки. ", "東京の長い物語をもう一度話してください。", "🙂🚲🌧️ "]
)
async def test_a_conversation_in_any_script_fits_the_window(words: str) -> None:
    model = CountingModel(lambda request, number: f"{number}: {words}" * 3, window=2048, summary=f"- {words}" * 40)
    async with open_session(model) as session:
        for number in range(25):
            outcome = await kit.run_to_end(session, f"{number}: " + words * 20)
            assert outcome.reason == "answered", outcome
        facts = await session.facts()
    assert model.refused == 0 and len(model.summaries) > 1
    assert not select_failures(facts)
    assert all("0: " + words in render_request(request) for request in model.requests)


async def test_instructions_larger_than_the_window_stop_the_run() -> None:
    model = CountingModel(lambda request, number: call("page", number=number), window=1200)
    run = await kit.run_agent(build_reader(model, instructions=f"{WORDS} " * 38), FIRST)
    assert run.reason == "failed" and run.outcome.can_continue
    assert run.outcome.error.endswith("tokens, but the window has 1200 (a compaction freed nothing; nothing is lost)")
    assert len(run.select(ContextCompacted)) <= 4


async def test_a_first_request_that_is_too_long_fails_with_the_providers_numbers() -> None:
    refusal = "maximum context length is 4096 tokens, your messages have 9000"
    run = await kit.run_script(*[ModelError(refusal, kind="too_long")] * 3, content="Hello.")
    assert run.reason == "failed" and run.outcome.can_continue
    assert run.outcome.error == f"too_long: {refusal} (nothing can be left out; nothing is lost)"


async def test_requests_that_stay_too_long_fail_with_the_providers_numbers() -> None:
    refusal = "maximum context length is 100 tokens"

    def refuse_later(request: Request) -> Any:
        if is_summary(request):
            return "We read pages."
        if len(model.requests) > 6:
            return ModelError(refusal, kind="too_long")
        return call("page", number=len(model.requests))

    model = ScriptedModel(*[refuse_later] * 40)
    run = await kit.run_agent(build_reader(model), FIRST)
    assert run.select(ContextCompacted)
    assert run.reason == "failed" and run.outcome.error.startswith(f"too_long: {refusal} (")


@pytest.mark.parametrize(
    ("turns", "window", "hard"), [(60, 4096, 3700), (40, 2048, 2048)], ids=["less room than known", "known window"]
)
async def test_without_a_summary_from_the_model_one_is_built_from_the_log(turns: int, window: int, hard: int) -> None:
    refusal: Any = ModelError("no notes today", kind="overloaded", retryable=True)
    model = CountingModel(Reader(turns), window, summary=refusal)
    model.hard = hard
    failures = select_failures((await read_book(model)).facts)
    assert failures and "no notes today" in failures[0].detail
    assert bool(model.refused) is (hard < window)


@pytest.mark.parametrize("share", [0.3, 0.45, 0.55])
async def test_a_session_with_long_instructions_goes_on(share: float) -> None:
    model = CountingModel(lambda request, number: f"{number}: {WORDS}" * 2, summary=f"- {WORDS} " * 30)
    async with open_session(model, instructions="x" * int(4096 * 4 * share)) as session:
        for number in range(60):
            outcome = await kit.run_to_end(session, f"{number}: {WORDS}")
            assert outcome.reason == "answered", outcome.error
        compactions = kit.select_events(await session.facts(), ContextCompacted)
    assert model.refused == 0 and len(compactions) < 20


@pytest.mark.parametrize("before", [[], ["Hello."]])
async def test_a_message_that_is_too_long_ends_only_its_own_run(before: list[str]) -> None:
    model = CountingModel(lambda request, number: f"answer {number}")
    async with open_session(model) as session:
        for text in before:
            await kit.run_to_end(session, text)
        assert (await kit.run_to_end(session, f"{WORDS} " * 200)).reason == "failed"
        outcome = await kit.run_to_end(session, "Never mind. Are you there?")
        assert outcome.reason == "answered", outcome.error
        outcome = await kit.finish_run(session.regenerate())
    assert outcome.reason == "answered"
    assert "Never mind" in render_request(model.requests[-1]), "the regenerated question is never left out"


async def test_the_tokens_of_a_model_that_does_not_count_are_estimated() -> None:
    class SilentModel(CountingModel):
        async def stream(self, request: Request) -> Any:
            async for event in super().stream(request):
                yield replace(event, usage=Usage()) if isinstance(event, Reply) else event

    model = SilentModel(Reader(60))
    async with open_session(model, instructions="x" * 4096) as session:
        outcome = await kit.run_to_end(session, FIRST)
        found = await session.context()
    assert (outcome.reason, model.refused) == ("answered", 0), outcome.error
    assert outcome.usage.estimated and outcome.usage.output_tokens
    assert found.estimated and abs(found.used - count_last_tokens(model)) < 20


async def test_a_model_that_cannot_summarize_is_not_asked_for_a_summary() -> None:
    model: Any = CountingModel(Reader(30), window=2048)
    model.can_summarize = False
    run = await read_book(model)
    assert model.summaries == [] and model.refused == 0
    assert [fact for fact in run.select(ContextCompacted) if fact.kind == "summary"]


async def test_an_unknown_window_is_learned_from_a_refusal() -> None:
    model = CountingModel(Reader(60), window=None)
    run = await read_book(model)
    assert model.refused and run.select(ContextCompacted)
    assert [fact.kind for fact in run.select(ModelFailed)] == ["too_long"] * model.refused


async def test_the_usage_of_a_summary_counts_as_the_runs() -> None:
    model = CountingModel(Reader(60))
    run = await read_book(model)
    assert model.summaries
    assert run.outcome.usage.input_tokens == run.state.usage.input_tokens == model.read


async def test_a_run_can_be_cancelled_during_a_compaction() -> None:
    begun = asyncio.Event()

    class SlowModel(CountingModel):
        async def stream(self, request: Request) -> Any:
            if is_summary(request):
                begun.set()
                await asyncio.Event().wait()
            async for event in super().stream(request):
                yield event

    async with open_session(SlowModel(Reader(60), window=2048)) as session:
        await session.send(FIRST)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        outcome = await session.cancel()
    assert outcome is not None and outcome.reason == "cancelled"


async def test_a_compaction_on_request_can_be_undone() -> None:
    model = CountingModel(Reader(8), window=32_000)
    async with open_session(model) as session:
        assert await session.compact() is None, "a new session has nothing to compact"
        assert len(await session.facts()) == 1
        await kit.run_to_end(session, FIRST)
        before = (await session.context()).used
        fact = await session.compact()
        assert fact is not None and fact.kind == "summary" and "it went on" in fact.summary
        assert (await session.context()).used < before
        await session.undo_compaction()
        assert (await session.context()).used == before
        with pytest.raises(Conflict, match="no compaction in effect"):
            await session.undo_compaction()
        await kit.run_to_end(session, "and?")


async def test_pruned_output_can_be_read_again_under_the_id_of_its_call() -> None:
    seen: list[bytes] = []

    @tool(safety="safe")
    async def again(artifact: str, context: ToolContext) -> str:
        seen.append(await context.services.read_artifact(artifact))
        return "ok"

    model = count_script(call("page", id="p1", number=1), call("again", artifact="p1"), "Done.")
    async with Agent(StrictModel(model), tools=[page, again]).session() as session:
        await kit.run_to_end(session)
        assert b"marker1x" in seen[0]
        assert b"marker1x" in (await session.artifact("p1")).data


async def test_one_result_never_fills_a_small_window() -> None:
    @tool(safety="safe")
    async def novel() -> str:
        return "word " * 20_000

    async with Agent(StrictModel(count_script(call("novel", id="n1"), "Done.")), tools=[novel]).session() as session:
        assert (await kit.run_to_end(session)).reason == "answered"
        [done] = kit.select_events(await session.facts(), CallFinished)
        assert len(done.output) < 2300 and done.truncation is not None
        assert len((await session.artifact(done.truncation.artifact)).data) == 100_000


@pytest.mark.parametrize(("words", "asked"), [(1, 0), (16, 1)])
async def test_a_summary_that_would_be_no_shorter_is_not_used(words: int, asked: int) -> None:
    """The model is not even asked if the entries that must stay are as long."""
    model = CountingModel(lambda request, number: "Yes.", summary="- " + "and then " * 60)
    async with Agent(StrictModel(model)).session() as session:
        await kit.run_to_end(session, "tell " * words)
        await kit.run_to_end(session, "more " * words)
        before, facts = await session.context(), await session.facts()
        assert await session.compact() is None and len(model.summaries) == asked
        assert await session.context() == before and await session.facts() == facts
        assert (await kit.run_to_end(session, "one more")).answer == "Yes."


async def test_the_breakdown_adds_up_to_what_the_provider_counted() -> None:
    @tool(safety="safe", name="read_file")
    async def read_file(path: str) -> str:
        return "line " * 300

    model = count_script(call("read_file", path="a"), "Done.")
    async with Agent(StrictModel(model), tools=[read_file], instructions="Be brief. " * 20).session() as session:
        empty = await session.context()
        assert empty.estimated and empty.system > 40 and empty.tools > 0
        await kit.run_to_end(session, "read it")
        found = await session.context()
    assert not found.estimated and found.used == count_last_tokens(model)
    assert found.system + found.tools + found.skills + found.files + found.history == found.used
    assert found.free == 4096 - found.used and found.files > found.history


async def test_the_breakdown_is_estimated_until_the_provider_counts_again() -> None:
    async with open_session(CountingModel(Reader(8), window=32_000)) as session:
        await kit.run_to_end(session, FIRST)
        assert not (await session.context()).estimated
        assert await session.compact() is not None
        assert (await session.context()).estimated
        await kit.run_to_end(session, "and?")
        assert not (await session.context()).estimated
        await session.undo_compaction()
        assert (await session.context()).estimated


async def test_the_breakdown_is_right_after_an_undo_a_rewind_and_a_regeneration() -> None:
    async with open_session(CountingModel(Reader(40)), turns=9) as session:

        async def is_known() -> bool:
            """Whether the reported tokens are close to the size of the next request."""
            shown = await session.context()
            messages = estimate_messages(Projection().build_messages(await session.state()))
            really = estimate_tools(tool.spec for tool in (page, todo)) + messages
            return abs(shown.used - really) < really // 5

        await kit.run_to_end(session, FIRST)
        before = (await session.state()).seq
        await session.compact()
        for number in range(4):
            await kit.run_to_end(session, f"go on, for the {number}th time")
        assert await is_known()
        await session.undo_compaction()
        assert await is_known()
        await kit.finish_run(session.regenerate())
        await session.rewind(before, "conversation")
        assert await is_known()
        await session.undo_rewind()
        assert await is_known()


async def test_an_adapters_estimate_is_not_reported_as_a_count() -> None:
    estimate = Reply("Hello.", usage=Usage(11, 7, estimated=True))
    async with Agent(StrictModel(ScriptedModel(estimate))).session() as session:
        await kit.run_to_end(session)
        found = await session.context()
    assert found.used == 18 and found.estimated


async def test_the_partial_text_of_a_stopped_model_is_counted() -> None:
    partial = WORDS * 20

    class StoppedModel(ScriptedModel):
        async def stream(self, request: Request) -> Any:
            if not self.requests:
                async for event in super().stream(request):
                    yield event
            else:
                yield TextDelta(text=partial)
                await asyncio.Event().wait()

    async with Agent(StrictModel(StoppedModel(say("Hello.", usage=Usage(100, 10))))).session() as session:
        await kit.run_to_end(session)
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
    request = estimate_text(last.system) + estimate_tools(last.tools) + estimate_messages(last.messages)
    return request + estimate_text("Done.")


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_with_compactions_resumes_after_a_crash_at_any_fact(tmp_path: Path) -> None:
    log = InMemoryLog()
    model = CountingModel(Reader(16), window=1500)
    async with open_session(model, log) as session:
        assert (await kit.run_to_end(session, FIRST)).reason == "answered"
        points = await crash_points(session)
    assert any(isinstance(point.facts[-1], ContextCompacted) for point in points)
    for number, point in enumerate(points):
        store = InMemoryLog() if number % 4 else SqliteLog(tmp_path / f"{number}.db")
        await point.plant(store)
        again = CountingModel(Reader(3), window=1500)
        agent = Agent(StrictModel(again), tools=[page, todo])
        async with agent.session(store, id=point.session_id) as session:
            await kit.resume_run(session)
            if any(isinstance(fact, MessageReceived) for fact in point.facts):
                assert all(FIRST in render_request(request) for request in again.requests)
                await kit.run_to_end(session, "and?")
                assert FIRST in render_request(again.requests[-1]) and "and?" in kit.list_user_texts(again.requests[-1])
        assert again.refused == 0
        await store.close()
