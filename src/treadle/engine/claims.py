"""The claims of this process: it takes sessions that are due, renews what it runs, and gives sessions back.

Nodes that share a store take turns, so that no one takes all sessions of a node that died.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from treadle.engine.session_entry import SessionEntries, SessionEntry
from treadle.engine.setup import Clock, Lease, Stopwatch
from treadle.errors import ClaimLost, NotFound, StoreError
from treadle.log.base import Claim, Claimant, Log

SCAN_SECONDS = 1.0
RENEW_SHARE = 1 / 4
"""A claim is renewed when this share of its lease has passed."""
TURN_SECONDS = 0.02
"""How long a node that runs as many sessions as the others pauses, on average, before it takes some more."""
SESSIONS_PER_TURN = 4
MAX_PAUSE_SECONDS = 1.0
"""How long a node pauses at most before it takes all that is left."""
RENEWAL_SECONDS = 2.0
"""How long the owners of sessions have, after the store was away, to renew what lapsed meanwhile."""
STOP_SECONDS = 3.0
"""How long a claim that is under way is waited for."""

_logger = logging.getLogger("treadle")


class ClaimKeeper:
    """Claims sessions, and keeps the claims of those that run.

    `start` runs a session that was claimed, and `wake` one whose time has come.
    """

    def __init__(
        self,
        log: Log,
        claimant: Claimant,
        clock: Clock,
        entries: SessionEntries,
        start: Callable[[Lease], None],
        wake: Callable[[str], Awaitable[None]],
    ) -> None:
        self._log, self._claimant, self._clock, self._entries = log, claimant, clock, entries
        self._start, self._wake = start, wake
        self._takes_due = self._has_news = self._is_failing = False
        self._keeper: asyncio.Task[None] | None = None
        self._scan: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._earlier_listener, log.on_due = log.on_due, self._handle_news

    async def claim(self, session_id: str = "") -> Lease | None:
        """Claim a session, or any session that is due. Returns None when there is none for this process."""
        asked, claimant = Stopwatch(), self._claimant
        claim = await self._log.claim(claimant.owner, claimant.ttl, session_id, claimant.agents, claimant.roots)
        return Lease(self._log, claim, asked) if claim is not None else None

    async def give_up(self, claim: Claim, pause: float) -> None:
        """Release a session that has work left. It is due again after a pause."""
        entry = self._entries.open(claim.session_id)
        was_unreleased, entry.unreleased = entry.unreleased is not None, claim
        try:
            await self._log.release(claim, None, wake_at=self._clock.now() + pause)
            entry.unreleased = None
        except (ClaimLost, NotFound):
            entry.unreleased = None
            _logger.warning("session %s was taken over by another process or deleted", claim.session_id)
        except StoreError as error:  # the keeper tries again
            if not was_unreleased:
                _logger.warning("session %s could not be released: %s", claim.session_id, error)
        self._entries.drop_if_unused(entry)

    # ── taking what is due ─────────────────────────────────────────────────────────────────────────────

    async def recover(self) -> int:
        """Take every session that is due, now and later. Returns how many that were."""
        self._takes_due = True
        started = await self._take_due()
        self.ensure_keeper()
        return started

    async def stop_taking(self) -> None:
        """Take no more sessions. A claim that is under way still starts its session, so that it is given back."""
        self._takes_due = False
        if self._scan is not None and not self._scan.done():
            await asyncio.wait((self._scan,), timeout=STOP_SECONDS)

    async def _take_due(self) -> int:
        """Take sessions until none is due. Where other nodes do the same, pause longer the more this node has."""
        started, paused, others = 0, 0.0, list[int]()
        while self._takes_due and (lease := await self.claim()) is not None:
            self._start(lease)
            started += 1
            if self._log.is_shared and started % SESSIONS_PER_TURN == 1 and paused < MAX_PAUSE_SECONDS:
                others = await self._count_sessions_elsewhere() if started == 1 else others
                if others:
                    pause = random.uniform(0, 2) * self._measure_turn(others)
                    await asyncio.sleep(pause)
                    paused += pause
        return started

    async def _count_sessions_elsewhere(self) -> list[int]:
        """Count the sessions of each other node that can take some."""
        nodes = await self._log.list_nodes()
        able = (node for node in nodes if node.is_alive and not node.is_draining)
        return [node.sessions for node in able if node.name != self._claimant.owner]

    def _measure_turn(self, others: list[int]) -> float:
        load = (len(self._entries.list_runs()) + 1) / (sum(others) / len(others) + 1)
        return TURN_SECONDS * min(max(load, 1 / 4), 4)

    def _handle_news(self) -> None:
        """Another node has left a session: look for it now, and not at the next scan."""
        self._has_news = True
        if self._takes_due:
            self._begin_scan()
        if self._earlier_listener is not None:
            self._earlier_listener()

    def _begin_scan(self) -> None:
        if self._scan is None or self._scan.done():
            self._scan = self._keep_task(self._scan_sessions())

    async def _scan_sessions(self) -> None:
        try:
            if self._log.is_shared:
                await self._let_others_go_first()
            for entry in list(self._entries.values()):
                if entry.wake_at is not None and entry.wake_at <= self._clock.now():
                    await self._wake_entry(entry)
            self._has_news = True
            while self._has_news and self._takes_due and not self._is_behind():
                self._has_news = False
                await self._take_due()
            self._is_failing = False
        except StoreError as error:  # the store may work again next time
            self._note_failure(error)

    async def _wake_entry(self, entry: SessionEntry) -> None:
        wake_at, entry.wake_at = entry.wake_at, None
        try:
            await self._wake(entry.id)
        except NotFound:  # the session was deleted meanwhile
            pass
        except StoreError:
            entry.wake_at = wake_at  # the next scan tries again
            raise
        self._entries.drop_if_unused(entry)

    async def _let_others_go_first(self) -> None:
        if self._is_failing:
            await self._log.list_nodes()  # it raises as long as the store is away
            await asyncio.sleep(RENEWAL_SECONDS)
        await asyncio.sleep(random.uniform(0, TURN_SECONDS))

    def _is_behind(self) -> bool:
        """Whether a lease of this process is over. It is renewed first: a new claim would end the run."""
        return any(entry.lease is not None and entry.lease.is_due(1) for entry in self._entries.values())

    # ── keeping claims ─────────────────────────────────────────────────────────────────────────────────

    def ensure_keeper(self) -> None:
        """Renew claims and look for due sessions from now on, as long as it is needed."""
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep_claims())

    async def close(self) -> None:
        """Stop at once. What is still claimed lapses."""
        self._takes_due = False
        tasks = [*self._tasks, *filter(None, [self._keeper])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._log.on_due == self._handle_news:
            self._log.on_due = self._earlier_listener

    async def _keep_claims(self) -> None:
        """Renew claims and start due sessions. No session waits here for another one."""
        while self._takes_due or any(entry.needs_keeper for entry in self._entries.values()):
            pause = min(self._claimant.ttl / 3, SCAN_SECONDS)
            await asyncio.sleep(pause * random.uniform(0.5, 1) if self._log.is_shared else pause)
            for entry in list(self._entries.values()):
                self._keep_claim(entry)
            self._begin_scan()

    def _keep_claim(self, entry: SessionEntry) -> None:
        if entry.keeping is not None and not entry.keeping.done():
            return
        if entry.lease is not None and entry.lease.is_due(RENEW_SHARE):
            entry.keeping = self._keep_task(self._renew(entry, entry.lease))
        elif entry.unreleased is not None:
            entry.keeping = self._keep_task(self.give_up(entry.unreleased, 0.0))

    async def _renew(self, entry: SessionEntry, lease: Lease) -> None:
        try:
            await lease.renew_if_due(RENEW_SHARE)
        except (ClaimLost, NotFound):
            if entry.lease is lease and entry.task is not None:
                entry.task.cancel()
        except StoreError as error:
            self._note_failure(error)

    def _note_failure(self, error: StoreError) -> None:
        if not self._is_failing:
            _logger.warning("sessions cannot be claimed or renewed now: %s", error)
        self._is_failing = True

    def _keep_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
