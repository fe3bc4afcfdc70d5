"""HTTP for every provider: pooled connections, time limits, one exchange at a time. Retries nothing.

aiohttp is imported when the first request is made, so that a program without requests does not pay for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

import msgspec
from msgspec import Struct

from treadle.errors import ModelError, ModelErrorKind
from treadle.models.failures import ErrorSource, classify_response

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_LARGE_BODY = 1 << 20
_ERROR_BODY_BYTES = 1 << 16
_ERROR_SECONDS = 10.0


class Timeouts(Struct, frozen=True):
    """Limits in seconds: for a connection, for the first byte, between bytes, for the whole reply."""

    connect: float = 10.0
    first_byte: float = 180.0
    idle: float = 90.0
    total: float = 1800.0


LOCAL_TIMEOUTS = Timeouts(connect=5.0, first_byte=1800.0, idle=300.0, total=14400.0)
"""For servers on this machine. They may load a model and read a long prompt before their first byte."""


class Secret:
    """A key that no repr, log line or traceback shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"


class Endpoint(Struct, frozen=True, kw_only=True):
    """How to reach a provider: base URL, key, headers, time limits."""

    provider: str
    base_url: str
    key: Secret | None = None
    key_variable: str = ""
    key_header: str = "authorization"
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
        # Compressed events would wait in the buffer of some proxies.
        headers = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "treadle"}
        headers |= dict(self.headers)
        if self.key is not None:
            prefix = "Bearer " if self.key_header == "authorization" else ""
            headers[self.key_header] = prefix + self.key.reveal()
        return headers

    def find_proxy(self) -> str | None:
        """The proxy of the environment. Looked up once: aiohttp's `trust_env` starts a thread for every request."""
        from urllib.request import getproxies, proxy_bypass

        parts = urlsplit(self.base_url)
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
            problem = f"a {kind} proxy for {self.address}, and only HTTP proxies work here"
            if not is_address:
                problem = f"a proxy for {self.address} that is no address"
            raise ModelError(
                f"the environment names {problem} — set HTTPS_PROXY to an HTTP proxy, or NO_PROXY for this host",
                kind="network",
            )
        return proxy


class _Pool:
    """The connections to one endpoint on one event loop, and the transports that use them."""

    def __init__(self, key: _PoolKey, session: ClientSession) -> None:
        self.key = key
        self.loop = asyncio.get_running_loop()
        self.session = session
        self.users: WeakSet[Transport] = WeakSet()
        self.keeper = self._keep_open()

    async def _keep_open(self) -> AsyncGenerator[None, None]:
        """Close the session when the loop ends, at the latest: loops close their async generators then."""
        try:
            yield
        finally:
            _pools.pop(self.key, None)
            await self.session.close()


_PoolKey = tuple[asyncio.AbstractEventLoop, str, tuple[tuple[str, str], ...]]
_pools: dict[_PoolKey, _Pool] = {}


class Transport:
    """Sends requests to one endpoint. Models of the same endpoint share its connections."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.error_source = endpoint.error_source
        self._headers = endpoint.build_headers()
        self._key = tuple(sorted(self._headers.items()))
        self._urls: dict[str, Any] = {}
        self._pool: _Pool | None = None

    async def get_session(self) -> ClientSession:
        """The session of the running loop. `close` closes it, or else the end of the loop does."""
        loop, pool = asyncio.get_running_loop(), self._pool
        if pool is None or pool.loop is not loop or pool.session.closed:
            key = (loop, self.endpoint.base_url, self._key)
            pool = self._pool = _pools.get(key) or await self._open_pool(key)
            pool.users.add(self)
        return pool.session

    async def _open_pool(self, key: _PoolKey) -> _Pool:
        import aiohttp

        for old in [k for k in _pools if k[0].is_closed()]:
            del _pools[old]
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1000, ttl_dns_cache=300, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.endpoint.timeouts.connect),
            proxy=self.endpoint.find_proxy(),
        )
        pool = _pools[key] = _Pool(key, session)
        await anext(pool.keeper)
        return pool

    def build_url(self, path: str) -> Any:
        """The address as an object, which aiohttp need not parse for every request."""
        found = self._urls.get(path)
        if found is None:
            from yarl import URL

            found = self._urls[path] = URL(self.endpoint.base_url.rstrip("/") + path)
        return found

    async def fetch_json(
        self, path: str, *, body: bytes | None = None, from_root: bool = True, timeout: float = 2.0
    ) -> Any:
        """A small JSON document from the server, or None when it does not send one in time.

        `from_root` leaves out the version at the end of the base URL.
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
        """The status of a GET. Raises `ModelError` when nothing answers."""
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
        raise HttpExchange(self).build_error(failure)

    async def close(self) -> None:
        """Close the connections that no other transport uses."""
        self._pool = None
        for key, pool in list(_pools.items()):
            if self in pool.users and key[0] is asyncio.get_running_loop():
                pool.users.discard(self)
                if not pool.users:
                    await pool.keeper.aclose()


