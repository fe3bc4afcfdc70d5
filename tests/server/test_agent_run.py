"""`/api/agent`: runs as streams of loop events, approvals, continuing, and the registry."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.dialects.test_loop_events import accept
from tests.kit.server import OWNER, Client, SentEvent, listen, read_until, serve_agents, serve_script
from tests.kit.sessions import PATIENCE, SteppingClock, Store, Tables, build_agent, file_store, note
from treadle import Agent, Limits, Runtime
from treadle.models.default_model import DefaultModel
from treadle.server.app import create_app
from treadle.server.config import ServerConfig
from treadle.testing import call

store = file_store


async def run_objective(client: Client, **fields: Any) -> list[dict[str, Any]]:
    """Run an objective and read all its events."""
    async with client.stream("/api/agent/run", {"objective": "go", **fields}) as events:
        seen: list[dict[str, Any]] = []
        async for one in events:
            if one.comment:
                continue
            assert one.event == one.data["event"]
            seen.append(one.data)
    return seen


@asynccontextmanager
async def ask_for_approval(client: Client) -> AsyncIterator[tuple[str, dict[str, Any], AsyncIterator[SentEvent]]]:
    """Run an objective until an approval is required: its session, the question, and the events to come."""
    async with client.stream("/api/agent/run", {"objective": "go"}) as events:
        (first, *_, asked) = await read_until(events, event="tool_approval_required")
        yield first["data"]["session_id"], asked["data"], events


def select_data(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events if event["event"] == name]


async def test_a_run_is_streamed_in_order_and_ends_with_its_summary() -> None:
    async with serve_script([call("note", text="a"), call("note", text="b")], "all noted") as client:
        events = await run_objective(client, autoApprove=["note"], systemPrompt="be brief", sessionName="Notes")
        accept(events)
        summary = events[-1]["data"]["summary"]
        assert summary["termination"]["answer"] == "all noted" and summary["tool_calls_made"] == 2
        assert "".join(one["token"] for one in select_data(events, "token_generated")) == "all noted"
        assert client.model.requests[0].system == "be brief"
        config = select_data(events, "loop_started")[0]["config"]
        assert (config["max_iterations"], config["max_tool_calls"], config["max_tokens"]) == (10, 50, 16384)
        assert config["auto_approve"] == ["note"]


async def test_a_blank_objective_is_refused() -> None:
    async with serve_script() as client:
        for objective in ("", "   ", "\n\t"):
            problem = await client.problem("POST", "/api/agent/run", {"objective": objective})
            assert problem["message"] == "Objective must not be empty"
        await client.problem("POST", "/api/agent/run", {}, 422)


async def test_without_a_model_it_is_503() -> None:
    async with serve_script() as client:
        await client.json("POST", "/v1/models/unload", {"model": "scripted"})
        problem = await client.problem("POST", "/api/agent/run", {"objective": "go"}, 503)
        assert problem["message"] == "No model loaded. Load a model before running the agent."
        await client.load_model("scripted")
    unreachable = DefaultModel(base_url="http://127.0.0.1:9/v1")
    for agents in ((), (Agent(unreachable),)):
        async with serve_agents(*agents) as client:
            await client.problem("POST", "/api/agent/run", {"objective": "go"}, 503)


async def test_every_tool_is_asked_for_and_the_answers_have_their_statuses() -> None:
    async with serve_script(call("note", text="a"), call("note", text="b"), "noted") as client:
        async with ask_for_approval(client) as (session_id, asked, events):
            call_id = asked["call_id"]
            assert asked["tool"] == "note" and asked["arguments"] == {"text": "a"}
            approve = f"/api/agent/{session_id}/approve"
            await client.problem("POST", approve, {"call_id": "nope", "decision": "approve"}, 404)
            await client.problem("POST", "/api/agent/nope/approve", {"call_id": call_id, "decision": "deny"}, 404)
            assert (await client.json("GET", f"/api/agent/sessions/{session_id}"))["status"] == "awaiting_approval"
            answer = {"call_id": call_id, "decision": "approve_always", "scope": "this_tool"}
            await client.json("POST", approve, answer)
            await client.problem("POST", approve, answer, 409)
            rest = await read_until(events, event="loop_completed")
        assert (
            not select_data(rest, "tool_approval_required") and len(select_data(rest, "tool_execution_completed")) == 2
        )


async def test_a_denial_reaches_the_model() -> None:
    async with serve_script(call("note", text="a"), "then not") as client:
        async with ask_for_approval(client) as (session_id, asked, events):
            body = {"callId": asked["call_id"], "decision": "deny", "comment": "not now"}
            await client.json("POST", f"/api/agent/{session_id}/approve", body)
            rest = await read_until(events, event="loop_completed")
        (result,) = select_data(rest, "tool_execution_completed")
        assert result["result"]["status"] == "denied" and "not now" in result["result"]["data"]


async def test_an_approval_that_nobody_answers_expires_and_is_denied() -> None:
    clock = SteppingClock()
    async with serve_script(call("drop", table="t"), "nobody said yes", clock=clock) as client:
        async with ask_for_approval(client) as (session_id, asked, events):
            assert asked["expires_at"] == pytest.approx(clock.now() + 300)
            clock.step(301)
            body = {"call_id": asked["call_id"], "decision": "approve"}
            await client.problem("POST", f"/api/agent/{session_id}/approve", body, 410)
            rest = await read_until(events, event="loop_completed")
        (result,) = select_data(rest, "tool_execution_completed")
        assert result["result"]["status"] == "denied" and not client.tables.done
        await client.problem("POST", f"/api/agent/{session_id}/approve", body, 410)


async def test_a_continuation_token_works_once() -> None:
    async with serve_script(call("note", text="a"), "so far", "finished") as client:
        events = await run_objective(client, maxIterations=1, autoApprove=["*"])
        summary = events[-1]["data"]["summary"]
        assert summary["termination"]["reason"] == "max_iterations" and summary["can_resume"]
        assert summary["partial_answer"] == "so far"
        session_id, token = events[0]["data"]["session_id"], summary["continuation_token"]
        path = f"/api/agent/{session_id}/continue"
        await client.problem("POST", path, {"continuation_token": "wrong"}, 409)
        async with client.stream(path, {"continuation_token": token}) as more:
            rest = await read_until(more, event="loop_completed")
        accept(rest)
        assert rest[-1]["data"]["summary"]["termination"]["answer"] == "finished"
        await client.problem("POST", path, {"continuation_token": token}, 409)


async def test_a_limit_is_not_listed_as_completed_and_the_run_continues_without_a_token_and_a_body() -> None:
    async with serve_script(call("note", text="a"), "so far", "finished") as client:
        await run_objective(client, maxIterations=1, autoApprove=["*"])
        (line,) = (await client.json("GET", "/api/agent/sessions"))["sessions"]
        assert (line["status"], line["reason"]) == ("failed", "turn_limit")
        async with client.request("POST", f"/api/agent/{line['session_id']}/continue") as answer:
            assert answer.status == 200 and "finished" in await answer.text()


async def test_a_run_continues_without_its_client_and_can_be_cancelled() -> None:
    async with serve_script(call("wait"), "never") as client:
        async with client.stream("/api/agent/run", {"objective": "go", "autoApprove": ["*"]}) as events:
            (first, *_) = await read_until(events, event="tool_execution_started")
        session_id = first["data"]["session_id"]
        running = await client.json("GET", "/api/agent/sessions?status=running")
        assert [line["session_id"] for line in running["sessions"]] == [session_id]
        path = f"/api/agent/{session_id}/cancel"
        assert (await client.json("POST", path, {"by": "operator"}))["outcome"]["reason"] == "cancelled"
        detail = await client.json("GET", f"/api/agent/sessions/{session_id}")
        assert detail["status"] == "cancelled" and (detail["iteration"], detail["max_iterations"]) == (1, 10)
        told = await client.json("GET", f"/v1/sessions/{session_id}/events?follow=false&dialect=loop")
        assert told[-1]["data"]["summary"]["termination"]["reason"] == "operator_terminated"


async def test_the_registry_counts_what_happened_and_is_paged_and_filtered_by_status() -> None:
    script = [[call("note", text="a"), call("fly")], "1", "<yield>2</yield>", "<stuck>3</stuck>", "4", "5"]
    async with serve_script(*script) as client:
        for number in range(5):
            await run_objective(client, objective=f"job {number}", autoApprove=["*"], sessionName="Notes")
        path = "/api/agent/sessions?status=completed&limit=2&cursor="
        pages = [await client.json("GET", path)]
        while pages[-1]["cursor"]:
            pages.append(await client.json("GET", path + pages[-1]["cursor"]))
        lines = [line for page in pages for line in page["sessions"]]
        assert [line["objective"] for line in lines] == ["job 4", "job 3", "job 1", "job 0"]
        first = lines[-1]
        assert (first["name"], first["status"], first["thoughts"]) == ("Notes", "completed", 1)
        assert (first["tool_calls"], first["results"], first["errors"]) == (2, 2, 1)
        failed = await client.json("GET", "/api/agent/sessions?status=failed")
        assert [(line["objective"], line["reason"]) for line in failed["sessions"]] == [("job 2", "stuck")]
        await client.problem("GET", "/api/agent/sessions?status=odd", status=422)


async def test_an_approval_that_was_asked_for_before_a_restart_still_expires(store: Store) -> None:
    made, clock = Tables(), store.use_stepping_clock()
    agent, _ = build_agent(call("drop", table="t"), tools=made.tools, clock=clock)
    async with serve_agents(agent, store=store.open()) as client, ask_for_approval(client) as (session_id, _, _):
        pass
    clock.step(301)
    again, _ = build_agent("nobody said yes", tools=made.tools, clock=clock)
    async with serve_agents(again, store=store.open()) as client:
        facts = await client.wait_for(session_id, "run_finished")
    answered = [(fact["decision"], fact["by"]) for fact in facts if fact["type"] == "approval_answered"]
    assert answered == [("deny", "expiry")]
    assert facts[-1]["answer"] == "nobody said yes" and not made.done


async def test_all_sessions_can_be_watched_at_once_and_one_from_its_beginning() -> None:
    async with serve_script("one", "two") as client:
        async with client.stream("/api/agent/sessions/stream") as events:
            await anext(events)
            runs = await asyncio.gather(run_objective(client), run_objective(client))
            ids = {events[0]["data"]["session_id"] for events in runs}
            seen = [*await read_until(events, event="session_ended"), *await read_until(events, event="session_ended")]
        for session_id in ids:
            names = [one["event"] for one in seen if one["data"]["session_id"] == session_id]
            assert names[0] == "session_started" and names[-1] == "session_ended"
            assert "session_updated" in names and "agent_event" in names
        async with client.stream(f"/v1/sessions/{ids.pop()}/events?dialect=loop") as events:
            accept(await read_until(events, event="loop_completed"))


async def test_the_live_registry_knows_sessions_that_are_older_than_its_watcher_and_says_what_waits() -> None:
    async with serve_script("one", call("drop", table="t"), "so far", limits=Limits(turns=1)) as client:
        session_id = await client.session()
        await client.send(session_id, "first")
        async with client.stream("/api/agent/sessions/stream") as events:
            await anext(events)
            sending = asyncio.create_task(client.send(session_id, "second"))
            seen = await read_until(events, event="session_updated")
            while seen[-1]["data"].get("status") != "awaiting_approval":
                seen += await read_until(events, event="session_updated")
            await client.answer_approval()
            seen += await read_until(events, event="session_ended")
            await sending
        assert {one["data"]["session_id"] for one in seen} == {session_id}
        assert (seen[-1]["data"]["status"], seen[-1]["data"]["reason"]) == ("failed", "turn_limit")
        async with client.stream(f"/api/agent/{session_id}/continue", {}) as more:
            await read_until(more, event="loop_started")


async def test_who_watches_a_loop_comes_back_with_the_last_id_and_gets_the_rest() -> None:
    async with serve_script(call("note", text="a"), "done") as client:
        session_id = (await run_objective(client, autoApprove=["*"]))[0]["data"]["session_id"]
        path = f"/v1/sessions/{session_id}/events?dialect=loop"
        whole: list[tuple[str, str]] = []
        async with client.stream(path) as events:
            async for one in events:
                whole.append((one.id, one.text))
                if one.event == "loop_completed":
                    break
        for place, (last, _) in enumerate(whole):
            if last and place + 1 < len(whole):
                async with client.stream(path, headers={"last-event-id": last}) as events:
                    rest = [await anext(events) for _ in whole[place + 1 :]]
                assert [(one.id, one.text) for one in rest] == whole[place + 1 :]
        await client.problem("GET", path, headers={"last-event-id": "x"})


async def test_a_shutdown_ends_the_stream_with_a_summary_that_says_so() -> None:
    async with serve_script(call("wait"), "never") as client:
        async with client.stream("/api/agent/run", {"objective": "go", "autoApprove": ["*"]}) as events:
            seen = await read_until(events, event="tool_execution_started")
            client.app.state.service.drain()
            seen += await read_until(events, event="loop_completed")
        accept(seen)
        summary = seen[-1]["data"]["summary"]
        assert (summary["termination"]["kind"], summary["termination"]["reason"]) == ("external", "system_shutdown")
        assert (summary["iterations_completed"], summary["tool_calls_made"], summary["can_resume"]) == (0, 1, True)
        assert not any(fact["type"] == "run_finished" for fact in await client.facts(seen[0]["data"]["session_id"]))
        client.held.free.set()


async def test_a_server_keeps_the_gate_of_its_runtime() -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def gate(question: Any) -> None:
        asked.put_nowait(question.tool)

    agent, _ = build_agent(call("note", text="a"), "done", tools=[note])
    runtime = Runtime(":memory:", [agent])
    runtime.gate = gate
    app = create_app(runtime, ServerConfig(tokens=(OWNER,)))
    async with listen(app) as base, Client(base) as client, ask_for_approval(client) as (session_id, question, events):
        assert await asyncio.wait_for(asked.get(), PATIENCE) == "note"
        body = {"call_id": question["call_id"], "decision": "approve"}
        await client.json("POST", f"/api/agent/{session_id}/approve", body)
        await read_until(events, event="loop_completed")
    assert asked.empty()


async def test_implicit_signals_are_detected_and_can_be_switched_off_for_a_run() -> None:
    async with serve_script("I'm stuck and cannot proceed.", "I'm stuck and cannot proceed.") as client:
        events = await run_objective(client)
        assert [one["signal"] for one in select_data(events, "meta_signal_detected")] == ["stuck"]
        assert events[-1]["data"]["summary"]["termination"]["reason"] == "agent_stuck"
        events = await run_objective(client, detectImplicitSignals=False)
        assert not select_data(events, "meta_signal_detected")
        assert events[-1]["data"]["summary"]["termination"]["reason"] == "answer_provided"


async def test_a_request_cannot_switch_on_implicit_signals_that_the_operator_switched_off() -> None:
    async with serve_script("I'm stuck.", limits=Limits(implicit_signals=False)) as client:
        events = await run_objective(client, detectImplicitSignals=True)
        assert events[-1]["data"]["summary"]["termination"]["reason"] == "answer_provided"
