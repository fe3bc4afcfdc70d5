"""Every moment of a session: the page shows the same after a reload, and what the server says of that position."""

import asyncio
from typing import Any

from msgspec import Struct
from playwright.async_api import Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer
from tests.kit.server import Client
from tests.web.screen import expect_whole_line, log, read_rows, slider
from treadle.messages import Usage
from treadle.testing import call, say

STEP = 10
PLAN = ("Write the file", "Check it")
TOOLS = ("todo", "write_file", "edit_file", "read_file", "shell", "ask_user")
STATUS = {"idle": ("Not started", "Done", "Failed", "Stopped"), "running": ("Running",), "waiting": ("Needs you",)}


class Screen(Struct, frozen=True):
    """What a person sees of a session at a position."""

    bar: str
    banner: str
    rows: list[str]
    rail: str


async def write_session(server: PageServer, client: Client) -> tuple[str, int]:
    """A session with a plan, edits, a question, a failure and a rewind, and its length."""
    server.model.script(
        say("I plan.", call("todo", items=list(PLAN)), usage=Usage(100, 10, 40)),
        say("", call("write_file", path="a.txt", content="first\nline\n"), usage=Usage(110, 11)),
        call("shell", command="echo wrong; exit 3"),
        say(
            "I have a question.", call("ask_user", question="Which name?", options=["one", "two"]), usage=Usage(120, 12)
        ),
        say("Then it is **two**.", call("edit_file", path="a.txt", old="first", new="two"), usage=Usage(130, 13)),
        say("", call("write_file", path="b.txt", content="b\n"), call("read_file", path="a.txt"), usage=Usage(140, 14)),
        "The first part is done.",
        "A dull answer.",
        "A better answer.",
        "The last answer.",
    )
    session_id = await client.session(name="Many moments")
    sending = asyncio.create_task(client.send(session_id, "Write the files."))
    await client.wait_for(session_id, "input_requested")
    (asked,) = [one for one in await client.facts(session_id) if one["type"] == "input_requested"]
    await client.json("POST", f"/v1/sessions/{session_id}/answers/{asked['call_id']}", {"answers": ["two"]})
    await sending
    between = len(await client.facts(session_id))
    await client.send(session_id, "Say something.")
    again = await client.json("POST", f"/v1/sessions/{session_id}/regenerate", {})
    await client.wait_for(session_id, "run_finished", after=again["after"])
    await client.json("POST", f"/v1/sessions/{session_id}/rewind", {"seq": between, "what": "conversation"})
    await client.send(session_id, "Say something else.")
    return session_id, len(await client.facts(session_id))


async def read_screen(page: Page, position: int) -> Screen:
    """Read the page once it shows this position."""
    await expect(slider(page)).to_have_attribute("aria-valuenow", str(position))
    await expect_whole_line(page)
    rail = page.get_by_role("complementary", name="About this session")
    await expect(rail).to_contain_text("History")
    return Screen(
        await page.locator(".main > .bar").inner_text(),
        await page.locator(".ban.past").inner_text(),
        await read_rows(page),
        await rail.inner_text(),
    )


def check_status(screen: Screen, state: dict[str, Any]) -> None:
    assert any(word in screen.bar for word in STATUS[state["status"]]), (screen.bar, state["status"])
    assert f"Fact {state['seq']} of" in screen.banner
    for path in ("a.txt", "b.txt"):
        assert (path in screen.rail) == (path in state["changed_files"])
    usage = state["usage"]
    assert f"Tokens in\n{usage['input_tokens']}\n" in screen.rail
    assert f"Tokens out\n{usage['output_tokens']}\n" in f"{screen.rail}\n"
    for number, text in enumerate(PLAN):
        assert (text in screen.rail) == (len(state["plan"] or ()) > number)


def check_conversation(rows: list[str], state: dict[str, Any]) -> None:
    """Every message and every call of the state is drawn, in its order, and nothing else is."""
    told = "\n".join(rows)
    at = 0
    for message in state["messages"]:
        at = told.index(message["text"].replace("**", ""), at)
    for text in ("Write the files.", "Say something.", "A dull answer.", "A better answer.", "Say something else."):
        assert (text in told) == any(text in message["text"] for message in state["messages"]), text
    cards = [row.split("\n")[0] for row in rows if row.split("\n")[0] in TOOLS]
    assert cards == [one["tool"] for one in state["calls"]]


async def test_every_tenth_position_is_the_same_after_a_reload_and_as_the_server_says(
    server: PageServer, visits: Visits
) -> None:
    async with server.client() as client:
        session_id, length = await write_session(server, client)
        page = await visits.open(server, f"/s/{session_id}/at/1")
        await expect(slider(page)).to_have_attribute("aria-valuemax", str(length))
        positions = range(STEP, length, STEP)
        assert len(positions) >= 5
        await expect_whole_line(page)
        for position in positions:
            await slider(page).focus()
            for _ in range(position - int(await slider(page).get_attribute("aria-valuenow") or "0")):
                await page.keyboard.press("ArrowRight")
            before = await read_screen(page, position)
            await page.reload()
            assert await read_screen(page, position) == before
            await page.keyboard.press("o")
            await expect(log(page).locator(".fold[aria-expanded=false]")).to_have_count(0)
            state = await client.json("GET", f"/v1/sessions/{session_id}/state?at={position}")
            check_status(before, state)
            check_conversation(await read_rows(page), state)
            await page.keyboard.press("o")
