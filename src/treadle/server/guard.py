"""The outermost layer: every request and WebSocket passes it before routing, and hostile ones are refused.

It checks Host, Origin, Sec-Fetch-Site, content type, sizes, JSON depth, the token and its rate, and it adds headers to
every response. Routes decide what a token may do.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from itertools import accumulate
from typing import Any, TypeAlias

import msgspec

from treadle.errors import StoreError
from treadle.messages import Json
from treadle.server.config import LOOPBACK_NAMES, ServerConfig
from treadle.server.logins import TOKEN_HEADERS, Tokens
from treadle.server.public_paths import READING_METHODS, is_public, is_visit
from treadle.server.tokens import ANYONE, Token

AsgiScope: TypeAlias = MutableMapping[str, Any]
AsgiMessage: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
Send: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
]
MESSAGES_PATH = "/v1/messages"
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
PREFLIGHT_HEADERS = [
    (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
    (
        b"access-control-allow-headers",
        b"authorization, x-api-key, content-type, idempotency-key, last-event-id, anthropic-version, anthropic-beta",
    ),
    (b"access-control-max-age", b"600"),
]
# Possessive quantifiers: a scan takes time linear in the length of the text, whatever the text is.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_logger = logging.getLogger("treadle.server")
CONNECTION_KEY = "treadle.connection"
"""Where the state of a request has its connection, if `treadle serve` accepted it."""
STORE_RETRY_SECONDS = 5.0
LOGIN_BYTES = 4096
"""How long a body may be before the sender has logged in."""


class Refusal(Exception):
    """The request is refused. `field` is the wrong field of the request, if there is one."""

    def __init__(
        self, status: int, kind: str, message: str, hint: str = "", retry_after: float = 0.0, field: str = ""
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.hint = status, kind, message, hint
        self.retry_after, self.field = retry_after, field


def get_path(scope: AsgiScope) -> str:
    """Get the path of a request, below the one where the application is mounted."""
    return scope["path"].removeprefix(scope.get("root_path", ""))


def is_anthropic(scope: AsgiScope) -> bool:
    """Whether the client of a request expects Anthropic's forms, by its path or its headers."""
    path = get_path(scope)
    return path.startswith(MESSAGES_PATH) or any(name == b"anthropic-version" for name, _ in scope["headers"])


def build_error_body(refusal: Refusal, *, anthropic: bool = False) -> dict[str, Json]:
    """The body of a refusal. OpenAI's clients read `code` and `param`; Anthropic's have types of their own."""
    error = {
        "type": refusal.kind,
        "message": refusal.message,
        "hint": refusal.hint,
        "code": refusal.kind,
        "param": refusal.field or None,
    }
    if not anthropic:
        return {"error": error}
    kind = _ANTHROPIC_KINDS.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {**error, "type": kind}}


class RateBucket:
    """What one token has left of its rate, and how many of its requests are open."""

    __slots__ = ("active", "at", "left")

    def __init__(self, most: float) -> None:
        self.left, self.at, self.active = most, time.monotonic(), 0

    def take(self, rate: float) -> float:
        """Take one request. Returns the seconds to wait when none is left, and 0 otherwise."""
        now = time.monotonic()
        self.left = min(2 * rate, self.left + (now - self.at) * rate)
        self.at = now
        if self.left < 1:
            return (1 - self.left) / rate
        self.left -= 1
        return 0.0


