"""A clock that moves only when it is stepped, or when somebody sleeps."""

from __future__ import annotations

import asyncio

from treadle.engine.setup import Clock


class SteppingClock(Clock):
    """Starts at a fixed time. `sleep` moves it forward without waiting, and `step` moves it by any time."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    def step(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now += seconds
        await asyncio.sleep(0)
