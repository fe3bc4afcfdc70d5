"""Following one message to its end: which run took it up, how that went, or what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from treadle import RunFinished, Session
from treadle.events import CancelRequested, Event, MessageReceived, RunRequested, RunStarted, TurnStarted
from treadle.log.base import Watch
from treadle.server.streams import Streams
from treadle.server.views import Outcome, Pending

HELD = "cancelled before it was begun; it is kept, and goes with the next message"


class Following:
    """Fed a session's events after a message, or after a request to go on, it knows when that is over."""

    def __init__(self, message_id: str = "") -> None:
        self._message_id = message_id
        self._mine = False
        self.ending: RunFinished | None = None
        self.held = False

    def feed(self, event: Event) -> bool:
        """Whether it is over with this event."""
        match event:
            case TurnStarted() if self._message_id:
                self._mine = self._mine or self._message_id in event.messages
            case RunStarted() if not self._message_id:
                self._mine = True
            case RunFinished() if self._mine:
                self.ending = event
            case CancelRequested() if not self._mine:
                self.held = True
            case MessageReceived() | RunRequested() if self.held:  # what was held goes with this one
                self.held = False
            case _:
                pass
        return self.over

    @property
    def over(self) -> bool:
        return self.ending is not None or self.held


class Waiting:
    """A request that waits for an answer: it ends with the server, like a stream."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.last, self.pinging = 0.0, True

    def stop(self) -> None:
        self._watch.close()

    async def ping(self) -> None:
        """Nothing can be said before the answer."""


async def followed(
    streams: Streams, session: Session, message: MessageReceived, following: Following
) -> AsyncGenerator[Event]:
    """The events after a message, until it is over or the server leaves."""
    watch = session.watch(message.seq)
    waiting = Waiting(watch)
    streams.add(waiting)
    try:
        async for event in watch:
            over = following.feed(event)
            yield event
            if over:
                return
    finally:
        streams.remove(waiting)
        watch.close()


async def settled(
    streams: Streams, session: Session, message: MessageReceived, patience: float | None = None
) -> tuple[str, Outcome]:
    """The reply to a message and how it went; with `patience`, what is so far when that is over."""
    following = Following(message.id)
    with suppress(TimeoutError):
        async with asyncio.timeout(patience), aclosing(followed(streams, session, message, following)) as events:
            async for _ in events:
                pass
    if following.ending is not None:
        return following.ending.answer, Outcome.of(following.ending)
    if following.held:
        return "", Outcome(status="cancelled", reason="cancelled", error=HELD, can_continue=True)
    pending = [Pending.of(session.id, question) for question in (await session.state()).pending]
    reason = "shutting_down" if streams.closed else "waiting" if pending else "running"
    return "", Outcome(status="waiting", reason=reason, pending=pending)
