"""Records of sessions: numbering facts, the list of sessions, and both as rows of the SQLite log.

The first part is the same for every log. The functions of the second part run SQL and open no transaction: the
caller holds one where it needs one.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle import events
from treadle.errors import BadInput, ClaimLost, Conflict, NotFound, PositionMoved, StoreDamaged, StoreError, StoreTooNew
from treadle.events import AnyFact, decode_fact, serialize_event, stamp_fact
from treadle.log.base import Claim, Claimant, SessionInfo, Status, StoredFact
from treadle.log.owner import is_gone
from treadle.log.schema import MARKS_VERSION

BATCH_BYTES = 1024 * 1024
"""About how many bytes of facts a watcher reads at once."""
_CURSOR = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d{1,2})?)_(\d{1,18})", re.ASCII)


# ── every log: positions of facts ────────────────────────────────────────────────────────────────────────


def number_facts(facts: Sequence[AnyFact], now: float) -> list[AnyFact]:
    """Copy a new session's facts with their positions. A fact that carries a time keeps it."""
    return [replace(fact, seq=seq, at=fact.at or now) for seq, fact in enumerate(facts, 1)]


def stamp_created(facts: Sequence[AnyFact], stored: Sequence[AnyFact]) -> None:
    """Stamp a new session's facts after they were stored, except those that already belong to another session."""
    for fact, copy in zip(facts, stored, strict=True):
        if not fact.seq:
            stamp_fact(fact, copy.seq, copy.at)


def stamp_facts(facts: Sequence[AnyFact], head: int, now: float) -> None:
    """Give facts their positions after `head`. A fact that carries a time keeps it."""
    for fact in facts:
        head += 1
        if fact.seq != head or not fact.at:
            stamp_fact(fact, head, fact.at or now)


def stamp_repeated(facts: Sequence[AnyFact], stored: Sequence[AnyFact], key: str) -> None:
    """Give repeated facts the positions that they got when they were stored under the same key."""
    if len(facts) != len(stored):
        raise Conflict(f"the key {key!r} was used for other facts; use a new key for these")
    for fact, earlier in zip(facts, stored, strict=True):
        stamp_fact(fact, earlier.seq, earlier.at)


def hash_artifact(data: bytes) -> str:
    """Compute the id of an artifact from its content."""
    import hashlib

    return hashlib.blake2b(data, digest_size=16).hexdigest()


# ── every log: the list of sessions ──────────────────────────────────────────────────────────────────────


class SessionChanges(Struct):
    """What facts change in a session's entry in the list. None and 0 change nothing.

    A mark is no change of the session itself, which keeps its age and its place in the list: then `is_newer` is False.
    """

    name: str | None = None
    named_by_user: bool = False
    agent: str | None = None
    status: Status | None = None
    turns: int = 0
    cost: float = 0.0
    pinned: bool | None = None
    archived: bool | None = None
    model: str | None = None
    is_newer: bool = True


NO_CHANGES = SessionChanges()
_CHANGING = frozenset(
    (events.RunStarted, events.RunFinished, events.SessionRenamed, events.SessionConfigured, events.SessionMarked)
)


def summarize_changes(facts: Sequence[AnyFact]) -> SessionChanges:
    """Sum up what facts change in the list of sessions. Most facts change nothing: the result is `NO_CHANGES`."""
    if _CHANGING.isdisjoint(map(type, facts)):
        return NO_CHANGES
    changes = SessionChanges(is_newer=not all(isinstance(fact, events.SessionMarked) for fact in facts))
    for fact in facts:
        if isinstance(fact, events.RunStarted):
            changes.status = "running"
        elif isinstance(fact, events.RunFinished):
            changes.status = fact.reason if fact.reason in ("answered", "failed", "cancelled") else "stopped"
            changes.turns += fact.turns
            changes.cost += fact.usage.cost
        elif isinstance(fact, events.SessionRenamed):
            if fact.by == "user" or not changes.named_by_user:
                changes.name, changes.named_by_user = fact.name, fact.by == "user"
        elif isinstance(fact, events.SessionConfigured):
            changes.agent, changes.model = fact.agent or changes.agent, fact.model or changes.model
        elif isinstance(fact, events.SessionMarked):
            changes.pinned = changes.pinned if fact.pinned is None else fact.pinned
            changes.archived = changes.archived if fact.archived is None else fact.archived
    return changes


