"""The wheel of the previous release, built from its commit: what runs on the other nodes during an upgrade."""

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "packaging", "src", "docs/man")
"""What the wheel is built of. Without `web` there is no page to build."""
LOG = "src/treadle/log/postgres.py"


@dataclass
class Release:
    """A release that is installed in a folder, from a commit."""

    commit: str
    version: str
    folder: Path

    @property
    def program(self) -> tuple[str, ...]:
        """How to run its command line."""
        return ("env", f"PYTHONPATH={self.folder}", sys.executable, "-m", "treadle")


def find_missing_part() -> str:
    """Why the previous release cannot be built here, or nothing."""
    try:
        shallow = _ask_git("rev-parse", "--is-shallow-repository")
    except (OSError, subprocess.CalledProcessError):
        return "this is no clone with git"
    if shallow == "true":
        return "the history is missing: git fetch --unshallow"
    return ""


def find_previous_commit() -> str:
    """Find the last commit of the release before this one, or nothing where that had no log in PostgreSQL."""
    last = _ask_git("log", "-1", "--format=%H", "-G", r"^version = ", "--", "pyproject.toml")
    has_log = bool(_ask_git("ls-tree", "--name-only", f"{last}^", LOG))
    return _ask_git("rev-parse", f"{last}^") if has_log else ""


def build_previous_release(folder: Path) -> Release:
    """Build and install the release before that of the work tree, without a network.

    Where there is none, the last commit stands for it. Then the two differ in what was not committed.
    """
    commit = find_previous_commit() or _ask_git("rev-parse", "HEAD")
    source, wheels, installed = folder / "source", folder / "wheels", folder / "installed"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit, *PARTS], cwd=PROJECT, capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", source], input=archive.stdout, check=True)
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=source)
    (wheel,) = wheels.glob("*.whl")
    _run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(installed), str(wheel))
    version = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    release = Release(commit, version, installed)
    show = "import treadle; print(treadle.__file__)"
    assert str(installed) in _run(*release.program[:3], "-c", show), "another treadle would run"
    return release


def _ask_git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()


def _run(*command: str, cwd: Path = PROJECT.parent) -> str:
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout
