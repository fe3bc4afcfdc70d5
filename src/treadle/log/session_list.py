"""The list of sessions in SQL, written so that every query of a surface has an index that serves it."""

from __future__ import annotations

import sqlite3
from typing import get_args

import msgspec

from treadle.log import records
from treadle.log.base import RESPONSES_AGENT, SessionPage, SessionQuery, Status

_FEW = 1000
"""Up to so many sessions with a text in their names are sorted. A text in more names is soon found in the order of
the list."""
_LISTED = f"agent <> '{RESPONSES_AGENT}'"
_NAMED = "num IN (SELECT rowid FROM names WHERE names MATCH :match)"
_HAS_NAMES = "SELECT 1 FROM sqlite_master WHERE name = 'names'"
"""A store of an older version, which is only read, has no index of names."""
_NARROW = {
    "name": "name = :name AND name <> ''",
    "parent": "parent IS NOT NULL AND json_extract(CAST(parent AS TEXT), '$.session_id') = :parent",
    "prefix": "id >= :prefix AND id < :prefix || char(0x10FFFF)",
    "pinned": "pinned = 1",
    "archived": "archived = 1",
}
"""Conditions that few sessions meet, each with an index of its own."""
_AFTER_CURSOR = "{0}updated_at <= :updated_at AND ({0}updated_at < :updated_at OR num < :num)"
_ORDER = "ORDER BY updated_at DESC, num DESC"


def fetch_page(db: sqlite3.Connection, query: SessionQuery) -> SessionPage:
    """Fetch a page of the list, the last changed first."""
    if not records.has_marks(db):
        if query.pinned or query.archived:
            return SessionPage(())
        query = msgspec.structs.replace(query, pinned=None, archived=None)
    updated_at, num = records.parse_cursor(query.cursor) if query.cursor else (float("inf"), 0)
    if query.before is not None and query.before <= updated_at:
        updated_at, num = query.before, 0
    # The index of names knows pieces of three letters and more.
    name = query.text.casefold()
    match = "" if len(name) < 3 or "\0" in name else f'"{name.replace(chr(34), chr(34) * 2)}"'
    values = {
        **msgspec.structs.asdict(query),
        "match": match,
        "updated_at": updated_at,
        "num": num,
        "limit": query.limit + 1,
    }
    conditions = [_NARROW[field] for field in _NARROW if getattr(query, field)]
    if match and not conditions and db.execute(_HAS_NAMES).fetchone():
        count = "SELECT count(*) FROM (SELECT 1 FROM names WHERE names MATCH ? LIMIT ?)"
        if db.execute(count, (match, _FEW + 1)).fetchone()[0] <= _FEW:
            conditions.append(_NAMED)
    # The inner query selects the page: a head costs a look-up, so only the rows of the page get one.
    sql = f"""SELECT {records.build_info_columns(db)} FROM sessions WHERE num IN (
        SELECT num FROM ({_build_selection(query, conditions)}) {_ORDER} LIMIT :limit) {_ORDER}"""
    rows = db.execute(sql, values).fetchall()
    page = rows[: query.limit]
    cursor = records.format_cursor(page[-1][5], page[-1][13]) if len(rows) > len(page) and page else ""
    return SessionPage(tuple(records.build_session_info(row) for row in page), cursor)


def _build_selection(query: SessionQuery, narrow: list[str]) -> str:
    """Build the query for numbers and times.

    Where few sessions are looked at, a plus sign keeps SQLite from choosing another index. Otherwise each status is
    read from an index in the order of the list, and only as far as the page needs it.
    """
    plus = "+" if narrow else ""
    terms = [*narrow, _AFTER_CURSOR.format(plus)]
    terms.append(f"{plus}agent = :agent" if query.agent else f"{plus}{_LISTED}")
    if query.workspace:
        terms.append(f"{plus}workspace = :workspace")
    terms += [f"{plus}{mark} = 0" for mark in ("pinned", "archived") if getattr(query, mark) is False]
    if query.text:
        terms.append("instr(casefold(name), casefold(:text))")
    if narrow:
        terms += [f"{plus}status = :status"] if query.status else []
        return f"SELECT num, updated_at FROM sessions WHERE {' AND '.join(terms)}"
    statuses: tuple[Status, ...] = (query.status,) if query.status else get_args(Status)
    return " UNION ALL ".join(
        f"""SELECT * FROM (SELECT num, updated_at FROM sessions
            WHERE status = '{status}' AND {" AND ".join(terms)} {_ORDER} LIMIT :limit)"""
        for status in statuses
    )
