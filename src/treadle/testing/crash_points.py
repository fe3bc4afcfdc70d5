"""Cut a log after each fact: every prefix is a crash that could happen, and the session must survive it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from treadle.events import AnyFact, SessionCreated, decode_fact, fact_type, serialize_event
from treadle.log.base import Log
from treadle.session import Session


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The facts that were stored when the process died. `plant` writes them into a log, to continue from there."""

    session_id: str
    facts: tuple[AnyFact, ...]

    def __str__(self) -> str:
        return f"after {len(self.facts)} facts, the last a {fact_type(self.facts[-1])}"

    async def plant(self, log: Log) -> str:
        """Create a session with these facts in another log, as a new process would find it. Returns its id."""
        await log.create(self.session_id, [decode_fact(serialize_event(fact)) for fact in self.facts])
        return self.session_id


def cut(facts: Sequence[AnyFact]) -> Iterator[CrashPoint]:
    """Yield a crash point after each fact."""
    first = facts[0]
    if not isinstance(first, SessionCreated):
        raise msgspec.ValidationError("a session's log starts with session_created")
    for length in range(1, len(facts) + 1):
        yield CrashPoint(first.session_id, tuple(facts[:length]))


async def crash_points(session: Session) -> list[CrashPoint]:
    """Return every point at which this session could crash."""
    return list(cut(await session.facts()))
