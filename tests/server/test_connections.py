"""Connections without a token: none holds the server up, however many there are and however slowly they send."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from tests.kit.server import OWNER, Client
from tests.kit.sessions import PATIENCE
from tests.server.worker import ServerForker, start_forker
from treadle.server.config import ServerConfig
from treadle.server.connections import MIN_BODY_RATE, ConnectionTable, is_body_late

SHORT = 0.5
TOKEN = f"authorization: Bearer {OWNER.value}\r\n"
UPGRADE = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"


@pytest.fixture(scope="module")
def forker() -> Iterator[ServerForker]:
    with start_forker() as made:
        yield made


class Serve(Protocol):
    def __call__(self, descriptors: int = 0, **config: Any) -> str: ...


@pytest.fixture
def serve(forker: ServerForker, tmp_path: Path) -> Iterator[Serve]:
    """Starts a server as a process of its own, without a model. Its messages are in `log`. Returns its address."""

    def start(descriptors: int = 0, **config: Any) -> str:
        spec = {"port": "9", "model": "none", "side": "", "store": str(tmp_path / "store.db")}
        return forker.start(**spec, log=str(tmp_path / "log"), descriptors=descriptors, config=config)

    yield start
    forker.kill()


class Line:
    """A connection on which a test writes what it likes."""

    def __init__(self, base: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host, self.reader, self.writer = base.removeprefix("http://"), reader, writer

    def begin(self, request: str, *headers: str) -> None:
        """Write the beginning of a request."""
        self.writer.write(f"{request} HTTP/1.1\r\nhost: {self._host}\r\n{''.join(headers)}".encode())

    async def read_status(self) -> int:
        """The status of an answer, whose body is read too; 0 when the connection was closed."""
        head = b""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
            await self.reader.readexactly(int((head.partition(b"content-length: ")[2].split() or [b"0"])[0]))
        return int(head.split()[1]) if head else 0

    async def trickle_until_closed(self) -> None:
        """Write a byte now and then until the server closes the connection."""
        reading = asyncio.ensure_future(self.reader.read())
        async with asyncio.timeout(PATIENCE):
            while not reading.done():
                self.writer.write(b"x")
                await asyncio.wait((reading,), timeout=SHORT / 10)
        with suppress(ConnectionError):  # a byte came after the server had closed
            assert (await reading)[:13] in (b"", b"HTTP/1.1 408 ")


@asynccontextmanager
async def connect(base: str, request: bytes = b"") -> AsyncIterator[Line]:
    """Open a connection. A deadline begins with it, so the first request is sent with nothing in between."""
    host, _, port = base.removeprefix("http://").rpartition(":")
    opened = socket.create_connection((host, int(port)))
    opened.sendall(request)
    reader, writer = await asyncio.open_connection(sock=opened)
    try:
        yield Line(base, reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("headers", ["", TOKEN, UPGRADE + TOKEN])
async def test_a_request_whose_headers_never_end_is_cut_off(headers: str, serve: Serve) -> None:
    base = serve(header_seconds=SHORT)
    host = f"host: {base.removeprefix('http://')}\r\n"
    async with connect(base, f"GET /v1/sessions HTTP/1.1\r\n{host}{TOKEN}\r\n".encode()) as kept:
        assert await kept.read_status() == 200
        async with connect(base) as line, connect(base) as silent:
            line.begin("GET /v1/sessions", headers, "x-more: ")
            await line.trickle_until_closed()
            assert await silent.read_status() == 408
        # The deadline is for each request of a connection, and not for the time between them.
        kept.begin("GET /v1/sessions", TOKEN, "\r\n")
        assert await kept.read_status() == 200
        kept.begin("GET /v1/sessions", TOKEN, "x-more: ")
        await kept.trickle_until_closed()


@pytest.mark.parametrize("arrives", [True, False])
async def test_what_arrived_while_the_server_was_held_up_is_read_before_it_counts_as_late(arrives: bool) -> None:
    table = ConnectionTable(ServerConfig(open_to_everyone=True, header_seconds=0.001), descriptors=100)
    looks, closed = 0, asyncio.Event()

    class Request:
        def is_late(self, now: float, config: ServerConfig) -> bool:
            nonlocal looks
            looks += 1
            if looks == 10:
                closed.set()  # it was not
            return looks == 1 or not arrives

        def close(self, answer: bytes) -> None:
            table.watch(cast("Any", self), receiving=False)
            closed.set()

    table.watch(cast("Any", Request()), receiving=True)
    closing = asyncio.create_task(table.close_late_connections())
    await asyncio.wait_for(closed.wait(), PATIENCE)
    closing.cancel()
    assert looks == (10 if arrives else 2)


async def test_a_body_that_does_not_arrive_is_cut_off(serve: Serve) -> None:
    fields = "content-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    base = serve(body_seconds=SHORT)
    async with connect(base) as silent, connect(base) as slow, connect(base) as refused:
        for line in (silent, slow):
            line.begin("POST /v1/sessions", TOKEN, fields)
        assert await silent.read_status() == 408
        await slow.trickle_until_closed()
        refused.begin("POST /v1/sessions", fields)
        assert await refused.read_status() == 401
        await refused.trickle_until_closed()


def test_a_slow_body_goes_on_while_it_moves() -> None:
    assert not is_body_late(taken=3600, pause=29, size=int(3600 * MIN_BODY_RATE), most=30)
    assert not is_body_late(taken=29, pause=29, size=0, most=30)
    assert is_body_late(taken=31, pause=31, size=10**6, most=30)
    assert is_body_late(taken=60, pause=0, size=60, most=30)


async def test_a_connection_that_never_shows_a_token_ends(serve: Serve) -> None:
    base = serve(anonymous_seconds=SHORT)
    async with connect(base) as anonymous, connect(base) as known:
        for line, headers, status in ((known, TOKEN, 200), (anonymous, "", 401)):
            line.begin("GET /v1/sessions", headers, "\r\n")
            assert await line.read_status() == status
        assert await anonymous.read_status() == 0
        known.begin("GET /v1/sessions", TOKEN, "\r\n")
        assert await known.read_status() == 200


@pytest.mark.parametrize("limit", ["max_anonymous", "max_anonymous_per_address"])
async def test_too_many_connections_without_a_token_make_room_for_new_ones(
    limit: str, serve: Serve, tmp_path: Path
) -> None:
    base = serve(**{limit: 5})
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(connect(base)) for _ in range(50)]
        async with Client(base) as client, client.open_socket("/v1/ws"):
            assert await client.json("GET", "/v1/sessions")
        for line in lines[:45]:
            assert await line.read_status() == 0
        (lines[-1]).begin("GET /v1/sessions", TOKEN, "\r\n")
        assert await lines[-1].read_status() == 200
    assert (tmp_path / "log").stat().st_size < 1000


async def test_more_watchers_than_descriptors_are_refused_and_hardly_logged(serve: Serve, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        base = serve(descriptors=1024)
        async with Client(base) as client, AsyncExitStack() as stack:
            session_id = await client.session()
            path = f"/v1/sessions/{session_id}/events"

            async def watch() -> int:
                line = await stack.enter_async_context(connect(base))
                line.begin(f"GET {path}", TOKEN, "\r\n")
                return await line.read_status()

            statuses = [status for _ in range(12) for status in await asyncio.gather(*(watch() for _ in range(100)))]
            assert 700 < statuses.count(200) < 800 and set(statuses) <= {0, 200, 503}
            assert await client.json("GET", f"{path}?follow=false")
        async with Client(base) as client:
            assert await client.json("GET", f"{path}?follow=false")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / "log").stat().st_size < 5000


async def test_when_no_descriptor_is_left_the_log_stays_short_and_the_server_recovers(
    serve: Serve, tmp_path: Path
) -> None:
    base = serve(descriptors=48)  # so few that the rest is not enough for the server itself
    async with AsyncExitStack() as stack:
        for _ in range(60):
            line = await stack.enter_async_context(connect(base))
            line.begin("GET /v1/sessions", TOKEN, "\r\n")
        while "no descriptors are left" not in (tmp_path / "log").read_text("utf-8"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    async with Client(base) as client:
        assert await client.json("GET", "/v1/sessions")
    assert (tmp_path / "log").stat().st_size < 5000


async def test_a_stream_is_whole_for_every_kind_of_client(serve: Serve) -> None:
    base = serve()
    async with Client(base) as client, connect(base) as old, connect(base) as head:
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}"
        old.writer.write(f"GET {path}/events HTTP/1.0\r\nhost: {base.removeprefix('http://')}\r\n{TOKEN}\r\n".encode())
        assert b"chunked" not in await old.reader.readuntil(b"\r\n\r\n")
        head.begin(f"HEAD {path}/events", TOKEN, "\r\n")
        assert await head.read_status() == 200
        async with client.stream(f"{path}/events") as events:
            assert (await anext(events)).data["type"] == "session_created"
            for name in ("one", "two", "three"):
                await client.json("PATCH", path, {"name": name})
                assert (await anext(events)).data["name"] == name
        async with asyncio.timeout(PATIENCE):
            for name in (b'"session_created"', b'"one"', b'"two"', b'"three"'):
                event = await old.reader.readuntil(b"\n\n")
                assert event.startswith(b"id: ") and name in event
        head.begin("GET /v1/sessions", TOKEN, "\r\n")
        assert await head.read_status() == 200  # nothing of the stream came before