class HttpExchange:
    """One request and its response, which is read as it arrives. Every failure is a `ModelError`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._timeouts = transport.endpoint.timeouts
        self._loop = asyncio.get_running_loop()
        self._response: ClientResponse | None = None
        self._content: Any = None
        self._deadline = 0.0
        self._first_byte_limit = 0.0
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # uvloop's timers of no time do not know it
        self._task: asyncio.Task[Any] | None = None
        self._is_late = False

    async def start(self, path: str, body: bytes) -> None:
        """Send the request and wait for the head of the response."""
        import aiohttp

        now = self._loop.time()
        limits = self._timeouts
        self._deadline = now + limits.total
        self._first_byte_limit = now + limits.connect + limits.first_byte
        session = await self._transport.get_session()
        failure: BaseException
        try:
            response = self._response = await self._post(session, path, body)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = error
        else:
            self._content = response.content
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status == 200 and kind != "text/html":
                return
            said = await self._read_error_body()
            raise classify_response(response.status, response.headers, said, self._transport.error_source)
        raise self.build_error(failure)

    async def _post(self, session: ClientSession, path: str, body: bytes) -> ClientResponse:
        """Wait for the head of the response. `asyncio.timeout` would do, with a second timer for each reply."""
        task = asyncio.current_task()
        assert task is not None
        earlier_cancels, self._task, self._waiting_since = task.cancelling(), task, self._loop.time()
        self._set_timer()
        data = body if len(body) < _LARGE_BODY else io.BytesIO(body)
        try:
            return await session.post(self._transport.build_url(path), data=data, allow_redirects=False)
        except asyncio.CancelledError:
            # A further cancellation was requested by somebody else, and is passed on.
            if not self._is_late or task.uncancel() > earlier_cancels:
                raise
            raise TimeoutError from None
        finally:
            self._task, self._waiting_since = None, 0.0

    async def _read_error_body(self) -> bytes:
        """The beginning of an error's body. The status counts even where the rest never comes."""
        import aiohttp

        pieces: list[bytes] = []
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_ERROR_SECONDS):
                while sum(map(len, pieces)) < _ERROR_BODY_BYTES and (piece := await self._content.readany()):
                    pieces.append(piece)
        return b"".join(pieces)

    async def read(self) -> bytes:
        """All bytes that have arrived. It waits only when there are none; empty at the end."""
        import aiohttp

        content = self._content
        failure: BaseException
        try:
            data: bytes = content.read_nowait(-1)
            if not data and not content.at_eof():
                self._waiting_since = self._loop.time()
                self._set_timer()
                data = await content.readany()
                self._waiting_since = 0.0
            self._first_byte_limit = 0.0
            if self._loop.time() >= self._deadline:
                raise TimeoutError
            return data
        except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError) as error:
            failure = error
        raise self.build_error(failure)

    async def drain(self, seconds: float = 0.1) -> None:
        """Read the last bytes, so that the connection can be used again. This is not worth a long wait."""
        if self._content.is_eof():
            return
        import aiohttp

        # The reply is complete, so an error after it does not matter.
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, RuntimeError):
            async with asyncio.timeout(seconds):
                while await self._content.readany():
                    pass

    def close(self) -> None:
        """Give the connection back when all was read. Else cut it, which stops the generation."""
        if self._timer is not None:
            self._timer.cancel()
        if self._response is not None:
            self._response.close()

    def _set_timer(self) -> None:
        """Set the timer for the current time limit. There is one timer for a reply, not one for each read."""
        limit = self._compute_limit()
        if self._timer is None or self._timer_at > limit:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_at(limit, self._check_time), limit

    def _check_time(self) -> None:
        limit = self._compute_limit()
        if self._waiting_since and self._loop.time() >= limit:
            if self._task is not None:
                self._is_late = self._task.cancel()
            else:
                self._content.set_exception(TimeoutError())
        else:
            self._timer_at = max(limit, self._loop.time() + 0.05)
            self._timer = self._loop.call_at(self._timer_at, self._check_time)

    def _compute_limit(self) -> float:
        """When the next byte is too late. The time that the reader takes for itself does not count."""
        since = self._waiting_since or self._loop.time()
        return min(self._first_byte_limit or since + self._timeouts.idle, self._deadline)

    def build_error(self, error: BaseException) -> ModelError:
        """The error for a failure of the connection."""
        kind, retryable, message = self._explain(error)
        return ModelError(self._transport.error_source.redact(message), kind=kind, retryable=retryable)

    def _explain(self, error: BaseException) -> tuple[ModelErrorKind, bool, str]:
        import aiohttp

        server = f"{self._transport.endpoint.provider} ({self._transport.endpoint.address})"
        limits = self._timeouts
        # The cause is short, without addresses and headers: they may hold secrets.
        causes = (getattr(error, name, None) for name in ("os_error", "certificate_error", "__cause__"))
        origin = next(filter(None, causes), error)
        reason = getattr(origin, "verify_message", None) or getattr(origin, "strerror", None)
        cause = reason if isinstance(reason, str) and reason else type(origin).__name__
        match error:
            case aiohttp.ClientConnectorCertificateError():
                advice = (
                    "if your network replaces certificates, add its authority to the system's store or name the "
                    "file in SSL_CERT_FILE"
                )
                return "network", False, f"the certificate of {server} is not trusted ({cause}) — {advice}"
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                return "network", True, f"the proxy for {server} cannot be used — check HTTPS_PROXY and NO_PROXY"
            case aiohttp.ClientConnectorError():
                return "network", True, f"{server} cannot be reached ({cause}) — is it running?"
            case aiohttp.ConnectionTimeoutError():
                return "network", True, f"no connection to {server} within {limits.connect:g} s"
            case TimeoutError() if self._loop.time() >= self._deadline:
                return "stalled", False, f"{server} had not finished its reply after {limits.total:g} s"
            case TimeoutError() if self._first_byte_limit:
                return "stalled", True, f"{server} did not begin to answer within {limits.first_byte:g} s"
            case TimeoutError():
                return "stalled", True, f"{server} stopped in the middle of its reply: no data for {limits.idle:g} s"
            case aiohttp.InvalidURL():
                return "bad_request", False, f"{server} is not an address — check the base URL"
            case _:
                return "network", True, f"the connection to {server} broke off ({cause})"
