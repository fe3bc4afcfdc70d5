"""The next step: each rule of a run, and that every run ends within its limits."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.facts import BEGIN, MESSAGE, RUN, TURN, approval, begin, build_cases, message, new_run, result, start
from tests.kit.simulation import Simulation, check_results, check_runs, check_session
from tests.kit.strategies import LIMITS, build_history, histories
from treadle.engine.fold import fold
from treadle.engine.state import OUTCOME_UNKNOWN
from treadle.engine.steps import AskModel, Record, Rest, Step, Work, build_answer_key, next_step
from treadle.events import (
    TURN_CEILING,
    AnyFact,
    ApprovalAnswered,
    CallFinished,
    CallStarted,
    CancelRequested,
    EndReason,
    InputAnswered,
    InputRequested,
    Limits,
    ModelFailed,
    ModelReplied,
    Question,
    RunFinished,
    RunRequested,
    RunStarted,
    SessionCreated,
    SignalDetected,
    TurnStarted,
)
from treadle.messages import Call, Usage

Story = tuple[AnyFact | float, ...]

INTERRUPT = message("m2", "no, this", interrupt=True)
A, B, C = Call("a", "look"), Call("b", "write"), Call("c", "look")
CALLS = ModelReplied(text="I try.", calls=(A, B))
CALLED = (*BEGIN, CALLS)
DONE = (*CALLED, result(A), result(B))
EMPTY = (ModelReplied(), SignalDetected(kind="empty_reply"))
INVALID = (ModelReplied(text="4x"), SignalDetected(kind="invalid_output"))
TEXT_ONLY = (MESSAGE, new_run(Limits(turns=0)))
BUSY = ModelFailed(kind="overloaded", message="busy", retryable=True, attempt=2, wait=4.0)
BROKEN = ModelFailed(kind="network", message="broke off")
END = RunFinished(run_id="run_1", reason="turn_limit")
STOPPED = ModelFailed(kind="cancelled", message="stopped", partial="It is ")
LAST = TurnStarted(turn=2, tools=False, wrap_up="turn_limit")
YES = ApprovalAnswered(call_id="b", decision="allow")


def step_after(*story: AnyFact | float, now: float | None = None, limits: Limits | None = None) -> Step:
    passed = sum(piece for piece in story if isinstance(piece, float))
    return next_step(fold(build_history(*story)), passed if now is None else now, limits)


def fact_after(*story: AnyFact | float, limits: Limits | None = None) -> AnyFact:
    """Return the only fact that the next step records."""
    step = step_after(*story, limits=limits)
    assert isinstance(step, Record) and len(step.facts) == 1, step
    return step.facts[0]


def wrap_up_after(*story: AnyFact | float) -> EndReason | None:
    """Return the limit that the next turn wraps up for, or None for an ordinary turn."""
    fact = fact_after(*story)
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


# ── the step after a story ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("story", "step"),
    build_cases(
        no_facts=((), Rest()),
        a_new_session=((SessionCreated(session_id="s"),), Rest()),
        a_held_message=((MESSAGE, CancelRequested()), Rest()),
        a_turn=(BEGIN, AskModel(1)),
        a_busy_model=((*BEGIN, 10.0, BUSY), Rest(14.0)),
        a_busy_model_whose_time_came=((*BEGIN, 10.0, BUSY, 4.0), AskModel(3)),
        a_busy_model_at_the_wrap_up=((*DONE, LAST, BUSY), Rest(4.0)),
        an_open_question=((*CALLED, approval(A)), Rest(waiting=True)),
        an_open_question_in_the_last_turn=((*begin(turns=1), CALLS, result(A), approval(B)), Rest(waiting=True)),
    ),
)
def test_a_session_rests_or_asks_the_model(story: Story, step: Step) -> None:
    assert step_after(*story) == step


OWN = Limits(turns=7)


@pytest.mark.parametrize(
    ("story", "fact"),
    build_cases(
        default_limits=((MESSAGE,), new_run()),
        the_sessions_limits=((SessionCreated(session_id="s", limits=OWN), MESSAGE), new_run(OWN)),
        a_requested_run=((RUN, END, RunRequested(trigger="continue", limits=OWN)), new_run(OWN, 2, "continue")),
        an_interrupting_message=((*BEGIN, INTERRUPT, END), new_run(number=2)),
        all_queued_messages=((MESSAGE, INTERRUPT, RUN), TurnStarted(turn=1, messages=("m1", "m2"))),
        a_message_during_a_turn=((*CALLED, message("m3"), result(A), result(B)), TurnStarted(turn=2, messages=("m3",))),
        text_only=(TEXT_ONLY, TurnStarted(turn=1, messages=("m1",), tools=False)),
        an_empty_reply_in_text_only=((*TEXT_ONLY, TURN, ModelReplied()), TurnStarted(turn=2, tools=False)),
        an_invalid_reply_in_text_only=((*TEXT_ONLY, TURN, *INVALID), TurnStarted(turn=2, tools=False)),
        no_tokens=(begin(tokens=1)[:2], TURN),
        no_time=(begin(seconds=1e-9)[:2], TURN),
        no_money=(begin(cost=1e-9)[:2], TURN),
    ),
)
def test_a_message_starts_a_run_and_a_run_starts_a_turn(story: Story, fact: AnyFact) -> None:
    assert fact_after(*story) == fact


def test_a_run_has_the_given_limits() -> None:
    assert fact_after(MESSAGE, limits=OWN) == new_run(OWN)


# ── limits and the wrap-up ─────────────────────────────────────────────────────────────────────────────────


REPLY = ModelReplied(calls=(A,), usage=Usage(50, 5, cost=0.5))
LONG_WAIT = (*begin(seconds=60), 10.0, CALLS, result(A), approval(B), 1000.0, YES)
WARNING, AGAIN = SignalDetected(kind="doom_loop"), ModelReplied(calls=(C,))
MANY_TURNS = (MESSAGE, new_run(Limits(turns=TURN_CEILING)), *[TURN, CALLS, result(A), result(B)] * TURN_CEILING)


@pytest.mark.parametrize(
    ("story", "limit"),
    build_cases(
        turns=((*begin(turns=1), REPLY, result(A)), "turn_limit"),
        tokens=((*begin(tokens=5), REPLY, result(A)), "token_limit"),
        cost=((*begin(cost=0.5), REPLY, result(A)), "cost_limit"),
        time=((*begin(seconds=60), REPLY, 60.0, result(A)), "time_limit"),
        just_below_every_limit=((*begin(turns=2, tokens=6, cost=0.6, seconds=61), REPLY, 60.0, result(A)), None),
        the_ceiling=(MANY_TURNS, "turn_limit"),
        just_below_the_ceiling=(MANY_TURNS[:-4], None),
        a_refused_call=((*CALLED, result(A), result(B, status="refused")), "call_limit"),
        a_doomed_run=(
            (*CALLED, WARNING, *DONE[4:], TurnStarted(turn=2), AGAIN, WARNING, result(C, "", "refused")),
            "doom_loop",
        ),
        a_model_stopped_by_the_time_limit=((*begin(seconds=30), 29.0, STOPPED), "time_limit"),
        a_failure_after_the_time_limit=((*begin(seconds=30), 31.0, BROKEN), "time_limit"),
        a_reply_cut_for_its_length=((*BEGIN, ModelReplied(text="And then", finish="length")), "token_limit"),
        one_empty_reply=((*BEGIN, *EMPTY), None),
        two_empty_replies=((*BEGIN, *EMPTY, TURN, *EMPTY), None),
        two_invalid_answers=((*BEGIN, *INVALID, TURN, *INVALID), None),
        calls_beside_a_stuck_mark=(
            (*BEGIN, ModelReplied(text="Hm.", calls=(A,)), SignalDetected(kind="stuck"), result(A)),
            None,
        ),
        a_long_wait_for_a_person=((*LONG_WAIT, 40.0, result(B)), None),
        a_long_wait_and_the_time_limit=((*LONG_WAIT, 50.0, result(B)), "time_limit"),
        an_answered_question_in_the_last_turn=(
            (*begin(turns=1), CALLS, result(A), approval(B), YES, result(B)),
            "turn_limit",
        ),
    ),
)
def test_a_reached_limit_starts_the_wrap_up(story: Story, limit: EndReason | None) -> None:
    assert wrap_up_after(*story) == limit


@pytest.mark.parametrize("limit", ["turn_limit", "call_limit", "token_limit", "time_limit", "cost_limit", "doom_loop"])
def test_after_the_wrap_up_the_run_ends_with_the_limit_and_can_continue(limit: EndReason) -> None:
    last = TurnStarted(turn=2, tools=False, wrap_up=limit)
    end: Any = fact_after(*DONE, last, ModelReplied(text="So far this."))
    assert (end.reason, end.answer, end.can_continue, end.turns) == (limit, "So far this.", True, 1)


@pytest.mark.parametrize("words", [ModelReplied(), ModelReplied(text=" "), ModelFailed(kind="auth", message="no key")])
def test_without_a_wrap_up_text_the_run_ends_with_a_default_text(words: AnyFact) -> None:
    end: Any = fact_after(*CALLED, start(A), result(A), result(B), LAST, words)
    assert end.reason == "turn_limit"
    assert "turn limit" in end.answer and "1 turns and 1 calls" in end.answer


# ── how a run ends ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_ends_the_run() -> None:
    end = fact_after(*BEGIN, ModelReplied(text="42", usage=Usage(9, 2), confidence=0.9))
    assert end == RunFinished(
        run_id="run_1", reason="answered", answer="42", usage=Usage(9, 2), turns=1, confidence=0.9
    )


@pytest.mark.parametrize(
    ("story", "reason", "answer", "error"),
    build_cases(
        stuck=((ModelReplied(text="Hm."), SignalDetected(kind="stuck")), "stuck", "Hm.", ""),
        yielded=((ModelReplied(text="Hm."), SignalDetected(kind="yielded")), "yielded", "Hm.", ""),
        uncertain=((ModelReplied(text="Hm."), SignalDetected(kind="uncertain")), "answered", "Hm.", ""),
        three_empty_replies=((*EMPTY, TURN, *EMPTY, TURN, ModelReplied(text=" \n")), "stuck", "", "3 empty replies"),
        three_invalid_answers=((*INVALID, TURN, *INVALID, TURN, *INVALID), "failed", "4x", "did not fit"),
        a_final_failure=(
            (ModelFailed(kind="auth", message="no key", partial="It is "),),
            "failed",
            "It is ",
            "auth: no key",
        ),
        a_filtered_reply=((ModelReplied(text="How to", finish="filter"),), "failed", "How to", "filter"),
        a_fatal_call=(
            (CALLS, result(A, "this", "error", fatal=True), result(B, status="cancelled")),
            "failed",
            "I try.",
            "look: this",
        ),
        a_cancelled_reply=((STOPPED, CancelRequested()), "cancelled", "It is ", "cancelled"),
        a_cancelled_turn=((CancelRequested(),), "cancelled", "", "cancelled"),
    ),
)
def test_a_run_ends_for_a_reason(story: Story, reason: str, answer: str, error: str) -> None:
    end = fact_after(*BEGIN, *story)
    assert isinstance(end, RunFinished)
    assert (end.reason, end.answer, end.can_continue) == (reason, answer, reason != "answered")
    assert error in end.error


def test_a_run_cancelled_before_its_first_turn_ends() -> None:
    end = fact_after(MESSAGE, RUN, CancelRequested())
    assert isinstance(end, RunFinished) and end.reason == "cancelled"


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
    reply = ModelReplied(text="I try.", calls=(A, B, C))
    step = step_after(*BEGIN, reply, result(A), start(B), approval(C), cancel)
    assert isinstance(step, Record)
    running, waiting, end = step.facts
    assert isinstance(running, CallFinished) and isinstance(waiting, CallFinished) and isinstance(end, RunFinished)
    assert (running.call_id, running.status, running.output) == ("b", "interrupted", OUTCOME_UNKNOWN)
    assert (waiting.call_id, waiting.status) == ("c", "cancelled")
    assert (end.reason, end.answer, end.error, end.can_continue) == ("cancelled", "I try.", error, True)


# ── calls ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("story", "calls"),
    build_cases(
        in_their_order=((), "ab"),
        not_the_finished_ones=((result(A),), "b"),
        only_those_before_an_open_question=((approval(B),), "a"),
        after_an_answer=((result(A), approval(B), YES), "b"),
        a_safe_call_that_was_interrupted=((start(A, "safe", attempt=2),), "ab"),
        before_a_lost_call_is_closed=((start(A, "safe"), start(B)), "a"),
        also_after_a_fatal_call=((result(A, "this", "error", fatal=True),), "b"),
    ),
)
def test_calls_run_in_their_order_and_after_earlier_questions(story: Story, calls: str) -> None:
    step = step_after(*CALLED, *story)
    assert isinstance(step, Work) and [call.call.id for call in step.calls] == list(calls)


@pytest.mark.parametrize(
    ("call", "first"),
    [(B, start(B)), (B, start(B, "destructive")), (A, start(A, "safe", attempt=3))],
    ids=["caution", "destructive", "safe, for the third time"],
)
def test_an_interrupted_call_that_may_not_run_again_has_an_unknown_outcome(call: Call, first: CallStarted) -> None:
    before = [result(one) for one in (A,) if one is not call]
    assert fact_after(*CALLED, *before, first) == result(call, OUTCOME_UNKNOWN, "interrupted")


def test_the_first_question_that_expires_ends_the_wait() -> None:
    question = InputRequested(call_id="b", questions=(Question("which?"),), expires_at=50.0)
    story = (*CALLED, approval(A, expires_at=70.0), question)
    assert step_after(*story, now=49.9) == Rest(50.0, waiting=True)
    step = step_after(*story, now=50.0)
    assert step == Record((InputAnswered(call_id="b", answers=(), by="expiry"),), key=build_answer_key("b"))


def test_an_expired_approval_is_denied_under_the_key_of_an_answer() -> None:
    step = step_after(*CALLED, approval(A, expires_at=70.0), now=70.0)
    assert isinstance(step, Record) and step.key == build_answer_key("a")
    [fact] = step.facts
    assert isinstance(fact, ApprovalAnswered)
    assert (fact.call_id, fact.decision, fact.by, fact.scope) == ("a", "deny", "expiry", "call")
