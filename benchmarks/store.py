#!/usr/bin/env python3
"""Measure the list of sessions and the search in stores of up to 100 000 sessions.

    python benchmarks/store.py [--sessions 1000 10000 100000] [--times 7]

Each figure is the least CPU time of this process in milliseconds, threads included. The goal is that everything but
the search for a common word and the first index costs the same in every store. `post` is one message to a session, with
the claim and the release of its run. `blocked` is the longest time for which the first index held up the event loop.
"""

import argparse
import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from treadle.events import (
    AgentConfig,
    Limits,
    MessageReceived,
    ModelReplied,
    RunFinished,
    RunStarted,
    SessionCreated,
    SessionRenamed,
    TurnStarted,
)
from treadle.log.base import SessionQuery, Status
from treadle.log.sqlite import SqliteLog
from treadle.messages import TextPart, Usage

STATUSES: tuple[Status, ...] = ("answered", "answered", "answered", "failed", "stopped", "cancelled")


async def create_template(path: Path) -> None:
    """Create a store with one session, whose rows are copied."""
    async with SqliteLog(path) as log:
        facts = [
            SessionCreated(session_id="SESSION", agent=AgentConfig(), workspace="/home/ada/project"),
            SessionRenamed(name="Look into problem NUMBER", by="auto"),
            MessageReceived(id="m", parts=(TextPart("Why is the build red, and since when? Case NUMBER."),)),
            RunStarted(run_id="run_1", limits=Limits()),
            TurnStarted(turn=1, messages=("m",)),
            ModelReplied(text="Since Monday, because of a missing lock file.", usage=Usage(900, 40)),
            RunFinished(run_id="run_1", reason="answered", answer="Since Monday.", turns=1),
        ]
        await log.create("SESSION", facts)


def copy_sessions(path: Path, count: int) -> None:
    """Copy the session of a template with SQL, which is much quicker than creating each."""
    db = sqlite3.connect(path, isolation_level=None)
    db.create_function("casefold", 1, str.casefold, deterministic=True)
    columns = [row[1] for row in db.execute("PRAGMA table_info(sessions)")]
    template = dict(zip(columns, db.execute("SELECT * FROM sessions").fetchone(), strict=True))
    facts: list[bytes] = [row[0] for row in db.execute("SELECT body FROM facts ORDER BY place")]
    db.execute("BEGIN")
    for number in range(2, count + 1):
        row = {
            **template,
            "num": number,
            "id": f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}{number:016x}",
            "name": f"Look into problem {number}",
            "workspace": f"/home/ada/project{number % 400}",
            "status": STATUSES[number % 6],
            "created_at": 1e9 + number,
            "updated_at": 1e9 + number,
        }
        db.execute(f"INSERT INTO sessions VALUES ({', '.join('?' * len(columns))})", tuple(row.values()))
        values = [
            ((number << 32) + seq, body.replace(b"NUMBER", b"n%dx" % number)) for seq, body in enumerate(facts, 1)
        ]
        db.executemany("INSERT INTO facts VALUES (?, ?)", values)
    db.execute("COMMIT")
    db.close()


async def measure(times: int, work: Callable[[], Awaitable[object]]) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        await work()
        best = min(best, time.process_time() - began)
    return best * 1e3


async def measure_first_index(log: SqliteLog) -> tuple[float, float]:
    """Search until everything is indexed. Return the seconds, and the longest pause of the event loop in ms."""
    longest, began = 0.0, time.perf_counter()

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    while getattr(await log.search("monday"), "unindexed", 0):
        pass
    ticker.cancel()
    return time.perf_counter() - began, longest * 1e3


async def measure_store(path: Path, count: int, times: int) -> dict[str, float]:
    async def open_store() -> None:
        async with SqliteLog(path) as log:
            await log.list_sessions(SessionQuery(limit=1))

    found = {"open": await measure(3, open_store)}
    async with SqliteLog(path) as log:
        found["first index s"], found["blocked"] = await measure_first_index(log)
        newest = (await log.list_sessions(SessionQuery(limit=1))).sessions[0]
        queries = {
            "list": SessionQuery(),
            "by status": SessionQuery(status="failed"),
            "waiting": SessionQuery(status="waiting"),
            "by folder": SessionQuery(workspace="/home/ada/project7"),
            "by id": SessionQuery(prefix=newest.id[:10]),
            "by text": SessionQuery(text=f"problem {count // 2}"),
        }
        if "name" in SessionQuery.__struct_fields__:
            queries["by name"] = SessionQuery(name=f"Look into problem {count // 2}")
        for name, query in queries.items():
            assert name == "waiting" or (await log.list_sessions(query)).sessions, name
            found[name] = await measure(times, lambda query=query: log.list_sessions(query))
        assert await log.search(f"n{count // 2}x")
        found["rare word"] = await measure(times, lambda: log.search(f"n{count // 2}x"))
        found["common word"] = await measure(min(times, 3), lambda: log.search("monday lock"))

        async def post() -> None:
            for number in range(20):
                claim = await log.claim("bench", 30, newest.id)
                assert claim is not None
                await log.post(newest.id, [MessageReceived(id=f"p{number}", parts=(TextPart("go on"),))])
                await log.release(claim, None)

        found["post"] = await measure(times, post) / 20
    return found


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--times", type=int, default=7)
    args = parser.parse_args()
    tables: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in args.sessions:
            path = Path(folder) / f"{count}.db"
            await create_template(path)
            copy_sessions(path, count)
            tables.append(await measure_store(path, count, args.times))
            path.unlink()
    print("| ms of CPU | " + " | ".join(f"{count:,} sessions".replace(",", " ") for count in args.sessions) + " |")
    print("|---" * (len(tables) + 1) + "|")
    for name in tables[0]:
        print(f"| {name} | " + " | ".join(f"{table[name]:.2f}" for table in tables) + " |")


if __name__ == "__main__":
    asyncio.run(main())
