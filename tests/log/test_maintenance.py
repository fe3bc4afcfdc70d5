"""Looking after a store in a file: checks, backups while others write, shrinking, and saving what damage has left."""

import json
import os
import random
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.small_disk import fill_disk, mount_small_disk
from tests.log.conftest import Make, claim
from treadle.errors import BadInput, StoreBusy, StoreDamaged, StoreFull
from treadle.events import AnyFact, Custom, Limits, RunStarted, SessionRenamed
from treadle.log import maintenance, sqlite_pages
from treadle.log.base import SessionQuery
from treadle.log.maintenance import backup_store, check_store, shrink_store, vacuum_store
from treadle.log.open_log import open_log
from treadle.log.recovery import recover_store
from treadle.log.sqlite import SqliteLog
from treadle.memory.base import Memory

LONG = "x" * 20_000


def ignore(_text: str) -> None:
    pass


async def fill(path: Path, count: int = 20) -> dict[str, list[AnyFact]]:
    """A store with sessions of a few facts each, some of them long, artifacts and a memory. Its facts."""
    async with SqliteLog(path) as log:
        for number in range(count):
            name = f"session{number}"
            facts = [Custom(name=f"marker{number}", data=LONG if n % 7 == 3 else f"text {n}") for n in range(10)]
            await log.create(name, [Make.created(name), SessionRenamed(name=f"name {number}"), *facts])
            await log.put_artifact(name, f"artifact {number} {LONG}".encode())
        await log.memories.add(Memory("Releases are cut on Mondays."))
        return {info.id: await log.read(info.id) async for info in log.iterate_sessions(SessionQuery())}


def run_sql(path: Path, sql: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(sql).fetchall()


# --- check


async def test_a_whole_store_has_no_problems_and_is_not_changed_by_a_check(path: Path) -> None:
    await fill(path)
    before = path.read_bytes()
    found = check_store(path, ignore)
    assert found.problems == () and (found.sessions, found.facts) == (20, 240)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("DELETE FROM facts WHERE place = (3 << 32) + 5", "session session2 has 11 of its 12 facts"),
        ("DELETE FROM facts WHERE place >> 32 = 3", "session session2 has no facts"),
        ("UPDATE facts SET body = x'7b' WHERE place = (3 << 32) + 5", "fact 5 cannot be read"),
        ("INSERT INTO facts SELECT (99 << 32) + 1, body FROM facts LIMIT 1", "number 99 has facts"),
    ],
)
async def test_a_check_finds_what_is_missing_in_a_session(path: Path, sql: str, problem: str) -> None:
    await fill(path, 4)
    run_sql(path, sql)
    assert [problem in text for text in check_store(path, ignore).problems] == [True]


async def test_a_check_finds_damaged_pages_and_files_that_are_no_store(path: Path) -> None:
    await fill(path)
    with path.open("r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xa5" * 4096)
    assert check_store(path, ignore).problems
    path.write_bytes(b"a shopping list" * 1000)
    assert "cannot be read" in check_store(path, ignore).problems[0]
    path.write_bytes(b"")
    assert "it is empty" in check_store(path, ignore).problems[0]


@pytest.mark.parametrize(
    "act", [check_store, lambda path, report: backup_store(path, path.with_name("copy.db"), report)]
)
def test_a_database_of_another_program_is_not_called_damaged(path: Path, act: Callable[..., object]) -> None:
    run_sql(path, "CREATE TABLE songs (name)")
    with pytest.raises(StoreDamaged, match=f"^{path} is an SQLite database of another program"):
        act(path, ignore)


async def test_damage_is_told_in_one_line(path: Path) -> None:
    await fill(path, 2)
    root = run_sql(path, "SELECT rootpage FROM sqlite_master WHERE name = 'sessions_due'")[0][0]
    with path.open("r+b") as file:
        file.seek(4096 * (root - 1))
        file.write(bytes(4096))
    with pytest.raises(StoreDamaged, match=r"^[^\n]*error code 11[^\n]*$"):
        SqliteLog(path)


# --- backup


