"""Folders on disk for one command or one exchange with a remote each, which nobody else can open.

A killed process leaves its folder behind. A later process removes it: whoever uses a folder holds a lock.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from treadle.git.git_folder import remove_tree
from treadle.permissions.paths import find_data_folder
from treadle.sandbox.runtime_folder import make_runtime_folder

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
    top = top.resolve()  # a home may be reached through a link, and no link is followed below
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


@contextmanager
def hold_lock_file(path: Path) -> Generator[None]:
    """Hold a lock that nobody else has; raises `BlockingIOError` if somebody has it."""
    lock = lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
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
