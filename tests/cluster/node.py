"""A node that tests break: a process that runs the planned sessions of one database.

`python -m tests.cluster.node FOLDER LEASE PACE THINKING NAME`, with the URL in NODE_URL. It does what its standard
input says, line by line. With `auto` it answers every approval that it sees. All nodes do, so each gets many answers.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.crash.notes import Notes, child_process, open_reporting_log
from tests.crash.worker import PlannedModel, build_planned_agent
from treadle import Answer, Runtime, later
from treadle.errors import AlreadyAnswered, NotFound, StoreError
from treadle.events import ApprovalRequested

TICK = 0.1


def say(*words: object) -> None:
    print(*words, flush=True)


class Operator:
    """What people do at one node: start sessions and answer approvals."""

    def __init__(self, notes: Notes, runtime: Runtime, name: str) -> None:
        self.notes, self.runtime, self.name = notes, runtime, name
        self.tasks: set[asyncio.Task[None]] = set()

    def obey(self, line: str) -> None:
        """Do what a line says, and say it when it is done."""
        match line.split():
            case ["start", *names]:
                self.begin(self.start_sessions(names))
            case ["auto"]:
                self.begin(self.answer_everything())
                say("auto")
            case ["answer", session_id, call_id]:
                self.begin(self.answer(session_id, call_id))
            case ["probe"]:
                self.begin(self.probe())
            case _:
                raise ValueError(line)

    def begin(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[arg-type] # any coroutine
        self.tasks.add(task)
        task.add_done_callback(self.finish)

    def finish(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.notes.write("trouble", os.getpid(), f"operator: {type(error).__name__}: {error} Traceback")

    async def start_sessions(self, names: list[str]) -> None:
        for name in names:
            session = await self.runtime.create(id=name, workspace=self.notes.folder)
            await session.send("go", key="start")
        say("started")

    async def probe(self) -> None:
        """Say what the store says now to somebody who wants a session."""
        began = time.monotonic()
        try:
            await self.runtime.create(id=f"probe{os.urandom(6).hex()}")
            say("probe", f"{time.monotonic() - began:.1f}", "works")
        except StoreError as error:
            say("probe", f"{time.monotonic() - began:.1f}", type(error).__name__, error)

    async def answer_everything(self) -> None:
        seen: set[tuple[str, str]] = set()
        async for stored in self.runtime.watch(0):
            if isinstance(stored.fact, ApprovalRequested):
                asked = (stored.session_id, stored.fact.call_id)
                if asked not in seen:
                    seen.add(asked)
                    self.begin(self.answer(*asked))

    async def answer(self, session_id: str, call_id: str) -> None:
        """Answer an approval until somebody's answer is known to count, and write down whose it is."""
        await asyncio.sleep(random.Random(f"{session_id} {call_id} {self.name}").uniform(0, 0.05))
        while True:
            try:
                await self.runtime.coordinator.answer(session_id, call_id, Answer(by=self.name))
            except AlreadyAnswered as late:
                self.notes.write("answers", session_id, call_id, self.name, "late", getattr(late.answer, "by", ""))
                return
            except NotFound:  # the database has lost the question
                self.notes.write("said", os.getpid(), f"no question {call_id} in {session_id}")
                return
            except StoreError as error:
                self.notes.write("away", time.monotonic(), self.name, type(error).__name__, error)
                await asyncio.sleep(0.2)
            else:
                self.notes.write("answers", session_id, call_id, self.name, "won", self.name)
                return


@asynccontextmanager
async def measure_delays(notes: Notes, name: str) -> AsyncIterator[None]:
    """Write down when this process was not scheduled in time, because the machine is busy or the process was frozen."""

    async def tick() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(TICK)
            if (late := time.monotonic() - began - TICK) > TICK:
                notes.write("delays", name, began, f"{late:.3f}")

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()


@child_process
async def run_node(notes: Notes, lease: float, pace: float, thinking: float, name: str) -> None:
    """Run the sessions of the store until the standard input ends. The model takes `thinking` seconds."""
    log = open_reporting_log(notes)
    agent = build_planned_agent(notes, pace, PlannedModel(thinking), later)
    async with measure_delays(notes, name), Runtime(log, [agent], lease=lease) as runtime:
        operator = Operator(notes, runtime, name)
        notes.write("owners", name, runtime.coordinator.owner)
        say("ready", runtime.coordinator.owner)
        while line := await asyncio.to_thread(sys.stdin.readline):
            operator.obey(line)
        for task in operator.tasks:
            task.cancel()
    await log.close()


if __name__ == "__main__":
    folder, lease, pace, thinking, name = sys.argv[1:]
    run_node(Notes(Path(folder), os.environ["NODE_URL"]), float(lease), float(pace), float(thinking), name)