async def test_a_backup_is_a_whole_store_of_its_own(path: Path, tmp_path: Path) -> None:
    facts = await fill(path)
    copy = tmp_path / "copy.db"
    async with SqliteLog(path) as log:
        await log.post("session0", [Custom(name="still in the write-ahead log")])
        assert backup_store(path, copy, ignore).facts == 241
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.db", "log.db"]
    async with SqliteLog(copy) as again:
        assert await again.read("session1") == facts["session1"]
        assert len(await again.read("session0")) == 13


async def test_a_backup_ends_although_another_process_writes_all_the_time(path, tmp_path, monkeypatch) -> None:
    await fill(path, 60)
    monkeypatch.setattr(maintenance, "COPIED_PAGES", 5)
    steps: list[str] = []
    is_over = threading.Event()

    def write_on() -> None:
        with closing(sqlite3.connect(path, timeout=30)) as db:
            while not is_over.is_set():
                with db:
                    db.execute("UPDATE sessions SET cost = cost + 1")

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        found = backup_store(path, tmp_path / "copy.db", steps.append)
    finally:
        is_over.set()
        writer.join()
    copied = [step for step in steps if step.startswith("copied")]
    pages = int(copied[0].split()[3])
    assert found.facts == 720 and pages // 5 <= len(copied) <= pages // 5 + 2, "it never began again"


async def test_a_backup_replaces_a_file_only_when_it_is_told_to(path: Path, tmp_path: Path) -> None:
    await fill(path, 2)
    copy = tmp_path / "copy.db"
    copy.write_text("something else")
    with pytest.raises(BadInput, match="exists already"):
        backup_store(path, copy, ignore)
    assert copy.read_text() == "something else"
    backup_store(path, copy, ignore, replace=True)
    assert check_store(copy, ignore).sessions == 2
    with pytest.raises(BadInput, match="the store itself"):
        backup_store(path, path, ignore, replace=True)


async def test_a_backup_of_a_damaged_store_leaves_no_file(path: Path, tmp_path: Path) -> None:
    await fill(path)
    run_sql(path, "DELETE FROM facts WHERE place = (3 << 32) + 5")
    with pytest.raises(StoreDamaged, match="no copy was kept"):
        backup_store(path, tmp_path / "copy.db", ignore)
    assert [file.name for file in tmp_path.iterdir() if "copy" in file.name] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mount_small_disk(tmp_path / "disk", 2) as disk:
        yield disk


async def test_a_backup_to_a_full_disk_leaves_no_file(path: Path, small_disk: Path) -> None:
    await fill(path, 100)
    with pytest.raises(StoreFull, match=r"on the disk of .*/disk/copy.db;"):
        backup_store(path, small_disk / "copy.db", ignore)
    assert list(small_disk.iterdir()) == []


async def test_a_store_on_a_full_disk_is_read_checked_and_copied_to_another_one(path: Path, small_disk: Path) -> None:
    facts = await fill(small_disk / "log.db", 5)
    fill_disk(small_disk)
    assert check_store(small_disk / "log.db", ignore).problems == ()
    assert backup_store(small_disk / "log.db", path, ignore).sessions == 5
    async with open_log(small_disk / "log.db", read_only=True) as log:
        assert await log.read("session3") == facts["session3"]


@pytest.mark.parametrize("act", [recover_store, backup_store])
async def test_a_folder_that_does_not_exist_is_named(path: Path, act: Callable[..., object]) -> None:
    await fill(path, 1)
    with pytest.raises(BadInput, match=r"No such file or directory; /nowhere/new.db was not written"):
        act(path, Path("/nowhere/new.db"), ignore)


# --- space


async def test_the_space_of_deleted_sessions_is_given_back_and_nothing_of_them_can_be_read(path: Path) -> None:
    await fill(path, 40)
    full = path.stat().st_size
    log = SqliteLog(path)
    await log.search("marker0")
    for number in range(30):
        await log.delete(f"session{number}")
    await log.close()
    shrink_store(path)
    assert path.stat().st_size < full / 2
    data = path.read_bytes()
    assert b'"marker5"' not in data and b"artifact 5 " not in data and b'"marker35"' in data
    assert check_store(path, ignore).problems == ()


