"""Answering what agents ask: on the card, in the inbox, on another device."""

import asyncio
import re

import pytest
from playwright.async_api import Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import PHONE, VIEWER, PageServer
from tests.kit.sessions import PATIENCE
from tests.web.screen import composer, expect_in_log, log, question, session_row
from treadle.testing import call

ASKS_ALWAYS = pytest.mark.parametrize("server", [["--access", "read-only"]], indirect=True)


async def ask(server: PageServer, name: str = "Write a file", *replies: str) -> str:
    """Start a run that asks whether it may write a file, and ends with these replies. Returns the session."""
    server.model.script(call("write_file", path="a.txt", content="one\ntwo\n"), *replies)
    async with server.client() as client:
        session_id = await client.session(name=name)
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Write it."})
        await client.wait_for(session_id, "approval_requested")
    return session_id


async def advance(page: Page, milliseconds: int) -> None:
    """Let time pass on a page whose clock stands still, in steps, so that it can draw in between."""
    for _ in range(milliseconds // 10):
        await page.clock.run_for(10)


async def press_when_ready(page: Page, button: str, key: str) -> None:
    """Press the key of a button when it answers: not in the first half second."""
    await expect(page.get_by_role("button", name=button)).to_have_attribute("aria-keyshortcuts", key)
    await page.keyboard.press(key)


async def find_answer(server: PageServer, session_id: str) -> dict[str, object]:
    async with server.client() as client:
        await client.wait_for(session_id, "run_finished")
        (answer,) = [one for one in await client.facts(session_id) if one["type"] == "approval_answered"]
    return answer


@ASKS_ALWAYS
async def test_an_answer_on_one_device_is_shown_on_the_other_at_once(server: PageServer, visits: Visits) -> None:
    session_id = await ask(server, "Write a file", "The file is settled.")
    first = await visits.open(server, f"/s/{session_id}")
    inbox = await visits.open(server, "/inbox")
    phone = await visits.open(server, "/inbox", user=PHONE, phone=True)
    for page in (first, inbox):
        await expect(question(page)).to_contain_text("a.txt")
        await expect(page).to_have_title(re.compile(r"^\(1\)"))
    await phone.get_by_role("button", name="Allow once").click()
    await expect_in_log(first, "Allowed once by phone", "The file is settled.")
    await expect(inbox.get_by_text("Allowed once by phone")).to_be_visible()
    for page in (first, inbox):
        await expect(page.get_by_role("button", name="Allow once")).to_have_count(0)
        await expect(page).not_to_have_title(re.compile(r"\(1\)"))
    assert (server.workspace / "a.txt").read_text() == "one\ntwo\n"


@ASKS_ALWAYS
async def test_a_call_is_denied_with_a_reason(server: PageServer, visits: Visits) -> None:
    session_id = await ask(server, "Write a file", "The file is settled.")
    page = await visits.open(server, f"/s/{session_id}")
    await question(page).get_by_role("button", name="Deny").click()
    reason = page.get_by_role("textbox", name="Why, for the agent")
    await reason.fill("Use another name.")
    await page.get_by_role("button", name="Deny, and tell the agent").click()
    await expect_in_log(page, "Denied by you", "Use another name.", "The file is settled.")
    answer = await find_answer(server, session_id)
    assert (answer["decision"], answer["comment"]) == ("deny", "Use another name.")
    assert b"Use another name." in server.model.seen[-1].raw
    assert not (server.workspace / "a.txt").exists()


@ASKS_ALWAYS
async def test_keys_answer_only_the_question_that_is_selected(server: PageServer, visits: Visits) -> None:
    session_id = await ask(server, "Write a file", "The file is settled.")
    page = await visits.open(server, f"/s/{session_id}")
    await expect(question(page).get_by_role("button", name="Allow once")).to_be_enabled()
    await page.keyboard.press("y")
    await composer(page).fill("y")
    await expect(question(page)).to_be_visible()
    await composer(page).fill("")
    await composer(page).blur()
    await page.keyboard.press("q")
    await press_when_ready(page, "Allow once", "y")
    await expect_in_log(page, "Allowed once by you", "The file is settled.")
    assert "scope" not in await find_answer(server, session_id)  # this call only


@ASKS_ALWAYS
async def test_a_question_is_inert_when_it_appears_and_is_never_focused(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        session_id = await client.session()
    page = await visits.open(server, f"/s/{session_id}")
    await expect(composer(page)).to_be_visible()
    # The state of the button at the moment when it is put on the page.
    await page.evaluate("""
      window.__states = [];
      new MutationObserver(() => {
        const button = [...document.querySelectorAll("button")].find((one) => one.textContent.startsWith("Allow once"));
        if (button && window.__states.length === 0)
          window.__states.push(button.disabled, button.contains(document.activeElement));
      }).observe(document.body, { subtree: true, childList: true });
    """)
    server.model.script(call("write_file", path="a.txt", content="one"), "Done.")
    await composer(page).fill("Write it.")
    await composer(page).press("Enter")
    await expect(question(page).get_by_role("button", name="Allow once")).to_be_enabled()
    assert await page.evaluate("window.__states") == [True, False]
    await expect(composer(page)).to_be_focused()


@ASKS_ALWAYS
async def test_a_question_cannot_be_answered_in_its_first_half_second(server: PageServer, visits: Visits) -> None:
    page = await visits.open(server, "/inbox")
    await expect(page.get_by_role("main")).to_contain_text("Nothing needs you")
    await page.clock.install()
    await page.reload()
    await expect(page.get_by_role("main")).to_contain_text("Nothing needs you")
    # From here on, the time of the page goes on only as this test says.
    await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))
    await ask(server)
    async with asyncio.timeout(PATIENCE):
        while not await question(page).get_by_text("two").count():  # with its preview the half second begins
            await page.clock.run_for(10)
    await advance(page, 60)
    allow, deny = (question(page).get_by_role("button", name=name) for name in ("Allow once", "Deny"))
    await advance(page, 400)
    await expect(allow).to_be_disabled()
    await expect(deny).to_be_disabled()
    async with asyncio.timeout(PATIENCE):  # news that arrives late on a busy machine begins the half second again
        while not await allow.is_enabled():
            await advance(page, 50)
    await expect(deny).to_be_enabled()


