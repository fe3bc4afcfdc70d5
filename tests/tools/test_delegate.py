"""Helpers: a session of their own for a part of the work, no more rights than their parent's, and one result each."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import (
    PATIENCE,
    HeldTool,
    Store,
    either_store,
    read_finished_calls,
    resume_run,
    run_to_end,
    select_events,
    select_results,
    wait_for,
)
from tests.kit.strict import StrictModel
from treadle import Agent, CallFinished, CallStarted, Limits, RunFinished, Runtime, Session, ToolContext, later, tool
from treadle.errors import ModelError
from treadle.events import (
    AnyFact,
    ApprovalRequested,
    CancelRequested,
    Custom,
    MessageReceived,
    ModelReplied,
    Progress,
    SessionCreated,
)
from treadle.log.base import Log, SessionQuery
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Request, Usage, UserMessage, render_parts
from treadle.runtime import MAX_PARALLEL_HELPERS
from treadle.testing import ScriptedModel, call, crash_points, say
from treadle.tools.delegate import build_delegate_tool, derive_helper_id

store = either_store


def first_words(request: Request) -> str:
    first = request.messages[0]
    assert isinstance(first, UserMessage)
    return render_parts(first.parts)


class Crew(ScriptedModel):
    """One model for parent and helpers: `lines` for the parent, `helped(task, turn)` for whoever has a task."""

    def __init__(self, *lines: Any, helped: Any = None, spent: Usage | None = None) -> None:
        super().__init__(*lines)
        self._helped, self._spent = helped, spent or Usage(100, 10, cost=0.5)

    async def stream(self, request: Request) -> Any:
        if self._helped is None or not first_words(request).startswith("task"):
            async for event in super().stream(request):
                yield event
            return
        line = self._helped(first_words(request), len(request.messages))
        line = await line if asyncio.iscoroutine(line) else line
        if isinstance(line, Exception):
            raise line
        inner = ScriptedModel(say(line, usage=self._spent) if isinstance(line, str) else line)
        async for event in inner.stream(request):
            yield event


def crew(*lines: Any, helped: Any = None, tools: Any = (), **options: Any) -> Agent:
    return Agent(StrictModel(Crew(*lines, helped=helped)), tools=[build_delegate_tool(), *tools], **options)


async def children(log: Log, session: Session) -> list[Any]:
    return list((await log.list_sessions(SessionQuery(parent=session.id))).sessions)


async def child_of(session: Session, call_id: str) -> Session:
    """The session of a helper, as soon as there is one."""
    await wait_for(session, Custom, lambda fact: fact.name == f"treadle.helper.{call_id}")
    return Session(session._coordinator, session.agent, derive_helper_id(session.id, call_id))  # pyright: ignore[reportPrivateUsage]


async def test_what_a_helper_does_is_seen_live_under_its_parent() -> None:
    @tool(safety="safe")
    def look() -> str:
        """Look."""
        return "seen"

    helped: Any = lambda task, turn: call("look") if turn == 1 else "ok"  # noqa: E731
    agent = crew(call("delegate", id="d", task="task x"), "Done.", helped=helped, tools=[look])
    async with agent.session() as session, session.run("go") as run:
        told = [event.message for event in [event async for event in run] if isinstance(event, Progress)]
    assert told == ["agent: turn 1", "agent: look", "agent: turn 2"]


async def test_a_helper_has_its_own_log_and_only_its_answer_comes_back(store: Store) -> None:
    agent = crew(call("delegate", id="d", task="task one"), "All done.", helped=lambda task, turn: f"did {task}")
    log = store.open()
    async with agent.session(log) as session:
        outcome = await run_to_end(session, "go")
        [child] = await children(log, session)
        facts = await log.read(child.id)
        parent = await session.facts()
    assert outcome.answer == "All done."
    assert select_results(agent.model.requests[-1])["d"].text == "did task one"  # type: ignore[union-attr]
    created = facts[0]
    assert isinstance(created, SessionCreated) and created.parent is not None
    assert (created.parent.session_id, created.parent.call_id, child.id) == (
        session.id,
        "d",
        derive_helper_id(session.id, "d"),
    )
    assert [render_parts(fact.parts) for fact in select_events(facts, MessageReceived)] == ["task one"]
    [note] = [fact for fact in select_events(parent, Custom) if fact.name.startswith("treadle.helper.")]
    assert note.data["session_id"] == child.id and child.name == "task one"


async def test_what_helpers_cost_adds_up_in_the_parents_run(store: Store) -> None:
    lines = [(call("delegate", task="task a"), call("delegate", task="task b")), "Done."]
    agent = crew(*lines, helped=lambda task, turn: task)
    async with agent.session(store.open()) as session:
        outcome = await run_to_end(session, "go")
        state = await session.state()
    assert outcome.usage.cost == state.usage.cost == 1.0
    assert outcome.usage.output_tokens >= 20


async def test_five_at_once_one_broken_one_cancelled_one_over_its_limit_give_one_result_each(store: Store) -> None:
    began: set[str] = set()
    all_began, free = asyncio.Event(), asyncio.Event()

    async def helped(task: str, turn: int) -> Any:
        began.add(task)
        if len(began) == MAX_PARALLEL_HELPERS:
            all_began.set()
        await asyncio.wait_for(free.wait() if "cancel" not in task else asyncio.Event().wait(), PATIENCE * 2)
        if "broken" in task:
            return ModelError("the model died", kind="internal")
        if "endless" in task:
            return call("look", page=turn)
        return f"did {task}"

    @tool(safety="safe")
    def look(page: int) -> str:
        """Look at a page."""
        return f"page {page}"

    names = ["task fine", "task broken", "task cancel", "task endless", "task good"]
    calls = [call("delegate", id=name, task=name) for name in names]
    agent = crew(calls, "Done.", helped=helped, tools=[look], limits=Limits(turns=4))
    log = store.open()
    async with agent.session(log) as session, session.run("go") as run:
        waiting = asyncio.create_task(run.wait())
        await asyncio.wait_for(all_began.wait(), PATIENCE)
        child = Session(session._coordinator, agent, derive_helper_id(session.id, "task cancel"))  # pyright: ignore[reportPrivateUsage]
        free.set()
        await child.cancel(by="somebody")
        outcome = await asyncio.wait_for(waiting, PATIENCE * 2)
        done = await read_finished_calls(session)
        tree = await children(log, session)
        costs = [ending.usage.cost for one in tree for ending in select_events(await log.read(one.id), RunFinished)]
    assert outcome is not None and outcome.reason == "answered"
    assert {name: fact.status for name, fact in done.items()} == {
        "task fine": "ok",
        "task broken": "error",
        "task cancel": "error",
        "task endless": "error",
        "task good": "ok",
    }
    assert "the model died" in done["task broken"].output and "cancelled by somebody" in done["task cancel"].output
    assert "turn limit" in done["task endless"].output
    assert sorted(one.status for one in tree) == ["answered", "answered", "cancelled", "failed", "stopped"]
    assert outcome.usage.cost == pytest.approx(sum(costs))


async def test_no_more_than_five_run_at_once(store: Store) -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def helped(task: str, turn: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == MAX_PARALLEL_HELPERS:
            full.set()
        await asyncio.wait_for(full.wait(), PATIENCE)
        for _ in range(20):  # in which one too many would come in
            await asyncio.sleep(0)
        running -= 1
        return "ok"

    calls = [call("delegate", task=f"task {number}") for number in range(12)]
    agent = crew(calls, "Done.", helped=helped)
    async with agent.session(store.open()) as session:
        assert (await run_to_end(session, "go")).calls == 12
    assert most == MAX_PARALLEL_HELPERS


async def test_cancel_goes_down_the_tree(store: Store) -> None:
    held = HeldTool()
    agent = crew(call("delegate", id="d", task="task x"), helped=lambda task, turn: call("wait"), tools=[held.tool])
    log = store.open()
    async with agent.session(log) as session, session.run("go") as run:
        waiting = asyncio.create_task(run.wait())
        await wait_for(await child_of(session, "d"), CallStarted)
        outcome = await session.cancel()
        await waiting
        [child] = await children(log, session)
        facts = await log.read(child.id)
    assert outcome is not None and outcome.reason == "cancelled"
    assert [ending.reason for ending in select_events(facts, RunFinished)] == ["cancelled"]
    assert select_events(facts, CallFinished)[0].status == "cancelled"


async def test_a_parent_is_not_stopped_before_its_helper_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.engine.tool_call.GRACE_SECONDS", 0.05)
    let_go = asyncio.Event()

    @tool(name="wait")
    async def slow_to_stop() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await let_go.wait()
        return "never"

    slow_to_stop.ends_when_cancelled = True
    agent = crew(call("delegate", id="d", task="task x"), helped=lambda task, turn: call("wait"), tools=[slow_to_stop])
    async with agent.session() as session, session.run("go") as run:
        waiting = asyncio.create_task(run.wait())
        child = await child_of(session, "d")
        await wait_for(child, CallStarted)
        cancelling = asyncio.create_task(session.cancel())
        await wait_for(child, CancelRequested)
        early, _ = await asyncio.wait([cancelling], timeout=0.5)  # ten times what another tool is given
        let_go.set()
        await asyncio.gather(cancelling, waiting)
        endings = select_events(await child.facts(), RunFinished)
    assert not early and [ending.reason for ending in endings] == ["cancelled"]


async def test_a_helper_that_waits_for_an_answer_is_cancelled_with_its_parent(store: Store) -> None:
    @tool(safety="destructive")
    def erase(path: str) -> str:
        """Erase a file."""
        raise AssertionError("it ran")

    agent = crew(
        call("delegate", id="d", task="task x"),
        helped=lambda task, turn: call("erase", id="e", path="x"),
        tools=[erase],
        gate=later,
    )
    log = store.open()
    async with agent.session(log) as session, session.run("go") as run:
        waiting = asyncio.create_task(run.wait())
        child = await child_of(session, "d")
        await wait_for(child, ApprovalRequested)
        outcome = await session.cancel()
        await waiting
        assert outcome is not None and outcome.reason == "cancelled"
        ending = await wait_for(child, RunFinished)
    assert ending.reason == "cancelled" and "its parent was stopped" in ending.error


async def test_a_helper_whose_run_is_killed_goes_on_and_gives_one_result(store: Store) -> None:
    held = HeldTool()

    def helped(task: str, turn: int) -> Any:
        return call("wait", id="w") if turn == 1 else "did it after all"

    agent = crew(call("delegate", id="d", task="task x"), "Done.", helped=helped, tools=[held.tool])
    log = store.open()
    async with agent.session(log) as session, session.run("go") as run:
        waiting = asyncio.create_task(run.wait())
        child = await child_of(session, "d")
        await wait_for(child, CallStarted)
        running = session._coordinator._entries[child.id].task  # pyright: ignore[reportPrivateUsage]
        assert running is not None and running.cancel()
        outcome = await asyncio.wait_for(waiting, PATIENCE)
        done = await read_finished_calls(session)
        facts = await child.facts()
    assert outcome is not None and outcome.answer == "Done." and done["d"].output == "did it after all"
    assert [fact.status for fact in select_events(facts, CallFinished)] == ["interrupted"] and len(
        select_events(facts, RunFinished)
    ) == 1


WORKER = """
import asyncio, os, signal, sys
sys.path.insert(0, {root!r})
from tests.tools.test_delegate import tree_agent

