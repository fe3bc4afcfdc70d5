"""The workspace as a tool may touch it: files are opened beneath it, never found by a checked path.

Reading follows links that stay inside; writing follows none. No encodings here, and nothing about calls.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
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
from treadle.workspace.beneath import O_PATH, open_beneath

MAX_FILE_BYTES = 10 * 1024 * 1024
"""Bytes of the largest file that is read whole or changed."""

_LONGEST = 4000
_ALLOWED = "Give a path inside the workspace, relative to it, such as src/app.py."
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY

Kind = Literal["file", "folder", "link", "other"]


class PathRefused(ToolError):
    """The path may not be used, or not in this way; nothing was opened or changed."""


class NoSuchFile(ToolError):
    """There is nothing at this path."""


class FileChanged(ToolError):
    """Somebody else changed the file meanwhile; nothing was written."""


class FileContent(Struct, frozen=True):
    """A file as it was when it was read. `path` is where it really lies, relative to the workspace."""

    path: str
    data: bytes
    mode: int


class Entry(Struct, frozen=True):
    """What is at a path, without following a link."""

    kind: Kind
    size: int


class Folder:
    """A workspace, opened once; use it in a `with` block. `granted` names files that would be masked as secrets."""

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
        """The path relative to the workspace, without `..`; "." is the workspace. Raises `PathRefused`."""
        try:
            length = len(os.fsencode(path))
        except UnicodeEncodeError:
            raise PathRefused(f"{path!r} has characters that no file name can have. {_ALLOWED}") from None
        if "\0" in path or length > _LONGEST:
            what = "has a NUL character" if "\0" in path else f"is {length} bytes long, and {_LONGEST} is the most"
            raise PathRefused(f"The path {path[:60]!r} {what}. {_ALLOWED}")
        if path.startswith("~/"):
            raise PathRefused(f"{path}: the home folder is outside the workspace {self.root}. {_ALLOWED}")
        normal = posixpath.normpath(path or ".")
        if normal.startswith("/"):
            normal = "/" + normal.lstrip("/")
            inside = next((name for name in self._names if f"{normal}/".startswith(name)), None)
            if inside is None:
                raise PathRefused(f"{path} is outside the workspace {self.root}. {_ALLOWED}")
            normal = normal[len(inside) :] or "."
        if normal == ".." or normal.startswith("../"):
            raise PathRefused(f"{path} leaves the workspace {self.root}. {_ALLOWED}")
        return normal

    def resolve_writable(self, path: str) -> str:
        """The path relative to the workspace, if it may be written at all; raises `PathRefused`."""
        name = self.resolve_path(path)
        if name == ".":
            raise PathRefused("The workspace itself cannot be written: name a file in it.")
        if is_protected_path(name):
            raise PathRefused(f"{name}: what lies in .git or .treadle is never written by a tool. The user can.")
        if repository := self._repository_of(name):
            raise PathRefused(f"{name}: {repository} is a repository of git, and what lies in it is never written.")
        if self._is_store(name):
            raise PathRefused(f"{name} is a log of treadle's sessions, which is never written by a tool.")
        self._mask(name)
        return name

    def _repository_of(self, name: str) -> str:
        """The folder on the way that git takes for a repository, whatever it is called; nothing when there is none."""
        folder = posixpath.dirname(name)
        while folder:
            if self.look_up(f"{folder}/HEAD") and (
                self.look_up(f"{folder}/objects") or self.look_up(f"{folder}/commondir")
            ):
                return folder
            folder = posixpath.dirname(folder)
        return ""

    def _is_store(self, name: str) -> bool:
        """Whether this is a log that somebody has open, or a part of one."""
        logs = {name.removesuffix(end) for end in LOG_FILE_SUFFIXES}
        for part in (f"{log}{end}" for log in logs if self.look_up(f"{log}-wal") for end in ("", "-wal")):
            with suppress(ToolError), self._found(part, links=False) as (opened, _):
                if is_log_file(_content(opened, LOG_HEAD_BYTES)):
                    return True
        return False

    def _mask(self, name: str) -> None:
        if any(own == "." or f"{name}/".startswith(f"{own}/") for own in self._own):
            raise PathRefused(f"{name} belongs to treadle itself, so it is neither shown nor changed. The user can.")
        if is_secret_path(name, self.granted):
            raise PathRefused(
                f"{name} may hold secrets, so it is neither shown nor changed. Do without it, or ask the user for "
                "what you need from it."
            )

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────

    def read(self, path: str, cap: int = MAX_FILE_BYTES) -> FileContent:
        """A file, whole; links are followed while they stay inside."""
        name = self.resolve_path(path)
        with self._found(name, links=True) as (opened, about):
            return self._held(self._real(opened, name), opened, about, cap)

    def find(self, path: str, cap: int = MAX_FILE_BYTES) -> FileContent | None:
        """The file that would be written at this path, or None where there is none; no link is followed."""
        name = self.resolve_writable(path)
        try:
            with self._found(name, links=False) as (opened, about):
                return self._held(name, opened, about, cap)
        except NoSuchFile:
            return None

    def look_up(self, path: str) -> Entry | None:
        """What is at a path, or None. Of a link only that it is one."""
        name = self.resolve_path(path)
        try:
            parent, last = posixpath.split(name)
            with self._folder(parent or ".") as folder:
                about = os.stat(last, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        return Entry(_kind(about.st_mode), about.st_size)

    @contextmanager
    def open_for_program(self, path: str) -> Generator[tuple[int, str, Kind]]:
        """A descriptor of a file or folder to hand to a program, where it really lies, and which of both it is."""
        name = self.resolve_path(path)
        with self._found(name, links=True, folders=True) as (opened, about):
            yield opened, self._real(opened, name), _kind(about.st_mode)

    def list_names(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty when it cannot be read."""
        try:
            with self._folder(self.resolve_path(path), os.O_RDONLY) as folder:
                return sorted(os.listdir(folder))
        except OSError:
            return []

    @contextmanager
    def _found(self, name: str, *, links: bool, folders: bool = False) -> Generator[tuple[int, os.stat_result]]:
        """A file's descriptor: looked at before it is opened for reading, because opening a device can act."""
        self._mask(name)
        opened = -1
        try:
            opened = open_beneath(self._fd, name, O_PATH or _READ, links=links)
            about = os.fstat(opened)
            kind = _kind(about.st_mode)
            if kind == "folder" and not folders:
                raise PathRefused(f"{name} is a folder. list_files shows what is in it.")
            if kind not in ("file", "folder"):
                raise PathRefused(f"{name} is no ordinary file (a pipe, a socket or a device), so it is not opened.")
            yield opened, about
        except OSError as error:
            raise self._refusal(error, name) from None
        finally:
            if opened >= 0:
                os.close(opened)

    def _real(self, opened: int, name: str) -> str:
        """Where an open file lies. A link may have led to what is masked under its own name."""
        if not O_PATH:
            return name
        root, place = (os.readlink(f"/proc/self/fd/{fd}") for fd in (self._fd, opened))
        if place == root:
            return "."
        if not place.startswith(f"{root.rstrip('/')}/"):
            raise PathRefused(f"{name} was moved out of the workspace while it was opened.")
        real = place[len(root.rstrip("/")) + 1 :]
        self._mask(real)
        return real

    def _held(self, name: str, opened: int, about: os.stat_result, cap: int) -> FileContent:
        if about.st_size > cap:
            raise PathRefused(f"{name} has {about.st_size} bytes, and {cap} is the most that is read at once.")
        data = _content(opened, cap + 1)
        if len(data) > cap:
            raise PathRefused(f"{name} grew past {cap} bytes while it was read.")
        return FileContent(name, data, about.st_mode & 0o777)

    @contextmanager
    def _folder(self, name: str, flags: int = O_PATH or os.O_RDONLY) -> Generator[int]:
        opened = open_beneath(self._fd, name, flags | os.O_DIRECTORY)
        try:
            yield opened
        finally:
            os.close(opened)

    # ── writing ────────────────────────────────────────────────────────────────────────────────────────

    def write(self, path: str, data: bytes, mode: int | None = None) -> None:
        """Put `data` at a path, all of it or nothing, and make its folders. No mode: as the system makes new files."""
        name = self.resolve_writable(path)
        try:
            with self._parent(name) as (folder, last):
                self._replace(folder, last, data, mode)
        except OSError as error:
            raise self._refusal(error, name) from None

    def remove(self, path: str) -> None:
        """Take a file away, and its folders when they are empty then."""
        name = self.resolve_writable(path)
        try:
            with self._parent(name, make=False) as (folder, last):
                os.unlink(last, dir_fd=folder)
            while name := posixpath.dirname(name):
                with self._parent(name, make=False) as (folder, last):
                    os.rmdir(last, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise self._refusal(error, name) from None

    @contextmanager
    def _parent(self, name: str, *, make: bool = True) -> Generator[tuple[int, str]]:
        """The folder that holds a file, made if need be, part by part and through no link."""
        *folders, last = name.split("/")
        here = os.dup(self._fd)
        try:
            for part in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=here)
                inner = open_beneath(here, part, (O_PATH or os.O_RDONLY) | os.O_DIRECTORY)
                os.close(here)
                here = inner
            yield here, last
        finally:
            os.close(here)

    def _replace(self, folder: int, last: str, data: bytes, mode: int | None) -> None:
        old: os.stat_result | None = None
        with suppress(FileNotFoundError):
            old = os.stat(last, dir_fd=folder, follow_symlinks=False)
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise OSError(errno.ELOOP if stat.S_ISLNK(old.st_mode) else errno.EISDIR, "")
        beside = f".treadle-{secrets.token_hex(8)}"
        opened = os.open(beside, _MAKE, 0o666, dir_fd=folder)
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
            os.rename(beside, last, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=folder)
            raise

    def _refusal(self, error: OSError, name: str) -> ToolError:
        match error.errno:
            case errno.ENOENT:
                return NoSuchFile(f"{name}: there is no such file in the workspace.")
            case errno.EXDEV:
                return PathRefused(f"{name} leads out of the workspace through a link, so it is not opened. {_ALLOWED}")
            case errno.ELOOP:
                return PathRefused(f"{name} goes through a symbolic link. Name the file itself, not the link to it.")
            case errno.ENOTDIR:
                return PathRefused(f"{name}: a part of this path is a file, not a folder.")
            case errno.EISDIR:
                return PathRefused(f"{name} is a folder or no ordinary file, so it cannot be written.")
            case errno.ENAMETOOLONG:
                return PathRefused(f"{name[:60]}…: a name in this path is too long for the file system.")
            case errno.EACCES | errno.EPERM | errno.EROFS:
                return PathRefused(f"{name}: the system does not permit this ({error.strerror}).")
            case _:
                return ToolError(f"{name}: {error.strerror or error}. The file is as it was.")


def _content(opened: int, most: int) -> bytes:
    """What a file begins with; its descriptor may be one that cannot be read from."""
    reading = os.open(f"/proc/self/fd/{opened}", _READ | os.O_CLOEXEC) if O_PATH else os.dup(opened)
    with open(reading, "rb") as file:
        return file.read(most)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"
