"""One reply of a model cannot hold up a server: others are answered while it is judged."""

import asyncio
import resource
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
    before = measure_children()
    async with (
        StrictChat([reply, Reply(text="done")]) as provider,
        start_server(tmp_path, provider) as (base, token),
        Client(base, token) as client,
    ):
        session_id = await client.session()
        sending = asyncio.create_task(client.send(session_id, "go"))
        waiting = asyncio.create_task(client.wait_for(session_id, "approval_requested"))
        while not waiting.done():
            assert (await client.json("GET", "/health"))["status"] == "ok"
        asked = waiting.result()[-1]
        assert asked["once"] and "nobody can tell what this would run" in asked["why"]
        await client.answer_approval(approved=False)
        await sending
    assert measure_children() - before < 8  # the server's start takes one or two; reading these took 10 and more


def measure_children() -> float:
    """The CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
