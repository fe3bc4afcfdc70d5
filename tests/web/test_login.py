"""Logging in and out of the page."""

from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import OWNER, PageServer


async def test_the_printed_link_leads_to_the_page_logged_in(server: PageServer, visits: Visits) -> None:
    page = await visits.open(server, server.login_link, user=None)
    await expect(page).to_have_url(f"{server.base}/")
    await expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()


async def test_a_pasted_token_logs_in_and_a_wrong_one_is_refused(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    page = await visits.open(server, "/inbox", user=None)
    field = page.get_by_label("token")
    await field.fill("this is no token of the server")
    await field.press("Enter")
    await expect(page.get_by_role("alert")).to_be_visible()
    await field.fill(OWNER.token)
    await field.press("Enter")
    await expect(page.get_by_role("heading", name="Inbox", level=1)).to_be_visible()
    await expect(page).to_have_url(f"{server.base}/inbox")


async def test_a_logged_out_browser_sees_nothing_any_more(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    async with server.client() as client:
        await client.session(name="Secret plans")
    page = await visits.open(server, "/settings")
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("token")).to_be_visible()
    await page.goto("/")
    await expect(page.get_by_label("token")).to_be_visible()
    await expect(page.get_by_text("Secret plans")).to_have_count(0)
