"""Processes that run sessions while other processes watch, post, answer, cancel or take over."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from tests.crash.children import until
from tests.crash.paper import Paper, ReportingLog, note_trouble
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

    def __init__(self, paper: Paper) -> None:
        self._paper = paper

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        said = [render_parts(message.parts) for message in request.messages if isinstance(message, UserMessage)]
        done = sum(isinstance(message, ResultMessage) for message in request.messages)
        yield TextDelta(text="well, ")
        if said[-1] == "think":
            await asyncio.sleep(LONG)
        while said[-1] == "mull" and not self._paper.read("go"):  # noqa: ASYNC110 - from another process
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


def obedient_agent(paper: Paper, pause: float = 0.05) -> Agent:
    """Build an agent whose questions wait in the log, and whose calls write a line each.

    It ticks for forty seconds (a run has at most two hundred turns), so that a slow test does not find it ended.
    """

    def noted(name: str, context: ToolContext) -> None:
        paper.write("lines", context.key, name, os.getpid())

    @tool
    async def tick(number: int, context: ToolContext) -> str:
        noted("tick", context)
        await asyncio.sleep(0.2)
        return "tock"

    @tool
    async def step(number: int, context: ToolContext) -> str:
        noted("step", context)
        await asyncio.sleep(pause)
        return "done"

    @tool
    async def careful(number: int, context: ToolContext) -> str:
        noted("careful", context)
        return "taken care of"

    @tool
    def wait_for_go(number: int, context: ToolContext) -> str:
        while not paper.read("go"):
            time.sleep(0.005)
        return "gone"

    @tool
    async def die_before(number: int, context: ToolContext) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @tool
    async def die_after(number: int, context: ToolContext) -> None:
        noted("die_after", context)
        os.kill(os.getpid(), signal.SIGKILL)

    @tool(safety="safe")
    async def die_once(number: int, context: ToolContext) -> str:
        noted("die_once", context)
        if context.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "still here"

    @tool(safety="safe")
    async def die_always(number: int, context: ToolContext) -> None:
        noted("die_always", context)
        os.kill(os.getpid(), signal.SIGKILL)

    @tool
    async def hold_async(number: int, context: ToolContext) -> str:
        noted("hold_async", context)
        await asyncio.sleep(LONG)
        return "held"

    @tool
    def hold_thread(number: int, context: ToolContext) -> str:
        noted("hold_thread", context)
        time.sleep(LONG)
        return "held"

    return Agent(
        StrictModel(ObedientModel(paper)),
        tools=[tick, step, careful, wait_for_go, die_before, die_after, die_once, die_always, hold_async, hold_thread],
        grant=Grant(tier="full", ask=("careful",)),
        limits=Limits(turns=1000, calls=1000),
        gate=later,
    )


def _process(paper: Paper, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def watched() -> None:
        note_trouble(paper)
        await main()

    warnings.simplefilter("error")
    try:
        asyncio.run(watched())
    except BaseException as error:
        paper.write("trouble", os.getpid(), f"{type(error).__name__}: {error}")
        raise


def own(paper: Paper, order: str, lease: float = LEASE_SECONDS) -> None:
    """Send the order to the session named `one`, run it, and write down how it ended."""

    async def main() -> None:
        log = ReportingLog(paper)
        async with (
            Runtime(log, [obedient_agent(paper)], lease=lease, recover=False) as runtime,
            runtime.session(name="one") as session,
            session.run(order, key="order") as run,
        ):
            outcome = await run.wait()
            paper.write("outcome", os.getpid(), outcome.reason if outcome is not None else "none")
        await log.close()

    _process(paper, main)


def serve(paper: Paper, lease: float = LEASE_SECONDS) -> None:
    """Run all sessions that are due, until killed."""

    async def main() -> None:
        async with Runtime(ReportingLog(paper), [obedient_agent(paper)], lease=lease):
            paper.write("serving", os.getpid())
            await asyncio.Event().wait()

    _process(paper, main)


def count(paper: Paper, name: str, sessions: int, calls: int) -> None:
    """Run some sessions with many turns at once."""

    async def main() -> None:
        log = ReportingLog(paper)
        async with Runtime(log, [obedient_agent(paper, pause=0)], recover=False) as runtime:

            async def one(number: int) -> None:
                async with runtime.session(name=f"{name}-{number}") as session:
                    assert await session.ask(f"count {calls}") == f"stopped after {calls}"

            await asyncio.gather(*(one(number) for number in range(sessions)))
        await log.close()
        paper.write("counted", name)

    _process(paper, main)


def answer(paper: Paper, session_id: str, call_id: str, by: str) -> None:
    """Approve a call as soon as all processes are ready, and write down who was first."""

    async def main() -> None:
        log = ReportingLog(paper)
        other = Agent(ObedientModel(paper), name="other")  # this process can answer, but cannot run the session
        async with Runtime(log, [other], recover=False) as runtime:
            paper.write("ready", by)
            until(lambda: paper.read("go"))
            try:
                await runtime.coordinator.answer(session_id, call_id, Answer(by=by))
            except AlreadyAnswered as late:
                paper.write("answers", "late", getattr(late.answer, "by", ""))
            else:
                paper.write("answers", "won", by)
        await log.close()

    _process(paper, main)


def post(paper: Paper, session_id: str, name: str, messages: int) -> None:
    """Post a number of messages as fast as possible."""

    async def main() -> None:
        log = ReportingLog(paper)
        for number in range(messages):
            message = MessageReceived(id=f"{name}-{number}", parts=(TextPart("tick"),))
            await log.post(session_id, [message], key=message.id)
            await asyncio.sleep(0)
        await log.close()

    _process(paper, main)


def open_at(paper: Paper, instant: float) -> None:
    """Open the store at a given time, so that several processes do it at once."""

    async def main() -> None:
        while time.monotonic() < instant:
            pass
        await ReportingLog(paper).close()

    _process(paper, main)
