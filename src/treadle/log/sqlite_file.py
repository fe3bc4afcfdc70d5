"""One SQLite file on a local disk: opening it, transactions, and what its errors mean for the user.

It knows nothing of sessions or facts; that is sqlite.py.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from treadle.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly
from treadle.log.schema import MIGRATIONS, Migration, migrate_tables, read_version

Durability = Literal["process", "power"]

QUICK_CHECK_BELOW = 32 * 1024 * 1024
NETWORK_FILESYSTEMS = (
    "afs beegfs ceph cifs coda davfs fuse.ceph fuse.davfs2 fuse.gcsfuse fuse.glusterfs fuse.rclone fuse.s3fs "
    "fuse.sshfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 smb2 smb3 smbfs"
)


class SqliteFile:
    """An open store. `write` is a transaction, `reading` only explains errors; both give the connection."""

    def __init__(
        self,
        path: Path,
        durability: Durability = "process",
        busy_timeout: float = 10.0,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        self.path = path
        self._pid = os.getpid()
        self._db: sqlite3.Connection | None = _open(path, durability, busy_timeout, migrations)
        self._identity = _identity(path)
        self.transaction = _Write(self)
        self.connection = _Reading(self)

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def get_connection(self) -> sqlite3.Connection:
        """The connection, for this process only and until it is closed."""
        if self._db is None:
            raise StoreError(f"the log {self.path} was closed; open it again to go on")
        if os.getpid() != self._pid:
            raise StoreError(
                f"the log {self.path} was opened before a fork; SQLite connections do not survive one. "
                "Open the log in the child process"
            )
        return self._db

    def check_not_moved(self) -> None:
        """Refuse to go on when the file was moved or deleted: what is written now would be lost."""
        if _identity(self.path) != self._identity:
            raise StoreError(
                f"{self.path} was moved, replaced or deleted while it was open, so nothing more can be "
                "recorded in it. Put the file back and restart"
            )

    def check_integrity(self) -> None:
        """Look through the whole file for damage; takes time in proportion to its size."""
        with self.connection as db:
            _check(db, self.path, "integrity_check")

    def close(self) -> None:
        """Close the file; the last process to do so folds the write-ahead log into it."""
        if self._db is not None:
            with self.connection as db:
                self._db = None
                db.close()

    def explain_error(self, error: sqlite3.Error) -> StoreError:
        """What an SQLite error means for the user."""
        return explain_error(error, self.path)


class _Reading:
    __slots__ = ("_store",)

    def __init__(self, store: SqliteFile) -> None:
        self._store = store

    def __enter__(self) -> sqlite3.Connection:
        return self._store.get_connection()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, sqlite3.Error):
            raise self._store.explain_error(error) from error


class _Write:
    __slots__ = ("_store",)

    def __init__(self, store: SqliteFile) -> None:
        self._store = store

    def __enter__(self) -> sqlite3.Connection:
        db = self._store.get_connection()
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._store.explain_error(error) from error
        return db

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        db = self._store.get_connection()
        try:
            if error is None:
                db.execute("COMMIT")
        except sqlite3.Error as failed:
            raise self._store.explain_error(failed) from failed
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise self._store.explain_error(error) from error


def explain_error(error: sqlite3.Error, path: Path) -> StoreError:
    """What an SQLite error means for the user."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kept = "What was recorded before is safe"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(
            f"{path} was held by other processes for too long; nothing was written. Try again, or find "
            f"the process that holds it ({error})"
        )
    if code == sqlite3.SQLITE_FULL or (code in _MAYBE_FULL and _is_full(path)):
        return StoreFull(f"no room left on the disk of {path}; nothing was written. {kept}: make room and go on")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
        code == sqlite3.SQLITE_CANTOPEN and not _is_writable(path)
    ):
        return StoreReadOnly(
            f"{path} or its folder cannot be written; nothing was written. Change its permissions or "
            "choose another path"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(
            f"{path} is damaged or is not a treadle store ({error}). Do not write to it; restore a backup, "
            "or save what `sqlite3 FILE .recover` still reads"
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return StoreError(f"{path} cannot be used here: a log belongs to the thread that opened it ({error})")
    return StoreError(f"{path} cannot be used: {error}. {kept}")


_MAYBE_FULL = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_full(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < 65536


def _is_writable(path: Path) -> bool:
    return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))


def _open(
    path: Path, durability: Durability, busy_timeout: float, migrations: Sequence[Migration]
) -> sqlite3.Connection:
    _make_file(path)
    size = os.stat(path).st_size
    # Several processes may make the same new store at once. SQLite does not call its busy handler while
    # the journal mode changes, so waiting for that is done here.
    deadline = time.monotonic() + busy_timeout
    while True:
        db = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, cached_statements=64)
        try:
            read_version(db, path, migrations)  # before anything of it is changed
            _configure(db, path, durability)
            if 0 < size < QUICK_CHECK_BELOW:
                _check(db, path, "quick_check")
            migrate_tables(db, path, migrations)
            return db
        except sqlite3.Error as error:
            db.close()
            failed = explain_error(error, path)
            if not isinstance(failed, StoreBusy) or time.monotonic() > deadline:
                raise failed from error
            time.sleep(0.01)
        except BaseException:
            db.close()
            raise


def _make_file(path: Path) -> None:
    """Make a new store private to its user.

    A file that exists is not opened here: closing it again would drop the locks that another connection of
    this process holds on it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_network_filesystem(path)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise StoreError(f"{path} is not a file; choose another path for the log") from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreReadOnly(
                f"{path.parent} cannot be written ({error.strerror}); choose another path for the log"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"no room left on the disk of {path}; make room and open it again") from error
        raise StoreError(f"{path} cannot be made: {error.strerror}; choose another path") from error


def _configure(db: sqlite3.Connection, path: Path, durability: Durability) -> None:
    if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        mode: str = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(f"{path} cannot use a write-ahead log here (mode {mode}); use a local disk")
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
    db.execute("PRAGMA wal_autocheckpoint = 2000")
    db.execute("PRAGMA journal_size_limit = 33554432")
    db.execute("PRAGMA cache_size = -500")  # in kB; what is not in it is in the system's
    db.execute("PRAGMA temp_store = MEMORY")
    # Opens for writing now, so that a file that cannot be written is told at once and not at the first fact.
    db.execute("BEGIN IMMEDIATE")
    db.execute("ROLLBACK")


def _check(db: sqlite3.Connection, path: Path, pragma: str) -> None:
    found: list[str] = [row[0] for row in db.execute(f"PRAGMA {pragma}(5)")]
    if found != ["ok"]:
        raise StoreDamaged(
            f"{path} is damaged ({'; '.join(found)}). Do not write to it; restore a backup, or save what "
            "`sqlite3 FILE .recover` still reads"
        )


def refuse_network_filesystem(path: Path, mounts: Path = Path("/proc/mounts")) -> None:
    """Refuse a file on a network filesystem, where SQLite's write-ahead log loses data."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    folder = path.parent.resolve()
    best, kind = -1, ""
    for fields in (line.split() for line in lines):
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        # `>=`: what was mounted last on the same point is what is seen there.
        if folder.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    if kind in NETWORK_FILESYSTEMS.split():
        raise StoreError(
            f"{path} lies on a network filesystem ({kind}), where SQLite cannot keep facts safe; nothing was "
            "written. Put the log on a local disk"
        )
