"""The private copies of repositories that a command works in: created before it, mounted for it, taken back after it.

The real `.git` is not visible inside. `treadle.git` decides what of a copy is taken back.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec.structs import replace

from treadle.errors import TreadleError
from treadle.git.git_folder import GitFolder, RepositoryUnsupported, UnsafeFile
from treadle.git.index_file import DamagedIndex, list_gitlinks
from treadle.git.new_repository import is_unfinished
from treadle.git.private_copy import PrivateCopy, copy_files, create_empty_copy, create_private_copy, hide_files
from treadle.git.repository import Repository
from treadle.git.take_back import take_back
from treadle.permissions.paths import GUARDED_NAMES, RUN_BY_GIT
from treadle.sandbox.base import GitReport, HeldMount, Job
from treadle.sandbox.git_settings import (
    build_private_config,
    build_user_config,
    find_setting,
    list_filters,
    read_excludes,
)
from treadle.sandbox.guarded_paths import GuardedPaths
from treadle.sandbox.new_repositories import RepositoryCleaner
from treadle.sandbox.private_folder import hold_private_folder
from treadle.sandbox.repositories import AcceptedRepository, find_repositories
from treadle.sandbox.runtime_folder import make_empty_file
from treadle.sandbox.workspace_scan import GitKind, open_path

USER_CONFIG = "/run/treadle/gitconfig"
"""Where a command sees the user's own settings of git. `GIT_CONFIG_SYSTEM` names it."""

_INSIDE = "/run/treadle"
"""Where a command sees what has no place in the workspace: real objects, and private copies behind a `.git` file."""


_GENERATED = "_"
"""The part of `.husky` that husky writes itself. Git ignores it."""

_NOT_SIGNED = "The new commits are not signed, because keys stay outside of the sandbox. Tell the user."


