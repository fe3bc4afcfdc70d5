"""A session that was exported as one HTML file, opened without a server."""

import asyncio
import re
from pathlib import Path

from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer
from tests.kit.serve_process import TREADLE
from treadle.testing import call


async def test_an_exported_session_is_drawn_from_the_file_alone(
    server: PageServer, visits: Visits, tmp_path: Path
) -> None:
    server.model.script(call("write_file", path="a.txt", content="one\n"), "It is **done**.")
    async with server.client() as client:
        session_id = await client.session(name="To be shared")
        await client.send(session_id, "Write a file.")
        async with client.request("GET", f"/v1/sessions/{session_id}/export?format=html") as answer:
            file = tmp_path / "session.html"
            file.write_bytes(await answer.read())
    await server.stop()
    page = await visits.open(server, file.as_uri(), user=None)
    body = page.locator("body")
    for text in ("To be shared", "Write a file.", "a.txt", "It is done."):
        await expect(body).to_contain_text(text)
    await expect(page.locator("strong", has_text="done")).to_be_visible()
    assert not re.search(r"\*\*done\*\*", await body.inner_text())
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
