"""Finds the token of a request, and keeps login cookies, login links and counts of wrong tokens.

All of them are in the store if several machines share it, so that any node knows what another one did.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from urllib.parse import quote, unquote

from treadle.errors import StoreError
from treadle.log.base import Log, SharedValues
from treadle.log.shared_values import InMemoryValues
from treadle.server.shared_tokens import SharedTokens
from treadle.server.tokens import Token, hash_token

TOKEN_HEADERS = frozenset(("authorization", "x-api-key"))
COOKIE_NAME = "treadle_login"
COOKIE_SECONDS = 30 * 24 * 3600.0
TICKET_SECONDS = 600.0
MAX_TICKETS = 20
"""How many login links of one token a node keeps at a time. A new one replaces the oldest."""
MAX_COOKIES = 4
"""How many login cookies of a request are looked at."""
_WRONG_SECONDS = 60.0
_MAX_CLIENTS = 4096


class Tokens:
    """The tokens of a server, and the login links that were issued for them.

    Token values are compared in constant time. They are never logged, put into an address or given to the store.
    """

    def __init__(self, tokens: Sequence[Token], wrong_per_minute: int = 20, values: SharedValues | None = None) -> None:
        self._tokens = tuple(tokens)
        self._values = values or InMemoryValues(time.time)
        self._issued: dict[str, deque[str]] = {}
        self.wrong = WrongTokens(wrong_per_minute)
        self.shared: SharedTokens | None = None
        """The tokens and logins of all nodes, if several machines share the store."""

    def use_store(self, log: Log, source: str) -> None:
        """Keep logins in this store. If several machines share it, also share tokens. `source` names this server."""
        self._values = log.shared
        if log.is_shared:
            self.wrong.shared = log.shared
            self.shared = SharedTokens(log.shared, source)

    def replace(self, tokens: Sequence[Token]) -> None:
        """Use these tokens in place of the earlier ones, whose logins end."""
        self._tokens = tuple(tokens)

    async def publish(self) -> None:
        """Tell the other nodes which tokens hold here. Raises `StoreError` while the store is away."""
        if self.shared is not None:
            await self.shared.publish(self._tokens)

    async def find_elsewhere(self, headers: dict[str, str], client: str) -> Token | None:
        """Find the token of a request among those of other nodes. Raises `StoreError` while the store is away.

        Who has sent too many wrong tokens gets no look at the store.
        """
        if self.shared is None:
            return None
        only_recent = self.wrong.seconds_until_retry(client) > 0
        for text in reversed(_list_values(headers)):
            if (token := await self._find_shared(hash_token(text), only_recent=only_recent)) is not None:
                return token
        if TOKEN_HEADERS & headers.keys():
            return None
        for cookie in _list_cookies(headers):
            recent = self.shared.find_recent_login(cookie) or ""
            token_id = recent if only_recent else await self.shared.find_login(cookie)
            if token_id and (token := await self._find_shared(token_id, only_recent=only_recent)) is not None:
                return token
        return None

    async def find_shared(self, text: str) -> Token | None:
        """Find the token of another node that has this value."""
        return await self._find_shared(hash_token(text.strip())) if self.shared is not None else None

    async def _find_shared(self, token_id: str, *, only_recent: bool = False) -> Token | None:
        own = next((token for token in self._tokens if hmac.compare_digest(token.id, token_id)), None)
        if own is not None or self.shared is None:
            return own
        return self.shared.find_recent(token_id) if only_recent else await self.shared.find(token_id)

    def find_by_headers(self, headers: dict[str, str]) -> Token | None:
        """Find the token of a request: in its Authorization or x-api-key header, or else in its login cookie."""
        if TOKEN_HEADERS & headers.keys():
            found = [self.find_by_value(text) for text in _list_values(headers)]
            return next((token for token in reversed(found) if token is not None), None)
        return next(filter(None, map(self.find_by_cookie, _list_cookies(headers))), None)

    def find_by_value(self, text: str) -> Token | None:
        """Find the token that has this value."""
        value, found = text.strip().encode("utf-8", "replace"), None
        for token in self._tokens:  # compare all of them, so that the time taken reveals nothing
            if hmac.compare_digest(token.value.encode(), value):
                found = token
        return found

    def find_by_cookie(self, value: str) -> Token | None:
        """Find the token of a login cookie, while the cookie is valid."""
        name, _, rest = value.partition("|")
        expires, _, signature = rest.partition("|")
        token = self._find_by_name(unquote(name))
        if token is None or not expires.isdigit() or not value.isascii():
            return None
        signed = hmac.compare_digest(_sign(token, expires), signature)
        return token if signed and int(expires) > time.time() else None

    async def build_cookie(self, token: Token) -> str:
        """Build a cookie's value for a browser that logs in. On a shared store any node knows it."""
        if self.shared is not None:
            return await self.shared.store_login(token.id, COOKIE_SECONDS)
        return self.sign_cookie(token)

    def sign_cookie(self, token: Token) -> str:
        """Build a cookie's value. It is valid until it expires or the token changes."""
        expires = str(int(time.time() + COOKIE_SECONDS))
        return f"{quote(token.name, safe='')}|{expires}|{_sign(token, expires)}"

    async def issue_ticket(self, token: Token) -> str:
        """Create a ticket that logs in once, within ten minutes."""
        issued = self._issued.setdefault(token.id, deque())
        ticket = secrets.token_urlsafe(32)
        await self._values.put(_build_ticket_key(ticket), token.id.encode(), TICKET_SECONDS)
        issued.append(_build_ticket_key(ticket))
        while len(issued) > MAX_TICKETS:
            await self._values.take(issued.popleft())
        return ticket

    async def redeem_ticket(self, ticket: str) -> Token | None:
        """Return the token of a ticket. The ticket does not work again."""
        token_id = (await self._values.take(_build_ticket_key(ticket)) or b"").decode()
        return await self._find_shared(token_id) if token_id else None

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    def list_tokens(self) -> tuple[Token, ...]:
        """List the tokens with their values."""
        return self._tokens

    def _find_by_name(self, name: str) -> Token | None:
        return next((token for token in self._tokens if token.name == name), None)


