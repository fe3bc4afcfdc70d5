"""The first words of sessions that have no name yet. They tell the sessions of a list apart."""

from __future__ import annotations

from treadle.errors import StoreTooNew
from treadle.events import MessageReceived
from treadle.log.base import Log, SessionInfo
from treadle.messages import render_parts
from treadle.runtime import extract_name

MAX_KNOWN = 10_000
_FACTS_BEFORE = 20
"""The first message is among so many facts. Before it are only settings of the session."""


class FirstWords:
    """Finds how the conversations of a log began."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    async def find(self, log: Log, info: SessionInfo) -> str:
        """Find the first words of a session. Empty if it has a name or no message, or if a newer release wrote it."""
        if info.name:
            self._known.pop(info.id, None)
            return ""
        if info.id not in self._known:
            try:
                facts = await log.read(info.id, limit=_FACTS_BEFORE)
            except StoreTooNew:
                return ""
            first = next((fact for fact in facts if isinstance(fact, MessageReceived)), None)
            if first is None:
                return ""
            self._known[info.id] = extract_name(render_parts(first.parts), cut=True)
            if len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return self._known[info.id]
