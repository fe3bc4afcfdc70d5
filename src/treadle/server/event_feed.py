"""The events of a response while it is written. Any number of clients follow them, from any number on."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence

from treadle.dialects.responses_events import ResponseEvent, ResponsesDialect
from treadle.dialects.responses_objects import ResponseObject

MAX_KEPT = 10_000
"""How many events are kept when older ones can be built again from the log."""


class EventFeed:
    """The events of one response so far. Older ones may have been dropped."""

    def __init__(self, dialect: ResponsesDialect) -> None:
        self.dialect = dialect
        self.events: list[ResponseEvent] = list(dialect.begin())
        self.is_over = False
        self.failure: Exception | None = None
        """Why there is no reply, with the status that a request which waits for it gets."""
        self.last_dropped = -1
        """The number of the last event that is not kept."""
        self._changed = asyncio.Event()

    @property
    def response(self) -> ResponseObject:
        """The response as far as clients may see it."""
        return self.dialect.response

    def add(self, events: Sequence[ResponseEvent]) -> None:
        """Show events."""
        self.events += events
        self.notify()

    def notify(self) -> None:
        """Wake all who wait for something new."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def drop_events(self) -> None:
        """Keep no more events than the limit. The older ones must be in the log."""
        if len(self.events) > MAX_KEPT:
            dropped = self.events[:-MAX_KEPT]
            self.last_dropped = dropped[-1].sequence_number
            del self.events[: len(dropped)]

    async def wait(self) -> None:
        """Wait for the end."""
        while not self.is_over:
            await self._changed.wait()

    async def wait_for_change(self) -> None:
        """Wait until there is something new."""
        await self._changed.wait()

    async def follow(self, after: int = -1) -> AsyncGenerator[list[ResponseEvent]]:
        """Yield the events with a higher number than `after`, up to the end, or until they were dropped."""
        while after >= self.last_dropped:
            place = bisect_right(self.events, after, key=lambda event: event.sequence_number)
            if fresh := self.events[place:]:
                after = fresh[-1].sequence_number
                yield fresh
            elif self.is_over:
                return
            else:
                await self._changed.wait()
