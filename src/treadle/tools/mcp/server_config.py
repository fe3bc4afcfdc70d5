"""How to reach an MCP server: a command to start, or an address. Values only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from treadle.errors import BadInput
from treadle.messages import Json
from treadle.secrets.detect import find_secret
from treadle.tools.base import DEFAULT_TIMEOUT

_NAME = re.compile(r"[A-Za-z0-9](?:_?[A-Za-z0-9-])*")
_SECRET_NAME = re.compile(r"(?i)auth|token|key|secret|passw|credential|cookie|(^|[-_])(pat|pin)($|[-_])")
MAX_NAME_CHARACTERS = 32


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server: `command` with `args` for one that is started here, or the `url` of one that runs elsewhere.

    A started server gets `env` and a few harmless variables (PATH, HOME, LANG, …), and nothing else of ours. It starts
    in an empty folder of its own, or in `cwd`. It runs in the sandbox: it can read its program, `cwd` and `folders`,
    write to its own folder, or to `cwd` if it is `writable`, and reach `hosts`. With `sandbox=False` it can do
    everything that you can.

    `headers` go with every request to `url`. What a server says about its tools can only make them stricter, unless it
    is `trusted`. `safety` overrides that. `protocol="legacy"` is for a server that fails when it is asked for its
    version.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: float = DEFAULT_TIMEOUT
    start_timeout: float = 30.0
    trusted: bool = False
    safety: Literal["annotated", "caution", "destructive"] = "annotated"
    sandbox: bool = True
    folders: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    writable: bool = False
    protocol: Literal["auto", "legacy"] = "auto"

    def __post_init__(self) -> None:
        subject = f"MCP server {self.name!r}"
        if not _NAME.fullmatch(self.name) or len(self.name) > MAX_NAME_CHARACTERS:
            raise BadInput(
                f"{subject}: a name has at most {MAX_NAME_CHARACTERS} letters, digits, - and _, and no __, "
                "because its tools are named after it (name__tool)"
            )
        if bool(self.command) == bool(self.url):
            raise BadInput(f"{subject}: give either a command to start or a url, not both and not neither")
        if self.url and (self.args or self.env or self.cwd or self.folders or self.hosts or self.writable):
            raise BadInput(
                f"{subject}: args, env, cwd, folders, hosts and writable are for a server that is started; with a url "
                "use headers"
            )
        if self.writable and not self.cwd:
            raise BadInput(f"{subject}: writable is about cwd, its folder; give that too")
        if self.command and self.headers:
            raise BadInput(f"{subject}: headers are for a url; a server that is started takes its secrets from env")
        if self.url:
            address = urlsplit(self.url)
            if address.scheme not in ("http", "https") or not address.hostname:
                raise BadInput(f"{subject}: its url must begin with https:// or http:// and name a host")
            if address.username or address.password:
                raise BadInput(
                    f"{subject}: its url holds a user or a password; put them into headers, which are not shown"
                )
        if not self.timeout > 0 or not self.start_timeout > 0:
            raise BadInput(f"{subject}: timeout and start_timeout are seconds, and more than 0")

    def __repr__(self) -> str:
        """Write the server without its possible secrets."""
        return f"McpServer(name={self.name!r}, {'url' if self.url else 'command'}={self.url or self.command!r})"

    def find_secrets(self) -> tuple[str, ...]:
        """Find the values of `env` and `headers` that must not be shown: secrets by their name or by their look."""
        values = {**self.env, **self.headers}
        found = [value for name, value in values.items() if _SECRET_NAME.search(name) or find_secret(value)]
        tokens = [value.rpartition(" ")[2] for value in found]  # of "Bearer token"
        return tuple(sorted({*found, *tokens}))


def read_mcp_servers(config: Mapping[str, Mapping[str, Json]]) -> list[McpServer]:
    """Read the `mcp` table of a configuration: `{"git": {"command": "git-mcp", "args": ["--fast"]}}`."""
    servers: list[McpServer] = []
    for name, options in config.items():
        try:
            servers.append(msgspec.convert({**options, "name": name}, McpServer))
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, BadInput):
                raise error.__cause__ from None
            known = ", ".join(field for field in McpServer.__struct_fields__ if field != "name")
            raise BadInput(f"MCP server {name!r}: {error}. It takes {known}.") from None
    return servers
