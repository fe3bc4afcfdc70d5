"""The files that a session has changed, and its long outputs."""

import re

from playwright.async_api import Locator, Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer
from treadle.testing import call

BEFORE = "".join(f"line {number}\n" for number in range(1, 31))


def diff(page: Page, path: str) -> Locator:
    return page.get_by_role("table", name=f"Changes of {path}")


async def test_diffs_have_line_numbers_and_marked_words(server: PageServer, visits: Visits) -> None:
    (server.workspace / "a.txt").write_text(BEFORE)
    server.model.script(
        call("edit_file", path="a.txt", old="line 10\n", new="line ten\nand more\n"),
        call("write_file", path="new.py", content="def f():\n    return 1\n"),
        "Done.",
    )
    async with server.client() as client:
        session_id = await client.session(name="Edits")
        await client.send(session_id, "Edit it.")
    page = await visits.open(server, f"/s/{session_id}/changes")
    await expect(page.get_by_text("2 files")).to_be_visible()
    table = diff(page, "a.txt")
    lines = [await row.locator("td").all_inner_texts() for row in await table.get_by_role("row").all()]
    assert lines[0] == ["Lines 1 to 6 are unchanged"]
    assert lines[4] == ["10", "", "−", "line 10"]
    assert lines[5:7] == [["", "10", "+", "line ten"], ["", "11", "+", "and more"]]
    assert lines[7] == ["11", "12", "", "line 11"]
    assert await table.locator("i").all_inner_texts() == ["10", "ten"]
    await page.get_by_role("button", name=re.compile("^new.py")).click()
    await expect(diff(page, "new.py")).to_contain_text("return 1")
    await expect(diff(page, "new.py").get_by_text("def", exact=True)).to_have_class(re.compile("."))
    await page.get_by_role("radio", name="Split").click()
    await expect(diff(page, "new.py").locator("td.add.tx")).to_have_count(2)
    await page.get_by_role("button", name="Copy as patch").click()
    patch = await page.evaluate("navigator.clipboard.readText()")
    assert "+++ b/new.py" in patch and "-line 10" in patch


async def test_changes_since_a_position_and_since_the_last_message(server: PageServer, visits: Visits) -> None:
    server.model.script(call("write_file", path="a.txt", content="one\n"), "One.")
    server.model.script(call("edit_file", path="a.txt", old="one", new="two"), "Two.")
    async with server.client() as client:
        session_id = await client.session(name="Steps")
        await client.send(session_id, "First.")
        between = len(await client.facts(session_id))
        await client.send(session_id, "Second.")
        length = len(await client.facts(session_id))
    page = await visits.open(server, f"/s/{session_id}/changes")
    await expect(diff(page, "a.txt").get_by_role("row")).to_have_count(1)
    await page.get_by_role("button", name=re.compile("^Since")).click()
    await page.get_by_role("menuitemradio", name="Since your last message").click()
    await expect(diff(page, "a.txt").get_by_role("row")).to_have_count(2)
    await page.goto(f"/s/{session_id}/changes/at/{between}")
    await expect(diff(page, "a.txt").get_by_role("row")).to_have_count(2)
    await expect(page.get_by_role("button", name=re.compile("^Since"))).to_contain_text(f"Since fact {between}")
    await page.get_by_role("button", name="Revert file").click()
    await expect(page.get_by_role("dialog")).to_contain_text(f"It goes back to what it was at fact {between}.")
    server.model.script("I see.")
    await page.get_by_role("dialog").get_by_role("button", name="Revert, and tell the agent").click()
    await expect(page.get_by_text("a.txt was reverted.")).to_be_visible()
    async with server.client() as client:
        told = (await client.wait_for(session_id, "message_received", after=length))[-1]
    assert told["parts"][0]["text"].startswith("I reverted a.txt to an earlier state")
    assert (server.workspace / "a.txt").read_text() == "one\n"


async def test_a_long_output_is_searched(server: PageServer, visits: Visits) -> None:
    server.model.script(call("shell", command="for i in $(seq 1 9000); do echo item $i of many; done"), "Listed.")
    async with server.client() as client:
        session_id = await client.session(name="Long")
        await client.send(session_id, "List them.")
    page = await visits.open(server, f"/s/{session_id}/changes")
    await page.get_by_role("button", name=re.compile("^shell output")).click()
    output = page.get_by_role("region", name="Output").last
    await expect(output).to_contain_text("9000 lines")
    assert await output.locator(".long-line").count() < 200
    await output.get_by_role("searchbox", name="Search the output").fill("ITEM 4321 ")
    await expect(output.get_by_role("status")).to_have_text("1 of 1 match")
    await expect(output.locator("mark.now")).to_be_in_viewport()
    await output.get_by_role("searchbox", name="Search the output").fill("item 89")
    await expect(output.get_by_role("status")).to_have_text("1 of 111 matches")
    await page.keyboard.press("Enter")
    await expect(output.get_by_role("status")).to_have_text("2 of 111 matches")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.press("Shift+Enter")
    await expect(output.get_by_role("status")).to_have_text("111 of 111 matches")
    await expect(output.locator("mark.now")).to_be_in_viewport()
    async with page.expect_download() as download:
        await output.get_by_role("link", name="Download the whole output").click()
    path = await (await download.value).path()
    assert path.read_text().count("of many") == 9000
