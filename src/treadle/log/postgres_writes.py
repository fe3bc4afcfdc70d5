"""The writes of owners in a PostgreSQL log: appends and renewals that are made at the same time share one statement.

So a busy node makes few commits, and each write is still refused or stored by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from treadle.errors import TreadleError
from treadle.log.base import Claim
from treadle.log.postgres_database import Database
from treadle.log.records import build_claim_lost

CANCEL_SECONDS = 5.0
"""How long a write goes on for a caller that was cancelled."""
MAX_ITEMS, MAX_BYTES = 200, 4 * 1024 * 1024
"""How much goes into one statement."""
STORED, REPEATED, REFUSED = 0, 1, 2
"""What became of an append."""
_APPEND = """SELECT treadle.append_facts(%s::bigint[], %s::bigint[], %s::text[], %s::integer[], %s::integer[],
    %s::jsonb[], %s::bytea[])"""
_RENEW = """SELECT treadle.renew_claims(%s::bigint[], %s::bigint[], %s::text[], %s::double precision[],
    %s::double precision)"""

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
        self._pending: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Result:
        """Write an item, and return what became of it. A caller that is cancelled still waits for that."""
        future = asyncio.get_running_loop().create_future()
        self._pending.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await finish(future)

    async def _run(self) -> None:
        while self._pending:
            batch = self._take_batch()
            try:
                results = await self._write([item for item, _ in batch])
            except TreadleError as error:
                for _, future in batch:
                    future.set_exception(error)
            except BaseException as error:  # the loop ends, or a bug
                for _, future in batch:
                    future.set_exception(RuntimeError(f"the write was given up: {error!r}"))
                raise
            else:
                for (_, future), result in zip(batch, results, strict=True):
                    future.set_result(result)
        self._task = None

    def _take_batch(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        count, size = 0, 0
        for item, _ in self._pending[:MAX_ITEMS]:
            size += self._measure(item)
            if count and size > MAX_BYTES:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch


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
        rows = await self._database.fetch(
            _APPEND,
            (
                [item.num for item in batch],
                [item.claim.epoch for item in batch],
                [item.claim.owner for item in batch],
                [item.seq for item in batch],
                [len(item.bodies) for item in batch],
                [item.changes for item in batch],
                [body for item in batch for body in item.bodies],
            ),
            through=self._database.writer,
            patience=None,
        )
        may_be_own = losses != self._database.losses
        results = [AppendResult(0)] * len(items)
        for index, (result,) in zip(order, rows, strict=True):
            results[index] = AppendResult(*result, may_be_own=may_be_own)
        return results

    async def _renew(self, items: list[tuple[int, Claim]]) -> list[bool]:
        order = sorted(range(len(items)), key=lambda index: items[index][0])
        batch = [items[index] for index in order]
        rows = await self._database.fetch(
            _RENEW,
            (
                [num for num, _ in batch],
                [claim.epoch for _, claim in batch],
                [claim.owner for _, claim in batch],
                [claim.ttl for _, claim in batch],
                self._clock(),
            ),
            through=self._database.renewer,
            patience=None,
        )
        results = [False] * len(items)
        for index, (renewed,) in zip(order, rows, strict=True):
            results[index] = renewed
        return results
