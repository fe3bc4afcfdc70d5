"""Call the model: streamed to the watchers for the current turn, or quietly for a summary or a name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from msgspec.structs import force_setattr, replace

from treadle.engine import compaction
from treadle.engine.context import Projection, write_calls_as_text
from treadle.engine.reply import MarkSplitter, split_marks
from treadle.engine.setup import Lease, Setup, check_returned_type
from treadle.engine.state import MAX_PAUSE_SECONDS, OWN_ERRORS, State
from treadle.engine.steps import MIN_PAUSE_SECONDS, compute_wrap_up_seconds
from treadle.errors import LONGEST_WAIT, ClaimLost, ModelError, describe_error, describe_wait
from treadle.events import AnyFact, ContextCompacted, ModelFailed, ReasoningDelta, SignalDetected, TextDelta
from treadle.messages import Reply, Request, SignedReasoning, estimate_request, replace_surrogates
from treadle.models.base import ModelEvent, Summarizer

WRAP_UP_TOKENS = 1024
BACKOFF_BASE = 0.5
EXACT_ATTEMPTS = 3
"""After so many attempts a short Retry-After is no longer kept exactly: a provider may always say "now"."""


def build_request(setup: Setup, state: State, projection: Projection) -> Request:
    """Build the request for the current turn.

    A model that called a tool although none was offered is asked again without any sign of tools in the request.
    """
    run, turn = state.run, state.turn
    assert run is not None and turn is not None
    wrap_up, limits = turn.wrap_up is not None, run.limits
    left = limits.tokens - run.usage.output_tokens if limits.tokens is not None else None
    messages = projection.build_messages(state, setup.attachments)
    is_again = not turn.tools and run.stray_replies > 0
    return Request(
        system=setup.config.instructions,
        messages=write_calls_as_text(messages) if is_again else messages,
        tools=setup.specs if turn.tools else (),
        tool_choice="auto" if turn.tools else "none",
        max_tokens=WRAP_UP_TOKENS if wrap_up else left,
        sampling=setup.config.sampling,
        output_schema=None if wrap_up else setup.config.output_schema,
        session_id=state.created.session_id if state.created is not None else "",
        render_cache={} if is_again else projection.render_cache,
        sources=(*setup.sources, *projection.sources),
    )


async def ask_model(setup: Setup, lease: Lease, request: Request, after: int, said: list[str]) -> Reply:
    """Get the model's reply, streamed to the watchers. `said` collects its text, in case the stream breaks off."""
    splitter, publish, session_id = MarkSplitter(), lease.log.publish, request.session_id
    began, first = setup.clock.now(), list[float]()

    def show(event: ModelEvent) -> None:
        if not first and not isinstance(event, Reply):
            first.append(max(0.0, round(setup.clock.now() - began, 4)))
        if isinstance(event, TextDelta | Reply):
            text, reasoning = splitter.feed(event.text) if isinstance(event, TextDelta) else splitter.finish()
            if text:
                said.append(text)
                publish(session_id, TextDelta(text=replace_surrogates(text), after=after))
            if reasoning:
                publish(session_id, ReasoningDelta(text=replace_surrogates(reasoning), after=after))
        elif not isinstance(event, SignedReasoning):  # the reply has it too
            force_setattr(event, "after", after)
            publish(session_id, event)

    reply = await _get_reply(setup, request, show, lease)
    return replace(reply, first_token=first[0]) if first else reply


async def ask_quietly(setup: Setup, request: Request) -> Reply:
    """Get the model's reply to a request that is no part of the conversation. It is not streamed to watchers."""
    reply = await _get_reply(setup, request)
    return replace(reply, text=replace_surrogates(split_marks(reply.text).text))


async def _get_reply(
    setup: Setup, request: Request, show: Callable[[ModelEvent], None] | None = None, lease: Lease | None = None
) -> Reply:
    original, reply = request, None
    for middleware in setup.middleware:
        request = check_returned_type(await middleware.on_pre_llm(request), Request, middleware, "on_pre_llm")
    if request.messages is not original.messages and request.render_cache is original.render_cache:
        request = replace(request, render_cache={})  # the adapter rendered the original messages into the old one
    if lease is not None and setup.middleware:  # it may have taken long
        await lease.renew_if_due()
    async with aclosing(setup.model.stream(request)) as events:
        async for event in events:
            if show is not None:
                show(event)
            if isinstance(event, Reply):
                reply = event
                break
    if reply is None:
        raise ModelError(f"{setup.model.name} ended its stream without a reply", kind="network", retryable=True)
    for middleware in setup.middleware:
        reply = check_returned_type(await middleware.on_post_llm(reply), Reply, middleware, "on_post_llm")
    return reply if reply.model else replace(reply, model=setup.model.name)


