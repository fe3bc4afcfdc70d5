"""The tables of the SQLite log as numbered migrations, and how an older store is upgraded.

A released migration never changes. A later change is a further migration.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from treadle.errors import StoreDamaged, StoreTooNew
from treadle.memory.store import KIND_SQL, TEXT_SQL

APPLICATION_ID = 0x7472646C  # "trdl", shown by file(1) and checked when a store is opened

INDEX_VERSION = 6
"""From this version on, a store knows up to which position its facts are in the index of words."""

MARKS_VERSION = 8
"""From this version on, a store knows which sessions are pinned or archived, and their models."""

Migration = Sequence[str]

MIGRATIONS: tuple[Migration, ...] = (
    (
        # AUTOINCREMENT: another process may still cache the number of a deleted session, so no other session may
        # ever get it.
        """CREATE TABLE sessions (
            num INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            agent TEXT NOT NULL,
            workspace TEXT NOT NULL,
            parent BLOB,
            name TEXT NOT NULL,
            named_by_user INTEGER NOT NULL,
            status TEXT NOT NULL,
            turns INTEGER NOT NULL,
            cost REAL NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            indexed INTEGER NOT NULL DEFAULT 0,
            epoch INTEGER NOT NULL DEFAULT 0,
            owner TEXT NOT NULL DEFAULT '',
            lease REAL NOT NULL DEFAULT 0,
            wake_at REAL)""",
        "CREATE INDEX sessions_due ON sessions (wake_at) WHERE wake_at IS NOT NULL",
        "CREATE INDEX sessions_owned ON sessions (owner) WHERE owner <> ''",
        # place = session number << 32 | seq: one integer key is the cheapest to append to and to scan.
        # The last place is the session's head. No column repeats it, so an append in mid-run is one insert.
        "CREATE TABLE facts (place INTEGER PRIMARY KEY, body BLOB NOT NULL)",
        """CREATE TABLE keys (
            session INTEGER NOT NULL,
            key TEXT NOT NULL,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            PRIMARY KEY (session, key)) WITHOUT ROWID""",
        """CREATE TABLE artifacts (
            session INTEGER NOT NULL,
            id TEXT NOT NULL,
            media_type TEXT NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (session, id))""",
        "CREATE VIRTUAL TABLE words USING fts5 (text)",
    ),
    (
        """CREATE TABLE memories (
            num INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            scope TEXT NOT NULL,
            body BLOB NOT NULL)""",
        "CREATE INDEX memories_scope ON memories (scope)",
        "CREATE VIRTUAL TABLE memory_words USING fts5 (text)",
        # Few sessions have a parent. They are looked up by the parent's id, which is inside the JSON.
        """CREATE INDEX sessions_parent ON sessions (json_extract(CAST(parent AS TEXT), '$.session_id'))
            WHERE parent IS NOT NULL""",
    ),
    (
        # Vectors are large, and most reads of a memory do not need them: they have a table of their own.
        "CREATE TABLE memory_vectors (num INTEGER PRIMARY KEY, name TEXT NOT NULL, vector BLOB NOT NULL)",
        # Without these, starting a session and adding a memory would slow down as memories are added.
        f"CREATE INDEX memories_text ON memories ({TEXT_SQL})",
        f"CREATE INDEX memories_kind ON memories ({KIND_SQL}) WHERE {KIND_SQL} IS NOT NULL",
    ),
    (
        # The order in which the facts of all sessions were stored. SQLite has one writer at a time, so a reader never
        # sees a position before an earlier one. A deleted session leaves its rows: no position is ever given twice.
        "CREATE TABLE stored_order (position INTEGER PRIMARY KEY, place INTEGER NOT NULL)",
        "INSERT INTO stored_order (place) SELECT place FROM facts ORDER BY place",
        # A trigger keeps an append in mid-run one statement.
        """CREATE TRIGGER facts_stored AFTER INSERT ON facts
            BEGIN INSERT INTO stored_order (place) VALUES (new.place); END""",
    ),
    (
        # The secret key of approvals. Python makes it at its first use: SQLite's random numbers are not for secrets.
        "CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    ),
    (
        # The list of sessions is read by one of these for each status: with the status in front, they serve a query
        # with and without it. An append in mid-run changes none of them. Sessions of stored responses are not listed.
        "CREATE INDEX sessions_by_status ON sessions (status, updated_at) WHERE agent <> 'treadle.responses'",
        """CREATE INDEX sessions_by_workspace ON sessions (workspace, status, updated_at)
            WHERE agent <> 'treadle.responses'""",
        "CREATE INDEX sessions_by_agent ON sessions (agent, status, updated_at)",
        "CREATE INDEX sessions_by_name ON sessions (name) WHERE name <> ''",
        # Names by any three letters that stand together. Every connection that writes has the function `casefold`.
        "CREATE VIRTUAL TABLE names USING fts5 (name, tokenize = 'trigram')",
        "INSERT INTO names (rowid, name) SELECT num, casefold(name) FROM sessions WHERE name <> ''",
        """CREATE TRIGGER session_created AFTER INSERT ON sessions WHEN new.name <> ''
            BEGIN INSERT INTO names (rowid, name) VALUES (new.num, casefold(new.name)); END""",
        """CREATE TRIGGER session_renamed AFTER UPDATE OF name ON sessions WHEN new.name <> old.name
            BEGIN INSERT OR REPLACE INTO names (rowid, name) VALUES (new.num, casefold(new.name)); END""",
        """CREATE TRIGGER session_deleted AFTER DELETE ON sessions
            BEGIN DELETE FROM names WHERE rowid = old.num; END""",
        # All facts up to this position of `stored_order` are in `words`. It replaces the column `indexed` of each
        # session, which only the next statement still reads.
        "CREATE TABLE word_index (position INTEGER NOT NULL)",
        """INSERT INTO word_index SELECT coalesce(
            (SELECT min(position) - 1 FROM stored_order JOIN sessions ON num = place >> 32
                WHERE place & 0xFFFFFFFF > indexed),
            (SELECT max(position) FROM stored_order), 0)""",
    ),
    (
        # Deleted sessions whose words are still in the index. Taking them out is slow, so it is done in steps.
        "CREATE TABLE deleted_sessions (num INTEGER PRIMARY KEY)",
    ),
    (
        "ALTER TABLE sessions ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sessions ADD COLUMN archived INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sessions ADD COLUMN model TEXT NOT NULL DEFAULT ''",
        # The model of a session that was given another one since is known again when it is given one.
        """UPDATE sessions SET model = coalesce((
            SELECT CASE WHEN json_valid(CAST(body AS TEXT)) THEN json_extract(CAST(body AS TEXT), '$.model') END
            FROM facts WHERE place = (num << 32 | 1)), '')""",
        "CREATE INDEX sessions_pinned ON sessions (pinned, updated_at) WHERE pinned = 1",
        "CREATE INDEX sessions_archived ON sessions (archived, updated_at) WHERE archived = 1",
    ),
)


def migrate_tables(db: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Create the tables of a new store, or back up an older one and upgrade it."""
    if read_version(db, path, migrations) == len(migrations):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        # Read again under the lock: another process may have migrated while this one waited.
        version = read_version(db, path, migrations)
        if 0 < version < len(migrations):
            # The copy gets its name only when it is complete.
            backup = path.with_name(f"{path.name}.v{version}.bak")
            partial = backup.with_name(f"{backup.name}.partial")
            partial.unlink(missing_ok=True)
            partial.touch(mode=0o600)
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(partial)) as copy:
                source.backup(copy)
            os.replace(partial, backup)
        for migration in migrations[version:]:
            for statement in migration:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def read_version(db: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> int:
    """Read the store's version, 0 for a new one. Refuse a foreign database and a newer version."""
    # Tables first: if another process has just created them, it has also set the application id.
    tables: int = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application: int = db.execute("PRAGMA application_id").fetchone()[0]
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise StoreDamaged(f"{path} is an SQLite database of another program; it was not changed. Choose another path")
    if version > len(migrations):
        raise StoreTooNew(
            f"{path} has store version {version}, and this treadle knows versions up to "
            f"{len(migrations)}; it was not changed. Upgrade treadle to open it"
        )
    return version
