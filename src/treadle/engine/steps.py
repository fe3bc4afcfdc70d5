"""What to do next: `next_step(state, now)` is the whole of the engine's deciding, and is pure.

A decision that needs nothing from outside is already a fact, and comes back as `Record`; the rest is
said as what to do. Read `next_step` from the top: it is the life of a run.
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
    CallStarted,
    CancelRequested,
    EndReason,
    InputAnswered,
    InputRequested,
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
    """Append these facts: decisions that need nothing from outside."""

    facts: tuple[AnyFact, ...]
    key: str = ""


class AskModel(Struct, frozen=True):
    """Make the model call of the turn under way, not before a time."""

    attempt: int
    not_before: float = 0.0


class Compact(Struct, frozen=True):
    """Make the context fit before the model is asked."""


class Work(Struct, frozen=True):
    """See which of these calls may run, and run the first ones, in order."""

    calls: tuple[CallState, ...]


class Rest(Struct, frozen=True):
    """Nothing to do until something is posted or `wake_at` comes; `waiting` is for a person."""

    wake_at: float | None = None
    waiting: bool = False


Step: TypeAlias = Record | AskModel | Compact | Work | Rest


def next_step(state: State, now: float, limits: Limits | None = None, window: int | None = None) -> Step:
    """What is to be done now; `limits` are for a run that starts, `window` is the model's, where it is known.

    Depends on nothing but its arguments.
    """
    run, turn = state.run, state.turn
    if run is None:
        return _between_runs(state, limits)
    if run.cancel is not None or run.interrupted:
        return _stop(state, run)
    if turn is None:
        return _new_turn(state, run, now)
    if turn.reply is None:
        return _compact(state, run, turn, window) or _call_model(state, run, turn, now)
    if not turn.is_settled:
        return _calls(turn, now)
    return _after_turn(state, run, turn, now)


def _between_runs(state: State, limits: Limits | None) -> Step:
    limits = limits or (state.created.limits if state.created is not None else Limits())
    run_id = f"run_{state.runs + 1}"
    if state.requested is not None:
        wanted = state.requested
        return Record((RunStarted(run_id=run_id, limits=wanted.limits or limits, trigger=wanted.trigger),))
    if state.queue and not state.held:
        return Record((RunStarted(run_id=run_id, limits=limits, trigger="message"),))
    return Rest()


def _stop(state: State, run: RunState) -> Step:
    turn = state.turn
    closing: list[AnyFact] = []
    if turn is not None:
        closing = [build_unfinished_result(call) for call in turn.calls.values() if call.finished is None]
    partial = ""
    if turn is not None:
        partial = turn.reply.text if turn.reply else turn.failed.partial if turn.failed else ""
    return Record((*closing, _ending(run, "cancelled", partial, error=_why_cancelled(run))))


def stops_run(fact: AnyFact) -> bool:
    """Whether a fact stops the run that is under way."""
    return isinstance(fact, CancelRequested) or (isinstance(fact, MessageReceived) and fact.mode == "interrupt")


def _why_cancelled(run: RunState) -> str:
    if run.cancel is None:
        return "interrupted by a new message"
    by = f" by {run.cancel.by}" if run.cancel.by else ""
    return f"cancelled{by}: {run.cancel.why}" if run.cancel.why else f"cancelled{by}"


def build_unfinished_result(call: CallState) -> CallFinished:
    """How a call ends that the run's end leaves open."""
    if call.started is not None:
        return CallFinished(
            call_id=call.call.id,
            tool=call.call.tool,
            status="interrupted",
            output=OUTCOME_UNKNOWN,
        )
    return CallFinished(
        call_id=call.call.id, tool=call.call.tool, status="cancelled", output="Not run: the run was stopped."
    )


def _compact(state: State, run: RunState, turn: Turn, window: int | None) -> Step | None:
    """Right before the model is asked, when every call has its result, is when a context is made to fit."""
    if "compaction_failed" in turn.signals:
        return None
    refusal = _refused_for_length(turn)
    if not refusal and not is_due(state, window):
        return None
    if is_futile(state):
        return Record((_ending(run, "failed", error=describe_full_window(state, window, refusal)),))
    return Compact()


def _refused_for_length(turn: Turn) -> str:
    """What the model said when the request was too long for it, where nothing was done about that yet."""
    failed = turn.failed
    if failed is None or failed.kind != "too_long" or turn.compacted_at >= failed.seq:
        return ""
    return f"{failed.kind}: {failed.message}"


def _call_model(state: State, run: RunState, turn: Turn, now: float) -> Step:
    failed = turn.failed
    if failed is None:
        return AskModel(1)
    if failed.wait is not None:
        return AskModel(failed.attempt + 1, failed.at + failed.wait)
    if failed.kind == "too_long" and turn.compacted_at > failed.seq:
        return AskModel(failed.attempt + 1)
    if turn.wrap_up is not None:
        return Record((_ending(run, turn.wrap_up, _without_summary(run, turn.wrap_up)),))
    # Nobody stopped the run, or it would be over: the model was stopped because the time is.
    if run.limits.seconds is not None and (failed.kind == "cancelled" or is_out_of_time(run, now)):
        return _wrap_up(run, "time_limit")
    error = f"{failed.kind}: {failed.message}"
    if failed.kind == "too_long":
        error = describe_full_window(state, None, error)
    return Record((_ending(run, "failed", failed.partial, error=error),))


