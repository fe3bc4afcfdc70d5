"""Files of a workspace, opened beneath it, so that the kernel and not a string check decides what lies inside.

Reading follows links that stay inside. Writing follows none. Encodings and calls are not known here.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from msgspec import Struct

from treadle.permissions.paths import (
    LOG_FILE_SUFFIXES,
    LOG_HEAD_BYTES,
    is_log_file,
    is_protected_path,
    is_secret_path,
    list_own_folders,
)
from treadle.tools.base import ToolError

MAX_FILE_BYTES = 10 * 1024 * 1024
"""Bytes of the largest file that is read in one piece or changed."""

O_PATH: int = getattr(os, "O_PATH", 0)
_MAX_PATH_BYTES = 4000
_PATH_HINT = "Give a path inside the workspace, relative to it, such as src/app.py."
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY

Kind = Literal["file", "folder", "link", "other"]


class PathRefused(ToolError):
    """The path may not be used, or not in this way; nothing was opened or changed."""


class NoSuchFile(ToolError):
    """There is nothing at this path."""


class FileChanged(ToolError):
    """Somebody else changed the file in the meantime; nothing was written."""


class FileContent(Struct, frozen=True):
    """A file at the time it was read. `path` is its real place, relative to the workspace."""

    path: str
    data: bytes
    mode: int


class Entry(Struct, frozen=True):
    """The kind and size of the thing at a path. Links are not followed."""

    kind: Kind
    size: int


def hash_content(data: bytes) -> str:
    """Compute the hash that a content is known by."""
    return sha256(data).hexdigest()


class Folder:
    """An open workspace, for a `with` block. `granted` names files that would otherwise be hidden as secrets."""

    def __init__(self, root: Path | str, granted: Sequence[str] = ()) -> None:
        self.root, self.granted = Path(root), tuple(granted)
        try:
            self._fd = os.open(self.root, (O_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise PathRefused(f"the workspace {self.root} cannot be opened: {error.strerror}") from None
        real = os.path.realpath(self.root)
        self._names = [f"{name.rstrip('/')}/" for name in (os.path.abspath(self.root), real)]
        self._own = [os.path.relpath(place, real) for place in list_own_folders() if place.is_relative_to(real)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    # ── paths ──────────────────────────────────────────────────────────────────────────────────────────

    def resolve_path(self, path: str) -> str:
        """Make a path relative to the workspace, without `..`; "." is the workspace. Raises `PathRefused`."""
        try:
            length = len(os.fsencode(path))
        except UnicodeEncodeError:
            raise PathRefused(f"{path!r} has characters that no file name can have. {_PATH_HINT}") from None
        if "\0" in path:
            raise PathRefused(f"The path {path[:60]!r} has a NUL character. {_PATH_HINT}")
        if length > _MAX_PATH_BYTES:
            raise PathRefused(
                f"The path {path[:60]!r} is {length} bytes long; at most {_MAX_PATH_BYTES} are allowed. {_PATH_HINT}"
            )
        if path.startswith("~/"):
            raise PathRefused(f"{path}: the home folder is outside the workspace {self.root}. {_PATH_HINT}")
        normal = posixpath.normpath(path or ".")
        if normal.startswith("/"):
            normal = "/" + normal.lstrip("/")
            inside = next((name for name in self._names if f"{normal}/".startswith(name)), None)
            if inside is None:
                raise PathRefused(f"{path} is outside the workspace {self.root}. {_PATH_HINT}")
            normal = normal[len(inside) :] or "."
        if normal == ".." or normal.startswith("../"):
            raise PathRefused(f"{path} leaves the workspace {self.root}. {_PATH_HINT}")
        return normal

    def resolve_writable(self, path: str) -> str:
        """Make a path relative to the workspace, if a tool may write there; raises `PathRefused`."""
        name = self.resolve_path(path)
        if name == ".":
            raise PathRefused("The workspace itself cannot be written: name a file in it.")
        if is_protected_path(name):
            raise PathRefused(f"{name}: tools never write in .git or .treadle. The user can.")
        if repository := self._find_repository(name):
            raise PathRefused(f"{name}: {repository} is a git repository, and tools never write in one.")
        if self._is_open_log(name):
            raise PathRefused(f"{name} is a log of treadle's sessions. Tools never write to it.")
        self._refuse_hidden(name)
        return name

    def _find_repository(self, name: str) -> str:
        """Find the folder above that git takes for a repository, whatever its name; empty when there is none."""
        folder = posixpath.dirname(name)
        while folder:
            if self.look_up(f"{folder}/HEAD") and (
                self.look_up(f"{folder}/objects") or self.look_up(f"{folder}/commondir")
            ):
                return folder
            folder = posixpath.dirname(folder)
        return ""

    def _is_open_log(self, name: str) -> bool:
        """Whether this is a log that somebody has open, or one of its files."""
        logs = {name.removesuffix(suffix) for suffix in LOG_FILE_SUFFIXES}
        for part in (f"{log}{end}" for log in logs if self.look_up(f"{log}-wal") for end in ("", "-wal")):
            with suppress(ToolError), self._open(part, links=False) as (opened, _):
                if is_log_file(_read_start(opened, LOG_HEAD_BYTES)):
                    return True
        return False

    def _refuse_hidden(self, name: str) -> None:
        if any(own == "." or f"{name}/".startswith(f"{own}/") for own in self._own):
            raise PathRefused(f"{name} belongs to treadle itself, so tools neither show nor change it. The user can.")
        if is_secret_path(name, self.granted):
            raise PathRefused(
                f"{name} may hold secrets, so tools neither show nor change it. Do without it, or ask the user for "
                "what you need from it."
            )

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────

    def read(self, path: str, cap: int = MAX_FILE_BYTES) -> FileContent:
        """Read a whole file. Links are followed while they stay inside."""
        name = self.resolve_path(path)
        with self._open(name, links=True) as (opened, about):
            return _read_file(self._find_real_path(opened, name), opened, about, cap)

    def find(self, path: str, cap: int = MAX_FILE_BYTES) -> FileContent | None:
        """Read the file that a write to this path would replace; None when there is none. Links are not followed."""
        name = self.resolve_writable(path)
        try:
            with self._open(name, links=False) as (opened, about):
                return _read_file(name, opened, about, cap)
        except NoSuchFile:
            return None

    def look_up(self, path: str) -> Entry | None:
        """Return the kind and size of the thing at a path, or None. A link is only reported as a link."""
        name = self.resolve_path(path)
        try:
            parent, last = posixpath.split(name)
            with self._open_folder(parent or ".") as folder:
                about = os.stat(last, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        return Entry(_find_kind(about.st_mode), about.st_size)

    @contextmanager
    def open_for_program(self, path: str) -> Generator[tuple[int, str, Kind]]:
        """Open a file or folder for a program: its descriptor, its real path, and which of both it is."""
        name = self.resolve_path(path)
        with self._open(name, links=True, folders=True) as (opened, about):
            yield opened, self._find_real_path(opened, name), _find_kind(about.st_mode)

    def list_names(self, path: str) -> list[str]:
        """List the names in a folder, sorted; empty when it cannot be read."""
        try:
            with self._open_folder(self.resolve_path(path), os.O_RDONLY) as folder:
                return sorted(os.listdir(folder))
        except OSError:
            return []

    @contextmanager
    def _open(self, name: str, *, links: bool, folders: bool = False) -> Generator[tuple[int, os.stat_result]]:
        """Open a file, with `folders` also a folder. It is not opened for reading: that could trigger a device."""
        self._refuse_hidden(name)
        opened = -1
        try:
            opened = open_beneath(self._fd, name, O_PATH or _READ_FLAGS, links=links)
            about = os.fstat(opened)
            kind = _find_kind(about.st_mode)
            if kind == "folder" and not folders:
                raise PathRefused(f"{name} is a folder. list_files shows its files.")
            if kind not in ("file", "folder"):
                raise PathRefused(f"{name} is not a regular file (a pipe, a socket or a device), so it is not opened.")
            yield opened, about
        except OSError as error:
            raise _explain_error(error, name) from None
        finally:
            if opened >= 0:
                os.close(opened)

    def _find_real_path(self, opened: int, name: str) -> str:
        """Find the real path of an open file. A link may have led to a file that is hidden under its own name."""
        if not O_PATH:
            return name
        root, place = (os.readlink(f"/proc/self/fd/{fd}") for fd in (self._fd, opened))
        if place == root:
            return "."
        if not place.startswith(f"{root.rstrip('/')}/"):
            raise PathRefused(f"{name} was moved out of the workspace while it was opened.")
        real = place[len(root.rstrip("/")) + 1 :]
        self._refuse_hidden(real)
        return real

    @contextmanager
    def _open_folder(self, name: str, flags: int = O_PATH or os.O_RDONLY) -> Generator[int]:
        opened = open_beneath(self._fd, name, flags | os.O_DIRECTORY)
        try:
            yield opened
        finally:
            os.close(opened)

    # ── writing ────────────────────────────────────────────────────────────────────────────────────────

    def write(self, path: str, data: bytes, mode: int | None = None) -> None:
        """Write a whole file or nothing, and create its folders. Without a mode the system's default applies."""
        name = self.resolve_writable(path)
        try:
            with self._open_parent(name) as (folder, last):
                _replace_file(folder, last, data, mode)
        except OSError as error:
            raise _explain_error(error, name) from None

    def remove(self, path: str) -> None:
        """Remove a file, and its folders as far as they are empty then."""
        name = self.resolve_writable(path)
        try:
            with self._open_parent(name, create=False) as (folder, last):
                os.unlink(last, dir_fd=folder)
            while name := posixpath.dirname(name):
                with self._open_parent(name, create=False) as (folder, last):
                    os.rmdir(last, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise _explain_error(error, name) from None

    @contextmanager
    def _open_parent(self, name: str, *, create: bool = True) -> Generator[tuple[int, str]]:
        """Open the folder of a file part by part and through no link, and create the missing parts."""
        *folders, last = name.split("/")
        here = os.dup(self._fd)
        try:
            for part in folders:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=here)
                inner = open_beneath(here, part, (O_PATH or os.O_RDONLY) | os.O_DIRECTORY)
                os.close(here)
                here = inner
            yield here, last
        finally:
            os.close(here)


