"""Reading a conversation: what folds, what stays where it is, and what is told while something runs."""

import re
from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.kit.browser import Visits
from tests.kit.fakes.server import Odd
from tests.kit.page_server import PageServer
from tests.web.screen import expect_idle, expect_in_log, log
from treadle.messages import Reply
from treadle.testing import call

PARAGRAPH = "Paragraph {n} has **some** words, `code` and a list.\n\n- one\n- two\n\n```python\nprint({n})\n```\n\n"
# The first paragraph in sight, and where it stands.
FIND_FIRST = """
() => {
  const top = (one) => Math.round(one.getBoundingClientRect().top);
  const first = [...document.querySelectorAll("[role=log] p")].find((one) => top(one) > 100);
  return `${first.textContent} at ${top(first)}`;
}
"""
MEASURE_END = """
() => {
  const box = document.querySelector("[role=log]").parentElement;
  return box.scrollHeight - box.scrollTop - box.clientHeight;
}
"""


def card(page: Page, name: str | re.Pattern[str]) -> Locator:
    return log(page).get_by_role("button", name=name)


async def start(client: Any, session_id: str, content: str) -> None:
    await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": content})


async def test_the_end_is_followed_until_the_reader_scrolls_up(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await start(client, session_id, "Tell me all.")
        await reply.wait_until_asked()
        for number in range(12):
            reply.write(PARAGRAPH.format(n=number))
            await expect_in_log(page, f"Paragraph {number} has")
        await page.wait_for_function(
            "() => document.querySelectorAll('[role=log] .code .s, [role=log] .code .num').length > 3"
        )
        assert await page.evaluate(MEASURE_END) <= 1, "the end is not followed"
        await page.get_by_role("log").hover()
        await page.mouse.wheel(0, -900)
        await expect(page.get_by_role("button", name="Go to the end")).to_be_visible()
        before = await page.evaluate(FIND_FIRST)
        for number in range(12, 30):
            reply.write(PARAGRAPH.format(n=number))
        await expect_in_log(page, "Paragraph 29 has")
        assert await page.evaluate(FIND_FIRST) == before, "the text has moved under the reader"
        server.model.script("A second answer.")
        reply.end()
        await expect_idle(page)
        assert await page.evaluate(FIND_FIRST) == before, "the finished reply stands elsewhere"
        await client.send(session_id, "And then?")
        await expect(page.get_by_role("button", name="Go to the end")).to_contain_text("new")
        assert await page.evaluate(FIND_FIRST) == before
        await page.get_by_role("button", name="Go to the end").click()
        await expect(page.get_by_role("button", name="Go to the end")).to_have_count(0)
        await expect_in_log(page, "A second answer.")
        assert await page.evaluate(MEASURE_END) <= 1


async def test_finished_calls_fold_into_a_chain_but_never_what_runs_or_asks(server: PageServer, visits: Visits) -> None:
    (server.workspace / "a.txt").write_text("one\n")
    long = "echo " + "a-long-word " * 30 + "&& sleep 600"
    server.model.script(
        Reply(calls=(call("read_file", path="a.txt"), call("read_file", path="a.txt")), finish="calls"),
        call("shell", command=long),
        call("ask_user", question="Which one?", options=["red", "blue"]),
    )
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await start(client, session_id, "Go.")
        await expect(card(page, re.compile("^2 calls"))).to_have_attribute("aria-expanded", "false")
        running = card(page, re.compile("^shell"))
        await expect(running).to_have_attribute("aria-expanded", "true")
        # The line cuts the command, and the body has every letter of it.
        await expect(log(page).locator(".tc").filter(has=page.get_by_role("button", name="Stop"))).to_contain_text(long)
        await log(page).get_by_role("button", name="Stop", exact=True).click()
        await expect(card(page, re.compile("^shell.*Stopped"))).to_be_visible()
        await card(page, "Continue").click()
        await expect(log(page).get_by_role("radio", name="blue")).to_be_visible()
        await expect(card(page, re.compile("^2 calls"))).to_have_attribute("aria-expanded", "false")
        await card(page, re.compile("^2 calls")).click()
        await expect(card(page, re.compile("^read_file"))).to_have_count(2)
        await card(page, re.compile("^read_file")).first.click()
        await expect_in_log(page, "one")


async def test_a_thought_is_folded_and_tells_how_long_it_took(server: PageServer, visits: Visits) -> None:
    reply = server.model.hold()
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await start(client, session_id, "Think.")
        await reply.wait_until_asked()
        reply.write(reasoning="A first thought.\nA second thought.")
        thought = card(page, re.compile("^Thinking"))
        await expect(thought).to_have_attribute("aria-expanded", "false")
        await expect(thought).to_contain_text("A second thought.")
        reply.write("The answer.")
        await expect(card(page, re.compile("^Thought"))).to_be_visible()
        reply.end()
        await expect_idle(page)
        await expect(log(page)).not_to_contain_text("A second thought.")
        await card(page, re.compile("^Thought")).click()
        await expect_in_log(page, "A first thought.", "A second thought.")


async def test_a_retry_counts_down_and_can_be_hurried(server: PageServer, visits: Visits) -> None:
    busy = Odd(raw=b'{"error": {"message": "Try later"}}', status=503, headers={"retry-after": "300"})
    server.model.script(busy, "It works.")
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await start(client, session_id, "Go.")
        banner = log(page).get_by_role("status")
        await expect(banner).to_contain_text(re.compile(r"\(503\).*Try 2 in (4:\d\d|5:00)"))
        await expect(banner).to_contain_text("Nothing is lost.")
        await banner.get_by_role("button", name="Retry now").click()
        await expect_in_log(page, "It works.", "Try 2 worked")
        await expect(banner).to_have_count(0)


async def test_a_helper_is_stopped_alone(server: PageServer, visits: Visits) -> None:
    tasks = [call("delegate", task=f"Look at part {number}", agent="reader") for number in (1, 2)]
    server.model.script(Reply(calls=tuple(tasks), finish="calls"))
    replies = [server.model.hold(), server.model.hold()]
    async with server.client() as client:
        session_id = await client.session()
        page = await visits.open(server, f"/s/{session_id}")
        await start(client, session_id, "Split it.")
        for reply in replies:
            await reply.wait_until_asked()
            reply.write("Looking.")
        await expect_in_log(page, "0 of 2 done", "Look at part 1", "Look at part 2")
        await log(page).get_by_role("button", name=re.compile("Stop .*part 1")).click()
        await expect_in_log(page, "1 of 2 done")
        for reply in replies:
            reply.end()
        await expect_in_log(page, "2 of 2 done", "done")
        await expect_idle(page)
        assert (await client.json("GET", f"/v1/sessions/{session_id}"))["status"] == "answered"


# The room above each row, from the first to the last.
MEASURE_ROOM = """
() => [...document.querySelectorAll("[role=log] .vr > *")].map((one) => parseFloat(getComputedStyle(one).paddingTop))
"""


async def test_rows_have_room_between_them(server: PageServer, visits: Visits) -> None:
    server.model.script(call("list_files", path="."), "There is nothing.")
    async with server.client() as client:
        session_id = await client.session()
        await client.send(session_id, "What is here?")
    page = await visits.open(server, f"/s/{session_id}")
    await expect_in_log(page, "There is nothing.")
    rooms = await page.evaluate(MEASURE_ROOM)
    assert len(rooms) == 4 and all(room >= 12 for room in rooms[1:]), rooms
