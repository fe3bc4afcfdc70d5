"""What only the SQLite log must do: files, versions, damage, full disks, and many processes at once."""

import asyncio
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.log.conftest import claim, sqlite_log
from tests.log.workers import Start, fill_store, read_line, read_pragma
from treadle.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly, StoreTooNew
from treadle.events import Custom, SessionCreated, SessionMarked
from treadle.log import records, schema, sqlite_open
from treadle.log import sqlite_file as store
from treadle.log.base import Claim, SessionQuery
from treadle.log.sqlite import SqliteLog

log = sqlite_log


def run_sql(path: Path, sql: str, *values: object) -> list[tuple[str, ...]]:
    """Run a statement on the file behind the back of the log."""
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(sql, values).fetchall()


# --- the file


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
async def test_durability_sets_the_synchronous_mode(path: Path, durability, synchronous: int) -> None:
    async with SqliteLog(path, durability=durability) as log:
        assert read_pragma(log, "synchronous") == synchronous
        assert read_pragma(log, "journal_mode") == "wal"


async def test_a_new_store_is_made_with_its_folders_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "log.db"
    async with SqliteLog(str(path)) as log:
        await log.create("s", [SessionCreated(session_id="s")])
        for name in ("log.db", "log.db-wal", "log.db-shm"):
            assert stat.S_IMODE(path.with_name(name).stat().st_mode) == 0o600


async def test_what_was_recorded_is_there_when_the_store_is_opened_again(log: SqliteLog, mine: Claim) -> None:
    await log.append(mine, 1, [Custom(name="kept")], "k")
    artifact = await log.put_artifact("s", b"data")
    facts = await log.read("s")
    await log.close()
    assert not log.path.with_name("log.db-wal").exists()
    async with SqliteLog(log.path) as again:
        assert await again.read("s") == facts
        await again.append(mine, 1, [Custom(name="kept")], "k")
        await again.append(mine, 2, [Custom(name="more")])
        assert (await again.get_artifact("s", artifact)).data == b"data"


async def test_a_relative_path_means_the_same_file_after_a_change_of_folder(path: Path, monkeypatch) -> None:
    monkeypatch.chdir(path.parent)
    log = SqliteLog("log.db")
    monkeypatch.chdir("/")
    await log.create("s", [SessionCreated(session_id="s")])
    await log.close()
    assert path.exists()


