"""Queued messages over HTTP: follow-ups, editing and withdrawing."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from tests.kit.server import OWNER, Client, create_token, serve_script
from tests.kit.sessions import PATIENCE
from treadle.server.agent_runs import follow_run
from treadle.server.guard import Refusal
from treadle.testing import call


async def start_call(client: Client) -> str:
    """Start a run that is in the middle of a call."""
    session_id = await client.session()
    await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "go"})
    await client.wait_for(session_id, "call_started")
    return session_id


async def queue(client: Client, session_id: str, content: str, mode: str = "queue") -> str:
    body = {"content": content, "mode": mode}
    answer = await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", body)
    return answer["message_id"]


async def read_queue(client: Client, session_id: str) -> list[Any]:
    return (await client.json("GET", f"/v1/sessions/{session_id}/state"))["queue"]


async def test_a_queued_message_is_edited_and_another_one_withdrawn_before_the_run_takes_them() -> None:
    async with serve_script(call("wait"), "done", "followed up") as client:
        session_id = await start_call(client)
        first, second = await queue(client, session_id, "left"), await queue(client, session_id, "never mind")
        third = await queue(client, session_id, "then this", "follow_up")
        path = f"/v1/sessions/{session_id}/messages"
        await client.json("PUT", f"{path}/{first}", {"content": "right"}, 204)
        await client.json("DELETE", f"{path}/{second}", status=204)
        await client.json("PUT", f"{path}/{third}", {"content": "then that"}, 204)
        assert await read_queue(client, session_id) == [
            {"id": first, "text": "right", "mode": "queue"},
            {"id": third, "text": "then that", "mode": "follow_up"},
        ]
        client.held.free.set()
        async with asyncio.timeout(PATIENCE):
            done = await client.wait_for(session_id, "run_finished")
            await client.wait_for(session_id, "run_finished", done[-1]["seq"])
        state = await client.json("GET", f"/v1/sessions/{session_id}/state")
        texts = [message["text"] for message in state["messages"]]
        assert texts == ["go", "right", "done", "then that", "followed up"] and state["queue"] == []
        export = await client.request("GET", f"/v1/sessions/{session_id}/export?format=markdown")
        transcript = await export.text()
        assert "then that" in transcript and "never mind" not in transcript and "left" not in transcript


async def test_a_message_that_was_taken_is_a_conflict_with_a_clear_sentence() -> None:
    async with serve_script(call("wait"), "done") as client:
        session_id = await start_call(client)
        taken = next(one["id"] for one in await client.facts(session_id) if one["type"] == "message_received")
        path = f"/v1/sessions/{session_id}/messages"
        problem = await client.problem("PUT", f"{path}/{taken}", {"content": "no"}, 409)
        assert "a run has taken it already" in problem["message"]
        await client.problem("DELETE", f"{path}/{taken}", status=409)
        await client.problem("DELETE", f"{path}/msg_x", status=404)
        await client.problem("PUT", f"{path}/{taken}", {"content": " "}, 422)


async def test_whoever_waits_for_a_withdrawn_message_gets_an_answer() -> None:
    async with serve_script(call("wait"), "done") as client:
        session_id = await start_call(client)
        body = {"content": "then this", "mode": "follow_up"}
        sending = asyncio.create_task(client.json("POST", f"/v1/sessions/{session_id}/messages", body))
        received = await client.wait_for(session_id, "message_received", 2)
        await client.json("DELETE", f"/v1/sessions/{session_id}/messages/{received[-1]['id']}", status=204)
        answer = await asyncio.wait_for(sending, PATIENCE)
        assert (answer["outcome"]["status"], answer["outcome"]["can_continue"]) == ("cancelled", False)
        assert "withdrawn" in answer["outcome"]["error"]


async def test_who_follows_a_held_follow_up_or_a_withdrawn_message_learns_why_there_is_no_answer() -> None:
    async with serve_script(call("wait"), "done") as client:
        session_id = await start_call(client)
        body = {"content": "then this", "mode": "follow_up"}
        sending = asyncio.create_task(client.json("POST", f"/v1/sessions/{session_id}/messages", body))
        received = await client.wait_for(session_id, "message_received", 2)
        await client.json("POST", f"/v1/sessions/{session_id}/cancel")
        answer = await asyncio.wait_for(sending, PATIENCE)
        assert answer["outcome"]["can_continue"] and "ended without an answer" in answer["outcome"]["error"]
        session = await client.app.state.service.runtime.open(session_id)
        posted = next(fact for fact in await session.facts() if fact.seq == received[-1]["seq"])
        await client.json("DELETE", f"/v1/sessions/{session_id}/messages/{posted.id}", status=204)
        with pytest.raises(Refusal, match="was withdrawn before a run took it"):
            _ = [event async for event in follow_run(session, session.follow(posted), posted, nullcontext)]


async def test_only_who_may_send_changes_messages() -> None:
    viewer = create_token("viewer", "view")
    async with serve_script(call("wait"), "done", tokens=(OWNER, viewer)) as client:
        session_id = await start_call(client)
        message_id = await queue(client, session_id, "left")
        path = f"/v1/sessions/{session_id}/messages/{message_id}"
        async with Client(client.base, viewer.value) as other:
            await other.problem("PUT", path, {"content": "x"}, 403)
            await other.problem("DELETE", path, status=403)
        assert [one["text"] for one in await read_queue(client, session_id)] == ["left"]
