"""The connection to one MCP server: connect, list its tools, call them, and restart the server when it dies.

One task opens and closes the connection, because the SDK's scopes must be left in the task that entered them. A call
that may have reached the server is never sent twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, cast

import msgspec
from msgspec import Struct

from treadle.messages import Json
from treadle.secrets.redact import Redactor
from treadle.tools.base import ToolError
from treadle.tools.mcp.known_tools import KnownTools
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.transport import (
    CONNECTION_LOST,
    NOT_REACHED,
    SESSION_GONE,
    StderrTail,
    connect_http,
    start_child,
)

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

MAX_TRIES = 5
"""After so many failures in a row, without an answered call between them, a server stays down."""

MAX_FIRST_TRIES = 2
"""The same for a server that was never up: the caller waits for this."""

BACKOFF = 0.25
MAX_PAGES = 100
MAX_LISTED = 2000
_EXTRA_SECONDS = 10.0
_CLOSED_MESSAGE = "Connection closed"
"""What the SDK says when it notices a closed connection itself, even before the stream ends."""

_SANDBOX_ADVICE = (
    ". It runs in the sandbox, which shows it the system in /usr, its program and the files in its args, and has no "
    "network. In [mcp.{name}] of your config.toml, name what else it needs with folders, cwd, writable and hosts, or "
    "set sandbox = false"
)
_CLOSE_TIMEOUT = 20.0
"""Longer than the SDK takes to end a stubborn child on a slow machine. Cut off earlier, the child would stay."""

ServerState = Literal["starting", "up", "restarting", "down", "closed"]
OnProgress = Callable[[str, float, float | None], None]


class McpHealth(Struct, frozen=True):
    """The state of a server, the number of its tools, and its last error."""

    server: str
    state: ServerState
    tools: int = 0
    error: str = ""
    protocol: str = ""


class Connection:
    """A server, and the task that keeps it connected."""

    def __init__(self, server: McpServer, known: KnownTools) -> None:
        self.server = server
        self._redactor = Redactor(server.find_secrets())
        self.state: ServerState = "starting"
        self.error = ""
        self.protocol = ""
        self.listed: tuple[ListedTool, ...] = ()
        self.changed: set[str] = set()
        self.versions: dict[str, str] = {}
        self._known = known
        self._client: Client | None = None
        self._failures = 0
        self._stderr = StderrTail()
        self._gone = asyncio.Event()
        self._settled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start to connect. `wait_until_settled` waits for the outcome."""
        self._task = asyncio.create_task(self._stay_connected(), name=f"mcp {self.server.name}")

    async def wait_until_settled(self) -> None:
        """Wait until the server is up or down."""
        await self._settled.wait()

    async def close(self) -> None:
        """Close the connection and end the server's process, within a time limit."""
        self._closing.set()
        task = self._task
        if task is None:
            return
        # A handshake can be cancelled. Ending a child process must not be interrupted.
        if self.state != "up" and not self._gone.is_set():
            task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_CLOSE_TIMEOUT)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=_CLOSE_TIMEOUT)
        self._set_state("closed")

    def get_health(self) -> McpHealth:
        state = "restarting" if self.state == "up" and self._gone.is_set() else self.state
        return McpHealth(self.server.name, state, len(self.listed), self.error, self.protocol)

    async def call(self, name: str, arguments: Mapping[str, Json], on_progress: OnProgress) -> CallToolResult:
        """Call a tool of this server; raises `ToolError`, which says whether it may have run."""
        from mcp import MCPError

        async def report(progress: float, total: float | None, message: str | None) -> None:
            on_progress(self.redact_text(message or ""), progress, total)

        limit = self.server.timeout + _EXTRA_SECONDS  # the engine's own limit comes first, and cancels the request
        while True:
            client = await self._get_client()
            try:
                result = await client.call_tool(name, dict(arguments), limit, progress_callback=report)
            except MCPError as error:
                if error.code in (NOT_REACHED, SESSION_GONE) and self._reconnect(client, error.message):
                    continue
                raise self._build_error(client, error.code, error.message) from None
            except Exception as error:  # the SDK checks a result against the tool's own schema, and raises
                raise self._build_unknown_error(f"its answer cannot be used: {error}") from None
            self._failures = 0
            return result

    @property
    def sandbox(self) -> str:
        """The sandbox of a server that is started here. One that runs elsewhere has none of ours."""
        return "bubblewrap" if self.server.command and self.server.sandbox else "none"

    def accept(self, name: str) -> None:
        """Note that somebody allowed a call of a changed tool, so it is known from now on."""
        if name in self.changed:
            self.changed.discard(name)
            self._known.accept(self.server.name, name, self.versions.get(name, ""))

    def redact_text(self, text: str) -> str:
        """Remove from a text of the server the secrets that it was given."""
        return self._redactor.redact_text(text)

    def _reconnect(self, client: Client, why: str) -> bool:
        """Drop a connection on which a call did not run. Return whether the call should be sent again."""
        if self._client is client:
            self.error = self.redact_text(why)
            self._set_state("restarting")
            self._gone.set()
        return self._failures < MAX_TRIES

    def _build_error(self, client: Client, code: int, why: str) -> ToolError:
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if code in (NOT_REACHED, SESSION_GONE):
            return ToolError(self.redact_text(f"{self.server.name}: {why}. Not run."))
        # Servers use the code of a closed connection for their own errors too. Then their process is still there.
        is_same = self._client is client and not self._gone.is_set()
        is_up = is_same and not self.server.url and why != _CLOSED_MESSAGE
        if code in (CONNECTION_LOST, REQUEST_TIMEOUT) or (code == CONNECTION_CLOSED and not is_up):
            stderr_text = self._stderr.read_text()
            return self._build_unknown_error(f"{why}; it said: {stderr_text}" if stderr_text else why)
        return ToolError(self.redact_text(f"{self.server.name}: {why}"))

    def _build_unknown_error(self, why: str) -> ToolError:
        name = self.server.name
        return ToolError(
            self.redact_text(f"{name}: outcome unknown, it may have run ({why}). Check before you repeat it.")
        )

    async def _get_client(self) -> Client:
        """Return the client as soon as the server is up. A server that is down is tried once more."""
        if self.state == "closed":
            raise ToolError(f"{self.server.name} is closed. Not run.")
        if self.state == "down":
            self._set_state("starting")
            self._wanted.set()
        if self._gone.is_set() and self.state == "up":
            self._set_state("restarting")
        await self._settled.wait()
        if self._client is None:
            raise ToolError(f"{self.server.name} is down: {self.error}. Not run; do without it, or tell the user.")
        return self._client

    def _set_state(self, state: ServerState) -> None:
        self.state = state
        if state in ("up", "down", "closed"):
            self._settled.set()
        else:
            self._settled.clear()
        if state != "up":
            self._client = None

    async def _stay_connected(self) -> None:
        """Connect, and connect again, until the connection is closed."""
        from mcp import MCPError
        from mcp_types import REQUEST_TIMEOUT

        while not self._closing.is_set():
            self._stderr, is_worth_trying = StderrTail(), True
            try:
                await self._connect()
                self.error = self.error or "it hung up"
            except Exception as error:
                cause = _find_cause(error)
                self.error = str(cause) or type(cause).__name__
                # A server that never answered would only take as long again.
                is_late = isinstance(cause, MCPError) and cause.code == REQUEST_TIMEOUT and not self.protocol
                is_worth_trying = not isinstance(error, OSError) and not is_late
            stderr_text = self._stderr.read_text()
            self.error = self.redact_text(f"{self.error} (it said: {stderr_text})" if stderr_text else self.error)
            if self.sandbox != "none" and not self.protocol:
                self.error += _SANDBOX_ADVICE.format(name=self.server.name)
            self._failures += 1
            tries = MAX_TRIES if self.protocol else MAX_FIRST_TRIES
            if is_worth_trying and self._failures < tries:
                self._set_state("restarting")
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.0 if self._failures == 1 else BACKOFF * 2**self._failures):
                        await self._closing.wait()
            else:
                self._set_state("down")
                await _wait_for_any(self._wanted, self._closing)
                self._wanted.clear()

    async def _connect(self) -> None:
        """Connect, list the tools, and wait until the server hangs up or the connection is dropped."""
        from mcp import Client

        server = self.server
        self._gone.clear()
        streams = connect_http(server, self._gone) if server.url else start_child(server, self._gone, self._stderr)
        async with Client(
            streams, mode=server.protocol, read_timeout_seconds=server.start_timeout, cache=None
        ) as client:
            listed: dict[str, ListedTool] = {}
            cursor, pages = None, MAX_PAGES if client.server_capabilities.tools is not None else 0
            for _ in range(pages):  # a list that never ends is cut off
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    listed.setdefault(tool.name, tool)
                cursor = page.next_cursor
                if cursor is None or len(listed) >= MAX_LISTED:
                    break
            self.listed = tuple(listed[name] for name in sorted(listed)[:MAX_LISTED])
            self.protocol = client.protocol_version
            self.versions = {tool.name: compute_version(tool) for tool in self.listed}
            self.changed = self._known.find_changed(server.name, self.versions)
            self._client, self.error = client, ""
            self._set_state("up")
            try:
                await _wait_for_any(self._gone, self._closing)
            finally:
                if self._client is client:
                    self._set_state("restarting")


def compute_version(tool: ListedTool) -> str:
    """Compute a digest of what a server says about a tool, whatever the order."""
    described = tool.model_dump(mode="json", include={"title", "description", "input_schema", "annotations"})
    if tool.output_schema is not None:  # most have none, and then approvals of older versions of treadle still hold
        described["output_schema"] = tool.output_schema
    return hashlib.sha256(msgspec.json.encode(described, order="sorted")).hexdigest()[:32]


async def _wait_for_any(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _find_cause(error: BaseException) -> BaseException:
    """Return the first error of a group."""
    if isinstance(error, BaseExceptionGroup):
        return _find_cause(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error
