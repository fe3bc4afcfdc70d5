"""Stopping a run: by a cancel, by leaving its block, by giving up on an answer."""

import asyncio
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.fake_model import HangingModel
from tests.kit.sessions import PATIENCE, QUESTION, HeldTool, Store
from treadle import Agent, AskUser, NotAnswered, Run, RunFinished, Runtime, TextDelta, TextPart, later
from treadle.engine.setup import Clock
from treadle.errors import BadInput, ModelError
from treadle.events import AnyFact, CallStarted, CancelRequested, Custom, InputRequested, MessageReceived, ModelReplied
from treadle.log.in_memory import InMemoryLog
from treadle.testing import call


async def test_cancel_is_final_recorded_and_the_session_can_go_on(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open(), "continued") as session:
        async with session.resume() as run:
            outcome = await session.cancel(by="ada")
            await run.wait()
        assert run.outcome == outcome and outcome is not None and outcome.reason == "cancelled"
        kit.check_settled(await session.facts())
        assert await session.cancel() is None, "there is nothing left to stop"
        assert (await kit.finish_run(session.continue_())).answer == "continued"


async def test_cancel_stops_a_model_that_is_still_talking(store: Store) -> None:
    model = HangingModel()
    async with Agent(model).session(store.open()) as session:
        await session.send("go")
        await kit.wait_for(session, TextDelta)
        outcome = await session.cancel()
    assert model.was_closed and outcome is not None and outcome.answer == "Once upon"


async def test_cancel_ends_the_waiting_for_a_busy_model(store: Store) -> None:
    waits = asyncio.Event()

    class EndlessClock(Clock):
        async def sleep(self, seconds: float) -> None:
            waits.set()
            await asyncio.Event().wait()

    agent, _ = kit.build_agent(ModelError("busy", retryable=True), "ok", clock=EndlessClock())
    async with agent.session(store.open()) as session:
        await session.send("go")
        await asyncio.wait_for(waits.wait(), PATIENCE)
        outcome = await asyncio.wait_for(session.cancel(), PATIENCE)
    assert outcome is not None and outcome.reason == "cancelled"


async def test_a_cancel_that_comes_as_the_run_ends_returns_that_ending(on_file: Store) -> None:
    """Another process finishes the run between the look and the cancel: there must be no waiting for ever."""
    held = HeldTool()
    other, _ = kit.build_agent(tools=[held.tool])
    async with (
        held.open_session(on_file.open(), "done") as session,
        Runtime(on_file.open(), [other], recover=False) as elsewhere,
    ):
        log, post = elsewhere.log, elsewhere.log.post

        async def slow_post(*args: Any, **options: Any) -> Any:
            held.free.set()
            await kit.wait_for(session, RunFinished)
            return await post(*args, **options)

        log.post = slow_post  # type: ignore[method-assign]
        async with elsewhere.session(id=session.id) as seen:
            outcome = await asyncio.wait_for(seen.cancel(), PATIENCE)
        assert outcome is not None and outcome.reason == "answered"
        assert kit.select_events(await session.facts(), CancelRequested)


async def test_leaving_the_block_stops_the_run_and_settles_it(store: Store) -> None:
    held = HeldTool()
    agent, _ = kit.build_agent(call("wait", id="a"), tools=[held.tool])
    async with agent.session(store.open()) as session:
        async with session.run("go") as run:
            await wait_in(run, CallStarted)
        facts = await session.facts()
    kit.check_settled(facts)
    assert run.outcome is not None and run.outcome == facts[-1]
    assert (run.outcome.reason, run.outcome.error) == ("cancelled", "cancelled: its caller left")


async def wait_in(run: Run, kind: type[Any]) -> None:
    """Follow a run until the first event of a kind."""
    async for event in run:
        if isinstance(event, kind):
            return


async def test_a_run_is_used_inside_its_block() -> None:
    agent, _ = kit.build_agent("hi")
    async with agent.session() as session:
        with pytest.raises(BadInput, match=r"async with session\.run"):
            await session.run("go").wait()
        assert kit.list_kinds(await session.facts()) == ["session_created"]


async def test_a_queued_message_of_a_cancelled_run_is_kept_for_later(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open(), "both") as session:
        asking = asyncio.create_task(session.ask("second"))
        await kit.wait_for(session, MessageReceived, lambda fact: fact.parts == (TextPart("second"),))
        await session.cancel()
        with pytest.raises(NotAnswered, match=r"nobody works on this message now; session.continue_"):
            await asking
        assert await kit.resume_run(session) is None and len(held.model.requests) == 1, "a cancel starts nothing"
        assert (await kit.run_to_end(session, "third")).answer == "both"
        kit.check_settled(await session.facts())
    assert kit.list_user_texts(held.model.requests[1])[-2:] == ["second", "third"]


