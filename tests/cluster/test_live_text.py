"""Watchers on three nodes: they see the live text of every run, and each fact once, wherever they reconnect."""

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.postgres import PostgresServer, needs_postgres

pytestmark = needs_postgres

PROGRAM = Path(__file__).with_name("live_node.py")


class Node:
    """A node in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._lock = asyncio.Lock()

    async def tell(self, what: str, **values: Any) -> Any:
        """Have the node do something, and return its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        async with self._lock:
            self.process.stdin.write(json.dumps({"do": what, **values}).encode() + b"\n")
            line = await self.process.stdout.readline()
        assert line, "the node has ended"
        return json.loads(line)


@asynccontextmanager
async def start_node(url: str, program: Path = PROGRAM, *arguments: str) -> AsyncGenerator[Node]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), url, *arguments, stdin=-1, stdout=-1, limit=2**26
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        assert await process.stdout.readline() == b"ready\n"
        yield Node(process)
        process.stdin.close()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Crowd:
    """Watchers spread over nodes. Some of them move to another node each second."""

    def __init__(self, nodes: Sequence[Node], sessions: Sequence[str], count: int, chance: random.Random) -> None:
        self._nodes, self._chance = nodes, chance
        self._places = {number: (number % len(nodes), sessions[number % len(sessions)]) for number in range(count)}

    async def join(self) -> None:
        await asyncio.gather(*(self._join(node, dict.fromkeys(self._list(node), 0)) for node in self._range()))

    async def move(self, share: float) -> int:
        """Let a share of the watchers leave their node, and come back at another with the last position they saw."""
        moving = self._chance.sample(list(self._places), max(1, round(len(self._places) * share)))
        seen: dict[int, int] = {}
        for node in self._range():
            numbers = [number for number in moving if self._places[number][0] == node]
            seen |= dict(zip(numbers, await self._nodes[node].tell("leave", watchers=numbers), strict=True))
        for number in moving:
            node, session_id = self._places[number]
            others = [other for other in self._range() if other != node]
            self._places[number] = (self._chance.choice(others), session_id)
        for node in self._range():
            await self._join(node, {number: seen[number] for number in moving if self._places[number][0] == node})
        return len(moving)

    async def _join(self, node: int, positions: dict[int, int]) -> None:
        watchers = [(number, self._places[number][1], after) for number, after in positions.items()]
        await self._nodes[node].tell("watch", watchers=watchers)

    def _list(self, node: int) -> list[int]:
        return [number for number, place in self._places.items() if place[0] == node]

    def _range(self) -> range:
        return range(len(self._nodes))


async def watch_while_moving(
    nodes: Sequence[Node], sessions: Sequence[str], watchers: int, seconds: float, chance: random.Random
) -> dict[str, list[float]]:
    """Run sessions on the first node and let watchers move. Returns the delays; no watcher saw anything wrong."""
    crowd = Crowd(nodes, sessions, watchers, chance)
    await nodes[0].tell("run", names=list(sessions), seconds=seconds, rate=50, words=40)
    await crowd.join()
    until, moved = time.monotonic() + seconds - 1, 0
    while time.monotonic() < until:
        began = time.monotonic()
        moved += await crowd.move(0.01)
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))
    heads = await nodes[0].tell("finish")
    faults = await asyncio.gather(*(node.tell("reach", heads=heads, seconds=30) for node in nodes))
    assert faults == [[]] * len(nodes)
    found: dict[str, list[float]] = {}
    for node in nodes:
        for name, delays in (await node.tell("measure")).items():
            if name == "cpu":
                found.setdefault("cpu", []).append(delays)
            else:
                found.setdefault(name, []).extend(delays)
    print(f"\n{watchers} watchers of {len(sessions)} sessions, {moved} moved, seen: ", end="")
    print({name: describe(delays) for name, delays in found.items()})
    return found


def describe(delays: Sequence[float]) -> str:
    if len(delays) < 100:
        return f"{delays}"
    cuts = statistics.quantiles(delays, n=1000)
    return f"{len(delays)}: p50 {cuts[499] * 1000:.1f}, p99 {cuts[989] * 1000:.1f}, p99.9 {cuts[998] * 1000:.1f} ms"


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


async def test_watchers_that_move_between_three_nodes_see_each_fact_once_and_text_in_order(
    postgres_url: str, chance: random.Random
) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(start_node(postgres_url)) for _ in range(3)]
        found = await watch_while_moving(nodes, [f"s{n}" for n in range(5)], 100, 5, chance)
    assert found["text elsewhere"], "the text of a run shows on other nodes"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("sessions", "seconds"), [(1, 120), (100, 120)], ids=["one session", "100 sessions"])
async def test_a_thousand_watchers_see_text_a_tenth_of_a_second_later_than_on_the_owner(
    sessions: int, seconds: int, chance: random.Random
) -> None:
    with PostgresServer() as server:
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(start_node(server.build_url())) for _ in range(3)]
            names = [f"s{number}" for number in range(sessions)]
            found = await watch_while_moving(nodes, names, 1000, seconds, chance)
    assert find_p99(found["text elsewhere"]) <= find_p99(found["text here"]) + 0.1


def find_p99(delays: Sequence[float]) -> float:
    return statistics.quantiles(delays, n=100)[-1]
