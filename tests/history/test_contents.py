"""Old contents of files: the same for those on one machine and for those in a shared database."""

import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.kit.processes import wait_until
from treadle.errors import NotFound, StoreDamaged, StoreError
from treadle.history import content_store
from treadle.history.base import Contents, SeenFile
from treadle.history.content_store import ContentStore
from treadle.log import postgres_contents
from treadle.log.postgres_contents import CONTENT_TABLES, PostgresContents

Open = Callable[[], Contents]
GIVE_UP_SECONDS = 20.0
"""Longer than any wait here, so that only a hang exceeds it."""


@pytest.fixture(params=["folder", "postgres"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Open the same contents again, as another process does."""
    opened: list[Contents] = []
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        create_tables(url)

    def open_contents() -> Contents:
        opened.append(ContentStore(tmp_path / "kept") if request.param == "folder" else PostgresContents(url))
        return opened[-1]

    yield open_contents
    for contents in opened:
        contents.close()


def create_tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for statement in ("CREATE SCHEMA treadle", *CONTENT_TABLES):
            db.execute(statement)


@pytest.fixture
def contents(reopen: Open) -> Contents:
    return reopen()


def damage(contents: Contents, name: str) -> None:
    """Overwrite a stored content with junk."""
    if isinstance(contents, ContentStore):
        with closing(sqlite3.connect(contents.folder / "kept.db")) as db, db:
            db.execute("UPDATE contents SET data = ? WHERE id = ?", (b"junk", name))
    else:
        assert isinstance(contents, PostgresContents)
        with psycopg.connect(contents._url.connect, autocommit=True) as db:
            db.execute("UPDATE treadle.contents SET data = %s WHERE id = %s", (b"junk", name))


def test_the_same_content_is_kept_once_for_later_processes(contents: Contents, reopen: Open) -> None:
    names = contents.put(b"one", b"two", b"one")
    assert names[0] == names[2] != names[1]
    assert contents.put(b"one", b"three")[0] == names[0]
    for kept in (contents, reopen()):
        assert [kept.get(name) for name in names] == [b"one", b"two", b"one"]


def test_contents_on_a_machine_are_only_for_the_user(tmp_path: Path) -> None:
    with closing(ContentStore(tmp_path / "kept")) as contents:
        contents.put(b"one")
    assert stat.S_IMODE((tmp_path / "kept/kept.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700


def test_nothing_and_the_largest_content_are_stored(contents: Contents) -> None:
    large = bytes(range(256)) * 40_000
    assert [contents.get(name) for name in contents.put(b"", large)] == [b"", large]
    assert contents.put() == []


def test_a_missing_content_and_a_damaged_one_raise_different_errors(contents: Contents) -> None:
    with pytest.raises(NotFound, match="cannot be restored"):
        contents.get("0" * 64)
    (name,) = contents.put(b"kept")
    damage(contents, name)
    with pytest.raises(StoreDamaged, match="damaged"):
        contents.get(name)


def test_a_dropped_content_is_gone(contents: Contents) -> None:
    kept, dropped = contents.put(b"kept", b"dropped")
    contents.drop(dropped)
    with pytest.raises(NotFound):
        contents.get(dropped)
    assert contents.get(kept) == b"kept"


def test_seen_files_are_those_of_one_workspace_until_they_are_gone(contents: Contents, reopen: Open) -> None:
    one, two = contents.put(b"one", b"two")
    contents.save_seen("here", {"a": SeenFile("1", one), "b": SeenFile("2", two)}, ())
    contents.save_seen("there", {"a": SeenFile("3", two)}, ())
    contents.save_seen("here", {"a": SeenFile("4", two)}, ("b", "unknown"))
    assert reopen().load_seen("here") == {"a": SeenFile("4", two)}
    assert contents.load_seen("there") == {"a": SeenFile("3", two)} and contents.load_seen("nowhere") == {}


def test_a_store_that_grew_too_large_forgets_the_oldest_at_the_next_start(
    reopen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = reopen()
    old, *_, new = (contents.put(f"content {number}".encode())[0] for number in range(10))
    contents.save_seen("place", {"old.txt": SeenFile("stamp", old), "new.txt": SeenFile("stamp", new)}, ())
    contents.close()
    for module in (content_store, postgres_contents):
        monkeypatch.setattr(module, "MAX_STORE_BYTES", 0)
    contents = reopen()
    assert contents.get(new) == b"content 9"
    with pytest.raises(NotFound):
        contents.get(old)
    assert contents.load_seen("place").keys() == {"new.txt"}


def test_many_threads_can_keep_at_once(contents: Contents, reopen: Open) -> None:
    other = reopen()

    def put_contents(number: int) -> None:
        for step in range(20):
            (contents, other)[number % 2].put(f"{number} {step % 5}".encode(), f"shared {step % 5}".encode())

    threads = [threading.Thread(target=put_contents, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents.get(contents.put(b"3 4")[0]) == b"3 4"


def test_each_machine_has_its_own_stamps(postgres_url: str) -> None:
    create_tables(postgres_url)
    with closing(PostgresContents(postgres_url, "one")) as one, closing(PostgresContents(postgres_url, "two")) as two:
        (name,) = one.put(b"text")
        one.save_seen("place", {"a": SeenFile("1", name)}, ())
        assert two.load_seen("place") == {} and two.get(name) == b"text"


def test_contents_go_on_after_their_connection_was_cut(postgres_url: str) -> None:
    create_tables(postgres_url)
    with closing(PostgresContents(postgres_url)) as contents:
        (name,) = contents.put(b"before")
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert contents.get(name) == b"before"


def test_an_error_of_the_database_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_contents, "_PATIENCE", 0)
    contents = PostgresContents("postgresql://ada:hunter2secret@127.0.0.1:1/db")
    with pytest.raises(StoreError, match="no file was changed") as caught:
        contents.put(b"text")
    assert "hunter2secret" not in str(caught.value) and "ada:***@127.0.0.1" in str(caught.value)


def test_a_store_is_closed_at_once_while_a_thread_waits_for_its_database(postgres_url: str) -> None:
    """The connection is alive and says nothing, as after a partition."""
    create_tables(postgres_url)
    contents, errors, has_begun = PostgresContents(postgres_url), list[Exception](), threading.Event()
    contents.put(b"first")
    assert contents._connection is not None

    def put() -> None:
        has_begun.set()
        try:
            contents.put(b"second")
        except StoreError as error:
            errors.append(error)

    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("LOCK TABLE treadle.contents")
        thread = threading.Thread(target=put, daemon=True)
        thread.start()
        assert has_begun.wait(GIVE_UP_SECONDS)
        wait_until(lambda: contents._lock.locked())
        closing_thread = threading.Thread(target=contents.close, daemon=True)
        closing_thread.start()
        closing_thread.join(GIVE_UP_SECONDS)
        thread.join(GIVE_UP_SECONDS)
        assert not closing_thread.is_alive() and not thread.is_alive() and errors
