"""One MCP server kept reachable: connected, listed, started again when it dies, and called.

One task owns the connection from beginning to end, because the SDK's scopes must be left where they were entered.
A call that may have reached the server is never sent twice.
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
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.transport import CONNECTION_LOST, NOT_REACHED, SESSION_GONE, StderrTail, open_streams

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

MAX_TRIES = 5
"""Failures in a row, without an answered call between them, until a server is left down."""

MAX_FIRST_TRIES = 2
"""The same for a server that was never up: whoever opens it waits for this."""

BACKOFF = 0.25
MAX_PAGES = 100
MAX_LISTED = 2000
_SLACK = 10.0
_CLOSED = "Connection closed"
"""What the SDK says when it notices that by itself, also before the end of the stream is seen."""

_CLOSING = 20.0
"""Longer than the SDK takes to end a child that does not want to, also where all is slow: cut off, it would stay."""

ServerState = Literal["starting", "up", "restarting", "down", "closed"]
OnProgress = Callable[[str, float, float | None], None]


class McpHealth(Struct, frozen=True):
    """How a server is: its state, how many tools it has, and what went wrong last."""

    server: str
    state: ServerState
    tools: int = 0
    error: str = ""
    protocol: str = ""


class Connection:
    """A server, and the task that keeps it reachable."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._redactor = Redactor(server.find_secrets())
        self.state: ServerState = "starting"
        self.error = ""
        self.protocol = ""
        self.listed: tuple[ListedTool, ...] = ()
        self.changed: set[str] = set()
        self._first_told: dict[str, str] = {}
        self._client: Client | None = None
        self._failures = 0
        self._tail = StderrTail()
        self._gone = asyncio.Event()
        self._settled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to connect; `settled` says when that is decided."""
        self._keeper = asyncio.create_task(self._keep(), name=f"mcp {self.server.name}")

    async def wait_until_settled(self) -> None:
        """Wait until the server is up, or down."""
        await self._settled.wait()

    async def close(self) -> None:
        """Hang up and end the server's process; bounded in time."""
        self._closing.set()
        keeper = self._keeper
        if keeper is None:
            return
        # Nobody waits for a handshake any more; but a child that is being ended must not be left halfway.
        if self.state != "up" and not self._gone.is_set():
            keeper.cancel()
        done, _ = await asyncio.wait({keeper}, timeout=_CLOSING)
        if not done:
            keeper.cancel()
            await asyncio.wait({keeper}, timeout=_CLOSING)
        self._become("closed")

    def get_health(self) -> McpHealth:
        state = "restarting" if self.state == "up" and self._gone.is_set() else self.state
        return McpHealth(self.server.name, state, len(self.listed), self.error, self.protocol)

    async def call(self, name: str, arguments: Mapping[str, Json], on_progress: OnProgress) -> CallToolResult:
        """The result of a tool of this server; raises `ToolError`, which says whether it may have run."""
        from mcp import MCPError

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            on_progress(self.redact_text(message or ""), progress, total)

        limit = self.server.timeout + _SLACK  # the engine's own limit comes first, and cancels the request
        while True:
            client = await self._reachable()
            try:
                result = await client.call_tool(name, dict(arguments), limit, progress_callback=progressed)
            except MCPError as error:
                if error.code in (NOT_REACHED, SESSION_GONE) and self._connect_anew(client, error.message):
                    continue
                raise self._failed(client, error.code, error.message) from None
            except Exception as error:  # the SDK checks a result against the tool's own schema, and raises
                raise self._unknown(f"its answer cannot be used: {error}") from None
            self._failures = 0
            return result

    def _compare(self) -> None:
        """Notice tools of which a server, started again, says something else: nobody has said yes to that."""
        for tool in self.listed:
            now = compute_version(tool)
            if self._first_told.setdefault(tool.name, now) != now:
                self.changed.add(tool.name)

    def _connect_anew(self, client: Client, why: str) -> bool:
        """Let go of a connection on which a call did not run; whether the call is worth sending again."""
        if self._client is client:
            self.error = self.redact_text(why)
            self._become("restarting")
            self._gone.set()
        return self._failures < MAX_TRIES

    def _failed(self, client: Client, code: int, why: str) -> ToolError:
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if code in (NOT_REACHED, SESSION_GONE):
            return ToolError(self.redact_text(f"{self.server.name}: {why}. Not run."))
        if code in (CONNECTION_LOST, REQUEST_TIMEOUT) or (
            code == CONNECTION_CLOSED and not self._still_up(client, why)
        ):
            said = self._tail.read_text()
            return self._unknown(f"{why}; it said: {said}" if said else why)
        return ToolError(self.redact_text(f"{self.server.name}: {why}"))

    def _still_up(self, client: Client, why: str) -> bool:
        """Whether a child is there as before: servers use the code of a closed connection for errors of their own."""
        same = self._client is client and not self._gone.is_set()
        return same and not self.server.url and why != _CLOSED

    def redact_text(self, text: str) -> str:
        """A text of the server without the secrets that it was given."""
        return self._redactor.redact_text(text)

    def _unknown(self, why: str) -> ToolError:
        return ToolError(
            self.redact_text(
                f"{self.server.name}: outcome unknown, it may have run ({why}). Check before you repeat it."
            )
        )

    async def _reachable(self) -> Client:
        """The client, as soon as the server is up; a server that was left down is tried once more."""
        if self.state == "closed":
            raise ToolError(f"{self.server.name} is closed. Not run.")
        if self.state == "down":
            self._become("starting")
            self._wanted.set()
        if self._gone.is_set() and self.state == "up":
            self._become("restarting")
        await self._settled.wait()
        if self._client is None:
            raise ToolError(f"{self.server.name} is down: {self.error}. Not run; do without it, or tell the user.")
        return self._client

    def _become(self, state: ServerState) -> None:
        self.state = state
        if state in ("up", "down", "closed"):
            self._settled.set()
        else:
            self._settled.clear()
        if state != "up":
            self._client = None

    async def _keep(self) -> None:
        """Connect, hold, and connect again, until it is closed."""
        while not self._closing.is_set():
            self._tail, worth_trying = StderrTail(), True
            try:
                await self._hold()
                self.error = self.error or "it hung up"
            except Exception as error:
                cause = _cause(error)
                self.error = str(cause) or type(cause).__name__
                worth_trying = not isinstance(error, OSError) and not self._never_answered(cause)
            said = self._tail.read_text()
            self.error = self.redact_text(f"{self.error} (it said: {said})" if said else self.error)
            self._failures += 1
            tries = MAX_TRIES if self.protocol else MAX_FIRST_TRIES
            if worth_trying and self._failures < tries:
                self._become("restarting")
                await _until(self._closing, 0.0 if self._failures == 1 else BACKOFF * 2**self._failures)
            else:
                self._become("down")
                await _first(self._wanted, self._closing)
                self._wanted.clear()

    def _never_answered(self, error: BaseException) -> bool:
        """Whether a server that was never up did not answer in time: to try again would only take as long again."""
        from mcp import MCPError
        from mcp_types import REQUEST_TIMEOUT

        return not self.protocol and isinstance(error, MCPError) and error.code == REQUEST_TIMEOUT

    async def _hold(self) -> None:
        """Connect, list the tools, and stay until the server hangs up or is to be let go."""
        from mcp import Client

        self._gone.clear()
        client = Client(
            open_streams(self.server, self._gone, self._tail),
            mode=self.server.protocol,
            read_timeout_seconds=self.server.start_timeout,
            cache=None,
        )
        async with client:
            self.listed, self.protocol = await _list(client), client.protocol_version
            self._compare()
            self._client, self.error = client, ""
            self._become("up")
            try:
                await _first(self._gone, self._closing)
            finally:
                if self._client is client:
                    self._become("restarting")


def compute_version(tool: ListedTool) -> str:
    """A digest of what a server says of a tool, in whatever order it says it."""
    told = tool.model_dump(mode="json", include={"title", "description", "input_schema", "annotations"})
    return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()[:32]


async def _list(client: Client) -> tuple[ListedTool, ...]:
    """All tools of a server, page by page; one that never ends is cut off."""
    if client.server_capabilities.tools is None:
        return ()
    listed: dict[str, ListedTool] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            listed.setdefault(tool.name, tool)
        cursor = page.next_cursor
        if cursor is None or len(listed) >= MAX_LISTED:
            break
    return tuple(listed[name] for name in sorted(listed)[:MAX_LISTED])


async def _first(*events: asyncio.Event) -> None:
    """Wait for any of the events."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _until(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, and so long at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _cause(error: BaseException) -> BaseException:
    """The first in a group of errors."""
    if isinstance(error, BaseExceptionGroup):
        return _cause(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error
