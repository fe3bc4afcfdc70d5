"""Serves the application with uvicorn until a signal comes. The first signal drains the server, the second stops it."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import gc
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn
from msgspec.structs import replace

from treadle.app.absent_model import AbsentModel
from treadle.app.compose import open_keyring, open_runtime, open_store
from treadle.app.root_user import check_root
from treadle.app.settings import Settings, data_folder, parse_age
from treadle.app.store_care import run_retention
from treadle.errors import BadInput
from treadle.server.app import ServerApp, create_app
from treadle.server.config import ServerConfig
from treadle.server.connections import (
    ConnectionTable,
    GuardedConnection,
    GuardedWebSocket,
    raise_descriptor_limit,
    throttle_logs,
)
from treadle.server.login_link import (
    ANY_ADDRESS,
    draw_qr_code,
    find_local_address,
    find_phone_address,
    is_loopback,
    open_in_browser,
)
from treadle.server.tokens import load_tokens

GRACE_SECONDS = 10.0
MAX_FRAME_BYTES = 1024 * 1024
BACKLOG = 128
LARGE_BLOCK = 256 * 1024
_M_MMAP_THRESHOLD = -3


Announce = Callable[[str], Awaitable[None] | None]
"""Tells where the server listens, when it is ready."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the server alone. `names` are its host names, with a port if it differs from `port`."""

    host: str = "127.0.0.1"
    port: int = 8420
    names: Sequence[str] = ()
    origins: Sequence[str] = ()
    roots: Sequence[str] = ()
    models: Sequence[str] = ()
    token_file: str = ""
    grace: float = GRACE_SECONDS
    open_browser: bool = False


async def serve(settings: Settings, options: ServeOptions) -> None:
    """Serve with these settings. Unfinished runs of the store continue, and open questions can be answered."""
    check_root(is_allowed=settings.allow_root, serves=True)
    settings = replace(settings, keep_loaded=0)  # a request to unload frees the memory, and commands have no part in it
    file, config = _build_config(settings, options)
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(open_store(settings))
        await log.list_nodes()  # it connects: a database that is away is one line here, and a long story in uvicorn
        if settings.retention:
            await stack.enter_async_context(run_retention(log, parse_age(settings.retention)))
        keyring = open_keyring(settings)
        opened = await open_runtime(
            stack, settings, log, keyring, grace=options.grace, roots=config.roots, needs_model=False
        )
        agents = opened.built.agents
        if config.agent not in agents:
            raise BadInput(f"there is no agent {config.agent!r}; there are: {', '.join(agents)}")
        config = dataclasses.replace(config, rules=opened.rules, list_mcp=opened.list_mcp)
        app = create_app(opened.runtime, config)

        async def announce(address: str) -> None:
            why = f" ({opened.model_reason})" if opened.model_reason else ""
            model = f"with {opened.model.name}{why}"
            if isinstance(opened.model, AbsentModel):
                model = f"without a model: {opened.model_reason}. Load one with `treadle models load NAME`"
            lines = [
                *(f"treadle: {text}" for text in opened.notes),
                f"treadle serves {address} {model}",
                *await build_login_lines(app, options, address),
                f"tokens for programs are in {file}",
            ]
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()

        await serve_app(app, options.host, options.port, announce)


async def build_login_lines(app: ServerApp, options: ServeOptions, address: str) -> list[str]:
    """Build the login links, open the first one if the person wants that, and draw the one for a phone."""
    service = app.state.service

    async def build_link(base: str) -> str:  # a link works once, so each device gets its own
        return f"{base}/login?ticket={await service.tokens.issue_ticket(service.config.tokens[0])}"

    link = await build_link(find_local_address(address, options.host))
    lines = [f"open in a browser, once: {link}"]
    if options.open_browser and open_in_browser(link) is None:
        lines.append("there is no browser to open here; open the link yourself")
    phone = find_phone_address(options.host, int(address.rpartition(":")[2]), options.names)
    if phone and sys.stderr.isatty():
        lines += ["scan with a phone, once:", draw_qr_code(await build_link(phone)).rstrip("\n")]
    elif options.host in ANY_ADDRESS and not phone:
        lines.append("other devices need a name that they can reach: --host-name NAME, which may be an IP address")
    return lines


