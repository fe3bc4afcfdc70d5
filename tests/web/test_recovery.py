"""The page goes on by itself after the server was killed, and says what it does not know."""

from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer
from tests.web.screen import composer, expect_idle, expect_in_log, log, read_everything, read_state, send

GONE = (
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED",
    "ERR_EMPTY_RESPONSE",
    "ERR_CONNECTION_RESET",
    "ERR_CONTENT_LENGTH",
)


async def test_the_page_goes_on_after_a_kill_in_mid_stream_and_equals_the_log(
    server: PageServer, visits: Visits
) -> None:
    visits.allow(*GONE)
    reply = server.model.hold()
    async with server.client() as client:
        session_id = await client.session(name="Killed in mid-stream")
    page = await visits.open(server, f"/s/{session_id}")
    await page.evaluate("window.__isSamePage = true")
    await send(page, "Tell me a story.")
    await reply.wait_until_asked()
    reply.write("Half a sen")
    await expect_in_log(page, "Half a sen")
    await server.kill()
    await expect(page.get_by_role("status").filter(has_text="No connection to the server")).to_be_visible()
    await expect_in_log(page, "Tell me a story.")
    server.model.script("The whole story.")
    await server.start()
    await expect_in_log(page, "The whole story.")
    await expect_idle(page)
    await expect(page.get_by_text("No connection to the server")).to_have_count(0)
    assert await page.evaluate("window.__isSamePage"), "the page was loaded again"
    await expect(log(page)).not_to_contain_text("Half a sen")
    async with server.client() as client:
        texts = [one["text"] for one in (await read_state(client, session_id))["messages"]]
    shown = await log(page).inner_text()
    assert texts == ["Tell me a story.", "The whole story."]
    assert [shown.count(one) for one in texts] == [1, 1]
    before = await read_everything(page)
    await page.reload()
    await expect_in_log(page, "The whole story.")
    assert (await read_everything(page)).count("The whole story.") == before.count("The whole story.")


async def test_a_message_written_offline_is_sent_once_when_the_server_is_back(
    server: PageServer, visits: Visits
) -> None:
    visits.allow(*GONE)
    async with server.client() as client:
        session_id = await client.session(name="Offline")
    page = await visits.open(server, f"/s/{session_id}")
    await expect(composer(page)).to_be_visible()
    await server.kill()
    await expect(page.get_by_text("No connection to the server")).to_be_visible()
    server.model.script("Here I am.")
    await send(page, "Are you there?")
    await server.start()
    await expect_in_log(page, "Are you there?", "Here I am.")
    async with server.client() as client:
        facts = await client.facts(session_id)
    assert sum(one["type"] == "message_received" for one in facts) == 1
