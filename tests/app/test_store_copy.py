"""Copying stores: everything of a session goes along, in each direction, whoever moves on meanwhile."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from tests.app.copied_stores import (
    MakeStore,
    change,
    copy,
    count_outcomes,
    describe,
    describe_store,
    dump,
    each_direction,
    each_target,
    fill,
    list_artifacts,
    make_store,
    own_data_folder,
    query,
)
from tests.kit.rewinding import Place, rewindable, write
from tests.kit.sessions import Tables, build_agent, run_to_end, some_tables, wait_for
from tests.log.conftest import Make
from treadle import Answer, RunFinished, later
from treadle.errors import BadInput, NotFound
from treadle.events import AnyFact, CallFinished, SessionRenamed, serialize_event
from treadle.history.content_store import ContentStore
from treadle.log.base import Claim, SessionQuery
from treadle.log.open_log import open_log
from treadle.log.schema import MIGRATIONS, migrate_tables
from treadle.log.sqlite_copy import SqliteReader
from treadle.tools.builtin import build_file_tools

tables, place = some_tables, rewindable
__all__ = ["make_store", "own_data_folder"]


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
    async with open_log(source) as log:
        next_there = await log.claim("you", 30, "small1")
    assert found is not None and found.epoch == (next_there and next_there.epoch)  # no process of the old store fits
    async with open_log(target) as log:
        repeated = await log.post("small1", [Make.message("hé")], key="my key")
        assert not repeated.is_new and [fact.seq for fact in repeated.facts] == [2]
        page = await log.list_sessions(SessionQuery(text="ÄNNCHEN", parent="small0"))
        assert {info.id for info in page.sessions} == {"small1", "small2"}
        assert [hit.seq for hit in await log.search("hé")] == [2, 2, 2]
        assert [memory.text for memory in await log.memories.search("java")] == ["the build needs Java"]
        (artifact,) = [await log.get_artifact("small2", name) for name in await list_artifacts(target, "small2")]
        assert (artifact.media_type, artifact.data) == ("text/html", b"large output 2")
    assert done.left_out == [] and done.approvals == "kept"


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
        earlier = await log.claim("other machine", 0.0, "small0")
        assert earlier is not None
    assert count_outcomes(await copy(source, target)) == (1, 0, 0, 0, 0)
    async with open_log(target) as log:
        assert (await log.get_info("small0")).owner == ""
        found = await log.claim("me", 30)
        assert found is not None and found.epoch == earlier.epoch + 1


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


@pytest.mark.parametrize("what", ["claimed", "posted", "deleted"])
async def test_a_session_that_changes_while_it_is_copied_is_left_out(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    source, target = make_store("sqlite"), make_store("postgres")
    await fill(source, small=1)
    list_artifacts = SqliteReader.list_artifacts

    async def change_first(reader: SqliteReader, num: int) -> list[str]:
        async with open_log(source) as log:
            if what == "claimed":
                assert await log.claim("other machine", 600, "small0")
            elif what == "posted":
                await log.post("small0", [Make.message("more")])
            else:
                await log.delete("small0")
        return await list_artifacts(reader, num)

    monkeypatch.setattr(SqliteReader, "list_artifacts", change_first)
    assert count_outcomes(await copy(source, target)) == (0, 0, 0, 0, 1)
    assert (await describe_store(target)).keys() == {"memories", "key"}


@each_target
async def test_a_session_is_not_shown_without_all_its_facts(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source, target = make_store("sqlite"), make_store(kind)
    await fill(source, small=0, large=2500)
    read_keys = SqliteReader.read_keys

    async def lose_a_fact(reader: SqliteReader, num: int) -> list[Any]:
        if kind == "sqlite":
            change(target, "DELETE FROM incoming_facts WHERE seq = 2100")
        else:
            with psycopg.connect(target, autocommit=True) as db:
                db.execute("DELETE FROM treadle.incoming_facts WHERE seq = 2100")
        return await read_keys(reader, num)

    monkeypatch.setattr(SqliteReader, "read_keys", lose_a_fact)
    done = await copy(source, target)
    assert count_outcomes(done) == (0, 0, 0, 0, 1) and "2500 of its" in done.left_out[0].why
    assert (await describe_store(target)).keys() == {"memories", "key"}


async def test_a_store_of_an_older_release_is_copied_and_stays_one(make_store: MakeStore) -> None:
    source, target = make_store("sqlite"), make_store("postgres")
    facts = [serialize_event(replace(fact, seq=seq, at=5.0)) for seq, fact in enumerate(first_facts(), 1)]
    with closing(sqlite3.connect(source, isolation_level=None)) as db:
        db.create_function("casefold", 1, str.casefold)
        migrate_tables(db, Path(source), MIGRATIONS[:1])
        db.execute(
            """INSERT INTO sessions
                (id, agent, workspace, name, named_by_user, status, turns, cost, created_at, updated_at)
                VALUES ('old', 'agent', '', 'a name', 0, 'idle', 0, 0, 5, 5)"""
        )
        db.executemany(
            "INSERT INTO facts VALUES (?, ?)", [((1 << 32) + seq, fact) for seq, fact in enumerate(facts, 1)]
        )
    assert count_outcomes(await copy(source, target)) == (1, 0, 0, 0, 0)
    assert query(source, "PRAGMA user_version") == [(1,)]
    async with open_log(target) as log:
        assert [serialize_event(fact) for fact in await log.read("old")] == facts
        assert (await log.get_info("old")).name == "a name"


def first_facts() -> list[AnyFact]:
    return [Make.created("old"), Make.message("hello"), *Make.notes("a")]


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
