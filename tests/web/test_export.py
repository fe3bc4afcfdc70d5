"""A session that was exported as one HTML file, opened without a server."""

import asyncio
import re
from pathlib import Path

from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer, serve_page
from tests.kit.serve_process import TREADLE
from tests.web.logs import build_hostile_sessions, write_sessions
from tests.web.payloads import MARKERS
from tests.web.test_hostile_text import FIND_HARM, LISTEN
from treadle.testing import call


async def test_an_exported_session_is_drawn_from_the_file_alone(
    server: PageServer, visits: Visits, tmp_path: Path
) -> None:
    server.model.script(
        call("write_file", path="a.py", content="one = 1\n"),
        call("edit_file", path="a.py", old="1", new="2"),
        "It is **done**:\n\n```python\ndef f(): ...\n```",
    )
    async with server.client() as client:
        session_id = await client.session(name="To be shared")
        await client.send(session_id, "Write a file.")
    page = await visits.open(server, f"/s/{session_id}")
    await page.get_by_role("button", name="More").first.click()
    async with page.expect_download() as download:
        await page.get_by_role("menuitem", name="Export as one HTML file").click()
    file = tmp_path / "session.html"
    await (await download.value).save_as(file)
    await page.close()
    await server.stop()
    visits.requests.clear()
    page = await visits.open(server, file.as_uri(), user=None)
    body = page.locator("body")
    for text in ("To be shared", "Write a file.", "a.py", "It is done"):
        await expect(body).to_contain_text(text)
    await expect(page.locator("strong", has_text="done")).to_be_visible()
    assert not re.search(r"\*\*done\*\*", await body.inner_text())
    await expect(page.locator("pre").get_by_text("def", exact=True)).to_be_visible()  # the code is highlighted
    await page.get_by_role("button", name="Unfold all").click()
    await expect(page.get_by_role("table", name="Changes of a.py")).to_contain_text("one = 2")
    await page.get_by_text("Where the time went").click()
    rows = page.get_by_role("table", name="Waterfall of run 1").get_by_role("rowheader").get_by_role("button")
    await expect(rows).to_have_count(5)
    await rows.nth(1).click()
    await expect(rows.nth(1)).to_have_attribute("aria-current", "true")
    assert [one for one in visits.requests if one != f"GET {file.as_uri()}"] == []


async def test_the_command_line_exports_the_same_page_with_whole_outputs(
    server: PageServer, visits: Visits, tmp_path: Path
) -> None:
    server.model.script(call("shell", command="seq 1 40000"), "Counted.")
    async with server.client() as client:
        session_id = await client.session(name="<script>alert(1)</script> & more")
        await client.send(session_id, "Count.")
        async with client.request("GET", f"/v1/sessions/{session_id}/export?format=html") as answer:
            served = await answer.read()
    file = tmp_path / "talk.html"
    options = ["--form", "html", "--output", str(file), "--store", str(server.home / "store.db")]
    command = [str(TREADLE), "sessions", "export", session_id, *options]
    exporting = await asyncio.create_subprocess_exec(*command)
    assert await exporting.wait() == 0
    assert file.read_bytes() == served
    await server.stop()
    page = await visits.open(server, file.as_uri(), user=None)
    await expect(page.get_by_role("heading", level=1)).to_have_text("<script>alert(1)</script> & more")
    await page.get_by_role("button", name="Unfold all").click()
    await page.get_by_role("button", name="Open the whole output").click()
    await expect(page.get_by_role("region", name="Output")).to_contain_text(re.compile("40.?000 lines"))
    await expect(page.get_by_role("link", name="Download")).to_have_count(0)


async def test_hostile_text_is_harmless_in_an_exported_file(visits: Visits, tmp_path: Path) -> None:
    await write_sessions(tmp_path, *build_hostile_sessions(tmp_path))
    async with serve_page(tmp_path) as server, server.client() as client:
        for name in ("texts", "calls", "endings", "questions"):
            async with client.request("GET", f"/v1/sessions/{name}/export?format=html") as answer:
                (tmp_path / f"{name}.html").write_bytes(await answer.read())
        for name in ("texts", "calls", "endings", "questions"):
            page = await visits.open(server, "about:blank", user=None)
            await page.add_init_script(LISTEN)
            await page.goto((tmp_path / f"{name}.html").as_uri())
            conversation = page.get_by_role("log", name="Conversation")
            await expect(conversation).to_have_attribute("aria-busy", "false")
            await page.get_by_role("button", name="Unfold all").click()
            await page.get_by_text("Where the time went").click()
            await expect(page.get_by_role("table", name=re.compile("^Waterfall"))).to_be_visible()
            drawn = await conversation.text_content() or ""
            assert [marker for marker in MARKERS if marker not in drawn] == [], name
            own_script, *harm = await page.evaluate(FIND_HARM)
            assert own_script.startswith('<script type="module">') and harm == []
            await page.close()
    assert [one for one in visits.requests if not one.startswith(f"GET {tmp_path.as_uri()}")] == []
