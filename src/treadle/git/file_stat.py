"""What git remembers of a file in the work tree, so that it need not read the file again.

It is never taken from a command's index. A file is read and hashed here, and only if it is what the index says, its
data is remembered. Without that, `git merge --abort` and others take the file for one that was edited.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Self

from treadle.git.git_folder import GitFolder, UnsafeFile, read_limited
from treadle.git.index_file import NO_STAT, Entries, EntryState
from treadle.git.object_format import ObjectFormat
from treadle.git.repository import Repository

_MAX_FILES = 5_000
_MAX_BYTES = 256 << 20
_LOW = 0xFFFFFFFF


class FileStats:
    """Describes files of a work tree, for a `with` block. After many files or bytes it describes no more."""

    def __init__(self, repository: Repository, form: ObjectFormat) -> None:
        self._folder, self._form = GitFolder(repository.work_tree), form
        self._files, self._bytes = _MAX_FILES, _MAX_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._folder.close()

    def is_missing(self, path: bytes) -> bool:
        """Whether there is nothing at a path."""
        return self._folder.look_up(os.fsdecode(path)) is None

    def refresh(self, entries: Entries, index_time: int) -> None:
        """Describe the files of new entries, and of those that were written at or after the time of their index.

        The latter may have changed since, within the same second. git forgets what it knows of them too.
        """
        newest = struct.pack(">I", index_time & _LOW)
        for content, state in entries.items():
            if self._files > 0 and (state.stat[8:12] >= newest or state.stat == NO_STAT):
                path, stage, mode, object_id, is_announced = content
                is_file = not stage and not is_announced and stat.S_IFMT(mode) in (stat.S_IFREG, stat.S_IFLNK)
                described = self._describe(os.fsdecode(path), mode, object_id.hex()) if is_file else NO_STAT
                entries[content] = EntryState(described, state.marks)

    def _describe(self, path: str, mode: int, object_id: str) -> bytes:
        about = self._folder.look_up(path)
        if about is None or stat.S_IFMT(about.st_mode) != stat.S_IFMT(mode) or not self._allow(about.st_size):
            return NO_STAT
        try:
            data = self._folder.read_link(path) if stat.S_ISLNK(mode) else self._read(path, about)
        except (UnsafeFile, OSError):
            return NO_STAT
        if self._form.hash_object("blob", data) != object_id:
            return NO_STAT
        times = (*divmod(about.st_ctime_ns, 10**9), *divmod(about.st_mtime_ns, 10**9))
        rest = (about.st_dev, about.st_ino, about.st_uid, about.st_gid, about.st_size)
        return struct.pack(">9I", *(value & _LOW for value in (*times, *rest)))

    def _read(self, path: str, about: os.stat_result) -> bytes:
        opened = self._folder.open_file(path)
        if opened is None:
            return b""
        with open(opened, "rb", buffering=0):
            data = read_limited(opened, about.st_size + 1)
            now = os.fstat(opened)
        if (now.st_ino, now.st_ctime_ns, now.st_size) != (about.st_ino, about.st_ctime_ns, len(data)):
            raise UnsafeFile(f"{path} was changed while it was read.")
        return data

    def _allow(self, size: int) -> bool:
        self._files -= 1
        self._bytes -= size
        return self._files >= 0 and self._bytes >= 0
