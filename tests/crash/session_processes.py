"""Processes that run sessions while other processes watch, post, answer, cancel or take over."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from tests.crash.children import wait_until
from tests.crash.notes import Notes, ReportingLog, record_errors
from tests.kit.fake_model import FakeModel
from tests.kit.strict import StrictModel
from treadle import Agent, Answer, Grant, Limits, Runtime, TextPart, ToolContext, later, tool
from treadle.engine.coordinator import LEASE_SECONDS
from treadle.errors import AlreadyAnswered
from treadle.events import MessageReceived, TextDelta
from treadle.messages import Call, Reply, Request, ResultMessage, Usage, UserMessage, render_parts
from treadle.models.base import ModelEvent

LONG = 600.0
"""Seconds that nobody waits for: whatever takes so long is stopped."""


class ObedientModel(FakeModel):
    """Does what the last message says. Its reply depends only on the request."""

    name = "obedient"
    window = None

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

    @tool
    async def tick(number: int, context: ToolContext) -> str:
        write_line("tick", context)
        await asyncio.sleep(0.2)
        return "tock"

    @tool
    async def step(number: int, context: ToolContext) -> str:
        write_line("step", context)
        await asyncio.sleep(pause)
        return "done"

    @tool
    async def careful(number: int, context: ToolContext) -> str:
        write_line("careful", context)
        return "taken care of"

    @tool
    def wait_for_go(number: int, context: ToolContext) -> str:
        while not notes.read("go"):
            time.sleep(0.005)
        return "gone"

    @tool
    async def die_before(number: int, context: ToolContext) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @tool
    async def die_after(number: int, context: ToolContext) -> None:
        write_line("die_after", context)
        os.kill(os.getpid(), signal.SIGKILL)

    @tool(safety="safe")
    async def die_once(number: int, context: ToolContext) -> str:
        write_line("die_once", context)
        if context.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "still here"

    @tool(safety="safe")
    async def die_always(number: int, context: ToolContext) -> None:
        write_line("die_always", context)
        os.kill(os.getpid(), signal.SIGKILL)

    @tool
    async def hold_async(number: int, context: ToolContext) -> str:
        write_line("hold_async", context)
        await asyncio.sleep(LONG)
        return "held"

    @tool
    def hold_thread(number: int, context: ToolContext) -> str:
        write_line("hold_thread", context)
        time.sleep(LONG)
        return "held"

    return Agent(
        StrictModel(ObedientModel(notes)),
        tools=[tick, step, careful, wait_for_go, die_before, die_after, die_once, die_always, hold_async, hold_thread],
        grant=Grant(tier="full", ask=("careful",)),
        limits=Limits(turns=1000, calls=1000),
        gate=later,
    )


def _run_process(notes: Notes, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        record_errors(notes)
        await main()

    warnings.simplefilter("error")
    try:
        asyncio.run(run())
    except BaseException as error:
        notes.write("trouble", os.getpid(), f"{type(error).__name__}: {error}")
        raise


def run_order(notes: Notes, order: str, lease: float = LEASE_SECONDS) -> None:
    """Send the order to the session named `one`, run it, and write down how it ended."""

    async def main() -> None:
        log = ReportingLog(notes)
        async with (
            Runtime(log, [build_obedient_agent(notes)], lease=lease, recover=False) as runtime,
            runtime.session(name="one") as session,
            session.run(order, key="order") as run,
        ):
            outcome = await run.wait()
            notes.write("outcome", os.getpid(), outcome.reason if outcome is not None else "none")
        await log.close()

    _run_process(notes, main)


def serve_sessions(notes: Notes, lease: float = LEASE_SECONDS) -> None:
    """Run all sessions that are due, until killed."""

    async def main() -> None:
        async with Runtime(ReportingLog(notes), [build_obedient_agent(notes)], lease=lease):
            notes.write("serving", os.getpid())
            await asyncio.Event().wait()

    _run_process(notes, main)


def count_turns(notes: Notes, name: str, sessions: int, calls: int) -> None:
    """Run some sessions with many turns at once."""

    async def main() -> None:
        log = ReportingLog(notes)
        async with Runtime(log, [build_obedient_agent(notes, pause=0)], recover=False) as runtime:

            async def one(number: int) -> None:
                async with runtime.session(name=f"{name}-{number}") as session:
                    assert await session.ask(f"count {calls}") == f"stopped after {calls}"

            await asyncio.gather(*(one(number) for number in range(sessions)))
        await log.close()
        notes.write("counted", name)

    _run_process(notes, main)


def approve_call(notes: Notes, session_id: str, call_id: str, by: str) -> None:
    """Approve a call as soon as all processes are ready, and write down who was first."""

    async def main() -> None:
        log = ReportingLog(notes)
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

    _run_process(notes, main)


def post_messages(notes: Notes, session_id: str, name: str, messages: int) -> None:
    """Post a number of messages as fast as possible."""

    async def main() -> None:
        log = ReportingLog(notes)
        for number in range(messages):
            message = MessageReceived(id=f"{name}-{number}", parts=(TextPart("tick"),))
            await log.post(session_id, [message], key=message.id)
            await asyncio.sleep(0)
        await log.close()

    _run_process(notes, main)


def open_store_at(notes: Notes, instant: float) -> None:
    """Open the store at a given time, so that several processes do it at once."""

    async def main() -> None:
        while time.monotonic() < instant:
            pass
        await ReportingLog(notes).close()

    _run_process(notes, main)
