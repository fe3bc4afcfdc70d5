"""The connections of `treadle serve`: how many there may be, and how long a request may take to arrive.

A connection is anonymous until a request on it has a valid token. The guard says when. Routes know nothing of this.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import time
from typing import Any, Literal

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from treadle.server.config import ServerConfig
from treadle.server.guard import CONNECTION_KEY

MAX_DESCRIPTORS = 65_536
MIN_BODY_RATE = 1000.0
"""Bytes a second that a body must have on average, once it takes longer than a pause may take."""
_MIN_CONNECTIONS = 8
_MAX_TEXTS = 100
_OUT_OF_DESCRIPTORS = "socket.accept() out of system resource"
_REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_logger = logging.getLogger("treadle.server.connections")


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files as far as the system allows. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class LogThrottle(logging.Filter):
    """Lets each warning through once a second, so that no client can fill the log. Errors of the server all pass."""

    def __init__(self) -> None:
        super().__init__()
        self._times: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = str(record.msg), time.monotonic()
        if text.startswith(_OUT_OF_DESCRIPTORS):  # asyncio logs a traceback for each attempt
            text = record.msg = "no descriptors are left: new connections wait until others close"
            record.args, record.exc_info = None, None
        elif record.levelno > logging.WARNING:
            return True
        if now - self._times.get(text, -1.0) < 1.0:
            return False
        if len(self._times) > _MAX_TEXTS:
            self._times.clear()
        self._times[text] = now
        return True


def throttle_logs() -> None:
    """Bound what clients can write into the log: here, in uvicorn and in asyncio."""
    for logger in (_logger, logging.getLogger("uvicorn.error"), logging.getLogger("asyncio")):
        if not any(isinstance(one, LogThrottle) for one in logger.filters):
            logger.addFilter(LogThrottle())


class ConnectionTable:
    """All connections of one server. It refuses new ones, and closes those whose request does not arrive.

    A quarter of the descriptors is kept for the store, the models and the tools. When there are too many anonymous
    connections, the oldest that is idle makes room: a real client shows its token at once.
    """

    def __init__(self, config: ServerConfig, descriptors: int) -> None:
        self._config = config
        self._most = max(_MIN_CONNECTIONS, descriptors - descriptors // 4)
        self._open: set[GuardedConnection] = set()
        self._anonymous: dict[GuardedConnection, None] = {}
        self._by_address: dict[str, dict[GuardedConnection, None]] = {}
        self._receiving: set[GuardedConnection] = set()

    def add(self, connection: GuardedConnection) -> bool:
        """Add a new connection. Returns False when there is no room for it."""
        same = self._by_address.get(connection.address, {})
        if len(same) >= self._config.max_anonymous_per_address and not _close_oldest(same):
            return False
        is_full = len(self._open) >= self._most or len(self._anonymous) >= self._config.max_anonymous
        if is_full and not _close_oldest(self._anonymous):
            return False
        self._open.add(connection)
        self._anonymous[connection] = None
        self._by_address.setdefault(connection.address, {})[connection] = None
        return True

    def remove(self, connection: GuardedConnection) -> None:
        """Forget a connection."""
        self.admit(connection)
        self._open.discard(connection)
        self._receiving.discard(connection)

    def admit(self, connection: GuardedConnection) -> None:
        """Count a connection as one that has a token."""
        if connection in self._anonymous:
            del self._anonymous[connection]
            same = self._by_address[connection.address]
            del same[connection]
            if not same:
                del self._by_address[connection.address]

    def watch(self, connection: GuardedConnection, *, receiving: bool) -> None:
        """Hold a connection to its deadlines while a request arrives on it."""
        if receiving:
            self._receiving.add(connection)
        else:
            self._receiving.discard(connection)

    async def close_late_connections(self) -> None:
        """Close the connections whose time is over, for as long as the server runs.

        A request must be late twice in a row. After a pause of the whole process, what arrived meanwhile is unread at
        the first look. Until the second one it is read.
        """
        late: set[GuardedConnection] = set()
        while True:
            config, now = self._config, time.monotonic()
            late, before = {one for one in self._receiving if one.is_late(now, config)}, late
            for connection in late & before:
                connection.close(_TOO_SLOW)
            for connection in tuple(self._anonymous):
                if now - connection.opened_at < config.anonymous_seconds:
                    break
                connection.close()
            await asyncio.sleep(min(1.0, config.header_seconds / 4, config.body_seconds / 4))


def _close_oldest(connections: dict[GuardedConnection, None]) -> bool:
    """Close the oldest connection that answers no request. Returns False when there is none."""
    found = next((connection for connection in connections if connection.is_idle), None)
    if found is not None:
        _logger.warning("too many connections without a token: the oldest are closed for new ones")
        found.close()
    return found is not None


class GuardedConnection(H11Protocol):
    """A connection of uvicorn that is in a table and has deadlines."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        table: ConnectionTable,
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION_KEY: self}, _loop)
        self._table = table
        self.address = ""
        self.opened_at = self._began_at = self._moved_at = time.monotonic()
        self._arriving: Literal["", "headers", "body", "socket"] = "headers"
        self._arrived_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return not self.cycle or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.address = _group_address(self.client[0] if self.client else "")
        if self._table.add(self):
            self._table.watch(self, receiving=True)
        else:
            _logger.warning("too many connections: new ones are refused")
            self.close(_REFUSED)

    def connection_lost(self, exc: Exception | None) -> None:
        self.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._moved_at = time.monotonic()
        self._arrived_bytes += len(data)
        self._follow_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow_request()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._arriving = "socket"
        super().handle_websocket_upgrade(event)

    def _follow_request(self) -> None:
        """Note which part of a request arrives, and since when."""
        if self._arriving == "socket":
            arriving = "socket"
        elif self.conn.their_state is h11.SEND_BODY:
            arriving = "body"
        else:
            arriving = "headers" if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] else ""
        if arriving != self._arriving:
            self._arriving, self._began_at, self._arrived_bytes = arriving, time.monotonic(), 0
        self._table.watch(self, receiving=arriving in ("headers", "body"))

    def is_late(self, now: float, config: ServerConfig) -> bool:
        """Whether the request that arrives has taken too long."""
        taken = now - self._began_at
        if self._arriving == "headers":
            return taken > config.header_seconds
        return is_body_late(taken, now - self._moved_at, self._arrived_bytes, config.body_seconds)

    def admit(self) -> None:
        """Count the connection as one that has a token."""
        self._table.admit(self)

    def write_piece(self, data: bytes) -> bool:
        """Write a piece of a streamed response whose head was sent. Returns False when the usual way must be taken.

        The usual way leads through five layers for each piece, and costs more than all else that a watcher needs.
        """
        cycle = self.cycle
        if (
            self.flow.write_paused
            or not cycle.response_started
            or cycle.response_complete
            or cycle.disconnected
            or cycle.scope["http_version"] != "1.1"  # HTTP/1.0 knows no chunks
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def release(self) -> None:
        """Leave the table, because the connection is closed."""
        self._table.remove(self)

    def close(self, answer: bytes = b"") -> None:
        """Close the connection, with this answer if no other one has begun."""
        self.release()
        if answer and (self.is_idle or not self.cycle.response_started):
            self.transport.write(answer)
        if self.transport.get_write_buffer_size():  # the client does not read: a flush might never end
            self.transport.abort()
        else:
            self.transport.close()


def is_body_late(taken: float, pause: float, size: int, most: float) -> bool:
    """Whether a body has paused too long, or is sent so slowly that it only holds the connection."""
    return pause > most or size < (taken - most) * MIN_BODY_RATE


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket. It took the place of the connection on which its handshake came."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        connection = self.app_state[CONNECTION_KEY]
        assert isinstance(connection, GuardedConnection)
        connection.release()


def _group_address(address: str) -> str:
    """The address as one client has it: of IPv6 the network, because a client has all addresses in it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
