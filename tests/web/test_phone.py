"""The page on a phone: one pane at a time, with questions in reach of the thumb."""

import pytest
from playwright.async_api import Page, expect

from tests.kit.browser import PHONE_SIZE, Visits
from tests.kit.page_server import PageServer
from tests.web.screen import expect_in_log, send
from tests.web.test_questions import ask


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
