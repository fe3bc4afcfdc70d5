"""What a process tree uses, read from /proc and from the disk. It measures and stops nothing."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_INODE_BYTES = 4096
"""What a file counts besides its content: millions of empty files fill a disk too."""


def find_descendants(root: int) -> list[int]:
    """Return the processes below a process, without the process itself."""
    found: list[int] = []
    parents = deque([root])
    while parents:
        parent = parents.popleft()
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):  # each has a list of the children it started
                with suppress(OSError), open(f"/proc/{parent}/task/{thread}/children", "rb") as listing:
                    children = [int(word) for word in listing.read().split()]
                    found += children
                    parents += children
    return found


def measure_tree(root: int) -> tuple[int, int]:
    """Return the number of processes below a process, and the bytes of memory that belong to them.

    That is their own memory and their share of shared memory. Mapped files count as disk.
    """
    below, memory = find_descendants(root), 0
    for pid in below:
        with suppress(OSError, ValueError):  # it may have ended meanwhile
            with open(f"/proc/{pid}/statm", "rb") as fields:
                _, resident, shared = map(int, fields.read().split()[:3])
            memory += (resident - shared) * _PAGE_BYTES
            if shared * _PAGE_BYTES >= 64 * 1024 * 1024:
                with open(f"/proc/{pid}/smaps_rollup", "rb") as fields:
                    memory += sum(int(line.split()[1]) * 1024 for line in fields if line.startswith(b"Pss_Shmem:"))
    return len(below), memory


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
        folders = [*map(str, self._folders)]
        while folders and changed <= self._limit:  # a command may add files as fast as they are counted
            folder = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):
                            found = entry.stat(follow_symlinks=False)
                            if found.st_ctime_ns >= self._started:
                                changed += found.st_blocks * 512 + _INODE_BYTES
                            if entry.is_dir(follow_symlinks=False):
                                folders.append(entry.path)
            except (FileNotFoundError, NotADirectoryError):
                continue  # it was removed meanwhile
            except OSError:  # it is too deep, or has no permissions
                with suppress(OSError):
                    if os.stat(folder, follow_symlinks=False).st_uid != os.geteuid():
                        continue  # another user owns it, so the command cannot have closed it
                return True
        self._written = changed
        return self._written > self._limit

    def _measure_file_systems(self) -> int:
        """Return the used bytes of the file systems. One with two folders counts twice: the alarm comes sooner."""
        used = 0
        for folder in self._folders:
            with suppress(OSError):  # a command on the host may remove its own workspace
                found = os.statvfs(folder)
                used += (found.f_blocks - found.f_bfree) * found.f_frsize
                used += (found.f_files - found.f_ffree) * _INODE_BYTES
        return used


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
