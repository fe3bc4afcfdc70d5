"""Records a real exchange with a provider to a small JSON file, and plays it back over a real socket.

A recording holds what the server sent and a digest of what it was asked; no key, no header but a few harmless ones.
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

_KEPT = ("content-type", "retry-after", "retry-after-ms")
_NOT_PASSED_ON = ("host", "content-length", "accept-encoding", "connection", "transfer-encoding")


class Exchange(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request's digest and the response to it; `base64` where the body is no text."""

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
    """What one conversation with a server was. `about` says what is odd in it, `expect` what must come of it."""

    about: str = ""
    protocol: str = ""
    exchanges: tuple[Exchange, ...] = ()
    expect: dict[str, msgspec.Raw] = {}


def load(path: Path | str) -> Recording:
    """The recording in a file."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Recording)


class _Asked(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


@asynccontextmanager
async def record(upstream: str, path: Path | str, *, about: str = "") -> AsyncGenerator[str, None]:
    """A base URL on this machine that passes everything on to `upstream` and records what comes back.

    `upstream` is a base URL as a model takes it, such as `https://api.example.org/v1`. What came is kept also where the
    block ends with an error: a refusal is worth recording too.
    """
    import aiohttp

    taken: list[Exchange] = []
    parts = urlsplit(upstream)
    async with aiohttp.ClientSession(auto_decompress=True) as session:

        async def pass_on(asked: _Asked) -> _Answer:
            headers = {name: value for name, value in asked.headers.items() if name not in _NOT_PASSED_ON}
            url = f"{parts.scheme}://{parts.netloc}{asked.path}"
            try:
                async with session.request(asked.method, url, data=asked.body, headers=headers) as response:
                    body = await response.read()
            except aiohttp.ClientError as error:
                return _Answer(502, {}, f"{parts.hostname} gave no answer: {type(error).__name__}".encode())
            kept = {name: response.headers[name] for name in _KEPT if name in response.headers}
            taken.append(_exchange(asked, response.status, kept, body))
            return _Answer(response.status, kept, body)

        try:
            async with _serve(pass_on) as base_url:
                yield base_url + parts.path.rstrip("/")
        finally:
            if taken:
                recording = Recording(about=about, exchanges=tuple(taken))
                text = msgspec.json.format(msgspec.json.encode(recording), indent=1)
                await asyncio.to_thread(Path(path).write_bytes, text + b"\n")


@asynccontextmanager
async def replay(recording: Recording | Path | str, *, exact: bool = False) -> AsyncGenerator[str, None]:
    """A base URL on this machine that answers as recorded, one exchange after the other for each kind of request.

    With `exact` a request that is not the recorded one to the byte is refused with 400: no retry makes it right.
    """
    known = recording if isinstance(recording, Recording) else load(recording)
    rest = list(known.exchanges)

    async def answer(asked: _Asked) -> _Answer:
        exchange = next((one for one in rest if _kind(one.path) in ("", _kind(asked.path))), None)
        if exchange is None:
            return _Answer(410, {}, b"the recording has ended")
        if exact and exchange.asked != _digest(asked.body):
            return _Answer(400, {}, b"this is not the request that was recorded")
        rest.remove(exchange)
        return _Answer(exchange.status, exchange.headers, exchange.raw)

    async with _serve(answer) as base_url:
        yield base_url


def _exchange(asked: _Asked, status: int, headers: Mapping[str, str], body: bytes) -> Exchange:
    for name in ("authorization", "x-api-key", "api-key"):
        secret = asked.headers.get(name, "").removeprefix("Bearer ").encode()
        if secret:
            body = body.replace(secret, b"[secret]")
    common = Exchange(path=asked.path, asked=_digest(asked.body), status=status, headers=dict(headers))
    try:
        return msgspec.structs.replace(common, body=body.decode("utf-8"))
    except UnicodeDecodeError:
        return msgspec.structs.replace(common, base64=base64.b64encode(body).decode())


def _kind(path: str) -> str:
    """What a request is for: a model may ask for its window first, and not on every machine."""
    return path.partition("?")[0].rpartition("/")[2]


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@asynccontextmanager
async def _serve(answer: Callable[[_Asked], Awaitable[_Answer]]) -> AsyncGenerator[str, None]:
    """A small HTTP server on loopback, one request a connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await _read(reader)
            status, headers, body = await answer(asked)
            lines = [f"HTTP/1.1 {status} recorded", "connection: close", f"content-length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> _Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    return _Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