def explain_failure(error: Exception, *, was_stopped: bool) -> ModelError:
    """Turn what a model call raised into a model error. A bug in an adapter or in middleware ends the run.

    Raises `ClaimLost` itself: then another owner goes on with the session.
    """
    if isinstance(error, ClaimLost):
        raise error
    if isinstance(error, ModelError):
        return error
    if isinstance(error, TimeoutError):
        return ModelError(str(error) or "stopped", kind="cancelled" if was_stopped else "network")
    return ModelError(describe_error(error))


def build_failure_fact(setup: Setup, state: State, error: ModelError, attempt: int, said: str) -> ModelFailed:
    """Build the fact that a model call failed, with the pause before the next attempt if there is one.

    The attempts end `retry_seconds` after the first failure of the turn. Time in which the run was parked, because its
    provider asked for a long wait, does not count.
    """
    run, turn, now = state.run, state.turn, setup.clock.now()
    assert run is not None and turn is not None
    seconds, message = run.limits.retry_seconds, str(error)
    if turn.wrap_up is not None:
        seconds = min(seconds, compute_wrap_up_seconds(run.limits))
    first = turn.failing_since or now
    give_up_at = first + turn.measure_parked_seconds(now) + seconds
    wait: float | None = compute_backoff(attempt, error.retry_after)
    if not error.retryable or not seconds or (error.kind in OWN_ERRORS and turn.errors + 1 >= run.limits.attempts):
        wait = None
    elif wait > MAX_PAUSE_SECONDS:
        if now + wait > first + LONGEST_WAIT:
            message += f" (it asks to wait {describe_wait(wait)}; a run waits {describe_wait(LONGEST_WAIT)} at most)"
            wait = None
        elif turn.wrap_up is not None:
            wait = None
        else:
            give_up_at += wait
    elif give_up_at - now < MIN_PAUSE_SECONDS:
        wait = None
    elif error.retry_after is None:
        wait = min(wait, give_up_at - now)
    return ModelFailed(
        kind=error.kind,
        message=replace_surrogates(message),
        retryable=error.retryable,
        attempt=attempt,
        wait=wait,
        partial=replace_surrogates(error.partial or said),
        status=error.status,
        give_up_at=give_up_at if wait is not None else None,
    )


def compute_backoff(attempt: int, retry_after: float | None = None) -> float:
    """Compute the seconds before the next attempt: those that the provider asks for, or growing ones with jitter."""
    import random

    longest = min(MAX_PAUSE_SECONDS, BACKOFF_BASE * 2.0 ** min(attempt - 1, 10))
    if retry_after is None:
        return longest * random.uniform(0.5, 1.0)
    return retry_after if attempt <= EXACT_ATTEMPTS else max(retry_after, compute_backoff(attempt - EXACT_ATTEMPTS))


def build_breakdown(setup: Setup, state: State) -> compaction.Breakdown:
    """Measure what fills the window of the session's model."""
    messages = Projection().build_messages(state, setup.attachments)
    request = Request(setup.config.instructions, messages, setup.specs)
    return compaction.measure_context(state, request, setup.model.window)


async def compact_context(setup: Setup, state: State, *, asked: bool = False) -> ContextCompacted | None:
    """Compact the context. Returns None when nothing can be left out, and raises what the model raises.

    When somebody `asked` for it, older turns are summarized even if there is room.
    """
    fixed = estimate_request(Request(setup.config.instructions, (), setup.specs))
    room = compaction.compute_room(setup.model.window, state, fixed, setup.attachments)
    if asked:
        room = replace(room, window=min(room.window, max(state.tokens, 1)))
    plan = compaction.plan_summary(state, room) if asked else compaction.plan_compaction(state, room)
    if plan is None or plan.kind == "prune":
        return compaction.build_compaction_fact(state, room, plan) if plan is not None else None
    shortest = compaction.compose_summary(state, room, plan, "")
    if asked and compaction.estimate_tokens_after(state, room, plan, shortest) >= state.tokens:
        return None  # no summary could be shorter, whatever the model writes
    reply = Reply()
    if not isinstance(setup.model, Summarizer) or setup.model.can_summarize:
        try:
            reply = await ask_quietly(setup, compaction.build_summary_request(state, room, plan))
        except ModelError:
            if asked or state.tokens < room.window:  # there is still room: keep the context whole
                raise
    summary = compaction.compose_summary(state, room, plan, reply.text)
    return compaction.build_compaction_fact(state, room, plan, summary, reply.usage)


async def compact_or_note_failure(setup: Setup, state: State) -> list[AnyFact]:
    """Compact the context for the loop. It always returns a fact: the run continues when compaction fails."""
    try:
        fact = await compact_context(setup, state)
    except Exception as error:
        return [build_compaction_failure(describe_error(error))]
    return [fact or build_compaction_failure("there is nothing that could be left out")]


def build_compaction_failure(why: str) -> SignalDetected:
    """Build the fact that a compaction failed."""
    return SignalDetected(kind="compaction_failed", detail=replace_surrogates(why[:500]))
