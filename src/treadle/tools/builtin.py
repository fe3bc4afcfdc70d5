"""The ready-made set of tools, and the MCP servers of a config. The tools themselves are imported when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from treadle.errors import BadInput
from treadle.messages import Json
from treadle.tools.mcp.connection import McpHealth
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.servers import McpServers

if TYPE_CHECKING:
    from treadle.tools.base import Tool

__all__ = ["McpHealth", "McpServer", "McpServers", "build_default_tools", "read_mcp_servers"]


def build_default_tools(
    *,
    shell: bool = True,
    web: bool | str = False,
    ask: bool = True,
    network: Sequence[str] = (),
    kept: Path | str | None = None,
    granted: Sequence[str] = (),
) -> list[Tool]:
    """Tools for work in a folder: files, commands, arithmetic, the time, a plan, long output, questions to the user.

    `web` adds `fetch_url`, which lets in what strangers wrote and is a way out, so it must be wanted; it may be the
    address of the proxy to go through. `network` names the hosts that sandboxed commands may reach (`example.org`,
    `*.example.org`, `*` for all public ones). `kept` is the folder for old contents of changed files (default: in the
    user's data folder), `granted` names files that are masked as secrets otherwise.
    """
    from treadle.history.kept_files import KeptFiles
    from treadle.tools.ask_user import AskUser
    from treadle.tools.calculate import calculate
    from treadle.tools.current_time import current_time
    from treadle.tools.files.file_tools import build_file_tools
    from treadle.tools.read_output import read_output
    from treadle.tools.todo import todo

    old = KeptFiles(kept)
    tools: list[Tool] = [*build_file_tools(old, granted=granted), calculate, current_time, read_output, todo]
    if shell:
        from treadle.sandbox import backend as run
        from treadle.tools.shell import Shell

        hosts = () if "*" in network else tuple(network)
        tools.append(Shell(run, old, network=bool(network), allow_hosts=hosts))
    if web:
        from treadle.sandbox.public_addresses import is_public_address
        from treadle.tools.web import FetchUrl

        tools.append(FetchUrl(is_public_address, proxy=web if isinstance(web, str) else ""))
    if ask:
        tools.append(AskUser())
    return tools


def read_mcp_servers(config: Mapping[str, Mapping[str, Json]]) -> list[McpServer]:
    """The servers of a config's `mcp` table, by name: `{"git": {"command": "git-mcp", "args": ["--fast"]}}`."""
    servers: list[McpServer] = []
    for name, given in config.items():
        try:
            servers.append(msgspec.convert({**given, "name": name}, McpServer))
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, BadInput):
                raise error.__cause__ from None
            known = ", ".join(field for field in McpServer.__struct_fields__ if field != "name")
            raise BadInput(f"MCP server {name!r}: {error}. It takes {known}.") from None
    return servers
