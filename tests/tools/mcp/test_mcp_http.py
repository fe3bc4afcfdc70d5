"""MCP servers behind an address: forgotten sessions, lost connections, refusals."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.tools.mcp.conftest import Web, connect
from treadle.tools.base import ToolError
from treadle.tools.mcp import connection
from treadle.tools.mcp.server_config import McpServer

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


@ERAS
async def test_a_server_that_was_restarted_has_forgotten_us_and_the_call_still_works_once(
    era: str, web: Web, tmp_path: Path
) -> None:
    async with connect(web.server(protocol=era)) as mcp:
        await mcp.call("served__append", path=str(tmp_path / "trace"), word="one")
        web.stop()
        web.start()
        await mcp.call("served__append", path=str(tmp_path / "trace"), word="two")
        assert (tmp_path / "trace").read_text() == "one\ntwo\n"
        assert mcp.health.state == "up"


async def test_a_call_of_a_stopped_server_is_not_run_until_the_server_is_back(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BACKOFF", 0.01)
    async with connect(web.server()) as mcp:
        web.stop()
        with pytest.raises(ToolError, match=r"served is down: the server cannot be reached .* Not run"):
            await mcp.call("served__add", a=1, b=2)
        assert mcp.health.state == "down"
        web.start()
        assert await mcp.add(1, 2) == "3"
        assert mcp.health.state == "up"


class RefusingHandler(BaseHTTPRequestHandler):
    """Answers every request with one status, and keeps the headers."""

    status, seen = 401, list[str]()

    def do_POST(self) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        self.rfile.read(int(self.headers["Content-Length"]))  # a connection closed on what was not read is reset
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def refusing_server() -> Iterator[ThreadingHTTPServer]:
    RefusingHandler.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), RefusingHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("status", "words"), [(401, "look at the headers"), (500, "HTTP 500")])
async def test_a_server_that_refuses_us_is_down_and_says_why(
    status: int, words: str, refusing_server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RefusingHandler, "status", status)
    address = f"http://127.0.0.1:{refusing_server.server_address[1]}/mcp"
    server = McpServer(name="refusing", url=address, headers={"Authorization": "Bearer sk-secret"})
    async with connect(server) as mcp:
        assert mcp.tools == []
        health = mcp.health
    assert health.state == "down" and words in health.error and "secret" not in health.error
    assert set(RefusingHandler.seen) == {"Bearer sk-secret"}
