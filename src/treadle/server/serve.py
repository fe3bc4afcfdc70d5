"""A server from settings: store, model, agents, runtime and application, served until a signal comes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from treadle.app.compose import open_keyring, open_runtime, open_store
from treadle.app.settings import Settings, data_folder
from treadle.errors import BadInput
from treadle.server.app import create_app
from treadle.server.config import ServerConfig
from treadle.server.serve_app import is_loopback, serve_app
from treadle.server.tokens import load_tokens

GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What only a server needs to know. `names` are those it may be called by, with the port where it differs."""

    host: str = "127.0.0.1"
    port: int = 8420
    names: Sequence[str] = ()
    origins: Sequence[str] = ()
    roots: Sequence[str] = ()
    models: Sequence[str] = ()
    token_file: str = ""
    grace: float = GRACE_SECONDS
    allow_root: bool = False


async def serve(settings: Settings, options: ServeOptions) -> None:
    """Serve these settings; what is unfinished in the store goes on, and what waits can be answered."""
    if os.geteuid() == 0 and not options.allow_root:
        raise BadInput("serving as root gives a mistake the whole machine; use another user, or --allow-root")
    file, config = _config(settings, options)
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(open_store(settings))
        opened = await open_runtime(stack, settings, log, open_keyring(settings), grace=options.grace)
        agents = opened.built.agents
        if config.agent not in agents:
            raise BadInput(f"there is no agent {config.agent!r}; there are: {', '.join(agents)}")
        app = create_app(opened.runtime, config)

        def announce(address: str) -> None:
            ticket = app.state.service.tokens.issue_ticket(config.tokens[0])
            why = f" ({opened.model_reason})" if opened.model_reason else ""
            lines = [
                *(f"treadle: {text}" for text in opened.notes),
                f"treadle serves {address} with {opened.model.name}{why}",
                f"open in a browser, once: {address}/login?ticket={ticket}",
                f"tokens for programs are in {file}",
            ]
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()

        await serve_app(app, options.host, options.port, announce)


def _config(settings: Settings, options: ServeOptions) -> tuple[Path, ServerConfig]:
    """The operator's word, and the file that its tokens are in."""
    file = Path(options.token_file).expanduser() if options.token_file else data_folder() / "tokens.json"
    config = ServerConfig(
        tokens=load_tokens(file),
        hosts=_hosts(options),
        origins=tuple(options.origins),
        roots=tuple(map(_root, options.roots)) or (settings.folder,),
        models=tuple(options.models),
        agent=settings.agent or "default",
        skill_autogen=settings.skill_autogen,
    )
    return file, config


def _root(given: str) -> Path:
    folder = Path(given).expanduser().resolve()
    if not folder.is_dir():
        raise BadInput(f"--root {given} is no folder; name one that workspaces lie in")
    return folder


def _hosts(options: ServeOptions) -> tuple[str, ...]:
    """The names that a request may call this server by, beside those of loopback."""
    own = () if is_loopback(options.host) or options.host in ("0.0.0.0", "::") else (options.host,)
    return tuple(name.lower() if ":" in name else f"{name.lower()}:{options.port}" for name in (*own, *options.names))
