"""What is done next: each rule of a run's life, and the proof that it always ends within its limits."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.simulation import Simulation, check_results, check_runs, check_session
from tests.kit.strategies import LIMITS, histories, told
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
    facts = told(*story)
    return next_step(
        fold(facts), sum(piece for piece in story if isinstance(piece, float)) if now is None else now, limits
    )


def recorded(step: Step) -> AnyFact:
    """The one fact that was decided."""
    assert isinstance(step, Record) and len(step.facts) == 1, step
    return step.facts[0]


def ending(*story: AnyFact | float) -> RunFinished:
    fact = recorded(step_after(*story))
    assert isinstance(fact, RunFinished), fact
    return fact


def wrap_up(*story: AnyFact | float) -> EndReason | None:
    """The limit that the next turn is the last words for, or None for a plain turn."""
    fact = recorded(step_after(*story))
    assert isinstance(fact, TurnStarted), fact
    assert fact.tools is (fact.wrap_up is None)
    return fact.wrap_up


# ── always on, and to an end ───────────────────────────────────────────────────────────────────────────────


@settings(max_examples=150)
@given(st.data(), histories, st.sampled_from(LIMITS))
def test_from_any_facts_whatsoever_the_engine_comes_to_rest(
    data: st.DataObject, history: list[AnyFact], limits: Limits
) -> None:
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
def test_whatever_happens_each_run_ends_once_within_its_limits_and_each_call_has_one_result(
    data: st.DataObject, limits: Limits
) -> None:
    session = Simulation(data, told(SessionCreated(session_id="s"), MESSAGE), limits, meddling=6)
    session.run()
    check_session(session.state)
    assert check_runs(session.facts) >= 1 or any(isinstance(fact, CancelRequested) for fact in session.facts)
    check_results(session.facts)
    assert session.requests == sum(isinstance(fact, ModelReplied | ModelFailed) for fact in session.facts)


@settings(max_examples=100)
@given(st.data(), st.sampled_from(LIMITS))
def test_a_log_that_is_cut_anywhere_goes_on_to_the_same_promises(data: st.DataObject, limits: Limits) -> None:
    whole = Simulation(data, told(MESSAGE), limits, meddling=2)
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
def test_deciding_changes_nothing_and_depends_on_nothing_else(history: list[AnyFact], now: float) -> None:
    state = fold(history)
    first = next_step(state, now)
    assert next_step(state, now) == first and state == fold(history)
    if isinstance(first, Rest) and first.wake_at is not None:
        assert first.wake_at > now


# ── between runs ───────────────────────────────────────────────────────────────────────────────────────────


def test_without_anything_to_do_there_is_rest() -> None:
    assert step_after() == Rest()
    assert step_after(SessionCreated(session_id="s")) == Rest()


def test_a_message_starts_a_run_with_the_limits_given_or_those_of_the_session() -> None:
    own = Limits(turns=7)
    assert recorded(step_after(MESSAGE, limits=own)) == RunStarted(run_id="run_1", limits=own)
    created = SessionCreated(session_id="s", limits=own)
    assert recorded(step_after(created, MESSAGE)) == RunStarted(run_id="run_1", limits=own)
    assert recorded(step_after(MESSAGE)) == RunStarted(run_id="run_1", limits=Limits())


def test_a_run_that_is_asked_for_says_why_it_starts_and_has_its_own_number() -> None:
    done = RunFinished(run_id="run_1", reason="turn_limit")
    wanted = RunRequested(trigger="continue", limits=Limits(turns=3))
    fact = recorded(step_after(started(), done, wanted))
    assert fact == RunStarted(run_id="run_2", limits=Limits(turns=3), trigger="continue")


def test_a_held_message_does_not_start_a_run() -> None:
    assert step_after(MESSAGE, CancelRequested()) == Rest()


def test_a_message_that_came_during_a_run_starts_the_next() -> None:
    story = (MESSAGE, started(), TURN, INTERRUPT, RunFinished(run_id="run_1", reason="cancelled"))
    assert isinstance(recorded(step_after(*story)), RunStarted)


# ── turns and the model ────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_takes_all_messages_that_wait() -> None:
    fact = recorded(step_after(MESSAGE, INTERRUPT, started()))
    assert fact == TurnStarted(turn=1, messages=("m1", "m2"))


def test_messages_that_come_meanwhile_steer_the_next_turn() -> None:
    more = MessageReceived(id="m3", parts=(TextPart("and this"),))
    fact = recorded(step_after(MESSAGE, started(), TURN, CALLS, more, ended(A), ended(B)))
    assert fact == TurnStarted(turn=2, messages=("m3",))


def test_the_model_is_asked_and_asked_again_after_a_wait() -> None:
    assert step_after(MESSAGE, started(), TURN) == AskModel(1)
    failed = ModelFailed(kind="overloaded", message="busy", retryable=True, attempt=2, wait=4.0)
    assert step_after(MESSAGE, started(), TURN, 10.0, failed) == AskModel(3, 14.0)


def test_a_model_that_will_not_be_asked_again_ends_the_run_with_what_it_had_said() -> None:
    end = ending(MESSAGE, started(), TURN, ModelFailed(kind="auth", message="no key", partial="It is "))
    assert (end.reason, end.answer, end.error, end.can_continue) == ("failed", "It is ", "auth: no key", True)


def test_a_model_stopped_by_the_time_limit_gets_its_last_words() -> None:
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
def test_what_the_model_says_of_itself_ends_the_run_as_that(kind: SignalKind, reason: str) -> None:
    end = ending(MESSAGE, started(), TURN, ModelReplied(text="Hm."), SignalDetected(kind=kind))
    assert (end.reason, end.answer, end.can_continue) == (reason, "Hm.", reason != "answered")


def test_a_model_that_makes_calls_is_not_stuck_whatever_it_says() -> None:
    story = (MESSAGE, started(), TURN, ModelReplied(text="Hm.", calls=(A,)), SignalDetected(kind="stuck"), ended(A))
    assert isinstance(recorded(step_after(*story)), TurnStarted)


def test_two_empty_replies_are_nudged_and_the_third_ends_the_run_as_stuck() -> None:
    empty = (ModelReplied(), SignalDetected(kind="empty_reply"))
    assert wrap_up(MESSAGE, started(), TURN, *empty) is None
    assert wrap_up(MESSAGE, started(), TURN, *empty, TURN, *empty) is None
    end = ending(MESSAGE, started(), TURN, *empty, TURN, *empty, TURN, ModelReplied(text=" \n"))
    assert (end.reason, end.answer) == ("stuck", "") and "3 empty replies" in end.error


def test_answers_that_do_not_fit_are_sent_back_twice_and_then_fail() -> None:
    bad = (ModelReplied(text="4x"), SignalDetected(kind="invalid_output"))
    assert wrap_up(MESSAGE, started(), TURN, *bad, TURN, *bad) is None
    end = ending(MESSAGE, started(), TURN, *bad, TURN, *bad, TURN, *bad)
    assert end.reason == "failed" and "did not fit" in end.error


def test_a_reply_cut_by_the_filter_fails_and_one_cut_by_length_gets_its_last_words() -> None:
    end = ending(MESSAGE, started(), TURN, ModelReplied(text="How to", finish="filter"))
    assert (end.reason, end.answer) == ("failed", "How to") and "filter" in end.error
    assert wrap_up(MESSAGE, started(), TURN, ModelReplied(text="And then", finish="length")) == "token_limit"


# ── limits and the last words ──────────────────────────────────────────────────────────────────────────────


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
def test_a_limit_that_is_reached_gives_the_model_its_last_words(limits: Limits, limit: str | None) -> None:
    reply = ModelReplied(calls=(A,), usage=Usage(50, 5, cost=0.5))
    assert wrap_up(MESSAGE, started(limits), TURN, reply, 60.0, ended(A)) == limit


def test_no_run_has_more_turns_than_the_ceiling() -> None:
    turns = [TURN, CALLS, ended(A), ended(B)] * TURN_CEILING
    assert wrap_up(MESSAGE, started(Limits(turns=10_000)), *turns) == "turn_limit"
    assert wrap_up(MESSAGE, started(Limits(turns=10_000)), *turns[:-4]) is None


def test_a_refused_call_is_the_call_limit() -> None:
    assert wrap_up(MESSAGE, started(), TURN, CALLS, ended(A), ended(B, "refused")) == "call_limit"


def test_a_doomed_run_gets_its_last_words_for_that() -> None:
    warned = (SignalDetected(kind="doom_loop"),)
    second = TurnStarted(turn=2)
    again = ModelReplied(calls=(Call("c", "look"),))
    story = (MESSAGE, started(), TURN, CALLS, *warned, ended(A), ended(B), second, again, *warned)
    assert wrap_up(*story, ended(Call("c", "look"), "refused")) == "doom_loop"


@pytest.mark.parametrize("limit", ["turn_limit", "call_limit", "token_limit", "time_limit", "cost_limit", "doom_loop"])
def test_after_the_last_words_the_run_ends_as_the_limit_and_can_be_continued(limit: EndReason) -> None:
    last = TurnStarted(turn=2, tools=False, wrap_up=limit)
    end = ending(MESSAGE, started(), TURN, CALLS, ended(A), ended(B), last, ModelReplied(text="So far this."))
    assert (end.reason, end.answer, end.can_continue, end.turns) == (limit, "So far this.", True, 1)


@pytest.mark.parametrize("words", [ModelReplied(), ModelReplied(text=" "), ModelFailed(kind="auth", message="no key")])
def test_without_last_words_the_run_ends_with_words_of_ours(words: AnyFact) -> None:
    last = TurnStarted(turn=2, tools=False, wrap_up="turn_limit")
    end = ending(MESSAGE, started(), TURN, CALLS, begun(A), ended(A), ended(B), last, words)
    assert end.reason == "turn_limit"
    assert "turn limit" in end.answer and "1 turns and 1 calls" in end.answer


def test_last_words_are_asked_for_again_when_the_model_is_busy() -> None:
    last = TurnStarted(turn=2, tools=False, wrap_up="turn_limit")
    busy = ModelFailed(kind="overloaded", message="busy", wait=1.0)
    assert step_after(MESSAGE, started(), TURN, CALLS, ended(A), ended(B), last, busy) == AskModel(2, 1.0)


def test_text_only_means_one_turn_without_tools() -> None:
    none = Limits(turns=0)
    assert recorded(step_after(MESSAGE, started(none))) == TurnStarted(turn=1, messages=("m1",), tools=False)
    assert ending(MESSAGE, started(none), TURN, ModelReplied(text="42")).reason == "answered"


def test_text_only_still_sends_back_what_is_empty_or_does_not_fit() -> None:
    none = Limits(turns=0)
    bad = (ModelReplied(text="4x"), SignalDetected(kind="invalid_output"))
    for reply in ((ModelReplied(),), bad):
        fact = recorded(step_after(MESSAGE, started(none), TURN, *reply))
        assert fact == TurnStarted(turn=2, tools=False)


def test_a_limit_of_nothing_still_gives_one_turn() -> None:
    for limits in (Limits(tokens=0), Limits(seconds=0), Limits(cost=0)):
        assert recorded(step_after(MESSAGE, started(limits))) == TurnStarted(turn=1, messages=("m1",))


def test_time_spent_waiting_for_a_person_does_not_count() -> None:
    yes = ApprovalAnswered(call_id="b", decision="allow")
    story = (MESSAGE, started(Limits(seconds=60)), TURN, 10.0, CALLS, ended(A), asked(B), 1000.0, yes)
    assert wrap_up(*story, 40.0, ended(B)) is None
    assert wrap_up(*story, 50.0, ended(B)) == "time_limit"


def test_a_pause_on_the_last_allowed_turn_waits_and_is_not_the_limit() -> None:
    story = (MESSAGE, started(Limits(turns=1)), TURN, CALLS, ended(A), asked(B))
    assert step_after(*story) == Rest(waiting=True)
    yes = ApprovalAnswered(call_id="b", decision="allow")
    assert isinstance(step_after(*story, yes), Work)
    assert wrap_up(*story, yes, ended(B)) == "turn_limit"


# ── calls ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_calls_are_worked_on_in_their_order() -> None:
    step = step_after(MESSAGE, started(), TURN, CALLS)
    assert isinstance(step, Work) and [call.call.id for call in step.calls] == ["a", "b"]
    step = step_after(MESSAGE, started(), TURN, CALLS, ended(A))
    assert isinstance(step, Work) and [call.call.id for call in step.calls] == ["b"]


def test_no_call_overtakes_one_that_is_asked_for() -> None:
    assert step_after(MESSAGE, started(), TURN, CALLS, asked(A)) == Rest(waiting=True)
    step = step_after(MESSAGE, started(), TURN, CALLS, asked(B))
    assert isinstance(step, Work) and [call.call.id for call in step.calls] == ["a"]


def test_waiting_ends_with_the_first_question_that_expires() -> None:
    question = InputRequested(call_id="b", questions=(Question("which?"),), expires_at=50.0)
    story = (MESSAGE, started(), TURN, CALLS, asked(A, 70.0), question)
    assert step_after(*story, now=49.9) == Rest(50.0, waiting=True)
    step = step_after(*story, now=50.0)
    assert step == Record((InputAnswered(call_id="b", answers=(), by="expiry"),), key=build_answer_key("b"))


def test_an_approval_that_expires_is_a_denial_under_the_key_of_an_answer() -> None:
    step = step_after(MESSAGE, started(), TURN, CALLS, asked(A, 70.0), now=70.0)
    assert isinstance(step, Record) and step.key == build_answer_key("a")
    fact = recorded(step)
    assert isinstance(fact, ApprovalAnswered)
    assert (fact.call_id, fact.decision, fact.by, fact.scope) == ("a", "deny", "expiry", "call")


def test_a_started_call_with_side_effects_is_never_run_again() -> None:
    fact = recorded(step_after(MESSAGE, started(), TURN, CALLS, ended(A), begun(B)))
    assert fact == CallFinished(call_id="b", tool="write", status="interrupted", output=OUTCOME_UNKNOWN)
    assert recorded(step_after(MESSAGE, started(), TURN, CALLS, ended(A), begun(B, "destructive"))) == fact


def test_a_started_safe_call_is_run_again_but_not_for_ever() -> None:
    step = step_after(MESSAGE, started(), TURN, CALLS, begun(A, "safe", attempt=2))
    assert isinstance(step, Work) and step.calls[0].call.id == "a"
    fact = recorded(step_after(MESSAGE, started(), TURN, CALLS, begun(A, "safe", attempt=3)))
    assert isinstance(fact, CallFinished) and (fact.call_id, fact.status) == ("a", "interrupted")


def test_a_fatal_call_ends_the_run_once_the_others_are_settled() -> None:
    story = (MESSAGE, started(), TURN, CALLS, ended(A, "error", fatal=True))
    assert isinstance(step_after(*story), Work)
    end = ending(*story, ended(B, "cancelled"))
    assert (end.reason, end.answer, end.error) == ("failed", "I try.", "look: this")


# ── being stopped ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cancel", "error"),
    [
        (CancelRequested(), "cancelled"),
        (CancelRequested(by="ann"), "cancelled by ann"),
        (CancelRequested(by="ann", why="too slow"), "cancelled by ann: too slow"),
        (INTERRUPT, "interrupted by a new message"),
    ],
)
def test_a_stopped_run_settles_its_calls_and_ends_as_cancelled(cancel: AnyFact, error: str) -> None:
    third = Call("c", "look")
    reply = ModelReplied(text="I try.", calls=(A, B, third))
    step = step_after(MESSAGE, started(), TURN, reply, ended(A), begun(B), asked(third), cancel)
    assert isinstance(step, Record)
    running, waiting, end = step.facts
    assert isinstance(running, CallFinished) and isinstance(waiting, CallFinished) and isinstance(end, RunFinished)
    assert (running.call_id, running.status, running.output) == ("b", "interrupted", OUTCOME_UNKNOWN)
    assert (waiting.call_id, waiting.status) == ("c", "cancelled")
    assert (end.reason, end.answer, end.error, end.can_continue) == ("cancelled", "I try.", error, True)


def test_a_run_stopped_while_the_model_spoke_keeps_what_it_had_said() -> None:
    stopped = ModelFailed(kind="cancelled", message="stopped", partial="It is ")
    end = ending(MESSAGE, started(), TURN, stopped, CancelRequested())
    assert (end.reason, end.answer) == ("cancelled", "It is ")


def test_a_run_stopped_before_its_first_turn_ends_too() -> None:
    assert ending(MESSAGE, started(), CancelRequested()).reason == "cancelled"


def test_an_interrupting_message_starts_the_next_run() -> None:
    story = told(MESSAGE, started(), TURN, INTERRUPT)
    state = fold([*story, *told(ending(*story))])
    assert isinstance(recorded(next_step(state, 0.0)), RunStarted)
