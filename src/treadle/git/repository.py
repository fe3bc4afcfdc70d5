"""Where a repository keeps its data. It only names places: `take_back.py` and `private_copy.py` read and write them."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class Repository(Struct, frozen=True):
    """The places of one repository, real and without links.

    `git_dir` has HEAD, the index and the state of a merge or rebase. `common_dir` has objects, branches and settings.
    They differ only for a linked worktree. `name` is the work tree's folder in the workspace, empty for the workspace.
    """

    work_tree: Path
    git_dir: Path
    common_dir: Path
    name: str = ""
