"""HTTP/1.1 over a unix socket: only the part of it that the engine's server uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec


class UnixResponse:
    """The status of a response, and its body as it arrives."""

    def __init__(self, status: int, reader: asyncio.StreamReader, length: int | None) -> None:
        self.status = status
        self._reader = reader
        self._length = length

    async def iterate_blocks(self) -> AsyncGenerator[bytes, None]:
        """The body in the blocks in which it was sent. Raises `EOFError` when it breaks off."""
        if self._length is not None:
            yield await self._reader.readexactly(self._length)
            return
        while size := int(await _read_line(self._reader), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([block async for block in self.iterate_blocks()])


@asynccontextmanager
async def open_exchange(
    socket: Path, path: str, body: object = None, key: str = ""
) -> AsyncGenerator[UnixResponse, None]:
    """Send one request and read its response. Leaving the block closes the connection and so stops the server."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        content = b"" if body is None else msgspec.json.encode(body)
        verb = "GET" if body is None else "POST"
        head = f"{verb} {path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {key}\r\n" if key else ""
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        status = int((await _read_line(reader)).split()[1])
        length: int | None = None
        while line := await _read_line(reader):
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        yield UnixResponse(status, reader, length)
    finally:
        writer.transport.abort()


async def _read_line(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the connection was closed")
    return line.decode("latin-1").strip()
