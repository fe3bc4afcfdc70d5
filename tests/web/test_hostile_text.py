"""Texts that models, tools, file names and people write are drawn as text. None of them runs or loads anything."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Error, Page, expect

from tests.kit.browser import Visits
from tests.kit.fakes.server import Odd
from tests.kit.page_server import PageServer, serve_page
from tests.web.logs import build_hostile_sessions, write_sessions
from tests.web.payloads import IN_ONE_LINE, MARKERS, OUTSIDE, PAYLOADS
from tests.web.screen import expect_in_log, log, read_everything
from treadle.messages import Reply

# What no text may ever become, wherever it is drawn.
FIND_HARM = """
() => {
  const found = [];
  const isSafe = (url) => /^(https?|mailto|blob):/.test(url);
  for (const one of document.querySelectorAll("*")) {
    const tag = one.localName;
    if (["iframe", "object", "embed", "base", "math", "template", "audio", "video"].includes(tag)) found.push(tag);
    if (tag === "script" && !one.src.startsWith(location.origin + "/assets/") && one.type !== "application/json")
      found.push(one.outerHTML.slice(0, 100));
    for (const { name, value } of one.attributes)
      if (name.startsWith("on") || name === "srcdoc") found.push(`${tag} ${name}=${value.slice(0, 60)}`);
    if (tag === "a" && one.hasAttribute("href") && !isSafe(one.href)) found.push(`href ${one.href.slice(0, 60)}`);
    if (tag === "img" && !/^(data:image\\/(png|jpeg|gif|webp)|blob:)/.test(one.src)) found.push(`img ${one.src}`);
    if (tag === "form" && one.action && !one.action.startsWith(location.origin)) found.push(`form ${one.action}`);
  }
  return [...found, ...(window.__hits ?? [])];
}
"""
# What looks like a key is not remembered.
REMEMBERED = [text for text in PAYLOADS if "base64" not in text]
LISTEN = "window.__hits = []; window.__hit = (number) => window.__hits.push(`ran ${number}`);"
# Kinds of requests that only markup makes: the page itself asks with `fetch`.
MARKUP = {"image", "media", "font", "stylesheet", "script", "document", "object", "manifest", "ping", "other"}


async def check(page: Page, *markers: str) -> None:
    """Nothing on the page is harmful, and these markers were drawn."""
    for marker in markers:
        await expect(page.get_by_text(marker).first).to_be_attached()
    assert await page.evaluate(FIND_HARM) == []


def find_loaded(visits: Visits) -> list[str]:
    """What markup has loaded, besides the files of the page."""
    own = re.compile(
        r"/(assets/[\w.-]+|icon\.svg|manifest\.webmanifest|(s|settings|compare)/[\w./%-]+|inbox|settings|new|)$"
    )
    return [url for kind, url in visits.loaded if kind in MARKUP and not own.search(url)]


async def open_hostile_page(visits: Visits, server: PageServer, path: str, **options: Any) -> Page:
    page = await visits.open(server, "/inbox", **options)
    await page.context.add_init_script(LISTEN)
    await page.goto(path)
    return page


async def test_hostile_sessions_are_drawn_as_text(visits: Visits, tmp_path: Path) -> None:
    visits.allow("status of 404 .*/sessions/helper")  # no agent has its name
    await write_sessions(tmp_path, *build_hostile_sessions(tmp_path))
    async with serve_page(tmp_path) as server:
        page = await open_hostile_page(visits, server, "/s/texts")
        drawn = await read_everything(page)
        assert [marker for marker in MARKERS if marker not in drawn] == []
        await check(page, "mark02")
        for name in ("calls", "endings", "questions"):
            await page.goto(f"/s/{name}")
            await expect(log(page)).to_be_visible()
            await page.keyboard.press("o")
            drawn = await read_everything(page)
            assert sum(marker in drawn for marker in MARKERS) == len(MARKERS), name
            await check(page)
        for path in (
            "/s/texts/changes",
            "/s/calls/changes",
            "/s/calls/time",
            "/s/calls/at/300",
            "/compare/texts/calls",
        ):
            await page.goto(path if path.startswith("/") else f"/s/{path}")
            await expect(page.get_by_role("heading", level=1).first).to_be_visible()
            await check(page)
        await page.goto("/inbox")
        await check(page, "mark00")
        assert find_loaded(visits) == []
        await visits.close()  # before the server stops


async def test_hostile_names_are_drawn_as_text_in_lists_and_settings(visits: Visits, tmp_path: Path) -> None:
    await write_sessions(tmp_path, *build_hostile_sessions(tmp_path))
    async with serve_page(tmp_path) as server:
        async with server.client() as client:
            for text in REMEMBERED:
                await client.json("POST", "/v1/memory", {"content": text}, 201)
        page = await open_hostile_page(visits, server, "/")
        await check(page, MARKERS[39])
        await page.keyboard.press("/")
        await page.keyboard.type("mark00")
        await expect(page.locator("mark").first).to_be_attached()
        await check(page)
        await page.goto("/")
        await check(page, MARKERS[39])
        await page.keyboard.press("Control+k")
        await page.keyboard.type("mark")
        await expect(page.get_by_role("option").first).to_be_visible()
        await check(page)
        await page.goto("/settings/memory")
        await page.get_by_role("region", name="Memory").get_by_role("button", name="Show more").click()
        await check(page, *(text[-6:] for text in REMEMBERED))
        assert find_loaded(visits) == []
        await visits.close()


async def test_hostile_streams_are_drawn_as_text_while_they_come(server: PageServer, visits: Visits) -> None:
    """Markup may be harmful in a half, before the rest has come: the text arrives in small pieces."""
    reply = server.model.hold()
    async with server.client() as client:
        session_id = await client.session()
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Go."})
    page = await open_hostile_page(visits, server, f"/s/{session_id}")
    await reply.wait_until_asked()
    for payload, marker in zip(PAYLOADS, MARKERS, strict=True):
        for start in range(0, len(payload), 11):
            reply.write(payload[start : start + 11])
        reply.write("\n\n")
        if marker.endswith(("0", "5")):
            await expect_in_log(page, marker)
            await check(page)
    reply.end()
    await expect_in_log(page, MARKERS[-1])
    await check(page)
    assert find_loaded(visits) == []


async def test_hostile_errors_and_attachments_are_drawn_as_text(server: PageServer, visits: Visits) -> None:
    error = Odd(raw=f'{{"error": {{"message": "{IN_ONE_LINE[0]}"}}}}'.encode(), status=400, content_type="text/html")
    server.model.script(error, Reply("Seen."))
    svg = base64.b64encode(f"<svg xmlns='http://www.w3.org/2000/svg' onload='{PAYLOADS[4]}'/>".encode()).decode()
    files = [
        {"type": "text", "name": IN_ONE_LINE[2], "text": IN_ONE_LINE[5]},
        {"type": "image_url", "url": f"{OUTSIDE}/picture.png"},
    ]
    async with server.client() as client:
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}/messages"
        await client.json("POST", path, {"content": "Go.", "attachments": files}, 200)
        bad = {"type": "image", "name": IN_ONE_LINE[3], "media_type": "image/svg+xml", "data": svg}
        async with client.request("POST", path, json={"content": "Go.", "attachments": [bad]}) as answer:
            assert answer.status in (200, 400, 422)
    page = await open_hostile_page(visits, server, f"/s/{session_id}")
    await expect_in_log(page, MARKERS[0], MARKERS[2])
    await check(page)
    assert find_loaded(visits) == []


MARKUP_HERE = "(text) => document.body.insertAdjacentHTML('beforeend', text)"


async def test_the_policy_of_the_page_stops_all_markup_from_text(server: PageServer, visits: Visits) -> None:
    """Even a mistake in the page could not draw a text as markup, run it, or load a file from elsewhere."""
    visits.allow("violation", "console: ", "request: https://outside")
    page = await open_hostile_page(visits, server, "/inbox")
    for payload in PAYLOADS:
        with pytest.raises(Error, match="TrustedHTML"):
            await page.evaluate(MARKUP_HERE, payload)
    with pytest.raises(Error, match="Policy"):
        await page.evaluate("() => void trustedTypes.createPolicy('treadle', { createHTML: (one) => one })")
    await page.evaluate(
        "(url) => void (document.body.append(new Image(), document.createElement('p')),"
        " document.querySelector('body > img').src = url)",
        f"{OUTSIDE}/picture.png",
    )
    await page.wait_for_function("() => window.__violations.some((one) => one.startsWith('img-src'))")
    assert await page.evaluate("window.__hits") == []


@pytest.mark.parametrize("payload", [PAYLOADS[0], PAYLOADS[3]])
async def test_the_checks_see_markup_that_is_drawn(server: PageServer, visits: Visits, payload: str) -> None:
    """A check that cannot fail is no check: here the page does what it must never do, and no policy stops it."""
    visits.allow("request: https://outside", "nothing.png", "ERR_FAILED")
    page = await open_hostile_page(visits, server, "/inbox", bypass_policy=True)
    markup = payload + "<img src='/nothing.png' onerror='__hit(1)'><a href='javascript:1'>x</a>"
    await page.evaluate(MARKUP_HERE, markup)
    await page.wait_for_function("() => window.__hits.length > 0")
    found = await page.evaluate(FIND_HARM)
    assert any("onerror" in one for one in found) and any("javascript:" in one for one in found)
    assert "ran 1" in found
    assert find_loaded(visits) != []
