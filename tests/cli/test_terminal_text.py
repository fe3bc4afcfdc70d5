"""Text for a terminal, questions in words, and messages as they are typed: the pure parts."""

import asyncio
import io
import json
import re
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import ApprovalRequested, ImagePart, TextPart
from treadle.app.compose import set_progress_listener
from treadle.cli import run
from treadle.cli.console import (
    TerminalConsole,
    escape_controls,
    escape_hidden,
    format_table,
    format_time_since,
    measure_width,
    truncate_line,
)
from treadle.cli.drive import ReportBuilder, RunOutput
from treadle.cli.message_content import build_message
from treadle.cli.question_text import parse_decision, parse_reply, preview_diff, render_approval, render_choices
from treadle.cli.screen import MarkdownStyler, Screen, describe_ending, render_call
from treadle.errors import BadInput
from treadle.events import (
    CallFinished,
    CallStarted,
    Limits,
    MessageReceived,
    ModelReplied,
    OutputDelta,
    Progress,
    Question,
    RunFinished,
    RunStarted,
    TurnStarted,
)
from treadle.messages import Call, Usage
from treadle.models.local.local_model import LocalModel
from treadle.tools.builtin import build_default_tools


class Tailed(TerminalConsole):
    """A terminal that nobody sees, and its last tail."""

    def __init__(self) -> None:
        self._shown = io.StringIO()
        super().__init__(self._shown)
        self.tail_text = ""

    @property
    def shown(self) -> str:
        return self._shown.getvalue()

    def set_status(self, text: str) -> None:
        self.tail_text = text


HIDDEN = "\x1b\x00\x07\x08\r\x7f\x9b\u200b\u202e\u2066\u2069\ufeff\u00ad\u2028\U000e0041\ufe0f\u061c"


@given(st.text())
def test_nothing_that_is_shown_can_drive_a_terminal(text: str) -> None:
    for shown in (escape_controls(text), escape_hidden(text)):
        for character in shown:
            assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")
            assert (
                character not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029"
            )


@given(st.text())
def test_what_is_approved_has_nothing_hidden_in_it(text: str) -> None:
    assert not any(unicodedata.category(one) == "Cf" and one in HIDDEN for one in escape_hidden(text))
    assert escape_hidden("plain — text, 日本語, é") == "plain — text, 日本語, é"


def test_every_hidden_character_is_spelled_out() -> None:
    for character in HIDDEN:
        assert character not in escape_hidden(f"a{character}b"), hex(ord(character))
    assert escape_hidden("\x1b[31m") == "\\x1b[31m" and escape_hidden("\u202e") == "\\u202e"


def test_emoji_stay_whole_in_prose() -> None:
    assert escape_controls("👩‍🚀 ❤️") == "👩‍🚀 ❤️"


@given(st.text(), st.integers(2, 40))
def test_a_cut_text_fits_on_a_line(text: str, room: int) -> None:
    line = truncate_line(escape_controls(text), room)
    assert measure_width(line) <= room and "\n" not in line


def test_wide_characters_count_twice() -> None:
    assert (
        measure_width("日本") == 4
        and truncate_line("日本語", 5) == "日本…"
        and measure_width("é") == 1
        and measure_width("e\u0301") == 1
    )


def test_a_table_keeps_its_columns() -> None:
    lines = format_table([["a", "日本", "x\ny" * 20], ["bbb", "c", "z"]], ["one", "two", "three"], 30)
    assert lines[0] == "one  two   three" and lines[2] == "bbb  c     z"
    assert all(measure_width(line) <= 30 for line in lines)


def test_ages_are_short() -> None:
    assert [format_time_since(time.time() - s) for s in (-1, 5, 59, 60, 3600, 86400, 86400 * 800)] == [
        "0s",
        "5s",
        "59s",
        "1m",
        "1h",
        "1d",
        "2y",
    ]


def asked(tool: str = "shell", **more: object) -> ApprovalRequested:
    given: dict[str, object] = {"arguments": {"command": "git push && rm -rf build"}, "rule": "shell(git push *)"}
    return ApprovalRequested(call_id="c", tool=tool, safety="caution", why="asked for by *", **{**given, **more})  # type: ignore[arg-type]


