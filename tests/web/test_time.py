"""Looking at the past, and forking, rewinding and undoing from the scrubber."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import VIEWER, PageServer
from tests.kit.server import Client
from tests.web.screen import expect_idle, expect_in_log, expect_whole_line, log, read_state, send, slider
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
    await expect_whole_line(page)
    await slider(page).focus()
    while (now := int(await slider(page).get_attribute("aria-valuenow") or "0")) != position:
        await page.keyboard.press("ArrowLeft" if now > position else "ArrowRight")
        await expect(slider(page)).not_to_have_attribute("aria-valuenow", str(now))


async def undo(page: Page) -> None:
    """Take the rewind back. The files are written after the fact of it."""
    await page.get_by_role("button", name="Undo rewind").click()
    await expect(page.get_by_text("The rewind was taken back.")).to_be_visible()
    await expect(page.get_by_role("button", name="Undo rewind")).to_have_count(0)


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
    await expect(slider(page)).to_have_attribute("aria-valuetext", re.compile(rf"Fact {between} of [1-9]"))
    await expect_in_log(page, "Wrote the first.")
    await page.keyboard.press("Escape")
    await expect_in_log(page, "Wrote the second.")
    await expect(page).to_have_url(f"{server.base}/s/{session_id}")


async def test_the_scrubber_is_dragged(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, _ = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}")
    await expect_in_log(page, "Wrote the second.")
    await expect_whole_line(page)
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
        await undo(page)
        await expect_in_log(page, "Wrote the second.")
        assert file.read_text() == "second\n"
        assert (await read_state(client, session_id))["messages"] == before


async def test_a_rewind_that_was_taken_back_is_offered_no_more(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, between = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}/at/{between}")
    await page.get_by_role("button", name="Rewind here…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Rewind both").click()
    await expect(page.get_by_role("button", name="Undo", exact=True)).to_be_visible()
    await undo(page)
    await expect(page.get_by_role("button", name="Undo", exact=True)).to_have_count(0)


async def test_a_position_after_the_end_leads_to_now(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, _ = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}/time/at/99999")
    await expect(page).to_have_url(f"{server.base}/s/{session_id}/time")
    await expect_in_log(page, "Wrote the second.")
    await expect(page.get_by_text("As it was at")).to_have_count(0)


async def test_a_message_is_shown_at_its_own_position(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, _ = await write_twice(server, client)
        (first, *_) = [one for one in await client.facts(session_id) if one["type"] == "message_received"]
    page = await visits.open(server, f"/s/{session_id}/at/{first['seq']}")
    text = "".join(part["text"] for part in first["parts"])
    await expect_in_log(page, text, "Waited for the next turn.")
    await page.goto(f"/s/{session_id}/at/{first['seq'] + 3}")
    await expect_in_log(page, text)
    await expect(log(page)).not_to_contain_text("Waited for")


async def test_the_back_button_closes_the_question_about_a_rewind(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, _ = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}")
    await expect_whole_line(page)
    await slider(page).focus()
    await page.keyboard.press("ArrowLeft")
    await page.get_by_role("button", name="Rewind here…").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_text("As it was at")).to_have_count(0)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.go_forward()
    await expect(page.get_by_text("As it was at")).to_be_visible()
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_comparison_says_when_a_session_is_not_here(server: PageServer, visits: Visits) -> None:
    visits.allow("404")
    async with server.client() as client:
        session_id, _ = await write_twice(server, client)
    page = await visits.open(server, f"/compare/{session_id}/none")
    await expect(page.get_by_role("main")).to_contain_text("One of these sessions is not here")


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


async def test_the_scrubber_works_with_the_keyboard_alone(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, _ = await write_twice(server, client)
        length = len(await client.facts(session_id))
        turns = [one["seq"] for one in await client.facts(session_id) if one["type"] == "turn_started"]
    page = await visits.open(server, f"/s/{session_id}")
    await expect(slider(page)).to_have_attribute("aria-valuemax", str(length))
    await expect_whole_line(page)
    await slider(page).focus()
    for key, position in (
        ("ArrowLeft", length - 1),
        ("Shift+ArrowLeft", turns[-1]),
        ("Shift+ArrowLeft", turns[-2]),
        ("Shift+ArrowRight", turns[-1]),
        ("Home", 1),
        ("ArrowLeft", 1),
        ("ArrowUp", 2),
        ("End", length),
    ):
        await page.keyboard.press(key)
        await expect(slider(page)).to_have_attribute("aria-valuenow", str(position))
    await expect(page).to_have_url(f"{server.base}/s/{session_id}")


async def test_the_scrubber_is_dragged_by_a_finger(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, between = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}/at/{between}", phone=True)
    await expect_in_log(page, "Wrote the first.")
    await expect_whole_line(page)
    box = await slider(page).bounding_box()
    assert box is not None and box["height"] >= 44
    y = box["y"] + box["height"] / 2
    places = [{"x": box["x"] + box["width"] * share, "y": y} for share in (0.5, 0.4, 0.2, 0.1)]
    browser: Any = await page.context.new_cdp_session(page)
    for kind, place in zip(("touchStart", *["touchMove"] * 3), places, strict=True):
        await browser.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [place]})
    await expect(log(page)).not_to_contain_text("Wrote the first.")
    await browser.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    await expect(page).to_have_url(re.compile(r"/at/[1-4]$"))
    await page.get_by_role("button", name="Back to now", exact=True).click()
    await expect_in_log(page, "Wrote the second.")


async def test_a_viewer_sees_the_past_but_no_way_to_change_it(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, between = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}/time/at/{between}", user=VIEWER)
    await expect_in_log(page, "Wrote the first.")
    for name in ("Fork", "Rewind", "Undo", "Ask again", "Edit"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    await page.keyboard.press("f")
    await page.keyboard.press("w")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.goto(f"/s/{session_id}/changes")
    await expect(page.get_by_role("table", name="Changes of a.txt")).to_contain_text("second")
    for name in ("Revert", "Rewind"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)


async def test_while_a_run_is_unfinished_only_a_fork_is_possible(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id, between = await write_twice(server, client)
        reply = server.model.hold()
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Go on."})
        await reply.wait_until_asked()
        page = await visits.open(server, f"/s/{session_id}/at/{between}")
        rewind = page.get_by_role("button", name="Rewind here").first
        await expect(rewind).to_be_disabled()
        await expect(rewind).to_have_attribute("title", "Rewind works when the run has ended. Fork works now.")
        reply.write("Here I am.")
        reply.end()
        await expect(rewind).to_be_enabled()
        await page.get_by_role("button", name="Fork here").first.click()
        await page.wait_for_url(lambda url: "/s/" in url and session_id not in url)


async def test_only_the_files_or_only_the_conversation_are_rewound(server: PageServer, visits: Visits) -> None:
    file = server.workspace / "a.txt"
    async with server.client() as client:
        session_id, between = await write_twice(server, client)
    page = await visits.open(server, f"/s/{session_id}/at/{between}")
    await expect_in_log(page, "Wrote the first.")
    await expect_whole_line(page)
    await page.keyboard.press("w")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("radio", name="Files").click()
    await dialog.get_by_role("button", name="Rewind files").click()
    await expect_in_log(page, "Wrote the second.")
    await expect(page.get_by_text(f"a.txt is as at fact {between}.")).to_be_visible()
    assert file.read_text() == "first\n"
    await undo(page)
    assert file.read_text() == "second\n"
    await move_to(page, between)
    await page.keyboard.press("w")
    await dialog.get_by_role("radio", name="Conversation").click()
    await expect(dialog.get_by_role("table")).to_have_count(0)
    await dialog.get_by_role("button", name="Rewind conversation").click()
    await expect(log(page)).not_to_contain_text("Wrote the second.")
    assert file.read_text() == "second\n"


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=me", "-c", "user.email=me@example.org", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("server", [["--access", "full"]], indirect=True)
async def test_a_rewind_in_a_git_workspace_takes_commits_back_too(server: PageServer, visits: Visits) -> None:
    work = server.workspace
    git(work, "init", "-q", "-b", "main")
    git(work, "commit", "-q", "--allow-empty", "-m", "start")
    commit = "git -c user.name=me -c user.email=me@example.org commit -qam"
    server.model.script(
        call("write_file", path="a.txt", content="first\n"), call("shell", command=f"git add . && {commit} one"), "One."
    )
    server.model.script(
        call("edit_file", path="a.txt", old="first", new="second"), call("shell", command=f"{commit} two"), "Two."
    )
    async with server.client() as client:
        session_id = await client.session(name="With git")
        await client.send(session_id, "Write the first.")
        between = len(await client.facts(session_id))
        await client.send(session_id, "Write the second.")
    assert git(work, "log", "--format=%s") == "two\none\nstart"
    page = await visits.open(server, f"/s/{session_id}/at/{between}")
    await page.get_by_role("button", name="Rewind here").first.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("refs/heads/main")
    await dialog.get_by_role("button", name="Rewind both").click()
    await expect(page).to_have_url(f"{server.base}/s/{session_id}")
    await expect(log(page)).not_to_contain_text("Two.")
    assert (git(work, "log", "--format=%s"), (work / "a.txt").read_text()) == ("one\nstart", "first\n")
    assert git(work, "status", "--porcelain") == ""
    await undo(page)
    await expect_in_log(page, "Two.")
    assert (git(work, "log", "--format=%s"), (work / "a.txt").read_text()) == ("two\none\nstart", "second\n")
