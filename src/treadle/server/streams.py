"""Server-sent events: responses that follow a session. They never slow a run and end when their client leaves."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

from fastapi import Depends, Header, Query
from msgspec import Struct
from starlette.responses import Response

from treadle import Run
from treadle.dialects.base import Dialect, encode_frame
from treadle.errors import BadInput
from treadle.events import AnyFact, Custom, Delta, Event, SessionCreated, serialize_event
from treadle.log.base import RESPONSE_FACTS, RESPONSES_AGENT, StoredFact, StoreWatch, Watch
from treadle.server.guard import CONNECTION_KEY, AsgiScope, Receive, Send, build_shutdown_refusal

Item = TypeVar("Item")
EventWriter: TypeAlias = Callable[[Item], bytes]

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
SHUTDOWN_COMMENT = b": the server is shutting down; connect again with Last-Event-ID\nretry: 2000\n\n"
PING = b": ping\n\n"
MAX_EVENTS, MAX_BYTES = 2048, 2 * 1024 * 1024
"""How much the encoder keeps for other watchers."""


def describe_content(description: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI describes a response that is no JSON object of ours."""
    return {200: {"content": {media_type: {} for media_type in media_types}, "description": description}}


SSE_RESPONSES = describe_content("a stream", "text/event-stream")


class SharedEncoder:
    """Encodes each event once for all watchers of a session."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Event, bytes]] = {}
        self._size = 0

    def __call__(self, event: Event) -> bytes:
        kept = self._kept.get(id(event))
        if kept is not None and kept[0] is event:
            return kept[1]
        data = b"data: %b\n\n" % serialize_event(event)
        if not isinstance(event, Delta):
            data = b"id: %d\n%b" % (event.seq, data)
        self._size += len(data)
        if len(self._kept) >= MAX_EVENTS or self._size > MAX_BYTES:
            self._kept.clear()
            self._size = len(data)
        if self._size <= MAX_BYTES:
            self._kept[id(event)] = (event, data)
        return data


def read_cursor(
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    last_event_id: Annotated[str, Header(max_length=40)] = "",
) -> int | None:
    """The position after which a client wants events: its Last-Event-ID, or else `after`."""
    if not last_event_id:
        return after
    if not last_event_id.isascii() or not last_event_id.isdigit() or int(last_event_id) > 2**53:
        raise BadInput("Last-Event-ID: must be the id of an event, which is a number")
    return int(last_event_id)


Cursor = Annotated[int | None, Depends(read_cursor)]
"""A position in the store or in a session. None means that the client names none."""


class DialectWriter:
    """Writes events in a dialect. Events up to `after` are fed to the dialect but not sent: the client has them."""

    def __init__(self, dialect: Dialect, after: int = 0, name_field: str = "") -> None:
        self._dialect, self._after, self._name_field = dialect, after, name_field

    def __call__(self, event: Event) -> bytes:
        frames = self._dialect.feed(event)
        seq = 0 if isinstance(event, Delta) else event.seq
        if not frames or 0 < seq <= self._after:
            return b""
        return encode_frames(frames, seq, self._name_field)


def encode_frames(frames: Sequence[Struct], seq: int = 0, name_field: str = "") -> bytes:
    """Encode the frames of one fact. `seq` is the fact's position. `name_field` is the field that names a frame."""
    lines: list[bytes] = []
    last = len(frames) - 1
    for place, frame in enumerate(frames):
        if seq and place == last:  # a client that is cut off between two frames gets both again
            lines.append(b"id: %d\n" % seq)
        if name_field and (name := getattr(frame, name_field, "")):
            lines.append(b"event: %b\n" % name.encode())
        lines.append(b"data: %b\n\n" % encode_frame(frame))
    return b"".join(lines)


def encode_stored_fact(stored: StoredFact) -> bytes:
    """Encode a fact of any session. Its id is the cursor in the store. Stored responses are no part of the stream."""
    if is_response_fact(stored.fact):
        return b""
    return b"id: %d\ndata: %b\n\n" % (stored.cursor, encode_frame(stored))


def is_response_fact(fact: AnyFact) -> bool:
    """Whether a fact only stores a response of a bare model. Streams of sessions do not show it."""
    if isinstance(fact, SessionCreated):
        return fact.agent.name == RESPONSES_AGENT
    return isinstance(fact, Custom) and fact.name.startswith(RESPONSE_FACTS)


class OpenConnection(Protocol):
    """A connection that stays open: a stream or a WebSocket."""

    def stop(self) -> None: ...


class OpenStreams:
    """All open connections. Quiet streams get a comment now and then, and all end when the server shuts down.

    WebSockets have pings of their own.
    """

    def __init__(self, keep_alive: float) -> None:
        self._keep_alive = keep_alive
        self._open: set[OpenConnection] = set()
        self._pinger: asyncio.Task[None] | None = None
        self._pings: set[asyncio.Task[None]] = set()
        self.encoder = SharedEncoder()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, stream: OpenConnection) -> None:
        self._open.add(stream)
        if self.is_closed:  # the request came in before the server began to shut down
            stream.stop()
        if self._pinger is None or self._pinger.done():
            self._pinger = asyncio.create_task(self._send_pings())

    def remove(self, stream: OpenConnection) -> None:
        self._open.discard(stream)
        if not self._open and self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None

    def close(self) -> None:
        """End every stream; each sends its last lines."""
        self.is_closed = True
        for stream in tuple(self._open):
            stream.stop()

    async def _send_pings(self) -> None:
        step = min(1.0, self._keep_alive / 3)
        while True:
            await asyncio.sleep(step)
            late = time.monotonic() - self._keep_alive
            for stream in tuple(self._open):
                if isinstance(stream, StreamedResponse) and stream.last < late and not stream.pinging:
                    task = asyncio.create_task(stream.ping())
                    self._pings.add(task)
                    task.add_done_callback(self._pings.discard)