def test_answers_are_read_as_they_are_typed(tmp_path: Path) -> None:
    for line, decided, scope, comment in [
        ("y", "allow", "call", ""),
        ("YES ", "allow", "call", ""),
        ("t", "allow", "tool", ""),
        ("p", "allow", "pattern", ""),
        ("n", "deny", "call", ""),
        ("no  use make clean ", "deny", "call", "use make clean"),
    ]:
        answer = parse_decision(line, asked(), tmp_path)
        assert answer is not None and (answer.decision, answer.scope, answer.comment) == (decided, scope, comment)
    assert parse_decision("l", asked(), tmp_path) is None


@pytest.mark.parametrize("line", ["", "maybe", "yy", "allow", "0", "yes please", "\x1b"])
def test_anything_else_is_no_answer(tmp_path: Path, line: str) -> None:
    if line == "yes please":  # a yes with more words is still a yes, and the words are for nobody
        assert parse_decision(line, asked(), tmp_path) is not None
        return
    with pytest.raises(BadInput, match="answer y, t, p, a, n or l"):
        parse_decision(line, asked(), tmp_path)


@pytest.mark.parametrize("line", ["t", "p", "a"])
def test_what_may_only_be_allowed_once_offers_no_more(tmp_path: Path, line: str) -> None:
    question = asked(once=True)
    with pytest.raises(BadInput, match="answer y, n or l"):
        parse_decision(line, question, tmp_path)
    assert len(render_choices(question)) == 3


def test_what_is_allowed_for_good_is_kept_for_this_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    assert parse_decision("a", asked(), tmp_path) is not None
    (rule,) = json.loads((tmp_path / "data" / "rules.json").read_text())["rules"]
    assert rule == {"pattern": "shell(git push *)", "workspace": str(tmp_path)}


def test_a_compound_command_is_shown_part_by_part(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in build_default_tools()}
    lines = render_approval(asked(), tools, tmp_path, 80, colour=False)
    at = lines.index("  it consists of:")
    assert [line.strip() for line in lines[at + 1 : at + 3]] == ["git push", "rm -rf build"]


def test_the_diff_of_a_write_and_of_an_edit_is_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    written = preview_diff("write_file", {"path": "a.txt", "content": "one\n2\nthree\n"}, tmp_path)
    edited = preview_diff("edit_file", {"path": "a.txt", "old": "two", "new": "2"}, tmp_path)
    for lines in (written, edited):
        assert "-two" in lines and "+2" in lines and " one" in lines
    assert preview_diff("write_file", {"path": "new.txt", "content": "x"}, tmp_path)[-1] == "+x"
    assert preview_diff("read_file", {"path": "a.txt"}, tmp_path) == []
    assert preview_diff("apply_patch", {"patch": "--- a\n+++ b"}, tmp_path) == ["--- a", "+++ b"]


def test_an_option_is_chosen_by_number_or_in_words() -> None:
    question = Question("Which?", ("red", "blue"))
    assert (parse_reply("2", question), parse_reply(" green ", question)) == ("blue", "green")
    with pytest.raises(BadInput):
        parse_reply("", question)
    with pytest.raises(BadInput):
        parse_reply("green", Question("Which?", ("red", "blue"), strict=True))


