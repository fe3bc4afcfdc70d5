"""A provider that is overloaded or cannot be reached: it is waited for, visibly, and not for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.sessions import PATIENCE, Kind, Store
from treadle import Agent, Limits, Runtime, Session, later
from treadle.engine.fold import fold
from treadle.errors import Conflict, ModelError
from treadle.events import ModelFailed, RetryRequested, RunFinished, RunStarted, TurnStarted
from treadle.testing import SteppingClock

BUSY = ModelError("busy", kind="overloaded", retryable=True)
OFFLINE = ModelError("no route", kind="network", retryable=True)
IN_FIVE_MINUTES = ModelError("busy", kind="overloaded", retryable=True, retry_after=300)


class StillClock(SteppingClock):
    """A clock whose sleepers wait until the test moves it, as a real one does."""

    def __init__(self) -> None:
        super().__init__()
        self._moved, self.asleep = asyncio.Event(), asyncio.Event()

    def step(self, seconds: float) -> None:
        super().step(seconds)
        self._moved.set()
        self._moved = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asleep.set()
        until = self.now() + seconds
        while self.now() < until:
            await self._moved.wait()


@asynccontextmanager
async def open_waiting(store: Store, *script: Any, **options: Any) -> AsyncIterator[tuple[Session, StillClock]]:
    """Open a session whose run waits for its provider, in the process that runs it or parked."""
    clock = store.clock = StillClock()
    agent, _ = kit.build_agent(*script, clock=clock, **options)
    async with agent.session(store.open()) as session:
        await session.send("go")
        await kit.wait_for(session, ModelFailed)
        await wait_until_quiet(session, clock)
        yield session, clock


async def wait_until_quiet(session: Session, clock: StillClock) -> None:
    """Wait until the run sleeps or is parked."""
    idle = asyncio.ensure_future(session._coordinator.wait_until_idle(session.id))
    asleep = asyncio.ensure_future(clock.asleep.wait())
    done, waiting = await asyncio.wait((idle, asleep), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert done
    for task in waiting:
        task.cancel()


async def wait_for_last(session: Session, kind: type[Kind], count: int) -> Kind:
    """Wait until the session has so many facts of a kind, and return the last one."""
    found: list[Kind] = []
    return await kit.wait_for(session, kind, lambda fact: found.append(fact) or len(found) == count)


# ── how long ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("failure", [BUSY, OFFLINE])
async def test_eight_failures_in_a_row_are_waited_out(store: Store, failure: ModelError) -> None:
    clock = store.use_stepping_clock()
    run = await store.run_script(*[failure] * 8, "at last", clock=clock)
    assert (run.reason, run.answer, run.outcome.turns) == ("answered", "at last", 1)
    assert [fact.attempt for fact in run.select(ModelFailed)] == list(range(1, 9))
    assert clock.slept == pytest.approx([fact.wait for fact in run.select(ModelFailed)])
    assert max(clock.slept) <= 60


async def test_a_run_fails_when_its_provider_is_overloaded_for_ten_minutes(store: Store) -> None:
    clock = store.use_stepping_clock()
    run = await store.run_script(*[BUSY] * 99, clock=clock)
    failed = run.select(ModelFailed)
    assert run.reason == "failed" and run.outcome.can_continue
    assert run.outcome.error == f"overloaded: busy (gave up after {len(failed)} attempts in 10 min)"
    assert failed[-1].at - failed[0].at == pytest.approx(600)
    assert {fact.give_up_at for fact in failed[:-1]} == {failed[0].at + 600}
    assert (failed[-1].wait, failed[-1].give_up_at) == (None, None)


async def test_the_time_is_a_setting(store: Store) -> None:
    clock = store.use_stepping_clock()
    run = await store.run_script(*[BUSY] * 99, clock=clock, limits=Limits(retry_seconds=5))
    assert run.reason == "failed" and sum(clock.slept) == pytest.approx(5)
    none = await store.run_script(IN_FIVE_MINUTES, "never asked", clock=clock, limits=Limits(retry_seconds=0))
    assert (none.reason, none.outcome.error, len(none.requests)) == ("failed", "overloaded: busy", 1)


async def test_each_turn_has_its_own_time(store: Store) -> None:
    clock = store.use_stepping_clock()
    script = [BUSY] * 9 + [kit.call("note", text="x")] + [BUSY] * 9 + ["done"]
    run = await store.run_script(*script, tools=[kit.note], clock=clock, limits=Limits(retry_seconds=150))
    assert run.answer == "done" and sum(clock.slept) > 150


async def test_a_provider_that_always_says_now_is_not_asked_in_a_tight_loop(store: Store) -> None:
    now = ModelError("busy", kind="overloaded", retryable=True, retry_after=0)
    run = await store.run_script(*[now] * 999, clock=store.use_stepping_clock())
    assert run.reason == "failed" and len(run.requests) < 40


# ── a long Retry-After ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_long_retry_after_parks_the_run_until_that_time(store: Store) -> None:
    async with open_waiting(store, IN_FIVE_MINUTES, "at last") as (session, clock):
        info, state = await session.log.get_info(session.id), await session.state()
        assert (info.status, info.owner) == ("running", ""), "nobody holds a parked run"
        assert info.wake_at == state.retry_at == pytest.approx(clock.now() + 300, rel=0, abs=0.01)
        assert not session._coordinator.is_running(session.id)
        clock.step(301)
        ended = await kit.wait_for(session, RunFinished)
        assert ended.answer == "at last"


async def test_a_parked_run_is_taken_up_by_any_process(on_file: Store) -> None:
    async with open_waiting(on_file, IN_FIVE_MINUTES) as (session, clock):
        session_id = session.id
    agent, model = kit.build_agent("at last", clock=clock)
    async with Runtime(on_file.open(), [agent]) as runtime:
        other = await runtime.open(session_id)
        assert not model.requests, "its time has not come"
        clock.step(301)
        assert (await kit.wait_for(other, RunFinished)).answer == "at last"
    assert len(kit.select_events(await on_file.open().read(session_id), RunStarted)) == 1


async def test_a_process_keeps_nothing_of_a_parked_run(store: Store) -> None:
    agent, _ = kit.build_agent(IN_FIVE_MINUTES)
    async with Runtime(store.open(), [agent]) as runtime:
        session = await runtime.create()
        await session.send("go")
        await kit.wait_for(session, ModelFailed)
        async with asyncio.timeout(PATIENCE):
            await runtime.coordinator.wait_until_idle(session.id)
        assert runtime.coordinator._entries == {}


async def test_the_caller_of_a_parked_run_waits_for_it(store: Store) -> None:
    clock = store.use_stepping_clock()
    agent, _ = kit.build_agent(IN_FIVE_MINUTES, "at last", clock=clock)
    before = clock.now()
    async with asyncio.timeout(PATIENCE):
        assert await agent.ask("go", store.open()) == "at last"
    assert clock.now() - before >= 300


async def test_the_time_in_which_a_run_was_parked_does_not_count(store: Store) -> None:
    hour = ModelError("busy", kind="overloaded", retryable=True, retry_after=3600)
    run = await store.run_script(BUSY, hour, BUSY, hour, BUSY, "at last", clock=store.use_stepping_clock())
    assert run.answer == "at last"
    first, *_, last = run.select(ModelFailed)
    assert last.at - first.at > 7200
    assert last.give_up_at == pytest.approx(first.at + 600 + 7200, rel=0, abs=10)


@pytest.mark.parametrize("waits", [[1e6], [80_000, 80_000]], ids=["16 days", "again and again"])
async def test_nobody_waits_for_days(store: Store, waits: list[float]) -> None:
    script = [ModelError("busy", kind="overloaded", retryable=True, retry_after=wait) for wait in waits]
    clock = store.use_stepping_clock()
    async with asyncio.timeout(PATIENCE):
        agent, model = kit.build_agent(*script, "never asked", clock=clock)
        async with agent.session(store.open()) as session:
            await session.send("go")
            for _ in waits[1:]:
                await kit.wait_for(session, ModelFailed)
                clock.step(waits[0])
                await session._coordinator.wake(session.id)
            ended = await kit.wait_for(session, RunFinished)
    assert ended.reason == "failed" and len(model.requests) == len(waits)
    said = {1e6: "it asks to wait 12 days", 80_000: "it asks to wait 22 h 13 min"}[waits[-1]]
    assert said in ended.error and "a run waits 24 h at most" in ended.error


# ── a crash ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("failure", [BUSY, IN_FIVE_MINUTES], ids=["a short wait", "parked"])
async def test_a_run_resumes_the_same_wait_after_a_crash(on_file: Store, failure: ModelError) -> None:
    async with open_waiting(on_file, failure) as (session, clock):
        before = await session.state()
        session_id, retry_at = session.id, before.retry_at
        assert retry_at is not None
    agent, model = kit.build_agent(BUSY, "at last", clock=clock)
    async with Runtime(on_file.open(), [agent]) as runtime:
        again = await runtime.open(session_id)
        state = await again.state()
        assert state.retry_at == retry_at and not model.requests
        clock.step(retry_at - clock.now())
        first, second = await kit.wait_for(again, ModelFailed), await wait_for_last(again, ModelFailed, 2)
        parked = 300 if failure is IN_FIVE_MINUTES else 0
        assert (second.attempt, second.give_up_at) == (2, pytest.approx(first.at + 600 + parked, rel=0, abs=0.01))
        clock.step(2)
        assert (await kit.wait_for(again, RunFinished)).answer == "at last"


# ── cancelled, cut short, limited ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("failure", [BUSY, IN_FIVE_MINUTES], ids=["a short wait", "parked"])
async def test_the_wait_can_be_cancelled(store: Store, failure: ModelError) -> None:
    async with open_waiting(store, failure, "never asked") as (session, _):
        ended = await asyncio.wait_for(session.cancel(by="ada"), PATIENCE)
        assert ended is not None and (ended.reason, ended.error) == ("cancelled", "cancelled by ada")


@pytest.mark.parametrize("failure", [BUSY, IN_FIVE_MINUTES], ids=["a short wait", "parked"])
async def test_the_wait_can_be_cut_short(store: Store, failure: ModelError) -> None:
    async with open_waiting(store, failure, "at last") as (session, clock):
        before = clock.now()
        await session.retry_now(by="ada")
        ended = await kit.wait_for(session, RunFinished)
        assert (ended.reason, ended.answer, clock.now()) == ("answered", "at last", before)
        (asked,) = kit.select_events(await session.facts(), RetryRequested)
        assert asked.by == "ada"
        with pytest.raises(Conflict, match="does not wait for its provider"):
            await session.retry_now()


async def test_asking_twice_for_a_retry_is_the_same_as_once(store: Store) -> None:
    async with open_waiting(store, IN_FIVE_MINUTES, IN_FIVE_MINUTES, "at last") as (session, clock):
        await session.log.post(session.id, [RetryRequested(), RetryRequested()])
        await session._coordinator.wake(session.id)
        await wait_for_last(session, ModelFailed, 2)
        state = await session.state()
        assert state.retry_at == pytest.approx(clock.now() + 300, rel=0, abs=0.01)


@pytest.mark.parametrize("failure", [BUSY, IN_FIVE_MINUTES], ids=["a short wait", "parked"])
async def test_a_queued_message_does_not_cut_the_wait_short_but_an_interrupt_does(
    store: Store, failure: ModelError
) -> None:
    async with open_waiting(store, failure, "hello") as (session, clock):
        retry_at = (await session.state()).retry_at
        await session.send("are you there?")
        await wait_until_quiet(session, clock)
        assert (await session.state()).retry_at == retry_at
        await session.send("then do this", mode="interrupt")
        assert (await kit.wait_for(session, RunFinished)).reason == "cancelled"
        assert (await wait_for_last(session, RunFinished, 2)).reason == "answered"


async def test_leaving_the_block_of_a_parked_run_stops_it(store: Store) -> None:
    agent, _ = kit.build_agent(IN_FIVE_MINUTES)
    async with agent.session(store.open()) as session:
        async with asyncio.timeout(PATIENCE), session.run("go") as run:
            async for event in run:
                if isinstance(event, ModelFailed):
                    break
            await session._coordinator.wait_until_idle(session.id)
        assert run.outcome is not None and run.outcome.reason == "cancelled"


@pytest.mark.parametrize("failure", [BUSY, IN_FIVE_MINUTES], ids=["a short wait", "parked"])
async def test_the_time_limit_of_the_run_ends_the_wait(store: Store, failure: ModelError) -> None:
    limits = Limits(seconds=0.2 if failure is BUSY else 100)
    async with open_waiting(store, failure, *[BUSY] * 99, limits=limits) as (session, clock):
        info = await session.log.get_info(session.id)
        assert limits.seconds is not None
        if failure is IN_FIVE_MINUTES:
            assert info.wake_at == pytest.approx(clock.now() + limits.seconds, rel=0, abs=0.01)
        clock.step(limits.seconds + 0.01)
        async with asyncio.timeout(PATIENCE):
            while not (ended := kit.select_events(await session.facts(), RunFinished)):
                clock.step(1)
                await asyncio.sleep(0.005)
        assert ended[0].reason == "time_limit" and "overloaded: busy" in ended[0].error
        turns = kit.select_events(await session.facts(), TurnStarted)
        assert [turn.wrap_up for turn in turns] == [None, "time_limit"]


async def test_the_last_turn_does_not_wait_long(store: Store) -> None:
    clock = store.use_stepping_clock()
    script = [kit.call("note", text="x"), IN_FIVE_MINUTES, "never asked"]
    run = await store.run_script(*script, tools=[kit.note], clock=clock, limits=Limits(turns=1))
    assert (run.reason, clock.slept) == ("turn_limit", [])
    script = [kit.call("note", text="x"), *[BUSY] * 99]
    run = await store.run_script(*script, tools=[kit.note], clock=clock, limits=Limits(turns=1))
    assert run.reason == "turn_limit" and sum(clock.slept) <= 60
    assert "gave no summary" in run.answer and "overloaded: busy" in run.outcome.error


def test_a_request_to_retry_changes_nothing_when_nothing_waits() -> None:
    assert fold([RetryRequested()]).retry_at is None


async def test_an_agent_without_a_gate_waits_too() -> None:
    agent = Agent(kit.build_agent(BUSY, "ok")[0].model, gate=later, clock=SteppingClock())
    assert await agent.ask("go") == "ok"
