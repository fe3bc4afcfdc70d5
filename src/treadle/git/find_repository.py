"""Finds the repository of a folder in a workspace. No file of the workspace can name one that is not its own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from treadle.errors import BadInput
from treadle.git.config_file import parse_config
from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.repository import Repository

_MAX_LINK_BYTES = 8192
_MAX_CONFIG_BYTES = 1 << 20


class NoRepository(BadInput):
    """A folder belongs to no repository, or to one that cannot be used. The message says why."""


def find_repository(workspace: Path, folder: str = "") -> Repository:
    """Find the repository of a folder: the nearest `.git`, up to the workspace itself. Raises `NoRepository`."""
    workspace = workspace.resolve()
    here = workspace / folder
    if ".." in Path(folder).parts or here.resolve() != here or not here.is_dir():
        raise NoRepository(f"{folder!r} is not a folder of the workspace.")
    while True:
        about = _look_up(here / ".git")
        if about is not None:
            break
        if here == workspace:
            raise NoRepository(f"{folder or 'The workspace'} is not in a git repository.")
        here = here.parent
    name = "" if here == workspace else str(here.relative_to(workspace))
    git_dir = here / ".git"
    if stat.S_ISDIR(about.st_mode):
        if _look_up(git_dir / "commondir") is not None:
            raise NoRepository(f"{git_dir} claims to be a part of another repository, so it is not used.")
        return Repository(here, git_dir, git_dir, name)
    if not stat.S_ISREG(about.st_mode):
        raise NoRepository(f"{git_dir} is a link or no regular file, so it is not used.")
    return _follow_git_file(workspace, here, name)


def _follow_git_file(workspace: Path, work_tree: Path, name: str) -> Repository:
    """Find the repository of a linked worktree or a submodule. One outside the workspace must name this folder too."""
    text = _read_link(work_tree, ".git")
    if not text.startswith("gitdir: "):
        raise NoRepository(f"{work_tree}/.git names no repository.")
    git_dir = Path(os.path.realpath(work_tree / text.removeprefix("gitdir: ")))
    if not git_dir.is_dir():
        raise NoRepository(f"{work_tree}/.git names {git_dir}, where no repository is.")
    shared = _read_link(git_dir, "commondir")
    common_dir = Path(os.path.realpath(git_dir / shared)) if shared else git_dir
    if not all(place.is_relative_to(workspace) for place in (git_dir, common_dir)):
        if shared:
            known = _read_link(git_dir, "gitdir")
            belongs = git_dir.parent == common_dir / "worktrees" and _is_same(git_dir / known, work_tree / ".git")
        else:
            values = parse_config(_read_text(git_dir, "config", _MAX_CONFIG_BYTES)).get("core.worktree", ("",))
            belongs = bool(values[-1]) and _is_same(git_dir / values[-1], work_tree)
        if not belongs:
            raise NoRepository(f"{work_tree}/.git names {git_dir}, which belongs to another folder. It is not used.")
    return Repository(work_tree, git_dir, common_dir, name)


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == str(other)


def _look_up(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _read_link(folder: Path, name: str) -> str:
    return _read_text(folder, name, _MAX_LINK_BYTES).rstrip("\r\n")


def _read_text(folder: Path, name: str, limit: int) -> str:
    try:
        with GitFolder(folder) as opened:
            return os.fsdecode(opened.read_file(name, limit) or b"")
    except UnsafeFile as error:
        raise NoRepository(f"The repository cannot be used: {error}") from None
