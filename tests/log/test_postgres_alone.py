"""A node of a PostgreSQL log that is alone sends no news, and one with many sessions reads no table from end to end."""

import asyncio
import time

import psycopg
import pytest
from benchmarks.cluster_stores import copy_sessions, create_template

from tests.kit.postgres import PostgresServer, needs_postgres
from tests.log.conftest import Make
from tests.log.nodes import Nodes, until
from treadle.events import Custom
from treadle.log import postgres_wakeups
from treadle.log.base import Node, SessionQuery
from treadle.log.postgres import PostgresLog

pytestmark = needs_postgres
SESSIONS = 3000
READ = """SELECT relname, seq_tup_read FROM pg_stat_user_tables
    WHERE schemaname = 'treadle' AND relname IN ('sessions', 'facts', 'fact_words')"""


async def test_a_node_that_is_alone_sends_no_news_of_facts(
    postgres_url: str, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[postgres_wakeups.NewsItem]()
    async with Nodes(postgres_url) as nodes:
        monkeypatch.setattr(postgres_wakeups, "ALONE_SECONDS", 0.2)
        alone = await nodes.open()
        news, send = alone._wakeups, alone._wakeups._send
        monkeypatch.setattr(news, "_send", lambda items: sent.extend(items) or send(items))
        await until(lambda: time.monotonic() > news._has_others_until)
        sent.clear()
        await alone.create("s", [make.created("s")])
        await until(lambda: news._timer is None)
        assert not any(isinstance(item, postgres_wakeups.FactsStored) for item in sent)

        monkeypatch.setattr(postgres_wakeups, "ALONE_SECONDS", 60.0)
        other = await nodes.open()
        screen = nodes.watch(other)
        await until(lambda: time.monotonic() < news._has_others_until)
        await alone.post("s", [Custom(name="n")])
        await until(lambda: len(screen.events) == 2)
        assert any(isinstance(item, postgres_wakeups.FactsStored) for item in sent)


async def test_nothing_reads_a_whole_table_of_many_sessions(postgres_server: PostgresServer, postgres_url: str) -> None:
    await create_template(postgres_url)
    copy_sessions(postgres_url, SESSIONS)
    async with PostgresLog(postgres_url) as log:
        while (await log.search("n7x")).unindexed:
            pass
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute("VACUUM (ANALYZE)")
    before = await read_counts(postgres_server, postgres_url)
    async with PostgresLog(postgres_url) as log:
        for _ in range(8):  # after five times the server may choose one plan for all values
            await use_everything(log)
    after = await read_counts(postgres_server, postgres_url)
    assert {name: after[name] - before[name] for name in after} == dict.fromkeys(after, 0)


async def use_everything(log: PostgresLog) -> None:
    newest = (await log.list_sessions(SessionQuery(limit=1))).sessions[0]
    for query in (
        SessionQuery(),
        SessionQuery(status="failed"),
        SessionQuery(status="waiting"),
        SessionQuery(workspace="/home/ada/project7"),
        SessionQuery(agent=newest.agent),
        SessionQuery(prefix=newest.id[:10]),
        SessionQuery(name="Look into problem 7"),
        SessionQuery(parent=newest.id),
        SessionQuery(pinned=True),
        SessionQuery(archived=True),
    ):
        await log.list_sessions(query)
    await log.search("n7x")
    await log.join(Node("node", "agents", lease=10.0))
    await log.list_nodes()
    assert await log.claim("bench", 30.0) is None
    await log.post(newest.id, [Custom(name="bench.wake")], "key")
    claim = await log.claim("bench", 30.0, newest.id)
    assert claim is not None
    head = (await log.get_info(newest.id)).seq
    await log.append(claim, head, [Custom(name="n")])
    await log.renew(claim)
    await log.put_artifact(newest.id, b"kept", claim=claim)
    await log.release(claim, head + 1)
    await log.read(newest.id)
    watch = log.watch_all(SESSIONS)
    await anext(watch)
    watch.close()
    await log._poll()


async def read_counts(server: PostgresServer, url: str) -> dict[str, int]:
    """Read how many rows were read from end to end, when all connections have said what they did."""
    name = url.rpartition("/")[2]
    sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'treadle' AND datname = %s"
    async with asyncio.timeout(60):
        while server.query(sql, name):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return dict(server.query(READ, database=name))
