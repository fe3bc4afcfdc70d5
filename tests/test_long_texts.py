"""Texts made to be slow to read. Who searches them again from each of their letters takes minutes."""

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from treadle.app.hidden_text import escape_hidden
from treadle.cli.console import truncate_line, wrap_rows
from treadle.cli.draw.diff import render_diff
from treadle.cli.draw.glyphs import Theme
from treadle.cli.draw.markdown import render_markdown
from treadle.dialects.responses_tools import read_custom_input
from treadle.engine.implicit_signals import find_implicit_signals
from treadle.engine.leaked_reasoning import ReasoningSplitter, split_reasoning
from treadle.engine.reply import MarkSplitter, split_marks
from treadle.engine.tool_call import remove_control_characters
from treadle.errors import BadInput
from treadle.export.import_session import parse_json_lines
from treadle.knowledge.agents import read_sections
from treadle.knowledge.front_matter import read_document
from treadle.knowledge.skills import frame_text
from treadle.log.full_text import build_match_query, make_snippet, prepare_for_index
from treadle.messages import Call, ToolSpec
from treadle.models.failures import extract_message, extract_param, parse_retry_after
from treadle.models.local import quote_result, request_text
from treadle.models.reply_reader import PendingCall
from treadle.models.text_calls import recover_calls
from treadle.models.wire_format import encode_arguments
from treadle.permissions.patterns import covers_call, find_touched_part, suggest_pattern
from treadle.permissions.shell.classify import classify_command
from treadle.permissions.shell.parse import parse_command
from treadle.secrets.detect import find_secret
from treadle.secrets.redact import RedactedStream, Redactor
from treadle.server.guard import is_too_deep
from treadle.tools.base import ToolError
from treadle.tools.calculate import calculate
from treadle.tools.files.edit import replace_text
from treadle.tools.files.unified_diff import apply_hunks, read_patch
from treadle.tools.html_text import convert_html
from treadle.typed_output import check_output
from treadle.workspace.folder import FileContent

LONG = 300_000
HEAD = "--- a/x\n+++ b/x\n"


def paint(text: str) -> list[str]:
    return render_markdown(text, 80, Theme(has_style=True))


def edit(whole: str, old: str) -> str:
    with pytest.raises(ToolError) as refused:
        replace_text(FileContent("x", whole.encode(), 0o644), old, "new", everywhere=False)
    return str(refused.value)


