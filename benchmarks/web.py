#!/usr/bin/env python3
"""Measure the web page with a session of 10 000 cards, in a real Chromium, against a blank page in the same browser.

    python benchmarks/web.py [--turns 5000] [--times 7]

CPU is that of the page's main thread, as Chromium counts its tasks. Each turn of the session draws two cards. A frame
is one call of requestAnimationFrame. Times to the first paint are medians; a blank page is one that says "blank".
"""

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from playwright.async_api import Browser, BrowserContext, Page
from tests.kit.browser import DESKTOP, find_missing_part, start_browser
from tests.kit.page_server import OWNER, PageServer, serve_page
from tests.web.logs import build_long_session, write_sessions

FRAMES, STREAMED = 240, 60_000
BLANK = b"<!doctype html><title>blank</title><p>blank</p><div style='height:200000px'></div>"
PARAGRAPH = (
    "The part number {n} is read **twice**: see `src/part_{n}.py` and [the notes](https://example.org/{n}).\n\n"
    "- at the start, where the settings are still empty\n- later, when somebody asks\n\n"
)
CODE = "```python\ndef read_part(number: int) -> str:\n    return PARTS[number].strip()  # part {n}\n```\n\n"
TABLE = "| part | size | read |\n|---|---|---|\n| {n} | 12 kB | twice |\n| next | 3 kB | once |\n\n"
FIND_BOX = """
const isBox = (one) => one.scrollHeight > one.clientHeight + 2 && /auto|scroll/.test(getComputedStyle(one).overflowY);
let box = document.querySelector("[role=log]");
while (box && !isBox(box)) box = box.parentElement;
box ??= document.scrollingElement;
"""
SCROLL = f"""
async ([frames, by]) => {{
  {FIND_BOX}
  const log = document.querySelector("[role=log]") ?? document.body;
  box.scrollTop = box.scrollHeight;
  let [most, all] = [0, 0];
  for (let frame = 0; frame < frames; frame++) {{
    box.scrollTop -= by;
    await new Promise(requestAnimationFrame);
    if (frame % 20 === 0) most = Math.max(most, log.querySelectorAll("*").length);
    if (frame % 20 === 0) all = Math.max(all, document.body.querySelectorAll("*").length);
  }}
  return [most, all];
}}
"""
COUNT_FRAMES = """
() => {
  window.__frames = 0;
  const count = () => (window.__frames++, requestAnimationFrame(count));
  requestAnimationFrame(count);
}
"""
# Remembers when the end of the conversation was first on the page.
WATCH_END = """
(text) => {
  window.__end = 0;
  const see = () => {
    if (document.querySelector("[role=log]")?.textContent.includes(text)) window.__end = performance.now();
    else requestAnimationFrame(see);
  };
  requestAnimationFrame(see);
}
"""
# The policy of the page forbids `eval`, so what is waited for is a function and no text.
WAIT = """
(name) => new Promise((done) => {
  const isTrue = {
    paint: () => performance.getEntriesByName("first-paint").length > 0,
    end: () => window.__end > 0,
  }[name];
  const see = () => (isTrue() ? done() : requestAnimationFrame(see));
  see();
})
"""
FIRST_PAINT = "() => performance.getEntriesByName('first-paint')[0]?.startTime ?? 0"


class Cost(NamedTuple):
    """Milliseconds of the main thread for each frame: in all, in scripts, in styles and layout."""

    task: float
    script: float
    layout: float


class Meter:
    """Counts what the main thread of a page works."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._before: dict[str, float] = {}

    @classmethod
    async def attach(cls, page: Page) -> "Meter":
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        return cls(session)

    async def _read(self) -> dict[str, float]:
        return {one["name"]: one["value"] for one in (await self._session.send("Performance.getMetrics"))["metrics"]}

    async def start(self) -> None:
        self._before = await self._read()

    async def stop(self, frames: int) -> Cost:
        """Returns the cost of each frame since the start."""
        now = await self._read()
        task, script, style, layout = (
            (now[name] - self._before[name]) * 1000 / frames
            for name in ("TaskDuration", "ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
        )
        return Cost(task, script, style + layout)

    async def read_heap(self) -> float:
        """Megabytes of the page's objects."""
        return (await self._read())["JSHeapUsedSize"] / 1e6


@asynccontextmanager
async def serve_blank() -> AsyncGenerator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = (
            f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(BLANK)}\r\nconnection: close\r\n\r\n"
        )
        writer.write(head.encode() + BLANK)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def log_in(browser: Browser, server: PageServer) -> BrowserContext:
    context = await browser.new_context(base_url=server.base, viewport=DESKTOP)
    await context.request.post("/login", data={"token": OWNER.token}, headers={"origin": server.base})
    return context


async def measure_paint(context: BrowserContext, url: str, end: str = "") -> tuple[float, float]:
    """Milliseconds to the first paint, and until the end of the conversation is drawn."""
    page = await context.new_page()
    if end:
        await page.add_init_script(f"({WATCH_END})({end!r})")
    await page.goto(url)
    await page.evaluate(WAIT, "paint")
    if end:
        await page.evaluate(WAIT, "end")
    paint, drawn = await page.evaluate(FIRST_PAINT), await page.evaluate("window.__end ?? 0")
    await page.close()
    return paint, drawn


