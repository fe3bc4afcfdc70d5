"""The tokens that requests carry: the rights and the tool grant of each, and the private file that holds them."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from treadle.errors import BadInput
from treadle.events import Grant

Right = Literal["view", "send", "approve"]
MIN_TOKEN_LENGTH = 16
RIGHT_NAMES: tuple[Right, ...] = get_args(Right)
RIGHTS: frozenset[Right] = frozenset(RIGHT_NAMES)


class Token(Struct, frozen=True):
    """A secret and what its holder may do. `grant` narrows every session that is created or used with it.

    Of a token that only another node has, `value` is empty and `known_id` is set.
    """

    name: str
    value: str
    rights: frozenset[Right] = RIGHTS
    grant: Grant | None = None
    known_id: str = ""

    @property
    def id(self) -> str:
        """Identifies this token and its value, and reveals neither."""
        return hash_token(self.value) if self.value else self.known_id

    def __repr__(self) -> str:
        return f"<token {self.name}: {', '.join(sorted(self.rights))}>"


def hash_token(value: str) -> str:
    """Compute the id of the token that has this value."""
    return hashlib.sha256(f"token|{value}".encode("utf-8", "replace")).hexdigest()


ANYONE = Token("anyone", "")
"""Stands for everybody when no tokens are set."""


def load_tokens(file: Path) -> tuple[Token, ...]:
    """Read the tokens of a private file. A missing file is created with one token that may do everything."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = Token("owner", secrets.token_urlsafe(32))
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.format(msgspec.json.encode([token]), indent=1) + b"\n")
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise BadInput(f"{file} can be read by others (mode {mode:o}), so its tokens are not secret: chmod 600 {file}")
    try:
        tokens = msgspec.json.decode(file.read_bytes(), type=tuple[Token, ...])
    except msgspec.MsgspecError as error:
        raise BadInput(f"{file} is not a list of tokens: {error}; move it away to get a new one") from None
    if not tokens:
        raise BadInput(f"{file} has no token; move it away to get a new one")
    check_tokens(tokens, str(file))
    return tokens


def check_tokens(tokens: Sequence[Token], source: str) -> None:
    """Raise `BadInput` for tokens that can be guessed, such as an empty one, or confused with each other."""
    if any(len(token.value) < MIN_TOKEN_LENGTH for token in tokens):
        raise BadInput(
            f"{source}: a token has fewer than {MIN_TOKEN_LENGTH} characters and could be guessed; "
            "secrets.token_urlsafe(32) makes a good one"
        )
    if len({token.name for token in tokens}) < len(tokens):
        raise BadInput(f"{source}: two tokens have the same name; give each its own")
