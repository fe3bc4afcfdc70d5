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
LISTED_STATUSES: dict[RunStatus, Status] = {
    "running": "running",
    "awaiting_approval": "waiting",
    "cancelled": "cancelled",
}
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

    __slots__ = ("calls", "errors", "iteration", "last", "most", "objective", "results", "seq", "thoughts")

    def __init__(self) -> None:
        self.seq = self.iteration = self.most = self.thoughts = self.calls = self.results = self.errors = 0
        self.objective: str | None = None
        self.last: RunFinished | None = None

    def add(self, fact: AnyFact) -> None:
        self.seq = fact.seq
        match fact:
            case MessageReceived():
                if self.objective is None:
                    self.objective = render_parts(fact.parts)[:_MAX_OBJECTIVE]
            case RunStarted():
                self.most = fact.limits.turns
            case TurnStarted():
                self.iteration = fact.turn
            case ModelReplied():
                self.thoughts += 1
                self.calls += len(fact.calls)
            case ModelFailed():
                self.errors += 1
            case CallFinished():
                self.results += 1
                self.errors += fact.status not in ("ok", "denied", "refused")
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
            iteration=counts.iteration,
            max_iterations=counts.most,
            thoughts=counts.thoughts,
            tool_calls=counts.calls,
            results=counts.results,
            errors=counts.errors,
            created_at=info.created_at,
            updated_at=info.updated_at,
        )


def classify_run(fact: RunFinished) -> RunStatus:
    """One of the five statuses. A limit is a failure; handing the turn back is a success."""
    if fact.reason in ("answered", "yielded"):
        return "completed"
    return "cancelled" if fact.reason == "cancelled" else "failed"
