"""One SQLite file that is in use: transactions, whether it is still unharmed, and a second connection beside the loop.

It knows nothing of sessions or facts.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from threading import Event
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from treadle.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly
from treadle.log.lock_wait import retry
from treadle.log.schema import APPLICATION_ID, MIGRATIONS, Migration, read_version
from treadle.log.sqlite_open import (
    Durability,
    add_functions,
    check_damage,
    configure,
    connect,
    create_file,
    explain_error,
)

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


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

FREE_PAGES_KEPT, FREE_PAGES_STEP = 64, 256
"""How many unused pages stay for new facts, and how many are given back in one transaction."""
CHECK_SECONDS = 0.05
"""How often single writes look whether the file is unharmed. It costs 2 µs. A transaction always looks."""
SIDE_TIMEOUT = 0.2
"""For how many seconds a side connection waits to write. What it writes can wait."""
_HEADER = struct.Struct(">16sH6xII36xI28x")
"""The first 100 bytes of a file: what it is, page size, change counter, number of pages, application."""
MIN_FREE_BYTES = 32 * 1024 * 1024
"""With less room on the disk, the store is said to be full soon."""


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
    """An open file. Use `with file.connection as db` to read, `with file.single_write as db` for one statement that
    writes, and `with file.transaction as db` for several.

    All turn SQLite's errors into ours. Those that write first look whether the file is unharmed. With `read_only`
    nothing is changed, and a store of an older version stays one.
    """

    def __init__(
        self,
        path: Path,
        durability: Durability = "process",
        busy_timeout: float = 10.0,
        migrations: Sequence[Migration] = MIGRATIONS,
        *,
        read_only: bool = False,
    ) -> None:
        self.path, self.busy_timeout, self.is_read_only = path, busy_timeout, read_only
        self._pid = os.getpid()
        self._durability: Durability = durability
        self._db: sqlite3.Connection | None = None
        self._guard: _Guard | None = None
        if read_only:
            self._db = self._connect_read_only()
        else:
            create_file(path)
            self._db = connect(path, durability, busy_timeout, migrations)
            self._guard = _Guard(path)
        self.transaction = _Transaction(self)
        self.single_write = _SingleWrite(self)
        self.connection = _Connection(self)

    @property
    def is_open(self) -> bool:
        return self._db is not None

    @property
    def is_damaged(self) -> bool:
        return self._guard is None or bool(self._guard.damage)

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
        if self.is_read_only:
            return self._connect_read_only()
        db = sqlite3.connect(self.path, timeout=SIDE_TIMEOUT, isolation_level=None, check_same_thread=False)
        configure(db, self._durability)
        return db

    def _connect_read_only(self) -> sqlite3.Connection:
        from treadle.log.read_only import connect_read_only

        try:
            db = connect_read_only(self.path)
            read_version(db, self.path, MIGRATIONS)
        except sqlite3.Error as error:
            raise explain_error(error, self.path) from error
        add_functions(db)
        return db

    @retry_while_busy()
    async def write(self, decide: Work[T]) -> T:
        """Run a function in a transaction. It runs again when another process held the lock."""
        with self.transaction as db:
            return decide(db)

    def check_unharmed(self, *, thorough: bool = False) -> None:
        """Refuse to write when the file was moved, cut off or overwritten: later writes would be lost, or do more harm.

        What can still be read is read. `thorough` also finds that a folder above the file was moved.
        """
        self.get_connection()
        if self._guard is None:
            raise StoreReadOnly(f"{self.path} cannot be written, and was opened for reading only; nothing was written")
        self._guard.check(thorough=thorough)

    def note_error(self, error: sqlite3.Error) -> StoreError:
        """Explain an error. After one that shows damage, nothing more is written."""
        explained = explain_error(error, self.path)
        if isinstance(explained, StoreDamaged) and self._guard is not None:
            self._guard.damage = self._guard.damage or str(explained)
        return explained

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
            check_damage(db, self.path, "integrity_check")

    def close(self) -> None:
        """Close the file. The last process to do so merges the write-ahead log into it."""
        if self._db is not None:
            with self.connection as db:
                self._db = None
                db.close()
            if self._guard is not None:
                self._guard.close()


class _Guard:
    """Notices that the file of an open store was moved, cut off or overwritten by something else than SQLite.

    It compares the size and the time of the last change, which is one quick system call, and only when they differ the
    header. In WAL mode both change with a checkpoint, never with an append. The change counter in the header never goes
    back, and only a vacuum makes the file shorter, which first writes the new number of pages.
    """

    _open: ClassVar[dict[tuple[int, int], list[int]]] = {}
    """The descriptor of each file, and how many guards share it. Closing one drops SQLite's locks of this process."""

    def __init__(self, path: Path) -> None:
        self._path, self.damage = path, ""
        found = os.stat(path)
        self._identity = found.st_dev, found.st_ino
        shared = self._open.setdefault(self._identity, [-1, 0])
        if not shared[1]:
            shared[0] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        shared[1] += 1
        self._descriptor = shared[0]
        self._size, self._changed = found.st_size, found.st_ctime_ns
        self._header = os.pread(self._descriptor, _HEADER.size, 0)

    def check(self, *, thorough: bool = False) -> None:
        """Raise `StoreError` when the file was moved, and `StoreDamaged` from the first damage on.

        `thorough` also finds that a folder above it was moved.
        """
        if self.damage:
            raise StoreDamaged(self.damage)
        found = os.fstat(self._descriptor)
        if found.st_size == self._size and found.st_ctime_ns == self._changed and not thorough:
            return
        self._check_path()
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if problem := self._find_problem(header, found.st_size):
            self.damage = (
                f"{self._path} was {problem} while it was open. Nothing more is written to it; what can still be read "
                "is shown. Stop all processes that use it, then restore a backup or run `treadle store recover`"
            )
            raise StoreDamaged(self.damage)
        self._size, self._changed, self._header = found.st_size, found.st_ctime_ns, header

    def _check_path(self) -> None:
        with suppress(OSError):
            found = os.stat(self._path)
            if (found.st_dev, found.st_ino) == self._identity:
                return
        raise StoreError(
            f"{self._path} was moved, replaced or deleted while it was open, so nothing more can be "
            "recorded in it. Put the file back and restart"
        )

    def _find_problem(self, header: bytes, size: int) -> str:
        if len(header) < _HEADER.size:
            return f"cut off after {size} bytes"
        magic, page_size, counter, pages, application = _HEADER.unpack(header)
        before = _HEADER.unpack(self._header)
        if (magic, page_size) != before[:2] or (application != before[4] and application != APPLICATION_ID):
            return "overwritten"
        if counter < before[2]:
            return "replaced by an older copy of itself"
        # A checkpoint writes the new number of pages first, and the pages that make the file longer after it.
        pages *= 65536 if page_size == 1 else page_size
        return f"cut off after {size} of {pages} bytes" if size < min(self._size, pages) else ""

    def close(self) -> None:
        shared = self._open[self._identity]
        shared[1] -= 1
        if not shared[1]:
            os.close(shared[0])
            del self._open[self._identity]


class _Connection:
    __slots__ = ("_file",)

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def __enter__(self) -> sqlite3.Connection:
        return self._file.get_connection()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise self._file.note_error(error) from error


class _SingleWrite(_Connection):
    __slots__ = ("_next_check",)

    def __init__(self, file: SqliteFile) -> None:
        super().__init__(file)
        self._next_check = 0.0

    def __enter__(self) -> sqlite3.Connection:
        # An append goes to the write-ahead log first, so it does no harm if it comes a moment before the check.
        if time.monotonic() >= self._next_check or self._file.is_damaged:
            self._file.check_unharmed()
            self._next_check = time.monotonic() + CHECK_SECONDS
        return self._file.get_connection()


class _Transaction(_Connection):
    __slots__ = ()

    def __enter__(self) -> sqlite3.Connection:
        self._file.check_unharmed()
        db = self._file.get_connection()
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._file.note_error(error) from error
        return db

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        db = self._file.get_connection()
        try:
            if error is None:
                db.execute("COMMIT")
        except sqlite3.Error as failure:
            raise self._file.note_error(failure) from failure
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
