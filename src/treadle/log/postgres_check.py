"""Looks at a PostgreSQL database without changing anything: whether it can hold a log, and what stands before it."""

from __future__ import annotations

import asyncio
import os
import time

import psycopg
from msgspec import Struct

from treadle.log.postgres_database import CONNECT_SECONDS, OLDEST_SERVER, Database, Row, build_conninfo, is_pooled
from treadle.secrets.store_url import parse_postgres_url

_ABOUT = """SELECT extract(epoch FROM clock_timestamp())::double precision, current_setting('server_version'),
    pg_is_in_recovery(), to_regclass('treadle.versions') IS NOT NULL"""
_CONTENT = """SELECT (SELECT count(*) FROM treadle.sessions WHERE status = 'waiting'),
    (SELECT count(*) FROM treadle.nodes
        WHERE extract(epoch FROM clock_timestamp()) < seen_at + (about ->> 'lease')::double precision)"""


class DatabaseState(Struct, frozen=True):
    """What was found. `clock_ahead` is by how many seconds the clock of the database is ahead of this machine's.

    `can_listen` says whether news of other nodes arrive. `waiting` sessions wait for an answer.
    """

    version: str
    is_new_enough: bool
    is_standby: bool
    has_tables: bool
    is_pooled: bool
    can_listen: bool
    clock_ahead: float
    waiting: int = 0
    nodes: int = 0


async def examine_database(url: str) -> DatabaseState:
    """Connect to a database and look at it. Raises `StoreError` when that is impossible."""
    address = parse_postgres_url(url)
    try:
        async with asyncio.timeout(4 * CONNECT_SECONDS):
            async with await _connect(address.connect) as connection:
                found, pooled = await _read_about(connection), await is_pooled(connection)
                content = await _read_row(connection, _CONTENT) if found[4] else (0, 0)
                version = connection.info.server_version
            return DatabaseState(
                version=str(found[2]).partition(" ")[0],
                is_new_enough=version >= OLDEST_SERVER,
                is_standby=found[3],
                has_tables=found[4],
                is_pooled=pooled,
                can_listen=await _can_listen(address.listen),
                clock_ahead=found[0],
                waiting=content[0],
                nodes=content[1],
            )
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise Database(address, _do_nothing).explain(error) from error


async def _do_nothing() -> None:
    """Stand for what a database does when it is opened. This one never is."""


async def _connect(url: str) -> psycopg.AsyncConnection[Row]:
    connection = await psycopg.AsyncConnection.connect(build_conninfo(url), autocommit=True)
    connection.prepare_threshold = None  # a pooler may stand before the server
    return connection


async def _read_row(connection: psycopg.AsyncConnection[Row], sql: str) -> Row:
    return await (await connection.execute(sql.encode())).fetchone() or ()


async def _read_about(connection: psycopg.AsyncConnection[Row]) -> Row:
    """Read how far the clock is ahead, and after it the time and what else was asked for."""
    began = time.time()
    row = await _read_row(connection, _ABOUT)
    return (row[0] - (began + time.time()) / 2, *row)


async def _can_listen(url: str) -> bool:
    """Whether a connection hears a message that it sends itself. One through a pooler may not."""
    channel = f"treadle_check_{os.urandom(6).hex()}"
    async with await _connect(url) as connection:
        if await is_pooled(connection):
            return False
        await connection.execute(f"LISTEN {channel}".encode())
        await connection.execute(f"NOTIFY {channel}".encode())
        async for _ in connection.notifies(timeout=CONNECT_SECONDS, stop_after=1):
            return True
    return False
