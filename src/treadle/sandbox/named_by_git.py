"""Finds what git runs or obeys in a folder because the user's settings name it: folders of hooks, included settings.

A command may not write these, whether they exist or not. What a command made is never asked: it has clean settings.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from treadle.permissions.paths import GUARDED_NAMES
from treadle.sandbox.git_settings import NO_REPOSITORY, NamedPath, SettingsUnreadable, read_named_paths

_MAX_BYTES = 1 << 20
_NAMES_PATHS = re.compile(rb"hookspath|include", re.IGNORECASE)
_GIT_FILE = re.compile(rb"gitdir: ([^\0]+?)[\r\n]*", re.DOTALL)


class NamedByGit(Struct, frozen=True):
    """Paths in a folder that git acts on, relative, with the kind of file that holds the place of a missing one.

    `why_read_only` says why a command may write nothing at all in the folder, or nothing.
    """

    paths: Mapping[str, int] = {}
    why_read_only: str = ""


def find_named_by_git(folder: Path, entries: Iterable[str]) -> NamedByGit:
    """Find what settings name in a folder. `entries` are each `.git` in it; a repository around it counts too."""
    above = next((parent for parent in folder.parents if os.path.lexists(parent / ".git")), None)
    places = [*(folder / entry for entry in entries), *([above / ".git"] if above is not None else [])]
    named = set(_list_paths(read_named_paths(NO_REPOSITORY, NO_REPOSITORY), folder))
    for place in places:
        named |= set(_list_paths(_read_repository(place), place.parent))
    paths: dict[str, int] = {}
    why = ""
    for path, is_folder in sorted(named):
        real = Path(os.path.realpath(path))
        plain = path if path.is_relative_to(folder) else real
        if not plain.is_relative_to(folder):
            continue
        parts = plain.relative_to(folder).parts
        if not parts or plain != real:
            shown = plain.relative_to(folder) if parts else "the workspace itself"
            why = f"Settings of git name {shown}, which cannot be protected, so the command could only read."
        elif ".git" not in parts and parts[0] not in GUARDED_NAMES:
            paths["/".join(parts)] = stat.S_IFDIR if is_folder else stat.S_IFREG
    return NamedByGit(paths, why)


def _list_paths(named: Iterable[NamedPath], work_tree: Path) -> Iterator[tuple[Path, bool]]:
    for one in named:
        # Git looks for hooks from the top of the work tree, and for settings from the file that includes them.
        yield Path(os.path.normpath(work_tree / one.path)), one.is_folder


def _read_repository(place: Path) -> tuple[NamedPath, ...]:
    """Read what the settings of a repository name. Git reads them only if they name anything."""
    git_dir = place
    if not place.is_symlink() and place.is_file():
        found = _GIT_FILE.fullmatch(_read(place))
        git_dir = place.parent / os.fsdecode(found[1]) if found else NO_REPOSITORY
    common_dir = git_dir / os.fsdecode(_read(git_dir / "commondir").rstrip(b"\r\n"))
    files = {common_dir / "config", common_dir / "config.worktree", git_dir / "config.worktree"}
    if not any(_NAMES_PATHS.search(_read(file)) for file in files):
        git_dir = common_dir = NO_REPOSITORY
    try:
        return read_named_paths(git_dir, common_dir)
    except SettingsUnreadable:  # then git does nothing there
        return ()


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        return file.read(_MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