async def test_a_log_gives_space_back_in_the_background(path: Path) -> None:
    await fill(path, 40)
    async with SqliteLog(path) as log:
        for number in range(40):
            await log.delete(f"session{number}")
        before = log.path.stat().st_size
        while log.path.stat().st_size > before / 4:
            await log.search("anything")  # runs in the same thread, in between
    assert check_store(path, ignore).problems == ()


async def test_vacuum_shrinks_an_older_store_and_removes_the_words_of_deleted_sessions(path: Path) -> None:
    await fill(path, 20)
    run_sql(path, "PRAGMA journal_mode = DELETE")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA auto_vacuum = NONE")
        db.execute("VACUUM")
    async with SqliteLog(path) as log:
        await log.post("session3", [Make.message("zanzibar")])
        await log.search("zanzibar")
        for number in range(10):
            await log.delete(f"session{number}")
    before, after = vacuum_store(path, ignore)
    assert after < before and path.stat().st_size == after
    assert b"zanzibar" not in path.read_bytes()
    assert run_sql(path, "PRAGMA auto_vacuum") == [(2,)] and run_sql(path, "PRAGMA journal_mode") == [("wal",)]
    assert run_sql(path, "SELECT count(*) FROM stored_order") == [(121,)], "the last position stays"
    assert check_store(path, ignore).problems == ()


async def test_vacuum_says_that_others_use_the_store(path: Path) -> None:
    await fill(path, 2)
    async with SqliteLog(path) as log:
        await log.read("session0")
        with pytest.raises(StoreBusy, match="used by other processes; nothing was changed"):
            vacuum_store(path, ignore)
        await log.post("session0", [Custom(name="still works")])


# --- recovery


async def recover(path: Path) -> tuple[Path, list[str]]:
    target = path.with_name("new.db")
    target.unlink(missing_ok=True)
    before = path.read_bytes()
    found = recover_store(path, target, ignore)
    assert path.read_bytes() == before, "the damaged file is not touched"
    assert check_store(target, ignore).problems == ()
    return target, found.losses


async def read_all(path: Path) -> dict[str, list[AnyFact]]:
    async with SqliteLog(path) as log:
        return {info.id: await log.read(info.id) async for info in log.iterate_sessions(SessionQuery())}


async def read_cursors(log: SqliteLog) -> list[int]:
    watch = log.watch_all(0)
    return [stored.cursor for stored in (await anext(watch), *watch.ready())]


async def test_everything_of_a_whole_store_is_recovered(path: Path) -> None:
    facts = await fill(path)
    async with SqliteLog(path) as log:
        await log.delete("session7")
        del facts["session7"]
        await log.post("session8", [Custom(name="keyed")], "k", wake=False)
        facts["session8"] = await log.read("session8")
        infos = [info async for info in log.iterate_sessions(SessionQuery())]
        watched, secret = await read_cursors(log), await log.get_approval_key()
    target, losses = await recover(path)
    assert losses == [] and await read_all(target) == facts
    async with SqliteLog(target) as log:
        assert [info async for info in log.iterate_sessions(SessionQuery())] == infos
        assert not (await log.post("session8", [Custom(name="keyed")], "k")).is_new
        assert [memory.text for memory in await log.memories.search("mondays")] == ["Releases are cut on Mondays."]
        artifact = await log.put_artifact("session1", f"artifact 1 {LONG}".encode())
        assert (await log.get_artifact("session1", artifact)).data.startswith(b"artifact 1 ")
        assert await read_cursors(log) == watched
        assert await log.get_approval_key() == secret, "questions that are open can be answered"
        assert [info.id for info in (await log.list_sessions(SessionQuery(text="name 3"))).sessions] == ["session3"]


