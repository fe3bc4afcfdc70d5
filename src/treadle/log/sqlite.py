"""The embedded log: one SQLite file, for as many processes of one machine as want to share it.

Every call does its work at once, without an await between deciding and recording, so no cancellation can
fall between. Not for several machines, and not for several threads: one log belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from treadle.errors import ClaimLost, Conflict, NotFound, PositionMoved, StoreError
from treadle.events import AnyDelta, AnyFact
from treadle.log.base import (
    NO_CHANGES,
    Artifact,
    Claim,
    Log,
    PostResult,
    SearchHit,
    SessionChanges,
    SessionInfo,
    SessionPage,
    SessionQuery,
    Watch,
    summarize_changes,
)
from treadle.log.full_text import build_match_query, extract_text, has_unspaced_script, make_snippet, prepare_for_index
from treadle.log.hub import Channel, Hub
from treadle.log.owner import is_gone
from treadle.log.positions import hash_artifact, number_facts, stamp_created, stamp_facts, stamp_repeated
from treadle.log.rows import (
    HEAD_SQL,
    INFO_COLUMNS,
    SEQ_MASK,
    UPDATE_COLUMNS,
    Candidate,
    append_facts,
    build_session_info,
    build_update_values,
    fetch_row,
    find_by_key,
    find_longest_due,
    insert_facts,
    insert_session,
    read_facts,
    save_key,
)
from treadle.log.session_list import build_first_info, contains_text, format_cursor, parse_cursor
from treadle.log.sqlite_file import Durability, SqliteFile
from treadle.memory.store import SqliteMemories

POLL_SECONDS = 0.05
INDEX_BATCH = 1000

_MOVE = f"UPDATE sessions SET {UPDATE_COLUMNS} WHERE num = ?"
_CLAIM = """UPDATE sessions SET owner = ?, epoch = epoch + 1, lease = ?, wake_at = NULL,
    status = CASE status WHEN 'waiting' THEN 'running' ELSE status END WHERE num = ?"""
_POST = f"""UPDATE sessions SET {UPDATE_COLUMNS},
    wake_at = CASE WHEN ? THEN min(coalesce(wake_at, ?), ?) ELSE wake_at END WHERE num = ?"""
# Without a position there may be posts the owner has not seen, so their wake-up is kept.
_RELEASE = f"""UPDATE sessions SET owner = '', lease = 0,
    wake_at = CASE WHEN :seq IS NOT NULL THEN :wake_at
        ELSE min(coalesce(:wake_at, wake_at), coalesce(wake_at, :wake_at)) END,
    status = CASE WHEN :waiting THEN 'waiting' ELSE status END
    WHERE num = :num AND epoch = :epoch AND owner = :owner AND (:seq IS NULL OR {HEAD_SQL} <= :seq)"""
# The page is chosen first: a position costs a look-up, which only its own lines are worth.
_PAGE = f"""SELECT {INFO_COLUMNS} FROM sessions WHERE num IN (
        SELECT num FROM sessions
        WHERE (:status IS NULL OR status = :status) AND (:agent = '' OR agent = :agent)
        AND (:workspace = '' OR workspace = :workspace) AND (:text = '' OR holds(name, :text))
        AND (:parent = '' OR (parent IS NOT NULL AND json_extract(CAST(parent AS TEXT), '$.session_id') = :parent))
        AND (:prefix = '' OR substr(id, 1, length(:prefix)) = :prefix)
        AND (updated_at, num) < (:updated_at, :num) ORDER BY updated_at DESC, num DESC LIMIT :limit)
    ORDER BY updated_at DESC, num DESC"""
_SEARCH = f"""SELECT sessions.id, words.rowid & {SEQ_MASK}, snippet(words, 0, '', '', '…', 24)
    FROM words JOIN sessions ON sessions.num = words.rowid >> 32
    WHERE words MATCH ? ORDER BY rank, words.rowid LIMIT ?"""


class SqliteLog(Log):
    """A log in the file at `path`, which is made, with its folder, when it is not there.

    What was recorded survives the death of the process; with `durability="power"` also a power cut, at the
    price of a disk flush for every append.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "process",
        busy_timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self._clock = clock
        self._store = SqliteFile(self.path, durability, busy_timeout)
        with self._store.connection as db:
            db.create_function("holds", 2, contains_text, deterministic=True)
        self.memories = SqliteMemories(self._store, clock)
        self._hub = Hub(self.read, on_wait=self._keep_polling)
        self._numbers: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_loop: asyncio.AbstractEventLoop | None = None
        self._data_version = 0

    async def create(self, session_id: str, facts: Sequence[AnyFact]) -> None:
        self._store.check_not_moved()
        with self._store.transaction as db:
            if fetch_row(db, "SELECT 1 FROM sessions WHERE id = ?", session_id) is not None:
                raise Conflict(f"there is a session {session_id} already; choose another id")
            placed = number_facts(facts, self._clock())
            line = build_first_info(session_id, placed)
            num = insert_session(db, line, named_by_user=summarize_changes(placed).named_by_user)
            insert_facts(db, num, placed)
        stamp_created(facts, placed)

    async def post(self, session_id: str, facts: Sequence[AnyFact], key: str = "", *, wake: bool = True) -> PostResult:
        now, began = self._clock(), time.perf_counter()
        with self._store.transaction as db:
            row = fetch_row(db, f"SELECT num, {HEAD_SQL} FROM sessions WHERE id = ?", session_id)
            if row is None:
                raise _unknown(session_id)
            num, head = row
            if key and (stored := find_by_key(db, num, key)) is not None:
                return PostResult(tuple(stored), is_new=False)
            stamp_facts(facts, head, now)
            insert_facts(db, num, facts)
            if key:
                save_key(db, num, key, head, len(facts))
            db.execute(_POST, (*build_update_values(now, summarize_changes(facts)), wake, now, now, num))
        self._hub.add_facts(session_id, facts)
        if self.observer is not None:
            self.observer.on_stored(session_id, facts, time.perf_counter() - began)
        if self.listener is not None and self._hub.is_claimed(session_id):
            self.listener(session_id)
        return PostResult(tuple(facts), is_new=True)

    async def claim(
        self, owner: str, ttl: float, session_id: str = "", agents: Sequence[str] | None = None
    ) -> Claim | None:
        self._store.check_not_moved()
        now = self._clock()
        with self._store.connection as db:
            if not session_id and find_longest_due(db, now, agents) is None:
                return None  # the usual answer, without taking the write lock
        with self._store.transaction as db:
            row = self._one(db, session_id, now) if session_id else find_longest_due(db, now, agents)
            if row is None:
                return None
            num, name, agent, head, epoch = row
            if agents is not None and agent not in agents:
                return None
            db.execute(_CLAIM, (owner, now + ttl, num))
        self._remember(name, num)
        self._hub.mark_claimed(name, epoch + 1, head)
        self._keep_polling()
        return Claim(name, owner, epoch + 1, ttl)

    def _one(self, db: sqlite3.Connection, session_id: str, now: float) -> Candidate | None:
        """This session when nobody runs it."""
        row = fetch_row(
            db, f"SELECT num, id, agent, {HEAD_SQL}, epoch, owner, lease FROM sessions WHERE id = ?", session_id
        )
        if row is None:
            raise _unknown(session_id)
        *found, owner, lease = row
        if owner and lease > now and not is_gone(owner):
            return None
        num, name, agent, head, epoch = found
        return num, name, agent, head, epoch

    async def renew(self, claim: Claim) -> None:
        self._store.check_not_moved()
        with self._store.connection as db:
            kept = db.execute(
                "UPDATE sessions SET lease = ? WHERE num = ? AND epoch = ? AND owner = ?",
                (self._clock() + claim.ttl, self._number(claim.session_id), claim.epoch, claim.owner),
            ).rowcount
            if not kept:
                raise self._refusal(db, claim, None)

    async def release(
        self,
        claim: Claim,
        expected_seq: int | None,
        wake_at: float | None = None,
        *,
        waiting: bool = False,
    ) -> bool:
        with self._store.connection as db:
            values = {
                "num": self._number(claim.session_id),
                "epoch": claim.epoch,
                "owner": claim.owner,
                "seq": expected_seq,
                "wake_at": wake_at,
                "waiting": waiting,
            }
            given_back = db.execute(_RELEASE, values).rowcount
            if not given_back:
                refusal = self._refusal(db, claim, expected_seq)
                if isinstance(refusal, PositionMoved):
                    return False
                raise refusal
        self._hub.mark_released(claim.session_id, claim.epoch)
        if self._hub.get_channel(claim.session_id) is None:
            self._numbers.pop(claim.session_id, None)
        return True

    async def append(self, claim: Claim, expected_seq: int, facts: Sequence[AnyFact], key: str = "") -> None:
        if not facts:
            return
        began = time.perf_counter()
        stamp_facts(facts, expected_seq, self._clock())
        change = summarize_changes(facts)
        if key or change is not NO_CHANGES:
            self._append_more(claim, facts, key, change)
        else:
            with self._store.connection as db:
                if not append_facts(db, self._number(claim.session_id), claim, facts):
                    raise self._refusal(db, claim, expected_seq)
        self._hub.add_facts(claim.session_id, facts, from_owner=True)
        if self.observer is not None:
            self.observer.on_stored(claim.session_id, facts, time.perf_counter() - began)

    def _append_more(self, claim: Claim, facts: Sequence[AnyFact], key: str, change: SessionChanges) -> None:
        """Append facts that change the session's line, or have a key."""
        with self._store.transaction as db:
            num = self._number(claim.session_id)
            if key and (stored := find_by_key(db, num, key)) is not None:
                refusal = self._refusal(db, claim, None)
                if isinstance(refusal, ClaimLost):
                    raise refusal
                stamp_repeated(facts, stored, key)
                return
            head = facts[0].seq - 1
            if not append_facts(db, num, claim, facts):
                raise self._refusal(db, claim, head)
            db.execute(_MOVE, (*build_update_values(facts[-1].at, change), num))
            if key:
                save_key(db, num, key, head, len(facts))

    def _refusal(
        self, db: sqlite3.Connection, claim: Claim, expected_seq: int | None
    ) -> ClaimLost | PositionMoved | NotFound:
        """Why nothing was written with this claim; `PositionMoved` when the claim itself holds."""
        row = fetch_row(db, f"SELECT num, epoch, owner, {HEAD_SQL} FROM sessions WHERE id = ?", claim.session_id)
        if row is not None and (row[1], row[2]) == (claim.epoch, claim.owner):
            return PositionMoved(
                f"session {claim.session_id} is at {row[3]}, not at {expected_seq}: nothing was written; "
                "read what is new and decide again"
            )
        self._hub.mark_released(claim.session_id, claim.epoch)
        if row is None:
            self._numbers.pop(claim.session_id, None)
            return _unknown(claim.session_id)
        return ClaimLost(
            f"session {claim.session_id} is no longer run by {claim.owner} (epoch {claim.epoch}): nothing was written"
        )

    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> list[AnyFact]:
        with self._store.connection as db:
            facts = read_facts(db, self._number(session_id), after, limit)
            if not facts and limit != 0:
                # The number may be one that another process has deleted, and even made again, meanwhile.
                known = self._numbers.pop(session_id)
                if self._number(session_id) != known:
                    return read_facts(db, self._number(session_id), after, limit)
            return facts

    def get_head(self, session_id: str) -> int:
        return self._hub.get_head(session_id)

    def watch(self, session_id: str, after: int = 0) -> Watch:
        with self._store.connection as db:
            row = fetch_row(db, f"SELECT {HEAD_SQL} FROM sessions WHERE id = ?", session_id)
        if row is None:
            raise _unknown(session_id)
        return self._hub.watch(session_id, after, row[0])

    def publish(self, session_id: str, delta: AnyDelta) -> None:
        if self._hub.publish(session_id, delta) and self.observer is not None:
            self.observer.on_first_delta(session_id)

    async def get_info(self, session_id: str) -> SessionInfo:
        with self._store.connection as db:
            row = fetch_row(db, f"SELECT {INFO_COLUMNS} FROM sessions WHERE id = ?", session_id)
        if row is None:
            raise _unknown(session_id)
        return build_session_info(row)

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        updated_at, num = parse_cursor(query.cursor) if query.cursor else (float("inf"), 0)
        with self._store.connection as db:
            values = {
                **msgspec.structs.asdict(query),
                "updated_at": updated_at,
                "num": num,
                "limit": query.limit + 1,
            }
            rows = db.execute(_PAGE, values).fetchall()
        page = rows[: query.limit]
        cursor = format_cursor(page[-1][5], page[-1][13]) if len(rows) > len(page) and page else ""
        return SessionPage(tuple(build_session_info(row) for row in page), cursor)

    async def search(self, text: str, limit: int = 20) -> list[SearchHit]:
        match = build_match_query(text)
        if not match:
            return []
        behind = True
        while behind:
            behind = self._index_some()
            await asyncio.sleep(0)  # a first search of a large store must not hold up the runs
        with self._store.connection as db:
            rows = db.execute(_SEARCH, (match, limit)).fetchall()
        found = [SearchHit(session_id, seq, " ".join(shown.split())) for session_id, seq, shown in rows]
        if not has_unspaced_script(text):
            return found
        facts = [(hit, await self.read(hit.session_id, hit.seq - 1, 1)) for hit in found]  # the index has it in pairs
        word = text.split()[0].casefold()
        return [
            SearchHit(hit.session_id, hit.seq, make_snippet(extract_text(read[0]), word)) for hit, read in facts if read
        ]

    def _index_some(self) -> bool:
        """Index some of what is new; True when there may be more."""
        with self._store.connection as db:
            if fetch_row(db, f"SELECT 1 FROM sessions WHERE {HEAD_SQL} > indexed LIMIT 1") is None:
                return False
        room = INDEX_BATCH
        with self._store.transaction as db:
            behind = db.execute(
                f"SELECT num, indexed FROM sessions WHERE {HEAD_SQL} > indexed LIMIT ?", (room,)
            ).fetchall()
            for num, indexed in behind:
                facts = read_facts(db, num, indexed, room)
                found = [
                    ((num << 32) + fact.seq, prepare_for_index(text)) for fact in facts if (text := extract_text(fact))
                ]
                db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", found)
                db.execute("UPDATE sessions SET indexed = ? WHERE num = ?", (facts[-1].seq, num))
                room -= len(facts)
                if room <= 0:
                    return True
        return False

    async def put_artifact(self, session_id: str, data: bytes, media_type: str = "text/plain") -> str:
        artifact_id = hash_artifact(data)
        with self._store.connection as db:
            num = self._exists(db, session_id)
            db.execute(
                "INSERT OR IGNORE INTO artifacts (session, id, media_type, data) VALUES (?, ?, ?, ?)",
                (num, artifact_id, media_type, data),
            )
        return artifact_id

    async def get_artifact(self, session_id: str, artifact_id: str) -> Artifact:
        with self._store.connection as db:
            num = self._exists(db, session_id)
            row = db.execute(
                "SELECT media_type, data FROM artifacts WHERE session = ? AND id = ?", (num, artifact_id)
            ).fetchone()
        if row is None:
            raise NotFound(f"session {session_id} has no artifact {artifact_id}")
        return Artifact(artifact_id, row[0], row[1])

    async def delete(self, session_id: str) -> None:
        with self._store.transaction as db:
            found = self._one(db, session_id, self._clock())
            if found is None:
                raise Conflict(f"session {session_id} is running; cancel it before deleting it")
            num = found[0]
            places = (num << 32, (num << 32) + SEQ_MASK)
            db.execute("DELETE FROM facts WHERE place BETWEEN ? AND ?", places)
            db.execute("DELETE FROM words WHERE rowid BETWEEN ? AND ?", places)
            db.execute("DELETE FROM keys WHERE session = ?", (num,))
            db.execute("DELETE FROM artifacts WHERE session = ?", (num,))
            db.execute("DELETE FROM sessions WHERE num = ?", (num,))
        self._numbers.pop(session_id, None)
        self._hub.end_session(session_id)

    def check_integrity(self) -> None:
        """Look through the whole file for damage; takes time in proportion to its size."""
        self._store.check_integrity()

    async def close(self) -> None:
        self._hub.close()
        if self._timer is not None:
            self._timer.cancel()
        self._store.close()

    def _exists(self, db: sqlite3.Connection, session_id: str) -> int:
        row = fetch_row(db, "SELECT num FROM sessions WHERE id = ?", session_id)
        if row is None:
            raise _unknown(session_id)
        return row[0]

    def _number(self, session_id: str) -> int:
        """The session's number, as this process remembers it."""
        num = self._numbers.get(session_id)
        if num is None:
            num = self._exists(self._store.get_connection(), session_id)
            self._remember(session_id, num)
        return num

    def _remember(self, session_id: str, num: int) -> None:
        if len(self._numbers) > 10_000:
            self._numbers.clear()
        self._numbers[session_id] = num

    def _keep_polling(self) -> None:
        """Look for what other processes write, while there is a session of interest.

        A timer and not a task: nothing is left pending when the loop ends.
        """
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer_loop is not loop:
            self._timer_loop = loop
            self._timer = loop.call_later(POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        self._timer = None
        if not self._store.is_open or not self._hub:
            return
        self._keep_polling()
        # Only a hint is lost when this fails; whoever reads or writes next is told what is wrong.
        with suppress(StoreError), self._store.connection as db:
            version: int = db.execute("PRAGMA data_version").fetchone()[0]
            if version != self._data_version:
                for session_id, channel in self._hub.list_channels():
                    self._look(db, session_id, channel)
                self._data_version = version

    def _look(self, db: sqlite3.Connection, session_id: str, channel: Channel) -> None:
        row = fetch_row(db, f"SELECT num, {HEAD_SQL} FROM sessions WHERE id = ?", session_id)
        if row is None:
            self._hub.end_session(session_id)
            return
        num, head = row
        if head <= channel.head:
            return
        if channel.watchers and head - channel.head <= self._hub.ring:
            with suppress(StoreError):  # one that cannot be read is told to the watcher who reads it
                self._hub.add_facts(session_id, read_facts(db, num, channel.head))
        channel.advance_head(head)
        if self.listener is not None and channel.epoch:
            self.listener(session_id)


def _unknown(session_id: str) -> NotFound:
    return NotFound(f"there is no session {session_id}")
