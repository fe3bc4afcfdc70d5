"""Files of a workspace and their text: encodings, line ends and diffs. Tool calls are not known here.

Files are opened beneath the workspace, so that the kernel and not a string check decides what lies inside. Reading
follows links that stay inside. Writing follows none.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import posixpath
import secrets
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self

from msgspec import Struct

from treadle.permissions import paths
from treadle.tools.base import ToolError
from treadle.workspace.line_diff import diff_lines

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


class FileContent(Struct, frozen=True):
    """A file at the time it was read. `path` is its real place, relative to the workspace."""

    path: str
    data: bytes
    mode: int


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
        self._own = [os.path.relpath(place, real) for place in paths.list_own_folders() if place.is_relative_to(real)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._fd)

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
        if paths.is_protected_path(name):
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
        logs = {name.removesuffix(suffix) for suffix in paths.LOG_FILE_SUFFIXES}
        for part in (f"{log}{end}" for log in logs if self.look_up(f"{log}-wal") for end in ("", "-wal")):
            with suppress(ToolError), self._open(part, links=False) as (opened, _):
                if paths.is_log_file(_read_start(opened, paths.LOG_HEAD_BYTES)):
                    return True
        return False

    def _refuse_hidden(self, name: str) -> None:
        if any(own == "." or f"{name}/".startswith(f"{own}/") for own in self._own):
            raise PathRefused(f"{name} belongs to treadle itself, so tools neither show nor change it. The user can.")
        if paths.is_secret_path(name, self.granted):
            raise PathRefused(
                f"{name} may hold secrets, so tools neither show nor change it. Do without it, or ask the user for "
                "what you need from it."
            )

    def read(self, path: str) -> FileContent:
        """Read a whole file. Links are followed while they stay inside."""
        name = self.resolve_path(path)
        with self._open(name, links=True) as (opened, about):
            return _read_file(self._find_real_path(opened, name), opened, about)

    def find(self, path: str) -> FileContent | None:
        """Read the file that a write to this path would replace; None when there is none. Links are not followed."""
        name = self.resolve_writable(path)
        try:
            with self._open(name, links=False) as (opened, about):
                return _read_file(name, opened, about)
        except NoSuchFile:
            return None

    def look_up(self, path: str) -> Kind | None:
        """Return the kind of the thing at a path, or None when nothing is there. Links are not followed."""
        with suppress(OSError), self._open_parent(self.resolve_path(path), create=False) as (folder, last):
            return _find_kind(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode)
        return None

    @contextmanager
    def open_for_program(self, path: str) -> Generator[tuple[int, str, Kind]]:
        """Open a file or folder for a program: its descriptor, its real path, and which of both it is."""
        name = self.resolve_path(path)
        with self._open(name, links=True, folders=True) as (opened, about):
            yield opened, self._find_real_path(opened, name), _find_kind(about.st_mode)

    def list_names(self, path: str) -> list[str]:
        """List the names in a folder, sorted; empty when it cannot be read."""
        with suppress(OSError):
            opened = open_beneath(self._fd, self.resolve_path(path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                return sorted(os.listdir(opened))
            finally:
                os.close(opened)
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


def _read_file(name: str, opened: int, about: os.stat_result) -> FileContent:
    if about.st_size > MAX_FILE_BYTES:
        raise PathRefused(f"{name} has {about.st_size} bytes; at most {MAX_FILE_BYTES} are read at once.")
    data = _read_start(opened, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise PathRefused(f"{name} grew past {MAX_FILE_BYTES} bytes while it was read.")
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


_ERRORS: dict[int, tuple[type[ToolError], str]] = {
    errno.ENOENT: (NoSuchFile, "{name}: there is no such file in the workspace."),
    errno.EXDEV: (
        PathRefused,
        f"{{name}} leads out of the workspace through a link, so it is not opened. {_PATH_HINT}",
    ),
    errno.ELOOP: (PathRefused, "{name} goes through a symbolic link. Name the file itself, not the link to it."),
    errno.ENOTDIR: (PathRefused, "{name}: a part of this path is a file, not a folder."),
    errno.EISDIR: (PathRefused, "{name} is a folder or not a regular file, so it cannot be written."),
    errno.ENAMETOOLONG: (PathRefused, "{name:.60}…: a name in this path is too long for the file system."),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), (PathRefused, "{name}: the system does not permit this ({reason}).")
    ),
}


def _explain_error(error: OSError, name: str) -> ToolError:
    kind, text = _ERRORS.get(error.errno or 0, (ToolError, "{name}: {reason}. The file was not changed."))
    return kind(text.format(name=name, reason=error.strerror or error))


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
    """Try once whether this system has `openat2`. An old kernel lacks it, and some containers forbid it."""
    import ctypes
    import sys

    if sys.platform != "linux":
        return open_by_parts
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

    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(call_openat2(here, ".", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, False))
    except OSError:
        return open_by_parts
    finally:
        os.close(here)
    return call_openat2


def open_by_parts(root: int, relative: str, flags: int, links: bool) -> int:
    """Do the same with `openat` alone. Every link is refused, whatever `links` says."""
    *folders, last = [part for part in relative.split("/") if part not in ("", ".")] or ["."]
    here, part = os.dup(root), last
    try:
        for part in folders:
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=here)
            os.close(here)
            here = inner
        part = last
        found = os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        if stat.S_ISLNK(os.fstat(found).st_mode):
            os.close(found)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
        return found
    except NotADirectoryError:  # the system says this of files and of links
        if stat.S_ISLNK(os.stat(part, dir_fd=here, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative) from None
        raise
    finally:
        os.close(here)


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────

_MARKS = {"utf-8-sig": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
_SNIFFED_BYTES = 8192
_ODD_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_MAX_COMPARED = 1_000_000
MAX_DIFF_LINES = 80
"""Lines of a diff that a result shows. The model has just written them, so more would tell it nothing."""


class DecodedText(Struct, frozen=True):
    """The text of a file. If all line ends are CRLF (`crlf`), `text` has plain ones; otherwise they are unchanged."""

    text: str
    encoding: str = "utf-8"
    crlf: bool = False

    def encode(self, text: str) -> bytes:
        """Encode another text in the same encoding and with the same line ends."""
        if self.crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        try:
            encoded = text.encode(self.encoding.removesuffix("-sig"))
        except UnicodeEncodeError as error:
            raise ToolError(
                f"The file is in {self.encoding}, which cannot hold {text[error.start]!r}. Nothing was changed. "
                "Use characters that it has, or write the whole file anew with write_file, which writes UTF-8."
            ) from None
        return _MARKS.get(self.encoding, b"") + encoded


def decode_text(data: bytes) -> DecodedText | None:
    """Decode a text; None when the bytes are not text."""
    for encoding, mark in _MARKS.items():
        if data.startswith(mark):
            try:
                return _normalize_line_ends(data[len(mark) :].decode(encoding.removesuffix("-sig")), encoding)
            except UnicodeDecodeError:
                return None
    head = data[:_SNIFFED_BYTES]
    if b"\0" in head:
        return None
    try:
        return _normalize_line_ends(data.decode(), "utf-8")
    except UnicodeDecodeError:
        odd = sum(byte in _ODD_CONTROLS for byte in head)
        return None if odd * 50 > len(head) else _normalize_line_ends(data.decode("latin-1"), "latin-1")


def _normalize_line_ends(text: str, encoding: str) -> DecodedText:
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    return DecodedText(text.replace("\r\n", "\n") if crlf else text, encoding, crlf)


def split_lines(text: str) -> list[str]:
    """Split a text into lines as editors and ripgrep do: only a line feed ends a line."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def describe_line_count(text: str) -> str:
    """Say how many lines a text has, such as "1 line"."""
    count = len(split_lines(text))
    return "1 line" if count == 1 else f"{count} lines"


def render_diff(before: bytes | None, after: bytes | None, path: str, limit: int = MAX_DIFF_LINES) -> str:
    """Render a unified diff that `apply_patch` accepts. Contents that are not text are described in words."""
    old, new = (decode_text(data) if data is not None else DecodedText("") for data in (before, after))
    if old is None or new is None:
        return f"{path}: not text ({len(before or b'')} bytes before, {len(after or b'')} now)"
    if len(old.text) + len(new.text) > _MAX_COMPARED:
        counts = describe_line_count(old.text), describe_line_count(new.text)
        return f"{path}: {counts[0]} before, {counts[1]} now (too large to be compared here)"
    names = ("/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}")
    sides = io.StringIO(old.text).readlines(), io.StringIO(new.text).readlines()
    lines = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in diff_lines(*sides, *names)
    ]
    if len(lines) > limit:
        lines[limit:] = [f"[… {len(lines) - limit} more lines of the diff]\n"]
    return "".join(lines).removesuffix("\n")
