"""Helpers: a session of their own for a part of the work, no more rights than their parent's, and one result each."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.sessions import (
    DROP,
    PATIENCE,
    HeldTool,
    Store,
    Tables,
    either_store,
    read_finished_calls,
    resume_run,
    run_to_end,
    select_events,
    some_tables,
    wait_for,
)
from tests.kit.strict import StrictModel
from treadle import Agent, CallFinished, CallStarted, Limits, RunFinished, Runtime, Session, ToolContext, later, tool
from treadle.errors import ModelError
from treadle.events import (
    ApprovalRequested,
    CancelRequested,
    Custom,
    MessageReceived,
    ModelReplied,
    Progress,
    SessionCreated,
)
from treadle.log.base import Log, SessionInfo, SessionQuery
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Request, Usage, UserMessage, render_parts
from treadle.runtime import MAX_PARALLEL_HELPERS
from treadle.testing import ScriptedModel, SteppingClock, call, crash_points, say
from treadle.tools.delegate import build_delegate_tool, derive_helper_id

store, tables = either_store, some_tables
DELEGATE = call("delegate", id="d", task="task x")
HelperScript = Callable[[str, int], Any]
"""What a helper says, by its task and the number of messages so far."""


def read_task(request: Request) -> str:
    first = request.messages[0]
    assert isinstance(first, UserMessage)
    return render_parts(first.parts)


class FamilyModel(ScriptedModel):
    """One model for parent and helpers: `lines` for the parent, `helper` for every session with a task."""

    def __init__(self, *lines: Any, helper: HelperScript | None = None) -> None:
        super().__init__(*lines)
        self._helper = helper

    async def stream(self, request: Request) -> Any:
        if self._helper is None or not read_task(request).startswith("task"):
            async for event in super().stream(request):
                yield event
            return
        line = self._helper(read_task(request), len(request.messages))
        line = await line if asyncio.iscoroutine(line) else line
        if isinstance(line, Exception):
            raise line
        inner = ScriptedModel(say(line, usage=Usage(100, 10, cost=0.5)) if isinstance(line, str) else line)
        async for event in inner.stream(request):
            yield event


def build_parent(*lines: Any, helper: Any = "ok", tools: Any = (), **options: Any) -> Agent:
    """Build an agent that can delegate. A helper has a script, or always gives the same answer."""
    script = helper if callable(helper) else lambda task, turn: helper
    model = StrictModel(FamilyModel(*lines, helper=script))
    return Agent(model, tools=[build_delegate_tool(), *tools], **options)


def call_then_answer(first: Any, answer: str) -> HelperScript:
    return lambda task, turn: first if turn == 1 else answer


async def list_helpers(log: Log, session: Session) -> list[SessionInfo]:
    return list((await log.list_sessions(SessionQuery(parent=session.id))).sessions)


def get_helper(session: Session, call_id: str = "d") -> Session:
    return Session(session._coordinator, session.agent, derive_helper_id(session.id, call_id))  # pyright: ignore[reportPrivateUsage]


async def wait_for_helper(session: Session, call_id: str = "d") -> Session:
    await wait_for(session, Custom, lambda fact: fact.name == f"treadle.helper.{call_id}")
    return get_helper(session, call_id)


@asynccontextmanager
async def run_until_helper(
    agent: Agent, kind: type[Any], log: Log | str = ":memory:"
) -> AsyncIterator[tuple[Session, Session, asyncio.Task[RunFinished | None]]]:
    """Run a parent until its helper has a fact. Yield both sessions and the task that waits for the parent's end."""
    async with agent.session(log) as session, session.run("go") as run:
        waiting = asyncio.create_task(run.wait())
        helper = await wait_for_helper(session)
        await wait_for(helper, kind)
        yield session, helper, waiting


async def test_the_work_of_a_helper_is_seen_live_under_its_parent() -> None:
    @tool(safety="safe")
    def look() -> str:
        """Look."""
        return "seen"

    agent = build_parent(DELEGATE, "Done.", helper=call_then_answer(call("look"), "ok"), tools=[look])
    async with agent.session() as session, session.run("go") as run:
        messages = [event.message for event in [event async for event in run] if isinstance(event, Progress)]
    assert messages == ["running look", "ok look"]


