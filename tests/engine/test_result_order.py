"""Results of one reply are recorded in the order of its calls, also when a later call ends first or may not run."""

import asyncio

import pytest

from tests.kit import sessions as kit
from tests.kit.sessions import PATIENCE, HeldTool, Store, note
from treadle import Grant, Limits, RunFinished, tool
from treadle.events import ApprovalRequested, CallFinished, CallStarted
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Call
from treadle.permissions.policy import Assessment
from treadle.testing import call
from treadle.testing.crash_points import cut

store = kit.either_store


@tool(safety="safe")
async def look() -> str:
    """Look."""
    return "seen"


@tool(safety="destructive")
def burn() -> str:
    """Burn it."""
    return "burnt"


CALLS = [
    call("look", id="1"),
    call("nothing", id="2"),
    call("look", id="3"),
    Call("4", "note", "no JSON"),
    call("note", id="5", text="x"),
    call("burn", id="6"),
    call("look", id="7"),
]


@pytest.mark.parametrize("limit", [50, 2])
async def test_refused_calls_are_not_reported_before_earlier_calls_of_the_same_reply(store: Store, limit: int) -> None:
    options = {"tools": [look, note, burn], "grant": Grant(forbid=("burn",)), "limits": Limits(calls=limit)}
    agent, _ = kit.build_agent(CALLS, "done", **options)
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session)
        results = kit.select_events(await session.facts(), CallFinished)
    assert [fact.call_id for fact in results] == ["1", "2", "3", "4", "5", "6", "7"]
    statuses = ["ok", "error", "ok", "error", "ok", "denied", "ok"]
    if limit == 2:
        statuses = ["ok", "error", "ok", "refused", "refused", "refused", "refused"]
    assert [fact.status for fact in results] == statuses


async def test_a_refused_call_waits_while_an_earlier_call_runs_and_questions_do_not(store: Store) -> None:
    held = HeldTool()
    calls = [call("wait", id="a"), call("nothing", id="b"), call("burn", id="c")]
    agent, _ = kit.build_agent(calls, "done", tools=[held.tool, burn], gate=kit.build_gate(None))
    async with agent.session(store.open()) as session:
        await session.send("go")
        await kit.wait_for(session, ApprovalRequested)
        assert kit.select_events(await session.facts(), CallFinished) == []
        held.free.set()
        await kit.wait_for(session, CallFinished)
        await session.deny("c")
        await kit.wait_for(session, RunFinished)
        results = kit.select_events(await session.facts(), CallFinished)
    assert [(fact.call_id, fact.status) for fact in results] == [("a", "ok"), ("b", "error"), ("c", "denied")]


async def test_results_of_parallel_calls_wait_for_the_calls_before_them(store: Store) -> None:
    held, ended = HeldTool(safety="safe"), asyncio.Event()

    @tool(safety="safe")
    async def finish() -> str:
        """End at once."""
        ended.set()
        return "finished"

    calls = [call("wait", id="a"), call("finish", id="b"), call("look", id="c"), call("nothing", id="d")]
    agent, _ = kit.build_agent(calls, "done", tools=[held.tool, look, finish])
    async with agent.session(store.open()) as session:
        await session.send("go")
        await asyncio.wait_for(ended.wait(), PATIENCE)
        assert kit.select_events(await session.facts(), CallFinished) == []
        held.free.set()
        await kit.wait_for(session, RunFinished)
        results = kit.select_events(await session.facts(), CallFinished)
    assert [(fact.call_id, fact.status) for fact in results] == [("a", "ok"), ("b", "ok"), ("c", "ok"), ("d", "error")]
    assert results[0].duration > results[1].duration


@pytest.mark.parametrize("seconds", [None, 0.3], ids=["cancelled", "out of time"])
async def test_a_stopped_run_keeps_the_results_that_waited_and_settles_every_call(
    store: Store, seconds: float | None
) -> None:
    held = HeldTool(safety="safe")
    calls = [call("wait", id="a"), call("look", id="b"), call("wait", id="c"), call("note", id="d", text="x")]
    agent, _ = kit.build_agent(calls, "done", tools=[held.tool, look, note], limits=Limits(seconds=seconds))
    async with agent.session(store.open()) as session:
        await session.send("go")
        await kit.wait_for(session, CallStarted)
        if seconds is None:
            await session.cancel()
        await kit.wait_for(session, RunFinished)
        facts = await session.facts()
    kit.check_settled(facts)
    results = [(fact.call_id, fact.status, fact.output[:4]) for fact in kit.select_events(facts, CallFinished)]
    assert results[:3] == [("a", "cancelled", "Stop"), ("b", "ok", "seen"), ("c", "cancelled", "Stop")]
    assert [result[:2] for result in results[3:]] == [("d", "cancelled")]
    assert held.starts == held.ends == 2


async def test_calls_that_run_again_after_a_crash_are_counted_and_reported_once(store: Store) -> None:
    calls = [call("look", id="1"), call("look", id="2"), call("note", id="3", text="x")]
    options = {"tools": [look, note], "limits": Limits(calls=3)}
    facts = (await store.run_script(calls, "done", **options)).facts
    for point in cut(facts):
        crashed_at = point.facts[-1]
        if isinstance(crashed_at, CallStarted | CallFinished):
            log = InMemoryLog()
            await point.plant(log)
            async with kit.build_agent("done", **options)[0].session(log, id=point.session_id) as session:
                await kit.resume_run(session)
                results = kit.select_events(await session.facts(), CallFinished)
            last = "interrupted" if isinstance(crashed_at, CallStarted) and crashed_at.call_id == "3" else "ok"
            assert [(fact.call_id, fact.status) for fact in results] == [("1", "ok"), ("2", "ok"), ("3", last)]


async def test_calls_after_one_that_is_decided_later_wait_for_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(safety="safe")
    async def move() -> str:
        """Change what later calls of this tool mean."""
        return "moved"

    monkeypatch.setattr(move, "assess", lambda *_: Assessment("safe", affects_later_calls=True))
    calls = [call("move", id="1"), call("move", id="2"), call("look", id="3")]
    run = await store.run_script(calls, "done", tools=[move, look])
    assert list(run.results) == ["1", "2", "3"]
