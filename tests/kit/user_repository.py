"""A git repository of a user, and git itself as the judge of what treadle did to it."""

from pathlib import Path

import pytest

from tests.kit.host_git import run_git
from treadle.sandbox.backend import probe

needs_full_sandbox = pytest.mark.skipif(probe().level != "bubblewrap", reason="git needs bubblewrap in the sandbox")


class UserRepository:
    """A repository with one commit, of the file `a.txt`."""

    def __init__(self, folder: Path, *, is_empty: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")
        if not is_empty:
            self.commit("a.txt", "one\n")

    def git(self, *words: str, folder: Path | str | None = None, code: int = 0) -> str:
        """Run git as the user would, outside of any sandbox. Return what it says."""
        return run_git(folder or self.folder, *words, code=code, HOME=str(self.folder))

    def commit(self, name: str, text: str, folder: Path | str | None = None) -> str:
        """Write a file and commit it. Return the commit."""
        path = Path(folder or self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.git("add", "-f", name, folder=folder)
        self.git("commit", "-q", "-m", f"Write {name}", folder=folder)
        return self.git("rev-parse", "HEAD", folder=folder)

    def list_worktrees(self) -> list[str]:
        """List the folders of the linked worktrees that git knows."""
        lines = self.git("worktree", "list", "--porcelain").splitlines()
        return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")][1:]

    def list_branches(self) -> list[str]:
        return self.git("for-each-ref", "--format=%(refname:short)", "refs/heads").splitlines()

    def check(self) -> None:
        """Let git check the repository and all its worktrees."""
        assert self.git("fsck", "--strict", "--full", "--no-dangling") == ""
        assert self.git("worktree", "prune", "--dry-run", "--verbose") == ""
