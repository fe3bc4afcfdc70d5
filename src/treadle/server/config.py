"""What the operator decides about a server: who may come in, from where, how much, and which folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.server.tokens import Token

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The operator's word. Without `tokens` everybody who can connect may do everything: loopback only.

    `hosts` are names this server may be called by beside those of loopback, with a port where it is not the
    server's own; `origins` are pages of other places that may use it; `roots` hold every session's workspace;
    `models` are names that requests may choose beside the agents' own; `agent` is who is meant where none is named.
    """

    tokens: Sequence[Token] = ()
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    roots: Sequence[Path] = ()
    models: Sequence[str] = ()
    agent: str = "default"
    approval_seconds: float = 300.0
    keep_alive: float = 15.0
    body_bytes: int = 8 * 1024 * 1024
    url_bytes: int = 8 * 1024
    json_depth: int = 64
    rate: float = 1000.0
    max_open_requests: int = 4096
    max_wrong_tokens: int = 20
    skill_autogen: bool = False
