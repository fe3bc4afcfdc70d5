"""Search in the facts of all sessions of a PostgreSQL log: keeping the index of words up to date, and querying it.

As in an SQLite log, storing a fact indexes nothing. Several nodes may index at the same time: each batch moves the
cursor from where it began, so that only one of them stores it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

from treadle.errors import StoreError
from treadle.log import records
from treadle.log.base import SearchHit, SearchHits
from treadle.log.full_text import extract_text, fold_words, make_snippet, split_search
from treadle.log.word_vectors import SCORE_FUNCTION, build_query, build_vectors, build_word_query, count_words
from treadle.memory.postgres_memories import PostgresDatabase

PATIENCE = 1.0
"""For how many seconds a search indexes new facts before it answers."""
BATCH_FACTS, BATCH_BYTES = 1000, 1_000_000
"""How much is read and indexed at once."""
RANKED = 10_000
"""How many hits are ranked: those in the newest sessions. A word can be in every fact."""
_HITS_AT_ONCE = 20

WORD_TABLES = (
    SCORE_FUNCTION,
    # The words of a fact are in part 0. Only those of a fact with very many different words are in parts from 1.
    """CREATE TABLE treadle.fact_words (
        session bigint NOT NULL,
        seq integer NOT NULL,
        part integer NOT NULL,
        words tsvector NOT NULL,
        length integer NOT NULL,
        PRIMARY KEY (session, seq, part))""",
    "CREATE INDEX fact_words_words ON treadle.fact_words USING gin (words)",
    "CREATE INDEX fact_words_parts ON treadle.fact_words USING gin (words) WHERE part > 0",
    # All facts up to this position are in `fact_words`.
    "CREATE TABLE treadle.word_index (position bigint NOT NULL)",
    "INSERT INTO treadle.word_index VALUES (0)",
    # The row of the cursor is locked first. So a session is deleted before its words are stored, or after.
    """CREATE FUNCTION treadle.add_words(began bigint, reached bigint, sessions bigint[], seqs integer[],
            parts integer[], vectors text[], lengths integer[]) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE treadle.word_index SET position = reached WHERE position = began;
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            INSERT INTO treadle.fact_words (session, seq, part, words, length)
                SELECT session, seq, part, vector::tsvector, length
                FROM unnest(sessions, seqs, parts, vectors, lengths) AS new (session, seq, part, vector, length)
                WHERE EXISTS (SELECT FROM treadle.sessions WHERE num = session)
                ON CONFLICT DO NOTHING;
            RETURN true;
        END $$""",
    """CREATE FUNCTION treadle.forget_words() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM FROM treadle.word_index FOR SHARE;
            DELETE FROM treadle.fact_words WHERE session = old.num;
            RETURN NULL;
        END $$""",
    """CREATE TRIGGER session_deleted AFTER DELETE ON treadle.sessions
        FOR EACH ROW EXECUTE FUNCTION treadle.forget_words()""",
)

# The limit of 1 tells the planner that there is one cursor.
_NEW = """SELECT began, place, session, seq, body
    FROM (SELECT position AS began FROM treadle.word_index LIMIT 1) AS cursor
    LEFT JOIN LATERAL treadle.read_store(began, %s, %s) ON body IS NOT NULL ORDER BY place"""
_UNINDEXED = """SELECT greatest((SELECT max(position) FROM treadle.facts) - position, 0) FROM treadle.word_index"""
# A fact in parts is long, so it comes last. Each of its words is in one part.
_MATCH = f"""SELECT session, seq FROM (
        SELECT session, seq, treadle.score_words(words, %s::tsquery, length, avg(length) OVER ()) AS score FROM (
            SELECT session, seq, words, length FROM treadle.fact_words WHERE part = 0 AND words @@ %s::tsquery
            ORDER BY session DESC, seq DESC LIMIT {RANKED}) AS newest
        UNION ALL
        SELECT session, seq, 0 FROM treadle.fact_words, unnest(%s::text[]) AS word
            WHERE part > 0 AND words @@ word::tsquery GROUP BY session, seq HAVING count(*) = %s) AS found
    ORDER BY score DESC, session, seq LIMIT %s"""
_FACTS = """SELECT id, seq, body
    FROM unnest(%s::bigint[], %s::integer[]) WITH ORDINALITY AS hit (session, seq, place)
    JOIN treadle.facts USING (session, seq) JOIN treadle.sessions ON num = session ORDER BY place"""

_Row = tuple[Any, ...]
_logger = logging.getLogger("treadle")


class PostgresWords:
    """The index of one store. Words are split in a thread, beside the event loop."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._background: asyncio.Task[None] | None = None

    async def search(self, text: str, limit: int) -> SearchHits:
        """Find the facts that have all words of `text`, the best first."""
        words = split_search(text)
        if not words:
            return SearchHits()
        deadline = time.monotonic() + PATIENCE
        while await self._index_batch() != "done" and time.monotonic() < deadline:
            pass
        hits = SearchHits(await self._find_hits(words, limit))
        [(unindexed,)] = await self._database.fetch(_UNINDEXED)
        hits.unindexed = unindexed or 0
        if hits.unindexed and (self._background is None or self._background.done()):
            self._background = asyncio.create_task(self._index_rest())
        return hits

    async def close(self) -> None:
        """Stop indexing. The next search goes on with it."""
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])

    async def _index_rest(self) -> None:
        """Index until all is done, or until another node does it."""
        try:
            while await self._index_batch() == "moved":
                pass
        except StoreError as error:
            _logger.warning("the next search goes on indexing: %s", error)

    async def _index_batch(self) -> Literal["done", "moved", "lost"]:
        """Index some new facts. "lost" says that another node has indexed them meanwhile."""
        rows = await self._database.fetch(_NEW, (BATCH_FACTS, BATCH_BYTES))
        began, reached = rows[0][0], rows[-1][1]
        if reached is None:
            return "done"
        columns = await asyncio.to_thread(split_facts, [row[2:] for row in rows])
        sql = "SELECT treadle.add_words(%s, %s, %s::bigint[], %s::integer[], %s::integer[], %s::text[], %s::integer[])"
        [(is_stored,)] = await self._database.fetch(sql, (began, reached, *columns))
        return "moved" if is_stored else "lost"

    async def _find_hits(self, words: Sequence[str], limit: int) -> list[SearchHit]:
        queries = [build_word_query(word) for word in fold_words(words)]
        any_word, all_words = build_query(queries, wants_all=False), build_query(queries, wants_all=True)
        found = iter(await self._database.fetch(_MATCH, (any_word, all_words, queries, len(queries), limit)))
        hits: list[SearchHit] = []
        while part := [*islice(found, _HITS_AT_ONCE)]:
            rows = await self._database.fetch(_FACTS, tuple(map(list, zip(*part, strict=True))))
            hits += await asyncio.to_thread(_build_hits, rows, words)
        return hits


def split_facts(rows: Sequence[_Row]) -> list[list[Any]]:
    """Build the columns session, seq, part, words and length for these facts. Most kinds of facts have no text.

    A fact that cannot be read, because it is damaged or of a newer version, does not hold up the others.
    """
    columns: list[list[Any]] = [[], [], [], [], []]
    for session, seq, body in rows:
        text = _read_text(body, seq)
        if counts := count_words(text or ""):
            vectors = build_vectors(counts)
            for part, vector in enumerate(vectors, len(vectors) > 1):
                for column, value in zip(columns, (session, seq, part, vector, counts.total()), strict=True):
                    column.append(value)
    return columns


def _build_hits(rows: Sequence[_Row], words: Sequence[str]) -> list[SearchHit]:
    texts = ((session_id, seq, _read_text(body, seq)) for session_id, seq, body in rows)
    return [
        SearchHit(session_id, seq, make_snippet(text, words)) for session_id, seq, text in texts if text is not None
    ]


def _read_text(body: bytes, seq: int) -> str | None:
    try:
        return extract_text(records.read_body(body, seq))
    except StoreError:
        return None
