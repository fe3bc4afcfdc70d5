"""Finding sessions and working with the list, by pointer, by keys and by the palette."""

from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import PHONE, PageServer
from tests.web.screen import composer, expect_idle, expect_in_log, log, session_row


async def test_full_text_search_shows_the_passage_and_opens_it(server: PageServer, visits: Visits) -> None:
    server.model.script("The multipart upload fails at part seven.")
    async with server.client() as client:
        session_id = await client.session(name="Uploads")
        await client.send(session_id, "Why?")
        await client.session(name="Something else")
    page = await visits.open(server, "/")
    await expect(session_row(page, "Something else")).to_be_visible()
    await page.keyboard.press("/")
    await page.keyboard.type("multipart")
    passage = page.get_by_role("navigation", name="Sessions").locator("mark")
    await expect(passage).to_have_text("multipart")
    await expect(session_row(page, "Something else")).to_have_count(0)
    await passage.click()
    await expect_in_log(page, "fails at part seven")
    assert f"/s/{session_id}" in page.url


async def test_what_one_device_does_to_a_session_shows_on_the_other(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        for name in ("Old", "Older"):
            await client.session(name=name)
    page, phone = await visits.open(server, "/"), await visits.open(server, "/", user=PHONE)
    for one in (page, phone):
        await expect(session_row(one, "Older")).to_be_visible()
    row = session_row(page, "Older")
    await row.focus()
    await page.keyboard.press("r")
    field = page.get_by_role("textbox", name="Name of the session")
    await field.fill("Renamed")
    await field.press("Enter")
    await expect(session_row(phone, "Renamed")).to_be_visible()
    await session_row(page, "Renamed").focus()
    await page.keyboard.press("b")
    await expect(phone.get_by_role("heading", name="Pinned")).to_be_visible()
    await session_row(page, "Old").focus()
    await page.keyboard.press("e")
    await expect(session_row(phone, "Old")).to_have_count(0)
    await expect(session_row(page, "Renamed")).to_be_visible()


async def test_the_page_works_with_the_keyboard_alone(server: PageServer, visits: Visits) -> None:
    """Start a session, write, move in the list, open the help and the palette without a pointer."""
    server.model.script("First answer.", "Second answer.")
    async with server.client() as client:
        await client.session(name="Another one")
    page = await visits.open(server, "/")
    await expect(session_row(page, "Another one")).to_be_visible()
    await page.keyboard.press("c")
    await page.wait_for_url("**/new")
    await page.keyboard.type("Hello from the keys")
    await page.keyboard.press("Control+Enter")
    await expect_in_log(page, "First answer.")
    await expect_idle(page)
    await composer(page).blur()
    await page.keyboard.press("i")
    await page.keyboard.type("line one")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("line two")
    await page.keyboard.press("Enter")
    await expect_in_log(page, "line two", "Second answer.")
    await composer(page).blur()
    await page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    await expect(keys).to_contain_text("Search")
    await page.keyboard.press("Escape")
    await expect(keys).to_have_count(0)
    await page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Commands")
    await page.keyboard.type("another one")
    await expect(palette.get_by_role("option").first).to_contain_text("Another one")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1, name="Another one")).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("i")
    await expect(page.get_by_role("heading", level=1, name="Inbox")).to_be_visible()


async def test_the_palette_runs_a_command_of_the_session(server: PageServer, visits: Visits) -> None:
    server.model.script("An answer.")
    async with server.client() as client:
        session_id = await client.session(name="With palette")
        await client.send(session_id, "Go.")
    page = await visits.open(server, f"/s/{session_id}")
    await expect_in_log(page, "An answer.")
    await page.keyboard.press("Control+k")
    await page.get_by_role("dialog", name="Commands").get_by_role("combobox").fill("changes")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/s/{session_id}/changes")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_an_unknown_address_and_a_missing_session_say_so(server: PageServer, visits: Visits) -> None:
    visits.allow("404")
    page = await visits.open(server, "/s/nothing-here")
    await expect(page.get_by_role("main")).to_contain_text("This session is not here")
    await expect(log(page)).to_have_count(0)


async def test_a_session_that_has_no_name_yet_is_known_by_its_first_words(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Move the images\nnow"})
        await reply.wait_until_asked()
        await expect(session_row(page, "Move the images")).to_be_visible()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Move the images")
        reply.write("Moved.")
        reply.end()
        await expect(session_row(page, "Named by the model")).to_be_visible()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Named by the model")
