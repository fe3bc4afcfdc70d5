"""Finds the repository of a work tree in a workspace. No file of the workspace can name one that is not its own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from treadle.errors import BadInput
from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.object_format import MAX_CONFIG_BYTES, list_settings
from treadle.git.repository import Repository

_MAX_LINK_BYTES = 8192


class NoRepository(BadInput):
    """A folder is not the work tree of a repository, or of one that cannot be used. The message says why."""


def find_repository(workspace: Path, name: str) -> Repository:
    """Find the repository whose work tree is a folder of the workspace. Raises `NoRepository`. No git runs."""
    workspace = workspace.resolve()
    work_tree = workspace / name
    if "\0" in name or ".." in Path(name).parts or work_tree.resolve() != work_tree or not work_tree.is_dir():
        raise NoRepository(f"{name!r} is not a folder of the workspace.")
    place = work_tree / ".git"
    try:
        mode = place.lstat().st_mode
    except OSError as error:
        raise NoRepository(f"{place} cannot be read: {error.strerror}.") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise NoRepository(f"{place} is a link or no regular file, so it is not used.")
    try:
        repository = locate_repository(workspace, name, is_file=stat.S_ISREG(mode))
        git_dir = repository.git_dir
        if git_dir == repository.common_dir and git_dir != place:  # a submodule
            settings = list_settings(read_text(git_dir, "config", MAX_CONFIG_BYTES))
            named = [value for section, key, value in settings if (section, key) == ("core", "worktree")]
            if not named or os.path.realpath(git_dir / named[-1]) != str(work_tree):
                raise NoRepository(f"{git_dir} belongs to another folder.")
    except NoRepository as refused:
        raise NoRepository(f"{place} is not used: {refused}") from None
    return repository


def locate_repository(workspace: Path, name: str, *, is_file: bool) -> Repository:
    """Locate the repository at the `.git` of a work tree, by the resolved path of the workspace. Raises `NoRepository`.

    If `.git` is a file, it counts only if a linked worktree that it names also names it. Otherwise it is that of a
    submodule, whose settings name the work tree: the caller checks that.
    """
    work_tree = workspace / name
    git_dir = work_tree / ".git"
    if is_file:
        line = read_text(work_tree, ".git").rstrip("\r\n")
        if not line.startswith("gitdir: "):
            raise NoRepository("it names no repository.")
        git_dir = _resolve(work_tree, line.removeprefix("gitdir: "), workspace)
    if not os.path.lexists(git_dir / "commondir"):
        return Repository(work_tree, git_dir, git_dir, name)
    if not is_file:
        raise NoRepository("it takes its settings from another folder.")
    common_dir = _resolve(git_dir, read_text(git_dir, "commondir").rstrip("\r\n"), workspace)
    named = os.path.realpath(git_dir / read_text(git_dir, "gitdir").rstrip("\r\n"))
    if git_dir.parent != common_dir / "worktrees" or named != str(work_tree / ".git"):
        raise NoRepository(f"{git_dir} belongs to another folder.")
    return Repository(work_tree, git_dir, common_dir, name)


def _resolve(base: Path, text: str, workspace: Path) -> Path:
    """Resolve a path as git does. In the workspace it may lead through no link: a command could have made that."""
    plain = Path(os.path.normpath(base / text))
    real = Path(os.path.realpath(plain))
    if plain.is_relative_to(workspace) and real != plain:
        raise NoRepository(f"{plain} leads through a link.")
    return real


def read_text(folder: Path, name: str, limit: int = _MAX_LINK_BYTES) -> str:
    """Read a small text file of git through no link; empty when there is none. Raises `NoRepository`."""
    try:
        with GitFolder(folder) as opened:
            data = opened.read_file(name, limit) or b""
    except UnsafeFile as error:
        raise NoRepository(str(error)) from None
    if b"\0" in data:
        raise NoRepository(f"{folder / name} is not a file of git.")
    return os.fsdecode(data)
