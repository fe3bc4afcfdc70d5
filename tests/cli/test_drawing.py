"""Markdown, diffs and calls as they are drawn: one page at three widths, and properties of every drawing."""

import io
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle import events
from treadle.cli.console import TerminalConsole, measure_width, strip_codes
from treadle.cli.draw.calls import RunningCall, render_call, render_chain, render_plan, render_running
from treadle.cli.draw.diff import render_diff
from treadle.cli.draw.glyphs import ASCII_GLYPHS, Theme
from treadle.cli.draw.markdown import render_markdown
from treadle.cli.draw.markdown_stream import MarkdownStream
from treadle.cli.draw.run_lines import describe_failure, render_work_line
from treadle.cli.screen import Screen
from treadle.messages import Call

GOLDEN = Path(__file__).parent / "golden"
PAGE = (GOLDEN / "page.md").read_text()
PLAIN, STYLED, FULL = Theme(), Theme(has_style=True), Theme(has_colour=True, has_style=True)
CODES = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;;[!-~]*\x1b\\")
PIECES = ["# a", "word " * 30, "- x\n- y\n  - z", "1. a\n2. b", "> q\nr", "---", "| a | b |\n|---|---|\n| 日本 | c |",
          "```py\nx = 1\n\n\ny = '''\n```", "~~~\nopen", "**bold `code", "    indented", "[l](https://x.example)",
          "\x1b[2J\x07", "é 👩‍🚀", "[r]: https://r.example\n", "see [r]", "a\n===", "", "&#27;"]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_page_is_drawn_as_it_was_approved(width: int) -> None:
    """Set UPDATE_PINS=1 to write the drawings again, and look at them in a terminal: `cat` shows them."""
    drawn = "\n".join(render_markdown(PAGE, width, FULL)) + "\n"
    file = GOLDEN / f"page-{width}.ansi"
    if os.environ.get("UPDATE_PINS"):
        file.write_text(drawn)
    assert drawn == file.read_text()


@pytest.mark.parametrize("width", [20, 60, 80, 120])
def test_no_line_of_the_page_is_wider_than_the_window(width: int) -> None:
    lines = render_markdown(PAGE, width, FULL, wrap_code=True)
    assert [line for line in map(strip_codes, lines) if measure_width(line) > width] == []
    assert all(line == line.rstrip() for line in map(strip_codes, lines))


def test_no_color_removes_hues_only() -> None:
    def list_codes(theme: Theme) -> set[str]:
        drawn = "\n".join(render_markdown(PAGE, 80, theme))
        return {code for codes in re.findall(r"\x1b\[([0-9;]*)m", drawn) for code in codes.split(";")}

    assert {"1", "2", "3", "4"} < list_codes(STYLED) and not {code for code in list_codes(STYLED) if len(code) > 1}
    assert {"32", "35", "36"} < list_codes(FULL)
    assert "\x1b" not in "\n".join(render_markdown(PAGE, 80, PLAIN))


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from(["\n", "\n\n"]), st.data())
@settings(max_examples=150, deadline=None)
def test_a_text_drawn_while_it_is_written_is_the_same_page(
    pieces: list[str], between: str, data: st.DataObject
) -> None:
    text = between.join(pieces)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    stream = MarkdownStream(STYLED, 60)
    lines: list[str] = []
    for start, end in pairwise([0, *places, len(text)]):
        blocks = stream.feed(text[start:end])
        assert all(measure_width(strip_codes(line)) <= 60 for line in stream.draw_open())
        for block in blocks:
            lines += block.lines if block.continues or not lines else ["", *block.lines]
    for block in stream.end():
        lines += block.lines if block.continues or not lines else ["", *block.lines]
    assert lines == render_markdown(text, 60, STYLED)


@given(st.text(alphabet=st.characters() | st.sampled_from("\x1b\x9b\x07\r\u202e[]();`*_|-#>\n "), max_size=200))
@settings(deadline=None)
def test_no_control_character_of_the_model_reaches_the_terminal(text: str) -> None:
    stream = MarkdownStream(FULL, 60)
    fact = events.CallFinished(call_id="c", tool="shell", status="error", output=text)
    started = events.CallStarted(call_id="c", tool="shell", arguments={"command": text})
    drawn = [line for block in stream.feed(text) for line in block.lines] + stream.draw_open()
    drawn += [line for block in stream.end() for line in block.lines]
    drawn += render_markdown(text, 60, FULL) + render_call(fact, {"command": text}, 60, FULL)
    drawn += render_running(RunningCall(started, 0.0, text, []), 1.0, 60, FULL)
    assert [
        line for line in drawn if re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e]", CODES.sub("", line))
    ] == []


