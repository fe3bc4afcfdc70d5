"""Old file contents in one SQLite database, in a folder outside every workspace.

The log, not this store, knows which call changed which file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from treadle.errors import NotFound, StoreDamaged, StoreError
from treadle.history.base import MAX_STORE_BYTES, Contents, SeenFile
from treadle.messages import hash_content
from treadle.permissions.paths import find_data_folder

MAX_KEPT_BYTES = 10 * 1024 * 1024
"""Bytes of the largest file that is stored."""

_BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS contents (id TEXT PRIMARY KEY, at REAL NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS seen (
    workspace TEXT, path TEXT, stamp TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (workspace, path)
) WITHOUT ROWID;
"""


class ContentStore(Contents):
    """Contents on this machine. The database is created at first use."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else find_data_folder() / "kept"
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def put(self, *contents: bytes) -> list[str]:
        hashed = [(hash_content(content), content) for content in contents]
        with self._open() as db:
            for name, content in hashed:
                if not db.execute("UPDATE contents SET at = ? WHERE id = ?", (time.time(), name)).rowcount:
                    row = (name, time.time(), zlib.compress(content, 1))
                    db.execute("INSERT INTO contents VALUES (?, ?, ?)", row)
        return [name for name, _ in hashed]

    def get(self, name: str) -> bytes:
        with self._open() as db:
            row = db.execute("SELECT data FROM contents WHERE id = ?", (name,)).fetchone()
        if row is None:
            raise NotFound(f"the old content {name[:12]} is not in {self.folder}; that file cannot be restored")
        try:
            content = zlib.decompress(row[0])
        except zlib.error:
            content = b""
        if hash_content(content) != name:
            raise StoreDamaged(f"the old content {name[:12]} in {self.folder} is damaged; that file was not changed")
        return content

    def drop(self, name: str) -> None:
        with self._open() as db:
            db.execute("DELETE FROM contents WHERE id = ?", (name,))

    def load_seen(self, workspace: str) -> dict[str, SeenFile]:
        with self._open() as db:
            rows = db.execute("SELECT path, stamp, id FROM seen WHERE workspace = ?", (workspace,))
            return {path: SeenFile(stamp, name) for path, stamp, name in rows}

    def save_seen(self, workspace: str, found: Mapping[str, SeenFile], gone: Iterable[str]) -> None:
        with self._open() as db:
            db.executemany("DELETE FROM seen WHERE workspace = ? AND path = ?", ((workspace, path) for path in gone))
            db.executemany(
                "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)",
                ((workspace, path, seen.stamp, seen.id) for path, seen in found.items()),
            )

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        """Hold the lock and a transaction, and explain errors."""
        with self._lock:
            try:
                if self._db is None:
                    self._db = self._connect()
                with self._db as db:
                    yield db
            except (sqlite3.Error, OSError) as error:
                raise StoreError(
                    f"old contents cannot be stored in {self.folder} ({error}), so no file was changed. Make room "
                    "there, or choose another folder with TREADLE_DATA_DIR"
                ) from None

    def _connect(self) -> sqlite3.Connection:
        path = self.folder / "kept.db"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # like the log: a kill loses nothing, a power cut the last moments
        db.executescript(_SCHEMA)
        if path.stat().st_size > MAX_STORE_BYTES:
            # The older half goes, and that files were seen to hold it, so that it is stored again when needed.
            with db:
                (count,) = db.execute("SELECT count(*) FROM contents").fetchone()
                oldest = "SELECT rowid FROM contents ORDER BY at LIMIT ?"
                db.execute(f"DELETE FROM contents WHERE rowid IN ({oldest})", (count // 2,))
                db.execute("DELETE FROM seen WHERE id NOT IN (SELECT id FROM contents)")
            db.execute("PRAGMA incremental_vacuum")
        weakref.finalize(self, db.close)
        return db
