"""Copying sessions from and to the file of an SQLite log, as `session_copy` describes it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from treadle.errors import NotFound, StoreDamaged, StoreError
from treadle.history.base import Contents
from treadle.log import records
from treadle.log.base import Artifact
from treadle.log.owner import is_gone
from treadle.log.session_copy import (
    PIECE_BYTES,
    PIECE_FACTS,
    SESSIONS_AT_ONCE,
    Publication,
    SessionRecord,
    StoredKey,
    StoreReader,
    StoreWriter,
)
from treadle.log.sqlite_file import SqliteFile, give_back_space
from treadle.memory.store import SqliteMemories

_MEMORIES_VERSION, _SECRETS_VERSION = 2, 5
"""From which version on a store has these tables."""
_INFO_COLUMNS = 18

# Made for a copy and dropped at its end. Facts without their session must not lie in the order of all facts.
_INCOMING = (
    """CREATE TABLE IF NOT EXISTS incoming (
        source TEXT NOT NULL, id TEXT NOT NULL, num INTEGER NOT NULL, PRIMARY KEY (source, id)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS incoming_facts (
        session INTEGER NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (session, seq))""",
)


def identify_file(path: Path) -> str:
    """Identify a file, whatever name leads to it."""
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}"


class SqliteReader(StoreReader):
    """Reads the file at `path`. `contents` are the old contents of files on this machine."""

    has_contents = False

    def __init__(self, path: Path, contents: Contents, *, read_only: bool = True) -> None:
        self.name, self._path, self._contents = str(path), path, contents
        self._file = SqliteFile(path, read_only=read_only)
        self.identity = identify_file(path)
        with self._file.connection as db:
            self._version: int = db.execute("PRAGMA user_version").fetchone()[0]
            if not self._version:
                self._file.close()
                raise NotFound(f"there is no store in {path}: it is empty")
            self._columns = f"{records.build_info_columns(db)}, epoch, lease"
        self.memories = SqliteMemories(self._file, time.time) if self._version >= _MEMORIES_VERSION else None

    async def iterate_sessions(self) -> AsyncGenerator[SessionRecord]:
        last = 0
        while True:
            with self._file.connection as db:
                sql = f"SELECT {self._columns} FROM sessions WHERE num > ? ORDER BY num LIMIT ?"
                found = [_build_record(row) for row in db.execute(sql, (last, SESSIONS_AT_ONCE))]
            for record in found:
                yield record
            if not found:
                return
            last = found[-1].num

    async def get_session(self, session_id: str) -> SessionRecord | None:
        with self._file.connection as db:
            row = db.execute(f"SELECT {self._columns} FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return None if row is None else _build_record(row)

    async def read_bodies(self, num: int, after: int, until: int) -> AsyncGenerator[list[bytes]]:
        base = num << 32
        sql = (
            f"SELECT place & {records.SEQ_MASK}, body FROM facts WHERE place > ? AND place <= ? ORDER BY place LIMIT ?"
        )
        while bodies := self._read_piece(sql, base + after, base + until, after):
            yield bodies
            after += len(bodies)
            await asyncio.sleep(0)

    def _read_piece(self, sql: str, start: int, end: int, after: int) -> list[bytes]:
        bodies, size = list[bytes](), 0
        with self._file.connection as db:
            for seq, body in db.execute(sql, (start, end, PIECE_FACTS)):
                if seq != after + len(bodies) + 1 or size >= PIECE_BYTES:
                    break
                bodies.append(body)
                size += len(body)
        return bodies

    async def read_keys(self, num: int) -> list[StoredKey]:
        with self._file.connection as db:
            rows = db.execute("SELECT key, first, last FROM keys WHERE session = ? ORDER BY first, key", (num,))
            return [StoredKey(*row) for row in rows]

    async def list_artifacts(self, num: int) -> list[str]:
        with self._file.connection as db:
            return [row[0] for row in db.execute("SELECT id FROM artifacts WHERE session = ? ORDER BY id", (num,))]

    async def read_artifact(self, num: int, artifact_id: str) -> Artifact | None:
        with self._file.connection as db:
            sql = "SELECT media_type, data FROM artifacts WHERE session = ? AND id = ?"
            row = db.execute(sql, (num, artifact_id)).fetchone()
        return None if row is None else Artifact(artifact_id, *row)

    async def read_content(self, name: str) -> bytes | None:
        try:
            return await asyncio.to_thread(self._contents.get, name)
        except (NotFound, StoreDamaged):
            return None

    async def read_approval_key(self) -> bytes | None:
        if self._version < _SECRETS_VERSION:
            return None
        with self._file.connection as db:
            row = db.execute("SELECT value FROM secrets WHERE name = 'approvals'").fetchone()
        return None if row is None else row[0]

    async def close(self) -> None:
        self._contents.close()
        self._file.close()


class SqliteWriter(SqliteReader, StoreWriter):
    """Writes into the file at `path`, which is created when it is missing."""

    def __init__(self, path: Path, contents: Contents) -> None:
        super().__init__(path, contents, read_only=False)
        self._has_incoming = self._find_incoming()

    def _find_incoming(self) -> bool:
        with self._file.connection as db:
            return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'incoming_facts'").fetchone() is not None

    async def begin(self, source: str, session_id: str, num: int | None) -> int:
        def begin(db: sqlite3.Connection) -> int:
            for statement in _INCOMING:
                db.execute(statement)
            found = db.execute("SELECT num FROM incoming WHERE source = ? AND id = ?", (source, session_id)).fetchone()
            if found is not None:
                return found[0]
            new = num
            if new is None:  # the number that the next session would get is never given again
                if not db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'sessions'").rowcount:
                    db.execute("INSERT INTO sqlite_sequence VALUES ('sessions', 1)")
                new = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'sessions'").fetchone()[0]
            db.execute("INSERT INTO incoming VALUES (?, ?, ?)", (source, session_id, new))
            return new

        number = await self._file.write(begin)
        self._has_incoming = True
        return number

    async def find_begun(self, source: str, session_id: str) -> int | None:
        if not self._has_incoming:
            return None
        with self._file.connection as db:
            row = db.execute("SELECT num FROM incoming WHERE source = ? AND id = ?", (source, session_id)).fetchone()
        return None if row is None else row[0]

    async def find_last_incoming(self, num: int) -> int:
        with self._file.connection as db:
            sql = "SELECT coalesce(max(seq), 0) FROM incoming_facts WHERE session = ?"
            return db.execute(sql, (num,)).fetchone()[0]

    async def read_incoming(self, num: int, after: int, until: int) -> AsyncGenerator[list[bytes]]:
        sql = f"""SELECT seq, body FROM incoming_facts WHERE session = {num} AND seq > ? AND seq <= ?
            ORDER BY seq LIMIT ?"""
        while bodies := self._read_piece(sql, after, until, after):
            yield bodies
            after += len(bodies)
            await asyncio.sleep(0)

    async def add_incoming(self, num: int, after: int, bodies: Sequence[bytes]) -> None:
        rows = [(num, seq, body) for seq, body in enumerate(bodies, after + 1)]
        await self._file.write(lambda db: db.executemany("INSERT OR IGNORE INTO incoming_facts VALUES (?, ?, ?)", rows))

    async def discard(self, source: str, session_id: str) -> None:
        num = await self.find_begun(source, session_id)
        if num is not None:
            await self._file.write(lambda db: _delete_incoming(db, num))

    async def put_artifact(self, num: int, artifact: Artifact) -> None:
        row = (num, artifact.id, artifact.media_type, artifact.data)
        await self._file.write(lambda db: db.execute("INSERT OR IGNORE INTO artifacts VALUES (?, ?, ?, ?)", row))

    async def put_content(self, data: bytes) -> None:
        await asyncio.to_thread(self._contents.put, data)

    async def publish(self, publication: Publication) -> bool:
        return await self._file.write(lambda db: self._publish(db, publication))

    def _publish(self, db: sqlite3.Connection, new: Publication) -> bool:
        info, num = new.record.info, new.num
        row = db.execute(
            f"SELECT num, {records.HEAD_SQL}, owner, lease FROM sessions WHERE id = ?", (info.id,)
        ).fetchone()
        if (row is not None) != bool(new.after):
            return False
        if row is not None:
            is_held = row[2] and row[3] > time.time() and not is_gone(row[2])
            if is_held or row[:2] != (num, new.after):
                return False
        else:
            num = records.insert_session(db, info, named_by_user=info.named_by_user, number=num)
        assert num is not None
        base = num << 32
        if new.bodies:
            rows = [(base + seq, body) for seq, body in enumerate(new.bodies, new.after + 1)]
            added = db.executemany("INSERT INTO facts VALUES (?, ?)", rows).rowcount
        else:
            added = 0
            for start in range(new.after, info.seq, PIECE_FACTS):  # SQLite notes in memory what one statement changed
                values = (base, num, start, min(start + PIECE_FACTS, info.seq))
                added += db.execute(
                    """INSERT INTO facts SELECT ? + seq, body FROM incoming_facts
                        WHERE session = ? AND seq > ? AND seq <= ? ORDER BY seq""",
                    values,
                ).rowcount
            _delete_incoming(db, num)
        if added != info.seq - new.after:
            raise StoreError(f"{self.name}: session {info.id} would have {new.after + added} of its {info.seq} facts")
        db.execute(
            """UPDATE sessions SET agent = ?, name = ?, named_by_user = ?, status = ?, turns = ?, cost = ?,
                updated_at = ?, pinned = ?, archived = ?, model = ?, wake_at = ?, owner = '', lease = 0,
                epoch = max(epoch, ?) WHERE num = ?""",
            (
                *(info.agent, info.name, info.named_by_user, info.status, info.turns, info.cost, info.updated_at),
                *(info.pinned, info.archived, info.model, new.wake_at, new.record.epoch, num),
            ),
        )
        keys = [(num, key.key, key.first, key.last) for key in new.keys]
        db.executemany("INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?)", keys)
        return True

    async def set_approval_key(self, key: bytes) -> None:
        sql = """INSERT INTO secrets VALUES ('approvals', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value
            WHERE NOT EXISTS (SELECT 1 FROM sessions)"""
        await self._file.write(lambda db: db.execute(sql, (key,)))

    async def end(self, source: str) -> None:
        if not self._has_incoming:
            return

        def end(db: sqlite3.Connection) -> None:
            for (num,) in db.execute("SELECT num FROM incoming WHERE source = ?", (source,)).fetchall():
                _delete_incoming(db, num)
            if db.execute("SELECT 1 FROM incoming").fetchone() is None:
                db.execute("DROP TABLE incoming_facts")
                db.execute("DROP TABLE incoming")

        await self._file.write(end)
        self._has_incoming = self._find_incoming()
        has_more = True
        while has_more:
            with self._file.connection as db:
                has_more = give_back_space(db)


def _build_record(row: Sequence[object]) -> SessionRecord:
    info = records.build_session_info(row[:_INFO_COLUMNS])
    num, epoch, lease = msgspec.convert((row[13], *row[_INFO_COLUMNS:]), tuple[int, int, float], strict=False)
    is_held = bool(info.owner) and lease > time.time() and not is_gone(info.owner)
    return SessionRecord(num, info, epoch, lease, is_held)


def _delete_incoming(db: sqlite3.Connection, num: int) -> None:
    db.execute("DELETE FROM incoming_facts WHERE session = ?", (num,))
    db.execute("DELETE FROM incoming WHERE num = ?", (num,))
    db.execute("DELETE FROM artifacts WHERE session = ?1 AND ?1 NOT IN (SELECT num FROM sessions)", (num,))
