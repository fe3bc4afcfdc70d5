"""An overloaded provider behind a server process: the wait is shown, cut short, cancelled, and outlives the process."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import status
from tests.kit.serve_process import start_server
from tests.kit.server import Client
from tests.kit.sessions import PATIENCE
from treadle.messages import Reply

DONE = Reply(text="At last.")
PARKED = status(429, "slow down", retry_after="300")


async def post_message(client: Client) -> str:
    """Send a message without waiting. Returns the session."""
    session_id = await client.session()
    await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "hi"})
    return session_id


async def wait_for(client: Client, session_id: str, key: str, wanted: Any = None) -> Any:
    """Wait until a session shows a value under a key, and return the session."""
    async with asyncio.timeout(PATIENCE):
        while True:
            shown = await client.json("GET", f"/v1/sessions/{session_id}")
            if shown[key] == wanted if wanted is not None else shown[key]:
                return shown
            await asyncio.sleep(0.02)


async def test_a_busy_provider_is_waited_out_and_each_attempt_is_an_event(tmp_path: Path) -> None:
    busy = status(429, "slow down", retry_after="1")
    async with (
        StrictChat([busy, busy, DONE]) as provider,
        start_server(tmp_path, provider) as (base, token),
        Client(base, token) as client,
    ):
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}"
        answer = await client.json("POST", f"{path}/messages", {"content": "hi"})
        assert answer["reply"] == "At last."
        facts = await client.json("GET", f"{path}/events?follow=false")
        failed = [fact for fact in facts if fact["type"] == "model_failed"]
        assert [(one.get("attempt", 1), one["wait"], one["status"]) for one in failed] == [(1, 1.0, 429), (2, 1.0, 429)]
        frames = await client.json("GET", f"{path}/events?follow=false&dialect=frames")
        assert [frame["wait"] for frame in frames if frame["type"] == "retry"] == [1.0, 1.0]


async def test_a_parked_run_is_shown_retried_and_cancelled(tmp_path: Path) -> None:
    async with (
        StrictChat([PARKED, PARKED, DONE]) as provider,
        start_server(tmp_path, provider) as (base, token),
        Client(base, token) as client,
    ):
        first, second = await post_message(client), await post_message(client)
        for session_id in (first, second):
            shown = await wait_for(client, session_id, "retry_at")
            assert shown["status"] == "running" and "slow down" in shown["retry_reason"]
            assert 250 < shown["retry_at"] - time.time() <= 300
        async with asyncio.timeout(PATIENCE):
            while True:
                listed = (await client.json("GET", "/v1/sessions"))["sessions"]
                if all(one["retry_at"] for one in listed):
                    break
        assert await client.json("POST", f"/v1/sessions/{first}/retry") == {"resolved": True}
        shown = await wait_for(client, first, "status", "answered")
        assert (shown["retry_at"], shown["retry_reason"]) == (None, "")
        problem = await client.problem("POST", f"/v1/sessions/{first}/retry", status=409)
        assert "does not wait for its provider" in problem["message"]
        cancelled = await client.json("POST", f"/v1/sessions/{second}/cancel")
        assert cancelled["outcome"]["reason"] == "cancelled"


async def test_another_server_takes_up_a_parked_run_in_time(tmp_path: Path) -> None:
    soon = status(429, "slow down", retry_after="61")
    async with StrictChat([soon, DONE]) as provider:
        async with start_server(tmp_path, provider) as (base, token), Client(base, token) as client:
            session_id = await post_message(client)
            before = await wait_for(client, session_id, "retry_at")
        async with start_server(tmp_path, provider) as (base, token), Client(base, token) as client:
            after = await client.json("GET", f"/v1/sessions/{session_id}")
            assert (after["retry_at"], after["status"]) == (
                pytest.approx(before["retry_at"], rel=0, abs=0.01),
                "running",
            )
            await client.json("POST", f"/v1/sessions/{session_id}/retry")
            shown = await wait_for(client, session_id, "status", "answered")
            assert shown["messages"][-1]["content"] == "At last."
