"""A worker to be killed: it runs planned sessions on one store and continues after any restart.

The replies of its model depend only on the request, so a new process continues the plan. Its tools write a line for
each call, so that a second run of a call is seen.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tests.crash.notes import Notes, child_process, open_reporting_log
from tests.kit.fake_model import FakeModel
from tests.kit.fakes.travel import open_wire_model
from tests.kit.strict import StrictModel
from treadle import Agent, Answer, Grant, Limits, Runtime, ToolContext, tool
from treadle.engine.setup import Gate
from treadle.events import ApprovalRequested, CallFinished, InputRequested, Safety, TextDelta
from treadle.log.base import SessionQuery
from treadle.messages import Call, ModelMessage, Reply, Request, ResultMessage, Usage, UserMessage, render_parts
from treadle.models.base import Model, ModelEvent
from treadle.tools.base import Tool

REPORT = "".join(f"line {number} of a report that is too long for the model\n" for number in range(500))
STEER = "also sweep"
UNSAFE = frozenset(("note", "jot", "careful", "sweep"))

# Each row is one reply: calls that a model would make at once. `look` and `report` are safe.
PLAN = (("look", "look", "note"), ("note", "jot"), ("careful", "look", "note"), ("report", "look"), ("jot",))


class PlannedModel(FakeModel):
    """Makes the calls of the plan, one row per reply, sweeps when asked to, and then counts the results."""

    name = "planned"

    def __init__(self, seconds: float = 0.002) -> None:
        self._seconds = seconds

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta(text="thinking ")
        await asyncio.sleep(self._seconds)
        calls = self._calls(request)
        usage = Usage(input_tokens=10, output_tokens=5)
        if calls:
            yield Reply("thinking ", calls=calls, finish="calls", usage=usage)
            return
        results = [message for message in request.messages if isinstance(message, ResultMessage)]
        unknown = sum("Outcome unknown" in result.text for result in results)
        yield Reply(f"results {len(results)} unknown {unknown}", usage=usage)

    def _calls(self, request: Request) -> tuple[Call, ...]:
        replies = [message for message in request.messages if isinstance(message, ModelMessage) and message.calls]
        made = [call for reply in replies for call in reply.calls]
        swept = any(call.tool == "sweep" for call in made)
        is_steered = any(
            isinstance(message, UserMessage) and STEER in render_parts(message.parts) for message in request.messages
        )
        if is_steered and not swept:
            return (_call("sweep", "extra.0"),)
        row = len(replies) - swept
        if row >= len(PLAN):
            return ()
        return tuple(_call(name, f"{row}.{place}") for place, name in enumerate(PLAN[row]))


def _call(name: str, label: str) -> Call:
    return Call(f"{name}-{label}", name, f'{{"label": "{label}"}}')


def build_planned_agent(notes: Notes, pace: float = 1.0, model: Model | None = None, gate: Gate | None = None) -> Agent:
    """Build an agent with tools of every kind. Each call takes a few milliseconds. Its own gate allows everything."""

    def write_line(name: str, label: str, context: ToolContext) -> None:
        epoch = context.services.claim.epoch if context.services.claim is not None else 0
        notes.write("lines", context.key, name, label, context.attempt, os.getpid(), epoch)

    def pause(context: ToolContext, when: str) -> float:
        return random.Random(f"{context.key} {context.attempt} {when}").uniform(0, 0.012 * pace)

    def build_tool(name: str, safety: Safety, output: str = "") -> Tool:
        @tool(name=name, safety=safety)
        async def act(label: str, context: ToolContext) -> str:
            await asyncio.sleep(pause(context, "before"))
            write_line(name, label, context)
            await asyncio.sleep(pause(context, "after"))
            return output or f"{name} {label} done"

        return act

    @tool
    def jot(label: str, context: ToolContext) -> str:
        time.sleep(pause(context, "before"))
        write_line("jot", label, context)
        time.sleep(pause(context, "after"))
        return f"jot {label} done"

    async def allow(question: ApprovalRequested | InputRequested) -> Answer:
        await asyncio.sleep(0.02 * pace)
        return Answer(by="gate")

    return Agent(
        StrictModel(model or PlannedModel()),
        tools=[
            build_tool("look", "safe"),
            build_tool("report", "safe", REPORT),
            *(build_tool(name, "caution") for name in ("note", "careful", "sweep")),
            jot,
        ],
        grant=Grant(tier="full", ask=("careful",)),
        limits=Limits(turns=20, calls=30),
        gate=gate or allow,
    )


async def _run_session(runtime: Runtime, name: str) -> None:
    """Run one session to its end and steer it once. After a crash the same function continues it."""
    async with runtime.session(name=name) as session:

        async def steer() -> None:
            async for event in session.watch():
                if isinstance(event, CallFinished):
                    await session.send(STEER, key="steer")
                    return

        steering = asyncio.create_task(steer())
        outcome = None
        while outcome is None:  # it ends without an outcome while the gate of another worker has the question
            async with session.run("go", key="start") as run:
                outcome = await run.wait()
        assert outcome.reason == "answered", outcome
        await steering
        async with session.resume() as rest:  # a message that came too late to steer starts its own run
            await rest.wait()


@dataclass(frozen=True)
class Job:
    """Finish every session of the store and start new ones, up to `most` in all, a few at once."""

    most: int = 0
    at_once: int = 3
    lease: float = 0
    pace: float = 1.0
    dies_at: float = 0
    wire: str = ""


async def _run(notes: Notes, job: Job, model: Model | None) -> None:
    log = open_reporting_log(notes, job.dies_at)
    async with Runtime(log, [build_planned_agent(notes, job.pace, model)], lease=job.lease or notes.lease) as runtime:
        page = await runtime.sessions(SessionQuery(limit=1000))
        known = {info.name: info.status for info in page.sessions}
        todo = [name for name, status in known.items() if status != "answered"]
        fresh = (f"s{number}" for number in range(len(known), job.most))
        running: set[asyncio.Task[None]] = set()
        while True:
            while len(running) < job.at_once:
                name = todo.pop() if todo else next(fresh, None)
                if name is None:
                    break
                running.add(asyncio.create_task(_run_session(runtime, name)))
            if not running:
                break
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    await log.close()


@child_process
async def work(notes: Notes, job: Job) -> None:
    """Do the job, in its own process."""
    if not job.wire:
        await _run(notes, job, None)
        return
    async with open_wire_model(job.wire, PlannedModel()) as (model, fake):
        await _run(notes, job, model)
        if fake.rejected:
            notes.write("trouble", os.getpid(), f"rejected: {fake.rejected}")
