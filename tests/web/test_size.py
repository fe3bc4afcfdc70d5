"""What the browser has to load."""

import gzip
import re

from playwright.async_api import Browser

from tests.kit.browser import STATIC, needs_page
from tests.kit.page_server import OWNER, PageServer

TRANSFERRED = """
() => {
  // What the page itself names. The rest is loaded when there is time for it, so perhaps only by the second visit.
  const tags = document.querySelectorAll("script[src], link[rel=stylesheet], link[rel=modulepreload]");
  const named = new Set([...tags].map((one) => one.src || one.href));
  const sum = (entries) => entries.reduce((size, one) => size + one.transferSize, 0);
  const assets = performance.getEntriesByType("resource").filter((one) => named.has(one.name));
  return { page: sum(performance.getEntriesByType("navigation")), assets: sum(assets) };
}
"""
FIRST, LATER = 100_000, 60_000


def _compress(name: str) -> int:
    return len(gzip.compress((STATIC / name.lstrip("/")).read_bytes(), 9))


@needs_page
def test_the_page_stays_in_its_budget() -> None:
    html = (STATIC / "index.html").read_text("utf-8")
    first = set(re.findall(r'(?:src|href)="(/assets/[^"]+\.(?:js|css))"', html))
    assert first, "index.html names no script"
    files = {f"/assets/{path.name}" for path in (STATIC / "assets").iterdir() if path.suffix in (".js", ".css")}
    assert first <= files
    at_first = sum(map(_compress, first)) + _compress("index.html")
    later = sum(map(_compress, files - first))
    assert at_first <= FIRST, f"the first load is {at_first} bytes"
    assert later <= LATER, f"what is loaded later is {later} bytes"


@needs_page
def test_the_page_names_no_other_place() -> None:
    """Links in texts for people are fine; nothing is loaded from elsewhere."""
    html = (STATIC / "index.html").read_text("utf-8")
    assert re.findall(r'(?:src|href)="(?:https?:)?//', html) == []
    assert "<style" not in html and " style=" not in html and " onload=" not in html


async def test_a_second_visit_transfers_no_file_again(server: PageServer, browser: Browser) -> None:
    """Files with a hash in their name come from the cache, and the server says that the page itself is the same."""
    context = await browser.new_context(base_url=server.base)
    await context.request.post("/login", data={"token": OWNER.token}, headers={"origin": server.base})
    sizes = list[dict[str, int]]()
    for _ in range(2):
        page = await context.new_page()
        await page.goto("/")
        await page.get_by_role("heading", level=1).first.wait_for()
        sizes.append(await page.evaluate(TRANSFERRED))
        await page.close()
    await context.close()
    first, second = sizes
    assert first["page"] > 1000 and first["assets"] > 50_000
    assert second["page"] < 1000 and second["assets"] == 0, second
