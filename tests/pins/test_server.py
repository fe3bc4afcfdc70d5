"""What clients of `treadle serve` see: the OpenAPI document, and one stream of each dialect as it is on the wire."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.pins.conftest import (
    FakeModel,
    call_tool,
    check_json_snapshot,
    check_snapshot,
    create_shell,
    hide_prose,
    offers_tools,
    say,
    serve,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = [{"role": "user", "content": "Six times seven?"}]
FUNCTION = {"name": "calculate", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}}
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "agent_run": ("/api/agent/run", {"objective": "Six times seven?", "autoApprove": ["calculate"]}),
    "session_messages": ("/v1/sessions/{session}/messages/stream", {"content": "Six times seven?"}),
    "chat_agent": ("/v1/chat/completions", {"model": "agent:default", "messages": USER, "stream": True}),
    "chat_model": ("/v1/chat/completions", {"model": "default", "messages": USER, "stream": True}),
    "chat_model_call": (
        "/v1/chat/completions",
        {"model": "default", "messages": USER, "stream": True, "tools": [{"type": "function", "function": FUNCTION}]},
    ),
    "responses_agent": (  # not stored: facts of a stored response may come before or after those of a call
        "/v1/responses",
        {"model": "agent:default", "input": "Six times seven?", "stream": True, "store": False},
    ),
    "responses_model": ("/v1/responses", {"model": "default", "input": "Six times seven?", "stream": True}),
    "responses_model_call": (
        "/v1/responses",
        {"model": "default", "input": "Six?", "stream": True, "tools": [{"type": "function", **FUNCTION}]},
    ),
}


def reply_once_with_a_call(body: dict[str, Any]) -> Any:
    """Call a tool where tools are offered, and answer when its result is there."""
    asked = body["messages"][-1]["role"] == "user"
    return call_tool("calculate", expression="6*7") if asked and offers_tools(body) else say("It is 42, for sure.")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[aiohttp.ClientSession]:
    shell = create_shell(tmp_path_factory.mktemp("server"))
    async with (
        FakeModel(reply_once_with_a_call) as fake,
        serve(shell, fake) as (address, token),
        aiohttp.ClientSession(address, headers={"authorization": f"Bearer {token}"}) as session,
    ):
        yield session


async def test_the_openapi_document_is_kept(client: aiohttp.ClientSession) -> None:
    async with client.get("/openapi.json") as answer:
        document = await answer.json()
    assert document["info"].pop("version")
    check_json_snapshot("openapi.json", hide_prose(document))


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_keeps_its_bytes(client: aiohttp.ClientSession, name: str) -> None:
    path, body = STREAMS[name]
    if "{session}" in path:
        async with client.post("/v1/sessions", json={}) as answer:
            path = path.format(session=(await answer.json())["id"])
    async with client.post(path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        head = f"content-type: {answer.headers['content-type']}\n\n"
        check_snapshot(f"streams/{name}.txt", head + hide_volatile((await answer.read()).decode()))


def hide_volatile(stream: str) -> str:
    """Replace what differs from run to run, and prose. Equal ids stay equal."""
    ids: dict[str, str] = {}
    stream = re.sub(
        r"(?<![0-9a-f])[0-9a-f]{24,32}(?![0-9a-f])", lambda id: ids.setdefault(id[0], f"<id {len(ids) + 1}>"), stream
    )
    stream = re.sub(r'"(at|completed_at|created|created_at|duration|wall_time)":[\d.e-]+', r'"\1":<number>', stream)
    return re.sub(r'"(owner|why|working_dir)":"(?:[^"\\]|\\.)+"', r'"\1":"<text>"', stream)