async def test_a_helper_has_its_own_log_and_only_its_answer_comes_back(store: Store) -> None:
    log = store.open()
    done = await store.run_agent(build_parent(DELEGATE, "All done.", helper=lambda task, turn: f"did {task}"))
    assert done.answer == "All done." and done.messages["d"].text == "did task x"
    helper_id = derive_helper_id(done.session_id, "d")
    facts, info = await log.read(helper_id), await log.get_info(helper_id)
    created = facts[0]
    assert isinstance(created, SessionCreated) and created.parent is not None
    assert (created.parent.session_id, created.parent.call_id, info.name) == (done.session_id, "d", "task x")
    assert [render_parts(fact.parts) for fact in select_events(facts, MessageReceived)] == ["task x"]
    [note] = [fact for fact in done.select(Custom) if fact.name.startswith("treadle.helper.")]
    assert note.data["session_id"] == helper_id


async def test_five_at_once_one_broken_one_cancelled_one_over_its_limit_give_one_result_each(store: Store) -> None:
    began: set[str] = set()
    all_began, free = asyncio.Event(), asyncio.Event()

    async def help_with(task: str, turn: int) -> Any:
        began.add(task)
        if len(began) == MAX_PARALLEL_HELPERS:
            all_began.set()
        await asyncio.wait_for(free.wait() if "cancel" not in task else asyncio.Event().wait(), PATIENCE * 2)
        if "broken" in task:
            return ModelError("the model died", kind="internal")
        if "endless" in task:
            return say("", call("look", page=turn), usage=Usage(100, 10, cost=0.5))
        return f"did {task}"

    @tool(safety="safe")
    def look(page: int) -> str:
        """Look at a page."""
        return f"page {page}"

    names = ["task fine", "task broken", "task cancel", "task endless", "task good"]
    calls = [call("delegate", id=name, task=name) for name in names]
    agent = build_parent(calls, "Done.", helper=help_with, tools=[look], limits=Limits(turns=4))
    log = store.open()
    async with agent.session(log) as session, session.run("go") as run:
        waiting = asyncio.create_task(run.wait())
        await asyncio.wait_for(all_began.wait(), PATIENCE)
        free.set()
        await get_helper(session, "task cancel").cancel(by="somebody")
        outcome = await asyncio.wait_for(waiting, PATIENCE * 2)
        done = await read_finished_calls(session)
        tree, usage = await list_helpers(log, session), (await session.state()).usage
        costs = [ending.usage.cost for one in tree for ending in select_events(await log.read(one.id), RunFinished)]
    assert outcome is not None and outcome.reason == "answered"
    assert [done[name].status for name in names] == ["ok", "error", "error", "error", "ok"]
    assert "the model died" in done["task broken"].output and "cancelled by somebody" in done["task cancel"].output
    assert "turn limit" in done["task endless"].output
    assert sorted(one.status for one in tree) == ["answered", "answered", "cancelled", "failed", "stopped"]
    assert outcome.usage.cost == usage.cost == pytest.approx(sum(costs)) and sum(costs) > 1.0
    assert outcome.usage.output_tokens >= 20


async def test_no_more_than_five_run_at_once(store: Store) -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def help_with(task: str, turn: int) -> str:
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
    assert (await store.run_agent(build_parent(calls, "Done.", helper=help_with))).outcome.calls == 12
    assert most == MAX_PARALLEL_HELPERS


@pytest.mark.parametrize(
    ("work", "kind", "reason"),
    [(call("wait"), CallStarted, "cancelled"), (DROP, ApprovalRequested, "its parent was stopped")],
)
async def test_a_helper_that_works_or_waits_for_an_answer_is_cancelled_with_its_parent(
    store: Store, tables: Tables, work: Any, kind: type[Any], reason: str
) -> None:
    agent = build_parent(DELEGATE, helper=lambda task, turn: work, tools=[HeldTool().tool, *tables.tools], gate=later)
    async with run_until_helper(agent, kind, store.open()) as (session, helper, waiting):
        outcome = await session.cancel()
        await waiting
        await wait_for(helper, RunFinished)
        facts = await helper.facts()
    (ending,) = select_events(facts, RunFinished)
    assert outcome is not None and outcome.reason == ending.reason == "cancelled"
    assert reason in ending.error and tables.done == []
    assert [fact.status for fact in select_events(facts, CallFinished)] == ["cancelled"]


