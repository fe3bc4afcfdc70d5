"""Search in the facts of all sessions: keeping the index of words up to date, and querying it.

Storing a fact indexes nothing. A search first indexes what is new. When that takes too long, it answers with what
is indexed, and the rest is indexed in the background.
"""

from __future__ import annotations

import heapq
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from treadle.errors import StoreError
from treadle.log import records
from treadle.log.base import SearchHit, SearchHits
from treadle.log.full_text import (
    build_match_query,
    extract_text,
    make_snippet,
    prepare_for_index,
    score_text,
    split_search,
)
from treadle.log.schema import INDEX_VERSION
from treadle.log.sqlite_file import SideConnection, SqliteFile

PATIENCE = 1.0
"""For how many seconds a search indexes new facts before it answers."""
BATCH_FACTS, BATCH_LETTERS = 1000, 300_000
"""How much is indexed in one transaction. Writers of the store wait for it."""
RANKED = 10_000
"""How many hits are ranked: those in the newest sessions. A word can be in every fact."""

_NEW = """SELECT position, stored.place, facts.body
    FROM (SELECT position, place FROM stored_order WHERE position > ? ORDER BY position LIMIT ?) AS stored
    LEFT JOIN facts ON facts.place = stored.place ORDER BY position"""
_ADD = "INSERT OR REPLACE INTO words (rowid, text) SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM facts WHERE place = ?1)"
_MATCH = f"""SELECT place FROM
        (SELECT rowid AS place, bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT {RANKED})
    ORDER BY score, place LIMIT ?"""
_FACT = """SELECT id, body FROM facts JOIN sessions ON num = place >> 32 WHERE place = ?"""


class TextIndex:
    """The index of one store. It works in the thread of a side connection."""

    def __init__(self, file: SqliteFile, side: SideConnection) -> None:
        self._file, self._side = file, side

    async def search(self, text: str, limit: int) -> SearchHits:
        """Find the facts that have all words of `text`, the best first."""
        words = split_search(text)
        return await self._side.run(partial(self._search, words=words, limit=limit)) if words else SearchHits()

    def _search(self, db: sqlite3.Connection, words: Sequence[str], limit: int) -> SearchHits:
        try:
            self._file.check_unharmed()
        except StoreError:  # it is only read
            return _search_without_index(db, words, limit)
        deadline = time.monotonic() + PATIENCE
        while _try_batch(db) and time.monotonic() < deadline and not self._side.is_closing.is_set():
            pass
        hits = SearchHits(_read_hits(db, words, _find_places(db, words, limit)))
        hits.unindexed = records.fetch_last_cursor(db) - _fetch_position(db)
        if hits.unindexed:
            self._side.repeat(_try_batch)
        return hits


def _try_batch(db: sqlite3.Connection) -> bool:
    """Index some new facts. False when there are none, or when another process holds the write lock for long."""
    try:
        return index_batch(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False


def forget_words(db: sqlite3.Connection) -> bool:
    """Take some words of deleted sessions out of the index. True when there are more.

    It gives up when another process holds the write lock for long: what is left to do is stored.
    """
    row = db.execute("SELECT num FROM deleted_sessions LIMIT 1").fetchone()
    if row is None:
        return False
    first, chosen, letters = row[0] << 32, list[tuple[int]](), 0
    sql = "SELECT id, length(c0) FROM words_content WHERE id BETWEEN ? AND ?"
    with closing(db.execute(sql, (first, first + records.SEQ_MASK))) as rows:
        for place, length in rows:
            chosen.append((place,))
            letters += length
            if letters >= BATCH_LETTERS:
                break
    try:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("DELETE FROM words WHERE rowid = ?", chosen)
        if letters < BATCH_LETTERS:
            db.execute("DELETE FROM deleted_sessions WHERE num = ?", row)
        db.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    return True


def index_batch(db: sqlite3.Connection) -> bool:
    """Index some new facts. True when there may be more."""
    position = reached = _fetch_position(db)
    texts: list[tuple[int, str]] = []
    letters = 0
    with closing(db.execute(_NEW, (position, BATCH_FACTS))) as rows:  # a read that is open would refuse the write
        for row_position, place, body in rows:
            reached = row_position
            if body is not None and (text := extract_text(records.read_body(body, place & records.SEQ_MASK))):
                texts.append((place, prepare_for_index(text)))
                letters += len(text)
                if letters >= BATCH_LETTERS:
                    break
    if reached == position:
        return False
    db.execute("BEGIN IMMEDIATE")
    try:
        moved = db.execute("UPDATE word_index SET position = ? WHERE position = ?", (reached, position))
        if moved.rowcount:  # otherwise another process has indexed these facts
            db.executemany(_ADD, sorted(texts))  # FTS5 is quickest in the order of its rows
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    return True


def _fetch_position(db: sqlite3.Connection) -> int:
    return db.execute("SELECT position FROM word_index").fetchone()[0]


def _find_places(db: sqlite3.Connection, words: Sequence[str], limit: int) -> list[int]:
    return [row[0] for row in db.execute(_MATCH, (build_match_query(words), limit))]


def _search_without_index(db: sqlite3.Connection, words: Sequence[str], limit: int) -> SearchHits:
    """Search a store that cannot be written: what is indexed, and each other fact."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    has_index = version >= INDEX_VERSION  # an older store notes differently what is indexed
    rest = db.execute(_NEW, (_fetch_position(db), -1)) if has_index else db.execute("SELECT 0, place, body FROM facts")
    scores: dict[int, int] = {}
    for _, place, body in rest:
        if body is not None and (
            score := score_text(extract_text(records.read_body(body, place & records.SEQ_MASK)), words)
        ):
            scores[place] = score
    best = heapq.nlargest(limit, scores, key=lambda place: (scores[place], -place))
    places = [*(_find_places(db, words, limit) if has_index else ()), *best]
    return SearchHits(_read_hits(db, words, places[:limit]))


def _read_hits(db: sqlite3.Connection, words: Sequence[str], places: Sequence[int]) -> Iterator[SearchHit]:
    for place in places:
        row = db.execute(_FACT, (place,)).fetchone()
        if row is not None:
            seq = place & records.SEQ_MASK
            yield SearchHit(row[0], seq, make_snippet(extract_text(records.read_body(row[1], seq)), words))
