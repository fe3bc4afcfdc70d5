"""Folders besides the workspace that a command may read or change, because the user named them.

What is protected in a workspace is protected in them too. Keys, the home and treadle's own files are never among them.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import BadInput
from treadle.permissions.paths import OPENED_WITH_FOLDER, PROTECTED, RUN_BY_GIT, is_secret_folder, list_own_folders
from treadle.sandbox.base import GitReport
from treadle.sandbox.guarded_paths import (
    find_guarded_paths,
    find_parent_folders,
    find_shown_settings,
    hold_protected_paths,
)
from treadle.sandbox.new_repositories import RepositoryWatch
from treadle.sandbox.runtime_folder import make_runtime_folder

_FORBIDDEN = {"/", "/home", "/opt", "/root", "/run", "/srv", "/tmp", "/usr", "/var", "/var/tmp"}
_FORBIDDEN_TREES = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys")
_SYSTEM_TREES = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr")
_RUN_FROM_HOME = ("bin",)
_SHOWN_IN_HOME = (".cache",)


class ExtraFolder(Struct, frozen=True):
    """A folder besides the workspace, by its descriptor, and what is hidden or protected in it.

    `held` are descriptors of paths in it, of which all but the `parents` are read-only.
    """

    path: Path
    descriptor: int
    is_writable: bool
    held: Mapping[Path, int]
    parents: frozenset[Path]
    masked: tuple[Path, ...]
    watch: RepositoryWatch | None = None

    def settle(self) -> tuple[GitReport, ...]:
        """Clean the repositories that commands made in it, when all processes are gone."""
        reports = self.watch.adopt() if self.watch is not None else ()
        return tuple(replace(report, repository=str(self.path / report.repository)) for report in reports)

    def list_mounts(self) -> Generator[tuple[str, int, bool]]:
        """List what is mounted, in order: the path, its descriptor, and whether it can be written."""
        yield str(self.path), self.descriptor, self.is_writable
        for path, descriptor in sorted(self.held.items(), key=lambda item: item[0] not in self.parents):
            yield str(path), descriptor, path in self.parents


def resolve_extra_folder(named: str, workspace: Path, *, is_writable: bool) -> Path:
    """Return the real path of a folder, without links; raises `BadInput` when commands may not use it."""
    try:
        folder = Path(named).expanduser()
        if not folder.is_absolute():
            raise BadInput(f"{named!r} is not an absolute path. Write it from / or ~ on.")
        real = folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{named!r} cannot be used ({why}). Name an existing folder.") from None
    if not real.is_dir():
        raise BadInput(f"{real} is not a folder.")
    why = explain_folder_refusal(real, workspace.resolve(), is_writable=is_writable)
    if why:
        raise BadInput(f"{real} cannot be given to commands: {why}. Name another folder.")
    return real


def explain_folder_refusal(folder: Path, workspace: Path, *, is_writable: bool) -> str:
    """Say why a folder, by its real path, cannot be given to commands. Return nothing if it can."""
    home = Path.home().resolve()
    if home.is_relative_to(folder) or str(folder) in _FORBIDDEN:
        return "it holds more than one project or data set"
    trees = (*_FORBIDDEN_TREES, *(_SYSTEM_TREES if is_writable else ()))
    if any(folder.is_relative_to(top) for top in trees):
        return "it belongs to the system"
    own = (*list_own_folders(), make_runtime_folder())
    if any(one.is_relative_to(folder) or folder.is_relative_to(one) for one in own):
        return "it holds files of treadle"
    if workspace.is_relative_to(folder):
        return "the workspace is in it"
    if folder.is_relative_to(workspace):
        return "it is in the workspace, which commands see as it is"
    below = folder.relative_to(home).parts if folder.is_relative_to(home) else ()
    if below and below[0].startswith(".") and (is_writable or below[0] not in _SHOWN_IN_HOME):
        return "hidden folders in the home hold keys and settings"
    if is_writable and below and below[0] in _RUN_FROM_HOME:
        return "what is in it runs outside of the sandbox"
    try:
        names = {*folder.parts, *os.listdir(folder)}
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if any(map(is_secret_folder, names)):
        return "there may be keys in it"
    return "programs, git, editors or agents run what is in it" if is_writable and _is_run(folder) else ""


def _is_run(folder: Path) -> bool:
    """Tell whether something outside of the sandbox may run what a command writes into a folder."""
    for parent in (folder, *folder.parents):
        names = {name for name in ("HEAD", "objects", "commondir") if (parent / name).exists()}
        is_repository = "HEAD" in names and len(names) > 1  # git takes such a folder for one, whatever its name is
        if is_repository or parent.name in (*PROTECTED, *OPENED_WITH_FOLDER, *RUN_BY_GIT):
            return True
    places = (Path(entry).resolve() for entry in os.environ.get("PATH", "").split(os.pathsep) if entry)
    return any(place.is_relative_to(folder) or folder.is_relative_to(place) for place in places)


@contextmanager
def hold_extra_folders(
    read_only: Iterable[Path], writable: Iterable[Path], *, show_env_files: bool
) -> Generator[tuple[ExtraFolder, ...]]:
    """Hold folders for the time of a command, and what is protected in them. Those that can be written come last."""
    with ExitStack() as stack:
        folders = [
            _hold_folder(folder, stack, is_writable=False, show_env_files=show_env_files) for folder in read_only
        ]
        folders += [_hold_folder(folder, stack, is_writable=True, show_env_files=show_env_files) for folder in writable]
        yield tuple(folders)


def _hold_folder(folder: Path, stack: ExitStack, *, is_writable: bool, show_env_files: bool) -> ExtraFolder:
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"{folder} cannot be shown to commands ({error.strerror}). Nothing was run.") from None
    stack.callback(os.close, descriptor)
    if os.readlink(f"/proc/self/fd/{descriptor}") != str(folder):
        raise BadInput(f"{folder} was moved, or a link took its place. Nothing was run. Name its real path.")
    found = find_guarded_paths(folder)
    settings = find_shown_settings(folder, found.found)
    masked = (*found.own_files, *found.unseen, *settings, *(() if show_env_files else found.env_files))
    if not is_writable:
        return ExtraFolder(folder, descriptor, False, {}, frozenset(), masked)
    if notes := found.explain_read_only():
        raise BadInput(f"{folder} cannot be written by commands. Nothing was run. {notes[0]}")
    guarded = (*found.own_files, *found.closed, *found.read_only, *(folder / name for name in found.named))
    parents = find_parent_folders(folder, guarded)
    names = (*PROTECTED, *OPENED_WITH_FOLDER)
    below = (*parents, *found.read_only)
    held = stack.enter_context(hold_protected_paths(folder, below, names=names, placeholders=found.named))
    if any(name not in held and not (folder / name).is_symlink() for name in (*names, *found.named)):
        raise BadInput(f"{folder} cannot be protected from the command: you may not write there. Nothing was run.")
    paths = {folder / name: opened for name, opened in held.items()}
    watch = RepositoryWatch(folder, found.found)
    stack.callback(watch.close)
    return ExtraFolder(folder, descriptor, True, paths, frozenset(parents), masked, watch)
