"""Looking at the past, and forking, rewinding and undoing from the scrubber."""

import re

from playwright.async_api import Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer
from tests.kit.server import Client
from tests.web.screen import expect_idle, expect_in_log, log, read_state, send, slider
from treadle.testing import call


async def write_twice(server: PageServer, client: Client) -> tuple[str, int]:
    """A session that wrote a file in each of two runs. Returns it and the position between them."""
    server.model.script(call("write_file", path="a.txt", content="first\n"), "Wrote the first.")
    server.model.script(call("edit_file", path="a.txt", old="first", new="second"), "Wrote the second.")
    session_id = await client.session(name="Two runs")
    await client.send(session_id, "Write the first.")
    between = len(await client.facts(session_id))
    await client.send(session_id, "Write the second.")
    return session_id, between


async def move_to(page: Page, position: int) -> None:
    """Move the scrubber with the keys, turn by turn and then fact by fact."""
    await slider(page).focus()
    while (now := int(await slider(page).get_attribute("aria-valuenow") or "0")) != position:
        await page.keyboard.press("ArrowLeft" if now > position else "ArrowRight")
        await expect(slider(page)).not_to_have_attribute("aria-valuenow", str(now))


async def test_the_scrubber_shows_the_session_as_it_was(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, between = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}")
    await expect_in_log(page, "Wrote the second.")
    await move_to(page, between)
    await expect(page).to_have_url(f"{server.base}/s/{session_id}/at/{between}")
    await expect(log(page)).not_to_contain_text("second")
    await expect_in_log(page, "Wrote the first.")
    await expect(page.get_by_role("status").filter(has_text="Back to now")).to_be_visible()
    await expect(page.get_by_role("button", name="Send", exact=True)).to_have_count(0)
    await page.reload()
    await expect(slider(page)).to_have_attribute("aria-valuetext", re.compile(f"Fact {between} of"))
    await page.keyboard.press("Escape")
    await expect_in_log(page, "Wrote the second.")
    await expect(page).to_have_url(f"{server.base}/s/{session_id}")


async def test_the_scrubber_is_dragged(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, _ = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}")
    await expect_in_log(page, "Wrote the second.")
    box = await slider(page).bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] - 2, middle)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.3, middle, steps=5)
    await expect(log(page)).not_to_contain_text("second")
    await page.mouse.up()
    await expect(page).to_have_url(
        f"{server.base}/s/{session_id}/at/{await slider(page).get_attribute('aria-valuenow')}"
    )


async def test_a_session_is_forked_at_a_position(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, between = await write_twice(server, client)
        page = await visits.open(server, f"/s/{session_id}/at/{between}")
        await page.get_by_role("button", name="Fork here").first.click()
        await page.wait_for_url(lambda url: "/s/" in url and session_id not in url)
        await expect_in_log(page, "Wrote the first.")
        await expect(log(page)).not_to_contain_text("second")
        fork = page.url.rpartition("/")[2]
        server.model.script("Another second.")
        await send(page, "Something else.")
        await expect_in_log(page, "Another second.")
        assert (await client.json("GET", f"/v1/sessions/{fork}"))["parent"] == session_id
    await page.goto(f"/s/{session_id}/time")
    await expect(page.get_by_text("You are here")).to_be_visible()
    await page.get_by_role("link", name="Compare").or_(page.get_by_role("button", name="Compare")).first.click()
    await expect(page.get_by_role("heading", name="Compare", level=1)).to_be_visible()
    await expect(page.get_by_text("Another second.")).to_be_visible()
    await expect(page.get_by_text("Wrote the second.")).to_be_visible()


async def test_a_rewind_shows_its_diffs_first_and_can_be_undone(server: PageServer, visits: Visits) -> None:
    file = server.workspace / "a.txt"
    async with server.client() as client:
        session_id, between = await write_twice(server, client)
        assert file.read_text() == "second\n"
        before = (await read_state(client, session_id))["messages"]
        page = await visits.open(server, f"/s/{session_id}/at/{between}")
        await page.get_by_role("button", name="Rewind here").first.click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("a.txt")
        await expect(dialog).to_contain_text("second")
        assert file.read_text() == "second\n"
        await dialog.get_by_role("button", name="Rewind both").click()
        await expect(page).to_have_url(f"{server.base}/s/{session_id}")
        await expect(log(page)).not_to_contain_text("Wrote the second.")
        await expect_idle(page)
        assert file.read_text() == "first\n"
        await page.get_by_role("button", name="Undo").first.click()
        await expect_in_log(page, "Wrote the second.")
        assert file.read_text() == "second\n"
        assert (await read_state(client, session_id))["messages"] == before


async def test_changes_are_shown_and_one_file_is_reverted(server: PageServer, visits: Visits) -> None:
    file = server.workspace / "a.txt"
    async with server.client() as client:
        session_id, _ = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}/changes")
    await expect(page.get_by_role("main")).to_contain_text("second")
    await page.get_by_role("button", name="Revert file").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revert", exact=True).click()
    await expect(page.get_by_text("a.txt was reverted.")).to_be_visible()
    await expect(page.get_by_text("No file differs")).to_be_visible()
    assert not file.exists()
    await page.get_by_role("button", name="Undo", exact=True).first.click()
    await expect(page.get_by_role("table", name="Changes of a.txt")).to_contain_text("second")
    assert file.read_text() == "second\n"


async def test_the_last_answer_is_regenerated(server: PageServer, visits: Visits) -> None:
    server.model.script("A dull answer.", "A better answer.")
    async with server.client() as client:
        session_id = await client.session()
        await client.send(session_id, "Say something.")
    page = await visits.open(server, f"/s/{session_id}")
    await expect_in_log(page, "A dull answer.")
    await log(page).get_by_text("A dull answer.").hover()
    await page.get_by_role("button", name="Ask again").click()
    await expect_in_log(page, "A better answer.")
    await expect(log(page)).not_to_contain_text("A dull answer.")
