"""A run as its caller sees it: watch its events, get its outcome. The work itself belongs to the coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType

from treadle.engine.coordinator import Coordinator, Follower
from treadle.errors import BadInput, NotFound
from treadle.events import ApprovalRequested, Event, InputRequested, RunFinished, TurnStarted
from treadle.log.base import Watch


class Run:
    """Work in progress. Iterate over it to see every event; leaving the block stops what is still under way.

    The iteration ends when the run does, or when it waits for somebody: then `outcome` is None and `pending`
    says what is asked. After the block both say how things stood when it was left, however early. A run that another
    process has taken up goes on there.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        session_id: str,
        begin: Callable[[], Awaitable[int]],
        message_id: str = "",
    ) -> None:
        self.session_id = session_id
        self.outcome: RunFinished | None = None
        self.pending: list[ApprovalRequested | InputRequested] = []
        self.message_id = message_id
        self._coordinator, self._begin = coordinator, begin
        self._watch: Watch | None = None
        self._follower: Follower | None = None
        self._position, self._mine = 0, not message_id

    async def __aenter__(self) -> Run:
        self._position = await self._begin()
        self._watch = self._coordinator.log.watch(self.session_id, after=self._position)
        await self._coordinator.wake(self.session_id)
        self._follower = self._coordinator.follow(self.session_id, self._watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._follower is not None:
            self._follower.close()
        if self._watch is not None:
            self._watch.close()
        if self.outcome is None and not self._coordinator.is_closed and self._coordinator.is_running(self.session_id):
            state = await self._coordinator.load_state(self.session_id)
            waits = any(message.id == self.message_id for message in state.queue)
            if state.run is None or not waits:  # else it is somebody else's run that would be stopped
                self.outcome = await self._coordinator.cancel(self.session_id, why="its caller left")
        if self.outcome is None and not self._coordinator.is_closed:
            with suppress(NotFound):  # it may have been deleted meanwhile
                for fact in await self._coordinator.log.read(self.session_id, after=self._position):
                    self._take(fact)
                self.pending = (await self._coordinator.load_state(self.session_id)).pending

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def wait(self) -> RunFinished | None:
        """Let it run to its end, or until it waits for somebody (then None)."""
        async for _ in self:
            pass
        return self.outcome

    async def _events(self) -> AsyncIterator[Event]:
        if self._watch is None:
            raise BadInput("use `async with session.run(...) as run:` and iterate over `run` inside the block")
        async for event in self._watch:
            self._take(event)
            yield event
            if self.outcome is not None:
                return
        if self._follower is not None and self._follower.failure is not None:
            raise self._follower.failure
        self.pending = (await self._coordinator.load_state(self.session_id)).pending

    def _take(self, event: Event) -> None:
        """See whether it is the end of this run, and not of one that was under way before."""
        if isinstance(event, TurnStarted) and self.message_id in event.messages:
            self._mine = True
        if isinstance(event, RunFinished) and self._mine:
            self.outcome = self.outcome or event
