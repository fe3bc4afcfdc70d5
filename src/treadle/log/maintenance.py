"""Looking after the file of an SQLite log: checking, copying and shrinking it. `recovery` reads a damaged one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from treadle.errors import BadInput, StoreBusy, StoreDamaged, StoreError, StoreFull
from treadle.log import records
from treadle.log.read_only import connect_read_only
from treadle.log.schema import MIGRATIONS, read_version
from treadle.log.sqlite_file import SqliteFile, give_back_space
from treadle.log.sqlite_open import explain_error
from treadle.log.text_index import forget_words

MAX_PROBLEMS = 20
COPIED_PAGES = 2000
"""How many pages a backup copies between two reports of its progress."""

Report = Callable[[str], None]
"""Gets a short text about the progress, from the thread that works."""

_GAPS = f"""SELECT place >> 32, count(*), max(place & {records.SEQ_MASK}) FROM facts GROUP BY 1
    HAVING count(*) <> max(place & {records.SEQ_MASK})"""


class StoreCheck(Struct, frozen=True):
    """What a check of a store found. It is whole when there are no `problems`."""

    store: str
    problems: tuple[str, ...]
    version: int = 0
    sessions: int = 0
    facts: int = 0
    bytes: int = 0
    free_bytes: int = 0


def check_store(path: Path, report: Report) -> StoreCheck:
    """Check the whole file: SQLite's structures, and that each session has all its facts. It is only read."""
    problems: list[str] = []
    found: dict[str, int] = {}
    try:
        with closing(connect_read_only(path)) as db:
            found["version"] = read_version(db, path, MIGRATIONS)
            if not found["version"]:
                return StoreCheck(str(path), ("it is empty: nothing was stored in it yet, or it was cut off",))
            page = db.execute("PRAGMA page_size").fetchone()[0]
            found["bytes"] = page * db.execute("PRAGMA page_count").fetchone()[0]
            found["free_bytes"] = page * db.execute("PRAGMA freelist_count").fetchone()[0]
            report("checking the structure of the file")
            rows = db.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})")
            problems += (line for (text,) in rows if text != "ok" for line in text.splitlines())
            found["sessions"] = db.execute("SELECT count(*) FROM sessions").fetchone()[0]
            for problem in _find_missing_facts(db):
                problems.append(problem)
            found["facts"] = 0
            for problem in _find_unreadable_facts(db, found, report):
                problems.append(problem)
    except sqlite3.Error as error:
        explained = explain_error(error, path)
        if isinstance(explained, StoreBusy | StoreFull):
            raise explained from error
        problems.append(f"it cannot be read: {error}")
    more = [f"and {len(problems) - MAX_PROBLEMS} more problems"] if len(problems) > MAX_PROBLEMS else []
    return StoreCheck(str(path), (*problems[:MAX_PROBLEMS], *more), **found)


def _find_missing_facts(db: sqlite3.Connection) -> Iterator[str]:
    names: dict[int, str] = dict(db.execute("SELECT num, id FROM sessions").fetchall())
    for number, count, last in db.execute(_GAPS):
        yield f"session {names.get(number, number)} has {count} of its {last} facts"
    numbers: set[int] = {row[0] for row in db.execute("SELECT DISTINCT place >> 32 FROM facts")}
    for number in sorted(numbers - names.keys()):
        yield f"session number {number} has facts, but it is not in the list"
    for number in sorted(names.keys() - numbers):
        yield f"session {names[number]} has no facts"


def _find_unreadable_facts(db: sqlite3.Connection, found: dict[str, int], report: Report) -> Iterator[str]:
    """Yield the facts that cannot be decoded, and count all."""
    for place, body in db.execute("SELECT place, body FROM facts"):
        found["facts"] += 1
        if not found["facts"] % 10_000:
            report(f"checking the facts: {found['facts']} read")
        try:
            records.read_body(body, place & records.SEQ_MASK)
        except StoreError as error:
            yield f"session number {place >> 32}: {error}"


def backup_store(path: Path, target: Path, report: Report, *, replace: bool = False) -> StoreCheck:
    """Copy the store while others use it. The copy appears under its name only when it is complete and checked."""
    if target.exists() and not replace:
        raise BadInput(f"{target} exists already, and nothing was copied; choose another name, or use --force")
    if target.exists() and target.samefile(path):
        raise BadInput(f"{target} is the store itself; choose another name")
    try:
        with create_whole(target) as partial, closing(connect_read_only(path)) as source:
            read_version(source, path, MIGRATIONS)
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                # One snapshot: otherwise the copy would begin again at every write of a server.
                source.execute("BEGIN")
                source.execute("SELECT count(*) FROM sqlite_master").fetchone()

                def show_progress(_status: int, left: int, total: int) -> None:
                    report(f"copied {total - left} of {total} pages")

                source.backup(copy, pages=COPIED_PAGES, progress=show_progress)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, which also opens on a read-only disk
            found = check_store(partial, report)
            if found.problems:
                raise StoreDamaged(f"{path} is damaged, and no copy was kept: {found.problems[0]}")
    except sqlite3.Error as error:
        explained = explain_error(error, path)
        raise (explain_error(error, target) if isinstance(explained, StoreFull) else explained) from error
    return StoreCheck(str(target), (), found.version, found.sessions, found.facts, found.bytes, found.free_bytes)


@contextmanager
def create_whole(target: Path) -> Generator[Path]:
    """Create a database file for this user only. It gets its name after the block, when it is complete."""
    path = target.with_name(f"{target.name}.partial")
    names = [path, *(path.with_name(f"{path.name}-{kind}") for kind in ("wal", "shm", "journal"))]
    try:
        for name in names:
            name.unlink(missing_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            yield path
            with path.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(path, target)
        finally:
            for name in names:
                name.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(
            f"{error.filename2 or error.filename}: {error.strerror}; {target} was not written. Choose another path"
        ) from None


def vacuum_store(path: Path, report: Report) -> tuple[int, int]:
    """Give the space of deleted sessions back, and remove their last traces. Return the size before and after.

    No other process may use the store meanwhile.
    """
    if not path.is_file():
        raise BadInput(f"there is no store {path}")
    SqliteFile(path).close()  # checks it, brings it up to date, and writes its write-ahead log into it
    before = path.stat().st_size
    if shutil.disk_usage(path.parent).free < 2 * before:
        raise StoreFull(f"{path} needs {2 * before >> 20} MiB of free disk space for this; nothing was changed")
    db = sqlite3.connect(path, timeout=1, isolation_level=None)
    with closing(db):
        try:
            if db.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
                raise _build_in_use(path)
            report("removing traces of deleted sessions")
            while forget_words(db):
                pass
            db.execute(
                """DELETE FROM stored_order WHERE place >> 32 NOT IN (SELECT num FROM sessions)
                    AND position < (SELECT max(position) FROM stored_order)"""
            )
            for table in ("words", "names", "memory_words"):
                db.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
            report(f"writing {before >> 20} MiB anew")
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("VACUUM")
        except sqlite3.Error as error:
            explained = explain_error(error, path)
            raise (_build_in_use(path) if isinstance(explained, StoreBusy) else explained) from error
        finally:
            with suppress(sqlite3.Error):
                db.execute("PRAGMA journal_mode = WAL")
    return before, path.stat().st_size


def shrink_store(path: Path) -> None:
    """Give unused pages back, also while others use the store."""
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as db:
        while give_back_space(db):
            pass


def _build_in_use(path: Path) -> StoreBusy:
    return StoreBusy(
        f"{path} is used by other processes; nothing was changed. Stop them first, or leave it: a server gives "
        "the space of deleted sessions back by itself"
    )