async def test_what_is_still_in_the_write_ahead_log_of_a_dead_process_is_recovered(path: Path, tmp_path: Path) -> None:
    await fill(path, 3)
    async with SqliteLog(path) as log:
        await log.post("session0", [Custom(name="fresh")])
        dead = tmp_path / "dead.db"
        shutil.copy(path, dead)
        shutil.copy(f"{path}-wal", f"{dead}-wal")
    target, _ = await recover(dead)
    assert (await read_all(target))["session0"][-1].name == "fresh"  # pyright: ignore


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
async def test_of_a_store_that_was_cut_off_the_sessions_keep_their_facts_up_to_the_first_lost_one(path, share) -> None:
    facts = await fill(path, 60)
    os.truncate(path, int(path.stat().st_size * share))
    target, losses = await recover(path)
    found = await read_all(target)
    assert found and all(found[name] == facts[name][: len(found[name])] for name in found)
    shortened = {name for name in found if len(found[name]) < len(facts[name])}
    named = {name for name in facts for loss in losses if f"session {name}:" in loss}
    assert "pages are missing" in losses[0]
    assert shortened <= named or share == 0.1, "as long as the order of facts is there, every loss is known"


async def test_a_store_without_its_header_and_its_list_of_sessions_is_recovered(path: Path) -> None:
    facts = await fill(path)
    numbers = {number for number, row in iterate_pages(path) if len(row.values) == 17}
    with path.open("r+b") as file:
        for number in {1, 2, 3, *numbers}:
            file.seek((number - 1) * 4096)
            file.write(b"\0" * 4096)
    target, _ = await recover(path)
    found = await read_all(target)
    assert found == facts
    async with SqliteLog(target) as log:
        assert (await log.get_info("session3")).name == "name 3"


def iterate_pages(path: Path) -> list[tuple[int, sqlite_pages.Row]]:
    with sqlite_pages.PageFile(path) as pages:
        return list(pages.iterate_rows())


async def test_facts_after_a_gap_are_kept_in_a_file(path: Path) -> None:
    facts = await fill(path, 3)
    run_sql(path, "DELETE FROM facts WHERE place = (2 << 32) + 5")
    target, losses = await recover(path)
    assert (await read_all(target))["session1"] == facts["session1"][:4]
    assert losses[0] == "session session1: facts 5 to 12" and "7 readable facts" in losses[1]
    rest = target.with_name("new.db.rest.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in rest] == [6, 7, 8, 9, 10, 11, 12]


async def test_a_session_that_ran_is_not_started_again_in_a_recovered_store(path: Path) -> None:
    await fill(path, 2)
    async with SqliteLog(path) as log:
        mine = await claim(log, "session0", ttl=1e9)
        await log.append(mine, 12, [RunStarted(run_id="r", limits=Limits())])
        parked = await claim(log, "session1", ttl=1e9)
        await log.append(parked, 12, [RunStarted(run_id="r", limits=Limits())])
        await log.release(parked, 13, wake_at=1.0)
    target, _ = await recover(path)
    async with SqliteLog(target) as log:
        assert (await log.get_info("session0")).owner == ""
        assert await log.claim("me", 30) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"custom","name":"\xf8","seq":5}',
        b'{"type":"run_started","run_id":"r","limits":{"attempts":-1},"seq":5}',
        7,
    ],
)
async def test_a_fact_with_a_wrong_bit_is_found_and_ends_no_recovery(path: Path, body: bytes | int) -> None:
    await fill(path, 3)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE facts SET body = ? WHERE place = (1 << 32) + 5", (body,))
    assert "fact 5 cannot be read" in check_store(path, ignore).problems[0]
    target, losses = await recover(path)
    assert losses[0] == "session session0: facts 5 to 12" and len((await read_all(target))["session0"]) == 4


async def test_no_damage_ends_a_recovery_with_an_unknown_error(path: Path) -> None:
    facts = await fill(path, 30)
    whole, chance = path.read_bytes(), random.Random(7)
    for _ in range(15):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 40)):
            start = chance.randrange(len(data))
            data[start : start + chance.randrange(1, 3000)] = chance.randbytes(chance.randrange(1, 3000))
        path.write_bytes(data)
        try:
            target, _ = await recover(path)
        except StoreDamaged:
            continue
        for name, kept in (await read_all(target)).items():
            assert kept == facts[name][: len(kept)]


async def test_a_file_with_nothing_readable_says_so_and_leaves_no_new_file(path: Path) -> None:
    path.write_bytes(b"\xa5" * 50_000)
    with pytest.raises(StoreDamaged, match="nothing in"):
        recover_store(path, path.with_name("new.db"), ignore)
    assert [file.name for file in path.parent.iterdir()] == ["log.db"]
