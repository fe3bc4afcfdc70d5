"""The writes of owners in a PostgreSQL log: appends and renewals that are made at the same time share one statement.

So a busy node makes few commits, and each write is still refused or stored by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from treadle.log import postgres_binary as binary
from treadle.log.base import Claim
from treadle.log.postgres_database import Database
from treadle.log.records import build_claim_lost

CANCEL_SECONDS = 5.0
"""How long a write goes on for a caller that was cancelled."""
MAX_ITEMS, MAX_BYTES = 200, 4 * 1024 * 1024
"""How much goes into one statement."""
STORED, REPEATED, REFUSED = 0, 1, 2
"""What became of an append."""
_APPEND = b"""SELECT treadle.append_facts($1::bigint[], $2::bigint[], $3::text[], $4::integer[], $5::integer[],
    $6::jsonb[], $7::bytea[])"""
_RENEW = b"""SELECT treadle.renew_claims($1::bigint[], $2::bigint[], $3::text[], $4::double precision[],
    $5::double precision)"""

Item = TypeVar("Item")
Result = TypeVar("Result")


async def finish(work: Awaitable[Result]) -> Result:
    """Wait for a write, also when the caller is cancelled meanwhile: what it decided should not stay unknown.

    A caller that is cancelled while the database is away waits only for `CANCEL_SECONDS`. The write may still be done
    later, as after a crash.
    """
    task, cancelled, until = asyncio.ensure_future(work), None, 0.0
    while not task.done():
        try:
            await asyncio.wait((task,), timeout=None if cancelled is None else max(until - time.monotonic(), 0.0))
        except asyncio.CancelledError as error:
            if cancelled is None:
                cancelled, until = error, time.monotonic() + CANCEL_SECONDS
            continue
        if cancelled is not None:
            break
    if cancelled is None:
        return task.result()
    _unknown.add(task)
    task.add_done_callback(_forget_unknown)
    raise cancelled


_unknown = set[asyncio.Future[Any]]()
"""Writes that nobody waits for any more."""


def _forget_unknown(task: asyncio.Future[Any]) -> None:
    _unknown.discard(task)
    if not task.cancelled():
        task.exception()  # nobody is left who could handle it


class WriteFuture(asyncio.Future[Result]):
    """What becomes of a write. As with `finish`, a caller that is cancelled waits for it. It needs no task."""

    _is_unwanted = False

    def cancel(self, msg: Any | None = None) -> bool:
        if not self._is_unwanted and not self.done():
            self._is_unwanted = True
            self.get_loop().call_later(CANCEL_SECONDS, super().cancel, msg)
        return False  # the task is cancelled when this future is done


class Append(Struct, eq=False):
    """Facts to store, as JSON, after the position `seq`. `changes` is JSON for the session's entry, or None."""

    num: int
    claim: Claim
    seq: int
    bodies: list[bytes]
    changes: str | None
    size: int


class AppendResult(Struct, frozen=True):
    """What became of an append: the positions before its first fact and of its last one, and its cursor.

    `may_be_own` means that the connection was lost meanwhile, so that a refusal may be due to the same append.
    """

    outcome: int
    after: int = 0
    last: int = 0
    cursor: int = 0
    may_be_own: bool = False


class Batcher(Generic[Item, Result]):
    """Collects items while a statement is under way, and writes them together with the next one."""

    def __init__(
        self, write: Callable[[list[Item]], Awaitable[Sequence[Result]]], measure: Callable[[Item], int]
    ) -> None:
        self._write, self._measure = write, measure
        self._pending: list[tuple[Item, WriteFuture[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Result:
        """Write an item, and return what became of it. A caller that is cancelled still waits for that."""
        future: WriteFuture[Result] = WriteFuture()
        self._pending.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        batch: list[tuple[Item, WriteFuture[Result]]] = []
        try:
            while self._pending:
                batch = self._take_batch()
                await self._write_batch(batch)
        except BaseException as error:  # the loop ends
            given_up, self._pending = [*batch, *self._pending], []
            _fail(given_up, RuntimeError(f"the write was given up: {error!r}"))
            raise
        finally:
            self._task = None

    async def _write_batch(self, batch: list[tuple[Item, WriteFuture[Result]]]) -> None:
        """Write items together. If the database refuses the statement, find the item that it cannot store."""
        try:
            results = await self._write([item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                _fail(batch, error)
                return
            half = len(batch) // 2
            await self._write_batch(batch[:half])
            await self._write_batch(batch[half:])
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)

    def _take_batch(self) -> list[tuple[Item, WriteFuture[Result]]]:
        count, size = 0, 0
        for item, _ in self._pending[:MAX_ITEMS]:
            size += self._measure(item)
            if count and size > MAX_BYTES:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch


def _fail(batch: Sequence[tuple[object, WriteFuture[Any]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
            future.exception()  # a caller that was cancelled meanwhile does not ask for it


class OwnerWrites:
    """The writes of the sessions that this process runs."""

    def __init__(self, database: Database, clock: Callable[[], float | None]) -> None:
        self._database, self._clock = database, clock
        self.appends = Batcher(self._append, lambda item: item.size)
        self._renewals = Batcher[tuple[int, Claim], bool](self._renew, lambda item: 1)

    async def renew(self, num: int, claim: Claim) -> None:
        """Keep a claim for another `ttl`; raises `ClaimLost`. Renewals have a connection of their own."""
        if not await self._renewals.add((num, claim)):
            raise build_claim_lost(claim)

    async def _append(self, items: list[Append]) -> list[AppendResult]:
        order = sorted(range(len(items)), key=lambda index: items[index].num)
        batch = [items[index] for index in order]
        losses = self._database.losses
        rows = await self._database.run(
            _APPEND,
            (
                binary.pack_int8([item.num for item in batch]),
                binary.pack_int8([item.claim.epoch for item in batch]),
                binary.pack_texts([item.claim.owner for item in batch]),
                binary.pack_int4([item.seq for item in batch]),
                binary.pack_int4([len(item.bodies) for item in batch]),
                binary.pack_jsons([item.changes for item in batch]),
                binary.pack_bytes([body for item in batch for body in item.bodies]),
            ),
            through=self._database.writer,
            patience=None,
        )
        may_be_own = losses != self._database.losses
        results = [AppendResult(0)] * len(items)
        for index, row in zip(order, rows, strict=True):
            results[index] = AppendResult(*binary.unpack_int8(row), may_be_own=may_be_own)
        return results

    async def _renew(self, items: list[tuple[int, Claim]]) -> list[bool]:
        order = sorted(range(len(items)), key=lambda index: items[index][0])
        batch = [items[index] for index in order]
        rows = await self._database.run(
            _RENEW,
            (
                binary.pack_int8([num for num, _ in batch]),
                binary.pack_int8([claim.epoch for _, claim in batch]),
                binary.pack_texts([claim.owner for _, claim in batch]),
                binary.pack_doubles([claim.ttl for _, claim in batch]),
                binary.pack_double(self._clock()),
            ),
            through=self._database.renewer,
            patience=None,
        )
        results = [False] * len(items)
        for index, row in zip(order, rows, strict=True):
            results[index] = binary.unpack_bool(row)
        return results
