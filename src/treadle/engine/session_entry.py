"""What this process keeps for each session: its run, its lease, its questions, and who follows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import Struct, field

from treadle.engine.context import Projection
from treadle.engine.loop import Loop
from treadle.engine.setup import Lease, wait_for_store
from treadle.engine.state import State
from treadle.errors import TreadleError
from treadle.log.base import Claim, Watch

if TYPE_CHECKING:
    from treadle.engine.coordinator import Coordinator


class SessionEntry(Struct, eq=False):
    """Everything that this process keeps for one session.

    `task` runs the session with `loop` under `lease`. `questions` are the gates that ask a person, by call id.
    `users` counts who has the session open: `state`, `projection` and `wake_at` are kept between runs only for them.
    `unreleased` is a claim that could not be released. `keeping` renews or releases the claim just now. `followers`
    wait for a run to end.
    """

    id: str
    task: asyncio.Task[None] | None = None
    loop: Loop | None = None
    lease: Lease | None = None
    questions: dict[str, asyncio.Task[None]] = {}
    users: int = 0
    state: State = field(default_factory=State)
    projection: Projection = field(default_factory=Projection)
    wake_at: float | None = None
    unreleased: Claim | None = None
    keeping: asyncio.Task[None] | None = None
    followers: set[Follower] = field(default_factory=set["Follower"])

    @property
    def is_unused(self) -> bool:
        """Whether nothing is lost without this entry."""
        return not (self.task or self.questions or self.users or self.unreleased or self.followers)

    @property
    def needs_keeper(self) -> bool:
        """Whether a claim must be renewed or released, or a time must be waited for."""
        return bool(self.task or self.questions or self.unreleased) or self.wake_at is not None

    def reset_state(self) -> None:
        """Drop the state. It is read from the log when it is needed again."""
        self.state, self.projection = State(), Projection()


class SessionEntries(dict[str, SessionEntry]):
    """The entries of all sessions that this process knows, by id."""

    def open(self, session_id: str) -> SessionEntry:
        """Return the entry of a session. It is made if there is none."""
        entry = self.get(session_id)
        if entry is None:
            entry = self[session_id] = SessionEntry(session_id)
        return entry

    def drop_if_unused(self, entry: SessionEntry) -> None:
        """Drop an entry that is unused."""
        if entry.is_unused and self.get(entry.id) is entry:
            del self[entry.id]

    def list_runs(self) -> list[asyncio.Task[None]]:
        """List the tasks that run sessions."""
        return [entry.task for entry in self.values() if entry.task is not None]

    def list_questions(self) -> list[asyncio.Task[None]]:
        """List the tasks that ask people."""
        return [task for entry in self.values() for task in entry.questions.values()]


class Follower:
    """Ends a watch when no process works on its session any more.

    `failure` is the error that stopped the session, if its run did not end by itself. While this process runs the
    session, the follower needs no task. Most watches end before they need one.
    """

    __slots__ = ("_coordinator", "_entries", "_entry", "_run", "_task", "failure", "watch")

    def __init__(self, coordinator: Coordinator, entries: SessionEntries, session_id: str, watch: Watch) -> None:
        self.watch = watch
        self.failure: Exception | None = None
        self._coordinator, self._entries, self._entry = coordinator, entries, entries.open(session_id)
        self._run = self._entry.task
        self._task: asyncio.Task[None] | None = None
        self._entry.followers.add(self)
        if self._run is not None:
            self._run.add_done_callback(self._start)
        else:
            self._start()

    def _start(self, run: asyncio.Task[None] | None = None) -> None:
        if self in self._entry.followers:
            self._task = asyncio.create_task(self._end_watch_when_idle())

    async def _end_watch_when_idle(self) -> None:
        coordinator, session_id = self._coordinator, self._entry.id
        try:
            while True:
                await coordinator.wait_until_idle(session_id)
                info = await wait_for_store(lambda: coordinator.log.get_info(session_id))
                if self.failure is not None or (not info.owner and not coordinator.expects_run(info)):
                    self.watch.stop_at(info.seq)
                    return
                if not coordinator.is_running(session_id):
                    await coordinator.take_over(info)
        except TreadleError as error:  # nobody else would end the watch
            self.failure = error
            self.watch.close()

    def close(self) -> None:
        """Stop following. The watch stays as it is."""
        self._entry.followers.discard(self)
        if self._run is not None:
            self._run.remove_done_callback(self._start)
        if self._task is not None:
            self._task.cancel()
        self._entries.drop_if_unused(self._entry)
