#!/usr/bin/env python3
"""Measure the log on PostgreSQL: a real server with fsync, nodes in processes of their own, and SQLite beside them.

    python benchmarks/cluster.py [--quick] [--reps N] [appends steps wakeups size stores idle]

`--quick` takes about a minute, and has at most 10 000 sessions. CPU is user and system time of the node's process; that
of the server is named apart. Of several measurements, which take turns, the least counts. Compare ratios within one
run: on a busy machine rates fall and waits grow by several times, and what waits for the disk costs more CPU each time.
"""

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import psycopg
from cluster_stores import copy_sessions, create_template
from kernel import LIMITS, TURNS, Adder, add, read_cpu
from tests.kit.postgres import PostgresServer
from tests.kit.processes import list_descendants

from treadle import Agent, Limits, Runtime
from treadle.events import (
    AnyFact,
    CallFinished,
    CallStarted,
    Custom,
    ModelReplied,
    RunStarted,
    SessionCreated,
    TurnStarted,
)
from treadle.log.base import SessionQuery
from treadle.log.open_log import open_log
from treadle.log.postgres import PostgresLog
from treadle.log.postgres_wakeups import ALONE_SECONDS
from treadle.messages import Call, Reply, Request, Usage
from treadle.testing import ScriptedModel

PIECE = 50
"""How many operations are measured together where one session is alone."""
TICKS = os.sysconf("SC_CLK_TCK")
Figures = dict[str, float]
Row = tuple[str, str, str]

# ── what a node does, in a process of its own ─────────────────────────────────────────────────────────────


def wait_for_start() -> None:
    """Say that this process is ready, and wait until all are."""
    print("ready", flush=True)
    sys.stdin.readline()


