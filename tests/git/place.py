"""A repository on disk with real git, and a command that works in a private copy of it. git runs only in the tests."""

import subprocess
import zlib
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path

from tests.kit.host_git import GIT_ENVIRONMENT, run_git
from treadle.git.private_copy import PrivateCopy, create_private_copy
from treadle.git.repository import Repository
from treadle.git.take_back import take_back
from treadle.sandbox.base import GitReport

CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"


class Command:
    """A command at work: git in it sees the private copy."""

    def __init__(self, copy: PrivateCopy) -> None:
        self.copy, self.folder = copy, copy.folder

    def git(self, *arguments: str, check: bool = True, **environment: str) -> str:
        """Run git in the private copy."""
        places = {"GIT_DIR": str(self.folder), "GIT_WORK_TREE": str(self.copy.repository.work_tree)}
        return run_git(self.copy.repository.work_tree, *arguments, code=0 if check else None, **places, **environment)

    def end(self) -> GitReport | None:
        """Take back what the command did."""
        return take_back(self.copy)


class Place:
    """A repository with one commit. `top` is its work tree."""

    def __init__(self, top: Path, *options: str) -> None:
        self.top, self.aside, self._count = top, top.parent, 0
        top.mkdir(parents=True, exist_ok=True)
        run_git(top, "init", "-q", "-b", "main", *options)
        self.commit("one", **{"a.txt": "1\n", "b.txt": "1\n"})
        self.git_dir = self.common_dir = top / ".git"

    @classmethod
    def open(cls, top: Path, git_dir: Path | None = None, common_dir: Path | None = None) -> "Place":
        """Open a repository that exists."""
        place = cls.__new__(cls)
        place.top, place.aside, place._count = top, top.parent, 0
        place.git_dir = git_dir or top / ".git"
        place.common_dir = common_dir or place.git_dir
        return place

    @classmethod
    def link(cls, place: "Place", name: str, branch: str) -> "Place":
        """Add a linked worktree with a new branch."""
        place.git("worktree", "add", "-q", "-b", branch, f"../{name}")
        return cls.open(place.top.parent / name, place.common_dir / "worktrees" / name, place.common_dir)

    def write(self, **files: str) -> None:
        """Write files in the work tree."""
        for name, text in files.items():
            (self.top / name).parent.mkdir(parents=True, exist_ok=True)
            (self.top / name).write_text(text)

    def git(self, *arguments: str, check: bool = True, **environment: str) -> str:
        """Run git as the user."""
        return run_git(self.top, *arguments, code=0 if check else None, **environment)

    def commit(self, subject: str, **files: str) -> str:
        """Commit files as the user, and return the id."""
        self.write(**files)
        self.git("add", "-A")
        self.git("commit", "-qm", subject, "--allow-empty")
        return self.git("rev-parse", "HEAD")

    @property
    def repository(self) -> Repository:
        return Repository(self.top, self.git_dir, self.common_dir)

    def start_command(self, config: str = CONFIG) -> Command:
        """Make a private copy for a command."""
        self._count += 1
        folder = self.aside / f"private-{self.top.name}-{self._count}"
        objects = str(self.common_dir / "objects")
        return Command(create_private_copy(self.repository, folder, config=config, objects=[objects]))

    def run_command(self, work: Callable[[Command], object]) -> GitReport:
        """Do something in a private copy and take it back. There must be something to report."""
        command = self.start_command()
        work(command)
        report = command.end()
        assert report is not None
        self.check()
        return report

    def run_gits(self, *lines: str) -> GitReport:
        """Run some git commands, each a line of words, in one private copy, and take it back."""
        return self.run_command(lambda command: [command.git(*line.split()) for line in lines])

    def check(self) -> None:
        """Check that the real repository is whole."""
        done = subprocess.run(
            ["git", "fsck", "--strict", "--full", "--no-dangling"],
            cwd=self.top,
            env=GIT_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and "error" not in done.stderr, done.stdout + done.stderr
        assert not list(self.common_dir.rglob("*.lock")) and not list(self.common_dir.rglob("*treadle*/HEAD"))
        assert not list(self.common_dir.glob("objects/tmp_*"))

    def subjects(self, *revisions: str) -> list[str]:
        """List the subjects of commits, newest first."""
        return self.git("log", "--format=%s", *revisions).splitlines()

    def status(self) -> list[str]:
        """List the lines of a short status."""
        return self.git("status", "--porcelain").splitlines()


def put_object(command: Command, kind: str, data: bytes, name: str = "") -> str:
    """Write a loose object, under its right name unless another is given."""
    content = b"%s %d\0" % (kind.encode(), len(data)) + data
    name = name or sha1(content).hexdigest()
    place = command.folder / "objects" / name[:2] / name[2:]
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(zlib.compress(content))
    return name


def put_commit(command: Command, tree: str, *parents: str) -> str:
    """Write a commit, whatever its tree and parents are."""
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    who = "A <a@example.org> 1700000000 +0000"
    return put_object(command, "commit", "\n".join([*lines, f"author {who}", f"committer {who}", "", "m\n"]).encode())


def set_main(command: Command, object_id: str) -> None:
    """Move the branch `main` of the command, whatever the object is."""
    (command.folder / "refs/heads/main").write_text(f"{object_id}\n")
