"""Leases of nodes that share a database: who takes over when, and that nobody works without a lease."""

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cluster.lease_node import NAMESPACE, LeaseNode, build_agent, start_node
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.processes import wait_until
from tests.kit.tcp_relay import TcpRelay
from treadle import Runtime, TextPart
from treadle.errors import Conflict
from treadle.events import CallStarted, MessageReceived, RunFinished
from treadle.log.base import Log
from treadle.log.open_log import open_log

pytestmark = needs_postgres


def has_namespaces() -> bool:
    return os.geteuid() == 0 and subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="NOT TESTED, no process may have ids of its own")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder that all nodes share. Whatever waits there is let go at the end."""
    yield tmp_path
    (tmp_path / "go").touch()


async def post_orders(log: Log, folder: Path, order: str, names: list[str]) -> None:
    """Create sessions with a message each, which any node may take."""
    agent = build_agent(folder)
    for name in names:
        await log.create(name, [agent.build_created_fact(name, folder)])
        await log.post(name, [MessageReceived(id=name, parts=(TextPart(order),))])


async def wait_for_lines(folder: Path, count: int) -> list[str]:
    """Wait until calls have written so many lines."""

    def read_lines() -> list[str]:
        file = folder / "lines"
        return file.read_text("utf-8").splitlines() if file.exists() else []

    await asyncio.to_thread(wait_until, lambda: len(read_lines()) >= count)
    return read_lines()


async def wait_for_ends(log: Log, names: list[str]) -> list[RunFinished]:
    """Wait until the run of each session has ended."""
    ends: list[RunFinished] = []
    for name in names:
        watch = log.watch(name)
        async for event in watch:
            if isinstance(event, RunFinished):
                ends.append(event)
                break
        watch.close()
    return ends


def count_owners(connection: psycopg.Connection[Any]) -> Counter[str]:
    """Count the sessions of each owner."""
    return Counter(dict(connection.execute("SELECT owner, count(*) FROM treadle.sessions GROUP BY owner").fetchall()))


def measure_business() -> float:
    """Measure how many programs wanted each processor in the last minute, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@needs_namespaces
async def test_two_nodes_share_the_sessions_of_one_that_was_killed(
    postgres_server: PostgresServer, postgres_url: str, folder: Path
) -> None:
    lease, names = 2.5, [f"s{number}" for number in range(100)]
    with ExitStack() as nodes, postgres_server.connect(postgres_url.rpartition("/")[2]) as connection:

        def start() -> LeaseNode:
            return nodes.enter_context(start_node(postgres_url, folder, lease, apart=True))

        async with open_log(postgres_url) as log:
            killed = start()
            await post_orders(log, folder, "hold 1", names)
            await wait_for_lines(folder, len(names))
            others = {start().owner, start().owner}
            assert count_owners(connection) == {killed.owner: len(names)}
            killed.send(signal.SIGKILL)
            seconds = await asyncio.to_thread(wait_until, lambda: count_owners(connection).keys() == others)
            assert seconds <= lease + 2 * measure_business()
            shares = count_owners(connection)
            assert min(shares.values()) >= len(names) / 4, f"they must share: {shares}"
            (folder / "go").touch()
            ends = await wait_for_ends(log, names)
            assert [end.reason for end in ends] == ["answered"] * len(names)
            facts = [fact for name in names for fact in await log.read(name) if isinstance(fact, CallStarted)]
            assert {fact.owner for fact in facts} == {killed.owner, *others}, "a started call names its node"
            assert {node.name for node in await log.list_nodes() if node.is_alive} == others


async def test_a_call_that_outlives_ten_leases_is_not_run_again(postgres_url: str, folder: Path) -> None:
    lease = 1.0
    with start_node(postgres_url, folder, lease), start_node(postgres_url, folder, lease):
        async with open_log(postgres_url) as log:
            await post_orders(log, folder, "hold 1", ["long"])
            await wait_for_lines(folder, 1)
            began = time.monotonic()
            await asyncio.to_thread(wait_until, lambda: time.monotonic() - began > 10 * lease)
            (folder / "go").touch()
            (end,) = await wait_for_ends(log, ["long"])
            assert end.reason == "answered"
            assert (await log.get_info("long")).seq == len(await log.read("long"))
    assert (folder / "lines").read_text("utf-8").splitlines() == ["long call-0 hold"]


async def test_a_database_that_is_away_for_a_while_ends_no_run(
    postgres_server: PostgresServer, postgres_url: str, folder: Path
) -> None:
    away = 3.2  # longer than anybody but an owner waits
    with TcpRelay(postgres_server.port) as relay:
        url = postgres_server.build_url(postgres_url.rpartition("/")[2], port=relay.port)
        async with open_log(url) as log, Runtime(log, [build_agent(folder)], lease=2.4) as runtime:
            session = await runtime.create("holder", workspace=folder)
            async with session.run("change 3") as run:
                await wait_for_lines(folder, 1)
                relay.refuse()
                (folder / "go").touch()
                began = time.monotonic()
                while time.monotonic() - began < away:
                    await asyncio.sleep(0.1)
                    assert len(await wait_for_lines(folder, 1)) == 1, "a call began without a lease"
                relay.heal()
                outcome = await run.wait()
    assert outcome is not None and outcome.reason == "answered"
    assert len(set(await wait_for_lines(folder, 3))) == 3


async def test_a_session_runs_on_the_node_that_serves_its_folder(postgres_url: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "go").touch()
    async with (
        open_log(postgres_url) as log,
        open_log(postgres_url) as other_log,
        Runtime(log, [build_agent(here)], roots=[here]) as runtime,
        Runtime(other_log, [build_agent(there)], roots=[there]) as other,
    ):
        session = await runtime.create("holder", workspace=there)
        async with session.run("change 1") as run:
            outcome = await run.wait()
        assert outcome is not None and outcome.answer == "done", "the node that took the message shows the answer"
        started = [fact for fact in await log.read(session.id) if isinstance(fact, CallStarted)]
        assert [fact.owner for fact in started] == [other.coordinator.owner]
        assert (there / "lines").exists() and not (here / "lines").exists()
        roots = {node.name: node.roots for node in await log.list_nodes()}
        assert roots == {runtime.coordinator.owner: (str(here),), other.coordinator.owner: (str(there),)}


async def test_files_are_rewound_where_their_folder_is_served(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "elsewhere").mkdir()
    async with open_log(postgres_url) as log, Runtime(log, [build_agent(tmp_path)], roots=[tmp_path]) as runtime:
        session = await runtime.create("holder", workspace=tmp_path)
        async with session.run("change 1") as run:
            await run.wait()
    async with (
        open_log(postgres_url) as log,
        Runtime(log, [build_agent(tmp_path)], roots=[tmp_path / "elsewhere"]) as runtime,
    ):
        session = await runtime.open(session.id)
        with pytest.raises(Conflict, match="does not serve"):
            await session.rewind(2, "files")
        assert (await session.rewind(2, "conversation")).done
