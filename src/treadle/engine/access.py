"""The access of a session: what a person chose for it, within what its process and the sessions above it allow.

A stored choice only ever narrows. What widens is kept in the memory of the process whose user confirmed it.
"""

from __future__ import annotations

from contextlib import suppress

from treadle.errors import NotFound
from treadle.events import AnyFact, Parent, SessionConfigured, SessionCreated, Tier
from treadle.log.base import Log
from treadle.permissions.policy import choose_narrowest

PLAN_INSTRUCTIONS = (
    "You are in plan mode: nothing may change before the user has accepted a plan. Read and search as much as you "
    "need. Every call that would change something is refused. If the wish is unclear, ask. End with the plan: the "
    "steps in their order, the files that they change, and how you will check the result. The user may edit it and "
    "gives it back to you when you may begin."
)
"""What an agent reads in plan mode, besides its own instructions."""

PLAN_HELPER_INSTRUCTIONS = (
    "The user is still planning, so nothing may change: you can only read, and every other call is refused. Answer "
    "with what you found out."
)
"""What a helper reads in plan mode."""


class ParentAccess:
    """The narrowest access that was chosen for the sessions above a helper. It follows their logs."""

    def __init__(self, log: Log, parent: Parent) -> None:
        self.narrowest: Tier | None = None
        self._log = log
        self._positions: dict[str, int] = {parent.session_id: 0}
        self._chosen: dict[str, Tier] = {}

    async def update(self) -> bool:
        """Read what is new in the logs of these sessions. Return whether the narrowest access has changed."""
        above = list(self._positions)
        for session_id in above:  # it grows while their own parents are found
            with suppress(NotFound):  # a parent may have been deleted
                for fact in await self._log.read(session_id, after=self._positions[session_id]):
                    self._positions[session_id] = fact.seq
                    above += self._apply(session_id, fact)
        before, self.narrowest = self.narrowest, choose_narrowest(*self._chosen.values()) if self._chosen else None
        return self.narrowest != before

    def _apply(self, session_id: str, fact: AnyFact) -> list[str]:
        """Apply a fact of a session above. Return its own parent, if it is new."""
        if isinstance(fact, SessionConfigured) and fact.access is not None:
            self._chosen[session_id] = fact.access
        if not isinstance(fact, SessionCreated):
            return []
        if fact.grants and fact.grants[0].tier == "plan":
            self._chosen[session_id] = "plan"
        parent = fact.parent.session_id if fact.parent is not None and fact.parent.call_id else ""
        if not parent or parent in self._positions:
            return []
        self._positions[parent] = 0
        return [parent]
