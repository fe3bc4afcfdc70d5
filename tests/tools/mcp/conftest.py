"""Real MCP servers to talk to: child processes and loopback ports, written with the SDK or by hand."""

import json
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import PATIENCE
from treadle.tools.base import Tool, ToolContext, ToolResult
from treadle.tools.mcp.connection import McpHealth
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.servers import McpServers

HERE = Path(__file__).parent


def child(name: str = "served", *args: str, script: str = "served.py", **options: Any) -> McpServer:
    """A server written with the SDK, started by us: without a sandbox, since it leaves traces for the test."""
    options = {"start_timeout": PATIENCE, "sandbox": False, "trusted": True, **options}
    return McpServer(name=name, command=sys.executable, args=(str(HERE / script), *args), **options)


def odd(how: str, name: str = "odd", **options: Any) -> McpServer:
    """A server that does something that no good server does."""
    return child(name, how, script="odd.py", **options)


def reserve_port() -> socket.socket:
    """Bind a port that the system assigns to nobody, so that nobody else takes it while no server listens."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        with socket.socket() as tried, suppress(OSError):
            port = random.randrange(first // 2, first)
            tried.bind(("127.0.0.1", port))
            # From here on a server that shares the port may bind it too. Only a socket that listens gets connections.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return tried.dup()
    raise AssertionError("no port is free")


class Web:
    """A server written with the SDK, on a loopback port. It can stop and start again on the same port."""

    def __init__(self) -> None:
        self._held = reserve_port()
        self.port = self._held.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, str(HERE / "served.py"), "--http", "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert int(self._process.stdout.readline()) == self.port

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        self.stop()
        self._held.close()

    def server(self, **options: Any) -> McpServer:
        return McpServer(name="served", url=f"http://127.0.0.1:{self.port}/mcp", start_timeout=PATIENCE, **options)


@pytest.fixture
def web() -> Iterator[Web]:
    server = Web()
    server.start()
    yield server
    server.close()


class McpClient:
    """Open servers and their tools, which are called as the engine calls them."""

    def __init__(self, servers: McpServers, tools: list[Tool]) -> None:
        self.servers, self.tools = servers, tools

    @property
    def health(self) -> McpHealth:
        """The state of the first server."""
        return self.servers.get_health()[0]

    async def call(self, name: str, **arguments: Any) -> ToolResult:
        tool = {tool.name: tool for tool in self.tools}[name]
        result = await tool.run(tool.parse(json.dumps(arguments)), ToolContext("session", "call", Path()))
        assert isinstance(result, ToolResult)
        return result

    async def add(self, a: int, b: int) -> str:
        return (await self.call("served__add", a=a, b=b)).text

    async def look_around(self, server: str = "served") -> dict[str, Any]:
        """Return the environment of a server, as it sees it."""
        return json.loads((await self.call(f"{server}__surroundings")).text)


@asynccontextmanager
async def connect(*servers: McpServer, **options: Any) -> AsyncIterator[McpClient]:
    async with McpServers(servers, **options) as opened:
        yield McpClient(opened, await opened.list_tools())


@pytest.fixture(params=["started, auto", "started, legacy", "http, auto", "http, legacy"])
def any_server(request: pytest.FixtureRequest) -> McpServer:
    """A server written with the SDK, over each transport and in each era of the protocol."""
    transport, _, era = request.param.partition(", ")
    return request.getfixturevalue("web").server(protocol=era) if transport == "http" else child(protocol=era)
