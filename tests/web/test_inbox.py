"""The inbox: the questions of all sessions, answered in one place, on any device."""

import asyncio
import json
import os
import re

import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.kit.browser import Visits
from tests.kit.page_server import PHONE, VIEWER, PageServer
from tests.kit.serve_process import TREADLE
from tests.web.screen import expect_in_log, question
from tests.web.test_questions import ASKS_ALWAYS, ask, find_answer, press_when_ready
from treadle.messages import Call, Reply
from treadle.testing import call


def rows(page: Page) -> Locator:
    """The open questions in the list of the inbox."""
    return page.get_by_role("region", name="Questions").locator("[data-question]")


def detail(page: Page) -> Locator:
    """The question beside the list."""
    return page.get_by_role("main")


async def ask_with(server: PageServer, name: str, asking: Call, kind: str = "approval_requested") -> str:
    """Start a run that makes this call. Returns the session."""
    server.model.script(asking)
    async with server.client() as client:
        session_id = await client.session(name=name)
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Go."})
        await client.wait_for(session_id, kind)
    return session_id


async def run_in_terminal(server: PageServer, *command: str) -> None:
    """Run `treadle` beside the server, on its store."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    env = {**kept, "HOME": str(server.home), "XDG_DATA_HOME": str(server.home / "data")}
    options = ("--store", str(server.home / "store.db"))
    process = await asyncio.create_subprocess_exec(str(TREADLE), *command, *options, env=env, cwd=server.workspace)
    assert await process.wait() == 0


@ASKS_ALWAYS
async def test_every_question_has_an_address_and_the_keys_go_from_one_to_the_next(
    server: PageServer, visits: Visits
) -> None:
    sessions = [await ask(server, name) for name in ("First", "Second", "Third")]
    page = await visits.open(server, "/inbox")
    await expect(page).to_have_url(f"{server.base}/inbox/{sessions[0]}/call_1")
    await expect(rows(page)).to_have_count(3)
    await expect(page).to_have_title("(3) Inbox – treadle")
    assert await question(page).evaluate("(card) => !card.contains(document.activeElement)")
    await page.keyboard.press("j")
    await expect(page).to_have_url(f"{server.base}/inbox/{sessions[1]}/call_2")
    await press_when_ready(page, "Allow once", "y")
    await expect(page).to_have_url(f"{server.base}/inbox/{sessions[2]}/call_3")
    await press_when_ready(page, "Deny", "n")
    await page.get_by_role("textbox", name="Why, for the agent").fill("Not this one.")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{server.base}/inbox/{sessions[0]}/call_1")
    await press_when_ready(page, "All of write_file", "t")
    await expect(detail(page)).to_contain_text("Nothing needs you")
    answers = [await find_answer(server, session_id) for session_id in sessions]
    assert [(one["decision"], one.get("scope", "call")) for one in answers] == [
        ("allow", "tool"),
        ("allow", "call"),
        ("deny", "call"),
    ]
    answered = page.get_by_role("region", name="Questions")
    await expect(answered).to_contain_text("Denied by you: “Not this one.”")
    await page.reload()
    for text in ("Allowed for the tool by you", "Allowed once by you", "Denied by you: “Not this one.”"):
        await expect(answered).to_contain_text(text)
    await page.goto(f"/inbox/{sessions[1]}/call_2")
    await expect(detail(page)).to_contain_text("Allowed once")
    await expect(detail(page)).not_to_contain_text("elsewhere")


@ASKS_ALWAYS
async def test_enter_opens_the_session_with_the_question_selected(server: PageServer, visits: Visits) -> None:
    session_id = await ask(server, "Open me", "The file is settled.")
    page = await visits.open(server, "/inbox")
    await expect(question(page)).to_be_visible()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{server.base}/s/{session_id}")
    await press_when_ready(page, "Whole session", "s")
    await expect_in_log(page, "Allowed for the session by you", "The file is settled.")


@ASKS_ALWAYS
async def test_enter_presses_the_button_that_has_the_focus(server: PageServer, visits: Visits) -> None:
    session_id = await ask(server, "Press me")
    page = await visits.open(server, "/inbox")
    await expect(question(page).get_by_role("button", name="Deny")).to_be_enabled()
    await question(page).get_by_role("button", name="Deny").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("textbox", name="Why, for the agent")).to_be_focused()
    await expect(page).to_have_url(f"{server.base}/inbox/{session_id}/call_1")


@ASKS_ALWAYS
async def test_an_answer_in_the_terminal_is_shown_at_once_with_who_and_how(server: PageServer, visits: Visits) -> None:
    session_id = await ask(server, "In the terminal", "The file is settled.")
    inbox, page = await visits.open(server, "/inbox"), await visits.open(server, f"/s/{session_id}")
    for one in (inbox, page):
        await expect(question(one)).to_be_visible()
    await run_in_terminal(server, "approvals", "deny", session_id, "--reason", "not on a Friday")
    for one in (inbox, page):
        card = one.get_by_role("region", name="Denied")
        await expect(card).to_contain_text("in the terminal")
        await expect(card).to_contain_text("It was answered elsewhere")
        await expect(card).to_contain_text("not on a Friday")
        await expect(one.get_by_role("button", name="Allow once")).to_have_count(0)
    # On the inbox it stays: nothing slips into the place under the pointer.
    await expect(inbox).to_have_url(f"{server.base}/inbox/{session_id}/call_1")


@ASKS_ALWAYS
async def test_the_second_of_two_answers_learns_who_was_first(server: PageServer, visits: Visits) -> None:
    visits.allow("status of 409")
    session_id = await ask(server, "Race", "The file is settled.")
    page = await visits.open(server, f"/inbox/{session_id}/call_1")

    async def answer_before(route: Route) -> None:
        async with server.client(PHONE) as phone:
            path = f"/v1/sessions/{session_id}/approvals/call_1"
            await phone.json("POST", path, {"decision": "deny", "comment": "I was first."})
        await route.continue_()

    await page.route("**/approvals/call_1", lambda route: answer_before(route) if is_post(route) else route.continue_())
    await question(page).get_by_role("button", name="Allow once").click()
    card = page.get_by_role("region", name="Denied")
    await expect(card).to_contain_text("by phone")
    await expect(card).to_contain_text("I was first.")
    assert (await find_answer(server, session_id))["by"] == "phone"


def is_post(route: Route) -> bool:
    return route.request.method == "POST"


@ASKS_ALWAYS
async def test_an_answer_counts_only_for_the_call_that_was_shown(server: PageServer, visits: Visits) -> None:
    visits.allow("status of 409")
    session_id = await ask(server, "Changed")
    page = await visits.open(server, f"/inbox/{session_id}/call_1")

    sent = list[str]()

    async def answer_another_call(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        sent.append(body["digest"])
        await route.continue_(post_data=json.dumps({**body, "digest": "0" * 32}))

    pattern = "**/approvals/call_1"
    await page.route(pattern, lambda route: answer_another_call(route) if is_post(route) else route.continue_())
    await question(page).get_by_role("button", name="Allow once").click()
    await expect(question(page).get_by_role("alert")).to_contain_text("Nothing was allowed. Read it again.")
    assert not (server.workspace / "a.txt").exists()
    async with server.client() as client:
        assert [one["digest"] for one in await client.json("GET", "/v1/approvals")] == sent
    await page.unroute(pattern)
    await question(page).get_by_role("button", name="Allow once").click()
    await expect(detail(page)).to_contain_text("Nothing needs you")
    assert (await find_answer(server, session_id))["decision"] == "allow"


@ASKS_ALWAYS
async def test_an_answer_without_a_connection_can_be_given_again(server: PageServer, visits: Visits) -> None:
    visits.allow("ERR_INTERNET_DISCONNECTED")
    session_id = await ask(server, "Offline")
    page = await visits.open(server, f"/inbox/{session_id}/call_1")
    button = question(page).get_by_role("button", name="Allow once")
    await expect(button).to_be_enabled()
    await page.context.set_offline(True)
    await button.click()
    await expect(question(page).get_by_role("alert")).to_contain_text("No connection to the server. Answer again")
    await page.context.set_offline(False)
    await button.click()
    await expect(detail(page)).to_contain_text("Nothing needs you")
    assert (await find_answer(server, session_id))["decision"] == "allow"


@ASKS_ALWAYS
async def test_a_card_that_may_have_moved_cannot_be_answered_for_half_a_second(
    server: PageServer, visits: Visits
) -> None:
    calls = tuple(call("write_file", path=f"{name}.txt", content=name) for name in "ab")
    server.model.script(Reply(calls=calls, finish="calls"))
    async with server.client() as client:
        session_id = await client.session(name="Two at once")
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Go."})
        await client.wait_for(session_id, "approval_requested")
        page = await visits.open(server, f"/s/{session_id}")
        buttons = page.get_by_role("button", name="Allow once")
        await expect(buttons).to_have_count(2)
        for place in range(2):
            await expect(buttons.nth(place)).to_be_enabled()
        await page.evaluate("""
          window.__wasDisabled = false;
          const all = [...document.querySelectorAll("button")];
          const second = all.filter((one) => one.textContent.startsWith("Allow once"))[1];
          new MutationObserver(() => (window.__wasDisabled ||= second.disabled)).observe(second, { attributes: true });
        """)
        path = f"/v1/sessions/{session_id}/approvals/call_1"
        await client.json("POST", path, {"decision": "deny"})
        await expect(buttons).to_have_count(1)
        await expect(buttons).to_be_enabled()
        assert await page.evaluate("window.__wasDisabled")
        assert [one["call_id"] for one in await client.json("GET", "/v1/approvals")] == ["call_2"]


async def test_a_question_in_words_is_answered_from_the_inbox(server: PageServer, visits: Visits) -> None:
    asking = call("ask_user", question="Who reviews \u202ethis?")
    session_id = await ask_with(server, "Words", asking, "input_requested")
    page = await visits.open(server, "/inbox")
    card = page.get_by_role("region", name="The agent asks")
    await expect(card).to_contain_text("U+202E")
    await expect(card.get_by_role("button", name="Answer", exact=True)).to_be_disabled()
    await page.keyboard.press("j")
    await expect(card).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.type("Ada, she knows it")
    await expect(card.get_by_role("button", name="Answer “Ada, she knows it”")).to_be_enabled()
    await page.keyboard.press("Enter")
    await expect(detail(page)).to_contain_text("Nothing needs you")
    async with server.client() as client:
        await client.wait_for(session_id, "run_finished")
        (answer,) = [one for one in await client.facts(session_id) if one["type"] == "input_answered"]
    assert answer["answers"] == ["Ada, she knows it"]


@ASKS_ALWAYS
async def test_a_question_of_a_helper_names_the_session_that_started_it(server: PageServer, visits: Visits) -> None:
    server.model.script(
        call("delegate", task="Write a file."), call("write_file", path="a.txt", content="one"), "Written.", "All done."
    )
    async with server.client() as client:
        parent = await client.session(name="The parent")
        await client.json("POST", f"/v1/sessions/{parent}/messages?wait=0", {"content": "Go."})
        page = await visits.open(server, "/inbox")
        await expect(question(page)).to_contain_text("a.txt")
        await expect(rows(page)).to_contain_text("The parent ›")
        link = detail(page).get_by_role("link", name="The parent")
        await expect(link).to_have_attribute("href", f"/s/{parent}")
        await question(page).get_by_role("button", name="Allow once").click()
        await client.wait_for(parent, "run_finished")
    assert (server.workspace / "a.txt").read_text() == "one"


async def test_a_destructive_call_can_only_be_allowed_once_and_its_parts_are_shown(
    server: PageServer, visits: Visits
) -> None:
    command = "touch a.txt && git push --force origin main"
    session_id = await ask_with(server, "Parts", call("shell", command=command))
    page = await visits.open(server, f"/inbox/{session_id}/call_1")
    parts = question(page).get_by_role("list", name="Parts of the command")
    await expect(parts.get_by_role("listitem")).to_have_count(2)
    await expect(parts.get_by_role("listitem").first).to_contain_text("Allowed")
    await expect(parts.get_by_role("listitem").last).to_contain_text("Destructive")
    for text in (command, "it overwrites or deletes", str(server.workspace), "Digest", "No lasting answer is possible"):
        await expect(question(page)).to_contain_text(text)
    for name in ("This pattern", "All of shell", "Whole session"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)


@ASKS_ALWAYS
async def test_the_inbox_shows_one_session_or_all_and_a_viewer_sees_no_answers(
    server: PageServer, visits: Visits
) -> None:
    for name in ("Left", "Right"):
        await ask(server, name)
    page = await visits.open(server, "/inbox", user=VIEWER)
    await expect(rows(page)).to_have_count(2)
    await page.get_by_role("button", name="All sessions").click()
    await page.get_by_role("menuitemradio", name="Right").click()
    await expect(rows(page)).to_have_count(1)
    await expect(rows(page)).to_contain_text("Right")
    await rows(page).click()
    await expect(question(page)).to_contain_text("You may look, not answer.")
    await expect(page.get_by_role("button", name=re.compile("^(Allow|Deny|This|All of|Whole)"))).to_have_count(0)


@pytest.mark.parametrize("path", ["/inbox", "/inbox/ses_1/call_7"])
async def test_an_empty_inbox_says_so(server: PageServer, visits: Visits, path: str) -> None:
    page = await visits.open(server, path)
    text = "Nothing needs you" if path == "/inbox" else "This question is not open any more"
    await expect(detail(page)).to_contain_text(text)
    await expect(page).to_have_title("Inbox – treadle")


@ASKS_ALWAYS
async def test_a_narrow_page_has_the_list_and_the_question_and_a_way_back(server: PageServer, visits: Visits) -> None:
    await ask(server, "Narrow")
    page = await visits.open(server, "/inbox")
    await page.set_viewport_size({"width": 900, "height": 700})
    await expect(rows(page)).to_be_visible()
    await expect(question(page)).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 900
    await page.get_by_role("region", name="Questions").get_by_role("link", name="Sessions").click()
    await expect(page).to_have_url(f"{server.base}/")
