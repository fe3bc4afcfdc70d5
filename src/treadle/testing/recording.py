"""Record real exchanges with a provider in a small JSON file, and replay them over a real socket.

A recording has the responses and a digest of each request. It has no keys, and only a few harmless headers.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

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


class _RecordedRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class _RecordedResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


@asynccontextmanager
async def record(upstream: str, path: Path | str, *, about: str = "") -> AsyncGenerator[str, None]:
    """Yield a local base URL that forwards every request to `upstream` and records the responses.

    `upstream` is a base URL for a model, such as `https://api.example.org/v1`. The recording is also written when the
    block ends with an error, because a refusal is worth recording too.
    """
    import aiohttp

    exchanges: list[Exchange] = []
    parts = urlsplit(upstream)
    async with aiohttp.ClientSession(auto_decompress=True) as session:

        async def forward(asked: _RecordedRequest) -> _RecordedResponse:
            headers = {name: value for name, value in asked.headers.items() if name not in _DROPPED_HEADERS}
            url = f"{parts.scheme}://{parts.netloc}{asked.path}"
            try:
                async with session.request(asked.method, url, data=asked.body, headers=headers) as response:
                    body = await response.read()
            except aiohttp.ClientError as error:
                return _RecordedResponse(502, {}, f"{parts.hostname} gave no answer: {type(error).__name__}".encode())
            kept = {name: response.headers[name] for name in _RECORDED_HEADERS if name in response.headers}
            exchanges.append(_build_exchange(asked, response.status, kept, body))
            return _RecordedResponse(response.status, kept, body)

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
    known = recording if isinstance(recording, Recording) else load(recording)
    rest = list(known.exchanges)

    async def answer(asked: _RecordedRequest) -> _RecordedResponse:
        matching = (exchange for exchange in rest if _find_kind(exchange.path) in ("", _find_kind(asked.path)))
        exchange = next(matching, None)
        if exchange is None:
            return _RecordedResponse(410, {}, b"the recording has ended")
        if exact and exchange.asked != _compute_digest(asked.body):
            return _RecordedResponse(400, {}, b"this is not the request that was recorded")
        rest.remove(exchange)
        return _RecordedResponse(exchange.status, exchange.headers, exchange.raw)

    async with _serve(answer) as base_url:
        yield base_url


def _build_exchange(asked: _RecordedRequest, status: int, headers: Mapping[str, str], body: bytes) -> Exchange:
    for name in ("authorization", "x-api-key", "api-key"):
        secret = asked.headers.get(name, "").removeprefix("Bearer ").encode()
        if secret:
            body = body.replace(secret, b"[secret]")
    common = Exchange(path=asked.path, asked=_compute_digest(asked.body), status=status, headers=dict(headers))
    try:
        return msgspec.structs.replace(common, body=body.decode("utf-8"))
    except UnicodeDecodeError:
        return msgspec.structs.replace(common, base64=base64.b64encode(body).decode())


def _find_kind(path: str) -> str:
    """Return the kind of a request. On some machines a model asks for its window first."""
    return path.partition("?")[0].rpartition("/")[2]


def _compute_digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@asynccontextmanager
async def _serve(answer: Callable[[_RecordedRequest], Awaitable[_RecordedResponse]]) -> AsyncGenerator[str, None]:
    """Run a small HTTP server on loopback, with one request per connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            method, path, _ = first.split(" ", 2)
            pairs = (line.partition(":") for line in lines)
            sent = {name.lower(): value.strip() for name, _, value in pairs if name}
            content = await reader.readexactly(int(sent.get("content-length", 0)))
            asked = _RecordedRequest(method, path, sent, content)
            status, headers, body = await answer(asked)
            lines = [f"HTTP/1.1 {status} recorded", "connection: close", f"content-length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def start_task(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(start_task, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
