"""Processes that run sessions while other processes watch, post, answer, cancel or take over."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator

from tests.crash.children import wait_until
from tests.crash.notes import Notes, child_process, open_reporting_log
from tests.kit.fake_model import FakeModel
from tests.kit.strict import StrictModel
from treadle import Agent, Answer, Grant, Limits, Runtime, TextPart, ToolContext, later, tool
from treadle.errors import AlreadyAnswered
from treadle.events import MessageReceived, Safety, TextDelta
from treadle.messages import Call, Reply, Request, ResultMessage, Usage, UserMessage, render_parts
from treadle.models.base import ModelEvent
from treadle.tools.base import Tool

LONG = 600.0
"""Seconds that nobody waits for: whatever takes so long is stopped."""


class ObedientModel(FakeModel):
    """Does what the last message says. Its reply depends only on the request."""

    name = "obedient"

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        said = [render_parts(message.parts) for message in request.messages if isinstance(message, UserMessage)]
        done = sum(isinstance(message, ResultMessage) for message in request.messages)
        yield TextDelta(text="well, ")
        if said[-1] == "think":
            await asyncio.sleep(LONG)
        while said[-1] == "mull" and not self._notes.read("go"):  # noqa: ASYNC110 - from another process
            await asyncio.sleep(0.005)
        calls = self._calls(said[-1].split(), done)
        text = "" if calls else f"stopped after {done}"
        usage = Usage(input_tokens=10, output_tokens=1)
        yield Reply(text, calls=calls, finish="calls" if calls else "stop", usage=usage)

    def _calls(self, order: list[str], done: int) -> tuple[Call, ...]:
        match order:
            case ["tick"]:
                return (_call("tick", done),)
            case ["count", most] if done < int(most):
                return (_call("step", done),)
            case [("hold" | "die") as what, how] if not done:
                return (_call(f"{what}_{how}", done),)
            case ["wait"] if not done:
                return _call("wait_for_go", done), _call("careful", done)
            case ["ask"] if not done:
                return (_call("careful", done),)
            case _:
                return ()


def _call(name: str, number: int) -> Call:
    return Call(f"{name}-{number}", name, f'{{"number": {number}}}')


def build_obedient_agent(notes: Notes, pause: float = 0.05) -> Agent:
    """Build an agent whose questions wait in the log, and whose calls write a line each.

    It ticks for forty seconds (a run has at most two hundred turns), so that a slow test does not find it ended.
    """

    def write_line(name: str, context: ToolContext) -> None:
        notes.write("lines", context.key, name, os.getpid())

    def build_step(name: str, seconds: float) -> Tool:
        @tool(name=name)
        async def step(number: int, context: ToolContext) -> str:
            write_line(name, context)
            await asyncio.sleep(seconds)
            return "done"

        return step

    def build_death(name: str, safety: Safety, *, writes: bool = True, once: bool = False) -> Tool:
        @tool(name=name, safety=safety)
        async def die(number: int, context: ToolContext) -> str:
            if writes:
                write_line(name, context)
            if context.attempt == 1 or not once:
                os.kill(os.getpid(), signal.SIGKILL)
            return "still here"

        return die

    @tool
    def wait_for_go(number: int, context: ToolContext) -> str:
        while not notes.read("go"):
            time.sleep(0.005)
        return "gone"

    @tool
    def hold_thread(number: int, context: ToolContext) -> str:
        write_line("hold_thread", context)
        time.sleep(LONG)
        return "held"

    steps = {"tick": 0.2, "step": pause, "careful": 0, "hold_async": LONG}
    deaths = [
        build_death("die_before", "caution", writes=False),
        build_death("die_after", "caution"),
        build_death("die_once", "safe", once=True),
        build_death("die_always", "safe"),
    ]
    return Agent(
        StrictModel(ObedientModel(notes)),
        tools=[*(build_step(name, seconds) for name, seconds in steps.items()), *deaths, wait_for_go, hold_thread],
        grant=Grant(tier="full", ask=("careful",)),
        limits=Limits(turns=1000, calls=1000, ceiling=1000),
        gate=later,
    )


@child_process
async def run_order(notes: Notes, order: str, lease: float = 0) -> None:
    """Send the order to the session named `one`, run it, and write down how it ended."""
    log = open_reporting_log(notes)
    async with (
        Runtime(log, [build_obedient_agent(notes)], lease=lease or notes.lease, recover=False) as runtime,
        runtime.session(name="one") as session,
        session.run(order, key="order") as run,
    ):
        outcome = await run.wait()
        notes.write("outcome", os.getpid(), outcome.reason if outcome is not None else "none")
    await log.close()


@child_process
async def serve_sessions(notes: Notes, lease: float = 0) -> None:
    """Run all sessions that are due, until killed."""
    async with Runtime(open_reporting_log(notes), [build_obedient_agent(notes)], lease=lease or notes.lease):
        notes.write("serving", os.getpid())
        await asyncio.Event().wait()


@child_process
async def count_turns(notes: Notes, name: str, sessions: int, calls: int) -> None:
    """Run some sessions with many turns at once."""
    log = open_reporting_log(notes)
    async with Runtime(log, [build_obedient_agent(notes, pause=0)], recover=False) as runtime:

        async def count(number: int) -> None:
            async with runtime.session(name=f"{name}-{number}") as session:
                assert await session.ask(f"count {calls}") == f"stopped after {calls}"

        await asyncio.gather(*(count(number) for number in range(sessions)))
    await log.close()
    notes.write("counted", name)


@child_process
async def approve_call(notes: Notes, session_id: str, call_id: str, by: str) -> None:
    """Approve a call as soon as all processes are ready, and write down who was first."""
    log = open_reporting_log(notes)
    other = Agent(ObedientModel(notes), name="other")  # this process can answer, but cannot run the session
    async with Runtime(log, [other], recover=False) as runtime:
        notes.write("ready", by)
        wait_until(lambda: notes.read("go"))
        try:
            await runtime.coordinator.answer(session_id, call_id, Answer(by=by))
        except AlreadyAnswered as late:
            notes.write("answers", "late", getattr(late.answer, "by", ""))
        else:
            notes.write("answers", "won", by)
    await log.close()


@child_process
async def post_messages(notes: Notes, session_id: str, name: str, messages: int) -> None:
    """Post a number of messages as fast as possible."""
    log = open_reporting_log(notes)
    for number in range(messages):
        message = MessageReceived(id=f"{name}-{number}", parts=(TextPart("tick"),))
        await log.post(session_id, [message], key=message.id)
        await asyncio.sleep(0)
    await log.close()


@child_process
async def open_store_at(notes: Notes, instant: float) -> None:
    """Open the store at a given time, so that several processes do it at once."""
    while time.monotonic() < instant:
        pass
    await open_reporting_log(notes).close()
