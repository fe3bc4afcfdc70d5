"""What every log does alike for the list of sessions: a new session's line, and where a page ends.

How a line changes with later facts is `summarize_changes` in base.py; how lines are stored is each log's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from treadle.errors import BadInput
from treadle.events import AnyFact, SessionCreated
from treadle.log.base import SessionInfo, summarize_changes

_CURSOR = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d{1,2})?)_(\d{1,18})", re.ASCII)


def build_first_info(session_id: str, facts: Sequence[AnyFact]) -> SessionInfo:
    """The line of a session that has these facts, all stamped, and that nobody runs."""
    first = facts[0] if facts else None
    if not isinstance(first, SessionCreated):
        raise BadInput("a session starts with a SessionCreated fact; pass it as the first one")
    change = summarize_changes(facts)
    status = change.status or "idle"
    return SessionInfo(
        id=session_id,
        agent=change.agent or first.agent.name,
        status="idle" if status == "running" else status,
        seq=len(facts),
        created_at=first.at,
        updated_at=max(fact.at for fact in facts),
        name=change.name or "",
        workspace=first.workspace,
        turns=change.turns,
        cost=change.cost,
        parent=first.parent,
    )


def format_cursor(updated_at: float, number: int) -> str:
    """Where a page ends, as text for the caller to hand back."""
    return f"{updated_at!r}_{number}"


def parse_cursor(cursor: str) -> tuple[float, int]:
    """The end of the page that `cursor` was given for."""
    place = _CURSOR.fullmatch(cursor)
    if place is None:
        raise BadInput(f"{cursor!r} is not a cursor; pass the one that came with the page before")
    return float(place[1]), int(place[2])


def contains_text(name: str, text: str) -> bool:
    """Whether a session's name holds `text`, in any case."""
    return text.casefold() in name.casefold()