async def main():
    async with tree_agent().session("tree.db", workspace=".") as session, session.run("go") as run:
        async for event in run:
            if {where}:
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@tool
def mark(name: str, context: ToolContext) -> str:
    """Leave a mark."""
    with (context.workspace / "marks.txt").open("a", encoding="utf-8") as marks:
        marks.write(f"{name}\n")
    return f"marked {name}"


def tree_agent() -> Agent:
    """A parent with three helpers, each of which leaves a mark."""
    calls = [call("delegate", id=f"d{number}", task=f"task {number}") for number in range(3)]

    def parent(request: Request) -> Any:
        return calls if len(request.messages) == 1 else "All marked."

    def helped(task: str, turn: int) -> Any:
        return call("mark", name=task) if turn == 1 else f"{task} is marked"

    return crew(parent, parent, parent, helped=helped, tools=[mark])


@pytest.mark.parametrize(
    "where", ["type(event).__name__ == 'CallStarted'", "'mark' in str(event)", "type(event).__name__ == 'CallFinished'"]
)
async def test_after_kill_9_the_same_helpers_go_on_and_no_mark_is_left_twice(where: str, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    program = WORKER.format(root=root, where=where)
    died = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], cwd=tmp_path, timeout=500, check=False
    )
    assert died.returncode == -signal.SIGKILL
    async with tree_agent().session(tmp_path / "tree.db") as session:
        outcome = await resume_run(session)
        done = await read_finished_calls(session)
        tree = await children(session.log, session)
    assert outcome is not None and outcome.answer == "All marked."
    assert {fact.output for fact in done.values()} == {f"task {number} is marked" for number in range(3)}
    assert sorted(one.id for one in tree) == sorted(derive_helper_id(session.id, f"d{number}") for number in range(3))
    marks = (tmp_path / "marks.txt").read_text().split("\n") if (tmp_path / "marks.txt").exists() else []
    assert len(marks) == len(set(marks))


