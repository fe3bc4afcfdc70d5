"""Decide what to do next. `next_step(state, now)` is pure and makes every decision of the engine.

A decision that needs nothing from outside is returned as facts, in a `Record`. Every other step says what to do.
Read `next_step` from the top: it follows the life of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle import events
from treadle.engine.earlier_messages import EarlierMessages
from treadle.engine.reply import make_ids_unique
from treadle.engine.state import MAX_PAUSE_SECONDS, OUTCOME_UNKNOWN, CallState, RunState, State, Turn
from treadle.messages import NO_USAGE, Call
from treadle.permissions.policy import COMMAND_TOOL

MAX_EMPTY_REPLIES = 3
MAX_INVALID_OUTPUTS = 3
MAX_STRAY_REPLIES = 2
MAX_SAFE_ATTEMPTS = 3
WRAP_UP_SECONDS, SHORT_WRAP_UP_SECONDS = 60.0, 5.0  # the short one is for runs that had less time themselves
MIN_PAUSE_SECONDS = 0.001
COMMAND_SECONDS = 600
"""How long a command of a person may take."""
STRAY_ERROR = "the model calls tools although none are offered"
COMPACTION_SHARE = 0.85
"""The share of the window at which a compaction is due."""
MAX_FUTILE_COMPACTIONS = 2
"""The run stops after this number of compactions in a row that freed nothing."""

EFFECT_FACTS = (
    *(events.ModelReplied, events.ModelFailed, events.CallFinished, events.SignalDetected),
    *(events.ContextCompacted, events.Custom),
)
"""What happened outside is recorded again when others posted first. Everything else is decided anew."""


class Record(Struct, frozen=True):
    """Append these facts: they need nothing from outside."""

    facts: tuple[events.AnyFact, ...]
    key: str = ""


class AskModel(Struct, frozen=True):
    """Call the model for the current turn."""

    attempt: int


class Compact(Struct, frozen=True):
    """Compact the context before the model is called."""


class Work(Struct, frozen=True):
    """Authorize these calls in order, and run the first ones that may run."""

    calls: tuple[CallState, ...]


class Rest(Struct, frozen=True):
    """Do nothing until somebody posts or `wake_at` comes. `waiting` means waiting for a person or for the client."""

    wake_at: float | None = None
    waiting: bool = False

    def measure_pause(self, now: float) -> float | None:
        """Measure a wait that is too short to release the session for. None for any other rest."""
        if self.waiting or self.wake_at is None or self.wake_at - now > MAX_PAUSE_SECONDS:
            return None
        return max(0.0, self.wake_at - now)


Step: TypeAlias = Record | AskModel | Compact | Work | Rest


def next_step(state: State, now: float, limits: events.Limits | None = None, window: int | None = None) -> Step:
    """Return the next step. It depends on nothing but the arguments.

    A run that starts gets `limits`. `window` is the size of the model's window, if it is known.
    """
    run, turn = state.run, state.turn
    if run is None:
        run_id, wanted = f"run_{state.runs + 1}", state.requested
        limits = limits or (state.created.limits if state.created is not None else events.Limits())
        if wanted is not None:
            started = events.RunStarted(run_id=run_id, limits=wanted.limits or limits, trigger=wanted.trigger)
            return Record((started, *(_run_command(state, wanted) or _repeat_reply(state, wanted.after))))
        if state.queue and not state.is_held:
            return Record((events.RunStarted(run_id=run_id, limits=limits, trigger="message"),))
        return Rest()
    if run.cancel is not None or run.is_interrupted:
        return _cancel_run(run, turn)
    if turn is None:
        return _start_turn(state, run, now)
    if turn.reply is None:
        return _call_model(state, run, turn, now, window)
    if not turn.is_settled:
        return _settle_calls(turn, now)
    return _finish_turn(state, run, turn, now)


def _run_command(state: State, wanted: events.RunRequested) -> tuple[events.AnyFact, ...]:
    """Give the command of a person to a new run, as a call of the tool that runs commands."""
    if not wanted.command:
        return ()
    arguments = msgspec.json.encode({"command": wanted.command, "timeout_s": COMMAND_SECONDS}).decode()
    calls = make_ids_unique(state, (Call("command", COMMAND_TOOL, arguments),))
    return (events.TurnStarted(turn=0, calls=calls),)


def _repeat_reply(state: State, seq: int) -> tuple[events.AnyFact, ...]:
    """Give the calls of the reply at a position to a new run. They get new ids, and the reply costs nothing again."""
    conversations = (state.entries, *(past.entries for past in state.rewound))
    for entry in (entry for entries in conversations for entry in entries):
        if isinstance(entry, Turn) and entry.reply is not None and entry.reply.seq == seq:
            calls = make_ids_unique(state, entry.reply.calls)
            reply = replace(entry.reply, seq=0, at=0.0, calls=calls, usage=NO_USAGE, first_token=None)
            return events.TurnStarted(turn=0), reply
    return ()


def _cancel_run(run: RunState, turn: Turn | None) -> Record:
    closing: list[events.AnyFact] = []
    partial = ""
    if turn is not None:
        for call in turn.calls.values():
            if call.at_client is not None:  # with the key of a result, so the log takes only one of them
                return Record((build_unfinished_result(call),), key=build_answer_key(call.call.id))
        closing = [build_unfinished_result(call) for call in turn.calls.values() if call.finished is None]
        partial = turn.reply.text if turn.reply else turn.failed.partial if turn.failed else ""
    error = "interrupted by a new message"
    if run.cancel is not None:
        by = f" by {run.cancel.by}" if run.cancel.by else ""
        why = f": {run.cancel.why}" if run.cancel.why else ""
        error = f"cancelled{by}{why}"
    return _end_run(run, "cancelled", partial, error=error, closing=closing)


def stops_run(fact: events.AnyFact) -> bool:
    """Whether a fact stops the current run."""
    return isinstance(fact, events.CancelRequested) or (
        isinstance(fact, events.MessageReceived) and fact.mode == "interrupt"
    )


def build_unfinished_result(call: CallState) -> events.CallFinished:
    """Build the result of a call that has none when its run ends."""
    if call.started is not None:
        return events.CallFinished(
            call_id=call.call.id, tool=call.call.tool, status="interrupted", output=OUTCOME_UNKNOWN
        )
    return events.CallFinished(
        call_id=call.call.id, tool=call.call.tool, status="cancelled", output="Not run: the run was stopped."
    )


def _call_model(state: State, run: RunState, turn: Turn, now: float, window: int | None) -> Step:
    """Call the model, or compact the context first: at this point every call has its result."""
    failed = turn.failed
    error = turn.describe_failure()
    is_refused = failed is not None and failed.kind == "too_long" and turn.compacted_at <= failed.seq
    has_past = any(isinstance(entry, Turn | EarlierMessages) for entry in state.entries)
    is_full = window and state.tokens >= COMPACTION_SHARE * window and has_past
    if (is_refused or is_full) and "compaction_failed" not in turn.signals:
        if state.futile_compactions < MAX_FUTILE_COMPACTIONS:
            return Compact()
        return _end_run(run, "failed", error=_describe_full_window(state, window, error if is_refused else ""))
    if failed is None:
        return AskModel(1)
    if failed.wait is not None:
        return _wait_for_provider(run, turn, failed, now)
    if failed.kind == "too_long" and not is_refused:
        return AskModel(failed.attempt + 1)
    if turn.wrap_up is not None:
        return _end_run(run, turn.wrap_up, _describe_missing_summary(run, turn.wrap_up), error=error)
    # Nobody cancelled the run, or it would have ended. So the time limit stopped the model.
    if run.limits.seconds is not None and (failed.kind == "cancelled" or is_out_of_time(run, now)):
        return _start_wrap_up(run, "time_limit")
    if is_refused:
        error = _describe_full_window(state, None, error)
    return _end_run(run, "failed", failed.partial, error=error)


def _wait_for_provider(run: RunState, turn: Turn, failed: events.ModelFailed, now: float) -> Step:
    """Wait until the provider may be ready. The run's own time limit ends the wait, and anybody can cut it short."""
    retry_at = turn.retry_at
    if retry_at is None or retry_at - now < MIN_PAUSE_SECONDS:
        return AskModel(failed.attempt + 1)
    if turn.wrap_up is None and run.limits.seconds is not None:
        if is_out_of_time(run, now):
            return _start_wrap_up(run, "time_limit")
        retry_at = min(retry_at, run.started_at + run.waited + run.limits.seconds)
    return Rest(retry_at)


