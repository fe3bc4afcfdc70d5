"""What a copy needs of a store: sessions with everything around them, and facts as the bytes that are stored.

It is not the log: nothing here claims, wakes or runs a session. A session appears in its new store in one step, when
all its facts are there. Until then they lie beside the log, where no reader finds them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import Struct

from treadle.log.base import Artifact, SessionInfo
from treadle.memory.base import Memories

PIECE_FACTS, PIECE_BYTES = 2000, 1024 * 1024
"""How much of a session is read at once, about. A larger session is copied in pieces."""
SESSIONS_AT_ONCE = 500
"""How many entries of the list are read at once."""

_TIME_AT_END = re.compile(rb'"at":[-+.\deE]+\}\Z')


class SessionRecord(Struct, frozen=True):
    """A session's entry in the list, and what the list does not show. `num` is its number in its store.

    `is_held` says that a live process runs it. `min_reader` is the oldest reader that knows all its facts, as far as
    the store knows.
    """

    num: int
    info: SessionInfo
    epoch: int
    lease: float
    is_held: bool
    min_reader: int = 1

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def head(self) -> int:
        return self.info.seq

    def find_wake_time(self, now: float) -> float | None:
        """Find when a copy is due. A session whose process died is due when its lease ended, or now."""
        wakes = [at for at in (self.info.wake_at, min(self.lease, now) if self.info.owner else None) if at is not None]
        return min(wakes, default=None)


class StoredKey(Struct, frozen=True):
    """The key of a post or an append, and the positions of its first and last fact."""

    key: str
    first: int
    last: int


class Publication(Struct, frozen=True):
    """A session that is to appear in a store, or to grow there from the position `after` on.

    `bodies` are its facts after that position. Without them they were added as incoming facts of the number `num`.
    """

    record: SessionRecord
    after: int
    num: int | None
    bodies: Sequence[bytes]
    keys: Sequence[StoredKey]
    wake_at: float | None
    min_reader: int


class StoreReader(ABC):
    """Reads a store that is to be copied, and changes nothing in it.

    `identity` is equal for two readers of the same store. `memories` is None in a store that is too old to have any.
    `has_contents` says whether old contents of files are kept in the store itself, and not on each machine.
    """

    name: str
    identity: str
    has_contents: bool
    memories: Memories | None

    @abstractmethod
    def iterate_sessions(self) -> AsyncGenerator[SessionRecord]:
        """Yield all sessions, the first created first."""

    @abstractmethod
    async def get_session(self, session_id: str) -> SessionRecord | None:
        """Return a session as it is now, or None."""

    @abstractmethod
    def read_bodies(self, num: int, after: int, until: int) -> AsyncGenerator[list[bytes]]:
        """Yield the facts of a session after a position and up to another one, in order. Stop before a missing one."""

    @abstractmethod
    async def read_keys(self, num: int) -> list[StoredKey]:
        """Return the keys of a session, in the order of their facts."""

    @abstractmethod
    async def list_artifacts(self, num: int) -> list[str]:
        """Return the ids of a session's artifacts."""

    @abstractmethod
    async def read_artifact(self, num: int, artifact_id: str) -> Artifact | None:
        """Return an artifact, or None when it was deleted with its session."""

    @abstractmethod
    async def read_content(self, name: str) -> bytes | None:
        """Return the old content of a file by its hash, or None when it is not there or damaged."""

    @abstractmethod
    async def read_approval_key(self) -> bytes | None:
        """Return the secret that binds approvals, or None when the store never needed one."""

    @abstractmethod
    async def close(self) -> None:
        """Close the store."""


class StoreWriter(StoreReader):
    """Writes sessions into the store that they are copied to.

    `source` is the identity of the store that they come from: what two copies add at once is never mixed.
    """

    @abstractmethod
    async def begin(self, source: str, session_id: str, num: int | None) -> int:
        """Return the number for the incoming facts of a session. `num` is its number here, if it exists already."""

    @abstractmethod
    async def find_begun(self, source: str, session_id: str) -> int | None:
        """Return the number that `begin` returned, in this process or in one that ended."""

    @abstractmethod
    async def find_last_incoming(self, num: int) -> int:
        """Return the position of the last incoming fact, or 0."""

    @abstractmethod
    def read_incoming(self, num: int, after: int, until: int) -> AsyncGenerator[list[bytes]]:
        """Yield the incoming facts of a number, as `read_bodies` yields those of a session."""

    @abstractmethod
    async def add_incoming(self, num: int, after: int, bodies: Sequence[bytes]) -> None:
        """Add facts after a position. Facts that were added before stay as they are."""

    @abstractmethod
    async def discard(self, source: str, session_id: str) -> None:
        """Delete the incoming facts of a session."""

    @abstractmethod
    async def put_artifact(self, num: int, artifact: Artifact) -> None:
        """Store an artifact under the number of a session, which may still be incoming."""

    @abstractmethod
    async def put_content(self, data: bytes) -> None:
        """Store the old content of a file."""

    @abstractmethod
    async def publish(self, publication: Publication) -> bool:
        """Show the session with all its facts, or let it grow, in one step. Nobody runs it then.

        Returns False when there is a session with this id already, when it has moved on, or when it runs.
        """

    @abstractmethod
    async def set_approval_key(self, key: bytes) -> None:
        """Set the secret that binds approvals, unless there are sessions that another one may have bound."""

    @abstractmethod
    async def end(self, source: str) -> None:
        """Remove what is left of sessions that were not published. Only a copy that ends by itself calls it."""


def set_seq(body: bytes, seq: int) -> bytes:
    """Write a fact with its position. Some stores keep the position of a post only beside it.

    The bytes are those of a fact that was stored with its position. A fact that cannot be read stays as it is.
    """
    try:
        if msgspec.json.decode(body, type=_Position).seq:
            return body
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body
    if found := _TIME_AT_END.search(body):
        return body[: found.start()] + b'"seq":%d,' % seq + body[found.start() :]
    return body[:-1] + b',"seq":%d}' % seq


class _Position(Struct):
    seq: int = 0
