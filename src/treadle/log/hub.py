"""The hand-over inside one process: from whoever writes a session to whoever watches it.

One bounded ring of recent events per session, shared by its watchers; each has an index into it. It is no
store: whoever joins, or falls behind the ring, is brought level with `read`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence

from msgspec.structs import replace

from treadle.events import AnyDelta, AnyFact, Delta, Event, ReasoningDelta, TextDelta
from treadle.log.base import Watch

RING = 1024
BATCH = 512

TextFragment = TextDelta | ReasoningDelta
ReadFacts = Callable[[str, int, int], Awaitable[list[AnyFact]]]


def join_deltas(said: Sequence[TextFragment], more: Sequence[Event]) -> list[TextFragment]:
    """Text and reasoning, joined as far as they follow each other; other fragments are of the moment only."""
    result, pieces = list(said[:-1]), [said[-1].text] if said else []
    last: TextFragment | None = said[-1] if said else None
    for delta in more:
        if not isinstance(delta, TextDelta | ReasoningDelta):
            continue
        if last is not None and (type(delta) is not type(last) or delta.after != last.after):
            result.append(replace(last, text="".join(pieces)))
            pieces = []
        last = delta
        pieces.append(delta.text)
    return [*result, replace(last, text="".join(pieces))] if last is not None else result


class Channel:
    """What this process knows of one session that is claimed here or watched.

    Every fact after `floor` up to `head` is in `items`. `live` is where the events that follow the owner's
    last append begin: what a late joiner still needs of the reply that is being written. Where the ring has
    forgotten the first of them, `so_far` has their text joined.
    """

    __slots__ = (
        "capacity",
        "epoch",
        "floor",
        "has_ended",
        "head",
        "items",
        "live_start",
        "start",
        "trimmed_text",
        "waiters",
        "watchers",
    )

    def __init__(self, head: int, ring: int) -> None:
        self.head = head
        self.floor = head
        self.capacity = 2 * ring
        self.items: list[Event] = []
        self.start = 0
        self.live_start = 0
        self.trimmed_text: list[TextFragment] = []
        self.epoch = 0
        self.watchers = 0
        self.waiters: set[asyncio.Future[None]] = set()
        self.has_ended = False

    def add_facts(self, facts: Sequence[AnyFact], from_owner: bool) -> None:
        """Take facts that were just stored; `own` ones were appended by the session's owner."""
        if facts[0].seq != self.head + 1:
            facts = [fact for fact in facts if fact.seq > self.head]
            if not facts:
                return
            if facts[0].seq > self.head + 1:
                self.floor = facts[0].seq - 1
        self.head = facts[-1].seq
        if self.watchers:
            self.items.extend(facts)
        else:
            self.floor = self.head
            if from_owner:
                self.start += len(self.items)
                self.items.clear()
        if from_owner:
            self.live_start = self.start + len(self.items)
            self.trimmed_text = []
        if len(self.items) >= self.capacity:
            self.trim()
        self.wake_waiters()

    def advance_head(self, head: int) -> None:
        """The log is known to reach `head`, but its facts are not at hand: watchers have to read them."""
        if head > self.head:
            self.head = self.floor = head
            self.wake_waiters()

    def trim(self) -> None:
        """Forget the oldest events; half of what there may be at most, so that it happens seldom."""
        cut = len(self.items) - self.capacity // 2
        self.trimmed_text = join_deltas(self.trimmed_text, self.items[max(self.live_start - self.start, 0) : cut])
        for item in reversed(self.items[:cut]):
            if not isinstance(item, Delta):
                self.floor = max(self.floor, item.seq)
                break
        del self.items[:cut]
        self.start += cut

    def wake_waiters(self) -> None:
        """Let everybody who waits look again."""
        if self.waiters:
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self.waiters.clear()


