"""Results of one reply are recorded in the order of its calls, also of calls that may not run."""

import pytest

from tests.kit import sessions as kit
from tests.kit.sessions import HeldTool, Store, note
from treadle import Grant, Limits, RunFinished, tool
from treadle.events import ApprovalRequested, CallFinished
from treadle.messages import Call
from treadle.testing import call

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
