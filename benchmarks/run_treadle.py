"""Run treadle on the fake model, with an SQLite log by default or with a log in memory.

run.py calls it as `run_treadle.py PORT MODEL SESSIONS ROUNDS`. Beside a `_harness.py` that measures several frameworks,
it passes `Peer` to that harness.
"""

try:  # the harness starts its clock when it is imported, so it comes first
    from _harness import main as harness
except ImportError:
    harness = None

import asyncio
import json
import os
import resource
import sys
import tempfile

from treadle import Agent, Limits, Runtime, TextDelta, tool
from treadle.models.catalog import resolve_model


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: the first one
        b: the second one
    """
    return a + b


class Peer:
    durable = {"log": "every fact is in an SQLite file before the next thing happens"}

    def __init__(self, base_url, model, add, steps, durable, directory):
        found = resolve_model(model, base_url=f"{base_url}/v1")
        limits = Limits(turns=200, calls=max(50, steps))
        self.agent = Agent(found, tools=[tool(safety="safe")(add)], instructions="You add.", limits=limits)
        self.runtime = Runtime(
            os.path.join(directory, "bench.db") if durable else ":memory:", [self.agent], recover=False
        )

    async def open(self):
        await self.runtime.__aenter__()

    async def run(self, session, prompt):
        chunks = 0
        async with self.runtime.session(new=True) as opened, opened.run(prompt) as run:
            async for event in run:
                if type(event) is TextDelta:
                    chunks += 1
        return run.outcome.answer, chunks

    async def close(self):
        await self.runtime.__aexit__(None, None, None)
        await self.agent.resolve_model().close()


def read_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def read_peak_memory() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


async def main(port: str, model: str, at_once: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(f"http://127.0.0.1:{port}", model, add, 1000, "log", folder)
        await peer.open()
        await peer.run("warm", "go [steps-2-tok-3]")
        base, took = read_peak_memory(), []
        for _ in range(rounds):
            before = read_cpu()
            texts = await asyncio.gather(*(peer.run(str(number), "go") for number in range(at_once)))
            took.append(read_cpu() - before)
            assert all(text for text, _ in texts)
        grown = read_peak_memory() - base
        await peer.close()
    print(json.dumps({"cpu_s": min(took), "rss_bytes": grown / at_once}))


if __name__ == "__main__":
    if harness is not None:
        harness(Peer)
        sys.exit()
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
