"""The HTML page of a session: what it shows, and that no text of a session becomes markup, a style or a bad link."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.fakes.server import words
from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    Limits,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    RunFinished,
    RunStarted,
    SessionCreated,
    SessionRenamed,
    TurnStarted,
)
from treadle.export.html import diff
from treadle.export.html.diff import render_with_diffs
from treadle.export.html.page import render_page
from treadle.export.html.text import highlight_code, render_markdown
from treadle.export.html.timeline import format_duration
from treadle.export.run_steps import build_steps
from treadle.messages import Call, TextPart, Usage

TAGS = set(
    words(
        "html head meta title style body header main h1 h2 h3 h4 h5 h6 p br hr section details summary pre code b i em "
        "strong s span time div a blockquote ul ol li table thead tbody tr th td svg rect"
    )
)
ATTRIBUTES = set(
    words(
        "lang charset name content http-equiv class open href title rel start colspan "
        "viewbox preserveaspectratio aria-hidden x width height rx"
    )
)
CREATED = SessionCreated(session_id="x", seq=1, at=1000.0)


class Page(HTMLParser):
    """Reads a page and checks each of its tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.policy = ""
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag in TAGS and values.keys() <= ATTRIBUTES, (tag, attrs)
        self.links += [values["href"] or ""] if "href" in values else []
        if tag == "meta" and values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""

    def handle_data(self, data: str) -> None:
        self.text += data


def build_hostile_session(text: str) -> list[AnyFact]:
    """A session that has the text in every place that a model, a tool or a user can fill."""
    call = {"call_id": "c", "tool": text}
    patch = f"--- a/{text}\n+++ b/{text}\n@@ -1 +1 @@ {text}\n-{text}\n+{text}!\n"
    facts: list[AnyFact] = [
        SessionCreated(session_id="x", workspace=text, model=text),
        SessionRenamed(name=text),
        MessageReceived(id="m", parts=(TextPart(text),)),
        RunStarted(run_id="r", limits=Limits()),
        TurnStarted(turn=1),
        ModelFailed(kind="network", message=text, wait=1.0),
        ModelReplied(text=text, reasoning=text, calls=(Call("c", text, text),), model=text),
        ModelReplied(text=f"| {text} |\n|--:|\n| {text} |\n\n```{text}\n{text}\n```\n\n[{text}]({text})\n\n<{text}>"),
        ApprovalRequested(arguments={text: text}, safety="caution", why=text, **call),
        ApprovalAnswered(call_id="c", decision="deny", by=text, comment=text),
        CallStarted(arguments={text: text, "patch": patch}, **call),
        CallFinished(status="error", output=f"{text}\n{patch}", duration=1.5, **call),
        RunFinished(run_id="r", reason="failed", error=text),
    ]
    return facts


HOSTILE = [
    "<script>alert(1)</script>",
    "</title></style></pre><svg onload=alert(1)>",
    "\"><img src=x onerror=alert(1)>'",
    "{policy} {0} {title.__class__}",
    "[a](javascript:alert(1)) [b]( JaVaScRiPt:alert(1)) [c](&#106;avascript:alert(1)) <javascript:alert(1)>",
    "[a](data:text/html,<script>) [b](vbscript:x) [c](file:///etc/passwd) [d](//evil.example) [e](\tjava\nscript:x)",
    '![a](https://evil.example/x.png) [b](https://e.example/"onclick="x) [c](https://e.example "t\\" onclick=x")',
    "[a]: javascript:alert(1)\n\n[a] [b](https:javascript:alert(1))",
    '\ud800 {"a": "\ud800"}',
    "<!--> <![CDATA[ ]]> &lt;script&gt; &#60;script&#62;",
    "../../<b>\u202egpj.exe\x1b]8;;https://evil.example\x07here\x1b]8;;\x07\x00",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_place_is_only_text(text: str) -> None:
    page = Page(render_page(build_hostile_session(text)))
    assert all(re.match(r"(https?|mailto):", link) for link in page.links)
    assert "\u202e" not in page.text and "\x1b" not in page.text and "\x00" not in page.text


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from("<>&\"'/=script onerror img svg!-{}%`\n|[]():*_#+@"), max_size=60))
def test_no_text_of_a_session_can_become_markup(text: str) -> None:
    assert all(re.match(r"(https?|mailto):", link) for link in Page(render_page(build_hostile_session(text))).links)


def test_the_policy_allows_the_style_sheet_of_the_page_and_nothing_else() -> None:
    html = render_page([CREATED])
    style = html.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert Page(html).policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert "http://" not in html and "https://" not in html and "url(" not in style and "@import" not in style


def test_markdown_is_rendered() -> None:
    html = render_markdown(
        "# Head\n\n**a** *b* ~~c~~ `d` [e](https://e.example)\n\n> f\n\n| g | h |\n|---|--:|\n| 1 | 2 |\n\n"
        "```python\nreturn 1  # two\n```"
    )
    for piece in (
        "<h1>Head</h1>",
        "<strong>a</strong> <em>b</em> <s>c</s> <code>d</code>",
        '<a href="https://e.example" rel="noopener noreferrer nofollow">e</a>',
        "<blockquote>\n<p>f</p>",
        '<td>1</td>\n<td class="right">2</td>',
        '<span class="c-k">return</span> <span class="c-n">1</span>  <span class="c-c"># two</span>',
    ):
        assert piece in html
    assert highlight_code("<b>", "no-such-language") == "&lt;b&gt;"


