"""The log port: what the engine needs of a store of facts, and nothing about how it is stored.

Nothing outside this folder may assume one process. Anyone may `post`. Only the owner of a claim may `append`.
Wake-ups are hints: `read` tells the truth.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Literal, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import NotFound
from treadle.events import AnyDelta, AnyFact, Event, Parent
from treadle.history.base import Contents
from treadle.memory.base import Memories

LEASE_SECONDS = 10.0
"""For how long a claim holds without a renewal, unless the user sets it."""
SESSIONS_PER_PAGE = 200
RESPONSES_AGENT = "treadle.responses"
"""The agent of sessions that only store responses of bare models. They are listed only when it is asked for."""
RESPONSE_FACTS = "responses."
"""How the names of the facts in these sessions begin."""
Status = Literal["idle", "running", "waiting", "answered", "stopped", "failed", "cancelled"]


class Claim(Struct, frozen=True):
    """The right to run one session. `epoch` is the fence: every later claim has a higher one."""

    session_id: str
    owner: str
    epoch: int
    ttl: float


class Claimant(Struct, frozen=True):
    """A process that runs sessions: its name, for how many seconds it claims one, its agents, and its folders.

    None means all. With `roots`, it claims only sessions whose workspace is one of these folders, or lies in one.
    """

    owner: str
    ttl: float
    agents: Sequence[str] | None = None
    roots: Sequence[str] | None = None

    def serves(self, agent: str, workspace: str) -> bool:
        """Whether this process can run a session of that agent in that workspace. A session may have none."""
        if self.agents is not None and agent not in self.agents:
            return False
        if self.roots is None or not workspace:
            return True
        return any(f"{workspace}/".startswith(folder) for folder in self.folders)

    @property
    def folders(self) -> list[str]:
        """The roots, each with a slash at its end, so that `/work` does not stand for `/worker` too."""
        return [f"{root.rstrip('/')}/" for root in self.roots or ()]


class PostResult(Struct, frozen=True):
    """The facts that a post stored. `is_new` is False when an earlier post with the same key stored them.

    `claim` is that of the claimant, if it may run the session now.
    """

    facts: tuple[AnyFact, ...]
    is_new: bool
    claim: Claim | None = None


LAST = "last"
"""The word that selects the session that was changed last. No session can have it as its id."""
SESSION_ID_RULE = (
    "it has 1 to 64 letters, digits, dots, dashes and underscores, begins with a letter or digit, and is not `last`"
)
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_session_id(value: object) -> bool:
    """Whether a session can have this id, as `SESSION_ID_RULE` says."""
    return isinstance(value, str) and bool(_SESSION_ID.fullmatch(value)) and value != LAST


class SessionInfo(Struct, frozen=True):
    """One entry in the list of sessions."""

    id: str
    agent: str
    status: Status
    seq: int
    created_at: float
    updated_at: float
    name: str = ""
    workspace: str = ""
    turns: int = 0
    cost: float = 0.0
    parent: Parent | None = None
    wake_at: float | None = None
    owner: str = ""
    named_by_user: bool = False
    pinned: bool = False
    archived: bool = False
    model: str = ""

    @property
    def is_helper(self) -> bool:
        """Whether a call of another session started it."""
        return self.parent is not None and bool(self.parent.call_id)

    def is_parked(self, now: float) -> bool:
        """Whether the run waits for its provider until `wake_at`, and no process keeps it meanwhile."""
        return self.status == "running" and not self.owner and self.wake_at is not None and self.wake_at > now


class SessionQuery(Struct, frozen=True):
    """Which sessions to list. Empty fields match every session, except `agent`, which does not match stored responses.

    `name` is the whole name, and `text` must occur in it. `parent` is the session that they were forked from, or whose
    calls started them. `prefix` is the beginning of the id. They last changed before `before`. With `pinned` or
    `archived`, only those that are marked so, or with False only the others. `cursor` is the end of the previous page.
    """

    status: Status | None = None
    agent: str = ""
    workspace: str = ""
    text: str = ""
    parent: str = ""
    prefix: str = ""
    limit: int = 50
    cursor: str = ""
    name: str = ""
    before: float | None = None
    pinned: bool | None = None
    archived: bool | None = None


class SessionPage(Struct, frozen=True):
    """A page of sessions. `cursor` fetches the next page and is empty at the end."""

    sessions: tuple[SessionInfo, ...]
    cursor: str = ""


class Artifact(Struct, frozen=True):
    """Content that is too large for the model's context, stored in full."""

    id: str
    media_type: str
    data: bytes


class SearchHit(Struct, frozen=True):
    """A fact that a search found, with a short piece of its text."""

    session_id: str
    seq: int
    snippet: str


class SearchHits(list[SearchHit]):
    """What a search found, the best first. `unindexed` is the number of facts that it could not look at yet.

    The first search of a large store indexes it in the background. Search again, until `unindexed` is 0.
    """

    unindexed: int = 0


