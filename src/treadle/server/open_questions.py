"""The open questions of sessions, known without folding a whole session for every look at a list."""

from __future__ import annotations

from collections import OrderedDict

from treadle import events
from treadle.engine.fold import apply
from treadle.engine.state import State
from treadle.errors import StoreTooNew
from treadle.events import AnyFact, ApprovalRequested, InputRequested
from treadle.log.base import Log, SessionInfo

MAX_FOLLOWED = 500
"""How many sessions are followed. Others are read again from their beginning."""
_TURN = (events.RunStarted, events.TurnStarted, events.RunFinished)
_ASKING = (
    *(events.ModelReplied, events.ApprovalRequested, events.ApprovalAnswered),
    *(events.InputRequested, events.InputAnswered, events.CallStarted, events.CallFinished),
)


class _Followed:
    """One session up to a position. It keeps the current turn only, because questions end with their turn."""

    def __init__(self) -> None:
        self.seq = 0
        self.state = State()

    def add(self, fact: AnyFact) -> None:
        self.seq = fact.seq
        if isinstance(fact, _TURN):
            self.state = State(run=self.state.run)
        if isinstance(fact, _TURN + _ASKING):
            apply(self.state, fact)


class OpenQuestions:
    """Finds what the sessions of a log ask a person."""

    def __init__(self) -> None:
        self._followed: OrderedDict[str, _Followed] = OrderedDict()

    async def find(self, log: Log, info: SessionInfo) -> list[ApprovalRequested | InputRequested]:
        """Find the open questions of a session. One without an unfinished run, or of a newer release, has none."""
        if info.status not in ("running", "waiting"):
            self._followed.pop(info.id, None)
            return []
        followed = self._followed.setdefault(info.id, _Followed())
        self._followed.move_to_end(info.id)
        if len(self._followed) > MAX_FOLLOWED:
            self._followed.popitem(last=False)
        if info.seq > followed.seq:
            try:
                async for facts in log.read_in_pieces(info.id, followed.seq):
                    for fact in facts:
                        if fact.seq == followed.seq + 1:  # somebody else may have read them meanwhile
                            followed.add(fact)
            except StoreTooNew:  # a newer node knows them
                return []
        return followed.state.pending
