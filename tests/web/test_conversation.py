"""Sending, streaming, steering, queueing and stopping on the page."""

import asyncio
import re

from playwright.async_api import Page, expect

from tests.kit.browser import Visits
from tests.kit.fakes.server import Odd
from tests.kit.page_server import PageServer
from tests.kit.server import Client
from tests.kit.sessions import PATIENCE
from tests.web.screen import (
    composer,
    expect_idle,
    expect_in_log,
    log,
    read_everything,
    read_state,
    send,
    without_clocks,
)
from treadle.messages import Reply
from treadle.testing import call

TURNS = 8


async def test_a_new_session_starts_with_its_first_message(server: PageServer, visits: Visits) -> None:
    server.model.script("The answer is **42**.")
    page = await visits.open(server, "/new")
    await page.get_by_label("The first message").fill("What is the answer?")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url("**/s/*")
    await expect_in_log(page, "What is the answer?", "The answer is 42.")
    await expect(log(page).locator("strong")).to_have_text("42")


async def test_a_reply_streams_in_as_markdown(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        page = await visits.open(server, f"/s/{await client.session()}")
        await send(page, "Tell me.")
        await reply.wait_until_asked()
        reply.write(reasoning="Let me see.")
        reply.write("# Story\n\nOnce upon a *time")
        await expect_in_log(page, "Tell me.", "Once upon a")
        reply.write("*\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```\n")
        await expect(log(page).locator("em")).to_have_text("time")
        await expect(log(page).get_by_role("table")).to_contain_text("1")
        await expect(log(page).locator("pre")).to_contain_text("print(1)")
        reply.end()
        await expect_idle(page)
        await expect(log(page).locator("pre")).to_have_count(1)
        await expect_in_log(page, "Thought")


async def test_a_steering_message_is_taken_by_the_next_turn(server: PageServer, visits: Visits) -> None:
    held = asyncio.Event()
    server.model.script(Odd(Reply(calls=(call("todo", id="call_a", items=["look"]),), finish="calls"), held=held))
    server.model.script("I hurried.")
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await send(page, "Take your time.")
        await client.wait_for(session_id, "turn_started")
        await send(page, "And hurry.")
        waiting = page.get_by_role("list", name="Waiting to be taken")
        await expect(waiting).to_contain_text("And hurry.")
        held.set()
        await expect_in_log(page, "And hurry.", "I hurried.")
        await expect(waiting).to_have_count(0)
        taken = [one["messages"] for one in await client.facts(session_id) if one["type"] == "turn_started"]
        assert [len(one) for one in taken] == [1, 1]


async def test_queued_messages_can_be_edited_and_removed_until_they_are_taken(
    server: PageServer, visits: Visits
) -> None:
    reply = server.model.hold()
    server.model.script("Yes, tests too.")
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await send(page, "Build it.")
        await reply.wait_until_asked()
        waiting = page.get_by_role("list", name="Waiting to be taken").get_by_role("listitem")
        for text in ("Then paint it.", "Then write a test."):
            await composer(page).fill(text)
            await composer(page).press("Alt+Enter")
            await expect(waiting.filter(has_text=text)).to_be_visible()
        await waiting.filter(has_text="paint").get_by_role("button", name="Remove").click()
        await expect(waiting).to_have_count(1)
        await waiting.get_by_role("button", name="Edit").click()
        field = page.get_by_role("textbox", name="Queued message")
        await field.fill("Then write two tests.")
        await field.press("Enter")
        await expect(waiting).to_contain_text("two tests")
        reply.write("Built.")
        reply.end()
        await expect_in_log(page, "Built.", "Then write two tests.", "Yes, tests too.")
        await expect_idle(page)
        said = [one["text"] for one in (await read_state(client, session_id))["messages"] if one["role"] == "user"]
        assert said == ["Build it.", "Then write two tests."]


async def test_escape_stops_the_run(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await send(page, "Count to a million.")
        await reply.wait_until_asked()
        reply.write("One, two, ")
        await expect_in_log(page, "One, two,")
        await page.keyboard.press("Escape")
        await asyncio.wait_for(reply.left.wait(), PATIENCE)
        await expect(log(page)).to_contain_text("Stopped")
        await expect_idle(page)
        assert (await read_state(client, session_id))["last"]["reason"] == "cancelled"


async def test_a_command_that_runs_shows_its_output_and_can_be_stopped(server: PageServer, visits: Visits) -> None:
    server.model.script(call("shell", command="echo first line; sleep 600"), "It was stopped.")
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await send(page, "Run it.")
        await expect_in_log(page, "first line", "echo first line; sleep 600")
        await log(page).get_by_role("button", name="Stop", exact=True).click()
        await client.wait_for(session_id, "run_finished")
        await expect(log(page).get_by_role("button", name="Stop", exact=True)).to_have_count(0)


async def test_a_page_loaded_again_at_every_tenth_event_looks_the_same(server: PageServer, visits: Visits) -> None:
    gates = [asyncio.Event() for _ in range(TURNS)]
    for number, gate in enumerate(gates):
        text, step = f"Step {number} is under way.", call("todo", id=f"call_{number}", items=[f"step {number}"])
        server.model.script(Odd(Reply(text, calls=(step,), finish="calls"), held=gate))
    compared = 0
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await send(page, "Go through the steps.")
        for number, gate in enumerate(gates):
            gate.set()
            position = await _wait_for_turn(client, session_id, number + 2)
            await expect_in_log(page, f"Step {number}")
            if position // 10 > compared:
                compared = position // 10
                await _load_again_and_compare(page, client, session_id)
        await expect_in_log(page, "done")
        await _load_again_and_compare(page, client, session_id)
    assert compared >= 4


async def _wait_for_turn(client: Client, session_id: str, number: int) -> int:
    """Wait until this turn has begun. Returns its position."""
    async with client.stream(f"/v1/sessions/{session_id}/events?after=0") as events:
        async for one in events:
            if one.data and one.data["type"] == "turn_started" and one.data["turn"] == number:
                return one.data["seq"]
    raise AssertionError(f"turn {number} did not begin")


async def _load_again_and_compare(page: Page, client: Client, session_id: str) -> None:
    rail = page.get_by_role("complementary")
    # The server measures the context, and the page asks for it a moment later.
    sizes = (await client.json("GET", f"/v1/sessions/{session_id}"))["context"]
    used, system, tools = (_format(sizes[one]) for one in ("used", "system", "tools"))
    known = re.compile(rf"Context\s+{used} tokens(Compact)?System{system}Tools{tools}Skills")
    await expect(rail).to_contain_text(known)
    before, rail_before = without_clocks(await read_everything(page)), without_clocks(await rail.inner_text())
    await page.reload()
    await expect(log(page)).to_contain_text(before.splitlines()[0])
    assert without_clocks(await read_everything(page)) == before
    await expect(rail).to_contain_text(known)
    assert without_clocks(await rail.inner_text()) == rail_before


def _format(count: int) -> str:
    return str(count) if count < 1000 else f"{count / 1000:.1f}".removesuffix(".0") + "\u202fk"


async def test_a_page_loaded_again_in_mid_stream_goes_on(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await send(page, "Tell me a story.")
        await reply.wait_until_asked()
        reply.write("Once upon a time ")
        await expect_in_log(page, "Once upon a time")
        await page.reload()
        await expect_in_log(page, "Tell me a story.")
        reply.write("there was a loom.")
        await expect_in_log(page, "there was a loom.")
        reply.end()
        await expect_in_log(page, "Once upon a time there was a loom.")
        await expect_idle(page)
