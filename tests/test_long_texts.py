"""Texts made to be slow to read. Nothing is timed: who searches them again from each of their letters takes minutes."""

from collections.abc import Callable

import pytest

from treadle.cli.screen import MarkdownStyler
from treadle.log.full_text import prepare_for_index
from treadle.models.local import quote_result, request_text
from treadle.permissions.shell.parse import parse_command
from treadle.secrets.detect import find_secret
from treadle.tools.base import ToolError
from treadle.tools.files.edit import replace_text
from treadle.tools.files.unified_diff import apply_hunks, read_patch
from treadle.typed_output import check_output
from treadle.workspace.folder import FileContent

LONG = 300_000
HEAD = "--- a/x\n+++ b/x\n"


def paint(line: str) -> str:
    return MarkdownStyler().style_line(line)


def edit(whole: str, old: str) -> str:
    with pytest.raises(ToolError) as refused:
        replace_text(FileContent("x", whole.encode(), 0o644), old, "new", everywhere=False)
    return str(refused.value)


@pytest.mark.parametrize(
    ("read", "given"),
    [
        (paint, "# " + "#" * LONG + "x"),
        (paint, "**a " * LONG),
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
