"""Text for a terminal, questions in words, and messages as they are typed: the pure parts."""

import asyncio
import io
import json
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import ApprovalRequested, ImagePart, TextPart
from treadle.app.approval_preview import preview_diff
from treadle.app.compose import set_progress_listener
from treadle.app.hidden_text import escape_hidden
from treadle.cli import run
from treadle.cli.approval_text import render_approval
from treadle.cli.console import (
    BlockKind,
    TerminalConsole,
    escape_controls,
    format_duration,
    format_table,
    format_time_since,
    measure_width,
    strip_codes,
    truncate_line,
)
from treadle.cli.draw.calls import describe_call, render_call
from treadle.cli.draw.glyphs import Theme
from treadle.cli.draw.run_lines import describe_ending
from treadle.cli.drive import ReportBuilder, RunOutput
from treadle.cli.message_content import build_message
from treadle.cli.picker_rows import PickerRow
from treadle.cli.questions import list_choices, parse_decision, parse_reply
from treadle.cli.screen import Screen
from treadle.cli.terminal import question as question_panel
from treadle.cli.terminal.panel import PanelRoom
from treadle.cli.terminal.picker import Picker
from treadle.cli.terminal.question import ChoiceQuestion, QuestionContent
from treadle.errors import BadInput
from treadle.events import (
    CallFinished,
    CallStarted,
    CallStatus,
    EndReason,
    Limits,
    MessageEdited,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    OutputDelta,
    Progress,
    Question,
    RunFinished,
    RunStarted,
    TextDelta,
    TurnStarted,
)
from treadle.messages import Call, Usage
from treadle.models.local.local_model import LocalModel
from treadle.permissions.policy import PLAN_REFUSAL
from treadle.tools.builtin import build_default_tools


class StatusConsole(TerminalConsole):
    """A terminal that nobody sees, and its last status line."""

    def __init__(self) -> None:
        self._shown = io.StringIO()
        super().__init__(self._shown)
        self.has_style = True
        self.status = ""
        self.open_lines: Sequence[str] = ()

    @property
    def width(self) -> int:
        return 80

    @property
    def shown(self) -> str:
        return self._shown.getvalue()

    def set_open_block(self, lines: Sequence[str], kind: BlockKind = "answer") -> None:
        self.open_lines = lines

    def set_work_line(self, text: str) -> None:
        self.status = text


@pytest.fixture
def console() -> StatusConsole:
    return StatusConsole()


HIDDEN = "\x1b\x00\x07\x08\r\x7f\x9b\u200b\u202e\u2066\u2069\ufeff\u00ad\u2028\U000e0041\ufe0f\u061c"
CONTROLS = "".join(map(chr, (*range(9), *range(11, 32), *range(127, 160))))
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029"


@given(st.text())
def test_nothing_that_is_shown_can_drive_a_terminal(text: str) -> None:
    for shown in (escape_controls(text), escape_hidden(text)):
        assert not any(unicodedata.category(one) in ("Cc", "Cs") or one in BIDI for one in shown if one not in "\n\t")
    assert not set(HIDDEN) & set(escape_hidden(text)) - set("\n\t")


@pytest.mark.parametrize("character", HIDDEN)
def test_every_hidden_character_is_spelled_out_in_an_approval(character: str) -> None:
    assert character not in escape_hidden(f"a{character}b")


@pytest.mark.parametrize(
    ("escape", "text", "shown"),
    [
        (escape_hidden, "\x1b[31m\u202e", "<U+001B>[31m<U+202E>"),
        (escape_hidden, "plain — text, 日本語, é", "plain — text, 日本語, é"),
        (escape_controls, "👩‍🚀 ❤️", "👩‍🚀 ❤️"),
    ],
    ids=["codes", "plain text", "emoji"],
)
def test_codes_are_spelled_out_and_text_stays_whole(escape: Callable[[str], str], text: str, shown: str) -> None:
    assert escape(text) == shown


@given(st.text(), st.integers(2, 40))
def test_a_cut_text_fits_on_a_line(text: str, room: int) -> None:
    line = truncate_line(escape_controls(text), room)
    assert measure_width(line) <= room and "\n" not in line


def test_wide_characters_count_twice() -> None:
    assert [measure_width(text) for text in ("日本", "é", "e\u0301")] == [4, 1, 1]
    assert truncate_line("日本語", 5) == "日本…"


