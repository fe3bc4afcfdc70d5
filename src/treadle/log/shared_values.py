"""Short-lived values of one process, for stores that belong to one machine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from treadle.log.base import SharedValues

MAX_VALUES = 4096
"""The oldest value gives way to a new one beyond so many."""


class InMemoryValues(SharedValues):
    """Values that live as long as this object."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        self._store(key, value, self._clock() + seconds)

    async def get(self, key: str) -> bytes | None:
        until, value = self._values.get(key, (0.0, b""))
        return value if until > self._clock() else None

    async def take(self, key: str) -> bytes | None:
        value = await self.get(key)
        self._values.pop(key, None)
        return value

    async def count(self, key: str, seconds: float) -> int:
        until, value = self._values.get(key, (0.0, b""))
        if until <= self._clock():
            until, value = self._clock() + seconds, b"0"
        count = int(value) + 1
        self._store(key, b"%d" % count, until)
        return count

    async def read_count(self, key: str) -> int:
        return int(await self.get(key) or b"0")

    def _store(self, key: str, value: bytes, until: float) -> None:
        self._values[key] = (until, value)
        self._values.move_to_end(key)
        if len(self._values) > MAX_VALUES:
            self._values.popitem(last=False)
