"""Notices that a database has lost facts that it had acknowledged, as after a failover to a standby that lagged behind.

Each node remembers the last facts that it has stored itself. It looks for them when the database is back.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from treadle.log.postgres_database import Database
from treadle.log.postgres_rows import build_facts_lost

MAX_SESSIONS = 10_000
_FIND = """SELECT id, head, max(wanted.seq)
    FROM unnest(%s::text[], %s::integer[], %s::bigint[]) AS wanted (name, seq, position)
    JOIN treadle.sessions ON id = name
    WHERE NOT EXISTS (SELECT 1 FROM treadle.facts f
        WHERE f.session = num AND f.seq = wanted.seq AND f.position = wanted.position)
    GROUP BY id, head"""
_logger = logging.getLogger("treadle")


class StoredFacts:
    """The last fact that this process has stored in each session: its position there, and in the store.

    A session that is gone is not reported, because somebody may have deleted it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._earlier: dict[str, tuple[int, int]] = {}  # those of before an interruption that was not checked yet
        self._interruptions = 0

    def note(self, session_id: str, seq: int, position: int) -> None:
        """Note a fact that the database has acknowledged. Without its position it cannot be looked for."""
        if not position:
            return
        if self._interruptions != self._database.interruptions and (earlier := self._last.get(session_id)) is not None:
            self._earlier.setdefault(session_id, earlier)
        self._last[session_id] = (seq, position)
        self._last.move_to_end(session_id)
        if len(self._last) > MAX_SESSIONS:
            self._last.popitem(last=False)

    def forget(self, session_id: str) -> None:
        """Forget a session that is deleted."""
        self._last.pop(session_id, None)
        self._earlier.pop(session_id, None)

    async def check(self) -> None:
        """Report the sessions that have lost facts, if the database was away since the last check."""
        interruptions = self._database.interruptions
        if interruptions == self._interruptions:
            return
        noted = [*self._last.items(), *self._earlier.items()]
        names, facts = [name for name, _ in noted], [fact for _, fact in noted]
        values = (names, [seq for seq, _ in facts], [position for _, position in facts])
        for session_id, head, seq in await self._database.fetch(_FIND, values) if noted else ():
            _logger.error("%s", build_facts_lost(self._database.url.shown, session_id, head, seq))
            if self._last.get(session_id) in facts:
                self.forget(session_id)
        self._earlier.clear()
        self._interruptions = interruptions
