"""A real Chromium that opens the page, and fails a test when the page does what it must never do."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    Request,
    ViewportSize,
    async_playwright,
    expect,
)

from tests.kit.page_server import OWNER, PageServer, PageUser
from treadle.server import app

CHROMIUM = which("chromium") or which("chromium-browser") or ""
STATIC = Path(app.__file__).with_name("static")
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PATIENT_MS = 20_000
PHONE_SIZE: ViewportSize = {"width": 390, "height": 844}
# Remembers everything that the Content Security Policy has stopped.
REPORT = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.__violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


needs_page = pytest.mark.skipif(
    not (STATIC / "index.html").is_file(), reason="NOT TESTED, the page is not built: make page"
)


def find_missing_part() -> str:
    """Why the page cannot be tested here, or nothing."""
    if not CHROMIUM:
        return "there is no Chromium: make system, or apt-get install chromium"
    if not (STATIC / "index.html").is_file():
        return "the page is not built: make page"
    return ""


@asynccontextmanager
async def start_browser(*flags: str) -> AsyncGenerator[Browser]:
    expect.set_options(timeout=PATIENT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, chromium_sandbox=False, args=[*FLAGS, *flags]
        )
        yield browser
        await browser.close()


class Visits:
    """The pages that one test opens. Each has a browser profile of its own, as on another device.

    Console errors, exceptions, violations of the Content Security Policy, dialogs and requests to other places are
    collected in `problems`. A test names those that it causes on purpose with `allow`.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._allowed: list[str] = []
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.loaded: set[tuple[str, str]] = set()

    def allow(self, *patterns: str) -> None:
        """Expect problems that match these regular expressions."""
        self._allowed.extend(patterns)

    async def open(
        self,
        server: PageServer,
        path: str = "/",
        *,
        user: PageUser | None = OWNER,
        phone: bool = False,
        scheme: Literal["light", "dark"] = "light",
        bypass_policy: bool = False,
    ) -> Page:
        """Open a page on a device of its own, logged in as this user."""
        context = await self._browser.new_context(
            base_url=server.base,
            viewport=PHONE_SIZE if phone else DESKTOP,
            has_touch=phone,
            is_mobile=phone,
            color_scheme=scheme,
            reduced_motion="reduce",
            bypass_csp=bypass_policy,
            permissions=["clipboard-read", "clipboard-write"],
        )
        context.set_default_timeout(PATIENT_MS)
        self._contexts.append(context)
        await self._watch(context, server.base)
        if user is not None:
            answer = await context.request.post("/login", data={"token": user.token}, headers={"origin": server.base})
            assert answer.status == 204, await answer.text()
        page = await context.new_page()
        await page.goto(path)
        return page

    async def _watch(self, context: BrowserContext, base: str) -> None:
        def note_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.problems.append(f"console: {message.text} ({message.location.get('url', '')})")

        def note_request(request: Request) -> None:
            self.requests.append(f"{request.method} {request.url}")
            self.loaded.add((request.resource_type, request.url))

        async def note_dialog(dialog: Dialog) -> None:
            self.problems.append(f"dialog: {dialog.message}")
            await dialog.dismiss()

        async def stop_outside(route: Any) -> None:
            self.problems.append(f"request: {route.request.url}")
            await route.abort()

        context.on("console", note_console)
        context.on("weberror", lambda error: self.problems.append(f"exception: {error.error}"))
        context.on("request", note_request)
        context.on("dialog", note_dialog)
        origin = urlsplit(base)

        def is_outside(url: str) -> bool:
            parts = urlsplit(url)
            return parts.scheme not in ("data", "blob", "about", "file") and parts.netloc != origin.netloc

        await context.route(is_outside, stop_outside)
        await context.add_init_script(REPORT)

    async def close(self) -> None:
        """Close all pages. Fails when one of them did what it must not do."""
        for context in self._contexts:
            for page in context.pages:
                violations = await page.evaluate("window.__violations ?? []")
                self.problems += [f"violation: {one}" for one in violations]
            await context.close()
        self._contexts.clear()
        left = [one for one in self.problems if not any(re.search(pattern, one) for pattern in self._allowed)]
        self.problems.clear()
        assert left == [], "\n".join(left)
