"""Follows the run of an agent that answers in a model's place."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from treadle import CallFinished, CallStarted, ModelReplied, Run, Session
from treadle.dialects.base import build_client_call_id
from treadle.dialects.loop_events import RUN_CONTINUES_LATER
from treadle.engine.state import State
from treadle.events import CLIENT_SANDBOX, Event, MessageReceived
from treadle.messages import NO_USAGE, Call, Reply, SignedReasoning, Usage
from treadle.server.guard import Refusal, build_shutdown_refusal

ReplyEvent: TypeAlias = Event | SignedReasoning | Reply
"""What a model or an agent says, up to its reply or the end of its run."""
PostedFact: TypeAlias = MessageReceived | CallFinished
"""What a request adds to a session: a message, or the result of a call."""
Detach: TypeAlias = Callable[[Run], AbstractContextManager[None]]
"""Follows a run in a block until the server stops."""
CANCELLED = "cancelled"


async def follow_run(
    session: Session, run: Run, posted: PostedFact, detach: Detach, end: int = 0
) -> AsyncGenerator[ReplyEvent]:
    """The events of a run up to its end, or up to a `Reply` with the calls that the client must run.

    `end` is the position of the last of these calls, if it is known from the log. Raises when the run cannot be
    followed that far here.
    """
    replied, usage = ModelReplied(), NO_USAGE
    with detach(run):
        state = await session.at(posted.seq) if isinstance(posted, CallFinished) else None
        if state is not None and state.client_calls:
            yield _build_client_reply(session, state, replied.text, usage)  # the client did not send all results
            return
        async for event in run:
            yield event
            if isinstance(event, ModelReplied):
                replied, usage = event, usage + event.usage
            elif isinstance(event, CallStarted) and event.sandbox == CLIENT_SANDBOX and end in (0, event.seq):
                state = await session.at(end) if end else await session.state()  # has all calls started with this one
                if state.client_calls and event.call_id == state.client_calls[-1].call_id:
                    yield _build_client_reply(session, state, replied.text, usage)
                    return
    if run.is_withdrawn:
        raise Refusal(409, CANCELLED, "the message was withdrawn before a run took it")
    if run.outcome is None and not run.is_held:
        raise build_shutdown_refusal(f"session {session.id}: {RUN_CONTINUES_LATER}")
    if run.outcome is None:
        raise Refusal(409, CANCELLED, "the run was cancelled before it answered")


def _build_client_reply(session: Session, state: State, text: str, usage: Usage) -> Reply:
    """Build the reply of an agent that waits for the client's tools."""
    calls = tuple(
        Call(build_client_call_id(session.id, started), started.tool, state.calls[started.call_id].call.arguments)
        for started in state.client_calls
    )
    return Reply(text, calls=calls, finish="calls", usage=usage)