def test_a_diff_has_numbers_signs_and_marked_words() -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -3,3 +3,3 @@\n one\n-two old\n+two new\n three\n"
    html = render_with_diffs(f"Changed it.\n{diff}Done.")
    assert html.startswith("<pre>Changed it.</pre>") and html.endswith("<pre>Done.</pre>")
    assert "x.py <span>+1 −1</span>" in html
    gone = '<tr class="del"><td class="number">4</td><td class="number"></td><td class="sign">−</td>'
    assert f"{gone}<td>two <b>old</b></td></tr>" in html and "<td>two <b>new</b></td></tr>" in html
    assert '<td class="number">5</td><td class="number">5</td><td class="sign"> </td><td>three</td>' in html


@pytest.mark.parametrize(
    "text", ["--- a\n+++ b\nno hunk", "--- a", "--- a\n+++ b\n@@ -1,9 +1,9 @@\n cut", "@@ -1 +1 @@"]
)
def test_a_text_that_only_looks_like_a_diff_loses_nothing(text: str) -> None:
    shown = re.sub(r"<[^>]*>", "", render_with_diffs(text))
    assert all(word in shown for word in re.findall(r"hunk|cut", text))


def build_timed_session() -> list[AnyFact]:
    """A run that asks a person, fails a call, and is retried."""
    call = {"call_id": "c", "tool": "shell"}
    return [
        CREATED,
        MessageReceived(id="m", parts=(TextPart("go"),), at=1000),
        RunStarted(run_id="r", limits=Limits(), at=1000),
        TurnStarted(turn=1, at=1000),
        ModelFailed(kind="overloaded", message="Provider error 529", wait=3.0, at=1001),
        ModelReplied(calls=(Call("c", "shell", "{}"),), at=1006),
        ApprovalRequested(arguments={}, safety="caution", why="", at=1006, **call),
        ApprovalAnswered(call_id="c", decision="allow", by="ada", at=1016),
        CallStarted(arguments={"command": "make"}, at=1016, **call),
        CallFinished(status="error", output="exit code 2", duration=2.0, at=1018, **call),
        TurnStarted(turn=2, at=1018),
        ModelReplied(text="It failed.", usage=Usage(1200, 30, cost=0.25), at=1020),
        RunFinished(run_id="r", reason="answered", usage=Usage(1200, 30, cost=0.25), turns=2, calls=1, at=1020),
    ]


def test_the_timeline_shows_what_worked_waited_and_failed() -> None:
    steps = [
        (step.kind, step.label, step.start, step.end, step.is_ok) for step in build_steps(build_timed_session()[2:])
    ]
    assert ("person", "shell", 1006, 1016, True) in steps
    assert ("provider", "overloaded", 1001, 1004, True) in steps
    assert ("tool", "shell", 1016, 1018, False) in steps
    html = render_page(build_timed_session())
    assert "20 s · answered · 2 turns, 1 call · 1\u2009200 tokens in, 30 out · $0.2500 · 13 s of it waiting" in html
    assert '<rect class="failed" x="800.0" width="100.0" height="8" rx="2"/>' in html
    assert [format_duration(each) for each in (0.04, 1.44, 12, 581, 3723)] == [
        "40 ms",
        "1.4 s",
        "12 s",
        "9:41",
        "1:02:03",
    ]


def test_the_page_shows_times_tokens_and_answers_of_people() -> None:
    html = render_page(build_timed_session())
    assert "<b>Agent</b><span>1\u2009200 tokens in, 30 out · $0.2500 · 00:17:00</span>" in html
    assert "Allowed once by ada" in html
    assert '<details class="call failed" open><summary><i>✗</i><b>shell</b><code>make</code>' in html


def test_a_long_output_is_cut_and_the_page_says_so() -> None:
    arguments = json.dumps({"content": "one\ntwo"})
    facts = [CREATED, ModelReplied(calls=(Call("c", "t", arguments),))]
    html = render_page([*facts, CallFinished(call_id="c", tool="t", status="ok", output="x" * 100_050)])
    assert "50 more characters are left out of this page." in html
    assert "<pre>content:\none\ntwo</pre>" in html


def build_diff(line: str, other: str, count: int) -> str:
    removed, added = (f"{sign}{text}\n" * count for sign, text in (("-", line), ("+", other)))
    return f"--- a\n+++ b\n@@ -1,{count} +1,{count} @@\n{removed}{added}"


def test_a_hostile_diff_compares_a_limited_number_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing these lines with each other would take minutes."""
    compared: list[int] = []

    def count(old: list[str], new: list[str]) -> Any:
        compared.append(len(old) * len(new))
        return [], []

    monkeypatch.setattr(diff, "compare_words", count)
    page = diff.render_with_diffs(build_diff("a " * 300, "b " * 300, 100))
    assert page.count('class="del"') == 100 and 0 < sum(compared) <= diff.MAX_COMPARED
    diff.render_with_diffs(build_diff("a " * 900, "b " * 900, 1) + build_diff("old word", "new word", 1))
    assert compared[-1] == 9


@pytest.mark.parametrize("text", ["[", "![", "*a", "> ", "~~a", "<!--"])
def test_hostile_markdown_with_very_many_marks_stays_as_it_is_written(text: str) -> None:
    assert render_markdown(text * 20_000).startswith("<pre>")