class GitCopies:
    """The private copies of one command. `entries` are the paths in the workspace that they cover.

    `gitlinks` are the `.git` of submodules that are not checked out: nothing may be created there. `hook_folders` are
    folders of hooks that package managers write at each install: a command has its own, which is not taken back.
    """

    def __init__(self, job: Job, workspace: Path, guarded: GuardedPaths) -> None:
        self._job, self._workspace = job, workspace
        # Git shall not touch what is empty only inside: hidden files, and placeholders.
        placeholders = (workspace / name for name in GUARDED_NAMES)
        self._hidden = [path for path in placeholders if not os.path.lexists(path)]
        self._hidden += () if job.show_env_files else guarded.env_files
        self._resources = ExitStack()
        self._cleaner: RepositoryCleaner | None = None
        self._copies: list[PrivateCopy] = []
        self._signed: set[Path] = set()
        self._notes: list[str] = []
        self.mounts: list[HeldMount] = []
        self.entries: set[str] = set()
        self.gitlinks: list[str] = []
        self.hook_folders: list[str] = []
        self.reports: tuple[GitReport, ...] = ()
        try:
            self.folder = self._resources.enter_context(hold_private_folder())
            self._add_user_config()
            self._create(guarded)
            if job.writable:
                self._add_hook_folders(guarded)
        except BaseException:
            self.close()
            raise

    def _add_user_config(self) -> None:
        path = self.folder / "gitconfig"
        path.write_text(build_user_config(), encoding="utf-8", errors="surrogateescape")
        self._mount(path, USER_CONFIG)

    def _create(self, guarded: GuardedPaths) -> None:
        """Create a copy for each repository that was there before any command that runs now."""
        found: dict[str, GitKind] = {**guarded.found.repositories}
        if self._job.writable:
            self._cleaner = RepositoryCleaner(self._workspace, guarded.found)
            found = {name: kind for name, kind in found.items() if self._cleaner.was_there_before(name)}
        accepted = find_repositories(self._workspace, found, self._job.read_only)
        self._notes += accepted.notes
        for number, one in enumerate(accepted.accepted):
            try:
                self._add(number, one)
            except (RepositoryUnsupported, DamagedIndex, OSError) as error:
                self._notes.append(f"Git cannot change the repository at {one.entry}: {error}")
        if self._job.writable and ".git" not in self.entries and is_unfinished(self._workspace / ".git"):
            places = Repository(self._workspace, self._workspace / ".git", self._workspace / ".git")
            copy = create_empty_copy(places, self.folder / "empty")
            self._copies.append(copy)
            self._mount(copy.folder, str(self._workspace / ".git"), is_writable=True)
            self.entries.add(".git")
            above = next((parent for parent in self._workspace.parents if os.path.lexists(parent / ".git")), None)
            if above is not None:
                self._notes.append(
                    f"The workspace is a folder of the repository at {above}, which commands do not see. Do not create "
                    "another one here. Git works if treadle is started in that folder."
                )

    @property
    def has_cleaned_up(self) -> bool:
        """Whether the workspace was changed to finish what a killed process had begun."""
        return self._cleaner is not None and self._cleaner.has_cleaned_up

    def drop_missing(self, held: Container[str]) -> None:
        """Leave out what cannot be mounted, because nothing is at its place and nothing may be created there."""
        missing = {entry for entry in (".git", *self.hook_folders) if entry not in held}
        targets = {str(self._workspace / entry) for entry in missing}
        self.mounts = [mount for mount in self.mounts if mount.target not in targets]
        self.entries -= missing
        self._copies = [copy for copy in self._copies if not copy.is_empty or ".git" in self.entries]

    def _add_hook_folders(self, guarded: GuardedPaths) -> None:
        """Copy each `.husky/_`, which `npm install` writes in projects that use husky."""
        for number, path in enumerate(path for path in guarded.run_outside if path.name in RUN_BY_GIT):
            with suppress(UnsafeFile), GitFolder(path) as opened:
                if opened.look_up(_GENERATED) is not None and not opened.is_folder(_GENERATED):
                    continue
                folder = self.folder / f"hooks.{number}"
                copy_files(opened, _GENERATED, folder)
                self._mount(folder, str(path / _GENERATED), is_writable=True)
                self.hook_folders.append(str((path / _GENERATED).relative_to(self._workspace)))
        self.entries.update(self.hook_folders)

    def _add(self, number: int, one: AcceptedRepository) -> None:
        repository, folder = one.repository, self.folder / str(number)
        config = build_private_config(one.settings, repository, self._workspace, names_work_tree=one.is_file)
        inside = [f"{_INSIDE}/objects/{number}.{count}" for count in range(len(one.objects))]
        copy = create_private_copy(
            repository,
            folder,
            config=config,
            objects=inside,
            excludes=read_excludes(one.settings),
            has_filters=bool(list_filters(one.settings)),
        )
        tree = repository.work_tree
        copy = hide_files(copy, [str(path.relative_to(tree)) for path in self._hidden if path.is_relative_to(tree)])
        for source, target in zip(one.objects, inside, strict=True):
            self._mount(source, target)
            if os.path.lexists(source / "info/alternates"):
                self._mount(make_empty_file(), f"{target}/info/alternates")
        target = str(self._workspace / one.entry)
        if one.is_file:
            link = self.folder / f"{number}.link"
            link.write_text(f"gitdir: {_INSIDE}/git/{number}\n", encoding="utf-8")
            self._mount(link, target)
            target = f"{_INSIDE}/git/{number}"
        self._mount(folder, target, is_writable=True)
        self._copies.append(copy)
        if (find_setting(one.settings, "commit.gpgsign") or "false").lower() not in ("false", "no", "off", "0", ""):
            self._signed.add(copy.folder)
        self.entries.add(one.entry)
        if copy.index is not None:
            self.gitlinks += self._find_gitlinks(repository, list_gitlinks(copy.index, copy.form))

    def _find_gitlinks(self, repository: Repository, paths: Iterable[str]) -> Iterator[str]:
        """Find the submodules that are not checked out. A command could put a repository of its own there."""
        for path in paths:
            if {"", ".", "..", ".git"} & set(path.split("/")):
                continue
            place = repository.work_tree / path / ".git"
            if not os.path.lexists(place) and not (repository.work_tree / path).is_file():
                yield str(place.relative_to(self._workspace))

    def _mount(self, source: Path, target: str, *, is_writable: bool = False) -> None:
        """Open what will be mounted. A path in the workspace is opened part by part, through no link."""
        if source.is_relative_to(self._workspace):
            descriptor = open_path(self._workspace, str(source.relative_to(self._workspace)))
        else:
            descriptor = os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._resources.callback(os.close, descriptor)
        self.mounts.append(HeldMount(target, str(source), descriptor, is_writable))

    def settle(self) -> None:
        """Take back what the command did, when all its processes are gone. `reports` has the result."""
        try:
            if self._cleaner is not None:
                self.reports = tuple(self._take_all_back(self._cleaner))
            if self._notes and any("git" in word for word in self._job.argv):
                self.reports = (*self.reports, GitReport(rejected=tuple(self._notes)))
        finally:
            self.close()

    def _take_all_back(self, cleaner: RepositoryCleaner) -> Iterator[GitReport]:
        yield from cleaner.clean()
        for copy in self._copies:

            def is_clean(path: str, work_tree: Path = copy.repository.work_tree) -> bool:
                return cleaner.is_clean(str((work_tree / path / ".git").relative_to(self._workspace)))

            try:
                report = take_back(copy, is_clean_gitlink=is_clean)
            except (TreadleError, OSError) as error:
                sentence = f"Nothing that the command did to this repository was kept, its files were: {error}"
                report = GitReport(copy.repository.name, rejected=(sentence,))
            if report is not None and report.commits and copy.folder in self._signed:
                report = replace(report, rejected=(*report.rejected, _NOT_SIGNED))
            if report is not None:
                yield report

    def close(self) -> None:
        """Remove the private copies. What was not taken back is lost."""
        cleaner, self._cleaner = self._cleaner, None
        if cleaner is not None:
            cleaner.close()
        self._resources.close()
