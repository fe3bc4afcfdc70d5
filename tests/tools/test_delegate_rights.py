"""What helpers may do: the rights, the money and the questions of a helper are its parent's, or less."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_authorize import TraitTool
from tests.kit.sessions import (
    DROP,
    PATIENCE,
    Store,
    Tables,
    build_gate,
    either_store,
    read_finished_calls,
    run_agent,
    run_to_end,
    select_events,
    some_tables,
)
from tests.kit.strict import StrictModel
from tests.tools.test_delegate import (
    DELEGATE,
    FamilyModel,
    build_parent,
    call_then_answer,
    get_helper,
    run_until_helper,
)
from treadle import Agent, Answer, Grant, Limits, Runtime, later
from treadle.engine.fold import fold
from treadle.events import ApprovalRequested, RunStarted
from treadle.log.base import Log, SessionQuery
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Usage
from treadle.testing import call, say
from treadle.tools.delegate import derive_helper_id

store, tables = either_store, some_tables


async def test_a_helper_has_no_more_rights_than_its_parent(store: Store, tables: Tables) -> None:
    def helper(task: str, turn: int) -> Any:
        if turn > 1:
            return "tried"
        return call("note", text="x") if "read" in task else DROP

    # The helper's own agent is as wide as can be. The parent may not drop, and asks for one that only reads.
    full = Grant(tier="full", yes=True)
    wide = Agent(StrictModel(FamilyModel(helper=helper)), tools=tables.tools, name="wide", grant=full)
    calls = [
        call("delegate", id="r", task="task read", agent="wide", read_only=True),
        call("delegate", id="d", task="task all", agent="wide"),
    ]
    parent = build_parent(calls, "Done.", name="narrow", grant=Grant(tier="full", yes=True, forbid=("drop",)))
    async with Runtime(store.open(), [parent, wide], recover=False) as runtime, runtime.session("narrow") as session:
        await run_to_end(session)
        [reading] = (await read_finished_calls(get_helper(session, "r"))).values()
        [dropping] = (await read_finished_calls(get_helper(session, "d"))).values()
    assert reading.status == "denied" and "read-only" in reading.output
    assert dropping.status == "denied" and "forbidden by drop" in dropping.output
    assert tables.done == []


@pytest.mark.parametrize(
    ("own", "helped", "after"),
    [
        (["fetch", "read"], ["send"], []),  # what the parent has seen may stand in the task
        (["read"], ["fetch"], ["send"]),  # what the helper has seen may stand in its answer
        ([], ["fetch", "read"], ["send"]),
    ],
)
async def test_private_data_leaves_no_easier_by_way_of_a_helper(
    own: list[str], helped: list[str], after: list[str]
) -> None:
    tools = [
        TraitTool("fetch", "untrusted", "way_out"),
        TraitTool("read", "private", safety="safe"),
        TraitTool("send", "way_out"),
    ]
    lines = [*map(call, own), DELEGATE, *map(call, after), "Done."]
    work = [*map(call, helped), "Done."]
    agent = build_parent(*lines, helper=lambda _, turn: work[turn // 2], tools=tools, gate=build_gate(Answer("deny")))
    log = InMemoryLog()
    done = await run_agent(agent, log=log)
    facts = [*done.facts, *await log.read(derive_helper_id(done.session_id, "d"))]
    assert [fact.tool for fact in select_events(facts, ApprovalRequested)] == ["send"]


async def test_a_question_of_a_helper_reaches_the_parents_gate_and_the_parent_waits(
    store: Store, tables: Tables
) -> None:
    script = call_then_answer(DROP, "It is gone.")
    agent = build_parent(DELEGATE, "Done.", helper=script, tools=tables.tools, gate=build_gate(Answer()))
    assert (await store.run_agent(agent)).results["d"].output == "It is gone."
    assert tables.done == ["users"]


async def test_a_question_of_a_helper_can_be_answered_later_from_anywhere(store: Store, tables: Tables) -> None:
    script = call_then_answer(DROP, "It is settled.")
    agent = build_parent(DELEGATE, "Done.", helper=script, tools=tables.tools, gate=later)
    async with run_until_helper(agent, ApprovalRequested, store.open()) as (session, helper, waiting):
        await helper.deny("a", "keep it")
        outcome = await asyncio.wait_for(waiting, PATIENCE)
        assert outcome is not None and outcome.answer == "Done."
        assert (await read_finished_calls(session))["d"].output == "It is settled."
    assert tables.done == []


async def test_helpers_of_helpers_come_to_an_end() -> None:
    def helper(task: str, turn: int) -> Any:
        return call("delegate", id="d", task=f"{task} deeper") if turn == 1 else "ok"

    log = InMemoryLog()
    assert (await run_agent(build_parent(DELEGATE, "Done.", helper=helper), log=log)).answer == "Done."
    page = await log.list_sessions(SessionQuery())
    assert len(page.sessions) == 4, "the parent, and helpers three deep"


async def read_limits(log: Log, session_id: str, call_id: str) -> Limits:
    return select_events(await log.read(derive_helper_id(session_id, call_id)), RunStarted)[0].limits


async def test_a_helper_gets_what_the_parent_has_left_of_its_money() -> None:
    log = InMemoryLog()
    agent = build_parent(say("", DELEGATE, usage=Usage(10, 1, cost=0.75)), "Done.", limits=Limits(cost=1.0))
    done = await run_agent(agent, log=log)
    helper = fold(await log.read(derive_helper_id(done.session_id, "d")))
    assert (await read_limits(log, done.session_id, "d")).cost == 0.25 and helper.usage.cost == 0.5
    assert done.reason == "cost_limit", "what the helper spent counts"


async def test_helpers_that_run_at_once_share_what_is_left() -> None:
    log = InMemoryLog()
    calls = [call("delegate", id=name, task=f"task {name}") for name in "abcd"]
    limits = Limits(cost=1.0, tokens=1000, seconds=600)
    agent = build_parent(say("", *calls, usage=Usage(10, 100, cost=0.2)), "Done.", limits=limits)
    done = await run_agent(agent, log=log)
    shares = [await read_limits(log, done.session_id, name) for name in "abcd"]
    assert sum(one.cost or 9 for one in shares) <= 0.8 + 1e-6 and all(one.cost for one in shares)
    assert sum(one.tokens or 9999 for one in shares) <= 900 and all((one.seconds or 999) < 600 for one in shares)


async def test_bad_tasks_are_answered_to_the_model(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").symlink_to("/")
    script = [
        call("delegate", id="a", task=" "),
        call("delegate", id="b", task="x", agent="nobody"),
        call("delegate", id="c", task="x", folder="../.."),
        call("delegate", id="e", task="x", folder="out"),
        call("delegate", id="f", task="task x", folder="in"),
        "Done.",
    ]
    log = InMemoryLog()
    done = await run_agent(build_parent(*script), log=log, workspace=tmp_path)
    outputs = {name: fact.output for name, fact in done.results.items()}
    child = await log.get_info(derive_helper_id(done.session_id, "f"))
    assert len((await log.list_sessions(SessionQuery(parent=done.session_id))).sessions) == 1
    assert "empty" in outputs["a"] and "The agents are: agent" in outputs["b"]
    assert "no folder inside" in outputs["c"] and "no folder inside" in outputs["e"]
    assert outputs["f"] == "ok" and child.workspace == str((tmp_path / "in").resolve())


async def test_the_latest_session_of_an_agent_is_never_a_helpers(store: Store) -> None:
    log = store.open()
    agent = build_parent(DELEGATE, "Done.", "Again.")
    done = await run_agent(agent, log=log)
    async with agent.session(log) as again:
        assert again.id == done.session_id
