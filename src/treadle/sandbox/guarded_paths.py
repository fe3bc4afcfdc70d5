"""What a command may not touch in its own workspace, and which folders are no workspace at all.

A mount needs something to be mounted on, so `.git` and `.treadle` are made when they are missing. Such a
placeholder must stay while any command of any process runs here: removing it would take the others' mounts away.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from treadle.errors import BadInput
from treadle.permissions.paths import (
    LOG_FILE_SUFFIXES,
    LOG_HEAD_BYTES,
    PROTECTED,
    is_env_file,
    is_log_file,
    list_own_folders,
)
from treadle.sandbox.base import Job
from treadle.sandbox.runtime_folder import make_runtime_folder

_NEVER = {
    "/",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
}
_NOT_BELOW = ("/boot", "/dev", "/etc", "/proc", "/sys")
_NOT_SEARCHED = {".git", ".treadle", "__pycache__", "node_modules"}
_ENTRIES = 10_000
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ITSELF = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


class GuardedPaths(Struct, frozen=True):
    """What lies in a workspace that a command may not see, or not change."""

    env_files: tuple[Path, ...]
    own_files: tuple[Path, ...]
    repositories: tuple[Path, ...]

    def find_parent_folders(self, workspace: Path) -> tuple[Path, ...]:
        """The folders on the way to what is our own: were one moved away, another could be put in its place."""
        ways = {parent for place in self.own_files for parent in place.parents if workspace in parent.parents}
        return tuple(sorted(ways - set(self.repositories) - set(self.own_files)))


def resolve_workspace(job: Job) -> Path:
    """The folder itself, without links on the way."""
    try:
        folder = job.workspace.resolve(strict=True)
    except OSError as error:
        raise BadInput(f"The workspace {job.workspace} cannot be used ({error.strerror}). Nothing was run.") from error
    if not folder.is_dir():
        raise BadInput(f"The workspace {folder} is not a folder. Nothing was run.")
    return folder


def resolve_sandbox_workspace(job: Job) -> Path:
    """The same for a command behind walls; refused when it could leave by this folder."""
    folder = resolve_workspace(job)
    home = Path.home().resolve()
    below = any(folder.is_relative_to(top) for top in _NOT_BELOW) or folder in list_own_folders()
    if str(folder) in _NEVER or below or home.is_relative_to(folder) or make_runtime_folder().is_relative_to(folder):
        raise BadInput(
            f"{folder} cannot be a workspace: commands could read keys there or change what runs outside. Nothing was "
            "run. Choose the folder of one project."
        )
    return folder


def resolve_working_folder(job: Job, workspace: Path) -> Path:
    """Where the command starts."""
    folder = workspace / job.cwd
    if ".." in Path(job.cwd).parts or not folder.resolve().is_relative_to(workspace) or not folder.is_dir():
        raise BadInput(f"{job.cwd!r} is not a folder in the workspace {workspace}. Nothing was run.")
    return folder


def find_guarded_paths(workspace: Path) -> GuardedPaths:
    """Find files that hold secrets by custom, our own logs and settings, and repositories further down.

    Near ones come first. In a huge tree the search ends after so many entries.
    """
    env_files, repositories = list[Path](), list[Path]()
    own = [place for place in list_own_folders() if place.exists() and place.is_relative_to(workspace)]
    folders, seen = deque([workspace]), 0
    while folders and seen < _ENTRIES:
        folder = folders.popleft()
        with suppress(OSError), os.scandir(folder) as entries:
            here = list(entries)
            names = {entry.name for entry in here}
            seen += len(here)
            if folder != workspace and is_repository(names):
                repositories.append(folder)
                continue
            for entry in here:
                if f"{entry.name}-wal" in names and _is_store(folder / entry.name):
                    own += [folder / f"{entry.name}{end}" for end in LOG_FILE_SUFFIXES if f"{entry.name}{end}" in names]
                if is_env_file(entry.name):
                    env_files += filter(Path.is_file, _inside(Path(entry.path), workspace))
                elif entry.name in PROTECTED and folder != workspace:
                    repositories += _inside(Path(entry.path), workspace)
                elif entry.name not in _NOT_SEARCHED and entry.is_dir(follow_symlinks=False):
                    if Path(entry.path) not in own:
                        folders.append(Path(entry.path))
    return GuardedPaths(tuple(env_files), tuple(own), tuple(dict.fromkeys(repositories)))


def _is_store(path: Path) -> bool:
    return is_log_file(_head(path)) or is_log_file(_head(path.with_name(f"{path.name}-wal")))


def _head(path: Path) -> bytes:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(opened, LOG_HEAD_BYTES) if stat.S_ISREG(os.fstat(opened).st_mode) else b""
    finally:
        os.close(opened)


def is_repository(names: set[str]) -> bool:
    """Whether git takes a folder with these names in it for a repository, whatever the folder is called."""
    return "HEAD" in names and bool(names & {"objects", "commondir"})


def _inside(path: Path, workspace: Path) -> Iterator[Path]:
    """What a name leads to, when it lies in the workspace and is not protected anyway."""
    real = path.resolve()
    if real != workspace and real.is_relative_to(workspace) and real.exists():
        if not set(real.relative_to(workspace).parts[:-1]).intersection(PROTECTED):
            yield real


@contextmanager
def hold_protected_paths(workspace: Path, below: Iterable[Path] = ()) -> Generator[dict[str, int]]:
    """Hold what is protected: an open descriptor for each name, made with a placeholder where it is missing.

    One that cannot be made in a workspace that is not ours to change is left out. What is further `below` is held as it
    is, by its place in the workspace.
    """
    path = make_runtime_folder() / build_lock_name(workspace)
    lock = _shared_lock(path)
    opened: dict[str, int] = {}
    try:
        for protected in PROTECTED:
            descriptor = _open_protected(workspace, protected, lock)
            if descriptor is not None:
                opened[protected] = descriptor
        for name in (str(one.relative_to(workspace)) for one in below):
            opened[name] = _open_below(workspace, name)
        yield opened
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
        _unlock(lock, path, workspace)


def _open_below(workspace: Path, name: str) -> int:
    """Open what lies further down, through no link."""
    *folders, last = name.split("/")
    try:
        with ExitStack() as held:
            here = os.open(workspace, _FOLDER)
            held.callback(os.close, here)
            for folder in folders:
                here = os.open(folder, _FOLDER, dir_fd=here)
                held.callback(os.close, here)
            return os.open(last, _ITSELF, dir_fd=here)
    except OSError as error:
        # Leaving it out would let a command open a repository by moving it about while another one starts.
        raise BadInput(f"{workspace / name} was moved or exchanged just now. Nothing was run. Run it again.") from error


def build_lock_name(workspace: Path) -> str:
    """The file in our runtime folder that every process locks which runs a command in this workspace."""
    return f"{hashlib.blake2b(os.fsencode(workspace), digest_size=12).hexdigest()}.lock"


def _shared_lock(path: Path) -> int:
    """Open and lock a file that the last one to leave removes: it must still be the one at its path."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.stat(path, follow_symlinks=False).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def _open_protected(workspace: Path, name: str, lock: int) -> int | None:
    """Open without following a link; a missing one is made, and its name is left in the lock file to be removed.

    None when it is missing and may not be made.
    """
    path = workspace / name
    try:
        descriptor = os.open(path, _ITSELF)
    except FileNotFoundError:
        os.write(lock, f"{name}\n".encode())
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno in _NOT_OURS:
                return None
            raise
        descriptor = os.open(path, _ITSELF)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        os.close(descriptor)
        raise BadInput(
            f"{path} is a link or something else that cannot be protected from the command. Nothing was run. Put the "
            "folder itself there."
        )
    return descriptor


def _unlock(lock: int, path: Path, workspace: Path) -> None:
    """Leave; the last one takes the placeholders away, which are empty because nobody could write to them."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return
    made = os.pread(lock, 4096, 0).decode().split()
    for name in PROTECTED:
        if name in made:
            _remove_placeholder(workspace / name)
    path.unlink(missing_ok=True)
    os.close(lock)


def _remove_placeholder(path: Path) -> None:
    try:
        path.rmdir()
    except OSError as error:
        # Somebody has made it their own meanwhile, or removed it, or it could not be made.
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.ENOTDIR, *_NOT_OURS):
            raise
