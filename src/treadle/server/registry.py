"""The registry of `/api/agent`: a line for each session, counted from its facts. What was counted is not read again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import BaseModel

from treadle import RunFinished
from treadle.events import (
    AnyFact,
    CallFinished,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    RunStarted,
    TurnStarted,
)
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
# Those that are one and the same in the list of sessions, so that it can be asked for them alone.
LISTED_STATUSES: dict[RunStatus, Status] = {
    "running": "running",
    "awaiting_approval": "waiting",
    "cancelled": "cancelled",
}
_LONGEST = 2000
_KEPT = 1000


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
    """What one session's facts amount to so far."""

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
                    self.objective = render_parts(fact.parts)[:_LONGEST]
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
    """Tallies of the sessions that were asked for last; each is brought level by reading what is new."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, SessionCounts] = OrderedDict()

    async def summarize_session(self, log: Log, info: SessionInfo) -> AgentSession:
        """One session's line."""
        tally = self._kept.setdefault(info.id, SessionCounts())
        self._kept.move_to_end(info.id)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        if tally.seq < info.seq:
            for fact in await log.read(info.id, tally.seq):
                if fact.seq > tally.seq:  # another request may have counted it while this one was reading
                    tally.add(fact)
        at_rest = info.status not in ("running", "waiting")
        return AgentSession(
            session_id=info.id,
            name=info.name,
            objective=tally.objective or "",
            status=_status(info, tally.last),
            reason=tally.last.reason if tally.last is not None and at_rest else "",
            iteration=tally.iteration,
            max_iterations=tally.most,
            thoughts=tally.thoughts,
            tool_calls=tally.calls,
            results=tally.results,
            errors=tally.errors,
            created_at=info.created_at,
            updated_at=info.updated_at,
        )


def classify_run(fact: RunFinished) -> RunStatus:
    """Of the five; a limit is no success, but handing the turn back is."""
    if fact.reason in ("answered", "yielded"):
        return "completed"
    return "cancelled" if fact.reason == "cancelled" else "failed"


def _status(info: SessionInfo, last: RunFinished | None) -> RunStatus:
    return classify_run(last) if info.status == "stopped" and last is not None else STATUSES[info.status]
