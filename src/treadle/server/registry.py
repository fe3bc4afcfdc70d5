"""The registry of `/api/agent`: a summary of each session, counted from its facts. Each fact is read once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import BaseModel

from treadle import RunFinished
from treadle.events import AnyFact, CallFinished, MessageReceived, ModelFailed, ModelReplied, RunStarted, TurnStarted
from treadle.log.base import Log, SessionInfo, Status
from treadle.messages import render_parts

RunStatus = Literal["running", "awaiting_approval", "completed", "failed", "cancelled"]
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
_MAX_OBJECTIVE = 2000
_MAX_SESSIONS = 1000


class AgentSession(BaseModel):
    """A session in the registry."""

    session_id: str
    name: str
    objective: str
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


class SessionCounts:
    """Counts of one session's facts so far."""

    def __init__(self) -> None:
        self.seq = 0
        self.objective: str | None = None
        self.last: RunFinished | None = None
        self.fields = dict.fromkeys(("iteration", "max_iterations", "thoughts", "tool_calls", "results", "errors"), 0)

    def add(self, fact: AnyFact) -> None:
        self.seq, fields = fact.seq, self.fields
        match fact:
            case MessageReceived():
                if self.objective is None:
                    self.objective = render_parts(fact.parts)[:_MAX_OBJECTIVE]
            case RunStarted():
                fields["max_iterations"] = fact.limits.turns
            case TurnStarted():
                fields["iteration"] = fact.turn
            case ModelReplied():
                fields["thoughts"] += 1
                fields["tool_calls"] += len(fact.calls)
            case ModelFailed():
                fields["errors"] += 1
            case CallFinished():
                fields["results"] += 1
                fields["errors"] += fact.status not in ("ok", "denied", "refused")
            case RunFinished():
                self.last = fact
            case _:
                pass


class Registry:
    """Keeps the counts of the sessions that were requested last, and reads only new facts."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, SessionCounts] = OrderedDict()

    async def summarize_session(self, log: Log, info: SessionInfo) -> AgentSession:
        """Summarize one session."""
        counts = self._counts.setdefault(info.id, SessionCounts())
        self._counts.move_to_end(info.id)
        if len(self._counts) > _MAX_SESSIONS:
            self._counts.popitem(last=False)
        if counts.seq < info.seq:
            for fact in await log.read(info.id, counts.seq):
                if fact.seq > counts.seq:  # another request may have counted it meanwhile
                    counts.add(fact)
        last = counts.last
        return AgentSession(
            session_id=info.id,
            name=info.name,
            objective=counts.objective or "",
            status=classify_run(last) if info.status == "stopped" and last is not None else STATUSES[info.status],
            reason=last.reason if last is not None and info.status not in ("running", "waiting") else "",
            created_at=info.created_at,
            updated_at=info.updated_at,
            **counts.fields,
        )


def classify_run(fact: RunFinished) -> RunStatus:
    """One of the five statuses. A limit is a failure; handing the turn back is a success."""
    if fact.reason in ("answered", "yielded"):
        return "completed"
    return "cancelled" if fact.reason == "cancelled" else "failed"