class Hub:
    """The channels of one log. Publishing never waits: it is an append to a list, and often less.

    `on_wait` is called whenever a watch has nothing to give and starts to wait.
    """

    def __init__(self, read: ReadFacts, ring: int = RING, on_wait: Callable[[], None] | None = None) -> None:
        self.ring = ring
        self.on_wait = on_wait
        self._read = read
        self._channels: dict[str, Channel] = {}

    def __bool__(self) -> bool:
        return bool(self._channels)

    def list_channels(self) -> Iterator[tuple[str, Channel]]:
        """A copy of the sessions of interest, safe to end some of them meanwhile."""
        return iter(tuple(self._channels.items()))

    def get_channel(self, session_id: str) -> Channel | None:
        """The session's channel, when it is claimed here or watched."""
        return self._channels.get(session_id)

    def get_head(self, session_id: str) -> int:
        """The last position known here, 0 when the session is of no interest."""
        channel = self._channels.get(session_id)
        return channel.head if channel is not None else 0

    def mark_claimed(self, session_id: str, epoch: int, head: int) -> None:
        """This process runs the session now."""
        channel = self._open(session_id, head)
        channel.epoch = epoch
        channel.advance_head(head)

    def mark_released(self, session_id: str, epoch: int) -> None:
        """The claim of that epoch was given back or lost."""
        channel = self._channels.get(session_id)
        if channel is not None and channel.epoch == epoch:
            channel.epoch = 0
            self._drop_unused(session_id, channel)

    def is_claimed(self, session_id: str) -> bool:
        """Whether this process runs the session."""
        channel = self._channels.get(session_id)
        return channel is not None and channel.epoch > 0

    def add_facts(self, session_id: str, facts: Sequence[AnyFact], *, from_owner: bool = False) -> None:
        """Show facts that were just stored; `own` ones were appended by the session's owner."""
        channel = self._channels.get(session_id)
        if channel is not None and facts:
            channel.add_facts(facts, from_owner)

    def publish(self, session_id: str, delta: AnyDelta) -> bool:
        """Show a fragment to whoever watches now, or joins before the next append; whether it is the first such."""
        channel = self._channels.get(session_id)
        if channel is None:
            return False
        first = channel.start + len(channel.items) == channel.live_start
        channel.items.append(delta)
        if len(channel.items) >= channel.capacity:
            channel.trim()
        if channel.waiters:
            channel.wake_waiters()
        return first

    def watch(self, session_id: str, after: int, head: int) -> Watch:
        """A watch of a session that exists and reaches `head`."""
        return HubWatch(self, session_id, self._open(session_id, head), after, catching=after < head)

    def end_session(self, session_id: str) -> None:
        """The session is gone: its watches end."""
        channel = self._channels.pop(session_id, None)
        if channel is not None:
            channel.has_ended = True
            channel.wake_waiters()

    def close(self) -> None:
        """All watches end."""
        for session_id in tuple(self._channels):
            self.end_session(session_id)

    async def read_batch(self, session_id: str, after: int) -> list[AnyFact]:
        """A batch of facts from the log, for a watch that has to catch up."""
        return await self._read(session_id, after, BATCH)

    def remove_watcher(self, session_id: str, channel: Channel) -> None:
        """One watch fewer."""
        channel.watchers -= 1
        self._drop_unused(session_id, channel)

    def _open(self, session_id: str, head: int) -> Channel:
        channel = self._channels.get(session_id)
        if channel is None:
            channel = self._channels[session_id] = Channel(head, self.ring)
        return channel

    def _drop_unused(self, session_id: str, channel: Channel) -> None:
        unused = not channel.epoch and not channel.watchers
        if unused and self._channels.get(session_id) is channel:
            del self._channels[session_id]


class HubWatch(Watch):
    """One watcher: its position in the log, its index into the ring, and what it has taken from either."""

    def __init__(self, hub: Hub, session_id: str, channel: Channel, after: int, *, catching: bool) -> None:
        self._hub = hub
        self._session_id = session_id
        self._channel = channel
        self._seq = after
        self._index = channel.live_start
        self._taken: list[Event] = []  # the next one last
        self._catching = catching
        self._joining = True
        self._torn = -1
        self._stop = sys.maxsize
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        channel.watchers += 1

    async def __anext__(self) -> Event:
        while (event := self._next()) is None:
            if self._is_over():
                raise StopAsyncIteration
            if not self._is_behind() or not await self._catch_up():
                await self._wait()
        return event

    def ready(self) -> list[Event]:
        events: list[Event] = []
        while len(events) < BATCH and (event := self._next()) is not None:
            events.append(event)
        return events

    def stop_at(self, seq: int) -> None:
        if not self._closed:
            self._stop = seq
            self._wake()

    def close(self) -> None:
        if not self._closed:
            self._closed, self._stop = True, -1
            self._hub.remove_watcher(self._session_id, self._channel)
            self._wake()

    def __del__(self) -> None:
        self.close()

    def _is_over(self) -> bool:
        return self._seq >= self._stop or self._channel.has_ended

    def _is_behind(self) -> bool:
        """Whether there are facts to be read before what the ring has."""
        return self._catching or self._seq < self._channel.floor

    def _next(self) -> Event | None:
        """The next event, if there is one at hand."""
        if self._is_over() or not (self._taken or self._take()):
            return None
        event = self._taken.pop()
        if not isinstance(event, Delta):
            self._seq = event.seq
        return event

    async def _catch_up(self) -> bool:
        """Read what is missing; whether there is anything to give now."""
        facts = await self._hub.read_batch(self._session_id, self._seq)
        channel = self._channel
        reached = facts[-1].seq if facts else self._seq
        self._catching = bool(facts) and (len(facts) == BATCH or reached < channel.head)
        if not self._catching:
            self._index = max(self._index, channel.live_start)
        self._taken = [*reversed(facts)]
        return bool(facts) or self._take()

    def _take(self) -> bool:
        """Take all that is new in the ring, unless facts before it are missing; whether there was anything."""
        channel, seq = self._channel, self._seq
        end = channel.start + len(channel.items)
        if self._is_behind() or (self._index == end and not self._joining):
            return False
        new = channel.items[max(self._index - channel.start, 0) :]
        if self._joining and channel.trimmed_text and self._index == channel.live_start:
            new = [*channel.trimmed_text, *channel.items]
        elif self._index < channel.start:  # fragments are gone; no text is better than one with a hole in it
            self._torn = next((event.after for event in new if isinstance(event, Delta)), self._torn)
        self._joining, self._index = False, end
        self._taken = [
            event
            for event in reversed(new)
            if (event.after > self._torn if isinstance(event, Delta) else event.seq > seq)
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