@given(st.text(max_size=150), st.integers(24, 130), st.sampled_from([FULL, Theme(glyphs=ASCII_GLYPHS)]))
@settings(deadline=None)
def test_no_line_of_a_call_is_wider_than_the_window(text: str, width: int, theme: Theme) -> None:
    fact = events.CallFinished(call_id="c", tool="shell", status="error", output=f"{text}\n" * 12, duration=2.0)
    started = events.CallStarted(call_id="c", tool="shell", arguments={"command": text})
    call = RunningCall(started, 0.0, text, [])
    lines = render_call(fact, {"command": text}, width, theme) + render_running(call, 9.0, width, theme)
    call.add_step(f"running {text}")
    lines += render_running(call, 9.0, width, theme) + render_plan([("doing", text)], width, theme)
    lines += [
        render_chain([fact] * 4, width, theme),
        render_work_line("Working", ["8 s"], "Esc stops", 1, width, theme),
    ]
    assert [line for line in map(strip_codes, lines) if measure_width(line.expandtabs(1)) > width] == []


def test_a_diff_has_numbers_and_marks_the_words_that_changed() -> None:
    diff = ["--- a", "+++ b", "@@ -9,2 +9,2 @@", " same", "-def count(text):", "+def count(text, model):"]
    diff += ["@@ -40 +40 @@", "-gone"]
    rows = [" 9   same", "10 − def count(text):", "10 + def count(text, model):", "   …", "40 − gone"]
    assert render_diff(diff, 80, PLAIN) == rows
    added = render_diff(diff, 80, FULL)[2]
    assert "\x1b[1;4;32m, model\x1b[0m" in added and "\x1b[32mdef count(text\x1b[0m" in added
    long = ["@@ -1,60 +1,60 @@", *(f"-{number}" for number in range(60))]
    assert strip_codes(render_diff(long, 80, FULL)[-1]) == "… 20 more · /changes"


def test_a_removed_line_that_looks_like_the_name_of_a_file_is_drawn() -> None:
    diff = ["--- a", "+++ b", "@@ -1,2 +1,2 @@", "--- x", "+++ y", " same", "--- c", "+++ d", "@@ -5 +5 @@", "-z"]
    assert render_diff(diff, 80, PLAIN) == ["b", "1 − -- x", "1 + ++ y", "2   same", "d", "5 − z"]
    cut = ["--- a", "+++ b", "@@ -1,9 +1,9 @@", "-x", "[… 8 more lines]", "--- c", "+++ d", "@@ -5 +5 @@", "-z"]
    assert render_diff(cut, 80, PLAIN)[-2:] == ["d", "5 − z"]


def test_the_last_line_of_code_is_highlighted_too() -> None:
    drawn = render_markdown("```diff\n-old\n+new\n```", 80, FULL)
    assert "\x1b[31m-old\x1b[0m" in drawn and "\x1b[32m+new\x1b[0m" in drawn


def test_an_output_that_only_resembles_a_diff_is_no_diff() -> None:
    output = "=== RUN TestA\n--- PASS: TestA (0.00s)\ndiff of both\nPASS"
    fact = events.CallFinished(call_id="c", tool="shell", status="ok", output=output)
    assert render_call(fact, {"command": "go test"}, 80, PLAIN, count=9)[1:] == [f"  │ {x}" for x in output.split("\n")]


class ShownConsole(TerminalConsole):
    """A terminal of 80 columns whose output is kept."""

    def __init__(self) -> None:
        self._shown = io.StringIO()
        super().__init__(self._shown)
        self.has_style = True

    @property
    def width(self) -> int:
        return 80

    @property
    def shown(self) -> str:
        return strip_codes(self._shown.getvalue())


def play(*facts: events.Event) -> tuple[Screen, str]:
    console = ShownConsole()
    screen = Screen(console)
    for fact in (events.RunStarted("r", limits=events.Limits()), events.TurnStarted(turn=1), *facts):
        screen.handle_event(fact)
    return screen, console.shown


