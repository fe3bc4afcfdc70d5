"""The streams to one MCP server: a child process in the sandbox, or HTTP with errors for each request.

Nothing here knows of calls. It notices what is lost; connection.py decides what to do.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treadle.errors import BadInput
from treadle.permissions.paths import list_own_folders
from treadle.sandbox.backend import prepare_program
from treadle.sandbox.base import Job
from treadle.sandbox.shown_paths import choose_visible
from treadle.sandbox.toolchains import find_program_files
from treadle.tools.mcp.server_config import McpServer

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared.message import SessionMessage

    from treadle.sandbox.long_running import WaitingProgram

NOT_REACHED = -32091
"""Our own code for a request that certainly did not reach the server."""

SESSION_GONE = -32092
"""Our own code for a request that the server refused because it forgot our session. It did not run."""

CONNECTION_LOST = -32093
"""Our own code for a request whose connection broke. It may have run."""

_PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_MAX_STDERR_BYTES = 2000


class StderrTail(asyncio.Protocol):
    """The end of what a server wrote to its standard error. It is mostly the reason why the server ended."""

    def __init__(self) -> None:
        self._kept = b""

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-_MAX_STDERR_BYTES:]

    def read_text(self) -> str:
        lines = self._kept.decode("utf-8", "replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-5:])


class _WatchedStream:
    """A stream of messages that sets an event when it has ended. The SDK does not report that."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], gone: asyncio.Event) -> None:
        self._stream, self._gone = stream, gone

    def __aiter__(self) -> _WatchedStream:
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

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(exc_type, exc_val, exc_tb)


@asynccontextmanager
async def start_child(server: McpServer, gone: asyncio.Event, tail: StderrTail) -> AsyncGenerator[TransportStreams]:
    """Start a server. `gone` is set when it hangs up or the connection closes. `tail` gets its standard error."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async with AsyncExitStack() as stack:
        read_end, write_end = os.pipe()
        errors = stack.enter_context(os.fdopen(write_end, "w"))
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: tail, os.fdopen(read_end, "rb"))
        stack.callback(pipe.close)
        # An interpreter that starts in the workspace would use the modules and settings there.
        folder = server.cwd or stack.enter_context(
            TemporaryDirectory(prefix="treadle-mcp-", ignore_cleanup_errors=True)
        )
        variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        argv, variables = (server.command, *server.args), {**variables, **server.env}
        program: WaitingProgram | None = None
        if server.sandbox:
            job = build_job(server, folder)
            program = await stack.enter_async_context(prepare_program(job, is_private=not server.cwd))
            argv, variables, folder = program.argv, {}, "/"
        parameters = StdioServerParameters(
            command=argv[0], args=list(argv[1:]), env=variables, cwd=folder, encoding_error_handler="replace"
        )
        read, write = await stack.enter_async_context(stdio_client(parameters, errlog=errors))
        if program is not None:
            await program.release()
        try:
            yield _WatchedStream(read, gone), write
        finally:
            gone.set()


def build_job(server: McpServer, folder: str) -> Job:
    """Build the sandbox of a server. It shows its program, the files that its arguments name, and its folders."""
    found = shutil.which(server.command, path=server.env.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"there is no program {server.command!r}")
    files = [Path(word) for word in server.args if os.path.isabs(word) and os.path.isfile(word)]
    folders = [Path(shown).expanduser() for shown in server.folders]
    for shown in folders:
        if any(
            own.is_relative_to(shown.resolve()) or shown.resolve().is_relative_to(own) for own in list_own_folders()
        ):
            raise BadInput(f"MCP server {server.name!r}: {shown} holds files of treadle; name the folders beside them")
    read_only = (*find_program_files(Path(found)), *(choose_visible(file, file.parent) for file in files), *folders)
    return Job(
        argv=(os.path.abspath(found), *server.args),
        workspace=Path(folder).expanduser(),
        network=bool(server.hosts),
        allow_hosts=server.hosts,
        env=server.env,
        read_only=tuple(dict.fromkeys(read_only)),
        writable=server.writable or not server.cwd,
    )


@asynccontextmanager
async def connect_http(server: McpServer, gone: asyncio.Event) -> AsyncGenerator[TransportStreams]:
    """Connect to the address of a server. `gone` is set when the connection closes.

    A failed request is answered with an error for that request. In the SDK, one lost request would end the whole
    connection and all other requests on it. Nor would it tell a request that was never sent from one that may have run.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class Client(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            try:
                response = await super().send(request, **options)
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
                return _build_error(request, 503, NOT_REACHED, f"the server cannot be reached ({_describe(error)})")
            except httpx2.TransportError as error:
                return _build_error(request, 502, CONNECTION_LOST, f"the connection was lost ({_describe(error)})")
            if response.status_code == 404 and "mcp-session-id" in request.headers:
                await response.aclose()
                return _build_error(request, 404, SESSION_GONE, "the server has forgotten this session")
            if response.status_code in (401, 403):
                await response.aclose()
                message = f"the server refused us (HTTP {response.status_code}): look at the headers in its config"
                return _build_error(request, response.status_code, NOT_REACHED, message)
            if response.status_code >= 500 and "json" not in response.headers.get("content-type", ""):
                await response.aclose()
                return _build_error(request, 502, CONNECTION_LOST, f"the server answered HTTP {response.status_code}")
            return response

    timeout = httpx2.Timeout(server.start_timeout, read=server.timeout + 30)
    async with (
        Client(headers=dict(server.headers), timeout=timeout) as client,
        streamable_http_client(server.url, http_client=client) as streams,
    ):
        try:
            yield streams
        finally:
            gone.set()


def _build_error(request: httpx2.Request, status: int, code: int, message: str) -> httpx2.Response:
    import httpx2

    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(status, json=body, request=request)


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__
