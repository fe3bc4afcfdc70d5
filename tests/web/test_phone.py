"""The page on a phone: one pane at a time, with questions in reach of the thumb."""

import pytest
from playwright.async_api import Page, expect

from tests.kit.browser import PHONE_SIZE, Visits
from tests.kit.page_server import PageServer
from tests.web.screen import composer, expect_in_log, question, send
from tests.web.test_questions import ask
from treadle.testing import call


async def check_fits(page: Page) -> None:
    """Nothing is wider than the screen."""
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE_SIZE["width"]


@pytest.mark.parametrize("server", [["--access", "read-only"]], indirect=True)
async def test_a_question_is_answered_on_the_phone(server: PageServer, visits: Visits) -> None:
    await ask(server, "Write a file", "The file is settled.")
    page = await visits.open(server, "/", phone=True)
    tabs = page.get_by_role("navigation", name="Main")
    await expect(tabs).to_contain_text("1")
    await check_fits(page)
    await page.locator("[data-session]").filter(has_text="Write a file").tap()
    button = page.get_by_role("button", name="Allow once")
    await expect(button).to_be_enabled()
    box = await button.bounding_box()
    assert box is not None and box["height"] >= 44
    assert box["y"] > PHONE_SIZE["height"] / 2, "the thumb does not reach the answer"
    await check_fits(page)
    await button.tap()
    await expect_in_log(page, "The file is settled.")
    await page.get_by_role("button", name="Back").or_(page.get_by_role("link", name="Back")).first.tap()
    await expect(page.locator("[data-session]")).to_be_visible()


async def test_the_tabs_lead_everywhere_and_a_message_is_sent(server: PageServer, visits: Visits) -> None:
    server.model.script("A short answer.")
    async with server.client() as client:
        session_id = await client.session(name="On the phone")
    page = await visits.open(server, "/", phone=True)
    tabs = page.get_by_role("navigation", name="Main")
    for name, path in (("Inbox", "/inbox"), ("New", "/new"), ("Settings", "/settings"), ("Sessions", "/")):
        await tabs.get_by_role("link", name=name).tap()
        await expect(page).to_have_url(f"{server.base}{path}")
        await check_fits(page)
    await page.locator("[data-session]").filter(has_text="On the phone").tap()
    await expect(page).to_have_url(f"{server.base}/s/{session_id}")
    await send(page, "Hello.")
    await expect_in_log(page, "A short answer.")
    await check_fits(page)


@pytest.mark.parametrize("server", [["--access", "read-only"]], indirect=True)
async def test_the_sheet_can_be_folded_to_write_instead(server: PageServer, visits: Visits) -> None:
    session_id = await ask(server, "Write a file", "It is another file now.")
    page = await visits.open(server, f"/s/{session_id}", phone=True)
    await expect(question(page)).to_be_visible()
    await expect(composer(page)).to_be_hidden()
    await page.get_by_role("button", name="Fold the question, and write instead").tap()
    await expect(question(page)).to_have_count(0)
    await send(page, "Take another file.")
    await expect(page.locator(".queue")).to_contain_text("Take another file.")
    await page.get_by_role("button", name="Show the question").tap()
    await page.get_by_role("button", name="Deny").tap()
    await page.get_by_role("textbox", name="Why, for the agent").fill("See my message.")
    await check_fits(page)
    await page.get_by_role("button", name="Deny, and tell the agent").tap()
    await expect_in_log(page, "Denied by you", "It is another file now.")
    await expect(composer(page)).to_be_visible()


@pytest.mark.parametrize("server", [["--access", "read-only"]], indirect=True)
async def test_a_long_question_has_a_page_and_is_read_to_its_end_first(server: PageServer, visits: Visits) -> None:
    lines = "".join(f"line {number}\n" for number in range(80))
    server.model.script(call("write_file", path="long.txt", content=lines))
    async with server.client() as client:
        session_id = await client.session(name="Long")
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Write it."})
        await client.wait_for(session_id, "approval_requested")
        page = await visits.open(server, "/inbox", phone=True)
        await expect(page.get_by_role("button", name="Allow once")).to_have_count(0)
        await page.locator("[data-question]").tap()
        await expect(page).to_have_url(f"{server.base}/inbox/{session_id}/call_1")
        await expect(page.get_by_role("navigation", name="Main")).to_have_count(0)
        await expect(page.get_by_role("button", name="Deny")).to_be_enabled()
        button = page.get_by_role("button", name="Allow once")
        await expect(page.get_by_text("Read it to its end before you allow it.")).to_be_visible()
        await expect(button).to_be_disabled()
        await check_fits(page)
        await page.get_by_text("line 79").scroll_into_view_if_needed()
        await page.locator(".q-end").scroll_into_view_if_needed()
        await button.tap()
        await expect(page).to_have_url(f"{server.base}/inbox")
        await expect(page.get_by_role("main")).to_contain_text("Allowed once by you")
        await client.wait_for(session_id, "run_finished")
    assert (server.workspace / "long.txt").read_text() == lines
