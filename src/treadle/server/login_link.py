"""The links that `treadle serve` prints: one for the browser of this machine, and one for a phone as a QR code."""

from __future__ import annotations

import io
import ipaddress
import threading
import webbrowser
from collections.abc import Sequence

ANY_ADDRESS = ("0.0.0.0", "::")
_MARGIN = 2
_WHITE_ON_BLACK, _PLAIN = "\x1b[97;40m", "\x1b[0m"


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find_local_address(address: str, host: str) -> str:
    """Find the address for a browser of this machine. Nothing can connect to 0.0.0.0, which means all addresses."""
    if host not in ANY_ADDRESS:
        return address
    return f"http://{'[::1]' if host == '::' else '127.0.0.1'}:{address.rpartition(':')[2]}"


def find_phone_address(host: str, port: int, names: Sequence[str]) -> str:
    """Find an address that another device can reach and that the server accepts. Empty if there is none."""
    if is_loopback(host):
        return ""
    known = next((name for name in names if not is_loopback(name.rpartition(":")[0] or name)), "")
    if known:
        return f"http://{known}" if ":" in known else f"http://{known}:{port}"
    if host in ANY_ADDRESS:
        return ""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def draw_qr_code(text: str) -> str:
    """Draw a QR code with half blocks, light on dark whatever the colours of the terminal are."""
    import segno

    drawn = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(drawn, compact=True, border=_MARGIN)
    return "".join(f"{_WHITE_ON_BLACK}{line}{_PLAIN}\n" for line in drawn.getvalue().splitlines())


def open_in_browser(link: str) -> threading.Thread | None:
    """Open a link in the person's browser without waiting for it. Returns None if there is no browser with a window."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return None
    if type(browser) is webbrowser.GenericBrowser:  # a browser in the terminal would take the server's place there
        return None
    # A daemon, because some browsers return only when the person closes them, and the server must be able to end.
    opening = threading.Thread(target=browser.open, args=(link,), name="open-browser", daemon=True)
    opening.start()
    return opening
