"""`treadle store copy` as a user runs it: between files and a real database, with progress, JSON and exit codes."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.serve_process import start_server
from tests.kit.terminal import Place
from tests.log.conftest import Make
from treadle.log.open_log import open_log
from treadle.log.sqlite import SqliteLog
from treadle.memory.base import Memory


@pytest.fixture
async def source(tmp_path: Path) -> str:
    path = tmp_path / "source.db"
    async with SqliteLog(path) as log:
        for name in ("one", "two", "three"):
            await log.create(name, [Make.created(name)])
            await log.post(name, [Make.message("hello")], wake=False)
            await log.put_artifact(name, b"long output")
        await log.memories.add(Memory("tests need a database"))
    return str(path)


async def test_a_store_moves_to_a_database_and_back(
    place: Place, source: str, postgres_url: str, tmp_path: Path
) -> None:
    done = await place.quick("store", "copy", source, postgres_url, "--dry-run")
    assert done.code == 0 and "3 sessions would be copied" in done.out and "compared" not in done.out
    done = await place.quick("store", "copy", source, postgres_url)
    assert (done.code, done.err) == (0, "")
    assert "3 sessions copied, 0 extended, 0 unchanged (6 facts, 3 artifacts, 1 memories)" in done.out
    assert f"{source} was not changed" in done.out
    listed = await place.quick("sessions", "list", "--store", postgres_url)
    assert listed.code == 0 and all(name in listed.out for name in ("one", "two", "three"))
    back = tmp_path / "new folder" / "back.db"
    done = await place.quick("store", "copy", postgres_url, str(back), "--json", "--session", "two", "--session", "one")
    document = json.loads(done.out)
    assert (done.code, document["ok"], document["copied"], document["memories"]) == (0, True, 2, 0)
    assert document["source"] == postgres_url and document["target"] == str(back)
    assert "is whole: 2 sessions, 4 facts" in (await place.quick("store", "check", "--store", str(back))).out
    assert back.stat().st_mode & 0o777 == 0o600


async def test_what_is_left_out_is_named_and_gives_exit_code_1(place: Place, source: str, tmp_path: Path) -> None:
    target = str(tmp_path / "target.db")
    async with SqliteLog(source) as log:
        assert await log.claim("other machine", 600, "two")
    done = await place.quick("store", "copy", source, target)
    assert done.code == 1 and "left out: two: somebody runs it" in done.out and "2 sessions copied" in done.out
    done = await place.quick("store", "copy", source, target, "--json")
    document = json.loads(done.out)
    assert done.code == 1 and not document["ok"] and document["left_out"][0]["id"] == "two"
    assert document["unchanged"] == 2


async def test_wrong_stores_are_refused_with_exit_code_2(place: Place, source: str, tmp_path: Path) -> None:
    nothing, target = str(tmp_path / "nothing.db"), str(tmp_path / "target.db")
    for words, message in (
        ((nothing, target), f"there is no store {nothing}"),
        ((source, source), "are the same store"),
        ((source, ":memory:"), "cannot be copied"),
        ((source,), "TO"),
        ((source, target, "--session", "four"), "has no session 'four'"),
        ((source, "postgresql://me:hunter2@host:port/x"), "the URL of the store is wrong"),
    ):
        done = await place.quick("store", "copy", *words)
        assert (done.code, done.out) == (2, "") and message in done.err and "hunter2" not in done.err
    assert not Path(nothing).exists() and not Path(target).exists()


async def test_a_database_that_is_away_gives_exit_code_1_and_shows_no_password(place: Place, source: str) -> None:
    done = await place.quick("store", "copy", source, "postgresql://me:hunter2@127.0.0.1:1/x")
    assert (done.code, done.out) == (1, "") and "cannot be used now" in done.err and "hunter2" not in done.err


async def test_a_store_that_a_server_uses_is_copied(place: Place, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with start_server(tmp_path, None):
        async with open_log(store) as log:
            await log.create("new", [Make.created("new")])
        done = await place.quick("store", "copy", str(store), str(tmp_path / "copy.db"))
        assert done.code == 0 and "1 sessions copied" in done.out
    with closing(sqlite3.connect(tmp_path / "copy.db")) as db:
        assert db.execute("SELECT id FROM sessions").fetchall() == [("new",)]


async def test_progress_is_shown_on_a_terminal(place: Place, source: str, tmp_path: Path) -> None:
    async with place.screen("store", "copy", source, str(tmp_path / "copy.db")) as screen:
        await screen.until("3 sessions copied")