def test_a_table_keeps_its_columns() -> None:
    lines = format_table([["a", "日本", "x\ny" * 20], ["bbb", "c", "z"]], ["one", "two", "three"], 30)
    assert lines[0] == "one  two   three" and lines[2] == "bbb  c     z"
    assert all(measure_width(line) <= 30 for line in lines)


def test_ages_are_short() -> None:
    now = time.time()
    ages = [format_time_since(now - seconds) for seconds in (-1, 5, 59, 60, 3600, 86400, 86400 * 800)]
    assert " ".join(ages) == "0s 5s 59s 1m 1h 1d 2y"


def ask(tool: str = "shell", **more: object) -> ApprovalRequested:
    fields: dict[str, Any] = {"arguments": {"command": "git push && rm -rf build"}, "rule": "shell(git push *)"}
    return ApprovalRequested(call_id="c", tool=tool, safety="caution", why="asked for by *", **{**fields, **more})


@pytest.mark.parametrize(
    ("line", "decision", "scope", "comment"),
    [
        ("y", "allow", "call", ""),
        ("YES ", "allow", "call", ""),
        ("yes please", "allow", "call", ""),
        ("t", "allow", "tool", ""),
        ("p", "allow", "pattern", ""),
        ("n", "deny", "call", ""),
        ("no  use make clean ", "deny", "call", "use make clean"),
    ],
)
def test_an_answer_is_read_as_it_is_typed(line: str, decision: str, scope: str, comment: str, tmp_path: Path) -> None:
    answer = parse_decision(line, ask(), tmp_path)
    assert answer is not None and (answer.decision, answer.scope, answer.comment) == (decision, scope, comment)


@pytest.mark.parametrize("line", ["", "maybe", "yy", "allow", "0", "\x1b"])
def test_another_line_is_no_answer(tmp_path: Path, line: str) -> None:
    with pytest.raises(BadInput, match="answer y, p, a, t, n or l"):
        parse_decision(line, ask(), tmp_path)
    assert parse_decision("l", ask(), tmp_path) is None


@pytest.mark.parametrize("line", ["t", "p", "a"])
def test_a_call_that_may_only_be_allowed_once_offers_no_more(tmp_path: Path, line: str) -> None:
    with pytest.raises(BadInput, match="answer y, n or l"):
        parse_decision(line, ask(once=True), tmp_path)
    assert list(list_choices(ask(once=True))) == ["y", "n", "l"]


def test_what_is_allowed_for_good_is_kept_for_this_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    assert parse_decision("a", ask(), tmp_path) is not None
    (rule,) = json.loads((tmp_path / "data" / "rules.json").read_text())["rules"]
    assert rule.pop("saved_at") > 0 and rule == {"pattern": "shell(git push *)", "workspace": str(tmp_path)}


def test_a_list_of_lines_is_shown_line_by_line_and_another_one_exactly(tmp_path: Path) -> None:
    arguments = {"commits": ["571af42 x", "12acb2b Add f"], "forged": ["one\n- two"], "one": ["~/data"], "none": []}
    question = msgspec.structs.replace(ask(), tool="git_remote", arguments=arguments)
    shown = "\n".join(render_approval(question, {}, tmp_path, 80, Theme()))
    assert "commits:\n  - 571af42 x\n  - 12acb2b Add f\n" in shown, shown
    assert '"one\\n- two"' in shown and "\none: - ~/data\n" in shown and "\nnone: []" in shown, shown


def test_a_compound_command_is_shown_part_by_part(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in build_default_tools()}
    lines = render_approval(ask(), tools, tmp_path, 80, Theme())
    assert lines[:2] == ["git push && rm -rf build", ""]
    assert [line.split("  ")[0] for line in lines[2:4]] == ["1 git push", "2 rm -rf build"]


@pytest.mark.parametrize(
    ("tool", "arguments", "diff"),
    [
        ("write_file", {"path": "a.txt", "content": "one\n2\nthree\n"}, [" one", "-two", "+2", " three"]),
        ("edit_file", {"path": "a.txt", "old": "two", "new": "2"}, [" one", "-two", "+2", " three"]),
        ("write_file", {"path": "new.txt", "content": "x"}, ["+x"]),
        ("read_file", {"path": "a.txt"}, []),
        ("apply_patch", {"patch": "--- a\n+++ b"}, ["--- a", "+++ b"]),
    ],
)
def test_the_diff_of_a_change_is_shown(tmp_path: Path, tool: str, arguments: dict[str, Any], diff: list[str]) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    lines = preview_diff(tool, arguments, tmp_path)
    assert lines[len(lines) - len(diff) :] == diff and bool(lines) == bool(diff)


