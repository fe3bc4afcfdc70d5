"""What the server's tests share: an application on a real port of this process, and clients for it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.kit.sessions import PATIENCE, HeldTool, Tables, build_agent
from treadle import Agent, AskUser, Runtime
from treadle.log.base import Log
from treadle.server.app import ServerApp, create_app
from treadle.server.config import ServerConfig
from treadle.server.tokens import RIGHTS, Token
from treadle.testing import ScriptedModel

OWNER = Token("owner", "owner-secret-of-the-tests")
FOR_EVER = 3600
"""Seconds, for timeouts that a slow machine must not reach."""


class Client:
    """A client that knows the server and its token, and can read streams."""

    app: ServerApp
    model: ScriptedModel
    held: HeldTool
    tables: Tables

    def __init__(self, base: str, token: str = OWNER.value) -> None:
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        self.base, self.token = base, token

    async def __aenter__(self) -> "Client":
        timeout, connector = aiohttp.ClientTimeout(total=None, sock_read=PATIENCE), aiohttp.TCPConnector(limit=0)
        self.http = aiohttp.ClientSession(self.base, headers=self.headers, timeout=timeout, connector=connector)
        self.request = self.http.request
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    def socket(self, path: str, **options: Any) -> Any:
        """A WebSocket of the `websockets` package."""
        headers = {**self.headers, **options.pop("headers", {})}
        address = self.base.replace("http", "ws", 1) + path
        return connect(address, additional_headers=headers, proxy=None, open_timeout=PATIENCE, **options)

    @asynccontextmanager
    async def open_socket(self, path: str = "", session_id: str = "") -> AsyncIterator["Socket"]:
        """A WebSocket that talks JSON: that of a path, of a session, or of a new session."""
        async with self.socket(path or f"/v1/sessions/{session_id or await self.session()}/stream") as line:
            yield Socket(line)

    async def json(self, method: str, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        """The JSON of an answer that has the expected status."""
        async with self.request(method, path, json=body, **options) as answer:
            text = await answer.text()
            assert answer.status == status, f"{method} {path}: {answer.status} {text}"
            return json.loads(text) if text else None

    async def problem(self, method: str, path: str, body: Any = None, status: int = 400, **options: Any) -> Any:
        """The error of an answer that has the expected status."""
        document = await self.json(method, path, body, status, **options)
        assert set(document) == {"error"} and {"type", "message", "hint"} <= set(document["error"])
        return document["error"]

    @asynccontextmanager
    async def stream(self, path: str, body: Any = None, **options: Any) -> AsyncIterator[AsyncIterator["SentEvent"]]:
        """The server-sent events of a response."""
        method = "GET" if body is None else "POST"
        async with self.request(method, path, json=body, **options) as answer:
            assert answer.status == 200, f"{method} {path}: {answer.status} {await answer.text()}"
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield read_events(answer.content)

    async def load_model(self, name: str) -> dict[str, Any]:
        """Load a model and wait until that is done. Returns its last state."""
        name = (await self.json("POST", "/v1/models/load", {"model": name}, 202))["id"]
        async with self.stream("/v1/models/stream") as events:
            async for event in events:
                model = event.data["data"]
                if model["id"] == name and model["state"] != "loading":
                    return model
        raise AssertionError(f"the stream ended before {name} was loaded")

    async def session(self, **fields: Any) -> str:
        return (await self.json("POST", "/v1/sessions", fields, 201))["id"]

    async def send(self, session_id: str, content: str, **options: Any) -> Any:
        return await self.json("POST", f"/v1/sessions/{session_id}/messages", {"content": content}, **options)

    async def wait_for(self, session_id: str, kind: str, after: int = 0) -> list[dict[str, Any]]:
        """Watch a session until a fact or delta of this type comes. Returns all events up to it."""
        async with self.stream(f"/v1/sessions/{session_id}/events?after={after}") as events:
            return await read_until(events, type=kind)

    async def start_run(self, kind: str) -> tuple[str, "asyncio.Task[Any]", dict[str, Any]]:
        """Send a message to a new session. Returns the session, the request and the first event of this type."""
        session_id = await self.session()
        sending = asyncio.create_task(self.send(session_id, "go"))
        return session_id, sending, (await self.wait_for(session_id, kind))[-1]

    async def answer_approval(self, *, approved: bool = True) -> dict[str, Any]:
        """Answer the one open approval of all sessions. Returns the question."""
        (asked,) = await self.json("GET", "/v1/approvals")
        await self.json("POST", f"/v1/approvals/{asked['id']}", {"approved": approved})
        return asked

    async def facts(self, session_id: str) -> list[dict[str, Any]]:
        return await self.json("GET", f"/v1/sessions/{session_id}/events?follow=false")


class Socket:
    """A WebSocket that talks JSON."""

    def __init__(self, line: Any) -> None:
        self.line = line

    async def send(self, document: Any = None, **fields: Any) -> None:
        """Send a document or these fields; text and bytes as they are."""
        await self.line.send(document if isinstance(document, str | bytes) else json.dumps(document or fields))

    async def receive(self) -> Any:
        return json.loads(await asyncio.wait_for(self.line.recv(), PATIENCE))

    async def receive_until(self, **wanted: Any) -> list[dict[str, Any]]:
        """All messages up to the one that has these values."""
        seen: list[dict[str, Any]] = []
        while not seen or any(seen[-1].get(name) != value for name, value in wanted.items()):
            seen.append(await self.receive())
        return seen

    async def receive_last(self, **wanted: Any) -> dict[str, Any]:
        """The first message that has these values."""
        return (await self.receive_until(**wanted))[-1]

    async def check_closed(self, code: int) -> None:
        """The server closes the socket with this code."""
        with pytest.raises(ConnectionClosed) as closed:
            await self.receive_until(type="nothing that is ever sent")
        assert closed.value.rcvd is not None and closed.value.rcvd.code == code


def create_token(name: str, *rights: Any, **options: Any) -> Token:
    """A token with these rights, or with all of them."""
    return Token(name, f"{name}-secret-of-the-tests", frozenset(rights or RIGHTS), **options)


class SentEvent:
    """One server-sent event, or a comment."""

    def __init__(self, lines: Sequence[str]) -> None:
        fields: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
        self.id, self.event, self.comment = (fields.get(name, [""])[-1] for name in ("id", "event", ""))
        self.text = "\n".join(fields.get("data", ()))

    @property
    def data(self) -> Any:
        return json.loads(self.text) if self.text and self.text != "[DONE]" else None


async def read_events(content: aiohttp.StreamReader) -> AsyncIterator[SentEvent]:
    lines: list[str] = []
    while raw := await asyncio.wait_for(content.readline(), PATIENCE):
        line = raw.decode().rstrip("\n")
        if line:
            lines.append(line)
        elif lines:
            yield SentEvent(lines)
            lines = []


async def read_until(events: AsyncIterator[SentEvent], **wanted: str) -> list[dict[str, Any]]:
    """The data of all events up to the one that has these values."""
    seen: list[dict[str, Any]] = []
    async for one in events:
        if one.data is None:
            continue
        seen.append(one.data)
        if all(one.data.get(name) == value for name, value in wanted.items()):
            return seen
    raise AssertionError(f"the stream ended without {wanted}: {seen[-3:]}")


class QuickServer(uvicorn.Server):
    """uvicorn without its waits of a tenth of a second."""

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
async def listen(app: ServerApp) -> AsyncIterator[str]:
    """Serve the application on a free port. Returns its address."""
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
    server = QuickServer(config)
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
async def serve_script(*script: Any, store: str | Path | Log = ":memory:", **options: Any) -> AsyncIterator[Client]:
    """Serve one agent that follows a script. It knows `wait`, `drop`, `note` and `ask_user`, or the `tools` given."""
    held, tables = HeldTool(), Tables()
    own = {name: options.pop(name) for name in ("tools", "limits", "grant", "clock") if name in options}
    agent, model = build_agent(*script, **{"tools": [held.tool, *tables.tools, AskUser()], **own})
    async with serve_agents(agent, store=store, **options) as client:
        client.model, client.held, client.tables = model, held, tables
        yield client


@asynccontextmanager
async def serve_agents(*agents: Agent, store: str | Path | Log = ":memory:", **config: Any) -> AsyncIterator[Client]:
    """Serve these agents. Returns a client that may do everything. Quiet streams get no comments."""
    options: dict[str, Any] = {"tokens": (OWNER,), "keep_alive": FOR_EVER, **config}
    app = create_app(Runtime(store, list(agents)), ServerConfig(**options))
    async with listen(app) as base, Client(base) as client:
        client.app = app
        yield client
