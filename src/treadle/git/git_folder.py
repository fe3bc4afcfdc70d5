"""A folder of a repository, read and written without following a link. It does not know what the files mean.

Both sides need this: a command has written in the private copy, and the real one may come from a hostile archive.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from treadle.errors import TreadleError
from treadle.workspace.folder import O_PATH, open_beneath

LOCK_WAIT_S = 2.0
"""How long a lock of another git process is waited for."""

MAX_DEPTH = 64
_MAX_ENTRIES = 200_000
_FOLDER_FLAGS = (O_PATH or os.O_RDONLY) | os.O_DIRECTORY
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_POLL_S = 0.02
_OUR_LOCK = "held-by-treadle"
_TEMPORARY = re.compile(r"\.treadle-[0-9a-f]{16}\.lock|tmp_obj_treadle_[0-9a-f]{16}")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class RepositoryUnsupported(TreadleError):
    """This repository cannot be copied for a command. The message says why; nothing was changed."""


class UnsafeFile(TreadleError):
    """A file of a repository is a link, not a regular file, or too large. The message names it."""


class LockHeld(TreadleError):
    """Another process holds the lock of a file, so the file was not changed. The message names it."""


class GitFolder:
    """An open folder, for a `with` block. No part of a path in it, nor of its own, may be a link."""

    def __init__(self, path: Path) -> None:
        self.path = path
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fd = open_beneath(root, str(path.absolute()).lstrip("/") or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UnsafeFile(f"{path} is not a folder that can be opened: {error.strerror}.") from None
        finally:
            os.close(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder."""
        os.close(self.fd)

    # ── reading ──

    def open_file(self, name: str) -> int | None:
        """Open a regular file for reading; None when there is nothing. Raises `UnsafeFile`."""
        try:
            opened = open_beneath(self.fd, name, _READ_FLAGS)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ENOTDIR and not self._is_link_above(name):
                return None
            raise UnsafeFile(f"{name} is not a regular file ({_explain(error)}).") from None
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise UnsafeFile(f"{name} is not a regular file.")
        return opened

    def _is_link_above(self, name: str) -> bool:
        """Whether a part of a path is a link. The system says "not a folder" of links and of files."""
        parts = name.split("/")
        for count in range(1, len(parts) + 1):
            about = self.look_up("/".join(parts[:count]))
            if about is None or not stat.S_ISDIR(about.st_mode):
                return about is not None and stat.S_ISLNK(about.st_mode)
        return False

    def read_file(self, name: str, limit: int) -> bytes | None:
        """Read a regular file; None when there is nothing. Raises `UnsafeFile`, also when it is too large."""
        opened = self.open_file(name)
        if opened is None:
            return None
        with open(opened, "rb", buffering=0):
            is_large = os.fstat(opened).st_size > limit  # then not even a part of it is read
            data = b"" if is_large else read_limited(opened, limit + 1)
        if is_large or len(data) > limit:
            raise UnsafeFile(f"{name} has more than {limit} bytes.")
        return data

    def read_link(self, name: str) -> bytes:
        """Read where a link leads, without following it; raises `OSError`."""
        folder, _, last = name.rpartition("/")
        with self._hold(folder) as parent:
            return os.fsencode(os.readlink(last, dir_fd=parent))

    def look_up(self, name: str) -> os.stat_result | None:
        """Describe what is at a path, without following a link; None when there is nothing."""
        folder, _, last = name.rpartition("/")
        try:
            with self._hold(folder) as parent:
                return os.stat(last, dir_fd=parent, follow_symlinks=False)
        except OSError:
            return None

    def is_folder(self, name: str) -> bool:
        """Whether a real folder is at a path."""
        about = self.look_up(name)
        return about is not None and stat.S_ISDIR(about.st_mode)

    def list_entries(self, name: str, limit: int) -> list[os.DirEntry[str]]:
        """List a folder, at most `limit` entries. Nothing there, or no folder: an empty list."""
        try:
            opened = open_beneath(self.fd, name, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return []
        try:
            with os.scandir(opened) as entries:
                return [entry for entry, _ in zip(entries, range(limit), strict=False)]
        finally:
            os.close(opened)

    def walk_entries(self, top: str, limit: int) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Go through everything below a folder that is no folder itself, at most `limit` entries in all."""
        waiting = [top]
        while waiting and limit > 0:
            folder = waiting.pop()
            entries = self.list_entries(folder, limit)
            limit -= len(entries)
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    yield path, entry
                elif path.count("/") < MAX_DEPTH:
                    waiting.append(path)

    # ── writing ──

    @contextmanager
    def _hold(self, name: str, *, create: bool = False) -> Generator[int]:
        """Open a folder below this one through no link, and create the missing parts if asked."""
        if create:
            parts = [part for part in name.split("/") if part]
            here = os.dup(self.fd)
            try:
                for part in parts:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=here)
                    inner = open_beneath(here, part, _FOLDER_FLAGS)
                    os.close(here)
                    here = inner
                yield here
            finally:
                os.close(here)
        else:
            opened = open_beneath(self.fd, name or ".", _FOLDER_FLAGS)
            try:
                yield opened
            finally:
                os.close(opened)

    def create_folder(self, name: str) -> None:
        """Create a folder and its parents, unless they exist."""
        with self._hold(name, create=True):
            pass

    def write_file(self, name: str, data: bytes, mode: int = 0o666) -> None:
        """Write a whole file or nothing, and create its folders. What stood there before is replaced, a link too."""
        folder, _, last = name.rpartition("/")
        with self._hold(folder, create=True) as parent:
            _write_whole(parent, last, data, mode)

    def create_file(self, name: str, mode: int = 0o666) -> int:
        """Create a new file in an existing or new folder and return its descriptor; raises `FileExistsError`."""
        folder, _, last = name.rpartition("/")
        with self._hold(folder, create=True) as parent:
            return os.open(last, _CREATE_FLAGS, mode, dir_fd=parent)

    def append_file(self, name: str, data: bytes) -> None:
        """Append to a regular file, which is created if it is missing. Raises `UnsafeFile` for anything else."""
        folder, _, last = name.rpartition("/")
        try:
            with self._hold(folder, create=True) as parent:
                opened = os.open(last, _APPEND_FLAGS, 0o666, dir_fd=parent)
        except OSError as error:
            raise UnsafeFile(f"{name} cannot be written ({_explain(error)}).") from None
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise UnsafeFile(f"{name} is not a regular file.")
        write_and_sync(opened, data)

    def publish_file(self, temporary: str, name: str) -> None:
        """Give a complete file its final name. A file that has the name already stays."""
        folder, _, last = name.rpartition("/")
        with self._hold(folder, create=True) as parent, suppress(FileExistsError):
            try:
                os.link(temporary, last, src_dir_fd=self.fd, dst_dir_fd=parent, follow_symlinks=False)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                    raise
                os.rename(temporary, last, src_dir_fd=self.fd, dst_dir_fd=parent)  # no hard links here
                return
        self.remove_file(temporary)

    def rename(self, old: str, new: str) -> None:
        """Give something a name directly in this folder."""
        folder, _, last = old.rpartition("/")
        with self._hold(folder) as parent:
            os.rename(last, new, src_dir_fd=parent, dst_dir_fd=self.fd)

    def allow_access(self, name: str) -> None:
        """Let us read and empty a folder that its maker may have closed."""
        with self._hold(name) as opened:
            if O_PATH and os.fstat(opened).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{opened}", stat.S_IRWXU)

    def remove_file(self, name: str) -> bool:
        """Remove a file, and say whether there was one."""
        folder, _, last = name.rpartition("/")
        try:
            with self._hold(folder) as parent:
                os.unlink(last, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def remove_empty_folders(self, name: str, above: str) -> None:
        """Remove a folder and its parents below `above`, as far as they are empty."""
        while name != above and name.startswith(f"{above}/"):
            folder, _, last = name.rpartition("/")
            try:
                with self._hold(folder) as parent:
                    os.rmdir(last, dir_fd=parent)
            except FileNotFoundError:
                pass
            except OSError:
                return
            name = folder

    def remove_empty_tree(self, name: str) -> bool:
        """Remove a folder that holds nothing but empty folders, and say whether it is gone."""
        folders = [name]
        for folder in folders:
            entries = self.list_entries(folder, 1000)
            if len(folders) > 1000 or not all(entry.is_dir(follow_symlinks=False) for entry in entries):
                return False
            folders.extend(f"{folder}/{entry.name}" for entry in entries)
        for folder in reversed(folders):
            above, _, last = folder.rpartition("/")
            with suppress(OSError), self._hold(above) as parent:
                os.rmdir(last, dir_fd=parent)
        return not self.is_folder(name)

    @contextmanager
    def lock_file(self, name: str) -> Generator[FileLock]:
        """Take git's lock `NAME.lock`. Raises `LockHeld` when another process holds it for too long."""
        folder, _, last = name.rpartition("/")
        until = time.monotonic() + LOCK_WAIT_S
        with self._hold(folder, create=True) as parent:
            while not _create_lock(parent, f"{last}.lock"):
                if time.monotonic() > until:
                    raise LockHeld(f"{name}.lock is held by another git process.")
                time.sleep(_POLL_S)
            lock = FileLock(parent, last)
            try:
                yield lock
            finally:
                lock.release()

    def remove_leftovers(self) -> None:
        """Remove the locks and unfinished files of our killed processes. None of ours may change the folder now."""
        found = [entry.name for entry in self.list_entries(".", _MAX_ENTRIES)]
        found += (f"objects/{entry.name}" for entry in self.list_entries("objects", _MAX_ENTRIES))
        for top in ("refs", "logs", "info", "rebase-merge", "sequencer"):
            found += (path for path, _ in self.walk_entries(top, _MAX_ENTRIES))
        for path in found:
            if is_temporary(path) or (path.endswith(".lock") and self._is_our_lock(path)):
                remove_tree(self.path / path)

    def _is_our_lock(self, path: str) -> bool:
        about = self.look_up(path)
        return about is not None and stat.S_ISLNK(about.st_mode) and self.read_link(path) == _OUR_LOCK.encode()


class FileLock:
    """A lock that is held. It is a link that leads nowhere: git respects it, and we know it for ours after a crash."""

    def __init__(self, parent: int, name: str) -> None:
        self._parent, self._name, self._is_held = parent, name, True

    def replace(self, data: bytes, seconds: int | None = None) -> None:
        """Replace the file at once by this content. That ends the lock. `seconds` is the time that the file gets.

        A file that others may not read stays so.
        """
        mode = 0o666
        with suppress(FileNotFoundError):
            mode = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False).st_mode & mode
        _write_whole(self._parent, self._name, data, mode, seconds)
        self.release()

    def release(self) -> None:
        """Remove the lock, unless that was done."""
        if self._is_held:
            self._is_held = False
            with suppress(OSError):
                os.unlink(f"{self._name}.lock", dir_fd=self._parent)


