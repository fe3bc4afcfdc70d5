"""One reply of a model cannot hold up a server: others are answered while it is judged."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.serve_process import start_server
from tests.kit.server import Client
from treadle.messages import Reply
from treadle.testing import call


@pytest.mark.parametrize("command", ["env -i " * 14_000 + "sh -c ls", "?)" * 45_000], ids=["wrappers", "errors"])
async def test_a_command_made_to_be_slow_to_read_is_asked_and_others_are_served_meanwhile(
    tmp_path: Path, command: str
) -> None:
    reply = Reply(calls=(call("shell", command=command),))
    async with (
        StrictChat([reply, Reply(text="done")]) as provider,
        start_server(tmp_path, provider) as (base, token),
        Client(base, token) as client,
    ):
        session_id = await client.session()
        sending = asyncio.create_task(client.send(session_id, "go"))
        waiting = asyncio.create_task(client.wait_for(session_id, "approval_requested"))
        longest = 0.0
        while not waiting.done():
            start = time.monotonic()
            await client.json("GET", "/health")
            longest = max(longest, time.monotonic() - start)
        asked = waiting.result()[-1]
        assert asked["once"] and "nobody can tell what this would run" in asked["why"]
        assert longest < 5  # it takes milliseconds; reading these took 10 s and more
        await client.answer_approval(approved=False)
        await sending