def compute_wrap_up_seconds(limits: events.Limits) -> float:
    """Compute how long the last turn may take, and how long it waits for its provider."""
    return min(WRAP_UP_SECONDS, max(SHORT_WRAP_UP_SECONDS, limits.seconds or WRAP_UP_SECONDS))


def compute_seconds_left(state: State, now: float) -> float | None:
    """Compute how long the current effect of a run may take. None means no limit."""
    run, turn = state.run, state.turn
    if run is not None and turn is not None and turn.wrap_up is not None:
        return compute_wrap_up_seconds(run.limits)
    if run is None or run.limits.seconds is None:
        return None
    return run.started_at + run.waited + run.limits.seconds - now


def _describe_full_window(state: State, window: int | None, said: str = "") -> str:
    """Explain why a run stops whose context does not fit. The numbers that the provider `said` are better than ours."""
    times = f"{state.futile_compactions} compactions" if state.futile_compactions > 1 else "a compaction"
    tried = f"{times} freed nothing" if state.futile_compactions else "nothing can be left out"
    if said:
        return f"{said} ({tried}; nothing is lost)"
    return (
        f"the context is full: about {state.tokens} tokens of the {window} that the model takes, and {tried}. Nothing "
        "is lost: go on in a new session, with fewer tools, or with a model of a larger window"
    )


