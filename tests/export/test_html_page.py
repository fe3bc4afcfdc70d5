"""The page of an exported session. `tests/web/test_export.py` opens it in a browser."""

import base64
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.export.conftest import Exported
from tests.kit.browser import needs_page
from treadle.errors import NotFound
from treadle.events import MessageReceived, SessionCreated
from treadle.export.html_page import DATA_START, render_page
from treadle.messages import TextPart


class DataReader(HTMLParser):
    """Reads what a browser would take for the session: the text of the element with this id."""

    def __init__(self, html: bytes) -> None:
        super().__init__()
        self.data, self.scripts, self._is_inside = "", 0, False
        self.feed(html.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self._is_inside = ("id", "treadle-data") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = False

    def handle_data(self, data: str) -> None:
        self.data += data if self._is_inside else ""


def read_session(html: bytes) -> dict[str, Any]:
    return json.loads(DataReader(html).data)


@needs_page
async def test_the_page_has_every_fact_and_whole_outputs(exported: Exported) -> None:
    session = read_session(await exported.render("html"))
    lines = [json.loads(line) for line in (await exported.render()).splitlines()]
    facts = [line for line in lines if line["type"] != "artifact"]
    assert session["version"] == 1 and session["facts"] == facts
    (artifact,) = [line for line in lines if line["type"] == "artifact"]
    assert session["artifacts"] == {artifact["id"]: artifact["data"]}
    assert base64.b64decode(artifact["data"]).decode() == "much of it\n" * 9000


@given(st.text(alphabet=st.sampled_from("<>!-/script \u2028\u202e\x00\"'&"), max_size=40))
def test_no_text_ends_the_element_that_it_is_in(text: str) -> None:
    page = Path(__file__).with_name("empty_page.html")
    facts = [SessionCreated(session_id="x"), MessageReceived(id="m", parts=(TextPart(text),))]
    html = render_page(facts, [], page)
    assert read_session(html)["facts"][1]["parts"][0]["text"] == text
    assert DataReader(html).scripts == 1


@pytest.mark.parametrize("missing", ["page.html", "folder/page.html"])
def test_without_a_built_page_the_error_says_what_to_do(missing: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"make page.*markdown"):
        render_page([SessionCreated(session_id="x")], [], tmp_path / missing)


@needs_page
async def test_the_built_page_has_one_place_for_the_session_and_a_policy(exported: Exported) -> None:
    html = await exported.render("html")
    assert html.count(DATA_START) == 1
    policy = html.partition(b'http-equiv="Content-Security-Policy" content="')[2].partition(b'"')[0]
    assert policy.startswith(b"default-src 'none'; script-src 'sha256-") and b"unsafe" not in policy
    assert b"require-trusted-types-for 'script'" in policy
