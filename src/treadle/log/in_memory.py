"""A log in memory: for tests and for sessions that need not outlive the process.

It keeps to the port in every point but durability; nothing of it can be shared with another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from treadle.errors import ClaimLost, Conflict, NotFound, PositionMoved, StoreError
from treadle.events import AnyDelta, AnyFact
from treadle.log.base import (
    Artifact,
    Claim,
    Log,
    PostResult,
    SearchHit,
    SessionInfo,
    SessionPage,
    SessionQuery,
    Watch,
    summarize_changes,
)
from treadle.log.full_text import extract_text, make_snippet, split_words
from treadle.log.hub import Hub
from treadle.log.positions import hash_artifact, number_facts, stamp_created, stamp_facts, stamp_repeated
from treadle.log.session_list import build_first_info, contains_text, format_cursor, parse_cursor
from treadle.memory.store import InMemoryMemories


class _Session:
    def __init__(self, number: int, line: SessionInfo, facts: list[AnyFact]) -> None:
        self.number = number
        self.line = line
        self.facts = facts
        self.named_by_user = summarize_changes(facts).named_by_user
        self.keys: dict[str, tuple[AnyFact, ...]] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.owner = ""
        self.epoch = 0
        self.lease = 0.0
        self.wake_at: float | None = None

    def add(self, facts: Sequence[AnyFact], now: float, key: str) -> None:
        stamp_facts(facts, len(self.facts), now)
        self.facts.extend(facts)
        if key:
            self.keys[key] = tuple(facts)
        change, line = summarize_changes(facts), self.line
        if change.name is None or (self.named_by_user and not change.named_by_user):
            name = line.name
        else:
            name, self.named_by_user = change.name, change.named_by_user
        self.line = msgspec.structs.replace(
            line,
            seq=len(self.facts),
            updated_at=now,
            name=name,
            agent=change.agent or line.agent,
            status=change.status or line.status,
            turns=line.turns + change.turns,
            cost=line.cost + change.cost,
        )

    def due_since(self, now: float) -> float | None:
        due = self.lease if self.owner else self.wake_at
        return due if due is not None and due <= now else None

    def info(self) -> SessionInfo:
        return msgspec.structs.replace(self.line, wake_at=self.wake_at, owner=self.owner)


class InMemoryLog(Log):
    """A log that lives as long as this object."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._made = 0
        self._closed = False
        self.memories = InMemoryMemories(clock)
        self._hub = Hub(self.read)

    async def create(self, session_id: str, facts: Sequence[AnyFact]) -> None:
        self._check_open()
        if session_id in self._sessions:
            raise Conflict(f"there is a session {session_id} already; choose another id")
        placed = number_facts(facts, self._clock())
        line = build_first_info(session_id, placed)
        self._made += 1
        self._sessions[session_id] = _Session(self._made, line, placed)
        stamp_created(facts, placed)

    async def post(self, session_id: str, facts: Sequence[AnyFact], key: str = "", *, wake: bool = True) -> PostResult:
        session = self._get(session_id)
        if key and key in session.keys:
            return PostResult(session.keys[key], is_new=False)
        now = self._clock()
        session.add(facts, now, key)
        if wake:
            session.wake_at = now if session.wake_at is None else min(session.wake_at, now)
        self._hub.add_facts(session_id, facts)
        if self.observer is not None:
            self.observer.on_stored(session_id, facts, 0.0)
        if self.listener is not None and self._hub.is_claimed(session_id):
            self.listener(session_id)
        return PostResult(tuple(facts), is_new=True)

    async def claim(
        self, owner: str, ttl: float, session_id: str = "", agents: Sequence[str] | None = None
    ) -> Claim | None:
        self._check_open()
        now = self._clock()
        session = self._get(session_id) if session_id else self._longest_due(now, agents)
        if session is None or (session.owner and session.lease > now):
            return None
        if agents is not None and session.line.agent not in agents:
            return None
        session.owner, session.epoch, session.lease = owner, session.epoch + 1, now + ttl
        session.wake_at = None
        if session.line.status == "waiting":
            session.line = msgspec.structs.replace(session.line, status="running")
        self._hub.mark_claimed(session.line.id, session.epoch, len(session.facts))
        return Claim(session.line.id, owner, session.epoch, ttl)

    def _longest_due(self, now: float, agents: Sequence[str] | None) -> _Session | None:
        due = [
            (since, session.number, session)
            for session in self._sessions.values()
            if (since := session.due_since(now)) is not None and (agents is None or session.line.agent in agents)
        ]
        return min(due)[2] if due else None

    async def renew(self, claim: Claim) -> None:
        self._held(claim).lease = self._clock() + claim.ttl

    async def release(
        self,
        claim: Claim,
        expected_seq: int | None,
        wake_at: float | None = None,
        *,
        waiting: bool = False,
    ) -> bool:
        session = self._held(claim)
        if expected_seq is None:
            wakes = [at for at in (wake_at, session.wake_at) if at is not None]
            wake_at = min(wakes, default=None)
        elif len(session.facts) > expected_seq:
            return False
        session.owner, session.lease, session.wake_at = "", 0.0, wake_at
        if waiting:
            session.line = msgspec.structs.replace(session.line, status="waiting")
        self._hub.mark_released(claim.session_id, claim.epoch)
        return True

    async def append(self, claim: Claim, expected_seq: int, facts: Sequence[AnyFact], key: str = "") -> None:
        if not facts:
            return
        session = self._held(claim)
        if key and key in session.keys:
            stamp_repeated(facts, session.keys[key], key)
            return
        if len(session.facts) != expected_seq:
            raise PositionMoved(
                f"session {claim.session_id} is at {len(session.facts)}, not at {expected_seq}: "
                "nothing was written; read what is new and decide again"
            )
        session.add(facts, self._clock(), key)
        self._hub.add_facts(claim.session_id, facts, from_owner=True)
        if self.observer is not None:
            self.observer.on_stored(claim.session_id, facts, 0.0)

    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> list[AnyFact]:
        facts, after = self._get(session_id).facts, max(after, 0)
        return facts[after : None if limit is None or limit < 0 else after + limit]

    def get_head(self, session_id: str) -> int:
        return self._hub.get_head(session_id)

    def watch(self, session_id: str, after: int = 0) -> Watch:
        return self._hub.watch(session_id, after, len(self._get(session_id).facts))

    def publish(self, session_id: str, delta: AnyDelta) -> None:
        if self._hub.publish(session_id, delta) and self.observer is not None:
            self.observer.on_first_delta(session_id)

    async def get_info(self, session_id: str) -> SessionInfo:
        return self._get(session_id).info()

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        self._check_open()
        before = parse_cursor(query.cursor) if query.cursor else None
        found = sorted(
            ((s.line.updated_at, s.number, s) for s in self._sessions.values() if _fits(s, query)),
            reverse=True,
        )
        rest = [entry for entry in found if before is None or entry[:2] < before]
        page = rest[: query.limit]
        cursor = format_cursor(*page[-1][:2]) if len(rest) > len(page) and page else ""
        return SessionPage(tuple(entry[2].info() for entry in page), cursor)

    async def search(self, text: str, limit: int = 20) -> list[SearchHit]:
        self._check_open()
        wanted = split_words(text)
        found: list[tuple[int, str, SearchHit]] = []
        for session_id, session in self._sessions.items():
            for fact in session.facts:
                words = split_words(found_text := extract_text(fact), index=True)
                if wanted and all(word in words for word in wanted):
                    score = sum(words.count(word) for word in wanted)
                    hit = SearchHit(session_id, fact.seq, make_snippet(found_text, wanted[0]))
                    found.append((-score, f"{session_id}/{fact.seq:010}", hit))
        return [hit for _, _, hit in sorted(found, key=lambda entry: entry[:2])[:limit]]

    async def put_artifact(self, session_id: str, data: bytes, media_type: str = "text/plain") -> str:
        artifact_id = hash_artifact(data)
        kept = self._get(session_id).artifacts
        kept.setdefault(artifact_id, Artifact(artifact_id, media_type, data))
        return artifact_id

    async def get_artifact(self, session_id: str, artifact_id: str) -> Artifact:
        artifact = self._get(session_id).artifacts.get(artifact_id)
        if artifact is None:
            raise NotFound(f"session {session_id} has no artifact {artifact_id}")
        return artifact

    async def delete(self, session_id: str) -> None:
        session = self._get(session_id)
        if session.owner and session.lease > self._clock():
            raise Conflict(f"session {session_id} is running; cancel it before deleting it")
        del self._sessions[session_id]
        self._hub.end_session(session_id)

    async def close(self) -> None:
        self._closed = True
        self._hub.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this log was closed; make a new one")

    def _get(self, session_id: str) -> _Session:
        self._check_open()
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound(f"there is no session {session_id}")
        return session

    def _held(self, claim: Claim) -> _Session:
        session = self._get(claim.session_id)
        if (session.epoch, session.owner) != (claim.epoch, claim.owner):
            self._hub.mark_released(claim.session_id, claim.epoch)
            raise ClaimLost(
                f"session {claim.session_id} is no longer run by {claim.owner} (epoch {claim.epoch}): "
                "nothing was written"
            )
        return session


def _fits(session: _Session, query: SessionQuery) -> bool:
    line = session.line
    return (
        (query.status is None or line.status == query.status)
        and (not query.agent or line.agent == query.agent)
        and (not query.workspace or line.workspace == query.workspace)
        and (not query.parent or (line.parent is not None and line.parent.session_id == query.parent))
        and (not query.text or contains_text(line.name, query.text))
        and line.id.startswith(query.prefix)
    )