def build_first_info(session_id: str, facts: Sequence[AnyFact]) -> SessionInfo:
    """Build the list entry of a new session from its stamped facts. Nobody runs it yet."""
    first = facts[0] if facts else None
    if not isinstance(first, events.SessionCreated):
        raise BadInput("a session starts with a SessionCreated fact; pass it as the first one")
    changes = summarize_changes(facts)
    status = changes.status or "idle"
    return SessionInfo(
        id=session_id,
        agent=changes.agent or first.agent.name,
        status="idle" if status == "running" else status,
        seq=len(facts),
        created_at=first.at,
        updated_at=max(fact.at for fact in facts),
        name=changes.name or "",
        workspace=first.workspace,
        turns=changes.turns,
        cost=changes.cost,
        parent=first.parent,
        pinned=bool(changes.pinned),
        archived=bool(changes.archived),
        model=changes.model or first.model,
    )


def format_cursor(updated_at: float, number: int) -> str:
    """Write the end of a page as text that the caller passes for the next page."""
    return f"{updated_at!r}_{number}"


def parse_cursor(cursor: str) -> tuple[float, int]:
    """Read what `format_cursor` wrote."""
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise BadInput(f"{cursor!r} is not a cursor; pass the one that came with the page before")
    return float(found[1]), int(found[2])


def contains_text(name: str, text: str) -> bool:
    """Whether a session's name contains `text`, ignoring case."""
    return text.casefold() in name.casefold()


# ── every log: refusals ──────────────────────────────────────────────────────────────────────────────────


def build_not_found(session_id: str) -> NotFound:
    """Build the error for an unknown session."""
    return NotFound(f"there is no session {session_id}")


def build_taken(session_id: str) -> Conflict:
    """Build the error for a session id that exists already."""
    return Conflict(f"there is a session {session_id} already; choose another id")


def build_still_running(session_id: str) -> Conflict:
    """Build the error for deleting a session that somebody runs."""
    return Conflict(f"session {session_id} is running; cancel it before deleting it")


def build_no_artifact(session_id: str, artifact_id: str) -> NotFound:
    """Build the error for an unknown artifact."""
    return NotFound(f"session {session_id} has no artifact {artifact_id}")


def build_claim_lost(claim: Claim) -> ClaimLost:
    """Build the error for a claim that another owner has taken over."""
    return ClaimLost(
        f"session {claim.session_id} is no longer run by {claim.owner} (epoch {claim.epoch}): nothing was written"
    )


def build_position_moved(claim: Claim, head: int, expected_seq: int | None) -> PositionMoved:
    """Build the error for an append at a position that others have moved."""
    return PositionMoved(
        f"session {claim.session_id} is at {head}, not at {expected_seq}: nothing was written; "
        "read what is new and decide again"
    )


# ── SQLite: rows ─────────────────────────────────────────────────────────────────────────────────────────

SEQ_MASK = 0xFFFFFFFF
"""The bits of a fact's `place` that hold its seq. The session's number is in the bits above."""

HEAD_SQL = f"(SELECT place & {SEQ_MASK} FROM facts WHERE place <= (num << 32 | {SEQ_MASK}) ORDER BY place DESC LIMIT 1)"
"""The head of a row of `sessions`. Every session has a fact, so the last place up to its end is its own."""

_INFO_COLUMNS = f"""id, agent, status, {HEAD_SQL} AS head, created_at, updated_at, name, workspace, turns, cost, parent,
    wake_at, owner, num, named_by_user"""

# The union has two halves, so that each uses its own small index instead of scanning all sessions.
_DUE = f"""SELECT num, id, agent, workspace, {HEAD_SQL}, epoch FROM sessions WHERE num = (
        SELECT num FROM (
            SELECT num, agent, workspace, wake_at AS since FROM sessions WHERE wake_at <= ? AND owner = ''
            UNION ALL
            SELECT num, agent, workspace, lease FROM sessions WHERE owner <> '' AND (lease <= ? OR owner IN ({{gone}})))
        WHERE {{agents}} AND {{roots}} ORDER BY since, num LIMIT 1)"""

_STORE = """SELECT position, stored.place, sessions.id, facts.body
    FROM (SELECT position, place FROM stored_order WHERE position > ? ORDER BY position LIMIT ?) AS stored
    LEFT JOIN facts ON facts.place = stored.place LEFT JOIN sessions ON sessions.num = stored.place >> 32
    ORDER BY position"""

Candidate = tuple[int, str, str, str, int, int]
"""A session that can be claimed: number, id, agent, workspace, head, epoch."""


