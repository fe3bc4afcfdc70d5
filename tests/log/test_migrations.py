"""How a PostgreSQL database gets the tables of a newer release while nodes of the older one work on it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.kit.postgres import PostgresServer
from tests.kit.processes import PATIENCE, wait_until
from treadle.errors import StoreReadOnly, StoreTooNew
from treadle.events import AgentConfig, Custom, SessionCreated
from treadle.log import postgres_database
from treadle.log.base import Node, SessionQuery
from treadle.log.postgres import PostgresLog
from treadle.log.postgres_schema import MIGRATIONS, Migration, migrate

PROJECT = Path(__file__).parents[2]
COUNT = "INSERT INTO treadle.migrated VALUES (pg_backend_pid())"
# The next release adds a column to every table, one that is filled from what is there, and a table.
SECOND: Migration = (
    """DO $$
        DECLARE
            name text;
        BEGIN
            FOR name IN SELECT table_name FROM information_schema.tables WHERE table_schema = 'treadle'
                AND table_type = 'BASE TABLE' AND table_name <> 'versions'
            LOOP
                EXECUTE format('ALTER TABLE treadle.%I ADD COLUMN added text NOT NULL DEFAULT ''''', name);
            END LOOP;
        END $$""",
    "UPDATE treadle.sessions SET added = upper(agent)",
    "CREATE TABLE treadle.migrated (by integer)",
    COUNT,
)
# The release after that drops what only the first one used.
THIRD: Migration = ("DROP FUNCTION treadle.renew_claims",)
# Opens a log with made-up migrations, and says so.
OPEN = """
import asyncio, json, sys
from functools import partial
from treadle.log import postgres_database
from treadle.log.postgres import PostgresLog
from treadle.log.postgres_schema import MIGRATIONS, migrate

async def main():
    url, more = sys.argv[1], json.loads(sys.argv[2])
    postgres_database.migrate = partial(migrate, migrations=(*MIGRATIONS, *more))
    print("ready", flush=True)
    sys.stdin.readline()
    async with PostgresLog(url) as log:
        print(await log.search("hello"), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def know(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let logs that are opened from now on be of a release that knows these migrations too."""

    def know_migrations(*more: Migration) -> None:
        known = partial(migrate, migrations=(*MIGRATIONS, *more))
        monkeypatch.setattr(postgres_database, "migrate", known)

    return know_migrations


@pytest.fixture
def guest(postgres_server: PostgresServer, postgres_url: str) -> Iterator[str]:
    """The URL of the database for a user who may only connect to it."""
    postgres_server.query("CREATE ROLE guest LOGIN")
    yield postgres_url.replace("//treadle@", "//guest@")
    postgres_server.query("DROP OWNED BY guest CASCADE", database=name_database(postgres_url))
    postgres_server.query("DROP ROLE guest")


def name_database(url: str) -> str:
    return url.rpartition("/")[2]


def query(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def read_versions(url: str) -> list[tuple[int, int]]:
    return query(url, "SELECT version, oldest_node FROM treadle.versions ORDER BY version")


def start_opening(url: str, *more: Migration) -> "subprocess.Popen[str]":

    command = [sys.executable, "-c", OPEN, url, json.dumps(more)]
    return subprocess.Popen(
        command, cwd=PROJECT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


async def use_everything(log: PostgresLog, session_id: str) -> None:
    """Write to every table, and read it back."""
    created = SessionCreated(session_id=session_id, agent=AgentConfig(name="agent"))
    await log.create(session_id, [created])
    await log.post(session_id, [Custom(name="posted")], "key")
    assert not (await log.post(session_id, [Custom(name="posted")], "key")).is_new
    claim = await log.claim("me", 60, session_id)
    assert claim is not None
    await log.append(claim, 2, [Custom(name="appended")], "other key")
    await log.renew(claim)
    artifact = await log.put_artifact(session_id, b"artifact", claim=claim)
    assert (await log.get_artifact(session_id, artifact)).data == b"artifact"
    assert await log.release(claim, 3)
    assert [fact.seq for fact in await log.read(session_id)] == [1, 2, 3]
    assert session_id in [info.id for info in (await log.list_sessions(SessionQuery())).sessions]
    await log.search("hello")
    await log.shared.put("name", b"value", 60)
    assert await log.shared.take("name") == b"value"
    assert await log.shared.count("count", 60) > 0
    await log.join(Node("me"))
    assert [node.name for node in await log.list_nodes()] == ["me"]
    await log.get_approval_key()
    await log.check_writable(10)


# ── beside each other ────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_database_gets_all_tables_of_its_release(postgres_url: str, know: Callable[..., None]) -> None:
    know(SECOND, THIRD)
    async with PostgresLog(postgres_url) as log:
        await log.search("hello")
    assert read_versions(postgres_url) == [(1, 1), (2, 1), (3, 2)]


async def test_an_old_node_works_on_beside_the_tables_of_the_next_release(
    postgres_url: str, know: Callable[..., None]
) -> None:
    async with PostgresLog(postgres_url) as old:
        await use_everything(old, "before")
        know(SECOND)
        async with PostgresLog(postgres_url) as new:
            await use_everything(new, "by-new")
            await use_everything(old, "by-old")
            for log, other in ((old, "by-new"), (new, "by-old")):
                assert [fact.seq for fact in await log.read(other)] == [1, 2, 3]
                await log.delete(other)
    assert read_versions(postgres_url) == [(1, 1), (2, 1)]
    assert query(postgres_url, "SELECT added FROM treadle.sessions") == [("AGENT",)], (
        "it was filled from what was there"
    )


async def test_an_old_node_can_start_beside_the_tables_of_the_next_release(
    postgres_url: str, know: Callable[..., None]
) -> None:
    know(SECOND)
    async with PostgresLog(postgres_url) as new:
        await use_everything(new, "by-new")
        know()
        async with PostgresLog(postgres_url) as old:
            await use_everything(old, "by-old")
        know(SECOND)
        async with PostgresLog(postgres_url) as new_again:
            await use_everything(new_again, "by-new-again")
    assert read_versions(postgres_url) == [(1, 1), (2, 1)]


async def test_writes_of_an_old_node_go_on_while_a_newer_one_migrates(
    postgres_url: str, know: Callable[..., None]
) -> None:
    async with PostgresLog(postgres_url) as old:
        await old.create("s", [SessionCreated(session_id="s")])
        claim = await old.claim("me", 60, "s")
        assert claim is not None
        appended, is_over = 1, False

        async def append_all_the_time() -> None:
            nonlocal appended
            while not is_over:
                await old.append(claim, appended, [Custom(name="x")])
                appended += 1

        writing = asyncio.create_task(append_all_the_time())
        know(SECOND)
        async with PostgresLog(postgres_url) as new:
            await new.search("hello")
            before = appended
            while appended < before + 20:
                await asyncio.sleep(0)
                assert not writing.done() or writing.exception() is None
        is_over = True
        await writing
        assert [fact.seq for fact in await old.read("s")] == list(range(1, appended + 1))


# ── at the same time, and killed ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("began", ["empty", "older"])
async def test_of_five_processes_that_start_at_once_one_migrates(postgres_url: str, began: str) -> None:
    if began == "older":
        async with PostgresLog(postgres_url) as old:
            await use_everything(old, "before")
    started = [start_opening(postgres_url, SECOND) for _ in range(5)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:  # not before all are ready
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output) == (0, "[]\n"), errors
    assert read_versions(postgres_url) == [(1, 1), (2, 1)]
    assert query(postgres_url, "SELECT count(*), count(DISTINCT by) FROM treadle.migrated") == [(1, 1)]


@pytest.mark.parametrize("began", ["empty", "older"])
async def test_a_kill_in_the_middle_of_a_migration_leaves_the_old_version_whole(
    postgres_url: str, began: str, know: Callable[..., None]
) -> None:
    if began == "older":
        async with PostgresLog(postgres_url) as old:
            await use_everything(old, "before")
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted"
    with psycopg.connect(postgres_url, autocommit=True) as blocker:
        blocker.execute("SELECT pg_advisory_lock(42)")
        process = start_opening(postgres_url, (*SECOND, "SELECT pg_advisory_xact_lock(42)"))
        try:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            wait_until(lambda: process.poll() is not None or query(postgres_url, waiting) == [(1,)])
            assert process.poll() is None, process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.communicate()
    tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'treadle' AND table_name = 'migrated'"
    ended = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%xact_lock(42)' AND pid <> pg_backend_pid()"
    wait_until(lambda: query(postgres_url, ended) == [(0,)])
    assert query(postgres_url, tables) == [(0,)]
    if began == "older":
        assert read_versions(postgres_url) == [(1, 1)]
    else:
        assert query(postgres_url, "SELECT to_regnamespace('treadle')") == [(None,)]
    async with PostgresLog(postgres_url) as old:
        await use_everything(old, "after")
    know(SECOND)
    async with PostgresLog(postgres_url) as new:
        await use_everything(new, "by-new")
    assert read_versions(postgres_url) == [(1, 1), (2, 1)]


# ── too old ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_that_is_two_releases_behind_is_refused(postgres_url: str, know: Callable[..., None]) -> None:
    know(SECOND, THIRD)
    async with PostgresLog(postgres_url) as newest:
        await newest.search("hello")
    know(SECOND)
    async with PostgresLog(postgres_url) as new:
        await new.create("s", [SessionCreated(session_id="s")])
    know()
    old = PostgresLog(postgres_url)
    refusal = r"postgresql://.* has store version 3, which needs a treadle that knows version 2; this one knows 1"
    with pytest.raises(StoreTooNew, match=refusal):
        await old.read("s")
    await old.close()
    assert read_versions(postgres_url) == [(1, 1), (2, 1), (3, 2)]


async def test_a_running_node_that_falls_two_releases_behind_is_told_to_upgrade(
    postgres_url: str, know: Callable[..., None]
) -> None:
    async with PostgresLog(postgres_url) as old:
        await old.create("s", [SessionCreated(session_id="s")])
        claim = await old.claim("me", 60, "s")
        assert claim is not None
        know(SECOND, THIRD)
        async with PostgresLog(postgres_url) as newest:
            await newest.search("hello")
        with pytest.raises(StoreTooNew, match=r"A newer treadle has changed them.*Upgrade treadle"):
            await old.renew(claim)


# ── rights ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_user_without_the_right_to_create_is_told_which_one_is_missing(guest: str, postgres_url: str) -> None:
    async with PostgresLog(guest) as log:
        with pytest.raises(StoreReadOnly, match=r"permission denied for database .*Give the user the rights to create"):
            await log.read("s")
    assert query(postgres_url, "SELECT to_regnamespace('treadle')") == [(None,)]


async def test_a_schema_that_an_administrator_made_is_enough(guest: str, postgres_url: str) -> None:
    query(postgres_url, "CREATE SCHEMA treadle AUTHORIZATION guest")
    async with PostgresLog(guest) as log:
        await use_everything(log, "s")


async def test_a_user_with_rights_on_the_tables_needs_none_to_create(guest: str, postgres_url: str) -> None:
    async with PostgresLog(postgres_url) as owner:
        await owner.create("s", [SessionCreated(session_id="s")])
    async with PostgresLog(guest) as log:
        with pytest.raises(StoreReadOnly, match=r"permission denied for schema treadle"):
            await log.read("s")
    for statement in (
        "GRANT USAGE ON SCHEMA treadle TO guest",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA treadle TO guest",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA treadle TO guest",
    ):
        query(postgres_url, statement)
    async with PostgresLog(guest) as log:
        await use_everything(log, "t")
        await log.delete("s")
    async with PostgresLog(postgres_url) as owner:
        assert len(await owner.read("t")) == 3
