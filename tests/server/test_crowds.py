"""Many sessions, watchers and messages at once. Every client sees what the log has."""

import asyncio
from pathlib import Path
from typing import Any

from tests.kit.server import Client, serve_script
from tests.server.worker import fake_model, start_forker

SESSIONS = 200
STEPS = 5
MESSAGES = 100


async def check_watched_session(client: Client, number: int) -> None:
    """Run one session and check that its watcher sees the log and the text of the reply."""
    session_id = await client.session(name=f"session {number}")
    seen: list[dict[str, Any]] = []
    said: list[str] = []
    async with client.stream(f"/v1/sessions/{session_id}/events") as events:
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "go"})
        async for one in events:
            if one.data is None:
                continue
            if one.id:
                seen.append(one.data)
            if one.data["type"] == "text_delta":
                said.append(one.data["text"])
            if one.data["type"] == "approval_requested":
                await client.json("POST", f"/v1/approvals/{session_id}.{one.data['call_id']}", {"approved": True})
            if one.data["type"] == "run_finished":
                break
    assert seen == await client.facts(session_id)
    assert sum(fact["type"] == "call_finished" and fact["status"] == "ok" for fact in seen) == STEPS
    assert "".join(said).strip() == seen[-1]["answer"].strip()


async def test_each_of_many_watchers_sees_the_whole_log(tmp_path: Path) -> None:
    with fake_model() as port, start_forker() as made:
        spec = {"port": port, "model": f"steps-{STEPS}-tok-20-delay-1ms", "store": str(tmp_path / "store.db")}
        base = made.start(**spec, side=str(tmp_path / "side.txt"))
        async with Client(base) as client, asyncio.timeout(500):
            await asyncio.gather(*(check_watched_session(client, number) for number in range(SESSIONS)))


async def test_messages_that_many_send_to_one_session_at_once_are_all_in_one_order(tmp_path: Path) -> None:
    async with serve_script(*["as you say"] * MESSAGES, store=tmp_path / "store.db") as client:
        session_id = await client.session()
        answers = await asyncio.gather(*(client.send(session_id, f"message {n}") for n in range(MESSAGES)))
        facts = await client.facts(session_id)
        messages = [fact for fact in facts if fact["type"] == "message_received"]
        assert {fact["id"] for fact in messages} == {answer["message_id"] for answer in answers}
        assert sorted(fact["parts"][0]["text"] for fact in messages) == sorted(f"message {n}" for n in range(MESSAGES))
        promoted = [one for fact in facts if fact["type"] == "turn_started" for one in fact.get("messages", ())]
        assert promoted == [fact["id"] for fact in messages]
        assert all(answer["outcome"]["status"] == "answered" for answer in answers)
        async with client.stream(f"/v1/sessions/{session_id}/events") as events:
            watched = [(await anext(events)).data for _ in facts]
        assert watched == facts