def _build_config(settings: Settings, options: ServeOptions) -> tuple[Path, ServerConfig]:
    """Build the configuration. Returns it with the file of its tokens."""
    file = Path(options.token_file).expanduser() if options.token_file else data_folder() / "tokens.json"
    roots = _check_folders("--root", options.roots)
    own = () if is_loopback(options.host) or options.host in ANY_ADDRESS else (options.host,)
    hosts = [name.lower() if ":" in name else f"{name.lower()}:{options.port}" for name in (*own, *options.names)]
    config = ServerConfig(
        tokens=load_tokens(file),
        token_file=file,
        hosts=hosts,
        origins=tuple(options.origins),
        roots=roots or (settings.folder,),
        models=tuple(options.models),
        model_aliases=settings.model_aliases,
        agent=settings.agent or "default",
        model_roots=_check_folders("--model-root", settings.model_roots),
        skill_autogen=settings.skill_autogen,
    )
    return file, config


def _check_folders(option: str, names: Sequence[str]) -> list[Path]:
    folders = [Path(name).expanduser().resolve() for name in names]
    for name, folder in zip(names, folders, strict=True):
        if not folder.is_dir():
            raise BadInput(f"{option} {name} is no folder; name an existing one")
    return folders


class DrainingServer(uvicorn.Server):
    """uvicorn with our own shutdown."""

    def __init__(self, config: uvicorn.Config, app: ServerApp, on_started: Announce | None) -> None:
        super().__init__(config)
        self._app, self._on_started = app, on_started
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started and self._on_started is not None and sockets:
            host, port = sockets[0].getsockname()[:2]
            told = self._on_started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            if told is not None:
                await told

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:  # the log is complete at any instant, so an abrupt end loses nothing
            os._exit(128 + sig)
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._app.state.service.drain)


def return_freed_memory() -> None:
    """Let the C library return every large block to the system when it is freed.

    glibc raises its threshold for such blocks to the largest one that was freed. After a message of some megabytes it
    would keep the memory of all later ones.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, LARGE_BLOCK)


async def serve_app(
    app: ServerApp, host: str = "127.0.0.1", port: int = 8420, on_started: Announce | None = None
) -> None:
    """Serve until a signal comes. `on_started` gets the address when the server is ready."""
    if not is_loopback(host) and not app.state.service.tokens.has_tokens:
        raise BadInput(f"{host} can be reached by others, so a token is needed; nothing was started")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without the protocol, asyncio leaves Nagle's algorithm on, and every response waits 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        why = error.strerror if isinstance(error, OSError) else "ports are numbers from 0 to 65535"
        raise BadInput(f"{host}:{port} cannot be listened on: {why}; choose another --host or --port") from None
    listening.listen(BACKLOG)
    table = ConnectionTable(app.state.service.config, raise_descriptor_limit())
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(GuardedConnection, table=table)),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # any client could send such headers
        date_header=False,
        ws=GuardedWebSocket,
        ws_max_size=MAX_FRAME_BYTES,
        lifespan="on",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        backlog=BACKLOG,
    )
    # uvicorn warns about an unfinished handshake when a WebSocket is refused with a status.
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: "without completing handshake" not in record.getMessage()
    )
    throttle_logs()
    return_freed_memory()
    # A full collection would look at the 100 000 objects that live as long as the process, every 400 messages.
    gc.collect()
    gc.freeze()
    closing = asyncio.create_task(table.close_late_connections())
    try:
        with listening:
            await DrainingServer(config, app, on_started).serve([listening])
    finally:
        closing.cancel()