async def compare_paint(browser: Browser, server: PageServer, blank: str, end: str, times: int) -> list[str]:
    """The first paint of the session and of the blank page, in turns. Both with and without a warm cache."""
    warm = await log_in(browser, server)
    await measure_paint(warm, "/s/long", end)
    figures: dict[str, list[float]] = {name: [] for name in ("blank", "warm", "cold", "drawn")}
    for _ in range(times):
        cold = await log_in(browser, server)
        figures["blank"].append((await measure_paint(warm, blank))[0])
        paint, drawn = await measure_paint(warm, "/s/long", end)
        figures["warm"].append(paint)
        figures["drawn"].append(drawn)
        figures["cold"].append((await measure_paint(cold, "/s/long", end))[0])
        await cold.close()
    await warm.close()
    blank_ms, warm_ms, cold_ms, drawn_ms = (
        statistics.median(figures[one]) for one in ("blank", "warm", "cold", "drawn")
    )
    return [
        row("first paint, blank page", f"{blank_ms:.0f} ms", ""),
        row("first paint, session", f"{warm_ms:.0f} ms = {warm_ms - blank_ms:+.0f} ms", "≤ + 60 ms"),
        row("the same with nothing in the cache", f"{cold_ms:.0f} ms = {cold_ms - blank_ms:+.0f} ms", ""),
        row("until the end of the conversation is drawn", f"{drawn_ms:.0f} ms", ""),
    ]


async def scroll(page: Page, by: int) -> tuple[Cost, list[int]]:
    meter = await Meter.attach(page)
    await page.evaluate(SCROLL, [20, by])
    await meter.start()
    nodes = await page.evaluate(SCROLL, [FRAMES, by])
    return await meter.stop(FRAMES), nodes


def write_markdown(size: int) -> str:
    """Text as models write it, of this size."""
    parts, length, number = list[str](), 0, 0
    while length < size:
        number += 1
        part = (PARAGRAPH, PARAGRAPH, CODE, PARAGRAPH, TABLE)[number % 5].format(n=number)
        parts.append(part)
        length += len(part)
    return "".join(parts)[:size]


async def stream(page: Page, server: PageServer) -> tuple[Cost, float]:
    """Stream a long reply in, in small pieces. Returns the cost of a frame, and the milliseconds of one frame."""
    reply = server.model.hold()
    await page.evaluate(FIND_BOX + "box.scrollTop = box.scrollHeight")
    async with server.client() as client:
        await client.json("POST", "/v1/sessions/long/messages?wait=0", {"content": "Write it all down."})
    await reply.wait_until_asked()
    meter, text = await Meter.attach(page), write_markdown(STREAMED)
    await page.evaluate(COUNT_FRAMES)
    await meter.start()
    clock = asyncio.get_running_loop().time
    begun, sent = clock(), 0
    while sent < len(text):
        sent += 150
        reply.write(text[sent - 150 : sent])
        await asyncio.sleep(max(0.0, begun + sent / 150 * 0.01 - clock()))
    reply.write("\n\nThis is the end of it.")
    await page.get_by_text("This is the end of it.").first.wait_for()
    frames = await page.evaluate("window.__frames")
    cost = await meter.stop(frames)
    seconds = clock() - begun
    reply.end()
    return cost, seconds * 1000 / frames


def row(what: str, figure: str, goal: str) -> str:
    return f"| {what} | {figure} | {goal} |"


def describe(cost: Cost, base: Cost) -> str:
    return f"{cost.task:.1f} ms (scripts {cost.script:.1f}, layout {cost.layout:.1f}) = {cost.task / base.task:.1f} ×"


async def measure_session(browser: Browser, server: PageServer, blank: str, end: str) -> list[str]:
    context = await log_in(browser, server)
    requests = list[str]()
    context.on("request", lambda request: requests.append(request.url))
    page = await context.new_page()
    await page.goto(blank)
    empty, _ = await scroll(page, 300)
    await page.goto("/s/long")
    await page.get_by_role("log").get_by_text(end).first.wait_for()
    slow, _ = await scroll(page, 300)
    fast, nodes = await scroll(page, 3000)
    streaming, frame = await stream(page, server)
    heap = await (await Meter.attach(page)).read_heap()
    reads = [url for url in requests if re.search(r"/sessions/long/events", url)]
    await context.close()
    return [
        row("a frame of the blank page, scrolling", f"{empty.task:.2f} ms", ""),
        row("a frame while scrolling, 300 pixels each", describe(slow, empty), "≤ 8 ms"),
        row("a frame while scrolling, 3 000 pixels each", describe(fast, empty), ""),
        row("a frame while 60 kB stream in", describe(streaming, empty), "≤ 16 ms"),
        row("time between frames while 60 kB stream in", f"{frame:.1f} ms", ""),
        row("nodes of the conversation, at most", str(nodes[0]), "≤ 400"),
        row("nodes of the whole page, at most", str(nodes[1]), ""),
        row("reads of the log", str(len(reads)), "1"),
        row("memory of the page's objects", f"{heap:.0f} MB", ""),
    ]


async def run(turns: int, times: int) -> Sequence[str]:
    end = f"Part {turns} needs a"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        await write_sessions(home, build_long_session("long", home, turns))
        async with start_browser() as browser, serve_page(home) as server, serve_blank() as blank:
            paint = await compare_paint(browser, server, blank, end, times)
            return [*paint, *await measure_session(browser, server, blank, end)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5000)
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    if missing := find_missing_part():
        sys.exit(f"not measured: {missing}")
    rows = asyncio.run(run(options.turns, options.times))
    print(f"\nA session of {2 * options.turns} cards.\n\n| what | figure | goal |\n|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
