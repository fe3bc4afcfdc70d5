"""Streams to one MCP server: a child process with walls round its environment, or HTTP that says what went wrong.

Nothing here knows of calls; what is lost is only noticed, and decided on in connection.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treadle.tools.mcp.server_config import McpServer

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared.message import SessionMessage

NOT_REACHED = -32091
"""Our own code for a request that certainly did not reach the server."""

SESSION_GONE = -32092
"""Our own code for a request that was turned away because the server forgot our session; it did not run."""

CONNECTION_LOST = -32093
"""Our own code for a request whose connection broke; it may have run."""

_HARMLESS = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_KEPT = 2000


class StderrTail(asyncio.Protocol):
    """The last that a server wrote to its standard error: mostly the reason why it ended."""

    def __init__(self) -> None:
        self._kept = b""

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-_KEPT:]

    def read_text(self) -> str:
        lines = self._kept.decode("utf-8", "replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-5:])


class _Watched:
    """A stream of messages that tells when it has ended, which the SDK keeps to itself."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], gone: asyncio.Event) -> None:
        self._stream, self._gone = stream, gone

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._gone.set()
            raise

    async def receive(self) -> SessionMessage | Exception:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(exc_type, exc_val, exc_tb)


def open_streams(server: McpServer, gone: asyncio.Event, tail: StderrTail) -> Any:
    """The transport for the SDK's client; `gone` is set when the server has hung up, or is being let go."""
    return _http(server, gone) if server.url else _child(server, gone, tail)


@asynccontextmanager
async def _child(server: McpServer, gone: asyncio.Event, tail: StderrTail) -> AsyncGenerator[TransportStreams]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async with AsyncExitStack() as stack:
        reading, writing = os.pipe()
        errors = stack.enter_context(os.fdopen(writing, "w"))
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: tail, os.fdopen(reading, "rb"))
        stack.callback(pipe.close)
        # A folder of the workspace would lend its modules and settings to an interpreter that is started in it.
        folder = server.cwd or stack.enter_context(
            TemporaryDirectory(prefix="treadle-mcp-", ignore_cleanup_errors=True)
        )
        told = {name: os.environ[name] for name in _HARMLESS if name in os.environ}
        started = StdioServerParameters(
            command=server.command,
            args=list(server.args),
            env={**told, **server.env},
            cwd=folder,
            encoding_error_handler="replace",
        )
        read, write = await stack.enter_async_context(stdio_client(started, errlog=errors))
        try:
            yield _Watched(read, gone), write
        finally:
            gone.set()


@asynccontextmanager
async def _http(server: McpServer, gone: asyncio.Event) -> AsyncGenerator[TransportStreams]:
    from mcp.client.streamable_http import streamable_http_client

    async with (
        _http_client(server) as client,
        streamable_http_client(server.url, http_client=client) as streams,
    ):
        try:
            yield streams
        finally:
            gone.set()


def _http_client(server: McpServer) -> httpx2.AsyncClient:
    """A client that answers what fails with an error for that one request.

    The SDK would let one lost request end the whole connection, and all others on it, and would not tell a request
    that never left from one that may have been carried out.
    """
    import httpx2

    class Client(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            try:
                response = await super().send(request, **options)
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
                return _error(request, 503, NOT_REACHED, f"the server cannot be reached ({_words(error)})")
            except httpx2.TransportError as error:
                return _error(request, 502, CONNECTION_LOST, f"the connection was lost ({_words(error)})")
            if response.status_code == 404 and "mcp-session-id" in request.headers:
                await response.aclose()
                return _error(request, 404, SESSION_GONE, "the server has forgotten this session")
            if response.status_code in (401, 403):
                await response.aclose()
                said = f"the server refused us (HTTP {response.status_code}): look at the headers in its config"
                return _error(request, response.status_code, NOT_REACHED, said)
            if response.status_code >= 500 and "json" not in response.headers.get("content-type", ""):
                await response.aclose()
                return _error(request, 502, CONNECTION_LOST, f"the server answered HTTP {response.status_code}")
            return response

    return Client(headers=dict(server.headers), timeout=httpx2.Timeout(server.start_timeout, read=server.timeout + 30))


def _error(request: httpx2.Request, status: int, code: int, message: str) -> httpx2.Response:
    import httpx2

    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(status, json=body, request=request)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
