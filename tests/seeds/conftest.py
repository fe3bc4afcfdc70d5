"""A real `treadle serve` process in front of a provider on a socket, and a plain HTTP client for it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.obedient_provider import ObedientProvider
from tests.kit.serve_process import start_server
from tests.kit.sessions import PATIENCE


class Caller:
    """Sends requests as any program would. It knows nothing of treadle but its address and token."""

    def __init__(self, http: aiohttp.ClientSession, address: str, work: Path) -> None:
        self.http, self.address, self.work = http, address, work

    async def call(self, method: str, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        """The document of an answer that must have this status."""
        async with self.http.request(method, path, json=body, **options) as answer:
            text = await answer.text()
            assert answer.status == status, f"{method} {path}: {answer.status} {text}"
            return json.loads(text) if text else None

    async def read_stream(
        self, method: str, path: str, body: Any = None, *, until: str = "", **options: Any
    ) -> list[dict[str, str]]:
        """The server-sent events of an answer, as their fields, up to its end or the event named `until`."""
        found: list[dict[str, str]] = []
        async with self.http.request(method, path, json=body, **options) as answer:
            assert answer.status == 200, f"{method} {path}: {answer.status} {await answer.text()}"
            fields: dict[str, str] = {}
            async for line in answer.content:
                name, _, value = line.decode().rstrip("\n").partition(":")
                if name and value:
                    fields[name] = value.removeprefix(" ")
                elif not name and not value and "data" in fields:
                    found.append(fields)
                    if until and fields.get("event") == until:
                        break
                    fields = {}
        return found

    def open_socket(self, path: str) -> Any:
        """A WebSocket. The block ends its connection."""
        return self.http.ws_connect(path)


async def read_frames(socket: aiohttp.ClientWebSocketResponse, *ends: str, field: str = "type") -> list[dict[str, Any]]:
    """The frames of a socket up to the first whose `field` is one of `ends`."""
    frames: list[dict[str, Any]] = []
    while not frames or frames[-1].get(field) not in ends:
        frames.append(json.loads(await socket.receive_str(timeout=PATIENCE)))
    return frames


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with (
        ObedientProvider() as provider,
        start_server(tmp_path, provider) as (address, token),
        aiohttp.ClientSession(address, headers={"authorization": f"Bearer {token}"}) as http,
    ):
        yield Caller(http, address, tmp_path / "work")
        assert provider.rejected == []
