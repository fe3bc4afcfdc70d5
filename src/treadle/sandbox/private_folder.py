"""Folders on disk for one command each, which nobody else can open. A killed process leaves its folder behind.

A later process removes it: whoever uses a folder holds a lock.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from treadle.permissions.paths import find_data_folder
from treadle.sandbox.runtime_folder import make_runtime_folder

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def hold_private_folder() -> Generator[Path]:
    """Create a folder on disk, below our data. It is removed at the end, whatever a command has put into it."""
    top = find_data_folder() / "sandbox/git"
    try:
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # a user without a home
        top = make_runtime_folder() / "git"
        top.mkdir(mode=0o700, exist_ok=True)
    top.chmod(0o700)
    _remove_leftovers(top)
    name = secrets.token_hex(8)
    lock = lock_file(top / f"{name}.lock", fcntl.LOCK_EX)
    try:
        (top / name).mkdir(mode=0o700)
        yield top / name
    finally:
        with suppress(OSError):  # a later process tries again
            remove_tree(top / name)
            (top / f"{name}.lock").unlink(missing_ok=True)
        os.close(lock)


def lock_file(path: Path, operation: int) -> int:
    """Open and lock a file that its last user removes, so it must still be the one at its path."""
    while True:
        lock = os.open(path, _OPEN_LOCK, 0o600)
        try:
            fcntl.flock(lock, operation)
            with suppress(FileNotFoundError):
                if os.stat(path, follow_symlinks=False).st_ino == os.fstat(lock).st_ino:
                    return lock
        except OSError:
            os.close(lock)
            raise
        os.close(lock)


@lru_cache(maxsize=4)
def _remove_leftovers(top: Path) -> None:
    """Remove the folders of killed processes, once in a process."""
    for path in top.glob("*.lock"):
        try:
            lock = lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # somebody uses it
        with suppress(OSError):
            remove_tree(path.with_suffix(""))
            path.unlink(missing_ok=True)
        os.close(lock)


def remove_tree(folder: Path) -> None:
    """Remove a folder or file with all that a command has put into it, however deep it is and whatever its modes are.

    Each folder in it is moved to the top first, so no path becomes long.
    """
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            folder.unlink()
            return
        folder.chmod(0o700)
        top = os.open(folder, _OPEN_FOLDER)
    except FileNotFoundError:
        return
    try:
        pending = [name for name in os.listdir(top) if not _unlink_file(top, name)]
        while pending:
            name = pending.pop()
            os.chmod(name, 0o700, dir_fd=top)
            here = os.open(name, _OPEN_FOLDER, dir_fd=top)
            try:
                for inner in os.listdir(here):
                    if not _unlink_file(here, inner):
                        moved = secrets.token_hex(8)
                        os.chmod(inner, 0o700, dir_fd=here)
                        os.rename(inner, moved, src_dir_fd=here, dst_dir_fd=top)
                        pending.append(moved)
            finally:
                os.close(here)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _unlink_file(folder: int, name: str) -> bool:
    """Remove what is not a folder. Return False for a folder."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=folder)
    return True
