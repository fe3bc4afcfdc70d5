"""A PostgreSQL database that is in use: connections, repeated attempts, and what its errors mean.

Every call runs one statement, which the server commits by itself: a process that is frozen or cut off holds no lock.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg_errors
from psycopg.abc import Params

from treadle.errors import StoreAway, StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly, StoreTooNew
from treadle.log.postgres_binary import BinaryConnection
from treadle.log.postgres_connect import CONNECT_SECONDS, build_conninfo, shut_down
from treadle.log.postgres_rows import clean_values
from treadle.log.postgres_schema import migrate
from treadle.secrets.store_url import HIDDEN, PostgresUrl, hide_password

OLDEST_SERVER = 150000
POOL_SIZE = 8
PATIENCE = 2.5
"""For how many seconds a statement is repeated while the database is away, unless the caller has more patience."""
STATEMENT_SECONDS = 30.0
"""After so many seconds without an answer a connection counts as dead."""
STUCK_SECONDS = 4.0
"""The same, while no new connection can be made either."""
PAUSE = 0.2
"""Between two attempts."""
_UNREACHABLE = (
    psycopg.InterfaceError,
    pg_errors.ConnectionException,
    pg_errors.AdminShutdown,
    pg_errors.CrashShutdown,
    pg_errors.CannotConnectNow,
    pg_errors.ProtocolViolation,  # from a pooler that cannot reach the server
)
_TRY_AGAIN = (
    *_UNREACHABLE,
    pg_errors.IdleSessionTimeout,
    pg_errors.DeadlockDetected,
    pg_errors.SerializationFailure,
    pg_errors.LockNotAvailable,
    pg_errors.TooManyConnections,
    pg_errors.ReadOnlySqlTransaction,  # the server has become a standby
)
_OTHER_TABLES = (
    pg_errors.UndefinedTable,
    pg_errors.UndefinedColumn,
    pg_errors.UndefinedFunction,
    pg_errors.InvalidSchemaName,
)
# libpq gives no code for an error of a connection that is being made, and the server may speak another language.
_REFUSED = re.compile(
    r"FATAL: +(?:(?P<database>database \".*\" does not exist)|password authentication failed|no pg_hba\.conf entry"
    r"|role \".*\" (?:does not exist|is not permitted to log in))"
)
Row = tuple[Any, ...]
Result = TypeVar("Result")


async def is_pooled(connection: psycopg.AsyncConnection[Row]) -> bool:
    """Whether a pooler stands before the server: it makes up the process that it names to its clients."""
    row = await (await connection.execute("SELECT pg_backend_pid()", prepare=False)).fetchone()
    return row is not None and row[0] != connection.info.backend_pid


class Connections:
    """Up to `size` connections to one address, which are opened when they are needed."""

    def __init__(self, url: str, size: int) -> None:
        self._conninfo, self.size = build_conninfo(url), size
        self.is_pooled: bool | None = None
        """Whether a pooler stood before the server when the last connection was made. None before the first one."""
        self._free: list[BinaryConnection] = []
        self._used: dict[BinaryConnection, float] = {}
        self._slots = asyncio.Semaphore(size)
        self._is_closed = False

    @property
    def used(self) -> int:
        """How many connections are at work."""
        return len(self._used)

    @asynccontextmanager
    async def borrow(self) -> AsyncGenerator[BinaryConnection]:
        """Borrow a connection. One that failed, or whose work was cancelled, is closed."""
        async with self._slots:
            connection = self._free.pop() if self._free else await self._connect()
            self._used[connection] = time.monotonic()
            is_whole = False
            try:
                yield connection
                is_whole = True
            except psycopg.Error as error:
                is_whole = not isinstance(error, _TRY_AGAIN) and not connection.broken
                raise
            finally:
                del self._used[connection]
                if is_whole and not connection.closed and not self._is_closed:
                    self._free.append(connection)
                else:
                    await _close_quietly(connection)

    def cut(self) -> None:
        """Shut all connections down."""
        for connection in (*self._used, *self._free):
            shut_down(connection)

    def cut_stuck(self) -> None:
        """Shut those down that have been at work for long. The others may still get their answer."""
        late = time.monotonic() - STUCK_SECONDS
        for connection in [one for one, since in self._used.items() if since < late]:
            shut_down(connection)

    async def close(self) -> None:
        """Close the connections. Those at work are shut down: nobody waits for their answers any more."""
        self._is_closed = True
        for connection in self._used:
            shut_down(connection)
        while self._free:
            await _close_quietly(self._free.pop())

    async def _connect(self) -> BinaryConnection:
        async with asyncio.timeout(4 * CONNECT_SECONDS):  # of several hosts, the first may be dead
            connection = await BinaryConnection.connect(self._conninfo, autocommit=True)
        # A pooler that has no connection left accepts a client, and answers it when there is one.
        timer = asyncio.get_running_loop().call_later(CONNECT_SECONDS, shut_down, connection)
        try:
            self.is_pooled = await is_pooled(connection)
            if self.is_pooled:
                connection.prepare_threshold = None
        except BaseException:
            await _close_quietly(connection)
            raise
        finally:
            timer.cancel()
        return connection


class Database:
    """The database of a store: a few connections for everything, one for the owner's writes, and one for renewals."""

    def __init__(self, url: PostgresUrl, on_open: Callable[[], Awaitable[None]]) -> None:
        self.url, self._on_open = url, on_open
        self._is_open, self._opening = False, asyncio.Lock()
        self.pool = Connections(url.connect, POOL_SIZE)
        self.writer = Connections(url.connect, 1)
        self.renewer = Connections(url.connect, 1)
        self.waiting = 0
        self.losses = 0
        """How often a statement was repeated because nobody knows whether it was done."""
        self.away_since: float | None = None
        self.interruptions = 0
        """How often the database could not be used."""
        self.is_closed = False

    async def open(self) -> None:
        """Connect, and bring the tables up to date, if this was not done before."""
        if not self._is_open:
            await self.fetch("SELECT 1")

    async def _prepare(self) -> None:
        async with self._opening:
            if self._is_open:
                return
            async with self.pool.borrow() as connection:
                if connection.info.server_version < OLDEST_SERVER:
                    version = connection.info.server_version // 10000
                    raise StoreError(f"{self.url.shown} has version {version}; treadle needs PostgreSQL 15 or newer")
                encoding = connection.info.parameter_status("server_encoding")
                if encoding != "UTF8":  # others refuse letters, or change them
                    raise StoreError(
                        f"{self.url.shown} stores text as {encoding}; treadle needs UTF8. Create a database with "
                        "`createdb --encoding=UTF8 --template=template0`"
                    )
                isolation = await (await connection.execute("SHOW default_transaction_isolation")).fetchone()
                if isolation != ("read committed",):  # with another one, watches miss facts
                    raise StoreError(
                        f"{self.url.shown} has default_transaction_isolation = {isolation and isolation[0]!r}; treadle "
                        "needs 'read committed'. Set it for the user of treadle with ALTER ROLE"
                    )
                await migrate(connection, self.url.shown)
            self._is_open = True
        await self._on_open()

    async def fetch(self, sql: str, params: Params | None = None, *, patience: float | None = PATIENCE) -> list[Row]:
        """Run one statement and return its rows. While the database is away, it is repeated as long as `patience` says.

        Without a limit it is repeated until it is done. Then a `StoreAway` says that it may or may not have been done.
        """
        values = None if params is None else clean_values(params)

        async def run(connection: BinaryConnection) -> list[Row]:
            cursor = await connection.cursor(binary=True).execute(sql.encode(), values)
            return await cursor.fetchall() if cursor.description is not None else []

        return await self._repeat(run, self.pool, patience)

    async def execute(self, sql: str, params: Params | None = None, *, patience: float | None = PATIENCE) -> None:
        """Run one statement that returns nothing. For the rest see `fetch`."""
        await self.fetch(sql, params, patience=patience)

    async def run(
        self, sql: bytes, values: Sequence[bytes | None], *, through: Connections, patience: float | None = PATIENCE
    ) -> list[bytes]:
        """Run one statement in binary form. For the rest see `fetch`."""
        return await self._repeat(lambda connection: connection.run(sql, values), through, patience)

    async def _repeat(
        self, run: Callable[[BinaryConnection], Awaitable[Result]], through: Connections, patience: float | None
    ) -> Result:
        began, attempt = time.monotonic(), 0
        while True:
            if self.is_closed:
                raise StoreError("this log was closed; make a new one")
            attempt += 1
            try:
                if not self._is_open:
                    await self._prepare()
                result = await self._run(run, through)
            except (psycopg.Error, OSError, TimeoutError) as error:
                explained = self.explain(error)
                if isinstance(error, (*_UNREACHABLE, OSError, TimeoutError)) or _has_no_state(error):
                    self._cut_stuck()
                is_over = patience is not None and time.monotonic() - began + PAUSE > patience
                if is_over or not isinstance(explained, StoreAway | StoreFull):
                    raise explained from error
                if isinstance(explained, StoreFull) and patience is not None:
                    raise explained from error
                self.losses += 1
                await asyncio.sleep(min(PAUSE * attempt, 1.0))
            else:
                self.away_since = None
                return result

    async def _run(self, run: Callable[[BinaryConnection], Awaitable[Result]], through: Connections) -> Result:
        self.waiting += 1
        try:
            async with through.borrow() as connection:
                timer = asyncio.get_running_loop().call_later(STATEMENT_SECONDS, through.cut)
                try:
                    return await run(connection)
                finally:
                    timer.cancel()
        finally:
            self.waiting -= 1

    def measure(self) -> dict[str, float]:
        """Count the connections at work, and the statements that wait for one."""
        used = self.pool.used + self.writer.used + self.renewer.used
        return {"connections_used": used, "statements_waiting": max(0, self.waiting - used)}

    def _cut_stuck(self) -> None:
        """Give up connections that do not answer, because the database cannot be reached."""
        for connections in (self.pool, self.writer, self.renewer):
            connections.cut_stuck()

    def cut(self) -> None:
        """Shut all connections down, because the database does not answer. The next statements connect anew."""
        for connections in (self.pool, self.writer, self.renewer):
            connections.cut()

    async def close(self) -> None:
        """Close all connections."""
        self.is_closed = True
        for connections in (self.pool, self.writer, self.renewer):
            await connections.close()

    def explain(self, error: Exception) -> StoreError:
        """Turn an error of the database into one that tells the user what it means and what to do."""
        where, text = self.url.shown, self._read_first_line(error)
        if isinstance(error, pg_errors.DiskFull):
            return StoreFull(
                f"no room left on the disk of {where}; nothing was written. Everything recorded before is safe: make "
                "room and go on"
            )
        refused = _REFUSED.search(text) if _has_no_state(error) else None
        is_refused = refused is not None and refused["database"] is None
        if is_refused or isinstance(error, pg_errors.InvalidPassword | pg_errors.InvalidAuthorizationSpecification):
            return StoreError(f"{where} refuses the user: {text}. Check the user and the password (PGPASSFILE)")
        if refused is not None or isinstance(error, pg_errors.InvalidCatalogName):
            return StoreError(f"{where}: {text}. Create the database with `createdb`, or name another one")
        if isinstance(error, _OTHER_TABLES):
            return StoreTooNew(
                f"{where} has not the tables that this treadle uses: {text}. A newer treadle has changed them, or "
                "somebody dropped them. Nothing was written. Upgrade treadle"
            )
        if isinstance(error, pg_errors.InsufficientPrivilege):
            return StoreReadOnly(f"{where}: {text}. Give the user the rights to create and use the schema treadle")
        if isinstance(error, pg_errors.DataCorrupted | pg_errors.IndexCorrupted):
            return StoreDamaged(f"{where} is damaged: {text}. Restore a backup")
        if isinstance(error, (*_TRY_AGAIN, OSError, TimeoutError)) or _has_no_state(error):
            self.away_since = self.away_since or time.monotonic()
            self.interruptions += 1
            return StoreAway(f"{where} cannot be used now: {text or type(error).__name__}. Try again")
        if isinstance(error, pg_errors.QueryCanceled):
            return StoreBusy(f"{where} stopped a statement: {text}. Try again")
        return StoreError(f"{where} cannot be used: {text}. Everything recorded before is safe")

    def _read_first_line(self, error: Exception) -> str:
        """Return the first line of a message, without a password."""
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "").removesuffix(".")
        return hide_password(line.replace(self.url.password, HIDDEN) if self.url.password else line)


def _has_no_state(error: Exception) -> bool:
    """Whether the error is about the connection, and not the answer of the server to a statement."""
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None


async def _close_quietly(connection: psycopg.AsyncConnection[Row]) -> None:
    with suppress(psycopg.Error, OSError):
        await connection.close()
