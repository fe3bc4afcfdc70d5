"""One SQLite file on a local disk: opening it, transactions, and errors that tell the user what to do.

It knows nothing of sessions or facts.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from threading import Event
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from treadle.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly
from treadle.log.lock_wait import describe_busy, retry
from treadle.log.schema import APPLICATION_ID, MIGRATIONS, Migration, migrate_tables, read_version

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Durability = Literal["process", "power"]


class LockedFile(Protocol):
    """Something whose methods write to one SQLite file."""

    @property
    def path(self) -> Path: ...

    @property
    def busy_timeout(self) -> float: ...


T = TypeVar("T")
File = TypeVar("File", bound=LockedFile)
Parameters = ParamSpec("Parameters")
Work = Callable[[sqlite3.Connection], T]
Method = Callable[Concatenate[File, Parameters], "CoroutineType[Any, Any, T]"]

SIDE_TIMEOUT = 0.2
"""For how many seconds a side connection waits to write. What it writes can wait."""
MIN_FREE_BYTES = 32 * 1024 * 1024
"""With less room on the disk, the store is said to be full soon."""
FREE_PAGES_KEPT, FREE_PAGES_STEP = 64, 256
"""How many unused pages stay for new facts, and how many are given back in one transaction."""
QUICK_CHECK_BELOW = 32 * 1024 * 1024
NETWORK_FILESYSTEMS = (
    "afs beegfs ceph cifs coda davfs fuse.ceph fuse.davfs2 fuse.gcsfuse fuse.glusterfs fuse.rclone fuse.s3fs "
    "fuse.sshfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 smb2 smb3 smbfs"
)


def retry_while_busy(*, forever: bool = False) -> Callable[[Method[File, Parameters, T]], Method[File, Parameters, T]]:
    """Repeat an async method that writes while another process holds the lock. See `lock_wait.retry`.

    The method decides anew each time, so it awaits nothing between deciding and recording. A call with a `claim` is
    repeated `forever`: it belongs to the work of a session's owner.
    """

    def decorate(method: Method[File, Parameters, T]) -> Method[File, Parameters, T]:
        @wraps(method)
        async def write(file: File, *args: Parameters.args, **kwargs: Parameters.kwargs) -> T:
            try:
                return await method(file, *args, **kwargs)
            except StoreBusy:
                is_owner = forever or kwargs.get("claim") is not None
                attempt = partial(method, file, *args, **kwargs)
                return await retry(attempt, file.path, file.busy_timeout, forever=is_owner)

        return write

    return decorate


class SqliteFile:
    """An open file. Use `with file.transaction as db` to write, and `with file.connection as db` for one statement.

    Both turn SQLite's errors into ours.
    """

    def __init__(
        self,
        path: Path,
        durability: Durability = "process",
        busy_timeout: float = 10.0,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        self.path, self.busy_timeout = path, busy_timeout
        self._pid = os.getpid()
        self._durability: Durability = durability
        _create_file(path)
        self._db: sqlite3.Connection | None = _connect(path, durability, busy_timeout, migrations)
        self._identity = _read_identity(path)
        self.transaction = _Transaction(self)
        self.connection = _Connection(self)

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def get_connection(self) -> sqlite3.Connection:
        """Return the connection. Refuses after `close` and in a forked process."""
        if self._db is None:
            raise StoreError(f"the log {self.path} was closed; open it again to go on")
        if os.getpid() != self._pid:
            raise StoreError(
                f"the log {self.path} was opened before a fork; SQLite connections do not survive one. "
                "Open the log in the child process"
            )
        return self._db

    def connect_again(self) -> sqlite3.Connection:
        """Open a second connection, for one other thread. Its user closes it."""
        db = sqlite3.connect(self.path, timeout=SIDE_TIMEOUT, isolation_level=None, check_same_thread=False)
        _configure(db, self._durability)
        return db

    @retry_while_busy()
    async def write(self, decide: Work[T]) -> T:
        """Run a function in a transaction. It runs again when another process held the lock."""
        with self.transaction as db:
            return decide(db)

    def check_not_moved(self) -> None:
        """Refuse to go on when the file was moved or deleted: later writes would be lost."""
        if _read_identity(self.path) != self._identity:
            raise StoreError(
                f"{self.path} was moved, replaced or deleted while it was open, so nothing more can be "
                "recorded in it. Put the file back and restart"
            )

    async def check_writable(self) -> None:
        """Write something and take it back. Refuse when there is little room left."""
        with self.connection as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            finally:
                db.execute("ROLLBACK")
        disk = os.statvfs(self.path.parent)
        if (free := disk.f_bavail * disk.f_frsize) < MIN_FREE_BYTES:  # what is taken back never reaches the disk
            raise StoreFull(
                f"only {free / 2**20:.1f} MiB are left on the disk of {self.path}. Everything recorded before is safe: "
                "make room before facts are refused"
            )

    def check_integrity(self) -> None:
        """Check the whole file for damage. The time grows with its size."""
        with self.connection as db:
            _check_damage(db, self.path, "integrity_check")

    def close(self) -> None:
        """Close the file. The last process to do so merges the write-ahead log into it."""
        if self._db is not None:
            with self.connection as db:
                self._db = None
                db.close()


class _Connection:
    __slots__ = ("_file",)

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def __enter__(self) -> sqlite3.Connection:
        return self._file.get_connection()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise explain_error(error, self._file.path) from error


class _Transaction(_Connection):
    __slots__ = ()

    def __enter__(self) -> sqlite3.Connection:
        db = self._file.get_connection()
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise explain_error(error, self._file.path) from error
        return db

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        db = self._file.get_connection()
        try:
            if error is None:
                db.execute("COMMIT")
        except sqlite3.Error as failure:
            raise explain_error(failure, self._file.path) from failure
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
        super().__exit__(kind, error, trace)


class SideConnection:
    """A second connection to a file, in a thread of its own: for long reads, and for work in the background.

    The event loop goes on meanwhile, and so do the writes of the log. It runs one function after the other, and the
    first one opens it. Long functions stop soon after `is_closing` is set.
    """

    def __init__(self, file: SqliteFile) -> None:
        self.is_closing = Event()
        self._file = file
        self._db: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._repeated: set[Work[bool]] = set()

    async def run(self, work: Work[T]) -> T:
        """Run a function in the thread and return its result."""
        return await asyncio.wrap_future(self.submit(work))

    def submit(self, work: Work[T]) -> Future[T]:
        """Run a function in the thread. Functions of the thread may add others."""
        self._file.get_connection()  # raises when the file is closed, or was opened before a fork
        if self._thread is None:
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1, "treadle-store")
        return self._thread.submit(self._run, work)

    def repeat(self, step: Work[bool]) -> None:
        """Run a function in the background until it returns False. Others come in between."""
        if step not in self._repeated:
            self._repeated.add(step)
            self._submit_step(step)

    def _submit_step(self, step: Work[bool]) -> None:
        with suppress(StoreError, RuntimeError):  # the log or the process is ending
            self.submit(partial(self._run_step, step))

    def _run_step(self, step: Work[bool], db: sqlite3.Connection) -> None:
        began, has_more = time.monotonic(), False
        try:
            has_more = step(db)
        finally:
            if not has_more:
                self._repeated.discard(step)
        if has_more:
            self.is_closing.wait(time.monotonic() - began)  # others write meanwhile
            self._submit_step(step)

    def _run(self, work: Work[T]) -> T:
        try:
            if self._db is None:
                self._db = self._file.connect_again()
            return work(self._db)
        except sqlite3.Error as error:
            raise explain_error(error, self._file.path) from error

    def close(self) -> None:
        """Stop what runs, drop what waits, and close the connection. Call it before the file is closed."""
        self.is_closing.set()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        if self._db is not None:
            self._db.close()


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


def _read_identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _create_file(path: Path) -> None:
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
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreReadOnly(
                f"{path.parent} cannot be written ({error.strerror}); choose another path for the log"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"no room left on the disk of {path}; make room and open it again") from error
        raise StoreError(f"{path} cannot be created: {error.strerror}; choose another path") from error


def _connect(
    path: Path, durability: Durability, busy_timeout: float, migrations: Sequence[Migration]
) -> sqlite3.Connection:
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
            _configure(db, durability)
            # Begin a write now, so that a read-only file is reported at once and not at the first fact.
            try:
                db.execute("BEGIN IMMEDIATE")
                db.execute("ROLLBACK")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # who writes now lets this process write later
                    raise
            if 0 < size < QUICK_CHECK_BELOW:
                _check_damage(db, path, "quick_check")
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


def _configure(db: sqlite3.Connection, durability: Durability) -> None:
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
    db.execute("PRAGMA wal_autocheckpoint = 2000")
    db.execute("PRAGMA journal_size_limit = 33554432")
    db.execute("PRAGMA cache_size = -500")  # in kB; the system caches the rest
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA secure_delete = ON")  # what is deleted cannot be read from the file
    db.create_function("casefold", 1, str.casefold, deterministic=True)


def give_back_space(db: sqlite3.Connection) -> bool:
    """Give some unused pages back to the disk. True when there are more. An older store needs a `VACUUM` first."""
    if db.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:
        return False
    try:
        if db.execute("PRAGMA freelist_count").fetchone()[0] > FREE_PAGES_KEPT:
            db.execute(f"PRAGMA incremental_vacuum({FREE_PAGES_STEP})").fetchall()
            return True
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # only this makes the file shorter
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
    return False


def _check_damage(db: sqlite3.Connection, path: Path, pragma: str) -> None:
    found: list[str] = [row[0] for row in db.execute(f"PRAGMA {pragma}(5)")]
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
