"""Opening a path beneath a folder, so that the kernel and not a string check decides what lies inside.

With `openat2` links that stay inside can be followed; without it every part is opened on its own and no link is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import lru_cache

_OPENAT2 = 437
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_TRIES = 100
O_PATH: int = getattr(os, "O_PATH", 0)

Opener = Callable[[int, str, int, bool], int]


def open_beneath(root: int, relative: str, flags: int, *, links: bool = False) -> int:
    """A descriptor of `relative`, which must be free of `..`, beneath the folder `root`; raises `OSError`.

    Links are followed only when `links` says so, and then only as far as they stay beneath `root`.
    """
    return _opener()(root, relative, flags | os.O_CLOEXEC, links)


@lru_cache(maxsize=1)
def _opener() -> Opener:
    """What this system can do, found out once by trying."""
    opener = _with_openat2()
    if opener is None:
        return open_by_parts
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(opener(here, ".", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, False))
    except OSError:  # an old kernel has no such call, and some containers forbid it
        return open_by_parts
    finally:
        os.close(here)
    return opener


def _with_openat2() -> Opener | None:
    import ctypes
    import sys

    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    class How(ctypes.Structure):
        _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    def opened(root: int, relative: str, flags: int, links: bool) -> int:
        resolve = _BENEATH | _NO_MAGIC_LINKS | (0 if links else _NO_LINKS)
        how, name, code = How(flags, 0, resolve), os.fsencode(relative), 0
        for _ in range(_TRIES):
            found: int = libc.syscall(_OPENAT2, root, name, ctypes.byref(how), ctypes.sizeof(how))
            if found >= 0:
                return found
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: a part was renamed meanwhile
                break
        raise OSError(code, os.strerror(code), relative)

    return opened


def open_by_parts(root: int, relative: str, flags: int, links: bool) -> int:
    """The same with `openat` alone; a link is refused also where it could be followed."""
    *folders, last = [part for part in relative.split("/") if part not in ("", ".")] or ["."]
    here = os.dup(root)
    try:
        for part in folders:
            inner = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = inner
        found = os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except NotADirectoryError:
        raise _link_or_file(here, relative) from None
    finally:
        os.close(here)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
    return found


_FOLDER = (O_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _link_or_file(folder: int, relative: str) -> OSError:
    """Why a part is no folder: the system calls a link the same as a file here."""
    for part in relative.split("/"):
        try:
            if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                return OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
        except OSError:
            continue
    return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), relative)
