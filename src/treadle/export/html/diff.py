"""Render the unified diffs in a text as tables with line numbers, and mark the words that changed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from treadle.export.html.text import escape_text

MAX_LINES = 2000
MAX_COMPARED = 500_000
"""Word pairs that are compared in one diff. Hostile lines would take minutes; later lines get no marks."""

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_WORD = re.compile(r"\w+|\s+|.")

Marks = list[tuple[int, int]]


def render_with_diffs(text: str) -> str:
    """Render a text. Each unified diff in it becomes a table, and the rest stays as it is written."""
    pieces: list[str] = []
    lines = text.split("\n")
    plain: list[str] = []
    at = 0
    while at < len(lines):
        is_diff = lines[at].startswith("--- ") and lines[at + 1 : at + 2] and lines[at + 1].startswith("+++ ")
        if is_diff and at + 2 < len(lines) and _HUNK.match(lines[at + 2]):
            pieces.append(_render_plain(plain))
            plain = []
            old, new = (line[4:].split("\t")[0] for line in lines[at : at + 2])
            name = (old if new == "/dev/null" else new).removeprefix("b/").removeprefix("a/")
            rows, at = read_hunks(lines, at + 2)
            pieces.append(render_table(name, rows))
        else:
            plain.append(lines[at])
            at += 1
    return "".join([*pieces, _render_plain(plain)])


class DiffLine:
    """A line of a diff: its sign, its numbers before and after, its text, and where it differs from its partner."""

    def __init__(self, sign: str, old: int | None, new: int | None, text: str) -> None:
        self.sign, self.old, self.new, self.text = sign, old, new, text
        self.marks: Marks = []


def _render_plain(lines: list[str]) -> str:
    text = "\n".join(lines).strip("\n")
    return f"<pre>{escape_text(text)}</pre>" if text else ""


def read_hunks(lines: list[str], at: int) -> tuple[list[DiffLine], int]:
    """Read hunks from the line `at` on. Returns their rows, and the line after them."""
    rows: list[DiffLine] = []
    while at < len(lines) and (found := _HUNK.match(lines[at])):
        old, new = int(found[1]), int(found[3])
        left, right = int(found[2] or 1), int(found[4] or 1)
        rows.append(DiffLine("@", None, None, lines[at]))
        at += 1
        while at < len(lines) and (left > 0 or right > 0 or lines[at].startswith("\\")):
            sign, text = lines[at][:1] or " ", lines[at][1:]
            if sign not in " +-\\":
                break
            at += 1
            if sign == "\\":
                continue
            rows.append(DiffLine(sign, old if sign != "+" else None, new if sign != "-" else None, text))
            old, left = (old + 1, left - 1) if sign != "+" else (old, left)
            new, right = (new + 1, right - 1) if sign != "-" else (new, right)
    mark_words(rows)
    return rows, at


def mark_words(rows: list[DiffLine]) -> None:
    """Mark what changed in lines that were replaced one for one."""
    at, left = 0, MAX_COMPARED
    while at < min(len(rows), MAX_LINES):
        removed = _take(rows, at, "-")
        added = _take(rows, at + len(removed), "+")
        if removed and len(removed) == len(added):
            for before, after in zip(removed, added, strict=True):
                old, new = _WORD.findall(before.text), _WORD.findall(after.text)
                if len(old) * len(new) <= left:
                    left -= len(old) * len(new)
                    before.marks, after.marks = compare_words(old, new)
        at += max(len(removed) + len(added), 1)


def _take(rows: list[DiffLine], at: int, sign: str) -> list[DiffLine]:
    end = at
    while end < len(rows) and rows[end].sign == sign:
        end += 1
    return rows[at:end]


def compare_words(old: list[str], new: list[str]) -> tuple[Marks, Marks]:
    """Find the places that differ. Lines that have little in common get no marks."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < 0.4:
        return [], []
    places: tuple[Marks, Marks] = ([], [])
    for kind, *ends in matcher.get_opcodes():
        for words, marks, start, end in ((old, places[0], *ends[:2]), (new, places[1], *ends[2:])):
            if kind != "equal" and end > start:
                marks.append((len("".join(words[:start])), len("".join(words[:end]))))
    return places


def render_table(name: str, rows: list[DiffLine]) -> str:
    """Render the diff of one file, under its name and the numbers of lines that were added and removed."""
    added, removed = (sum(row.sign == sign for row in rows) for sign in "+-")
    body = "".join(render_rows(rows[:MAX_LINES]))
    if len(rows) > MAX_LINES:
        body += f'<tr class="gap"><td colspan="4">{len(rows) - MAX_LINES} more lines</td></tr>'
    head = f"{escape_text(name)} <span>+{added} −{removed}</span>"
    return f'<div class="diff"><p>{head}</p><div class="wide"><table><tbody>{body}</tbody></table></div></div>'


def render_rows(rows: list[DiffLine]) -> Iterator[str]:
    """Render each line of a diff as a row of the table."""
    names = {"+": "add", "-": "del", " ": "same"}
    for row in rows:
        if row.sign == "@":
            yield f'<tr class="gap"><td colspan="4">{escape_text(row.text)}</td></tr>'
            continue
        text, done = "", 0
        for start, end in row.marks:
            text += f"{escape_text(row.text[done:start])}<b>{escape_text(row.text[start:end])}</b>"
            done = end
        text += escape_text(row.text[done:])
        numbers = "".join(f'<td class="number">{number or ""}</td>' for number in (row.old, row.new))
        sign = "−" if row.sign == "-" else row.sign
        yield f'<tr class="{names[row.sign]}">{numbers}<td class="sign">{sign}</td><td>{text}</td></tr>'
