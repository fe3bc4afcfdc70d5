"""Hostile texts from folders, files, tokens, agents, skills, MCP servers, errors and addresses, not from a log."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest_asyncio
from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer, PageUser, serve_page
from tests.web.payloads import IN_ONE_LINE, PAYLOADS
from tests.web.screen import composer, expect_in_log
from tests.web.test_hostile_text import check, find_loaded, open_hostile_page
from treadle.testing import call

ODD_MCP = Path(__file__).parents[1] / "tools" / "mcp" / "odd.py"
# A name of a file or folder may hold anything but a slash.
NAMES = [text for text in IN_ONE_LINE if "/" not in text]
GO = "(path) => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }"
HOSTILE_USER = PageUser(IN_ONE_LINE[2], "hostile-secret-of-the-tests")


def write_home(home: Path) -> None:
    """Folders, files, agents, skills and MCP servers whose every text is hostile."""
    folder = home / "work" / NAMES[0]
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        (folder / name).write_text(PAYLOADS[number])
    own = home / ".config" / "treadle"
    text = IN_ONE_LINE[2].replace('"', "'")
    for name, path in (("bad", own / "agents" / "bad.md"), ("bad-skill", own / "skills" / "bad-skill" / "SKILL.md")):
        path.parent.mkdir(parents=True)
        path.write_text(f"---\nname: {name}\ndescription: {json.dumps(text)}\n---\n{PAYLOADS[0]}\n")
    servers = {
        "says": ["-u", str(ODD_MCP), f"says {IN_ONE_LINE[2]}"],
        "dies": ["-c", f"import sys; sys.exit({IN_ONE_LINE[4]!r})"],
    }
    lines = [
        f"[mcp.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(args)}\nsandbox = false\n"
        for name, args in servers.items()
    ]
    (own / "config.toml").write_text("\n".join(lines))


@pytest_asyncio.fixture(loop_scope="session")
async def hostile_server(tmp_path: Path) -> AsyncIterator[PageServer]:
    write_home(tmp_path)
    async with serve_page(tmp_path, users=[HOSTILE_USER]) as server:
        yield server


async def test_hostile_settings_are_drawn_as_text(hostile_server: PageServer, visits: Visits) -> None:
    page = await open_hostile_page(visits, hostile_server, "/settings")
    main = page.get_by_role("main")
    await expect(main.get_by_role("region", name="Agents")).to_contain_text("mark02")
    await expect(main.get_by_role("region", name="Skills")).to_contain_text("mark02")
    await expect(main.get_by_role("region", name="Tokens")).to_contain_text("mark02")
    await expect(main.get_by_role("region", name="MCP servers")).to_contain_text("mark04")
    await expect(main.get_by_role("region", name="Tools")).to_contain_text("mark02")
    await check(page)
    assert find_loaded(visits) == []


async def test_hostile_folders_and_files_are_drawn_as_text(hostile_server: PageServer, visits: Visits) -> None:
    server, name = hostile_server, NAMES[1]
    server.model.script(call("write_file", path=name, content=PAYLOADS[0]), f"Wrote {PAYLOADS[1]}")
    async with server.client(HOSTILE_USER) as client:
        session_id = await client.session(workspace=str(server.workspace / NAMES[0]))
        await client.send(session_id, PAYLOADS[5])
    page = await open_hostile_page(visits, server, f"/s/{session_id}")
    await expect_in_log(page, "mark01", "mark05")
    await check(page, NAMES[0][-6:])
    await page.goto(f"/s/{session_id}/changes")
    await expect(page.get_by_role("main")).to_contain_text(name[-6:])
    await check(page)
    await page.goto(f"/s/{session_id}")
    await composer(page).press_sequentially("@")
    await expect(page.get_by_role("option").first).to_be_visible()
    await check(page)
    await page.goto("/new")
    await expect(page.get_by_label("The first message")).to_be_visible()
    await check(page)
    assert find_loaded(visits) == []


async def test_a_hostile_address_is_drawn_as_text(server: PageServer, visits: Visits) -> None:
    visits.allow(r"status of 4(04|22)")
    page = await open_hostile_page(visits, server, "/inbox")
    for text in PAYLOADS:
        for folder in ("s", "settings", "compare/a", "inbox", "nowhere"):
            await page.evaluate(GO, f"/{folder}/{quote(text, safe='')}")
            await check(page)
    assert find_loaded(visits) == []