def test_a_long_question_is_drawn_seldom_and_its_end_is_one_key_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_panel, "BODY_SECONDS", 3600.0)

    class Place:
        def type_text(self, text: str) -> None: ...
        def update_focus(self) -> None: ...

    async def scroll() -> None:
        drawn: list[int] = []

        def render(theme: Theme, width: int) -> list[str]:
            drawn.append(width)
            return [f"line {number}" for number in range(500)]

        content = QuestionContent("Really?", render, (("y", "yes"), ("n", "no")))
        question = ChoiceQuestion(content, Place(), lambda key: None)
        question.enable()
        room = PanelRoom(Theme(), 80, 24)
        for _ in range(20):
            question.render_above(room)
        question.press("y", "")
        assert len(drawn) == 1 and not question.is_done, "its end was not shown"
        question.press("end", "")
        assert "line 499" in "".join(question.render_above(room))
        question.press("y", "")
        assert question.result.result().key == "y"

    asyncio.run(scroll())


def test_a_question_draws_the_diff_of_a_file_with_every_character(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- old note\nselect one;\n")
    content = f"++ new\u200b note\nselect two;\n{'日本 ' * 40}\n"
    question = msgspec.structs.replace(ask(), tool="write_file", arguments={"path": "a.sql", "content": content})
    lines = render_approval(question, {}, tmp_path, 60, Theme())
    assert lines[:5] == ["path: a.sql", "", "1 − -- old note", "2 − select one;", "1 + ++ new<U+200B> note"]
    assert "".join(line.removeprefix("3 +").strip() for line in lines[6:]).replace(" ", "")[:80] == "日本" * 40
    assert all(measure_width(line) <= 60 for line in lines)
    drawn = render_approval(question, {}, tmp_path, 60, Theme(has_colour=True, has_style=True))
    assert [strip_codes(line).rstrip() for line in drawn] == lines


def test_an_option_is_chosen_by_number_or_in_words() -> None:
    question = Question("Which?", ("red", "blue"))
    assert (parse_reply("2", question), parse_reply(" green ", question)) == ("blue", "green")
    for line, asked in (("", question), ("green", Question("Which?", ("red", "blue"), strict=True))):
        with pytest.raises(BadInput):
            parse_reply(line, asked)


def test_a_mention_of_a_file_adds_it_and_anything_else_stays_text(tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("spaced")
    (tmp_path / "a.txt").write_text("plain")
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    parts = build_message('see @a.txt, @"a b.txt" @dot.png me@a.txt @none @a.txt.', tmp_path)
    assert parts[0] == TextPart('see @a.txt, @"a b.txt" @dot.png me@a.txt @none @a.txt.')
    assert [type(part) for part in parts[1:]] == [TextPart, TextPart, ImagePart]
    assert "plain" in str(parts[1]) and "spaced" in str(parts[2])


def test_a_link_of_the_workspace_attaches_nothing_from_outside(tmp_path: Path) -> None:
    folder, key = tmp_path / "work", tmp_path / "id_rsa"
    folder.mkdir()
    key.write_text("the key")
    (folder / "notes.md").symlink_to(key)
    (folder / "real.md").write_text("mine")
    (folder / "alias.md").symlink_to("real.md")
    with pytest.raises(BadInput, match="a link to"):
        build_message("see @notes.md", folder)
    assert len(build_message(f"see @alias.md and @{key}", folder)) == 3, "the user names a file outside by its own name"


def test_a_file_that_is_too_large_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("x" * 300_000)
    with pytest.raises(BadInput, match="300000 bytes"):
        build_message("read @big.txt", tmp_path)
    with pytest.raises(BadInput, match="is not an image"):
        build_message("look", tmp_path, [str(tmp_path / "big.txt")])


def test_a_wait_that_does_not_fit_loses_its_last_fact_and_no_key(console: StatusConsole) -> None:
    screen = Screen(console)
    screen.retry_keys = "Enter tries now, Ctrl-C stops"
    now = time.time()
    failed = ModelFailed("network", "x", wait=3600.0, at=now, give_up_at=now + 9000)
    for fact in (RunStarted("r", limits=Limits()), TurnStarted(turn=1), failed):
        screen.handle_event(fact)
    shown = strip_codes(console.status)
    assert shown.endswith(" (2) · Enter tries now, Ctrl-C stops"), shown


PLAN = [{"text": "look", "status": "done"}, {"text": "mend", "status": "doing"}, {"text": "rest", "status": "pending"}]
LINES = "\n".join(f"line {number}" for number in range(20))


@pytest.mark.parametrize(
    ("tool", "status", "arguments", "output", "shown"),
    [
        (
            "shell",
            "error",
            {"command": "make\x1b[2J"},
            f"{LINES}\n[exit code 2]",
            ["✗ shell        make\\x1b[2J · exit 2 · 1.2 s", "  │ … 13 lines above · Ctrl-O shows them",
             *(f"  │ line {n}" for n in range(13, 20))],
        ),
        (
            "edit_file",
            "ok",
            {"path": "a"},
            "Changed.\n--- a\n+++ b\n@@ -7,2 +7,2 @@\n one\n-x\n+y\n@@ -20 +20 @@\n-z",
            ["✓ edit_file    a · +1 −2 · 1.2 s", "   7   one", "   8 − x", "   8 + y", "     …", "  20 − z"],
        ),
        ("todo", "ok", {"items": PLAN}, "noted", ["✓ todo         1 of 3, now: mend · 1.2 s"]),
        ("shell", "denied", {"command": "git push"}, "Denied: no.", ["⊘ shell        git push · denied: no · 1.2 s"]),
        (
            "write_file", "denied", {"path": "x.py"}, f"Denied: {PLAN_REFUSAL} (why). Do without it.",
            ["⊘ write_file   x.py · denied: plan mode · 1.2 s"],
        ),
        (
            "shell", "denied", {"command": "git push"}, f"Denied: {'no more of this ' * 6}now.",
            ["⊘ shell        git push · denied · 1.2 s", f"  │ Denied:{' no more of this' * 4} no",
             "  │ more of this no more of this now."],
        ),
        (
            "edit_file", "error", {"path": "a"}, f"Nothing was changed: {'a b ' * 20}",
            ["✗ edit_file    a · failed · 1.2 s", f"  │ Nothing was changed:{' a b' * 14}", f"  │ a b{' a b' * 5}"],
        ),
        ("write_file", "ok", {"path": "n"}, "Made n (9 bytes, 2 lines).", ["✓ write_file   n · +2 · 1.2 s"]),
        ("shell", "ok", {"command": "pull"}, " 9%\r50%\r\rall\r\n", ["✓ shell        pull · 1.2 s", "  │ all"]),
        ("\x1b[2J", "error", {}, "No.", ["✗ \\x1b[2J       · No · 1.2 s"]),
        ("shell", "interrupted", {"command": "x"}, "", ["! shell        x · may have run; not run again · 1.2 s"]),
    ],
    ids=["the end of a command's output", "the diff of an edit", "a plan", "a denial", "a denial in plan mode",
         "a long reason", "a long error", "a new file", "a line that was overwritten", "an invented tool",
         "an unknown end"],
)  # fmt: skip
def test_a_call_is_shown_by_what_it_did(
    tool: str, status: CallStatus, arguments: dict[str, Any], output: str, shown: list[str]
) -> None:
    finished = CallFinished(call_id="c", tool=tool, status=status, output=output, duration=1.25)
    assert render_call(finished, arguments, 80, Theme()) == shown


def test_a_tool_that_a_model_made_up_cannot_drive_the_terminal() -> None:
    finished = CallFinished(call_id="c", tool="x\x1b]0;title\x07\ny", status="error", output="There is no tool.")
    for shown in (*render_call(finished, {}, 80, Theme()), describe_call(finished, {})):
        assert "x\\x1b]0;title\\x07 y" in shown and not set(CONTROLS) & set(shown)


def test_a_picker_shows_nothing_that_drives_the_terminal() -> None:
    rows = [
        PickerRow("a", f"a{HIDDEN}", (f"fact{HIDDEN}",), f"words{HIDDEN}"),
        PickerRow("b", "b", problem=f"b{HIDDEN}"),
    ]
    room = PanelRoom(Theme(), 400, 24)

    async def pick() -> list[str]:
        picker = Picker("Agent", rows)
        first = picker.render_below(room)
        picker.press("down", "")
        picker.press("enter", "")
        assert not picker.is_done  # it says why not
        return [*first, *picker.render_below(room)]

    shown = "".join(asyncio.run(pick()))
    assert not set(shown) & set(CONTROLS)
    assert all(f"{word}\\x1b" in shown for word in ("▸ a", "fact", "words", "! b"))


def test_a_run_that_waits_says_for_what_and_what_it_has_used() -> None:
    tally = ReportBuilder()
    tally.handle_event(ModelReplied(usage=Usage(11, 7)))
    tally.handle_event(CallFinished(call_id="c", tool="delegate", status="ok", usage=Usage(2, 1)))
    tally.handle_event(ask())
    report = tally.build_report("s", None)
    assert (report.status, report.exit_code, report.pending[0]["tool"]) == ("waiting", 4, "shell")
    assert report.usage == Usage(13, 8)


@pytest.mark.parametrize(
    ("reason", "error", "shown"),
    [("cancelled", "cancelled by user: enough", "Cancelled by user: enough"), ("failed", "no key", "Failed: no key")],
)
def test_an_ending_is_not_told_twice(reason: EndReason, error: str, shown: str) -> None:
    assert describe_ending(RunFinished("r", reason, error=error)) == shown


def test_a_message_is_shown_as_it_was_edited_and_not_if_it_was_withdrawn(console: StatusConsole) -> None:
    screen = Screen(console)
    received = [MessageReceived(id=name, parts=[TextPart(f"{name} first")]) for name in "ab"]
    edits = [MessageEdited(id="a", parts=[TextPart("a second")]), MessageEdited(id="b"), MessageEdited(id="c")]
    begun, ended = RunStarted(run_id="r1", limits=Limits()), RunFinished(run_id="r1", reason="answered")
    for event in (begun, *received, *edits, TurnStarted(turn=2, messages=("a", "b")), ended):
        screen.handle_event(event)
    assert "a second" in console.shown and "first" not in console.shown


def test_a_run_under_way_is_recalled_whole_and_goes_on_in_the_work_line(console: StatusConsole) -> None:
    screen = Screen(console)
    facts = [
        MessageReceived(seq=1, id="a", parts=[TextPart("long ago")]),
        RunStarted(seq=2, run_id="r1", limits=Limits()),
        RunFinished(seq=3, run_id="r1", reason="answered"),
        MessageReceived(seq=4, id="b", parts=[TextPart("tidy up")]),
        RunStarted(seq=5, run_id="r2", limits=Limits(turns=7)),
        MessageReceived(seq=6, id="c", parts=[TextPart("with tabs")]),
        TurnStarted(seq=7, turn=3, messages=("c",)),
    ]
    screen.show_history(facts)
    assert strip_codes(console.shown) == "› tidy up\n\n› with tabs  steered · turn 3\n" and "turn 3" in console.status
    screen.show_history([*facts, RunFinished(seq=8, run_id="r2", reason="answered")])
    assert console.status == ""


def test_a_restored_run_is_in_the_work_line_and_its_calls_keep_their_arguments(console: StatusConsole) -> None:
    facts = [
        RunStarted(seq=1, run_id="r1", limits=Limits(turns=7)),
        TurnStarted(seq=2, turn=3),
        ModelReplied(seq=3, text="on it", calls=[Call("c", "shell", '{"command": "make"}')]),
    ]
    screen = Screen(console)
    screen.restore_run(facts)
    screen.redraw_status()
    assert console.shown == "" and "turn 3" in console.status
    screen.handle_event(CallFinished(seq=4, call_id="c", tool="shell", status="ok", output="built"))
    assert strip_codes(console.shown) == "✓ shell        make\n  │ built\n"
    over = Screen(StatusConsole())
    over.restore_run([*facts, RunFinished(seq=4, run_id="r1", reason="answered")])
    assert not over.is_running


def test_a_file_that_goes_with_a_message_is_named_and_not_poured_out(console: StatusConsole, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("".join(f"line {number}\n" for number in range(400)))
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    parts = build_message("see @long.txt and\n@dot.png", tmp_path)
    Screen(console).handle_event(MessageReceived(seq=1, id="a", parts=parts))
    shown = "› see @long.txt and\n  @dot.png\n  The file long.txt: … 400 lines\n  [image]\n"
    assert strip_codes(console.shown) == shown


def test_a_running_call_shows_its_last_lines_and_the_work_line_the_turn(console: StatusConsole) -> None:
    screen = Screen(console)
    screen.window = 4000
    used = Usage(input_tokens=1900, output_tokens=100, cost=0.0125)
    screen.handle_event(RunStarted("r", limits=Limits(turns=7)))
    screen.handle_event(TurnStarted(turn=2, tools=True))
    screen.handle_event(ModelReplied(calls=(Call("c", "shell", '{"command": "make"}'),), usage=used))
    screen.handle_event(CallStarted(call_id="c", tool="shell", arguments={"command": "make"}))
    screen.handle_event(OutputDelta("c", "".join(f"step {number}\n" for number in range(9))))
    screen.redraw_status()
    lines = ["● shell        make · 0 s", "  │ step 6", "  │ step 7", "  │ step 8"]
    assert list(map(strip_codes, console.open_lines)) == lines
    assert strip_codes(console.status)[2:] == "Working · 0 s · turn 2 · 100 tokens out · Esc stops"
    assert screen.status_facts() == (0.5, 0.0125)
    screen.handle_event(CallFinished(call_id="c", tool="shell", status="ok", output="cc -o a\n"))
    assert not console.open_lines and strip_codes(console.shown) == "✓ shell        make\n  │ cc -o a\n"


def test_a_model_that_gets_ready_says_so_in_the_work_line_until_it_writes(console: StatusConsole) -> None:
    screen = Screen(console)
    screen.handle_event(RunStarted("r", limits=Limits()))
    screen.handle_event(TurnStarted(turn=1, tools=True))
    screen.handle_event(Progress("learning the tools", done=3, total=12))
    assert "Learning the tools 25% · " in strip_codes(console.status)
    screen.handle_event(TurnStarted(turn=2, tools=True))
    assert "Thinking · " in strip_codes(console.status)


@pytest.mark.parametrize("form", ["--json", "plain"])
async def test_a_model_that_gets_ready_says_each_thing_once_without_a_terminal(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show = RunOutput(run.parser().parse_args(["x", *([form] if form != "plain" else [])]))
    model = LocalModel()
    set_progress_listener(model, show.show_progress)
    assert model.progress is not None
    for done in range(3):
        await asyncio.to_thread(model.progress, "learning the tools", done, 3)
    await asyncio.to_thread(model.progress, "loading", 1, 1)
    await asyncio.sleep(0)
    told = capsys.readouterr()
    lines = told.err.splitlines()
    start = "" if form == "--json" else "treadle: "
    words = [json.loads(line)["message"] for line in lines] if form == "--json" else lines
    assert (words, told.out) == ([f"{start}learning the tools", f"{start}loading"], "")


@given(st.lists(st.text(alphabet="ab*`#-~", min_size=1, max_size=12), min_size=1, max_size=12), st.integers(1, 5))
def test_a_plain_console_gives_prose_back_as_it_is_however_it_is_cut(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    stream = io.StringIO()
    screen = Screen(TerminalConsole(stream))
    for start in range(0, len(text), size):
        screen.handle_event(TextDelta(text[start : start + size]))
    screen.end_text()
    assert stream.getvalue() == f"{text}\n"


@pytest.mark.parametrize(
    ("words", "objective", "approve", "forbid"),
    [
        (["look", "--approve", "a", "b(c d)"], "look", ["a", "b(c d)"], None),
        (["--approve", "a", "--approve", "b", "look"], "look", ["a", "b"], None),
        (["--approve", "a", "look around"], "look around", ["a"], None),
        (["--approve", "a", "b", "look around", "--forbid", "c"], "look around", ["a", "b"], ["c"]),
        (["--forbid", "shell(rm *)", "-"], "-", None, ["shell(rm *)"]),
        (["--session", "x", "--approve", "a", "b"], None, ["a", "b"], None),
        (["--session", "x", "--approve", "a", "go on, please"], "go on, please", ["a"], None),
        (["--approve", "a"], None, ["a"], None),
    ],
)
def test_an_objective_behind_a_list_of_globs_is_found(
    words: list[str], objective: str | None, approve: list[str] | None, forbid: list[str] | None
) -> None:
    args = run.parser().parse_args(words)
    assert run.find_objective(args) == objective
    assert (args.approve, args.forbid) == (approve, forbid)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "3.0 s"), (42, "42 s"), (301, "5m 01s"), (5999, "1h 39m"), (50_000, "13h 53m"), (86_400, "24h 00m")],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
