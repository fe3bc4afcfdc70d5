"""Reading what others put into a folder: no link is followed, nothing but plain files of a bounded size is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LARGEST = 64 * 1024


def read_beneath(folder: Path, parts: Sequence[str], most: int = LARGEST) -> str | None:
    """The text of a file beneath a folder, or None when there is no plain file; longer text is cut, and says so."""
    if not parts or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        return None
    opened: list[int] = []
    try:
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            opened.append(os.open(part, flags, dir_fd=opened[-1]))
        # O_NONBLOCK: a pipe that somebody put there must not hold up the session.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened.append(os.open(parts[-1], flags, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            return None
        return _text(opened[-1], most)
    except OSError:
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _text(descriptor: int, most: int) -> str:
    pieces: list[bytes] = []
    left = most + 1
    while left > 0 and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    data = b"".join(pieces)
    text = data[:most].decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\0", "\ufffd")
    return text if len(data) <= most else f"{text}\n[… cut after {most} bytes …]"


def folders_beneath(folder: Path, parts: Sequence[str]) -> list[str]:
    """The names of the real folders in a folder beneath another, sorted; none where there is a link in the way."""
    return _names(folder, parts, stat.S_ISDIR)


def files_beneath(folder: Path, parts: Sequence[str]) -> list[str]:
    """The names of the plain files in a folder beneath another, sorted."""
    return _names(folder, parts, stat.S_ISREG)


def _names(folder: Path, parts: Sequence[str], wanted: object) -> list[str]:
    place = folder
    found: list[str] = []
    with suppress(OSError):
        for part in parts:
            place = place / part
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                return []
        with os.scandir(place) as entries:
            is_dir = wanted is stat.S_ISDIR
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) if is_dir else entry.is_file(follow_symlinks=False):
                    found.append(entry.name)
    return sorted(found)
