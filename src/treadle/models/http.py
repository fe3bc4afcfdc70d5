"""The HTTP below every provider: pooled connections, time limits, one exchange at a time. Retries nothing.

aiohttp is imported when the first request is made, so that a program without one does not pay for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

import msgspec
from msgspec import Struct

from treadle.errors import ModelError, ModelErrorKind
from treadle.models.failures import ErrorSource, classify_response

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, StreamReader

_LARGE = 1 << 20
_ERROR_BODY = 1 << 16
_ERROR_SECONDS = 10.0


class Timeouts(Struct, frozen=True):
    """Seconds to wait: for a connection, for the first byte, between bytes, for the whole reply."""

    connect: float = 10.0
    first_byte: float = 180.0
    idle: float = 90.0
    total: float = 1800.0


LOCAL_TIMEOUTS = Timeouts(connect=5.0, first_byte=1800.0, idle=300.0, total=14400.0)
"""For servers on this machine, which may load a model and read a long prompt before their first byte."""


class Secret:
    """A key that does not show itself in a repr, a log line or a traceback."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where a provider listens and how it is asked: address, key, headers, limits."""

    provider: str
    base_url: str
    key: Secret | None = None
    key_variable: str = ""
    key_header: str = "authorization"
    key_prefix: str = "Bearer "
    headers: tuple[tuple[str, str], ...] = ()
    timeouts: Timeouts = Timeouts()

    @property
    def address(self) -> str:
        """The address without anything secret in it."""
        parts = urlsplit(self.base_url)
        host = parts.hostname or self.base_url
        return f"{host}:{parts.port}" if parts.port else host

    @property
    def error_source(self) -> ErrorSource:
        parts = urlsplit(self.base_url)
        secrets = (self.key.reveal() if self.key else "", parts.password or "")
        return ErrorSource(self.provider, self.address, self.key_variable, secrets)

    def build_headers(self) -> dict[str, str]:
        # Compressed events would wait in some proxy's buffer until there are enough of them.
        headers = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "treadle"}
        headers |= dict(self.headers)
        if self.key is not None:
            headers[self.key_header] = self.key_prefix + self.key.reveal()
        return headers