async def test_continue_takes_up_a_first_message_that_was_cancelled_before_its_run(store: Store) -> None:
    agent, model = kit.build_agent("at last")
    async with agent.session(store.open()) as session:
        await session.send("go")
        assert await session.cancel() is None
        assert (await kit.finish_run(session.continue_())).answer == "at last"
        kit.check_settled(await session.facts())
    assert kit.list_user_texts(model.requests[0]) == ["go"], "there is nothing else to go on from"


async def test_two_messages_with_one_key_at_once_are_one_message(store: Store) -> None:
    agent, model = kit.build_agent("one")
    async with agent.session(store.open()) as session:
        first, second = await asyncio.gather(*(kit.run_to_end(session, "pay", key="k") for _ in range(2)))
    assert first == second and len(model.requests) == 1


async def test_a_timeout_while_waiting_for_an_answer_stops_the_run(store: Store) -> None:
    held = HeldTool()
    agent, _ = kit.build_agent(call("wait", id="a"), tools=[held.tool])
    async with agent.session(store.open()) as session:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.ask("go"), 0.1)
        facts = await session.facts()
        kit.check_settled(facts)
        assert isinstance(facts[-1], RunFinished) and facts[-1].reason == "cancelled"


async def test_a_timeout_of_a_queued_message_does_not_stop_the_run_of_another(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open(), "both") as session:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.ask("second"), 0.1)
        held.free.set()
        assert (await kit.wait_for(session, RunFinished)).answer == "both"
        kit.check_settled(await session.facts())
    assert kit.list_user_texts(held.model.requests[1])[-1] == "second", "it was sent, and is kept"


async def test_leaving_before_anything_has_started_stops_the_run_too(store: Store) -> None:
    agent, model = kit.build_agent("never asked")
    async with agent.session(store.open()) as session:
        async with session.run("go"):
            pass
        assert await kit.resume_run(session) is None
        kit.check_settled(await session.facts())
    assert model.requests == []


async def test_a_run_that_has_ended_before_it_is_left_says_how(store: Store) -> None:
    agent, _ = kit.build_agent("all done")
    async with agent.session(store.open()) as session:
        async with session.run("go") as run:
            await wait_in(run, ModelReplied)
            await kit.wait_for(session, RunFinished)
        facts = await session.facts()
    assert run.outcome is not None and run.outcome == facts[-1]
    assert (run.outcome.reason, run.outcome.answer, run.pending) == ("answered", "all done", [])


async def test_a_run_that_waits_for_a_person_goes_on_waiting_when_it_is_left(store: Store) -> None:
    agent, _ = kit.build_agent(QUESTION, "blue it is", tools=[AskUser()], gate=later)
    async with Runtime(store.open(), [agent]) as runtime, runtime.session() as session:
        async with session.run("go") as run:
            await wait_in(run, InputRequested)
            await runtime.coordinator.wait_until_idle(session.id)
        assert run.outcome is None and [question.call_id for question in run.pending] == ["q"]
        await session.answer("q", "blue")
        assert (await kit.wait_for(session, RunFinished)).answer == "blue it is"


async def test_a_run_in_another_process_goes_on_when_it_is_left_here(on_file: Store) -> None:
    held = HeldTool()
    async with held.open_session(on_file.open(), "done") as session:
        async with held.agent.session(on_file.open(), id=session.id) as elsewhere, elsewhere.resume() as run:
            pass
        assert run.outcome is None and run.pending == []
        held.free.set()
        assert (await kit.wait_for(session, RunFinished)).answer == "done"


class SlowLog(InMemoryLog):
    """While `answers` is not set, reads return late what they found early."""

    def __init__(self) -> None:
        super().__init__()
        self.answers, self.has_read = asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> list[AnyFact]:
        facts = await super().read(session_id, after, limit)
        self.has_read.set()
        await self.answers.wait()
        return facts


async def test_a_cancel_that_comes_while_an_earlier_post_is_looked_at_is_not_missed() -> None:
    held, log = kit.HeldTool(), SlowLog()
    async with held.open_session(log, "done") as session:
        log.answers.clear()
        log.has_read.clear()
        await log.post(session.id, [Custom(name="test.note")])
        await log.has_read.wait()
        await log.post(session.id, [CancelRequested(by="test")])
        log.answers.set()
        await kit.wait_for(session, RunFinished)
        assert held.ends == 1
