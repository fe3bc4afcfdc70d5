"""The question of a running call over HTTP: it is listed, answered by each route, and gone when its call has ended."""

import asyncio
from typing import Any

import pytest

from tests.kit.server import serve_script
from treadle import ToolContext, tool
from treadle.testing import call


@tool
async def fetch(host: str, context: ToolContext) -> str:
    """Reach a host."""
    arguments = {"host": host, "port": 443, "command": "pip install x"}
    answer = await context.services.request_permission("network", arguments, f"`pip install x` wants {host}")
    return f"{answer.is_allowed} {answer.why}"


SCRIPT = (call("fetch", id="a", host="packages.example.org"), "done")


async def read_result(client: Any, session_id: str) -> str:
    (*_, finished) = await client.wait_for(session_id, "call_finished")
    return str(finished["output"])


@pytest.mark.parametrize("route", ["session", "approvals"])
async def test_the_question_is_listed_and_answered(route: str) -> None:
    async with serve_script(*SCRIPT, tools=[fetch]) as client:
        session_id = await client.session()
        sending = asyncio.create_task(client.send(session_id, "go"))
        (*_, asked) = await client.wait_for(session_id, "approval_requested")
        assert asked["during"] == "a" and asked["expires_at"]
        (pending,) = await client.json("GET", "/v1/approvals")
        assert (pending["tool"], pending["during"], pending["rule"]) == (
            "network",
            "a",
            "network(packages.example.org)",
        )
        assert (await client.json("GET", f"/v1/sessions/{session_id}"))["status"] == "running"
        if route == "session":
            path, body = f"/v1/sessions/{session_id}/approvals/{asked['call_id']}", {"decision": "allow"}
        else:
            path, body = f"/v1/approvals/{pending['id']}", {"approved": True}
        await client.json("POST", path, {**body, "digest": asked["digest"]})
        assert (await sending)["reply"] == "done"
        assert "True" in await read_result(client, session_id)
        await client.problem("POST", path, body, 409)
        assert await client.json("GET", "/v1/approvals") == []


async def test_cancelling_closes_the_question() -> None:
    async with serve_script(*SCRIPT, tools=[fetch]) as client:
        session_id = await client.session()
        sending = asyncio.create_task(client.send(session_id, "go"))
        (*_, asked) = await client.wait_for(session_id, "approval_requested")
        await client.json("POST", f"/v1/sessions/{session_id}/cancel", {})
        await sending
        assert await client.json("GET", "/v1/approvals") == []
        path = f"/v1/sessions/{session_id}/approvals/{asked['call_id']}"
        await client.problem("POST", path, {"decision": "allow"}, 409)


async def test_the_loop_stream_shows_the_question_between_start_and_end_of_its_call() -> None:
    async with serve_script(*SCRIPT, tools=[fetch]) as client:
        names: list[str] = []
        body = {"objective": "go", "autoApprove": ["fetch"]}
        async with client.stream("/api/agent/run", body) as events:
            async for event in events:
                names.append(event.event)
                if event.event == "tool_approval_required":
                    data = event.data["data"]
                    assert data["tool"] == "network" and data["arguments"]["host"] == "packages.example.org"
                    await client.answer_approval(approved=False)
                if event.event == "loop_completed":
                    break
        order = [name for name in names if name.startswith("tool_")]
        assert order == [
            "tool_call_detected",
            "tool_execution_started",
            "tool_approval_required",
            "tool_execution_completed",
        ]


async def test_auto_approve_names_hosts_too() -> None:
    async with serve_script(*SCRIPT, tools=[fetch]) as client:
        session_id = await client.session(approve=["fetch", "network(packages.example.org)"])
        assert (await client.send(session_id, "go"))["reply"] == "done"
        assert "True" in await read_result(client, session_id)
