"""The loop dialect: thirteen events, in an order that a state machine accepts, for every kind of run."""

from typing import Any

import pytest

from tests.kit import recorded_runs as recordings
from tests.kit.recorded_runs import Scenario, encode, every_scenario, list_finished_ids, select_facts, translate
from treadle.dialects.loop_events import EVENT_NAMES, LoopDialect
from treadle.events import Event, Limits, ModelReplied, RunFinished, RunStarted, TurnStarted

FIELDS = {
    "loop_started": {"session_id", "config"},
    "iteration_started": {"iteration"},
    "iteration_completed": {"iteration", "outcome"},
    "loop_completed": {"summary"},
    "token_generated": {"token"},
    "generation_completed": {"content", "tokens"},
    "tool_call_detected": {"call_id", "tool"},
    "tool_execution_started": {"call_id", "tool"},
    "tool_execution_completed": {"call_id", "result"},
    "tool_approval_required": {"call_id", "tool"},
    "meta_signal_detected": {"signal"},
    "context_compressed": {"strategy", "saved_tokens"},
    "error": {"message", "recoverable"},
}
SUMMARY = {"termination", "iterations_completed", "tool_calls_made", "tokens_generated", "wall_time"}
SUMMARY |= {"partial_answer", "can_resume", "continuation_token"}


def accept(sent: list[dict[str, Any]]) -> None:
    """Check the order of the events."""
    state, detected, completed = "before", set[str](), set[str]()
    iteration = 0
    for one in sent:
        name, data = one["event"], one["data"]
        match state, name:
            case "before" | "over", "loop_started":
                state, iteration, detected, completed = "between", 0, set(), set()
            case "between", "iteration_started":
                assert data["iteration"] >= iteration
                state, iteration = "inside", data["iteration"]
            case "inside", "token_generated" | "meta_signal_detected" | "context_compressed":
                pass
            case "inside", "error":
                assert data["recoverable"]
            case "inside", "generation_completed":
                state = "replied"
            case "replied", "meta_signal_detected" | "context_compressed":
                pass
            case "replied", "tool_call_detected":
                assert data["call_id"] not in detected
                detected.add(data["call_id"])
            case "replied", "tool_approval_required" | "tool_execution_started":
                assert data["call_id"] in detected - completed
            case "replied", "tool_execution_completed":
                assert data["call_id"] in detected - completed
                assert set(data["result"]) == {"status", "data", "treadle_status"}
                assert data["result"]["status"] in ("success", "partial_success", "failure", "denied")
                completed.add(data["call_id"])
            case "replied" | "inside", "iteration_completed":
                assert data["iteration"] == iteration
                assert detected == completed or data["outcome"] == "interrupted"
                state = "between"
            case "between", "error":
                assert not data["recoverable"]
                state = "failed"
            case "between" | "failed", "loop_completed":
                state = "over"
            case _:
                raise AssertionError(f"{name} in state {state}")
    assert state == "over"


@every_scenario
async def test_every_run_is_sent_in_the_promised_events_fields_and_order_live_and_later(scenario: Scenario) -> None:
    events = await scenario()
    sent, later = translate(LoopDialect(), events), translate(LoopDialect(), select_facts(events))
    accept(sent)
    accept(later)
    assert [one for one in sent if one["event"] != "token_generated"] == later
    assert set(EVENT_NAMES.values()) == set(FIELDS) and len(EVENT_NAMES) == 13
    done = [one["data"]["call_id"] for one in sent if one["event"] == "tool_execution_completed"]
    assert done == list_finished_ids(events)
    for one in sent:
        assert set(one) == {"event", "data"} and FIELDS[one["event"]] <= set(one["data"])
    assert all(set(one["data"]["summary"]) == SUMMARY for one in sent if one["event"] == "loop_completed")


@pytest.mark.parametrize(
    ("name", "kind", "reason", "answer"),
    [
        ("a_plain_answer", "natural", "answer_provided", {"answer": "Hello\nthere", "confidence": None}),
        ("an_answer_with_confidence", "natural", "answer_provided", {"answer": "42", "confidence": 0.9}),
        ("a_denied_call", "natural", "answer_provided", {"answer": "as you say", "confidence": None}),
        ("yielding", "natural", "agent_yielded", {}),
        ("being_stuck", "natural", "agent_stuck", {}),
        ("a_turn_limit", "resource", "max_iterations", {}),
        ("a_call_limit", "resource", "tool_call_limit_reached", {}),
        ("a_token_limit", "resource", "token_budget_exhausted", {}),
        ("a_cancelled_call", "external", "operator_terminated", {}),
        ("a_failure", "error", "failed", {}),
    ],
)
async def test_the_summary_says_how_the_loop_ended(name: str, kind: str, reason: str, answer: dict[str, Any]) -> None:
    events = await getattr(recordings, name)()
    summary = translate(LoopDialect(), events)[-1]["data"]["summary"]
    termination = summary["termination"]
    assert (termination["kind"], termination["reason"]) == (kind, reason)
    assert {field: termination[field] for field in ("answer", "confidence") if field in termination} == answer
    answered = reason == "answer_provided"
    assert summary["can_resume"] is not answered
    assert (summary["continuation_token"] is None) is answered
    assert (summary["partial_answer"] is None) or not answered


def test_a_run_that_ends_without_an_answer_is_task_complete() -> None:
    events: list[Event] = [
        RunStarted(run_id="run_1", limits=Limits(), seq=1, at=10.0),
        TurnStarted(turn=1, seq=2, at=10.0),
        ModelReplied(seq=3, at=11.5),
        RunFinished(run_id="run_1", reason="answered", turns=1, seq=4, at=12.5),
    ]
    sent = translate(LoopDialect(), events)
    accept(sent)
    summary = sent[-1]["data"]["summary"]
    assert summary["termination"]["reason"] == "task_complete"
    assert (summary["wall_time"], summary["iterations_completed"], summary["tool_calls_made"]) == (2.5, 1, 0)


@every_scenario
async def test_a_stream_that_a_shutdown_cuts_short_still_has_an_end(scenario: Scenario) -> None:
    events = await scenario()
    first = next(place for place, event in enumerate(events) if isinstance(event, RunStarted))
    for cut in range(first + 1, len(events)):
        dialect = LoopDialect()
        sent = translate(dialect, events[:cut])
        if sent[-1]["event"] == "loop_completed":
            continue
        sent += encode(dialect.end_for_shutdown())
        accept(sent)
        summary = sent[-1]["data"]["summary"]
        assert set(summary) == SUMMARY and summary["can_resume"]
        assert summary["termination"]["reason"] == "system_shutdown"


async def test_a_question_has_what_would_run_and_when_it_expires() -> None:
    sent = translate(LoopDialect(), await recordings.an_approved_call())
    asked = next(one["data"] for one in sent if one["event"] == "tool_approval_required")
    assert asked["tool"] == "drop" and asked["arguments"] == {"table": "users"}
    assert asked["expires_at"] > 0 and asked["safety"] == "destructive"
