"""Finds the repository of a work tree. A `.git` file is believed only if the repository that it names confirms it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from treadle.errors import BadInput
from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.repository import Repository

_MAX_BYTES = 16 * 1024


def find_repository(folder: Path) -> Repository:
    """Find the repository whose work tree a folder is; raises `BadInput`."""
    work_tree = Path(os.path.realpath(folder))
    try:
        with GitFolder(work_tree) as opened:
            about = opened.look_up(".git")
            if about is not None and stat.S_ISDIR(about.st_mode):
                return Repository(work_tree, work_tree / ".git", work_tree / ".git")
            named = (opened.read_file(".git", _MAX_BYTES) or b"").removeprefix(b"gitdir: ").rstrip(b"\n")
        if named:
            git_dir = Path(os.path.realpath(work_tree / os.fsdecode(named)))
            with GitFolder(git_dir) as opened:
                owner = (opened.read_file("gitdir", _MAX_BYTES) or b"").rstrip(b"\n")
            if os.fsdecode(owner) == f"{work_tree}/.git" and git_dir.parent.name == "worktrees":
                return Repository(work_tree, git_dir, git_dir.parent.parent)
    except UnsafeFile:
        pass
    raise BadInput(f"{folder} is not the top folder of a git repository. Nothing was created.")
