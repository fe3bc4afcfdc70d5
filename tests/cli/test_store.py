"""`treadle store` as a user runs it, on a real file and beside a real server."""

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.serve_process import start_server
from tests.kit.terminal import Place
from tests.log.conftest import Clock, Make
from treadle.events import Custom, SessionRenamed
from treadle.log.sqlite import SqliteLog


async def fill(path: Path) -> None:
    """Ten old sessions and two new ones; one of the old ones has a name."""
    clock = Clock(time.time() - 100 * 86400)
    async with SqliteLog(path, clock=clock) as log:
        for number in range(10):
            await log.create(f"old{number}", [Make.created(f"old{number}"), Custom(name="x", data="y" * 50_000)])
        await log.post("old3", [SessionRenamed(name="mine")], wake=False)
        clock.now = time.time()
        await log.create("new0", [Make.created("new0")])
        await log.create("new1", [Make.created("new1")])


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "treadle.db"
    await fill(path)
    return path


async def test_check_backup_prune_and_vacuum_say_what_they_did(place: Place, store: Path, tmp_path: Path) -> None:
    at = ("--store", str(store))
    done = await place.quick("store", "check", *at)
    assert (done.code, done.err) == (0, "") and "is whole: 12 sessions, 23 facts" in done.out
    copy = tmp_path / "copy.db"
    assert (await place.quick("store", "backup", str(copy), *at)).code == 0
    again = await place.quick("store", "backup", str(copy), *at)
    assert again.code == 2 and "--force" in again.err

    dry = await place.quick("store", "prune", "--older-than", "90d", "--keep-named", "--dry-run", *at)
    assert dry.code == 0 and "9 sessions would be deleted" in dry.out and "mine" not in dry.out
    before = store.stat().st_size
    done = await place.quick("store", "prune", "--older-than", "90d", "--keep-named", "--json", *at)
    document = json.loads(done.out)
    assert sorted(document["deleted"]) == [f"old{n}" for n in range(10) if n != 3] and document["freed"] > 150_000
    assert store.stat().st_size < before
    assert "3 sessions" in (await place.quick("store", "check", *at)).out
    assert "given back" in (await place.quick("store", "vacuum", *at)).out
    assert json.loads((await place.quick("store", "check", "--json", "--store", str(copy))).out)["sessions"] == 12


async def test_a_damaged_store_is_found_and_recovered_beside_it(place: Place, store: Path) -> None:
    os.truncate(store, store.stat().st_size * 9 // 10)
    done = await place.quick("store", "check", "--store", str(store))
    assert done.code == 1 and "is damaged" in done.out and "treadle store recover" in done.out
    done = await place.quick("store", "recover", "--store", str(store))
    assert done.code == 0 and "lost: " in done.out and "was not changed" in done.out
    new = f"{store}.recovered"
    assert (await place.quick("store", "check", "--store", new)).code == 0
    again = await place.quick("store", "recover", "--store", str(store))
    assert again.code == 2 and "exists already" in again.err


@pytest.mark.parametrize("action", ["check", "vacuum", "recover"])
async def test_there_must_be_a_store_to_look_after(place: Place, tmp_path: Path, action: str) -> None:
    done = await place.quick("store", action, "--store", str(tmp_path / "nothing.db"))
    assert done.code == 2 and "there is no store" in done.err
    assert not (tmp_path / "nothing.db").exists()
    assert (await place.quick("store", action, "--store", ":memory:")).code == 2


async def test_a_store_that_a_server_uses_is_backed_up_and_pruned_but_not_vacuumed(place, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    await fill(store)
    at = ("--store", str(store))
    async with start_server(tmp_path, None):
        assert (await place.quick("store", "backup", str(tmp_path / "copy.db"), *at)).code == 0
        assert (await place.quick("store", "prune", "--older-than", "90d", *at)).code == 0
        done = await place.quick("store", "vacuum", *at)
        assert done.code == 1 and "used by other processes" in done.err
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT id FROM sessions ORDER BY id").fetchall() == [("new0",), ("new1",)]
