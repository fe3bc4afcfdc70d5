"""Hosts that a command may ask for: it waits, the clock stands still, and nobody is asked in vain or too often."""

import asyncio
import importlib.util
import io
import os
import signal
import socket
import sys
import zipfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.kit.sandbox import PATIENCE, PYTHON, Place, Ran, collect, needs_bubblewrap
from tests.sandbox.test_network import FETCH, a_site
from treadle.sandbox import bubblewrap, network
from treadle.sandbox.base import Bounds, Job
from treadle.sandbox.process import WallTimer
from treadle.sandbox.proxy import (
    HostAccess,
    ProxyRules,
    RequestRefused,
    is_askable_host,
    is_public_address,
    serve_proxy,
)

NO = "Ada said no."


class Person:
    """Answers questions about hosts, and remembers them and the names that were resolved."""

    def __init__(self, answer: str = "") -> None:
        self.asked: list[str] = []
        self.resolved: list[str] = []
        self.answer = answer
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_asked = asyncio.Event()

    async def ask(self, host: str, port: int) -> str:
        self.asked.append(f"{host}:{port}")
        self.is_asked.set()
        await self.may_answer.wait()
        return self.answer

    async def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append(host)
        return ["127.0.0.1"]

    def rules(self, hosts: tuple[str, ...] | None = None, *, public: bool = True) -> ProxyRules:
        return ProxyRules(hosts, self.resolve, lambda address: public or is_public_address(address), self.ask)


async def run_asking(
    place: Place, person: Person, code: str, *words: str, wall_s: float = 60, public: bool = True
) -> Ran:
    way = partial(network.open_network, resolve=person.resolve, public=lambda address: public)
    job = Job((PYTHON, "-I", "-c", code, *words), place.workspace, ask_host=person.ask, bounds=Bounds(wall_s=wall_s))
    return await collect(lambda job, on_output: bubblewrap.run_in_bubblewrap(job, on_output, way), job)


# --- a real client in the sandbox


@needs_bubblewrap
async def test_a_command_waits_for_the_answer_and_reaches_the_host(place: Place) -> None:
    person = Person()
    person.may_answer.clear()
    async with a_site() as port, asyncio.timeout(PATIENCE):
        running = asyncio.ensure_future(run_asking(place, person, FETCH, f"http://site.test:{port}/page"))
        await person.is_asked.wait()
        assert person.resolved == []  # a query for a name can carry data out
        person.may_answer.set()
        ran = await running
    assert ran.output == "welcome to /page\n" and ran.ended.refused_hosts == {}
    assert person.asked == [f"site.test:{port}"] and person.resolved == ["site.test"]


@needs_bubblewrap
async def test_the_clock_of_the_command_stands_still_while_a_question_is_open(place: Place) -> None:
    person = Person()
    person.may_answer.clear()
    loop = asyncio.get_running_loop()
    async with a_site() as port:
        fetch = run_asking(place, person, FETCH, f"http://site.test:{port}/", wall_s=20)
        running = asyncio.ensure_future(fetch)
        await person.is_asked.wait()
        before = loop.time
        loop.time = lambda: before() + 30  # type: ignore[method-assign]
        loop.call_soon(person.may_answer.set)
        ran = await running
    assert ran.ended.reason == "exited" and "welcome" in ran.output, ran


@needs_bubblewrap
async def test_a_refusal_reaches_the_client_and_the_result(place: Place) -> None:
    person = Person(NO)
    ran = await run_asking(place, person, FETCH, "http://site.test/")
    assert "REFUSED" in ran.output and f"site.test:80 was not reached: {NO}" in ran.output, ran
    assert ran.ended.refused_hosts == {"site.test:80": NO} and person.resolved == []


@needs_bubblewrap
async def test_a_yes_does_not_open_a_private_address(place: Place) -> None:
    """A name that leads into this machine, also one that did not when it was asked for, is not reached."""
    person = Person()
    ran = await run_asking(place, person, FETCH, "http://rebound.test/", public=False)
    assert "Its address is not public" in ran.output and "rebound.test:80" in ran.ended.refused_hosts
    assert person.asked == ["rebound.test:80"]


def build_wheel() -> bytes:
    """Build a wheel with one module, as a registry would have it."""
    files = {"demo.py": "x = 1\n", "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"}
    files["demo-1.0.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files["demo-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return data.getvalue()


@asynccontextmanager
async def a_registry() -> AsyncGenerator[int]:
    """A package registry on loopback that stands for one in the internet."""
    name, wheel = "demo-1.0-py3-none-any.whl", build_wheel()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        kind, body = (
            ("application/zip", wheel) if path.endswith(name) else ("text/html", f'<a href="/{name}">x</a>'.encode())
        )
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@needs_bubblewrap
@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="NOT TESTED, this Python has no pip")
async def test_pip_waits_for_the_answer_and_installs_into_the_workspace(place: Place) -> None:
    person = Person()
    person.may_answer.clear()
    way = partial(network.open_network, resolve=person.resolve, public=lambda address: True)
    async with a_registry() as port:
        index = f"http://packages.test:{port}/simple"
        words = ("-m", "pip", "install", "--index-url", index, "--trusted-host", "packages.test", "--target", "lib")
        argv = (sys.executable, *words, "--disable-pip-version-check", "--no-cache-dir", "demo")
        job = Job(argv, place.workspace, ask_host=person.ask)
        running = asyncio.ensure_future(
            collect(lambda job, on_output: bubblewrap.run_in_bubblewrap(job, on_output, way), job)
        )
        async with asyncio.timeout(PATIENCE):
            await person.is_asked.wait()
        person.may_answer.set()
        ran = await running
    assert ran.ended.code == 0 and "Successfully installed demo-1.0" in ran.output, ran
    assert (place.workspace / "lib" / "demo.py").exists() and person.asked == [f"packages.test:{port}"]


