"""What is remembered, kept in the same store as the sessions: in a table with full-text search, or in a list.

What may be kept is decided by the port.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.errors import NotFound
from treadle.log.base import Embed, Memories, Memory, MemoryKind
from treadle.log.full_text import parse_query, prepare_for_index, split_words
from treadle.log.schema import MEMORY_FIELD
from treadle.log.sqlite_file import SqliteFile
from treadle.memory.ranking import fuse_rankings
from treadle.memory.search import MAX_VECTORS, find_similar

_decoder = msgspec.json.Decoder(Memory)


def _new(memory: Memory, now: float) -> Memory:
    return replace(memory, id=f"mem_{os.urandom(8).hex()}", at=memory.at or now)


def _unknown(memory_id: str) -> NotFound:
    return NotFound(f"nothing is remembered as {memory_id!r}; it may have been forgotten already")


class SearchableMemories(Memories):
    """Memories that are found by their words and, where there is an embedding, by their meaning, fused by rank."""

    async def search(
        self, text: str, scopes: Sequence[str] | None = None, limit: int = 20, embed: Embed | None = None
    ) -> list[Memory]:
        found = self._find(text, scopes, limit)
        embed = embed or self.embed
        near = await find_similar(self, embed, text, scopes) if embed is not None and text.strip() else []
        if not near:
            return found
        best = fuse_rankings([memory.id for memory in found], near)[:limit]
        known = {memory.id: memory for memory in (*found, *self._those(best))}
        return [known[one] for one in best if one in known]

    @abstractmethod
    def _find(self, text: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        """Those that have any of the words, best first."""

    @abstractmethod
    def _those(self, ids: Iterable[str]) -> list[Memory]:
        """Those of them that are there still."""

    @abstractmethod
    def list_missing(self, name: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]: ...

    @abstractmethod
    def save_vectors(self, name: str, made: Sequence[tuple[Memory, Sequence[float]]]) -> None: ...

    @abstractmethod
    def load_vectors(self, name: str, scopes: Sequence[str] | None) -> Mapping[str, Sequence[float]]: ...


class InMemoryMemories(SearchableMemories):
    """Memories that live as long as this object."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, Memory] = {}
        self._vectors: dict[str, tuple[str, Sequence[float]]] = {}

    async def _put(self, memory: Memory) -> Memory:
        for known in self._kept.values():
            if (known.scope, known.text) == (memory.scope, memory.text):
                return known
        memory = _new(memory, self._clock())
        self._kept[memory.id] = memory
        return memory

    async def _change(self, memory_id: str, text: str) -> Memory:
        memory = replace(await self.get(memory_id), text=text)
        self._kept[memory_id] = memory
        self._vectors.pop(memory_id, None)
        return memory

    async def get(self, memory_id: str) -> Memory:
        if memory_id not in self._kept:
            raise _unknown(memory_id)
        return self._kept[memory_id]

    async def list(
        self,
        scopes: Sequence[str] | None = None,
        limit: int = 1000,
        kind: MemoryKind | None = None,
        *,
        offset: int = 0,
        newest: bool = False,
    ) -> list[Memory]:
        there = [memory for memory in self._within(scopes) if kind in (None, memory.kind)]
        return (there[::-1] if newest else there)[offset : offset + limit]

    def _within(self, scopes: Sequence[str] | None) -> Iterable[Memory]:
        return (memory for memory in self._kept.values() if scopes is None or memory.scope in scopes)

    def _find(self, text: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        wanted = parse_query(text).items()
        found: list[tuple[int, int, Memory]] = []
        for number, memory in enumerate(self._within(scopes)):
            words = set(split_words(memory.text, index=True))
            score = sum(
                word in words or (begins and any(one.startswith(word) for one in words)) for word, begins in wanted
            )
            if score:
                found.append((-score, number, memory))
        return [memory for _, _, memory in sorted(found, key=lambda entry: entry[:2])[:limit]]

    async def delete(self, memory_id: str) -> None:
        await self.get(memory_id)
        del self._kept[memory_id]
        self._vectors.pop(memory_id, None)

    def _those(self, ids: Iterable[str]) -> list[Memory]:
        return [self._kept[one] for one in ids if one in self._kept]

    def list_missing(self, name: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        newest = list(self._within(scopes))[: -MAX_VECTORS - 1 : -1]
        return [one for one in newest if self._vectors.get(one.id, ("",))[0] != name][:limit]

    def save_vectors(self, name: str, made: Sequence[tuple[Memory, Sequence[float]]]) -> None:
        self._vectors.update((memory.id, (name, vector)) for memory, vector in made if self._is_there(memory))

    def _is_there(self, memory: Memory) -> bool:
        return memory.id in self._kept and self._kept[memory.id].text == memory.text

    def load_vectors(self, name: str, scopes: Sequence[str] | None) -> Mapping[str, Sequence[float]]:
        made = ((memory.id, self._vectors.get(memory.id, ("", ()))) for memory in self._within(scopes))
        return {memory_id: vector for memory_id, (by, vector) in made if by == name and vector}


class SqliteMemories(SearchableMemories):
    """Memories in the file of an SQLite log."""

    def __init__(self, store: SqliteFile, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock

    async def _put(self, memory: Memory) -> Memory:
        with self._store.transaction as db:
            same = f"SELECT body FROM memories WHERE +scope = ? AND {MEMORY_FIELD.format('text')} = ? LIMIT 1"
            for (body,) in db.execute(same, (memory.scope, memory.text)):
                return _decoder.decode(body)
            memory = _new(memory, self._clock())
            num = db.execute(
                "INSERT INTO memories (id, scope, body) VALUES (?, ?, ?)",
                (memory.id, memory.scope, msgspec.json.encode(memory)),
            ).lastrowid
            db.execute("INSERT INTO memory_words (rowid, text) VALUES (?, ?)", (num, prepare_for_index(memory.text)))
        return memory

    async def _change(self, memory_id: str, text: str) -> Memory:
        with self._store.transaction as db:
            num, memory = self._row(memory_id)
            memory = replace(memory, text=text)
            db.execute("DELETE FROM memory_vectors WHERE num = ?", (num,))
            db.execute("UPDATE memories SET body = ? WHERE num = ?", (msgspec.json.encode(memory), num))
            db.execute("UPDATE memory_words SET text = ? WHERE rowid = ?", (prepare_for_index(text), num))
        return memory

    async def get(self, memory_id: str) -> Memory:
        with self._store.connection:
            return self._row(memory_id)[1]

    async def list(
        self,
        scopes: Sequence[str] | None = None,
        limit: int = 1000,
        kind: MemoryKind | None = None,
        *,
        offset: int = 0,
        newest: bool = False,
    ) -> list[Memory]:
        where, values = _within(scopes)
        if kind is not None:  # the usual one is not written out
            written = MEMORY_FIELD.format("kind")
            where = f"{where} AND {written} IS NULL" if kind == "fact" else f"+{where} AND {written} = ?"
            values = values if kind == "fact" else (*values, kind)
        with self._store.connection as db:
            order = f"ORDER BY num {'DESC' if newest else 'ASC'} LIMIT ? OFFSET ?"
            rows = db.execute(f"SELECT body FROM memories WHERE {where} {order}", (*values, limit, offset))
            return [_decoder.decode(body) for (body,) in rows]

    def _find(self, text: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        match = " OR ".join(f'"{word}"{"*" if begins else ""}' for word, begins in parse_query(text).items())
        if not match:
            return []
        where, values = _within(scopes)
        query = f"""SELECT body FROM memory_words JOIN memories ON memories.num = memory_words.rowid
            WHERE memory_words MATCH ? AND {where} ORDER BY rank, num LIMIT ?"""
        with self._store.connection as db:
            return [_decoder.decode(body) for (body,) in db.execute(query, (match, *values, limit))]

    async def delete(self, memory_id: str) -> None:
        with self._store.transaction as db:
            num, _ = self._row(memory_id)
            db.execute("DELETE FROM memory_words WHERE rowid = ?", (num,))
            db.execute("DELETE FROM memory_vectors WHERE num = ?", (num,))
            db.execute("DELETE FROM memories WHERE num = ?", (num,))

    def _those(self, ids: Iterable[str]) -> list[Memory]:
        wanted = tuple(ids)
        query = f"SELECT body FROM memories WHERE id IN ({', '.join('?' * len(wanted))})"
        with self._store.connection as db:
            return [_decoder.decode(body) for (body,) in db.execute(query, wanted)]

    def list_missing(self, name: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        where, values = _within(scopes)
        query = f"""SELECT body FROM (SELECT num, body FROM memories WHERE {where} ORDER BY num DESC LIMIT ?) AS newest
            LEFT JOIN memory_vectors ON memory_vectors.num = newest.num
            WHERE memory_vectors.name IS NOT ? ORDER BY newest.num DESC LIMIT ?"""
        with self._store.connection as db:
            return [_decoder.decode(body) for (body,) in db.execute(query, (*values, MAX_VECTORS, name, limit))]

    def save_vectors(self, name: str, made: Sequence[tuple[Memory, Sequence[float]]]) -> None:
        with self._store.transaction as db:
            for memory, vector in made:
                row: Any = db.execute("SELECT num, body FROM memories WHERE id = ?", (memory.id,)).fetchone()
                if row is not None and _decoder.decode(row[1]).text == memory.text:
                    values = (row[0], name, array("f", vector).tobytes())
                    db.execute("INSERT OR REPLACE INTO memory_vectors (num, name, vector) VALUES (?, ?, ?)", values)

    def load_vectors(self, name: str, scopes: Sequence[str] | None) -> Mapping[str, Sequence[float]]:
        where, values = _within(scopes)
        query = f"""SELECT id, vector FROM memories JOIN memory_vectors ON memory_vectors.num = memories.num
            WHERE name = ? AND {where} ORDER BY memories.num DESC LIMIT ?"""
        with self._store.connection as db:
            return {one: array("f", vector) for one, vector in db.execute(query, (name, *values, MAX_VECTORS))}

    def _row(self, memory_id: str) -> tuple[int, Memory]:
        row: Any = (
            self._store.get_connection().execute("SELECT num, body FROM memories WHERE id = ?", (memory_id,)).fetchone()
        )
        if row is None:
            raise _unknown(memory_id)
        return row[0], _decoder.decode(row[1])


def _within(scopes: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
    if scopes is None:
        return "1", ()
    return f"scope IN ({', '.join('?' * len(scopes))})", tuple(scopes)
