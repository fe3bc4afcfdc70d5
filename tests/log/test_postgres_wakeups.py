"""Wake-ups between the nodes of a PostgreSQL log are hints: nothing depends on them, and no stranger can read them."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.kit.pgbouncer import PgBouncer, needs_pgbouncer
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.processes import wait_until
from tests.kit.tcp_relay import TcpRelay
from tests.log.nodes import Nodes, run_session, say, until
from treadle.events import Custom
from treadle.log.postgres import PostgresLog

pytestmark = needs_postgres

# Listens until it is killed, as every node does.
LISTEN = """
import asyncio, sys
from treadle.log import postgres_wakeups
from treadle.log.postgres import PostgresLog
postgres_wakeups._STUCK_SECONDS = 1

async def main():
    async with PostgresLog(sys.argv[1]) as log:
        log._start()
        while not log._wakeups.is_listening:
            await asyncio.sleep(0.01)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
# Creates a session, and appends to it and posts to all so many times.
WRITE = """
import asyncio, sys
from treadle.events import Custom, SessionCreated
from treadle.log.postgres import PostgresLog

async def write(log, name):
    await log.create(name, [SessionCreated(session_id=name)])
    claim = await log.claim(name, 60, name)
    for number in range(int(sys.argv[3])):
        await log.append(claim, number + 1, [Custom(name=name)])
        await log.renew(claim)
    assert [fact.seq for fact in await log.read(name)] == list(range(1, int(sys.argv[3]) + 2))

async def main():
    async with PostgresLog(sys.argv[1]) as log:
        await asyncio.gather(*(write(log, f"{sys.argv[2]}-{number}") for number in range(10)))

asyncio.run(main())
"""


@pytest.fixture
async def nodes(postgres_url: str) -> AsyncIterator[Nodes]:
    async with Nodes(postgres_url) as nodes:
        yield nodes


def find_channel(log: PostgresLog) -> str:
    return log._wakeups._channel  # pyright: ignore


