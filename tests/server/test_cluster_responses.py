"""Stored responses on two nodes: used on another node, and taken over from a dead one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.postgres import needs_postgres
from tests.kit.serve_process import ServeProcess, start_nodes
from tests.kit.server import Client
from tests.kit.sessions import PATIENCE
from treadle.messages import Reply

pytestmark = needs_postgres


@asynccontextmanager
async def serve_pair(
    tmp_path: Path, url: str, *script: Any
) -> AsyncIterator[tuple[tuple[Client, Client], list[ServeProcess], StrictChat]]:
    async with (
        StrictChat(script) as provider,
        start_nodes(tmp_path, provider, url, "--lease", "2") as (_, nodes),
        Client(nodes[0].address, nodes[0].token) as first,
        Client(nodes[1].address, nodes[1].token) as second,
    ):
        yield (first, second), nodes, provider


async def ask(client: Client, text: str, **fields: Any) -> Any:
    return await client.json("POST", "/v1/responses", {"model": "default", "input": text, **fields})


async def wait_for_status(client: Client, response_id: str, status: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            shown = await client.json("GET", f"/v1/responses/{response_id}")
            if shown["status"] == status:
                return shown
            await asyncio.sleep(0.1)


def read_text(response: Any) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_response_is_read_continued_and_cancelled_on_another_node(tmp_path: Path, postgres_url: str) -> None:
    script = (Reply(text="One."), Reply(text="Two."), Odd(Reply(text="x"), stall_after=0))
    async with serve_pair(tmp_path, postgres_url, *script) as ((first, second), _, provider):
        one = await ask(first, "a")
        assert read_text(await second.json("GET", f"/v1/responses/{one['id']}")) == "One."
        two = await ask(second, "b", previous_response_id=one["id"])
        assert read_text(two) == "Two."
        three = await ask(first, "c", previous_response_id=two["id"], background=True)
        async with second.stream(f"/v1/responses/{three['id']}?stream=true") as events:
            cancelled = await second.json("POST", f"/v1/responses/{three['id']}/cancel")
            last = [sent.data async for sent in events if sent.data is not None][-1]
        assert cancelled["status"] == last["response"]["status"] == "cancelled"
        await asyncio.wait_for(provider.hung_up.wait(), PATIENCE)
        await wait_for_status(first, three["id"], "cancelled")
        await second.json("DELETE", f"/v1/responses/{one['id']}")
        await first.problem("GET", f"/v1/responses/{one['id']}", status=404)


async def test_a_response_of_a_dead_node_is_written_by_another(tmp_path: Path, postgres_url: str) -> None:
    script = (Odd(Reply(text="x"), held=asyncio.Event()), Reply(text="From the other node."))
    async with serve_pair(tmp_path, postgres_url, *script) as ((first, second), (one, _), provider):
        asked = await ask(first, "a", background=True)
        async with asyncio.timeout(PATIENCE):
            while not any("completions" in seen.path for seen in provider.seen):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        async with second.stream(f"/v1/responses/{asked['id']}?stream=true") as events:
            one.process.kill()
            last = [sent.data async for sent in events if sent.data is not None][-1]
        assert read_text(last["response"]) == "From the other node."


async def test_two_nodes_that_continue_one_response_of_an_agent_do_not_mix(tmp_path: Path, postgres_url: str) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        asked = [message["content"] for message in body["messages"] if message["role"] == "user"]
        return Reply(text=" ".join(str(text) for text in asked))

    async with (
        StrictChat(answer) as provider,
        start_nodes(tmp_path, provider, postgres_url) as (_, nodes),
        Client(nodes[0].address, nodes[0].token) as first,
        Client(nodes[1].address, nodes[1].token) as second,
    ):
        start = await ask(first, "start", model="agent:default")
        ends = await asyncio.gather(
            *(
                ask(client, word, model="agent:default", previous_response_id=start["id"])
                for client, word in ((first, "left"), (second, "right"))
            )
        )
        assert [read_text(end) for end in ends] == ["start left", "start right"]
        again = await second.json("GET", f"/v1/responses/{ends[0]['id']}")
        assert read_text(again) == "start left"
