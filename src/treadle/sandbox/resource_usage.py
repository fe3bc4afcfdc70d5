"""What a tree of processes uses, read from outside in /proc and from the disk. It looks, and stops nothing."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_PAGE = os.sysconf("SC_PAGE_SIZE")
_INODE = 4096
"""What a file counts for besides its content: millions of empty ones fill a disk too."""


class TreeUsage(Struct, frozen=True):
    """How many processes there are, and the bytes of memory that belong to them."""

    processes: int
    memory: int


def find_descendants(root: int) -> list[int]:
    """The processes below one, itself not among them."""
    found: list[int] = []
    parents = deque([root])
    while parents:
        children = _children(parents.popleft())
        found += children
        parents += children
    return found


def measure_tree(root: int) -> TreeUsage:
    """What all processes below one use together."""
    below = find_descendants(root)
    return TreeUsage(len(below), sum(map(_memory, below)))


def _children(pid: int) -> list[int]:
    """Each thread has its own list of the children it made."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                found += map(int, listing.read().split())
    return found


def _memory(pid: int) -> int:
    """Bytes of its own, and its part of shared memory; files that are mapped belong to the disk."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as fields:
            _, resident, shared = fields.read().split()[:3]
        own = (int(resident) - int(shared)) * _PAGE
        if int(shared) * _PAGE < 64 * 1024 * 1024:
            return own
        with open(f"/proc/{pid}/smaps_rollup", "rb") as fields:
            for line in fields:
                if line.startswith(b"Pss_Shmem:"):
                    return own + int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass  # it has ended meanwhile
    return 0


class DiskWatch:
    """How much folders have grown. Cheap as long as their whole file systems have not been filled by as much."""

    def __init__(self, folders: tuple[Path, ...], limit: int) -> None:
        self._folders = folders
        self._devices = {folder.stat().st_dev for folder in folders}
        self._limit = limit
        self._last = self._used()
        self._filled = 0
        # Clocks of file systems are coarse, and may be another machine's.
        self._started = time.time_ns() - 2_000_000_000

    def is_suspicious(self) -> bool:
        """Whether more than the limit was written, maybe by others; what is freed meanwhile does not hide it."""
        used = self._used()
        self._filled += max(0, used - self._last)
        self._last = used
        return self._filled > self._limit

    def is_over_limit(self, root: int) -> bool:
        """Whether it was the command; reads all of the folders. What others wrote is not asked about again.

        Where a command has put things out of our sight, all that was written meanwhile counts as its own.
        """
        changed = _unlinked(root, self._devices)
        for folder in self._folders:
            try:
                changed += _changed_since(folder, self._started, self._limit)
            except _OutOfSight:
                return True
        self._filled = changed
        return self._filled > self._limit

    def _used(self) -> int:
        """Of the file systems; one that holds two of the folders counts twice, which only raises the alarm sooner."""
        return sum(map(_used, self._folders))


def _used(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0  # a command on the host may remove its own workspace
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * _INODE


class _OutOfSight(Exception):
    """Something that its owner has put where it cannot be looked at: too deep below, or in a closed folder."""


def _changed_since(folder: Path, moment: int, enough: int) -> int:
    """The bytes of what was changed; counting stops at `enough`, or it might not end while a command makes more."""
    total = 0
    folders = [str(folder)]
    while folders and total <= enough:
        here = folders.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        if found.st_ctime_ns >= moment:
                            total += found.st_blocks * 512 + _INODE
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it has gone meanwhile
        except OSError as error:
            if not _is_foreign(here):
                raise _OutOfSight from error
    return total


def _is_foreign(folder: str) -> bool:
    """Whether a folder is somebody else's, which the command cannot have closed."""
    with suppress(OSError):
        return os.stat(folder, follow_symlinks=False).st_uid != os.geteuid()
    return False


def _unlinked(root: int, devices: set[int]) -> int:
    """What is held open without a name: it takes room until it is closed."""
    held: dict[int, int] = {}
    for pid in find_descendants(root):
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    if found.st_nlink == 0 and found.st_dev in devices:
                        held[found.st_ino] = found.st_blocks * 512
    return sum(held.values())
