"""The git commands that a worktree of a session needs: fill it, look for changes, commit and merge.

All of them run in the sandbox. A repository chooses programs that git starts, and none may start outside.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from treadle.errors import BadInput, Conflict
from treadle.git.repository import Repository
from treadle.git.session_worktrees import (
    Worktree,
    create_worktree,
    find_inner_repositories,
    has_folder,
    note_filled,
    plan_worktree,
    read_checked_out,
    read_tip,
)
from treadle.permissions.paths import RUN_OUTSIDE, split_path
from treadle.sandbox.base import Bounds, Job, Sandbox, SandboxUnavailable
from treadle.sandbox.guarded_paths import build_lock_name
from treadle.sandbox.private_folder import hold_lock_file
from treadle.sandbox.repositories import find_repositories
from treadle.sandbox.runtime_folder import make_runtime_folder

_BOUNDS = Bounds(wall_s=900.0, memory_mb=8192, file_mb=1 << 20, disk_mb=1 << 20)
"""A checkout is as large as the repository."""

_MAX_OUTPUT = 2000
_COMMIT = """\
if ! git var GIT_COMMITTER_IDENT >/dev/null 2>&1; then
  export GIT_AUTHOR_NAME=treadle GIT_AUTHOR_EMAIL=treadle@localhost
  export GIT_COMMITTER_NAME=treadle GIT_COMMITTER_EMAIL=treadle@localhost
fi
git add -A && git -c core.hooksPath=/dev/null commit -q -m "$1"
"""
_MERGE = """\
if ! git symbolic-ref -q HEAD >/dev/null; then echo "No branch is checked out here, to merge into."; exit 2; fi
if git rev-parse -q --verify MERGE_HEAD >/dev/null; then echo "A merge is not finished here."; exit 2; fi
git merge --no-edit "$1" && exit 0
git rev-parse -q --verify MERGE_HEAD >/dev/null || exit 2
git merge --abort && exit 1"""
_STATUS = "git status --porcelain --no-renames --untracked-files=all --ignored=matching"
_UNMERGED = ("DD", "AU", "UD", "UA", "DU", "AA", "UU")


class Changes(Struct, frozen=True):
    """What is in a work tree and not committed: changed and new `files`, those with conflicts, what git ignores."""

    files: tuple[str, ...] = ()
    unmerged: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


class WorktreeState(Struct, frozen=True):
    """What a session left in its worktree.

    `tip` is the commit of its branch, empty if the branch is gone. `changes` are not committed. `repositories` in it
    have commits of their own. `checked_out` is the branch or commit that the folder has instead of its own branch, and
    `detached` that commit.
    """

    tip: str
    has_folder: bool = True
    changes: Changes = Changes()
    repositories: tuple[str, ...] = ()
    checked_out: str = ""

    @property
    def detached(self) -> str:
        return "" if self.checked_out.startswith("refs/") else self.checked_out


def find_top_repository(folder: Path) -> Repository:
    """Find the repository whose work tree a folder is; raises `BadInput`."""
    work_tree = Path(os.path.realpath(folder))
    is_folder = (work_tree / ".git").is_dir()
    found = find_repositories(work_tree, {".git": "folder" if is_folder else "file"})
    if found.accepted and not (work_tree / ".git").is_symlink():
        return found.accepted[0].repository
    if not os.path.lexists(work_tree / ".git"):
        raise BadInput(f"{folder} is not the top folder of a git repository, so it can have no worktree")
    raise BadInput(f"{folder} is not the top folder of a git repository that can be used. {' '.join(found.notes)}")


@asynccontextmanager
async def start_worktree(sandbox: Sandbox, folder: Path, name: str, parent: Path) -> AsyncGenerator[Worktree]:
    """Create a worktree of the repository in `folder`, with its files. After an error in the block it is removed."""
    found = sandbox.probe()
    if found.level != "bubblewrap":
        raise SandboxUnavailable(f"No worktree was created: git needs the full sandbox. {found.why} {found.hint}")
    worktree = plan_worktree(find_top_repository(folder), name, parent)
    with create_worktree(worktree) as record:
        done = await _run_in_worktree(sandbox, worktree, "git -c core.hooksPath=/dev/null reset -q --hard")
        if done.code != 0:
            raise BadInput(
                f"The files of the worktree could not be written, so it was removed again: {done.explanation}"
            )
        note_filled(record)
        yield worktree


async def inspect_worktree(sandbox: Sandbox, worktree: Worktree) -> WorktreeState:
    """Find out what a session left in its worktree."""
    tip = read_tip(worktree)
    if not has_folder(worktree):
        return WorktreeState(tip, has_folder=False)
    changes = await list_changes(sandbox, worktree.holder, Path(worktree.folder).name)
    links = (await _run_in_worktree(sandbox, worktree, "git ls-files --stage -z")).output.split("\0")
    named = {line.partition("\t")[2] for line in links if line.startswith("160000 ")}
    named |= {name.rstrip("/") for name in changes.files if name.endswith("/")}  # git lists no other folders
    inner = find_inner_repositories(worktree, named)
    return WorktreeState(tip, changes=changes, repositories=inner, checked_out=read_checked_out(worktree))


async def list_changes(sandbox: Sandbox, workspace: Path, folder: str = "") -> Changes:
    """List what is in a work tree and not committed, whatever the user's settings show."""
    done = await _run_git(sandbox, workspace, (_STATUS,), folder)
    if done.code != 0:
        raise Conflict(
            f"git could not say what is changed in {workspace / folder}: {done.explanation}. Nothing was done."
        )
    lines = [(line[:2], line[3:]) for line in done.output.splitlines()]
    return Changes(
        files=tuple(name for kind, name in lines if kind != "!!"),
        unmerged=tuple(name for kind, name in lines if kind in _UNMERGED),
        ignored=tuple(name for kind, name in lines if kind == "!!"),
    )


