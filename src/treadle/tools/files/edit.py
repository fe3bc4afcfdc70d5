"""`write_file` writes a whole file, and `edit_file` replaces one piece of a file.

When the piece is not there to the letter, the error says why.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Callable

from treadle.tools.base import Tool, ToolContext, ToolError
from treadle.tools.files.change import (
    FileChange,
    FileToolSettings,
    WritingTool,
    apply_changes,
    find_file,
    render_change,
)
from treadle.tools.files.other_names import EDIT_ARGUMENTS, EDIT_NAMES, WRITE_ARGUMENTS, WRITE_NAMES
from treadle.tools.files.unified_diff import find_block
from treadle.tools.function import ToolOptions
from treadle.workspace.folder import FileContent, NoSuchFile, decode_text, describe_line_count, split_lines
from treadle.workspace.worker_threads import run_in_thread

_MAX_PLACES = 10
_MAX_SEARCHED_LINES = 20_000
_COMPARED_CHARACTERS, _COMPARED_LINES = 200, 50
_LINE_NUMBER = re.compile(r"^ *\d+\t", re.MULTILINE)
_QUOTES = str.maketrans("‘’‚‛“”„‟`´–—\u00a0", "''''\"\"\"\"''-- ")


def build_write_file_tool(settings: FileToolSettings) -> Tool:
    """Build the tool."""

    async def write_file(path: str, content: str, context: ToolContext) -> str:
        """Write a whole text file in the workspace: a new one, or in place of the old one. Folders are made.

        To change a part of a file, edit_file is better. Example: {"path": "notes/today.md", "content": "# Today\\n"}.

        Args:
            path: the file, relative to the workspace
            content: all that the file shall hold
        """
        try:
            data = content.encode()
        except UnicodeEncodeError as error:
            raise ToolError(f"The content has {content[error.start]!r}, which cannot be written as UTF-8.") from None
        name, before = await run_in_thread(find_file, settings, context, path)
        change, size = FileChange(name, before, data), f"{len(data)} bytes, {describe_line_count(content)}"
        if change.old == data:
            return f"{name} holds exactly that already ({size})."
        await apply_changes(settings, context, [change])
        return f"Made {name} ({size})." if before is None else f"Replaced {name} ({size}).{await render_change(change)}"

    options = ToolOptions(
        timeout=60.0,
        aliases=WRITE_NAMES,
        argument_aliases=WRITE_ARGUMENTS,
        examples=(
            ("Write the file plan.txt: call the bank", {"path": "plan.txt", "content": "call the bank"}),
            ("Make a file letter.txt that says dear Tom", {"path": "letter.txt", "content": "dear Tom"}),
            ("Create names.md with the text Ann and Bob", {"path": "names.md", "content": "Ann and Bob"}),
        ),
    )
    return WritingTool(settings, write_file, options)


def build_edit_file_tool(settings: FileToolSettings) -> Tool:
    """Build the tool."""

    async def edit_file(path: str, old: str, new: str, context: ToolContext, replace_all: bool = False) -> str:
        """Replace one piece of a text file. `old` must stand in the file exactly once, with its indentation.

        Read the file first. Example: {"path": "app.py", "old": "x = 1\\n", "new": "x = 2\\n"}.

        Args:
            path: the file, relative to the workspace
            old: the text to replace, to the letter, without line numbers; take in lines around it to make it unique
            new: what stands there instead
            replace_all: replace every place, not only one
        """
        name, file = await run_in_thread(find_file, settings, context, path)
        if file is None:
            raise NoSuchFile(f"{name}: there is no such file to edit. write_file makes a new one.")
        data, count = await run_in_thread(replace_text, file, old, new, everywhere=replace_all)
        change = FileChange(name, file, data)
        await apply_changes(settings, context, [change])
        places = "" if count == 1 else f" in {count} places"
        return f"Edited {name}{places}.{await render_change(change)}"

    options = ToolOptions(
        timeout=60.0,
        aliases=EDIT_NAMES,
        argument_aliases=EDIT_ARGUMENTS,
        examples=(
            ("Replace red with blue in colours.txt", {"path": "colours.txt", "old": "red", "new": "blue"}),
            ("Change Monday to Friday in dates.md", {"path": "dates.md", "old": "Monday", "new": "Friday"}),
        ),
    )
    return WritingTool(settings, edit_file, options)


def replace_text(file: FileContent, old: str, new: str, *, everywhere: bool) -> tuple[bytes, int]:
    """Replace `old` in a file. Return the new content and the number of places; raises `ToolError` with the reason."""
    text = decode_text(file.data)
    if text is None:
        raise ToolError(f"{file.path} is not text, so it cannot be edited. Nothing was changed.")
    if not old:
        raise ToolError(
            "old is empty: give the text to replace, or use write_file for a whole file. Nothing was changed."
        )
    if old == new:
        raise ToolError("old and new are the same, so there is nothing to change.")
    whole = text.text
    if text.crlf or "\r\n" not in whole:
        old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    elif old not in whole and (crlf := old.replace("\r\n", "\n").replace("\n", "\r\n")) in whole:
        old, new = crlf, new.replace("\r\n", "\n").replace("\n", "\r\n")
    count = whole.count(old)
    if count == 0:
        raise ToolError(f"Nothing was changed: {_explain_miss(whole, old)}")
    if count > 1 and not everywhere:
        numbers: list[str] = []
        position = whole.find(old)
        while position >= 0 and len(numbers) < _MAX_PLACES:
            numbers.append(str(whole.count("\n", 0, position) + 1))
            position = whole.find(old, position + len(old))
        listed = ", ".join(numbers) + (", …" if position >= 0 else "")
        raise ToolError(
            f"old stands in {count} places (lines {listed}). Take in lines around the one you mean, or set "
            "replace_all. Nothing was changed."
        )
    return text.encode(whole.replace(old, new)), count


# Each comparison ignores more differences than the one before.
_COMPARISONS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("line ends differ (CRLF in one, LF in the other)", lambda line: line.rstrip("\r")),
    ("spaces at the ends of lines differ", str.rstrip),
    ("the indentation differs", str.strip),
    ("quotes or dashes differ (curly in one, straight in the other)", lambda line: line.translate(_QUOTES).strip()),
    ("spaces inside of lines differ", lambda line: "".join(line.translate(_QUOTES).split())),
    ("upper and lower case differ", lambda line: "".join(line.translate(_QUOTES).split()).casefold()),
)


def _explain_miss(whole: str, old: str) -> str:
    """Say why `old` is not in the file, and show the closest place."""
    lines, wanted = split_lines(whole)[:_MAX_SEARCHED_LINES], split_lines(old)
    without_numbers = _LINE_NUMBER.sub("", old)
    if without_numbers != old and without_numbers in whole:
        return "old begins with line numbers, which are not part of the file: leave them out."
    for reason, simplify in _COMPARISONS:
        simple, piece = [simplify(line) for line in lines], [simplify(line) for line in wanted]
        if len(piece) == 1:  # it may be a part of a line
            places = (index for index, line in enumerate(simple) if piece[0] in line)
        else:
            places = find_block(piece, simple)
        start = next(places, None) if any(piece) else None
        if start is not None:
            reason = f"old is not in the file to the letter: {reason}."
            break
    else:
        start, reason = _find_closest(lines, wanted), "old is not in the file."
    if start is None:
        return "old is not in the file, nor anything like it. Read the file again and take the text from there."
    numbers = range(start + 1, min(start + len(wanted), len(lines)) + 1)
    listed = "\n".join(f"{number:>5}\t{lines[number - 1]}" for number in numbers)
    return f"{reason} The closest place is line {start + 1}:\n{listed}"


def _find_closest(lines: list[str], wanted: list[str]) -> int | None:
    """Find where the file is most like the wanted lines, by the longest of them."""
    key = max(wanted, key=lambda line: len(line.strip()), default="")
    if not key.strip():
        return None
    matcher = difflib.SequenceMatcher(b=key[:_COMPARED_CHARACTERS])
    indexes: dict[str, int] = {}
    for index, line in enumerate(lines):
        indexes.setdefault(line[:_COMPARED_CHARACTERS], index)

    def estimate(line: str) -> float:
        matcher.set_seq1(line)
        return matcher.quick_ratio()

    # A full comparison takes quadratic time, so it is made only for the lines with the most letters in common.
    near = heapq.nlargest(_COMPARED_LINES, indexes, estimate)
    close = difflib.get_close_matches(key[:_COMPARED_CHARACTERS], near, n=1, cutoff=0.6)
    return max(0, indexes[close[0]] - wanted.index(key)) if close else None
