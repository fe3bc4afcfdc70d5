"""HTTP over a unix socket, as the engine's server sends it and as it breaks off."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from treadle.models.local import unix_http


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[tuple[Path, list[bytes]]]:
    """A server that sends `answer` byte by byte to whoever asks, and hangs up."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        received.append(head + await reader.readexactly(length))
        for i in range(len(answer)):
            writer.write(answer[i : i + 1])
            await writer.drain()
        writer.close()

    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "s.sock"
        async with await asyncio.start_unix_server(serve, socket):
            yield socket, received


async def test_a_body_of_known_length_is_read_whole() -> None:
    whole = b'HTTP/1.1 200 OK\r\ncontent-LENGTH: 11\r\n\r\n{"a": true}'
    async with server(whole) as (socket, received), unix_http.open_exchange(socket, "/x", {"q": "ü"}) as response:
        assert (response.status, await response.read()) == (200, b'{"a": true}')
    assert received[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert received[0].endswith(b'\r\n\r\n{"q":"\xc3\xbc"}')


async def test_a_chunked_body_is_read_block_by_block() -> None:
    blocks = [b'data: {"a": ', b"1}\n\n", b": still there\n\n"]
    body = b"".join(b"%x\r\n%s\r\n" % (len(block), block) for block in blocks) + b"0\r\n\r\n"
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    async with server(whole) as (socket, _), unix_http.open_exchange(socket, "/x", {}) as response:
        assert [block async for block in response.iterate_blocks()] == blocks


@pytest.mark.parametrize("kept", [0, 5, 30, 60, 70])
async def test_a_response_that_breaks_off_is_an_error(kept: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"a\r\n0123456789\r\n" * 2 + b"0\r\n\r\n"
    async with server(whole[:kept]) as (socket, _):
        with pytest.raises((EOFError, OSError)):
            async with unix_http.open_exchange(socket, "/x", {}) as response:
                await response.read()
