"""Measure requests and compactions at several lengths of history, prompts with skills, and search over sessions.

Print the CPU time of this process as one JSON line, and which goals of `GOALS` were missed.
"""

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time as cpu

from treadle import Limits
from treadle.engine.compaction import compute_room, plan_compaction
from treadle.engine.context import Projection
from treadle.engine.fold import apply
from treadle.engine.model_call import build_request
from treadle.engine.setup import Setup
from treadle.engine.state import State
from treadle.events import (
    AgentConfig,
    AnyFact,
    CallFinished,
    CallStarted,
    Grant,
    MessageReceived,
    ModelReplied,
    RunFinished,
    RunStarted,
    SessionCreated,
    TurnStarted,
    stamp_fact,
)
from treadle.knowledge.file_knowledge import FileKnowledge
from treadle.log.sqlite import SqliteLog
from treadle.memory.base import Memory
from treadle.messages import Call, TextPart, Usage
from treadle.testing import ScriptedModel

LENGTHS = (10, 1_000, 10_000)
GOALS = {"request_10000_to_10": 1.5, "search_ms": 50.0, "preamble_ms": 20.0}
SESSIONS = 10_000


def build_turn_facts(number: int) -> list[AnyFact]:
    one = Call(f"call_{number}", "look", '{"page":%d}' % number)
    return [
        TurnStarted(turn=number + 1, messages=("m",) if not number else ()),
        ModelReplied(text="I look.", calls=(one,), finish="calls", usage=Usage(100 + number, 5), model="scripted"),
        CallStarted(call_id=one.id, tool="look", arguments={"page": number, "path": "src/a.py"}),
        CallFinished(call_id=one.id, tool="look", status="ok", output=f"page {number} " + "lorem ipsum " * 20),
    ]


def build_session(length: int) -> State:
    """Build a running session with so many facts whose next step is a model call."""
    state = State()
    start = [
        SessionCreated(session_id="bench"),
        MessageReceived(id="m", parts=(TextPart("read the book"),)),
        RunStarted(run_id="run_1", limits=Limits(turns=10**6)),
    ]
    turns = itertools.chain.from_iterable(map(build_turn_facts, itertools.count()))
    for fact in itertools.chain(start, turns):
        stamp_fact(fact, state.seq + 1, 0.0)
        apply(state, fact)
        if state.seq >= length and isinstance(fact, CallFinished):
            return state
    raise AssertionError


def measure_best(times: int, work: Callable[[], object]) -> float:
    """Return the least CPU time of several rounds, in seconds per call."""
    found = []
    for _ in range(5):
        before = cpu()
        for _ in range(times):
            work()
        found.append((cpu() - before) / times)
    return min(found)


def build_setup(folder: Path) -> Setup:
    knowledge = FileKnowledge(folder / "own")
    return Setup(
        model=ScriptedModel(window=None),
        tools={},
        config=AgentConfig(instructions="Be brief."),
        limits=Limits(),
        grants=(Grant(),),
        workspace=folder,
        attachments=knowledge.build_attachments(folder),
    )


def measure_request(setup: Setup, length: int, turns: int = 300) -> float:
    """Return the CPU seconds that the request of one more turn takes to build."""
    found: list[float] = []
    for _ in range(3):
        state, projection = build_session(length), Projection()
        projection.build_messages(state, setup.attachments)
        spent = 0.0
        for number in range(turns):
            for fact in (*build_turn_facts(10**6 + number), TurnStarted(turn=number)):
                stamp_fact(fact, state.seq + 1, 0.0)
                apply(state, fact)
            before = cpu()
            build_request(setup, state, projection)
            spent += cpu() - before
        found.append(spent / turns)
    return min(found)


async def measure_search(folder: Path) -> dict[str, float]:
    """Search ten thousand sessions. The first search indexes them."""
    log = SqliteLog(folder / "many.db")
    for number in range(SESSIONS):
        facts: list[AnyFact] = [
            SessionCreated(session_id=f"s{number}", workspace="/w"),
            MessageReceived(
                id="m", parts=(TextPart(f"what about topic{number} and the weather in town{number % 50}?"),)
            ),
            RunStarted(run_id="run_1", limits=Limits()),
            TurnStarted(turn=1, messages=("m",)),
            ModelReplied(text=f"The weather of topic{number} is fine. " * 5),
            RunFinished(run_id="run_1", reason="answered", answer="fine"),
        ]
        await log.create(f"s{number}", facts)
    before = cpu()
    assert len(await log.search("topic77")) == 2
    indexing = cpu() - before
    rare = common = 1e9
    for _ in range(5):
        before = cpu()
        await log.search("topic4242 weather")
        rare = min(rare, cpu() - before)
        before = cpu()
        await log.search("weather town7")
        common = min(common, cpu() - before)
    for number in range(1000):
        await log.memories.add(Memory(f"Fact {number}: the gate of town{number} is green."))
    before = cpu()
    for _ in range(20):
        assert await log.memories.search("which colour has the gate of town321", limit=5)
    recall = (cpu() - before) / 20
    await log.close()
    return {
        "index_10000_sessions_s": indexing,
        "search_ms": max(rare, common) * 1e3,
        "recall_in_1000_memories_ms": recall * 1e3,
    }


def write_skills(folder: Path, count: int) -> None:
    for number in range(count):
        place = folder / ".treadle" / "skills" / f"skill-{number}"
        place.mkdir(parents=True)
        front = f"name: skill-{number}\ndescription: Does thing {number}.\nmetadata: {{keywords: 'thing{number}'}}"
        (place / "SKILL.md").write_text(f"---\n{front}\n---\n{'Do it well. ' * 100}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_skills(folder, 100)
        (folder / "AGENTS.md").write_text("Use tabs.\n" * 100)
        setup = build_setup(folder)
        found = {f"request_{length}_us": measure_request(setup, length) * 1e6 for length in LENGTHS}
        found["request_10000_to_10"] = found["request_10000_us"] / found["request_10_us"]
        long = build_session(10_000)
        long.tokens = 4096
        found["plan_10000_ms"] = measure_best(3, lambda: plan_compaction(long, compute_room(4096, long))) * 1e3
        found["first_request_10000_ms"] = (
            measure_best(3, lambda: Projection().build_messages(long, setup.attachments)) * 1e3
        )
        knowledge, log = FileKnowledge(folder / "own"), SqliteLog(folder / "empty.db")
        await knowledge.build_preamble(folder, log.memories, 0.0)
        before = cpu()
        for _ in range(20):
            await knowledge.build_preamble(folder, log.memories, 0.0)
        found["preamble_ms"] = (cpu() - before) / 20 * 1e3
        await log.close()
        found.update(await measure_search(folder))
    missed = {name: goal for name, goal in GOALS.items() if found[name] > goal}
    print(json.dumps({name: round(value, 3) for name, value in found.items()} | {"missed": missed}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    asyncio.run(main())
