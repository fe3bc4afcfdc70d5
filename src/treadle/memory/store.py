"""Stores of memories: a table with full-text search in the log's SQLite file, or a dictionary.

The port checks which texts may be stored.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from treadle.errors import NotFound
from treadle.log.full_text import parse_query, prepare_for_index, split_words
from treadle.memory.base import ALL_MEMORIES, Memory, MemoryQuery
from treadle.memory.search import MAX_VECTORS, SearchableMemories

# The fields of a memory in its JSON. SQLite uses an index only for a query with exactly the index's expression.
TEXT_SQL = "json_extract(CAST(body AS TEXT), '$.text')"
KIND_SQL = "json_extract(CAST(body AS TEXT), '$.kind')"

Result = TypeVar("Result")

_decoder = msgspec.json.Decoder(Memory)


class SqliteDatabase(Protocol):
    """An SQLite file with the tables of the log. Both properties give the connection; errors are translated.

    `write` runs a function in a transaction, as soon as no other process writes.
    """

    @property
    def transaction(self) -> AbstractContextManager[sqlite3.Connection]: ...

    @property
    def connection(self) -> AbstractContextManager[sqlite3.Connection]: ...

    async def write(self, decide: Callable[[sqlite3.Connection], Result]) -> Result: ...


def complete_memory(memory: Memory, now: float) -> Memory:
    """Give a new memory its id and time. One that is restored has both."""
    return replace(memory, id=memory.id or f"mem_{os.urandom(8).hex()}", at=memory.at or now)


def build_not_found(memory_id: str) -> NotFound:
    """Build the error for an unknown memory."""
    return NotFound(f"there is no memory {memory_id!r}; it may have been deleted already")


class InMemoryMemories(SearchableMemories):
    """Memories that live as long as this object."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._memories: dict[str, Memory] = {}
        self._vectors: dict[str, tuple[str, Sequence[float]]] = {}

    async def _insert(self, memory: Memory) -> Memory:
        for known in self._memories.values():
            if (known.scope, known.text) == (memory.scope, memory.text):
                return known
        memory = complete_memory(memory, self._clock())
        self._memories[memory.id] = memory
        return memory

    async def _update(self, memory_id: str, text: str) -> Memory:
        memory = replace(await self.get(memory_id), text=text)
        self._memories[memory_id] = memory
        self._vectors.pop(memory_id, None)
        return memory

    async def get(self, memory_id: str) -> Memory:
        if memory_id not in self._memories:
            raise build_not_found(memory_id)
        return self._memories[memory_id]

    async def list(self, query: MemoryQuery = ALL_MEMORIES) -> list[Memory]:
        found = [memory for memory in self._iterate(query.scopes) if query.kind in (None, memory.kind)]
        return (found[::-1] if query.newest else found)[query.offset : query.offset + query.limit]

    async def delete(self, memory_id: str) -> None:
        await self.get(memory_id)
        del self._memories[memory_id]
        self._vectors.pop(memory_id, None)

    def _iterate(self, scopes: Sequence[str] | None) -> Iterable[Memory]:
        return (memory for memory in self._memories.values() if scopes is None or memory.scope in scopes)

    async def _find_by_words(self, text: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        wanted = parse_query(text).items()
        found: list[tuple[int, int, Memory]] = []
        for number, memory in enumerate(self._iterate(scopes)):
            words = set(split_words(memory.text, index=True))
            score = sum(
                word in words or (is_prefix and any(one.startswith(word) for one in words))
                for word, is_prefix in wanted
            )
            if score:
                found.append((-score, number, memory))
        return [memory for _, _, memory in sorted(found, key=lambda row: row[:2])[:limit]]

    async def _load_existing(self, ids: Iterable[str]) -> list[Memory]:
        return [self._memories[memory_id] for memory_id in ids if memory_id in self._memories]

    async def _list_missing(self, name: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        newest = list(self._iterate(scopes))[: -MAX_VECTORS - 1 : -1]
        return [memory for memory in newest if self._vectors.get(memory.id, ("",))[0] != name][:limit]

    async def _save_vectors(self, name: str, vectors: Sequence[tuple[Memory, Sequence[float]]]) -> None:
        for memory, vector in vectors:
            if memory.id in self._memories and self._memories[memory.id].text == memory.text:
                self._vectors[memory.id] = (name, vector)

    async def _load_vectors(self, name: str, scopes: Sequence[str] | None) -> Mapping[str, Sequence[float]]:
        stored = ((memory.id, self._vectors.get(memory.id, ("", ()))) for memory in self._iterate(scopes))
        return {memory_id: vector for memory_id, (maker, vector) in stored if maker == name and vector}


class SqliteMemories(SearchableMemories):
    """Memories in the file of an SQLite log."""

    def __init__(self, database: SqliteDatabase, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock

    async def _insert(self, memory: Memory) -> Memory:
        def insert(db: sqlite3.Connection) -> Memory:
            same = f"SELECT body FROM memories WHERE +scope = ? AND {TEXT_SQL} = ? LIMIT 1"
            for (body,) in db.execute(same, (memory.scope, memory.text)):
                return _decoder.decode(body)
            new = complete_memory(memory, self._clock())
            num = db.execute(
                "INSERT INTO memories (id, scope, body) VALUES (?, ?, ?)", (new.id, new.scope, msgspec.json.encode(new))
            ).lastrowid
            db.execute("INSERT INTO memory_words (rowid, text) VALUES (?, ?)", (num, prepare_for_index(new.text)))
            return new

        return await self._database.write(insert)

    async def _update(self, memory_id: str, text: str) -> Memory:
        def update(db: sqlite3.Connection) -> Memory:
            num, memory = _fetch_memory(db, memory_id)
            memory = replace(memory, text=text)
            db.execute("DELETE FROM memory_vectors WHERE num = ?", (num,))
            db.execute("UPDATE memories SET body = ? WHERE num = ?", (msgspec.json.encode(memory), num))
            db.execute("UPDATE memory_words SET text = ? WHERE rowid = ?", (prepare_for_index(text), num))
            return memory

        return await self._database.write(update)

    async def get(self, memory_id: str) -> Memory:
        with self._database.connection as db:
            return _fetch_memory(db, memory_id)[1]

    async def list(self, query: MemoryQuery = ALL_MEMORIES) -> list[Memory]:
        where, values = _filter_scopes(query.scopes)
        if query.kind == "fact":  # the default is not written into the JSON
            where = f"{where} AND {KIND_SQL} IS NULL"
        elif query.kind is not None:
            where, values = f"+{where} AND {KIND_SQL} = ?", (*values, query.kind)
        order = f"ORDER BY num {'DESC' if query.newest else 'ASC'} LIMIT ? OFFSET ?"
        return self._query(f"SELECT body FROM memories WHERE {where} {order}", *values, query.limit, query.offset)

    async def delete(self, memory_id: str) -> None:
        def remove(db: sqlite3.Connection) -> None:
            num, _ = _fetch_memory(db, memory_id)
            db.execute("DELETE FROM memory_words WHERE rowid = ?", (num,))
            db.execute("DELETE FROM memory_vectors WHERE num = ?", (num,))
            db.execute("DELETE FROM memories WHERE num = ?", (num,))

        await self._database.write(remove)

    async def _find_by_words(self, text: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        match = " OR ".join(f'"{word}"{"*" if is_prefix else ""}' for word, is_prefix in parse_query(text).items())
        if not match:
            return []
        where, values = _filter_scopes(scopes)
        query = f"""SELECT body FROM memory_words JOIN memories ON memories.num = memory_words.rowid
            WHERE memory_words MATCH ? AND {where} ORDER BY rank, num LIMIT ?"""
        return self._query(query, match, *values, limit)

    async def _load_existing(self, ids: Iterable[str]) -> list[Memory]:
        wanted = tuple(ids)
        return self._query(f"SELECT body FROM memories WHERE id IN ({', '.join('?' * len(wanted))})", *wanted)

    async def _list_missing(self, name: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        where, values = _filter_scopes(scopes)
        query = f"""SELECT body FROM (SELECT num, body FROM memories WHERE {where} ORDER BY num DESC LIMIT ?) AS newest
            LEFT JOIN memory_vectors ON memory_vectors.num = newest.num
            WHERE memory_vectors.name IS NOT ? ORDER BY newest.num DESC LIMIT ?"""
        return self._query(query, *values, MAX_VECTORS, name, limit)

    async def _save_vectors(self, name: str, vectors: Sequence[tuple[Memory, Sequence[float]]]) -> None:
        with self._database.transaction as db:
            for memory, vector in vectors:
                try:
                    num, stored = _fetch_memory(db, memory.id)
                except NotFound:
                    continue
                if stored.text == memory.text:
                    values = (num, name, array("f", vector).tobytes())
                    db.execute("INSERT OR REPLACE INTO memory_vectors (num, name, vector) VALUES (?, ?, ?)", values)

    async def _load_vectors(self, name: str, scopes: Sequence[str] | None) -> Mapping[str, Sequence[float]]:
        where, values = _filter_scopes(scopes)
        query = f"""SELECT id, vector FROM memories JOIN memory_vectors ON memory_vectors.num = memories.num
            WHERE name = ? AND {where} ORDER BY memories.num DESC LIMIT ?"""
        with self._database.connection as db:
            return {
                memory_id: array("f", vector) for memory_id, vector in db.execute(query, (name, *values, MAX_VECTORS))
            }

    def _query(self, sql: str, *values: object) -> list[Memory]:
        with self._database.connection as db:
            return [_decoder.decode(body) for (body,) in db.execute(sql, values)]


def _fetch_memory(db: sqlite3.Connection, memory_id: str) -> tuple[int, Memory]:
    row = db.execute("SELECT num, body FROM memories WHERE id = ?", (memory_id,)).fetchone()
    if row is None:
        raise build_not_found(memory_id)
    return row[0], _decoder.decode(row[1])


def _filter_scopes(scopes: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
    if scopes is None:
        return "1", ()
    return f"scope IN ({', '.join('?' * len(scopes))})", tuple(scopes)
