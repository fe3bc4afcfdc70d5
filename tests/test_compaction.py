"""A context that fills up: pruned, summed up, stopped, undone; never invalid, and the log keeps all of it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import ended, of, said
from tests.knowledge.counting import CountingModel, is_summary
from tests.simulation import Simulation, check_results, check_runs, check_session, now_or_never
from tests.strategies import LIMITS, histories, told
from tests.strict import StrictModel, check_request
from treadle import Agent, CallFinished, Limits, ToolContext, tool
from treadle.asking import make_room
from treadle.compaction import HAPPENED, SAID, compacted, compose, plan, plan_summary, room_in, summary_request
from treadle.context import Projection, entries_through
from treadle.errors import Conflict, ModelError
from treadle.events import (
    AnyFact,
    ContextCompacted,
    FilesKept,
    InputAnswered,
    InputRequested,
    KeptFile,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    Question,
    RunStarted,
    SessionCreated,
    SignalDetected,
    TurnStarted,
)
from treadle.log.memory import MemoryLog
from treadle.log.sqlite import SqliteLog
from treadle.messages import Call, ImagePart, Part, Reply, Request, ResultMessage, TextPart, Usage, UserMessage, text_of
from treadle.state import State, Turn, apply, fold
from treadle.steps import AskModel, Compact, Record, Rest, Work, next_step
from treadle.testing import ScriptedModel, call, crash_points, say
from treadle.tools.todo import todo

WORDS = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore"
FIRST = "Count every page of the great book, and never use the red ink."


@tool(safety="safe")
async def page(number: int) -> str:
    """Read a page."""
    return f"page-{number} marker{number}x " + f"{WORDS} " * 6


def shown_text(request: Request) -> str:
    texts: list[str] = []
    for message in request.messages:
        if isinstance(message, UserMessage):
            texts.append(text_of(message.parts))
        elif isinstance(message, ResultMessage):
            texts.append(message.text)
        else:
            texts.extend((message.text, *(one.arguments for one in message.calls)))
    return "\n".join(texts)


# ── planning, whatever the log holds ───────────────────────────────────────────────────────────────────────


def planted(history: Sequence[AnyFact], tokens: int) -> State:
    state = fold(history)
    state.tokens = tokens
    return state


@settings(max_examples=300)
@given(histories, st.sampled_from([16, 64, 1024]), st.booleans())
def test_a_planned_compaction_of_any_log_is_valid_and_splits_no_pair(
    history: list[AnyFact], window: int, asked: bool
) -> None:
    state = planted(history, window)
    room = room_in(window, state)
    wanted = plan_summary(state, room) if asked else plan(state, room)
    if wanted is None:
        return
    check_request(summary_request(state, room, wanted))
    fact = compacted(state, room, wanted, compose(state, room, wanted, "so it was"))
    whole = entries_through(state, fact.through)
    apply(state, msgspec.structs.replace(fact, seq=state.seq + 1))
    assert all(not isinstance(entry, Turn) or entry.settled for entry in state.entries[:whole])
    check_request(Request(system="", messages=Projection().messages(state)))


@settings(max_examples=150)
@given(histories, st.data())
def test_compactions_one_after_another_come_to_an_end(history: list[AnyFact], data: st.DataObject) -> None:
    state = planted(history, 512)
    for _ in range(len(history) + 2):
        room = room_in(512, state)
        wanted = plan(state, room) if data.draw(st.booleans()) else plan_summary(state, room)
        if wanted is None:
            return
        fact = compacted(state, room, wanted, compose(state, room, wanted, "so"))
        apply(state, msgspec.structs.replace(fact, seq=state.seq + 1))
    raise AssertionError("there is always something more to leave out")


def rich() -> list[AnyFact]:
    """A log with pairs, parallel calls, images, questions, a message that steers, a failure and a second run."""
    parts: tuple[Part, ...] = (TextPart("look at this picture"), ImagePart("aGk="))
    story: list[AnyFact] = [
        MessageReceived(id="m1", parts=(TextPart(FIRST),)),
        RunStarted(run_id="run_1", limits=Limits()),
        TurnStarted(turn=1, messages=("m1",)),
        ModelReplied(calls=(Call("a", "look"), Call("b", "look"))),
        CallFinished(call_id="b", tool="look", status="ok", output="b " * 300, parts=(ImagePart("aGk="),)),
        MessageReceived(id="m2", parts=parts),
        CallFinished(call_id="a", tool="look", status="error", output="no such shelf " * 30),
        TurnStarted(turn=2, messages=("m2",)),
        ModelReplied(text="I ask.", calls=(Call("c", "ask_user"),)),
        InputRequested(call_id="c", questions=(Question("which?"),)),
        InputAnswered(call_id="c", answers=("this",)),
        CallFinished(call_id="c", tool="ask_user", status="ok", output="this"),
        TurnStarted(turn=3),
        ModelReplied(text="Done. " * 200),
        MessageReceived(id="m3", parts=(TextPart("and now the second volume"),)),
        RunStarted(run_id="run_2", limits=Limits()),
        TurnStarted(turn=1, messages=("m3",)),
        ModelReplied(calls=(Call("d", "look"),)),
        CallFinished(call_id="d", tool="look", status="ok", output="d " * 300),
        TurnStarted(turn=2),
    ]
    return told(*story)


def test_at_every_position_of_a_rich_log_a_compaction_leaves_what_the_user_said() -> None:
    tried = 0
    for length in range(len(rich()) + 1):
        state = planted(rich()[:length], 300)
        room = room_in(300, state)
        for wanted in filter(None, (plan(state, room), plan_summary(state, room))):
            tried += 1
            after = fold(rich()[:length])
            fact = compacted(state, room, wanted, compose(state, room, wanted, "so"))
            apply(after, msgspec.structs.replace(fact, seq=length + 1))
            request = Request(system="", messages=Projection().messages(after))
            check_request(request)
            assert FIRST in shown_text(request)
            for later in rich()[length:]:
                apply(after, msgspec.structs.replace(later, seq=after.seq + 1))
                check_request(Request(system="", messages=Projection().messages(after)))
    assert tried > 20


def test_a_message_that_nobody_has_answered_is_never_summed_up() -> None:
    story = rich()[:8]  # m2 came in while a and b ran: it is older than their results, and nobody has answered it
    state = planted(story, 100)
    wanted = plan_summary(state, room_in(100, state))
    assert wanted is not None
    apply(state, ContextCompacted(kind="summary", through=wanted.through, summary="so", seq=9))
    assert any(isinstance(part, ImagePart) for message in Projection().messages(state)
               if isinstance(message, UserMessage) for part in message.parts)  # fmt: skip


def test_a_summary_keeps_the_plan_the_files_and_what_failed() -> None:
    state = fold(rich())
    state.notes["treadle.todo"] = [{"text": "volume two", "status": "doing"}, {"text": "index", "status": "pending"}]
    apply(state, FilesKept(call_id="d", files=(KeptFile("shelf/list.txt"),), seq=state.seq + 1))
    room = room_in(4096, state)
    wanted = plan_summary(state, msgspec.structs.replace(room, window=600))
    assert wanted is not None
    text = compose(state, room, wanted, "The ink is black.")
    assert "- [>] volume two\n- [ ] index" in text
    assert "shelf/list.txt" in text and "no such shelf" in text and text.startswith(f"{HAPPENED}\nThe ink is black.")
    assert text.index("volume two") < text.index(SAID) < text.index(FIRST)


def test_the_second_summary_is_written_from_the_first_and_what_came_since() -> None:
    state = fold(rich())
    first = ContextCompacted(kind="summary", through=14, summary=f"x\n{HAPPENED}\nThe ink is black.", seq=state.seq + 1)
    apply(state, first)
    state.tokens = 300
    wanted = plan_summary(state, room_in(300, state))
    assert wanted is not None and wanted.through > 14
    asked = shown_text(summary_request(state, room_in(300, state), wanted))
    assert "The ink is black." in asked and "second volume" in asked and "look at this picture" not in asked


# ── when it is due ─────────────────────────────────────────────────────────────────────────────────────────


def at(tokens: int, *more: AnyFact) -> State:
    story = [*rich()[:13], *more]
    return planted(told(*story), tokens)


def test_it_is_due_at_85_percent_of_the_window_and_not_before() -> None:
    assert isinstance(next_step(at(869), 0.0, window=1024), AskModel)
    assert isinstance(next_step(at(871), 0.0, window=1024), Compact)
    assert isinstance(next_step(at(10**6), 0.0), AskModel), "a window that nobody knows cannot be full"


def test_it_never_comes_between_a_call_and_its_result() -> None:
    for length in range(len(rich())):
        state = planted(rich()[:length], 10**6)
        step = next_step(state, 0.0, window=1024)
        if isinstance(step, Compact):
            assert all(entry.settled for entry in state.entries if isinstance(entry, Turn))


def test_the_count_of_the_provider_is_what_counts() -> None:
    counted = ModelReplied(text="So.", usage=Usage(900, 50))
    state = fold(told(*rich()[:13], counted))
    assert state.tokens == 950
    apply(state, MessageReceived(id="m9", parts=(TextPart("x" * 400),), seq=state.seq + 1))
    apply(state, TurnStarted(turn=4, messages=("m9",), seq=state.seq + 1))
    assert 1040 < state.tokens < 1070
    silent = fold(told(*rich()[:13], ModelReplied(text="x" * 400)))
    assert silent.tokens > fold(rich()[:13]).tokens + 90


def test_two_in_a_row_that_free_nothing_stop_the_run_with_the_numbers() -> None:
    nothing = ContextCompacted(kind="summary", through=3, tokens_before=1000, tokens_after=1000)
    step = next_step(at(1000, nothing, nothing), 0.0, window=1024)
    assert isinstance(step, Record)
    [end] = step.facts
    assert end.reason == "failed" and "1000 tokens of the 1024" in end.error  # type: ignore[union-attr]
    freed = ModelReplied(calls=(Call("z", "look"),), usage=Usage(500, 10))
    more = [nothing, nothing, freed, CallFinished(call_id="z", tool="look", status="ok"), TurnStarted(turn=4)]
    assert fold(told(*rich()[:13], *more)).crowded == 0


def test_a_refusal_for_length_is_followed_by_a_compaction_and_another_try() -> None:
    refused = ModelFailed(kind="too_long", message="too much")
    assert isinstance(next_step(at(10, refused), 0.0), Compact)
    done = ContextCompacted(kind="summary", through=3, tokens_before=10, tokens_after=5)
    assert next_step(at(5, refused, done), 0.0) == AskModel(2)
    failed = SignalDetected(kind="compaction_failed")
    step = next_step(at(10, refused, failed), 0.0)
    assert isinstance(step, Record) and "too_long" in step.facts[0].error  # type: ignore[union-attr]


def test_a_failed_compaction_is_not_tried_again_in_the_same_turn() -> None:
    assert isinstance(next_step(at(1000, SignalDetected(kind="compaction_failed")), 0.0, window=1024), AskModel)


def test_an_undone_compaction_shows_all_again() -> None:
    pruned = ContextCompacted(kind="prune", through=7, tokens_before=900, tokens_after=100)
    undo = ContextCompacted(kind="undo")
    state = fold(told(*rich(), pruned, undo))
    assert list(Projection().messages(state)) == list(Projection().messages(fold(rich())))
    assert (state.tokens, state.compacted) == (900, [])
    one, two = fold(told(*rich(), pruned, pruned, undo)), fold(told(*rich(), pruned))
    assert list(Projection().messages(one)) == list(Projection().messages(two))


# ── whatever model, tools and people do ────────────────────────────────────────────────────────────────────


class Notes(ScriptedModel):
    """Writes a note whenever it is asked to, for nothing."""

    async def stream(self, request: Request) -> Any:
        yield Reply("- so it went")


class Filling(Simulation):
    """The engine without I/O in a window that is always nearly full."""

    def __init__(self, data: st.DataObject, history: list[AnyFact], limits: Limits, window: int) -> None:
        super().__init__(data, history, limits, meddling=3)
        self.setup = dataclasses.replace(self.setup, model=Notes(window=window))

    def fill(self, bound: int = 400) -> None:
        """Go on until nothing is left to do."""
        for _ in range(bound):
            step = next_step(self.state, self.clock.now(), self.setup.limits, self.setup.model.window)
            if isinstance(step, Compact):
                assert all(entry.settled for entry in self.state.entries if isinstance(entry, Turn) and entry.reply)
                if self._chance(4):
                    self.crash()
                self.record(now_or_never(make_room(self.setup, self.state)))
            elif isinstance(step, Rest) and not step.waiting:
                return
            else:
                self.act(step)
        raise AssertionError(f"no rest after {bound} steps")

    def act(self, step: Any) -> None:
        match step:
            case Record(facts=facts):
                self.record(*facts)
            case AskModel():
                self._ask_model(step)
            case Work():
                self._work(step)
            case Rest():
                self._be_a_person(step)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(LIMITS), st.sampled_from([8, 17, 30, 60]))
def test_every_run_in_a_window_that_is_nearly_full_comes_to_its_one_end(
    data: st.DataObject, limits: Limits, window: int
) -> None:
    session = Filling(
        data, told(SessionCreated(session_id="s"), MessageReceived(id="m1", parts=(TextPart(FIRST),))), limits, window
    )
    session.fill()
    assert check_runs(session.facts[session.start :]) >= 1
    check_session(session.state)
    check_results(session.facts)


# ── in a running session ───────────────────────────────────────────────────────────────────────────────────


class Reader:
    """Reads a page a turn, plans now and then, and answers at the end; `plans` is the plan at each request."""

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


async def opened(model: Any, store: Any = ":memory:", turns: int = 200, **options: Any) -> Any:
    limits = Limits(turns=turns, calls=1000)
    return Agent(StrictModel(model), tools=[page, todo], limits=limits, **options).session(store)


async def test_three_hundred_turns_in_a_window_of_4096_tokens(tmp_path: Path) -> None:
    reader, turns = Reader(300), 0
    model = CountingModel(reader)
    async with await opened(model, tmp_path / "long.db") as session:
        outcome = await ended(session, FIRST)
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
        compactions = of(facts, ContextCompacted)
        assert len(compactions) > 5 and all(fact.tokens_after < fact.tokens_before for fact in compactions)
        assert not [fact for fact in of(facts, SignalDetected) if fact.kind == "compaction_failed"]
        for number in (one for one in range(2, 299) if one % 40 != 1):
            assert await session._log.search(f"marker{number}x"), f"page {number} cannot be found any more"  # pyright: ignore[reportPrivateUsage]
    # Linear: what a turn costs does not grow with the turns before it, though no turn may use more than the window.
    sizes = [sum(len(shown_text(one)) for one in model.requests[start : start + 100]) for start in (50, 150)]
    assert sizes[1] < sizes[0] * 1.25
    assert model.read < 300 * 4096


async def test_the_prefix_only_grows_between_compactions_and_tools_are_sorted() -> None:
    model = CountingModel(Reader(60))
    async with await opened(model) as session:
        await ended(session, FIRST)  # the strict model refuses a request that changes what was shown before
        changes = [fact.seq for fact in of(await session.facts(), ContextCompacted)]
    assert len({id(request.scratch) for request in model.requests}) == 1 + len(changes)
    assert {tuple(spec.name for spec in request.tools) for request in model.requests} == {("page", "todo")}
    assert len({request.system for request in model.requests}) == 1


async def test_a_floor_over_the_window_stops_after_two_compactions_with_the_numbers() -> None:
    model = CountingModel(lambda request, number: call("page", number=number), window=1200)
    async with await opened(model, instructions=f"{WORDS} " * 38) as session:
        outcome = await ended(session, FIRST)
        compactions = of(await session.facts(), ContextCompacted)
    assert outcome.reason == "failed" and outcome.can_continue
    assert "the context is full" in outcome.error and "1200" in outcome.error
    assert len(compactions) <= 4


async def test_a_failed_compaction_leaves_the_run_going() -> None:
    class Unwilling(CountingModel):
        async def stream(self, request: Request) -> Any:
            if is_summary(request):
                raise ModelError("no notes today", kind="overloaded", retryable=True)
            async for event in super().stream(request):
                yield event

    model = Unwilling(Reader(40), window=2048)
    async with await opened(model) as session:
        outcome = await ended(session, FIRST)
        facts = await session.facts()
    assert outcome.reason == "answered", outcome.error
    failures = [fact for fact in of(facts, SignalDetected) if fact.kind == "compaction_failed"]
    assert failures and "no notes today" in failures[0].detail
    assert all(FIRST in shown_text(request) for request in model.requests)


async def test_a_window_that_nobody_knows_is_learnt_from_the_refusal() -> None:
    model = CountingModel(Reader(60), window=None)
    async with await opened(model) as session:
        outcome = await ended(session, FIRST)
        facts = await session.facts()
    assert outcome.reason == "answered", outcome.error
    assert model.refused and of(facts, ContextCompacted)
    assert [fact.kind for fact in of(facts, ModelFailed)] == ["too_long"] * model.refused


async def test_what_a_summary_costs_counts_as_the_runs() -> None:
    model = CountingModel(Reader(60))
    async with await opened(model) as session:
        outcome = await ended(session, FIRST)
        state = await session.state()
    assert model.summaries
    assert outcome.usage.input_tokens == state.usage.input_tokens == model.read


async def test_a_run_that_is_cancelled_while_it_compacts_ends_cancelled() -> None:
    import asyncio

    begun = asyncio.Event()

    class Slow(CountingModel):
        async def stream(self, request: Request) -> Any:
            if is_summary(request):
                begun.set()
                await asyncio.Event().wait()
            async for event in super().stream(request):
                yield event

    async with await opened(Slow(Reader(60), window=2048)) as session:
        async with session.run(FIRST) as run:
            waiting = asyncio.create_task(run.wait())
            await asyncio.wait_for(begun.wait(), 20)
            outcome = await session.cancel()
            await waiting
        assert outcome is not None and outcome.reason == "cancelled"


async def test_a_session_is_compacted_on_request_and_it_can_be_taken_back() -> None:
    model = CountingModel(Reader(8), window=32_000)
    async with await opened(model) as session:
        await ended(session, FIRST)
        before = (await session.context()).used
        fact = await session.compact()
        assert fact is not None and fact.kind == "summary" and "it went on" in fact.summary
        assert (await session.context()).used < before
        await session.undo_compaction()
        assert (await session.context()).used == before
        with pytest.raises(Conflict, match="no compaction in effect"):
            await session.undo_compaction()
        await ended(session, "and?")


async def test_a_new_session_has_nothing_to_compact() -> None:
    async with await opened(CountingModel(Reader(2))) as session:
        assert await session.compact() is None
        assert of(await session.facts(), ContextCompacted) == []


async def test_pruned_output_can_be_read_again_under_the_id_of_its_call() -> None:
    seen: list[bytes] = []

    @tool(safety="safe")
    async def again(artifact: str, context: ToolContext) -> str:
        seen.append(await context.desk.read_artifact(artifact))
        return "ok"

    lines = iter([call("page", id="p1", number=1), call("again", artifact="p1"), "Done."])
    model = CountingModel(lambda request, number: next(lines))
    agent = Agent(StrictModel(model), tools=[page, again])
    async with agent.session() as session:
        await ended(session)
        assert b"marker1x" in seen[0]
        assert b"marker1x" in (await session.artifact("p1")).data


async def test_one_result_never_fills_a_small_window() -> None:
    @tool(safety="safe")
    async def novel() -> str:
        return "word " * 20_000

    lines = iter([call("novel", id="n1"), "Done."])
    model = CountingModel(lambda request, number: next(lines))
    async with Agent(StrictModel(model), tools=[novel]).session() as session:
        assert (await ended(session)).reason == "answered"
        [done] = of(await session.facts(), CallFinished)
        assert len(done.output) < 2300 and done.truncation is not None
        assert len((await session.artifact(done.truncation.artifact)).data) == 100_000


async def test_the_breakdown_adds_up_to_what_the_provider_counted() -> None:
    @tool(safety="safe", name="read_file")
    async def read_file(path: str) -> str:
        return "line " * 300

    lines = iter([call("read_file", path="a"), "Done."])
    model = CountingModel(lambda request, number: next(lines))
    async with Agent(StrictModel(model), tools=[read_file], instructions="Be brief. " * 20).session() as session:
        empty = await session.context()
        assert empty.estimated and empty.system > 40 and empty.tools > 0
        await ended(session, "read it")
        found = await session.context()
    assert not found.estimated and found.used == (await_tokens(model))
    assert found.system + found.tools + found.skills + found.files + found.history == found.used
    assert found.free == 4096 - found.used and found.files > found.history


def await_tokens(model: CountingModel) -> int:
    """What the provider counted for the last request and its reply."""
    from treadle.tokens import in_messages, in_text, in_tools

    last = model.requests[-1]
    return in_text(last.system) + in_tools(last.tools) + in_messages(last.messages) + in_text("Done.")


# ── cut anywhere ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_with_compactions_is_cut_after_every_fact_and_goes_on(tmp_path: Path) -> None:
    log = MemoryLog()
    model = CountingModel(Reader(16), window=1500)
    async with await opened(model, log) as session:
        assert (await ended(session, FIRST)).reason == "answered"
        points = await crash_points(session)
    assert any(isinstance(point.facts[-1], ContextCompacted) for point in points)
    for number, point in enumerate(points):
        store = MemoryLog() if number % 4 else SqliteLog(tmp_path / f"{number}.db")
        await point.plant(store)
        again = CountingModel(Reader(3), window=1500)
        agent = Agent(StrictModel(again), tools=[page, todo])
        async with agent.session(store, id=point.session_id) as session:
            async with session.resume() as run:
                await run.wait()
            if any(isinstance(fact, MessageReceived) for fact in point.facts):
                assert all(FIRST in shown_text(request) for request in again.requests)
                await ended(session, "and?")
                assert FIRST in shown_text(again.requests[-1]) and "and?" in said(again.requests[-1])
        assert again.refused == 0
        await store.close()
