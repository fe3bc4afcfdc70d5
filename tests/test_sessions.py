"""Sessions: opened and found again, asked, steered, interrupted and cancelled."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.kit import (
    PATIENCE,
    Held,
    Store,
    agent_of,
    check_settled,
    either_store,
    ended,
    file_store,
    kinds,
    note,
    of,
    results,
    resumed,
    said,
    wait_for,
)
from treadle import (
    Agent,
    AskUser,
    CallStarted,
    ImagePart,
    InputRequested,
    Limits,
    NotAnswered,
    RunFinished,
    Runtime,
    Session,
    TextDelta,
    TextPart,
    later,
)
from treadle.errors import BadInput, ModelError
from treadle.events import (
    CancelRequested,
    Custom,
    MessageReceived,
    ModelReplied,
    RunStarted,
    SessionCreated,
    SessionRenamed,
    TurnStarted,
)
from treadle.messages import ModelMessage, Reply, Request, UserMessage
from treadle.setup import Clock
from treadle.testing import call

store = either_store
on_file = file_store


# --- opening


async def test_the_same_path_resumes_the_same_session(on_file: Store) -> None:
    assert on_file.path is not None
    agent, _ = agent_of("hello", "you said: first")
    async with agent.session(on_file.path) as session:
        await ended(session, "first")
        first = session.id
    async with agent.session(str(on_file.path)) as session:
        assert session.id == first
        await ended(session, "what did I say?")
        assert [fact.seq for fact in await session.facts()][-1] == len(await session.facts())
    async with agent.session(on_file.path, new=True) as session:
        assert session.id != first


async def test_a_name_finds_a_session_or_makes_one(store: Store) -> None:
    agent, _ = agent_of()
    log = store.open()
    async with agent.session(log, name="trip") as trip, agent.session(log, name="tax") as tax:
        assert trip.id != tax.id
    async with agent.session(log, name="trip") as session:
        assert session.id == trip.id
        await session.rename("journey")
    async with agent.session(log, name="journey") as session:
        assert session.id == trip.id and (await session.state()).name == "journey"
    async with agent.session(log, name="trip") as session:
        assert session.id not in (trip.id, tax.id), "a part of a name is not the name"


async def test_what_the_agent_was_is_kept_in_the_first_fact(store: Store) -> None:
    agent, _ = agent_of(tools=[note], instructions="be good", name="helper", limits=Limits(turns=3))
    async with agent.session(store.open()) as session:
        [created] = await session.facts()
    assert isinstance(created, SessionCreated)
    assert (created.session_id, created.model, created.limits.turns) == (session.id, "scripted", 3)
    assert (created.agent.name, created.agent.instructions, created.agent.tools) == ("helper", "be good", ("note",))


async def test_a_name_given_by_a_user_is_never_overwritten_automatically(store: Store) -> None:
    agent, _ = agent_of()
    log = store.open()
    async with agent.session(log) as session:
        await log.post(session.id, [SessionRenamed(name="auto 1", by="auto")])
        assert (await session.state()).name == "auto 1"
        await session.rename("mine")
        await log.post(session.id, [SessionRenamed(name="auto 2", by="auto")])
        assert (await session.state()).name == "mine"
        assert (await log.info(session.id)).name == "mine"


async def test_notes_of_ones_own_are_facts_and_mean_nothing_to_the_engine() -> None:
    agent, model = agent_of("ok")
    async with agent.session() as session:
        await session.note("acme.audit", {"who": "ada"})
        assert (await ended(session)).answer == "ok"
        assert of(await session.facts(), Custom)[0].data == {"who": "ada"}
        with pytest.raises(BadInput, match="namespaced name"):
            await session.note("audit")
    assert said(model.requests[0]) == ["go"]


# --- ask


async def test_ask_gives_the_answer_in_one_call(on_file: Store) -> None:
    assert on_file.path is not None
    agent, _ = agent_of("4", "5")
    assert await agent.ask("2+2?") == "4"
    assert await agent.ask("3+2?", on_file.path) == "5"
    async with agent.session(on_file.path) as session:
        assert of(await session.facts(), RunFinished)[0].answer == "5"


def test_ask_works_without_an_event_loop() -> None:
    assert agent_of("4")[0].ask_sync("2+2?") == "4"


async def test_a_run_without_an_answer_is_an_error_that_says_why_and_what_to_do(store: Store) -> None:
    agent, _ = agent_of(call("note", text="x"), "half", "done", tools=[note], limits=Limits(turns=1))
    async with agent.session(store.open()) as session:
        with pytest.raises(NotAnswered, match=r"without an answer \(turn_limit\); session.continue_") as caught:
            await session.ask("go")
        assert caught.value.outcome is not None and caught.value.outcome.answer == "half"
        async with session.continue_() as run:
            assert (await run.wait()) and run.outcome and run.outcome.answer == "done"


class Sum(BaseModel):
    total: int
    why: str = ""


async def test_a_typed_answer_that_fits_is_given_as_its_type() -> None:
    agent, model = agent_of('```json\n{"total": 4, "why": "2+2"}\n```', output=Sum)
    assert await agent.ask("2+2?") == Sum(total=4, why="2+2")
    assert model.requests[0].output_schema is not None
    assert set(model.requests[0].output_schema["properties"]) == {"total", "why"}


async def test_an_answer_that_does_not_fit_is_sent_back_twice_with_the_reason(store: Store) -> None:
    agent, model = agent_of("four", '{"total": "four"}', '{"total": 4}', output=Sum)
    async with agent.session(store.open()) as session:
        assert await session.ask("2+2?") == Sum(total=4)
    assert "Invalid JSON" in said(model.requests[1])[-1]
    assert "total: Input should be a valid integer" in said(model.requests[2])[-1]


async def test_three_answers_that_do_not_fit_are_a_failure(store: Store) -> None:
    agent, model = agent_of("four", "for", "fore", "never asked", output=Sum)
    async with agent.session(store.open()) as session:
        with pytest.raises(NotAnswered, match="3 answers in a row did not fit") as caught:
            await session.ask("2+2?")
        check_settled(await session.facts())
    assert caught.value.outcome is not None and caught.value.outcome.reason == "failed"
    assert len(model.requests) == 3


async def test_text_as_the_output_is_the_answer_as_it_is() -> None:
    agent, model = agent_of("It is [4].", output=str)
    assert await agent.ask("?") == "It is [4]."
    assert model.requests[0].output_schema is None


async def test_a_plain_type_will_do_as_an_output_and_one_without_a_schema_is_refused() -> None:
    assert await agent_of("[1, 2]", output=list[int])[0].ask("?") == [1, 2]
    with pytest.raises(BadInput, match="cannot be made into a schema"):
        await agent_of("x", output=object())[0].ask("?")


# --- messages while one is running


async def test_a_message_sent_while_a_tool_runs_steers_the_next_turn(store: Store) -> None:
    held = Held()
    agent, model = agent_of(call("wait", id="a"), "as you say", tools=[held.tool])
    async with agent.session(store.open()) as session:
        async with session.run("go") as run:
            await wait_for(session, CallStarted)
            sent = await session.send("in French")
            held.free.set()
            await run.wait()
        facts = await session.facts()
    check_settled(facts)
    assert len(of(facts, RunStarted)) == 1 and held.begun == 1
    assert of(facts, TurnStarted)[1].messages == (sent,)
    last = model.requests[1].messages
    assert results(model.requests[1])["a"].text == "waited"
    assert isinstance(last[-1], UserMessage) and last[-1].parts == (TextPart("in French"),)


async def test_a_message_sent_during_the_last_reply_gets_a_run_of_its_own(store: Store) -> None:
    agent: Agent
    sessions: list[Session] = []

    class Slow:
        name, window, asked = "slow", None, 0

        async def stream(self, request: Request) -> Any:
            self.asked += 1
            if self.asked == 1:
                await sessions[0].send("and then?")
            yield Reply(text=f"answer {self.asked}")

    agent = Agent(Slow())
    async with agent.session(store.open()) as session:
        sessions.append(session)
        outcome = await ended(session, "first")
        second = await wait_for(session, RunFinished, after=outcome.seq)
        facts = await session.facts()
    assert (outcome.answer, second.answer) == ("answer 1", "answer 2")
    check_settled(facts)
    assert [len(fact.messages) for fact in of(facts, TurnStarted)] == [1, 1]


async def test_two_runs_asked_for_at_once_both_end_and_no_message_is_lost(store: Store) -> None:
    agent, model = agent_of("one", "two", "three")
    async with agent.session(store.open()) as session:
        outcomes = await asyncio.gather(*(ended(session, f"message {n}") for n in range(3)))
        facts = await session.facts()
    check_settled(facts)
    assert all(outcome.reason == "answered" for outcome in outcomes)
    promoted = [identity for fact in of(facts, TurnStarted) for identity in fact.messages]
    assert sorted(promoted) == sorted(fact.id for fact in of(facts, MessageReceived))
    shown = said(model.requests[len(of(facts, RunFinished)) - 1])
    assert {f"message {n}" for n in range(3)} <= set(shown)


async def test_a_message_in_interrupt_mode_stops_the_run_and_is_answered_at_once(store: Store) -> None:
    held = Held()
    agent, model = agent_of(call("wait", id="a"), "new answer", tools=[held.tool])
    async with agent.session(store.open()) as session:
        await session.send("go")
        await wait_for(session, CallStarted)
        outcome = await ended(session, "no, this instead", mode="interrupt")
        facts = await session.facts()
    check_settled(facts)
    first, second = of(facts, RunFinished)
    assert (first.reason, first.error) == ("cancelled", "interrupted by a new message")
    assert second == outcome and outcome.answer == "new answer"
    assert said(model.requests[1])[-1] == "no, this instead"
    assert "may have had effects" in results(model.requests[1])["a"].text


async def test_interrupting_a_talking_model_keeps_what_it_said(store: Store) -> None:
    class Talker:
        name, window, asked = "talker", None, 0
        shown: tuple[Any, ...] = ()

        async def stream(self, request: Request) -> Any:
            self.asked += 1
            self.shown = tuple(request.messages)
            if self.asked == 1:
                yield TextDelta(text="Once upon a time")
                await asyncio.Event().wait()
            yield Reply(text="short")

    model = Talker()
    async with Agent(model).session(store.open()) as session:
        await session.send("tell me a story")
        await wait_for(session, TextDelta)
        outcome = await ended(session, "shorter", mode="interrupt")
        first = of(await session.facts(), RunFinished)[0]
    assert (first.answer, outcome.answer) == ("Once upon a time", "short")
    assert [m.text for m in model.shown if isinstance(m, ModelMessage)] == ["Once upon a time"]


async def test_a_message_with_a_key_is_taken_once(store: Store) -> None:
    agent, model = agent_of("one", "two")
    async with agent.session(store.open()) as session:
        first = await ended(session, "pay the bill", key="k1")
        again = await ended(session, "pay the bill", key="k1")
        assert again == first, "the repeat is given the first one's ending"
        assert await session.send("pay the bill", key="k1") == of(await session.facts(), MessageReceived)[0].id
        assert len(of(await session.facts(), MessageReceived)) == len(model.requests) == 1
        assert (await ended(session, "pay the bill", key="k2")).answer == "two"


async def test_images_stay_in_the_conversation_after_the_first_turn(store: Store) -> None:
    picture = ImagePart(data="aGk=")
    agent, model = agent_of(call("note", text="x"), "a cat", "still a cat", tools=[note])
    async with agent.session(store.open()) as session:
        await ended(session, ["what is this?", picture])
        await ended(session, "sure?")
    for request in model.requests:
        assert request.messages[0] == UserMessage((TextPart("what is this?"), picture))


# --- cancel


async def test_cancel_is_final_recorded_and_the_session_can_go_on(store: Store) -> None:
    held = Held()
    agent, _ = agent_of(call("wait", id="a"), "continued", tools=[held.tool])
    async with agent.session(store.open()) as session:
        async with session.run("go") as run:
            await wait_for(session, CallStarted)
            outcome = await session.cancel(by="ada")
            await run.wait()
        assert run.outcome == outcome and outcome is not None and outcome.reason == "cancelled"
        check_settled(await session.facts())
        assert await session.cancel() is None, "there is nothing left to stop"
        async with session.continue_() as again:
            await again.wait()
        assert again.outcome is not None and again.outcome.answer == "continued"


async def test_cancel_stops_a_model_that_is_still_talking(store: Store) -> None:
    closed = asyncio.Event()

    class Talker:
        name, window = "talker", None

        async def stream(self, request: Request) -> Any:
            try:
                yield TextDelta(text="Once")
                await asyncio.Event().wait()
            finally:
                closed.set()

    async with Agent(Talker()).session(store.open()) as session:
        await session.send("go")
        await wait_for(session, TextDelta)
        outcome = await session.cancel()
    assert closed.is_set() and outcome is not None and outcome.answer == "Once"


async def test_cancel_ends_the_waiting_for_a_busy_model(store: Store) -> None:
    waits = asyncio.Event()

    class Endless(Clock):
        async def sleep(self, seconds: float) -> None:
            waits.set()
            await asyncio.Event().wait()

    agent, _ = agent_of(ModelError("busy", retryable=True), "ok", clock=Endless())
    async with agent.session(store.open()) as session:
        await session.send("go")
        await asyncio.wait_for(waits.wait(), PATIENCE)
        outcome = await asyncio.wait_for(session.cancel(), PATIENCE)
    assert outcome is not None and outcome.reason == "cancelled"


async def test_a_cancel_that_comes_as_the_run_ends_is_given_that_ending(on_file: Store) -> None:
    """Another process finishes the run between the look and the cancel: there must be no waiting for ever."""
    held = Held()
    agent, _ = agent_of(call("wait"), "done", tools=[held.tool])
    other, _ = agent_of(tools=[held.tool])
    async with agent.session(on_file.open()) as session, Runtime(on_file.open(), [other], recover=False) as elsewhere:
        await session.send("go")
        await wait_for(session, CallStarted)
        log, post = elsewhere.log, elsewhere.log.post

        async def slow_post(*args: Any, **options: Any) -> Any:
            held.free.set()
            await wait_for(session, RunFinished)
            return await post(*args, **options)

        log.post = slow_post  # type: ignore[method-assign]
        async with elsewhere.session(id=session.id) as seen:
            outcome = await asyncio.wait_for(seen.cancel(), PATIENCE)
        assert outcome is not None and outcome.reason == "answered"
        assert of(await session.facts(), CancelRequested)


async def test_leaving_the_block_stops_the_run_and_settles_it(store: Store) -> None:
    held = Held()
    agent, _ = agent_of(call("wait", id="a"), tools=[held.tool])
    async with agent.session(store.open()) as session:
        async with session.run("go") as run:
            async for event in run:
                if isinstance(event, CallStarted):
                    break
        facts = await session.facts()
    check_settled(facts)
    assert run.outcome is not None and run.outcome == facts[-1]
    assert (run.outcome.reason, run.outcome.error) == ("cancelled", "cancelled: its caller left")


async def test_a_run_is_used_inside_its_block() -> None:
    agent, _ = agent_of("hi")
    async with agent.session() as session:
        with pytest.raises(BadInput, match=r"async with session\.run"):
            await session.run("go").wait()
        assert kinds(await session.facts()) == ["session_created"]


async def test_typed_answers_are_checked_again_when_read(on_file: Store) -> None:
    agent, _ = agent_of("4", output=int)
    assert await agent.ask("2+2?") == 4
    with pytest.raises(ValidationError):
        agent.parse_output("four")


async def test_a_message_that_waits_when_the_run_is_cancelled_is_kept_for_later(store: Store) -> None:
    held = Held()
    agent, model = agent_of(call("wait", id="a"), "both", tools=[held.tool])
    async with agent.session(store.open()) as session:
        await session.send("first")
        await wait_for(session, CallStarted)
        asking = asyncio.create_task(session.ask("second"))
        await wait_for(session, MessageReceived, lambda fact: fact.parts == (TextPart("second"),))
        await session.cancel()
        with pytest.raises(NotAnswered, match=r"nobody works on this message now; session.continue_"):
            await asking
        assert await resumed(session) is None and len(model.requests) == 1, "a cancel starts nothing"
        assert (await ended(session, "third")).answer == "both"
        check_settled(await session.facts())
    assert said(model.requests[1])[-2:] == ["second", "third"]


async def test_a_first_message_that_was_cancelled_before_its_run_is_taken_up_by_continue(store: Store) -> None:
    agent, model = agent_of("at last")
    async with agent.session(store.open()) as session:
        await session.send("go")
        assert await session.cancel() is None
        async with session.continue_() as run:
            outcome = await run.wait()
        check_settled(await session.facts())
    assert outcome is not None and outcome.answer == "at last"
    assert said(model.requests[0]) == ["go"], "there is nothing else to go on from"


async def test_the_same_key_used_twice_at_once_is_one_message(store: Store) -> None:
    agent, model = agent_of("one")
    async with agent.session(store.open()) as session:
        first, second = await asyncio.gather(*(ended(session, "pay", key="k") for _ in range(2)))
    assert first == second and len(model.requests) == 1


async def test_giving_up_on_an_answer_stops_the_run(store: Store) -> None:
    held = Held()
    agent, _ = agent_of(call("wait", id="a"), tools=[held.tool])
    async with agent.session(store.open()) as session:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.ask("go"), 0.1)
        facts = await session.facts()
        check_settled(facts)
        assert isinstance(facts[-1], RunFinished) and facts[-1].reason == "cancelled"


async def test_giving_up_on_a_message_that_still_waits_does_not_stop_somebody_elses_run(store: Store) -> None:
    held = Held()
    agent, model = agent_of(call("wait", id="a"), "both", tools=[held.tool])
    async with agent.session(store.open()) as session, session.run("first") as run:
        await wait_for(session, CallStarted)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.ask("second"), 0.1)
        held.free.set()
        outcome = await run.wait()
        check_settled(await session.facts())
    assert outcome is not None and outcome.answer == "both"
    assert said(model.requests[1])[-1] == "second", "it was sent, and is kept"


async def test_leaving_before_anything_has_begun_stops_it_too(store: Store) -> None:
    agent, model = agent_of("never asked")
    async with agent.session(store.open()) as session:
        async with session.run("go"):
            pass
        assert await resumed(session) is None
        check_settled(await session.facts())
    assert model.requests == []


async def test_a_run_that_is_left_when_it_has_ended_already_says_how_it_ended(store: Store) -> None:
    agent, _ = agent_of("all done")
    async with agent.session(store.open()) as session:
        async with session.run("go") as run:
            async for event in run:
                if isinstance(event, ModelReplied):
                    break
            await wait_for(session, RunFinished)
        facts = await session.facts()
    assert run.outcome is not None and run.outcome == facts[-1]
    assert (run.outcome.reason, run.outcome.answer, run.pending) == ("answered", "all done", [])


async def test_a_run_that_is_left_while_it_waits_for_somebody_goes_on_waiting_and_says_for_what(store: Store) -> None:
    agent, _ = agent_of(call("ask_user", id="q", question="Which?"), "blue it is", tools=[AskUser()], gate=later)
    async with Runtime(store.open(), [agent]) as runtime, runtime.session() as session:
        async with session.run("go") as run:
            async for event in run:
                if isinstance(event, InputRequested):
                    break
            await runtime.coordinator.idle(session.id)
        assert run.outcome is None and [question.call_id for question in run.pending] == ["q"]
        await session.answer("q", "blue")
        assert (await wait_for(session, RunFinished)).answer == "blue it is"


async def test_a_run_that_another_process_has_taken_up_goes_on_when_it_is_left(on_file: Store) -> None:
    held = Held()
    agent, _ = agent_of(call("wait", id="a"), "done", tools=[held.tool])
    async with agent.session(on_file.open()) as session:
        await session.send("go")
        await wait_for(session, CallStarted)
        async with agent.session(on_file.open(), id=session.id) as elsewhere, elsewhere.resume() as run:
            pass
        assert run.outcome is None and run.pending == []
        held.free.set()
        assert (await wait_for(session, RunFinished)).answer == "done"
