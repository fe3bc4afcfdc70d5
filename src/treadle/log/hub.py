"""Delivery inside one process, from the writer of a session to its watchers.

Each session has one bounded ring of recent events, and each watcher an index into it. The ring is no store: a watcher
that joins late or falls behind reads the log.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.events import (
    AnyDelta,
    AnyFact,
    CallFinished,
    CancelRequested,
    Delta,
    Event,
    ModelFailed,
    ModelReplied,
    OutputDelta,
    Progress,
    ReasoningDelta,
    RunFinished,
    RunRequested,
    RunStarted,
    SignalDetected,
    TextDelta,
    TurnStarted,
    serialize_event,
)
from treadle.log.base import Log, StoredFact, StoreWatch, Watch

RING = 1024
RING_BYTES = 2 * 1024 * 1024
"""How many bytes the facts in one ring may have. A watcher reads facts that were dropped from the log."""
BATCH = 512
FACTS_AT_ONCE = 1000
"""How many facts of a long log are read before others go on."""
_ENDS = (ModelReplied, ModelFailed, TurnStarted, RunStarted, RunFinished)
"""After one of these facts, no delta that follows an earlier position is shown."""
_SHORT_EVENTS = (Delta, TurnStarted, RunStarted, RunRequested, CancelRequested, SignalDetected)

TextFragment = TextDelta | ReasoningDelta
ReadFacts = Callable[[str, int, int], Awaitable[list[AnyFact]]]
ReadStore = Callable[[int, int], Awaitable[tuple[list[StoredFact], int]]]
"""Read the facts of all sessions after a cursor, up to a number of positions. Returns them and the last position."""


def join_deltas(joined: Sequence[TextFragment], more: Sequence[Event]) -> list[TextFragment]:
    """Join text and reasoning where they follow each other. Other deltas are dropped: nobody needs them later."""
    result, pieces = list(joined[:-1]), [joined[-1].text] if joined else []
    last: TextFragment | None = joined[-1] if joined else None
    for delta in more:
        if not isinstance(delta, TextDelta | ReasoningDelta):
            continue
        if last is not None and (type(delta) is not type(last) or delta.after != last.after):
            result.append(replace(last, text="".join(pieces)))
            pieces = []
        last = delta
        pieces.append(delta.text)
    return [*result, replace(last, text="".join(pieces))] if last is not None else result


def measure_event(event: Event) -> int:
    """The bytes of a fact; 0 for deltas and for facts that are always short."""
    return 0 if isinstance(event, _SHORT_EVENTS) else len(serialize_event(event))


class Channel(Struct):
    """The recent events of one session that is claimed or watched in this process.

    `items` holds every fact after `floor` up to `head`. `start` is the index of its first item, `live_start` the index
    of the first event after the owner's last append: a late watcher still needs those, because they belong to the
    reply that is being written. `trimmed_text` is their text, joined, as far as the ring has dropped it. `ended` is the
    last position that ended a reply, and `finished` the calls that have ended after it. Watchers that are behind
    `start` get no deltas up to `torn_after`.
    """

    head: int
    floor: int
    capacity: int
    items: list[Event] = []
    size: int = 0
    start: int = 0
    live_start: int = 0
    trimmed_text: list[TextFragment] = []
    ended: int = 0
    finished: set[str] = set()
    torn_after: int = -1
    epoch: int = 0
    watchers: int = 0
    waiters: set[asyncio.Future[None]] = set()
    has_ended: bool = False

    def add_facts(self, facts: Sequence[AnyFact], from_owner: bool, size: int = 0) -> None:
        """Add facts that were just stored, of `size` bytes if known; `from_owner` when the owner appended them."""
        if facts and facts[0].seq != self.head + 1:
            facts = [fact for fact in facts if fact.seq > self.head]
        if not facts:
            return
        from_owner = self._note_ends(facts) or from_owner
        if facts[0].seq > self.head + 1:
            self.floor = facts[0].seq - 1
        self.head = facts[-1].seq
        if self.watchers:
            self.items.extend(facts)
            self.size += size or sum(map(measure_event, facts))
        else:
            self.floor = self.head
            if from_owner:
                self.start += len(self.items)
                self.items.clear()
                self.size = 0
        if from_owner:
            self.end_live()
        if len(self.items) >= self.capacity or self.size > RING_BYTES:
            self.trim()
        self.wake_waiters()

    def add_delta(self, delta: AnyDelta) -> None:
        """Add a delta to the reply that is being written."""
        self.items.append(delta)
        if len(self.items) >= self.capacity:
            self.trim()
        if self.waiters:
            self.wake_waiters()

    def is_over(self, delta: AnyDelta) -> bool:
        """Whether a delta belongs to a reply or a call whose end is known."""
        is_of_call = isinstance(delta, OutputDelta | Progress)
        return delta.after < self.ended or (is_of_call and delta.call_id in self.finished)

    def end_live(self) -> None:
        """Show the deltas so far to no later watcher. They belong to a reply that has ended or begins anew."""
        self.live_start, self.trimmed_text = self.start + len(self.items), []

    def tear_live(self, after: int) -> None:
        """Note that the reply after a position begins anew. Who watches now saw another beginning."""
        self.torn_after = after
        for item in self.items:
            if not isinstance(item, Delta):
                self.floor = max(self.floor, item.seq)
        self.start += len(self.items) + 1  # one more than any watcher has taken
        self.items.clear()
        self.size = 0
        self.end_live()

    def note_read(self, facts: Sequence[AnyFact]) -> None:
        """Note facts that a watcher has read from the log, perhaps before they came here."""
        if self._note_ends(facts):
            self.end_live()
        if facts:
            self.advance_head(facts[-1].seq)

    def _note_ends(self, facts: Sequence[AnyFact]) -> bool:
        """Note which replies and calls have ended. Returns whether the last reply was not known to have."""
        known = self.ended
        for fact in facts:
            if fact.seq > self.ended:
                if isinstance(fact, CallFinished):
                    self.finished.add(fact.call_id)
                elif isinstance(fact, _ENDS):
                    self.ended = fact.seq
                    self.finished.clear()
        return self.ended > known

    def advance_head(self, head: int) -> None:
        """Note that the log reaches `head`. The facts are not at hand, so watchers have to read them."""
        if head > self.head:
            self.head = self.floor = head
            self.wake_waiters()

    def trim(self) -> None:
        """Drop the oldest events down to half of what the ring may hold, so that trimming is rare."""
        cut, sizes = max(len(self.items) - self.capacity // 2, 0), [*map(measure_event, self.items)]
        self.size = sum(sizes[cut:])
        while self.size > RING_BYTES // 2:
            self.size -= sizes[cut]
            cut += 1
        self.trimmed_text = join_deltas(self.trimmed_text, self.items[max(self.live_start - self.start, 0) : cut])
        for item in reversed(self.items[:cut]):
            if not isinstance(item, Delta):
                self.floor = max(self.floor, item.seq)
                break
        del self.items[:cut]
        self.start += cut

    def wake_waiters(self) -> None:
        """Wake every watcher that waits for an event."""
        if self.waiters:
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self.waiters.clear()


class Hub:
    """The channels of one log, by the ids of the sessions that are claimed or watched in this process.

    `on_wait` is called whenever a watch has no event and starts to wait. `store_waiters` are the watches of all
    sessions that wait for a fact: they read it from the store, so they need no channel. `store_changes` counts how
    often they were woken.
    """

    def __init__(
        self, read: ReadFacts, read_store: ReadStore, ring: int | None = None, on_wait: Callable[[], None] | None = None
    ) -> None:
        self.ring = RING if ring is None else ring
        self.on_wait = on_wait
        self.read = read
        self.read_store = read_store
        self.channels: dict[str, Channel] = {}
        self.store_waiters: set[asyncio.Future[None]] = set()
        self.store_changes = 0
        self.is_closed = False

    def mark_claimed(self, session_id: str, epoch: int, head: int) -> None:
        """Note that this process runs the session."""
        channel = self._open_channel(session_id, head)
        channel.epoch = epoch
        channel.advance_head(head)

    def mark_released(self, session_id: str, epoch: int) -> None:
        """Note that the claim of that epoch was given back or lost."""
        channel = self.channels.get(session_id)
        if channel is not None and channel.epoch == epoch:
            channel.epoch = 0
            self._drop_unused(session_id, channel)

    def watch(self, session_id: str, after: int, head: int | None) -> Watch:
        """Watch a session that reaches `head`. With None that is not known yet, nor whether the session exists."""
        channel = self._open_channel(session_id, head or 0)
        return HubWatch(self, session_id, channel, after, is_catching_up=head is None or after < head)

    def end_session(self, session_id: str) -> None:
        """End the watches of a session that was deleted."""
        channel = self.channels.pop(session_id, None)
        if channel is not None:
            channel.has_ended = True
            channel.wake_waiters()

    def close(self) -> None:
        """End all watches."""
        self.is_closed = True
        self.wake_store_waiters()
        for session_id in tuple(self.channels):
            self.end_session(session_id)

    def wake_store_waiters(self) -> None:
        """Wake every watch of all sessions that waits for a fact."""
        self.store_changes += 1
        for waiter in self.store_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.store_waiters.clear()

    def remove_watcher(self, session_id: str, channel: Channel) -> None:
        """Note that one watch was closed."""
        channel.watchers -= 1
        self._drop_unused(session_id, channel)

    def _open_channel(self, session_id: str, head: int) -> Channel:
        channel = self.channels.get(session_id)
        if channel is None:
            channel = self.channels[session_id] = Channel(head, floor=head, capacity=2 * self.ring)
        return channel

    def _drop_unused(self, session_id: str, channel: Channel) -> None:
        is_unused = not channel.epoch and not channel.watchers
        if is_unused and self.channels.get(session_id) is channel:
            del self.channels[session_id]
            channel.items.clear()  # a closed watch keeps its channel until the garbage collector finds the cycle


class HubWatch(Watch):
    """One watcher: its position in the log, its index into the ring, and the events it has taken but not yet given."""

    def __init__(self, hub: Hub, session_id: str, channel: Channel, after: int, *, is_catching_up: bool) -> None:
        self._hub = hub
        self._session_id = session_id
        self._channel = channel
        self._seq = after
        self._index = channel.live_start
        self._taken: list[Event] = []  # the next one is last
        self._is_catching_up = is_catching_up
        self._is_joining = True
        self._torn_after = -1
        self._stop = sys.maxsize
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        channel.watchers += 1

    async def __anext__(self) -> Event:
        while (event := self._take_next()) is None:
            if self._is_over():
                raise StopAsyncIteration
            if not self._is_behind() or not (await self._catch_up() or self._is_over()):
                await self._wait()
        return event

    def ready(self) -> list[Event]:
        events: list[Event] = []
        while len(events) < BATCH and (event := self._take_next()) is not None:
            events.append(event)
        return events

    def stop_at(self, seq: int) -> None:
        if not self._is_closed:
            self._stop = seq
            self._wake()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed, self._stop = True, -1
            self._hub.remove_watcher(self._session_id, self._channel)
            self._wake()

    def __del__(self) -> None:
        self.close()

    def _is_over(self) -> bool:
        return self._seq >= self._stop or self._channel.has_ended

    def _is_behind(self) -> bool:
        """Whether facts have to be read from the log before those in the ring."""
        return self._is_catching_up or self._seq < self._channel.floor

    def _take_next(self) -> Event | None:
        """Take the next event that needs no waiting."""
        channel = self._channel
        if not self._taken and self._index == channel.start + len(channel.items) and not self._is_joining:
            return None  # the usual case of a watcher that has seen everything
        if self._is_over() or not (self._taken or self._take_from_ring()):
            return None
        event = self._taken.pop()
        if not isinstance(event, Delta):
            self._seq = event.seq
        return event

    async def _catch_up(self) -> bool:
        """Read missing facts from the log. True when there is an event to give, or more to read.

        Facts that were stored during the read woke nobody.
        """
        channel, known = self._channel, self._channel.head
        facts = await self._hub.read(self._session_id, self._seq, BATCH)
        is_moved = channel.head > known
        reached = facts[-1].seq if facts else self._seq
        channel.note_read(facts)
        if not facts:
            channel.advance_head(reached)
        self._is_catching_up = len(facts) == BATCH or (reached < channel.head and (bool(facts) or is_moved))
        if not self._is_catching_up:
            self._index = max(self._index, channel.live_start)
        self._taken = [*reversed(facts)]
        return bool(facts) or self._take_from_ring() or is_moved

    def _take_from_ring(self) -> bool:
        """Take all new events of the ring, unless facts before them are missing. True when there were any."""
        channel, seq = self._channel, self._seq
        end = channel.start + len(channel.items)
        if self._is_behind() or (self._index == end and not self._is_joining):
            return False
        new = channel.items[max(self._index - channel.start, 0) :]
        if self._is_joining and channel.trimmed_text and self._index == channel.live_start:
            new = [*channel.trimmed_text, *channel.items]
        elif self._index < channel.start:  # the ring dropped some deltas; no text is better than text with a hole
            torn_after = next((event.after for event in new if isinstance(event, Delta)), self._torn_after)
            self._torn_after = max(torn_after, channel.torn_after)
        self._is_joining, self._index = False, end
        self._taken = [
            event
            for event in reversed(new)
            if (event.after > self._torn_after if isinstance(event, Delta) else event.seq > seq)
        ]
        return bool(self._taken)

    async def _wait(self) -> None:
        if self._hub.on_wait is not None:
            self._hub.on_wait()
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._channel.waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            self._channel.waiters.discard(waiter)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HubStoreWatch(StoreWatch):
    """One watcher of all sessions. It holds one batch at most and reads the next from the store when that is taken.

    If the store ends before `after`, which a read shows, it goes on from `last`: the end when it began.
    """

    def __init__(self, hub: Hub, after: int, last: int = 0) -> None:
        self._hub, self.start, self._cursor, self._last = hub, after, after, last
        self._taken: list[StoredFact] = []  # the next one is last
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False

    async def __anext__(self) -> StoredFact:
        while not self._taken:
            if self._is_closed or self._hub.is_closed:
                raise StopAsyncIteration
            changes = self._hub.store_changes
            facts, reached = await self._hub.read_store(self._cursor, BATCH)
            if self._is_closed:
                raise StopAsyncIteration
            if reached < self._cursor:
                reached = min(reached, self._last)
            # A fact that was stored during the read woke nobody.
            if reached == self._cursor and changes == self._hub.store_changes:
                await self._wait()
            self._cursor, self._taken = reached, facts[::-1]
        return self._taken.pop()

    def ready(self) -> list[StoredFact]:
        taken, self._taken = self._taken[::-1], []
        return taken

    def close(self) -> None:
        self._is_closed, self._taken = True, []
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        if self._hub.on_wait is not None:
            self._hub.on_wait()
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._hub.store_waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            self._hub.store_waiters.discard(waiter)


class HubLog(Log):
    """The part that all logs share: they show stored facts to watchers, observer and listener."""

    _hub: Hub

    async def read_in_pieces(
        self, session_id: str, after: int = 0, until: int | None = None
    ) -> AsyncGenerator[list[AnyFact]]:
        while True:
            limit = FACTS_AT_ONCE if until is None else max(0, min(FACTS_AT_ONCE, until - after))
            facts = await self.read(session_id, after, limit=limit)
            yield facts
            if len(facts) < FACTS_AT_ONCE:
                return
            after = facts[-1].seq
            await asyncio.sleep(0)

    def get_head(self, session_id: str) -> int:
        channel = self._hub.channels.get(session_id)
        return channel.head if channel is not None else 0

    def publish(self, session_id: str, delta: AnyDelta) -> None:
        channel = self._hub.channels.get(session_id)
        if channel is None:
            return
        is_first = channel.start + len(channel.items) == channel.live_start
        channel.add_delta(delta)
        if is_first and self.observer is not None:
            self.observer.on_first_delta(session_id)

    def _announce(
        self, session_id: str, facts: Sequence[AnyFact], seconds: float, *, from_owner: bool = False, size: int = 0
    ) -> None:
        """Show facts that were just stored, which took `seconds`. The listener is called only for posts of others."""
        self._hub.wake_store_waiters()
        channel = self._hub.channels.get(session_id)
        if channel is not None:
            channel.add_facts(facts, from_owner, size)
        if self.observer is not None:
            self.observer.on_stored(session_id, facts, seconds)
        if not from_owner and self.listener is not None and channel is not None and channel.epoch:
            self.listener(session_id)
