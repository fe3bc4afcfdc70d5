"""Repositories for a sandboxed command: plain, cloned, with a worktree and a submodule, and a user with a name."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.sandbox import PATIENCE, Ran, inside
from treadle.sandbox.base import Job

GIT_CONFIG = """[user]
\tname = Ann Author
\temail = ann@example.org
[init]
\tdefaultBranch = main
[protocol "file"]
\tallow = always
[advice]
\tdetachedHead = false
"""
LAYOUTS = ("plain", "clone", "worktree", "submodule")


class GitPlace:
    """A home with settings of git, and repositories beside it. `canary` is a program that must not start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / ".gitconfig").write_text(GIT_CONFIG)
        self.workspace = folder / "workspace"
        self.started = folder / "started"
        self.canary = folder / "canary"
        self.canary.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.started}\n')
        self.canary.chmod(0o755)

    def host(self, code: str, folder: Path | None = None, *, fails: bool = False) -> str:
        """Run a script as the user does, without a sandbox. Return what it wrote."""
        done = subprocess.run(
            ["/bin/sh", "-c", f"set -e\n{code}"],
            cwd=folder or self.workspace,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": ":"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert fails or done.returncode == 0, f"{code}: {done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if fails else "")

    def make_repository(self, folder: Path, files: int = 3) -> Path:
        """Make a plain repository with two commits."""
        folder.mkdir(parents=True)
        for number in range(files):
            (folder / f"file{number}").write_text(f"{number}\n")
        self.host(
            "git init -q . && git add . && git commit -qm first && echo more >> file0 && git commit -qam second", folder
        )
        return folder

    def make_layout(self, layout: str) -> Path:
        """Make a repository and return its work tree, which is the workspace or in it."""
        if layout == "plain":
            return self.make_repository(self.workspace)
        origin = self.make_repository(self.folder / "origin")
        if layout == "clone":
            self.host(f"git clone -q {origin} {self.workspace}", self.folder)
        elif layout == "worktree":
            self.host(f"git worktree add -q -b topic {self.workspace}", origin)
        else:
            self.make_repository(self.workspace)
            self.host(f"git submodule add -q {origin} libs/sub && git commit -qm third")
            self.host("git switch -q -c work", self.workspace / "libs/sub")
            return self.workspace / "libs/sub"
        return self.workspace

    def job(self, code: str, *, writable: bool = True, read_only: tuple[Path, ...] = ()) -> Job:
        env = {"CANARY": str(self.canary), "WORKSPACE": str(self.workspace), "FOLDER": str(self.folder)}
        return Job(("/bin/bash", "-c", code), self.workspace, env=env, writable=writable, read_only=read_only)

    async def inside(self, code: str, *, writable: bool = True) -> Ran:
        """Run a script in the sandbox."""
        return await inside(self.job(code, writable=writable))


@contextmanager
def user_settings(place: GitPlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process have the home of a place, and no other settings of git."""
    for name in [name for name in os.environ if name.startswith("GIT_")] + [
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "EMAIL",
    ]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(place.home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("TREADLE_DATA_DIR", str(place.folder / "data"))
    yield
