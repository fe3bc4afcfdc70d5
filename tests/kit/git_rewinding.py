"""A workspace with git repositories whose sessions can be rewound, and a sandbox that runs git on the host."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kit.host_git import GIT_ENVIRONMENT, run_git, set_identity
from tests.kit.rewinding import Place
from tests.kit.sessions import Store, run_to_end
from treadle import Session, ToolContext, ToolResult, tool
from treadle.events import Tier
from treadle.sandbox import backend
from treadle.sandbox.base import CommandResult, GitReport, Job, OnOutput, ProbeResult, RefChange
from treadle.testing import call
from treadle.tools.shell import Shell


class HostGit:
    """Stands in for the sandbox: it runs commands on the host and reports what they changed in repositories."""

    def __init__(self, repositories: list[str]) -> None:
        self.repositories = repositories

    def probe(self) -> ProbeResult:
        return ProbeResult("bubblewrap", "a test says so")

    async def run_in_sandbox(self, job: Job, on_output: OnOutput) -> CommandResult:
        before = {name: _GitState(job.workspace / name) for name in self.repositories}
        result = await self.run_on_host(job, on_output)
        reports = [state.build_report(job.workspace / name, name) for name, state in before.items()]
        return CommandResult(result.code, "exited", None, 0.1, 0, git=tuple(filter(None, reports)))

    async def run_on_host(self, job: Job, on_output: OnOutput) -> CommandResult:
        folder = job.workspace / job.cwd
        run = partial(subprocess.run, job.argv, cwd=folder, env=GIT_ENVIRONMENT, capture_output=True)
        done = await asyncio.to_thread(run)
        on_output(done.stdout + done.stderr)
        return CommandResult(done.returncode, "exited", None, 0.1, 0)


class _GitState:
    """The refs and the index of a repository at one time."""

    def __init__(self, folder: Path) -> None:
        self.is_there = (folder / ".git").exists()
        self.refs: dict[str, str] = {}
        self.index, self.stashes = b"", ""
        if self.is_there:
            listed = run_git(folder, "for-each-ref", "--format=%(refname) %(objectname)")
            self.refs = dict(line.split() for line in listed.splitlines())
            git_dir = Path(folder, run_git(folder, "rev-parse", "--git-dir").strip())
            self.refs["HEAD"] = (git_dir / "HEAD").read_text().strip()
            self.index = (git_dir / "index").read_bytes() if (git_dir / "index").exists() else b""
            self.stashes = run_git(folder, "stash", "list", "--format=%H")

    def build_report(self, folder: Path, name: str) -> GitReport | None:
        now = _GitState(folder)
        names = sorted({*self.refs, *now.refs})
        pairs = (RefChange(ref, self.refs.get(ref, ""), now.refs.get(ref, "")) for ref in names)
        is_stash_changed = self.stashes != now.stashes
        changes = tuple(
            change
            for change in pairs
            if change.before != change.after or (change.ref == "refs/stash" and is_stash_changed)
        )
        if not now.is_there or (not changes and self.index == now.index):
            return None
        known = [f"^{value}" for ref, value in self.refs.items() if ref != "HEAD"]
        commits = tuple(run_git(folder, "log", "--format=%H %s", "--branches", *known).splitlines())
        return GitReport(name, changes, commits, (), self.index if self.index != now.index else None)


def create_repository(folder: Path) -> None:
    """Create a repository with one commit."""
    folder.mkdir(parents=True, exist_ok=True)
    run_git(folder, "init", "-q", "-b", "main")
    set_identity(folder)
    (folder / "a.txt").write_text("one\n")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", "First")


class GitPlace(Place):
    """A workspace that is a repository with one commit.

    Its tool `shell` runs a command as the shell tool does, unasked. `watch_command` is called before each.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sandbox = HostGit([""])
        self.tier: Tier = "sandbox"
        self.watch_command: Callable[[], object] = lambda: None
        self.runner = Shell(self.sandbox, self.kept)

        @tool
        async def shell(command: str, context: ToolContext) -> ToolResult:
            self.watch_command()
            context.tier = self.tier
            result = await self.runner.run(self.runner.parse(json.dumps({"command": command})), context)
            assert isinstance(result, ToolResult)
            assert result.ok, result.text
            return result

        self.tools.append(shell)
        create_repository(self.workspace)

    def use_real_sandbox(self) -> None:
        self.runner = Shell(backend, self.kept)

    def git(self, *words: str, folder: str = "") -> str:
        return run_git(self.workspace / folder, *words)

    def read_files(self) -> dict[str, str]:
        """Read the files of the workspace, without those of repositories."""
        paths = (path for path in self.workspace.rglob("*") if path.is_file() and ".git" not in path.parts)
        return {str(path.relative_to(self.workspace)): path.read_text() for path in paths}

    def list_commits(self, folder: str = "") -> set[str]:
        """List the commits that refs and reflogs lead to, which git therefore keeps."""
        return set(self.git("rev-list", "--all", "--reflog", folder=folder).split())

    def describe(self, folder: str = "") -> dict[str, str]:
        """What a user sees of a repository: its refs, its stash, and how files and index differ from the commit."""
        head = self.git("rev-parse", "--symbolic-full-name", "HEAD", folder=folder)
        refs = self.git("for-each-ref", "--format=%(refname) %(objectname)", folder=folder)
        status = self.git("status", "--porcelain=v2", "--branch", folder=folder)
        staged = self.git("ls-files", "--stage", folder=folder)
        return {"head": head, "refs": refs, "status": status, "staged": staged, "stash": self.list_stash(folder)}

    def list_stash(self, folder: str = "") -> str:
        return self.git("stash", "list", "--format=%H", folder=folder)

    def check_objects(self, folder: str = "") -> None:
        assert "error" not in self.git("fsck", "--strict", folder=folder)

    def script(self, *commands: str) -> list[Any]:
        """Replies of a model that runs each command for one message."""
        return [reply for command in commands for reply in (call("shell", command=command), "ok")]

    @asynccontextmanager
    async def run_shell(self, store: Store, *commands: str) -> AsyncIterator[Session]:
        """A session after a run for each command."""
        async with self.session(store, *self.script(*commands)) as session:
            for command in commands:
                await run_to_end(session, command)
            yield session


@pytest.fixture
def git_place(tmp_path: Path) -> Iterator[GitPlace]:
    made = GitPlace(tmp_path)
    yield made
    made.kept.close()
