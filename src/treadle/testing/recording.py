"""Record real exchanges with a provider in a small JSON file, and replay them over a real socket.

A recording has the responses and a digest of each request. It has no keys, and only a few harmless headers.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from aiohttp import web

_RECORDED_HEADERS = ("content-type", "retry-after", "retry-after-ms")
_DROPPED_HEADERS = ("host", "content-length", "accept-encoding", "connection", "transfer-encoding")


class Exchange(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The digest of a request and the response to it. The body is in `base64` if it is no text."""

    path: str
    asked: str = ""
    status: int = 200
    headers: dict[str, str] = {}
    body: str = ""
    base64: str = ""

    @property
    def raw(self) -> bytes:
        return base64.b64decode(self.base64) if self.base64 else self.body.encode()


class Recording(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The exchanges with a server. `about` describes the recording, and `expect` the expected result."""

    about: str = ""
    protocol: str = ""
    exchanges: tuple[Exchange, ...] = ()
    expect: dict[str, msgspec.Raw] = {}


def load(path: Path | str) -> Recording:
    """Load a recording from a file."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Recording)


@asynccontextmanager
async def record(upstream: str, path: Path | str, *, about: str = "") -> AsyncGenerator[str, None]:
    """Yield a local base URL that forwards every request to `upstream` and records the responses.

    `upstream` is a base URL for a model, such as `https://api.example.org/v1`. The recording is also written when the
    block ends with an error, because a refusal is worth recording too.
    """
    import aiohttp
    from aiohttp import web

    exchanges: list[Exchange] = []
    parts = urlsplit(upstream)
    async with aiohttp.ClientSession(auto_decompress=True) as session:

        async def forward(asked: web.BaseRequest, body: bytes) -> web.Response:
            headers = {name: value for name, value in asked.headers.items() if name.lower() not in _DROPPED_HEADERS}
            url = f"{parts.scheme}://{parts.netloc}{asked.raw_path}"
            try:
                async with session.request(asked.method, url, data=body, headers=headers) as response:
                    answer = await response.read()
            except aiohttp.ClientError as error:
                return web.Response(status=502, text=f"{parts.hostname} gave no answer: {type(error).__name__}")
            kept = {name: response.headers[name] for name in _RECORDED_HEADERS if name in response.headers}
            recorded = answer
            for name in ("authorization", "x-api-key", "api-key"):
                if secret := asked.headers.get(name, "").removeprefix("Bearer ").encode():
                    recorded = recorded.replace(secret, b"[secret]")
            try:
                content = {"body": recorded.decode()}
            except UnicodeDecodeError:
                content = {"base64": base64.b64encode(recorded).decode()}
            digest = _compute_digest(body)
            exchanges.append(
                Exchange(path=asked.raw_path, asked=digest, status=response.status, headers=kept, **content)
            )
            return web.Response(status=response.status, headers=kept, body=answer)

        try:
            async with _serve(forward) as base_url:
                yield base_url + parts.path.rstrip("/")
        finally:
            if exchanges:
                recording = Recording(about=about, exchanges=tuple(exchanges))
                text = msgspec.json.format(msgspec.json.encode(recording), indent=1)
                await asyncio.to_thread(Path(path).write_bytes, text + b"\n")


@asynccontextmanager
async def replay(recording: Recording | Path | str, *, exact: bool = False) -> AsyncGenerator[str, None]:
    """Yield a local base URL that replays the recorded responses in order, for each kind of request.

    With `exact`, a request that differs from the recorded one is refused with 400, so that nobody retries it.
    """
    from aiohttp import web

    known = recording if isinstance(recording, Recording) else load(recording)
    rest = list(known.exchanges)

    async def answer(asked: web.BaseRequest, body: bytes) -> web.Response:
        matching = (exchange for exchange in rest if _find_kind(exchange.path) in ("", _find_kind(asked.raw_path)))
        exchange = next(matching, None)
        if exchange is None:
            return web.Response(status=410, text="the recording has ended")
        if exact and exchange.asked != _compute_digest(body):
            return web.Response(status=400, text="this is not the request that was recorded")
        rest.remove(exchange)
        return web.Response(status=exchange.status, headers=exchange.headers, body=exchange.raw)

    async with _serve(answer) as base_url:
        yield base_url


def _find_kind(path: str) -> str:
    """Return the kind of a request. On some machines a model asks for its window first."""
    return path.partition("?")[0].rpartition("/")[2]


def _compute_digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@asynccontextmanager
async def _serve(answer: Callable[[web.BaseRequest, bytes], Awaitable[web.Response]]) -> AsyncGenerator[str, None]:
    """Run a small HTTP server on loopback, with one request per connection."""
    from aiohttp import web

    async def handle(asked: web.BaseRequest) -> web.Response:
        response = await answer(asked, await asked.content.read())
        response.force_close()
        return response

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
