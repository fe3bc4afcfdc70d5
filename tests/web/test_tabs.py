"""Many tabs of one browser. It opens at most six connections to a server, and all tabs share them."""

from playwright.async_api import Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer
from tests.web.screen import expect_in_log, session_row

SET_VISIBILITY = """
(state) => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""


async def hide(page: Page) -> None:
    """Let a tab be out of sight for longer than it keeps its stream."""
    await page.evaluate(SET_VISIBILITY, "hidden")
    await page.clock.fast_forward(11_000)


async def show(page: Page) -> None:
    await page.evaluate(SET_VISIBILITY, "visible")


async def open_tab(first: Page, path: str) -> Page:
    page = await first.context.new_page()
    await page.clock.install()
    await page.goto(path)
    return page


async def test_eight_tabs_of_one_browser_all_work(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        sessions = [await client.session(name=f"Session {number}") for number in range(8)]
        server.model.script(*(f"Answer {number}" for number in range(8)))
        for session_id in sessions:
            await client.send(session_id, "Hello")
        first = await visits.open(server, "/")
        tabs = list[Page]()
        for number, session_id in enumerate(sessions):
            tabs.append(await open_tab(first, f"/s/{session_id}"))
            await expect_in_log(tabs[-1], f"Answer {number}")
            await hide(tabs[-1])
        server.model.script("While it was hidden")
        await client.send(sessions[0], "Go on")
        await show(tabs[0])
        await expect_in_log(tabs[0], "While it was hidden")


async def test_one_tab_reads_the_list_for_all_and_another_takes_over(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id = await client.session(name="First name")
        hidden = await visits.open(server, "/")
        await hide(hidden)
        leading = await open_tab(hidden, "/")
        waiting = await open_tab(hidden, "/")
        await show(leading)
        for number in range(3):
            name = f"Name {number}"
            await client.json("PATCH", f"/v1/sessions/{session_id}", {"name": name})
            for page in (hidden, leading, waiting)[: 3 if number == 0 else 1]:
                await expect(session_row(page, name)).to_be_visible()
            if number < 2:
                await (leading, waiting)[number].close()
    streams = [one for one in visits.requests if one.endswith("/v1/sessions/stream")]
    assert len(streams) <= 6, streams  # one for each tab that took the lead
