"""Finding sessions and working with the list, by pointer, by keys and by the palette."""

import asyncio
import re

import pytest
from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import PHONE, VIEWER, PageServer
from tests.web.screen import composer, expect_idle, expect_in_log, log, session_row
from treadle.testing import call, say

# Scrolls the list to its end, again and again, until a row is there.
SCROLL_TO_END = """
(name) => {
  const list = document.querySelector(".list");
  list.scrollTop = list.scrollHeight;
  return list.innerText.includes(name);
}
"""


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


async def test_a_session_is_renamed_archived_and_deleted_by_its_menu(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        for name in ("Keep", "Drop"):
            await client.session(name=name)
        page = await visits.open(server, "/")

        async def choose(name: str, action: str) -> None:
            await session_row(page, name).hover()
            item = page.locator(".list-item").filter(has_text=name)
            await item.get_by_role("button", name="More").click()
            await page.get_by_role("menuitem", name=action).click()

        await choose("Keep", "Rename")
        await page.get_by_role("textbox", name="Name of the session").fill("Kept")
        await page.keyboard.press("Enter")
        await choose("Kept", "Archive")
        await expect(session_row(page, "Kept")).to_have_count(0)
        await page.get_by_role("button", name="Undo").click()
        await expect(session_row(page, "Kept")).to_be_visible()
        await choose("Drop", "Delete")
        dialog = page.get_by_role("dialog", name="Delete this session?")
        await dialog.get_by_role("button", name="Cancel").click()
        await expect(session_row(page, "Drop")).to_be_visible()
        await choose("Drop", "Delete")
        await dialog.get_by_role("button", name="Delete").click()
        await expect(session_row(page, "Drop")).to_have_count(0)
        left = (await client.json("GET", "/v1/sessions"))["sessions"]
    assert [(one["name"], one["archived"]) for one in left] == [("Kept", False)]


async def test_filters_choose_by_status_agent_and_archive(server: PageServer, visits: Visits) -> None:
    server.model.script("Done.")
    async with server.client() as client:
        done = await client.session(name="Finished")
        await client.send(done, "Go.")
        await client.session(name="Other agent", agent="coder")
        old = await client.session(name="Put away")
        await client.json("PATCH", f"/v1/sessions/{old}", {"archived": True})
    page = await visits.open(server, "/")
    await expect(session_row(page, "Finished")).to_be_visible()
    await expect(session_row(page, "Put away")).to_have_count(0)

    async def choose(name: str) -> None:
        await page.get_by_role("button", name="Filter sessions").click()
        await page.get_by_role("menuitemradio", name=name, exact=True).click()

    await choose("Done")
    await expect(session_row(page, "Other agent")).to_have_count(0)
    await expect(session_row(page, "Finished")).to_be_visible()
    await choose("All")
    await choose("coder")
    await expect(session_row(page, "Finished")).to_have_count(0)
    await page.reload()
    await expect(session_row(page, "Other agent")).to_be_visible()
    await expect(session_row(page, "Finished")).to_have_count(0)
    await choose("Every agent")
    await choose("Archived")
    await expect(session_row(page, "Put away")).to_be_visible()
    await expect(session_row(page, "Finished")).to_have_count(0)
    await choose("Failed")
    await page.get_by_role("button", name="Show all").click()
    await expect(session_row(page, "Finished")).to_be_visible()


async def test_a_new_session_gets_the_agent_the_access_and_the_limits_that_were_chosen(
    server: PageServer, visits: Visits
) -> None:
    server.model.script("Planned.")
    page = await visits.open(server, "/new")
    await page.get_by_role("button", name="Change the agent").click()
    await page.get_by_role("menuitemradio", name="coder").click()
    await page.get_by_text("Asks before changes", exact=True).click()
    await page.get_by_role("button", name="Change", exact=True).click()
    await page.get_by_label("Cost").fill("1,5")
    await page.get_by_label("Turns").fill("7")
    await page.get_by_label("The first message").fill("Plan it.")
    await page.get_by_role("button", name="Start").click()
    await expect_in_log(page, "Plan it.", "Planned.")
    session_id = page.url.rpartition("/")[2]
    async with server.client() as client:
        session = await client.json("GET", f"/v1/sessions/{session_id}")
        facts = {one["type"]: one for one in await client.facts(session_id)}
    access, limits = facts["session_configured"]["access"], facts["run_started"]["limits"]
    assert (session["agent"], access) == ("coder", "read-only")
    assert (limits["turns"], limits["cost"]) == (7, 1.5)


async def test_helpers_hang_below_the_session_that_started_them(server: PageServer, visits: Visits) -> None:
    held = server.model.hold
    server.model.script(say("", call("delegate", task="Look into it.")))
    reply = held()
    async with server.client() as client:
        parent = await client.session(name="Parent")
        await client.json("POST", f"/v1/sessions/{parent}/messages?wait=0", {"content": "Go."})
        await reply.wait_until_asked()
        page = await visits.open(server, "/")
        helper = page.locator("a.row.kid")
        await expect(helper).to_contain_text("Look into it.")
        await expect(helper).to_contain_text("Running")
        reply.write("Found it.")
        reply.end()
        await expect(helper).to_have_count(0)  # it has ended, and its session is not on the screen
        await session_row(page, "Parent").click()
        await expect(helper).to_contain_text("Done")
        await helper.click()
        await expect_in_log(page, "Found it.")


async def test_two_thousand_sessions_are_listed_searched_and_moved_through(server: PageServer, visits: Visits) -> None:
    """Only the rows on the screen are drawn, and a name is found that the list has not loaded."""
    async with server.client() as client:
        for start in range(0, 2000, 50):
            await asyncio.gather(*(client.session(name=f"Number {start + one:04}") for one in range(50)))
    page = await visits.open(server, "/")
    rows = page.get_by_role("navigation", name="Sessions").locator("[data-session]")
    await expect(rows.first).to_be_visible()
    assert await rows.count() < 60
    await page.keyboard.press("/")
    await page.keyboard.type("number 0003")
    await expect(page.locator(".found a.row")).to_have_count(1)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1, name="Number 0003")).to_be_visible()
    await page.wait_for_function(SCROLL_TO_END, arg="Number 0000")
    assert await rows.count() < 60


