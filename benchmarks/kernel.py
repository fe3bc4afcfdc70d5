"""What the kernel itself costs, on a scripted model and a real SQLite file. One JSON line out; see run.py."""

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
from treadle.engine.state import fold
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
from treadle.testing import ScriptedModel, call

TURNS = 200


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@tool(safety="safe")
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(safety="safe", name="add")
def add_in_thread(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Adder(ScriptedModel):
    """Calls `add` with fresh numbers, and answers at every `turns`-th request."""

    def __init__(self, turns: int) -> None:
        super().__init__(keep=False)
        self._script = self._lines(turns)

    def _lines(self, turns: int) -> Iterator[Call | str]:
        for number in itertools.count(1):
            yield call("add", a=number, b=1) if number % turns else "done"


async def steps(tool_used: object, store: str, runs: int) -> list[float]:
    """CPU seconds a step of each run of TURNS - 1 steps, one after another in one session."""
    agent = Agent(Adder(TURNS), tools=[tool_used], limits=Limits(turns=TURNS, calls=TURNS))
    took: list[float] = []
    async with agent.session(store) as session:
        for _ in range(runs):
            before = cpu()
            async with session.run("add") as run:
                await run.wait()
            took.append((cpu() - before) / (TURNS - 1))
            assert run.outcome is not None and run.outcome.reason == "answered" and run.outcome.calls == TURNS - 1
    return took


async def step(kind: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = ":memory:" if kind == "memory" else os.path.join(folder, "bench.db")
        took = await steps(add_in_thread if kind == "thread" else add, store, 11)
    # The first run is step 1 to 199, the last one step 1 990 to 2 189.
    return {"cpu_s": min(took), "first": min(took[:2]), "last": min(took[-2:])}


def history(length: int) -> list[object]:
    """The facts of a long session: turns with one call each."""
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


async def opening() -> dict[str, float]:
    """Opening a store and folding a session of 100 000 facts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.db"
        log = SqliteLog(path)
        facts = history(100_000)
        await log.create("bench", facts)  # type: ignore[arg-type]
        await log.close()
        del facts
        gc.collect()
        took: list[float] = []
        for _ in range(3):
            before = cpu()
            log = SqliteLog(path)
            state = fold(await log.read("bench"))
            took.append(cpu() - before)
            assert state.last is not None and state.seq > 99_000
            await log.close()
            del state
    return {"cpu_s": min(took)}


class Held(ScriptedModel):
    """Two calls, then a reply that never comes: an active session."""

    async def stream(self, request: Request):
        if len(request.messages) >= 5:
            await asyncio.Event().wait()
        yield Reply(calls=(Call("", "add", '{"a":1,"b":%d}' % len(request.messages)),), finish="calls")


async def memory() -> dict[str, float]:
    """Bytes a session costs the process: 100 in the middle of a model call, and 100 that are done."""
    count = 100
    with tempfile.TemporaryDirectory() as folder:
        done = Agent(ScriptedModel(*["done"] * (count + 50), keep=False), name="done")
        held = Agent(Held(), tools=[add], name="held")
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
            while len(asyncio.all_tasks()) < count or not await settled(runtime, count):
                await asyncio.sleep(0.05)
            gc.collect()
            active = (tracemalloc.get_traced_memory()[0] - base) / count
            tracemalloc.stop()
    return {"parked_bytes": parked, "active_bytes": active}


async def settled(runtime: Runtime, count: int) -> bool:
    """Whether every held session has made its two calls."""
    page = await runtime.sessions()
    running = [info for info in page.sessions if info.status == "running" and info.agent == "held"]
    return all(info.seq >= 11 for info in running) and len(running) >= min(count, 50)


SCENARIOS = {
    "step": lambda: step("async"),
    "step_thread": lambda: step("thread"),
    "step_memory": lambda: step("memory"),
    "opening": opening,
    "memory": memory,
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(SCENARIOS[sys.argv[1]]())))
