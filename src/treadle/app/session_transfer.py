"""Copying one session to another store: compare it, bring it there, and read it again. `store_copy` chooses which."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Literal

import msgspec
from msgspec import Struct

from treadle.errors import StoreDamaged, StoreTooNew, TreadleError
from treadle.events import AnyFact, FilesKept, Rewound
from treadle.history.snapshot import FileTree
from treadle.log.postgres_rows import READER, find_min_reader
from treadle.log.records import hash_artifact, read_body
from treadle.log.session_copy import Publication, SessionRecord, StoreReader, StoreWriter

Outcome = Literal["copied", "extended", "unchanged", "went on"]

_MAX_KNOWN_CONTENTS = 10_000
"""So many old contents of a session are remembered, so that they are not copied twice."""
IS_RUNNING = "somebody runs it; copy it again when its run has ended or waits"


class SessionLeftOut(TreadleError):
    """This session cannot be copied now, or not at all. The message says why."""


class Transferred(Struct):
    """What was copied of a session."""

    outcome: Outcome
    facts: int = 0
    artifacts: int = 0
    contents: int = 0
    lost_contents: int = 0


class SessionTransfer:
    """Copies sessions from `source` to `target`. With a target that can only be read, or none, it only compares."""

    def __init__(self, source: StoreReader, target: StoreReader | None) -> None:
        self._source, self._target = source, target
        self._writer = target if isinstance(target, StoreWriter) else None

    async def transfer(self, record: SessionRecord) -> Transferred:
        """Copy a session, or what is missing of it. Raises `SessionLeftOut`."""
        if record.is_held:
            raise SessionLeftOut(IS_RUNNING)
        if not record.head:
            raise SessionLeftOut("it has no facts; the store is damaged here")
        there = await self._target.get_session(record.id) if self._target is not None else None
        digest = _Digest()
        if there is not None:
            await self._compare(record, there, digest)
            if there.head > record.head:
                return Transferred("went on")
        after = 0 if there is None else there.head
        if there is not None and after == record.head:
            return Transferred("unchanged", artifacts=await self._complete_artifacts(record, there))
        if there is not None and there.is_held:
            raise SessionLeftOut("it has grown here, and somebody runs its copy there")
        result = Transferred("copied" if there is None else "extended", record.head - after)
        if self._writer is None:
            return result
        await _Delivery(self._source, self._writer, record, there, digest, result).run()
        return result

    async def _compare(self, record: SessionRecord, there: SessionRecord, digest: _Digest) -> None:
        """Compare what both stores have of a session."""
        assert self._target is not None
        common, found = min(record.head, there.head), _Digest()
        await digest.add_all(self._source.read_bodies(record.num, 0, common))
        await found.add_all(self._target.read_bodies(there.num, 0, common))
        if digest.count < common:
            raise SessionLeftOut(f"its fact {digest.count + 1} is missing here")
        if found.count < common or found.value != digest.value:
            raise SessionLeftOut("there is another session with this id, or both have gone on; it was left alone there")

    async def _complete_artifacts(self, record: SessionRecord, there: SessionRecord) -> int:
        """Add the artifacts that only the source has. A result may be stored before the fact that names it."""
        assert self._target is not None
        known = set(await self._target.list_artifacts(there.num))
        missing = [name for name in await self._source.list_artifacts(record.num) if name not in known]
        if self._writer is not None:
            for name in missing:
                await _copy_artifact(self._source, self._writer, record.num, there.num, name)
        return len(missing)


class _Delivery:
    """Brings the facts that a store does not have yet, and shows them there in one step."""

    def __init__(
        self,
        source: StoreReader,
        target: StoreWriter,
        record: SessionRecord,
        there: SessionRecord | None,
        digest: _Digest,
        result: Transferred,
    ) -> None:
        self._source, self._target, self._record, self._there = source, target, record, there
        self._digest, self._result = digest, result
        self._after = 0 if there is None else there.head
        self._min_reader = record.min_reader
        self._copies_contents = source.has_contents or target.has_contents
        self._contents = set[str]()

    async def run(self) -> None:
        source, target, record = self._source, self._target, self._record
        artifacts = await source.list_artifacts(record.num)
        num, rest = await self._bring_facts(is_incoming=bool(artifacts))
        arrived = set(await target.list_artifacts(num)) if artifacts and num is not None else set[str]()
        for name in artifacts:
            if num is not None and name not in arrived:
                await _copy_artifact(source, target, record.num, num, name)
                self._result.artifacts += 1
        now = await source.get_session(record.id)
        if now is None:
            raise SessionLeftOut("it was deleted meanwhile")
        if now.is_held or now.epoch != record.epoch:
            raise SessionLeftOut(IS_RUNNING)
        if (now.num, now.head) != (record.num, record.head):
            raise SessionLeftOut("it has changed meanwhile; copy it again")
        keys = [key for key in await source.read_keys(record.num) if key.first > self._after]
        wake_at = now.find_wake_time(time.time())
        publication = Publication(now, self._after, num, rest, keys, wake_at, self._min_reader)
        is_shown = await target.publish(publication)
        there = await target.get_session(record.id)
        if there is None or there.head < record.head:
            raise SessionLeftOut("it has changed there meanwhile; copy it again")
        # An answer that got lost on its way looks like a refusal. What lies there decides.
        await self._verify(there, artifacts, is_shown=is_shown)

    async def _bring_facts(self, *, is_incoming: bool) -> tuple[int | None, list[bytes]]:
        """Read the facts that are missing there. A few of them are returned, many are added as incoming facts.

        Returns the number for them too. None means that the session gets one when it is shown.
        """
        target, record, identity = self._target, self._record, self._source.identity
        num = await target.find_begun(identity, record.id)
        if num is not None and (await self._is_stale(num)):
            await target.discard(identity, record.id)
            num = None
        first, arrived = list[bytes](), self._after
        last = 0 if num is None else await target.find_last_incoming(num)
        async with aclosing(self._source.read_bodies(record.num, self._after, record.head)) as pieces:
            async for bodies in pieces:
                await self._check(bodies, arrived)
                is_whole = arrived == self._after and arrived + len(bodies) == record.head
                if is_whole and num is None and not is_incoming:
                    first = bodies
                else:
                    num = await self._begin(num)
                    if arrived + len(bodies) > last:
                        await target.add_incoming(num, arrived, bodies)
                arrived += len(bodies)
        if arrived < record.head:
            raise SessionLeftOut(f"its fact {arrived + 1} is missing here")
        return num if self._there is None or num is not None else self._there.num, first

    async def _begin(self, num: int | None) -> int:
        if num is not None:
            return num
        known = None if self._there is None else self._there.num
        return await self._target.begin(self._source.identity, self._record.id, known)

    async def _is_stale(self, num: int) -> bool:
        """Whether the incoming facts of an earlier attempt are not those of this session."""
        if self._there is not None and self._there.num != num:
            return True
        last = await self._target.find_last_incoming(num)
        if not last:
            return False
        found, expected = _Digest(), _Digest()
        await found.add_all(self._target.read_incoming(num, self._after, last))
        await expected.add_all(self._source.read_bodies(self._record.num, self._after, last))
        return last > self._record.head or (found.count, found.value) != (expected.count, expected.value)

    async def _check(self, bodies: list[bytes], after: int) -> None:
        """Check that facts can be read, note who can read them, and copy the old contents that they name."""
        for seq, body in enumerate(bodies, after + 1):
            try:
                fact = read_body(body, seq)
            except StoreTooNew:  # it goes along as it is, and this release leaves the session alone
                self._min_reader = max(self._min_reader, READER + 1)
                continue
            except StoreDamaged as error:
                raise SessionLeftOut(str(error)) from error
            if fact.seq != seq:
                raise SessionLeftOut(f"fact {seq} says that it is fact {fact.seq}; the store is damaged here")
            self._min_reader = max(self._min_reader, find_min_reader((fact,)))
            if self._copies_contents:
                await self._copy_contents(fact)
        self._digest.add(bodies)

    async def _copy_contents(self, fact: AnyFact) -> None:
        """Copy the old contents of files that a fact names, and those that its list of files names."""
        if not isinstance(fact, FilesKept | Rewound):
            return
        for name in (*(file.before for file in fact.files), *(ref.content for ref in fact.refs)):
            await self._copy_content(name)
        if isinstance(fact, FilesKept):
            for name in _list_tree(await self._copy_content(fact.tree)):
                await self._copy_content(name)

    async def _copy_content(self, name: str) -> bytes:
        if not name or name in self._contents:
            return b""
        if len(self._contents) >= _MAX_KNOWN_CONTENTS:
            self._contents.clear()
        self._contents.add(name)
        data = await self._source.read_content(name)
        if data is None:  # deleted to make room, as a rewind would find too
            self._result.lost_contents += 1
            return b""
        await self._target.put_content(data)
        self._result.contents += 1
        return data

    async def _verify(self, there: SessionRecord, artifacts: Iterable[str], *, is_shown: bool) -> None:
        """Read the copy again, and compare it."""
        record, found = self._record, _Digest()
        await found.add_all(self._target.read_bodies(there.num, 0, record.head))
        if (found.count, found.value) != (record.head, self._digest.value):
            if is_shown:
                raise SessionLeftOut("what was stored there is not what was read here; do not use the copy")
            raise SessionLeftOut("there is another session with this id; it was left alone there")
        if there.epoch < record.epoch:
            raise SessionLeftOut("its epoch there is too low; do not use the copy")
        for name in artifacts:
            copy = await self._target.read_artifact(there.num, name)
            if copy is None or hash_artifact(copy.data) != name:
                raise SessionLeftOut(f"its artifact {name} is not there as it is here; do not use the copy")


async def _copy_artifact(source: StoreReader, target: StoreWriter, source_num: int, num: int, name: str) -> None:
    artifact = await source.read_artifact(source_num, name)
    if artifact is None:
        raise SessionLeftOut("it was deleted meanwhile")
    if hash_artifact(artifact.data) != name:
        raise SessionLeftOut(f"its artifact {name} is damaged here")
    await target.put_artifact(num, artifact)


def _list_tree(data: bytes) -> list[str]:
    """List the contents that a list of files names."""
    try:
        tree = msgspec.json.decode(data, type=FileTree)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    return [*(file.id for file in tree.files), *(name for one in tree.repositories for name in one.contents.values())]


class _Digest:
    """A hash over the bodies of facts, and how many there were."""

    def __init__(self) -> None:
        self.count, self._hash = 0, hashlib.sha256()

    @property
    def value(self) -> bytes:
        return self._hash.digest()

    def add(self, bodies: Iterable[bytes]) -> None:
        """Add facts in order."""
        for body in bodies:
            self._hash.update(len(body).to_bytes(8, "big"))
            self._hash.update(body)
            self.count += 1

    async def add_all(self, pieces: AsyncGenerator[list[bytes]]) -> None:
        """Add all facts of a session."""
        async with aclosing(pieces):
            async for bodies in pieces:
                self.add(bodies)
