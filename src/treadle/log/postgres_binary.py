"""Statements whose values and results are sent in binary form as they are: how a node makes its most frequent writes.

The driver's own cursors and lists cost a node twice as much for each append.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection, InterfaceError, errors, pq

_HEAD = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i")
_OUTCOME = struct.Struct(">20xiqiqiqiq")
_NULL = b"\xff\xff\xff\xff"
_BYTEA, _INT8, _INT4, _TEXT, _FLOAT8, _JSONB = 17, 20, 23, 25, 701, 3802
"""Numbers of types. They are the same in every server."""


class BinaryConnection(AsyncConnection[tuple[Any, ...]]):
    """A connection that can also run statements in binary form. It prepares each of them once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._statements: dict[bytes, bytes] = {}

    async def run(self, sql: bytes, values: Sequence[bytes | None]) -> list[bytes]:
        """Run a statement with `$1` for its first value. Returns the first column of its rows.

        It returns when the server has committed. When it is cancelled, nobody knows what became of the statement, and
        the connection must be closed.
        """
        forms = (pq.Format.BINARY,) * len(values)
        if self.prepare_threshold is None:  # a pooler may give every statement another connection to the server
            self.pgconn.send_query_params(sql, values, None, forms, pq.Format.BINARY)
        else:
            name = self._statements.get(sql)
            if name is None:
                name = b"treadle_%d" % len(self._statements)
                self.pgconn.send_prepare(name, sql)
                await self._receive()
                self._statements[sql] = name
            self.pgconn.send_query_prepared(name, values, forms, pq.Format.BINARY)
        result = await self._receive()
        return [result.get_value(row, 0) or b"" for row in range(result.ntuples)]

    async def wait_for_notes(self) -> list[str]:
        """Wait for messages of NOTIFY, and return what they say."""
        connection, notes = self.pgconn, list[str]()
        loop, number = asyncio.get_running_loop(), connection.socket
        has_some = loop.create_future()

        def read() -> None:
            try:
                connection.consume_input()
                while (note := connection.notifies()) is not None:
                    notes.append(note.extra.decode())
                if notes and not has_some.done():
                    has_some.set_result(None)
            except errors.Error as error:
                if not has_some.done():
                    has_some.set_exception(error)

        loop.add_reader(number, read)
        try:
            await has_some
        finally:
            loop.remove_reader(number)
        return notes

    async def _receive(self) -> pq.abc.PGresult:
        """Send what is left, and wait until the server is ready again: an error may come after the rows."""
        connection, results = self.pgconn, list[pq.abc.PGresult]()
        loop, number = asyncio.get_running_loop(), connection.socket
        is_ready = loop.create_future()

        def read() -> None:
            try:
                connection.consume_input()
                while not is_ready.done() and not connection.is_busy():
                    if (result := connection.get_result()) is None:
                        is_ready.set_result(None)
                    else:
                        results.append(result)
            except errors.Error as error:
                if not is_ready.done():
                    is_ready.set_exception(error)

        def write() -> None:
            try:
                if not connection.flush():
                    loop.remove_writer(number)
            except errors.Error as error:
                if not is_ready.done():
                    is_ready.set_exception(error)

        loop.add_reader(number, read)
        try:
            if connection.flush():
                loop.add_writer(number, write)
            await is_ready
        finally:
            loop.remove_reader(number)
            loop.remove_writer(number)
        for result in results:
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise errors.error_from_result(result, encoding="utf-8")
        if not results:
            raise InterfaceError("the server gave no result")
        return results[-1]


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────


def pack_double(value: float | None) -> bytes | None:
    """Pack a value of type double precision."""
    return None if value is None else struct.pack(">d", value)


def pack_int4(values: Sequence[int]) -> bytes:
    """Pack an array of type integer[]."""
    return _pack_numbers(_INT4, "ii", 4, values)


def pack_int8(values: Sequence[int]) -> bytes:
    """Pack an array of type bigint[]."""
    return _pack_numbers(_INT8, "iq", 8, values)


def pack_doubles(values: Sequence[float]) -> bytes:
    """Pack an array of type double precision[]."""
    return _pack_numbers(_FLOAT8, "id", 8, values)


def pack_texts(values: Sequence[str]) -> bytes:
    """Pack an array of type text[]."""
    return _pack_parts(_TEXT, [value.encode() for value in values])


def pack_jsons(values: Sequence[str | None]) -> bytes:
    """Pack an array of type jsonb[]."""
    return _pack_parts(_JSONB, [None if value is None else b"\x01" + value.encode() for value in values])


def pack_bytes(values: Sequence[bytes]) -> bytes:
    """Pack an array of type bytea[]."""
    return _pack_parts(_BYTEA, values)


def unpack_int8(data: bytes) -> tuple[int, int, int, int]:
    """Unpack an array of type bigint[] with four elements."""
    _, first, _, second, _, third, _, fourth = _OUTCOME.unpack(data)
    return first, second, third, fourth


def unpack_bool(data: bytes) -> bool:
    """Unpack a value of type boolean."""
    return data == b"\x01"


def _pack_numbers(kind: int, form: str, size: int, values: Sequence[float]) -> bytes:
    count = len(values)
    head = _HEAD.pack(1, 0, kind, count, 1)
    return head + struct.pack(">" + form * count, *(part for value in values for part in (size, value)))


def _pack_parts(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_HEAD.pack(1, None in values, kind, len(values), 1)]
    for value in values:
        parts += (_NULL,) if value is None else (_LENGTH.pack(len(value)), value)
    return b"".join(parts)
