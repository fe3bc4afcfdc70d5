"""Copying stores when something goes wrong: a kill, a full disk, a database that goes away, the wrong store."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.app.copied_stores import (
    MakeStore,
    copy,
    count_outcomes,
    describe_store,
    dump,
    each_target,
    fill,
    make_store,
    own_data_folder,
    query,
)
from tests.kit.pgbouncer import PgBouncer, needs_pgbouncer
from tests.kit.postgres import PostgresServer
from tests.kit.small_disk import fill_disk, mount_small_disk
from tests.log.conftest import Make
from treadle.app.store_copy import copy_store
from treadle.errors import BadInput, NotFound, StoreAway, StoreFull, StoreTooNew
from treadle.log.base import SessionQuery
from treadle.log.maintenance import check_store
from treadle.log.open_log import open_log

WORKER = Path(__file__).with_name("copy_worker.py")
__all__ = ["make_store", "own_data_folder"]


# --- it is killed


@pytest.mark.parametrize("kinds", [("sqlite", "postgres"), ("postgres", "sqlite")], ids=" to ".join)
async def test_a_copy_that_is_killed_after_every_write_goes_on_and_shows_no_half_session(
    make_store: MakeStore, kinds: tuple[str, str]
) -> None:
    source, target = map(make_store, kinds)
    await fill(source, small=2, large=400)
    expected, kills = await describe_store(source), 0
    while True:
        command = (sys.executable, str(WORKER), source, target, str(1 + kills % 3))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        await check_visible_sessions(target, expected)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        assert kills < 30, "it begins anew instead of going on"
    assert json.loads(out)["left_out"] == [] and kills > 4
    assert await describe_store(target) == expected
    if kinds[1] == "sqlite":
        assert "incoming" not in str(query(target, "SELECT name FROM sqlite_master"))
    else:
        assert (dump(target)["incoming"], dump(target)["incoming_facts"]) == ([], [])


async def check_visible_sessions(store: str, expected: dict[str, Any]) -> None:
    """Check that a reader finds whole sessions only, also in the order of all facts."""
    if "://" not in store:
        if not Path(store).exists() or not query(store, "SELECT 1 FROM sqlite_master"):
            return
        assert check_store(Path(store), lambda _: None).problems == ()
    async with open_log(store) as log:
        async for info in log.iterate_sessions(SessionQuery()):
            facts = [fact async for piece in log.read_in_pieces(info.id) for fact in piece]
            assert (info, facts) == expected[info.id]
        watch = log.watch_all(0)
        await log.create("last", [Make.created("last")])
        seen: dict[str, int] = {}
        async for stored in watch:
            if stored.session_id == "last":
                break
            seen[stored.session_id] = seen.get(stored.session_id, 0) + 1
        watch.close()
        await log.delete("last")
        assert seen == {name: len(expected[name][1]) for name in seen}


# --- errors


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_is_not_copied_to_itself(make_store: MakeStore, kind: str, tmp_path: Path) -> None:
    store = make_store(kind)
    await fill(store)
    other = str(tmp_path / "link.db") if kind == "sqlite" else f"{store}?application_name=other"
    if kind == "sqlite":
        os.symlink(store, other)
    before = dump(store)
    for options in ({}, {"dry_run": True}):
        with pytest.raises(BadInput, match="are the same store; nothing was copied"):
            await copy(store, other, **options)
    assert dump(store) == before


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_there_must_be_a_store_to_copy(make_store: MakeStore, kind: str) -> None:
    target = make_store("sqlite")
    with pytest.raises(NotFound, match="there is no store"):
        await copy(make_store(kind), target)
    with pytest.raises(BadInput, match="':memory:' cannot be copied"):
        await copy(":memory:", target)
    with pytest.raises(BadInput, match=r"'mysql://me:.*' cannot be copied"):
        await copy("mysql://me:secret@host/x", target)
    assert not Path(target).exists()


async def test_a_newer_store_is_neither_read_nor_written(make_store: MakeStore) -> None:
    file, newer, database = make_store("sqlite"), make_store("sqlite"), make_store("postgres")
    for store in (file, newer, database):
        await fill(store)
    change_version(newer)
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("INSERT INTO treadle.versions VALUES (99, 98)")
    for source, target in ((file, newer), (newer, file), (file, database), (database, file)):
        with pytest.raises(StoreTooNew, match="Upgrade treadle"):
            await copy(source, target)


def change_version(store: str) -> None:
    with closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_full_disk_stops_the_copy_and_it_goes_on_with_more_room(tmp_path: Path, kind: str) -> None:
    source = str(tmp_path / "source.db")
    await fill(source, large=6000)
    async with make_small_store(tmp_path, kind) as (target, filler):
        with pytest.raises(StoreFull, match=r"no room left .* Run the same command again later"):
            await copy(source, target)
        filler.unlink()
        done = await copy(source, target)
        assert done.left_out == [] and done.copied + done.unchanged == 4
        assert await describe_store(target) == await describe_store(source)


@asynccontextmanager
async def make_small_store(folder: Path, kind: str) -> AsyncIterator[tuple[str, Path]]:
    """A store on a disk with room for some facts, and the file that takes the rest of it."""
    with ExitStack() as stack:
        if kind == "sqlite":
            disk = stack.enter_context(mount_small_disk(folder / "disk", 8))
            store = str(disk / "target.db")
        else:
            server = stack.enter_context(PostgresServer(disk_megabytes=100, settings={"max_wal_size": "32MB"}))
            disk, store = server.data, server.build_url()
        async with open_log(store) as log:
            assert not (await log.list_sessions(SessionQuery())).sessions
        filler = fill_disk(disk)
        os.truncate(filler, filler.stat().st_size - 500_000)
        yield store, filler


async def test_a_database_that_goes_away_stops_the_copy_and_it_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "source.db")
    await fill(source, large=6000)
    monkeypatch.setattr("treadle.log.postgres_copy.PATIENCE", 1.0)
    with PostgresServer() as server:
        stopped = False

        def stop_once(text: str) -> None:
            nonlocal stopped
            if not stopped:
                stopped = True
                server.stop("immediate")

        with pytest.raises(StoreAway, match=r"sessions were copied and are whole.*Run the same command again"):
            await copy_store(source, server.build_url(), stop_once)
        server.start()
        done = await copy(source, server.build_url())
        assert done.left_out == [] and done.copied + done.unchanged == 4
        assert await describe_store(server.build_url()) == await describe_store(source)


async def test_a_database_that_comes_back_soon_does_not_stop_the_copy(tmp_path: Path) -> None:
    source = str(tmp_path / "source.db")
    await fill(source, large=6000)
    with PostgresServer() as server:
        stopped = False

        def restart_once(text: str) -> None:
            nonlocal stopped
            if not stopped:
                stopped = True
                server.restart()

        done = await copy_store(source, server.build_url(), restart_once)
        assert stopped and count_outcomes(done) == (4, 0, 0, 0, 0)
        assert await describe_store(server.build_url()) == await describe_store(source)


@needs_pgbouncer
async def test_a_copy_goes_through_a_pooler(tmp_path: Path, postgres_server: PostgresServer) -> None:
    source, back = str(tmp_path / "source.db"), str(tmp_path / "back.db")
    await fill(source, small=20, large=2500)
    with PgBouncer(postgres_server) as pooler, postgres_server.make_database("pooled_copies"):
        target = pooler.build_url("pooled_copies")
        assert count_outcomes(await copy(source, target)) == (21, 0, 0, 0, 0)
        with pytest.raises(BadInput, match="are the same store"):
            await copy(target, postgres_server.build_url("pooled_copies"))
        assert count_outcomes(await copy(target, back)) == (21, 0, 0, 0, 0)
    assert await describe_store(back) == await describe_store(source)


@each_target
async def test_no_error_shows_a_password(kind: str, tmp_path: Path) -> None:
    file, url = str(tmp_path / "a.db"), "postgresql://me:hunter2@127.0.0.1:1/x"
    await fill(file)
    with pytest.raises((StoreAway, BadInput)) as caught:
        await (copy(file, url) if kind == "postgres" else copy(url, file))
    assert "hunter2" not in str(caught.value) and "me:***@127.0.0.1" in str(caught.value)
