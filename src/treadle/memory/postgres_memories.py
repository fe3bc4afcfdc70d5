"""Memories in a PostgreSQL database. Each write is one statement, so that a process that hangs holds no lock."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from treadle.log.full_text import parse_query
from treadle.log.word_vectors import build_query, build_vectors, build_word_query, count_words
from treadle.memory.base import ALL_MEMORIES, Memory, MemoryQuery
from treadle.memory.search import MAX_VECTORS, SearchableMemories
from treadle.memory.store import build_not_found, complete_memory

RANKED = 10_000
"""How many memories with a word of the query are ranked: the newest."""
_VECTORS_AT_ONCE = 500
"""Others go on between two parts of the vectors."""

MEMORY_TABLES = (
    """CREATE TABLE treadle.memories (
        num bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text NOT NULL UNIQUE,
        scope text NOT NULL,
        kind text NOT NULL,
        digest bytea NOT NULL,
        body bytea NOT NULL,
        words tsvector NOT NULL,
        length integer NOT NULL)""",
    "CREATE INDEX memories_words ON treadle.memories USING gin (words) WITH (fastupdate = off)",
    "CREATE INDEX memories_digest ON treadle.memories (digest)",
    "CREATE INDEX memories_kind ON treadle.memories (kind, num)",
    # A scope may be longer than what other indexes take.
    "CREATE INDEX memories_scope ON treadle.memories USING hash (scope)",
    # A vector holds for the text with this digest. So an edit and a vector that is made meanwhile need no lock.
    """CREATE TABLE treadle.memory_vectors (
        num bigint PRIMARY KEY REFERENCES treadle.memories ON DELETE CASCADE,
        name text NOT NULL,
        digest bytea NOT NULL,
        vector bytea NOT NULL)""",
    # Two nodes that add the same text do so one after the other: the second finds the memory of the first.
    """CREATE FUNCTION treadle.add_memory(new_id text, new_scope text, new_kind text, new_digest bytea, new_body bytea,
            new_words tsvector, new_length integer) RETURNS bytea LANGUAGE plpgsql AS $$
        DECLARE stored bytea;
        BEGIN
            PERFORM pg_advisory_xact_lock(1835363695, hashtext(new_scope || encode(new_digest, 'hex')));
            SELECT body INTO stored FROM treadle.memories WHERE scope = new_scope AND digest = new_digest
                ORDER BY num LIMIT 1;
            IF FOUND THEN
                RETURN stored;
            END IF;
            INSERT INTO treadle.memories (id, scope, kind, digest, body, words, length)
                VALUES (new_id, new_scope, new_kind, new_digest, new_body, new_words, new_length);
            RETURN new_body;
        END $$""",
)

_ADD = "SELECT treadle.add_memory(%s, %s, %s, %s, %s, %s::tsvector, %s)"
_EDIT = """UPDATE treadle.memories SET digest = %s, body = %s, words = %s::tsvector, length = %s WHERE id = %s
    RETURNING num"""
# A word counts the more, the fewer of the memories that were found have it.
_FIND = f"""WITH
    found AS MATERIALIZED (
        SELECT num, words, length, body FROM treadle.memories WHERE words @@ %s::tsquery AND {{scopes}}
            ORDER BY num DESC LIMIT {RANKED}),
    counted AS (
        SELECT word::tsquery AS word, (SELECT count(*) FROM found WHERE words @@ word::tsquery) AS frequency,
            (SELECT count(*) FROM found) AS total, (SELECT avg(length) FROM found) AS average
            FROM unnest(%s::text[]) AS word)
    SELECT body FROM found ORDER BY (
        SELECT sum(ln(1 + (total - frequency + 0.5) / (frequency + 0.5))
            * treadle.score_words(words, word, length, average)) FROM counted) DESC, num LIMIT %s"""
_MISSING = f"""SELECT body FROM (
        SELECT num, digest, body FROM treadle.memories WHERE {{scopes}} ORDER BY num DESC LIMIT {MAX_VECTORS}) AS newest
    WHERE NOT EXISTS (
        SELECT FROM treadle.memory_vectors AS made
            WHERE made.num = newest.num AND made.name = %s AND made.digest = newest.digest)
    ORDER BY num DESC LIMIT %s"""
_SAVE_VECTORS = """INSERT INTO treadle.memory_vectors (num, name, digest, vector)
    SELECT num, %s, digest, vector FROM unnest(%s::text[], %s::bytea[], %s::bytea[]) AS made (id, digest, vector)
        JOIN treadle.memories USING (id, digest) ORDER BY num FOR KEY SHARE OF memories
    ON CONFLICT (num) DO UPDATE SET name = excluded.name, digest = excluded.digest, vector = excluded.vector"""
_VECTORS = """SELECT num, id, vector FROM treadle.memories JOIN treadle.memory_vectors USING (num, digest)
    WHERE name = %s AND {scopes} AND num < %s ORDER BY num DESC LIMIT %s"""

_decoder = msgspec.json.Decoder(Memory)


class PostgresDatabase(Protocol):
    """A PostgreSQL database with the tables of the log. Each method runs one statement. Errors are translated."""

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]: ...

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> object: ...


class PostgresMemories(SearchableMemories):
    """Memories in the database of a PostgreSQL log."""

    def __init__(self, database: PostgresDatabase, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock

    async def _insert(self, memory: Memory) -> Memory:
        new = complete_memory(memory, self._clock())
        values = (new.id, new.scope, new.kind, _digest(new.text), msgspec.json.encode(new), *_index(new.text))
        [(stored,)] = await self._database.fetch(_ADD, values)
        return _decoder.decode(stored)

    async def _update(self, memory_id: str, text: str) -> Memory:
        memory = replace(await self.get(memory_id), text=text)
        values = (_digest(text), msgspec.json.encode(memory), *_index(text), memory_id)
        if not await self._database.fetch(_EDIT, values):
            raise build_not_found(memory_id)
        return memory

    async def get(self, memory_id: str) -> Memory:
        # PostgreSQL refuses a text with a zero or half a character in it.
        is_possible = memory_id.isascii() and memory_id.isprintable()
        found = await self._query("SELECT body FROM treadle.memories WHERE id = %s", memory_id) if is_possible else []
        if not found:
            raise build_not_found(memory_id)
        return found[0]

    async def list(self, query: MemoryQuery = ALL_MEMORIES) -> list[Memory]:
        where, values = _filter_scopes(query.scopes)
        if query.kind is not None:
            where, values = f"{where} AND kind = %s", (*values, query.kind)
        order = f"ORDER BY num {'DESC' if query.newest else 'ASC'} LIMIT %s OFFSET %s"
        sql = f"SELECT body FROM treadle.memories WHERE {where} {order}"
        return await self._query(sql, *values, query.limit, query.offset)

    async def delete(self, memory_id: str) -> None:
        await self.get(memory_id)
        await self._database.execute("DELETE FROM treadle.memories WHERE id = %s", (memory_id,))

    async def _find_by_words(self, text: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        words = [build_word_query(word, is_prefix=is_prefix) for word, is_prefix in parse_query(text).items()]
        if not words:
            return []
        where, values = _filter_scopes(scopes)
        sql = _FIND.format(scopes=where)
        return await self._query(sql, build_query(words, wants_all=False), *values, words, limit)

    async def _load_existing(self, ids: Iterable[str]) -> list[Memory]:
        return await self._query("SELECT body FROM treadle.memories WHERE id = ANY(%s)", [*ids])

    async def _list_missing(self, name: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        where, values = _filter_scopes(scopes)
        return await self._query(_MISSING.format(scopes=where), *values, name, limit)

    async def _save_vectors(self, name: str, vectors: Sequence[tuple[Memory, Sequence[float]]]) -> None:
        ids = [memory.id for memory, _ in vectors]
        digests = [_digest(memory.text) for memory, _ in vectors]
        packed = [array("f", vector).tobytes() for _, vector in vectors]
        await self._database.execute(_SAVE_VECTORS, (name, ids, digests, packed))

    async def _load_vectors(self, name: str, scopes: Sequence[str] | None) -> Mapping[str, Sequence[float]]:
        where, values = _filter_scopes(scopes)
        sql, before = _VECTORS.format(scopes=where), 2**63 - 1
        vectors: dict[str, Sequence[float]] = {}
        while len(vectors) < MAX_VECTORS:
            rows = await self._database.fetch(sql, (name, *values, before, _VECTORS_AT_ONCE))
            vectors.update((memory_id, array("f", vector)) for _, memory_id, vector in rows)
            if len(rows) < _VECTORS_AT_ONCE:
                break
            before = rows[-1][0]
        return vectors

    async def _query(self, sql: str, *values: object) -> list[Memory]:
        return [_decoder.decode(body) for (body,) in await self._database.fetch(sql, values)]


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _index(text: str) -> tuple[str, int]:
    """Build the words of a memory as a tsvector, and count them. All fit into one: a memory is short."""
    counts = count_words(text)
    [vector] = build_vectors(counts)
    return vector, counts.total()


def _filter_scopes(scopes: Sequence[str] | None) -> tuple[str, tuple[list[str], ...]]:
    if scopes is None:
        return "true", ()
    return "scope = ANY(%s)", ([scope for scope in scopes if "\0" not in scope],)