def check_complete(worktree: Worktree, state: WorktreeState, *, is_kept: bool = False) -> None:
    """Check that a commit of everything in a worktree would have it all; raises `Conflict`.

    A commit that `is_kept` is merged afterwards, so it may not have conflicts in it.
    """
    if state.repositories:
        raise Conflict(
            f"{worktree.folder} has repositories in it, whose commits may be nowhere else: "
            f"{', '.join(state.repositories[:3])}. Nothing was changed. Move or delete them first"
        )
    if is_kept and state.changes.unmerged:
        raise Conflict(
            f"{worktree.folder} has conflicts that nobody has resolved yet, for example {state.changes.unmerged[0]}. "
            "Nothing was changed. Resolve and commit them first"
        )


async def commit_worktree(sandbox: Sandbox, worktree: Worktree, message: str) -> None:
    """Commit all that is changed or new in a worktree; raises `Conflict`."""
    done = await _run_in_worktree(sandbox, worktree, _COMMIT, message)
    if done.code != 0:
        raise Conflict(f"The changes in {worktree.folder} could not be committed: {done.explanation}. They stay there.")


async def merge_branch(sandbox: Sandbox, worktree: Worktree) -> str:
    """Merge the branch of a worktree into what its repository has checked out. Return what git said.

    Raises `Conflict` if that does not work. The repository is then as it was before.
    """
    origin = Path(worktree.repository)
    by_hand = f"Nothing was changed. To merge it yourself: git merge {worktree.branch}"
    listed = await _run_git(sandbox, origin, ('git diff --name-only -z --no-renames "HEAD...$1" --', worktree.branch))
    if listed.code != 0:
        raise Conflict(f"git could not compare {worktree.branch} with {origin}: {listed.explanation}. {by_hand}")
    if guarded := [name for name in listed.output.split("\0") if not set(RUN_OUTSIDE).isdisjoint(split_path(name))]:
        raise Conflict(
            f"{worktree.branch} changes {', '.join(guarded[:3])}, which runs or instructs programs when the folder is "
            f"opened, so no command writes it. Look at it first. {by_hand}"
        )
    try:  # of two merges at once the branch could take over only one
        with hold_lock_file(make_runtime_folder() / f"merge-{build_lock_name(origin)}"):
            done = await _run_git(sandbox, origin, (_MERGE, worktree.branch))
    except BlockingIOError:
        raise Conflict(f"Another worktree is merged into {origin} just now. Run it again. {by_hand}") from None
    if done.code == 1:
        raise Conflict(f"{worktree.branch} and {origin} changed the same lines:\n{done.explanation}\n{by_hand}")
    if done.code != 0:
        raise Conflict(f"git did not merge {worktree.branch}: {done.explanation}\n{by_hand}")
    # What git did counts only if it was taken over from the sandbox.
    check = await _run_git(sandbox, origin, ('git merge-base --is-ancestor "$1" HEAD', worktree.branch))
    if check.code != 0:
        raise Conflict(f"{origin} does not have the commits of {worktree.branch}: {done.explanation}\nRun it again.")
    return done.output


class _GitResult(Struct, frozen=True):
    code: int | None
    output: str
    reason: str

    @property
    def explanation(self) -> str:
        """What git said, or else how it ended."""
        return self.output[-_MAX_OUTPUT:] or f"{self.reason} {self.code if self.code is not None else ''}".strip()


async def _run_in_worktree(sandbox: Sandbox, worktree: Worktree, *script: str) -> _GitResult:
    """Run a script in a worktree. Below the folder around it, git can also write what editors and agents read.

    So the script runs no hooks: they may start programs that an agent has written.
    """
    return await _run_git(sandbox, worktree.holder, script, Path(worktree.folder).name)


async def _run_git(sandbox: Sandbox, workspace: Path, script: tuple[str, ...], folder: str = "") -> _GitResult:
    """Run a script, with its arguments, in a folder of a workspace.

    Environment files are shown: git would take an empty one for a change. The git is that of the system, and none of
    the workspace.
    """
    output: list[bytes] = []
    job = Job(
        argv=("sh", "-c", script[0], "sh", *script[1:]),
        workspace=workspace,
        cwd=folder,
        bounds=_BOUNDS,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        show_env_files=True,
    )
    result = await sandbox.run_in_sandbox(job, output.append)
    return _GitResult(result.code, b"".join(output).decode(errors="replace").strip("\n"), result.reason)
