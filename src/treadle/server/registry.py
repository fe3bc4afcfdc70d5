"""The registry of `/api/agent`: a summary of each session, counted from its facts. Each fact is read once."""

from __future__ import annotations

from collections import OrderedDict

from pydantic import BaseModel

from treadle import Runtime
from treadle.dialects.registry_events import COUNTED_FIELDS, RunStatus, SessionCounts, classify_run
from treadle.log.base import SessionInfo, Status

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