@needs_bubblewrap
async def test_variables_let_clients_wait_as_long_as_a_person(place: Place) -> None:
    code = (
        "import os; print(*(os.environ[n] for n in ('PIP_DEFAULT_TIMEOUT', 'npm_config_fetch_timeout', 'https_proxy')))"
    )
    ran = await run_asking(place, Person(), code)
    assert ran.output == f"900 900000 http://127.0.0.1:{network.PROXY_PORT}\n"


@needs_bubblewrap
async def test_names_are_not_resolved_inside(place: Place) -> None:
    code = "import socket\ntry: socket.getaddrinfo('site.test', 80)\nexcept OSError: print('no names')"
    person = Person()
    ran = await run_asking(place, person, code)
    assert ran.output == "no names\n" and person.asked == []


@needs_bubblewrap
async def test_many_commands_share_one_helper_and_another_is_started_when_it_dies(place: Place) -> None:
    await asyncio.gather(*(run_asking(place, Person(), "pass") for _ in range(4)))
    helper = network.helper.pid
    assert helper is not None
    os.kill(helper, signal.SIGKILL)
    person = Person(NO)
    ran = await run_asking(place, person, FETCH, "http://site.test/")
    assert NO in ran.output and network.helper.pid != helper


# --- whom and how often


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "2130706433", "127.1", "0x7f.1", "a.0x7f"),
        *("printer", "", ".", "a..b", "-", "a b.org", "evil\x1b[2J.org", "evil\u202egro.org", "ex\xe4mple.org"),
        "a." * 127 + "example",
    ],
)
async def test_nobody_is_asked_for_a_host_that_cannot_be_public(host: str) -> None:
    person = Person()
    access = HostAccess(ProxyRules(None, person.resolve, is_public_address, person.ask))
    with pytest.raises(RequestRefused, match="not a public host") as refused:
        await access.check_host(host, 443)
    assert person.asked == person.resolved == []
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("host", ["example.org", "xn--exmple-cua.org", "a_b.example.org", "8.8.8.8", "2606:4700::1111"])
def test_a_person_can_be_asked_for_names_and_public_addresses(host: str) -> None:
    assert is_askable_host(host, is_public_address)


async def test_all_connections_to_a_host_share_one_question() -> None:
    person = Person()
    access = HostAccess(person.rules())
    await asyncio.gather(*(access.check_host(host, 443) for host in ("Example.org", "example.org.", "example.org")))
    await access.check_host("example.org", 443)
    assert person.asked == ["example.org:443"]


async def test_a_listed_host_is_not_asked_for() -> None:
    person = Person(NO)
    access = HostAccess(person.rules(("example.org",)))
    await access.check_host("example.org", 443)
    assert person.asked == []


async def test_questions_come_one_at_a_time() -> None:
    person = Person()
    person.may_answer.clear()
    access = HostAccess(person.rules())
    checks = [asyncio.ensure_future(access.check_host(f"h{number}.example", 443)) for number in range(3)]
    await person.is_asked.wait()
    await asyncio.sleep(0)
    assert len(person.asked) == 1
    person.may_answer.set()
    await asyncio.gather(*checks)
    assert len(person.asked) == 3


async def test_a_command_that_tries_thousands_of_names_asks_for_a_few() -> None:
    person = Person(NO)
    access = HostAccess(person.rules())
    for many in (range(20), range(1000, 10_000)):
        found = await asyncio.gather(
            *(access.check_host(f"d{number}.leak.example", 443) for number in many), return_exceptions=True
        )
        assert all(isinstance(one, RequestRefused) for one in found)
    assert len(person.asked) == 5 and person.resolved == []
    assert len(access.refused) == 20


async def test_leaving_withdraws_an_open_question() -> None:
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def ask(host: str, port: int) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return ""

    access = HostAccess(ProxyRules(None, ask=ask))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serve_proxy(listener, access), asyncio.timeout(PATIENCE):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
            await asked.wait()
    writer.close()
    async with asyncio.timeout(PATIENCE):
        await withdrawn.wait()


async def test_the_timer_of_a_command_counts_no_pause() -> None:
    ended, timer = asyncio.Event(), WallTimer(0.01)
    timer.start(ended.set)
    with timer.pause(), timer.pause():
        await asyncio.sleep(0.05)
        assert not ended.is_set()
    async with asyncio.timeout(PATIENCE):
        await ended.wait()
