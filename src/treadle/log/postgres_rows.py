"""The queries of the PostgreSQL log, and its rows as facts, sessions and claims. Nothing here talks to a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct

from treadle import events
from treadle.errors import StoreError, StoreLostFacts, StoreTooNew
from treadle.events import AnyFact, stamp_fact
from treadle.log.base import RESPONSES_AGENT, Claimant, SessionInfo, SessionQuery, StoredFact
from treadle.log.records import NO_CHANGES, SessionChanges, parse_cursor, read_body
from treadle.messages import replace_surrogates

READER = 1
"""Which facts this release can read. A release that learns to read a new kind of fact raises it, and the release after
that one may write such facts: it lists the kind in `_MIN_READERS`."""
MAX_KEY = 500
"""Letters of a key that an index surely holds."""
_MIN_READERS: dict[type[AnyFact], int] = {}
"""The kinds of facts that older readers do not know, each with the first reader that does."""

CLAIM = """SELECT num, id, head, epoch + 1, owner <> ''
    FROM treadle.claim_session(%s, %s, %s, %s::text[], %s::text[], %s, %s::double precision)"""
READ = """SELECT seq, body FROM treadle.facts
    WHERE session = (SELECT num FROM treadle.sessions WHERE id = %s) AND seq > %s ORDER BY seq LIMIT %s"""
READ_BATCH = """SELECT seq, body FROM (
        SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
        FROM treadle.facts WHERE session = (SELECT num FROM treadle.sessions WHERE id = %s) AND seq > %s
        ORDER BY seq LIMIT %s) AS batch
    WHERE before < %s ORDER BY seq"""
READ_STORE = "SELECT place, id, seq, body FROM treadle.read_store(%s, %s, %s)"
PUT_ARTIFACT = """WITH held AS (SELECT %s::bigint IS NULL OR treadle.holds_claim(%s, %s, %s) AS held),
    stored AS (
        INSERT INTO treadle.artifacts (session, id, media_type, data)
            SELECT num, %s, %s, %s FROM treadle.sessions, held WHERE sessions.id = %s AND held
        ON CONFLICT DO NOTHING)
    SELECT held, EXISTS (SELECT 1 FROM treadle.sessions WHERE id = %s) FROM held"""
INFO_COLUMNS = """id, agent, status, head, created_at, updated_at, name, workspace, turns, cost, parent, wake_at, owner,
    num, named_by_user, pinned, archived, model"""


class Claimed(Struct, frozen=True):
    """A session that was claimed. `is_takeover` means that its owner had not released it."""

    num: int
    session_id: str
    head: int
    epoch: int
    is_takeover: bool


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def find_min_reader(facts: Sequence[AnyFact]) -> int:
    """Find the oldest reader that knows all these facts."""
    return max((_MIN_READERS.get(type(fact), 1) for fact in facts), default=1)


def write_entry(info: SessionInfo, facts: Sequence[AnyFact], *, named_by_user: bool) -> str:
    """Write the entry of a new session as JSON, as `treadle.create_session` takes it."""
    entry = {
        field: clean_value(getattr(info, field))
        for field in info.__struct_fields__
        if field not in ("seq", "wake_at", "owner")
    }
    name = clean_text(info.name)
    entry |= {"name": name, "folded_name": name.casefold(), "named_by_user": named_by_user}
    return msgspec.json.encode({**entry, "min_reader": find_min_reader(facts)}).decode()


def write_changes(
    changes: SessionChanges, facts: Sequence[AnyFact], updated_at: float | None, *, key: str = "", release: bool = False
) -> str | None:
    """Write what facts change in their session's entry, as JSON. None when they change nothing."""
    written: dict[str, object] = {}
    if changes is not NO_CHANGES:
        for field in ("status", "agent", "model", "pinned", "archived"):
            if (value := getattr(changes, field)) is not None:
                written[field] = clean_value(value)
        if changes.turns or changes.cost:
            written |= {"turns": changes.turns, "cost": changes.cost}
        if changes.name is not None:
            name = clean_text(changes.name)
            written |= {"name": name, "folded_name": name.casefold(), "named_by_user": changes.named_by_user}
    if changes.is_newer and (written or updated_at is not None):
        written["updated_at"] = facts[-1].at if updated_at is None else updated_at
    if (reader := find_min_reader(facts)) > 1:
        written["min_reader"] = reader
    if key:
        written["key"] = clean_key(key)
    if release:
        written["release"] = True
    return msgspec.json.encode(written).decode() if written else None


