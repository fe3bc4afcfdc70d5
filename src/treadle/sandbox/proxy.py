"""The only way out of a sandbox: an HTTP proxy that connects to allowed hosts at public addresses.

A host that is not allowed may be asked for. Only then its name is resolved, once: a query for a name can carry data out
too. The proxy connects to the address that it checked, and does not read what passes through.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from urllib.parse import urlsplit

from msgspec import Struct

from treadle.errors import TreadleError
from treadle.permissions.policy import make_printable
from treadle.permissions.requests import USUAL_PORTS
from treadle.sandbox.base import AskHost

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""

IsPublic = Callable[[str], bool]

_REPLACED_HEADERS = ("host:", "host ", "proxy-", "connection:", "keep-alive:", " ", "\t")
_MAX_HEAD_BYTES = 16 * 1024
_TIMEOUT = 30.0
_CHUNK_BYTES = 65536
_MAX_CONNECTIONS = 200
_MAX_REFUSALS = 5
_MAX_NAMED_HOSTS = 20
_MAX_NAME_LENGTH = 253
_NAME = re.compile(r"([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)+(?!0x)[a-z0-9-]*[a-z-][a-z0-9-]*")
"""A name with a dot. One that ends in a number is an address, in one of many forms."""
_NOT_PUBLIC = (
    "Its address is not public. If it is a package registry of the user's own network, the user can add it to "
    "registries in the section [sandbox] of config.toml."
)
# IPv6 forms that carry an IPv4 address, which a gateway or the system extracts, and old forms of the local host.
_CARRIERS = tuple(
    map(
        ipaddress.IPv6Network,
        ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
    )
)


class RequestRefused(Exception):
    """The proxy does not forward a request. The text appears in the command's output."""


class Target(Struct, frozen=True):
    """Where a request goes, and the bytes to send there first. A tunnel has none."""

    host: str
    port: int
    first: bytes = b""


def is_public_address(address: str) -> bool:
    """Tell whether an address is surely elsewhere: not this machine, its network, cloud metadata or multicast."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and (
        parsed.is_site_local or any(parsed in network for network in _CARRIERS)
    ):
        return False
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


def is_elsewhere(address: str) -> bool:
    """Tell whether an address, public or private, is one of another machine and not one of cloud metadata."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    is_special = parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified
    return not is_special and not any(parsed in network for network in _CARRIERS if network.version == parsed.version)


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, each once."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class ProxyRules(Struct, frozen=True):
    """Which hosts may be reached: `hosts`, every public host if that is empty, and none if it is None.

    `ask` is called for other hosts. `own` are hosts that may have a private address. Tests replace the other fields.
    """

    hosts: tuple[str, ...] | None = ()
    resolve: Resolve = resolve_host
    is_public: IsPublic = is_public_address
    ask: AskHost | None = None
    own: tuple[str, ...] = ()

    def can_connect(self, host: str, port: int, address: str) -> bool:
        """Tell whether an allowed host may be reached at this address."""
        return self.is_public(address) or (
            bool(self.own) and is_host_allowed(self.own, host, port) and is_elsewhere(address)
        )


def is_host_allowed(hosts: Sequence[str], host: str, port: int) -> bool:
    """Tell whether a list of `example.org`, `*.example.org` or `example.org:8443` names a host at a port."""
    host = host.rstrip(".").lower()
    for entry in hosts or ("*",):
        name, colon, wanted = entry.lower().rpartition(":")
        if not colon or not wanted.isdigit():
            name, wanted = entry.lower(), ""
        is_port = port == int(wanted) if wanted else port in USUAL_PORTS
        if is_port and (name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:]))):
            return True
    return False