class DirectConnection(Protocol):
    """A connection of `treadle serve`, which can write pieces of a response itself."""

    def write_piece(self, data: bytes) -> bool: ...


class StreamedResponse(Response, ABC):
    """A response of pieces that come over time. The pieces stop when the client leaves.

    Nothing is sent before the first piece or comment, so an early failure still has its own status. A later failure is
    sent as what `problem` returns. `headers` are sent in addition to those of every stream.
    """

    def __init__(
        self,
        streams: OpenStreams,
        problem: Callable[[Exception], bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._more_headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._streams, self._problem = streams, problem
        self._send: Send | None = None
        self._connection: DirectConnection | None = None
        self._writing = asyncio.Lock()
        self._has_begun = self._is_over = False
        self.last = time.monotonic()
        self.pinging = False

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        self._send = send
        if not scope["app"].user_middleware:  # which might change the pieces
            self._connection = scope.get("state", {}).get(CONNECTION_KEY)
        relaying, gone = asyncio.ensure_future(self._relay()), asyncio.ensure_future(wait_for_disconnect())
        self._streams.add(self)
        try:
            await asyncio.wait((relaying, gone), return_when=asyncio.FIRST_COMPLETED)
            if relaying.done():
                relaying.result()
        except asyncio.CancelledError:  # the server stops, and its grace period is over
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)
            if not self._has_begun:
                raise
            await self._send_piece(self._problem(build_shutdown_refusal()) if self._problem else SHUTDOWN_COMMENT)
            await self._send_piece(b"", more=False)
        finally:
            self._is_over = True
            self._streams.remove(self)
            self.stop()
            relaying.cancel()
            gone.cancel()
            await asyncio.gather(relaying, gone, return_exceptions=True)

    async def _relay(self) -> None:
        try:
            await self._send_pieces()
        except Exception as error:
            if not self._has_begun or self._problem is None:
                raise
            await self._send_piece(self._problem(error))
        self._is_over = True
        await self._send_piece(b"", more=False)

    @abstractmethod
    async def _send_pieces(self) -> None:
        """Send the pieces, up to the end of the response."""

    def _write_now(self, data: bytes) -> bool:
        """Write a piece if the connection takes it at once."""
        if self._connection is None or not self._has_begun or self._writing.locked():
            return False
        self.last = time.monotonic()
        return self._connection.write_piece(data)

    async def _send_piece(self, data: bytes, *, more: bool = True) -> None:
        assert self._send is not None
        if more and data and self._write_now(data):
            return
        async with self._writing:  # the head must be sent first
            if not self._has_begun:
                self._has_begun = True
                headers = [*SSE_HEADERS, *self._more_headers]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self.last = time.monotonic()

    def stop(self) -> None:
        """Do nothing: a reply may end within the server's grace period."""

    async def ping(self) -> None:
        """Send a comment that keeps the connection alive."""
        self.pinging = True
        try:
            if not self._is_over:
                await self._send_piece(PING)
        finally:
            self.pinging = False


class PieceStream(StreamedResponse):
    """Sends pieces as a generator yields them."""

    def __init__(
        self,
        streams: OpenStreams,
        pieces: AsyncGenerator[bytes],
        problem: Callable[[Exception], bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(streams, problem, headers)
        self._pieces = pieces

    async def _send_pieces(self) -> None:
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await self._send_piece(piece)


class EventSource(Protocol[Item]):
    """Events to send: a watch of a session or of all sessions, or a run."""

    def __aiter__(self) -> AsyncIterator[Item]: ...

    def ready(self) -> list[Item]: ...


class EventStream(StreamedResponse):
    """Sends events until they end, the client leaves or the server stops.

    `head` is sent before the events. What `at_shutdown` returns is sent when the server stops before their end.
    """

    def __init__(
        self,
        streams: OpenStreams,
        events: EventSource[Item],
        write: EventWriter[Item],
        *,
        head: bytes = b"",
        at_shutdown: Callable[[], bytes] = lambda: b"",
    ) -> None:
        super().__init__(streams)
        self._events: EventSource[Any] = events
        self._write: EventWriter[Any] = write
        self._head, self._at_shutdown = head, at_shutdown

    async def _send_pieces(self) -> None:
        events, write = self._events, self._write
        await self._send_piece(self._head)  # also sends the status, however late the first event comes
        async for event in events:
            data = write(event)
            for more in events.ready():
                data += write(more)
            if data and not self._write_now(data):
                await self._send_piece(data)
        if self._streams.is_closed:
            await self._send_piece(self._at_shutdown() + SHUTDOWN_COMMENT)

    def stop(self) -> None:
        """End the events."""
        if isinstance(self._events, Run):
            self._events.detach()
        elif isinstance(self._events, Watch | StoreWatch):
            self._events.close()
