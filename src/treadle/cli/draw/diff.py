"""Draw a unified diff: one column of numbers, the sign, the line, and marks on the words that changed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from itertools import groupby, pairwise

from msgspec import Struct

from treadle.cli.console import wrap_rows
from treadle.cli.draw.glyphs import Theme

DIFF_LINES = 40
"""Lines of a diff that are shown. `/changes` shows all."""

MAX_LINE = 500
"""Characters of a line of a diff that are shown. The terminal wraps it."""

MAX_MARKED = 1000
"""Rows of a diff in which the words that changed are marked."""

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_WORDS = re.compile(r"\w+|\s+|\W")
SAME_SHARE = 0.5
"""The share of a changed line that must be the same, for the rest of it to be marked."""


class DiffRow(Struct):
    """A line of a diff. `sign` is `-`, `+`, a space, `@` between two hunks, or `f` for the name of a file."""

    sign: str
    number: int
    text: str
    words: list[tuple[str, bool]] | None = None
    """The pieces of the text, and whether each has changed."""


def find_diff(lines: Sequence[str]) -> list[str]:
    """Return the diff that ends a text, if there is one."""
    for at, (line, after) in enumerate(pairwise([*lines, ""])):
        if _HUNK.match(line) or line.startswith("diff --git ") or (line[:4], after[:4]) == ("--- ", "+++ "):
            return list(lines[at:])
    return []


def count_changes(lines: Sequence[str]) -> tuple[int, int]:
    """Return how many lines a diff adds and removes."""
    signs = [row.sign for row in read_diff(lines)]
    return signs.count("+"), signs.count("-")


def read_diff(lines: Sequence[str]) -> list[DiffRow]:
    """Read the rows of a unified diff, with the numbers of its lines."""
    rows: list[DiffRow] = []
    old = new = old_left = new_left = 0  # in a hunk, a removed line may look like the name of a file
    before = ""
    for line in lines:
        is_name = line.startswith("+++ ") and before.startswith("--- ") and old_left <= 0 and new_left <= 0
        if is_name:
            rows.pop()  # the name of the old file is no removed line
            name = line if line[4:].split("\t")[0] != "/dev/null" else before
            rows.append(DiffRow("f", 0, name[4:].split("\t")[0]))
        elif hunk := _HUNK.match(line):
            old, new, old_left, new_left = int(hunk[1]), int(hunk[3]), int(hunk[2] or 1), int(hunk[4] or 1)
            if rows and rows[-1].sign != "f":
                rows.append(DiffRow("@", 0, ""))
        elif not line.startswith(("diff ", "index ", "\\ ")):
            sign = line[:1] if line[:1] in ("-", "+") else " "
            text = line[1:] if line[:1] in ("-", "+", " ") else line
            rows.append(DiffRow(sign, old if sign == "-" else new, text))
            old, new = old + (sign != "+"), new + (sign != "-")
            is_cut = text == line != ""  # no line of a diff: the rest was left out
            old_left, new_left = (0, 0) if is_cut else (old_left - (sign != "+"), new_left - (sign != "-"))
        before = line
    return rows


def mark_words(rows: list[DiffRow]) -> None:
    """Mark the words that differ where removed lines meet added ones that are about the same."""
    place = 0
    while place < len(rows):
        removed = added = place
        while added < len(rows) and rows[added].sign == "-":
            added += 1
        end = added
        while end < len(rows) and rows[end].sign == "+":
            end += 1
        for old, new in zip(rows[removed:added], rows[added:end], strict=False):
            compare_rows(old, new)
        place = max(end, place + 1)


def compare_rows(old: DiffRow, new: DiffRow) -> None:
    """Mark the words that differ between a removed line and an added one, if the lines are about the same."""
    if max(len(old.text), len(new.text)) > MAX_LINE:
        return
    before, after = _WORDS.findall(old.text), _WORDS.findall(new.text)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < SAME_SHARE:
        return
    old.words, new.words = [], []
    for change, start, end, new_start, new_end in matcher.get_opcodes():
        old.words.append(("".join(before[start:end]), change != "equal"))
        new.words.append(("".join(after[new_start:new_end]), change != "equal"))


def render_diff(lines: Sequence[str], width: int, theme: Theme, limit: int = DIFF_LINES) -> list[str]:
    """Render a unified diff. Of a long one, the first lines and the number of the others are shown."""
    rows = read_diff(lines)
    if sum(row.sign == "f" for row in rows) == 1:  # the name is in the line of the call
        rows = [row for row in rows if row.sign != "f"]
    mark_words(rows)
    digits = max((len(str(row.number)) for row in rows), default=1)
    shown = [render_diff_row(row, digits, width, theme) for row in rows[:limit]]
    if len(rows) > limit:
        more = f"{theme.glyphs.more} {len(rows) - limit} more{theme.dot}/changes"
        shown.append(theme.paint(more, "quiet"))
    return shown


def render_whole_diff(lines: Sequence[str], width: int, theme: Theme) -> list[str]:
    """Render the diff of one file with every character, in lines of at most `width` cells. Its name is left out."""
    rows = [row for row in read_diff(lines) if row.sign != "f"]
    for row in rows:
        row.text = row.text.expandtabs(4)
    mark_words(rows[:MAX_MARKED])
    digits = max((len(str(row.number)) for row in rows), default=1)
    drawn: list[str] = []
    for row in rows:
        for place, words in enumerate(wrap_words(row.words or [(row.text, False)], max(8, width - digits - 3))):
            head = render_row_head(row, digits, theme) if not place else " " * (digits + 3)
            drawn.append(f"{head}{paint_words(row.sign, words, theme)}".rstrip())
    return drawn


def wrap_words(words: Sequence[tuple[str, bool]], columns: int) -> list[list[tuple[str, bool]]]:
    """Split marked pieces of a text into rows of at most `columns` cells."""
    text = "".join(word for word, _ in words)
    if text.isascii() and len(text) <= columns:
        return [list(words)]
    marks = iter([is_new for word, is_new in words for _ in word])
    rows = wrap_rows(text, columns)
    pairs = ([(letter, next(marks)) for letter in row] for row in rows)
    return [
        [("".join(letter for letter, _ in run), is_new) for is_new, run in groupby(row, key=lambda pair: pair[1])]
        for row in pairs
    ]


def render_row_head(row: DiffRow, digits: int, theme: Theme) -> str:
    """Render the number and the sign of a row."""
    if row.sign == "@":
        return f"{' ' * digits} {theme.paint(theme.glyphs.more, 'quiet')}"
    number = theme.paint(f"{row.number or '':>{digits}}", "quiet")
    role = {"-": "bad", "+": "ok"}.get(row.sign, "")
    return f"{number} {theme.paint(theme.glyphs.minus if row.sign == '-' else row.sign, role)} "


def paint_words(sign: str, words: Sequence[tuple[str, bool]], theme: Theme) -> str:
    """Paint the text of a row, and mark the words that have changed."""
    role, word_role = {"-": ("bad", "removed_word"), "+": ("ok", "added_word")}.get(sign, ("", ""))
    return "".join(theme.paint(word, word_role if is_new and word.strip() else role) for word, is_new in words)


def render_diff_row(row: DiffRow, digits: int, width: int, theme: Theme) -> str:
    """Render one row: its number, its sign and its text."""
    if row.sign == "f":
        return theme.paint(theme.cut(row.text, width, keep_end=True), "strong")
    text = row.text if len(row.text) <= MAX_LINE else row.text[:MAX_LINE] + theme.glyphs.more
    words = row.words if row.words is not None else [(text, False)]
    return f"{render_row_head(row, digits, theme)}{paint_words(row.sign, words, theme)}".rstrip()