def read_calls(count: int) -> list[events.Event]:
    made: list[events.Event] = []
    for number in range(count):
        call_id = f"c{number}"
        path = {"path": f"src/{number}.py"}
        made.append(events.CallStarted(call_id=call_id, tool="read_file", arguments=path, safety="safe"))
        made.append(events.CallFinished(call_id=call_id, tool="read_file", status="ok", output="a\nb", duration=0.4))
    return made


def test_calls_that_only_read_become_one_line_and_unfold() -> None:
    screen, shown = play(*read_calls(4), events.TextDelta("So."), events.ModelReplied(text="So."))
    assert shown == "▸ 4 calls      read_file ×4 · 1.6 s\n\nSo.\n"
    assert strip_codes(screen.unfold()).split("\n")[0] == "✓ read_file    src/0.py · 2 lines · 0.4 s"
    _, shown = play(*read_calls(2), events.RunFinished("r", reason="answered"))
    assert shown.count("✓ read_file") == 2


def test_a_thought_is_one_line_and_unfolds() -> None:
    screen, shown = play(events.ReasoningDelta("hm"), events.TextDelta("Yes."), events.ModelReplied("Yes.", "hm"))
    assert shown == "▸ thought\n\nYes.\n" and strip_codes(screen.unfold()) == "hm"


def test_cut_output_unfolds() -> None:
    output = "\n".join(f"line {number}" for number in range(50))
    screen, shown = play(events.CallFinished(call_id="c", tool="shell", status="ok", output=output))
    assert "  │ … 48 lines above · Ctrl-O shows them\n  │ line 48\n  │ line 49\n" in shown
    whole = screen.unfold()
    assert all(f"line {number}" in whole for number in range(50))


def test_a_long_line_and_a_long_command_unfold() -> None:
    command, output = f"echo {'x' * 200}", "y" * 200 + "\n 9%\r50%\r"
    call = events.CallStarted(call_id="c", tool="shell", arguments={"command": command})
    screen, shown = play(call, events.CallFinished(call_id="c", tool="shell", status="ok", output=output))
    assert "y" * 77 not in shown and "│ 50%" in shown
    whole = strip_codes(screen.unfold())
    assert command in whole and whole.replace("\n  │ ", "").count("y") == 200 and "9%\\x0d50%" in whole


def test_a_command_of_the_user_shows_more_of_its_output() -> None:
    for lines, first in ((20, "line 0"), (21, "… 2 lines above · Ctrl-O shows them")):
        output = "\n".join(f"line {number}" for number in range(lines))
        own = events.TurnStarted(turn=0, calls=(Call("c", "shell", "{}"),))
        _, shown = play(own, events.CallFinished(call_id="c", tool="shell", status="ok", output=output))
        assert shown.splitlines()[1].strip("│ ") == first and shown.count("\n") == 21


def test_what_was_folded_is_unfolded_one_by_one_the_last_first() -> None:
    output = "\n".join(f"line {number}" for number in range(50))
    cut = events.CallFinished(call_id="c", tool="shell", status="ok", output=output)
    screen, _ = play(cut, events.ReasoningDelta("hm"), events.TextDelta("Yes."), events.ModelReplied("Yes.", "hm"))
    assert strip_codes(screen.unfold()) == "hm"
    assert "line 7" in screen.unfold()
    assert screen.unfold() == ""


def test_retries_are_one_calm_line_and_are_counted_afterwards() -> None:
    failed = [events.ModelFailed(kind="internal", message="x", attempt=n, wait=3.0, status=500, at=1.0) for n in (1, 2)]
    assert describe_failure(failed[0], 3.0, events.Limits(attempts=8)) == "Provider error 500, retrying in 3 s (2 of 8)"
    _, shown = play(failed[0], events.ModelReplied(text="Yes."))
    assert shown == "Yes.\n"
    _, shown = play(*failed, events.ModelReplied(text="Yes."))
    assert "! 2 retries, 6 s lost: provider error 500" in shown


def test_an_approval_leaves_one_line() -> None:
    asked = events.ApprovalRequested(
        call_id="c", tool="shell", arguments={"command": "make"}, safety="caution", why="w"
    )
    answered = events.ApprovalAnswered("c", "allow", by="ada")
    for asks_here, shown in ((False, "✓ allowed shell make (by ada)"), (True, "")):  # who asks writes the answer
        console = ShownConsole()
        screen = Screen(console, asks_here=asks_here)
        for fact in (asked, answered):
            screen.handle_event(fact)
        assert [line for line in console.shown.splitlines() if "allowed" in line] == [shown] * bool(shown)