async def test_a_parent_is_not_stopped_before_its_helper_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.engine.tool_call.GRACE_SECONDS", 0.05)
    release = asyncio.Event()

    @tool(name="wait")
    async def stop_slowly() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
        return "never"

    stop_slowly.ends_when_cancelled = True
    agent = build_parent(DELEGATE, helper=lambda task, turn: call("wait"), tools=[stop_slowly])
    async with run_until_helper(agent, CallStarted) as (session, helper, waiting):
        cancelling = asyncio.create_task(session.cancel())
        await wait_for(helper, CancelRequested)
        early, _ = await asyncio.wait([cancelling], timeout=0.5)  # ten times what another tool is given
        release.set()
        await asyncio.gather(cancelling, waiting)
        endings = select_events(await helper.facts(), RunFinished)
    assert not early and [ending.reason for ending in endings] == ["cancelled"]


async def test_a_parent_that_was_taken_over_does_not_cancel_its_helper() -> None:
    now = 1000.0
    log = InMemoryLog(clock=lambda: now)
    agent = build_parent(DELEGATE, helper=lambda task, turn: call("wait"), tools=[HeldTool().tool])
    async with run_until_helper(agent, CallStarted, log) as (session, helper, waiting):
        now += 1000
        theirs = await log.claim("another process", 30, session.id)
        running = session._coordinator._entries[session.id].task  # pyright: ignore[reportPrivateUsage]
        assert theirs is not None and running is not None and running.cancel()  # as the failed renewal does
        await asyncio.wait([running])
        assert not select_events(await helper.facts(), CancelRequested)
        await log.release(theirs, None)
        waiting.cancel()


async def test_a_session_that_has_the_id_of_a_helper_is_not_taken_for_it(store: Store) -> None:
    agent, log = build_parent(DELEGATE, "Done."), store.open()
    async with agent.session(log) as session:
        stranger = derive_helper_id(session.id, "d")
        await log.create(stranger, [agent.build_created_fact(stranger, Path())])
        await run_to_end(session)
        done = await read_finished_calls(session)
    assert done["d"].status == "error" and "Another session" in done["d"].output
    assert len(await log.read(stranger)) == 1


async def test_a_helper_whose_run_is_killed_goes_on_and_gives_one_result(store: Store) -> None:
    script = call_then_answer(call("wait", id="w"), "did it after all")
    agent = build_parent(DELEGATE, "Done.", helper=script, tools=[HeldTool().tool])
    async with run_until_helper(agent, CallStarted, store.open()) as (session, helper, waiting):
        running = session._coordinator._entries[helper.id].task  # pyright: ignore[reportPrivateUsage]
        assert running is not None and running.cancel()
        outcome = await asyncio.wait_for(waiting, PATIENCE)
        done = await read_finished_calls(session)
        facts = await helper.facts()
    assert outcome is not None and outcome.answer == "Done." and done["d"].output == "did it after all"
    assert [fact.status for fact in select_events(facts, CallFinished)] == ["interrupted"]
    assert len(select_events(facts, RunFinished)) == 1


