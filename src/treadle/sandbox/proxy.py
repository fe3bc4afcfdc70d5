"""The only way out of a sandbox with network: an HTTP proxy that connects to allowed hosts at public addresses.

A name is resolved once, and the connection goes to the address that was checked. What passes through is not read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from urllib.parse import urlsplit

from msgspec import Struct

from treadle.sandbox.public_addresses import is_public_address

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
IsPublic = Callable[[str], bool]

_USUAL_PORTS = (80, 443)
_OURS = ("host:", "host ", "proxy-", "connection:", "keep-alive:", " ", "\t")
_HEAD = 16 * 1024
_PATIENCE = 30.0
_CHUNK = 65536


class RequestRefused(Exception):
    """A request that goes nowhere; the text is for the command's output."""


class Target(Struct, frozen=True):
    """Where a request wants to go, and what is sent there first; nothing for a tunnel."""

    host: str
    port: int
    first: bytes = b""


class ProxyRules(Struct, frozen=True):
    """Which hosts may be reached; without any, every public one. How names are resolved can be replaced."""

    hosts: tuple[str, ...] = ()
    resolve: Resolve | None = None
    is_public: IsPublic = is_public_address


def is_host_allowed(hosts: Sequence[str], host: str, port: int) -> bool:
    """Whether a list of `example.org`, `*.example.org` or `example.org:8443` names a host at a port."""
    return any(_names(entry, host.rstrip(".").lower(), port) for entry in hosts or ("*",))


def _names(entry: str, host: str, port: int) -> bool:
    name, colon, wanted = entry.lower().rpartition(":")
    if not colon or not wanted.isdigit():
        name, wanted = entry.lower(), ""
    if port != int(wanted) if wanted else port not in _USUAL_PORTS:
        return False
    return name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:]))


def read_request(head: bytes) -> Target:
    """What a client asks the proxy for: a tunnel, or one plain request to be sent on."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    # To some servers these end a line, too, and what follows is a header that was not seen here.
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
    # One request a connection: a second one might be meant for another host. And `Host` may name none but that.
    kept = [line for line in lines[1:] if line and not line.lower().startswith(_OURS)]
    named = parts.netloc.rpartition("@")[2]
    first = [f"{method} {path} {protocol}", f"Host: {named}", *kept, "Connection: close", "", ""]
    return Target(host, port, "\r\n".join(first).encode("latin-1"))


@asynccontextmanager
async def serve_proxy(listener: socket.socket, gate: ProxyRules) -> AsyncGenerator[None]:
    """Serve the proxy on a socket; leaving ends every connection."""
    tasks: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_serve(gate, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accepted, sock=listener, limit=_HEAD)
    try:
        yield
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _serve(gate: ProxyRules, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError), _closing(writer):
        try:
            async with asyncio.timeout(_PATIENCE):
                target = read_request(await reader.readuntil(b"\r\n\r\n"))
                far_reader, far_writer = await _connect(gate, target)
        except (RequestRefused, asyncio.LimitOverrunError) as error:
            said = f"treadle: {error}\n".encode()
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(said), said)
            )
            await writer.drain()
            return
        with _closing(far_writer):
            if target.first:
                far_writer.write(target.first)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))


@contextmanager
def _closing(writer: asyncio.StreamWriter) -> Generator[None]:
    """Close a connection in the end, and at once when nobody waits for it any more."""
    try:
        yield
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    finally:
        writer.close()


async def _connect(gate: ProxyRules, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if not is_host_allowed(gate.hosts, target.host, target.port):
        raise RequestRefused(f"{target.host}:{target.port} is not among the hosts that this command may reach")
    resolve = gate.resolve or _resolve
    try:
        addresses = [address for address in await resolve(target.host, target.port) if gate.is_public(address)]
    except (OSError, UnicodeError):  # the second when it is no name at all
        raise RequestRefused(f"{target.host} has no address") from None
    if not addresses:
        raise RequestRefused(f"{target.host} is not a public host")
    for address in addresses:
        with suppress(OSError):
            return await asyncio.open_connection(address, target.port)
    raise RequestRefused(f"{target.host}:{target.port} does not answer")


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
