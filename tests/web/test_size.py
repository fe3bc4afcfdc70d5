"""What the browser has to load."""

import gzip
import re

from tests.kit.browser import STATIC, needs_page

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
