"""The log of several machines: a PostgreSQL database, which any number of processes and nodes can share.

Each write is one statement, so a process that is frozen or cut off never holds a lock. An owner's write is repeated
until it is stored or refused. Times are those of the database.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from treadle.errors import ClaimLost, NotFound, PositionMoved, StoreError, StoreLostFacts
from treadle.events import AnyDelta, AnyFact, serialize_event, stamp_fact
from treadle.log import postgres_rows as rows
from treadle.log import records
from treadle.log.base import (
    Artifact,
    Claim,
    Claimant,
    Node,
    PostResult,
    SearchHits,
    SessionInfo,
    SessionPage,
    SessionQuery,
    StoreWatch,
    Watch,
)
from treadle.log.hub import Hub, HubLog, HubStoreWatch
from treadle.log.postgres_contents import PostgresContents
from treadle.log.postgres_database import Database
from treadle.log.postgres_live import FactUpdates, LiveText
from treadle.log.postgres_losses import StoredFacts
from treadle.log.postgres_nodes import Nodes, PostgresValues
from treadle.log.postgres_order import StoreOrder
from treadle.log.postgres_wakeups import Wakeups
from treadle.log.postgres_words import PostgresWords
from treadle.log.postgres_writes import REFUSED, REPEATED, Append, OwnerWrites, finish
from treadle.memory.postgres_memories import PostgresMemories
from treadle.secrets.store_url import parse_postgres_url

MAX_DEVIATION = 0.1
"""By how many seconds this machine's clock may differ from that of the database, before it is corrected."""
_MAX_CACHED_NUMBERS = 10_000
_POST = """SELECT treadle.post_facts(%s, %s, %s::bytea[], %s::jsonb, %s, %s::bigint, %s::bigint, %s::text,
    %s::text, %s::double precision, %s::text[], %s::text[], %s, %s::double precision)"""
# Without a position there may be posts that the owner has not seen, so their wake-up is kept. A session with facts that
# this release cannot read is due at once, for a newer node.
_RELEASE = """UPDATE treadle.sessions SET owner = '', lease = 0,
    wake_at = CASE WHEN min_reader > %(reader)s THEN 0
        WHEN %(seq)s::integer IS NOT NULL THEN %(wake_at)s::double precision
        ELSE least(wake_at, %(wake_at)s::double precision) END,
    status = CASE WHEN %(waiting)s THEN 'waiting' ELSE status END
    WHERE num = %(num)s AND epoch = %(epoch)s AND owner = %(owner)s AND (%(seq)s::integer IS NULL OR head <= %(seq)s)
    RETURNING num"""


