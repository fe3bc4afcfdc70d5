"""Logging in and out of the page."""

from playwright.async_api import Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import OWNER, VIEWER, PageServer
from tests.web.screen import composer, expect_in_log, session_row


async def log_in(page: Page, token: str) -> None:
    await page.get_by_label("a token").fill(token)
    await page.get_by_label("a token").press("Enter")


async def test_the_printed_link_leads_to_the_page_logged_in(server: PageServer, visits: Visits) -> None:
    page = await visits.open(server, server.login_link, user=None)
    await expect(page).to_have_url(f"{server.base}/")
    await expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()


async def test_a_link_that_was_used_says_so_and_offers_the_token(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    async with server.client() as client:
        session_id = await client.session(name="Wanted")
    link = f"{server.login_link}&next=/s/{session_id}"
    first = await visits.open(server, link, user=None)
    await expect(first.get_by_role("heading", name="Wanted", level=1)).to_be_visible()
    second = await visits.open(server, link, user=None)
    await expect(second.get_by_role("alert")).to_contain_text("This link was used before")
    await expect(second).to_have_url(f"{server.base}/s/{session_id}")
    await log_in(second, OWNER.token)
    await expect(second.get_by_role("heading", name="Wanted", level=1)).to_be_visible()
    await first.goto(link)
    await expect(first.get_by_role("heading", name="Wanted", level=1)).to_be_visible()


async def test_a_link_made_on_the_page_logs_another_device_in_once(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    page = await visits.open(server, "/settings/device", user=VIEWER)
    await page.get_by_role("button", name="Make a login link").click()
    link = await page.get_by_role("region", name="This device").locator("code").inner_text()
    other = await visits.open(server, link, user=None)
    await other.goto("/settings/device")
    await expect(other.get_by_text("Logged in as viewer")).to_be_visible()
    third = await visits.open(server, link, user=None)
    await expect(third.get_by_role("alert")).to_be_visible()


async def test_a_pasted_token_logs_in_and_a_wrong_one_is_refused(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    page = await visits.open(server, "/settings/tokens", user=None)
    await log_in(page, "this is no token of the server")
    await expect(page.get_by_role("alert")).to_contain_text("no such token")
    await expect(page.get_by_label("a token")).to_be_focused()
    await log_in(page, OWNER.token)
    await expect(page.get_by_role("heading", name="Settings", level=1)).to_be_visible()
    await expect(page).to_have_url(f"{server.base}/settings/tokens")


async def test_a_login_that_ends_in_the_middle_comes_back_to_the_same_place(server: PageServer, visits: Visits) -> None:
    """Without the cookie, the next thing that a person does leads to the login, and then back."""
    visits.allow("401")
    server.model.script("The answer.")
    async with server.client() as client:
        session_id = await client.session(name="Long one")
        await client.send(session_id, "Go.")
        page = await visits.open(server, f"/s/{session_id}")
        await expect_in_log(page, "The answer.")
        await session_row(page, "Long one").focus()
        await page.context.clear_cookies()
        await page.keyboard.press("b")  # the first request that is refused, unless the page still loads something
        await expect(page.get_by_role("heading", name="You were logged out")).to_be_visible()
        await expect(page.get_by_text("The answer.")).to_have_count(0)
        await log_in(page, OWNER.token)
        await expect_in_log(page, "The answer.")
        await expect(page).to_have_url(f"{server.base}/s/{session_id}")
        server.model.script("Another answer.")
        await client.send(session_id, "Again.")
        await expect_in_log(page, "Another answer.")


async def test_all_tabs_show_what_the_last_login_may_do(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id = await client.session(name="Alpha")
    first = await visits.open(server, f"/s/{session_id}")
    await expect(composer(first)).to_be_visible()
    second = await first.context.new_page()
    login = {"token": VIEWER.token}
    assert (await first.context.request.post("/login", data=login, headers={"origin": server.base})).ok
    await second.goto("/settings")
    await expect(second.get_by_text("Logged in as viewer")).to_be_visible()
    await expect(first.get_by_role("heading", name="Alpha")).to_be_visible()
    await expect(composer(first)).to_have_count(0)


async def test_a_login_in_one_tab_brings_the_others_back(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    async with server.client() as client:
        session_id = await client.session(name="Alpha")
    first = await visits.open(server, f"/s/{session_id}")
    await expect(composer(first)).to_be_visible()
    second = await first.context.new_page()
    await second.goto("/settings")
    await second.locator("#device").get_by_role("button", name="Log out").click()
    await expect(first.get_by_role("heading", name="You were logged out")).to_be_visible()
    await second.get_by_label("Or paste a token").fill(OWNER.token)
    await second.get_by_role("button", name="Log in").click()
    await expect(second.get_by_text("Logged in as owner")).to_be_visible()
    await expect(composer(first)).to_be_visible()


async def test_a_logged_out_browser_sees_nothing_any_more(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    async with server.client() as client:
        await client.session(name="Secret plans")
    page = await visits.open(server, "/settings")
    await page.get_by_role("button", name="Log out").first.click()
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    await page.goto("/")
    await expect(page.get_by_label("a token")).to_be_visible()
    await expect(page.get_by_text("Secret plans")).to_have_count(0)
