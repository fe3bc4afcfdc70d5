"""Copying stores: everything of a session goes along, in each direction, and a kill leaves no half session."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.kit.postgres import PostgresServer
from tests.kit.rewinding import Place, rewindable, write
from tests.kit.sessions import Tables, build_agent, run_to_end, some_tables, wait_for
from tests.kit.small_disk import fill_disk, mount_small_disk
from tests.log.conftest import Make
from treadle import Answer, RunFinished, later
from treadle.app import store_copy
from treadle.app.store_copy import CopySummary, copy_store
from treadle.errors import BadInput, NotFound, StoreAway, StoreFull, StoreTooNew
from treadle.events import AgentConfig, CallFinished, Parent, SessionCreated, SessionMarked, SessionRenamed
from treadle.history.content_store import ContentStore
from treadle.log.base import Claim, Log, SessionQuery
from treadle.log.maintenance import check_store
from treadle.log.open_log import open_log
from treadle.memory.base import Memory
from treadle.tools.builtin import build_file_tools

tables, place = some_tables, rewindable
WORKER = Path(__file__).with_name("copy_worker.py")
MakeStore = Callable[[str], str]
numbers = count(1)


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def make_store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeStore]:
    """Name a new store of a kind: a file, or an empty database."""
    with ExitStack() as stack:

        def make(kind: str) -> str:
            number = next(numbers)
            if kind == "sqlite":
                return str(tmp_path / f"store{number}.db")
            server: PostgresServer = request.getfixturevalue("postgres_server")
            return stack.enter_context(server.make_database(f"copy_{number}"))

        yield make


def each_direction(test: Any) -> Any:
    directions = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite"), ("postgres", "postgres")]
    return pytest.mark.parametrize("kinds", directions, ids=" to ".join)(test)


def each_target(test: Any) -> Any:
    return pytest.mark.parametrize("kind", ["sqlite", "postgres"])(test)


async def copy(source: str, target: str, **options: Any) -> CopySummary:
    return await copy_store(source, target, lambda _: None, **options)


def count_outcomes(done: CopySummary) -> tuple[int, int, int, int, int]:
    """Sessions that were copied, extended, unchanged, had gone on, and were left out."""
    return done.copied, done.extended, done.unchanged, len(done.went_on), len(done.left_out)


async def fill(store: str, small: int = 3, large: int = 0) -> None:
    """Small sessions with all that belongs to one, and a session of many facts with artifacts."""
    async with open_log(store) as log:
        for number in range(small):
            name = f"small{number}"
            parent = Parent(session_id="small0", seq=1, call_id="c") if number else None
            created = SessionCreated(session_id=name, agent=AgentConfig(name="agent"), workspace="/w", parent=parent)
            await log.create(name, [created])
            await log.post(name, [Make.message("hé")], key="my key")
            await log.post(
                name, [SessionRenamed(name="It's Ännchen", by="user"), SessionMarked(pinned=True)], wake=False
            )
            claim = await log.claim("me", 30, name)
            assert claim is not None
            await log.append(claim, 4, Make.notes("a", "b"), key="turn 1")
            await log.put_artifact(name, f"large output {number}".encode(), "text/html", claim=claim)
            await log.release(claim, 6, 4_000_000_000.0, waiting=True)
        if large:
            await log.create("large", [Make.created("large")])
            for _ in range(0, large, 100):
                await log.post("large", Make.notes(*"x" * 100), wake=False)
            for number in range(3):
                await log.put_artifact("large", b"%d" % number)
        await log.memories.add(Memory("the build needs Java", scope="/w", kind="procedure", session_id="small0"))
        await log.get_approval_key()


async def describe(log: Log) -> dict[str, Any]:
    """All that a log shows of its sessions."""
    found: dict[str, Any] = {"memories": await log.memories.list(), "key": await log.get_approval_key()}
    async for info in log.iterate_sessions(SessionQuery()):
        found[info.id] = info, [fact async for piece in log.read_in_pieces(info.id) for fact in piece]
    return found


async def describe_store(store: str) -> dict[str, Any]:
    async with open_log(store) as log:
        return await describe(log)


def dump(store: str) -> Any:
    """All that is stored, byte for byte."""
    if "://" not in store:
        return Path(store).read_bytes()
    with psycopg.connect(store, autocommit=True) as db:
        names = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'treadle' ORDER BY 1").fetchall()
        return {name: sorted(map(repr, db.execute(f'SELECT * FROM treadle."{name}"').fetchall())) for (name,) in names}  # type: ignore[arg-type]


# --- everything goes along


@each_direction
async def test_everything_of_a_session_is_copied(make_store: MakeStore, kinds: tuple[str, str]) -> None:
    source, target = map(make_store, kinds)
    await fill(source)
    before = await describe_store(source)
    done = await copy(source, target)
    assert count_outcomes(done) == (3, 0, 0, 0, 0) and (done.facts, done.artifacts, done.memories) == (18, 3, 1)
    async with open_log(target) as log:
        assert await describe(log) == before
        found = await log.claim("you", 30, "small1")
        assert found is not None and found.epoch == 2  # a process of the old store could not write here
        repeated = await log.post("small1", [Make.message("hé")], key="my key")
        assert not repeated.is_new and [fact.seq for fact in repeated.facts] == [2]
        page = await log.list_sessions(SessionQuery(text="ÄNNCHEN", parent="small0"))
        assert {info.id for info in page.sessions} == {"small1", "small2"}
        assert [hit.seq for hit in await log.search("hé")] == [2, 2, 2]
        assert [memory.text for memory in await log.memories.search("java")] == ["the build needs Java"]
        (artifact,) = [await log.get_artifact("small2", name) for name in await list_artifacts(target, "small2")]
        assert (artifact.media_type, artifact.data) == ("text/html", b"large output 2")
    assert done.left_out == [] and done.approvals == "kept"


async def list_artifacts(store: str, session_id: str) -> list[str]:
    reader = await store_copy._open_store(store)  # pyright: ignore[reportPrivateUsage]
    try:
        record = await reader.get_session(session_id)
        assert record is not None
        return await reader.list_artifacts(record.num)
    finally:
        await reader.close()


@each_direction
async def test_a_copy_that_is_repeated_changes_nothing(make_store: MakeStore, kinds: tuple[str, str]) -> None:
    source, target = map(make_store, kinds)
    await fill(source, large=300)
    await copy(source, target)
    before = await describe_store(target)
    assert count_outcomes(await copy(source, target)) == (0, 0, 4, 0, 0)
    assert await describe_store(target) == before
    assert count_outcomes(await copy(target, source)) == (0, 0, 4, 0, 0)  # and back again


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_store_that_is_copied_is_not_changed(make_store: MakeStore, kind: str) -> None:
    source, target = make_store(kind), make_store("sqlite")
    await fill(source, large=300)
    before = dump(source)
    await copy(source, target)
    assert dump(source) == before


@each_direction
async def test_a_dry_run_writes_nothing(make_store: MakeStore, kinds: tuple[str, str]) -> None:
    source, target = map(make_store, kinds)
    await fill(source, large=300)
    done = await copy(source, target, dry_run=True)
    assert count_outcomes(done) == (4, 0, 0, 0, 0) and (done.facts, done.memories) == (319, 1)
    assert dump(target) == {} if "://" in target else not Path(target).exists()
    await copy(source, target, sessions=["small1"])
    before = dump(target)
    done = await copy(source, target, dry_run=True)
    assert count_outcomes(done) == (3, 0, 1, 0, 0) and dump(target) == before


@each_direction
async def test_a_parked_approval_is_answered_in_the_new_store(
    make_store: MakeStore, kinds: tuple[str, str], tables: Tables
) -> None:
    source, target = map(make_store, kinds)
    async with tables.open_session(source) as session:
        name = session.id
    assert (await copy(source, target)).approvals == "kept"
    agent, _ = build_agent("dropped", tools=tables.tools, gate=later)
    async with agent.session(target, id=name) as session:
        await session.approve("a", Answer("allow"))
        ended = await wait_for(session, RunFinished)
    assert (ended.reason, ended.answer, tables.done) == ("answered", "dropped", ["users"])
    again = await copy(source, target)
    assert again.went_on == [name] and again.left_out == []


async def test_an_answer_runs_nothing_where_the_store_had_a_secret_of_its_own(
    make_store: MakeStore, tables: Tables
) -> None:
    source, target = make_store("sqlite"), make_store("sqlite")
    await fill(target)
    async with tables.open_session(source) as session:
        name = session.id
    done = await copy(source, target)
    assert done.approvals == "void" and done.copied == 1
    agent, _ = build_agent("I shall ask again", tools=tables.tools, gate=later)
    async with agent.session(target, id=name) as session:
        await session.approve("a", Answer("allow"))
        ended = await wait_for(session, RunFinished)
        result = await wait_for(session, CallFinished)
    assert (ended.reason, result.status, tables.done) == ("answered", "denied", [])


@pytest.mark.parametrize("kinds", [("sqlite", "postgres"), ("postgres", "sqlite")], ids=" to ".join)
async def test_old_contents_of_files_go_where_a_rewind_looks_for_them(
    make_store: MakeStore, kinds: tuple[str, str], place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = map(make_store, kinds)
    machine = ContentStore()
    place.kept, place.tools = machine, build_file_tools(machine)
    place.put("a.txt", "first")
    agent = place.agent(write("a.txt", "second"), "ok")
    async with agent.session(source, workspace=place.workspace) as session:
        await run_to_end(session)
        name = session.id
    done = await copy(source, target)
    assert (done.contents, done.lost_contents) == (1, 0)
    if kinds[0] == "sqlite":  # another machine, which has no old contents itself
        monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "elsewhere"))
    async with place.agent("ok").session(target, id=name, workspace=place.workspace) as session:
        await session.rewind(1)
    assert place.holds() == {"a.txt": "first"}
    machine.close()


async def test_facts_of_a_newer_release_are_copied_byte_for_byte(make_store: MakeStore) -> None:
    source, database, back = make_store("sqlite"), make_store("postgres"), make_store("sqlite")
    await fill(source)
    new = b'{"type":"dream_seen","dream":{"deep":[1,2.50]},"seq":6,"at":7.0}'
    change(source, "UPDATE facts SET body = ? WHERE place & 4294967295 = 6 AND place >> 32 = 2", new)
    assert count_outcomes(await copy(source, database)) == (3, 0, 0, 0, 0)
    async with open_log(database) as log:
        assert await log.claim("me", 30, "small1") is None  # this release leaves it alone
        assert await log.claim("me", 30, "small0") is not None
    assert count_outcomes(await copy(database, back)) == (2, 0, 0, 0, 1)  # small0 runs now
    assert (new,) in query(back, "SELECT body FROM facts")


def change(store: str, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        assert db.execute(sql, values).rowcount, "nothing was changed"


def query(store: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store)) as db:
        return db.execute(sql).fetchall()


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("UPDATE facts SET body = x'7b00' WHERE place & 4294967295 = 4 AND place >> 32 = 2", "fact 4 cannot be read"),
        ("DELETE FROM facts WHERE place & 4294967295 = 4 AND place >> 32 = 2", "fact 4 is missing"),
        ("UPDATE artifacts SET data = x'00' WHERE session = 2", "artifact .* is damaged"),
    ],
)
async def test_a_damaged_session_is_named_and_left_out(make_store: MakeStore, sql: str, why: str) -> None:
    source, target = make_store("sqlite"), make_store("postgres")
    await fill(source)
    change(source, sql)
    done = await copy(source, target)
    assert count_outcomes(done) == (2, 0, 0, 0, 1) and done.left_out[0].id == "small1"
    assert re.search(why, done.left_out[0].why)
    assert (await describe_store(target)).keys() == {"memories", "key", "small0", "small2"}


# --- sessions that move on


@each_direction
async def test_a_session_that_runs_is_left_out_until_it_rests(make_store: MakeStore, kinds: tuple[str, str]) -> None:
    source, target = map(make_store, kinds)
    await fill(source)
    async with open_log(source) as log:
        claim = await log.claim("other machine", 600, "small1")
        assert claim is not None
        done = await copy(source, target)
        assert count_outcomes(done) == (2, 0, 0, 0, 1)
        assert done.left_out[0].id == "small1" and "somebody runs it" in done.left_out[0].why
        await log.release(claim, None)
    assert count_outcomes(await copy(source, target)) == (1, 0, 2, 0, 0)


@each_direction
async def test_a_session_whose_process_died_is_due_in_the_new_store(
    make_store: MakeStore, kinds: tuple[str, str]
) -> None:
    source, target = map(make_store, kinds)
    await fill(source, small=1)
    async with open_log(source) as log:
        assert await log.claim("other machine", 0.0, "small0") is not None
    assert count_outcomes(await copy(source, target)) == (1, 0, 0, 0, 0)
    async with open_log(target) as log:
        assert (await log.get_info("small0")).owner == ""
        found = await log.claim("me", 30)
        assert found is not None and found.epoch == 3


@each_direction
@pytest.mark.parametrize("more", [1, 2500])
async def test_a_session_that_has_grown_is_extended(make_store: MakeStore, kinds: tuple[str, str], more: int) -> None:
    source, target = map(make_store, kinds)
    await fill(source)
    await copy(source, target)
    async with open_log(source) as log:
        await log.post("small1", Make.notes(*"z" * more), key="later", wake=False)
        await log.post("small1", [SessionRenamed(name="new name", by="user")], wake=False)
        await log.put_artifact("small1", b"later")
    done = await copy(source, target)
    assert count_outcomes(done) == (0, 1, 2, 0, 0) and done.facts == more + 1
    assert await describe_store(target) == await describe_store(source)
    assert await list_artifacts(target, "small1") == await list_artifacts(source, "small1")
    async with open_log(target) as log:
        assert not (await log.post("small1", Make.notes(*"z" * more), key="later")).is_new


@each_direction
async def test_a_session_that_differs_is_named_and_left_alone(make_store: MakeStore, kinds: tuple[str, str]) -> None:
    source, target = map(make_store, kinds)
    await fill(source)
    await copy(source, target)
    for store, text in ((source, "here"), (target, "there")):
        async with open_log(store) as log:
            await log.post("small1", [Make.message(text)], wake=False)
    async with open_log(target) as log:
        await log.post("small2", [Make.message("more")], wake=False)
        await log.memories.edit((await log.memories.list())[0].id, "the build needs Python")
    before = await describe_store(target)
    done = await copy(source, target)
    assert count_outcomes(done) == (0, 0, 1, 1, 2) and done.went_on == ["small2"]
    assert "another session with this id, or both have gone on" in done.left_out[0].why
    assert "this memory has another text there" in done.left_out[1].why
    assert await describe_store(target) == before


@each_target
async def test_a_copy_that_runs_in_the_new_store_is_not_extended(make_store: MakeStore, kind: str) -> None:
    source, target = make_store("sqlite"), make_store(kind)
    await fill(source)
    await copy(source, target)
    async with open_log(source) as log:
        await log.post("small1", [Make.message("more")], wake=False)
    async with open_log(target) as log:
        claim = await log.claim("other machine", 600, "small1")
        assert isinstance(claim, Claim)
        done = await copy(source, target)
        assert count_outcomes(done) == (0, 0, 2, 0, 1) and "runs its copy there" in done.left_out[0].why
        await log.append(claim, 6, Make.notes("it goes on there"))


async def test_only_the_chosen_sessions_and_their_helpers_are_copied(make_store: MakeStore) -> None:
    source, target = make_store("sqlite"), make_store("postgres")
    await fill(source, large=100)
    done = await copy(source, target, sessions=["small0"])
    assert count_outcomes(done) == (3, 0, 0, 0, 0) and done.memories == 0  # small1 and small2 are its helpers
    assert count_outcomes(await copy(source, target, sessions=["lar"])) == (1, 0, 0, 0, 0)
    with pytest.raises(BadInput, match="'sma' matches 3 sessions"):
        await copy(source, target, sessions=["sma"])
    with pytest.raises(NotFound, match="has no session 'none'; nothing was copied"):
        await copy(source, target, sessions=["none"])


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


@each_target
async def test_no_error_shows_a_password(kind: str, tmp_path: Path) -> None:
    file, url = str(tmp_path / "a.db"), "postgresql://me:hunter2@127.0.0.1:1/x"
    await fill(file)
    with pytest.raises((StoreAway, BadInput)) as caught:
        await (copy(file, url) if kind == "postgres" else copy(url, file))
    assert "hunter2" not in str(caught.value) and "me:***@127.0.0.1" in str(caught.value)
