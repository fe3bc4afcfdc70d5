"""What only the SQLite log must do for lists and search: bounded time, beside the event loop, however many sessions."""

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from treadle.errors import StoreError
from treadle.events import MessageReceived, SessionCreated, SessionRenamed
from treadle.log import records, schema, session_list, sqlite, text_index
from treadle.log import sqlite_file as store
from treadle.log.base import RESPONSES_AGENT, Log, SessionQuery
from treadle.log.full_text import mark_words
from treadle.log.sqlite import SqliteLog
from treadle.messages import TextPart

PATIENCE = 30.0


def say(text: str) -> MessageReceived:
    return MessageReceived(id=f"m{hash(text)}", parts=(TextPart(text),))


def read_position(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT position FROM word_index").fetchone()[0]


# --- bounded time


async def test_a_word_that_is_repeated_very_often_is_found_quickly(sqlite_log: SqliteLog) -> None:
    await sqlite_log.post("s", [say("marmalade " * 100_000)])
    async with asyncio.timeout(PATIENCE):
        (hit,) = await sqlite_log.search("marmalade")
    assert hit.seq == 2 and hit.snippet.startswith("marmalade") and len(hit.snippet) < 300


async def test_a_query_of_very_many_words_is_answered(log: Log, make) -> None:
    words = " ".join(f"w{number}" for number in range(2000))
    await log.post("s", [make.message(words)])
    assert [hit.seq for hit in await log.search(words)] == [2]


async def test_only_the_beginning_of_a_very_long_text_is_found(log: Log, make) -> None:
    await log.post("s", [make.message("first " + "x " * 500_000 + "last")])
    assert [hit.seq for hit in await log.search("first")] == [2] and await log.search("last") == []


async def test_the_event_loop_goes_on_while_a_search_runs(sqlite_log: SqliteLog, monkeypatch) -> None:
    await sqlite_log.post("s", [say("apple")])
    loop, is_searching, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def wait_for_the_loop(text: str, words: object) -> str:
        loop.call_soon_threadsafe(is_searching.set)
        assert may_end.wait(PATIENCE), "the event loop stood still"
        return text

    monkeypatch.setattr(text_index, "make_snippet", wait_for_the_loop)
    search = asyncio.create_task(sqlite_log.search("apple"))
    await is_searching.wait()
    await sqlite_log.post("s", [say("pear")])  # a search holds up no write
    may_end.set()
    assert [hit.snippet for hit in await search] == ["apple"]


# --- the first index of a large store


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "PATIENCE", 0.0)
    monkeypatch.setattr(text_index, "BATCH_FACTS", 5)


@pytest.mark.usefixtures("impatient")
async def test_the_first_search_answers_with_what_is_indexed_and_says_how_much_is_missing(sqlite_log) -> None:
    await sqlite_log.post("s", [say(f"plum {number}") for number in range(100)])
    first = await sqlite_log.search("plum", 1000)
    assert 0 < len(first) < 100 and first.unindexed >= 100 - len(first)
    async with asyncio.timeout(PATIENCE):
        while (hits := await sqlite_log.search("plum", 1000)).unindexed:
            pass
    assert len(hits) == 100


@pytest.mark.usefixtures("impatient")
async def test_the_rest_is_indexed_in_the_background(sqlite_log: SqliteLog, path: Path) -> None:
    await sqlite_log.post("s", [say(f"plum {number}") for number in range(100)])
    assert (await sqlite_log.search("plum")).unindexed
    deadline = time.monotonic() + PATIENCE
    while read_position(path) < 101:
        assert time.monotonic() < deadline
    assert not (await sqlite_log.search("plum")).unindexed


async def test_a_search_does_not_wait_for_a_process_that_holds_the_write_lock(sqlite_log, path: Path) -> None:
    await sqlite_log.post("s", [say("plum")])
    await sqlite_log.search("plum")
    await sqlite_log.post("s", [say("plum again")])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        hits = await sqlite_log.search("plum")
        assert [hit.seq for hit in hits] == [2] and hits.unindexed == 1
    assert len(await sqlite_log.search("plum")) == 2