def is_askable_host(host: str, is_public: IsPublic) -> bool:
    """Tell whether a person can be asked for a host: a name that may be public, or a public address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return len(host) <= _MAX_NAME_LENGTH and _NAME.fullmatch(host) is not None
    return is_public(host)


class HostAccess:
    """Decides which hosts one command reaches. It asks for one host at a time, for each once, and not for many.

    `refused` has the hosts that were not reached, as `HOST:PORT`, and why.
    """

    def __init__(self, rules: ProxyRules) -> None:
        self.rules = rules
        self.refused: dict[str, str] = {}
        self._answers: dict[tuple[str, int], asyncio.Task[str]] = {}
        self._turn = asyncio.Lock()
        self._refusals = 0

    async def check_host(self, host: str, port: int) -> None:
        """Raise `RequestRefused` when a host may not be reached. It may wait for a person."""
        rules = self.rules
        if rules.hosts is not None and is_host_allowed(rules.hosts, host, port):
            return
        if rules.ask is None:
            why = "It is not among the hosts that this command may reach."
        elif not is_askable_host(host.rstrip(".").lower(), rules.is_public):
            why = "It is not a public host."
        else:
            why = await self._find_answer(rules.ask, host.rstrip(".").lower(), port)
        if why:
            raise self.refuse(host, port, why)

    def refuse(self, host: str, port: int, why: str) -> RequestRefused:
        """Note that a host is not reached. Return the error that says so."""
        name = f"{make_printable(host)}:{port}"
        if len(self.refused) < _MAX_NAMED_HOSTS:
            self.refused[name] = why
        return RequestRefused(f"{name} was not reached: {why}")

    def close(self) -> None:
        """Withdraw the open questions."""
        for answer in self._answers.values():
            answer.cancel()

    async def _find_answer(self, ask: AskHost, host: str, port: int) -> str:
        """Return why a host may not be reached, or nothing. All connections to it share one question."""
        if (host, port) not in self._answers:
            if self._refusals >= _MAX_REFUSALS:
                return self._describe_flood()
            self._answers[host, port] = asyncio.ensure_future(self._ask(ask, host, port))
        return await asyncio.shield(self._answers[host, port])

    async def _ask(self, ask: AskHost, host: str, port: int) -> str:
        async with self._turn:
            if self._refusals >= _MAX_REFUSALS:
                return self._describe_flood()
            try:
                why = await ask(host, port)
            except TreadleError as error:
                why = str(error)
            self._refusals += bool(why)
            return why

    def _describe_flood(self) -> str:
        return f"{_MAX_REFUSALS} hosts were refused to this command, so nobody was asked for another one."


def read_request(head: bytes) -> Target:
    """Read a client's request: a tunnel, or one plain request to forward."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    # To some servers these characters end a line too. What follows them would be a header that was not checked here.
    if len(words) != 3 or any("\r" in line or "\n" in line or "\0" in line for line in lines):
        raise RequestRefused("this is not a request to a proxy")
    method, address, protocol = words
    try:
        parts = urlsplit(f"//{address}" if method == "CONNECT" else address)
        host, port = parts.hostname, parts.port or (443 if method == "CONNECT" else 80)
    except ValueError:
        raise RequestRefused("the address cannot be read") from None
    if not host or (method != "CONNECT" and parts.scheme != "http"):
        raise RequestRefused("the address names no host that a proxy can reach")
    if method == "CONNECT":
        return Target(host, port)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # One request per connection: a second one might be for another host. The `Host` header names the checked host.
    kept = [line for line in lines[1:] if line and not line.lower().startswith(_REPLACED_HEADERS)]
    named = parts.netloc.rpartition("@")[2]
    first = [f"{method} {path} {protocol}", f"Host: {named}", *kept, "Connection: close", "", ""]
    return Target(host, port, "\r\n".join(first).encode("latin-1"))


@asynccontextmanager
async def serve_proxy(listener: socket.socket, access: HostAccess) -> AsyncGenerator[None]:
    """Serve the proxy on a socket. Leaving the block ends every connection."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(tasks) >= _MAX_CONNECTIONS:  # each takes descriptors of this process
            writer.transport.abort()
            return
        task = asyncio.ensure_future(_serve_connection(access, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, sock=listener, limit=_MAX_HEAD_BYTES)
    try:
        yield
    finally:
        server.close()
        access.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _serve_connection(access: HostAccess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError), _close_writer(writer):
        try:
            async with asyncio.timeout(_TIMEOUT):
                target = read_request(await reader.readuntil(b"\r\n\r\n"))
            await access.check_host(target.host, target.port)
            async with asyncio.timeout(_TIMEOUT):
                far_reader, far_writer = await _connect(access, target)
        except (RequestRefused, asyncio.LimitOverrunError) as error:
            text = f"treadle: {error}\n".encode()
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text)
            )
            await writer.drain()
            return
        with _close_writer(far_writer):
            if target.first:
                far_writer.write(target.first)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_forward(reader, far_writer), _forward(far_reader, writer))


@contextmanager
def _close_writer(writer: asyncio.StreamWriter) -> Generator[None]:
    """Close a connection at the end. When the task is cancelled, abort it at once."""
    try:
        yield
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    finally:
        writer.close()


async def _connect(access: HostAccess, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    rules = access.rules
    try:
        found = await rules.resolve(target.host, target.port)
    except (OSError, UnicodeError):  # UnicodeError: it cannot be a name at all
        raise access.refuse(target.host, target.port, "It has no address.") from None
    addresses = [address for address in found if rules.can_connect(target.host, target.port, address)]
    if not addresses:
        raise access.refuse(target.host, target.port, _NOT_PUBLIC)
    for address in addresses:
        with suppress(OSError):
            return await asyncio.open_connection(address, target.port)
    raise access.refuse(target.host, target.port, "It does not answer.")


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
