"""Cutting a log: every prefix of a session is a crash that could have happened, and must be survivable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from treadle.events import AnyFact, SessionCreated, decode_fact, fact_type, serialize_event
from treadle.log.base import Log
from treadle.session import Session


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The facts that were stored when the process died; `plant` puts them into a log to go on from."""

    session_id: str
    facts: tuple[AnyFact, ...]

    def __str__(self) -> str:
        return f"after {len(self.facts)} facts, the last a {fact_type(self.facts[-1])}"

    async def plant(self, log: Log) -> str:
        """Make a session of this prefix in another log, as a new process would find it; its id."""
        await log.create(self.session_id, [decode_fact(serialize_event(fact)) for fact in self.facts])
        return self.session_id


def cut(facts: Sequence[AnyFact]) -> Iterator[CrashPoint]:
    """A crash point after every single fact."""
    first = facts[0]
    if not isinstance(first, SessionCreated):
        raise msgspec.ValidationError("a session's log starts with session_created")
    for length in range(1, len(facts) + 1):
        yield CrashPoint(first.session_id, tuple(facts[:length]))


async def crash_points(session: Session) -> list[CrashPoint]:
    """Every point at which this session could have been cut off."""
    return list(cut(await session.facts()))
