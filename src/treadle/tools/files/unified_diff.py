"""Reads and applies unified diffs in memory. Line numbers may be wrong; the lines must be there. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from treadle.tools.base import ToolError
from treadle.workspace.folder import split_lines

_HUNK = re.compile(r"@@(?: -(\d{1,9})(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@.*|.*)")
_GIT_HEADER = re.compile(
    r"(rename from|rename to|new file mode|new mode|deleted file mode) (.*)|GIT binary patch|Binary files "
)
_NO_NEWLINE = "\\ No newline at end of file"


class Hunk(Struct):
    """Lines to find and the lines that replace them. `start` is the line number in the diff, from 1; 0 means none."""

    start: int
    old: list[str] = []
    new: list[str] = []
    old_ends: bool = True
    new_ends: bool = True


class FilePatch(Struct):
    """What a diff does to one file. An empty `source` creates a file, an empty `target` deletes one."""

    source: str = ""
    target: str = ""
    hunks: list[Hunk] = []
    mode: int | None = None


def read_patch(text: str) -> list[FilePatch]:
    """Read the patches of a diff, one for each file; raises `ToolError` when it is not a unified diff."""
    patches = _PatchReader(text).read()
    if not patches:
        raise ToolError(
            "This is not a unified diff: no line begins with --- and is followed by one with +++. Write it as "
            "`git diff` does, or use edit_file. Nothing was changed."
        )
    return patches


class _PatchReader:
    def __init__(self, text: str) -> None:
        self._lines = split_lines(text.replace("\r\n", "\n"))
        self._index = 0

    def read(self) -> list[FilePatch]:
        found: list[FilePatch] = []
        current: FilePatch | None = None
        while self._index < len(self._lines):
            line = self._lines[self._index]
            if line.startswith("diff --git "):
                source, _, target = line.removeprefix("diff --git ").partition(" b/")
                current = FilePatch(source.removeprefix("a/"), target)
                found.append(current)
            elif self._is_header():
                if current is None or current.hunks:
                    current = FilePatch()
                    found.append(current)
                self._index += 1
                current.source, current.target = _read_name(line, "a/"), _read_name(self._lines[self._index], "b/")
            elif current is not None and line.startswith("@@"):
                current.hunks.append(self._read_hunk(line))
                continue
            elif current is not None and not current.hunks and (header := _GIT_HEADER.match(line)):
                mode = 0o755 if line.endswith("755") else 0o644
                match header[1]:
                    case "rename from":
                        current.source = header[2]
                    case "rename to":
                        current.target = header[2]
                    case "new file mode":
                        current.source, current.mode = "", mode
                    case "new mode":
                        current.mode = mode
                    case "deleted file mode":
                        current.target = ""
                    case _:
                        raise ToolError("The patch has binary files, which cannot be patched. Nothing was changed.")
            self._index += 1
        return found

    def _is_header(self, *, unsure: bool = False) -> bool:
        """Tell whether a file header starts here. Changed lines can look like one, so a hunk must follow.

        Inside a hunk that may not be over (`unsure`), it must also have git's prefix.
        """
        first, second, third = [*self._lines[self._index : self._index + 3], "", "@@"][:3]
        plus = ("+++ b/", "+++ /dev/null") if unsure else "+++ "
        return first.startswith("--- ") and second.startswith(plus) and third.startswith("@@")

    def _read_hunk(self, line: str) -> Hunk:
        match = _HUNK.fullmatch(line)
        start, *counts = match.groups() if match is not None else (None, None, None)
        hunk = Hunk(int(start or 0))
        old, new = (1 if count is None and start else int(count or 0) for count in counts)
        self._index += 1
        last = ""
        while self._index < len(self._lines):
            line = self._lines[self._index]
            if line.startswith(("@@", "diff --git ")) or self._is_header(
                unsure=len(hunk.old) < old or len(hunk.new) < new  # models often count wrong, so this proves nothing
            ):
                break
            sign, rest = line[:1] or " ", line[1:]  # an empty context line often lacks its space
            if line == _NO_NEWLINE:
                hunk.old_ends, hunk.new_ends = hunk.old_ends and last == "+", hunk.new_ends and last == "-"
            elif sign == " ":
                hunk.old.append(rest)
                hunk.new.append(rest)
            elif sign == "-":
                hunk.old.append(rest)
            elif sign == "+":
                hunk.new.append(rest)
            else:
                raise ToolError(
                    f"Line {self._index + 1} of the patch begins with {sign!r}; in a hunk every line begins with a "
                    "space, - or +. Nothing was changed."
                )
            last = sign
            self._index += 1
        return hunk


def _read_name(line: str, prefix: str) -> str:
    name = line[4:].split("\t")[0].strip().strip('"')
    return "" if name == "/dev/null" else name.removeprefix(prefix)


def apply_hunks(text: str, hunks: list[Hunk], path: str) -> str:
    """Apply all hunks to a text, in order; raises `ToolError` for one whose lines are not there."""
    lines = split_lines(text)
    ends = text.endswith("\n") or not text
    done, shift = 0, 0
    for number, hunk in enumerate(hunks, 1):
        expected = max(done, hunk.start - 1 + shift) if hunk.start else done
        if not hunk.old:  # there is only the number: it is that of the line before
            at = min(expected + (1 if hunk.start else 0), len(lines))
        elif hunk.start and lines[expected : expected + len(hunk.old)] == hunk.old:
            at = expected
        else:  # the place nearest to the number; without a number, there must be only one place
            places = list(find_block(hunk.old, lines, done))
            is_clear = hunk.start or len(places) == 1
            at = min(places, key=lambda place: abs(place - expected)) if places and is_clear else None
        if at is None:
            wanted = "\n".join(hunk.old[:6])
            raise ToolError(
                f"Hunk {number} of {path} does not fit: after line {done} there are no such lines:\n{wanted}\n"
                "Nothing was changed in any file. Read the file again and make the patch from what it holds."
            )
        if hunk.start and hunk.old:
            shift = at - (hunk.start - 1)
        lines[at : at + len(hunk.old)] = hunk.new
        done = at + len(hunk.new)
        shift += len(hunk.new) - len(hunk.old)
        if done == len(lines):
            ends = hunk.new_ends if not hunk.new_ends or not hunk.old_ends else ends
    return "\n".join(lines) + ("\n" if ends and lines else "")


def find_block(block: Sequence[str], lines: Sequence[str], start: int = 0) -> Iterator[int]:
    """Find where the lines of a block stand together, from `start` on.

    The search takes one pass (Knuth, Morris and Pratt). Comparing the block anew at each line would take hours in a
    file whose lines are all alike.
    """
    back, fits = [0], 0
    for at in range(1, len(block)):
        while fits and block[at] != block[fits]:
            fits = back[fits - 1]
        fits += block[at] == block[fits]
        back.append(fits)
    fits = 0
    for at in range(start, len(lines)):
        while fits and lines[at] != block[fits]:
            fits = back[fits - 1]
        fits += lines[at] == block[fits]
        if fits == len(block):
            yield at + 1 - fits
            fits = back[fits - 1]