@ASKS_ALWAYS
async def test_the_rule_is_shown_before_it_is_kept_and_can_be_revoked(server: PageServer, visits: Visits) -> None:
    session_id = await ask(server, "Write a file", "The file is settled.")
    page = await visits.open(server, f"/s/{session_id}")
    await expect(question(page)).to_contain_text("write_file(")
    await question(page).get_by_role("checkbox", name="Keep it for good").check()
    await page.keyboard.press("q")
    await press_when_ready(page, "This pattern", "p")
    await expect_in_log(page, "The file is settled.")
    assert (await find_answer(server, session_id))["scope"] == "pattern"
    await page.goto("/settings/rules")
    rules = page.get_by_role("region", name="Saved rules")
    await expect(rules).to_contain_text("write_file(")
    await rules.get_by_role("button", name="Revoke").click()
    await expect(rules).not_to_contain_text("write_file(")
    async with server.client() as client:
        assert await client.json("GET", "/v1/rules") == []


async def test_a_question_of_the_agent_is_answered_with_an_option(server: PageServer, visits: Visits) -> None:
    server.model.script(
        call("ask_user", question="Which name shall the table get?", options=["invoices", "bills"]), "It is named."
    )
    async with server.client() as client:
        session_id = await client.session(name="Naming")
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Name it."})
        await client.wait_for(session_id, "input_requested")
        page = await visits.open(server, "/inbox")
        await page.get_by_role("radio", name="invoices").check()
        await page.get_by_role("button", name="Answer “invoices”").click()
        await client.wait_for(session_id, "run_finished")
        (answer,) = [one for one in await client.facts(session_id) if one["type"] == "input_answered"]
        assert answer["answers"] == ["invoices"]
    await page.goto(f"/s/{session_id}")
    await expect_in_log(page, "invoices", "It is named.")


@ASKS_ALWAYS
async def test_a_user_who_may_only_look_sees_no_button_that_would_be_refused(
    server: PageServer, visits: Visits
) -> None:
    session_id = await ask(server, "Write a file", "The file is settled.")
    owner, viewer = (
        await visits.open(server, f"/s/{session_id}"),
        await visits.open(server, f"/s/{session_id}", user=VIEWER),
    )
    refused = re.compile(r"^(Allow|Deny|This pattern|Send|Stop|Queue|Steer|Fork|Compact|Continue|Rewind|New session)")
    await expect(owner.get_by_role("button", name=refused).first).to_be_visible()
    await expect(viewer.get_by_text("a.txt").first).to_be_visible()
    for path in (f"/s/{session_id}", f"/s/{session_id}/changes", f"/s/{session_id}/time", "/inbox", "/settings", "/"):
        await viewer.goto(path)
        await expect(viewer.get_by_role("heading", level=1).first).to_be_visible()
        await expect(viewer.get_by_role("button", name=refused)).to_have_count(0)
        await expect(viewer.get_by_role("link", name="New session")).to_have_count(0)
        await expect(composer(viewer)).to_have_count(0)


@ASKS_ALWAYS
async def test_hidden_characters_in_a_command_are_shown(server: PageServer, visits: Visits) -> None:
    server.model.script(call("shell", command="touch a\u202egpj.exe \u200b\x07"), "Done.")
    async with server.client() as client:
        session_id = await client.session(name="Hidden")
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Go."})
        await client.wait_for(session_id, "approval_requested")
    page = await visits.open(server, f"/s/{session_id}")
    for code in ("U+202E", "U+200B", "U+0007"):
        await expect(question(page)).to_contain_text(code)
    assert "\u202e" not in await log(page).inner_text()


@ASKS_ALWAYS
async def test_a_session_that_waits_stands_first_in_the_list(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        await client.session(name="Quiet")
    page = await visits.open(server, "/")
    await expect(session_row(page, "Quiet")).to_be_visible()
    await ask(server, "Loud")
    await expect(session_row(page, "Loud")).to_contain_text("Needs you")
    names = await page.locator("[data-session]").all_inner_texts()
    assert "Loud" in names[0] and "Quiet" in names[-1]


@ASKS_ALWAYS
async def test_a_long_rule_leaves_the_buttons_in_sight(server: PageServer, visits: Visits) -> None:
    command = " && ".join(f"touch file-number-{number}.txt" for number in range(60))
    server.model.script(call("shell", command=command))
    async with server.client() as client:
        session_id = await client.session()
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Make files."})
        await client.wait_for(session_id, "approval_requested")
    page = await visits.open(server, f"/s/{session_id}")
    rule = question(page).get_by_text("“This pattern” allows")
    await expect(rule).to_contain_text("file-number-59.txt")
    await expect(question(page).get_by_role("button", name="Allow once")).to_be_in_viewport(ratio=1)
    assert await rule.evaluate("(one) => one.scrollHeight > one.clientHeight && one.clientHeight < 120")
    await expect(rule).to_have_attribute("tabindex", "0")
