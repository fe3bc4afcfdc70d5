"""What helpers may do: the rights, the money and the questions of a helper are its parent's, or less."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_authorize import Traited
from tests.kit.sessions import (
    PATIENCE,
    Store,
    build_gate,
    either_store,
    read_finished_calls,
    run_to_end,
    select_events,
    wait_for,
)
from tests.kit.strict import StrictModel
from tests.tools.test_delegate import Crew, child_of, children, crew
from treadle import Agent, Answer, CallFinished, Grant, Limits, Runtime, Session, later, tool
from treadle.events import ApprovalRequested, RunStarted
from treadle.log.base import SessionQuery
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Usage
from treadle.testing import call, say
from treadle.tools.delegate import derive_helper_id

store = either_store


async def test_a_helper_has_no_more_rights_than_its_parent(store: Store) -> None:
    @tool(safety="destructive")
    def erase(path: str) -> str:
        """Erase a file."""
        raise AssertionError("it ran")

    @tool
    def change(path: str) -> str:
        """Change a file."""
        raise AssertionError("it ran")

    def helped(task: str, turn: int) -> Any:
        return call("change" if "read" in task else "erase", id="c", path="x") if turn == 1 else "tried"

    # The helper's own agent is as wide as can be; the parent may not erase, and asks for one that only reads.
    full = Grant(tier="full", yes=True)
    wide = Agent(StrictModel(Crew(helped=helped)), tools=[erase, change], name="wide", grant=full)
    calls = [
        call("delegate", id="r", task="task read", agent="wide", read_only=True),
        call("delegate", id="d", task="task all", agent="wide"),
    ]
    parent = crew(calls, "Done.", name="narrow", grant=Grant(tier="full", yes=True, forbid=("erase",)))
    log = store.open()
    async with Runtime(log, [parent, wide], recover=False) as runtime, runtime.session("narrow") as session:
        await run_to_end(session, "go")
        told = {
            one: select_events(await log.read(derive_helper_id(session.id, one)), CallFinished)[0] for one in ("r", "d")
        }
    assert told["r"].status == "denied" and "read-only" in told["r"].output
    assert told["d"].status == "denied" and "forbidden by erase" in told["d"].output


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
        Traited("fetch", "untrusted", "way_out"),
        Traited("read", "private", safety="safe"),
        Traited("send", "way_out"),
    ]
    lines = (
        [call(name) for name in own] + [call("delegate", task="task x")] + [call(name) for name in after] + ["Done."]
    )
    work = [*(call(name) for name in helped), "Done."]
    agent = crew(*lines, helped=lambda _, turn: work[turn // 2], tools=tools, gate=build_gate(Answer("deny")))
    log = InMemoryLog()
    async with agent.session(log) as session:
        await run_to_end(session, "go")
        facts = [*await session.facts()]
        for child in await children(log, session):
            facts += await log.read(child.id)
    assert [fact.tool for fact in select_events(facts, ApprovalRequested)] == ["send"]


async def test_what_a_helper_asks_reaches_the_parents_gate_and_the_parent_waits(store: Store) -> None:
    done: list[str] = []

    @tool(safety="destructive")
    def erase(path: str) -> str:
        """Erase a file."""
        done.append(path)
        return "erased"

    def helped(task: str, turn: int) -> Any:
        return call("erase", id="e", path="x") if turn == 1 else "It is gone."

    agent = crew(
        call("delegate", id="d", task="task x"), "Done.", helped=helped, tools=[erase], gate=build_gate(Answer())
    )
    async with agent.session(store.open()) as session:
        await run_to_end(session, "go")
        assert (await read_finished_calls(session))["d"].output == "It is gone."
    assert done == ["x"]


async def test_a_question_of_a_helper_can_be_answered_later_from_anywhere(store: Store) -> None:
    @tool(safety="destructive")
    def erase(path: str) -> str:
        """Erase a file."""
        return "erased"

    def helped(task: str, turn: int) -> Any:
        return call("erase", id="e", path="x") if turn == 1 else "It is settled."

    agent = crew(call("delegate", id="d", task="task x"), "Done.", helped=helped, tools=[erase], gate=later)
    async with agent.session(store.open()) as session, session.run("go") as run:
        waiting = asyncio.create_task(run.wait())
        child = await child_of(session, "d")
        await wait_for(child, ApprovalRequested)
        await child.deny("e", "keep it")
        outcome = await asyncio.wait_for(waiting, PATIENCE)
        assert outcome is not None and outcome.answer == "Done."
        assert (await read_finished_calls(session))["d"].output == "It is settled."


async def test_helpers_of_helpers_come_to_an_end() -> None:
    def helped(task: str, turn: int) -> Any:
        return call("delegate", id="d", task=f"{task} deeper") if turn == 1 else "ok"

    log = InMemoryLog()
    agent = crew(call("delegate", id="d", task="task"), "Done.", helped=helped)
    async with agent.session(log) as session:
        assert (await run_to_end(session, "go")).answer == "Done."
        page = await log.list_sessions(SessionQuery())
    assert len(page.sessions) == 4, "the parent, and helpers three deep"


async def test_a_helper_gets_what_the_parent_has_left_of_its_money() -> None:
    log = InMemoryLog()
    agent = crew(
        say("", call("delegate", id="d", task="task x"), usage=Usage(10, 1, cost=0.75)),
        "Done.",
        helped=lambda task, turn: "ok",
        limits=Limits(cost=1.0),
    )
    async with agent.session(log) as session:
        outcome = await run_to_end(session, "go")
        child = await Session(session._coordinator, agent, derive_helper_id(session.id, "d")).state()  # pyright: ignore[reportPrivateUsage]
        [begin] = [fact for fact in await log.read(derive_helper_id(session.id, "d")) if hasattr(fact, "run_id")][:1]
    assert begin.limits.cost == 0.25 and child.usage.cost == 0.5  # type: ignore[union-attr]
    assert outcome.reason == "cost_limit", "what the helper spent counts"


async def test_helpers_that_run_at_once_share_what_is_left() -> None:
    log = InMemoryLog()
    calls = [call("delegate", id=name, task=f"task {name}") for name in "abcd"]
    agent = crew(
        say("", *calls, usage=Usage(10, 100, cost=0.2)),
        "Done.",
        helped=lambda task, turn: "ok",
        limits=Limits(cost=1.0, tokens=1000, seconds=600),
    )
    async with agent.session(log) as session:
        await run_to_end(session, "go")
        begun = [
            select_events(await log.read(derive_helper_id(session.id, name)), RunStarted)[0].limits for name in "abcd"
        ]
    assert sum(one.cost or 9 for one in begun) <= 0.8 + 1e-6 and all(one.cost for one in begun)
    assert sum(one.tokens or 9999 for one in begun) <= 900 and all((one.seconds or 999) < 600 for one in begun)


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
    agent = crew(*script, helped=lambda task, turn: "ok")
    async with agent.session(log, workspace=tmp_path) as session:
        await run_to_end(session, "go")
        outputs = {name: fact.output for name, fact in (await read_finished_calls(session)).items()}
        [child] = await children(log, session)
    assert "empty" in outputs["a"] and "The agents are: agent" in outputs["b"]
    assert "no folder inside" in outputs["c"] and "no folder inside" in outputs["e"]
    assert outputs["f"] == "ok" and child.workspace == str((tmp_path / "in").resolve())


async def test_the_latest_session_of_an_agent_is_never_a_helpers(store: Store) -> None:
    log = store.open()
    agent = crew(call("delegate", task="task x"), "Done.", "Again.", helped=lambda task, turn: "ok")
    async with agent.session(log) as session:
        await run_to_end(session, "go")
    async with agent.session(log) as again:
        assert again.id == session.id