@pytest.mark.usefixtures("impatient")
async def test_closing_a_log_stops_its_index_and_the_next_one_goes_on(sqlite_log: SqliteLog, path: Path) -> None:
    await sqlite_log.post("s", [say(f"plum {number}") for number in range(1000)])
    await sqlite_log.search("plum")
    await sqlite_log.close()
    reached = read_position(path)
    assert 0 < reached < 1001
    with pytest.raises(StoreError, match="closed"):
        await sqlite_log.search("plum")
    async with SqliteLog(path) as again:
        assert (await again.search("plum")).unindexed < 1001 - reached


async def test_facts_that_another_process_indexes_meanwhile_are_indexed_once(sqlite_log, path, monkeypatch) -> None:
    await sqlite_log.post("s", [say(f"plum {number}") for number in range(20)])
    prepare = text_index.prepare_for_index
    other = sqlite_log._file.connect_again()

    def index_elsewhere_first(text: str) -> str:
        monkeypatch.setattr(text_index, "prepare_for_index", prepare)
        text_index.index_batch(other)
        other.execute("UPDATE words SET text = 'elsewhere'")
        return prepare(text)

    monkeypatch.setattr(text_index, "prepare_for_index", index_elsewhere_first)
    assert await sqlite_log.search("plum") == [] and len(await sqlite_log.search("elsewhere")) == 20
    other.close()


async def test_a_session_that_is_deleted_while_it_is_indexed_cannot_be_found(sqlite_log, path, monkeypatch) -> None:
    await sqlite_log.create("t", [SessionCreated(session_id="t"), say("plum")])
    prepare = text_index.prepare_for_index

    def delete_first(text: str) -> str:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("DELETE FROM facts WHERE place >> 32 = 2")
        return prepare(text)

    monkeypatch.setattr(text_index, "prepare_for_index", delete_first)
    assert await sqlite_log.search("plum") == []
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM words").fetchone() == (0,)


async def test_a_store_of_an_older_version_is_searched_and_listed_like_a_new_one(path: Path) -> None:
    older = store.SqliteFile(path, migrations=schema.MIGRATIONS[:4])
    with older.transaction as db:
        for number, name in enumerate(("half", "indexed", "Straße"), 1):
            facts = records.number_facts(
                [SessionCreated(session_id=name), SessionRenamed(name=name), say(f"plum {name}")], 1.0
            )
            records.insert_facts(
                db, records.insert_session(db, records.build_first_info(name, facts), named_by_user=True), facts
            )
            for fact in facts[1:]:
                if name == "indexed" or (name == "half" and fact.seq == 2):
                    db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", ((number << 32) + fact.seq, "plum"))
                    db.execute("UPDATE sessions SET indexed = ? WHERE num = ?", (fact.seq, number))
    older.close()
    async with SqliteLog(path) as log:
        assert {hit.session_id for hit in await log.search("plum")} == {"indexed", "half", "Straße"}
        (info,) = (await log.list_sessions(SessionQuery(text="STRASSE"))).sessions
        assert info.name == "Straße"


# --- every list has an index

SURFACES = [
    SessionQuery(),
    SessionQuery(status="waiting"),
    SessionQuery(workspace="/w"),
    SessionQuery(workspace="/w", status="answered"),
    SessionQuery(agent="a"),
    SessionQuery(agent="a", status="waiting"),
    SessionQuery(agent=RESPONSES_AGENT),
    SessionQuery(name="n"),
    SessionQuery(agent="a", name="n"),
    SessionQuery(prefix="3f2"),
    SessionQuery(parent="p"),
    SessionQuery(text="few"),
    SessionQuery(text="few", status="answered"),
    SessionQuery(cursor="5.0_3"),
    SessionQuery(pinned=True),
    SessionQuery(archived=True),
    SessionQuery(archived=False),
    SessionQuery(archived=False, pinned=True, workspace="/w"),
]


