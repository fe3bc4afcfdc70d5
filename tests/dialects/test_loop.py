"""The loop dialect: thirteen events, in an order that a state machine accepts, for every kind of run."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.dialects import recordings
from tests.dialects.recordings import SCENARIOS, finished_ids, stored
from treadle.dialects.base import encode
from treadle.dialects.loop import NAMES, LoopDialect
from treadle.events import Event

Scenario = Callable[[], Awaitable[list[Event]]]
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)


def told(events: list[Event]) -> list[dict[str, Any]]:
    dialect = LoopDialect()
    return [json.loads(encode(frame)) for event in events for frame in dialect.feed(event)]


def accept(sent: list[dict[str, Any]]) -> None:
    """The order in which the thirteen may come."""
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
                assert set(data["result"]) == {"status", "data"}
                completed.add(data["call_id"])
            case "replied" | "inside", "iteration_completed":
                assert data["iteration"] == iteration and detected == completed
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
async def test_every_run_is_told_in_an_order_that_the_state_machine_accepts(scenario: Scenario) -> None:
    events = await scenario()
    accept(told(events))
    accept(told(stored(events)))


@every_scenario
async def test_every_result_is_told_once_and_only_the_thirteen_names_are_used(scenario: Scenario) -> None:
    events = await scenario()
    sent = told(events)
    assert {one["event"] for one in sent} <= set(NAMES.values()) and len(NAMES) == 13
    done = [one["data"]["call_id"] for one in sent if one["event"] == "tool_execution_completed"]
    assert done == finished_ids(events)
    live = [one for one in sent if one["event"] != "token_generated"]
    assert live == told(stored(events))


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("a_plain_answer", "natural", "answer_provided"),
        ("an_answer_with_confidence", "natural", "answer_provided"),
        ("yielding", "natural", "agent_yielded"),
        ("being_stuck", "natural", "agent_stuck"),
        ("a_turn_limit", "resource", "max_iterations"),
        ("a_call_limit", "resource", "tool_call_limit_reached"),
        ("a_token_limit", "resource", "token_budget_exhausted"),
        ("a_cancelled_call", "external", "operator_terminated"),
        ("a_failure", "error", "failed"),
    ],
)
async def test_the_summary_says_how_the_loop_ended(name: str, kind: str, reason: str) -> None:
    events = await getattr(recordings, name)()
    summary = told(events)[-1]["data"]["summary"]
    assert (summary["termination"]["kind"], summary["termination"]["reason"]) == (kind, reason)
    answered = reason == "answer_provided"
    assert summary["can_resume"] is not answered
    assert (summary["continuation_token"] is None) is answered
    assert (summary["partial_answer"] is None) or not answered


async def test_the_answer_and_its_confidence_are_in_the_summary() -> None:
    summary = told(await recordings.an_answer_with_confidence())[-1]["data"]["summary"]
    assert summary["termination"]["answer"] == "42"
    assert summary["termination"]["confidence"] == 0.9
    assert summary["iterations_completed"] == 1 and summary["tool_calls_made"] == 0


async def test_the_first_event_has_the_session_and_its_limits() -> None:
    started = told(await recordings.a_turn_limit())[0]
    assert started["event"] == "loop_started"
    assert len(started["data"]["session_id"]) == 32
    assert started["data"]["config"]["max_iterations"] == 1


async def test_a_question_has_what_would_run_and_when_it_expires() -> None:
    sent = told(await recordings.an_approved_call())
    asked = next(one["data"] for one in sent if one["event"] == "tool_approval_required")
    assert asked["tool"] == "drop" and asked["arguments"] == {"table": "users"}
    assert asked["expires_at"] > 0 and asked["safety"] == "destructive"


async def test_a_denial_is_told_as_a_result() -> None:
    sent = told(await recordings.a_denied_call())
    result = next(one["data"]["result"] for one in sent if one["event"] == "tool_execution_completed")
    assert result["status"] == "denied" and "not today" in result["data"]
    assert sent[-1]["data"]["summary"]["termination"]["reason"] == "answer_provided"