class PostgresLog(HubLog):
    """A log in the PostgreSQL database at `url`. The tables are created at first use, in the schema `treadle`.

    The URL is libpq's, also with several hosts. `?listen=HOST:PORT` names the server itself where the others go through
    a pooler. A `clock` replaces the time of the database, for tests.
    """

    is_shared = True

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._offset = 0.0
        self._url = parse_postgres_url(url)
        self._database = Database(self._url, on_open=self._measure_time)
        self._writes = OwnerWrites(self._database, self._get_given_time)
        self._order = StoreOrder(self._database, lambda: self._hub.wake_store_waiters())
        self._hub = Hub(self._read_batch, self._order.read, on_wait=self._start)
        self.counters = {"claims": 0.0, "takeovers": 0.0, "fenced_writes": 0.0}
        self._updates = FactUpdates(self._hub, self._tell_listener)
        self._live = LiveText(self._hub, self._updates.handle, lambda seconds: self._wakeups.schedule(seconds))
        self._wakeups = Wakeups(
            self._database, self._live, self._handle_news, self._tell_due_listener, self._poll, self.counters
        )
        self._nodes = Nodes(self._database, self._get_given_time)
        self.memories = PostgresMemories(self._database, self.now)
        self.contents = self._contents = PostgresContents(url)
        self._words = PostgresWords(self._database)
        self.shared = PostgresValues(self._database, self._get_given_time)
        self._numbers: dict[str, int] = {}
        self._stored = StoredFacts(self._database)
        self._approval_key: bytes | None = None

    def _get_given_time(self) -> float | None:
        """The time that replaces that of the database."""
        return self._clock() if self._clock is not None else None

    def now(self) -> float:
        return self._clock() if self._clock is not None else time.time() + self._offset

    # ── sessions and posts ─────────────────────────────────────────────────────────────────────────────

    async def create(self, session_id: str, facts: Sequence[AnyFact], *, claim: Claim | None = None) -> None:
        await self._database.open()
        numbered = records.number_facts(facts, self.now())
        info = records.build_first_info(session_id, numbered)
        named_by_user = records.summarize_changes(numbered).named_by_user
        about = rows.write_entry(info, numbered, named_by_user=named_by_user)
        bodies = [serialize_event(fact) for fact in numbered]
        losses, holder = self._database.losses, await self._find_holder(claim)
        sql = "SELECT treadle.create_session(%s::jsonb, %s::bytea[], %s::bigint, %s::bigint, %s::text)"
        ((outcome,),) = await finish(self._database.fetch(sql, (about, bodies, *holder)))
        if outcome == "claim lost":
            raise self._refuse(claim)
        if outcome == "taken" and (losses == self._database.losses or await self.read(session_id) != numbered):
            raise records.build_taken(session_id)
        records.stamp_created(facts, numbered)
        self._order.note_own(0 if outcome == "taken" else int(outcome), len(numbered))
        self._stored.note(session_id, len(numbered), 0 if outcome == "taken" else int(outcome))
        self._hub.wake_store_waiters()
        self._wakeups.tell(session_id, len(numbered))

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
        await self._database.open()
        now, began = self.now(), time.perf_counter()
        for fact in facts:
            stamp_fact(fact, 0, fact.at or now)
        changes = records.summarize_changes(facts)
        given = (None, None, None, None) if claimant is None else (*rows.read_claimant(claimant),)
        row = await finish(
            self._database.fetch(
                _POST,
                (
                    *(session_id, rows.clean_key(key) if key else f"post {os.urandom(12).hex()}"),
                    *([serialize_event(fact) for fact in facts], rows.write_changes(changes, facts, now), wake),
                    *(*await self._find_holder(claim), *given, rows.READER, self._get_given_time()),
                ),
            )
        )
        outcome, *values = row[0][0]
        if outcome == "no session":
            raise records.build_not_found(session_id)
        if outcome == "claim lost":
            raise self._refuse(claim)
        cursor, first, last, num = map(int, values[:4])
        if outcome == "repeated" and key:
            return PostResult(tuple(await self.read(session_id, first - 1, last - first + 1)), is_new=False)
        for seq, fact in enumerate(facts, first):
            stamp_fact(fact, seq, fact.at)
        self._order.note_own(cursor, len(facts))
        self._stored.note(session_id, last, cursor)
        self._announce(session_id, facts, time.perf_counter() - began)
        self._wakeups.tell(session_id, last)
        taken = None
        if claimant is not None and values[4]:
            found = rows.Claimed(num, session_id, last, int(values[4]), bool(values[5]))
            taken = self._note_claim(found, claimant.owner, claimant.ttl)
        elif wake and not self._is_claimed_here(session_id):
            self._wakeups.tell_due()
        return PostResult(tuple(facts), is_new=True, claim=taken)

    async def claim(
        self,
        owner: str,
        ttl: float,
        session_id: str = "",
        agents: Sequence[str] | None = None,
        roots: Sequence[str] | None = None,
    ) -> Claim | None:
        claimant = rows.read_claimant(Claimant(owner, ttl, agents, roots))
        values = (session_id, *claimant, rows.READER, self._get_given_time())
        found = await finish(self._database.fetch(rows.CLAIM, values))
        if not found and session_id:
            await self.get_info(session_id)  # raises when there is none
        return self._note_claim(rows.Claimed(*found[0]), owner, ttl) if found else None

    def _note_claim(self, claimed: rows.Claimed, owner: str, ttl: float) -> Claim:
        """Follow a session that was claimed."""
        self._cache_number(claimed.session_id, claimed.num)
        self._live.take_over(claimed.session_id)
        self._hub.mark_claimed(claimed.session_id, claimed.epoch, claimed.head)
        self.counters["claims"] += 1
        self.counters["takeovers"] += claimed.is_takeover
        if claimed.is_takeover:  # the owner's other sessions may be due too
            self._wakeups.tell_due()
        self._start()
        return Claim(claimed.session_id, owner, claimed.epoch, ttl)

    async def renew(self, claim: Claim) -> None:
        try:
            await self._writes.renew(await self._get_number(claim.session_id), claim)
        except ClaimLost:
            raise await self._explain_refusal(claim, None) from None

    async def release(
        self, claim: Claim, expected_seq: int | None, wake_at: float | None = None, *, waiting: bool = False
    ) -> bool:
        values = {
            "num": await self._get_number(claim.session_id),
            "epoch": claim.epoch,
            "owner": claim.owner,
            "seq": expected_seq,
            "wake_at": wake_at,
            "waiting": waiting,
            "reader": rows.READER,
        }
        losses = self._database.losses
        released = await finish(self._database.fetch(_RELEASE, values))
        if not released:
            if losses != self._database.losses and await self._is_released(claim):
                released = [()]  # by the attempt whose answer was lost
            else:
                refusal = await self._explain_refusal(claim, expected_seq)
                if isinstance(refusal, PositionMoved):
                    return False
                raise refusal
        self._note_release(claim)
        if wake_at is not None and wake_at <= self.now():
            self._wakeups.tell_due()
        return bool(released)

    async def _is_released(self, claim: Claim) -> bool:
        sql = "SELECT epoch, owner FROM treadle.sessions WHERE id = %s"
        return await self._database.fetch(sql, (claim.session_id,)) == [(claim.epoch, "")]

    def _note_release(self, claim: Claim) -> None:
        self._hub.mark_released(claim.session_id, claim.epoch)
        self._live.ask(claim.session_id)
        if claim.session_id not in self._hub.channels:
            self._numbers.pop(claim.session_id, None)

    # ── the owner's facts ──────────────────────────────────────────────────────────────────────────────

    async def append(
        self, claim: Claim, expected_seq: int, facts: Sequence[AnyFact], key: str = "", *, release: bool = False
    ) -> None:
        if not facts:
            return
        began, now = time.perf_counter(), self.now()
        records.stamp_facts(facts, expected_seq, now)
        changes = records.summarize_changes(facts)
        more = rows.write_changes(changes, facts, None, key=key, release=release)
        bodies = [serialize_event(fact) for fact in facts]
        size = sum(map(len, bodies))
        item = Append(await self._get_number(claim.session_id), claim, expected_seq, bodies, more, size)
        result = await self._writes.appends.add(item)
        if result.outcome == REPEATED:
            stored = await self.read(claim.session_id, result.after, result.last - result.after)
            records.stamp_repeated(facts, stored, key)
            return
        if result.outcome == REFUSED and not (result.may_be_own and await self._has_stored(item)):
            raise await self._explain_refusal(claim, expected_seq)
        self._order.note_own(result.cursor, len(facts))
        self._stored.note(claim.session_id, facts[-1].seq, result.cursor)
        self._announce(claim.session_id, facts, time.perf_counter() - began, from_owner=True, size=size)
        self._wakeups.tell(claim.session_id, facts[-1].seq)
        if release:
            self._note_release(claim)

    async def _has_stored(self, item: Append) -> bool:
        """Whether exactly these facts are stored, by an attempt whose answer was lost."""
        sql = "SELECT body FROM treadle.facts WHERE session = %s AND seq > %s ORDER BY seq LIMIT %s"
        found = await self._database.fetch(sql, (item.num, item.seq, len(item.bodies)), patience=None)
        return [body for (body,) in found] == item.bodies

    def _refuse(self, claim: Claim | None) -> ClaimLost:
        assert claim is not None
        self.counters["fenced_writes"] += 1
        self._hub.mark_released(claim.session_id, claim.epoch)
        self._live.ask(claim.session_id)
        return records.build_claim_lost(claim)

    async def _explain_refusal(
        self, claim: Claim, expected_seq: int | None
    ) -> ClaimLost | PositionMoved | NotFound | StoreLostFacts:
        """Build the error for a refused write. It is `PositionMoved` when the claim itself holds.

        Heads and epochs only grow: otherwise the database has lost facts.
        """
        sql = "SELECT epoch, owner, head, num FROM treadle.sessions WHERE id = %s"
        found = await self._database.fetch(sql, (claim.session_id,), patience=None)
        if not found:
            self._hub.mark_released(claim.session_id, claim.epoch)
            self._numbers.pop(claim.session_id, None)
            return records.build_not_found(claim.session_id)
        epoch, owner, head, num = found[0]
        channel = self._hub.channels.get(claim.session_id)
        if channel is not None and channel.epoch == claim.epoch and self._numbers.get(claim.session_id) == num:
            if channel.head > head or epoch < claim.epoch:
                self._hub.end_session(claim.session_id)  # what its watchers saw is not there
                return rows.build_facts_lost(self._url.shown, claim.session_id, head, channel.head)
        is_held = (epoch, owner) == (claim.epoch, claim.owner)
        return records.build_position_moved(claim, head, expected_seq) if is_held else self._refuse(claim)

    async def _find_holder(self, claim: Claim | None) -> tuple[Any, ...]:
        """The number, epoch and owner that a write with a claim depends on."""
        return (
            (None, None, None)
            if claim is None
            else (await self._get_number(claim.session_id), claim.epoch, claim.owner)
        )

    # ── reading and watching ───────────────────────────────────────────────────────────────────────────

    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> list[AnyFact]:
        count = None if limit is None or limit < 0 else limit
        values = (session_id, max(after, 0), count)
        found = await self._database.fetch(rows.READ, values)
        if not found:
            await self._fetch_number(session_id)  # raises when there is no session
            found = await self._database.fetch(rows.READ, values)  # it may have been created in between
        return rows.read_facts(found)

    async def _read_batch(self, session_id: str, after: int, limit: int) -> list[AnyFact]:
        values = (session_id, max(after, 0), limit, records.BATCH_BYTES)
        found = await self._database.fetch(rows.READ_BATCH, values, patience=None)
        if not found:
            await self._fetch_number(session_id)
        return rows.read_next_facts(found)

    def watch(self, session_id: str, after: int = 0) -> Watch:
        # The head may not be known here. A watch of an unknown session raises the error when it reads.
        watch = self._hub.watch(session_id, after, self.get_head(session_id) or None)
        if self._wakeups.is_listening:  # otherwise it asks for all when it begins to listen
            self._live.ask(session_id)
        return watch

    def publish(self, session_id: str, delta: AnyDelta) -> None:
        super().publish(session_id, delta)
        self._live.send(session_id, delta)

    def watch_all(self, after: int | None = None) -> StoreWatch:
        return HubStoreWatch(self._hub, self._order.last if after is None else max(after, 0), self._order.last)

    async def get_info(self, session_id: str) -> SessionInfo:
        sql = f"SELECT {rows.INFO_COLUMNS} FROM treadle.sessions WHERE id = %s"
        found = await self._database.fetch(sql, (session_id,))
        if not found:
            raise records.build_not_found(session_id)
        return rows.build_info(found[0])

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        sql, values = rows.build_list_query(query)
        found = await self._database.fetch(sql, values)
        page = found[: query.limit]
        cursor = records.format_cursor(page[-1][5], page[-1][13]) if len(found) > len(page) and page else ""
        return SessionPage(tuple(rows.build_info(row) for row in page), cursor)

    async def search(self, text: str, limit: int = 20) -> SearchHits:
        return await self._words.search(text, limit)

    # ── the rest ───────────────────────────────────────────────────────────────────────────────────────

    async def put_artifact(
        self, session_id: str, data: bytes, media_type: str = "text/plain", *, claim: Claim | None = None
    ) -> str:
        artifact_id, holder = records.hash_artifact(data), await self._find_holder(claim)
        values = (holder[0], *holder, artifact_id, media_type, data, session_id, session_id)
        ((is_held, exists),) = await finish(self._database.fetch(rows.PUT_ARTIFACT, values))
        if not is_held:
            raise self._refuse(claim)
        if not exists:
            raise records.build_not_found(session_id)
        return artifact_id

    async def get_artifact(self, session_id: str, artifact_id: str) -> Artifact:
        num = await self._fetch_number(session_id)
        sql = "SELECT media_type, data FROM treadle.artifacts WHERE session = %s AND id = %s"
        found = await self._database.fetch(sql, (num, artifact_id))
        if not found:
            raise records.build_no_artifact(session_id, artifact_id)
        return Artifact(artifact_id, *found[0])

    async def get_approval_key(self) -> bytes:
        if self._approval_key is None:
            sql = "INSERT INTO treadle.secrets VALUES ('approvals', %s) ON CONFLICT DO NOTHING"
            await self._database.execute(sql, (os.urandom(32),))
            sql = "SELECT value FROM treadle.secrets WHERE name = 'approvals'"
            self._approval_key = bytes((await self._database.fetch(sql))[0][0])
        return self._approval_key

    async def delete(self, session_id: str) -> None:
        losses = self._database.losses
        sql = "SELECT treadle.delete_session(%s, %s::double precision)"
        ((outcome,),) = await finish(self._database.fetch(sql, (session_id, self._get_given_time())))
        if outcome == "running":
            raise records.build_still_running(session_id)
        if outcome == "no session" and losses == self._database.losses:
            raise records.build_not_found(session_id)
        self._numbers.pop(session_id, None)
        self._hub.end_session(session_id)
        self._stored.forget(session_id)
        self._wakeups.tell(session_id, 0)

    async def join(self, node: Node) -> None:
        await self._nodes.join(node)
        self._start()

    async def list_nodes(self) -> list[Node]:
        return await self._nodes.list()

    async def drain_node(self, name: str) -> None:
        await self._nodes.drain(name)

    def measure(self) -> dict[str, float]:
        return {**self.counters, **self._database.measure()}

    async def check_writable(self, seconds: float) -> None:
        await asyncio.wait_for(self.shared.put("check", b"", 60), seconds + 1)

    async def close(self) -> None:
        self._hub.close()
        if not self._database.is_closed:
            await self._wakeups.close()
            await self._words.close()
            self._updates.close()
            self._live.close()
            with suppress(StoreError):
                await self._nodes.leave()
        self._contents.close()
        await self._database.close()

    async def _get_number(self, session_id: str) -> int:
        """Return the session's number from the cache, or from the database."""
        num = self._numbers.get(session_id)
        if num is None:
            num = await self._fetch_number(session_id)
            self._cache_number(session_id, num)
        return num

    async def _fetch_number(self, session_id: str) -> int:
        found = await self._database.fetch("SELECT num FROM treadle.sessions WHERE id = %s", (session_id,))
        if not found:
            raise records.build_not_found(session_id)
        return found[0][0]

    def _cache_number(self, session_id: str, num: int) -> None:
        if len(self._numbers) > _MAX_CACHED_NUMBERS:
            self._numbers.clear()
        self._numbers[session_id] = num

    # ── news of other nodes ────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._wakeups.start()

    def _tell_listener(self, session_id: str) -> None:
        if self.listener is not None:
            self.listener(session_id)

    def _handle_news(self, heads: Mapping[str, int]) -> None:
        self._updates.handle(heads)
        for session_id, head in heads.items():
            if not head and self.on_removed is not None:
                self.on_removed(session_id)

    def _tell_due_listener(self) -> None:
        if self.on_due is not None:
            self.on_due()

    def _is_claimed_here(self, session_id: str) -> bool:
        channel = self._hub.channels.get(session_id)
        return channel is not None and bool(channel.epoch)

    async def _measure_time(self) -> None:
        """Measure how far this machine's clock is from that of the database, and how far the log reaches."""
        began = time.time()
        ((now, last),) = await self._database.fetch("SELECT treadle.now_or(NULL), treadle.settled_position()")
        ended = time.time()
        if abs(offset := now - (began + ended) / 2 - self._offset) > MAX_DEVIATION + (ended - began):
            self._offset += offset
        self._order.note(last)

    async def _poll(self) -> None:
        """Ask the database for what the news may have missed."""
        await self._measure_time()
        await self._stored.check()
        known = {name: channel.head for name, channel in self._hub.channels.items()}
        sql = "SELECT id, head FROM treadle.sessions WHERE id = ANY (%s)"
        heads: dict[str, int] = dict(await self._database.fetch(sql, ([*known],))) if known else {}
        self._updates.handle({name: self._find_end(name, heads.get(name, 0), head) for name, head in known.items()})
        if await self._nodes.beat() and self.on_drain is not None:
            self.on_drain()

    def _find_end(self, session_id: str, head: int, known: int) -> int:
        """The head of a session for those who watch it. With 0 their session is gone.

        One that ends before a position that was known is another one, or has lost facts: what they saw is not in it.
        Its owner here learns that from the next write.
        """
        return head if head >= known or self._is_claimed_here(session_id) else 0
