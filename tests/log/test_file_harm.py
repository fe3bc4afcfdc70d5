"""A store whose file is cut off, overwritten or read-only: what is refused, and what still works."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.serve_process import start_server
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Place, create_place
from tests.log.conftest import Make, claim
from tests.log.workers import fill_store
from treadle.errors import StoreDamaged, StoreReadOnly
from treadle.events import Custom, SessionCreated, SessionRenamed
from treadle.log import records, schema, sqlite_open, sqlite_pages
from treadle.log.base import SessionQuery
from treadle.log.maintenance import shrink_store
from treadle.log.open_log import open_log
from treadle.log.sqlite import SqliteLog
from treadle.log.sqlite_file import SqliteFile


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for sql in statements:
            db.execute(sql).fetchall()


# --- harm to a file that is open


@pytest.fixture
async def full(path: Path) -> AsyncIterator[SqliteLog]:
    """A log whose facts are in the file itself, not only in its write-ahead log."""
    await fill_store(path, 300)
    async with SqliteLog(path) as log:
        await log.create("fresh", [Make.created("fresh")])
        run_sql(path, "PRAGMA wal_checkpoint")
        await log.claim("me", 30)  # looks at the file
        yield log


def overwrite(path: Path, data: bytes) -> None:
    """Write over a file, as cp does: it stays the same file."""
    with path.open("r+b") as file:
        file.truncate(len(data))
        file.write(data)


def copy_another_database(path: Path) -> None:
    other = path.with_name("other.db")
    run_sql(other, "CREATE TABLE recipes (name TEXT)", *["INSERT INTO recipes VALUES (zeroblob(99999))"] * 9)
    overwrite(path, other.read_bytes())


HARM: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut in half": (lambda path: os.truncate(path, path.stat().st_size // 8192 * 4096), "cut off after"),
    "cut within a page": (lambda path: os.truncate(path, path.stat().st_size - 100), "cut off after"),
    "emptied": (lambda path: os.truncate(path, 0), "cut off after 0 bytes"),
    "zeros": (lambda path: overwrite(path, b"\0" * path.stat().st_size), "overwritten"),
    "a text": (lambda path: overwrite(path, b"a shopping list\n" * 10_000), "overwritten"),
    "another database": (copy_another_database, "overwritten"),
}


@pytest.mark.parametrize("harm", HARM)
async def test_the_next_write_notices_that_the_file_was_cut_off_or_overwritten(full: SqliteLog, harm: str) -> None:
    mine = await claim(full, "fresh")
    do_harm, what = HARM[harm]
    do_harm(full.path)
    harmed = full.path.read_bytes()
    for _ in range(2):
        for write in (
            lambda: full.post("fresh", [Custom(name="x")]),
            lambda: full.append(mine, 1, [Custom(name="x")]),
            lambda: full.create("t", [SessionCreated(session_id="t")]),
            lambda: full.renew(mine),
            lambda: full.claim("other", 30),
            lambda: full.delete("s"),
            lambda: full.check_writable(1.0),
        ):
            with pytest.raises(StoreDamaged, match=f"{what}.*Nothing more is written.*treadle store recover"):
                await write()
    assert full.path.read_bytes() == harmed


async def test_a_copy_of_an_earlier_day_that_is_put_over_an_open_store_is_noticed(full: SqliteLog) -> None:
    earlier = full.path.read_bytes()
    for number in range(5):
        async with SqliteLog(full.path) as other:
            await other.create(f"a{number}", [Make.created(f"a{number}"), Custom(name="x", data="y" * 9000)])
        await full.create(f"b{number}", [Make.created(f"b{number}"), Custom(name="x", data="y" * 9000)])
    run_sql(full.path, "PRAGMA wal_checkpoint")
    await full.post("fresh", [Custom(name="fine")])
    overwrite(full.path, earlier)
    with pytest.raises(StoreDamaged, match="replaced by an older copy of itself"):
        await full.post("fresh", [Custom(name="x")])


async def test_damage_that_sqlite_finds_in_a_page_stops_all_writes(full: SqliteLog, monkeypatch) -> None:
    monkeypatch.setattr(sqlite_open, "QUICK_CHECK_BELOW", 0)
    await full.close()
    with sqlite_pages.PageFile(full.path) as pages:
        number = next(number for number, row in pages.iterate_rows() if row.rowid == (1 << 32) + 100)
    with full.path.open("r+b") as file:
        file.seek((number - 1) * 4096)
        file.write(b"\xa5" * 4096)
    async with SqliteLog(full.path) as log:
        await log.create("before", [Make.created("before")])
        with pytest.raises(StoreDamaged):
            await log.read("s")
        with pytest.raises(StoreDamaged):
            await log.post("before", [Custom(name="x")])
        assert len(await log.read("before")) == 1


async def test_checkpoints_growth_and_a_vacuum_by_other_processes_are_no_harm(full: SqliteLog, path: Path) -> None:
    mine = await claim(full, "fresh")
    async with SqliteLog(path) as other:
        for number in range(30):
            await other.create(f"o{number}", [Make.created(f"o{number}"), Custom(name="x", data="y" * 30_000)])
            await full.append(mine, number + 1, [Custom(name="x", data="y" * 3000)])
            if number % 5 == 0:
                run_sql(path, "PRAGMA wal_checkpoint")
                full._file.check_unharmed()  # pyright: ignore[reportPrivateUsage]
        size = path.stat().st_size
        for number in range(30):
            await other.delete(f"o{number}")
        async with asyncio.timeout(PATIENCE):
            while path.stat().st_size >= size:  # `other` gives space back too, and only one of them can at a time
                shrink_store(path)
                await asyncio.sleep(0.05)
        await full.post("fresh", [Custom(name="x")])
        await other.create("last", [Make.created("last")])
    run_sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    await full.post("fresh", [Custom(name="x")])


async def test_a_second_log_on_the_same_file_keeps_its_locks_when_the_first_is_closed(path: Path) -> None:
    first, second = SqliteLog(path), SqliteLog(path)
    await second.create("s", [Make.created("s")])
    await first.close()
    code = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('PRAGMA journal_mode = DELETE'))"
    command = [sys.executable, "-c", code, str(path)]
    other = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert "locked" in other.stderr, "another process took the file for unused"
    await second.post("s", [Custom(name="x")])
    await second.close()


async def test_a_server_whose_store_is_cut_off_refuses_writes_and_still_reads(tmp_path: Path) -> None:
    async with start_server(tmp_path, None) as (address, token):
        headers = {"authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(address, headers=headers) as client:

            async def send(method: str, path: str, **body: str) -> tuple[int, dict[str, Any], bool]:
                async with client.request(method, path, json=body or None) as answer:
                    return answer.status, await answer.json(), "retry-after" in answer.headers

            _, made, _ = await send("POST", "/v1/sessions", name="before")
            os.truncate(tmp_path / "store.db", 0)
            for _ in range(2):
                status, refused, again = await send("POST", "/v1/sessions", name="after")
                assert status == 503 and not again and "cut off after 0 bytes" in refused["error"]["message"]
            _, listed, _ = await send("GET", "/v1/sessions")
            assert [one["id"] for one in listed["sessions"]] == [made["id"]]
            status, ready, _ = await send("GET", "/ready")
            assert status == 503 and "cut off" in str(ready)


# --- a store that can only be read


@pytest.fixture
async def stored(tmp_path: Path) -> Path:
    """A folder with a store, of which one part is indexed."""
    folder = tmp_path / "folder"
    async with SqliteLog(folder / "log.db") as log:
        for number in range(5):
            name = SessionRenamed(name=f"name {number}")
            await log.create(f"s{number}", [Make.created(f"s{number}"), name, Make.message(f"plum {number}")])
        await log.search("plum")
        await log.create("late", [Make.created("late"), SessionRenamed(name="Late"), Make.message("plum plum late")])
    return folder


@pytest.fixture
def mounted(stored: Path, tmp_path: Path) -> Iterator[Path]:
    """The same folder on a disk that cannot be written."""
    point = tmp_path / "mounted"
    point.mkdir()
    commands = (["mount", "--bind", str(stored), str(point)], ["mount", "-o", "remount,bind,ro", str(point)])
    if os.geteuid() or any(subprocess.run(one, capture_output=True).returncode for one in commands):
        pytest.skip("NOT TESTED: no right to mount a folder read-only")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


async def check_reading(path: Path) -> None:
    with pytest.raises(StoreReadOnly):
        open_log(path)
    async with open_log(path, read_only=True) as log:
        assert len((await log.list_sessions(SessionQuery())).sessions) == 6
        assert [info.id for info in (await log.list_sessions(SessionQuery(text="ATE"))).sessions] == ["late"]
        hits = await log.search("plum")
        assert {hit.session_id for hit in hits} == {"late", *(f"s{n}" for n in range(5))} and not hits.unindexed
        assert [hit.snippet for hit in await log.search("late plum")] == ["plum plum late"]
        assert len(await log.read("late")) == 3
        for write in (
            lambda: log.post("late", [Custom(name="x")]),
            lambda: log.delete("late"),
            lambda: log.claim("m", 3),
        ):
            with pytest.raises(StoreReadOnly):
                await write()


async def test_a_store_on_a_read_only_disk_is_listed_searched_and_read(mounted: Path) -> None:
    await check_reading(mounted / "log.db")
    assert sorted(file.name for file in mounted.iterdir()) == ["log.db"]


async def test_on_a_read_only_disk_the_write_ahead_log_of_a_dead_process_is_read_too(mounted, stored, tmp_path) -> None:
    async with SqliteLog(stored / "log.db") as log:
        await log.post("late", [Custom(name="in the write-ahead log")])
        for name in ("log.db", "log.db-wal"):
            shutil.copy(stored / name, tmp_path / name)
    for name in ("log.db", "log.db-wal"):
        shutil.copy(tmp_path / name, stored / name)
    async with open_log(mounted / "log.db", read_only=True) as log:
        assert len(await log.read("late")) == 4
        assert len(await log.search("plum")) == 6


async def test_what_a_process_writes_is_seen_by_one_that_may_only_read(mounted: Path, stored: Path) -> None:
    async with SqliteLog(stored / "log.db") as writer:
        await writer.post("late", [Custom(name="x")])
        async with open_log(mounted / "log.db", read_only=True) as reader:
            assert len(await reader.read("late")) == 4
            await writer.post("late", [Custom(name="y")])
            assert len(await reader.read("late")) == 5


@pytest.mark.parametrize("versions", [3, 4, 5, 7])
async def test_a_store_of_an_older_version_is_read_as_it_is(tmp_path: Path, versions: int) -> None:
    path = tmp_path / "old.db"
    older = SqliteFile(path, migrations=schema.MIGRATIONS[:versions])
    with older.transaction as db:
        facts = records.number_facts([SessionCreated(session_id="s"), Make.message("plum")], 1.0)
        info = records.build_first_info("s", facts)
        records.insert_facts(db, records.insert_session(db, info, named_by_user=False), facts)
    older.close()
    before = path.read_bytes()
    async with SqliteLog(path, read_only=True) as log:
        assert [info.id for info in (await log.list_sessions(SessionQuery(prefix="s"))).sessions] == ["s"]
        assert (await log.list_sessions(SessionQuery(text="none"))).sessions == ()
        assert [hit.seq for hit in await log.search("plum")] == [2]
        assert len(await log.read("s")) == 2
    assert path.read_bytes() == before


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return create_place(tmp_path)


async def test_commands_that_only_read_work_on_a_read_only_disk(place: Place, mounted: Path) -> None:
    at = ("--store", str(mounted / "log.db"))
    for words, expected in (
        (("sessions", "list"), "Late"),
        (("sessions", "show", "late"), "plum plum late"),
        (("sessions", "search", "plum late"), "plum plum late"),
        (("sessions", "export", "Late"), '"plum plum late"'),
        (("memory", "list"), "no memories were found"),
        (("memory", "search", "plum"), "no memories were found"),
        (("approvals", "list"), "there are no open questions"),
        (("store", "prune", "--older-than", "1h", "--dry-run"), "would be deleted"),
    ):
        done = await place.quick(*words, *at)
        assert done.code == 0 and expected in done.out + done.err, (words, done.err)
    refused = await place.quick("sessions", "rename", "late", "other", *at)
    assert refused.code == 1 and "cannot be written" in refused.err
