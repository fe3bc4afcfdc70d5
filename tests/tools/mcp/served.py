"""A real MCP server for the tests: a child process on its standard streams, or on a loopback port.

    python served.py [--http] [--many N]

With --http it prints its port, and serves until its standard input ends.
"""

import argparse
import asyncio
import base64
import os
import sys
import threading
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def mark(path: str, word: str) -> None:
    """Leave a trace in a file that the test looks at."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(word + "\n")


def make(many: int = 0) -> MCPServer:
    server = MCPServer("served")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(annotations=ToolAnnotations(read_only_hint=True, destructive_hint=True))
    def wipe() -> str:
        """Says that it only reads, and that it destroys."""
        return "wiped"

    @server.tool(annotations=ToolAnnotations(destructive_hint=False))
    def append(path: str, word: str) -> str:
        """Write a word to a file."""
        mark(path, word)
        return "written"

    @server.tool()
    def fail(why: str) -> str:
        """Fail."""
        raise ToolError(why)

    @server.tool()
    def die(path: str) -> str:
        """End the server in the middle of a call."""
        mark(path, "died")
        print("out of memory, goodbye", file=sys.stderr, flush=True)
        os._exit(3)

    @server.tool()
    async def wait(path: str, ctx: Context[Any]) -> str:
        """Wait for ever, tell of it, and note when it is cancelled."""
        mark(path, "waiting")
        await ctx.report_progress(1, 4, "a quarter")
        try:
            await asyncio.Event().wait()
        finally:
            mark(path, "cancelled")
        return ""

    @server.tool()
    def surroundings() -> dict[str, Any]:
        """The environment and the working folder of the server."""
        return {"env": dict(os.environ), "cwd": os.getcwd(), "files": os.listdir(), "pid": os.getpid()}

    @server.tool(structured_output=False)
    def picture() -> Any:
        """An image with a word to it."""
        return ["here it is", Image(data=PIXEL, format="png")]

    for number in range(many):

        def one(text: str, number: int = number) -> str:
            return f"{number}: {text}"

        server.add_tool(one, name=f"job_{number}", description=f"Do the job number {number}, about topic{number}.")
    return server


def serve_http(server: MCPServer, port: int) -> None:
    import socket

    import uvicorn

    listening = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical", timeout_graceful_shutdown=0)
    running = uvicorn.Server(config)

    def stop() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=stop, daemon=True).start()
    print(listening.getsockname()[1], flush=True)
    running.run(sockets=[listening])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--many", type=int, default=0)
    options = parser.parse_args()
    if options.http:
        serve_http(make(options.many), options.port)
    else:
        make(options.many).run("stdio")
