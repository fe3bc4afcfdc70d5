"""Build the page of a session: one HTML file with all its facts, which its script draws as the web page does."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

import msgspec

from treadle import events
from treadle.errors import NotFound
from treadle.log.base import Artifact

PAGE = Path(__file__).parent.parent / "server" / "static" / "export.html"
DATA_START = b'<script type="application/json" id="treadle-data">'


def render_page(facts: Iterable[events.AnyFact], artifacts: Iterable[Artifact], page: Path = PAGE) -> bytes:
    """Put a session into the page. The file loads nothing, and its script runs nothing that the session says."""
    try:
        before, start, after = page.read_bytes().partition(DATA_START)
    except FileNotFoundError:
        raise NotFound("the page for exports is not built; run `make page`, or export as markdown or jsonl") from None
    kept = {artifact.id: base64.b64encode(artifact.data).decode() for artifact in artifacts}
    lines = b",\n".join(events.serialize_event(fact) for fact in facts)
    data = b'{"version":1,"facts":[\n%b\n],"artifacts":%b}' % (lines, msgspec.json.encode(kept))
    # In JSON, "<" is only inside of strings. Spelled out, no text can end the element that it is in.
    return before + start + data.replace(b"<", b"\\u003c") + after
