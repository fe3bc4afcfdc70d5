"""Read which branch is checked out in a folder. No git runs, and no setting of the workspace is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from treadle.git.find_repository import NoRepository, locate_repository, read_text

_BRANCH = "ref: refs/heads/"
_MAX_PARENTS = 20


def read_branch(folder: Path) -> str:
    """Read the branch of the nearest repository above a folder: its name, the start of a commit, or empty."""
    folder = Path(os.path.realpath(folder))
    for work_tree in (folder, *folder.parents)[:_MAX_PARENTS]:
        try:
            mode = (work_tree / ".git").lstat().st_mode
        except OSError:
            continue
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            return ""
        try:
            repository = locate_repository(work_tree, "", is_file=stat.S_ISREG(mode))
            head = read_text(repository.git_dir, "HEAD").strip()
        except NoRepository:
            return ""
        return head.removeprefix(_BRANCH) if head.startswith(_BRANCH) else head[:7]
    return ""
