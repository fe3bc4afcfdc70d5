"""What the nodes of a PostgreSQL log know of each other: who is alive, and short-lived values."""

from __future__ import annotations

import asyncio
from builtins import list as List
from collections.abc import Callable
from contextlib import suppress

import msgspec

from treadle.errors import NotFound
from treadle.log.base import Node, SharedValues
from treadle.log.postgres_database import Database

LEAVE_SECONDS = 2.0
"""How long a process that ends waits for the database. It is listed as dead when its lease is over."""
FORGET_SECONDS = 24 * 3600.0
"""How long a node that ended without leaving is listed."""
_NOW = "treadle.now_or(%(now)s::double precision)"
_JOIN = f"""INSERT INTO treadle.nodes (name, about, seen_at) VALUES (%(name)s, %(about)s::jsonb, {_NOW})
    ON CONFLICT (name) DO UPDATE SET about = EXCLUDED.about, seen_at = EXCLUDED.seen_at"""
_LIST = f"""SELECT about, seen_at, is_draining, {_NOW} < seen_at + (about ->> 'lease')::double precision,
        (SELECT count(*) FROM treadle.sessions WHERE owner = nodes.name AND owner <> '')
    FROM treadle.nodes ORDER BY about ->> 'started_at', name"""


class Nodes:
    """The list of nodes. Each one says from time to time that it is alive."""

    def __init__(self, database: Database, clock: Callable[[], float | None]) -> None:
        self._database, self._clock = database, clock
        self._own: Node | None = None

    async def join(self, node: Node) -> None:
        """Add a node that runs in this process, and forget those that ended long ago."""
        values = {"name": node.name, "about": msgspec.json.encode(node).decode(), "now": self._clock()}
        await self._database.execute(_JOIN, values)
        self._own = node
        sql = f"DELETE FROM treadle.nodes WHERE seen_at < {_NOW} - %(age)s"
        await self._database.execute(sql, {"now": self._clock(), "age": FORGET_SECONDS})

    async def beat(self) -> bool:
        """Say that this process is alive. Returns whether it was asked to hand its sessions over."""
        if self._own is None:
            return False
        sql = f"UPDATE treadle.nodes SET seen_at = {_NOW} WHERE name = %(name)s RETURNING is_draining"
        found = await self._database.fetch(sql, {"now": self._clock(), "name": self._own.name})
        if not found:  # it was forgotten, or the database was put back
            await self.join(self._own)
        return bool(found) and found[0][0]

    async def leave(self) -> None:
        """Remove this process from the list, unless the database does not answer soon."""
        if self._own is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    sql = "DELETE FROM treadle.nodes WHERE name = %s"
                    await self._database.execute(sql, (self._own.name,), patience=0)

    async def list(self) -> List[Node]:
        """List all nodes, oldest first."""
        found = await self._database.fetch(_LIST, {"now": self._clock()})
        return [
            msgspec.structs.replace(
                msgspec.convert(about, Node), seen_at=seen_at, is_draining=drains, is_alive=is_alive, sessions=sessions
            )
            for about, seen_at, drains, is_alive, sessions in found
        ]

    async def drain(self, name: str) -> None:
        """Ask a node to hand its sessions over."""
        sql = "UPDATE treadle.nodes SET is_draining = true WHERE name = %s RETURNING name"
        if not await self._database.fetch(sql, (name,)):
            raise NotFound(f"there is no node {name!r}; `treadle nodes` lists them")


class PostgresValues(SharedValues):
    """Values that all nodes see."""

    def __init__(self, database: Database, clock: Callable[[], float | None]) -> None:
        self._database, self._clock = database, clock

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        sql = f"""WITH swept AS (DELETE FROM treadle.shared_values WHERE until < {_NOW} - 3600 AND key <> %(key)s)
            INSERT INTO treadle.shared_values VALUES (%(key)s, %(value)s, {_NOW} + %(seconds)s)
            ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, until = EXCLUDED.until"""
        await self._database.execute(sql, {"key": key, "value": value, "seconds": seconds, "now": self._clock()})

    async def get(self, key: str) -> bytes | None:
        sql = f"SELECT value FROM treadle.shared_values WHERE key = %(key)s AND until > {_NOW}"
        found = await self._database.fetch(sql, {"key": key, "now": self._clock()})
        return found[0][0] if found else None

    async def take(self, key: str) -> bytes | None:
        sql = f"DELETE FROM treadle.shared_values WHERE key = %(key)s RETURNING value, until > {_NOW}"
        found = await self._database.fetch(sql, {"key": key, "now": self._clock()})
        return found[0][0] if found and found[0][1] else None

    async def count(self, key: str, seconds: float) -> int:
        number = "convert_from(v.value, 'UTF8')::integer"
        sql = f"""INSERT INTO treadle.shared_values AS v VALUES (%(key)s, '1', {_NOW} + %(seconds)s)
            ON CONFLICT (key) DO UPDATE SET
                value = CASE WHEN v.until > {_NOW} THEN convert_to(({number} + 1)::text, 'UTF8') ELSE '1' END,
                until = CASE WHEN v.until > {_NOW} THEN v.until ELSE EXCLUDED.until END
            RETURNING {number}"""
        return (await self._database.fetch(sql, {"key": key, "seconds": seconds, "now": self._clock()}))[0][0]

    async def read_count(self, key: str) -> int:
        return int(await self.get(key) or b"0")
