"""Decide what to do next. `next_step(state, now)` is pure and makes every decision of the engine.

A decision that needs nothing from outside is returned as facts, in a `Record`. Every other step says what to do.
Read `next_step` from the top: it follows the life of a run.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from treadle.engine.compaction import describe_full_window, is_due, is_futile
from treadle.engine.state import OUTCOME_UNKNOWN, CallState, RunState, State, Turn
from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    CancelRequested,
    EndReason,
    InputAnswered,
    Limits,
    MessageReceived,
    RunFinished,
    RunStarted,
    TurnStarted,
)

TURN_CEILING = 200
MAX_EMPTY_REPLIES = 3
MAX_INVALID_OUTPUTS = 3
MAX_SAFE_ATTEMPTS = 3


class Record(Struct, frozen=True):
    """Append these facts: they need nothing from outside."""

    facts: tuple[AnyFact, ...]
    key: str = ""


class AskModel(Struct, frozen=True):
    """Call the model for the current turn, but not before a given time."""

    attempt: int
    not_before: float = 0.0


class Compact(Struct, frozen=True):
    """Compact the context before the model is called."""


class Work(Struct, frozen=True):
    """Authorize these calls in order, and run the first ones that may run."""

    calls: tuple[CallState, ...]


class Rest(Struct, frozen=True):
    """Do nothing until somebody posts or `wake_at` comes. `waiting` means waiting for a person."""

    wake_at: float | None = None
    waiting: bool = False


Step: TypeAlias = Record | AskModel | Compact | Work | Rest


def next_step(state: State, now: float, limits: Limits | None = None, window: int | None = None) -> Step:
    """Return the next step. It depends on nothing but the arguments.

    A run that starts gets `limits`. `window` is the size of the model's window, if it is known.
    """
    run, turn = state.run, state.turn
    if run is None:
        return _start_run(state, limits)
    if run.cancel is not None or run.interrupted:
        return _cancel_run(state, run)
    if turn is None:
        return _start_turn(state, run, now)
    if turn.reply is None:
        return _check_room(state, run, turn, window) or _call_model(state, run, turn, now)
    if not turn.is_settled:
        return _settle_calls(turn, now)
    return _finish_turn(state, run, turn, now)


def _start_run(state: State, limits: Limits | None) -> Step:
    limits = limits or (state.created.limits if state.created is not None else Limits())
    run_id = f"run_{state.runs + 1}"
    if state.requested is not None:
        wanted = state.requested
        return Record((RunStarted(run_id=run_id, limits=wanted.limits or limits, trigger=wanted.trigger),))
    if state.queue and not state.held:
        return Record((RunStarted(run_id=run_id, limits=limits, trigger="message"),))
    return Rest()


def _cancel_run(state: State, run: RunState) -> Step:
    turn, cancel = state.turn, run.cancel
    closing: list[AnyFact] = []
    partial = ""
    if turn is not None:
        closing = [build_unfinished_result(call) for call in turn.calls.values() if call.finished is None]
        partial = turn.reply.text if turn.reply else turn.failed.partial if turn.failed else ""
    if cancel is None:
        error = "interrupted by a new message"
    else:
        by = f" by {cancel.by}" if cancel.by else ""
        error = f"cancelled{by}: {cancel.why}" if cancel.why else f"cancelled{by}"
    return Record((*closing, _build_end(run, "cancelled", partial, error=error)))


def stops_run(fact: AnyFact) -> bool:
    """Whether a fact stops the current run."""
    return isinstance(fact, CancelRequested) or (isinstance(fact, MessageReceived) and fact.mode == "interrupt")


def build_unfinished_result(call: CallState) -> CallFinished:
    """Build the result of a call that has none when its run ends."""
    if call.started is not None:
        return CallFinished(call_id=call.call.id, tool=call.call.tool, status="interrupted", output=OUTCOME_UNKNOWN)
    return CallFinished(
        call_id=call.call.id, tool=call.call.tool, status="cancelled", output="Not run: the run was stopped."
    )


def _check_room(state: State, run: RunState, turn: Turn, window: int | None) -> Step | None:
    """Compact the context right before the model is called: then every call has its result."""
    if "compaction_failed" in turn.signals:
        return None
    failed, refusal = turn.failed, ""
    if failed is not None and failed.kind == "too_long" and turn.compacted_at < failed.seq:
        refusal = f"{failed.kind}: {failed.message}"
    if not refusal and not is_due(state, window):
        return None
    if is_futile(state):
        return Record((_build_end(run, "failed", error=describe_full_window(state, window, refusal)),))
    return Compact()


def _call_model(state: State, run: RunState, turn: Turn, now: float) -> Step:
    failed = turn.failed
    if failed is None:
        return AskModel(1)
    if failed.wait is not None:
        return AskModel(failed.attempt + 1, failed.at + failed.wait)
    if failed.kind == "too_long" and turn.compacted_at > failed.seq:
        return AskModel(failed.attempt + 1)
    if turn.wrap_up is not None:
        return Record((_build_end(run, turn.wrap_up, _describe_missing_summary(run, turn.wrap_up)),))
    # Nobody cancelled the run, or it would have ended. So the time limit stopped the model.
    if run.limits.seconds is not None and (failed.kind == "cancelled" or is_out_of_time(run, now)):
        return _start_wrap_up(run, "time_limit")
    error = f"{failed.kind}: {failed.message}"
    if failed.kind == "too_long":
        error = describe_full_window(state, None, error)
    return Record((_build_end(run, "failed", failed.partial, error=error),))


def _settle_calls(turn: Turn, now: float) -> Step:
    """Run the calls that need no answer from a person. Close the calls that a crash interrupted."""
    questions = [call.pending for call in turn.calls.values() if call.pending is not None]
    times = [question.expires_at for question in questions if question.expires_at is not None]
    for question in questions:
        if question.expires_at is not None and question.expires_at <= now:
            call_id, fact = question.call_id, InputAnswered(call_id=question.call_id, answers=(), by="expiry")
            if isinstance(question, ApprovalRequested):
                comment = "nobody answered in time"
                fact = ApprovalAnswered(call_id=call_id, decision="deny", by="expiry", comment=comment)
            # The key is that of an answer, so the log takes only one of them.
            return Record((fact,), key=build_answer_key(call_id))
    runnable: list[CallState] = []
    lost: list[AnyFact] = []
    has_failed = any(call.finished is not None and call.finished.fatal for call in turn.calls.values())
    for call in turn.calls.values():
        if call.finished is not None:
            continue
        if call.pending is not None and not has_failed:
            break
        # A safe call that stops its process at every attempt is given up.
        started = call.started
        is_safe = started is not None and started.safety == "safe" and started.attempt < MAX_SAFE_ATTEMPTS
        if started is None or started.resumes or is_safe:
            runnable.append(call)
        else:
            lost.append(build_unfinished_result(call))
    if lost:
        return Record(tuple(lost))
    if runnable:
        return Work(tuple(runnable))
    return Rest(min(times, default=None), waiting=True)


def build_answer_key(call_id: str) -> str:
    """Build the key under which the log stores the only answer to a question."""
    return f"answer:{call_id}"


def _finish_turn(state: State, run: RunState, turn: Turn, now: float) -> Step:
    reply = turn.reply
    assert reply is not None
    fatal = next((c.finished for c in turn.calls.values() if c.finished and c.finished.fatal), None)
    if fatal is not None:
        return Record((_build_end(run, "failed", reply.text, error=f"{fatal.tool}: {fatal.output}"),))
    if turn.wrap_up is not None:
        return Record(
            (_build_end(run, turn.wrap_up, reply.text.strip() or _describe_missing_summary(run, turn.wrap_up)),)
        )
    if reply.calls:
        refused = any(call.finished and call.finished.status == "refused" for call in turn.calls.values())
        if refused and not run.doomed:
            return _start_wrap_up(run, "call_limit")
        return _start_turn(state, run, now)
    if "stuck" in turn.signals:
        return Record((_build_end(run, "stuck", reply.text, error="the model says that it is stuck"),))
    if "yielded" in turn.signals:
        return Record((_build_end(run, "yielded", reply.text),))
    if not reply.text.strip():
        if run.empty >= MAX_EMPTY_REPLIES:
            error = f"the model gave {run.empty} empty replies in a row"
            return Record((_build_end(run, "stuck", error=error),))
        return _start_turn(state, run, now)
    if reply.finish == "filter":
        return Record((_build_end(run, "failed", reply.text, error="the provider's content filter cut the reply"),))
    if reply.finish == "length":
        return _start_wrap_up(run, "token_limit")
    if "invalid_output" in turn.signals:
        if run.invalid >= MAX_INVALID_OUTPUTS:
            error = f"{run.invalid} answers in a row did not fit the output schema"
            return Record((_build_end(run, "failed", reply.text, error=error),))
        return _start_turn(state, run, now)
    return Record((_build_end(run, "answered", reply.text, confidence=reply.confidence),))


def _start_turn(state: State, run: RunState, now: float) -> Step:
    limit = _find_reached_limit(run, now)
    if limit is not None and run.turns > 0:
        return _start_wrap_up(run, limit)
    promoted = tuple(message.id for message in state.queue)
    return Record((TurnStarted(turn=run.turns + 1, messages=promoted, tools=run.limits.turns > 0),))


def _start_wrap_up(run: RunState, limit: EndReason) -> Record:
    return Record((TurnStarted(turn=run.turns + 1, tools=False, wrap_up=limit),))


def is_out_of_time(run: RunState, now: float) -> bool:
    """Whether the run has used up its time. Time spent waiting for a person does not count."""
    return run.limits.seconds is not None and now - run.started_at - run.waited >= run.limits.seconds


def _find_reached_limit(run: RunState, now: float) -> EndReason | None:
    limits = run.limits
    if run.doomed:
        return "doom_loop"
    if is_out_of_time(run, now):
        return "time_limit"
    if limits.cost is not None and run.usage.cost >= limits.cost:
        return "cost_limit"
    if limits.tokens is not None and run.usage.output_tokens >= limits.tokens:
        return "token_limit"
    # A text-only run has one turn, and one more for each empty or invalid reply.
    if run.turns >= (min(limits.turns, TURN_CEILING) or 1 + run.empty + run.invalid):
        return "turn_limit"
    return None


def _build_end(
    run: RunState, reason: EndReason, answer: str = "", *, error: str = "", confidence: float | None = None
) -> RunFinished:
    return RunFinished(
        run_id=run.id,
        reason=reason,
        answer=answer,
        usage=run.usage,
        turns=run.turns,
        calls=run.calls,
        can_continue=reason != "answered",
        error=error,
        confidence=confidence,
    )


def _describe_missing_summary(run: RunState, reason: EndReason) -> str:
    return (
        f"The run stopped ({reason.replace('_', ' ')}) after {run.turns} turns and {run.calls} calls, "
        "and the model gave no summary. The session's log shows what was done."
    )
