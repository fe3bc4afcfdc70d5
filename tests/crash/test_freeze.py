"""A frozen process: others take over, and it does no harm when it continues. It writes nothing more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.crash.children import freeze, run_child, start_fork_server, thaw, wait_until
from tests.crash.invariants import check_store
from tests.crash.notes import Notes, child_process, open_reporting_log
from tests.crash.test_kill import finish
from tests.crash.worker import Job, work
from treadle import Agent, Runtime, Session, ToolContext, tool
from treadle.events import CallFinished, RunFinished
from treadle.history.content_store import ContentStore
from treadle.history.snapshot import record_changes
from treadle.testing import ScriptedModel, call
from treadle.tools.remember import remember

LEASE = 0.6


@pytest.mark.parametrize("seed", range(4))
async def test_a_frozen_worker_is_replaced_and_does_nothing_twice(notes: Notes, seed: int) -> None:
    start_fork_server()
    with run_child(work, notes, Job(most=6, at_once=6, lease=LEASE, pace=100)) as frozen:  # for ten seconds and more
        wait_until(lambda: notes.read("lines"))
        frozen.join(random.Random(seed).uniform(0, 0.5))
        freeze(frozen, notes.store)
        before = len(notes.read("acknowledged"))
        finish(notes, Job(most=6, at_once=6, lease=LEASE))
        assert len(notes.read("acknowledged")) > before, "there was nothing left to take over"
        thaw(frozen)
        frozen.join(60)
        assert frozen.exitcode == 0, "it must see that others have ended its sessions"
    counts = await check_store(notes)
    assert counts.sessions == 6
    assert counts.epochs > 6, "no session was taken over during its work"


@pytest.mark.parametrize("seed", range(2))
async def test_a_worker_frozen_in_a_write_delays_the_others_and_nothing_is_lost(notes: Notes, seed: int) -> None:
    instants = random.Random(seed)
    start_fork_server()
    with run_child(work, notes, Job(most=4, at_once=4, lease=LEASE, pace=20)) as frozen:
        wait_until(lambda: notes.read("lines"))
        with run_child(work, notes, Job(most=8, at_once=8, lease=LEASE, pace=2)) as other:
            while frozen.is_alive() and other.is_alive():
                other.join(instants.uniform(0, 0.2))
                freeze(frozen, notes.store, writing=True)
                other.join(instants.choice((0.05, LEASE * 1.5)))  # the lease passes, and nobody can renew it
                thaw(frozen)
            for worker in (frozen, other):
                thaw(frozen)
                worker.join(60)
                assert worker.exitcode == 0, notes.read("trouble")
    assert (await check_store(notes)).sessions == 8


async def try_late(notes: Notes, name: str, attempt: Coroutine[Any, Any, object]) -> None:
    try:
        await attempt
        notes.write("late", name, "was written")
    except Exception as error:
        notes.write("late", name, type(error).__name__)


def build_command_agent(notes: Notes, attempts: list[asyncio.Task[None]], *script: object) -> Agent:
    """Build an agent whose command changes a file, waits, and then tries everything that a call can write."""
    kept = ContentStore(notes.folder / "kept")

    @tool
    async def command(context: ToolContext) -> str:
        try:
            async with record_changes(kept, context):
                (context.workspace / "made.txt").write_text("by the frozen process")
                notes.write("changed", "made.txt")
                while not notes.read("go"):  # noqa: ASYNC110 - from another process
                    await asyncio.sleep(0.005)
        finally:
            late = {
                "note": context.services.save_note("late.note", "late"),
                "files": context.services.record_kept_files([]),
                "memory": remember.run(remember.parse('{"text": "late"}'), context),
            }
            attempts.extend(asyncio.create_task(try_late(notes, name, attempt)) for name, attempt in late.items())
        return "much\n" * 10_000

    command.kept = kept  # type: ignore[attr-defined] # where a rewind looks for it
    return Agent(ScriptedModel(*script), tools=[command, remember])


@child_process
async def run_command(notes: Notes) -> None:
    """Run the command in a session, and leave it when somebody else has taken it over."""
    attempts: list[asyncio.Task[None]] = []
    agent = build_command_agent(notes, attempts, call("command"))
    async with Runtime(open_reporting_log(notes), [agent], lease=LEASE, recover=False) as runtime:
        session = await runtime.create(workspace=notes.folder / "workspace")
        await session.send("go")
        await runtime.coordinator.wait_until_idle(session.id)
        await asyncio.gather(*attempts)


async def test_a_call_of_a_frozen_process_writes_nothing_after_the_takeover(notes: Notes) -> None:
    made = notes.folder / "workspace" / "made.txt"
    made.parent.mkdir()
    with run_child(run_command, notes) as frozen:
        wait_until(lambda: notes.read("changed"))
        freeze(frozen, notes.store)
        agent, log = build_command_agent(notes, [], "It was broken off."), open_reporting_log(notes)
        async with Runtime(log, [agent], lease=LEASE) as runtime:
            (info,) = (await runtime.sessions()).sessions
            session: Session = Session(runtime.coordinator, agent, info.id)
            async for event in session.watch():
                if isinstance(event, RunFinished):
                    break
            await runtime.coordinator.wait_until_idle(session.id)
            before = await session.facts()
            notes.write("go")
            thaw(frozen)
            frozen.join(60)
            assert frozen.exitcode == 0, notes.read("trouble")
            assert await session.facts() == before
            assert [fact.status for fact in before if isinstance(fact, CallFinished)] == ["interrupted"]
            assert sorted(notes.read("late")) == [[name, "ClaimLost"] for name in ("files", "memory", "note")]
            assert await log.memories.list() == []
            rewound = await session.rewind(len(before), "files")
            assert rewound.changes == () and made.read_text() == "by the frozen process"