class Node(Struct, frozen=True):
    """A process that runs sessions of a store which several machines share. `name` is the owner in its claims.

    `sessions` is how many it runs now. It was last heard of at `seen_at`, and `is_alive` says whether that is recent.
    `roots` are the folders that it serves; None means all.
    """

    name: str
    host: str = ""
    version: str = ""
    started_at: float = 0.0
    seen_at: float = 0.0
    lease: float = 0.0
    roots: tuple[str, ...] | None = None
    sessions: int = 0
    is_draining: bool = False
    is_alive: bool = True


class SharedValues(ABC):
    """Short-lived values, such as login tickets. All nodes that share a store see the same ones."""

    @abstractmethod
    async def put(self, key: str, value: bytes, seconds: float) -> None:
        """Store a value for so many seconds, in place of an earlier one."""

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """Return a value, or None when there is none or its time is over."""

    @abstractmethod
    async def take(self, key: str) -> bytes | None:
        """Return a value and delete it. Of several callers only one gets it."""

    @abstractmethod
    async def count(self, key: str, seconds: float) -> int:
        """Add one to a count and return it. The count starts anew after so many seconds."""

    @abstractmethod
    async def read_count(self, key: str) -> int:
        """Return a count without adding to it."""


class Watch(AsyncIterator[Event]):
    """The events of a session: each fact after a position exactly once and in order, and deltas as far as they fit."""

    @abstractmethod
    def ready(self) -> list[Event]:
        """Return events that need no waiting, so that a caller can send many at once. May return none."""

    @abstractmethod
    def stop_at(self, seq: int) -> None:
        """End the iteration after the fact at `seq`."""

    @abstractmethod
    def close(self) -> None:
        """End the iteration now."""


class StoredFact(Struct, frozen=True):
    """A fact of any session. `cursor` is its position in the store, which grows with every fact that is stored."""

    session_id: str
    cursor: int
    fact: AnyFact


class StoreWatch(AsyncIterator[StoredFact]):
    """The facts of all sessions after a cursor: each exactly once, and those of one session in their order.

    `start` is the cursor after which it started.
    """

    start: int

    @abstractmethod
    def ready(self) -> list[StoredFact]:
        """Return facts that need no waiting, so that a caller can send many at once. May return none."""

    @abstractmethod
    def close(self) -> None:
        """End the iteration now."""


class Observer(Protocol):
    """Sees what this process writes to any session, for metrics. Must be quick."""

    def on_stored(self, session_id: str, facts: Sequence[AnyFact], seconds: float) -> None:
        """Called after facts were stored, with the time that took."""
        ...

    def on_first_delta(self, session_id: str) -> None:
        """Called for the first delta after an append."""
        ...


