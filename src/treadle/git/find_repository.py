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
    """Find the repository whose work tree is a folder of the workspace. Raises `NoRepository`."""
    workspace = workspace.resolve()
    work_tree = workspace / name
    if "\0" in name or ".." in Path(name).parts or work_tree.resolve() != work_tree or not work_tree.is_dir():
        raise NoRepository(f"{name!r} is not a folder of the workspace.")
    git_dir = work_tree / ".git"
    try:
        mode = git_dir.lstat().st_mode
        if stat.S_ISDIR(mode):
            if os.path.lexists(git_dir / "commondir"):
                raise NoRepository(f"{git_dir} claims to be a part of another repository, so it is not used.")
            return Repository(work_tree, git_dir, git_dir, name)
        if not stat.S_ISREG(mode):
            raise NoRepository(f"{git_dir} is a link or no regular file, so it is not used.")
        return _follow_git_file(work_tree, name)
    except (OSError, UnsafeFile) as error:
        raise NoRepository(f"{git_dir} cannot be read: {error}") from None


def _follow_git_file(work_tree: Path, name: str) -> Repository:
    """Find the repository of a linked worktree or a submodule. It must name this work tree too."""
    text = _read_text(work_tree, ".git")
    if not text.startswith("gitdir: "):
        raise NoRepository(f"{work_tree}/.git names no repository.")
    git_dir = Path(os.path.realpath(work_tree / text.removeprefix("gitdir: ")))
    shared = _read_text(git_dir, "commondir")
    common_dir = Path(os.path.realpath(git_dir / shared)) if shared else git_dir
    if shared:
        named = git_dir / _read_text(git_dir, "gitdir")
        belongs = git_dir.parent == common_dir / "worktrees" and os.path.realpath(named) == str(work_tree / ".git")
    else:
        settings = list_settings(_read_text(git_dir, "config", MAX_CONFIG_BYTES))
        values = [value for section, key, value in settings if (section, key) == ("core", "worktree")]
        belongs = bool(values) and os.path.realpath(git_dir / values[-1]) == str(work_tree)
    if not belongs:
        raise NoRepository(f"{work_tree}/.git names {git_dir}, which belongs to another folder. It is not used.")
    return Repository(work_tree, git_dir, common_dir, name)


def _read_text(folder: Path, name: str, limit: int = _MAX_LINK_BYTES) -> str:
    with GitFolder(folder) as opened:
        return os.fsdecode(opened.read_file(name, limit) or b"").rstrip("\r\n")
