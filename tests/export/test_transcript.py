"""Exports as JSON lines and Markdown that no text can break."""

from tests.export.conftest import Exported
from treadle.events import CallFinished, SessionCreated
from treadle.export.transcript import build_blocks, render_markdown


async def test_markdown_has_headings_and_safe_fences(exported: Exported) -> None:
    text = (await exported.render("markdown")).decode()
    assert text.startswith(f"# Much & more\n\n- session {exported.session_id}\n")
    assert "## You\n\nsay much ```of``` it\n\n### long {} → ok\n\n" in text
    assert "\n\n## Agent\n\nIt said <b>much</b>.\n\n" in text
    finished = CallFinished(call_id="c", tool="t", status="ok", output="````\nout")
    assert "`````\n````\nout\n`````" in render_markdown([SessionCreated(session_id="x", seq=1), finished])


def test_internal_facts_are_left_out() -> None:
    assert build_blocks([SessionCreated(session_id="x", seq=1)]) == []
