"""A run as its caller sees it: its events and its outcome. The coordinator does the work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType

from treadle import events
from treadle.engine.coordinator import Coordinator
from treadle.engine.session_entry import Follower
from treadle.engine.state import State
from treadle.errors import BadInput, NotFound
from treadle.log.base import Watch

_TRACKED = frozenset(
    {
        events.TurnStarted,
        events.RunStarted,
        events.RunFinished,
        events.CancelRequested,
        events.MessageReceived,
        events.MessageEdited,
        events.RunRequested,
    }
)
"""The events that change what a tracker knows. Most events do not, so this check keeps a step fast."""


class RunTracker:
    """Finds one run in a session's events, and its end.

    It is the run that processes a message, or without a message the next run that starts. With `is_running` it is the
    current run. `is_held` means that somebody cancelled the run before it started: the message stays in the queue
    until the next one is posted. A follow-up is held too when the run before it ends without an answer.
    `is_withdrawn` means that somebody took the message back.
    """

    __slots__ = ("_is_mine", "is_follow_up", "is_held", "is_withdrawn", "message_id", "outcome")

    def __init__(self, message_id: str = "", *, is_running: bool = False) -> None:
        self.message_id = message_id
        self.outcome: events.RunFinished | None = None
        self.is_held = self.is_withdrawn = self.is_follow_up = False
        self._is_mine = is_running

    @property
    def is_over(self) -> bool:
        """Whether no more events of the run can follow."""
        return self.outcome is not None or self.is_held or self.is_withdrawn

    def feed(self, event: events.Event) -> bool:
        """Read the next event. Return True when the run is over."""
        match event:
            case events.TurnStarted() if self.message_id:
                self._is_mine = self._is_mine or self.message_id in event.messages
            case events.RunStarted() if not self.message_id:
                self._is_mine = True
            case events.RunFinished() if self._is_mine:
                self.outcome = self.outcome or event
            case events.RunFinished() if self.is_follow_up and event.reason != "answered":
                self.is_held = True
            case events.MessageEdited() if event.id == self.message_id and not self._is_mine:
                self.is_withdrawn = not event.parts
            case events.CancelRequested() if not self._is_mine:
                self.is_held = True
            case events.MessageReceived() | events.RunRequested() if self.is_held:
                self.is_held = False
            case _:
                pass
        return self.is_over


class Run:
    """A run in progress. Iterate over it to get every event. Leaving the block stops the run if it has not ended.

    The iteration ends when the run ends, or when it waits for somebody: then `outcome` is None and `pending` has the
    open questions, and the calls whose results the client must send. After the block, both describe the moment at
    which the block was left. `detach` leaves without stopping the run. A run that another process took over continues
    there.

    `Session.follow` returns a run that somebody else started. It needs no block, its iteration continues while a
    question is open, and leaving it never stops the run.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        session_id: str,
        begin: Callable[[], Awaitable[int]] | None,
        message_id: str = "",
        *,
        after: int = 0,
        is_running: bool = False,
    ) -> None:
        self.session_id = session_id
        self.pending: list[events.ApprovalRequested | events.InputRequested | events.CallStarted] = []
        self._coordinator, self._begin = coordinator, begin
        self._tracker = RunTracker(message_id, is_running=is_running)
        self._position, self._seen = after, after
        self._first: int | None = None
        self._follower: Follower | None = None
        self._watch: Watch | None = coordinator.log.watch(session_id, after) if begin is None else None
        self._is_detached = begin is None

    @property
    def outcome(self) -> events.RunFinished | None:
        """How the run ended. None while it has not ended."""
        return self._tracker.outcome

    @property
    def message_id(self) -> str:
        """The message that started the run. Empty if no message started it."""
        return self._tracker.message_id

    @message_id.setter
    def message_id(self, message_id: str) -> None:
        self._tracker.message_id = message_id

    @property
    def is_follow_up(self) -> bool:
        """Whether the message waits until the current run has answered."""
        return self._tracker.is_follow_up

    @is_follow_up.setter
    def is_follow_up(self, is_follow_up: bool) -> None:
        self._tracker.is_follow_up = is_follow_up

    @property
    def is_withdrawn(self) -> bool:
        """Whether somebody took the message back before a run took it."""
        return self._tracker.is_withdrawn

    @property
    def is_held(self) -> bool:
        """Whether somebody cancelled before the run started. The message is kept for the next run."""
        return self._tracker.is_held

    @property
    def is_over(self) -> bool:
        """Whether no event of this run can follow."""
        tracker = self._tracker
        return tracker.outcome is not None or tracker.is_withdrawn or (self._begin is None and tracker.is_held)

    def watch_from(self, position: int) -> None:
        """Also iterate over the events after an earlier position. Call it before the block."""
        self._first = position

    async def __aenter__(self) -> Run:
        if self._begin is not None:
            self._position = await self._begin()
            self._seen = self._position if self._first is None else self._first
            await self._follow()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_following()
        if self.outcome is not None or self._is_detached or self._coordinator.is_closed:
            return
        with suppress(NotFound):  # the session may have been deleted meanwhile
            state = await self._coordinator.load_state(self.session_id)
            if self._coordinator.is_running(self.session_id) or state.retry_at is not None:
                is_queued = any(message.id == self.message_id for message in state.queue)
                if state.run is None or not is_queued:  # otherwise the run that would be stopped is somebody else's
                    self._tracker.outcome = await self._coordinator.cancel(self.session_id, why="its caller left")
            if self.outcome is None and not self._coordinator.is_closed:
                for fact in await self._coordinator.log.read(self.session_id, after=self._position):
                    self._tracker.feed(fact)
                state = await self._coordinator.load_state(self.session_id)
                self.pending = [*state.pending, *state.client_calls]

    def __aiter__(self) -> AsyncIterator[events.Event]:
        return self._events()

    async def wait(self) -> events.RunFinished | None:
        """Wait until the run ends, or until it waits for a person (then None)."""
        async for _ in self:
            pass
        return self.outcome

    def ready(self) -> list[events.Event]:
        """Return the events that are available without waiting, so that a sender can send several at once."""
        given: list[events.Event] = []
        for event in self._watch.ready() if self._watch is not None and not self.is_over else ():
            self._take(event)
            given.append(event)
            if self.is_over:
                break
        return given

    def detach(self) -> None:
        """Stop following, without stopping the run. The iteration ends."""
        self._is_detached = True
        self._stop_following()

    async def _events(self) -> AsyncIterator[events.Event]:
        if self._watch is None:
            raise BadInput("use `async with session.run(...) as run:` and iterate over `run` inside the block")
        tried = -1
        while True:
            async for event in self._watch:
                self._take(event)
                yield event
                await self._check_follow_up()
                if self.is_over:
                    return
            if self._follower is None or self._is_detached:
                return
            if self._follower.failure is not None:
                raise self._follower.failure
            state = await self._coordinator.load_state(self.session_id)
            self.pending = [*state.pending, *state.client_calls]
            if self.pending or not self._has_more(state) or state.seq == tried or self._coordinator.is_closed:
                return
            tried = state.seq
            await self._follow()  # another process answered or wrote more, and no process works on it now

    async def _check_follow_up(self) -> None:
        """After a run without an answer, a follow-up is not held while the session has other messages to answer."""
        if self.is_follow_up and self.is_held:
            with suppress(NotFound):  # the session may have been deleted meanwhile
                self._tracker.is_held = (await self._coordinator.load_state(self.session_id)).is_held

    def _has_more(self, state: State) -> bool:
        """Whether there are facts that were not yielded yet, or work that no process does."""
        return state.seq > self._seen or state.run is not None or (bool(state.queue) and not state.is_held)

    async def _follow(self) -> None:
        self._stop_following()
        self._watch = self._coordinator.log.watch(self.session_id, after=self._seen)
        await self._coordinator.wake(self.session_id)
        self._follower = self._coordinator.follow(self.session_id, self._watch)

    def _stop_following(self) -> None:
        if self._follower is not None:
            self._follower.close()
        if self._watch is not None:
            self._watch.close()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.Fact):
            self._seen = event.seq
            if type(event) in _TRACKED and event.seq > self._position:
                self._tracker.feed(event)
