"""What a command may not touch in its workspace, and which folders cannot be a workspace.

A mount needs a folder to mount on, so `.git`, `.vscode` and the like are created when they are missing. Such a
placeholder must stay while any command of any process runs in the workspace: removing it would remove the mounts of the
others.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from msgspec import Struct

from treadle.errors import BadInput
from treadle.git.git_folder import remove_tree
from treadle.permissions import paths
from treadle.sandbox.base import Job
from treadle.sandbox.named_by_git import find_named_by_git
from treadle.sandbox.private_folder import lock_file
from treadle.sandbox.runtime_folder import make_runtime_folder
from treadle.sandbox.shown_paths import is_below, is_inside, read_head
from treadle.sandbox.workspace_scan import FoundPaths, open_parent, open_path, scan_workspace

SHARED_FOLDERS = ("/", "/home", "/opt", "/root", "/run", "/srv", "/tmp", "/usr", "/var")
"""Folders that hold more than one project."""

SYSTEM_TREES = ("/boot", "/dev", "/etc", "/proc", "/sys")
"""Folders of the system, with all that is below them."""

_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)


class GuardedPaths(Struct, frozen=True):
    """The paths in a workspace that a command may not see, or may not change. `found` has what git may run.

    `run_outside` are files of editors and agents, and hooks. `named_by_git` are paths that settings of git name, with
    the kind of a placeholder for a missing one. We could not look into folders that are `too_deep` or `closed`; a
    command could open the latter.
    """

    env_files: tuple[Path, ...] = ()
    own_files: tuple[Path, ...] = ()
    repositories: tuple[Path, ...] = ()
    run_outside: tuple[Path, ...] = ()
    too_deep: tuple[Path, ...] = ()
    closed: tuple[Path, ...] = ()
    named_by_git: Mapping[str, int] = {}
    why_read_only: str = ""
    found: FoundPaths = FoundPaths()

    @property
    def read_only(self) -> tuple[Path, ...]:
        return (*self.repositories, *self.run_outside)

    def list_hidden(self, *, show_env_files: bool) -> tuple[Path, ...]:
        """List what a command does not see."""
        return (*self.own_files, *self.too_deep, *self.closed, *(() if show_env_files else self.env_files))

    def explain_read_only(self) -> tuple[str, ...]:
        """Say why no command may write in this workspace, or nothing."""
        if not self.found.is_complete:
            return ("The workspace has too many folders to protect what is in them, so the command could only read.",)
        if "" in self.found.repositories and ".git" not in self.found.repositories:
            return ("The workspace itself is a repository of git without files, so the command could only read.",)
        return (self.why_read_only,) if self.why_read_only else ()


def find_parent_folders(workspace: Path, held: Iterable[Path]) -> tuple[Path, ...]:
    """Find the folders above these paths. If one could be moved, another could take its place."""
    held = set(held)
    parents = {parent for path in held for parent in path.parents if workspace in parent.parents}
    return tuple(sorted(parents - held))


def resolve_workspace(job: Job) -> Path:
    """Return the real path of the workspace, without links."""
    try:
        folder = job.workspace.resolve(strict=True)
    except OSError as error:
        raise BadInput(f"The workspace {job.workspace} cannot be used ({error.strerror}). Nothing was run.") from error
    if not folder.is_dir():
        raise BadInput(f"The workspace {folder} is not a folder. Nothing was run.")
    return folder


def resolve_sandbox_workspace(job: Job) -> Path:
    """Return the real path of the workspace; raises `BadInput` when a command could leave the sandbox through it."""
    folder = resolve_workspace(job)
    home = Path.home().resolve()
    is_forbidden = str(folder) in SHARED_FOLDERS or is_below(folder, map(Path, SYSTEM_TREES))
    holds_ours = home.is_relative_to(folder) or make_runtime_folder().is_relative_to(folder)
    if is_forbidden or holds_ours or folder in paths.list_own_folders():
        raise BadInput(
            f"{folder} cannot be a workspace: commands could read keys there or change what runs outside. Nothing was "
            "run. Choose the folder of one project."
        )
    return folder


def resolve_working_folder(job: Job, workspace: Path) -> Path:
    """Return the folder in which the command starts."""
    folder = workspace / job.cwd
    if ".." in Path(job.cwd).parts or not folder.resolve().is_relative_to(workspace) or not folder.is_dir():
        raise BadInput(f"{job.cwd!r} is not a folder in the workspace {workspace}. Nothing was run.")
    return folder


def find_guarded_paths(workspace: Path) -> GuardedPaths:
    """Find env files, our own logs and settings, repositories, and files of editors and agents below the workspace.

    Near ones come first.
    """
    found = scan_workspace(workspace)
    if "" in found.closed:
        raise BadInput(f"You may not list {workspace}. Nothing was run. `chmod u+rwx {workspace}` allows it.")
    own_files = [place for place in paths.list_own_folders() if place.exists() and place.is_relative_to(workspace)]
    hidden = tuple(own_files)

    def resolve(name: str) -> Iterator[Path]:
        path = workspace / name
        return _resolve_inside(path, workspace) if not any(path.is_relative_to(own) for own in hidden) else iter(())

    for name in found.logs:
        parts = [workspace / f"{name}{suffix}" for suffix in paths.LOG_FILE_SUFFIXES]
        if any(paths.is_log_file(read_head(part, paths.LOG_HEAD_BYTES)) for part in parts[:2]):
            own_files += [part for part in parts if os.path.lexists(part)]
    repositories, run_outside = list[Path](), list[Path]()
    for name in (*found.repositories, *found.half_bare, *found.run_outside):
        folder, _, last = name.rpartition("/")
        if last in paths.OPENED_WITH_FOLDER or last in paths.RUN_BY_GIT:
            # In the workspace itself they are protected by name, but not the target of a link. Nobody opens packages.
            is_named = not folder and last not in paths.RUN_BY_GIT and not (workspace / name).is_symlink()
            run_outside += resolve(name) if not is_named and "node_modules" not in folder.split("/") else ()
        elif folder or last not in ("", *paths.PROTECTED):
            repositories += resolve(name)
    named = find_named_by_git(workspace, (name for name, kind in found.repositories.items() if kind != "bare"))
    read_only = {*repositories, *run_outside}
    return GuardedPaths(
        env_files=tuple(path for name in found.env_files for path in resolve(name) if path.is_file()),
        own_files=tuple(own_files),
        repositories=tuple(dict.fromkeys(repositories)),
        run_outside=tuple(dict.fromkeys(run_outside)),
        too_deep=tuple(workspace / name for name in found.too_deep),
        closed=tuple(workspace / name for name in found.closed),
        named_by_git={name: kind for name, kind in named.paths.items() if not is_inside(workspace / name, read_only)},
        why_read_only=named.why_read_only,
        found=found,
    )


def find_shown_settings(folder: Path, found: FoundPaths, covered: Container[str] = ()) -> Iterator[Path]:
    """Find the settings of repositories that are shown as they are, and of their submodules: passwords may be in them.

    Private copies cover the others.
    """
    for name in (name for name, kind in found.repositories.items() if kind == "folder" and name not in covered):
        for here, folders, files in os.walk(folder / name):
            if "HEAD" in files:
                folders[:] = [sub for sub in folders if sub in ("modules", "worktrees")]
            places = (Path(here, file) for file in ("config", "config.worktree") if file in files)
            yield from (place for place in places if not place.is_symlink())


def _resolve_inside(path: Path, workspace: Path) -> Iterator[Path]:
    """Yield the target of a path when it is in the workspace and not protected anyway."""
    real = path.resolve()
    if real != workspace and real.is_relative_to(workspace) and real.exists():
        if not set(real.relative_to(workspace).parts[:-1]).intersection(paths.PROTECTED):
            yield real


@contextmanager
def hold_protected_paths(
    workspace: Path,
    below: Iterable[Path] = (),
    *,
    names: Sequence[str] = paths.PROTECTED,
    placeholders: Mapping[str, int] = {},
) -> Generator[dict[str, int]]:
    """Hold a descriptor of each protected path, by its name in the workspace. Create a placeholder for a missing one.

    A path that is missing and may not be created is left out. `placeholders` are more paths, by the kind of file that
    is created there; their folders are created too. Paths `below` are held as they are. Nothing can be mounted on a
    link: one that belongs to an editor or an agent is put back at the end.
    """
    path = make_runtime_folder() / build_lock_name(workspace)
    lock = lock_file(path, fcntl.LOCK_SH)
    descriptors: dict[str, int] = {}
    opened = (name for name in names if Path(name).name in paths.OPENED_WITH_FOLDER)
    links = {name: os.readlink(workspace / name) for name in opened if (workspace / name).is_symlink()}
    try:
        for link in links.items():
            os.write(lock, json.dumps(link).encode() + b"\n")
        for name in placeholders:
            for number, character in enumerate(name):
                if character == "/":
                    _create_placeholder(workspace, name[:number], lock)
        for protected in (*(name for name in names if name not in links), *placeholders):
            kind = placeholders.get(protected, stat.S_IFDIR)
            descriptor = _open_protected(workspace, protected, lock, kind)
            if descriptor is not None:
                descriptors[protected] = descriptor
        for one in below:
            name = str(one.relative_to(workspace))
            try:
                descriptors[name] = open_path(workspace, name)
            except OSError as error:
                # Without this error, a command could unprotect a repository by moving it while another one starts.
                raise BadInput(f"{one} was moved or exchanged just now. Nothing was run. Run it again.") from error
        yield descriptors
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
        _unlock(lock, path, workspace)


def _restore_link(path: Path, target: str) -> None:
    """Put a link back that a command has replaced. What it put there may be closed, or too large to remove."""
    if path.is_symlink() and os.readlink(path) == target:
        return
    aside = path.with_name(f".treadle-{secrets.token_hex(8)}")
    path.parent.chmod(path.parent.stat().st_mode | stat.S_IRWXU)
    with suppress(FileNotFoundError):
        path.rename(aside)
    path.symlink_to(target)
    with suppress(OSError):
        remove_tree(aside)


def build_lock_name(workspace: Path) -> str:
    """Build the name of the file that every process locks while it runs a command in this workspace."""
    return f"{hashlib.blake2b(os.fsencode(workspace), digest_size=12).hexdigest()}.lock"


def _create_placeholder(workspace: Path, name: str, lock: int, kind: int = stat.S_IFDIR) -> None:
    """Create a missing folder, and note it in the lock file first. Where that is not permitted, there is none.

    For the `.git` of a submodule it is a socket: git stops at an empty folder, and takes a socket for no repository.
    """
    try:
        folder = open_parent(workspace, name)
    except OSError:
        return
    last = name.rpartition("/")[2]
    try:
        os.stat(last, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        os.write(lock, json.dumps(name).encode() + b"\n")
        try:
            if kind == stat.S_IFDIR:
                os.mkdir(last, 0o755, dir_fd=folder)
            else:
                os.mknod(last, 0o600 | kind, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, *_NOT_PERMITTED):
                raise
    finally:
        os.close(folder)


def _open_protected(workspace: Path, name: str, lock: int, kind: int) -> int | None:
    """Open a protected path without following a link. Create a missing one.

    Return None when it is missing and may not be created.
    """
    _create_placeholder(workspace, name, lock, kind)
    try:
        descriptor = open_path(workspace, name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    mode = os.fstat(descriptor).st_mode
    if stat.S_IFMT(mode) not in (stat.S_IFDIR, stat.S_IFREG, kind):
        os.close(descriptor)
        raise BadInput(
            f"{workspace / name} is a link or something else that cannot be protected from the command. Nothing was "
            "run. Put the folder itself there."
        )
    return descriptor


def _unlock(lock: int, path: Path, workspace: Path) -> None:
    """Release the lock. The last process removes the placeholders, which are empty because nobody could write them.

    It also puts links back, of processes that were killed too.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return
    lines = os.pread(lock, os.fstat(lock).st_size, 0).splitlines()
    noted = [cast("str | list[str]", json.loads(line)) for line in lines]
    for name, target in {link[0]: link[1] for link in reversed(noted) if isinstance(link, list)}.items():
        _restore_link(workspace / name, target)
    for name in sorted((name for name in noted if isinstance(name, str)), key=len, reverse=True):
        try:
            folder, last = open_parent(workspace, name), name.rpartition("/")[2]
            try:
                about = os.stat(last, dir_fd=folder, follow_symlinks=False)
                if not about.st_size or not stat.S_ISREG(about.st_mode):  # somebody may have written it meanwhile
                    (os.rmdir if stat.S_ISDIR(about.st_mode) else os.unlink)(last, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            # Somebody uses it meanwhile, or has removed it, or it could not be created.
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.ENOTDIR, *_NOT_PERMITTED):
                raise
    path.unlink(missing_ok=True)
    os.close(lock)
