"""Copying sessions from and to a PostgreSQL log, as `session_copy` describes it. Each write is one statement."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.errors import NotFound, StoreError, StoreTooNew
from treadle.log.base import Artifact
from treadle.log.postgres_database import Database
from treadle.log.postgres_rows import INFO_COLUMNS, build_info, clean_key, clean_text, clean_value
from treadle.log.postgres_schema import MIGRATIONS
from treadle.log.session_copy import (
    PIECE_BYTES,
    PIECE_FACTS,
    SESSIONS_AT_ONCE,
    Publication,
    SessionRecord,
    StoredKey,
    StoreReader,
    StoreWriter,
    set_seq,
)
from treadle.memory.postgres_memories import PostgresMemories
from treadle.messages import hash_content
from treadle.secrets.store_url import parse_postgres_url

PATIENCE = 30.0
"""For how many seconds a copy waits for a database that went away meanwhile."""
_FACTS_A_SECOND = 1000
"""How many facts a slow database shows in a second. A statement that takes too long for its connection goes on."""
_COLUMNS = f"{INFO_COLUMNS}, epoch, lease, owner <> '' AND lease > treadle.now_or(NULL), min_reader"
_INFO_COLUMNS = 18
_READ = """SELECT body FROM (
        SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before,
            row_number() OVER (ORDER BY seq) AS place
        FROM {table} WHERE session = %s AND seq > %s AND seq <= %s ORDER BY seq LIMIT %s) AS piece
    WHERE before < %s AND seq = %s + place ORDER BY seq"""
# A post without a key gets one of its own, so that a repeated attempt stores it once. Nobody asks for it later.
_OWN_KEY = re.compile(r"post [0-9a-f]{24}")
_PUBLISH = "SELECT treadle.publish_session(%s::jsonb, %s::bigint, %s::integer, %s::bytea[], %s::jsonb)"
_SET_KEY = """INSERT INTO treadle.secrets VALUES ('approvals', %s) ON CONFLICT (name) DO UPDATE
    SET value = excluded.value WHERE NOT EXISTS (SELECT FROM treadle.sessions)"""
_BEGIN = """INSERT INTO treadle.incoming (source, id, num)
    VALUES (%s, %s, coalesce(%s::bigint, nextval(pg_get_serial_sequence('treadle.sessions', 'num'))))
    ON CONFLICT DO NOTHING"""
_ADD = """INSERT INTO treadle.incoming_facts (session, seq, body)
    SELECT %s::bigint, %s::integer + place::integer, body
    FROM unnest(%s::bytea[]) WITH ORDINALITY AS new (body, place) ON CONFLICT DO NOTHING"""
_DISCARD = """WITH gone AS (DELETE FROM treadle.incoming WHERE source = %s AND (id = %s OR %s) RETURNING num),
    facts AS (DELETE FROM treadle.incoming_facts WHERE session IN (SELECT num FROM gone))
    DELETE FROM treadle.artifacts WHERE session IN (SELECT num FROM gone)
        AND session NOT IN (SELECT num FROM treadle.sessions)"""


class _SourceDatabase(Database):
    """The database of a store that is only read. Its tables are not brought up to date."""

    async def _prepare(self) -> None:
        async with self._opening:
            if self._is_open:
                return
            async with self.pool.borrow() as connection:
                cursor = await connection.execute("SELECT to_regclass('treadle.versions') IS NOT NULL")
                if await cursor.fetchone() != (True,):
                    raise NotFound(f"there is no store in {self.url.shown}")
                cursor = await connection.execute("SELECT max(oldest_node) FROM treadle.versions")
                row = await cursor.fetchone()
                if row is not None and row[0] > len(MIGRATIONS):
                    raise StoreTooNew(
                        f"{self.url.shown} was written by a newer treadle; nothing was copied. Upgrade treadle"
                    )
            self._is_open = True


async def _do_nothing() -> None:
    pass


class PostgresReader(StoreReader):
    """Reads the database at `url`. Call `open` first."""

    has_contents = True

    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        self._url, self._patience = parse_postgres_url(url), patience
        self.name, self.identity = self._url.shown, ""
        self._database = self._build_database()
        self.memories = PostgresMemories(self._database, time.time)

    def _build_database(self) -> Database:
        return _SourceDatabase(self._url, on_open=_do_nothing)

    async def open(self) -> None:
        """Connect. Raises `NotFound` when there is no store in the database."""
        try:
            await self._database.open()
            sql = """SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database())
                FROM pg_control_system()"""
            ((system, database),) = await self._fetch(sql)
        except BaseException:
            await self._database.close()
            raise
        self.identity = f"postgresql:{system}/{database}"

    async def _fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await self._database.fetch(sql, params, patience=self._patience)

    async def iterate_sessions(self) -> AsyncGenerator[SessionRecord]:
        last = 0
        sql = f"SELECT {_COLUMNS} FROM treadle.sessions WHERE num > %s ORDER BY num LIMIT %s"
        while rows := await self._fetch(sql, (last, SESSIONS_AT_ONCE)):
            for row in rows:
                yield _build_record(row)
            last = rows[-1][13]

    async def get_session(self, session_id: str) -> SessionRecord | None:
        rows = await self._fetch(f"SELECT {_COLUMNS} FROM treadle.sessions WHERE id = %s", (session_id,))
        return _build_record(rows[0]) if rows else None

    def read_bodies(self, num: int, after: int, until: int) -> AsyncGenerator[list[bytes]]:
        return self._read_pieces("treadle.facts", num, after, until)

    async def _read_pieces(self, table: str, num: int, after: int, until: int) -> AsyncGenerator[list[bytes]]:
        sql = _READ.format(table=table)
        while after < until:
            rows = await self._fetch(sql, (num, after, until, PIECE_FACTS, PIECE_BYTES, after))
            if not rows:
                return
            yield [set_seq(body, seq) for seq, (body,) in enumerate(rows, after + 1)]
            after += len(rows)

    async def read_keys(self, num: int) -> list[StoredKey]:
        rows = await self._fetch(
            "SELECT key, first, last FROM treadle.keys WHERE session = %s ORDER BY first, key", (num,)
        )
        return [StoredKey(*row) for row in rows if not _OWN_KEY.fullmatch(row[0])]

    async def list_artifacts(self, num: int) -> list[str]:
        rows = await self._fetch('SELECT id FROM treadle.artifacts WHERE session = %s ORDER BY id COLLATE "C"', (num,))
        return [row[0] for row in rows]

    async def read_artifact(self, num: int, artifact_id: str) -> Artifact | None:
        sql = "SELECT media_type, data FROM treadle.artifacts WHERE session = %s AND id = %s"
        rows = await self._fetch(sql, (num, artifact_id))
        return Artifact(artifact_id, *rows[0]) if rows else None

    async def read_content(self, name: str) -> bytes | None:
        rows = await self._fetch("SELECT data FROM treadle.contents WHERE id = %s", (name,))
        try:
            content = zlib.decompress(rows[0][0]) if rows else None
        except zlib.error:
            return None
        return content if content is not None and hash_content(content) == name else None

    async def read_approval_key(self) -> bytes | None:
        rows = await self._fetch("SELECT value FROM treadle.secrets WHERE name = 'approvals'")
        return bytes(rows[0][0]) if rows else None

    async def close(self) -> None:
        await self._database.close()


class PostgresWriter(PostgresReader, StoreWriter):
    """Writes into the database at `url`. The tables are created when they are missing."""

    def _build_database(self) -> Database:
        return Database(self._url, on_open=_do_nothing)

    async def begin(self, source: str, session_id: str, num: int | None) -> int:
        await self._fetch(_BEGIN, (source, session_id, num))
        begun = await self.find_begun(source, session_id)
        if begun is None:
            raise StoreError(f"another copy to {self.name} ended at the same time; start this one again")
        return begun

    async def find_begun(self, source: str, session_id: str) -> int | None:
        rows = await self._fetch("SELECT num FROM treadle.incoming WHERE source = %s AND id = %s", (source, session_id))
        return rows[0][0] if rows else None

    async def find_last_incoming(self, num: int) -> int:
        sql = "SELECT coalesce(max(seq), 0) FROM treadle.incoming_facts WHERE session = %s"
        return (await self._fetch(sql, (num,)))[0][0]

    def read_incoming(self, num: int, after: int, until: int) -> AsyncGenerator[list[bytes]]:
        return self._read_pieces("treadle.incoming_facts", num, after, until)

    async def add_incoming(self, num: int, after: int, bodies: Sequence[bytes]) -> None:
        await self._fetch(_ADD, (num, after, list(bodies)))

    async def discard(self, source: str, session_id: str) -> None:
        await self._fetch(_DISCARD, (source, session_id, False))

    async def put_artifact(self, num: int, artifact: Artifact) -> None:
        sql = """INSERT INTO treadle.artifacts (session, id, media_type, data) VALUES (%s, %s, %s, %s)
            ON CONFLICT DO NOTHING"""
        await self._fetch(sql, (num, artifact.id, artifact.media_type, artifact.data))

    async def put_content(self, data: bytes) -> None:
        sql = """INSERT INTO treadle.contents (id, used_at, size, data)
            VALUES (%s, extract(epoch FROM clock_timestamp()), %s, %s)
            ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at"""
        packed = zlib.compress(data, 1)
        await self._fetch(sql, (hash_content(data), len(packed), packed))

    async def publish(self, publication: Publication) -> bool:
        keys = msgspec.json.encode([replace(key, key=clean_key(key.key)) for key in publication.keys]).decode()
        values = (_write_entry(publication), publication.num, publication.after, list(publication.bodies), keys)
        patience = self._patience + (publication.record.head - publication.after) / _FACTS_A_SECOND
        return (await self._database.fetch(_PUBLISH, values, patience=patience))[0][0] is not None

    async def set_approval_key(self, key: bytes) -> None:
        await self._fetch(_SET_KEY, (key,))

    async def end(self, source: str) -> None:
        await self._fetch(_DISCARD, (source, "", True))


def _build_record(row: Sequence[Any]) -> SessionRecord:
    epoch, lease, is_held, min_reader = row[_INFO_COLUMNS:]
    return SessionRecord(row[13], build_info(row[:_INFO_COLUMNS]), epoch, lease, is_held, min_reader)


def _write_entry(new: Publication) -> str:
    """Write the entry of a session as JSON, with all columns but its number."""
    info = new.record.info
    fields = (field for field in info.__struct_fields__ if field != "seq")
    entry: dict[str, object] = {field: clean_value(getattr(info, field)) for field in fields}
    name = clean_text(info.name)
    entry |= {"name": name, "folded_name": name.casefold(), "head": info.seq, "owner": "", "lease": 0}
    entry |= {"wake_at": new.wake_at, "epoch": new.record.epoch, "min_reader": new.min_reader}
    return msgspec.json.encode(entry).decode()