def clean_text(text: str) -> str:
    """Replace what PostgreSQL cannot store in a text: zeros, and halves of letters."""
    return replace_surrogates(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


def clean_values(values: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any] | Mapping[str, Any]:
    """Replace what PostgreSQL cannot store in the texts among the values of a statement."""
    if isinstance(values, Mapping):
        return {name: clean_value(value) for name, value in values.items()}
    return [*map(clean_value, values)]


def clean_value(value: Any) -> Any:
    """Replace what PostgreSQL cannot store in a text, or in a list of texts."""
    if isinstance(value, str):
        return clean_text(value)
    return [*map(clean_value, cast("list[Any]", value))] if isinstance(value, list) else value


def clean_key(key: str) -> str:
    """Return a key as it is stored. One that PostgreSQL or its index cannot hold is known by a hash."""
    if len(key) <= MAX_KEY and clean_text(key) == key:
        return key
    return f"hash {sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def read_claimant(claimant: Claimant) -> tuple[str, float, list[str] | None, list[str] | None]:
    """Return the name, lease, agents and folders of a claimant."""
    agents = None if claimant.agents is None else list(claimant.agents)
    return claimant.owner, claimant.ttl, agents, None if claimant.roots is None else claimant.folders


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def read_fact(seq: int, body: bytes) -> AnyFact:
    """Decode a stored fact. A post is stored before it knows its position, so the row's counts."""
    fact = read_body(body, seq)
    if fact.seq != seq:
        stamp_fact(fact, seq, fact.at)
    return fact


def read_facts(found: Sequence[Sequence[Any]]) -> list[AnyFact]:
    """Decode the facts of one session from rows of seq and body."""
    return [read_fact(seq, body) for seq, body in found]


def read_next_facts(found: Sequence[Sequence[Any]]) -> list[AnyFact]:
    """Decode the facts of one session for a watcher, up to one that cannot be read. Raises when that is the first."""
    facts: list[AnyFact] = []
    for seq, body in found:
        try:
            facts.append(read_fact(seq, body))
        except StoreError:
            if not facts:
                raise
            break
    return facts


def read_stored_facts(found: Sequence[Sequence[Any]], after: int) -> tuple[list[StoredFact], int]:
    """Decode the facts of all sessions and return the last position too.

    Facts of a newer release are left out: they must not hold up those of other sessions. The facts before a damaged
    one are returned first, and the read that begins with it raises the error.
    """
    facts, reached = list[StoredFact](), after
    for position, session_id, seq, body in found:
        try:
            if session_id is not None:
                facts.append(StoredFact(session_id, position, read_fact(seq, body)))
        except StoreTooNew:
            pass
        except StoreError:
            if reached == after:
                raise
            break
        reached = position
    return facts, reached


def build_info(row: Sequence[Any]) -> SessionInfo:
    """Build the list entry from a row of `INFO_COLUMNS`."""
    parent = None if row[10] is None else msgspec.convert(row[10], events.Parent)
    return SessionInfo(
        *row[:10],
        parent=parent,
        wake_at=row[11],
        owner=row[12],
        named_by_user=row[14],
        pinned=row[15],
        archived=row[16],
        model=row[17],
    )


def build_list_query(query: SessionQuery) -> tuple[str, dict[str, object]]:
    """Build the query for a page of the list, the last changed first. It asks for one session more."""
    updated_at, num = parse_cursor(query.cursor) if query.cursor else (float("inf"), 0)
    if query.before is not None and query.before <= updated_at:
        updated_at, num = query.before, 0
    values: dict[str, object] = {"updated_at": updated_at, "num": num, "limit": query.limit + 1}
    terms = ["(updated_at, num) < (%(updated_at)s::double precision, %(num)s)"]
    equal = ("agent", "workspace", "status", "name")
    for field in (field for field in equal if getattr(query, field)):
        terms.append(f"{field} = %({field})s")
        values[field] = getattr(query, field)
    if not query.agent:
        terms.append(f"agent <> '{RESPONSES_AGENT}'")
    if query.text:
        terms.append("position(%(text)s IN folded_name) > 0")
        values["text"] = query.text.casefold()
    if query.parent:
        terms.append("parent ->> 'session_id' = %(parent)s AND parent IS NOT NULL")
        values["parent"] = query.parent
    if query.prefix:
        terms.append("id >= %(prefix)s AND starts_with(id, %(prefix)s)")
        values["prefix"] = query.prefix
    for mark in ("pinned", "archived"):
        if (wanted := getattr(query, mark)) is not None:
            terms.append(mark if wanted else f"NOT {mark}")
    sql = f"""SELECT {INFO_COLUMNS} FROM treadle.sessions WHERE {" AND ".join(terms)}
        ORDER BY updated_at DESC, num DESC LIMIT %(limit)s"""
    return sql, values


def build_facts_lost(where: str, session_id: str, head: int, known: int) -> StoreLostFacts:
    """Build the error for a database that has fewer facts than it had acknowledged."""
    return StoreLostFacts(
        f"{where} has lost facts: session {session_id} ends at {head}, but {known} facts were stored. Did a standby "
        "without them become the primary? The session goes on from what is left; look at what its last calls did"
    )
