"""Asking the model: the request of the turn under way, and its reply streamed to whoever watches."""

from __future__ import annotations

from contextlib import aclosing

from msgspec.structs import force_setattr, replace

from treadle.context import Projection
from treadle.errors import ModelError
from treadle.events import ReasoningDelta, TextDelta
from treadle.log.base import Log
from treadle.messages import Reply, Request, writable
from treadle.setup import Setup
from treadle.signals import Strainer
from treadle.state import State

WRAP_UP_TOKENS = 1024


def build_request(setup: Setup, state: State, projection: Projection) -> Request:
    """What the model is given for the turn under way."""
    run, turn = state.run, state.turn
    assert run is not None and turn is not None
    wrap_up, limits = turn.wrap_up is not None, run.limits
    left = limits.tokens - run.usage.output_tokens if limits.tokens is not None else None
    return Request(
        system=setup.config.instructions,
        messages=projection.messages(state),
        tools=setup.specs if turn.tools or wrap_up else (),
        tool_choice="none" if wrap_up else "auto",
        max_tokens=WRAP_UP_TOKENS if wrap_up else left,
        sampling=setup.config.sampling,
        output_schema=None if wrap_up else setup.config.output_schema,
        session_id=state.created.session_id if state.created is not None else "",
        scratch=projection.scratch,
    )


async def ask_model(setup: Setup, log: Log, request: Request, after: int, said: list[str]) -> Reply:
    """The model's reply; `said` collects its text as it comes, for when it breaks off."""
    given = request
    for middleware in setup.middleware:
        request = await middleware.on_pre_llm(request)
    if request.messages is not given.messages and request.scratch is given.scratch:
        request = replace(request, scratch={})  # what an adapter keeps there is of the messages as they were
    reply = await _stream(setup, log, request, after, said)
    for middleware in setup.middleware:
        reply = await middleware.on_post_llm(reply)
    return reply


async def _stream(setup: Setup, log: Log, request: Request, after: int, said: list[str]) -> Reply:
    strainer, publish, session_id = Strainer(), log.publish, request.session_id

    def show(text: str, reasoning: str) -> None:
        if text:
            said.append(text)
            publish(session_id, TextDelta(text=writable(text), after=after))
        if reasoning:
            publish(session_id, ReasoningDelta(text=writable(reasoning), after=after))

    stream = setup.model.stream(request)
    async with aclosing(stream) as events:
        async for event in events:
            if type(event) is TextDelta:
                show(*strainer.feed(event.text))
            elif isinstance(event, Reply):
                show(*strainer.finish())
                return event
            else:
                force_setattr(event, "after", after)
                publish(session_id, event)
    raise ModelError(f"{setup.model.name} ended its stream without a reply", kind="network", retryable=True)
