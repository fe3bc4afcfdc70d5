"""The logs of refs: read strictly, line by line, and appended. A line that git would not write makes a log invalid."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.object_format import ObjectFormat

REWIND_MESSAGE = "treadle: rewind"
_MAX_LOG_BYTES = 4 << 20
"""The most that is read of a log, or of its new part."""

_LINE = re.compile(
    rb"([0-9a-f]+) ([0-9a-f]+) ([^\x00-\x1f\x7f<>]*<[^\x00-\x1f\x7f<>]*> [0-9]{1,18} [+-][0-9]{4})"
    rb"(?:\t([^\x00-\x1f\x7f]*))?"
)
_WRITER = "treadle <treadle@localhost>"


class LogLine(Struct, frozen=True):
    """One line: a ref went from `old` to `new`. `text` is the whole line without its end."""

    old: str
    new: str
    text: bytes


def parse_log(data: bytes, form: ObjectFormat) -> list[LogLine] | None:
    """Read the lines of a log; None when one of them is not as git writes it."""
    if data and not data.endswith(b"\n"):
        return None
    found: list[LogLine] = []
    for text in data.split(b"\n")[:-1]:
        match = _LINE.fullmatch(text)
        if match is None:
            return None
        old, new = match[1].decode(), match[2].decode()
        if not all(one == form.null_id or form.is_id(one) for one in (old, new)):
            return None
        found.append(LogLine(old, new, text))
    return found


def read_log(folder: GitFolder, name: str) -> bytes:
    """Read the whole log of a ref; empty when there is none. Raises `UnsafeFile`, also when it is too large."""
    return folder.read_file(f"logs/{name}", _MAX_LOG_BYTES) or b""


def read_new_part(folder: GitFolder, name: str, size: int) -> bytes:
    """Read what a log has after its first `size` bytes; empty when it is no file, shorter or too large."""
    try:
        opened = folder.open_file(f"logs/{name}")
    except UnsafeFile:
        return b""
    if opened is None:
        return b""
    with open(opened, "rb", buffering=0):
        length = os.fstat(opened).st_size - size
        return os.pread(opened, length, size) if 0 < length <= _MAX_LOG_BYTES else b""


def choose_lines(
    data: bytes, change: tuple[str, str], form: ObjectFormat, has: Callable[[str], bool]
) -> Sequence[bytes]:
    """Choose the lines for the move of a ref: those of the command if they tell exactly this move, or one of ours."""
    before, after = (value or form.null_id for value in change)
    lines = parse_log(data, form) or []
    steps = [before, *(line.new for line in lines)]
    is_chain = (
        bool(lines) and steps[-1] == after and all(line.old == old for line, old in zip(lines, steps, strict=False))
    )
    if is_chain and all(one == form.null_id or has(one) for one in set(steps)):
        return [line.text for line in lines]
    return [render_line(before, after, "treadle: kept from a command")]


def render_line(before: str, after: str, message: str) -> bytes:
    """Write a line of our own."""
    return f"{before} {after} {_WRITER} {int(time.time())} +0000\t{message}".encode()


def append_lines(folder: GitFolder, name: str, lines: Sequence[bytes]) -> None:
    """Append lines to the log of a ref."""
    if lines:
        folder.append_file(f"logs/{name}", b"\n".join(lines) + b"\n")


def remove_log(folder: GitFolder, name: str) -> None:
    """Remove the log of a ref that was deleted, and its empty folders."""
    folder.remove_file(f"logs/{name}")
    folder.remove_empty_folders(f"logs/{name.rpartition('/')[0]}", "logs/refs/heads")
