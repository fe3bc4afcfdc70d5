"""Old contents of files, kept by what they hold, so that what a call changed can be taken back.

One database in a folder outside every workspace. What belongs to which call is in the log, not here.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from treadle.errors import NotFound, StoreDamaged, StoreError

MAX_KEPT_BYTES = 10 * 1024 * 1024
"""Bytes of the largest file that is kept."""

MAX_STORE_BYTES = 4 * 1024**3
"""How large the store may grow; past it, what has not been used for longest is forgotten at the next start."""

_BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS contents (id TEXT PRIMARY KEY, at REAL NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS seen (
    workspace TEXT, path TEXT, stamp TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (workspace, path)
) WITHOUT ROWID;
"""


def hash_content(data: bytes) -> str:
    """The name of a content."""
    return hashlib.sha256(data).hexdigest()


def find_default_folder() -> Path:
    """Where contents are kept unless somebody says otherwise: in the folder of the user's data."""
    if chosen := os.environ.get("TREADLE_DATA_DIR"):
        return Path(chosen).expanduser() / "kept"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "treadle" / "kept"


class SeenFile(Struct, frozen=True):
    """A file as a snapshot found it: `stamp` changes when the file does, `id` is what it held."""

    stamp: str
    id: str


class ContentStore:
    """Contents by their digest. Safe to use from several threads and processes; made when it is first used."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else find_default_folder()
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None

    def put(self, *contents: bytes) -> list[str]:
        """Keep contents, all of them or none; the same content is kept once. Their names, in order."""
        named = [(hash_content(content), content) for content in contents]
        with self._lock:
            try:
                with self._database() as db:
                    db.executemany(
                        "INSERT INTO contents VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET at = excluded.at",
                        ((name, time.time(), zlib.compress(content, 1)) for name, content in named),
                    )
            except sqlite3.Error as error:
                raise self._unusable(error) from None
        return [name for name, _ in named]

    def get(self, name: str) -> bytes:
        """The content of that name; raises `NotFound`."""
        with self._lock:
            try:
                row = self._database().execute("SELECT data FROM contents WHERE id = ?", (name,)).fetchone()
            except sqlite3.Error as error:
                raise self._unusable(error) from None
        if row is None:
            raise NotFound(f"the old content {name[:12]} is not in {self.folder}; that file cannot be brought back")
        try:
            content = zlib.decompress(row[0])
        except zlib.error:
            content = b""
        if hash_content(content) != name:
            raise StoreDamaged(f"the old content {name[:12]} in {self.folder} is damaged; that file is left as it is")
        return content

    def drop(self, name: str) -> None:
        """Forget a content that nothing refers to any more."""
        with self._lock:
            try:
                with self._database() as db:
                    db.execute("DELETE FROM contents WHERE id = ?", (name,))
            except sqlite3.Error as error:
                raise self._unusable(error) from None

    def load_seen(self, workspace: str) -> dict[str, SeenFile]:
        """What the last snapshot of a workspace found, so that unchanged files are not read again."""
        with self._lock:
            try:
                rows = self._database().execute("SELECT path, stamp, id FROM seen WHERE workspace = ?", (workspace,))
                return {path: SeenFile(stamp, name) for path, stamp, name in rows}
            except sqlite3.Error as error:
                raise self._unusable(error) from None

    def save_seen(self, workspace: str, found: Mapping[str, SeenFile], gone: Iterable[str]) -> None:
        """Remember what a snapshot found."""
        with self._lock:
            try:
                with self._database() as db:
                    db.executemany(
                        "DELETE FROM seen WHERE workspace = ? AND path = ?", ((workspace, path) for path in gone)
                    )
                    db.executemany(
                        "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)",
                        ((workspace, path, seen.stamp, seen.id) for path, seen in found.items()),
                    )
            except sqlite3.Error as error:
                raise self._unusable(error) from None

    def close(self) -> None:
        """Let go of the database; the next use opens it again."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _database(self) -> sqlite3.Connection:
        if self._opened is None:
            path = self.folder / "kept.db"
            try:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise self._unusable(error) from None
            db = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")  # as the log: a kill loses nothing, a power cut the last moments
            db.executescript(_SCHEMA)
            if path.stat().st_size > MAX_STORE_BYTES:
                _forget_oldest(db)
            weakref.finalize(self, db.close)
            self._opened = db
        return self._opened

    def _unusable(self, error: Exception) -> StoreError:
        return StoreError(
            f"old contents cannot be kept in {self.folder} ({error}), so no file was changed. Make room there, or "
            "choose another folder with TREADLE_DATA_DIR"
        )


def _forget_oldest(db: sqlite3.Connection) -> None:
    """Forget half of what is kept, and that files were seen to hold it, so that it is kept again when it is needed."""
    with db:
        (count,) = db.execute("SELECT count(*) FROM contents").fetchone()
        oldest = "SELECT rowid FROM contents ORDER BY at LIMIT ?"
        db.execute(f"DELETE FROM contents WHERE rowid IN ({oldest})", (count // 2,))
        db.execute("DELETE FROM seen WHERE id NOT IN (SELECT id FROM contents)")
    db.execute("PRAGMA incremental_vacuum")