@pytest.mark.parametrize("query", SURFACES, ids=str)
async def test_no_list_reads_or_sorts_all_sessions(sqlite_log: SqliteLog, query: SessionQuery) -> None:
    statements: list[str] = []
    db = sqlite_log._file.get_connection()  # pyright: ignore[reportPrivateUsage]
    db.set_trace_callback(statements.append)
    session_list.fetch_page(db, query)
    db.set_trace_callback(None)
    sql = next(sql for sql in statements if sql.startswith("SELECT id"))
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql.replace('Inf', '9e99')}")]
    looked_at = [line for line in plan if "sessions" in line]
    assert looked_at and all("SEARCH sessions USING" in line for line in looked_at), "\n".join(plan)
    assert sum("ORDER BY" in line for line in plan) <= 2, "only the rows of the page are sorted"


async def test_a_name_is_found_after_it_was_changed_and_not_after_the_session_was_deleted(log: Log, make) -> None:
    async def find(**query: str) -> list[str]:
        return [info.id for info in (await log.list_sessions(SessionQuery(**query))).sessions]  # pyright: ignore

    await log.create("t", [make.created("t"), SessionRenamed(name='The "red" BUILD')])
    assert await find(text='"RED" b') == await find(name='The "red" BUILD') == ["t"]
    await log.post("t", [SessionRenamed(name="Große Pläne")])
    assert await find(text="red") == await find(name='The "red" BUILD') == await find(name="große pläne") == []
    assert await find(text="GROSSE PL") == await find(text="ße") == await find(name="Große Pläne") == ["t"]
    await log.delete("t")
    assert await find(text="grosse") == []


async def test_a_text_in_very_many_names_is_listed_in_order_page_by_page(sqlite_log: SqliteLog, monkeypatch) -> None:
    monkeypatch.setattr(session_list, "_FEW", 3)
    for number in range(10):
        name = SessionRenamed(name=f"common {number}")
        await sqlite_log.create(f"n{number}", [SessionCreated(session_id=f"n{number}"), name])
    seen = [info.id async for info in sqlite_log.iterate_sessions(SessionQuery(text="common"))]
    assert seen == [f"n{number}" for number in reversed(range(10))]


async def test_a_large_session_is_deleted_in_steps_beside_the_event_loop(sqlite_log, path, monkeypatch) -> None:
    monkeypatch.setattr(text_index, "BATCH_LETTERS", 100)
    await sqlite_log.create("t", [SessionCreated(session_id="t"), *(say(f"plum {n} " + "x " * 30) for n in range(20))])
    await sqlite_log.search("plum")
    threads: list[threading.Thread] = []
    forget = text_index.forget_words

    def forget_and_note(db: sqlite3.Connection) -> bool:
        threads.append(threading.current_thread())
        return forget(db)

    monkeypatch.setattr(sqlite, "forget_words", forget_and_note)
    await sqlite_log.delete("t")
    assert len(threads) > 10 and threading.main_thread() not in threads
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM words_content").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM deleted_sessions").fetchone() == (0,)


async def test_words_of_a_session_that_was_being_deleted_at_a_crash_go_when_the_store_is_opened(path: Path) -> None:
    async with SqliteLog(path) as log:
        await log.create("t", [SessionCreated(session_id="t"), say("plum")])
        await log.search("plum")
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.create_function("casefold", 1, str.casefold)
            db.execute("DELETE FROM facts")
            db.execute("DELETE FROM sessions")
            db.execute("INSERT INTO deleted_sessions VALUES (1)")
        assert await log.search("plum") == []
    async with SqliteLog(path) as log:
        deadline = time.monotonic() + PATIENCE
        with closing(sqlite3.connect(path)) as db:
            while db.execute("SELECT count(*) FROM words_content").fetchone() != (0,):
                assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("The plum is ripe.", "RIPE plum", "The <plum> is <ripe>."),
        ("Große Pläne, grosse plane", "plane GROSSE", "<Große> <Pläne>, <grosse> <plane>"),
        ("a \x02b\x03 c", "b", "a <b> c"),
        ("plumage", "plum", "plumage"),
    ],
)
def test_the_words_that_a_search_finds_are_marked(text: str, query: str, marked: str) -> None:
    assert mark_words(text, query).replace("\x02", "<").replace("\x03", ">") == marked
