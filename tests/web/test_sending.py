"""Messages on their way: without a connection, refused, edited, sent again, and a run that is continued."""

import asyncio

from playwright.async_api import Page, Route, expect

from tests.kit.browser import Visits
from tests.kit.fakes.server import Odd
from tests.kit.page_server import PageServer
from tests.kit.server import Client
from tests.web.screen import (
    composer,
    expect_idle,
    expect_in_log,
    list_messages,
    list_texts,
    log,
    open_new,
    send,
    waiting,
)
from tests.web.test_recovery import GONE
from treadle.messages import Reply
from treadle.testing import call

# ── without a connection ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_is_kept_over_a_reload_and_delivered_once(server: PageServer, visits: Visits) -> None:
    visits.allow("ERR_FAILED")
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        messages = f"**/v1/sessions/{session_id}/messages*"
        await page.route(messages, lambda route: route.abort())
        await send(page, "Are you there?")
        await expect(waiting(page)).to_contain_text("Are you there?")
        await page.reload()
        await expect(waiting(page)).to_contain_text("Are you there?")

        async def lose_the_answer(route: Route) -> None:
            await route.fetch()
            await route.abort()
            await page.unroute(messages)

        # The page does not hear that the message arrived, so it sends it again.
        async with page.expect_response(lambda one: f"{session_id}/messages" in one.url):
            await page.unroute(messages)
            await page.route(messages, lose_the_answer)
        await expect_in_log(page, "Are you there?", "done")
        await expect(waiting(page)).to_have_count(0)
        assert len(await list_messages(client, session_id)) == 1


async def test_what_waits_without_a_server_can_be_changed_and_removed(server: PageServer, visits: Visits) -> None:
    visits.allow(*GONE)
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
    await server.kill()
    await expect(page.get_by_text("No connection to the server")).to_be_visible()
    for text in ("Frist", "Second", "Third"):
        await send(page, text)
        await expect(waiting(page).filter(has_text=text)).to_contain_text("Will be sent")
    await waiting(page).filter(has_text="Second").get_by_role("button", name="Remove").click()
    await waiting(page).filter(has_text="Frist").get_by_role("button", name="Edit").click()
    await page.get_by_role("textbox", name="Queued message").fill("First")
    await page.keyboard.press("Enter")
    await expect(waiting(page)).to_have_count(2)
    await server.start()
    await expect_in_log(page, "First", "Third")
    await expect(waiting(page)).to_have_count(0)
    async with server.client() as client:
        assert await list_texts(client, session_id) == ["First", "Third"]


async def test_a_message_that_arrived_before_it_was_changed_is_told(server: PageServer, visits: Visits) -> None:
    visits.allow("status of 409")
    is_changed = asyncio.Event()

    async def hold(route: Route) -> None:
        await is_changed.wait()
        await route.continue_()

    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        messages = f"**/v1/sessions/{session_id}/messages*"
        await page.route(messages, hold)
        async with page.expect_request(messages):
            await send(page, "Frist")
        await waiting(page).get_by_role("button", name="Edit").click()
        await page.get_by_role("textbox", name="Queued message").fill("First")
        await page.get_by_role("button", name="Save").click()
        await expect(waiting(page)).to_contain_text("First")
        is_changed.set()
        await expect(page.get_by_text("The message had arrived before it was changed.")).to_be_visible()
        await expect(waiting(page)).to_have_count(0)
        assert await list_texts(client, session_id) == ["Frist"]


async def test_a_refused_message_says_why_and_can_be_mended(server: PageServer, visits: Visits) -> None:
    visits.allow("status of 413")
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        refusal = '{"error": {"type": "request_too_large", "message": "a body may have 10 bytes", "hint": ""}}'
        messages = "**/messages?wait=0"
        await page.route(messages, lambda route: route.fulfill(status=413, body=refusal))
        await send(page, "Much too long")
        await expect(waiting(page)).to_contain_text("Not sent")
        await expect(waiting(page)).to_contain_text("a body may have 10 bytes")
        await page.unroute(messages)
        await waiting(page).get_by_role("button", name="Edit").click()
        await page.get_by_role("textbox", name="Queued message").fill("Short")
        await page.get_by_role("button", name="Save").click()
        await expect_in_log(page, "Short")
        assert await list_texts(client, session_id) == ["Short"]


# ── what is said again ───────────────────────────────────────────────────────────────────────────────────────────────


async def ask(server: PageServer, visits: Visits, client: Client, text: str, *replies: str) -> tuple[Page, str]:
    """Send a message in a new session and wait for the first of these replies. Returns the page and the session."""
    server.model.script(*replies)
    page, session_id = await open_new(server, visits, client)
    await send(page, text)
    await expect_in_log(page, replies[0])
    await expect_idle(page)
    return page, session_id


async def test_a_message_is_edited_and_sent_again(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await ask(server, visits, client, "What is 2 + 2?", "It is 4.", "It is 6.")
        await log(page).get_by_role("button", name="Edit and send again").click()
        await expect(composer(page)).to_have_value("What is 2 + 2?")
        await expect(composer(page)).to_be_focused()
        await send(page, "What is 3 + 3?")
        await expect_in_log(page, "What is 3 + 3?", "It is 6.")
        await expect(log(page)).not_to_contain_text("It is 4.")
        assert await list_texts(client, session_id) == ["What is 3 + 3?"]


async def test_a_message_is_edited_in_a_fork(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await ask(server, visits, client, "What is 2 + 2?", "It is 4.", "It is 6.")
        await log(page).get_by_role("button", name="Edit in a fork").click()
        await page.wait_for_url(lambda url: "/s/" in url and session_id not in url)
        await expect(composer(page)).to_have_value("What is 2 + 2?")
        await send(page, "What is 3 + 3?")
        await expect_in_log(page, "It is 6.")
        assert await list_texts(client, session_id) == ["What is 2 + 2?"]


async def test_the_last_answer_is_asked_for_again(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await ask(server, visits, client, "Toss a coin.", "Heads.", "Tails.")
        await log(page).get_by_text("Heads.").hover()
        await log(page).get_by_role("button", name="Ask again").click()
        await expect_in_log(page, "Tails.")
        await expect(log(page)).not_to_contain_text("Heads.")
        assert await list_texts(client, session_id) == ["Toss a coin."]


async def test_a_run_at_its_limit_is_continued(server: PageServer, visits: Visits) -> None:
    for number in range(2):
        server.model.script(Reply(calls=(call("todo", id=f"call_{number}", items=["look"]),), finish="calls"))
    server.model.script("I had to end.", "Now it is done.")
    async with server.client() as client:
        session_id = await client.session(name="Limited", limits={"turns": 2})
        page = await visits.open(server, f"/s/{session_id}")
        await send(page, "Go through the steps.")
        await expect_in_log(page, "Stopped at the limit")
        await expect(composer(page)).to_have_attribute("placeholder", "Say what to do next, or continue")
        await log(page).get_by_role("button", name="Continue").click()
        await expect_in_log(page, "Now it is done.")


async def test_a_run_that_failed_is_tried_again(server: PageServer, visits: Visits) -> None:
    server.model.script(Odd(status=400), "It works now.")
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        await send(page, "Try it.")
        await expect_in_log(page, "Failed")
        await log(page).get_by_role("button", name="Try again").click()
        await expect_in_log(page, "It works now.")
        assert await list_texts(client, session_id) == ["Try it."]