async def test_closing_the_runtime_leaves_the_helper_to_be_resumed_and_not_started_again(tmp_path: Path) -> None:
    held, path = HeldTool(), tmp_path / "tree.db"

    def helped(task: str, turn: int) -> Any:
        return call("wait") if turn == 1 else f"did {task} at last"

    agent = crew(call("delegate", id="d", task="task x"), "Done.", helped=helped, tools=[held.tool])
    async with agent.session(path) as session:
        await session.send("go")
        child_id = derive_helper_id(session.id, "d")
        await wait_for(await child_of(session, "d"), CallStarted)
    again = crew("Done.", helped=helped, tools=[HeldTool().tool])
    async with again.session(path, id=session.id) as session:
        outcome = await resume_run(session)
        log = session._log  # pyright: ignore[reportPrivateUsage]
        tree, facts = await children(log, session), await log.read(child_id)
        done = await read_finished_calls(session)
    assert outcome is not None and outcome.answer == "Done."
    assert [one.id for one in tree] == [child_id] and select_events(facts, CancelRequested) == []
    assert done["d"].output == "did task x at last"
    assert [fact.status for fact in select_events(facts, CallFinished)] == ["interrupted"], (
        "its own call is not run again"
    )


async def test_a_helper_may_wait_for_an_answer_through_any_number_of_restarts(tmp_path: Path) -> None:
    done: list[str] = []

    @tool(safety="destructive")
    def erase(path: str) -> str:
        """Erase a file."""
        done.append(path)
        return "erased"

    def helped(task: str, turn: int) -> Any:
        return call("erase", id="e", path="x") if turn == 1 else "erased it"

    store, options = tmp_path / "tree.db", {"helped": helped, "tools": [erase], "gate": later}
    async with crew(call("delegate", id="d", task="task x"), **options).session(store) as session:
        await session.send("go")
        await wait_for(await child_of(session, "d"), ApprovalRequested)
        seq = (await session.state()).seq
    for _ in range(5):
        async with Runtime(store, [crew("Done.", **options)]) as runtime:
            again = await wait_for(await runtime.open(session.id), CallStarted | CallFinished, after=seq)
            assert isinstance(again, CallStarted)
            seq = again.seq
    async with Runtime(store, [crew("Done.", **options)]) as runtime:
        parent, child = await runtime.open(session.id), await runtime.open(derive_helper_id(session.id, "d"))
        await child.approve("e")
        assert (await wait_for(parent, RunFinished)).answer == "Done."
        assert ((await read_finished_calls(parent))["d"].output, done) == ("erased it", ["x"])


