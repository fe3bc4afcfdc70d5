"""Draw a unified diff: one column of numbers, the sign, the line, and marks on the words that changed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from msgspec import Struct

from treadle.cli.draw.glyphs import Theme

DIFF_LINES = 40
"""Lines of a diff that are shown. `/changes` shows all."""

MAX_LINE = 500
"""Characters of a line of a diff that are shown. The terminal wraps it."""

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
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
    start = next((at for at, line in enumerate(lines) if re.match(r"@@ .* @@|--- |\+\+\+ |diff ", line)), len(lines))
    return list(lines[start:])


def count_changes(lines: Sequence[str]) -> tuple[int, int]:
    """Return how many lines a diff adds and removes."""
    signs = [row.sign for row in read_diff(lines)]
    return signs.count("+"), signs.count("-")


def read_diff(lines: Sequence[str]) -> list[DiffRow]:
    """Read the rows of a unified diff, with the numbers of its lines."""
    rows: list[DiffRow] = []
    old = new = 0
    before = ""
    for line in lines:
        if line.startswith("+++ ") and before.startswith("--- "):
            rows.pop()  # the name of the old file is no removed line
            name = line if line[4:].split("\t")[0] != "/dev/null" else before
            rows.append(DiffRow("f", 0, name[4:].split("\t")[0]))
        elif hunk := _HUNK.match(line):
            old, new = int(hunk[1]), int(hunk[2])
            if rows and rows[-1].sign != "f":
                rows.append(DiffRow("@", 0, ""))
        elif not line.startswith(("diff ", "index ", "\\ ")):
            sign = line[:1] if line[:1] in ("-", "+") else " "
            text = line[1:] if line[:1] in ("-", "+", " ") else line
            rows.append(DiffRow(sign, old if sign == "-" else new, text))
            old, new = old + (sign != "+"), new + (sign != "-")
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


def render_diff_row(row: DiffRow, digits: int, width: int, theme: Theme) -> str:
    """Render one row: its number, its sign and its text."""
    if row.sign == "f":
        return theme.paint(theme.cut(row.text, width, keep_end=True), "strong")
    if row.sign == "@":
        return f"{' ' * digits} {theme.paint(theme.glyphs.more, 'quiet')}"
    role, word_role = {"-": ("bad", "removed_word"), "+": ("ok", "added_word")}.get(row.sign, ("", ""))
    number = theme.paint(f"{row.number or '':>{digits}}", "quiet")
    sign = theme.paint(theme.glyphs.minus if row.sign == "-" else row.sign, role)
    if row.words is not None:
        text = "".join(theme.paint(word, word_role if is_new and word.strip() else role) for word, is_new in row.words)
    else:
        text = theme.paint(row.text if len(row.text) <= MAX_LINE else row.text[:MAX_LINE] + theme.glyphs.more, role)
    return f"{number} {sign} {text}".rstrip()