def fetch_session(db: sqlite3.Connection, columns: str, session_id: str) -> tuple[Any, ...]:
    """Fetch columns of a session; raises `NotFound`."""
    row = db.execute(f"SELECT {columns} FROM sessions WHERE id = ?", (session_id,)).fetchone()
    if row is None:
        raise build_not_found(session_id)
    return row


def has_marks(db: sqlite3.Connection) -> bool:
    """Whether the store knows marks and models. One of an older version, which is only read, does not."""
    return db.execute("PRAGMA user_version").fetchone()[0] >= MARKS_VERSION


def build_info_columns(db: sqlite3.Connection) -> str:
    """Build the columns that `build_session_info` reads."""
    marks = "pinned, archived, model" if has_marks(db) else "0, 0, ''"
    return f"{_INFO_COLUMNS}, {marks}"


def insert_facts(db: sqlite3.Connection, num: int, facts: Sequence[AnyFact]) -> None:
    """Store facts at the positions that they are stamped with."""
    base = num << 32
    db.executemany("INSERT INTO facts VALUES (?, ?)", [(base + fact.seq, serialize_event(fact)) for fact in facts])


def append_facts(db: sqlite3.Connection, num: int, claim: Claim, facts: Sequence[AnyFact]) -> int:
    """Store an owner's facts in one statement and return their bytes. 0: the claim or the position has moved on.

    The primary key guards the position: a place that is taken refuses the whole statement.
    """
    base, size = num << 32, 0
    values: list[object] = []
    for fact in facts:
        body = serialize_event(fact)
        size += len(body)
        values += (base + fact.seq, body)
    values += (num, claim.epoch, claim.owner, base + facts[0].seq - 1)
    try:
        return size if db.execute(_build_append(len(facts)), values).rowcount == len(facts) else 0
    except sqlite3.IntegrityError:
        return 0


@lru_cache(maxsize=64)
def _build_append(count: int) -> str:
    return f"""INSERT INTO facts SELECT * FROM (VALUES {", ".join(["(?, ?)"] * count)})
        WHERE EXISTS (SELECT 1 FROM sessions WHERE num = ? AND epoch = ? AND owner = ?)
        AND EXISTS (SELECT 1 FROM facts WHERE place = ?)"""


def read_facts(
    db: sqlite3.Connection, num: int, after: int = 0, limit: int | None = None, most_bytes: int | None = None
) -> list[AnyFact]:
    """Read a session's facts after a position: all, or until they have about `most_bytes`."""
    base, after = num << 32, max(after, 0)  # a negative position would reach into the session before
    rows = db.execute(
        "SELECT body FROM facts WHERE place > ? AND place <= ? ORDER BY place LIMIT ?",
        (base + after, base + SEQ_MASK, -1 if limit is None else limit),
    )
    if most_bytes is None:
        return [read_body(body, seq) for seq, (body,) in enumerate(rows, after + 1)]
    facts: list[AnyFact] = []
    for (body,) in rows:
        facts.append(read_body(body, after + len(facts) + 1))
        most_bytes -= len(body)
        if most_bytes <= 0:
            break
    return facts


def read_body(body: bytes, seq: int) -> AnyFact:
    """Decode a stored fact. Raises when a newer version wrote it, or when it is damaged."""
    try:
        return decode_fact(body)
    except msgspec.ValidationError as error:
        raise StoreTooNew(
            f"fact {seq} was written by a newer treadle ({error}); nothing was changed. Upgrade treadle to read this "
            "session"
        ) from error
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        TypeError,
        BadInput,
    ) as error:  # a single wrong bit gives any of them
        raise StoreDamaged(f"fact {seq} cannot be read ({error}); the facts before it can. Restore a backup") from error


def read_store(db: sqlite3.Connection, after: int, count: int) -> tuple[list[StoredFact], int]:
    """Read the facts of all sessions at up to `count` positions after a cursor, and return the last position too.

    They are fewer when they are large.
    A deleted session leaves positions without a fact. The facts before one that cannot be read are returned first: the
    read that begins with it raises the error.
    """
    facts, reached, size = list[StoredFact](), after, 0
    for position, place, session_id, body in db.execute(_STORE, (after, count)):
        if size >= BATCH_BYTES:
            break
        if body is not None:
            size += len(body)
            try:
                fact = read_body(body, place & SEQ_MASK)
            except StoreError:
                if reached == after:
                    raise
                break
            facts.append(StoredFact(session_id, position, fact))
        reached = position
    return facts, reached


def fetch_last_cursor(db: sqlite3.Connection) -> int:
    """Fetch the position of the fact that was stored last, or 0."""
    return db.execute("SELECT coalesce(max(position), 0) FROM stored_order").fetchone()[0]


