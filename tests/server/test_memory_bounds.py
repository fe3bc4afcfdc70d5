"""A server gives memory back: large messages leave no more behind than a bound, whoever watches."""

import asyncio
import json
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path

from tests.kit.server import Client
from tests.server.worker import fake_model, start_forker

ROUNDS, AT_ONCE, MESSAGE_BYTES = 5, 4, 3 * 1024 * 1024
SLACK = 30
"""How many MiB the memory may grow once the bound is reached. Without a bound it grows by 25 and more each round."""


def read_memory(pid: int) -> int:
    """The memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


async def send_large_message(client: Client, session_id: str) -> None:
    body = BytesIO(json.dumps({"content": "word " * (MESSAGE_BYTES // 5)}).encode())
    headers = {"content-type": "application/json"}
    async with client.request("POST", f"/v1/sessions/{session_id}/messages", data=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


async def test_large_messages_do_not_make_a_server_grow_for_ever(tmp_path: Path) -> None:
    used: list[int] = []
    with fake_model() as port, start_forker() as made:
        spec = {"port": port, "model": "steps-0-tok-1", "side": "", "store": str(tmp_path / "store.db")}
        async with Client(made.start(**spec)) as client, AsyncExitStack() as stack:
            await stack.enter_async_context(client.request("GET", "/v1/events"))  # it reads nothing
            for _ in range(ROUNDS):
                ids = [await client.session() for _ in range(AT_ONCE)]
                watched = f"/v1/sessions/{ids[0]}/events"
                await stack.enter_async_context(client.request("GET", watched))
                await asyncio.gather(*(send_large_message(client, one) for one in ids))
                await client.json("GET", f"/v1/sessions/{ids[1]}")
                used.append(read_memory(made.pid))
    assert used[-1] - used[2] < SLACK, used
