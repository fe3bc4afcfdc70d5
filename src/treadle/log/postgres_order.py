"""Reading the facts of all sessions of a PostgreSQL log, in the order of their positions in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from treadle.errors import StoreError
from treadle.log import postgres_rows as rows
from treadle.log import records
from treadle.log.base import StoredFact
from treadle.log.postgres_database import Database

HELD_BACK_SECONDS = 0.02
"""How soon facts are read again that an unfinished write of another node holds back."""


class StoreOrder:
    """What one process knows of the order. All facts up to `last` were stored when it last looked.

    `wake` lets all watches look again.
    """

    def __init__(self, database: Database, wake: Callable[[], None]) -> None:
        self._database, self._wake = database, wake
        self._timer: asyncio.TimerHandle | None = None
        self.last = 0

    def note(self, position: int) -> None:
        """Note that all facts up to a position are stored."""
        self.last = max(self.last, position)

    def note_own(self, position: int, count: int) -> None:
        """Note that this process stored `count` facts, the last one at `position`.

        If other nodes store at the same time, it is unknown what lies between. Then the next read or poll tells.
        """
        if position == self.last + count:
            self.last = position

    async def read(self, after: int, count: int) -> tuple[list[StoredFact], int]:
        """Read facts after a position. For a position beyond the end it returns the end."""
        try:
            found = await self._database.fetch(rows.READ_STORE, (after, count, records.BATCH_BYTES), patience=None)
        except StoreError:
            if self._database.is_closed:  # the watch ends
                return [], after
            raise
        if found and found[0][0] is None:  # a writer that began earlier is not done yet
            self._look_again_soon()
            return [], after
        facts, reached = rows.read_stored_facts(found, after)
        self.note(reached)
        return facts, reached

    def _look_again_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_BACK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._wake()