def fetch_approval_key(db: sqlite3.Connection) -> bytes:
    """Fetch the secret of the store. The first process that needs it creates it."""
    select = "SELECT value FROM secrets WHERE name = 'approvals'"
    row = db.execute(select).fetchone()
    if row is None:
        db.execute("INSERT OR IGNORE INTO secrets VALUES ('approvals', ?)", (os.urandom(32),))
        row = db.execute(select).fetchone()
    return row[0]


def find_by_key(db: sqlite3.Connection, num: int, key: str) -> list[AnyFact] | None:
    """Find the facts that were stored with this key; None when it is new."""
    row = db.execute("SELECT first, last FROM keys WHERE session = ? AND key = ?", (num, key)).fetchone()
    return None if row is None else read_facts(db, num, row[0] - 1, row[1] - row[0] + 1)


def save_key(db: sqlite3.Connection, num: int, key: str, head: int, count: int) -> None:
    """Record that `count` facts after `head` were stored with this key."""
    db.execute("INSERT INTO keys VALUES (?, ?, ?, ?)", (num, key, head + 1, head + count))


def insert_session(db: sqlite3.Connection, info: SessionInfo, *, named_by_user: bool, number: int | None = None) -> int:
    """Add a session to the list and return its number, which is a new one unless it is given."""
    added = {name: value for name in ("pinned", "archived", "model") if (value := getattr(info, name))}
    num = db.execute(
        f"""INSERT INTO sessions (num, id, agent, status, created_at, updated_at, name, workspace, turns,
            cost, parent, named_by_user{"".join(f", {name}" for name in added)})
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?{", ?" * len(added)})""",
        (
            number,
            *(info.id, info.agent, info.status, info.created_at, info.updated_at),
            *(info.name, info.workspace, info.turns, info.cost),
            msgspec.json.encode(info.parent) if info.parent is not None else None,
            *(named_by_user, *added.values()),
        ),
    ).lastrowid
    assert num is not None
    return num


def build_update(now: float, changes: SessionChanges) -> tuple[str, tuple[object, ...]]:
    """Build the SET clause for a session that got facts, and its values.

    It names only what changes: SQLite writes to every index of a named column. Only a user can change a name that a
    user gave.
    """
    columns: dict[str, tuple[object, ...]] = {"updated_at = ?": (now,)} if changes.is_newer else {}
    if changes.turns or changes.cost:
        columns["turns = turns + ?, cost = cost + ?"] = (changes.turns, changes.cost)
    if changes.status is not None:
        columns["status = ?"] = (changes.status,)
    for column in ("agent", "model", "pinned", "archived"):
        if (value := getattr(changes, column)) is not None:
            columns[f"{column} = ?"] = (value,)
    if changes.name is not None:
        columns["name = CASE WHEN named_by_user > ? THEN name ELSE ? END, named_by_user = named_by_user | ?"] = (
            *(changes.named_by_user, changes.name, changes.named_by_user),
        )
    return ", ".join(columns) or "owner = owner", tuple(value for values in columns.values() for value in values)


def build_session_info(row: Sequence[Any]) -> SessionInfo:
    """Build the list entry from a row of `build_info_columns`, which begins in the order of its fields."""
    named, pinned, archived = map(bool, row[14:17])
    marks = {"named_by_user": named, "pinned": pinned, "archived": archived, "model": row[17]}
    info = SessionInfo(*row[:10], wake_at=row[11], owner=row[12], **marks)
    return replace(info, parent=msgspec.json.decode(row[10], type=events.Parent)) if row[10] is not None else info


def find_longest_due(db: sqlite3.Connection, now: float, claimant: Claimant) -> Candidate | None:
    """Find the session that has been due for the longest time and that the claimant can run."""
    owners: list[str] = [row[0] for row in db.execute("SELECT DISTINCT owner FROM sessions WHERE owner <> ''")]
    gone = [owner for owner in owners if is_gone(owner)]
    agents, folders = claimant.agents, claimant.folders
    roots = ["workspace = ''", *["substr(workspace || '/', 1, length(?)) = ?"] * len(folders)]
    sql = _DUE.format(
        gone=", ".join("?" * len(gone)),
        agents="1" if agents is None else f"agent IN ({', '.join('?' * len(agents))})",
        roots="1" if claimant.roots is None else f"({' OR '.join(roots)})",
    )
    values = (now, now, *gone, *(agents or ()), *(folder for folder in folders for _ in range(2)))
    return db.execute(sql, values).fetchone()
