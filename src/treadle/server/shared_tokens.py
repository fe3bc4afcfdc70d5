"""The tokens and logins of all nodes that share a store: a token in the file of one node is valid on the others.

The store gets the hash of a token with its name, rights and grant, and never its value. A node says every few seconds
that its tokens hold, so those of a node that has ended, or whose file changed, stop to work within a minute.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from treadle.log.base import SharedValues
from treadle.server.tokens import Token

VALID_SECONDS = 45.0
"""For how long a token of another node is valid after that node said so."""
RECENT_SECONDS = 5.0
"""For how long a token that was found in the store is not looked up again."""
REMEMBER_SECONDS = 30 * 24 * 3600.0
MAX_RECENT = 1000
Kept = TypeVar("Kept")


class SharedToken(msgspec.Struct, frozen=True):
    """A token as the store has it. `source` is the node whose file has it."""

    token: Token
    source: str


class SharedTokens:
    """Finds tokens of other nodes, and tells them ours. `source` names this node and its file, over restarts."""

    def __init__(self, values: SharedValues, source: str) -> None:
        self._values, self._source = values, hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:32]
        self._recent: OrderedDict[str, tuple[float, Token]] = OrderedDict()
        self._logins: OrderedDict[str, tuple[float, str]] = OrderedDict()

    async def find(self, token_id: str) -> Token | None:
        """Find a token of another node. Raises `StoreError` while the store is away."""
        if (recent := self.find_recent(token_id)) is not None:
            return recent
        stored = await self._values.get(_build_key(token_id))
        if stored is None:
            return None
        token = msgspec.json.decode(stored, type=SharedToken).token
        _remember(self._recent, token_id, token)
        return token

    def find_recent(self, token_id: str) -> Token | None:
        """Find a token that was found a moment ago."""
        return _recall(self._recent, token_id)

    async def store_login(self, token_id: str, seconds: float) -> str:
        """Store that a browser has logged in with a token. Return the secret for its cookie."""
        cookie = secrets.token_urlsafe(32)
        await self._values.put(_build_login_key(cookie), token_id.encode(), seconds)
        return cookie

    async def find_login(self, cookie: str) -> str:
        """Find the token with which the browser of a cookie has logged in. Empty if it has not."""
        if (recent := self.find_recent_login(cookie)) is not None:
            return recent
        token_id = (await self._values.get(_build_login_key(cookie)) or b"").decode()
        if token_id:
            _remember(self._logins, cookie, token_id)
        return token_id

    def find_recent_login(self, cookie: str) -> str | None:
        """Find a login that was found a moment ago."""
        return _recall(self._logins, cookie)

    async def publish(self, tokens: Sequence[Token]) -> None:
        """Say that these tokens hold, and withdraw those that this node had before, also before a restart."""
        ids = [token.id for token in tokens]
        for token in tokens:
            entry = SharedToken(replace(token, value="", known_id=token.id), self._source)
            await self._values.put(_build_key(token.id), msgspec.json.encode(entry), VALID_SECONDS)
        own = f"tokens:{self._source}"
        earlier = msgspec.json.decode(await self._values.get(own) or b"[]", type=list[str])
        for token_id in set(earlier) - set(ids):
            stored = await self._values.get(_build_key(token_id))
            if stored is not None and msgspec.json.decode(stored, type=SharedToken).source == self._source:
                await self._values.take(_build_key(token_id))
        await self._values.put(own, msgspec.json.encode(ids), REMEMBER_SECONDS)


def _remember(recent: OrderedDict[str, tuple[float, Kept]], key: str, value: Kept) -> None:
    recent[key] = time.monotonic() + RECENT_SECONDS, value
    recent.move_to_end(key)
    if len(recent) > MAX_RECENT:
        recent.popitem(last=False)


def _recall(recent: OrderedDict[str, tuple[float, Kept]], key: str) -> Kept | None:
    until, value = recent.get(key, (0.0, None))
    return value if until > time.monotonic() else None


def _build_key(token_id: str) -> str:
    return f"token:{token_id}"


def _build_login_key(cookie: str) -> str:
    return f"login:{hashlib.sha256(cookie.encode('utf-8', 'replace')).hexdigest()}"
