"""Where the time of a run went, and two sessions side by side."""

import re
from pathlib import Path

from playwright.async_api import Locator, Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer, serve_page
from tests.web.logs import build_long_session, write_sessions
from tests.web.screen import expect_in_log, expect_whole_line, log, slider
from treadle.messages import Usage
from treadle.testing import call, say

LONG_TURNS = 2000
MOST_ROWS = 80


def waterfall(page: Page) -> Locator:
    return page.get_by_role("table", name=re.compile("^Waterfall"))


def rows(page: Page) -> Locator:
    """The turns and calls of the waterfall that are drawn."""
    return waterfall(page).get_by_role("row").filter(has=page.get_by_role("rowheader"))


def tip(page: Page) -> Locator:
    return page.locator(".wf-tip")


async def test_the_waterfall_tells_where_the_time_went(server: PageServer, visits: Visits) -> None:
    server.model.script(
        say("Look.", call("shell", command="sleep 0.3; echo no; exit 4"), usage=Usage(1200, 34, 600)), "It failed."
    )
    server.model.script(call("ask_user", question="Which one?", options=["a", "b"]), "Thanks.")
    async with server.client() as client:
        session_id = await client.session(name="Slow")
        await client.send(session_id, "Look at it.")
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Ask me."})
        asked = (await client.wait_for(session_id, "input_requested"))[-1]
        page = await visits.open(server, f"/s/{session_id}/time")
        await expect(rows(page)).to_have_count(2)
        await client.json("POST", f"/v1/sessions/{session_id}/answers/{asked['call_id']}", {"answers": ["a"]})
        await expect(rows(page)).to_have_count(3)
    await expect(page.locator(".wf .per").first).to_be_visible()
    await page.get_by_role("button", name="The run before").click()
    await expect(rows(page)).to_have_count(3)
    turn, shell = rows(page).nth(0), rows(page).nth(1)
    names = await waterfall(page).get_by_role("columnheader").all_inner_texts()
    assert [name.split("\n")[0] for name in names][2:] == ["First", "Tokens", "Cost"]
    await expect(turn.get_by_role("cell").nth(0)).to_have_text(re.compile("^from 0:00, took .*s$"))
    await expect(turn.get_by_role("cell").nth(1)).to_have_text(re.compile(r"^<?\d+\.\d.s$"))
    await expect(turn.get_by_role("cell").nth(2)).to_have_accessible_name(re.compile("^1.2.k in, 34 out$"))
    await expect(shell).to_contain_text("shell: sleep 0.3")
    await expect(shell).to_contain_text("Failed, exit 4")
    await shell.hover()
    await expect(tip(page)).to_contain_text("sleep 0.3; echo no; exit 4")
    await expect(tip(page)).to_contain_text(re.compile(r"Took\s*\d+\.\d"))
    await turn.get_by_role("button").focus()
    for text in ("Turn 1", "First token after", "Tokens in", "From cache", "600", "Tokens out", "34"):
        await expect(tip(page)).to_contain_text(text)
    await shell.click()
    await expect(shell.get_by_role("button")).to_have_attribute("aria-current", "true")
    await expect(page).to_have_url(re.compile(r"/time/at/\d+$"))
    await expect(log(page)).not_to_contain_text("It failed.")


async def test_the_waterfall_of_a_long_run_draws_only_what_is_in_sight(visits: Visits, tmp_path: Path) -> None:
    facts = build_long_session("long", tmp_path, LONG_TURNS, turns_in_a_run=LONG_TURNS)
    await write_sessions(tmp_path, facts)
    async with serve_page(tmp_path) as server:
        page = await visits.open(server, "/s/long/time")
        await expect(rows(page).first).to_contain_text("Turn 1")
        assert await rows(page).count() <= MOST_ROWS
        await expect(waterfall(page)).to_have_attribute("aria-rowcount", str(3 * LONG_TURNS + 1))
        await expect_whole_line(page)
        await slider(page).focus()
        await page.keyboard.press("ArrowLeft")
        last = rows(page).filter(has=page.locator("[aria-current]"))
        await expect(last).to_contain_text(f"test_part_{LONG_TURNS}.py")
        await expect(last).to_be_in_viewport()
        assert await rows(page).count() <= MOST_ROWS
        await page.close()