def find_waits(waits: list[float]) -> Figures:
    waits.sort()
    return {"p50": waits[len(waits) // 2] * 1e3, "p99": waits[int(len(waits) * 0.99)] * 1e3}


def build_appends(number: int) -> tuple[list[AnyFact], list[AnyFact]]:
    """Build the facts of the two appends of one step."""
    one = Call(f"call_{number}", "add", '{"a":%d,"b":1}' % number)
    started = CallStarted(call_id=one.id, tool="add", arguments={"a": number, "b": 1}, owner="x" * 60)
    finished = CallFinished(call_id=one.id, tool="add", status="ok", output=str(number + 1))
    reply = ModelReplied(calls=(one,), finish="calls", usage=Usage(100, 5), model="scripted")
    return [reply, started], [finished, TurnStarted(turn=number + 2)]


async def insert(url: str, seconds: str) -> Figures:
    """Insert rows one by one, with the driver alone: the floor."""
    body, least, count, sql = b"x" * 300, float("inf"), 0, "INSERT INTO bare VALUES (%s, %s, %s, %s)"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS bare (a bigint, b integer, c bigint, d bytea)")
        cursor = connection.cursor(binary=True)
        wait_for_start()
        began = time.perf_counter()
        while time.perf_counter() - began < float(seconds):
            before = read_cpu()
            for number in range(PIECE):
                await cursor.execute(sql, (1, number, count, body))
            least, count = min(least, read_cpu() - before), count + PIECE
    return {"cpu_s": least / PIECE, "per_s": count / float(seconds), "count": count}


async def append(url: str, at_once: str, seconds: str) -> Figures:
    """Append to several sessions at once, as their runs do. With one of them the least of many pieces counts."""
    waits, least = list[float](), float("inf")
    async with PostgresLog(url) as log:
        claims = []
        for number in range(int(at_once)):
            name = f"{os.getpid()}-{number}"
            await log.create(name, [SessionCreated(session_id=name), RunStarted(run_id="run_1", limits=Limits())])
            claims.append(await log.claim("bench", 600, name))
        await asyncio.sleep(ALONE_SECONDS + 1.0)  # a node that knows that it is alone sends no news
        wait_for_start()
        began, cpu = time.perf_counter(), read_cpu()

        async def work(claim: Any) -> None:
            nonlocal least
            seq, before = 2, read_cpu()
            for number in itertools.count():
                for facts in build_appends(number):
                    start = time.perf_counter()
                    await log.append(claim, seq, facts)
                    waits.append(time.perf_counter() - start)
                    seq += 2
                if number % PIECE == 0:
                    if number:
                        least = min(least, (read_cpu() - before) / (2 * PIECE))
                    before = read_cpu()
                    if time.perf_counter() - began > float(seconds):
                        return

        await asyncio.gather(*map(work, claims))
        took, cpu = time.perf_counter() - began, read_cpu() - cpu
    alone = least if len(claims) == 1 else cpu / len(waits)
    return {"cpu_s": alone, "per_s": len(waits) / took, "count": len(waits), **find_waits(waits)}


async def step(store: str) -> Figures:
    """Run one session whose model answers at once: the CPU time of one durable step."""
    agent, runs, took = Agent(Adder(TURNS), tools=[add], limits=LIMITS), 6, list[float]()
    async with agent.session(store) as session:
        for number in range(runs + 1):
            if number == 1:
                if "://" in store:  # until it knows that it is alone, and sends no news
                    await asyncio.sleep(ALONE_SECONDS + 1.0)
                wait_for_start()
            before = read_cpu()
            async with session.run("add") as run:
                await run.wait()
            took.append((read_cpu() - before) / (TURNS - 1))
    return {"cpu_s": min(took[1:]), "count": runs * (TURNS - 1)}


class Stepper(ScriptedModel):
    """Calls `add` `turns` times in each session, and notes how long each step took."""

    def __init__(self, turns: int) -> None:
        super().__init__(keep=False)
        self._turns, self._last, self.waits = turns, dict[object, float](), list[float]()

    async def stream(self, request: Request):
        task, now = asyncio.current_task(), time.perf_counter()
        if task in self._last:
            self.waits.append(now - self._last[task])
        number = len(request.messages) // 2
        if number < self._turns:
            self._last[task] = now
            yield Reply(calls=(Call("", "add", '{"a":%d,"b":1}' % number),), finish="calls")
        else:
            self._last.pop(task, None)
            yield Reply(text="done", finish="stop")


async def steps(store: str, at_once: str, turns: str) -> Figures:
    """Run several sessions at once."""
    model = Stepper(int(turns))
    agent = Agent(model, name="bench", tools=[add], limits=Limits(turns=200, calls=200))
    async with Runtime(store, [agent], recover=False) as runtime:
        sessions = [await runtime.create("bench") for _ in range(int(at_once))]
        wait_for_start()
        began, cpu = time.perf_counter(), read_cpu()

        async def run(session: Any) -> None:
            async with session.run("add") as run:
                await run.wait()
            assert run.outcome is not None and run.outcome.reason == "answered", run.outcome

        await asyncio.gather(*map(run, sessions))
        took, cpu = time.perf_counter() - began, read_cpu() - cpu
    count = int(at_once) * int(turns)
    return {"cpu_s": cpu / count, "per_s": count / took, "count": count, **find_waits(model.waits)}


async def follow(url: str, session_id: str, count: str) -> Figures:
    """Watch a session that another node writes, and tell how late its facts are."""
    waits = list[float]()
    async with open_log(url) as log:
        watch = log.watch(session_id, (await log.get_info(session_id)).seq)
        following = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(1.0)  # until it listens
        wait_for_start()
        while len(waits) < int(count):
            fact = await following
            assert isinstance(fact, Custom)
            waits.append(time.time() - float(fact.data))
            following = asyncio.ensure_future(anext(watch))
        following.cancel()
        watch.close()
    return {"count": len(waits), **find_waits(waits)}


async def tell(url: str, session_id: str, count: str) -> Figures:
    """Post facts with the time at which they were posted."""
    async with open_log(url) as log:
        wait_for_start()
        for _ in range(int(count)):
            await asyncio.sleep(0.02)
            await log.post(session_id, [Custom(name="bench.time", data=time.time())])
    return {}


async def rest(url: str, seconds: str) -> Figures:
    """Be a node that has nothing to do."""
    agent = Agent(ScriptedModel(), name="assistant")
    async with Runtime(url, [agent]):
        await asyncio.sleep(2.0)  # until it has looked at everything once
        wait_for_start()
        before = read_cpu()
        await asyncio.sleep(float(seconds))
        return {"cpu_s": (read_cpu() - before) / float(seconds), "count": 1}


async def look(url: str, times: str) -> Figures:
    """Measure what lists, searches and claims take: the least of several, in seconds."""
    found: Figures = {}
    async with PostgresLog(url) as log:
        newest = (await log.list_sessions(SessionQuery(limit=1))).sessions[0]
        while (await log.search("n7x")).unindexed:
            pass
        queries = {
            "page 1 of the list": SessionQuery(),
            "page 1 by status": SessionQuery(status="failed"),
            "page 1 of those that wait: none": SessionQuery(status="waiting"),
            "page 1 by folder": SessionQuery(workspace="/home/ada/project7"),
            "find by the beginning of an id": SessionQuery(prefix=newest.id[:10]),
            "find by name": SessionQuery(name="Look into problem 7"),
        }
        work: dict[str, Callable[[], Awaitable[object]]] = {
            name: lambda query=query: log.list_sessions(query) for name, query in queries.items()
        }
        work["search for a rare word"] = lambda: log.search("n7x")
        work["claim: nothing is due"] = lambda: log.claim("bench", 30)

        async def claim_due() -> None:
            await log.post(newest.id, [Custom(name="bench.wake")])
            claim = await log.claim("bench", 30)
            assert claim is not None and claim.session_id == newest.id
            await log.release(claim, None)

        work["post, claim what is due, and release"] = claim_due
        for name, each in work.items():
            took = list[float]()
            for _ in range(int(times)):
                began = time.perf_counter()
                await each()
                took.append(time.perf_counter() - began)
            found[name] = min(took)
    return found


WORK = {work.__name__: work for work in (insert, append, step, steps, follow, tell, rest, look)}

# ── the measurements ──────────────────────────────────────────────────────────────────────────────────────


class Bench:
    """A server, and the nodes that are measured on it."""

    def __init__(self, server: PostgresServer, *, is_quick: bool, reps: int) -> None:
        self.server, self.is_quick, self.reps = server, is_quick, reps
        self._databases = itertools.count()

    def create_database(self) -> str:
        name = f"bench_{next(self._databases)}"
        self.server.query(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.server.build_url(name)

    def run(self, *commands: Sequence[object]) -> tuple[list[Figures], float]:
        """Run nodes at the same time. Returns what each has found, and the server's CPU seconds meanwhile."""
        nodes = [
            subprocess.Popen(
                [sys.executable, __file__, "--work", *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for command in commands
        ]
        for node in nodes:
            assert node.stdout is not None
            if node.stdout.readline() != "ready\n":
                sys.exit("a node failed")
        before = self.read_server_cpu()
        for node in nodes:
            assert node.stdin is not None
            node.stdin.write("\n")
            node.stdin.flush()
        found = [json.loads(node.communicate()[0] or "null") for node in nodes]
        if any(node.returncode for node in nodes):
            sys.exit("a node failed")
        return found, self.read_server_cpu() - before

    def run_one(self, *command: object) -> Figures:
        (found,), server = self.run(command)
        return {**found, "server_s": server / found["count"]} if "count" in found else found

    def read_server_cpu(self) -> float:
        """Read the CPU seconds of all processes of the server, also of those that have ended."""
        pid = self.server.process.pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total = (int(fields[13]) + int(fields[14])) / TICKS
        for each in (pid, *list_descendants(pid)):
            try:
                total += int(Path(f"/proc/{each}/schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue
        return total

    # --- one method for each table

    def measure_appends(self) -> Iterator[Row]:
        seconds = 1 if self.is_quick else 4
        alone, bare, busy = list[Figures](), list[Figures](), list[Figures]()
        for _ in range(self.reps):
            url = self.create_database()
            bare.append(self.run_one("insert", url, seconds))
            alone.append(self.run_one("append", url, 1, seconds))
            busy.append(self.run_one("append", url, 200, seconds))
        floor, server = find_least(bare), find_least(bare, "server_s")
        yield "bare INSERT by psycopg", f"{floor * 1e6:.0f} µs CPU, server {server * 1e6:.0f} µs", ""
        figures = f"{find_least(alone) * 1e6:.0f} µs CPU = {find_least(alone) / floor:.2f} × the INSERT"
        yield "append of two facts, one session", f"{figures}, server {find_least(alone, 'server_s') * 1e6:.0f} µs", ""
        figures = f"{find_least(busy) * 1e6:.0f} µs CPU, server {find_least(busy, 'server_s') * 1e6:.0f} µs"
        yield "append of two facts, 200 sessions at once", figures, ""
        best = max(busy, key=lambda found: found["per_s"])
        yield "appends a second, one node", f"{best['per_s']:.0f}, each waits {describe_waits(best)}", "≥ 2 000"
        for nodes in (2, 3):
            found = self.run(*[("append", url, 200 // nodes, seconds)] * nodes)[0]
            rate = sum(each["per_s"] for each in found)
            yield f"appends a second, {nodes} nodes", f"{rate:.0f}, each waits {describe_waits(found[0])}", ""

    def measure_steps(self) -> Iterator[Row]:
        ours, sqlite = list[Figures](), list[Figures]()
        with tempfile.TemporaryDirectory() as folder:
            for number in range(self.reps):
                sqlite.append(self.run_one("step", Path(folder) / f"{number}.db"))
                commits = self._count_commits(url := self.create_database())
                ours.append(self.run_one("step", url))
            floor, least = find_least(sqlite), find_least(ours)
            yield "one durable step, SQLite", f"{floor * 1e6:.0f} µs CPU", ""
            ratio = f"{least * 1e6:.0f} µs CPU = {least / floor:.2f} × SQLite's"
            yield (
                "one durable step, PostgreSQL",
                f"{ratio}, server {find_least(ours, 'server_s') * 1e6:.0f} µs",
                "≤ 2.5 ×",
            )
            statements = (self._count_commits(url) - commits) / (7 / 6 * ours[-1]["count"])
            yield "statements a step", f"{statements:.1f}, of which two are appends", ""
            turns, at_once = (25, 50) if self.is_quick else (50, 100)
            found = self.run_one("steps", Path(folder) / "many.db", at_once, turns)
            yield f"steps a second, {at_once} sessions, SQLite", self._describe_steps([found]), ""
            for nodes in (1, 2, 3):
                several = self.run(*[("steps", url, at_once // nodes, turns)] * nodes)[0]
                name = f"steps a second, {at_once} sessions, {nodes} node{'s' * (nodes > 1)}"
                yield name, self._describe_steps(several), ""

    def _count_commits(self, url: str) -> int:
        """Count the transactions of a database. Each statement of a node is one."""
        name = url.rpartition("/")[2]
        return self.server.query("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", name)[0][0]

    @staticmethod
    def _describe_steps(found: list[Figures]) -> str:
        rate, cpu = sum(each["per_s"] for each in found), min(each["cpu_s"] for each in found)
        return f"{rate:.0f}, {cpu * 1e6:.0f} µs CPU each, a step takes {describe_waits(found[0])}"

    def measure_wakeups(self) -> Iterator[Row]:
        url, count = self.create_database(), 100 if self.is_quick else 500

        async def create() -> None:
            async with open_log(url) as log:
                await log.create("told", [SessionCreated(session_id="told")])

        asyncio.run(create())
        found = self.run(("follow", url, "told", count), ("tell", url, "told", count))[0][0]
        yield "from a post to the watcher on another node", describe_waits(found), ""

    def measure_size(self) -> Iterator[Row]:
        sql = """SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
            WHERE nspname = 'treadle' AND relkind = 'r'"""
        count, turns = (100, 5) if self.is_quick else (500, 5)
        url = self.create_database()
        database = url.rpartition("/")[2]
        self.run(("steps", url, 1, turns))
        before = float(self.server.query(sql, database=database)[0][0])
        self.run(("steps", url, count, turns))
        grown = (float(self.server.query(sql, database=database)[0][0]) - before) / count
        with tempfile.TemporaryDirectory() as folder:
            self.run(("steps", Path(folder) / "size.db", count, turns))
            sqlite = sum(path.stat().st_size for path in Path(folder).iterdir()) / count
        yield "a session of 5 steps in the database", f"{grown / 1e3:.1f} kB; SQLite's file {sqlite / 1e3:.1f} kB", ""

    def measure_stores(self) -> Iterator[Row]:
        counts = (100, 10_000) if self.is_quick else (100, 10_000, 100_000)
        urls = [self.create_database() for _ in counts]
        for url, count in zip(urls, counts, strict=True):
            asyncio.run(create_template(url))
            copy_sessions(url, count)
        found = list[list[Figures]]()
        for _ in range(self.reps):
            found.append([self.run_one_look(url) for url in urls])
        shown = ", ".join(f"{count:,}".replace(",", " ") for count in counts)
        for name in found[0][0]:
            least = [min(rep[place][name] for rep in found) * 1e3 for place in range(len(counts))]
            yield f"{name}, in stores of {shown}", " / ".join(f"{each:.2f}" for each in least) + " ms", "flat"

    def run_one_look(self, url: str) -> Figures:
        done = subprocess.run(
            [sys.executable, __file__, "--work", "look", url, "15"], stdout=subprocess.PIPE, text=True, check=True
        )
        return json.loads(done.stdout)

    def measure_idle(self) -> Iterator[Row]:
        seconds = 4 if self.is_quick else 30
        for count in (0, 1000):
            url = self.create_database()
            asyncio.run(create_template(url))
            if count:
                copy_sessions(url, count)
            found = self.run_one("rest", url, seconds)
            figures = f"{found['cpu_s'] * 60e3:.0f} ms CPU a minute, server {found['server_s'] / seconds * 60e3:.0f} ms"
            yield f"a node with {count:,} idle sessions".replace(",", " "), figures, ""


def find_least(found: list[Figures], key: str = "cpu_s") -> float:
    return min(each[key] for each in found)


def describe_waits(found: Figures) -> str:
    return f"p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms"


NAMES = ("appends", "steps", "wakeups", "size", "stores", "idle")


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        print(json.dumps(asyncio.run(WORK[sys.argv[2]](*sys.argv[3:]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="what to measure; all without a name")
    parser.add_argument("--quick", action="store_true", help="about a minute, with less to measure")
    parser.add_argument("--reps", type=int, default=0, help="how often each measurement is repeated")
    options = parser.parse_args()
    settings = {"shared_buffers": "256MB", "max_wal_size": "1GB"}
    with PostgresServer(settings=settings) as server:
        bench = Bench(server, is_quick=options.quick, reps=options.reps or (1 if options.quick else 4))
        print("| what | figure | goal |\n|---|---|---|", flush=True)
        for name in options.names or NAMES:
            for what, figure, goal in getattr(bench, f"measure_{name}")():
                print(f"| {what} | {figure} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
