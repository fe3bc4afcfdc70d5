"""A log in memory, for tests and for sessions that need not outlive the process.

It keeps every promise of the port but durability, and no other process can share it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from treadle.errors import StoreError
from treadle.events import AnyFact
from treadle.log import records
from treadle.log.base import (
    RESPONSES_AGENT,
    Artifact,
    Claim,
    Claimant,
    PostResult,
    SearchHit,
    SearchHits,
    SessionInfo,
    SessionPage,
    SessionQuery,
    StoredFact,
    StoreWatch,
    Watch,
)
from treadle.log.full_text import extract_text, make_snippet, score_text, split_search
from treadle.log.hub import Hub, HubLog, HubStoreWatch
from treadle.log.shared_values import InMemoryValues
from treadle.memory.store import InMemoryMemories


class _Session:
    def __init__(self, number: int, info: SessionInfo, facts: list[AnyFact]) -> None:
        self.number = number
        self.entry = info
        self.facts = facts
        self.named_by_user = records.summarize_changes(facts).named_by_user
        self.keys: dict[str, tuple[AnyFact, ...]] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.owner = ""
        self.epoch = 0
        self.lease = 0.0
        self.wake_at: float | None = None

    @property
    def info(self) -> SessionInfo:
        return replace(self.entry, wake_at=self.wake_at, owner=self.owner, named_by_user=self.named_by_user)

    def add(self, facts: Sequence[AnyFact], now: float, key: str) -> None:
        records.stamp_facts(facts, len(self.facts), now)
        self.facts.extend(facts)
        if key:
            self.keys[key] = tuple(facts)
        changes, entry = records.summarize_changes(facts), self.entry
        if changes.name is None or (self.named_by_user and not changes.named_by_user):
            name = entry.name
        else:
            name, self.named_by_user = changes.name, changes.named_by_user
        self.entry = replace(
            entry,
            seq=len(self.facts),
            updated_at=now if changes.is_newer else entry.updated_at,
            name=name,
            agent=changes.agent or entry.agent,
            status=changes.status or entry.status,
            turns=entry.turns + changes.turns,
            cost=entry.cost + changes.cost,
            pinned=entry.pinned if changes.pinned is None else changes.pinned,
            archived=entry.archived if changes.archived is None else changes.archived,
            model=changes.model or entry.model,
        )

    def matches(self, query: SessionQuery) -> bool:
        entry = self.entry
        return (
            (query.status is None or entry.status == query.status)
            and (entry.agent == query.agent if query.agent else entry.agent != RESPONSES_AGENT)
            and (not query.workspace or entry.workspace == query.workspace)
            and (not query.parent or (entry.parent is not None and entry.parent.session_id == query.parent))
            and (not query.text or records.contains_text(entry.name, query.text))
            and (not query.name or entry.name == query.name)
            and (query.before is None or entry.updated_at < query.before)
            and entry.id.startswith(query.prefix)
            and query.pinned in (None, entry.pinned)
            and query.archived in (None, entry.archived)
        )


class InMemoryLog(HubLog):
    """A log that lives as long as this object."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._created = 0
        self._is_closed = False
        self._approval_key = os.urandom(32)
        self.memories = InMemoryMemories(clock)
        self.shared = InMemoryValues(clock)
        self._order: list[tuple[str, int, int]] = []  # session id, session number and seq of every fact ever stored
        self._hub = Hub(self.read, self._read_store)

    async def create(self, session_id: str, facts: Sequence[AnyFact], *, claim: Claim | None = None) -> None:
        self._check_open()
        self._check_claim(claim)
        if session_id in self._sessions:
            raise records.build_taken(session_id)
        numbered = records.number_facts(facts, self._clock())
        info = records.build_first_info(session_id, numbered)
        self._created += 1
        session = self._sessions[session_id] = _Session(self._created, info, numbered)
        self._note_order(session, numbered)
        records.stamp_created(facts, numbered)
        self._hub.wake_store_waiters()

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
        session = self._get_session(session_id)
        self._check_claim(claim)
        if key and key in session.keys:
            return PostResult(session.keys[key], is_new=False)
        now = self._clock()
        session.add(facts, now, key)
        self._note_order(session, facts)
        if wake:
            session.wake_at = now if session.wake_at is None else min(session.wake_at, now)
        self._announce(session_id, facts, 0.0)
        claimed = self._claim(session, claimant, now) if claimant is not None else None
        return PostResult(tuple(facts), is_new=True, claim=claimed)

    async def claim(
        self,
        owner: str,
        ttl: float,
        session_id: str = "",
        agents: Sequence[str] | None = None,
        roots: Sequence[str] | None = None,
    ) -> Claim | None:
        self._check_open()
        now, claimant = self._clock(), Claimant(owner, ttl, agents, roots)
        session = self._get_session(session_id) if session_id else self._find_longest_due(now, claimant)
        return self._claim(session, claimant, now) if session is not None else None

    def _claim(self, session: _Session, claimant: Claimant, now: float) -> Claim | None:
        """Claim a session, unless a live owner runs it."""
        if session.owner and session.lease > now:
            return None
        if not claimant.serves(session.entry.agent, session.entry.workspace):
            return None
        session.owner, session.epoch, session.lease = claimant.owner, session.epoch + 1, now + claimant.ttl
        session.wake_at = None
        if session.entry.status == "waiting":
            session.entry = replace(session.entry, status="running")
        self._hub.mark_claimed(session.entry.id, session.epoch, len(session.facts))
        return Claim(session.entry.id, claimant.owner, session.epoch, claimant.ttl)

    def _find_longest_due(self, now: float, claimant: Claimant) -> _Session | None:
        due = [
            (since, session.number, session)
            for session in self._sessions.values()
            if (since := session.lease if session.owner else session.wake_at) is not None
            and since <= now
            and claimant.serves(session.entry.agent, session.entry.workspace)
        ]
        return min(due)[2] if due else None

    async def renew(self, claim: Claim) -> None:
        self._get_claimed(claim).lease = self._clock() + claim.ttl

    async def release(
        self, claim: Claim, expected_seq: int | None, wake_at: float | None = None, *, waiting: bool = False
    ) -> bool:
        session = self._get_claimed(claim)
        if expected_seq is None:
            wakes = [at for at in (wake_at, session.wake_at) if at is not None]
            wake_at = min(wakes, default=None)
        elif len(session.facts) > expected_seq:
            return False
        session.owner, session.lease, session.wake_at = "", 0.0, wake_at
        if waiting:
            session.entry = replace(session.entry, status="waiting")
        self._hub.mark_released(claim.session_id, claim.epoch)
        return True

    async def append(
        self, claim: Claim, expected_seq: int, facts: Sequence[AnyFact], key: str = "", *, release: bool = False
    ) -> None:
        if not facts:
            return
        session = self._get_claimed(claim)
        if key and key in session.keys:
            records.stamp_repeated(facts, session.keys[key], key)
            return
        if len(session.facts) != expected_seq:
            raise records.build_position_moved(claim, len(session.facts), expected_seq)
        session.add(facts, self._clock(), key)
        self._note_order(session, facts)
        self._announce(claim.session_id, facts, 0.0, from_owner=True)
        if release:
            await self.release(claim, expected_seq + len(facts))

    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> list[AnyFact]:
        facts, after = self._get_session(session_id).facts, max(after, 0)
        return facts[after : None if limit is None or limit < 0 else after + limit]

    def watch(self, session_id: str, after: int = 0) -> Watch:
        return self._hub.watch(session_id, after, len(self._get_session(session_id).facts))

    def watch_all(self, after: int | None = None) -> StoreWatch:
        self._check_open()
        last = len(self._order)
        return HubStoreWatch(self._hub, last if after is None else min(max(after, 0), last))

    def _note_order(self, session: _Session, facts: Sequence[AnyFact]) -> None:
        self._order.extend((session.entry.id, session.number, fact.seq) for fact in facts)

    async def _read_store(self, after: int, count: int) -> tuple[list[StoredFact], int]:
        self._check_open()
        found: list[StoredFact] = []
        places = self._order[after : after + count]
        for cursor, (session_id, number, seq) in enumerate(places, after + 1):
            session = self._sessions.get(session_id)
            if session is not None and session.number == number:  # otherwise it was deleted
                found.append(StoredFact(session_id, cursor, session.facts[seq - 1]))
        return found, after + len(places)

    async def get_info(self, session_id: str) -> SessionInfo:
        return self._get_session(session_id).info

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        self._check_open()
        before = records.parse_cursor(query.cursor) if query.cursor else None
        found = sorted(
            ((s.entry.updated_at, s.number, s) for s in self._sessions.values() if s.matches(query)), reverse=True
        )
        rest = [row for row in found if before is None or row[:2] < before]
        page = rest[: query.limit]
        cursor = records.format_cursor(*page[-1][:2]) if len(rest) > len(page) and page else ""
        return SessionPage(tuple(session.info for _, _, session in page), cursor)

    async def search(self, text: str, limit: int = 20) -> SearchHits:
        self._check_open()
        words = split_search(text)
        found: list[tuple[int, str, SearchHit]] = []
        for session_id, session in self._sessions.items() if words else ():
            for fact in session.facts:
                if score := score_text(fact_text := extract_text(fact), words):
                    hit = SearchHit(session_id, fact.seq, make_snippet(fact_text, words))
                    found.append((-score, f"{session_id}/{fact.seq:010}", hit))
        return SearchHits(hit for _, _, hit in sorted(found, key=lambda row: row[:2])[:limit])

    async def put_artifact(
        self, session_id: str, data: bytes, media_type: str = "text/plain", *, claim: Claim | None = None
    ) -> str:
        self._check_claim(claim)
        artifact_id = records.hash_artifact(data)
        artifacts = self._get_session(session_id).artifacts
        artifacts.setdefault(artifact_id, Artifact(artifact_id, media_type, data))
        return artifact_id

    async def get_artifact(self, session_id: str, artifact_id: str) -> Artifact:
        artifact = self._get_session(session_id).artifacts.get(artifact_id)
        if artifact is None:
            raise records.build_no_artifact(session_id, artifact_id)
        return artifact

    async def get_approval_key(self) -> bytes:
        return self._approval_key

    async def delete(self, session_id: str) -> None:
        session = self._get_session(session_id)
        if session.owner and session.lease > self._clock():
            raise records.build_still_running(session_id)
        del self._sessions[session_id]
        self._hub.end_session(session_id)

    def now(self) -> float:
        return self._clock()

    async def check_writable(self, seconds: float) -> None:
        self._check_open()

    async def close(self) -> None:
        self._is_closed = True
        self._hub.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("this log was closed; make a new one")

    def _get_session(self, session_id: str) -> _Session:
        self._check_open()
        session = self._sessions.get(session_id)
        if session is None:
            raise records.build_not_found(session_id)
        return session

    def _check_claim(self, claim: Claim | None) -> None:
        if claim is not None:
            self._get_claimed(claim)

    def _get_claimed(self, claim: Claim) -> _Session:
        session = self._get_session(claim.session_id)
        if (session.epoch, session.owner) != (claim.epoch, claim.owner):
            self._hub.mark_released(claim.session_id, claim.epoch)
            raise records.build_claim_lost(claim)
        return session