async def test_two_sessions_are_compared_from_where_they_part(server: PageServer, visits: Visits) -> None:
    server.model.script(call("write_file", path="a.txt", content="one\n"), "The trunk is done.", "The left way.")
    server.model.script("The right way.", call("write_file", path="b.txt", content="two\n"), "The right end.")
    async with server.client() as client:
        left = await client.session(name="Left one")
        await client.send(left, "Begin.")
        trunk = len(await client.facts(left))
        fork = (await client.json("POST", f"/v1/sessions/{left}/fork", {"after": trunk}, 201))["id"]
        await client.json("PATCH", f"/v1/sessions/{fork}", {"name": "Right one"})
        await client.send(left, "Go left.")
        await client.send(fork, "Go right.")
        await client.send(fork, "Go on.")
        alone = await client.session(name="Somebody else")
        server.model.script("Quite another thing.")
        await client.send(alone, "Something else.")
    page = await visits.open(server, f"/compare/{left}/{fork}")
    await expect(page.get_by_text("a fork of “Left one”")).to_be_visible()
    both = page.get_by_role("log")
    await expect(both).to_have_count(2)
    await expect(both.nth(0)).to_contain_text("The left way.")
    await expect(both.nth(1)).to_contain_text("The right end.")
    for side in (both.nth(0), both.nth(1)):
        await expect(side).not_to_contain_text("The trunk is done.")
    await expect(page.get_by_text(f"Here they part, fact {trunk + 1}")).to_be_visible()
    await page.get_by_role("button", name=re.compile(f"The same up to fact {trunk}")).click()
    for side in (both.nth(0), both.nth(1)):
        await expect(side).to_contain_text("The trunk is done.")
    await page.get_by_role("radio", name="Files").click()
    await expect(page.get_by_role("button", name="b.txt")).to_have_count(1)
    await page.get_by_role("radio", name="Waterfall").click()
    await expect(page.get_by_role("table", name=re.compile("^Waterfall of run 2"))).to_have_count(2)
    await page.get_by_role("region", name="Right session").get_by_role("button", name="Choose another").click()
    await page.get_by_role("menuitem", name="Somebody else").click()
    await expect(page).to_have_url(f"{server.base}/compare/{left}/{alone}")
    await page.get_by_role("radio", name="Conversation").click()
    await expect(both.nth(1)).to_contain_text("Quite another thing.")
    await expect(page.get_by_text("Here they part")).to_have_count(0)
    await page.keyboard.press("Escape")
    await expect(page).to_have_url(f"{server.base}/s/{left}")
    await expect_in_log(page, "The left way.")


async def test_the_forks_are_a_tree_that_leads_to_them(server: PageServer, visits: Visits) -> None:
    server.model.script("The trunk.")
    async with server.client() as client:
        trunk = await client.session(name="The trunk")
        await client.send(trunk, "Begin.")
        for name, parent in (("First branch", trunk), ("Second branch", trunk)):
            fork = (await client.json("POST", f"/v1/sessions/{parent}/fork", {}, 201))["id"]
            await client.json("PATCH", f"/v1/sessions/{fork}", {"name": name})
        twig = (await client.json("POST", f"/v1/sessions/{fork}/fork", {}, 201))["id"]
        await client.json("PATCH", f"/v1/sessions/{twig}", {"name": "A twig"})
    page = await visits.open(server, f"/s/{trunk}/time")
    tree = page.get_by_role("region", name="Forks")
    await expect(tree.get_by_role("link", name=re.compile("branch|twig"))).to_have_count(6)
    await tree.get_by_role("link", name=re.compile("^A twig")).click()
    await expect(page).to_have_url(f"{server.base}/s/{twig}/time")
    await expect(page.get_by_role("heading", name="A twig", level=1)).to_be_visible()
    await expect(tree.get_by_role("link", name=re.compile("^Second branch"))).to_contain_text("Left at")
    await tree.get_by_role("link", name="Compare with Second branch").click()
    await expect(page).to_have_url(f"{server.base}/compare/{twig}/{fork}")
