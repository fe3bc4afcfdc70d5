"""A repository that a command attacks, and its user, who works on afterwards."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.git.place import Command, Place
from tests.kit.host_git import GIT_ENVIRONMENT

Attack = Callable[[Command, Path], object]


class Victim(Place):
    """A repository whose user looks at it, changes it and commits after a command. A canary shows if a program ran."""

    seen: list[str]

    def suffer(self, attack: Attack) -> tuple[str, ...]:
        """Let a command attack, take its work back, then work as the user. Returns what was rejected.

        `seen` is the status that the user sees first.
        """
        canary = self.aside / "canary"
        config = (self.git_dir / "config").read_bytes()
        names = {path.relative_to(self.git_dir).parts[0] for path in self.git_dir.iterdir()}
        command = self.start_command()
        attack(command, canary)
        report = command.end()
        assert (self.git_dir / "config").read_bytes() == config
        for name in ("config.worktree", "commondir", "gitdir", "modules", "worktrees", "objects/info/alternates"):
            assert not (self.git_dir / name).exists() and not (self.git_dir / name).is_symlink()
        assert not [path for path in self.git_dir.rglob("*") if path.is_symlink() or path.is_fifo()]
        assert {path.name for path in self.git_dir.iterdir()} - names <= {"COMMIT_EDITMSG", "ORIG_HEAD", "MERGE_MSG"}
        self.seen = self.status()
        steps = ("status", "diff", "stash list", "log --oneline --all", "commit --allow-empty -m after")
        script = " && ".join(f"git {step}" for step in steps)
        subprocess.run(["sh", "-c", script], cwd=self.top, env=GIT_ENVIRONMENT, capture_output=True, check=True)
        self.check()
        assert not canary.exists(), "a program of the command ran"
        return report.rejected if report else ()
