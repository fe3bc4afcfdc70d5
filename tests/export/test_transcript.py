"""Exports: JSON lines that can be imported without loss, and Markdown and HTML that no text can break."""

from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.fakes.server import words
from tests.kit.sessions import build_agent, run_message
from treadle import tool
from treadle.errors import BadInput, Conflict
from treadle.events import ApprovalAnswered, CallFinished, MessageReceived, ModelReplied, SessionCreated
from treadle.export.transcript import (
    Form,
    build_blocks,
    import_session,
    parse_json_lines,
    render_html,
    render_json_lines,
    render_markdown,
    render_transcript,
)
from treadle.log.in_memory import InMemoryLog
from treadle.log.sqlite import SqliteLog
from treadle.messages import Call, TextPart
from treadle.testing import call


@tool(safety="safe")
def long() -> str:
    """Say a lot."""
    return "much of it\n" * 9000


class Exported(NamedTuple):
    """A session whose call has an output that was too long for the model, and its store."""

    session_id: str
    log: SqliteLog

    async def render(self, form: Form = "jsonl") -> bytes:
        return await render_transcript(self.log, self.session_id, form)


@pytest.fixture
async def exported(tmp_path: Path) -> AsyncIterator[Exported]:
    agent, _ = build_agent(call("long"), "It said <b>much</b>.", "Again.", tools=[long])
    log = SqliteLog(tmp_path / "one.db")
    async with agent.session(log, workspace=tmp_path) as session:
        await run_message(session, "say much ```of``` it")
        await session.rename("Much & more")
        await run_message(session, "again")
    yield Exported(session.id, log)
    await log.close()


async def test_an_import_restores_the_export_byte_for_byte(exported: Exported, tmp_path: Path) -> None:
    session_id, data, there = exported.session_id, await exported.render(), SqliteLog(tmp_path / "two.db")
    assert await import_session(there, parse_json_lines(data)) == session_id
    assert await render_transcript(there, session_id, "jsonl") == data
    stored = [fact for fact in await there.read(session_id) if isinstance(fact, CallFinished)]
    assert stored[0].truncation is not None
    kept = await there.get_artifact(session_id, stored[0].truncation.artifact)
    assert kept.data.decode() == "much of it\n" * 9000
    first, second = await exported.log.get_info(session_id), await there.get_info(session_id)
    for field in ("name", "turns", "status", "updated_at"):
        assert getattr(first, field) == getattr(second, field)
    await there.close()


async def test_an_import_never_overwrites_and_accepts_another_id(exported: Exported) -> None:
    imported = parse_json_lines(await exported.render())
    with pytest.raises(Conflict, match="already"):
        await import_session(exported.log, imported)
    assert await import_session(exported.log, imported, "other") == "other"
    (first, *_) = await exported.log.read("other", limit=1)
    assert isinstance(first, SessionCreated) and first.session_id == "other"


async def test_an_imported_session_can_continue(exported: Exported) -> None:
    there = InMemoryLog()
    await import_session(there, parse_json_lines(await exported.render()))
    agent, model = build_agent("Gladly.", tools=[long])
    async with agent.session(there, id=exported.session_id) as session:
        outcome = await run_message(session, "once more")
    assert outcome is not None and outcome.answer == "Gladly."
    assert len(model.requests[0].messages) > 4


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "begins with session_created"),
        (b"nonsense\n", "line 1 is no fact"),
        (b'{"type":"session_created","session_id":"x","seq":1}\n{"type":"unheard_of"}\n', "line 2 is no fact"),
        (b'{"type":"message_received","id":"m","parts":[],"seq":1}\n', "begins with session_created"),
        (b'{"type":"session_created","session_id":"x","seq":2}\n', "missing or out of order"),
        (b'{"type":"session_created","session_id":"x","seq":1}\n{"type":"artifact","id":"a"}\n', "line 2"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_a_bad_file_is_refused_with_the_line_number(data: bytes, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        parse_json_lines(data)


def test_approvals_for_more_than_one_call_are_listed() -> None:
    facts = [
        SessionCreated(session_id="x", seq=1),
        ModelReplied(calls=(Call("c1", "shell"), Call("c2", "write_file")), seq=2),
        ApprovalAnswered(call_id="c1", decision="allow", scope="tool", seq=3),
        ApprovalAnswered(call_id="c2", decision="allow", scope="call", seq=4),
    ]
    assert parse_json_lines(render_json_lines(facts)).yeses == ("shell (for the tool)",)


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
    page = Reader(render_html(facts))
    assert page.tags <= TAGS
    assert not any(name.startswith("on") or name in ("href", "src") for name in page.attributes)


def test_the_page_loads_nothing() -> None:
    page = render_html([SessionCreated(session_id="x", seq=1)])
    assert "http://" not in page and "https://" not in page and "default-src 'none'" in page


def test_internal_facts_are_left_out() -> None:
    assert build_blocks([SessionCreated(session_id="x", seq=1)]) == []
