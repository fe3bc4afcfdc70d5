"""A claim on a session, and whether it can still be relied on."""

from __future__ import annotations

import time

from treadle.log.base import Claim, Log


class Lease:
    """A claim and when it was last known to hold."""

    def __init__(self, log: Log, claim: Claim) -> None:
        self.log, self.claim = log, claim
        self._renewed, self._renewed_wall = time.monotonic(), time.time()

    async def renew_if_due(self, share: float = 2 / 3) -> None:
        """Before an effect: when that share of the lease has passed, make sure that it still holds.

        By two clocks, and the one that has gone further counts: one may be set, the other stands still while a
        laptop sleeps.
        """
        limit, now, wall = self.claim.ttl * share, time.monotonic(), time.time()
        if now - self._renewed > limit or wall - self._renewed_wall > limit:
            await self.log.renew(self.claim)
            self._renewed, self._renewed_wall = now, wall
