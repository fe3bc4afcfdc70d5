"""The links that `treadle serve` prints: for this machine's browser, and as a QR code for a phone."""

import re
import sys
import threading
import webbrowser
from typing import Any

import pytest

from tests.kit.sessions import PATIENCE, build_agent
from treadle import Runtime
from treadle.server.app import create_app
from treadle.server.config import ServerConfig
from treadle.server.login_link import draw_qr_code, find_local_address, find_phone_address, open_in_browser
from treadle.server.serve import ServeOptions, build_login_lines
from treadle.server.tokens import Token

LINK = "http://192.0.2.7:8420/login?ticket=abc"


@pytest.mark.parametrize(
    ("host", "names", "address"),
    [
        ("127.0.0.1", (), ""),
        ("localhost", ("box.example",), ""),
        ("0.0.0.0", (), ""),
        ("0.0.0.0", ("localhost",), ""),
        ("0.0.0.0", ("192.0.2.7",), "http://192.0.2.7:8420"),
        ("::", ("localhost:1", "box.example:80"), "http://box.example:80"),
        ("192.0.2.7", (), "http://192.0.2.7:8420"),
        ("fe80::7", (), "http://[fe80::7]:8420"),
    ],
)
def test_a_phone_gets_an_address_that_it_can_reach(host: str, names: tuple[str, ...], address: str) -> None:
    assert find_phone_address(host, 8420, names) == address


def test_the_link_of_this_machine_never_names_every_address() -> None:
    assert find_local_address("http://0.0.0.0:9", "0.0.0.0") == "http://127.0.0.1:9"
    assert find_local_address("http://[::]:9", "::") == "http://[::1]:9"
    assert find_local_address("http://192.0.2.7:9", "192.0.2.7") == "http://192.0.2.7:9"


def test_a_qr_code_is_small_and_light_on_dark() -> None:
    lines = draw_qr_code(LINK).splitlines()
    assert all(line.startswith("\x1b[97;40m") and line.endswith("\x1b[0m") for line in lines)
    shown = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    assert len({len(line) for line in shown}) == 1 and len(shown[0]) < 50 and len(shown) < 26
    assert set("".join(shown)) <= set(" █▀▄")
    assert set(shown[0]) == {"█"}, "a code needs its light margin"


def test_a_browser_is_opened_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed = list[str](), threading.Event()

    class Slow(webbrowser.BaseBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            opened.append(url)
            return closed.wait(PATIENCE)

    monkeypatch.setattr(webbrowser, "get", Slow)
    opening = open_in_browser(LINK)
    assert opening is not None and opening.is_alive() and opening.daemon
    closed.set()
    opening.join(PATIENCE)
    assert opened == [LINK]


def test_no_browser_is_opened_in_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("w3m"))
    assert open_in_browser(LINK) is None

    def find_none() -> Any:
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "get", find_none)
    assert open_in_browser(LINK) is None


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_each_device_gets_a_link_of_its_own_and_only_a_terminal_a_qr_code(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    coded: list[str] = []

    def draw(text: str) -> str:
        coded.append(text)
        return "QR\n"

    monkeypatch.setattr("treadle.server.serve.draw_qr_code", draw)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    agent, _ = build_agent("x")
    app = create_app(Runtime(":memory:", [agent]), ServerConfig(tokens=(Token("owner", "x" * 32),)))
    lines = await build_login_lines(app, ServeOptions(host="0.0.0.0", names=("192.0.2.7",)), "http://0.0.0.0:8420")
    links = [*re.findall(r"http\S+", lines[0]), *coded]
    assert links[0].startswith("http://127.0.0.1:8420/login?ticket=")
    assert (lines[-1] == "QR") is is_terminal and len(coded) == is_terminal
    assert all(link.startswith("http://192.0.2.7:8420/login?ticket=") for link in coded)
    tickets = {link.partition("ticket=")[2] for link in links}
    assert len(tickets) == len(links)
    assert all([await app.state.service.tokens.redeem_ticket(ticket) for ticket in tickets])
    lines = await build_login_lines(app, ServeOptions(host="0.0.0.0"), "http://0.0.0.0:8420")
    assert "--host-name" in lines[-1]
