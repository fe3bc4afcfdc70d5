"""Real MCP servers to talk to: child processes and loopback ports, written with the SDK or by hand."""

import asyncio
import json
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import PATIENCE
from treadle.tools.base import Tool, ToolContext, ToolResult
from treadle.tools.mcp.server_config import McpServer

HERE = Path(__file__).parent


def child(name: str = "served", *args: str, **options: Any) -> McpServer:
    """A server written with the SDK, started by us."""
    options = {"start_timeout": PATIENCE, **options}
    return McpServer(name=name, command=sys.executable, args=(str(HERE / "served.py"), *args), **options)


def odd(how: str, name: str = "odd", **options: Any) -> McpServer:
    """A server that does something that no good server does."""
    options = {"start_timeout": PATIENCE, **options}
    return McpServer(name=name, command=sys.executable, args=(str(HERE / "odd.py"), how), **options)


async def until(so: Callable[[], bool]) -> None:
    """Wait until something is so that only another process decides."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if so():
                return
            await asyncio.sleep(0.01)


def quiet_port() -> socket.socket:
    """A port that the system gives to nobody by itself, held so that nobody else takes it while no server is there."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        with socket.socket() as tried, suppress(OSError):
            port = random.randrange(first // 2, first)
            tried.bind(("127.0.0.1", port))
            # From here on those may bind it too who share; who listens is found, and who only holds it is not.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return tried.dup()
    raise AssertionError("no port is free")


class Web:
    """A server written with the SDK, on a loopback port; it can go away and come back on the same one."""

    def __init__(self) -> None:
        self._held = quiet_port()
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
    made = Web()
    made.start()
    yield made
    made.close()


class Caller:
    """Calls tools as the engine would, and hears their progress."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.context = ToolContext("session", "call", folder, progress=lambda *args: self.heard.append(args))

    async def __call__(self, tools: list[Tool], name: str, **arguments: Any) -> ToolResult:
        tool = {tool.name: tool for tool in tools}[name]
        result = await tool.run(tool.parse(json.dumps(arguments)), self.context)
        assert isinstance(result, ToolResult)
        return result


@pytest.fixture
def call(tmp_path: Path) -> Caller:
    return Caller(tmp_path)
