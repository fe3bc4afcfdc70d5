"""Folders besides the workspace that a command may read or change, because the user named them.

What is protected in a workspace is protected in them too. Keys, the home and treadle's own files are never among them.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import BadInput
from treadle.permissions.paths import GUARDED_NAMES, RUN_OUTSIDE, is_secret_folder, list_own_folders
from treadle.sandbox.base import GitReport, HeldMount
from treadle.sandbox.guarded_paths import (
    SHARED_FOLDERS,
    SYSTEM_TREES,
    find_guarded_paths,
    find_parent_folders,
    find_shown_settings,
    hold_protected_paths,
)
from treadle.sandbox.new_repositories import RepositoryCleaner
from treadle.sandbox.runtime_folder import make_runtime_folder

_NEVER_WRITABLE = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr")
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
    cleaner: RepositoryCleaner | None = None

    def settle(self) -> tuple[GitReport, ...]:
        """Clean the repositories that commands made in it, when all processes are gone."""
        reports = self.cleaner.clean() if self.cleaner is not None else ()
        return tuple(replace(report, repository=str(self.path / report.repository)) for report in reports)

    def list_mounts(self) -> Iterator[HeldMount]:
        """List what is mounted, in order."""
        yield HeldMount(str(self.path), str(self.path), self.descriptor, self.is_writable)
        for path, descriptor in sorted(self.held.items(), key=lambda item: item[0] not in self.parents):
            yield HeldMount(str(path), str(path), descriptor, path in self.parents)


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
    if home.is_relative_to(folder) or str(folder) in (*SHARED_FOLDERS, "/var/tmp"):
        return "it holds more than one project or data set"
    trees = (*SYSTEM_TREES, "/run", *(_NEVER_WRITABLE if is_writable else ()))
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
        if is_repository or parent.name in RUN_OUTSIDE:
            return True
    places = (Path(entry).resolve() for entry in os.environ.get("PATH", "").split(os.pathsep) if entry)
    return any(place.is_relative_to(folder) or folder.is_relative_to(place) for place in places)


@contextmanager
def hold_extra_folders(
    read_only: Iterable[Path], writable: Iterable[Path], *, show_env_files: bool
) -> Generator[tuple[ExtraFolder, ...]]:
    """Hold folders for the time of a command, and what is protected in them.

    A folder comes after those around it, so that each is what its own entry says. One that is named twice is writable.
    """
    kinds = dict.fromkeys(read_only, False) | dict.fromkeys(writable, True)
    with ExitStack() as stack:
        yield tuple(
            hold_extra_folder(folder, stack, is_writable=is_writable, show_env_files=show_env_files)
            for folder, is_writable in sorted(kinds.items())
        )


def hold_extra_folder(folder: Path, stack: ExitStack, *, is_writable: bool, show_env_files: bool) -> ExtraFolder:
    """Hold one folder; raises `BadInput` when commands may not use it as it is now."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"{folder} cannot be shown to commands ({error.strerror}). Nothing was run.") from None
    stack.callback(os.close, descriptor)
    if os.readlink(f"/proc/self/fd/{descriptor}") != str(folder):
        raise BadInput(f"{folder} was moved, or a link took its place. Nothing was run. Name its real path.")
    found = find_guarded_paths(folder)
    hidden = found.list_hidden(show_env_files=show_env_files)
    masked = (*hidden, *find_shown_settings(folder, found.found))
    if not is_writable:
        return ExtraFolder(folder, descriptor, False, {}, frozenset(), masked)
    if notes := found.explain_read_only():
        raise BadInput(f"{folder} cannot be written by commands. Nothing was run. {notes[0]}")
    guarded = (*found.own_files, *found.closed, *found.read_only, *(folder / name for name in found.named_by_git))
    parents = find_parent_folders(folder, guarded)
    below, more = (*parents, *found.read_only), found.named_by_git
    held = stack.enter_context(hold_protected_paths(folder, below, names=GUARDED_NAMES, placeholders=more))
    if any(name not in held and not (folder / name).is_symlink() for name in (*GUARDED_NAMES, *more)):
        raise BadInput(f"{folder} cannot be protected from the command: you may not write there. Nothing was run.")
    paths = {folder / name: opened for name, opened in held.items()}
    cleaner = RepositoryCleaner(folder, found.found)
    stack.callback(cleaner.close)
    return ExtraFolder(folder, descriptor, True, paths, frozenset(parents), masked, cleaner)
