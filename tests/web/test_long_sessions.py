"""A session of ten thousand cards: little of it is drawn, and the log is read once. benchmarks/web.py has the times."""

import re
from pathlib import Path

from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import serve_page
from tests.web.logs import build_long_session, write_sessions
from tests.web.screen import composer, expect_idle, expect_in_log, log

TURNS, NODES = 5_000, 400
# Scrolls through the conversation in steps, and returns the most nodes that it had.
SCROLL = """
async ([log, steps]) => {
  let box = log;
  while (box && !(box.scrollHeight > box.clientHeight + 2 && /auto|scroll/.test(getComputedStyle(box).overflowY)))
    box = box.parentElement;
  let most = 0;
  const height = box.scrollHeight;
  for (let step = 0; step <= steps; step++) {
    box.scrollTop = (box.scrollHeight * step) / steps;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    most = Math.max(most, log.querySelectorAll("*").length);
  }
  return [most, height];
}
"""


async def test_ten_thousand_cards_are_never_drawn_at_once(visits: Visits, tmp_path: Path) -> None:
    await write_sessions(tmp_path, build_long_session("long", tmp_path, TURNS))
    async with serve_page(tmp_path) as server:
        page = await visits.open(server, "/s/long")
        await expect_in_log(page, f"Part {TURNS} needs a closer look")
        most, height = await page.evaluate(SCROLL, [await log(page).element_handle(), 60])
        assert most <= NODES, f"{most} nodes"
        assert height > 50 * TURNS, "the cards are not in the list"
        await expect(log(page)).to_contain_text("Part 5000")
        # New text is drawn at the end, and still nothing is read again.
        reply = server.model.hold()
        await composer(page).fill("Go on.")
        await composer(page).press("Enter")
        await reply.wait_until_asked()
        for number in range(60):
            reply.write(f"Paragraph {number} has some words and `code`.\n\n" + "word " * 180 + "\n\n")
        reply.write("The end of it.")
        await expect_in_log(page, "The end of it.")
        reply.end()
        await expect_idle(page)
        assert await log(page).evaluate("(log) => log.querySelectorAll('*').length") <= NODES
        reads = [one for one in visits.requests if re.search(r"/v1/sessions/long/events", one)]
        assert len(reads) == 1, reads
        await visits.close()  # before the server stops