async def test_after_a_cut_at_any_fact_of_the_parent_there_is_one_child_and_one_answer() -> None:
    log = InMemoryLog()
    agent = crew(call("delegate", id="d", task="task x"), "Done.", helped=lambda task, turn: "did it")
    async with agent.session(log) as session:
        await run_to_end(session, "go")
        points = await crash_points(session)
        child_facts = list(await log.read(derive_helper_id(session.id, "d")))
    for point in points:
        for length in {0, 3, len(child_facts)}:  # the child did not exist yet, had just been made, or was done
            other = InMemoryLog()
            await point.plant(other)
            started = any(isinstance(fact, CallStarted) for fact in point.facts)
            if length and started:
                await other.create(derive_helper_id(session.id, "d"), fresh(child_facts[:length]))
            called = any(isinstance(fact, ModelReplied) for fact in point.facts)
            lines = ["Done."] if called else [call("delegate", id="d", task="task x"), "Done."]
            again = crew(*lines, "More.", helped=lambda task, turn: "did it")
            async with again.session(other, id=point.session_id) as reopened:
                await resume_run(reopened)
                if not any(isinstance(fact, MessageReceived) for fact in point.facts):
                    continue
                done = await read_finished_calls(reopened)
                assert len(await children(other, reopened)) <= 1
                assert done["d"].output == "did it", point


def fresh(facts: list[AnyFact]) -> list[AnyFact]:
    import msgspec

    return [msgspec.structs.replace(fact, seq=0) for fact in facts]
