"""The log port: what a session's facts need of a store, and nothing about how it is kept.

Nothing outside this package may assume one process. Anyone may `post`; one owner at a time, with a claim,
may `append`. Wake-ups are hints: the truth is always `read`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import BadInput
from treadle.events import (
    LIMIT_REASONS,
    AnyDelta,
    AnyFact,
    Event,
    Parent,
    RunFinished,
    RunStarted,
    SessionConfigured,
    SessionRenamed,
)
from treadle.messages import replace_surrogates

Status = Literal["idle", "running", "waiting", "answered", "stopped", "failed", "cancelled"]


class Claim(Struct, frozen=True):
    """The right to run one session. `epoch` is the fence: a later claim has a higher one."""

    session_id: str
    owner: str
    epoch: int
    ttl: float


class PostResult(Struct, frozen=True):
    """What `post` stored, or what an earlier post with the same key had stored (`fresh` is False then)."""

    facts: tuple[AnyFact, ...]
    is_new: bool


class Artifact(Struct, frozen=True):
    """Something too large for the context, kept whole."""

    id: str
    media_type: str
    data: bytes


class SessionInfo(Struct, frozen=True):
    """One line in a list of sessions."""

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


class SessionQuery(Struct, frozen=True):
    """Which sessions to list, newest first. `text` is looked for in the name; `cursor` is a page's end.

    `parent` is the session that they were forked from or whose calls started them, `prefix` the beginning of an id.
    """

    status: Status | None = None
    agent: str = ""
    workspace: str = ""
    text: str = ""
    parent: str = ""
    prefix: str = ""
    limit: int = 50
    cursor: str = ""


class SessionPage(Struct, frozen=True):
    """A page of sessions; `cursor` fetches the next one and is empty at the end."""

    sessions: tuple[SessionInfo, ...]
    cursor: str = ""


class SearchHit(Struct, frozen=True):
    """A place in a session's transcript that a search found."""

    session_id: str
    seq: int
    snippet: str


MemoryKind = Literal["fact", "preference", "procedure"]
MAX_MEMORY_LENGTH = 2000

Embed = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Makes a vector of each text, so that it is found by meaning as well as by its words. Vectors of different models say
nothing about each other: an embedding that has another `name` makes them anew."""


class Memory(Struct, frozen=True, omit_defaults=True):
    """Something to be remembered. `scope` is the workspace where it holds; empty where it is the user's, anywhere."""

    text: str
    kind: MemoryKind = "fact"
    scope: str = ""
    session_id: str = ""
    id: str = ""
    at: float = 0.0


class Memories(ABC):
    """What is remembered across sessions. Nothing of it is ever obeyed: it is shown as what somebody once noted.

    With `embed` it is also found by its meaning.
    """

    embed: Embed | None = None

    async def add(self, memory: Memory) -> Memory:
        """Keep something; it gets its id and time. The same text in the same place is kept once.

        Raises `BadInput` for what is empty, too long, or looks like a secret.
        """
        return await self._put(replace(memory, text=_memorable(memory.text)))

    async def edit(self, memory_id: str, text: str) -> Memory:
        """Change the text of something remembered; raises `NotFound`, or `BadInput` as `add` does."""
        return await self._change(memory_id, _memorable(text))

    @abstractmethod
    async def search(
        self, text: str, scopes: Sequence[str] | None = None, limit: int = 20, embed: Embed | None = None
    ) -> list[Memory]:
        """Those that have any of the words of `text`, best first; with an embedding also those that mean the like.

        The embedding has a few seconds. Where it fails or takes longer, the words alone decide.
        """

    @abstractmethod
    async def _put(self, memory: Memory) -> Memory: ...

    @abstractmethod
    async def _change(self, memory_id: str, text: str) -> Memory: ...

    @abstractmethod
    async def get(self, memory_id: str) -> Memory:
        """One of them; raises `NotFound`."""

    @abstractmethod
    async def list(
        self,
        scopes: Sequence[str] | None = None,
        limit: int = 1000,
        kind: MemoryKind | None = None,
        *,
        offset: int = 0,
        newest: bool = False,
    ) -> list[Memory]:
        """Those of these scopes, or of every scope, and of one kind or any, the oldest first or the newest."""

    @abstractmethod
    async def delete(self, memory_id: str) -> None:
        """Forget it; raises `NotFound`."""


def _memorable(text: str) -> str:
    from treadle.secrets.detect import find_secret

    text = replace_surrogates(text).strip()
    if not text:
        raise BadInput("there is nothing to remember: the text is empty")
    if len(text) > MAX_MEMORY_LENGTH:
        raise BadInput(f"the text has {len(text)} characters; {MAX_MEMORY_LENGTH} can be remembered. Make it shorter")
    if what := find_secret(text):
        raise BadInput(f"this seems to hold {what}, and secrets are not remembered. Say it without; nothing was kept")
    return text


class SessionChanges(Struct):
    """What facts change in a session's line in the list; None and 0 change nothing."""

    name: str | None = None
    named_by_user: bool = False
    agent: str | None = None
    status: Status | None = None
    turns: int = 0
    cost: float = 0.0


NO_CHANGES = SessionChanges()
_LISTED = frozenset((RunStarted, RunFinished, SessionRenamed, SessionConfigured))


