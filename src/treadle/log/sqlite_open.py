"""Opening an SQLite file as a store: a new or an existing one, on a local disk; and what SQLite's errors mean."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from treadle.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly
from treadle.log.lock_wait import describe_busy
from treadle.log.schema import Migration, migrate_tables, read_version

Durability = Literal["process", "power"]

QUICK_CHECK_BELOW = 32 * 1024 * 1024
NETWORK_FILESYSTEMS = (
    "afs beegfs ceph cifs coda davfs fuse.ceph fuse.davfs2 fuse.gcsfuse fuse.glusterfs fuse.rclone fuse.s3fs "
    "fuse.sshfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 smb2 smb3 smbfs"
)


def explain_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Turn an SQLite error into one that tells the user what it means and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(f"{path} is being written by another process; nothing was written. Try again ({error})")
    is_full = code == sqlite3.SQLITE_FULL
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        with suppress(OSError):
            disk = os.statvfs(path.parent)
            is_full = disk.f_bavail * disk.f_frsize < 65536
    if is_full:
        return StoreFull(
            f"no room left on the disk of {path}; nothing was written. Everything recorded before is safe: make room "
            "and go on"
        )
    is_writable = os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (code == sqlite3.SQLITE_CANTOPEN and not is_writable):
        return StoreReadOnly(
            f"{path} or its folder cannot be written; nothing was written. Change its permissions or "
            "choose another path"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(
            f"{path} is damaged or is not a treadle store ({error}). Do not write to it; restore a backup, "
            "or save what is still readable with `treadle store recover`"
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return StoreError(f"{path} cannot be used here: a log belongs to the thread that opened it ({error})")
    return StoreError(f"{path} cannot be used: {error}. Everything recorded before is safe")


def create_file(path: Path) -> None:
    """Create a new store that only its user may read.

    An existing file is not opened here: closing it again would drop the locks that another connection of this process
    holds on it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_network_filesystem(path)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise StoreError(f"{path} is not a file; choose another path for the log") from None
        if not os.access(path, os.W_OK):  # SQLite would open it, and refuse only the first write
            raise StoreReadOnly(f"{path} cannot be written; change its permissions or choose another path") from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreReadOnly(
                f"{path.parent} cannot be written ({error.strerror}); choose another path for the log"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"no room left on the disk of {path}; make room and open it again") from error
        raise StoreError(f"{path} cannot be created: {error.strerror}; choose another path") from error


def connect(
    path: Path, durability: Durability, busy_timeout: float, migrations: Sequence[Migration]
) -> sqlite3.Connection:
    """Open a connection that can write, and bring the tables up to date. Waits while others do the same."""
    size = os.stat(path).st_size
    # SQLite itself never waits for a lock, because that would block the event loop. While it opens, this loop waits:
    # several processes may create or upgrade the same store at once.
    deadline = time.monotonic() + busy_timeout
    while True:
        db = sqlite3.connect(path, timeout=0, isolation_level=None, cached_statements=64)
        try:
            read_version(db, path, migrations)  # before anything in it is changed
            if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only a new store takes this
                mode: str = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                if mode != "wal":
                    raise StoreError(f"{path} cannot use a write-ahead log here (mode {mode}); use a local disk")
            configure(db, durability)
            # Begin a write now, so that a read-only file is reported at once and not at the first fact.
            try:
                db.execute("BEGIN IMMEDIATE")
                db.execute("ROLLBACK")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # who writes now lets this process write later
                    raise
            if 0 < size < QUICK_CHECK_BELOW:
                check_damage(db, path, "quick_check")
            migrate_tables(db, path, migrations)
            return db
        except sqlite3.Error as error:
            db.close()
            explained = explain_error(error, path)
            if isinstance(explained, StoreBusy) and time.monotonic() > deadline:
                raise describe_busy(path, busy_timeout) from error
            if not isinstance(explained, StoreBusy):
                raise explained from error
            time.sleep(0.01)
        except BaseException:
            db.close()
            raise


def configure(db: sqlite3.Connection, durability: Durability) -> None:
    """Set the options of a connection that can write, and add the functions that the tables need."""
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
    db.execute("PRAGMA wal_autocheckpoint = 2000")
    db.execute("PRAGMA journal_size_limit = 33554432")
    db.execute("PRAGMA cache_size = -500")  # in kB; the system caches the rest
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA secure_delete = ON")  # what is deleted cannot be read from the file
    add_functions(db)


def add_functions(db: sqlite3.Connection) -> None:
    """Add the functions that queries and triggers of the tables use."""
    db.create_function("casefold", 1, str.casefold, deterministic=True)


def check_damage(db: sqlite3.Connection, path: Path, pragma: str) -> None:
    """Raise `StoreDamaged` when SQLite finds an error in the structures of the file."""
    found: list[str] = [line for (text,) in db.execute(f"PRAGMA {pragma}(5)") for line in text.splitlines()]
    if found != ["ok"]:
        raise StoreDamaged(
            f"{path} is damaged ({'; '.join(found)}). Do not write to it; restore a backup, or save what "
            "is still readable with `treadle store recover`"
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
        # `>=`: of several mounts on the same point, the last one is visible.
        if folder.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    if kind in NETWORK_FILESYSTEMS.split():
        raise StoreError(
            f"{path} lies on a network filesystem ({kind}), where SQLite cannot keep facts safe; nothing was "
            "written. Put the log on a local disk"
        )
