"""Asking the model: for the turn under way, streamed to whoever watches, or quietly for a summary or a name."""

from __future__ import annotations

from contextlib import aclosing

from msgspec.structs import force_setattr, replace

from treadle.engine.compaction import (
    Breakdown,
    CompactionPlan,
    Room,
    build_compaction_fact,
    build_summary_request,
    compose_summary,
    compute_room,
    estimate_tokens_after,
    measure_context,
    plan_compaction,
    plan_summary,
)
from treadle.engine.context import Projection
from treadle.engine.reply_marks import MarkSplitter, split_marks
from treadle.engine.setup import Setup, check_returned_type, compute_backoff
from treadle.engine.state import State
from treadle.engine.token_estimate import estimate_text, estimate_tools
from treadle.errors import ModelError, describe_error
from treadle.events import AnyFact, ContextCompacted, ModelFailed, ReasoningDelta, SignalDetected, TextDelta
from treadle.log.base import Log
from treadle.messages import Reply, Request, Usage, replace_surrogates
from treadle.models.base import Summarizer

WRAP_UP_TOKENS = 1024


def build_request(setup: Setup, state: State, projection: Projection) -> Request:
    """What the model is given for the turn under way."""
    run, turn = state.run, state.turn
    assert run is not None and turn is not None
    wrap_up, limits = turn.wrap_up is not None, run.limits
    left = limits.tokens - run.usage.output_tokens if limits.tokens is not None else None
    return Request(
        system=setup.config.instructions,
        messages=projection.messages(state, setup.attachments),
        tools=setup.specs if turn.tools or wrap_up else (),
        tool_choice="none" if wrap_up else "auto",
        max_tokens=WRAP_UP_TOKENS if wrap_up else left,
        sampling=setup.config.sampling,
        output_schema=None if wrap_up else setup.config.output_schema,
        session_id=state.created.session_id if state.created is not None else "",
        render_cache=projection.render_cache,
    )


async def ask_model(setup: Setup, log: Log, request: Request, after: int, said: list[str]) -> Reply:
    """The model's reply; `said` collects its text as it comes, for when it breaks off."""
    given = request
    for middleware in setup.middleware:
        request = check_returned_type(await middleware.on_pre_llm(request), Request, middleware, "on_pre_llm")
    if request.messages is not given.messages and request.render_cache is given.render_cache:
        request = replace(request, render_cache={})  # what an adapter keeps there is of the messages as they were
    reply = await _stream(setup, log, request, after, said)
    for middleware in setup.middleware:
        reply = check_returned_type(await middleware.on_post_llm(reply), Reply, middleware, "on_post_llm")
    return reply


def build_failure_fact(error: ModelError, state: State, attempt: int, said: str) -> ModelFailed:
    """The fact of a model call that gave no reply, with the pause before the next attempt where there will be one."""
    assert state.run is not None
    again = error.retryable and attempt < state.run.limits.attempts
    return ModelFailed(
        kind=error.kind,
        message=replace_surrogates(str(error)),
        retryable=error.retryable,
        attempt=attempt,
        wait=compute_backoff(attempt, error.retry_after) if again else None,
        partial=replace_surrogates(error.partial or said),
    )


async def ask_quietly(setup: Setup, request: Request) -> Reply:
    """The model's reply to something that is no part of the conversation; nobody watches it being written."""
    for middleware in setup.middleware:
        request = check_returned_type(await middleware.on_pre_llm(request), Request, middleware, "on_pre_llm")
    async with aclosing(setup.model.stream(request)) as events:
        async for event in events:
            if isinstance(event, Reply):
                for middleware in setup.middleware:
                    event = check_returned_type(await middleware.on_post_llm(event), Reply, middleware, "on_post_llm")
                return replace(event, text=replace_surrogates(split_marks(event.text).text))
    raise ModelError(f"{setup.model.name} ended its stream without a reply", kind="network", retryable=True)


def measure_room(setup: Setup, state: State) -> Room:
    """The room that the session's context has in its model's window."""
    fixed = estimate_text(setup.config.instructions) + estimate_tools(setup.specs)
    return compute_room(setup.model.window, state, fixed, setup.attachments)


def build_breakdown(setup: Setup, state: State) -> Breakdown:
    """What fills the window of the session's model."""
    shown = Projection().messages(state, setup.attachments)
    request = Request(setup.config.instructions, shown, setup.specs)
    return measure_context(state, request, setup.model.window)


async def compact_context(setup: Setup, state: State, *, asked: bool = False) -> ContextCompacted | None:
    """Make the context smaller, or None when nothing can be left out; raises what the model raises.

    When somebody `asked` for it, older turns are summed up however much room there is.
    """
    room = measure_room(setup, state)
    if asked:
        room = replace(room, window=min(room.window, max(state.tokens, 1)))
    wanted = plan_summary(state, room) if asked else plan_compaction(state, room)
    if wanted is None or wanted.kind == "prune":
        return build_compaction_fact(state, room, wanted) if wanted is not None else None
    if asked and estimate_tokens_after(state, room, wanted, compose_summary(state, room, wanted, "")) >= state.tokens:
        return None  # whatever the model would write, it would be no shorter
    if isinstance(setup.model, Summarizer) and not setup.model.can_summarize:
        return _summed_up(state, room, wanted, "", Usage())
    try:
        reply = await ask_quietly(setup, build_summary_request(state, room, wanted))
    except ModelError:
        if asked or state.tokens < room.window:  # there is room for now: better whole than short
            raise
        reply = Reply()
    return _summed_up(state, room, wanted, reply.text, reply.usage)


def _summed_up(state: State, room: Room, wanted: CompactionPlan, written: str, usage: Usage) -> ContextCompacted:
    return build_compaction_fact(state, room, wanted, compose_summary(state, room, wanted, written), usage)


async def compact_or_note_failure(setup: Setup, state: State) -> AnyFact:
    """A compaction as the loop needs it: a fact in any case, since a run goes on when it fails."""
    try:
        fact = await compact_context(setup, state)
    except Exception as error:
        return build_compaction_failure(describe_error(error))
    return fact or build_compaction_failure("there is nothing that could be left out")


def build_compaction_failure(why: str) -> SignalDetected:
    """The fact of a compaction that failed."""
    return SignalDetected(kind="compaction_failed", detail=replace_surrogates(why[:500]))


async def _stream(setup: Setup, log: Log, request: Request, after: int, said: list[str]) -> Reply:
    strainer, publish, session_id = MarkSplitter(), log.publish, request.session_id

    def show(text: str, reasoning: str) -> None:
        if text:
            said.append(text)
            publish(session_id, TextDelta(text=replace_surrogates(text), after=after))
        if reasoning:
            publish(session_id, ReasoningDelta(text=replace_surrogates(reasoning), after=after))

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
