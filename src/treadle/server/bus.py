"""What all sessions of this process store, for those who watch all of them at once. No store: it starts now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

from treadle.events import AnyFact
from treadle.server.metrics import Metrics

_MOST = 2048


class Subscription:
    """One watcher of everything. What came while it was too far behind is counted, and not kept."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._queue: asyncio.Queue[tuple[str, AnyFact] | None] = asyncio.Queue(_MOST)
        self._missed = 0

    def __enter__(self) -> Subscription:
        self._bus.subscriptions.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bus.subscriptions.discard(self)

    def offer(self, session_id: str, fact: AnyFact) -> None:
        try:
            self._queue.put_nowait((session_id, fact))
        except asyncio.QueueFull:
            self._missed += 1

    def take_missed(self) -> int:
        """How many facts were lost since this was asked last."""
        missed, self._missed = self._missed, 0
        return missed

    def close(self) -> None:
        """End the iteration."""
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[tuple[str, AnyFact]]:
        while (item := await self._queue.get()) is not None:
            yield item


class Bus:
    """The observer of the log: counts what passes, and hands it to whoever subscribed."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.subscriptions: set[Subscription] = set()

    def on_stored(self, session_id: str, facts: Sequence[AnyFact], seconds: float) -> None:
        self.metrics.on_stored(session_id, facts, seconds)
        for subscription in self.subscriptions:
            for fact in facts:
                subscription.offer(session_id, fact)

    def on_first_delta(self, session_id: str) -> None:
        self.metrics.on_first_delta(session_id)

    def subscribe(self) -> Subscription:
        """A watcher of everything, as a block."""
        return Subscription(self)

    def close(self) -> None:
        """End every subscription."""
        for subscription in tuple(self.subscriptions):
            subscription.close()