def _calls(turn: Turn, now: float) -> Step:
    questions = [call.pending for call in turn.calls.values() if call.pending is not None]
    times = [question.expires_at for question in questions if question.expires_at is not None]
    for question in questions:
        if question.expires_at is not None and question.expires_at <= now:
            return _expire(question)
    runnable: list[CallState] = []
    lost: list[AnyFact] = []
    over = any(call.finished is not None and call.finished.fatal for call in turn.calls.values())
    for call in turn.calls.values():
        if call.finished is not None:
            continue
        if call.pending is not None and not over:
            break
        if call.started is not None and not _runs_again(call.started):
            lost.append(build_unfinished_result(call))
        else:
            runnable.append(call)
    if lost:
        return Record(tuple(lost))
    if runnable:
        return Work(tuple(runnable))
    return Rest(min(times, default=None), waiting=True)


def _runs_again(started: CallStarted) -> bool:
    """Whether a call that was broken off is run again; one that breaks its process each time is given up."""
    return started.resumes or (started.safety == "safe" and started.attempt < MAX_SAFE_ATTEMPTS)


def _expire(question: ApprovalRequested | InputRequested) -> Record:
    """Nobody answered in time: say so under the key that an answer would have had, so that one of them wins."""
    fact: AnyFact
    if isinstance(question, ApprovalRequested):
        comment = "nobody answered in time"
        fact = ApprovalAnswered(call_id=question.call_id, decision="deny", by="expiry", comment=comment)
    else:
        fact = InputAnswered(call_id=question.call_id, answers=(), by="expiry")
    return Record((fact,), key=build_answer_key(question.call_id))


def build_answer_key(call_id: str) -> str:
    """The key under which the one answer to a question is stored."""
    return f"answer:{call_id}"


def _after_turn(state: State, run: RunState, turn: Turn, now: float) -> Step:
    reply = turn.reply
    assert reply is not None
    fatal = next((c.finished for c in turn.calls.values() if c.finished and c.finished.fatal), None)
    if fatal is not None:
        return Record((_ending(run, "failed", reply.text, error=f"{fatal.tool}: {fatal.output}"),))
    if turn.wrap_up is not None:
        return Record((_ending(run, turn.wrap_up, reply.text.strip() or _without_summary(run, turn.wrap_up)),))
    if reply.calls:
        refused = any(call.finished and call.finished.status == "refused" for call in turn.calls.values())
        if refused and not run.doomed:
            return _wrap_up(run, "call_limit")
        return _new_turn(state, run, now)
    if "stuck" in turn.signals:
        return Record((_ending(run, "stuck", reply.text, error="the model says that it is stuck"),))
    if "yielded" in turn.signals:
        return Record((_ending(run, "yielded", reply.text),))
    if not reply.text.strip():
        if run.empty >= MAX_EMPTY_REPLIES:
            error = f"the model gave {run.empty} empty replies in a row"
            return Record((_ending(run, "stuck", error=error),))
        return _new_turn(state, run, now)
    if reply.finish == "filter":
        return Record((_ending(run, "failed", reply.text, error="the provider's content filter cut the reply"),))
    if reply.finish == "length":
        return _wrap_up(run, "token_limit")
    if "invalid_output" in turn.signals:
        if run.invalid >= MAX_INVALID_OUTPUTS:
            error = f"{run.invalid} answers in a row did not fit the output schema"
            return Record((_ending(run, "failed", reply.text, error=error),))
        return _new_turn(state, run, now)
    return Record((_ending(run, "answered", reply.text, confidence=reply.confidence),))


def _new_turn(state: State, run: RunState, now: float) -> Step:
    limit = _limit_reached(run, now)
    if limit is not None and run.turns > 0:
        return _wrap_up(run, limit)
    promoted = tuple(message.id for message in state.queue)
    return Record((TurnStarted(turn=run.turns + 1, messages=promoted, tools=run.limits.turns > 0),))


def _wrap_up(run: RunState, limit: EndReason) -> Record:
    return Record((TurnStarted(turn=run.turns + 1, tools=False, wrap_up=limit),))


def is_out_of_time(run: RunState, now: float) -> bool:
    """Whether the run has used up its time; waiting for a person is not counted."""
    return run.limits.seconds is not None and now - run.started_at - run.waited >= run.limits.seconds


def _limit_reached(run: RunState, now: float) -> EndReason | None:
    limits = run.limits
    if run.doomed:
        return "doom_loop"
    if is_out_of_time(run, now):
        return "time_limit"
    if limits.cost is not None and run.usage.cost >= limits.cost:
        return "cost_limit"
    if limits.tokens is not None and run.usage.output_tokens >= limits.tokens:
        return "token_limit"
    # A text-only run has one turn, and one more for each empty or misshapen reply.
    if run.turns >= (min(limits.turns, TURN_CEILING) or 1 + run.empty + run.invalid):
        return "turn_limit"
    return None


def _ending(
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


def _without_summary(run: RunState, reason: EndReason) -> str:
    return (
        f"The run stopped ({reason.replace('_', ' ')}) after {run.turns} turns and {run.calls} calls, "
        "and the model gave no summary. What was done is in the session's log."
    )
