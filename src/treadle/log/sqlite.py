"""The embedded log: one SQLite file, which any number of processes on one machine can share.

Every call works without an await between deciding and recording, so no cancellation can fall between. While another
process writes, the call awaits and then decides anew. One log belongs to one event loop: it serves neither several
machines nor several threads.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from treadle.errors import ClaimLost, NotFound, PositionMoved, StoreError
from treadle.events import AnyFact
from treadle.log import records
from treadle.log.base import (
    Artifact,
    Claim,
    Claimant,
    PostResult,
    SearchHits,
    SessionInfo,
    SessionPage,
    SessionQuery,
    StoredFact,
    StoreWatch,
    Watch,
)
from treadle.log.hub import Channel, Hub, HubLog, HubStoreWatch
from treadle.log.lock_wait import retry
from treadle.log.owner import is_gone
from treadle.log.session_list import fetch_page
from treadle.log.shared_values import InMemoryValues
from treadle.log.sqlite_file import SideConnection, SqliteFile, give_back_space, retry_while_busy
from treadle.log.sqlite_open import Durability
from treadle.log.text_index import TextIndex, forget_words
from treadle.memory.store import SqliteMemories

POLL_SECONDS = 0.05
_MAX_CACHED_NUMBERS = 10_000

_CLAIM = "UPDATE sessions SET owner = ?, epoch = epoch + 1, lease = ?, wake_at = NULL WHERE num = ?"
_CLAIM_WAITING = "UPDATE sessions SET status = 'running' WHERE num = ? AND status = 'waiting'"
# Without a position there may be posts that the owner has not seen, so their wake-up is kept.
_RELEASE = f"""UPDATE sessions SET owner = '', lease = 0,
    wake_at = CASE WHEN :seq IS NOT NULL THEN :wake_at
        ELSE min(coalesce(:wake_at, wake_at), coalesce(wake_at, :wake_at)) END{{status}}
    WHERE num = :num AND epoch = :epoch AND owner = :owner AND (:seq IS NULL OR {records.HEAD_SQL} <= :seq)"""


class SqliteLog(HubLog):
    """A log in the file at `path`. The file and its folder are created when they are missing.

    A write waits up to `busy_timeout` seconds for other processes, and the owner of a session as long as it takes.
    Facts survive the death of the process. With `durability="power"` they also survive a power cut, and every append
    waits for the disk. With `read_only` nothing is written, and a store of an older version stays one.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "process",
        busy_timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
    ) -> None:
        self.path, self.busy_timeout = Path(path).expanduser().absolute(), busy_timeout
        self._clock = clock
        self._file = SqliteFile(self.path, durability, busy_timeout, read_only=read_only)
        self._side = SideConnection(self._file)
        self._words = TextIndex(self._file, self._side)
        if not read_only and self._file.get_connection().execute("SELECT 1 FROM deleted_sessions").fetchone():
            self._side.repeat(forget_words)  # a process ended before it had done so
        self.memories = SqliteMemories(self._file, clock)
        self.shared = InMemoryValues(clock)
        read_batch = partial(self.read, most_bytes=records.BATCH_BYTES)
        self._hub = Hub(read_batch, self._read_store, on_wait=self._schedule_poll)
        self._numbers: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_loop: asyncio.AbstractEventLoop | None = None
        self._data_version = 0
        self._approval_key: bytes | None = None

    @retry_while_busy()
    async def create(self, session_id: str, facts: Sequence[AnyFact], *, claim: Claim | None = None) -> None:
        with self._file.transaction as db:
            self._check_claim(db, claim)
            if db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None:
                raise records.build_taken(session_id)
            numbered = records.number_facts(facts, self._clock())
            info = records.build_first_info(session_id, numbered)
            num = records.insert_session(db, info, named_by_user=records.summarize_changes(numbered).named_by_user)
            records.insert_facts(db, num, numbered)
        records.stamp_created(facts, numbered)
        self._hub.wake_store_waiters()

    @retry_while_busy()
    async def post(
        self,
        session_id: str,
        facts: Sequence[AnyFact],
        key: str = "",
        *,
        wake: bool = True,
        claim: Claim | None = None,
        claimant: Claimant | None = None,
    ) -> PostResult:
        now, began = self._clock(), time.perf_counter()
        with self._file.transaction as db:
            self._check_claim(db, claim)
            num, head = records.fetch_session(db, f"num, {records.HEAD_SQL}", session_id)
            if key and (stored := records.find_by_key(db, num, key)) is not None:
                return PostResult(tuple(stored), is_new=False)
            records.stamp_facts(facts, head, now)
            records.insert_facts(db, num, facts)
            if key:
                records.save_key(db, num, key, head, len(facts))
            columns, values = records.build_update(now, records.summarize_changes(facts))
            if wake:
                columns, values = f"{columns}, wake_at = min(coalesce(wake_at, ?), ?)", (*values, now, now)
            db.execute(f"UPDATE sessions SET {columns} WHERE num = ?", (*values, num))
            row = self._claim(db, claimant, self._find_claimable(db, session_id, now), now) if claimant else None
        self._announce(session_id, facts, time.perf_counter() - began)
        return PostResult(tuple(facts), is_new=True, claim=self._note_claim(claimant, row))

    @retry_while_busy()
    async def claim(
        self,
        owner: str,
        ttl: float,
        session_id: str = "",
        agents: Sequence[str] | None = None,
        roots: Sequence[str] | None = None,
    ) -> Claim | None:
        now, claimant = self._clock(), Claimant(owner, ttl, agents, roots)
        find = partial(records.find_longest_due, now=now, claimant=claimant)
        if not session_id:
            self._file.check_unharmed(thorough=True)
            with self._file.connection as db:
                if find(db) is None:
                    return None  # the usual case, answered without the write lock
        with self._file.transaction as db:
            row = self._find_claimable(db, session_id, now) if session_id else find(db)
            row = self._claim(db, claimant, row, now)
        return self._note_claim(claimant, row)

    def _claim(
        self, db: sqlite3.Connection, claimant: Claimant, row: records.Candidate | None, now: float
    ) -> records.Candidate | None:
        """Claim a session in a transaction, if there is one and it is one of the claimant's agents."""
        if row is None or not claimant.serves(*row[2:4]):
            return None
        db.execute(_CLAIM, (claimant.owner, now + claimant.ttl, row[0]))
        db.execute(_CLAIM_WAITING, (row[0],))
        return row

    def _note_claim(self, claimant: Claimant | None, row: records.Candidate | None) -> Claim | None:
        """Follow a session that was claimed, after the transaction."""
        if claimant is None or row is None:
            return None
        num, session_id, _, _, head, epoch = row
        self._cache_number(session_id, num)
        self._hub.mark_claimed(session_id, epoch + 1, head)
        self._schedule_poll()
        return Claim(session_id, claimant.owner, epoch + 1, claimant.ttl)

    def _find_claimable(self, db: sqlite3.Connection, session_id: str, now: float) -> records.Candidate | None:
        """Find a session by its id, unless a live owner runs it."""
        columns = f"num, id, agent, workspace, {records.HEAD_SQL}, epoch, owner, lease"
        *row, owner, lease = records.fetch_session(db, columns, session_id)
        if owner and lease > now and not is_gone(owner):
            return None
        num, name, agent, workspace, head, epoch = row
        return num, name, agent, workspace, head, epoch

    @retry_while_busy(forever=True)
    async def renew(self, claim: Claim) -> None:
        with self._file.single_write as db:
            renewed = db.execute(
                "UPDATE sessions SET lease = ? WHERE num = ? AND epoch = ? AND owner = ?",
                (self._clock() + claim.ttl, self._get_number(claim.session_id), claim.epoch, claim.owner),
            ).rowcount
            if not renewed:
                raise self._explain_refusal(db, claim, None)

    @retry_while_busy()
    async def release(
        self, claim: Claim, expected_seq: int | None, wake_at: float | None = None, *, waiting: bool = False
    ) -> bool:
        with self._file.single_write as db:
            values = {
                "num": self._get_number(claim.session_id),
                "epoch": claim.epoch,
                "owner": claim.owner,
                "seq": expected_seq,
                "wake_at": wake_at,
            }
            # A column that is named costs a write to its indexes, also when it stays the same.
            sql = _RELEASE.format(status=", status = 'waiting'" if waiting else "")
            released = db.execute(sql, values).rowcount
            if not released:
                refusal = self._explain_refusal(db, claim, expected_seq)
                if isinstance(refusal, PositionMoved):
                    return False
                raise refusal
        self._note_release(claim)
        return True

    def _note_release(self, claim: Claim) -> None:
        self._hub.mark_released(claim.session_id, claim.epoch)
        if claim.session_id not in self._hub.channels:
            self._numbers.pop(claim.session_id, None)

    @retry_while_busy(forever=True)
    async def append(
        self, claim: Claim, expected_seq: int, facts: Sequence[AnyFact], key: str = "", *, release: bool = False
    ) -> None:
        if not facts:
            return
        began = time.perf_counter()
        records.stamp_facts(facts, expected_seq, self._clock())
        changes, size = records.summarize_changes(facts), 0
        if key or release or changes is not records.NO_CHANGES:
            release &= self._append_in_transaction(claim, facts, key, changes, release=release)
        else:
            with self._file.single_write as db:
                size = records.append_facts(db, self._get_number(claim.session_id), claim, facts)
                if not size:
                    raise self._explain_refusal(db, claim, expected_seq)
        self._announce(claim.session_id, facts, time.perf_counter() - began, from_owner=True, size=size)
        if release:
            self._note_release(claim)

    def _append_in_transaction(
        self, claim: Claim, facts: Sequence[AnyFact], key: str, changes: records.SessionChanges, *, release: bool
    ) -> bool:
        """Append facts that have a key or change the session's entry in the list. False when the key is not new."""
        with self._file.transaction as db:
            num = self._get_number(claim.session_id)
            if key and (stored := records.find_by_key(db, num, key)) is not None:
                self._check_claim(db, claim)
                records.stamp_repeated(facts, stored, key)
                return False
            head = facts[0].seq - 1
            if not records.append_facts(db, num, claim, facts):
                raise self._explain_refusal(db, claim, head)
            columns, values = records.build_update(facts[-1].at, changes)
            if release:
                columns += ", owner = '', lease = 0, wake_at = NULL"
            db.execute(f"UPDATE sessions SET {columns} WHERE num = ?", (*values, num))
            if key:
                records.save_key(db, num, key, head, len(facts))
        return True

    def _check_claim(self, db: sqlite3.Connection, claim: Claim | None) -> None:
        """Raise `ClaimLost` when another owner has taken over. Call it in the transaction of the write."""
        refusal = self._explain_refusal(db, claim, None) if claim is not None else None
        if isinstance(refusal, ClaimLost | NotFound):
            raise refusal

    def _explain_refusal(
        self, db: sqlite3.Connection, claim: Claim, expected_seq: int | None
    ) -> ClaimLost | PositionMoved | NotFound:
        """Build the error for a refused write. It is `PositionMoved` when the claim itself holds."""
        sql = f"SELECT epoch, owner, {records.HEAD_SQL} FROM sessions WHERE id = ?"
        row = db.execute(sql, (claim.session_id,)).fetchone()
        if row is not None and row[:2] == (claim.epoch, claim.owner):
            return records.build_position_moved(claim, row[2], expected_seq)
        self._hub.mark_released(claim.session_id, claim.epoch)
        if row is None:
            self._numbers.pop(claim.session_id, None)
            return records.build_not_found(claim.session_id)
        return records.build_claim_lost(claim)

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None, most_bytes: int | None = None
    ) -> list[AnyFact]:
        with self._file.connection as db:
            facts = records.read_facts(db, self._get_number(session_id), after, limit, most_bytes)
            if not facts and limit != 0:
                # Another process may have deleted the session of this number, and even created it again.
                known = self._numbers.pop(session_id)
                if self._get_number(session_id) != known:
                    return records.read_facts(db, self._get_number(session_id), after, limit, most_bytes)
            return facts

    def watch(self, session_id: str, after: int = 0) -> Watch:
        with self._file.connection as db:
            (head,) = records.fetch_session(db, records.HEAD_SQL, session_id)
        return self._hub.watch(session_id, after, head)

    def watch_all(self, after: int | None = None) -> StoreWatch:
        with self._file.connection as db:
            last = records.fetch_last_cursor(db)
        return HubStoreWatch(self._hub, last if after is None else min(max(after, 0), last))

    async def _read_store(self, after: int, count: int) -> tuple[list[StoredFact], int]:
        with self._file.connection as db:
            return records.read_store(db, after, count)

    async def get_info(self, session_id: str) -> SessionInfo:
        with self._file.connection as db:
            return records.build_session_info(records.fetch_session(db, records.build_info_columns(db), session_id))

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        if query.text:  # a common text may be in no name of the last changed sessions
            return await self._side.run(partial(fetch_page, query=query))
        with self._file.connection as db:
            return fetch_page(db, query)

    async def search(self, text: str, limit: int = 20) -> SearchHits:
        self._file.get_connection()  # raises when the log is closed
        return await self._words.search(text, limit)

    @retry_while_busy()
    async def put_artifact(
        self, session_id: str, data: bytes, media_type: str = "text/plain", *, claim: Claim | None = None
    ) -> str:
        artifact_id = records.hash_artifact(data)
        with self._file.transaction as db:
            self._check_claim(db, claim)
            num = self._fetch_number(db, session_id)
            db.execute(
                "INSERT OR IGNORE INTO artifacts (session, id, media_type, data) VALUES (?, ?, ?, ?)",
                (num, artifact_id, media_type, data),
            )
        return artifact_id

    async def get_artifact(self, session_id: str, artifact_id: str) -> Artifact:
        with self._file.connection as db:
            num = self._fetch_number(db, session_id)
            row = db.execute(
                "SELECT media_type, data FROM artifacts WHERE session = ? AND id = ?", (num, artifact_id)
            ).fetchone()
        if row is None:
            raise records.build_no_artifact(session_id, artifact_id)
        return Artifact(artifact_id, row[0], row[1])

    @retry_while_busy()
    async def get_approval_key(self) -> bytes:
        if self._approval_key is None:
            with self._file.connection as db:
                self._approval_key = records.fetch_approval_key(db)
        return self._approval_key

    @retry_while_busy()
    async def delete(self, session_id: str) -> None:
        with self._file.transaction as db:
            found = self._find_claimable(db, session_id, self._clock())
            if found is None:
                raise records.build_still_running(session_id)
            num = found[0]
            places = (num << 32, (num << 32) + records.SEQ_MASK)
            db.execute("DELETE FROM facts WHERE place BETWEEN ? AND ?", places)
            db.execute("INSERT INTO deleted_sessions VALUES (?)", (num,))
            db.execute("DELETE FROM keys WHERE session = ?", (num,))
            db.execute("DELETE FROM artifacts WHERE session = ?", (num,))
            db.execute("DELETE FROM sessions WHERE num = ?", (num,))
        self._numbers.pop(session_id, None)
        self._hub.end_session(session_id)
        while await self._side.run(forget_words):
            pass
        self._side.repeat(give_back_space)

    def now(self) -> float:
        return self._clock()

    async def check_writable(self, seconds: float) -> None:
        self._file.check_unharmed(thorough=True)
        await retry(self._file.check_writable, self.path, seconds)

    def check_integrity(self) -> None:
        """Check the whole file for damage. The time grows with its size."""
        self._file.check_integrity()

    async def close(self) -> None:
        self._hub.close()
        if self._timer is not None:
            self._timer.cancel()
        self._side.close()
        self._file.close()

    def _fetch_number(self, db: sqlite3.Connection, session_id: str) -> int:
        (num,) = records.fetch_session(db, "num", session_id)
        return num

    def _get_number(self, session_id: str) -> int:
        """Return the session's number from the cache, or from the file."""
        num = self._numbers.get(session_id)
        if num is None:
            num = self._fetch_number(self._file.get_connection(), session_id)
            self._cache_number(session_id, num)
        return num

    def _cache_number(self, session_id: str, num: int) -> None:
        if len(self._numbers) > _MAX_CACHED_NUMBERS:
            self._numbers.clear()
        self._numbers[session_id] = num

    def _schedule_poll(self) -> None:
        """Look for facts of other processes while a session is claimed or watched here.

        It is a timer and not a task, so that nothing is left pending when the loop ends.
        """
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer_loop is not loop:
            self._timer_loop = loop
            self._timer = loop.call_later(POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        self._timer = None
        if not self._file.is_open or not (self._hub.channels or self._hub.store_waiters):
            return
        self._schedule_poll()
        # A failure loses only a hint. The next read or write raises the error.
        with suppress(StoreError), self._file.connection as db:
            version: int = db.execute("PRAGMA data_version").fetchone()[0]
            if version != self._data_version:
                self._hub.wake_store_waiters()
                for session_id, channel in tuple(self._hub.channels.items()):
                    self._update_channel(db, session_id, channel)
                self._data_version = version

    def _update_channel(self, db: sqlite3.Connection, session_id: str, channel: Channel) -> None:
        row = db.execute(f"SELECT num, {records.HEAD_SQL} FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if row is None:
            self._hub.end_session(session_id)
            return
        num, head = row
        if head <= channel.head:
            return
        if channel.watchers and head - channel.head <= self._hub.ring:
            with suppress(StoreError):  # the watcher that reads a damaged fact gets the error
                channel.add_facts(records.read_facts(db, num, channel.head), from_owner=False)
        channel.advance_head(head)
        if self.listener is not None and channel.epoch:
            self.listener(session_id)