def name_database(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


def end_listeners(server: PostgresServer, url: str) -> int:
    """End all connections of a database that listen."""
    sql = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = %s AND query LIKE 'LISTEN%%' AND backend_type = 'client backend'"""
    return len(server.query(sql, name_database(url)))


async def test_news_of_many_writes_share_a_message_that_is_no_part_of_them(nodes: Nodes) -> None:
    log = await nodes.open()
    claim = await run_session(log)
    with psycopg.connect(nodes.url, autocommit=True) as listener:
        listener.execute(f'LISTEN "{find_channel(log)}"'.encode())
        await asyncio.gather(*(log.post("s", [Custom(name=f"n{number}")]) for number in range(100)))
        for number in range(100):
            await log.append(claim, 101 + number, [Custom(name="n")])
        notes: list[str] = []
        while not any('"s",201' in note for note in notes):
            await asyncio.sleep(0.01)
            notes += [note.payload for note in listener.notifies(timeout=0)]
        assert len(notes) < 100
        functions = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'treadle'::regnamespace AND prosrc ~* 'notify'"
        assert listener.execute(functions).fetchone() == (0,)


async def test_facts_arrive_when_listening_was_cut_and_news_when_it_is_back(
    nodes: Nodes, postgres_server: PostgresServer
) -> None:
    owner, other = await nodes.open(), await nodes.open()
    await run_session(owner)
    screen = nodes.watch(other)
    await screen.shows("[1]")
    assert end_listeners(postgres_server, nodes.url) == 2
    await owner.post("s", [Custom(name="n")])
    await screen.shows("[1][2]")
    await until(lambda: owner._wakeups.is_listening and other._wakeups.is_listening)  # pyright: ignore
    say(owner, "live", after=2)
    await screen.shows("[1][2]live")


async def test_a_connection_that_hears_nothing_is_noticed_and_facts_arrive_meanwhile(
    nodes: Nodes, postgres_server: PostgresServer
) -> None:
    with TcpRelay(postgres_server.port) as relay:
        owner = await nodes.open()
        other = await nodes.open(f"{nodes.url}?listen=127.0.0.1:{relay.port}")
        await run_session(owner)
        screen = nodes.watch(other)
        await screen.shows("[1]")
        relay.cut()
        await owner.post("s", [Custom(name="n")])
        await screen.shows("[1][2]")
        say(owner, "said while it hears nothing", after=2)
        await other.post("s", [Custom(name="own")])  # whose news do not come back
        await until(lambda: not other._wakeups.is_listening)  # pyright: ignore
        relay.heal(lose=True)
        await screen.shows("[1][2][3]said while it hears nothing")


async def test_facts_arrive_where_no_news_can_be_received(nodes: Nodes) -> None:
    owner = await nodes.open()
    deaf = await nodes.open(f"{nodes.url}?listen=127.0.0.1:1", listens=False)
    await run_session(owner)
    screen = nodes.watch(deaf)
    await screen.shows("[1]")
    await owner.post("s", [Custom(name="n")])
    await screen.shows("[1][2]")
    assert deaf.counters["wakeup_lag"] >= 0.5


async def test_the_lag_of_wake_ups_is_measured(nodes: Nodes) -> None:
    log = await nodes.open(listens=False)
    assert log.counters["wakeup_lag"] == 0.5
    await until(lambda: 0 < log.counters["wakeup_lag"] != 0.5)


async def test_a_stranger_in_the_same_server_hears_no_news_and_is_not_heard(
    nodes: Nodes, postgres_server: PostgresServer
) -> None:
    owner, other = await nodes.open(), await nodes.open()
    await run_session(owner)
    screen = nodes.watch(other)
    postgres_server.query("CREATE ROLE stranger LOGIN")
    try:
        url = nodes.url.replace("treadle@", "stranger@")
        with psycopg.connect(url, autocommit=True) as stranger:
            stranger.execute("LISTEN treadle")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stranger.execute("SELECT * FROM treadle.secrets")
            queries = stranger.execute("SELECT query FROM pg_stat_activity").fetchall()
            assert not any(find_channel(owner) in query for (query,) in queries)
            stranger.execute("""NOTIFY treadle, '{"node":"x","at":0,"items":[["facts","s",0],["facts","s",99]]}'""")
            say(owner, "private", after=1)
            await screen.shows("[1]private")
            assert [note.payload for note in stranger.notifies(timeout=0)][1:] == []
        assert other.get_head("s") == 1
    finally:
        postgres_server.query("DROP ROLE stranger")


def test_a_frozen_node_does_not_keep_the_news_of_others_in_the_servers_queue() -> None:
    with PostgresServer(durable=False) as server:
        frozen = subprocess.Popen([sys.executable, "-c", LISTEN, server.build_url()], stdout=subprocess.PIPE)
        try:
            assert frozen.stdout is not None and frozen.stdout.readline() == b"ready\n"
            ((channel,),) = server.query("SELECT 'treadle_' || encode(value, 'hex') FROM treadle.secrets")
            os.kill(frozen.pid, signal.SIGSTOP)
            listeners = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND backend_type LIKE 'cl%%'"

            def is_ended() -> bool:
                server.query("SELECT pg_notify(%s, repeat('x', 7900)) FROM generate_series(1, 500)", channel)
                return server.query(listeners.replace("%%", "%")) == [(0,)]

            wait_until(is_ended)
        finally:
            frozen.kill()
            frozen.communicate()


@needs_pgbouncer
async def test_through_a_pooler_nothing_fails_and_listening_goes_around_it(caplog: pytest.LogCaptureFixture) -> None:
    with PostgresServer(durable=False) as server, PgBouncer(server, pool_size=4) as pooler:
        through = server.build_url(port=pooler.port)
        writers = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", WRITE, through, f"w{number}", "40")
            for number in range(3)
        ]
        assert [await writer.wait() for writer in writers] == [0, 0, 0]
        async with Nodes(through) as nodes:
            with caplog.at_level(logging.INFO):
                around = await nodes.open(f"{through}?listen=127.0.0.1:{server.port}")
            assert "pooler" not in caplog.text
            await run_session(around)
            with caplog.at_level(logging.INFO):
                polling = await nodes.open(listens=False)
                await until(lambda: "pooler" in caplog.text)
            assert "listen=HOST:PORT" in caplog.text and caplog.text.count("pooler") == 1
            screen = nodes.watch(polling)
            await screen.shows("[1]")
            await around.post("s", [Custom(name="n")])
            await screen.shows("[1][2]")
            assert not polling._wakeups.is_listening  # pyright: ignore
            assert around._database.pool.is_pooled and polling._database.pool.is_pooled  # pyright: ignore
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        assert server.query(listening) == [(0,)]


async def test_an_error_of_whoever_hears_news_does_not_end_listening(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    here, elsewhere = await nodes.open(), await nodes.open()
    heard = list[str]()

    def fail() -> None:
        here.on_due = lambda: heard.append("due")
        raise RuntimeError("a bug")

    here.on_due = fail
    elsewhere._wakeups.tell_due()
    await until(lambda: "a bug" in caplog.text)
    await until(lambda: here._wakeups.is_listening)
    elsewhere._wakeups.tell_due()
    await until(lambda: heard)
