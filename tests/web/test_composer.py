"""Writing to a session: drafts, files, completion, commands, the queue, and what happens without a connection."""

import base64
import struct
import zlib

import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.kit.browser import Visits
from tests.kit.page_server import VIEWER, PageServer
from tests.web.screen import (
    composer,
    expect_idle,
    expect_in_log,
    list_messages,
    list_texts,
    log,
    open_new,
    question,
    read_state,
    send,
    waiting,
)
from tests.web.test_accessibility import check
from treadle.testing import call

# Paste or drop a file, as the browser does when a person does.
GIVE_FILE = """
(field, { kind, name, type, data }) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type }));
  const options = { bubbles: true, cancelable: true };
  if (kind === "paste") field.dispatchEvent(new ClipboardEvent("paste", { ...options, clipboardData: transfer }));
  const held = { ...options, dataTransfer: transfer };
  if (kind === "drop") for (const one of ["dragover", "drop"]) field.dispatchEvent(new DragEvent(one, held));
}
"""


def draw_png(width: int, height: int) -> bytes:
    """A small image of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x28\x7c\x94" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


async def give_file(page: Page, kind: str, name: str, media_type: str, data: bytes) -> None:
    encoded = base64.b64encode(data).decode()
    await composer(page).evaluate(GIVE_FILE, {"kind": kind, "name": name, "type": media_type, "data": encoded})


def chips(page: Page) -> Locator:
    """What is attached to the message that is being written."""
    return page.get_by_role("list", name="Attached files").get_by_role("listitem")


def options(page: Page) -> Locator:
    """What the composer offers to complete."""
    return page.get_by_role("listbox", name="Suggestions").get_by_role("option")


# ── the field ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_shift_enter_makes_a_line_and_an_input_method_does_not_send(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        field = composer(page)
        low = await field.bounding_box()
        await field.press_sequentially("One")
        await field.press("Shift+Enter")
        await field.press_sequentially("two")
        await expect(field).to_have_value("One\ntwo")
        high = await field.bounding_box()
        assert low is not None and high is not None and high["height"] > low["height"], "the field does not grow"
        composing = "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true })"
        await field.evaluate(f"(one) => one.dispatchEvent({composing})")
        await expect(field).to_have_value("One\ntwo")
        await field.press("Enter")
        await expect_in_log(page, "done")
        await expect(field).to_have_value("")
        assert await list_texts(client, session_id) == ["One\ntwo"]


async def test_a_draft_survives_a_reload_and_another_session(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, _ = await open_new(server, visits, client)
        await client.session(name="Other")
        await composer(page).fill("Not yet finished")
        await page.get_by_role("navigation", name="Sessions").get_by_text("Other").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Other")
        await expect(composer(page)).to_have_value("")
        await composer(page).fill("For the other")
        await page.go_back()
        await expect(composer(page)).to_have_value("Not yet finished")
        await page.reload()
        await expect(composer(page)).to_have_value("Not yet finished")


async def test_after_a_log_out_no_draft_is_left(server: PageServer, visits: Visits) -> None:
    visits.allow("401")
    async with server.client() as client:
        page, _ = await open_new(server, visits, client)
    await composer(page).fill("A secret plan")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("Log out")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("token")).to_be_visible()
    assert "A secret plan" not in await page.evaluate("JSON.stringify(localStorage)")


async def test_the_arrow_keys_walk_through_own_messages(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, _ = await open_new(server, visits, client)
        for text in ("First", "Second"):
            await send(page, text)
            await expect_in_log(page, text)
            await expect_idle(page)
        field = composer(page)
        for key, shown in (("ArrowUp", "Second"), ("ArrowUp", "First"), ("ArrowUp", "First"), ("ArrowDown", "Second")):
            await field.press(key)
            await expect(field).to_have_value(shown)
        await field.press("ArrowDown")
        await expect(field).to_have_value("")
        await field.fill("My own")
        await field.press("ArrowUp")
        await expect(field).to_have_value("My own")


async def test_the_keys_reach_the_composer_and_leave_it(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, _ = await open_new(server, visits, client)
        await page.keyboard.press("i")
        await expect(composer(page)).to_be_focused()
        await expect(composer(page)).to_have_value("")
        await page.keyboard.press("Escape")
        await expect(composer(page)).not_to_be_focused()
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Send after this run")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pasted_image_is_shown_and_sent(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        image = draw_png(40, 30)
        await give_file(page, "paste", "shot.png", "image/png", image)
        await expect(chips(page)).to_contain_text("shot.png")
        await expect(chips(page).locator("img")).to_be_visible()
        await send(page, "What is this?")
        await expect(log(page).get_by_role("img", name="Attached image 1")).to_be_visible()
        await expect(chips(page)).to_have_count(0)
        parts = (await list_messages(client, session_id))[0]["parts"]
        assert parts[1] == {"type": "image", "data": base64.b64encode(image).decode(), "media_type": "image/png"}


async def test_a_large_image_is_made_smaller(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        await give_file(page, "paste", "wide.png", "image/png", draw_png(4096, 100))
        await expect(chips(page)).to_have_count(1)
        await send(page, "Look.")
        picture = log(page).get_by_role("img", name="Attached image 1")
        await expect(picture).to_be_visible()
        assert await picture.evaluate("(one) => [one.naturalWidth, one.naturalHeight]") == [2048, 50]
        assert (await list_messages(client, session_id))[0]["parts"][1]["media_type"] == "image/jpeg"


async def test_a_dropped_file_is_attached_and_can_be_removed(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        await give_file(page, "drop", "notes.xyz", "", b"Buy milk.")
        await give_file(page, "drop", "other.txt", "text/plain", b"Not this one.")
        await expect(chips(page)).to_have_count(2)
        await chips(page).filter(has_text="other.txt").get_by_role("button", name="Remove").click()
        await expect(chips(page)).to_contain_text(["notes.xyz"])
        await page.get_by_role("button", name="Send", exact=True).click()
        await expect_in_log(page, "notes.xyz")
        (part,) = (await list_messages(client, session_id))[0]["parts"]
        assert (part["type"], part["name"], part["media_type"]) == ("file", "notes.xyz", "text/plain")
        assert base64.b64decode(part["data"]) == b"Buy milk."


async def test_what_is_too_large_or_empty_is_told_and_left_out(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        files = page.get_by_label("Files to attach")
        large = {"name": "huge.bin", "mimeType": "application/octet-stream", "buffer": b"\0" * 9_000_000}
        half = {"name": "half.bin", "mimeType": "application/octet-stream", "buffer": b"\0" * 4_000_000}
        empty = {"name": "empty.txt", "mimeType": "text/plain", "buffer": b""}
        await files.set_input_files([large, half, empty])  # type: ignore[list-item]
        told = page.locator(".toasts")
        await expect(told).to_contain_text("“huge.bin” is too large: it has 9.0\u202fMB")
        await expect(told).to_contain_text("“empty.txt” is empty")
        await expect(chips(page)).to_have_count(1)
        await files.set_input_files([half])  # type: ignore[list-item]
        await expect(told).to_contain_text("together with the others")
        await expect(chips(page)).to_have_count(1)
        await send(page, "Only one.")
        await expect_in_log(page, "Only one.", "half.bin", "done")
        assert len((await list_messages(client, session_id))[0]["parts"]) == 2


# ── completion ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_file_is_named_by_some_of_its_letters(server: PageServer, visits: Visits) -> None:
    (server.workspace / "uploads").mkdir()
    for name in ("uploads/session.py", "uploads/settings.py", "my notes.md"):
        (server.workspace / name).write_text("x", "utf-8")
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        field = composer(page)
        await field.press_sequentially("Look at @sess")
        await expect(options(page)).to_have_text(["session.pyuploads/"])
        await expect(field).to_have_attribute("aria-activedescendant", "suggestions-0")
        await check(page)
        await field.press("Enter")
        await expect(field).to_have_value("Look at @uploads/session.py ")
        await expect(options(page)).to_have_count(0)
        await field.press_sequentially("and @uplo")
        await expect(options(page).first).to_contain_text("uploads")
        await field.press("Tab")
        await expect(field).to_have_value("Look at @uploads/session.py and @uploads/")
        await expect(options(page)).to_have_count(2)
        await field.press("ArrowDown")
        await expect(options(page).nth(1)).to_have_attribute("aria-selected", "true")
        await field.press("Escape")
        await expect(options(page)).to_have_count(0)
        await expect(field).to_be_focused()
        await field.fill("See ")
        await page.get_by_role("button", name="Name a file").click()
        await field.press_sequentially("notes")
        await options(page).filter(has_text="my notes.md").click()
        await expect(field).to_have_value('See @"my notes.md" ')
        await field.press("Enter")
        await expect_in_log(page, "my notes.md")
        assert await list_texts(client, session_id) == ['See @"my notes.md" ']


async def test_escape_closes_the_suggestions_before_it_stops_the_run(server: PageServer, visits: Visits) -> None:
    (server.workspace / "plan.md").write_text("x", "utf-8")
    reply = server.model.hold()
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        await send(page, "Count.")
        await reply.wait_until_asked()
        await composer(page).press_sequentially("@pla")
        await expect(options(page)).to_have_count(1)
        await composer(page).press("Escape")
        await expect(options(page)).to_have_count(0)
        reply.write("One.")
        reply.end()
        await expect_in_log(page, "One.")
        await expect_idle(page)
        assert (await read_state(client, session_id))["last"]["reason"] == "answered"


async def test_slash_commands_act_and_custom_ones_are_sent(server: PageServer, visits: Visits) -> None:
    folder = server.workspace / ".treadle" / "commands"
    folder.mkdir(parents=True)
    (folder / "review.md").write_text("---\ndescription: Look it over\n---\nReview $ARGUMENTS now.", "utf-8")
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        field = composer(page)
        await field.press_sequentially("/rev")
        await expect(options(page).first).to_contain_text("/review")
        await expect(options(page).first).to_contain_text("Look it over")
        await field.press("Enter")
        await expect(field).to_have_value("/review ")
        await field.press_sequentially("the branch")
        await field.press("Enter")
        await expect_in_log(page, "/review the branch", "done")
        assert "Review the branch now." in (await list_messages(client, session_id))[0]["parts"][1]["text"]
        await field.press_sequentially("/chan")
        await field.press("Enter")
        await expect(page).to_have_url(f"{server.base}/s/{session_id}/changes")
        await page.go_back()
        await send(page, "/etc/hosts is wrong")
        await expect_in_log(page, "/etc/hosts is wrong")
        assert len(await list_messages(client, session_id)) == 2


# ── while a run works ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_buttons_steer_queue_and_stop(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        await send(page, "Count.")
        await reply.wait_until_asked()
        await expect(composer(page)).to_have_attribute("placeholder", "Steer the run, or queue what comes after it")
        for button, label in (("Steer", "Next turn"), ("Queue", "After this run")):
            await composer(page).fill(f"By {button}")
            await page.get_by_role("button", name=button, exact=True).click()
            await expect(waiting(page).filter(has_text=f"By {button}")).to_contain_text(label)
        await check(page)
        await page.locator(".dock").get_by_role("button", name="Stop").click()
        await expect(log(page)).to_contain_text("Stopped")
        await expect(page.locator(".dock")).to_contain_text("These wait until you write or continue")
        await expect(waiting(page)).to_have_count(2)
        server.model.script("Both it is.")
        await send(page, "Go on.")
        await expect_in_log(page, "By Steer", "Go on.", "Both it is.")
        await expect(waiting(page)).to_have_count(0)
        assert await list_texts(client, session_id) == ["Count.", "By Steer", "Go on.", "By Queue"]


async def test_a_stop_is_shown_before_the_server_has_answered(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    held: list[Route] = []
    async with server.client() as client:
        page, _ = await open_new(server, visits, client)
        await page.route("**/cancel", lambda route: held.append(route))
        await send(page, "Count.")
        await reply.wait_until_asked()
        async with page.expect_request("**/cancel"):
            await composer(page).press("Escape")
        await expect(page.locator(".dock").get_by_role("button", name="Stopping")).to_be_disabled()
        await held[0].continue_()
        await expect_idle(page)
        await expect_in_log(page, "Stopped")


async def test_a_queued_message_keeps_its_files_and_another_device_sees_the_edit(
    server: PageServer, visits: Visits
) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        await send(page, "Count.")
        await reply.wait_until_asked()
        await give_file(page, "drop", "notes.txt", "text/plain", b"Buy milk.")
        await expect(chips(page)).to_have_count(1)
        await composer(page).fill("Read tihs.")
        await composer(page).press("Alt+Enter")
        other = await visits.open(server, f"/s/{session_id}")
        await expect(waiting(other)).to_contain_text("Read tihs.")
        await expect(waiting(other)).to_contain_text("1 file")
        await expect(waiting(other)).to_contain_text("After this run")
        await waiting(page).get_by_role("button", name="Edit").click()
        await page.get_by_role("textbox", name="Queued message").fill("Read this.")
        await page.get_by_role("button", name="Save").click()
        await expect(waiting(other)).to_contain_text("Read this.")
        reply.end()
        await expect_in_log(other, "Read this.", "notes.txt")


@pytest.mark.parametrize("server", [["--access", "read-only"]], indirect=True)
async def test_nothing_is_primary_while_the_run_waits_for_an_answer(server: PageServer, visits: Visits) -> None:
    server.model.script(call("write_file", path="a.txt", content="one"), "Written.")
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        await send(page, "Write it.")
        await expect(question(page)).to_be_visible()
        await composer(page).fill("Rather not.")
        await expect(page.get_by_role("button", name="Steer", exact=True)).not_to_have_class("b pri")
        await page.keyboard.press("Escape")
        await client.wait_for(session_id, "run_finished")
        await expect_idle(page)
        await expect(composer(page)).to_have_value("Rather not.")


# ── who may write, and where ─────────────────────────────────────────────────────────────────────────────────────────


async def test_who_may_only_look_sees_one_line(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id = await client.session(name="Looked at")
        await client.send(session_id, "Hello.")
    page = await visits.open(server, f"/s/{session_id}", user=VIEWER)
    await expect_in_log(page, "Hello.")
    await expect(page.get_by_text("You may look, not write.")).to_be_visible()
    await expect(composer(page)).to_have_count(0)
    await expect(page.get_by_role("button", name="Edit and send again")).to_have_count(0)


async def test_the_past_has_a_line_that_leads_back(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id = await client.session(name="Past")
        await client.send(session_id, "Hello.")
    page = await visits.open(server, f"/s/{session_id}/at/3")
    await expect(page.get_by_text("This is the past.")).to_be_visible()
    await expect(composer(page)).to_have_count(0)
    await page.get_by_role("button", name="Go back to now to write").click()
    await expect(composer(page)).to_be_visible()
    await expect(page).to_have_url(f"{server.base}/s/{session_id}")


async def test_the_access_is_changed_beside_the_message(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, session_id = await open_new(server, visits, client)
        await page.locator(".dock").get_by_role("button", name="Access").click()
        await page.get_by_role("menuitemradio", name="Asks before changes").click()
        await expect(page.locator(".dock").get_by_role("button", name="Access")).to_contain_text("Asks before changes")
        assert (await read_state(client, session_id))["access"] == "read-only"


async def test_a_new_session_starts_with_files_and_keeps_its_draft(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page = await visits.open(server, "/new")
        await composer(page).fill("Read these notes.")
        await page.reload()
        await expect(composer(page)).to_have_value("Read these notes.")
        await give_file(page, "drop", "notes.txt", "text/plain", b"Buy milk.")
        await expect(chips(page)).to_have_count(1)
        await check(page)
        await composer(page).press("Control+Enter")
        await page.wait_for_url("**/s/*")
        await expect_in_log(page, "Read these notes.", "notes.txt", "done")
        session_id = page.url.rpartition("/")[2]
        assert [one["type"] for one in (await list_messages(client, session_id))[0]["parts"]] == ["text", "file"]


async def test_the_composer_of_a_phone_is_one_row_with_large_buttons(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        page, _ = await open_new(server, visits, client, phone=True)
        await check(page)
        await composer(page).fill("Count.")
        for button in await page.locator(".dock button").all():
            box = await button.bounding_box()
            assert box is not None and box["height"] >= 44 and box["width"] >= 44, await button.inner_text()
        await page.get_by_role("button", name="Send", exact=True).tap()
        await reply.wait_until_asked()
        stop = page.locator(".dock").get_by_role("button", name="Stop")
        field, beside = await composer(page).bounding_box(), await stop.bounding_box()
        assert field is not None and beside is not None
        assert abs(field["y"] + field["height"] / 2 - beside["y"] - beside["height"] / 2) < 3, "not in one row"
        await stop.tap()
        await expect_in_log(page, "Stopped")


async def test_the_composer_stays_above_a_keyboard_that_lies_over_the_page(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        page, _ = await open_new(server, visits, client, phone=True)
    await page.evaluate(
        """() => {
          Object.defineProperty(visualViewport, "height", { get: () => 500, configurable: true });
          visualViewport.dispatchEvent(new Event("resize"));
        }"""
    )
    box = await composer(page).bounding_box()
    assert box is not None and box["y"] + box["height"] <= 500