WORKER = """
import asyncio, os, signal, sys
sys.path.insert(0, {root!r})
from tests.tools.test_delegate import build_family

async def main():
    async with build_family().session("tree.db", workspace=".") as session, session.run("go") as run:
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


def build_family() -> Agent:
    """Build a parent with three helpers. Each leaves a mark."""
    calls = [call("delegate", id=f"d{number}", task=f"task {number}") for number in range(3)]

    def parent(request: Request) -> Any:
        return calls if len(request.messages) == 1 else "All marked."

    def helper(task: str, turn: int) -> Any:
        return call("mark", name=task) if turn == 1 else f"{task} is marked"

    return build_parent(parent, parent, parent, helper=helper, tools=[mark])


@pytest.mark.parametrize(
    "where", ["type(event).__name__ == 'CallStarted'", "'mark' in str(event)", "type(event).__name__ == 'CallFinished'"]
)
async def test_after_kill_9_the_same_helpers_go_on_and_no_mark_is_left_twice(where: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", WORKER.format(root=str(Path(__file__).parents[2]), where=where)]
    died = await asyncio.to_thread(subprocess.run, program, cwd=tmp_path, timeout=500, check=False)
    assert died.returncode == -signal.SIGKILL
    async with build_family().session(tmp_path / "tree.db") as session:
        outcome = await resume_run(session)
        done = await read_finished_calls(session)
        tree = await list_helpers(session.log, session)
    assert outcome is not None and outcome.answer == "All marked."
    assert {fact.output for fact in done.values()} == {f"task {number} is marked" for number in range(3)}
    assert sorted(one.id for one in tree) == sorted(derive_helper_id(session.id, f"d{number}") for number in range(3))
    marks = (tmp_path / "marks.txt").read_text().split("\n") if (tmp_path / "marks.txt").exists() else []
    assert len(marks) == len(set(marks))


async def test_closing_the_runtime_leaves_the_helper_to_be_resumed_and_not_started_again(tmp_path: Path) -> None:
    path, script = tmp_path / "tree.db", call_then_answer(call("wait"), "did it at last")
    async with build_parent(DELEGATE, "Done.", helper=script, tools=[HeldTool().tool]).session(path) as session:
        await session.send("go")
        await wait_for(await wait_for_helper(session), CallStarted)
    again = build_parent("Done.", helper=script, tools=[HeldTool().tool])
    async with again.session(path, id=session.id) as session:
        outcome = await resume_run(session)
        helpers, facts = await list_helpers(session.log, session), await get_helper(session).facts()
        done = await read_finished_calls(session)
    assert outcome is not None and outcome.answer == "Done." and done["d"].output == "did it at last"
    assert [one.id for one in helpers] == [derive_helper_id(session.id, "d")]
    assert select_events(facts, CancelRequested) == []
    statuses = [fact.status for fact in select_events(facts, CallFinished)]
    assert statuses == ["interrupted"], "its own call is not run again"


async def test_a_helper_may_wait_for_an_answer_through_any_number_of_restarts(tmp_path: Path, tables: Tables) -> None:
    store, options = tmp_path / "tree.db", {"helper": call_then_answer(DROP, "It is gone."), "gate": later}
    options["tools"] = tables.tools
    async with build_parent(DELEGATE, **options).session(store) as session:
        await session.send("go")
        await wait_for(await wait_for_helper(session), ApprovalRequested)
        seq = (await session.state()).seq
    for _ in range(5):
        async with Runtime(store, [build_parent("Done.", **options)]) as runtime:
            again = await wait_for(await runtime.open(session.id), CallStarted | CallFinished, after=seq)
            assert isinstance(again, CallStarted)
            seq = again.seq
    async with Runtime(store, [build_parent("Done.", **options)]) as runtime:
        parent, helper = await runtime.open(session.id), await runtime.open(derive_helper_id(session.id, "d"))
        await helper.approve("a")
        assert (await wait_for(parent, RunFinished)).answer == "Done."
        assert ((await read_finished_calls(parent))["d"].output, tables.done) == ("It is gone.", ["users"])


async def test_after_a_cut_at_any_fact_of_the_parent_there_is_one_helper_and_one_answer() -> None:
    log = InMemoryLog()
    async with build_parent(DELEGATE, "Done.", helper="did it").session(log) as session:
        await run_to_end(session)
        points = await crash_points(session)
        helper_id = derive_helper_id(session.id, "d")
        helper_facts = [msgspec.structs.replace(fact, seq=0) for fact in await log.read(helper_id)]
    for point in points:
        for length in {0, 3, len(helper_facts)}:  # the helper did not exist yet, had just been made, or was done
            other = InMemoryLog()
            await point.plant(other)
            started = any(isinstance(fact, CallStarted) for fact in point.facts)
            if length and started:
                await other.create(helper_id, helper_facts[:length])
            called = any(isinstance(fact, ModelReplied) for fact in point.facts)
            again = build_parent(*([] if called else [DELEGATE]), "Done.", "More.", helper="did it")
            async with again.session(other, id=point.session_id) as reopened:
                await resume_run(reopened)
                if not any(isinstance(fact, MessageReceived) for fact in point.facts):
                    continue
                done = await read_finished_calls(reopened)
                assert len(await list_helpers(other, reopened)) <= 1
                assert done["d"].output == "did it", point


async def test_a_parent_waits_for_a_helper_whose_provider_is_overloaded() -> None:
    replies: list[Any] = [ModelError("busy", kind="overloaded", retryable=True, retry_after=300), "ok"]
    clock = SteppingClock()
    agent = build_parent(DELEGATE, "Done.", helper=lambda task, turn: replies.pop(0), clock=clock)
    before = clock.now()
    async with asyncio.timeout(PATIENCE), agent.session() as session, session.run("go") as run:
        messages = [event.message for event in [event async for event in run] if isinstance(event, Progress)]
    assert run.outcome is not None and run.outcome.answer == "Done."
    assert clock.now() - before >= 300 and not replies
    assert "agent: provider overloaded, retrying in 5 min" in messages