def _replace_file(folder: int, last: str, data: bytes, mode: int | None) -> None:
    old: os.stat_result | None = None
    with suppress(FileNotFoundError):
        old = os.stat(last, dir_fd=folder, follow_symlinks=False)
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OSError(errno.ELOOP if stat.S_ISLNK(old.st_mode) else errno.EISDIR, "")
    temporary = f".treadle-{secrets.token_hex(8)}"
    opened = os.open(temporary, _CREATE_FLAGS, 0o666, dir_fd=folder)
    try:
        with open(opened, "wb") as file:
            file.write(data)
            if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(opened, old.st_uid, old.st_gid)
            wanted = mode if mode is not None or old is None else old.st_mode
            if wanted is not None:
                os.fchmod(opened, wanted & 0o777)
            file.flush()
            os.fsync(opened)
        os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _read_file(name: str, opened: int, about: os.stat_result, cap: int) -> FileContent:
    if about.st_size > cap:
        raise PathRefused(f"{name} has {about.st_size} bytes; at most {cap} are read at once.")
    data = _read_start(opened, cap + 1)
    if len(data) > cap:
        raise PathRefused(f"{name} grew past {cap} bytes while it was read.")
    return FileContent(name, data, about.st_mode & 0o777)


def _read_start(opened: int, limit: int) -> bytes:
    """Read the start of a file whose descriptor may not be open for reading."""
    reading = os.open(f"/proc/self/fd/{opened}", _READ_FLAGS | os.O_CLOEXEC) if O_PATH else os.dup(opened)
    with open(reading, "rb") as file:
        return file.read(limit)