async def test_a_name_shows_its_hidden_characters(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        await client.session(name="pay\u202efdp.exe")
    page = await visits.open(server, "/")
    await expect(session_row(page, "pay‹U+202E›fdp.exe")).to_be_visible()


@pytest.mark.parametrize("server", [["--access", "read-only"]], indirect=True)
async def test_a_viewer_sees_nothing_that_would_be_refused(server: PageServer, visits: Visits) -> None:
    server.model.script(call("write_file", path="a.txt", content="one"))
    async with server.client() as client:
        asking = await client.session(name="Asking")
        await client.json("POST", f"/v1/sessions/{asking}/messages?wait=0", {"content": "Go."})
        await client.wait_for(asking, "approval_requested")
        done = await client.session(name="Finished")
        await client.send(done, "Go.")
        await client.json("POST", "/v1/memory", {"content": "The build needs Node."}, 201)
    page = await visits.open(server, "/", user=VIEWER)
    await expect(session_row(page, "Asking")).to_be_visible()
    for key in ("c", "r", "b", "e"):
        await session_row(page, "Finished").focus()
        await page.keyboard.press(key)
    await expect(page).to_have_url(f"{server.base}/")
    await expect(page.get_by_role("textbox", name="Name of the session")).to_have_count(0)
    forbidden = "New|Send|Steer|Queue|Stop|Allow|Deny|Answer|Rename|Pin|Archive|Delete|Fork|Rewind|Revert|Load|Unload"
    forbidden += "|Edit|Add|Turn o|Revoke|Compact|Continue|Ask again"
    for path in (
        "/",
        f"/s/{asking}",
        f"/s/{done}",
        f"/s/{done}/changes",
        f"/s/{done}/time",
        f"/s/{done}/at/3",
        "/inbox",
        "/settings",
    ):
        await page.goto(path)
        await expect(page.get_by_role("heading", level=1).first).to_be_visible()
        offered = page.locator("button, a.b").filter(has_text=re.compile(f"^({forbidden})"))
        assert await offered.all_inner_texts() == [], path
        await page.keyboard.press("Control+k")
        choices = page.get_by_role("option").filter(has_text=re.compile(f"^({forbidden})"))
        assert await choices.all_inner_texts() == [], path
        await page.keyboard.press("Escape")