@pytest.mark.parametrize(
    ("read", "given"),
    [
        (paint, "# " + "#" * LONG + "x"),
        (paint, "**a " * LONG),
        (paint, "[" * LONG),
        (paint, "> " * 10_000 + "a"),
        (paint, "日" * LONG),
        (lambda text: render_diff(text.splitlines(), 80, Theme()), "-a b\n" * 3_000 + "+b a\n" * 3_000),
        (lambda text: render_diff(text.splitlines(), 80, Theme()), f"-{'a b' * LONG}\n+{'b a' * LONG}"),
        (request_text.extract_words, "1" * LONG),
        (request_text.extract_words, "a-" * LONG),
        (request_text.extract_words, "a.." * LONG),
        (request_text.SUM.findall, "1" * LONG),
        (request_text.SUM.findall, "(" * LONG),
        (lambda said: request_text.split_clauses(said, ()), "read" + "\n" * LONG + "it"),
        (lambda said: request_text.split_clauses(said, ()), "read" + "," * LONG + "it"),
        (lambda found: quote_result.shorten_result(found, "what is in it?"), "aGVsbG8" * LONG),
        (lambda said: check_output(int, said), "```json\n" + "\n" * LONG + "x"),
        (find_secret, "eyJ-" * (LONG // 4)),
        (find_secret, "a." * LONG),
        (prepare_for_index, "a" + "\u0301" * LONG + "\u0316" * LONG),
        (parse_command, "echo {" + "," * 99_000),
        (parse_command, "echo " + "a[" * 49_000),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, str) else "",
)
def test_a_text_that_is_one_long_word_is_read(read: Callable[[str], object], given: str) -> None:
    assert read(given) is not None


def test_a_block_is_looked_for_in_a_file_whose_lines_are_all_alike() -> None:
    assert "old is not in the file" in edit("a \n" * LONG, "a\n" * 9_000 + "b\n")
    with pytest.raises(ToolError, match="does not fit"):
        apply_hunks("a\n" * LONG, read_patch(HEAD + "@@ -1,1 +1,1 @@\n" + " a\n" * (LONG // 2) + "-b\n")[0].hunks, "x")


def test_many_hunks_are_applied_to_a_file_whose_lines_are_all_alike() -> None:
    hunks = "".join(f"@@ -{line},1 +{line},1 @@\n-a\n+b\n" for line in range(1, 20_001))
    assert apply_hunks("a\n" * LONG, read_patch(HEAD + hunks)[0].hunks, "x").count("b") == 20_000


def test_the_closest_line_is_found_among_many_long_ones() -> None:
    lines = [f"{'abcdefghij' * 19}{number}" for number in range(20_000)]
    lines[9_000] = "bacdefghji" * 19
    assert "closest place is line 9001" in edit("\n".join(lines), "bacdefghji" * 18 + "bacdefghjx")
    letters = [chr(0x4E00 + number % 20_000) for number in range(LONG)]
    edit("".join(letters), "".join(reversed(letters)))


def test_the_number_of_a_line_may_have_any_number_of_digits() -> None:
    patch = f"{HEAD}@@ -{'1' * 5_000},1 +1,1 @@\n-a\n+b\n"
    assert apply_hunks("a\n", read_patch(patch)[0].hunks, "x") == "b\n"


# ── every parser of texts that a model or a client writes ──────────────────────────────────────────────────

SHELL = ToolSpec("shell", "runs", {"type": "object", "properties": {"command": {"type": "string"}}})
REDACTOR = Redactor(["hunter22hunter22", "aaaaaaaaaaaab"])


def feed_pieces(stream: ReasoningSplitter | MarkSplitter | RedactedStream, text: str) -> None:
    for start in range(0, len(text), 4):
        stream.feed(text[start : start + 4])
    stream.finish()


def judge_path(path: str) -> None:
    for pattern in ("write_file(src/**)", "write_file(path=a*b)"):
        find_touched_part(pattern, "write_file", {"path": path})
        covers_call(pattern, "write_file", {"path": path})
    suggest_pattern("write_file", {"path": path})


def judge_with_glob(glob: str) -> None:
    find_touched_part(f"fetch({glob})", "fetch", {"url": "ab/" * 300})


def apply_patch(text: str) -> None:
    with suppress(ToolError):
        for patch in read_patch(text):
            apply_hunks("a\n" * 2000, patch.hunks, "x")


def change(text: str) -> None:
    with suppress(ToolError):
        replace_text(FileContent("x", text.encode(), 0o644), f"{text[: len(text) // 2]}z", "new", everywhere=True)


def work_out(text: str) -> None:
    with suppress(ToolError):
        calculate(text)


PARSERS: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "commands": (lambda text: classify_command(parse_command(text), "/w"), ("env -i ", "?)", "a&&", "'\"", "$((1+")),
    "calls in text": (
        lambda text: recover_calls(text, [SHELL]),
        ("<tool_call>", "[TOOL_CALLS]", "{", '```json\n{"', "<a>"),
    ),
    "reasoning": (split_reasoning, ("<think>", "</think>", "`", "<|channel|>", "[THINK]")),
    "streamed reasoning": (lambda text: feed_pieces(ReasoningSplitter(), text), ("`", "<", "<think>`", "\n ")),
    "marks": (split_marks, ("<", "<uncertain ", "</", '<stuck a="')),
    "streamed marks": (lambda text: feed_pieces(MarkSplitter(), text), ("<", "<uncertain ", "< ")),
    "signals": (find_implicit_signals, (" “'- ", "«", "```", "i am ", ". ", " — ")),
    "pages": (lambda text: convert_html(text, "http://x/"), ("<", "<!--", "<p a='", "<script>", "&", "<li>")),
    "patches": (apply_patch, ("@@\n", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n", " a\n", "diff --git a/x b/x\n")),
    "edits": (change, ("a", "\n", " \n", "ab\n")),
    "front matter": (lambda text: read_document("x", f"---\n{text}\n---\n"), ("[", "{a: ", "- ", "a: &a *a\n", "'")),
    "sections": (lambda text: read_sections("x", text, "user"), ("# a\n", "```\n", "## \n---\n")),
    "frames": (lambda text: frame_text("file", text, name=text[:500]), ("<file", "< / ", "<")),
    "sums": (work_out, ("(", "1+", "-", "2^", "sqrt(", "9")),
    "secrets": (find_secret, ("-eyJ", "a.", "sk-", "://a:", "key=", "seed phrase ")),
    "redaction": (REDACTOR.redact_text, ("a", "hunter22", "%61")),
    "streamed redaction": (lambda text: feed_pieces(RedactedStream(REDACTOR), text), ("a", "hunter22")),
    "index": (prepare_for_index, ("中", "a\u0301", "_ ")),
    "queries": (build_match_query, ('"', "a ", "中=", "NEAR(")),
    "snippets": (lambda text: make_snippet(text, "word"), ("word ", "wor", "中")),
    "control characters": (remove_control_characters, ("\x1b[", "\x1b]a", "\x1bP", "\r")),
    "depth of JSON": (lambda text: is_too_deep(text.encode(), 64), ("[", '"\\', '{"', "}{")),
    "lines on a screen": (paint, ("**a", "`", "# ", "*")),
    "rows on a screen": (
        lambda text: (wrap_rows(text, 80), truncate_line(text, 80), escape_hidden(text)),
        ("é", "\x1b["),
    ),
    "typed answers": (lambda text: check_output(int, text), ("```json\n", "```", "{", "\n")),
    "errors": (
        lambda text: (extract_message(text.encode()), parse_retry_after({}, text)),
        ("<title>", "try again in ", "["),
    ),
    "paths": (judge_path, ("/..a", "/a", "a*", "../")),
    "globs": (lambda text: judge_with_glob(text[:8000]), ("*a", "**/", "?*", "[*]")),
    "requests": (request_text.extract_words, ("a-", "1.", "src/", "and ")),
    "results": (lambda text: quote_result.shorten_result(text, "what is it?"), ("a: ", "\n", "1 ")),
}


def measure(read: Callable[[str], object], text: str) -> float:
    start = time.process_time()
    read(text)
    return time.process_time() - start


@pytest.mark.parametrize("name", PARSERS)
def test_four_times_the_text_takes_about_four_times_as_long(name: str) -> None:
    read, units = PARSERS[name]
    read("once, for what is prepared at first use")
    for unit in units:
        short, long = ((unit * (length // len(unit) + 1))[:length] for length in (15_000, 60_000))
        # Sixteen times would be the square. A busy machine gets a second chance.
        assert any(measure(read, long) <= 12 * measure(read, short) + 0.5 for _ in range(2)), unit


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_that_is_nested_too_deep_is_refused_and_breaks_nothing(opening: str) -> None:
    deep = opening * 100_000
    assert encode_arguments(Call("a", "shell", deep)).startswith(b'{"invalid_arguments"')
    assert read_custom_input(deep) == deep and extract_param(deep.encode()) == ""
    assert extract_message(deep.encode()).startswith(opening)
    call = PendingCall(0)
    call.arguments.append(f"{deep}}}")
    assert not call.is_complete()
    with pytest.raises(BadInput, match="line 1"):
        parse_json_lines(deep.encode())
