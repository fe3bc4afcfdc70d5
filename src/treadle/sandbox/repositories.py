"""Which repositories in a workspace get a private copy for a command, and where they keep their objects.

A file in a workspace never chooses a mount: a `.git` file counts only if the place that it names also names it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import BadInput
from treadle.git.find_repository import NoRepository, locate_repository, read_text
from treadle.git.repository import Repository
from treadle.permissions.paths import list_own_folders
from treadle.sandbox.git_settings import (
    Setting,
    SettingsUnreadable,
    find_setting,
    list_unknown_extensions,
    read_settings,
)
from treadle.sandbox.workspace_scan import GitKind

MAX_COPIES = 32
"""Repositories with a private copy. Those that are further down are read-only."""

_MAX_ALTERNATES_BYTES = 65536
_MAX_ALTERNATES = 16


class AcceptedRepository(Struct, frozen=True):
    """A repository that gets a private copy. `entry` is its `.git` in the workspace, relative.

    `objects` are the folders of its objects: its own first, then those that it borrows from.
    """

    repository: Repository
    entry: str
    is_file: bool
    settings: tuple[Setting, ...]
    objects: tuple[Path, ...]


class FoundRepositories(Struct, frozen=True):
    """The accepted repositories, and sentences about what git will not find in the sandbox."""

    accepted: tuple[AcceptedRepository, ...] = ()
    notes: tuple[str, ...] = ()


def find_repositories(
    workspace: Path, found: Mapping[str, GitKind], readable: Iterable[Path] = ()
) -> FoundRepositories:
    """Accept the repositories that a scan found, nearest first. Folders in `readable` are shown to commands anyway."""
    accepted: list[AcceptedRepository] = []
    notes: list[str] = []
    visible = (workspace, *(Path(os.path.realpath(folder)) for folder in readable))
    for entry, kind in found.items():
        if kind not in ("folder", "file"):
            continue
        if len(accepted) == MAX_COPIES:
            notes.append(f"Only the {MAX_COPIES} nearest repositories can be changed by git; {entry} is read-only.")
            break
        try:
            one = accept_repository(workspace, entry, is_file=kind == "file")
            borrowed = list(find_alternates(one.repository.common_dir / "objects"))
        except (NoRepository, SettingsUnreadable) as refused:
            notes.append(f"Git finds no repository at {entry}: {refused}")
            continue
        except OSError as error:
            notes.append(f"Git finds no repository at {entry}: it cannot be read ({error.strerror}).")
            continue
        shown = [
            path
            for path in borrowed
            if path.name == "objects"
            and any(map(path.is_relative_to, visible))
            and not any(map(path.is_relative_to, list_own_folders()))
        ]
        notes += [
            f"The repository at {entry} borrows objects from {path}, which commands cannot see. Add that folder to "
            "read_only in the section [sandbox] of your config.toml."
            for path in borrowed
            if path not in shown
        ]
        accepted.append(replace(one, objects=(*one.objects, *shown)))
    return FoundRepositories(tuple(accepted), tuple(notes))


def find_nearest_repository(workspace: Path, folder: str) -> AcceptedRepository:
    """Find the repository of a folder: the nearest `.git`, up to the workspace itself. Raises `BadInput`."""
    here = workspace / folder
    if ".." in Path(folder).parts or here.resolve() != here or not here.is_dir():
        raise BadInput(f"{folder!r} is not a folder of the workspace.")
    while not os.path.lexists(here / ".git") and here != workspace:
        here = here.parent
    place = here / ".git"
    if not os.path.lexists(place):
        raise BadInput(f"{folder or 'The workspace'} is not in a git repository.")
    mode = place.lstat().st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise BadInput(f"{place} is a link or no regular file, so it is not used.")
    try:
        return accept_repository(workspace, str(place.relative_to(workspace)), is_file=stat.S_ISREG(mode))
    except (NoRepository, SettingsUnreadable) as refused:
        raise BadInput(f"{place} is not used: {refused}") from None


def accept_repository(workspace: Path, entry: str, *, is_file: bool) -> AcceptedRepository:
    """Accept the repository at a `.git` of the workspace; raises `NoRepository`, which says why not."""
    repository = locate_repository(workspace, os.path.dirname(entry), is_file=is_file)
    git_dir, common_dir = repository.git_dir, repository.common_dir
    for path, is_kind in (
        (git_dir / "HEAD", stat.S_ISREG),
        (common_dir / "config", stat.S_ISREG),
        (common_dir / "objects", stat.S_ISDIR),
        (common_dir / "refs", stat.S_ISDIR),
    ):
        if not os.path.lexists(path) or not is_kind(os.lstat(path).st_mode):
            raise NoRepository(f"{path} is missing, or a link.")
    settings = read_settings(git_dir, common_dir)
    if not any(one.is_own for one in settings):
        raise NoRepository("git cannot read its settings, or does not know its format.")
    named = find_setting(settings, "core.worktree", is_own=True)
    is_submodule = is_file and common_dir == git_dir  # its settings must name the work tree, others may
    if is_submodule if named is None else Path(os.path.realpath(git_dir / named)) != repository.work_tree:
        raise NoRepository(f"{git_dir} belongs to another folder.")
    is_bare = (find_setting(settings, "core.bare", is_own=True) or "false").lower() not in ("false", "0")
    if is_bare and common_dir == git_dir:  # a linked worktree of a bare repository has files
        raise NoRepository("it is bare.")
    if unknown := list_unknown_extensions(settings):
        raise NoRepository(f"it uses {', '.join(unknown)}, which the sandbox does not know.")
    return AcceptedRepository(repository, entry, is_file, settings, (common_dir / "objects",))


def find_alternates(objects: Path) -> Iterator[Path]:
    """Find the folders from which objects are borrowed, also by those, as git does."""
    pending, seen = [objects], {objects}
    while pending and len(seen) <= _MAX_ALTERNATES:
        here = pending.pop(0)
        for line in read_text(here, "info/alternates", _MAX_ALTERNATES_BYTES).split("\n"):
            path = Path(os.path.realpath(here / line))
            if line and not line.startswith(("#", '"')) and path not in seen and path.is_dir():
                seen.add(path)
                pending.append(path)
                yield path