def _find_kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


def _explain_error(error: OSError, name: str) -> ToolError:
    match error.errno:
        case errno.ENOENT:
            return NoSuchFile(f"{name}: there is no such file in the workspace.")
        case errno.EXDEV:
            return PathRefused(f"{name} leads out of the workspace through a link, so it is not opened. {_PATH_HINT}")
        case errno.ELOOP:
            return PathRefused(f"{name} goes through a symbolic link. Name the file itself, not the link to it.")
        case errno.ENOTDIR:
            return PathRefused(f"{name}: a part of this path is a file, not a folder.")
        case errno.EISDIR:
            return PathRefused(f"{name} is a folder or not a regular file, so it cannot be written.")
        case errno.ENAMETOOLONG:
            return PathRefused(f"{name[:60]}…: a name in this path is too long for the file system.")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return PathRefused(f"{name}: the system does not permit this ({error.strerror}).")
        case _:
            return ToolError(f"{name}: {error.strerror or error}. The file was not changed.")


# ── opening beneath a folder ─────────────────────────────────────────────────────────────────────────────

_OPENAT2 = 437
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_MAX_TRIES = 100
_FOLDER_FLAGS = (O_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Opener = Callable[[int, str, int, bool], int]


def open_beneath(root: int, relative: str, flags: int, *, links: bool = False) -> int:
    """Open `relative`, which must be free of `..`, beneath the folder `root`; raises `OSError`.

    With `links`, links are followed as far as they stay beneath `root`. A system without `openat2` follows none.
    """
    return _choose_opener()(root, relative, flags | os.O_CLOEXEC, links)


@lru_cache(maxsize=1)
def _choose_opener() -> Opener:
    """Try once whether this system has `openat2`."""
    opener = _build_openat2()
    if opener is None:
        return open_by_parts
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(opener(here, ".", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, False))
    except OSError:  # an old kernel lacks the call, and some containers forbid it
        return open_by_parts
    finally:
        os.close(here)
    return opener


def _build_openat2() -> Opener | None:
    import ctypes
    import sys

    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    class How(ctypes.Structure):
        _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    def call_openat2(root: int, relative: str, flags: int, links: bool) -> int:
        resolve = _BENEATH | _NO_MAGIC_LINKS | (0 if links else _NO_LINKS)
        how, name, code = How(flags, 0, resolve), os.fsencode(relative), 0
        for _ in range(_MAX_TRIES):
            found: int = libc.syscall(_OPENAT2, root, name, ctypes.byref(how), ctypes.sizeof(how))
            if found >= 0:
                return found
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: a part of the path was renamed just now
                break
        raise OSError(code, os.strerror(code), relative)

    return call_openat2


def open_by_parts(root: int, relative: str, flags: int, links: bool) -> int:
    """Do the same with `openat` alone. Every link is refused, whatever `links` says."""
    *folders, last = [part for part in relative.split("/") if part not in ("", ".")] or ["."]
    here = os.dup(root)
    try:
        for part in folders:
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=here)
            os.close(here)
            here = inner
        found = os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except NotADirectoryError:
        raise _distinguish_link(here, relative) from None
    finally:
        os.close(here)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
    return found


def _distinguish_link(folder: int, relative: str) -> OSError:
    """Find out whether a part is a link or a file: the system reports both as "not a directory"."""
    for part in relative.split("/"):
        try:
            if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                return OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
        except OSError:
            continue
    return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), relative)
