"""The next step: each rule of a run, and that every run ends within its limits."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.simulation import Simulation, check_results, check_runs, check_session
from tests.kit.strategies import LIMITS, build_history, histories
from treadle.engine.state import OUTCOME_UNKNOWN, fold
from treadle.engine.steps import TURN_CEILING, AskModel, Record, Rest, Step, Work, build_answer_key, next_step
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
    ModelFailed,
    ModelReplied,
    Question,
    RunFinished,
    RunRequested,
    RunStarted,
    SessionCreated,
    SignalDetected,
    SignalKind,
    TurnStarted,
)
from treadle.messages import Call, TextPart, Usage

MESSAGE = MessageReceived(id="m1", parts=(TextPart("do it"),))
INTERRUPT = MessageReceived(id="m2", parts=(TextPart("no, this"),), mode="interrupt")
TURN = TurnStarted(turn=1, messages=("m1",))
A, B = Call("a", "look"), Call("b", "write")
CALLS = ModelReplied(text="I try.", calls=(A, B))


def started(limits: Limits | None = None) -> RunStarted:
    return RunStarted(run_id="run_1", limits=limits or Limits())


def ended(call: Call, status: Any = "ok", *, fatal: bool = False) -> CallFinished:
    return CallFinished(call_id=call.id, tool=call.tool, status=status, output="this", fatal=fatal)


def begun(call: Call, safety: Any = "caution", attempt: int = 1) -> CallStarted:
    return CallStarted(call_id=call.id, tool=call.tool, safety=safety, attempt=attempt)


def asked(call: Call, expires_at: float | None = None) -> ApprovalRequested:
    return ApprovalRequested(
        call_id=call.id, tool=call.tool, arguments={}, safety="caution", why="", expires_at=expires_at
    )


def step_after(*story: AnyFact | float, now: float | None = None, limits: Limits | None = None) -> Step:
    facts = build_history(*story)
    return next_step(
        fold(facts), sum(piece for piece in story if isinstance(piece, float)) if now is None else now, limits
    )


def recorded(step: Step) -> AnyFact:
    """Return the only recorded fact."""
    assert isinstance(step, Record) and len(step.facts) == 1, step
    return step.facts[0]


def ending(*story: AnyFact | float) -> RunFinished:
    fact = recorded(step_after(*story))
    assert isinstance(fact, RunFinished), fact
    return fact


def wrap_up(*story: AnyFact | float) -> EndReason | None:
    """Return the limit that the next turn wraps up for, or None for an ordinary turn."""
    fact = recorded(step_after(*story))
    assert isinstance(fact, TurnStarted), fact
    assert fact.tools is (fact.wrap_up is None)
    return fact.wrap_up


# ── every run ends ─────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=150)
@given(st.data(), histories, st.sampled_from(LIMITS))
def test_the_engine_comes_to_rest_from_any_facts(data: st.DataObject, history: list[AnyFact], limits: Limits) -> None:
    session = Simulation(data, history, limits, meddling=3)
    session.run()
    check_session(session.state)
    session.crash()
    new = session.facts[session.start :]
    first = next((place for place, fact in enumerate(new) if isinstance(fact, RunStarted)), len(new))
    check_runs(new[first:])
    check_results(new[first:])
    open_run = fold(history).run
    assert sum(isinstance(fact, RunFinished) for fact in new[:first]) == (open_run is not None)


@settings(max_examples=150)
@given(st.data(), st.sampled_from(LIMITS))
def test_each_run_ends_once_within_its_limits_and_each_call_has_one_result(data: st.DataObject, limits: Limits) -> None:
    session = Simulation(data, build_history(SessionCreated(session_id="s"), MESSAGE), limits, meddling=6)
    session.run()
    check_session(session.state)
    assert check_runs(session.facts) >= 1 or any(isinstance(fact, CancelRequested) for fact in session.facts)
    check_results(session.facts)
    assert session.requests == sum(isinstance(fact, ModelReplied | ModelFailed) for fact in session.facts)


@settings(max_examples=100)
@given(st.data(), st.sampled_from(LIMITS))
def test_a_log_that_is_cut_anywhere_keeps_the_same_promises(data: st.DataObject, limits: Limits) -> None:
    whole = Simulation(data, build_history(MESSAGE), limits, meddling=2)
    whole.run()
    place = data.draw(st.integers(0, len(whole.facts)), label="cut after")
    cut = Simulation(data, whole.facts[:place], limits)
    cut.run()
    check_session(cut.state)
    check_runs(cut.facts)
    check_results(cut.facts)
    side_effects = [fact.call_id for fact in cut.facts if isinstance(fact, CallStarted) and fact.safety != "safe"]
    assert max(Counter(side_effects).values(), default=1) == 1


@given(histories, st.floats(-10, 1e4))
def test_next_step_is_pure(history: list[AnyFact], now: float) -> None:
    state = fold(history)
    first = next_step(state, now)
    assert next_step(state, now) == first and state == fold(history)
    if isinstance(first, Rest) and first.wake_at is not None:
        assert first.wake_at > now


# ── between runs ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_idle_session_rests() -> None:
    assert step_after() == Rest()
    assert step_after(SessionCreated(session_id="s")) == Rest()


def test_a_message_starts_a_run_with_the_given_or_the_sessions_limits() -> None:
    own = Limits(turns=7)
    assert recorded(step_after(MESSAGE, limits=own)) == RunStarted(run_id="run_1", limits=own)
    created = SessionCreated(session_id="s", limits=own)
    assert recorded(step_after(created, MESSAGE)) == RunStarted(run_id="run_1", limits=own)
    assert recorded(step_after(MESSAGE)) == RunStarted(run_id="run_1", limits=Limits())


def test_a_requested_run_has_its_trigger_and_the_next_number() -> None:
    done = RunFinished(run_id="run_1", reason="turn_limit")
    wanted = RunRequested(trigger="continue", limits=Limits(turns=3))
    fact = recorded(step_after(started(), done, wanted))
    assert fact == RunStarted(run_id="run_2", limits=Limits(turns=3), trigger="continue")


def test_a_held_message_does_not_start_a_run() -> None:
    assert step_after(MESSAGE, CancelRequested()) == Rest()


def test_a_message_during_a_run_starts_the_next_run() -> None:
    story = (MESSAGE, started(), TURN, INTERRUPT, RunFinished(run_id="run_1", reason="cancelled"))
    assert isinstance(recorded(step_after(*story)), RunStarted)


# ── turns and the model ────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_promotes_all_queued_messages() -> None:
    fact = recorded(step_after(MESSAGE, INTERRUPT, started()))
    assert fact == TurnStarted(turn=1, messages=("m1", "m2"))


def test_messages_during_a_turn_steer_the_next_turn() -> None:
    more = MessageReceived(id="m3", parts=(TextPart("and this"),))
    fact = recorded(step_after(MESSAGE, started(), TURN, CALLS, more, ended(A), ended(B)))
    assert fact == TurnStarted(turn=2, messages=("m3",))


def test_a_failed_model_call_is_repeated_after_a_wait() -> None:
    assert step_after(MESSAGE, started(), TURN) == AskModel(1)
    failed = ModelFailed(kind="overloaded", message="busy", retryable=True, attempt=2, wait=4.0)
    assert step_after(MESSAGE, started(), TURN, 10.0, failed) == AskModel(3, 14.0)


def test_a_final_model_failure_ends_the_run_with_the_partial_text() -> None:
    end = ending(MESSAGE, started(), TURN, ModelFailed(kind="auth", message="no key", partial="It is "))
    assert (end.reason, end.answer, end.error, end.can_continue) == ("failed", "It is ", "auth: no key", True)


def test_a_model_stopped_by_the_time_limit_gets_a_wrap_up() -> None:
    stopped = ModelFailed(kind="cancelled", message="stopped", partial="It is ")
    assert wrap_up(MESSAGE, started(Limits(seconds=30)), TURN, 29.0, stopped) == "time_limit"
    late = ModelFailed(kind="network", message="broke off")
    assert wrap_up(MESSAGE, started(Limits(seconds=30)), TURN, 31.0, late) == "time_limit"


def test_an_answer_ends_the_run() -> None:
    end = ending(MESSAGE, started(), TURN, ModelReplied(text="42", usage=Usage(9, 2), confidence=0.9))
    assert end == RunFinished(
        run_id="run_1", reason="answered", answer="42", usage=Usage(9, 2), turns=1, confidence=0.9
    )


@pytest.mark.parametrize(("kind", "reason"), [("stuck", "stuck"), ("yielded", "yielded"), ("uncertain", "answered")])
def test_the_models_signal_decides_how_the_run_ends(kind: SignalKind, reason: str) -> None:
    end = ending(MESSAGE, started(), TURN, ModelReplied(text="Hm."), SignalDetected(kind=kind))
    assert (end.reason, end.answer, end.can_continue) == (reason, "Hm.", reason != "answered")


def test_a_reply_with_calls_is_never_stuck() -> None:
    story = (MESSAGE, started(), TURN, ModelReplied(text="Hm.", calls=(A,)), SignalDetected(kind="stuck"), ended(A))
    assert isinstance(recorded(step_after(*story)), TurnStarted)


def test_the_third_empty_reply_ends_the_run_as_stuck() -> None:
    empty = (ModelReplied(), SignalDetected(kind="empty_reply"))
    assert wrap_up(MESSAGE, started(), TURN, *empty) is None
    assert wrap_up(MESSAGE, started(), TURN, *empty, TURN, *empty) is None
    end = ending(MESSAGE, started(), TURN, *empty, TURN, *empty, TURN, ModelReplied(text=" \n"))
    assert (end.reason, end.answer) == ("stuck", "") and "3 empty replies" in end.error


def test_the_third_invalid_answer_ends_the_run_as_failed() -> None:
    bad = (ModelReplied(text="4x"), SignalDetected(kind="invalid_output"))
    assert wrap_up(MESSAGE, started(), TURN, *bad, TURN, *bad) is None
    end = ending(MESSAGE, started(), TURN, *bad, TURN, *bad, TURN, *bad)
    assert end.reason == "failed" and "did not fit" in end.error


def test_a_filtered_reply_fails_and_a_cut_reply_gets_a_wrap_up() -> None:
    end = ending(MESSAGE, started(), TURN, ModelReplied(text="How to", finish="filter"))
    assert (end.reason, end.answer) == ("failed", "How to") and "filter" in end.error
    assert wrap_up(MESSAGE, started(), TURN, ModelReplied(text="And then", finish="length")) == "token_limit"


# ── limits and the wrap-up ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(turns=1), "turn_limit"),
        (Limits(tokens=5), "token_limit"),
        (Limits(cost=0.5), "cost_limit"),
        (Limits(seconds=60), "time_limit"),
        (Limits(turns=2, tokens=6, cost=0.6, seconds=61), None),
    ],
)
def test_a_reached_limit_starts_the_wrap_up(limits: Limits, limit: str | None) -> None:
    reply = ModelReplied(calls=(A,), usage=Usage(50, 5, cost=0.5))
    assert wrap_up(MESSAGE, started(limits), TURN, reply, 60.0, ended(A)) == limit


def test_no_run_has_more_turns_than_the_ceiling() -> None:
    turns = [TURN, CALLS, ended(A), ended(B)] * TURN_CEILING
    assert wrap_up(MESSAGE, started(Limits(turns=10_000)), *turns) == "turn_limit"
    assert wrap_up(MESSAGE, started(Limits(turns=10_000)), *turns[:-4]) is None


def test_a_refused_call_means_the_call_limit() -> None:
    assert wrap_up(MESSAGE, started(), TURN, CALLS, ended(A), ended(B, "refused")) == "call_limit"


def test_a_doomed_run_gets_a_wrap_up() -> None:
    warned = (SignalDetected(kind="doom_loop"),)
    second = TurnStarted(turn=2)
    again = ModelReplied(calls=(Call("c", "look"),))
    story = (MESSAGE, started(), TURN, CALLS, *warned, ended(A), ended(B), second, again, *warned)
    assert wrap_up(*story, ended(Call("c", "look"), "refused")) == "doom_loop"


@pytest.mark.parametrize("limit", ["turn_limit", "call_limit", "token_limit", "time_limit", "cost_limit", "doom_loop"])
def test_after_the_wrap_up_the_run_ends_with_the_limit_and_can_continue(limit: EndReason) -> None:
    last = TurnStarted(turn=2, tools=False, wrap_up=limit)
    end = ending(MESSAGE, started(), TURN, CALLS, ended(A), ended(B), last, ModelReplied(text="So far this."))
    assert (end.reason, end.answer, end.can_continue, end.turns) == (limit, "So far this.", True, 1)


@pytest.mark.parametrize("words", [ModelReplied(), ModelReplied(text=" "), ModelFailed(kind="auth", message="no key")])
def test_without_a_wrap_up_text_the_run_ends_with_a_default_text(words: AnyFact) -> None:
    last = TurnStarted(turn=2, tools=False, wrap_up="turn_limit")
    end = ending(MESSAGE, started(), TURN, CALLS, begun(A), ended(A), ended(B), last, words)
    assert end.reason == "turn_limit"
    assert "turn limit" in end.answer and "1 turns and 1 calls" in end.answer


def test_the_wrap_up_is_repeated_when_the_model_is_busy() -> None:
    last = TurnStarted(turn=2, tools=False, wrap_up="turn_limit")
    busy = ModelFailed(kind="overloaded", message="busy", wait=1.0)
    assert step_after(MESSAGE, started(), TURN, CALLS, ended(A), ended(B), last, busy) == AskModel(2, 1.0)


def test_text_only_means_one_turn_without_tools() -> None:
    none = Limits(turns=0)
    assert recorded(step_after(MESSAGE, started(none))) == TurnStarted(turn=1, messages=("m1",), tools=False)
    assert ending(MESSAGE, started(none), TURN, ModelReplied(text="42")).reason == "answered"


def test_text_only_still_repeats_empty_and_invalid_replies() -> None:
    none = Limits(turns=0)
    bad = (ModelReplied(text="4x"), SignalDetected(kind="invalid_output"))
    for reply in ((ModelReplied(),), bad):
        fact = recorded(step_after(MESSAGE, started(none), TURN, *reply))
        assert fact == TurnStarted(turn=2, tools=False)


def test_a_limit_of_zero_still_gives_one_turn() -> None:
    for limits in (Limits(tokens=0), Limits(seconds=0), Limits(cost=0)):
        assert recorded(step_after(MESSAGE, started(limits))) == TurnStarted(turn=1, messages=("m1",))


def test_time_spent_waiting_for_a_person_does_not_count() -> None:
    yes = ApprovalAnswered(call_id="b", decision="allow")
    story = (MESSAGE, started(Limits(seconds=60)), TURN, 10.0, CALLS, ended(A), asked(B), 1000.0, yes)
    assert wrap_up(*story, 40.0, ended(B)) is None
    assert wrap_up(*story, 50.0, ended(B)) == "time_limit"


def test_a_question_in_the_last_turn_waits_before_the_limit() -> None:
    story = (MESSAGE, started(Limits(turns=1)), TURN, CALLS, ended(A), asked(B))
    assert step_after(*story) == Rest(waiting=True)
    yes = ApprovalAnswered(call_id="b", decision="allow")
    assert isinstance(step_after(*story, yes), Work)
    assert wrap_up(*story, yes, ended(B)) == "turn_limit"


# ── calls ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_calls_run_in_their_order() -> None:
    step = step_after(MESSAGE, started(), TURN, CALLS)
    assert isinstance(step, Work) and [call.call.id for call in step.calls] == ["a", "b"]
    step = step_after(MESSAGE, started(), TURN, CALLS, ended(A))
    assert isinstance(step, Work) and [call.call.id for call in step.calls] == ["b"]


def test_no_call_runs_before_an_earlier_open_question() -> None:
    assert step_after(MESSAGE, started(), TURN, CALLS, asked(A)) == Rest(waiting=True)
    step = step_after(MESSAGE, started(), TURN, CALLS, asked(B))
    assert isinstance(step, Work) and [call.call.id for call in step.calls] == ["a"]


def test_the_first_question_that_expires_ends_the_wait() -> None:
    question = InputRequested(call_id="b", questions=(Question("which?"),), expires_at=50.0)
    story = (MESSAGE, started(), TURN, CALLS, asked(A, 70.0), question)
    assert step_after(*story, now=49.9) == Rest(50.0, waiting=True)
    step = step_after(*story, now=50.0)
    assert step == Record((InputAnswered(call_id="b", answers=(), by="expiry"),), key=build_answer_key("b"))


def test_an_expired_approval_is_denied_under_the_key_of_an_answer() -> None:
    step = step_after(MESSAGE, started(), TURN, CALLS, asked(A, 70.0), now=70.0)
    assert isinstance(step, Record) and step.key == build_answer_key("a")
    fact = recorded(step)
    assert isinstance(fact, ApprovalAnswered)
    assert (fact.call_id, fact.decision, fact.by, fact.scope) == ("a", "deny", "expiry", "call")


def test_an_interrupted_call_with_side_effects_never_runs_again() -> None:
    fact = recorded(step_after(MESSAGE, started(), TURN, CALLS, ended(A), begun(B)))
    assert fact == CallFinished(call_id="b", tool="write", status="interrupted", output=OUTCOME_UNKNOWN)
    assert recorded(step_after(MESSAGE, started(), TURN, CALLS, ended(A), begun(B, "destructive"))) == fact


def test_an_interrupted_safe_call_runs_again_at_most_three_times() -> None:
    step = step_after(MESSAGE, started(), TURN, CALLS, begun(A, "safe", attempt=2))
    assert isinstance(step, Work) and step.calls[0].call.id == "a"
    fact = recorded(step_after(MESSAGE, started(), TURN, CALLS, begun(A, "safe", attempt=3)))
    assert isinstance(fact, CallFinished) and (fact.call_id, fact.status) == ("a", "interrupted")


def test_a_fatal_call_ends_the_run_after_the_other_calls() -> None:
    story = (MESSAGE, started(), TURN, CALLS, ended(A, "error", fatal=True))
    assert isinstance(step_after(*story), Work)
    end = ending(*story, ended(B, "cancelled"))
    assert (end.reason, end.answer, end.error) == ("failed", "I try.", "look: this")


# ── cancelling ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cancel", "error"),
    [
        (CancelRequested(), "cancelled"),
        (CancelRequested(by="ann"), "cancelled by ann"),
        (CancelRequested(by="ann", why="too slow"), "cancelled by ann: too slow"),
        (INTERRUPT, "interrupted by a new message"),
    ],
)
def test_a_cancelled_run_settles_its_calls(cancel: AnyFact, error: str) -> None:
    third = Call("c", "look")
    reply = ModelReplied(text="I try.", calls=(A, B, third))
    step = step_after(MESSAGE, started(), TURN, reply, ended(A), begun(B), asked(third), cancel)
    assert isinstance(step, Record)
    running, waiting, end = step.facts
    assert isinstance(running, CallFinished) and isinstance(waiting, CallFinished) and isinstance(end, RunFinished)
    assert (running.call_id, running.status, running.output) == ("b", "interrupted", OUTCOME_UNKNOWN)
    assert (waiting.call_id, waiting.status) == ("c", "cancelled")
    assert (end.reason, end.answer, end.error, end.can_continue) == ("cancelled", "I try.", error, True)


def test_a_cancelled_run_keeps_the_models_partial_text() -> None:
    stopped = ModelFailed(kind="cancelled", message="stopped", partial="It is ")
    end = ending(MESSAGE, started(), TURN, stopped, CancelRequested())
    assert (end.reason, end.answer) == ("cancelled", "It is ")


def test_a_run_cancelled_before_its_first_turn_ends() -> None:
    assert ending(MESSAGE, started(), CancelRequested()).reason == "cancelled"


def test_an_interrupting_message_starts_the_next_run() -> None:
    story = build_history(MESSAGE, started(), TURN, INTERRUPT)
    state = fold([*story, *build_history(ending(*story))])
    assert isinstance(recorded(next_step(state, 0.0)), RunStarted)
