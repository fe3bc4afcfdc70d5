"""The way out that can be granted: which hosts, which addresses, and nothing else."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.sandbox import PATIENCE, PYTHON, Place, Ran, collect, inside, needs_bubblewrap
from treadle.errors import BadInput
from treadle.sandbox import bubblewrap, landlock, network
from treadle.sandbox.base import Job, SandboxUnavailable
from treadle.sandbox.proxy import (
    HostAccess,
    ProxyRules,
    RequestRefused,
    is_host_allowed,
    is_public_address,
    read_request,
    serve_proxy,
)

FETCH = """
import sys, urllib.request
try: print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())
except Exception as error: print("REFUSED", error, getattr(error, "read", bytes)().decode())
"""


PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "93.184.216.34"]
NOT_PUBLIC = [
    *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001::1"),
    *("localhost", "", "127.1", "0x7f000001", "2130706433"),
]


@pytest.mark.parametrize("address", PUBLIC + NOT_PUBLIC)
def test_only_some_addresses_are_public(address: str) -> None:
    assert is_public_address(address) is (address in PUBLIC)


@given(st.ip_addresses(v=4))
def test_no_form_that_carries_another_address_is_public(address: object) -> None:
    assert not any(is_public_address(f"{prefix}{address}") for prefix in ("::ffff:", "::", "64:ff9b::"))


@pytest.mark.parametrize(
    ("hosts", "host", "port", "expected"),
    [
        ((), "example.org", 443, True),
        ((), "example.org", 22, False),
        (("example.org",), "example.org", 443, True),
        (("example.org",), "EXAMPLE.org.", 80, True),
        (("example.org",), "example.org", 8443, False),
        (("example.org:8443",), "example.org", 8443, True),
        (("example.org:8443",), "example.org", 443, False),
        (("example.org",), "www.example.org", 443, False),
        (("*.example.org",), "www.example.org", 443, True),
        (("*.example.org",), "example.org", 443, False),
        (("*.example.org",), "badexample.org", 443, False),
        (("example.org",), "example.org.evil.net", 443, False),
    ],
)
def test_the_list_of_hosts(hosts: tuple[str, ...], host: str, port: int, expected: bool) -> None:
    assert is_host_allowed(hosts, host, port) is expected


def test_a_request_is_sent_on_without_what_was_meant_for_the_proxy() -> None:
    target = read_request(
        b"GET http://example.org:81/a?b=c HTTP/1.1\r\nHost: example.org\r\nProxy-Authorization: x\r\n"
        b"Connection: keep-alive\r\nProxy-Connection: keep-alive\r\nAccept: */*\r\n\r\n"
    )
    assert (target.host, target.port) == ("example.org", 81)
    assert target.first == b"GET /a?b=c HTTP/1.1\r\nHost: example.org:81\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    tunnel = read_request(b"CONNECT [2606:4700::1]:443 HTTP/1.1\r\n\r\n")
    assert (tunnel.host, tunnel.port, tunnel.first) == ("2606:4700::1", 443, b"")


@pytest.mark.parametrize("line", [b"Host: evil.example", b"host : evil.example", b"X: a\r\n Host: evil", b"HOST:evil"])
def test_a_plain_request_names_no_other_host_than_the_one_that_was_checked(line: bytes) -> None:
    first = read_request(b"GET http://me@example.org/ HTTP/1.1\r\n" + line + b"\r\n\r\n").first
    assert b"evil" not in first and first.count(b"Host: example.org\r\n") == 1


@pytest.mark.parametrize(
    "head",
    [
        *(b"", b"x y", b"GET / HTTP/1.1", b"GET ftp://a/ HTTP/1.1", b"CONNECT a:b HTTP/1.1", b"GET http://[1 HTTP/1.1"),
        # lines whose end only some see
        *(b"GET http://a/ HTTP/1.1\r\nX: a" + end + b"Host: evil" for end in (b"\n", b"\r")),
        b"GET http://a/\nb HTTP/1.1",
    ],
)
def test_a_request_that_a_proxy_cannot_read_is_refused(head: bytes) -> None:
    with pytest.raises(RequestRefused):
        read_request(head + b"\r\n\r\n")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(head: bytes) -> None:
    with suppress(RequestRefused):
        read_request(head)


@asynccontextmanager
async def a_site() -> AsyncGenerator[int]:
    """A web server on loopback that stands for one in the internet."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        while (await reader.readline()).strip():
            pass
        said = b"welcome to " + line.split()[1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def to_loopback(host: str, port: int) -> list[str]:
    if host == "nowhere.test":
        raise socket.gaierror
    return ["127.0.0.1"]


async def run_with_network(place: Place, code: str, *words: str, hosts: tuple[str, ...], public: bool = True) -> Ran:
    """Run a program whose names all lead to this machine."""
    way = partial(network.open_network, resolve=to_loopback, public=lambda address: public)
    job = Job((PYTHON, "-I", "-c", code, *words), place.workspace, network=True, allow_hosts=hosts)
    return await collect(lambda job, on_output: bubblewrap.run_in_bubblewrap(job, on_output, way), job)


@needs_bubblewrap
async def test_an_allowed_host_is_reached_through_the_proxy(place: Place) -> None:
    async with a_site() as port:
        ran = await run_with_network(place, FETCH, f"http://site.test:{port}/page", hosts=(f"site.test:{port}",))
    assert ran.output == "welcome to /page\n", ran


@needs_bubblewrap
@pytest.mark.parametrize(
    ("host", "public", "why"),
    [
        ("other.test", True, "not among the hosts"),
        ("site.test", False, "Its address is not public"),
        ("nowhere.test", True, "has no address"),
    ],
)
async def test_another_host_or_address_is_refused_with_a_reason(
    host: str, public: bool, why: str, place: Place
) -> None:
    async with a_site() as port:
        hosts = (f"site.test:{port}", f"nowhere.test:{port}")
        ran = await run_with_network(place, FETCH, f"http://{host}:{port}/", hosts=hosts, public=public)
    assert "REFUSED" in ran.output and why in ran.output, ran


@needs_bubblewrap
async def test_with_the_network_the_hosts_loopback_is_as_far_as_without(place: Place) -> None:
    code = f"""
import socket, sys
def tried(name, go):
    try: go(); print("REACHED", name)
    except OSError as error: print("no", name)
tried("port", lambda: socket.create_connection(("127.0.0.1", {place.neighbour.tcp}), 60))
tried("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0{place.neighbour.abstract}"))
tried("name", lambda: socket.create_connection(("example.org", 80), 60))
proxy = socket.create_connection(("127.0.0.1", {network.PROXY_PORT}), 60)
proxy.sendall(b"CONNECT 127.0.0.1:{place.neighbour.tcp} HTTP/1.1\\r\\n\\r\\n")
print(proxy.recv(12))
proxy = socket.create_connection(("127.0.0.1", {network.PROXY_PORT}), 60)
proxy.sendall(b"CONNECT localhost:443 HTTP/1.1\\r\\n\\r\\n")
print(proxy.recv(12))
"""
    ran = await inside(place.job(PYTHON, "-I", "-c", code, network=True))
    assert "REACHED" not in ran.output and ran.output.count("403") == 2 and ran.ended.code == 0, ran


@needs_bubblewrap
async def test_build_tools_of_java_are_told_of_the_proxy(place: Place) -> None:
    show = place.job("sh", "-c", "echo $MAVEN_OPTS; echo $GRADLE_OPTS", network=True)
    maven, gradle = (await inside(show)).output.splitlines()
    assert "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=3128" in gradle and gradle in maven
    assert "-Dmaven.repo.local=/tmp/home/.cache/" in maven


@needs_bubblewrap
async def test_without_the_network_there_is_no_proxy(place: Place) -> None:
    ran = await inside(
        place.python(f"import socket; socket.create_connection(('127.0.0.1', {network.PROXY_PORT}), 60)")
    )
    assert "ConnectionRefusedError" in ran.output


@needs_bubblewrap
async def test_a_tunnel_carries_bytes_both_ways_and_ends_with_the_command(place: Place) -> None:
    closed = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # the end of a tunnel that is cut off may be a reset
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()
        closed.set()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        code = f"""
import socket, threading
s = socket.create_connection(("127.0.0.1", {network.PROXY_PORT}))
s.sendall(b"CONNECT site.test:{port} HTTP/1.1\\r\\n\\r\\n")
assert b"200" in s.recv(100)
sent = b"x" * (1 << 20)
threading.Thread(target=s.sendall, args=(sent,), daemon=True).start()
got = 0
while got < len(sent): got += len(s.recv(65536))
print(got)
"""
        ran = await run_with_network(place, code, hosts=(f"site.test:{port}",))
        assert ran.output == f"{1 << 20}\n", ran
        async with asyncio.timeout(PATIENCE):
            await closed.wait()


@asynccontextmanager
async def connect_to_proxy(rules: ProxyRules) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serve_proxy(listener, HostAccess(rules)), asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            yield reader, writer
    writer.close()


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"GET http://a/ HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, b"HTTP/1.1 403"),
        (b"CONNECT a..b:443 HTTP/1.1\r\n\r\n", b"has no address"),
        (b"CONNECT " + b"a" * 70 + b":443 HTTP/1.1\r\n\r\n", b"has no address"),
    ],
    ids=["a head that never ends", "a name that cannot be one", "a name that is too long"],
)
async def test_a_request_is_refused_with_a_reason(head: bytes, answer: bytes) -> None:
    async with connect_to_proxy(ProxyRules()) as (reader, writer):
        writer.write(head)
        assert answer in await reader.read(1000)


async def test_leaving_closes_both_ends_of_a_tunnel_that_is_still_open() -> None:
    ended, near = asyncio.Event(), b""

    async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(far, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gate = ProxyRules((f"site.test:{port}",), to_loopback, lambda address: True)
    async with server, asyncio.timeout(PATIENCE):
        async with connect_to_proxy(gate) as (reader, writer):
            writer.write(f"CONNECT site.test:{port} HTTP/1.1\r\n\r\n".encode())
            near = await reader.readuntil(b"\r\n\r\n")
        with suppress(OSError):
            assert await reader.read() == b""
        await ended.wait()
    assert b"200" in near


@needs_bubblewrap
async def test_a_network_that_cannot_be_entered_is_said_and_nothing_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_LISTENER", place.outside / "missing.py")
    monkeypatch.setattr(network, "helper", network.ListenerHelper())
    with pytest.raises(SandboxUnavailable, match="was not run"):
        await inside(place.job("touch", "ran", network=True))
    assert not (place.workspace / "ran").exists()


async def test_the_reduced_sandbox_grants_no_network(place: Place) -> None:
    with pytest.raises(BadInput, match="cannot grant the network"):
        await landlock.run_in_landlock(place.job("true", network=True), lambda data: None)
