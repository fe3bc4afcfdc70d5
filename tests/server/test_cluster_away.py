"""A node whose database is away: what it answers meanwhile, and how soon it works again."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.serve_process import start_nodes
from tests.kit.server import Client
from tests.kit.sessions import PATIENCE
from tests.kit.tcp_relay import TcpRelay
from treadle.messages import Reply

pytestmark = needs_postgres

PASSWORD = "never-to-be-shown"
HANG_SECONDS = 50.0
"""No request takes so long, also on a busy machine."""


async def ask(client: Client, path: str, body: Any = None) -> tuple[int, str, Any]:
    """Send a request. Returns the status, the header Retry-After and the document."""
    async with asyncio.timeout(HANG_SECONDS), client.request("POST" if body else "GET", path, json=body) as answer:
        return answer.status, answer.headers.get("retry-after", ""), await answer.json()


async def wait_for_readiness(client: Client, status: int) -> tuple[Any, float]:
    """Ask until the answer has that status. Returns it, and how long that took."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE):
        while True:
            found, _, document = await ask(client, "/ready")
            if found == status:
                return document, time.monotonic() - began
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", ["cut", "refuse"])
async def test_a_node_that_is_cut_off_says_so_and_works_again_soon(tmp_path: Path, how: str) -> None:
    with PostgresServer(durable=False, password=PASSWORD) as server, TcpRelay(server.port) as cable:
        async with (
            StrictChat([Reply(text="First."), Reply(text="Second.")]) as provider,
            start_nodes(tmp_path, provider, server.build_url(port=cable.port), count=1) as (_, (node,)),
            Client(node.address, node.token) as client,
        ):
            session_id = await client.session(name="kept")
            path, message = f"/v1/sessions/{session_id}", {"content": "two"}
            await client.send(session_id, "one")
            await wait_for_readiness(client, 200)
            getattr(cable, how)()
            requests: list[tuple[Any, ...]] = [(path,), ("/v1/sessions",), (f"{path}/events",), ("/v1/approvals",)]
            requests += [(f"{path}/messages", message), ("/v1/sessions", {"name": "new"})]
            early = await asyncio.gather(*(ask(client, *request) for request in requests))
            ready, _ = await wait_for_readiness(client, 503)
            assert set(ready["problems"]) == {"store"}
            late = await asyncio.gather(*(ask(client, *request) for request in requests))
            for status, retry_after, document in (*early, *late):
                assert (status, set(document)) == (503, {"error"}) and int(retry_after) > 0
                error = document["error"]
                assert error["type"] == "store" and "postgresql://treadle:***@" in error["message"] and error["hint"]
            assert await client.json("GET", "/health") == {"status": "ok"}
            async with client.request("GET", "/metrics") as metrics:
                assert metrics.status == 200 and "treadle_store_connections_used" in await metrics.text()
            cable.heal()
            _, seconds = await wait_for_readiness(client, 200)
            assert seconds < HANG_SECONDS
            assert (await client.send(session_id, "three"))["reply"] == "Second."
            facts = await client.facts(session_id)
            assert [fact["seq"] for fact in facts] == list(range(1, len(facts) + 1))
            assert PASSWORD not in node.read_log() + str((early, late, ready)) + read_command_line(node.process.pid)


def read_command_line(pid: int) -> str:
    """What other users of the machine see of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