def summarize_changes(facts: Sequence[AnyFact]) -> SessionChanges:
    """What these facts change in the list of sessions; most change nothing, and it is `NO_CHANGES` then."""
    if _LISTED.isdisjoint(map(type, facts)):
        return NO_CHANGES
    change = SessionChanges()
    for fact in facts:
        if isinstance(fact, RunStarted):
            change.status = "running"
        elif isinstance(fact, RunFinished):
            change.status = _status_after(fact)
            change.turns += fact.turns
            change.cost += fact.usage.cost
        elif isinstance(fact, SessionRenamed):
            if fact.by == "user" or not change.named_by_user:
                change.name, change.named_by_user = fact.name, fact.by == "user"
        elif isinstance(fact, SessionConfigured):
            change.agent = fact.agent or change.agent
    return change


def _status_after(fact: RunFinished) -> Status:
    if fact.reason in ("answered", "failed", "cancelled"):
        return fact.reason
    assert fact.reason in LIMIT_REASONS or fact.reason in ("stuck", "yielded")
    return "stopped"


class Watch(ABC):
    """A session's events: each fact after a position exactly once and in order, deltas as far as they fit."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    @abstractmethod
    async def __anext__(self) -> Event: ...

    def ready(self) -> list[Event]:
        """What can be had without waiting, for who would rather send much at once; none is fine too."""
        return []

    @abstractmethod
    def stop_at(self, seq: int) -> None:
        """End the iteration once every fact up to `seq` has been given."""

    @abstractmethod
    def close(self) -> None:
        """End the iteration now."""


class Observer(Protocol):
    """Sees what this process writes to any session: to count it, or to tell whoever lists sessions. Must be quick."""

    def on_stored(self, session_id: str, facts: Sequence[AnyFact], seconds: float) -> None:
        """These facts were just stored, which took so long."""
        ...

    def on_first_delta(self, session_id: str) -> None:
        """The first fragment came of what follows the last append."""
        ...


class Log(ABC):
    """Where facts are kept. Methods raise `NotFound` for an unknown session and `StoreError` for a bad store.

    `listener` is called, in this process, when a session it has claimed got facts from outside. `memories` is what
    is remembered across the sessions of this store.
    """

    listener: Callable[[str], None] | None = None
    memories: Memories
    observer: Observer | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abstractmethod
    async def create(self, session_id: str, facts: Sequence[AnyFact]) -> None:
        """Make a session from its first facts (`SessionCreated` first; more for a fork or an import).

        Facts that already carry a time keep it. Raises `Conflict` when the id is taken.
        """

    @abstractmethod
    async def post(self, session_id: str, facts: Sequence[AnyFact], key: str = "", *, wake: bool = True) -> PostResult:
        """Add what anyone may add from outside; with `wake` the session becomes due at once.

        A key that was used before in this session adds nothing and returns what was stored then.
        """

    @abstractmethod
    async def claim(
        self, owner: str, ttl: float, session_id: str = "", agents: Sequence[str] | None = None
    ) -> Claim | None:
        """Become the one who runs this session, or any that is due, for `ttl` seconds.

        None when there is none, or when a live owner has it. Due is: woken, past its `wake_at`, or left
        behind by an owner whose lease lapsed or whose process is gone. `agents` narrows the choice.
        """

    @abstractmethod
    async def renew(self, claim: Claim) -> None:
        """Keep the claim for another `ttl`; raises `ClaimLost` when somebody took over."""

    @abstractmethod
    async def release(
        self,
        claim: Claim,
        expected_seq: int | None,
        wake_at: float | None = None,
        *,
        waiting: bool = False,
    ) -> bool:
        """Give the session back, to be woken by a post or at `wake_at`.

        False, and still claimed, when the log has gone past `expected_seq`: there is more to do. None as
        `expected_seq` gives it back whatever it holds, and keeps it due when it was woken meanwhile.
        `waiting` marks it as waiting for a person. Raises `ClaimLost` when somebody took over.
        """

    @abstractmethod
    async def append(self, claim: Claim, expected_seq: int, facts: Sequence[AnyFact], key: str = "") -> None:
        """Add what the owner did or decided: all of it or nothing.

        Raises `ClaimLost` when the epoch has moved on, `PositionMoved` when others posted meanwhile. A
        key makes it safe to send again what may have been stored: then it is stored once.
        """

    @abstractmethod
    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> list[AnyFact]:
        """The facts after a position, in order; no limit, or one below 0, gives them all."""

    @abstractmethod
    def get_head(self, session_id: str) -> int:
        """The last position this process knows of; a hint, 0 when it knows none."""

    @abstractmethod
    def watch(self, session_id: str, after: int = 0) -> Watch:
        """Replay from `after`, then live, whoever writes; deltas only from runs in this process."""

    @abstractmethod
    def publish(self, session_id: str, delta: AnyDelta) -> None:
        """Show a live fragment to whoever watches. Never waits and never fails."""

    @abstractmethod
    async def get_info(self, session_id: str) -> SessionInfo:
        """One session's line in the list."""

    @abstractmethod
    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        """Sessions, the last changed first."""

    @abstractmethod
    async def search(self, text: str, limit: int = 20) -> list[SearchHit]:
        """Where messages, replies and outputs hold all the words of `text`, best first."""

    @abstractmethod
    async def put_artifact(self, session_id: str, data: bytes, media_type: str = "text/plain") -> str:
        """Keep something whole; the id is made from its content, so the same content is kept once."""

    @abstractmethod
    async def get_artifact(self, session_id: str, artifact_id: str) -> Artifact:
        """What `put_artifact` kept."""

    @abstractmethod
    async def delete(self, session_id: str) -> None:
        """Remove a session with all it has. Raises `Conflict` while a live owner runs it."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the store; watches end."""
