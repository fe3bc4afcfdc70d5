"""What a person looks for and does on the page. The tests name things as a person or a screen reader does."""

import re
from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer
from tests.kit.server import Client

# Scrolls a virtual list from its start to its end, and returns the text that was drawn on the way.
READ_EVERYTHING = """
async (log) => {
  const isBox = (one) => one.scrollHeight > one.clientHeight + 2 && /auto|scroll/.test(getComputedStyle(one).overflowY);
  let box = log;
  while (box && !isBox(box)) box = box.parentElement;
  const frames = (count) => new Promise((done) => {
    const next = (left) => (left > 0 ? requestAnimationFrame(() => next(left - 1)) : done());
    next(count);
  });
  const seen = [];
  if (!box) return log.innerText;
  box.scrollTop = 0;
  for (let last = -1; ; ) {
    await frames(3);
    seen.push(log.innerText);
    if (box.scrollTop === last) break;
    last = box.scrollTop;
    box.scrollTop += box.clientHeight * 0.6;
  }
  return seen.join("\\n");
}
"""

# The same, row by row: what a row shows does not depend on how far the list was scrolled.
READ_ROWS = """
async (log) => {
  const box = log.closest(".scroll");
  const frames = (count) => new Promise((done) => {
    const next = (left) => (left > 0 ? requestAnimationFrame(() => next(left - 1)) : done());
    next(count);
  });
  const rows = new Map();
  box.scrollTop = 0;
  for (let last = -1; ; ) {
    await frames(3);
    for (const row of log.querySelectorAll(".vr")) rows.set(Number(row.dataset.index), row.innerText);
    if (box.scrollTop === last) break;
    last = box.scrollTop;
    box.scrollTop += box.clientHeight * 0.6;
  }
  return [...rows].sort((a, b) => a[0] - b[0]).map((row) => row[1]);
}
"""


def log(page: Page) -> Locator:
    """The conversation of the session on the screen."""
    return page.get_by_role("log")


def composer(page: Page) -> Locator:
    """Where a person writes a message."""
    return page.locator(".comp").get_by_role("textbox")


def question(page: Page) -> Locator:
    """The card of an open approval."""
    return page.get_by_role("region", name="Approval needed")


def slider(page: Page) -> Locator:
    """The scrubber."""
    return page.get_by_role("slider", name="Position")


async def expect_whole_line(page: Page) -> None:
    """All of the session has arrived, so the scrubber can be moved."""
    await expect(slider(page)).not_to_have_attribute("aria-disabled", "true")


def session_row(page: Page, name: str) -> Locator:
    """A session in the list."""
    return page.get_by_role("navigation", name="Sessions").locator("[data-session]").filter(has_text=name)


async def send(page: Page, text: str) -> None:
    """Write a message and send it with Enter."""
    await composer(page).fill(text)
    await composer(page).press("Enter")


async def read_everything(page: Page) -> str:
    """The whole text of the conversation, also what is out of sight."""
    return await log(page).evaluate(READ_EVERYTHING)


async def read_rows(page: Page) -> list[str]:
    """The rows of the conversation with their texts, also those out of sight."""
    return await log(page).evaluate(READ_ROWS)


async def expect_in_log(page: Page, *texts: str) -> None:
    for text in texts:
        await expect(log(page)).to_contain_text(text)


async def expect_idle(page: Page) -> None:
    """The page offers to send a message, so no run is under way."""
    await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def without_clocks(text: str) -> str:
    """A text without its ages and times, which go on."""
    text = re.sub(r"\b\d+:\d\d(:\d\d)?\b", "CLOCK", text)
    return re.sub(r"\b(now|\d+(\.\d+)?[\s\u202f](s|min))\b", "AGE", text)


async def read_state(client: Any, session_id: str) -> dict[str, Any]:
    """The session as the server folds it from the log."""
    return await client.json("GET", f"/v1/sessions/{session_id}/state")


def waiting(page: Page) -> Locator:
    """Messages that no turn has taken yet."""
    return page.get_by_role("list", name="Waiting to be taken").get_by_role("listitem")


async def list_messages(client: Client, session_id: str) -> list[dict[str, Any]]:
    """The messages as the log has them."""
    return [one for one in await client.facts(session_id) if one["type"] == "message_received"]


async def list_texts(client: Client, session_id: str) -> list[str]:
    """What the person said, as the server has it."""
    return [one["text"] for one in (await read_state(client, session_id))["messages"] if one["role"] == "user"]


async def open_new(server: PageServer, visits: Visits, client: Client, *, phone: bool = False) -> tuple[Page, str]:
    """Open a new session and wait for its composer. Returns the page and the session."""
    session_id = await client.session(name="Composer")
    page = await visits.open(server, f"/s/{session_id}", phone=phone)
    await expect(composer(page)).to_be_visible()
    return page, session_id
