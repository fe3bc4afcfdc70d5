"""Finds the token of a request, and keeps login cookies, login links and counts of wrong tokens.

Links and counts are in the store if several machines share it, so any node redeems a link that another one issued.
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
from treadle.server.tokens import Token

TOKEN_HEADERS = frozenset(("authorization", "x-api-key"))
COOKIE_NAME = "treadle_login"
COOKIE_SECONDS = 30 * 24 * 3600.0
TICKET_SECONDS = 600.0
MAX_TICKETS = 20
"""How many login links of one token a node keeps at a time. A new one replaces the oldest."""
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

    def use_store(self, log: Log) -> None:
        """Keep login links in this store, and count wrong tokens there too if several machines share it."""
        self._values = log.shared
        if log.is_shared:
            self.wrong.shared = log.shared

    def find_by_headers(self, headers: dict[str, str]) -> Token | None:
        """Find the token of a request: in its Authorization or x-api-key header, or else in its login cookie."""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if TOKEN_HEADERS & headers.keys():
            given = [bearer if kind.lower() == "bearer" else "", headers.get("x-api-key", "")]
            found = [self.find_by_value(text) for text in given if text]
            return next((token for token in reversed(found) if token is not None), None)
        # The standard library may take minutes over a hostile header, so we read the cookies ourselves.
        for pair in headers.get("cookie", "").split(";"):
            name, _, value = pair.partition("=")
            if name.strip() == COOKIE_NAME:
                return self.find_by_cookie(value.strip(' "'))
        return None

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

    def sign_cookie(self, token: Token) -> str:
        """Build a cookie's value. It is valid until it expires or the token changes."""
        expires = str(int(time.time() + COOKIE_SECONDS))
        return f"{quote(token.name, safe='')}|{expires}|{_sign(token, expires)}"

    async def issue_ticket(self, token: Token) -> str:
        """Create a ticket that logs in once, within ten minutes."""
        issued = self._issued.setdefault(token.name, deque())
        ticket = secrets.token_urlsafe(32)
        value = f"{_sign(token, ticket)}|{token.name}"  # signed: a token of the same name may replace this one
        await self._values.put(_build_ticket_key(ticket), value.encode(), TICKET_SECONDS)
        issued.append(_build_ticket_key(ticket))
        while len(issued) > MAX_TICKETS:
            await self._values.take(issued.popleft())
        return ticket

    async def redeem_ticket(self, ticket: str) -> Token | None:
        """Return the token of a ticket. The ticket does not work again."""
        signature, _, name = (await self._values.take(_build_ticket_key(ticket)) or b"").decode().partition("|")
        token = self._find_by_name(name)
        return token if token is not None and hmac.compare_digest(_sign(token, ticket), signature) else None

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


def _build_ticket_key(ticket: str) -> str:
    return f"ticket:{hashlib.sha256(ticket.encode()).hexdigest()}"


def _sign(token: Token, what: str) -> str:
    """Sign the end of a cookie, or a ticket. The one has only digits, and the other 43 characters."""
    return hmac.new(token.value.encode(), f"login|{token.name}|{what}".encode(), hashlib.sha256).hexdigest()
