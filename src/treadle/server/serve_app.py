"""Serving an application with uvicorn: the port, and how a signal ends it: the first drains, the second stops."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from treadle.errors import BadInput
from treadle.server.app import ServerApp

MAX_FRAME_BYTES = 1024 * 1024


class DrainingServer(uvicorn.Server):
    """uvicorn, with our own way to leave."""

    def __init__(self, config: uvicorn.Config, app: ServerApp, started: Callable[[str], None] | None) -> None:
        super().__init__(config)
        self._app, self._told = app, started
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started and self._told is not None and sockets:
            self._told(format_address(sockets[0]))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:  # the log is whole at any instant, so nothing is lost by leaving it as it is
            os._exit(128 + sig)
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._app.state.service.drain)


def format_address(listening: socket.socket) -> str:
    """The address to open, for a socket that listens."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve_app(
    app: ServerApp, host: str = "127.0.0.1", port: int = 8420, started: Callable[[str], None] | None = None
) -> None:
    """Serve until a signal comes. `started` is told the address once requests are taken."""
    if not is_loopback(host) and not app.state.service.tokens.has_tokens:
        raise BadInput(f"{host} can be reached by others, so a token is needed; nothing was started")
    listening = _listen(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whoever connects could claim to be somebody else
        date_header=False,
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        lifespan="on",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        backlog=4096,
    )
    # A refused WebSocket is answered with its status, which uvicorn takes for an unfinished handshake and complains of.
    logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
    with listening:
        await DrainingServer(config, app, started).serve([listening])


def _is_no_refusal(record: logging.LogRecord) -> bool:
    return "without completing handshake" not in record.getMessage()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        why = error.strerror if isinstance(error, OSError) else "ports are numbers from 0 to 65535"
        raise BadInput(f"{host}:{port} cannot be listened on: {why}; choose another --host or --port") from None
    listening.listen(4096)
    return listening
