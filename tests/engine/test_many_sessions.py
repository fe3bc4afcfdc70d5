"""Many sessions of several agents on one store, in one runtime or in several; taken up where they were left."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.sessions import DROP, PATIENCE, HeldTool, Store, Tables, note
from treadle import CallFinished, CallStarted, Grant, RunFinished, Runtime, TextPart, later, tool
from treadle.errors import BadInput, Conflict, NotFound, StoreFull
from treadle.events import MessageReceived
from treadle.log.base import Claim, SessionInfo, SessionQuery
from treadle.messages import Request
from treadle.testing import call


async def test_a_runtime_takes_up_what_was_left_when_it_starts(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open()) as session:
        pass
    again, model = kit.build_agent("checked", "also", tools=[held.tool])
    log = store.open()
    async with Runtime(log, [again]) as runtime, runtime.session(id=session.id) as session:
        outcome = await kit.wait_for(session, RunFinished)
        kit.check_settled(await session.facts())
    assert outcome.answer == "checked" and held.starts == 1, "a call that may have had effects is not run again"
    assert "Outcome unknown" in kit.select_results(model.requests[0])["a"].text
    await log.post(session.id, [MessageReceived(id="m9", parts=(TextPart("while nobody was there"),))])
    async with Runtime(log, [again]) as runtime, runtime.session(id=session.id) as session:
        assert (await kit.wait_for(session, RunFinished, after=outcome.seq)).answer == "also"


async def test_a_runtime_leaves_the_sessions_of_other_agents_alone(store: Store) -> None:
    log, run = store.open(), await store.run_script("hi", name="mine")
    await log.post(run.session_id, [MessageReceived(id="m9", parts=(TextPart("more"),))])
    other, _ = kit.build_agent("wrong", name="other")
    async with Runtime(log, [other]) as runtime:
        with pytest.raises(NotFound, match="no agent named 'mine' here; there are: other"):
            async with runtime.session("mine"):
                pass
        async with runtime.session("other") as theirs:
            await kit.run_to_end(theirs)
    assert len(kit.select_events(await log.read(run.session_id), RunFinished)) == 1


async def test_many_sessions_run_at_once_each_in_its_own_order(store: Store) -> None:
    meeting = asyncio.Barrier(20)

    @tool
    async def meet(name: str) -> str:
        await meeting.wait()  # passes only when all twenty are running
        return f"met {name}"

    def answer(request: Request) -> Any:
        name = kit.list_user_texts(request)[0]
        return f"done {name}" if kit.select_results(request) else call("meet", name=name)

    agent, _ = kit.build_agent(*[answer] * 40, tools=[meet])
    async with Runtime(store.open(), [agent]) as runtime:

        async def one(number: int) -> str:
            async with runtime.session(new=True) as session:
                outcome = await kit.run_to_end(session, f"s{number}")
                kit.check_settled(await session.facts())
                assert kit.select_events(await session.facts(), CallFinished)[0].output == f"met s{number}"
                return outcome.answer

        answers = await asyncio.gather(*(one(number) for number in range(20)))
        page = await runtime.sessions(SessionQuery(status="answered"))
        assert len(page.sessions) == 20
        assert [hit.seq for hit in await runtime.search("met s7")]
    assert answers == [f"done s{number}" for number in range(20)]


async def test_a_run_is_followed_by_no_task_while_it_is_driven_here(store: Store) -> None:
    held = HeldTool()
    agent, _ = kit.build_agent(call("wait", id="a"), "done", tools=[held.tool])
    async with Runtime(store.open(), [agent]) as runtime, runtime.session() as session, session.run("go") as run:
        await kit.wait_for(session, CallStarted)
        names = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
        held.free.set()
        outcome = await run.wait()
    assert outcome is not None and outcome.answer == "done"
    tasks = {name for name in names if name.startswith(("Coordinator.", "ClaimKeeper.", "Follower."))}
    assert tasks == {"Coordinator._run_session", "ClaimKeeper._keep_claims"}


async def test_a_closed_runtime_refuses_messages_and_stores_nothing(store: Store) -> None:
    log, run = store.open(), await store.run_script("hi")
    async with run.agent.session(log, id=run.session_id) as session:
        pass
    with pytest.raises(Conflict, match="this runtime is closed"):
        await session.send("hello?")
    assert await log.read(session.id) == run.facts
    with pytest.raises(BadInput, match="async with Runtime"):
        _ = Runtime(log, [run.agent]).coordinator


async def test_leaving_a_runtime_with_grace_lets_a_run_finish_and_stops_the_work_after_its_answer(store: Store) -> None:
    held, log, starts, stops = HeldTool(), store.open(), list[str](), list[str]()

    async def follow(session: Any, state: Any, setup: Any) -> None:
        starts.append(session.id)
        try:
            await asyncio.Event().wait()
        finally:
            stops.append(session.id)

    agent, _ = kit.build_agent(call("wait"), "done", tools=[held.tool])
    async with Runtime(log, [agent], grace=PATIENCE) as runtime, runtime.session() as session:
        runtime.after_answer.append(follow)
        await session.send("go")
        await kit.wait_for(session, CallStarted)
        asyncio.get_running_loop().call_soon(held.free.set)
    assert stops == starts
    assert kit.select_events(await log.read(session.id), RunFinished)[0].answer == "done"


async def test_a_process_that_slept_through_its_lease_and_finds_its_own_session_runs_it_once(on_file: Store) -> None:
    clock, stopped, slept = on_file.use_stepping_clock(), list[str](), list[Any]()

    @tool(name="wait")
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("a")

    agent, model = kit.build_agent(call("wait", id="a"), "checked", tools=[wait])
    log = on_file.open()
    renew = log.renew

    async def renew_and_sleep(claim: Claim) -> None:
        await renew(claim)
        if not slept:
            slept.append(claim)
            clock.step(3600)

    log.renew = renew_and_sleep  # type: ignore[method-assign]
    async with Runtime(log, [agent], lease=0.3) as runtime, runtime.session() as session:
        await session.send("go")
        outcome = await kit.wait_for(session, RunFinished)
        assert (outcome.answer, stopped) == ("checked", ["a"]), "the call that was lost has ended"
        await runtime.coordinator.wait_until_idle(session.id)
        facts = await session.facts()
    kit.check_settled(facts)
    assert [fact.epoch for fact in kit.select_events(facts, CallStarted)] == [1]
    assert "Outcome unknown" in kit.select_results(model.requests[1])["a"].text


async def test_a_run_can_be_cancelled_through_another_runtime_on_the_same_log(store: Store) -> None:
    held, log = HeldTool(), store.open()
    async with held.open_session(log) as session, held.agent.session(log, id=session.id) as other:
        outcome = await asyncio.wait_for(other.cancel(), PATIENCE)
    assert outcome is not None and outcome.reason == "cancelled"
    assert log.listener is None, "nothing of the runtimes is left on the log"


async def test_whoever_waits_for_a_run_takes_it_over_when_its_process_leaves_before_anybody_has_looked(
    store: Store,
) -> None:
    held = HeldTool()
    first, _ = kit.build_agent(call("wait", id="a"), tools=[held.tool])
    second, _ = kit.build_agent("both", tools=[held.tool])
    async with Runtime(store.open(), [second], recover=False) as two, AsyncExitStack() as leaves:
        one = await leaves.enter_async_context(Runtime(store.open(), [first], recover=False))
        session = await one.create()
        await session.send("go")
        await kit.wait_for(session, CallStarted)
        info = two.log.get_info

        async def late_info(session_id: str) -> SessionInfo:
            two.log.get_info = info  # type: ignore[method-assign]
            await leaves.aclose()
            return await info(session_id)

        async with two.session(id=session.id) as elsewhere, elsewhere.run("and this") as run:
            two.log.get_info = late_info  # type: ignore[method-assign]
            outcome = await run.wait()
    assert outcome is not None and outcome.answer == "both"


async def test_a_session_opened_twice_keeps_its_gate_until_both_are_closed(store: Store, tables: Tables) -> None:
    agent, _ = kit.build_agent(DROP, "done", tools=tables.tools)
    async with Runtime(store.open(), [agent]) as runtime, runtime.session(gate=later) as session:
        async with runtime.session(id=session.id):
            pass
        assert await kit.run_message(session) is None, "it is asked for, and not denied"
        await session.approve("a")
        assert (await kit.wait_for(session, RunFinished)).answer == "done"


async def test_a_grant_given_when_a_session_is_opened_again_narrows_it_too(on_file: Store) -> None:
    notes = [call("note", id=name, text="x") for name in "ab"]
    run = await on_file.run_script("hi", notes[0], "ok", notes[1], "ok", tools=[note])
    async with run.agent.session(on_file.open(), grant=Grant(forbid=("note",))) as session:
        await kit.run_to_end(session)
        assert (await kit.read_finished_calls(session))["a"].status == "denied"
    async with run.agent.session(on_file.open()) as session:
        await kit.run_to_end(session)
        assert (await kit.read_finished_calls(session))["b"].status == "ok"


async def test_a_message_from_elsewhere_at_the_release_of_a_session_starts_a_run(on_file: Store) -> None:
    agent, model = kit.build_agent("one", "two")
    log, elsewhere = on_file.open(), on_file.open()
    async with agent.session(log) as session:
        kit.post_at_release(log, elsewhere, session.id, MessageReceived(id="m9", parts=(TextPart("more"),)))
        outcome = await kit.run_to_end(session, "go")
        second = await kit.wait_for(session, RunFinished, after=outcome.seq)
    assert (outcome.answer, second.answer) == ("one", "two")
    assert kit.list_user_texts(model.requests[1]) == ["go", "more"]


async def test_everybody_who_waits_learns_why_a_session_stopped(store: Store) -> None:
    held, log = HeldTool(), store.open()

    async def fail(*_: Any, **options: Any) -> None:
        raise StoreFull("the disk is full")

    async with held.open_session(log) as session, session.resume() as first, session.run("two") as second:
        waiting = [asyncio.create_task(run.wait()) for run in (first, second)]
        log.append = fail  # type: ignore[method-assign]
        held.free.set()
        failures = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE)
        del log.append
    assert [str(failure) for failure in failures] == ["the disk is full"] * 2
