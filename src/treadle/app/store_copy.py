"""Copying the sessions of one store to another one, of the same kind or not. What was copied is read and compared.

It is for a person's own stores: rights and open questions go along. `export/import_session.py` is for files of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from treadle.app.session_transfer import SessionLeftOut, SessionTransfer, Transferred
from treadle.errors import BadInput, NotFound, StoreAway, StoreBusy, StoreError, StoreFull, StoreReadOnly
from treadle.history.content_store import ContentStore
from treadle.log.open_log import require_psycopg
from treadle.log.session_copy import SessionRecord, StoreReader, StoreWriter
from treadle.memory.base import Memories, Memory, MemoryQuery
from treadle.secrets.store_url import hide_password, is_postgres_url

WORKERS = 8
"""How many sessions are copied at the same time. A database on another machine answers each only after a while."""
MIN_PREFIX = 3
"""Minimum length of the start of an id."""
_MEMORIES_AT_ONCE = 500
_STOPS = (StoreAway, StoreBusy, StoreFull, StoreReadOnly)
"""Errors of a store that stop the whole copy. Others concern one session."""

Approvals = Literal["kept", "void"]


class LeftOut(Struct, frozen=True):
    """A session or a memory that is not in the new store as it is in the old one, and why."""

    id: str
    why: str


class CopySummary(Struct):
    """What a copy did. `unchanged` sessions were there already, and those in `went_on` have gone on there.

    `approvals` says what becomes of questions that wait for a person. They are void in a store that has a secret of its
    own: an answer to such a question allows nothing, and the agent may ask anew.
    """

    source: str
    target: str
    dry_run: bool
    copied: int = 0
    extended: int = 0
    unchanged: int = 0
    went_on: list[str] = field(default_factory=list[str])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    facts: int = 0
    artifacts: int = 0
    memories: int = 0
    contents: int = 0
    lost_contents: int = 0
    approvals: Approvals = "kept"

    @property
    def sessions(self) -> int:
        """How many sessions were looked at."""
        return self.copied + self.extended + self.unchanged + len(self.went_on) + len(self.left_out)


async def copy_store(
    source: str, target: str, report: Callable[[str], None], *, sessions: Collection[str] = (), dry_run: bool = False
) -> CopySummary:
    """Copy sessions, with everything around them. It can be stopped at any time, and then started again.

    `sessions` are ids, or the starts of ids; without them all sessions are copied, and the memories. With `dry_run`
    nothing is written.
    """
    async with AsyncExitStack() as stack:
        reader = await _open_store(source)
        stack.push_async_callback(reader.close)
        wanted = await find_ids(reader, sessions)
        existing = await _open_existing(reader, target)
        if dry_run:
            writer = existing
        else:
            if existing is not None:
                await existing.close()
            writer = await _open_store(target, is_target=True)
        if writer is not None:
            stack.push_async_callback(writer.close)
        summary = CopySummary(reader.name, hide_password(target), dry_run)
        try:
            await _Copy(reader, writer, summary, report).run(wanted)
        except _STOPS as error:
            raise type(error)(
                f"{str(error).removesuffix('.')}. {summary.copied + summary.extended} sessions were copied and are "
                f"whole; {reader.name} was not changed. Run the same command again later: it goes on from there"
            ) from error
    return summary


async def _open_store(store: str, *, is_target: bool = False) -> StoreReader:
    """Open a store that is only read, or the one to copy to, which is created if there is none.

    Raises `NotFound` when there is no store to read.
    """
    if is_postgres_url(store):
        require_psycopg()
        from treadle.log.postgres_copy import PostgresReader, PostgresWriter

        opened = PostgresWriter(store) if is_target else PostgresReader(store)
        await opened.open()
        return opened
    from treadle.log.sqlite_copy import SqliteReader, SqliteWriter

    return (SqliteWriter if is_target else SqliteReader)(find_store_path(store), ContentStore())


def find_store_path(store: str) -> Path:
    """Return the path of a store in a file. Raises `BadInput` for what is no file."""
    if "://" in store or store in ("", ":memory:"):
        shown = hide_password(store)
        raise BadInput(f"{shown!r} cannot be copied; name a file, or postgresql://USER@HOST/DATABASE")
    return Path(store).expanduser().absolute()


async def _open_existing(reader: StoreReader, target: str) -> StoreReader | None:
    """Open the store to copy to for reading, if there is one. It must not be the source under another name."""
    try:
        existing = await _open_store(target)
    except NotFound:
        return None
    if existing.identity == reader.identity:
        await existing.close()
        raise BadInput(f"{reader.name} and {hide_password(target)} are the same store; nothing was copied")
    return existing


async def find_ids(source: StoreReader, wanted: Collection[str]) -> set[str]:
    """Find the sessions with these ids, or starts of ids. Raises `NotFound`, or `BadInput` when several match."""
    found: dict[str, list[str]] = {one: [one] if await source.get_session(one) else [] for one in wanted}
    open_ones = [one for one, ids in found.items() if not ids and len(one) >= MIN_PREFIX]
    if open_ones:
        async with aclosing(source.iterate_sessions()) as records:
            async for record in records:
                for one in open_ones:
                    if record.id.startswith(one):
                        found[one].append(record.id)
    for one, ids in found.items():
        if not ids:
            raise NotFound(f"{source.name} has no session {one!r}; nothing was copied")
        if len(ids) > 1:
            raise BadInput(f"{one!r} matches {len(ids)} sessions; write more of the id. Nothing was copied")
    return {session_id for ids in found.values() for session_id in ids}


class _Copy:
    """One copy of a store. The records of sessions are read as they are needed, so that many need little memory."""

    def __init__(
        self, source: StoreReader, target: StoreReader | None, summary: CopySummary, report: Callable[[str], None]
    ) -> None:
        self._source, self._target, self._summary, self._report = source, target, summary, report
        self._writer = target if isinstance(target, StoreWriter) else None
        self._transfer = SessionTransfer(source, target)
        self._next = asyncio.Lock()

    async def run(self, wanted: set[str]) -> None:
        """Copy these sessions with their helpers, or all of them and the memories."""
        await self._bring_approval_key()
        async with aclosing(self._choose(wanted)) as records:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(WORKERS):
                        group.create_task(self._work(records))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        if not wanted:
            await self._copy_memories()
        if self._writer is not None:
            await self._writer.end(self._source.identity)

    async def _bring_approval_key(self) -> None:
        """Give a store without sessions the secret that binds approvals, so that open questions can be answered."""
        key = await self._source.read_approval_key()
        if key is None:
            return
        if self._writer is not None:
            await self._writer.set_approval_key(key)
        if self._target is not None:
            there = await self._target.read_approval_key()
            is_empty = self._writer is None and await self._is_empty(self._target)
            self._summary.approvals = "kept" if there in (None, key) or is_empty else "void"

    async def _is_empty(self, store: StoreReader) -> bool:
        async with aclosing(store.iterate_sessions()) as records:
            return await anext(records, None) is None

    async def _choose(self, wanted: set[str]) -> AsyncGenerator[SessionRecord]:
        """Choose the wanted sessions, and the helpers that their calls started, which were created after them."""
        chosen = set(wanted)
        async with aclosing(self._source.iterate_sessions()) as records:
            async for record in records:
                parent = record.info.parent
                if wanted and parent is not None and record.info.is_helper and parent.session_id in chosen:
                    chosen.add(record.id)
                if not wanted or record.id in chosen:
                    yield record

    async def _work(self, records: AsyncGenerator[SessionRecord]) -> None:
        while True:
            async with self._next:
                record = await anext(records, None)
            if record is None:
                return
            try:
                self._note(record, await self._transfer.transfer(record))
            except _STOPS:
                raise
            except (SessionLeftOut, StoreError) as error:
                self._summary.left_out.append(LeftOut(record.id, str(error)))
            self._report(f"{self._summary.sessions} sessions, {self._summary.facts} facts copied")

    def _note(self, record: SessionRecord, done: Transferred) -> None:
        summary = self._summary
        if done.outcome == "copied":
            summary.copied += 1
        elif done.outcome == "extended":
            summary.extended += 1
        elif done.outcome == "unchanged":
            summary.unchanged += 1
        else:
            summary.went_on.append(record.id)
        for name in ("facts", "artifacts", "contents", "lost_contents"):
            setattr(summary, name, getattr(summary, name) + getattr(done, name))

    async def _copy_memories(self) -> None:
        """Copy the memories with their ids and times. A text that is there already stays as it is."""
        source, target = self._source.memories, self._target.memories if self._target is not None else None
        offset = 0
        while source is not None:
            memories = await source.list(MemoryQuery(limit=_MEMORIES_AT_ONCE, offset=offset))
            for memory in memories:
                await self._copy_memory(target, memory)
            offset += len(memories)
            self._report(f"{offset} memories compared")
            if len(memories) < _MEMORIES_AT_ONCE:
                return

    async def _copy_memory(self, target: Memories | None, memory: Memory) -> None:
        there = await self._get_memory(target, memory.id) if target is not None else None
        if there is not None and there != memory:
            self._summary.left_out.append(LeftOut(memory.id, "this memory has another text there; it was left alone"))
        elif there is None:
            stored = memory if self._writer is None or target is None else await target.restore(memory)
            self._summary.memories += stored.id == memory.id

    async def _get_memory(self, memories: Memories, memory_id: str) -> Memory | None:
        try:
            return await memories.get(memory_id)
        except NotFound:
            return None
