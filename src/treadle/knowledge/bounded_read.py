"""Reading what others put into a folder: no link is followed, nothing but plain files of a bounded size is opened.

What is the user's own may be `linked`: people keep such files elsewhere and link them into place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 64 * 1024
LINK_SKIPPED = "passed over: it is a link, and those of a workspace are not followed"


def read_beneath(folder: Path, parts: Sequence[str], most: int = MAX_BYTES, *, linked: bool = False) -> str | None:
    """The text of a file beneath a folder, or None when there is no plain file; longer text is cut, and says so."""
    if not parts or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        return None
    opened: list[int] = []
    safely = os.O_RDONLY | os.O_CLOEXEC | (0 if linked else os.O_NOFOLLOW)
    try:
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts[:-1]:
            opened.append(os.open(part, safely | os.O_DIRECTORY, dir_fd=opened[-1]))
        # O_NONBLOCK: a pipe that somebody put there must not hold up the session.
        opened.append(os.open(parts[-1], safely | os.O_NONBLOCK, dir_fd=opened[-1]))
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


def list_folders(folder: Path, parts: Sequence[str], *, linked: bool = False) -> list[str]:
    """The names of the folders in a folder beneath another, sorted; none where there is a link in the way."""
    return _names(folder, parts, lambda entry: entry.is_dir(follow_symlinks=linked), linked)


def list_files(folder: Path, parts: Sequence[str], *, linked: bool = False) -> list[str]:
    """The names of the plain files in a folder beneath another, sorted."""
    return _names(folder, parts, lambda entry: entry.is_file(follow_symlinks=linked), linked)


def list_links(folder: Path, parts: Sequence[str]) -> list[str]:
    """The names of the links in a folder beneath another, sorted: what is passed over there."""
    return _names(folder, parts, lambda entry: entry.is_symlink(), linked=False)


def _names(folder: Path, parts: Sequence[str], wanted: Callable[[os.DirEntry[str]], bool], linked: bool) -> list[str]:
    place = folder
    with suppress(OSError):
        for part in parts:
            place = place / part
            if not stat.S_ISDIR(os.stat(place, follow_symlinks=linked).st_mode):
                return []
        with os.scandir(place) as entries:
            return sorted(entry.name for entry in entries if wanted(entry))
    return []
