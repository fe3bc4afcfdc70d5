"""A client of the agent endpoint and its registry: `/api/agent`."""

import json
from typing import Any

from tests.seeds.conftest import Caller
from tests.seeds.shapes import check_kinds, check_shape

ENDINGS = ("answer_provided", "agent_yielded", "agent_stuck", "task_complete", "max_iterations")
ENDINGS += ("token_budget_exhausted", "wall_time_exceeded", "tool_call_limit_reached")
ENDINGS += ("client_cancelled", "operator_terminated", "system_shutdown")
SUMMARY = {
    "termination": {"reason": ENDINGS, "answer?": str, "confidence?": (float, None)},
    "iterations_completed": int,
    "tool_calls_made": int,
    "tokens_generated": int,
    "wall_time": float,
    "partial_answer": (str, None),
    "can_resume": bool,
    "continuation_token": (str, None),
}
CALL = {"call_id": str, "tool": str}
RESULT = {"status": ("success", "partial_success", "failure", "denied"), "data": str}
EVENTS: dict[str, Any] = {
    "loop_started": {"session_id": str, "config": dict},
    "iteration_started": {"iteration": int},
    "iteration_completed": {"iteration": int, "outcome": str},
    "loop_completed": {"summary": SUMMARY},
    "token_generated": {"token": str},
    "generation_completed": {"content": str, "tokens": int},
    "tool_call_detected": CALL,
    "tool_execution_started": CALL,
    "tool_execution_completed": {"call_id": str, "result": RESULT},
    "tool_approval_required": CALL,
    "meta_signal_detected": {"signal": str},
    "context_compressed": {"strategy": str, "saved_tokens": int},
    "error": {"message": str, "recoverable": bool},
}
SESSION = {
    "name": str,
    "objective": str,
    "status": ("running", "awaiting_approval", "completed", "failed", "cancelled"),
    "tools": [str],
    "iteration": int,
    "max_iterations": int,
    "thoughts": int,
    "tool_calls": int,
    "results": int,
    "errors": int,
}
KINDS: dict[str, Any] = {
    "thought": {"content": str},
    "tool_call": {"id": str, "name": str, "input": dict},
    "tool_result": {"id": str, "output": str, "success": bool},
    "error": {"message": str},
}


async def run_agent(caller: Caller, **body: Any) -> dict[str, list[dict[str, Any]]]:
    """Run the agent. Returns the data of its events by name, each checked."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in await caller.read_stream("POST", "/api/agent/run", body):
        document = json.loads(event["data"])
        assert event["event"] == document["event"]
        check_kinds([{"event": event["event"], **document["data"]}], EVENTS, "event")
        found.setdefault(event["event"], []).append(document["data"])
    assert event["event"] == "loop_completed"
    return found


async def test_a_run_sends_the_thirteen_events_and_ends_after_loop_completed(caller: Caller) -> None:
    events = await run_agent(caller, objective='use calculate {"expression": "6*7"}', autoApprove=["calc*"])
    assert events["loop_started"][0]["config"]["max_iterations"] == 10
    assert events["loop_started"][0]["config"]["max_tool_calls"] == 50
    assert events["loop_started"][0]["config"]["max_tokens"] == 16384
    (done,) = events["tool_execution_completed"]
    assert done["result"]["status"] == "success" and done["result"]["data"] == "42"
    (ending,) = events["loop_completed"]
    assert ending["summary"]["termination"]["reason"] == "answer_provided"
    assert ending["summary"]["termination"]["answer"] == "The tool said: 42"
    failed = await run_agent(caller, objective='use read_file {"path": "none.txt"}', autoApprove=["*"])
    assert failed["tool_execution_completed"][0]["result"]["status"] == "failure"
    denied = await run_agent(caller, objective="use calculate", autoApprove=["*"], forbidden=["calculate"])
    assert denied["tool_execution_completed"][0]["result"]["status"] == "denied"
    stuck = await run_agent(caller, objective="say: I'm stuck and cannot proceed.")
    assert stuck["loop_completed"][0]["summary"]["termination"]["reason"] == "agent_stuck"
    answer = await run_agent(caller, objective="say: I'm stuck and cannot proceed.", detectImplicitSignals=False)
    assert answer["loop_completed"][0]["summary"]["termination"]["reason"] == "answer_provided"
    blank = await caller.call("POST", "/api/agent/run", {"objective": "  "}, 400)
    assert "Objective must not be empty" in blank["error"]["message"]


async def test_the_registry_lists_sessions_and_streams_four_kinds_of_events(caller: Caller) -> None:
    words = "word " * 300
    ran = await run_agent(caller, objective=f"use calculate and say: {words}", autoApprove=["*"], sessionName="Sums")
    session_id = ran["loop_started"][0]["session_id"]
    await run_agent(caller, objective=f"say: {words}")
    listed = await caller.call("GET", "/api/agent/sessions?status=completed&limit=10")
    sessions = listed if isinstance(listed, list) else listed["sessions"]
    check_shape(sessions, [SESSION])
    (summed,) = [session for session in sessions if session["name"] == "Sums"]
    assert "calculate" in summed["tools"] and summed["tool_calls"] == 1 == summed["results"]
    one = await caller.call("GET", f"/api/agent/sessions/{session_id}")
    check_shape(one, {**SESSION, "recent_events": [dict]})
    events = await caller.read_stream("GET", f"/api/agent/sessions/{session_id}/stream")
    assert all("id" in event for event in events), "an event without an id cannot be resumed from"
    assert events[-1]["event"] == "session_ended", "the stream of a session that has ended must say so and close"
    seen = [json.loads(event["data"])["data"] for event in events if event["event"] == "agent_event"]
    check_kinds(seen, KINDS)
    assert [event["type"] for event in seen] == ["thought", "tool_call", "tool_result", "thought"] or [
        event["type"] for event in seen
    ] == ["tool_call", "tool_result", "thought"]
    assert next(event for event in seen if event["type"] == "tool_call")["input"] == {"expression": "6*7"}
    rest = await caller.read_stream(
        "GET", f"/api/agent/sessions/{session_id}/stream", headers={"Last-Event-ID": events[-2]["id"]}
    )
    assert [event["event"] for event in rest] == ["session_ended"]
    long = next(session for session in sessions if session["name"] != "Sums")
    told = await caller.read_stream("GET", f"/api/agent/sessions/{long['session_id']}/stream")
    thoughts = [json.loads(event["data"])["data"] for event in told if event["event"] == "agent_event"]
    assert len(thoughts[0]["content"]) == 503 and thoughts[0]["content"].endswith("...")
