"""How a log on PostgreSQL talks to its server."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.kit.pgbouncer import PgBouncer, needs_pgbouncer
from tests.kit.postgres import PostgresServer
from tests.log.conftest import Make
from treadle import Agent, Runtime, tool
from treadle.errors import StoreError
from treadle.events import SessionRenamed
from treadle.log import postgres_binary as binary
from treadle.log.base import Claim
from treadle.log.postgres import PostgresLog
from treadle.log.postgres_binary import BinaryConnection
from treadle.testing.scripted_model import ScriptedModel, call

GIVE_UP_SECONDS = 60.0
"""Longer than any wait here, so that only a hang exceeds it."""
BUSY = """SELECT state, query FROM pg_stat_activity
    WHERE application_name = 'treadle' AND datname = current_database() AND state LIKE 'idle in transaction%'"""


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[BinaryConnection]:
    async with await BinaryConnection.connect(postgres_url, autocommit=True) as opened:
        yield opened


async def claim(log: PostgresLog) -> Claim:
    claimed = await log.claim("test", 60.0, "s")
    assert claimed is not None
    return claimed


async def test_packed_arrays_are_what_the_server_reads(connection: BinaryConnection) -> None:
    sql = b"""SELECT concat_ws(' ', $1::bigint[], $2::integer[], $3::double precision[], $4::text[], $5::jsonb[],
        $6::bytea[], $7::double precision)"""
    values = [
        binary.pack_int8([1, -(1 << 60)]),
        binary.pack_int4([2, -3]),
        binary.pack_doubles([0.5, -1e300]),
        binary.pack_texts(["ä", ""]),
        binary.pack_jsons([None, '{"a": 1}']),
        binary.pack_bytes([b"\0\xff", b""]),
        binary.pack_double(1.5),
    ]
    expected = r'{1,-1152921504606846976} {2,-3} {0.5,-1e+300} {ä,""} {NULL,"{\"a\": 1}"} {"\\x00ff","\\x"} 1.5'
    for _ in range(2):  # the second time it is prepared already
        assert await connection.run(sql, values) == [expected.encode()]
    assert await connection.run(sql, [None] * 7) == [b""]


async def test_an_error_of_the_commit_that_follows_the_rows_is_not_missed(connection: BinaryConnection) -> None:
    await connection.execute("CREATE TABLE once (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED, filler text)")
    # The rows are so many that they arrive before the server commits.
    sql = b"INSERT INTO once SELECT n % 5000, repeat('x', 100) FROM generate_series(1, $1::integer) n RETURNING filler"
    assert len(await connection.run(sql, [(4000).to_bytes(4, "big")])) == 4000
    with pytest.raises(psycopg.errors.UniqueViolation):
        await connection.run(sql, [(1).to_bytes(4, "big")])
    assert await connection.run(b"SELECT 'still usable'", []) == [b"still usable"]


async def test_a_statement_larger_than_the_buffers_of_the_socket_arrives(connection: BinaryConnection) -> None:
    body = bytes(range(256)) * 4096 * 30
    assert await connection.run(b"SELECT md5($1::bytea) = md5($1)", [body]) == [b"\x01"]
    assert await connection.run(b"SELECT $1::bytea", [body]) == [body]


async def test_a_server_that_dies_in_a_statement_is_an_error(connection: BinaryConnection, postgres_url: str) -> None:
    pid = connection.info.backend_pid
    asking = asyncio.create_task(connection.run(b"SELECT pg_sleep($1::double precision)", [binary.pack_double(60)]))
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other, asyncio.timeout(30):
        await other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(psycopg.OperationalError):
            await asking
    assert connection.broken


@needs_pgbouncer
async def test_appends_and_renewals_pass_a_pooler(postgres_server: PostgresServer, make: type[Make]) -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS):
        with PgBouncer(postgres_server, pool_size=3) as pooler, postgres_server.make_database("pooled"):
            async with PostgresLog(pooler.build_url("pooled")) as log:
                await log.create("s", [make.created("s")])
                mine = await claim(log)
                for number in range(20):
                    await log.append(mine, number + 1, make.notes(f"n.{number}"))
                    await log.renew(mine)
                assert len(await log.read("s")) == 21


async def test_an_append_whose_caller_is_cancelled_is_finished_first(postgres_url: str, make: type[Make]) -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS), PostgresLog(postgres_url) as log:
        await log.create("s", [make.created("s")])
        mine = await claim(log)
        blocker = await psycopg.AsyncConnection.connect(postgres_url)
        async with blocker:
            await blocker.execute("SELECT FROM treadle.sessions FOR UPDATE")
            appending = asyncio.create_task(log.append(mine, 1, make.notes("n.late")))
            while not log._database.writer.used:  # noqa: ASYNC110
                await asyncio.sleep(0)
            appending.cancel()
            await asyncio.sleep(0)
            assert not appending.done()
            await blocker.rollback()
            with pytest.raises(asyncio.CancelledError):
                await appending
            assert [fact.seq for fact in await log.read("s")] == [1, 2]


async def test_no_transaction_is_open_while_a_model_and_a_tool_work(postgres_url: str) -> None:
    seen = list[tuple[str, str]]()

    async def look() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
            cursor = await other.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'treadle'")
            assert await cursor.fetchall(), "the runtime has no connection"
            seen.extend(await (await other.execute(BUSY)).fetchall())

    @tool(safety="safe")
    async def work() -> str:
        """Work for a while."""
        await look()
        return "done"

    class Model(ScriptedModel):
        async def stream(self, request):
            await look()
            async for part in super().stream(request):
                yield part
                await look()

    agent = Agent(Model([call("work"), call("work"), "done"]), tools=[work], name="agent")
    async with asyncio.timeout(GIVE_UP_SECONDS), Runtime(postgres_url, [agent]) as runtime:
        session = await runtime.create("agent")
        async with session.run("go") as run:
            await run.wait()
        assert run.outcome is not None and run.outcome.calls == 2
    assert seen == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_store_every_letter_is_refused(
    postgres_server: PostgresServer, encoding: str
) -> None:
    name = f"text_{encoding.lower()}"
    postgres_server.query(
        f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0"
    )
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS), PostgresLog(postgres_server.build_url(name)) as log:
            with pytest.raises(StoreError, match=f"stores text as {encoding}; treadle needs UTF8"):
                await log.read("s")
    finally:
        postgres_server.query(f"DROP DATABASE {name} WITH (FORCE)")


async def test_text_is_sent_as_utf8_whatever_the_environment_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, make: type[Make]
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    async with asyncio.timeout(GIVE_UP_SECONDS), PostgresLog(postgres_url) as log:
        await log.create("s", [make.created("s")])
        await log.append(await claim(log), 1, [SessionRenamed(name="Größe ☺")], "Schlüssel ☺")
        assert (await log.get_info("s")).name == "Größe ☺"
        assert not (await log.post("s", make.notes("a.b"), "Schlüssel ☺")).is_new


async def test_a_database_with_another_isolation_of_transactions_is_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c default_transaction_isolation=serializable")
    async with asyncio.timeout(GIVE_UP_SECONDS), PostgresLog(postgres_url) as log:
        with pytest.raises(StoreError, match="needs 'read committed'"):
            await log.read("s")
