"""What a process tree uses, read from /proc and from the disk. It measures and stops nothing."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_INODE_BYTES = 4096
"""What a file counts besides its content: millions of empty files fill a disk too."""


class TreeUsage(Struct, frozen=True):
    """The number of processes in a tree, and the bytes of memory that belong to them."""

    processes: int
    memory: int


def find_descendants(root: int) -> list[int]:
    """Return the processes below a process, without the process itself."""
    found: list[int] = []
    parents = deque([root])
    while parents:
        children = _find_children(parents.popleft())
        found += children
        parents += children
    return found


def measure_tree(root: int) -> TreeUsage:
    """Measure what all processes below a process use together."""
    below = find_descendants(root)
    return TreeUsage(len(below), sum(map(_measure_memory, below)))


def _find_children(pid: int) -> list[int]:
    """Return the children of a process. Each thread has its own list of the children it started."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                found += map(int, listing.read().split())
    return found


def _measure_memory(pid: int) -> int:
    """Return the bytes of a process's own memory and its share of shared memory. Mapped files count as disk."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as fields:
            _, resident, shared = fields.read().split()[:3]
        own = (int(resident) - int(shared)) * _PAGE_BYTES
        if int(shared) * _PAGE_BYTES < 64 * 1024 * 1024:
            return own
        with open(f"/proc/{pid}/smaps_rollup", "rb") as fields:
            for line in fields:
                if line.startswith(b"Pss_Shmem:"):
                    return own + int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass  # it has ended meanwhile
    return 0


class DiskWatch:
    """Watches how much folders grow. It is cheap until their file systems have grown by as much as the limit."""

    def __init__(self, folders: tuple[Path, ...], limit: int) -> None:
        self._folders = folders
        self._devices = {folder.stat().st_dev for folder in folders}
        self._limit = limit
        self._last_used = self._measure_file_systems()
        self._written = 0
        # The clock of a file system is coarse, and may be that of another machine.
        self._started = time.time_ns() - 2_000_000_000

    def is_suspicious(self) -> bool:
        """Tell whether more than the limit was written, perhaps by others. Space that is freed does not hide it."""
        used = self._measure_file_systems()
        self._written += max(0, used - self._last_used)
        self._last_used = used
        return self._written > self._limit

    def is_over_limit(self, root: int) -> bool:
        """Tell whether the command itself wrote more than the limit. This reads all of the folders.

        When a command has hidden files from us, everything that was written meanwhile counts as its own.
        """
        changed = _measure_unlinked(root, self._devices)
        for folder in self._folders:
            try:
                changed += _measure_changes(folder, self._started, self._limit)
            except _Hidden:
                return True
        self._written = changed
        return self._written > self._limit

    def _measure_file_systems(self) -> int:
        """Return what is used of the file systems. One that holds two folders counts twice: the alarm comes sooner."""
        used = 0
        for folder in self._folders:
            with suppress(OSError):  # a command on the host may remove its own workspace
                found = os.statvfs(folder)
                used += (found.f_blocks - found.f_bfree) * found.f_frsize
                used += (found.f_files - found.f_ffree) * _INODE_BYTES
        return used


class _Hidden(Exception):
    """A command has put something where we cannot see it: too deep, or in a folder without permissions."""


def _measure_changes(folder: Path, since: int, enough: int) -> int:
    """Return the bytes of files that changed. Counting stops at `enough`, because a command may add files meanwhile."""
    total = 0
    folders = [str(folder)]
    while folders and total <= enough:
        here = folders.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        if found.st_ctime_ns >= since:
                            total += found.st_blocks * 512 + _INODE_BYTES
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it was removed meanwhile
        except OSError as error:
            if not _has_other_owner(here):
                raise _Hidden from error
    return total


def _has_other_owner(folder: str) -> bool:
    """Tell whether another user owns a folder, so that the command cannot have closed it."""
    with suppress(OSError):
        return os.stat(folder, follow_symlinks=False).st_uid != os.geteuid()
    return False


def _measure_unlinked(root: int, devices: set[int]) -> int:
    """Return the bytes of open files without a name: they take space until they are closed."""
    sizes: dict[int, int] = {}
    for pid in find_descendants(root):
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    if found.st_nlink == 0 and found.st_dev in devices:
                        sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())
