"""What the server's tests share: an application on a real port of this process, and clients for it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from tests.kit.sessions import PATIENCE
from treadle import Agent, Runtime
from treadle.log.base import Log
from treadle.server.app import ServerApp, create_app
from treadle.server.config import ServerConfig
from treadle.server.tokens import Token

OWNER = Token("owner", "owner-secret-of-the-tests")
FOR_EVER = 3600
"""Seconds, for what a slow machine would else run into: a line that is idle, a stream that is quiet."""


class Client:
    """A client that knows the server and its token, and can read streams."""

    app: ServerApp

    def __init__(self, base: str, token: str = OWNER.value) -> None:
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        self.base, self.token = base, token

    async def __aenter__(self) -> "Client":
        timeout, connector = aiohttp.ClientTimeout(total=None, sock_read=PATIENCE), aiohttp.TCPConnector(limit=0)
        self.http = aiohttp.ClientSession(self.base, headers=self.headers, timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    def request(self, method: str, path: str, **options: Any) -> Any:
        return self.http.request(method, path, **options)

    def socket(self, path: str, **options: Any) -> Any:
        """A WebSocket of the package that has nothing but WebSockets."""
        from websockets.asyncio.client import connect

        headers = {**self.headers, **options.pop("headers", {})}
        address = self.base.replace("http", "ws", 1) + path
        return connect(address, additional_headers=headers, proxy=None, open_timeout=PATIENCE, **options)

    async def json(self, method: str, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        """The JSON of an answer that has the expected status."""
        if body is not None:
            options["json"] = body
        async with self.request(method, path, **options) as answer:
            text = await answer.text()
            assert answer.status == status, f"{method} {path}: {answer.status} {text}"
            return json.loads(text) if text else None

    async def problem(self, method: str, path: str, body: Any = None, status: int = 400, **options: Any) -> Any:
        """The error of an answer that has the expected status."""
        document = await self.json(method, path, body, status, **options)
        assert set(document) == {"error"} and {"type", "message", "hint"} <= set(document["error"])
        return document["error"]

    @asynccontextmanager
    async def stream(self, path: str, body: Any = None, **options: Any) -> AsyncIterator[AsyncIterator["Sent"]]:
        """Server-sent events, as they come."""
        method = "GET" if body is None else "POST"
        if body is not None:
            options["json"] = body
        async with self.request(method, path, **options) as answer:
            assert answer.status == 200, f"{method} {path}: {answer.status} {await answer.text()}"
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield sent(answer.content)

    async def session(self, **fields: Any) -> str:
        return (await self.json("POST", "/v1/sessions", fields, 201))["id"]

    async def send(self, session_id: str, content: str, **options: Any) -> Any:
        return await self.json("POST", f"/v1/sessions/{session_id}/messages", {"content": content}, **options)

    async def facts(self, session_id: str) -> list[dict[str, Any]]:
        return await self.json("GET", f"/v1/sessions/{session_id}/events?follow=false")


class Sent:
    """One server-sent event, or a comment."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.id = self.event = self.comment = ""
        data: list[str] = []
        for line in lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match name:
                case "":
                    self.comment = value
                case "id":
                    self.id = value
                case "event":
                    self.event = value
                case "data":
                    data.append(value)
                case _:
                    pass
        self.text = "\n".join(data)

    @property
    def data(self) -> Any:
        return json.loads(self.text) if self.text and self.text != "[DONE]" else None


async def sent(content: aiohttp.StreamReader) -> AsyncIterator[Sent]:
    lines: list[str] = []
    while raw := await asyncio.wait_for(content.readline(), PATIENCE):
        line = raw.decode().rstrip("\n")
        if line:
            lines.append(line)
        elif lines:
            yield Sent(lines)
            lines = []


async def until(events: AsyncIterator[Sent], **wanted: str) -> list[dict[str, Any]]:
    """The data of all events up to the one that has these values."""
    seen: list[dict[str, Any]] = []
    async for one in events:
        if one.data is None:
            continue
        seen.append(one.data)
        if all(one.data.get(name) == value for name, value in wanted.items()):
            return seen
    raise AssertionError(f"the stream ended without {wanted}: {seen[-3:]}")


class Quick(uvicorn.Server):
    """uvicorn without the tenth of a second that it waits at every look and before it ends."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready, self.leaving = asyncio.Event(), asyncio.Event()

    async def main_loop(self) -> None:
        self.ready.set()
        await self.leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await self.lifespan.shutdown()


@asynccontextmanager
async def listening(app: ServerApp) -> AsyncIterator[str]:
    """The application on a port of its own; the address."""
    # Without the protocol, asyncio does not switch off Nagle's algorithm: every answer would wait 40 ms.
    server_socket = socket.socket(proto=socket.IPPROTO_TCP)
    server_socket.bind(("127.0.0.1", 0))
    server_socket.listen(4096)
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="on",
        ws="websockets-sansio",
        ws_max_size=1024 * 1024,
        timeout_keep_alive=FOR_EVER,  # else the server closes a line that the client is just about to use again
    )
    server = Quick(config)
    serving = asyncio.create_task(server._serve([server_socket]))
    waiting = asyncio.create_task(server.ready.wait())
    await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
    assert waiting.done() and not serving.done(), "the server did not start"
    try:
        yield f"http://127.0.0.1:{server_socket.getsockname()[1]}"
    finally:
        app.state.service.drain()
        server.leaving.set()
        await serving
        server_socket.close()


@asynccontextmanager
async def served(*agents: Agent, store: str | Path | Log = ":memory:", **config: Any) -> AsyncIterator[Client]:
    """A server over these agents, and a client of it that may do everything. Streams have no comments on their own."""
    options: dict[str, Any] = {"tokens": (OWNER,), "keep_alive": FOR_EVER, **config}
    app = create_app(Runtime(store, list(agents)), ServerConfig(**options))
    async with listening(app) as base, Client(base) as client:
        client.app = app
        yield client