def test_a_mention_of_a_file_adds_it_and_anything_else_stays_text(tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("spaced")
    (tmp_path / "a.txt").write_text("plain")
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    parts = build_message('see @a.txt, @"a b.txt" @dot.png me@a.txt @none @a.txt.', tmp_path)
    assert parts[0] == TextPart('see @a.txt, @"a b.txt" @dot.png me@a.txt @none @a.txt.')
    assert [type(part) for part in parts[1:]] == [TextPart, TextPart, ImagePart]
    assert "plain" in str(parts[1]) and "spaced" in str(parts[2])


def test_a_file_that_is_too_large_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("x" * 300_000)
    with pytest.raises(BadInput, match="300000 bytes"):
        build_message("read @big.txt", tmp_path)
    with pytest.raises(BadInput, match="is not an image"):
        build_message("look", tmp_path, [str(tmp_path / "big.txt")])


def test_the_end_of_a_commands_output_is_shown_and_its_diff_where_it_has_one() -> None:
    output = "\n".join(f"line {number}" for number in range(20))
    lines = render_call(
        CallFinished(call_id="c", tool="shell", status="error", output=output, duration=1.25),
        {"command": "make\x1b[2J"},
        80,
        colour=False,
    )
    assert lines[0] == "✗ shell make\\x1b[2J · error · 1.2 s"
    assert lines[1] == "  … 14 lines above" and lines[-1] == "  line 19"
    diff = CallFinished(
        call_id="c", tool="edit_file", status="ok", output="Changed.\n--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y"
    )
    assert render_call(diff, {"path": "a"}, 80, colour=False)[1:] == [
        "  --- a",
        "  +++ b",
        "  @@ -1 +1 @@",
        "  -x",
        "  +y",
    ]


def test_a_run_that_waits_says_for_what() -> None:
    tally = ReportBuilder()
    tally.handle_event(asked())
    report = tally.build_report("s", None)
    assert (report.status, report.exit_code, report.pending[0]["tool"]) == ("waiting", 4, "shell")


def test_a_run_that_waits_says_what_it_has_used() -> None:
    tally = ReportBuilder()
    tally.handle_event(ModelReplied(usage=Usage(11, 7)))
    tally.handle_event(CallFinished(call_id="c", tool="delegate", status="ok", usage=Usage(2, 1)))
    assert tally.build_report("s", None).usage == Usage(13, 8)


def test_an_ending_is_not_told_twice() -> None:
    assert (
        describe_ending(RunFinished("r", "cancelled", error="cancelled by user: enough")) == "cancelled by user: enough"
    )
    assert describe_ending(RunFinished("r", "failed", error="no key")) == "failed: no key"


def test_a_run_under_way_is_recalled_whole_and_goes_on_in_the_tail() -> None:
    stage = Tailed()
    screen = Screen(stage)
    facts = [
        MessageReceived(seq=1, id="a", parts=[TextPart("long ago")]),
        RunStarted(seq=2, run_id="r1", limits=Limits()),
        RunFinished(seq=3, run_id="r1", reason="answered"),
        MessageReceived(seq=4, id="b", parts=[TextPart("tidy up")]),
        RunStarted(seq=5, run_id="r2", limits=Limits(turns=7)),
        TurnStarted(seq=6, turn=3),
        MessageReceived(seq=7, id="c", parts=[TextPart("with tabs")]),
    ]
    screen.show_history(facts)
    assert stage.shown == "› tidy up\n› with tabs\n" and "turn 3/7" in stage.tail_text
    screen.show_history([*facts, RunFinished(seq=8, run_id="r2", reason="answered")])
    assert stage.tail_text == ""


def test_a_run_that_is_taken_up_is_in_the_tail_and_its_calls_keep_their_arguments() -> None:
    facts = [
        RunStarted(seq=1, run_id="r1", limits=Limits(turns=7)),
        TurnStarted(seq=2, turn=3),
        ModelReplied(seq=3, text="on it", calls=[Call("c", "shell", '{"command": "make"}')]),
    ]
    stage = Tailed()
    screen = Screen(stage)
    screen.restore_run(facts)
    screen.redraw_status()
    assert stage.shown == "" and "turn 3/7" in stage.tail_text
    screen.handle_event(CallFinished(seq=4, call_id="c", tool="shell", status="ok", output="built"))
    assert stage.shown == "✓ shell make\n  built\n"
    over = Screen(Tailed())
    over.restore_run([*facts, RunFinished(seq=4, run_id="r1", reason="answered")])
    assert not over.is_running


def test_a_file_that_goes_with_a_message_is_named_and_not_poured_out(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("".join(f"line {number}\n" for number in range(400)))
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    parts = build_message("see @long.txt and\n@dot.png", tmp_path)
    stage = Tailed()
    Screen(stage).handle_event(MessageReceived(seq=1, id="a", parts=parts))
    assert stage.shown == "› see @long.txt and\n@dot.png\n  The file long.txt: … 400 lines\n  [image]\n"


def test_the_tail_tells_turn_calls_context_tokens_and_cost() -> None:
    stage = Tailed()
    screen = Screen(stage, window=4000)
    used = Usage(input_tokens=1900, output_tokens=100, cost=0.0125)
    screen.handle_event(RunStarted("r", limits=Limits(turns=7)))
    screen.handle_event(TurnStarted(turn=2, tools=True))
    screen.handle_event(ModelReplied(calls=(Call("c", "shell", '{"command": "make"}'),), usage=used))
    screen.handle_event(CallStarted(call_id="c", tool="shell", arguments={"command": "make"}))
    screen.handle_event(OutputDelta("c", "cc -o a\n"))
    told = re.sub(r"\d+\.\d s", "N s", stage.tail_text)
    assert told == "shell make N s · cc -o a · turn 2/7 · 0 calls · context 50% · 2.0k tokens · $0.0125"
    screen.handle_event(CallFinished(call_id="c", tool="shell", status="ok", output="cc -o a\n"))
    assert "· turn 2/7 · 1 call · context" in stage.tail_text


def test_a_model_that_gets_ready_says_so_in_the_tail_until_it_writes() -> None:
    stage = Tailed()
    screen = Screen(stage)
    screen.handle_event(RunStarted("r", limits=Limits()))
    screen.handle_event(TurnStarted(turn=1, tools=True))
    screen.handle_event(Progress("learning the tools", done=3, total=12))
    assert stage.tail_text.startswith("learning the tools 25% ")
    screen.handle_event(TurnStarted(turn=2, tools=True))
    assert stage.tail_text.startswith("thinking ")


@pytest.mark.parametrize("form", ["--json", "plain"])
async def test_a_model_that_gets_ready_says_each_thing_once_without_a_terminal(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show = RunOutput(run.parser().parse_args(["x", *([form] if form != "plain" else [])]))
    model = LocalModel()
    set_progress_listener(model, show.build_progress_listener())
    assert model.progress is not None
    for done in range(3):
        await asyncio.to_thread(model.progress, "learning the tools", done, 3)
    await asyncio.to_thread(model.progress, "loading", 1, 1)
    await asyncio.sleep(0)
    told = capsys.readouterr()
    lines = told.err.splitlines()
    words = [json.loads(line)["message"] for line in lines] if form == "--json" else lines
    assert (words, told.out) == (["learning the tools …", "loading …"], "")


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_markdown_is_painted_a_line_at_a_time_and_code_is_left_alone() -> None:
    painter = MarkdownStyler()
    lines = ["## Why", "- it is **red**, see `make`", "```", "- **not** `this`", "```", "2 * 3 * 4 and **", "> said"]
    painted = [painter.style_line(line) for line in lines]
    assert [bare(line) for line in painted] == [
        "Why",
        "• it is red, see make",
        "```",
        "- **not** `this`",
        "```",
        "2 * 3 * 4 and **",
        "> said",
    ]
    assert painted[1] == "• it is \x1b[1mred\x1b[0m, see \x1b[36mmake\x1b[0m"


@given(st.lists(st.text(alphabet="ab*`#-~ \n", max_size=12), max_size=12), st.integers(1, 5))
def test_a_plain_stage_gives_prose_back_as_it_is_however_it_is_cut(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    stream = io.StringIO()
    stage, painter = TerminalConsole(stream), MarkdownStyler()
    for start in range(0, len(text), size):
        stage.write(text[start : start + size], painter.style_line)
    assert stream.getvalue() == text


def test_a_plan_is_shown_as_one() -> None:
    plan = [
        {"text": "look", "status": "done"},
        {"text": "mend", "status": "doing"},
        {"text": "rest", "status": "pending"},
    ]
    done = CallFinished(call_id="c", tool="todo", status="ok", output="noted")
    assert render_call(done, {"items": plan}, 80, colour=False) == [
        "✓ todo 1 of 3 done",
        "  ☑ look",
        "  ▸ mend",
        "  ☐ rest",
    ]


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
def test_an_objective_behind_a_list_of_globs_is_told_from_them(
    words: list[str], objective: str | None, approve: list[str] | None, forbid: list[str] | None
) -> None:
    args = run.parser().parse_args(words)
    assert run.find_objective(args) == objective
    assert (args.approve, args.forbid) == (approve, forbid)