def _settle_calls(turn: Turn, now: float) -> Step:
    """Run the calls that need no answer from a person or from the client. Close the calls that a crash interrupted."""
    questions = [question for call in turn.calls.values() if (question := call.pending or call.at_client) is not None]
    times = [question.expires_at for question in questions if question.expires_at is not None]
    for question in questions:
        if question.expires_at is not None and question.expires_at <= now:
            call_id, fact = question.call_id, events.InputAnswered(call_id=question.call_id, answers=(), by="expiry")
            if isinstance(question, events.CallStarted):
                output = "The client sent no result in time. The call may have run."
                fact = events.CallFinished(call_id=call_id, tool=question.tool, status="timed_out", output=output)
            elif isinstance(question, events.ApprovalRequested):
                comment = "nobody answered in time"
                fact = events.ApprovalAnswered(call_id=call_id, decision="deny", by="expiry", comment=comment)
            # The key is that of an answer, so the log takes only one of them.
            return Record((fact,), key=build_answer_key(call_id))
    runnable: list[CallState] = []
    lost: list[events.AnyFact] = []
    is_at_client = False
    has_failed = any(call.finished is not None and call.finished.fatal for call in turn.calls.values())
    for call in turn.calls.values():
        if call.finished is not None:
            continue
        if call.at_client is not None and not has_failed:
            is_at_client = True
            continue
        if (call.pending is not None or is_at_client) and not has_failed:
            break  # the calls of a reply run in their order
        # A safe call that stops its process at every attempt is given up.
        started = call.started
        is_safe = started is not None and started.safety == "safe" and started.attempt < MAX_SAFE_ATTEMPTS
        if started is None or started.resumes or is_safe:
            runnable.append(call)
        elif runnable:
            break  # results are recorded in the order of the calls
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
        return _end_run(run, "failed", reply.text, error=f"{fatal.tool}: {fatal.output}")
    if turn.is_command:
        return _end_run(run, "answered")
    text = reply.text if reply.text.strip() or turn.tools else run.stray_text
    is_stray = "stray_calls" in turn.signals
    # A run is asked once more after its first stray reply. It ends with the second one, whatever that says.
    if is_stray and run.stray_replies < MAX_STRAY_REPLIES:
        return _start_wrap_up(run, turn.wrap_up) if turn.wrap_up is not None else _start_turn(state, run, now)
    if turn.wrap_up is not None:
        return _end_run(run, turn.wrap_up, text.strip() or _describe_missing_summary(run, turn.wrap_up))
    if reply.calls:
        refused = any(call.finished and call.finished.status == "refused" for call in turn.calls.values())
        if refused and not run.is_looping:
            return _start_wrap_up(run, "call_limit")
        return _start_turn(state, run, now)
    if "stuck" in turn.signals:
        return _end_run(run, "stuck", text, error="the model says that it is stuck")
    if "yielded" in turn.signals:
        return _end_run(run, "yielded", text)
    if not text.strip():
        if is_stray:
            return _end_run(run, "stuck", error=STRAY_ERROR)
        if run.empty_replies >= MAX_EMPTY_REPLIES:
            error = f"the model gave {run.empty_replies} empty replies in a row"
            return _end_run(run, "stuck", error=error)
        return _start_turn(state, run, now)
    if reply.finish == "filter":
        return _end_run(run, "failed", text, error="the provider's content filter cut the reply")
    if reply.finish == "length":
        return _end_run(run, "token_limit", text) if is_stray else _start_wrap_up(run, "token_limit")
    if "invalid_output" in turn.signals:
        found = (entry for entry in reversed(state.entries) if isinstance(entry, events.SignalDetected))
        problem = next((entry.detail for entry in found if entry.kind == "invalid_output"), "")
        if is_stray:
            error = f"the answer does not fit the output schema ({problem}), and {STRAY_ERROR}"
            return _end_run(run, "failed", text, error=error)
        if run.invalid_outputs >= MAX_INVALID_OUTPUTS:
            error = f"{run.invalid_outputs} answers in a row did not fit the output schema. The last one: {problem}"
            return _end_run(run, "failed", text, error=error)
        return _start_turn(state, run, now)
    if "hook" in turn.signals:
        return _start_turn(state, run, now)
    return _end_run(run, "answered", text, confidence=reply.confidence)