class Guard:
    """Wraps the application and checks every request before it gets there."""

    def __init__(self, app: AsgiApp, config: ServerConfig, tokens: Tokens) -> None:
        self._app, self._config, self._tokens = app, config, tokens
        self._buckets: dict[str, RateBucket] = {}

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = _read_headers(scope)
        started_at, status = time.perf_counter(), [0]
        origin = headers.get("origin", "")
        send_with_headers = _add_headers(send, origin if origin in self._config.origins else "", status)
        bucket: RateBucket | None = None
        try:
            self._check_origin(scope, headers)
            if scope.get("method") == "OPTIONS" and {"origin", "access-control-request-method"} <= headers.keys():
                await _send_response(send_with_headers, 204, PREFLIGHT_HEADERS)
                return
            if b"=" in (query := scope["query_string"]):  # `?status=&q=tea` asks for tea, with any status
                scope["query_string"] = b"&".join(part for part in query.split(b"&") if part.partition(b"=")[2])
            scope["treadle.token"] = token = await self._authenticate(scope, headers)
            if token.rights and (connection := scope.get("state", {}).get(CONNECTION_KEY)) is not None:
                connection.admit()
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"cookie"]  # no route reads them
            bucket = self._take_rate(token)
            if scope["type"] == "http":
                max_bytes = self._config.body_bytes if token.rights else LOGIN_BYTES
                receive = await self._check_body(scope, headers, receive, max_bytes)
            if scope.get("method") == "HEAD":
                await _answer_head(self._app, scope, receive, send_with_headers)
            else:
                await self._app(scope, receive, send_with_headers)
        except Refusal as refusal:
            await send_refusal(scope, send_with_headers, refusal)
        except asyncio.CancelledError:  # the server stops, and its grace period is over
            if scope["type"] != "http" or status[0]:
                raise
            await send_refusal(scope, send_with_headers, build_shutdown_refusal())
        finally:
            if bucket is not None:
                bucket.active -= 1
            # The route's template is logged, never an id, a query, a header or a body.
            route, seconds = getattr(scope.get("route"), "path", "-"), time.perf_counter() - started_at
            _logger.info("%s %s %d %.1f ms", scope.get("method", "WS"), route, status[0], seconds * 1e3)

    def _check_origin(self, scope: AsgiScope, headers: dict[str, str]) -> None:
        """Refuse requests under a foreign host name, and requests from pages of other origins."""
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > self._config.url_bytes:
            raise Refusal(414, "url_too_long", f"the address is longer than {self._config.url_bytes} bytes")
        host = headers.get("host", "")
        server = scope.get("server") or ("", 0)
        own = {f"{name}:{server[1]}" for name in LOOPBACK_NAMES} | set(self._config.hosts)
        if server[1] in (80, 443):
            own |= set(LOOPBACK_NAMES)
        if host.lower() not in own:
            raise Refusal(
                403,
                "wrong_host",
                "this server does not know that host name",
                "add the name with --host-name if it is yours",
            )
        origin = headers.get("origin")
        if origin in self._config.origins:
            return
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        is_foreign = origin is not None and origin.lower() != f"{scheme}://{host.lower()}"
        is_own = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if is_foreign or not (is_own or is_visit(get_path(scope), scope.get("method", ""), headers)):
            raise Refusal(403, "wrong_origin", "pages of other origins may not use this server")

    async def _authenticate(self, scope: AsgiScope, headers: dict[str, str]) -> Token:
        client = (scope.get("client") or ("", 0))[0]
        token = self._tokens.find_by_headers(headers)
        if token is not None:
            return token
        if not self._tokens.has_tokens:
            return ANYONE
        path = get_path(scope)
        if scope["type"] == "http" and is_public(path, scope["method"]):
            return Token("nobody", "", frozenset())
        try:
            token = await self._tokens.find_elsewhere(headers, client)
        except StoreError as error:  # the token may be valid, so it does not count as a wrong one
            raise build_store_refusal(error) from None
        if token is not None:
            return token
        wait = self._tokens.wrong.seconds_until_retry(client)
        if not wait and (TOKEN_HEADERS & headers.keys() or "cookie" in headers):
            wait = await self._tokens.wrong.record(client)
        if wait:
            raise build_wrong_token_refusal(wait)
        raise Refusal(
            401,
            "unauthorized",
            "this request needs a token",
            "send it as `Authorization: Bearer TOKEN` or `x-api-key: TOKEN`, or open the link of `treadle serve`",
        )

    def _take_rate(self, token: Token) -> RateBucket:
        rate = self._config.rate
        bucket = self._buckets.get(token.name)
        if bucket is None:
            bucket = self._buckets[token.name] = RateBucket(2 * rate)
        wait = bucket.take(rate)
        if wait:
            raise Refusal(429, "too_many_requests", "this token has used up its rate", retry_after=wait)
        if bucket.active >= self._config.max_open_requests:
            raise Refusal(429, "too_many_requests", "this token has too many requests open", retry_after=1.0)
        bucket.active += 1
        return bucket

    async def _check_body(self, scope: AsgiScope, headers: dict[str, str], receive: Receive, max_bytes: int) -> Receive:
        """Read the whole body and refuse it unless it is JSON of an allowed size and depth."""
        if scope["method"] in READING_METHODS:
            return receive
        body = await _read_body(headers, receive, max_bytes)
        if body:
            if headers.get("content-encoding", "identity").strip().lower() != "identity":
                raise Refusal(415, "encoded", "a body must be plain JSON", "send it without Content-Encoding")
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refusal(415, "not_json", "a body must be JSON", "send `Content-Type: application/json`")
            if b"\0" in body:  # UTF-16 or UTF-32: Python would read it, but its depth cannot be checked here
                raise Refusal(400, "malformed", "a body must be JSON in UTF-8")
            if is_too_deep(body, self._config.json_depth):
                raise Refusal(400, "too_deep", f"the JSON is nested deeper than {self._config.json_depth}")
        bodies = [body]

        async def receive_again() -> AsgiMessage:
            return {"type": "http.request", "body": bodies.pop()} if bodies else await receive()

        return receive_again