async def test_a_folder_in_place_of_the_file_and_a_file_in_place_of_the_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a file"):
        SqliteLog(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/inner\.db"):
        SqliteLog(tmp_path / "file" / "inner.db")


async def test_a_store_on_a_network_filesystem_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    shared = tmp_path / "shared drive"
    shared.mkdir()
    named = str(shared).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {named} nfs4 rw 0 0\nnonsense\n")
    with pytest.raises(StoreError, match=r"network filesystem \(nfs4\).*local disk"):
        sqlite_open.refuse_network_filesystem(shared / "log.db", mounts)
    sqlite_open.refuse_network_filesystem(tmp_path / "log.db", mounts)
    sqlite_open.refuse_network_filesystem(tmp_path / "log.db", tmp_path / "no such file")
    mounts.write_text(f"server:/x {named} nfs4 rw 0 0\n/dev/sdb {named} ext4 rw 0 0\n")
    sqlite_open.refuse_network_filesystem(shared / "log.db", mounts)


@pytest.mark.parametrize("new", [[], ["log.db"]], ids=["moved", "replaced"])
async def test_a_file_that_was_moved_or_replaced_while_open_is_not_written_to(log, mine, new: list[str]) -> None:
    log.path.rename(log.path.with_name("moved.db"))
    for name in new:
        await fill_store(log.path.with_name(name))
    for attempt in (log.renew(mine), log.create("t", [SessionCreated(session_id="t")]), log.claim("me", 30)):
        with pytest.raises(StoreError, match="moved, replaced or deleted"):
            await attempt


@pytest.fixture
def visible_folder() -> Iterator[Path]:
    """A folder that another user can enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    os.chmod(folder, 0o700)
    shutil.rmtree(folder)


@pytest.mark.parametrize("mode", [0o777, 0o555], ids=["the file", "the folder too"])
async def test_a_store_that_cannot_be_written_says_so(start: Start, visible_folder: Path, mode: int) -> None:
    path = visible_folder / "log.db"
    await fill_store(path)
    os.chmod(path, 0o444)
    os.chmod(visible_folder, mode)
    worker = start("open_as_nobody", path)
    assert read_line(worker).startswith("StoreReadOnly")
    assert read_line(worker) == "read s 2 0", "it can be read all the same"


@pytest.mark.parametrize("name", ["log.db", "sub/log.db"])
async def test_a_folder_that_cannot_be_written_says_so_before_a_store_is_made(
    start: Start, visible_folder: Path, name: str
) -> None:
    os.chmod(visible_folder, 0o555)
    assert read_line(start("open_as_nobody", visible_folder / name)).startswith("StoreReadOnly")


async def test_a_store_opened_read_only_by_sqlite_is_reported_as_read_only(path: Path) -> None:
    await fill_store(path)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        with pytest.raises(sqlite3.OperationalError) as caught:
            db.execute("DELETE FROM facts")
        assert isinstance(sqlite_open.explain_error(caught.value, path), StoreReadOnly)


# --- versions


FIRST = ("CREATE TABLE things (name TEXT)", "INSERT INTO things VALUES ('old')")
SECOND = ("ALTER TABLE things ADD COLUMN colour TEXT DEFAULT 'grey'",)


def read_things(path: Path) -> list[tuple[str, ...]]:
    return run_sql(path, "SELECT * FROM things")


def test_an_older_store_is_copied_and_then_brought_up_to_date(path: Path) -> None:
    store.SqliteFile(path, migrations=(FIRST,)).close()
    assert read_things(path) == [("old",)]
    store.SqliteFile(path, migrations=(FIRST, SECOND)).close()
    assert read_things(path) == [("old", "grey")]
    backup = path.with_name("log.db.v1.bak")
    assert read_things(backup) == [("old",)]
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert sorted(p.name for p in path.parent.iterdir()) == ["log.db", "log.db.v1.bak"]
    store.SqliteFile(path, migrations=(FIRST, SECOND)).close()
    assert len(list(path.parent.iterdir())) == 2


def test_a_new_store_is_not_copied(path: Path) -> None:
    path.touch()
    store.SqliteFile(path, migrations=(FIRST, SECOND)).close()
    assert [p.name for p in path.parent.iterdir()] == ["log.db"]


def test_a_copy_holds_what_is_still_in_the_write_ahead_log(path: Path) -> None:
    older = store.SqliteFile(path, migrations=(FIRST,))
    with older.transaction as db:
        db.execute("INSERT INTO things VALUES ('fresh')")
    store.SqliteFile(path, migrations=(FIRST, SECOND)).close()
    assert read_things(path.with_name("log.db.v1.bak")) == [("old",), ("fresh",)]
    older.close()


def test_a_step_that_fails_leaves_the_store_as_it_was(path: Path) -> None:
    store.SqliteFile(path, migrations=(FIRST,)).close()
    broken = (*SECOND, "this is not SQL")
    with pytest.raises(StoreError, match="syntax error"):
        store.SqliteFile(path, migrations=(FIRST, broken))
    assert read_things(path) == [("old",)]
    store.SqliteFile(path, migrations=(FIRST,)).close()


async def test_the_released_steps_lead_to_a_store_of_their_number(path: Path) -> None:
    await fill_store(path)
    assert run_sql(path, "PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    assert run_sql(path, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]


async def test_the_facts_of_a_store_of_an_older_version_can_all_be_watched(path: Path) -> None:
    older = store.SqliteFile(path, migrations=schema.MIGRATIONS[:3])
    with older.transaction as db:
        num = records.insert_session(
            db, records.build_first_info("s", [SessionCreated(session_id="s")]), named_by_user=False
        )
        facts = [SessionCreated(session_id="s"), Custom(name="a")]
        records.insert_facts(db, num, records.number_facts(facts, 1.0))
    older.close()
    log = SqliteLog(path)
    await log.post("s", [Custom(name="b")])
    watch = log.watch_all(0)
    assert [(await anext(watch)).fact.seq for _ in range(3)] == [1, 2, 3]
    await log.close()


async def test_a_store_of_an_older_version_learns_the_models_of_its_sessions(path: Path) -> None:
    older = store.SqliteFile(path, migrations=schema.MIGRATIONS[:7])
    with older.transaction as db:
        for name, model in (("s", "large"), ("t", ""), ("broken", "")):
            facts = records.number_facts([SessionCreated(session_id=name, model=model)], 1.0)
            info = records.build_first_info(name, [SessionCreated(session_id=name)])
            records.insert_facts(db, records.insert_session(db, info, named_by_user=False), facts)
        db.execute("UPDATE facts SET body = x'7b7b' WHERE place >> 32 = 3")
    older.close()
    async with SqliteLog(path) as log:
        infos = [await log.get_info(name) for name in ("s", "t", "broken")]
        assert [(info.model, info.pinned, info.archived) for info in infos] == [
            ("large", False, False),
            ("", False, False),
            ("", False, False),
        ]
        await log.post("s", [SessionMarked(pinned=True)])
        assert [info.id for info in (await log.list_sessions(SessionQuery(pinned=True))).sessions] == ["s"]


async def test_a_watcher_of_all_sessions_gets_the_facts_before_one_that_cannot_be_read(path: Path) -> None:
    await fill_store(path)
    log = SqliteLog(path)
    await log.create("other", [SessionCreated(session_id="other"), Custom(name="a")])
    unread = len(run_sql(path, "SELECT position FROM stored_order"))
    run_sql(path, "UPDATE facts SET body = ? WHERE place = (SELECT max(place) FROM facts)", b"{")
    watch = log.watch_all(0)
    seen = [await anext(watch), *watch.ready()]
    assert len(seen) == unread - 1 and seen[-1].session_id == "other"
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="fact 2"):
            await anext(watch)
    await log.close()


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b'{"type":"dream_dreamt","of":"sheep"}', StoreTooNew, r"fact 2.*dream_dreamt.*Upgrade treadle"),
        (b'{"type":"custom","na', StoreDamaged, "fact 2"),
    ],
    ids=["of an unknown kind", "cut off"],
)
async def test_a_fact_that_cannot_be_read_is_reported_and_those_before_it_are_read(
    path, body, error, message: str
) -> None:
    await fill_store(path)
    run_sql(path, "UPDATE facts SET body = ? WHERE place & 0xFFFFFFFF = 2", body)
    async with SqliteLog(path) as log:
        for attempt in (log.read("s"), log.search("x"), anext(log.watch("s"))):
            with pytest.raises(error, match=message):
                await attempt
        assert len(await log.read("s", limit=1)) == 1


# --- damage


def make_newer_store(path: Path) -> None:
    store.SqliteFile(path).close()
    run_sql(path, "PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("make_file", "error", "message"),
    [
        (lambda path: path.write_bytes(b"this is a shopping list\n" * 100), StoreDamaged, "not a treadle store"),
        (lambda path: path.write_bytes(b"\0" * 5000), StoreDamaged, "not a treadle store"),
        (lambda path: run_sql(path, "CREATE TABLE recipes (name TEXT)"), StoreDamaged, "another program"),
        (make_newer_store, StoreTooNew, r"version 99.*up to \d+.*Upgrade treadle"),
    ],
    ids=["text", "zeros", "a database of another program", "a store of a newer version"],
)
async def test_a_file_that_is_no_store_of_this_version_is_refused_and_left_as_it_is(
    path: Path, make_file, error, message: str
) -> None:
    make_file(path)
    before = path.read_bytes()
    with pytest.raises(error, match=message):
        SqliteLog(path)
    assert path.read_bytes() == before


def damage_middle(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 4096 // 2 * 4096)
        file.write(b"\xa5" * 4096)


async def test_a_damaged_store_is_found_when_it_is_opened(path: Path) -> None:
    await fill_store(path, notes=500)
    damage_middle(path)
    with pytest.raises(StoreDamaged, match=r"damaged.*recover"):
        SqliteLog(path)


async def test_a_large_store_is_checked_only_when_asked(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sqlite_open, "QUICK_CHECK_BELOW", 4096)
    await fill_store(path, notes=500)
    async with SqliteLog(path) as log:
        log.check_integrity()
    damage_middle(path)
    async with SqliteLog(path) as log:
        with pytest.raises(StoreDamaged):
            log.check_integrity()
        with pytest.raises(StoreDamaged):
            await log.read("s")


# --- no room, no turn


async def test_a_full_disk_is_reported_and_the_log_goes_on_when_there_is_room_again(
    log: SqliteLog, mine: Claim
) -> None:
    pages = read_pragma(log, "page_count")
    read_pragma(log, f"max_page_count = {pages}")
    large = Custom(name="large", data="x" * 100_000)
    for attempt in (
        lambda: log.append(mine, 1, [large]),
        lambda: log.post("s", [large], "k"),
        lambda: log.put_artifact("s", b"x" * 100_000),
        lambda: log.create("t", [SessionCreated(session_id="t"), large]),
    ):
        with pytest.raises(StoreFull, match=r"no room left.*is safe"):
            await attempt()
    assert len(await log.read("s")) == 1
    assert log.get_head("s") == 1
    read_pragma(log, "max_page_count = 1000000")
    await log.append(mine, 1, [large])
    assert (await log.post("s", [Custom(name="x")], "k")).is_new
    assert [fact.seq for fact in await log.read("s")] == [1, 2, 3]


async def test_opening_waits_for_its_turn_as_long_as_the_time_out(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusy):
            SqliteLog(path, busy_timeout=0.05)


# --- threads, forks, loops


async def test_a_log_is_of_no_use_in_another_thread(log: SqliteLog) -> None:
    caught: list[Exception] = []

    def read() -> None:
        try:
            asyncio.run(log.read("s"))
        except StoreError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert "belongs to the thread that opened it" in str(caught[0])
    assert len(await log.read("s")) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_log_is_of_no_use_after_a_fork(path: Path) -> None:
    log = SqliteLog(path)
    asyncio.run(log.create("s", [SessionCreated(session_id="s")]))
    pid = os.fork()
    if pid == 0:  # the child must neither raise into pytest nor run its clean-up
        try:
            log.watch("s")
        except StoreError as error:
            os._exit(0 if "before a fork" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    asyncio.run(log.close())


def test_one_log_serves_one_loop_after_another_and_leaves_nothing_pending(path: Path) -> None:
    log = SqliteLog(path)

    async def use(session_id: str) -> None:
        await log.create(session_id, [SessionCreated(session_id=session_id)])
        await log.claim("me", 30, session_id)
        watch = log.watch(session_id)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await log.post(session_id, [Custom(name="x")])
        assert isinstance(await waiting, Custom)

    for session_id in ("s", "t"):
        asyncio.run(use(session_id))
    asyncio.run(log.close())


async def test_nothing_polls_when_no_session_is_claimed_or_watched(log: SqliteLog, monkeypatch) -> None:
    monkeypatch.setattr("treadle.log.sqlite.POLL_SECONDS", 0.001)
    assert log._timer is None  # pyright: ignore
    mine = await claim(log)
    assert log._timer is not None  # pyright: ignore
    await log.release(mine, 1)
    while (timer := log._timer) is not None:  # pyright: ignore
        assert not timer.cancelled()
        await asyncio.sleep(0)
