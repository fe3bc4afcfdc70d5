"""Repositories that commands made in a workspace. None keeps settings, hooks or links that git would act on later."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from treadle.errors import TreadleError
from treadle.git.git_folder import GitFolder
from treadle.git.new_repository import is_unfinished
from treadle.git.repository import Repository
from treadle.git.take_back import adopt_repository
from treadle.sandbox.base import GitReport
from treadle.sandbox.command_group import CommandGroup, Move
from treadle.sandbox.git_settings import NO_REPOSITORY, SettingsUnreadable, read_named_paths
from treadle.sandbox.workspace_scan import FoundPaths, allow_changes, open_folders, open_parent, scan_workspace

_MAX_ROUNDS = 5
_OWN_HOOKS = b"[core]\n\thooksPath = .git/hooks\n"
_BARE_NAMES = {
    *("HEAD", "FETCH_HEAD", "ORIG_HEAD", "branches", "config", "description", "hooks", "info", "logs", "objects"),
    *("packed-refs", "refs", "shallow"),
}


def describe_repositories(workspace: Path, found: FoundPaths) -> dict[str, str]:
    """Describe what git may take for a repository, by its path. A link is described with its target.

    A closed folder may hold one too.
    """
    described: dict[str, str] = dict.fromkeys(found.closed, "closed")
    for name, kind in {**found.repositories, **found.deep_repositories}.items():
        try:
            described[name] = f"link to {os.readlink(workspace / name)}" if kind == "link" else kind
        except OSError:
            described[name] = kind
    return described


def is_missing_or_empty(path: Path) -> bool:
    """Tell whether a folder is missing or has nothing in it."""
    try:
        return not os.listdir(path)
    except FileNotFoundError:
        return not os.path.lexists(path)
    except OSError:
        return False


class NewRepositories:
    """What is in a workspace besides the repositories that its group knows. No command may run meanwhile."""

    def __init__(self, workspace: Path, group: CommandGroup) -> None:
        self._workspace, self._group = workspace, group
        self.known = dict(group.known)
        self.is_complete = False

    def clean(self) -> tuple[GitReport, ...]:
        """Clean each new repository, or rename what cannot be cleaned. `is_complete` says that none is left."""
        reports: list[GitReport] = []
        for _ in range(_MAX_ROUNDS):
            found = scan_workspace(self._workspace)
            now = describe_repositories(self._workspace, found)
            changed = {name: kind for name, kind in now.items() if self.known.get(name) != kind}
            new = {name: kind for name, kind in changed.items() if not self._is_harmless(name, kind)}
            if not found.is_complete:
                sentence = "The workspace has too many folders, so new repositories in it were not looked for."
                return (*reports, GitReport(rejected=(sentence,)))
            if not new:
                self.is_complete = True
                break
            reports += [report for name, kind in new.items() if (report := self._clean_one(name, kind)) is not None]
        return tuple(reports)

    def is_clean(self, entry: str) -> bool:
        """Tell whether git finds nothing of a command's own at a `.git` in the workspace."""
        return entry in self.known or not os.path.lexists(self._workspace / entry)

    def _is_harmless(self, name: str, kind: str) -> bool:
        """Tell whether it is the repository of the workspace, which no command can reach, or none for git."""
        if kind == "closed" or os.path.basename(name) != ".git" or name == ".git":
            return name == ".git"
        path = self._workspace / name
        mode = stat.S_IFMT(os.lstat(path).st_mode) if os.path.lexists(path) else 0
        return mode not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK) or is_missing_or_empty(path)

    def _clean_one(self, name: str, kind: str) -> GitReport | None:
        if kind == "closed":
            return self._open_closed(name)
        self._allow_changes(name)
        path, is_bare = self._workspace / name, kind == "bare"
        folder = name if is_bare else os.path.dirname(name)
        if kind == "folder" or (is_bare and name and _BARE_NAMES.issuperset(os.listdir(path))):
            move = Move(name, f".treadle-{secrets.token_hex(8)}", is_bare)
            self._group.note_move(move)
            try:
                report = self._adopt(move)
            except (TreadleError, SettingsUnreadable, OSError):
                pass
            else:
                self.known[name] = kind
                return report
        if is_bare and not name and ".git" in self.known:
            self.known[name] = kind  # git finds the other one first
            return None
        entry = os.path.join(name, "HEAD") if is_bare else name
        self._allow_changes(entry)
        try:
            renamed = self._rename_aside(entry)
        except OSError as error:
            sentence = f"{entry} could not be renamed ({error.strerror}). Git may run programs of it: remove it."
            return GitReport(folder, rejected=(sentence,))
        return GitReport(
            folder, rejected=(f"{entry} was renamed to {renamed}: git would follow it to what a command made.",)
        )

    def _allow_changes(self, entry: str) -> None:
        """Make the folder of an entry one in which it can be renamed, whatever mode a command gave it."""
        with suppress(OSError):  # it belongs to somebody else
            folder = open_parent(self._workspace, entry)
            try:
                allow_changes(folder)
            finally:
                os.close(folder)

    def finish_moves(self) -> None:
        """Finish what a killed process was cleaning. What comes of it counts as new once more."""
        for move in self._group.moves:
            if os.path.lexists((self._workspace / move.entry).with_name(move.aside)):
                with suppress(TreadleError, SettingsUnreadable, OSError):
                    self._adopt(move)

    def _adopt(self, move: Move) -> GitReport:
        path = self._workspace / move.entry
        folder = move.entry if move.is_bare else os.path.dirname(move.entry)
        places = Repository(self._workspace / folder, path, path, folder)
        report = adopt_repository(places, path.with_name(move.aside), is_bare=move.is_bare)
        _keep_hooks_inside(path)
        return report

    def _open_closed(self, name: str) -> GitReport | None:
        """Open a folder that a command has closed, and all in it, so that the next round sees what is there."""
        try:
            open_folders(self._workspace, name)
        except OSError as error:
            self.known[name] = "closed"  # it belongs to somebody else
            sentence = f"{name or 'The workspace'} could not be looked into ({error.strerror}). Remove it."
            return GitReport(name, rejected=(sentence,))
        return None

    def _rename_aside(self, entry: str) -> str:
        """Give an entry a name that means nothing to git, through no link."""
        folder = open_parent(self._workspace, entry)
        try:
            last, number = entry.rpartition("/")[2], 0
            while os.path.lexists(f"/proc/self/fd/{folder}/{(name := f'{last}.not-kept{number or str()}')}"):
                number += 1
            os.rename(last, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
        return name


def _keep_hooks_inside(git_dir: Path) -> None:
    """Have a clean repository run no hooks of its work tree, if the user's settings name them by a relative path."""
    named = read_named_paths(NO_REPOSITORY, NO_REPOSITORY)
    if any(one.is_folder and not os.path.isabs(one.path) for one in named):
        with GitFolder(git_dir) as opened:
            opened.append_file("config", _OWN_HOOKS)


class RepositoryCleaner:
    """Cleans the repositories that commands make in a folder. The last command that runs there does it."""

    def __init__(self, folder: Path, found: FoundPaths) -> None:
        self._folder = folder
        self._left_over: tuple[GitReport, ...] = ()
        self.has_cleaned_up = False
        self._now = describe_repositories(folder, found)
        self._group: CommandGroup | None = CommandGroup(folder, self._now, self._clean_up)
        self._new = NewRepositories(folder, self._group)

    def _clean_up(self, group: CommandGroup) -> Mapping[str, str]:
        """Do what commands of killed processes have left undone. Return what is there now."""
        self.has_cleaned_up = True
        new = NewRepositories(self._folder, group)
        new.finish_moves()
        self._left_over = new.clean()
        return new.known

    def was_there_before(self, name: str) -> bool:
        """Tell whether a repository was there before any command that runs now, or is out of the reach of commands."""
        is_out_of_reach = name == ".git" and not is_unfinished(self._folder / name)
        return is_out_of_reach or self._new.known.get(name) == self._now.get(name)

    def is_clean(self, entry: str) -> bool:
        """Tell whether git finds nothing of a command's own at a `.git` in the folder."""
        return self._new.is_clean(entry)

    def clean(self) -> tuple[GitReport, ...]:
        """Clean new repositories, unless another command still runs: it could change what is cleaned."""
        is_last = self._group is not None and self._group.is_last()
        return (*self._left_over, *(self._new.clean() if is_last else ()))

    def close(self) -> None:
        """Let other commands start. Call it after `clean`, and after everything else was taken back."""
        group, self._group = self._group, None
        if group is not None:
            group.leave(is_clean=self._new.is_complete)
