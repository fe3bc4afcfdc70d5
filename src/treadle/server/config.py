"""What the operator decides about a server: its tokens, host names, limits, folders and models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from treadle.app.compose import McpStatus
from treadle.errors import BadInput
from treadle.permissions.saved_rules import RuleBook
from treadle.server.tokens import Token, check_tokens

PAGE_FOLDER = Path(__file__).parent / "static"
"""Where a build puts the web page."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The operator's configuration. Every request needs one of the `tokens`.

    The tokens are read again from the `token_file` when it changes. On a store that several machines share, the tokens
    of each server are valid on all of them.

    With `open_to_everyone` and no tokens, everybody who can connect may do everything, also run commands as you.
    `serve_app` then listens on this machine only. Where you mount the application, you decide who can connect.

    `hosts` are further host names of this server, with a port if it differs from the server's own. `origins` are other
    origins whose pages may use it. Every session's workspace is in one of the `roots`. Requests may choose the `models`
    besides those of the agents. `model_aliases` are further names for them, which may be patterns such as `claude-*`.
    `agent` is the default agent. Requests may load GGUF files of the `model_roots`.

    The headers of a request must arrive in `header_seconds`, and its body may pause for `body_seconds`. A connection is
    anonymous until a request on it has a valid token, which must be so in `anonymous_seconds`.
    """

    tokens: Sequence[Token] = ()
    token_file: Path | None = None
    open_to_everyone: bool = False
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    roots: Sequence[Path] = ()
    models: Sequence[str] = ()
    model_aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    agent: str = "default"
    model_roots: Sequence[Path] = ()
    approval_seconds: float = 300.0
    keep_alive: float = 15.0
    body_bytes: int = 8 * 1024 * 1024
    url_bytes: int = 8 * 1024
    json_depth: int = 64
    rate: float = 1000.0
    max_open_requests: int = 4096
    max_wrong_tokens: int = 20
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    anonymous_seconds: float = 75.0
    max_anonymous: int = 2048
    max_anonymous_per_address: int = 1024
    skill_autogen: bool = False
    page_folder: Path = PAGE_FOLDER
    rules: RuleBook | None = None
    list_mcp: Callable[[], Sequence[McpStatus]] = list

    def check_access(self) -> None:
        """Raise `BadInput` when nobody decided who may use the server, or when a token can be guessed."""
        check_tokens(self.tokens, "ServerConfig")
        if self.tokens and self.open_to_everyone:
            raise BadInput("the server has tokens and is open to everyone; choose one of them")
        if not self.tokens and not self.open_to_everyone:
            raise BadInput(
                "the server has no token, so everybody who can connect could use it; nothing was served. Pass "
                "ServerConfig(tokens=[Token(NAME, SECRET)]), or say ServerConfig(open_to_everyone=True)"
            )