class _Pool:
    """The connections to one endpoint on one event loop, and who uses them."""

    def __init__(self, session: ClientSession, keeper: AsyncGenerator[None, None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.session = session
        self.keeper = keeper
        self.users: WeakSet[Transport] = WeakSet()


_PoolKey = tuple[asyncio.AbstractEventLoop, str, tuple[tuple[str, str], ...]]
_pools: dict[_PoolKey, _Pool] = {}


class Transport:
    """Posts to one endpoint. Models of the same endpoint share its connections; `close` gives up this share."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.error_source = endpoint.error_source
        self._headers = endpoint.build_headers()
        self._key = tuple(sorted(self._headers.items()))
        self._urls: dict[str, Any] = {}
        self._pool: _Pool | None = None

    def open_exchange(self) -> HttpExchange:
        return HttpExchange(self)

    async def get_session(self) -> ClientSession:
        """The running loop's session; it is closed by `close`, or else when the loop ends."""
        loop, pool = asyncio.get_running_loop(), self._pool
        if pool is None or pool.loop is not loop or pool.session.closed:
            key = (loop, self.endpoint.base_url, self._key)
            pool = self._pool = _pools.get(key) or await _open(key, self._headers, self.endpoint)
            pool.users.add(self)
        return pool.session

    def build_url(self, path: str) -> Any:
        """The address as an object that aiohttp need not parse again for every request."""
        found = self._urls.get(path)
        if found is None:
            from yarl import URL

            found = self._urls[path] = URL(self.endpoint.base_url.rstrip("/") + path)
        return found

    async def fetch_json(
        self, path: str, *, body: bytes | None = None, from_root: bool = True, timeout: float = 2.0
    ) -> Any:
        """A small JSON document from the server, or None when it does not give one in time.

        `root` leaves out the version at the end of the base URL.
        """
        import aiohttp

        base = self.endpoint.base_url.rstrip("/")
        url = (re.sub(r"/v\d+$", "", base) if from_root else base) + path
        method = "GET" if body is None else "POST"
        try:
            session = await self.get_session()
            async with (
                asyncio.timeout(timeout),
                session.request(method, url, data=body, allow_redirects=False) as response,
            ):
                return msgspec.json.decode(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError, ModelError):
            return None

    async def fetch_status(self, path: str, *, timeout: float) -> int:
        """The status that a GET is answered with, whichever it is. Raises `ModelError` when nothing answers."""
        import aiohttp

        failure: BaseException
        try:
            session = await self.get_session()
            async with asyncio.timeout(timeout), session.get(self.build_url(path), allow_redirects=False) as response:
                return response.status
        except TimeoutError:
            where = f"{self.endpoint.provider} ({self.endpoint.address})"
            raise ModelError(f"{where} does not answer within {timeout:g} s", kind="network", retryable=True) from None
        except (aiohttp.ClientError, OSError) as error:
            failure = error
        raise self.open_exchange().build_error(failure)

    async def close(self) -> None:
        self._pool = None
        for key, pool in list(_pools.items()):
            if self in pool.users and key[0] is asyncio.get_running_loop():
                pool.users.discard(self)
                if not pool.users:
                    await pool.keeper.aclose()


async def _open(key: _PoolKey, headers: Mapping[str, str], endpoint: Endpoint) -> _Pool:
    import aiohttp

    for old in [k for k in _pools if k[0].is_closed()]:
        del _pools[old]
    limits = aiohttp.ClientTimeout(total=None, sock_connect=endpoint.timeouts.connect)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=1000, ttl_dns_cache=300, keepalive_timeout=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=limits,
        proxy=_proxy(endpoint),
    )
    keeper = _keep(session, key)
    pool = _pools[key] = _Pool(session, keeper)
    await anext(keeper)
    return pool


async def _keep(session: ClientSession, key: _PoolKey) -> AsyncGenerator[None, None]:
    """Closes the session at the latest when the loop ends: loops close their async generators then."""
    try:
        yield
    finally:
        _pools.pop(key, None)
        await session.close()


def _proxy(endpoint: Endpoint) -> str | None:
    """The proxy of the environment. Looked up once: aiohttp's own `trust_env` asks a thread every time."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(endpoint.base_url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    is_here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not proxy or is_here or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    kind = proxy.partition("://")[0].lower()
    try:
        named = urlsplit(proxy)
        is_address = bool(named.hostname) and named.port != 0
    except ValueError:
        is_address = False
    if kind not in ("http", "https") or not is_address:
        what = f"a {kind} proxy for {endpoint.address}, and only HTTP proxies work here"
        raise ModelError(
            f"the environment names {what if is_address else f'a proxy for {endpoint.address} that is no address'} — "
            "set HTTPS_PROXY to an HTTP proxy, or NO_PROXY for this host",
            kind="network",
        )
    return proxy


class HttpExchange:
    """One request and its response, read as it arrives. Every failure is a `ModelError`."""

    __slots__ = (
        "_content",
        "_deadline",
        "_first",
        "_loop",
        "_response",
        "_timeouts",
        "_timer",
        "_transport",
        "_waits_since",
    )

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._timeouts = transport.endpoint.timeouts
        self._loop = asyncio.get_running_loop()
        self._response: ClientResponse | None = None
        self._content: Any = None
        self._deadline = 0.0
        self._first = 0.0
        self._waits_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, path: str, body: bytes) -> None:
        """Send the request and wait for the response's head."""
        import aiohttp

        now = self._loop.time()
        limits = self._timeouts
        self._deadline = now + limits.total
        self._first = now + limits.connect + limits.first_byte
        session = await self._transport.get_session()
        try:
            async with asyncio.timeout_at(min(self._first, self._deadline)):
                response = self._response = await session.post(
                    self._transport.build_url(path),
                    data=body if len(body) < _LARGE else io.BytesIO(body),
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = error
        else:
            self._content = response.content
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status == 200 and kind != "text/html":
                return
            said = await _beginning(response.content)
            raise classify_response(response.status, response.headers, said, self._transport.error_source)
        raise self.build_error(failure)

    async def read(self) -> bytes:
        """All that has arrived, waiting only when there is nothing; empty at the end."""
        import aiohttp

        content = self._content
        failure: BaseException
        try:
            data: bytes = content.read_nowait(-1)
            if not data and not content.at_eof():
                self._waits_since = self._loop.time()
                self._watch()
                data = await content.readany()
                self._waits_since = 0.0
            self._first = 0.0
            if self._loop.time() >= self._deadline:
                raise TimeoutError
            return data
        except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError) as error:
            failure = error
        raise self.build_error(failure)

    async def drain(self, seconds: float = 0.1) -> None:
        """Read the last bytes, so that the connection can be used again; not worth a long wait."""
        if self._content.is_eof():
            return
        import aiohttp

        # The reply is complete: what goes wrong behind it is of no interest.
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, RuntimeError):
            async with asyncio.timeout(seconds):
                while await self._content.readany():
                    pass

    def close(self) -> None:
        """Give the connection back when all was read, else cut it: that stops the generation."""
        if self._timer is not None:
            self._timer.cancel()
        if self._response is not None:
            self._response.close()

    def _watch(self) -> None:
        """Wake up when the limit that counts now would be reached. One timer a reply, not one a read."""
        limit = self._limit()
        if self._timer is None or self._timer.when() > limit:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(limit, self._look)

    def _look(self) -> None:
        limit = self._limit()
        if self._waits_since and self._loop.time() >= limit:
            self._content.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(max(limit, self._loop.time() + 0.05), self._look)

    def _limit(self) -> float:
        """Until when the next byte may come; the time that the reader takes for itself does not count."""
        since = self._waits_since or self._loop.time()
        return min(self._first or since + self._timeouts.idle, self._deadline)

    def build_error(self, error: BaseException) -> ModelError:
        """What went wrong, in words of ours."""
        kind, retryable, message = self._explain(error)
        return ModelError(self._transport.error_source.redact(message), kind=kind, retryable=retryable)

    def _explain(self, error: BaseException) -> tuple[ModelErrorKind, bool, str]:
        import aiohttp

        where = f"{self._transport.endpoint.provider} ({self._transport.endpoint.address})"
        limits = self._timeouts
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return (
                    "network",
                    False,
                    (
                        f"the certificate of {where} is not trusted ({_reason(error)}) — if your network replaces "
                        "certificates, add its authority to the system's store or name the file in SSL_CERT_FILE"
                    ),
                )
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                return "network", True, f"the proxy for {where} cannot be used — check HTTPS_PROXY and NO_PROXY"
            case aiohttp.ClientConnectorError():
                return "network", True, f"{where} cannot be reached ({_reason(error)}) — is it running?"
            case aiohttp.ConnectionTimeoutError():
                return "network", True, f"no connection to {where} within {limits.connect:g} s"
            case TimeoutError():
                return self._stalled(where)
            case aiohttp.InvalidURL():
                return "bad_request", False, f"{where} is not an address — check the base URL"
            case _:
                return "network", True, f"the connection to {where} broke off ({_reason(error)})"

    def _stalled(self, where: str) -> tuple[ModelErrorKind, bool, str]:
        limits = self._timeouts
        if self._loop.time() >= self._deadline:
            return "stalled", False, f"{where} had not finished its reply after {limits.total:g} s"
        if self._first:
            return "stalled", True, f"{where} did not begin to answer within {limits.first_byte:g} s"
        return "stalled", True, f"{where} stopped in the middle of its reply: no data for {limits.idle:g} s"


async def _beginning(content: StreamReader) -> bytes:
    """An error's body, but no more of it than an error needs: the status counts also where the rest never comes."""
    import aiohttp

    pieces: list[bytes] = []
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(_ERROR_SECONDS):
            while sum(map(len, pieces)) < _ERROR_BODY and (piece := await content.readany()):
                pieces.append(piece)
    return b"".join(pieces)


def _reason(error: BaseException) -> str:
    """A short cause without addresses or headers, which may hold secrets."""
    names = ("os_error", "certificate_error", "__cause__")
    cause = next((found for name in names if (found := getattr(error, name, None))), error)
    words = getattr(cause, "verify_message", None) or getattr(cause, "strerror", None)
    return words if isinstance(words, str) and words else type(cause).__name__