class WrongTokens:
    """Counts wrong tokens by client. Who has sent too many must wait until a minute after the first one is over.

    Only a wrong token costs a query to the store. While the store is away, each node counts for itself.
    """

    def __init__(self, most: int) -> None:
        self.shared: SharedValues | None = None
        self._most, self._own = most, InMemoryValues(time.monotonic)
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def seconds_until_retry(self, client: str) -> float:
        """How long this client must wait before its next attempt, as far as this node knows; 0 when it need not."""
        first, count = self._counts.get(client, (0.0, 0))
        return max(0.0, first + _WRONG_SECONDS - time.monotonic()) if count >= self._most else 0.0

    async def record(self, client: str) -> float:
        """Count a wrong token from this client. Return how long it must wait if it has sent too many before."""
        count, now = await self._count(f"wrong:{client}"), time.monotonic()
        first, _ = self._counts.get(client, (now, 0))
        if count == 1 or first + _WRONG_SECONDS <= now:  # another node may have counted the first one
            first = now
        self._counts[client] = first, count
        self._counts.move_to_end(client)
        if len(self._counts) > _MAX_CLIENTS:
            self._counts.popitem(last=False)
        return self.seconds_until_retry(client) if count > self._most else 0.0

    async def _count(self, key: str) -> int:
        if self.shared is not None:
            try:
                return await self.shared.count(key, _WRONG_SECONDS)
            except StoreError:
                pass
        return await self._own.count(key, _WRONG_SECONDS)


def _list_values(headers: dict[str, str]) -> list[str]:
    """List the token values in the headers of a request: first the bearer's, then that of x-api-key."""
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    given = (bearer if kind.lower() == "bearer" else "", headers.get("x-api-key", ""))
    return [text.strip() for text in given if text.strip()]


def _list_cookies(headers: dict[str, str]) -> list[str]:
    """List the login cookies of a request."""
    # The standard library may take minutes over a hostile header, so we read the cookies ourselves.
    pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
    return [value.strip(' "') for name, _, value in pairs if name.strip() == COOKIE_NAME][:MAX_COOKIES]


def _build_ticket_key(ticket: str) -> str:
    return f"ticket:{hashlib.sha256(ticket.encode()).hexdigest()}"


def _sign(token: Token, what: str) -> str:
    """Sign the end of a cookie."""
    return hmac.new(token.value.encode(), f"login|{token.name}|{what}".encode(), hashlib.sha256).hexdigest()
