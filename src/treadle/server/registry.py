"""The registry of `/api/agent`: a summary of each session, counted from its facts, and one stream of all sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import BaseModel

from treadle import Runtime
from treadle.dialects.registry_events import COUNTED_FIELDS, RegistryDialect, RunStatus, SessionCounts, classify_run
from treadle.errors import NotFound, StoreTooNew
from treadle.log.base import Log, SessionInfo, Status, StoreWatch
from treadle.server.streams import SHUTDOWN_COMMENT, PieceStream, encode_frames

if TYPE_CHECKING:
    from treadle.server.service import Service

STATUSES: dict[Status, RunStatus] = {
    "idle": "completed",
    "running": "running",
    "waiting": "awaiting_approval",
    "answered": "completed",
    "stopped": "failed",
    "failed": "failed",
    "cancelled": "cancelled",
}
# These statuses have exactly one counterpart in the list of sessions, so the log can filter by them.
LISTED_STATUSES: dict[RunStatus, Status] = {STATUSES[one]: one for one in ("running", "waiting", "cancelled")}
_MAX_SESSIONS = 1000


class AgentSession(BaseModel):
    """A session in the registry."""

    session_id: str
    name: str
    objective: str
    tools: list[str]
    status: RunStatus
    reason: str
    iteration: int
    max_iterations: int
    thoughts: int
    tool_calls: int
    results: int
    errors: int
    created_at: float
    updated_at: float


class Registry:
    """Keeps the counts of the sessions that were requested last, and reads only new facts."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, SessionCounts] = OrderedDict()

    async def summarize_session(self, runtime: Runtime, info: SessionInfo) -> AgentSession:
        """Summarize one session. Its tools are those of its agent here, or those it was created with."""
        counts = self._counts.setdefault(info.id, SessionCounts())
        self._counts.move_to_end(info.id)
        if len(self._counts) > _MAX_SESSIONS:
            self._counts.popitem(last=False)
        if counts.seq < info.seq:
            with suppress(StoreTooNew):  # a newer node counts all of them
                for fact in await runtime.log.read(info.id, counts.seq):
                    if fact.seq > counts.seq:  # another request may have counted it meanwhile
                        counts.add(fact)
        last, agent = counts.last, runtime.agents.get(info.agent)
        return AgentSession(
            session_id=info.id,
            name=info.name,
            objective=counts.objective,
            tools=sorted(agent.toolbox) if agent is not None else list(counts.tools),
            status=classify_run(last) if info.status == "stopped" and last is not None else STATUSES[info.status],
            reason=last.reason if last is not None and info.status not in ("running", "waiting") else "",
            created_at=info.created_at,
            updated_at=info.updated_at,
            **{name: getattr(counts, name) for name in COUNTED_FIELDS},
        )


class AllSessionsStream(PieceStream):
    """Sends the registry events of all sessions until the client leaves or the server stops. `id:` is the cursor."""

    def __init__(self, service: Service, watch: StoreWatch) -> None:
        super().__init__(service.streams, self._write_events(service.runtime.log, watch))
        self._watch = watch

    async def _write_events(self, log: Log, watch: StoreWatch) -> AsyncGenerator[bytes]:
        dialects: OrderedDict[str, RegistryDialect] = OrderedDict()
        yield b"id: %d\n\n" % watch.start  # for a client that reconnects before the first event
        async for first in watch:
            data = b""
            for stored in (first, *watch.ready()):
                session_id, fact = stored.session_id, stored.fact
                if session_id not in dialects:
                    dialects[session_id] = RegistryDialect(session_id)
                    with suppress(NotFound, StoreTooNew):  # it was deleted meanwhile, or a newer node writes it
                        for before in await log.read(session_id, limit=fact.seq - 1):
                            dialects[session_id].feed(before)
                dialects.move_to_end(session_id)
                if len(dialects) > _MAX_SESSIONS:
                    dialects.popitem(last=False)
                data += encode_frames(dialects[session_id].feed(fact), stored.cursor, "event")
            if data:
                yield data
        if self._streams.is_closed:
            yield SHUTDOWN_COMMENT

    def stop(self) -> None:
        """End the events."""
        self._watch.close()
