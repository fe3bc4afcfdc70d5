"""Measure the kernel alone, on a scripted model and a real SQLite file. Print one JSON line; run.py reads it."""

import asyncio
import gc
import itertools
import json
import os
import resource
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from treadle import Agent, Limits, Runtime, tool
from treadle.engine.fold import fold
from treadle.events import (
    CallFinished,
    CallStarted,
    MessageReceived,
    ModelReplied,
    RunFinished,
    RunStarted,
    SessionCreated,
    TurnStarted,
)
from treadle.log.sqlite import SqliteLog
from treadle.messages import Call, Reply, Request, TextPart, Usage
from treadle.models.chat_completions import ChatCompletions
from treadle.testing import ScriptedModel, call

TURNS = 200
LIMITS = Limits(turns=TURNS, calls=TURNS)


def read_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@tool(safety="safe")
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def add_plainly(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


TOOLS = {
    "thread": tool(safety="safe", name="add", thread=True)(add_plainly),
    "short": tool(safety="safe", name="add")(add_plainly),
}


class Adder(ScriptedModel):
    """Calls `add` with fresh numbers, and answers at every `turns`-th request."""

    def __init__(self, turns: int) -> None:
        super().__init__(keep=False)
        self._script = self._build_script(turns)

    def _build_script(self, turns: int) -> Iterator[Call | str]:
        for number in itertools.count(1):
            yield call("add", a=number, b=1) if number % turns else "done"


class WritingAdder(Adder):
    """Also writes the body of each request, as a model behind HTTP does."""

    def stream(self, request: Request):
        self.wire.build_body(request, None)
        return super().stream(request)

    wire = ChatCompletions("bench", "adder")


async def measure_steps(agent: Agent, store: str, runs: int) -> list[float]:
    """Return the CPU seconds per step of each run. One session makes the runs in turn, with TURNS - 1 steps each."""
    took: list[float] = []
    async with agent.session(store) as session:
        for _ in range(runs):
            before = read_cpu()
            async with session.run("add") as run:
                await run.wait()
            took.append((read_cpu() - before) / (TURNS - 1))
            assert run.outcome is not None and run.outcome.reason == "answered" and run.outcome.calls == TURNS - 1
    return took


async def measure_step(kind: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = ":memory:" if kind == "memory" else os.path.join(folder, "bench.db")
        agent = Agent(Adder(TURNS), tools=[TOOLS.get(kind, add)], limits=LIMITS)
        took = await measure_steps(agent, store, 11)
    # The first run is step 1 to 199, the last one step 1 990 to 2 189.
    return {"cpu_s": min(took), "first": min(took[:2]), "last": min(took[-2:])}


async def measure_history(instructions: str) -> dict[str, float]:
    """Measure steps of a session that grows to 5 000, with the bodies of their requests."""
    agent = Agent(WritingAdder(TURNS), tools=[add], instructions=instructions, limits=LIMITS)
    await measure_steps(agent, ":memory:", 1)
    with tempfile.TemporaryDirectory() as folder:
        took = await measure_steps(agent, os.path.join(folder, "bench.db"), 25)
    return {"step_100": took[0], "step_1000": min(took[4:6]), "step_5000": min(took[-2:])}


def build_history(length: int) -> list[object]:
    """Build the facts of a long session whose turns have one call each."""
    facts: list[object] = [SessionCreated(session_id="bench")]
    facts.append(MessageReceived(id="m", parts=(TextPart("add numbers"),)))
    facts.append(RunStarted(run_id="run_1", limits=Limits()))
    for number in itertools.count():
        if len(facts) + 4 >= length:
            break
        one = Call(f"call_{number}", "add", '{"a":%d,"b":1}' % number)
        facts.append(TurnStarted(turn=number + 1, messages=("m",) if not number else ()))
        facts.append(ModelReplied(calls=(one,), finish="calls", usage=Usage(100, 5), model="scripted"))
        facts.append(CallStarted(call_id=one.id, tool="add", arguments={"a": number, "b": 1}, owner="x" * 60))
        facts.append(CallFinished(call_id=one.id, tool="add", status="ok", output=str(number + 1)))
    facts.append(RunFinished(run_id="run_1", reason="answered", answer="done"))
    return facts


async def measure_opening() -> dict[str, float]:
    """Open a store and fold a session of 100 000 facts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.db"
        log = SqliteLog(path)
        facts = build_history(100_000)
        await log.create("bench", facts)  # type: ignore[arg-type]
        await log.close()
        del facts
        gc.collect()
        took: list[float] = []
        for _ in range(3):
            before = read_cpu()
            log = SqliteLog(path)
            state = fold(await log.read("bench"))
            took.append(read_cpu() - before)
            assert state.last is not None and state.seq > 99_000
            await log.close()
            del state
    return {"cpu_s": min(took)}


class HangingModel(ScriptedModel):
    """Makes two calls and then never replies, so that its session stays active."""

    async def stream(self, request: Request):
        if len(request.messages) >= 5:
            await asyncio.Event().wait()
        yield Reply(calls=(Call("", "add", '{"a":1,"b":%d}' % len(request.messages)),), finish="calls")


async def measure_memory() -> dict[str, float]:
    """Measure the bytes that a session costs: 100 sessions in a model call, and 100 that are done."""
    count = 100
    with tempfile.TemporaryDirectory() as folder:
        done = Agent(ScriptedModel(*["done"] * (count + 50), keep=False), name="done")
        held = Agent(HangingModel(), tools=[add], name="held")
        async with Runtime(Path(folder) / "many.db", [done, held], recover=False) as runtime:

            async def start(name: str, text: str) -> None:
                async with runtime.session(name, new=True) as session:
                    await session.send(text)
                    if name == "done":
                        await runtime.coordinator.wait_until_idle(session.id)

            for _ in range(50):
                await start("done", "warm up")
            gc.collect()
            tracemalloc.start()
            base = tracemalloc.get_traced_memory()[0]
            for _ in range(count):
                await start("done", "hello")
            gc.collect()
            parked = (tracemalloc.get_traced_memory()[0] - base) / count
            base = tracemalloc.get_traced_memory()[0]
            for _ in range(count):
                await start("held", "hello")
            while len(asyncio.all_tasks()) < count or not await have_sessions_called(runtime, count):
                await asyncio.sleep(0.05)
            gc.collect()
            active = (tracemalloc.get_traced_memory()[0] - base) / count
            tracemalloc.stop()
    return {"parked_bytes": parked, "active_bytes": active}


async def have_sessions_called(runtime: Runtime, count: int) -> bool:
    """Return whether every active session has made its two calls."""
    page = await runtime.sessions()
    running = [info for info in page.sessions if info.status == "running" and info.agent == "held"]
    return all(info.seq >= 11 for info in running) and len(running) >= min(count, 50)


SCENARIOS = {
    "step": lambda: measure_step("async"),
    "step_thread": lambda: measure_step("thread"),
    "step_short": lambda: measure_step("short"),
    "step_memory": lambda: measure_step("memory"),
    "history": lambda: measure_history("You add."),
    "history_bare": lambda: measure_history(""),
    "opening": measure_opening,
    "memory": measure_memory,
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(SCENARIOS[sys.argv[1]]())))
