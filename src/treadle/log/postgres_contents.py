"""Old file contents in the database of a log, so that every machine that shares it can rewind.

Threads call it, so it has a connection of its own that waits. Each write is one statement: no lock outlives it.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, LiteralString

import psycopg

from treadle.errors import NotFound, StoreAway, StoreDamaged, StoreError
from treadle.history.base import MAX_STORE_BYTES, Contents, SeenFile
from treadle.log.postgres_connect import build_conninfo, shut_down
from treadle.messages import hash_content
from treadle.secrets.store_url import hide_password, parse_postgres_url

CONTENT_TABLES: tuple[LiteralString, ...] = (
    """CREATE TABLE treadle.contents (
        id text PRIMARY KEY,
        used_at float8 NOT NULL,
        size integer NOT NULL,
        data bytea NOT NULL)""",
    "ALTER TABLE treadle.contents ALTER COLUMN data SET STORAGE EXTERNAL",  # it is compressed already
    # What a machine knows of a file by its stamp, which means nothing on another one.
    """CREATE TABLE treadle.seen_files (
        host text NOT NULL,
        workspace text NOT NULL,
        path text NOT NULL,
        stamp text NOT NULL,
        id text NOT NULL,
        seen_at float8 NOT NULL,
        PRIMARY KEY (host, workspace, path))""",
)
_PATIENCE = 20.0
_PAUSE = 0.2
_SEEN_SECONDS = 30 * 86_400.0

_NOW: LiteralString = "extract(epoch FROM clock_timestamp())"
_TOUCH: LiteralString = f"UPDATE treadle.contents SET used_at = {_NOW} WHERE id = ANY(%s) RETURNING id"
_PUT: LiteralString = f"""INSERT INTO treadle.contents (id, used_at, size, data)
    SELECT id, {_NOW}, octet_length(data), data FROM unnest(%s::text[], %s::bytea[]) AS added (id, data)
    ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at"""
# A content may have been deleted since it was seen. Then the file is read again.
_LOAD_SEEN: LiteralString = """SELECT path, stamp, id FROM treadle.seen_files AS seen
    JOIN treadle.contents USING (id) WHERE host = %s AND workspace = %s"""
_SAVE_SEEN: LiteralString = f"""INSERT INTO treadle.seen_files (host, workspace, path, stamp, id, seen_at)
    SELECT %s, %s, path, stamp, id, {_NOW} FROM unnest(%s::text[], %s::text[], %s::text[]) AS found (path, stamp, id)
    ON CONFLICT (host, workspace, path) DO UPDATE
        SET stamp = excluded.stamp, id = excluded.id, seen_at = excluded.seen_at"""
_FORGET_SEEN: LiteralString = """DELETE FROM treadle.seen_files
    WHERE host = %s AND workspace = %s AND path = ANY(%s)"""
_FORGET_OLD: LiteralString = f"DELETE FROM treadle.seen_files WHERE seen_at < {_NOW} - %s"
# Of several nodes that start at once, one deletes. The lock ends with the statement.
_DELETE_OLDER_HALF: LiteralString = """DELETE FROM treadle.contents WHERE id IN (
    SELECT id FROM treadle.contents WHERE pg_try_advisory_xact_lock(7237481234) ORDER BY used_at, id
        LIMIT (SELECT CASE WHEN sum(size) > %s THEN count(*) / 2 ELSE 0 END FROM treadle.contents))"""


class PostgresContents(Contents):
    """Contents in the tables of a log on PostgreSQL. It connects at first use."""

    def __init__(self, url: str, host: str = "") -> None:
        self._url, self._host = parse_postgres_url(url), host or socket.gethostname()
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._is_closed = False

    def put(self, *contents: bytes) -> list[str]:
        names = [hash_content(content) for content in contents]
        by_name = dict(zip(names, contents, strict=True))

        def store(db: psycopg.Connection[tuple[Any, ...]]) -> None:
            stored = {name for (name,) in db.execute(_TOUCH, (list(by_name),))}
            new = [name for name in by_name if name not in stored]
            if new:
                db.execute(_PUT, (new, [zlib.compress(by_name[name], 1) for name in new]), binary=True)

        if by_name:
            self._run(store)
        return names

    def get(self, name: str) -> bytes:
        rows = self._fetch("SELECT data FROM treadle.contents WHERE id = %s", (name,))
        if not rows:
            raise NotFound(f"the old content {name[:12]} is not in the store; that file cannot be restored")
        try:
            content = zlib.decompress(rows[0][0])
        except zlib.error:
            content = b""
        if hash_content(content) != name:
            raise StoreDamaged(f"the old content {name[:12]} in the store is damaged; that file was not changed")
        return content

    def drop(self, name: str) -> None:
        self._run(lambda db: db.execute("DELETE FROM treadle.contents WHERE id = %s", (name,)))

    def load_seen(self, workspace: str) -> dict[str, SeenFile]:
        rows = self._fetch(_LOAD_SEEN, (self._host, workspace))
        return {path: SeenFile(stamp, name) for path, stamp, name in rows}

    def save_seen(self, workspace: str, found: Mapping[str, SeenFile], gone: Iterable[str]) -> None:
        columns = list(found), [seen.stamp for seen in found.values()], [seen.id for seen in found.values()]

        def store(db: psycopg.Connection[tuple[Any, ...]]) -> None:
            db.execute(_FORGET_SEEN, (self._host, workspace, list(gone)))
            db.execute(_SAVE_SEEN, (self._host, workspace, *columns))

        self._run(store)

    def close(self) -> None:
        """Close the connection. A thread that waits for the database gives up, and nobody waits for that thread."""
        self._is_closed, connection = True, self._connection
        if self._lock.acquire(blocking=False):
            self._disconnect()
            self._lock.release()
        elif connection is not None:
            shut_down(connection)

    def _fetch(self, sql: LiteralString, values: Sequence[object]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        self._run(lambda db: rows.extend(db.execute(sql, values, binary=True)))
        return rows

    def _run(self, work: Callable[[psycopg.Connection[tuple[Any, ...]]], object]) -> None:
        """Run statements that may be repeated, and repeat them while the database is away."""
        until = time.monotonic() + _PATIENCE
        with self._lock:
            while True:
                if self._is_closed:
                    raise StoreError("this store was closed; make a new one")
                try:
                    if self._connection is None:
                        self._connection = self._connect()
                    work(self._connection)
                except psycopg.Error as error:
                    is_away = self._connection is None or self._connection.broken or self._connection.closed
                    is_away |= isinstance(error, psycopg.errors.ReadOnlySqlTransaction)  # it has become a standby
                    self._disconnect()
                    if not is_away or time.monotonic() > until:
                        raise self._explain(error, is_away=is_away) from None
                    time.sleep(_PAUSE)
                else:
                    if self._is_closed:
                        self._disconnect()
                    return

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        # A pooler may give every statement another connection, so none is prepared.
        db = psycopg.connect(build_conninfo(self._url.connect), autocommit=True, prepare_threshold=None)
        try:
            db.execute(_FORGET_OLD, (_SEEN_SECONDS,))
            db.execute(_DELETE_OLDER_HALF, (MAX_STORE_BYTES,))
        except psycopg.Error:
            db.close()
            raise
        return db

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _explain(self, error: psycopg.Error, *, is_away: bool) -> StoreError:
        text = hide_password(str(error).strip().partition("\n")[0]) or type(error).__name__
        if self._url.password:
            text = text.replace(self._url.password, "***")
        kind = StoreAway if is_away else StoreError
        return kind(f"old contents cannot be stored in {self._url.shown} ({text}), so no file was changed")