def choose_temporary_name() -> str:
    """Choose a name that git ignores wherever it is, and by which `remove_leftovers` finds what a crash left."""
    return f".treadle-{secrets.token_hex(8)}.lock"


def is_temporary(path: str) -> bool:
    """Tell whether a file has a name that only our unfinished files have."""
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


def _create_lock(parent: int, name: str) -> bool:
    """Create the lock of a file, and say whether it is ours now. Without links in a file system it is a file."""
    try:
        os.symlink(_OUR_LOCK, name, dir_fd=parent)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            os.close(os.open(name, _CREATE_FLAGS, 0o666, dir_fd=parent))
        except FileExistsError:
            return False
    return True


def _write_whole(parent: int, name: str, data: bytes, mode: int = 0o666, seconds: int | None = None) -> None:
    """Write a file under another name, and let it take its place at once."""
    temporary = choose_temporary_name()
    opened = os.open(temporary, _CREATE_FLAGS, mode, dir_fd=parent)
    try:
        write_and_sync(opened, data, seconds)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


def read_limited(opened: int, limit: int) -> bytes:
    """Read at most `limit` bytes from where a descriptor stands."""
    pieces: list[bytes] = []
    while limit > 0 and (piece := os.read(opened, min(limit, 1 << 20))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def write_and_sync(opened: int, data: bytes, seconds: int | None = None) -> None:
    """Write a whole file to the disk, give it a time if there is one, and close it."""
    with open(opened, "wb") as file:
        file.write(data)
        file.flush()
        if seconds is not None:
            os.utime(file.fileno(), (seconds, seconds))
        os.fsync(file.fileno())


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that a command has put into it, however deep it is and whatever its modes are.

    Files directly in it go first. Each folder in it is moved to the top before, so no path becomes long. It may be gone
    already. Raises `OSError`.
    """
    if not os.path.lexists(folder):
        return
    above = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _remove_file(above, folder.name):
            return
        os.chmod(folder.name, stat.S_IRWXU, dir_fd=above)
        top = os.open(folder.name, _LIST_FLAGS, dir_fd=above)
        try:
            pending = [name for name in os.listdir(top) if not _remove_file(top, name)]
            while pending:
                name = pending.pop()
                os.chmod(name, stat.S_IRWXU, dir_fd=top)
                here = os.open(name, _LIST_FLAGS, dir_fd=top)
                try:
                    for inner in os.listdir(here):
                        if not _remove_file(here, inner):
                            pending.append(secrets.token_hex(8))
                            os.chmod(inner, stat.S_IRWXU, dir_fd=here)
                            os.rename(inner, pending[-1], src_dir_fd=here, dst_dir_fd=top)
                finally:
                    os.close(here)
                os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        os.rmdir(folder.name, dir_fd=above)
    finally:
        os.close(above)


def _remove_file(folder: int, name: str) -> bool:
    """Remove what is not a folder. Return False for a folder."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=folder)
    return True


def _explain(error: OSError) -> str:
    return "a link" if error.errno == errno.ELOOP else error.strerror or "unreadable"
