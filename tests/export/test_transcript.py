"""Exports: JSON lines, and Markdown and HTML that no text can break."""

from html.parser import HTMLParser

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.export.conftest import Exported
from tests.kit.fakes.server import words
from treadle.events import CallFinished, MessageReceived, ModelReplied, SessionCreated
from treadle.export.html.page import render_page
from treadle.export.transcript import build_blocks, render_markdown
from treadle.messages import Call, TextPart


async def test_markdown_has_headings_and_safe_fences(exported: Exported) -> None:
    text = (await exported.render("markdown")).decode()
    assert text.startswith(f"# Much & more\n\n- session {exported.session_id}\n")
    assert "## You\n\nsay much ```of``` it\n\n### long {} → ok\n\n" in text
    assert "\n\n## Agent\n\nIt said <b>much</b>.\n\n" in text
    finished = CallFinished(call_id="c", tool="t", status="ok", output="````\nout")
    assert "`````\n````\nout\n`````" in render_markdown([SessionCreated(session_id="x", seq=1), finished])


TAGS = set(words("html head meta title style body h1 h2 p br section details summary pre"))


class Reader(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(st.text(alphabet=st.sampled_from("<>&\"'/=script onerror img svg!-{}%`\n"), max_size=60))
def test_no_text_of_a_session_can_become_markup(text: str) -> None:
    facts = [
        SessionCreated(session_id="x", workspace=text, seq=1),
        MessageReceived(id="m", parts=(TextPart(text),)),
        ModelReplied(text=text, reasoning=text, calls=(Call("c", "t", text),)),
        CallFinished(call_id="c", tool=text, status="ok", output=text),
    ]
    page = Reader(render_page(facts))
    assert page.tags <= TAGS
    assert not any(name.startswith("on") or name in ("href", "src") for name in page.attributes)


def test_the_page_loads_nothing() -> None:
    page = render_page([SessionCreated(session_id="x", seq=1)])
    assert "http://" not in page and "https://" not in page and "default-src 'none'" in page


def test_internal_facts_are_left_out() -> None:
    assert build_blocks([SessionCreated(session_id="x", seq=1)]) == []
