"""Facts and lines of the list as rows of the SQLite log; one small function a statement.

None of them opens a transaction: the caller holds one where it needs one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from treadle.errors import StoreDamaged, StoreTooNew
from treadle.events import AnyFact, Parent, decode_fact, serialize_event
from treadle.log.base import Claim, SessionChanges, SessionInfo
from treadle.log.owner import is_gone

SEQ_MASK = 0xFFFFFFFF
"""The part of a fact's place that is its seq; the session's number stands above it."""

HEAD_SQL = f"(SELECT place & {SEQ_MASK} FROM facts WHERE place <= (num << 32 | {SEQ_MASK}) ORDER BY place DESC LIMIT 1)"
"""The position of a row of `sessions`; every session has a fact, so the last one below its end is its own."""

INFO_COLUMNS = f"""id, agent, status, {HEAD_SQL} AS head, created_at, updated_at, name, workspace, turns, cost, parent,
    wake_at, owner, num"""

UPDATE_COLUMNS = """updated_at = ?, turns = turns + ?, cost = cost + ?, status = coalesce(?, status),
    agent = coalesce(?, agent), name = CASE WHEN named_by_user > ? THEN name ELSE coalesce(?, name) END,
    named_by_user = named_by_user | ?"""
"""What an UPDATE of a session sets when facts are added; `moved` gives the values."""

# Two halves, so that each is answered from its own small index and not by going through all sessions.
_DUE = f"""SELECT num, id, agent, {HEAD_SQL}, epoch FROM sessions WHERE num = (
        SELECT num FROM (
            SELECT num, agent, wake_at AS since FROM sessions WHERE wake_at <= ? AND owner = ''
            UNION ALL
            SELECT num, agent, lease FROM sessions WHERE owner <> '' AND (lease <= ? OR owner IN ({{gone}})))
        {{agents}} ORDER BY since, num LIMIT 1)"""

Candidate = tuple[int, str, str, int, int]
"""A session that could be claimed: number, id, agent, head, epoch."""


def fetch_row(db: sqlite3.Connection, sql: str, *values: object) -> tuple[Any, ...] | None:
    """The first row of a query, if there is one."""
    return db.execute(sql, values).fetchone()


def insert_facts(db: sqlite3.Connection, num: int, facts: Sequence[AnyFact]) -> None:
    """Store facts at the places they are stamped with."""
    base = num << 32
    db.executemany("INSERT INTO facts VALUES (?, ?)", [(base + fact.seq, serialize_event(fact)) for fact in facts])


def append_facts(db: sqlite3.Connection, num: int, claim: Claim, facts: Sequence[AnyFact]) -> bool:
    """Store an owner's facts, in one statement; False when the claim or the position has moved on.

    The position is fenced by the places themselves: one that is taken refuses the whole statement.
    """
    base = num << 32
    values: list[object] = []
    for fact in facts:
        values += (base + fact.seq, serialize_event(fact))
    values += (num, claim.epoch, claim.owner, base + facts[0].seq - 1)
    try:
        return db.execute(_append(len(facts)), values).rowcount == len(facts)
    except sqlite3.IntegrityError:
        return False


@lru_cache(maxsize=64)
def _append(count: int) -> str:
    return f"""INSERT INTO facts SELECT * FROM (VALUES {", ".join(["(?, ?)"] * count)})
        WHERE EXISTS (SELECT 1 FROM sessions WHERE num = ? AND epoch = ? AND owner = ?)
        AND EXISTS (SELECT 1 FROM facts WHERE place = ?)"""


def read_facts(db: sqlite3.Connection, num: int, after: int = 0, limit: int | None = None) -> list[AnyFact]:
    """A session's facts after a position."""
    base, after = num << 32, max(after, 0)  # before its beginning lie the facts of another session
    rows = db.execute(
        "SELECT body FROM facts WHERE place > ? AND place <= ? ORDER BY place LIMIT ?",
        (base + after, base + SEQ_MASK, -1 if limit is None else limit),
    )
    facts: list[AnyFact] = []
    try:
        for (body,) in rows:
            facts.append(decode_fact(body))
    except msgspec.ValidationError as error:
        raise StoreTooNew(
            f"fact {after + len(facts) + 1} was written by a newer treadle ({error}); nothing was changed. Upgrade "
            "treadle to read this session"
        ) from error
    except msgspec.DecodeError as error:
        raise StoreDamaged(
            f"fact {after + len(facts) + 1} cannot be read ({error}); the facts before it can. Restore a backup"
        ) from error
    return facts


def find_by_key(db: sqlite3.Connection, num: int, key: str) -> list[AnyFact] | None:
    """What was stored with this key, or None when it is new."""
    row = fetch_row(db, "SELECT first, last FROM keys WHERE session = ? AND key = ?", num, key)
    return None if row is None else read_facts(db, num, row[0] - 1, row[1] - row[0] + 1)


def save_key(db: sqlite3.Connection, num: int, key: str, head: int, count: int) -> None:
    """Remember that `count` facts after `head` were stored with this key."""
    db.execute("INSERT INTO keys VALUES (?, ?, ?, ?)", (num, key, head + 1, head + count))


def insert_session(db: sqlite3.Connection, line: SessionInfo, *, named_by_user: bool) -> int:
    """Add a session to the list; its number."""
    num = db.execute(
        """INSERT INTO sessions (id, agent, status, created_at, updated_at, name, workspace, turns,
            cost, parent, named_by_user) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            *(line.id, line.agent, line.status, line.created_at, line.updated_at),
            *(line.name, line.workspace, line.turns, line.cost),
            msgspec.json.encode(line.parent) if line.parent is not None else None,
            named_by_user,
        ),
    ).lastrowid
    assert num is not None
    return num


def build_update_values(now: float, change: SessionChanges) -> tuple[object, ...]:
    """The values of `UPDATE_COLUMNS`; a name that a user gave is not changed by any other."""
    by_user = change.named_by_user
    return (now, change.turns, change.cost, change.status, change.agent, by_user, change.name, by_user)


def build_session_info(row: Sequence[Any]) -> SessionInfo:
    """The line that a row of `INFO_COLUMNS` columns holds."""
    return SessionInfo(
        id=row[0],
        agent=row[1],
        status=row[2],
        seq=row[3],
        created_at=row[4],
        updated_at=row[5],
        name=row[6],
        workspace=row[7],
        turns=row[8],
        cost=row[9],
        parent=msgspec.json.decode(row[10], type=Parent) if row[10] is not None else None,
        wake_at=row[11],
        owner=row[12],
    )


def find_longest_due(db: sqlite3.Connection, now: float, agents: Sequence[str] | None = None) -> Candidate | None:
    """The session that has been due for the longest time."""
    owners: list[str] = [row[0] for row in db.execute("SELECT DISTINCT owner FROM sessions WHERE owner <> ''")]
    gone = [owner for owner in owners if is_gone(owner)]
    sql = _DUE.format(
        gone=", ".join("?" * len(gone)),
        agents="" if agents is None else f"WHERE agent IN ({', '.join('?' * len(agents))})",
    )
    return db.execute(sql, (now, now, *gone, *(agents or ()))).fetchone()
