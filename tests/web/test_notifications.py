"""How the page tells of a question while the person looks elsewhere."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import OWNER, VIEWER, PageServer, PageUser
from tests.web.test_questions import ask

ASKS_ALWAYS = pytest.mark.parametrize("server", [["--access", "read-only"]], indirect=True)
# Remembers what a browser would show. The person looks at another window.
FAKE = """
window.__notes = [];
window.Notification = class {
  static permission = (location.protocol === "http:" && localStorage.getItem("permission")) || "default";
  static asked = 0;
  static async requestPermission() {
    this.asked += 1;
    localStorage.setItem("permission", "granted");
    return (this.permission = "granted");
  }
  constructor(title, options) {
    const count = window.__notes.push(Object.assign(this, { title, ...options, isClosed: false }));
    document.documentElement.dataset.notes = count;
  }
  close() {
    this.isClosed = true;
  }
};
document.hasFocus = () => false;
navigator.setAppBadge = async (count) => void (document.documentElement.dataset.badge = count);
navigator.clearAppBadge = async () => void (document.documentElement.dataset.badge = "none");
"""


async def open_with_notifications(server: PageServer, visits: Visits, path: str, user: PageUser) -> Page:
    page = await visits.open(server, path, user=user)
    await page.context.add_init_script(FAKE)
    await page.reload()
    await expect(page.get_by_role("heading", level=1).first).to_be_visible()
    return page


async def read_notes(page: Page) -> list[list[object]]:
    return await page.evaluate("window.__notes.map((one) => [one.title, one.body, one.isClosed])")


@ASKS_ALWAYS
async def test_a_notification_comes_only_after_the_person_turned_it_on(server: PageServer, visits: Visits) -> None:
    page = await open_with_notifications(server, visits, "/settings/device", OWNER)
    await ask(server, "Before")
    await expect(page).to_have_title("(1) Settings – treadle")
    assert await page.evaluate("Notification.asked") == 0
    assert await read_notes(page) == []
    await page.get_by_role("region", name="This device").get_by_role("button", name="Turn on").click()
    await expect(page.get_by_role("button", name="Turn off")).to_be_visible()
    session_id = await ask(server, "After")
    await expect(page).to_have_title("(2) Settings – treadle")
    await expect(page.locator("html")).to_have_attribute("data-badge", "2")
    await expect(page.get_by_role("alert")).to_have_text("Question in After: Change a.txt?")
    await expect(page.locator("html")).to_have_attribute("data-notes", "1")
    assert await read_notes(page) == [["After", "Needs you: write_file", False]]
    await page.evaluate("window.__notes[0].onclick()")
    await expect(page).to_have_url(f"{server.base}/inbox/{session_id}/call_2")
    async with server.client() as client:
        for _ in range(2):
            asked = (await client.json("GET", "/v1/approvals"))[0]
            await client.json("POST", f"/v1/approvals/{asked['id']}", {"approved": True})
    await expect(page).to_have_title("Inbox – treadle")
    await expect(page.locator("html")).to_have_attribute("data-badge", "none")
    assert await read_notes(page) == [["After", "Needs you: write_file", True]]


@ASKS_ALWAYS
async def test_one_of_several_tabs_notifies_and_a_user_who_may_only_look_is_left_alone(
    server: PageServer, visits: Visits
) -> None:
    tabs = list[Page]()
    for user in (OWNER, VIEWER):
        first = await open_with_notifications(server, visits, "/settings/device", user)
        await first.get_by_role("button", name="Turn on").click()
        second = await first.context.new_page()
        await second.goto("/")
        await expect(second.get_by_role("heading", level=1).first).to_be_visible()
        tabs += [first, second]
    await ask(server, "Loud")
    for tab in tabs:
        await expect(tab).to_have_title(re.compile(r"^\(1\) "))
    await expect(tabs[1].locator("html")).to_have_attribute("data-notes", "1")
    assert [len(await read_notes(tab)) for tab in tabs] == [0, 1, 0, 0]