async def _read_body(headers: dict[str, str], receive: Receive, max_bytes: int) -> bytes:
    length = headers.get("content-length", "0")
    too_large = Refusal(413, "too_large", f"a body may have {max_bytes} bytes")
    if not length.isdigit() or int(length) > max_bytes:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "disconnected", "the body ended early")
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > max_bytes:
            raise too_large
        if not message.get("more_body"):
            return b"".join(pieces)


def is_too_deep(body: bytes, max_depth: int) -> bool:
    """Whether JSON text is nested deeper than `max_depth`. Brackets in strings do not count."""
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return False
    brackets = _STRING.sub(b"", body).translate(None, _NO_BRACKETS)
    return any(depth > max_depth for depth in accumulate(1 if one in b"[{" else -1 for one in brackets))


def _read_headers(scope: AsgiScope) -> dict[str, str]:
    """The headers by name. The first of two equal names counts, but a second Host or Origin makes both invalid."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key in ("host", "origin", *TOKEN_HEADERS) and key in found:
            text = f"{found[key]}, {text}"
        elif key in found:
            text = f"{found[key]}; {text}" if key == "cookie" else found[key]
        found[key] = text
    return found


def _add_headers(send: Send, allowed_origin: str, status: list[int]) -> Send:
    """Wrap `send`: every response gets our headers, and its status is stored in `status`."""

    async def send_with_headers(message: AsgiMessage) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            status[0] = message["status"]
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += [pair for pair in SECURITY_HEADERS if pair[0] not in names]
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
            if allowed_origin:
                headers += [
                    (b"access-control-allow-origin", allowed_origin.encode("latin-1")),
                    (b"access-control-allow-credentials", b"true"),
                    (b"vary", b"origin"),
                ]
            message = {**message, "headers": headers}
        elif message["type"] == "websocket.accept":
            status[0] = 101
        await send(message)

    return send_with_headers


async def _answer_head(app: AsgiApp, scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Answer as GET would, without the body. An endless response is stopped once its head was sent."""
    has_head = asyncio.Event()

    async def send_head(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            has_head.set()

    answering = asyncio.ensure_future(app({**scope, "method": "GET"}, receive, send_head))
    waiting = asyncio.ensure_future(has_head.wait())
    try:
        await asyncio.wait((answering, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        answering.cancel()
        waiting.cancel()
        await asyncio.gather(answering, waiting, return_exceptions=True)
    await send({"type": "http.response.body", "body": b""})


def build_store_refusal(error: StoreError) -> Refusal:
    """The refusal of a request that the store cannot serve now. The client may send it again soon."""
    return Refusal(503, "store", str(error), "nothing that was recorded is lost", retry_after=STORE_RETRY_SECONDS)


def build_wrong_token_refusal(wait: float) -> Refusal:
    """The refusal of a client that has sent too many wrong tokens."""
    return Refusal(429, "too_many_wrong_tokens", "too many requests with a wrong token", retry_after=wait)


def build_shutdown_refusal(message: str = "the server shuts down before the answer is complete; try again") -> Refusal:
    """The refusal of a request that the server cannot answer before it stops. The client may send it again soon."""
    return Refusal(503, "shutting_down", message, retry_after=2)


async def send_refusal(scope: AsgiScope, send: Send, refusal: Refusal) -> None:
    """Answer with a refusal. A WebSocket gets it instead of being accepted, if the server supports that."""
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = f"websocket.{kind}"
        if kind not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.kind})
            return
    body = msgspec.json.encode(build_error_body(refusal, anthropic=is_anthropic(scope)))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.retry_after:
        headers.append((b"retry-after", str(max(1, round(refusal.retry_after))).encode()))
    await _send_response(send, refusal.status, headers, body, kind)


async def _send_response(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"", kind: str = "http.response"
) -> None:
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
