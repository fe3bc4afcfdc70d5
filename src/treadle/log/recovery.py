"""Saving what a damaged store still holds into a new one. The damaged file is only read.

Rows are found page by page, so neither a lost page of a tree nor a lost header hides the others. A session keeps
its facts up to the first one that is missing: a log with a gap would say something else than what happened.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from treadle.errors import BadInput, StoreDamaged, StoreError
from treadle.events import SessionCreated
from treadle.log import records, sqlite_pages
from treadle.log.full_text import prepare_for_index
from treadle.log.maintenance import check_store, create_whole
from treadle.log.sqlite_file import SqliteFile
from treadle.log.sqlite_pages import PageFile, Row
from treadle.memory.base import Memory

MAX_LOSSES = 50
_SESSION_COLUMNS = 17
_ADDED_COLUMNS = (0, 0, "")  # what an older store does not have: pinned, archived, model
_SESSION_LENGTHS = (_SESSION_COLUMNS, _SESSION_COLUMNS + len(_ADDED_COLUMNS))
_ID, _UPDATED_AT, _OWNER, _LEASE, _WAKE_AT = 1, 11, 14, 15, 16


class Recovered(Struct):
    """What was saved, and what was lost. `rest` is a file with the readable facts that no session could keep."""

    store: str
    sessions: int = 0
    facts: int = 0
    artifacts: int = 0
    memories: int = 0
    losses: list[str] = []
    rest: str = ""


def recover_store(path: Path, target: Path, report: Callable[[str], None]) -> Recovered:
    """Write a new store with everything that is still readable. It appears under its name when it is complete."""
    if target.exists():
        raise BadInput(f"{target} exists already, and nothing was written; name another file with --output")
    found, rest = Recovered(str(target)), list[bytes]()
    with create_whole(target) as partial:
        file = SqliteFile(partial)
        with closing(file), file.transaction as db:
            recovery = _Recovery(db, found)
            with PageFile(path) as pages:
                if pages.missing:
                    text = (
                        f"{pages.missing} pages are missing at the end of the file; a session may lack its last facts"
                    )
                    found.losses.append(text)
                for number, row in pages.iterate_rows():
                    recovery.add_row(row)
                    if not number % 100:
                        report(f"read {number} of {pages.count} pages")
                if pages.unreadable:
                    found.losses.append(f"{pages.unreadable} pages or rows that could not be read")
            report("putting the sessions together")
            rest += recovery.build_sessions()
            recovery.build_order()
        if not found.sessions and not found.memories:
            raise StoreDamaged(f"nothing in {path} could be read; restore a backup")
        if problems := check_store(partial, report).problems:
            raise StoreDamaged(f"{path} could not be recovered: {problems[0]}; restore a backup")
        if rest:
            found.rest = f"{target}.rest.jsonl"
            with os.fdopen(os.open(found.rest, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as lines:
                lines.writelines(body + b"\n" for body in rest)
            found.losses.append(f"{len(rest)} readable facts after a gap are in {found.rest}")
    return found


class _Recovery:
    """Collects rows in the tables of a new store, and then makes sessions of them."""

    def __init__(self, db: sqlite3.Connection, found: Recovered) -> None:
        self._db, self._found = db, found
        self._sessions: dict[int, tuple[object, ...]] = {}
        self._lost = 0
        db.execute("CREATE TEMP TABLE order_found (position INTEGER PRIMARY KEY, place INTEGER)")

    def add_row(self, row: Row) -> None:
        """Add a row of any table. Rows that can be built again, and those of no table of ours, are left out."""
        values = row.values
        match row.kind, values:
            case sqlite_pages.TABLE_LEAF, (None, bytes() as body) if row.rowid >> 32:
                seq = row.rowid & records.SEQ_MASK
                with suppress(StoreError):  # it is no fact, or no longer one
                    if records.read_body(body, seq).seq == seq:
                        self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (row.rowid, body))
            case sqlite_pages.TABLE_LEAF, (None, int() as place):
                self._db.execute("INSERT OR IGNORE INTO order_found VALUES (?, ?)", (row.rowid, place))
            case sqlite_pages.TABLE_LEAF, (int(), str() as name, str(), bytes() as data):
                if records.hash_artifact(data) == name:
                    self._db.execute(
                        "INSERT OR IGNORE INTO artifacts (session, id, media_type, data) VALUES (?, ?, ?, ?)", values
                    )
            case sqlite_pages.TABLE_LEAF, (None, str() as name, str() as scope, bytes() as body):
                self._add_memory(row.rowid, name, scope, body)
            case sqlite_pages.TABLE_LEAF, (None, str(), *_) if len(values) in _SESSION_LENGTHS:
                self._add_session(row.rowid, values)
            case ((sqlite_pages.INDEX_LEAF | sqlite_pages.INDEX_INTERIOR), (int(), str(), int(), int())):
                self._db.execute("INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?)", values)
            case ((sqlite_pages.INDEX_LEAF | sqlite_pages.INDEX_INTERIOR), (str() as name, bytes() as secret)):
                self._db.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, secret))  # binds open questions
            case _:
                pass

    def _add_session(self, number: int, values: tuple[object, ...]) -> None:
        known, updated_at = self._sessions.get(number), values[_UPDATED_AT]
        if isinstance(updated_at, int | float) and (
            known is None or cast("float", known[_UPDATED_AT]) <= updated_at  # an unused page may hold an older one
        ):
            self._sessions[number] = values

    def _add_memory(self, number: int, name: str, scope: str, body: bytes) -> None:
        try:
            memory = msgspec.json.decode(body, type=Memory)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        added = self._db.execute("INSERT OR IGNORE INTO memories VALUES (?, ?, ?, ?)", (number, name, scope, body))
        if added.rowcount:
            text = prepare_for_index(memory.text)
            self._db.execute("INSERT INTO memory_words (rowid, text) VALUES (?, ?)", (number, text))
            self._found.memories += 1

    def build_sessions(self) -> list[bytes]:
        """Build the list of sessions from their rows and facts. Return the facts that no session can keep."""
        rest: list[bytes] = []
        last: dict[int, int] = dict(
            self._db.execute(f"SELECT place >> 32, max(place & {records.SEQ_MASK}) FROM order_found GROUP BY 1")
        )
        with_facts: list[int] = [row[0] for row in self._db.execute("SELECT DISTINCT place >> 32 FROM facts")]
        for number in with_facts:
            rest += self._build_session(number, last.get(number, 0))
        for number in self._sessions.keys() - set(with_facts):
            self._note_loss(f"session {self._sessions[number][_ID]}: all its facts")
        # A session that was deleted has left its positions.
        for table in ("keys", "artifacts"):
            self._db.execute(f"DELETE FROM {table} WHERE session NOT IN (SELECT num FROM sessions)")
        self._found.artifacts = self._db.execute("SELECT count(*) FROM artifacts").fetchone()[0]
        self._found.facts = self._db.execute("SELECT count(*) FROM facts").fetchone()[0]
        return rest

    def _build_session(self, number: int, last: int) -> list[bytes]:
        """Build one session. `last` is the position of its last fact, as far as that is known."""
        base = number << 32
        rows = self._db.execute(
            "SELECT place, body FROM facts WHERE place BETWEEN ? AND ? ORDER BY place", (base, base + records.SEQ_MASK)
        ).fetchall()
        kept = next((index for index, (place, _) in enumerate(rows) if place != base + index + 1), len(rows))
        self._db.execute("DELETE FROM facts WHERE place > ? AND place >> 32 = ?", (base + kept, number))
        last = max(last, rows[-1][0] - base)
        values = self._sessions.get(number)
        facts = records.read_facts(self._db, number)
        if not facts or not isinstance(facts[0], SessionCreated):
            self._note_loss(f"session {values[_ID] if values else f'number {number}'}: its beginning")
            self._db.execute("DELETE FROM facts WHERE place >> 32 = ?", (number,))
            return [body for _, body in rows]
        session_id = str(values[_ID]) if values else facts[0].session_id
        if self._db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone():
            session_id = f"{session_id}-{number}"
        if values is not None and kept == last:
            row = [number, session_id, *values[2:], *_ADDED_COLUMNS[len(values) - _SESSION_COLUMNS :]]
            row[_OWNER], row[_LEASE], row[_WAKE_AT] = "", 0.0, None
            self._db.execute(f"INSERT INTO sessions VALUES ({', '.join('?' * len(row))})", row)
        else:
            info = records.build_first_info(session_id, facts)
            by_user = records.summarize_changes(facts).named_by_user
            records.insert_session(self._db, info, named_by_user=by_user, number=number)
        if kept < last:
            self._note_loss(f"session {session_id}: facts {kept + 1} to {last}")
        self._found.sessions += 1
        return [body for _, body in rows[kept:]]

    def build_order(self) -> None:
        """Build the order of all facts: the positions that were found, and then the facts without one."""
        self._db.execute("DELETE FROM stored_order")
        self._db.execute(
            "INSERT INTO stored_order SELECT position, place FROM order_found WHERE place IN (SELECT place FROM facts)"
        )
        self._db.execute(
            """INSERT INTO stored_order (place)
                SELECT place FROM facts WHERE place NOT IN (SELECT place FROM stored_order) ORDER BY place"""
        )

    def _note_loss(self, text: str) -> None:
        losses = self._found.losses
        self._lost += 1
        if len(losses) <= MAX_LOSSES:
            losses.append(text)
        else:
            losses[-1] = f"and {self._lost - MAX_LOSSES} more sessions"
