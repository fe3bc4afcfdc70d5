"""`edit_file`: one piece of a file replaced. A piece that is not there to the letter is looked for, to say why not."""

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
    refuse_if_changed,
    render_change,
)
from treadle.tools.function import ToolOptions
from treadle.workspace.encoding import DecodedText, decode_text, find_block, split_lines
from treadle.workspace.folder import MAX_FILE_BYTES, NoSuchFile
from treadle.workspace.worker_threads import run_in_thread

_PLACES = 10
_SEARCHED_LINES = 20_000
_COMPARED, _ASKED = 200, 50
_NUMBERED = re.compile(r"^ *\d+\t", re.MULTILINE)
_QUOTES = str.maketrans("‘’‚‛“”„‟`´–—\u00a0", "''''\"\"\"\"''-- ")


def build_edit_file_tool(files: FileToolSettings) -> Tool:
    """The tool."""

    async def edit_file(path: str, old: str, new: str, context: ToolContext, replace_all: bool = False) -> str:
        """Replace one piece of a text file. `old` must stand in the file exactly once, with its indentation.

        Read the file first. Example: {"path": "app.py", "old": "x = 1\\n", "new": "x = 2\\n"}.

        Args:
            path: the file, relative to the workspace
            old: the text to replace, to the letter, without line numbers; take in lines around it to make it unique
            new: what stands there instead
            replace_all: replace every place, not only one
        """
        change, count = await run_in_thread(
            _planned, files=files, context=context, path=path, old=old, new=new, everywhere=replace_all
        )
        await apply_changes(files, context, [change])
        places = "" if count == 1 else f" in {count} places"
        return f"Edited {change.path}{places}.{await render_change(change)}"

    options = ToolOptions(
        timeout=60.0,
        examples=(
            ("Replace red with blue in colours.txt", {"path": "colours.txt", "old": "red", "new": "blue"}),
            ("Change Monday to Friday in dates.md", {"path": "dates.md", "old": "Monday", "new": "Friday"}),
        ),
    )
    return WritingTool(files, edit_file, options)


def _planned(
    files: FileToolSettings, context: ToolContext, path: str, old: str, new: str, everywhere: bool
) -> tuple[FileChange, int]:
    with files.open_folder(context) as folder:
        name = folder.resolve_writable(path)
        held = folder.find(name)
    if held is None:
        raise NoSuchFile(f"{name}: there is no such file to edit. write_file makes a new one.")
    refuse_if_changed(context, name, held)
    text = decode_text(held.data)
    if text is None:
        raise ToolError(f"{name} is not text, so it cannot be edited. Nothing was changed.")
    edited, count = replace_text(text, old, new, everywhere=everywhere)
    data = text.encode(edited)
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(
            f"The file would have {len(data)} bytes, and {MAX_FILE_BYTES} is the most. Nothing was changed."
        )
    return FileChange(name, held, data), count


def replace_text(text: DecodedText, old: str, new: str, *, everywhere: bool) -> tuple[str, int]:
    """The text with `old` replaced, and in how many places; raises `ToolError` that says why it cannot be."""
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
        raise ToolError(f"Nothing was changed: {_why_not(whole, old)}")
    if count > 1 and not everywhere:
        raise ToolError(
            f"old stands in {count} places (lines {_lines_with(whole, old)}). Take in lines around the one you mean, "
            "or set replace_all. Nothing was changed."
        )
    return whole.replace(old, new), count


def _lines_with(whole: str, old: str) -> str:
    numbers: list[str] = []
    at = whole.find(old)
    while at >= 0 and len(numbers) < _PLACES:
        numbers.append(str(whole.count("\n", 0, at) + 1))
        at = whole.find(old, at + len(old))
    return ", ".join(numbers) + (", …" if at >= 0 else "")


# ── a near miss ────────────────────────────────────────────────────────────────────────────────────────

_LOOSER: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("line ends differ (CRLF in one, LF in the other)", lambda line: line.rstrip("\r")),
    ("spaces at the ends of lines differ", str.rstrip),
    ("the indentation differs", str.strip),
    ("quotes or dashes differ (curly in one, straight in the other)", lambda line: line.translate(_QUOTES).strip()),
    ("spaces inside of lines differ", lambda line: "".join(line.translate(_QUOTES).split())),
    ("upper and lower case differ", lambda line: "".join(line.translate(_QUOTES).split()).casefold()),
)


def _why_not(whole: str, old: str) -> str:
    lines, wanted = split_lines(whole)[:_SEARCHED_LINES], split_lines(old)
    stripped = _NUMBERED.sub("", old)
    if stripped != old and stripped in whole:
        return "old begins with line numbers, which are not part of the file: leave them out."
    for reason, loosened in _LOOSER:
        at = _find_block([loosened(line) for line in lines], [loosened(line) for line in wanted])
        if at is not None:
            return f"old is not in the file to the letter: {reason}. {_place(lines, at, len(wanted))}"
    at = _closest(lines, wanted)
    if at is None:
        return "old is not in the file, nor anything like it. Read the file again and take the text from there."
    return f"old is not in the file. {_place(lines, at, len(wanted))}"


def _find_block(lines: list[str], wanted: list[str]) -> int | None:
    """Where the wanted lines stand together; one line alone may also be a part of a line."""
    if not any(wanted):
        return None
    if len(wanted) == 1:
        return next((at for at, line in enumerate(lines) if wanted[0] in line), None)
    return next(find_block(wanted, lines), None)


def _closest(lines: list[str], wanted: list[str]) -> int | None:
    """Where the file is most like the wanted lines, judged by the longest of them."""
    key = max(wanted, key=lambda line: len(line.strip()), default="")
    if not key.strip():
        return None
    compared = difflib.SequenceMatcher(b=key[:_COMPARED])
    places: dict[str, int] = {}
    for at, line in enumerate(lines):
        places.setdefault(line[:_COMPARED], at)

    def nearness(line: str) -> float:
        compared.set_seq1(line)
        return compared.quick_ratio()

    # What order the letters are in takes time in their square, so only those lines are asked that have the same ones.
    near = heapq.nlargest(_ASKED, places, nearness)
    close = difflib.get_close_matches(key[:_COMPARED], near, n=1, cutoff=0.6)
    return max(0, places[close[0]] - wanted.index(key)) if close else None


def _place(lines: list[str], at: int, count: int) -> str:
    listed = "\n".join(f"{number:>5}\t{lines[number - 1]}" for number in range(at + 1, min(at + count, len(lines)) + 1))
    return f"The closest place is line {at + 1}:\n{listed}"