class Log(ABC):
    """A store of facts. Methods raise `NotFound` for an unknown session and `StoreError` for a bad store.

    `listener` is called in this process when a session that it has claimed got facts from outside. `memories` are
    the memories in the same store. A write with a `claim` belongs to the work of that claim, on this session or on
    the one that started it: it raises `ClaimLost`, and writes nothing, when another owner has taken over.
    """

    is_shared: bool = False
    """Whether several machines can share this store. Their processes then are its nodes."""
    counters: dict[str, float] = {}  # noqa: RUF012 - a log that counts has its own
    """What this log has counted, for metrics, such as `claims`."""
    listener: Callable[[str], None] | None = None
    memories: Memories
    contents: Contents | None = None
    """Old contents of files, where the store keeps them itself. Otherwise each machine has its own."""
    shared: SharedValues
    observer: Observer | None = None
    on_due: Callable[[], None] | None = None
    """Called in this process when another node has left a session to whoever claims it first. It is a hint."""
    on_removed: Callable[[str], None] | None = None
    """Called in this process when another node has deleted a session. It is a hint."""
    on_drain: Callable[[], None] | None = None
    """Called in this process when somebody asked its node to hand its sessions over."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abstractmethod
    async def create(self, session_id: str, facts: Sequence[AnyFact], *, claim: Claim | None = None) -> None:
        """Create a session from its first facts: `SessionCreated`, and more for a fork or an import.

        Facts that already carry a time keep it. Raises `Conflict` when the id is taken.
        """

    @abstractmethod
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
        """Add facts from outside. Anyone may do this. With `wake`, the session becomes due at once.

        A key that was used before in this session adds nothing and returns the facts of the first post. With a
        `claimant`, new facts and its `claim` are one write, which is half the cost of two.
        """

    @abstractmethod
    async def claim(
        self,
        owner: str,
        ttl: float,
        session_id: str = "",
        agents: Sequence[str] | None = None,
        roots: Sequence[str] | None = None,
    ) -> Claim | None:
        """Become the one who runs this session, or any session that is due, for `ttl` seconds.

        Returns None when no session is due, or when a live owner has it. A session is due when it was woken, when
        its `wake_at` has passed, or when its owner's lease lapsed or process died. `agents` and `roots` narrow the
        choice as those of a `Claimant` do.
        """

    @abstractmethod
    async def renew(self, claim: Claim) -> None:
        """Keep the claim for another `ttl`. Raises `ClaimLost` when another owner has taken over."""

    @abstractmethod
    async def release(
        self, claim: Claim, expected_seq: int | None, wake_at: float | None = None, *, waiting: bool = False
    ) -> bool:
        """Give the session back until a post or `wake_at` wakes it.

        Returns False and keeps the claim when the log has gone past `expected_seq`: there is more to do. With None
        the position does not matter, and a session that was woken in the meantime stays due. `waiting` marks it as
        waiting for a person. Raises `ClaimLost` when another owner has taken over.
        """

    @abstractmethod
    async def append(
        self, claim: Claim, expected_seq: int, facts: Sequence[AnyFact], key: str = "", *, release: bool = False
    ) -> None:
        """Add facts as the owner: all of them or none. With `release`, the session is given back with the last one.

        Raises `ClaimLost` when the epoch has moved on, and `PositionMoved` when others have posted. With a key, a
        repeat after a lost acknowledgement stores the facts once.
        """

    @abstractmethod
    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> list[AnyFact]:
        """Return the facts after a position, in order. A limit of None or below 0 returns all."""

    @abstractmethod
    def read_in_pieces(
        self, session_id: str, after: int = 0, until: int | None = None
    ) -> AsyncGenerator[list[AnyFact]]:
        """Yield the facts after a position, up to another one. Others go on while a long log is read."""

    @abstractmethod
    def get_head(self, session_id: str) -> int:
        """Return the last position that this process knows, or 0. It is a hint."""

    @abstractmethod
    def watch(self, session_id: str, after: int = 0) -> Watch:
        """Replay from `after`, then follow live, whoever writes.

        Deltas of a run in another process come only from a store that several machines share, as far as they arrive.
        """

    @abstractmethod
    def watch_all(self, after: int | None = None) -> StoreWatch:
        """Watch the facts of all sessions after a cursor, whoever writes. None starts with the next fact.

        A cursor stays valid when the store is opened again. One beyond the last fact starts with the next fact.
        """

    @abstractmethod
    def publish(self, session_id: str, delta: AnyDelta) -> None:
        """Show a delta to the watchers. Never waits and never fails."""

    @abstractmethod
    async def get_info(self, session_id: str) -> SessionInfo:
        """Return the session's entry in the list."""

    @abstractmethod
    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        """List sessions, the last changed first."""

    async def iterate_sessions(self, query: SessionQuery) -> AsyncGenerator[SessionInfo]:
        """Yield every session that matches the query. Read the store page by page."""
        query = replace(query, limit=SESSIONS_PER_PAGE)
        while True:
            page = await self.list_sessions(query)
            for info in page.sessions:
                yield info
            if not page.cursor:
                return
            query = replace(query, cursor=page.cursor)

    @abstractmethod
    async def search(self, text: str, limit: int = 20) -> SearchHits:
        """Find messages, replies and outputs that have all words of `text`, the best first.

        It looks at the first 32 words of `text`, and at the first million letters of each fact.
        """

    @abstractmethod
    async def put_artifact(
        self, session_id: str, data: bytes, media_type: str = "text/plain", *, claim: Claim | None = None
    ) -> str:
        """Store an artifact and return its id. The id is a hash, so the same content is stored once."""

    @abstractmethod
    async def get_artifact(self, session_id: str, artifact_id: str) -> Artifact:
        """Return an artifact; raises `NotFound`."""

    @abstractmethod
    async def get_approval_key(self) -> bytes:
        """Return the secret that binds an approval to the call that was shown. It never leaves the store."""

    @abstractmethod
    async def delete(self, session_id: str) -> None:
        """Delete a session and everything in it. Raises `Conflict` while a live owner runs it."""

    def now(self) -> float:
        """Return the time that leases and times in this store are measured by."""
        return time.time()

    async def join(self, node: Node) -> None:  # noqa: B027 - a store of one machine has no list of nodes
        """Show this process in the list of nodes until the log is closed."""

    async def list_nodes(self) -> list[Node]:
        """List the nodes that share this store, also those that ended without leaving it, oldest first."""
        return []

    async def drain_node(self, name: str) -> None:
        """Ask a node to hand its sessions over and take no more. Raises `NotFound`."""
        raise NotFound(f"there is no node {name!r}: this store is not shared by several machines")

    def measure(self) -> dict[str, float]:
        """Return what this log has counted, and the state of its connections, for metrics."""
        return dict(self.counters)

    @abstractmethod
    async def check_writable(self, seconds: float) -> None:
        """Raise `StoreError` when the store would not take a fact now. Waits so long for other processes.

        Nothing is changed. Too little room for many facts is a `StoreFull`, before one is refused.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the store. All watches end."""