def _start_turn(state: State, run: RunState, now: float) -> Record:
    """Start the next turn. When a limit is reached, it is the last one."""
    limits, limit = run.limits, None
    # A text-only run has one turn, and one more for each empty, invalid or stray reply and each "continue" of a hook.
    most_turns = limits.turns or 1 + run.empty_replies + run.invalid_outputs + run.stray_replies + run.continues
    if run.is_looping:
        limit = "doom_loop"
    elif is_out_of_time(run, now):
        limit = "time_limit"
    elif limits.cost is not None and run.usage.cost >= limits.cost:
        limit = "cost_limit"
    elif limits.tokens is not None and run.usage.output_tokens >= limits.tokens:
        limit = "token_limit"
    elif run.turns >= most_turns:
        limit = "turn_limit"
    if limit is not None and run.turns > 0:
        return _start_wrap_up(run, limit)
    promoted = choose_messages(state, run)
    if not promoted and not run.turns and run.trigger == "message":
        return _end_run(run, "cancelled", error="its message was withdrawn")
    return Record((events.TurnStarted(turn=run.turns + 1, messages=promoted, tools=limits.turns > 0),))


def choose_messages(state: State, run: RunState) -> tuple[str, ...]:
    """Choose the queued messages that a turn takes. A run takes a follow-up only if it has no other message."""
    chosen = tuple(message.id for message in state.queue if message.mode != "follow_up")
    if not chosen and state.queue and not run.turns and run.trigger == "message":
        return (state.queue[0].id,)
    return chosen


def _start_wrap_up(run: RunState, limit: events.EndReason) -> Record:
    return Record((events.TurnStarted(turn=run.turns + 1, tools=False, wrap_up=limit),))


def is_out_of_time(run: RunState, now: float) -> bool:
    """Whether the run has used up its time. Time spent waiting for a person or the client does not count."""
    return run.limits.seconds is not None and now - run.started_at - run.waited >= run.limits.seconds


def _end_run(
    run: RunState,
    reason: events.EndReason,
    answer: str = "",
    *,
    error: str = "",
    confidence: float | None = None,
    closing: Sequence[events.AnyFact] = (),
) -> Record:
    """End the run, after the facts that close its calls."""
    end = events.RunFinished(
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
    return Record((*closing, end))


def _describe_missing_summary(run: RunState, reason: events.EndReason) -> str:
    return (
        f"The run stopped ({reason.replace('_', ' ')}) after {run.turns} turns and {run.calls} calls, "
        "and the model gave no summary. The session's log shows what was done."
    )
