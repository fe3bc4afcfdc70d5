"""Following one message to its end: which run took it up, how that went, or what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from treadle import RunFinished, Session
from treadle.events import CancelRequested, Event, MessageReceived, RunRequested, RunStarted, TurnStarted
from treadle.log.base import Watch
from treadle.server.streams import OpenStreams
from treadle.server.views import PendingQuestion, RunOutcome

HELD_MESSAGE = "cancelled before it was begun; it is kept, and goes with the next message"


class MessageFollower:
    """Fed a session's events after a message, or after a request to go on, it knows when that is over."""

    def __init__(self, message_id: str = "") -> None:
        self._message_id = message_id
        self._mine = False
        self.ending: RunFinished | None = None
        self.is_held = False

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
                self.is_held = True
            case MessageReceived() | RunRequested() if self.is_held:  # what was held goes with this one
                self.is_held = False
            case _:
                pass
        return self.is_over

    @property
    def is_over(self) -> bool:
        return self.ending is not None or self.is_held


class WaitingRequest:
    """A request that waits for an answer: it ends with the server, like a stream."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.last, self.pinging = 0.0, True

    def stop(self) -> None:
        self._watch.close()

    async def ping(self) -> None:
        """Nothing can be said before the answer."""


async def follow_message(
    streams: OpenStreams, session: Session, message: MessageReceived, following: MessageFollower
) -> AsyncGenerator[Event]:
    """The events after a message, until it is over or the server leaves."""
    watch = session.watch(message.seq)
    waiting = WaitingRequest(watch)
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


async def wait_for_outcome(
    streams: OpenStreams, session: Session, message: MessageReceived, timeout: float | None = None
) -> tuple[str, RunOutcome]:
    """The reply to a message and how it went; with `patience`, what is so far when that is over."""
    following = MessageFollower(message.id)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout), aclosing(follow_message(streams, session, message, following)) as events:
            async for _ in events:
                pass
    if following.ending is not None:
        return following.ending.answer, RunOutcome.from_fact(following.ending)
    if following.is_held:
        return "", RunOutcome(status="cancelled", reason="cancelled", error=HELD_MESSAGE, can_continue=True)
    pending = [PendingQuestion.from_fact(session.id, question) for question in (await session.state()).pending]
    reason = "shutting_down" if streams.is_closed else "waiting" if pending else "running"
    return "", RunOutcome(status="waiting", reason=reason, pending=pending)
