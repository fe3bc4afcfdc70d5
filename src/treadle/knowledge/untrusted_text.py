"""Text that others wrote: read from regular files of a bounded size, and framed in a prompt.

Links of a workspace are never followed. Links in the user's own folder may be (`linked`): people keep such files
elsewhere and link to them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from treadle.workspace.folder import O_PATH, open_beneath

MAX_BYTES = 64 * 1024
LINK_SKIPPED = "skipped: it is a link, and links of a workspace are not followed"
_FRAMES = re.compile(r"<(\s*(?:/\s*)?(?:file|skills?|memories)\b)", re.IGNORECASE)


def read_beneath(folder: Path, parts: Sequence[str], limit: int = MAX_BYTES, *, linked: bool = False) -> str | None:
    """Read a text file beneath a folder; None when there is no regular file. Longer text is cut and says so."""
    if not parts:
        return None
    # O_NONBLOCK: opening a pipe must not block the session.
    with suppress(OSError), _open_beneath(folder, parts, os.O_RDONLY | os.O_NONBLOCK, linked=linked) as opened:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return None
        with open(opened, "rb", closefd=False) as file:
            data = file.read(limit + 1)
        text = data[:limit].decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\0", "\ufffd")
        return text if len(data) <= limit else f"{text}\n[… cut after {limit} bytes …]"
    return None


def list_folders(folder: Path, parts: Sequence[str], *, linked: bool = False) -> list[str]:
    """List the names of the folders in a folder beneath another, sorted."""
    return _list_names(folder, parts, lambda entry: entry.is_dir(follow_symlinks=linked), linked=linked)


def list_files(folder: Path, parts: Sequence[str], *, linked: bool = False) -> list[str]:
    """List the names of the regular files in a folder beneath another, sorted."""
    return _list_names(folder, parts, lambda entry: entry.is_file(follow_symlinks=linked), linked=linked)


def list_links(folder: Path, parts: Sequence[str]) -> list[str]:
    """List the names of the links in a folder beneath another, sorted. They are skipped in a workspace."""
    return _list_names(folder, parts, lambda entry: entry.is_symlink(), linked=False)


def _list_names(
    folder: Path, parts: Sequence[str], is_wanted: Callable[[os.DirEntry[str]], bool], *, linked: bool
) -> list[str]:
    flags = os.O_RDONLY | os.O_DIRECTORY
    with suppress(OSError), _open_beneath(folder, parts, flags, linked=linked) as opened, os.scandir(opened) as entries:
        return sorted(entry.name for entry in entries if is_wanted(entry))
    return []


@contextmanager
def _open_beneath(folder: Path, parts: Sequence[str], flags: int, *, linked: bool) -> Generator[int]:
    if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        raise FileNotFoundError
    if linked:
        opened = os.open(folder.joinpath(*parts), flags | os.O_CLOEXEC)
    else:
        root = os.open(folder, (O_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            opened = open_beneath(root, "/".join(parts) or ".", flags)
        finally:
            os.close(root)
    try:
        yield opened
    finally:
        os.close(opened)


def frame_text(kind: str, text: str, **attributes: str) -> str:
    """Frame a text with where it comes from. The text itself can neither open nor close a frame."""
    written = "".join(f' {name.rstrip("_")}="{_clean_attribute(value)}"' for name, value in attributes.items())
    escaped = _FRAMES.sub(r"<\\\1", text)
    return f"<{kind}{written}>\n{escaped}\n</{kind}>"


def _clean_attribute(value: str) -> str:
    return re.sub(r'["<>\x00-\x1f]', "?", value)
