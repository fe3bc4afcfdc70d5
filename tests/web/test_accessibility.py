"""axe finds nothing on the main pages, in light and dark, on the desktop and on a phone."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import OWNER, PageServer, serve_page
from tests.web.screen import composer, expect_in_log, question
from treadle.testing import call, say

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN_AXE = """
async (tags) => {
  const { violations } = await axe.run(document, { runOnly: tags, resultTypes: ["violations"] });
  return violations.flatMap(({ id, help, nodes }) => nodes.map((one) => `${id}: ${help}: ${one.html.slice(0, 160)}`));
}
"""
MARKDOWN = "# Result\n\nAll **good**, see `a.txt`:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```"
PLAN = [{"text": "look", "status": "done"}, {"text": "write", "status": "doing"}, {"text": "check"}]


class Furnished(NamedTuple):
    """A server with a finished session and one that asks, by their paths."""

    server: PageServer
    done: str
    asking: str


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def furnished(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Furnished]:
    del browser
    async with serve_page(tmp_path_factory.mktemp("furnished"), "--access", "read-only") as server:
        async with server.client() as client:
            session_id = await client.session(name="Done", approve=["write_file"])
            server.model.script(
                say("I plan first.", call("todo", items=PLAN), reasoning="What is there to do?"),
                say("", call("write_file", path="a.txt", content="one\n"), call("read_file", path="b.txt")),
                MARKDOWN,
            )
            await client.send(session_id, "Write *a.txt*.")
            await client.json("POST", "/v1/memory", {"content": "The build needs Node."}, 201)
            asking = await client.session(name="Asking")
            server.model.script(say("I need a file.", call("shell", command="touch b.txt && git push")))
            await client.json("POST", f"/v1/sessions/{asking}/messages?wait=0", {"content": "Go."})
            await client.wait_for(asking, "approval_requested")
        yield Furnished(server, f"/s/{session_id}", f"/s/{asking}")


async def check(page: Page) -> None:
    await page.evaluate(AXE.read_text("utf-8"))
    assert await page.evaluate(RUN_AXE, RULES) == []


@pytest.mark.parametrize("device", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing(
    furnished: Furnished, visits: Visits, scheme: Literal["light", "dark"], device: str
) -> None:
    page = await visits.open(furnished.server, "/", scheme=scheme, phone=device == "phone")
    _, done, asking = furnished
    found: dict[str, list[str]] = {}
    paths = ["/", done, asking, f"{done}/changes", f"{done}/time", f"{done}/at/9", "/inbox", "/new"]
    paths += [
        "/settings",
        "/settings/memory",
        "/settings/tokens",
        f"/compare/{done[3:]}/{asking[3:]}",
        "/s/nothing/here",
    ]
    for path in paths:
        await page.goto(path)
        await expect(page.get_by_role("heading", level=1).first).to_be_visible()
        if path == done:
            await expect_in_log(page, "print(1)")
        if path == asking:
            await expect(question(page).get_by_role("button", name="Allow once")).to_be_enabled()
        await page.evaluate(AXE.read_text("utf-8"))
        if harm := await page.evaluate(RUN_AXE, RULES):
            found[path] = harm
    assert found == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_in_what_opens_over_the_page(
    furnished: Furnished, visits: Visits, scheme: Literal["light", "dark"]
) -> None:
    page = await visits.open(furnished.server, furnished.done, scheme=scheme)
    await expect_in_log(page, "print(1)")
    for keys, name in (("Control+k", "Commands"), ("?", "Keys")):
        await page.keyboard.press(keys)
        await expect(page.get_by_role("dialog", name=name)).to_be_visible()
        await check(page)
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.goto(f"{furnished.done}/at/9")
    await page.get_by_role("button", name="Rewind here").first.click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await check(page)
    login = await visits.open(furnished.server, "/", user=None, scheme=scheme)
    visits.allow("401")
    await expect(login.get_by_label("token")).to_be_visible()
    await check(login)


@pytest.mark.parametrize("server", [["--access", "read-only"]], indirect=True)
async def test_a_person_needs_no_pointer_from_the_login_to_the_stop(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    server.model.script(call("write_file", path="a.txt", content="one\n"))
    reply = server.model.hold()
    page = await visits.open(server, "/", user=None)
    token = page.get_by_label("a token")
    await expect(token).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(token).to_be_focused()
    await page.keyboard.type(OWNER.token)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    await page.keyboard.press("c")
    await expect(page.get_by_label("The first message")).to_be_focused()
    await page.keyboard.type("Write a file.")
    await page.keyboard.press("Control+Enter")
    await expect(question(page)).to_contain_text("a.txt")
    allow = question(page).get_by_role("button", name="Allow once")
    await expect(allow).to_be_enabled()
    await page.keyboard.press("q")
    await expect(allow).to_have_attribute("aria-keyshortcuts", "y")  # the keys are inert for half a second
    await page.keyboard.press("y")
    await reply.wait_until_asked()
    reply.write("Written, and now I go on")
    await expect_in_log(page, "now I go on")
    await page.keyboard.press("Escape")
    await expect_in_log(page, "Stopped")
    assert (server.workspace / "a.txt").read_text() == "one\n"


async def test_the_focus_goes_back_when_what_floats_is_closed(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id = await client.session(name="Alpha")
    page = await visits.open(server, f"/s/{session_id}")
    await composer(page).focus()
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("dialog", name="Commands")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(composer(page)).to_be_focused()
    more = page.get_by_role("main").get_by_role("button", name="More")
    await more.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(more).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog").get_by_role("textbox")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(more).to_be_focused()
