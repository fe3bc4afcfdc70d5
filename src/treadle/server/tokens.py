"""Who may do what: tokens with rights and a tool grant, one-time login links, and the cookies they set.

A token's value is compared in constant time and never shown again, logged, or put into an address.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from treadle.errors import BadInput
from treadle.events import Grant

Right = Literal["view", "send", "approve"]
RIGHTS: frozenset[Right] = frozenset(("view", "send", "approve"))
COOKIE_NAME = "treadle_login"
COOKIE_SECONDS = 30 * 24 * 3600.0
TICKET_SECONDS = 600.0
_CLIENTS = 4096


class Token(Struct, frozen=True):
    """A secret and what its holder may do. `grant` narrows every session that is made or used with it."""

    name: str
    value: str
    rights: frozenset[Right] = RIGHTS
    grant: Grant | None = None

    def __repr__(self) -> str:
        return f"<token {self.name}: {', '.join(sorted(self.rights))}>"


ANYONE = Token("anyone", "")
"""Who comes in where no tokens are set."""


class Tokens:
    """Finds out who is asking."""

    def __init__(self, tokens: Sequence[Token], wrong_a_minute: int = 20) -> None:
        self._tokens = tuple(tokens)
        self._wrong_a_minute = wrong_a_minute
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        self._tickets: dict[str, tuple[Token, float]] = {}

    def find_by_header(self, header: str) -> Token | None:
        """The token of an Authorization header, if it is one of ours."""
        kind, _, value = header.partition(" ")
        if kind.lower() != "bearer":
            return None
        given, found = value.strip().encode("utf-8", "replace"), None
        for token in self._tokens:  # all of them, so that the time taken tells nothing
            if hmac.compare_digest(token.value.encode(), given):
                found = token
        return found

    def find_by_cookie(self, value: str) -> Token | None:
        """The token that a login cookie stands for, while it is valid."""
        name, _, rest = value.partition("|")
        expires, _, signature = rest.partition("|")
        for token in self._tokens:
            if token.name == unquote(name) and expires.isdigit() and value.isascii():
                signed = hmac.compare_digest(_signature(token, expires), signature)
                return token if signed and int(expires) > time.time() else None
        return None

    def sign_cookie(self, token: Token) -> str:
        """A cookie's value; it lasts until it expires or the token is changed."""
        expires = str(int(time.time() + COOKIE_SECONDS))
        return f"{quote(token.name, safe='')}|{expires}|{_signature(token, expires)}"

    def issue_ticket(self, token: Token) -> str:
        """A word that logs in once, within ten minutes."""
        now = time.time()
        self._tickets = {word: kept for word, kept in self._tickets.items() if kept[1] > now}
        word = secrets.token_urlsafe(32)
        self._tickets[word] = (token, now + TICKET_SECONDS)
        return word

    def redeem_ticket(self, word: str) -> Token | None:
        """Use a ticket up."""
        token, expires = self._tickets.pop(word, (None, 0.0))
        return token if expires > time.time() else None

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    @property
    def first(self) -> Token:
        return self._tokens[0] if self._tokens else ANYONE

    def record_wrong_token(self, client: str) -> None:
        """Somebody there came with a wrong token."""
        times = self._wrong.setdefault(client, deque(maxlen=self._wrong_a_minute))
        times.append(time.monotonic())
        self._wrong.move_to_end(client)
        while len(self._wrong) > _CLIENTS:
            self._wrong.popitem(last=False)

    def seconds_until_retry(self, client: str) -> float:
        """Seconds until that client may be wrong again; 0 when it may now."""
        times = self._wrong.get(client)
        if times is None or len(times) < self._wrong_a_minute:
            return 0.0
        return max(0.0, times[0] + 60.0 - time.monotonic())


def _signature(token: Token, expires: str) -> str:
    return hmac.new(token.value.encode(), f"login|{token.name}|{expires}".encode(), hashlib.sha256).hexdigest()


def load_tokens(file: Path) -> tuple[Token, ...]:
    """The tokens of a file; made with one that may do everything when there is none. Nobody else may read it."""
    if not file.exists():
        _make(file)
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise BadInput(f"{file} can be read by others (mode {mode:o}), so its tokens are no secret: chmod 600 {file}")
    try:
        tokens = msgspec.json.decode(file.read_bytes(), type=tuple[Token, ...])
    except msgspec.MsgspecError as error:
        raise BadInput(f"{file} is not a list of tokens: {error}; move it away to have a new one made") from None
    if not tokens or any(len(token.value) < 16 for token in tokens):
        raise BadInput(f"{file} must hold tokens of at least 16 characters; move it away to have a new one made")
    if len({token.name for token in tokens}) < len(tokens):
        raise BadInput(f"{file} has two tokens of one name; give each its own")
    return tokens


def _make(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = Token("owner", secrets.token_urlsafe(32))
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(msgspec.json.format(msgspec.json.encode([token]), indent=1) + b"\n")
