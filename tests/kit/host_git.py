"""Git as the user runs it, outside of any sandbox. No setting of the developer's machine has an effect."""

import os
import subprocess
from pathlib import Path

GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
}


def run_git(folder: Path | str, *words: str, code: int | None = 0, **environment: str) -> str:
    """Run git and return what it printed. `code` is the exit code that it must have; None: any."""
    env = {**GIT_ENVIRONMENT, **environment}
    done = subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert code is None or done.returncode == code, f"git {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout.rstrip("\n")


def set_identity(folder: Path) -> None:
    """Tell a repository who commits, because the developer's own settings do not count."""
    run_git(folder, "config", "user.name", "Ada")
    run_git(folder, "config", "user.email", "ada@example.org")
