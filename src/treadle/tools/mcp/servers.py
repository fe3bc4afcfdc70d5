"""All MCP servers of an agent: opened together, offered as tools, closed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from treadle.errors import BadInput
from treadle.tools.base import Tool
from treadle.tools.mcp.connection import Connection, McpHealth
from treadle.tools.mcp.known_tools import KnownTools
from treadle.tools.mcp.mcp_tool import McpTool
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.tool_search import CallTool, SearchTools

MAX_TOOLS = 30
MAX_BYTES = 24_000
"""The size of all descriptions: about 6 000 tokens in every request. Above either limit, the model searches tools."""


class McpServers:
    """`async with McpServers([...]) as servers: Agent(tools=[..., *await servers.list_tools()])`.

    A server that dies is started again. One that stays away is `down` in `get_health()`, and its tools say so when they
    are called. `list_tools()` decides once which tools are offered, because the start of a prompt must not change.

    A tool that is new, or that its server describes differently, is asked for until a call of it was allowed, whatever
    was approved before. The file `known` keeps what servers said, so that this also holds after a restart.
    """

    def __init__(
        self,
        servers: Sequence[McpServer],
        *,
        max_tools: int = MAX_TOOLS,
        max_bytes: int = MAX_BYTES,
        known: Path | None = None,
    ) -> None:
        names = [server.name for server in servers]
        if len(set(names)) < len(names):
            raise BadInput("two MCP servers have the same name; their tools are named after them, so rename one")
        self._servers, self._max_tools, self._max_bytes = tuple(servers), max_tools, max_bytes
        self._known = known
        self._connections: list[Connection] = []

    async def __aenter__(self) -> McpServers:
        if self._servers:
            try:
                import mcp
            except ImportError:
                raise BadInput("MCP servers need the package `mcp`: pip install 'treadle[mcp]'") from None
            # `get_health` reports broken servers. The SDK must not write about them to the terminal.
            logger = logging.getLogger(mcp.__name__)
            if not logger.handlers:
                logger.addHandler(logging.NullHandler())
        tools = KnownTools(self._known)
        self._connections = [Connection(server, tools) for server in self._servers]
        for connection in self._connections:
            connection.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def list_tools(self) -> list[Tool]:
        """List the tools once each server is up or down. When there are many, return two that search and call them."""
        await asyncio.gather(*(connection.wait_until_settled() for connection in self._connections))
        tools = self._build_tools()
        size = sum(len(msgspec.json.encode(tool.spec)) for tool in tools.values())
        if len(tools) <= self._max_tools and size <= self._max_bytes:
            return list(tools.values())
        names = [server.name for server in self._servers]
        return [SearchTools(names, self._build_tools, self.get_health), CallTool(self._build_tools)]

    def get_health(self) -> list[McpHealth]:
        """Return the state of each server, in the order given."""
        return [connection.get_health() for connection in self._connections]

    def list_tool_names(self) -> dict[str, list[str]]:
        """List the names of the tools of each server, as it listed them last."""
        return {
            connection.server.name: [McpTool(connection, listed).name for listed in connection.listed]
            for connection in self._connections
        }

    def _build_tools(self) -> dict[str, McpTool]:
        """Build all tools by name, as the servers listed them last."""
        tools = [McpTool(connection, listed) for connection in self._connections for listed in connection.listed]
        return {tool.name: tool for tool in tools}
