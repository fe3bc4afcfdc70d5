"""The plan of a sandbox: what a command sees, what is protected from it, and its variables. It mounts nothing itself.

What a plan holds open stays open until its stack is closed.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.errors import BadInput
from treadle.permissions.paths import GUARDED_NAMES
from treadle.sandbox import process
from treadle.sandbox.base import GitReport, HeldMount, Job
from treadle.sandbox.caches import TRIM_SECONDS, hold_cache, trim_caches
from treadle.sandbox.environment import build_sandbox_environment
from treadle.sandbox.extra_folders import ExtraFolder, hold_extra_folders
from treadle.sandbox.git_copies import USER_CONFIG, GitCopies
from treadle.sandbox.guarded_paths import (
    GuardedPaths,
    find_guarded_paths,
    find_parent_folders,
    find_shown_settings,
    hold_protected_paths,
    resolve_sandbox_workspace,
    resolve_working_folder,
)
from treadle.sandbox.network import build_proxy_environment
from treadle.sandbox.toolchains import Toolchains, find_toolchains

HOME = "/tmp/home"
"""The home of a command."""

_MAX_MOUNTS = 2000
"""Mounts for files found in a workspace: bubblewrap takes 9000 words, and each mount takes time."""


class PlanKind(Struct, frozen=True):
    """What a sandbox is for. Nobody else uses a private workspace, so nothing in it is protected.

    A command has a cache and private copies of repositories. A program with rights of its own has neither: it must not
    run what a command has put into the cache.
    """

    is_private: bool = False
    is_command: bool = False


class BubblewrapPlan(Struct, frozen=True):
    """Everything that the arguments of bubblewrap depend on.

    `descriptors` are of paths in the workspace that are mounted read-only, except `parent_folders`: these stay writable
    and cannot be moved. `masked` is hidden. `tools` are the user's own tools, and `cache` is the folder behind the
    command's ~/.cache. `extra_folders` are those of the job. `git` has the private copies of repositories. `notes` say
    what the command may not do.
    """

    job: Job
    workspace: Path
    cwd: Path
    descriptors: Mapping[str, int]
    parent_folders: frozenset[str]
    masked: tuple[Path, ...]
    environment: Mapping[str, str]
    tools: Toolchains = Toolchains()
    cache: Path | None = None
    extra_folders: tuple[ExtraFolder, ...] = ()
    git: GitCopies | None = None
    notes: tuple[str, ...] = ()

    def list_mounts(self) -> Iterator[HeldMount]:
        """List what is held open and mounted, in order. Private copies cover the real repositories."""
        covered = self.git.entries if self.git is not None else ()
        own = {str(self.workspace / name): held for name, held in self.descriptors.items() if name not in covered}
        # The parent folders come first, because protected paths may be inside of them.
        for path, descriptor in sorted(own.items(), key=lambda item: item[0] not in self.parent_folders):
            yield HeldMount(path, path, descriptor, path in self.parent_folders)
        yield from self.git.mounts if self.git is not None else ()
        for folder in self.extra_folders:
            yield from folder.list_mounts()

    def list_masked(self) -> tuple[Path, ...]:
        """List the files and folders that are hidden."""
        return (*self.tools.masked, *self.masked, *(path for folder in self.extra_folders for path in folder.masked))

    def list_growing_folders(self) -> tuple[Path, ...]:
        """List the folders in which the command can write to the disk."""
        cache = [self.cache] if self.cache is not None else []
        git = [self.git.folder] if self.git is not None else []
        return (self.workspace, *cache, *git, *self.job.writable_folders)

    def settle(self) -> tuple[GitReport, ...]:
        """Take back what the command did to repositories, when all its processes are gone."""
        reports = [report for folder in self.extra_folders for report in folder.settle()]
        if self.git is not None:
            self.git.settle()
            reports = [*self.git.reports, *reports]
        return (*reports, GitReport(rejected=self.notes)) if self.notes else tuple(reports)


async def build_plan(job: Job, stack: ExitStack, kind: PlanKind) -> BubblewrapPlan:
    """Find what the sandbox of a job shows, and what it must protect in its workspace. `stack` holds it."""
    plans: list[BubblewrapPlan] = []

    async def prepare() -> None:
        workspace = resolve_sandbox_workspace(job)
        cwd = resolve_working_folder(job, workspace)
        plans.append(await asyncio.to_thread(_prepare_plan, job, workspace, cwd, stack, kind))

    # Otherwise a cancelled command could leave placeholders behind.
    await process.finish_despite_cancel(prepare())
    return plans[0]


def _prepare_plan(job: Job, workspace: Path, cwd: Path, stack: ExitStack, kind: PlanKind) -> BubblewrapPlan:
    found = GuardedPaths() if kind.is_private else find_guarded_paths(workspace)
    notes = found.explain_read_only() if job.writable else ()
    job = msgspec.structs.replace(job, writable=job.writable and not notes)
    git = None
    if kind.is_command:
        git = GitCopies(job, workspace, found)
        stack.callback(git.close)
        found = find_guarded_paths(workspace) if git.has_cleaned_up else found
    held = _HeldPaths() if kind.is_private else _hold_paths(job, workspace, found, git, stack)
    if not held.is_complete:
        # We may not create a protected folder, but a command could gain that right later. So it may write nothing.
        job = msgspec.structs.replace(job, writable=False)
    if git is not None:
        git.drop_missing(held.descriptors)
    tools = find_toolchains(workspace)
    settings = {"GIT_CONFIG_SYSTEM": USER_CONFIG} if git is not None else {}
    extra = hold_extra_folders(job.shown_folders, job.writable_folders, show_env_files=job.show_env_files)
    return BubblewrapPlan(
        job=job,
        workspace=workspace,
        cwd=cwd,
        descriptors=held.descriptors,
        parent_folders=frozenset(map(str, held.parents)),
        masked=held.hidden,
        environment={
            **build_proxy_environment(job),
            **settings,
            **build_sandbox_environment(job, workspace, HOME, tools),
        },
        tools=tools,
        cache=_hold_cache(workspace, stack) if kind.is_command else None,
        extra_folders=stack.enter_context(extra),
        git=git,
        notes=notes,
    )


class _HeldPaths(Struct, frozen=True):
    """Descriptors of protected paths, by their names in the workspace, hidden paths, and the folders above both.

    `is_complete` is False when a path that must be protected is missing and may not be created.
    """

    descriptors: Mapping[str, int] = {}
    hidden: tuple[Path, ...] = ()
    parents: tuple[Path, ...] = ()
    is_complete: bool = True


def _hold_paths(job: Job, workspace: Path, found: GuardedPaths, git: GitCopies | None, stack: ExitStack) -> _HeldPaths:
    """Hold what a command may not change, and create placeholders for what is missing."""
    covered = {workspace / name for name in git.entries} if git is not None else set[Path]()
    read_only = [path for path in found.read_only if path not in covered]
    placeholders = {**found.named_by_git} if job.writable else {}
    if git is not None and job.writable:
        placeholders |= {**dict.fromkeys(git.gitlinks, stat.S_IFSOCK), **dict.fromkeys(git.hook_folders, stat.S_IFDIR)}
    settings = find_shown_settings(workspace, found.found, git.entries) if git is not None else ()
    hidden = (*found.list_hidden(show_env_files=job.show_env_files), *settings)
    _check_count(workspace, len(hidden), len(read_only) + len(placeholders))
    if not job.writable:  # nothing can be moved or created, so only what a copy is mounted on must exist
        return _HeldPaths(stack.enter_context(hold_protected_paths(workspace)), hidden)
    held = {*read_only, *found.own_files, *found.closed, *covered, *(workspace / name for name in placeholders)}
    parents = find_parent_folders(workspace, held)
    holding = hold_protected_paths(workspace, (*parents, *read_only), names=GUARDED_NAMES, placeholders=placeholders)
    descriptors = stack.enter_context(holding)
    missing = [name for name in (*GUARDED_NAMES, *found.named_by_git) if name not in descriptors]
    return _HeldPaths(descriptors, hidden, parents, all((workspace / name).is_symlink() for name in missing))


def _check_count(workspace: Path, masked: int, protected: int) -> None:
    if masked + protected > _MAX_MOUNTS:
        raise BadInput(
            f"{workspace} holds {masked} env files, logs and closed folders, and {protected} repositories and folders "
            f"of editors, and no more than {_MAX_MOUNTS} can be protected from a command. Nothing was run. Choose a "
            "folder with fewer."
        )


def _hold_cache(workspace: Path, stack: ExitStack) -> Path | None:
    """Hold the cache of a workspace. Return None when we cannot write there: then nothing is kept."""
    try:
        trim_caches(every=TRIM_SECONDS)
        return stack.enter_context(hold_cache(workspace))
    except OSError:
        return None
