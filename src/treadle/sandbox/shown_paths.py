"""Which folders outside a workspace commands may see. It decides by place and name, and mounts nothing.

A home, what is above it, folders of keys and our own folders are never shown.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct

from treadle.permissions.paths import is_secret_folder, list_own_folders

SYSTEM_FOLDERS = tuple(Path("/", name) for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"))
"""What every command sees of the system, besides a copy of /etc."""

_NEVER_SHOWN = tuple(Path("/", name) for name in ("boot", "dev", "etc", "proc", "sys"))
_SETTINGS_FOLDER = ".config"
_REPOSITORY_FOLDERS = {".git", ".hg", ".svn", ".jj"}
_MAX_LINKS = 40
_CREDENTIAL_FILES = {
    *("pip.conf", "pip.ini", "npmrc", "gemrc", "yarnrc", "condarc", "netrc", "uv.toml", "uv-receipt.toml"),
    *("pipx_metadata.json", "credentials", "credentials.toml", "settings.xml", "settings-security.xml"),
}
"""Files of package managers that may hold a password, or the address of an index with a password in it."""

_SETTINGS_PLACES = ("conf", "etc", "lib/node_modules/npm")
_HARMLESS = {".gitignore", ".lock"}


class ResolvedPath(Struct, frozen=True):
    """Where a path leads, and the links on the way: the location and the text of each."""

    real: Path
    links: tuple[tuple[Path, str], ...]


def is_below(path: Path, folders: Iterable[Path]) -> bool:
    """Tell whether a path is one of the folders, or below one."""
    return any(path.is_relative_to(folder) for folder in folders)


def is_inside(path: Path, folders: AbstractSet[Path]) -> bool:
    """Tell the same of very many folders."""
    return not folders.isdisjoint((path, *path.parents))


def read_head(file: Path | str, size: int) -> bytes:
    """Read the beginning of a regular file; empty for anything else. A link is not followed."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, size) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


def list_homes() -> tuple[Path, ...]:
    """List this user's home, and the one that the system knows when `HOME` names another."""
    found = [Path.home()]
    with suppress(KeyError):  # in a container a user may have no name
        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return tuple(dict.fromkeys(Path(os.path.realpath(home)) for home in found if home != Path("/")))


def explain_refusal(folder: Path, *, is_known: bool = False) -> str:
    """Say why a folder may not be shown, or nothing. Of a known tool's folder, the place may be among settings."""
    real = Path(os.path.realpath(folder))
    if any(home.is_relative_to(real) for home in list_homes()) or len(real.parts) <= 2:
        return "it holds more than one tool"
    if is_below(real, _NEVER_SHOWN):
        return "it belongs to the system"
    if any(map(is_secret_folder, real.parts)) or (_SETTINGS_FOLDER in real.parts and not is_known):
        return "keys may be in it"
    if any(own.is_relative_to(real) or real.is_relative_to(own) for own in list_own_folders()):
        return "it holds files of treadle"
    return ""


def choose_visible(file: Path, folder: Path) -> Path:
    """Choose the folder of a file if it can be shown: not the home, what is above or hidden in it, or secrets."""
    real = Path(os.path.realpath(folder))
    is_hidden = real.name.startswith(".") and real.parent in list_homes()
    return file if is_hidden or explain_refusal(folder) else folder


def choose_prefix(program: Path) -> Path:
    """Choose what to show of a tool: of PREFIX/bin/x the prefix, of a Node package the package, or the file itself.

    A prefix that is a repository is somebody's project.
    """
    parts = program.parts
    if "node_modules" in parts:
        name = parts.index("node_modules") + 1
        end = name + (2 if parts[name : name + 1] and parts[name].startswith("@") else 1)
        return choose_visible(program, Path(*parts[:end])) if end < len(parts) else program
    prefix = program.parent.parent
    if program.parent.name not in ("bin", "sbin") or is_repository(prefix):
        return program
    return choose_visible(program, prefix)


def is_repository(folder: Path) -> bool:
    """Tell whether a folder is a work tree."""
    return any(os.path.lexists(folder / name) for name in _REPOSITORY_FOLDERS)


def is_changed_by_others(folder: Path) -> bool:
    """Tell whether another user could put links into a folder, to show more of this user's files than meant."""
    found = folder.stat()
    return found.st_uid not in (0, os.getuid()) or bool(found.st_mode & 0o002)


def read_identity(found: os.stat_result) -> tuple[int, int]:
    """Read what tells a file or folder from every other one."""
    return found.st_dev, found.st_ino


def identify_real_path(path: Path) -> tuple[int, int] | None:
    """Identify what is at a path without following any link. Return None when there is a link, or nothing."""
    with ExitStack() as stack:
        here = os.open("/", os.O_PATH | os.O_CLOEXEC)
        stack.callback(os.close, here)
        for name in path.parts[1:]:
            try:
                here = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            except OSError:
                return None
            stack.callback(os.close, here)
        found = os.fstat(here)
        return None if stat.S_ISLNK(found.st_mode) else read_identity(found)


def find_credentials(prefix: Path) -> Iterator[Path]:
    """Find what stays hidden in a prefix that is shown: hidden entries, and files that may hold a password."""
    for place in ("", *_SETTINGS_PLACES):
        try:
            names = os.listdir(prefix / place)
        except OSError:
            continue
        for name in names:
            is_hidden = name.startswith(".") and name not in _HARMLESS and not place.startswith("lib")
            if is_hidden or name in _CREDENTIAL_FILES:
                yield prefix / place / name


def resolve_links(path: Path, untrusted: AbstractSet[Path]) -> ResolvedPath | None:
    """Follow all links of an absolute path. Return None when it leads nowhere, or by a link in an untrusted folder."""
    links, real = list[tuple[Path, str]](), Path("/")
    waiting = list(reversed(path.parts[1:]))
    while waiting:
        name = waiting.pop()
        if name in ("", "."):
            continue
        if name == "..":
            real = real.parent
            continue
        here = real / name
        try:
            target = os.readlink(here)
        except OSError:
            real = here
            continue
        if len(links) == _MAX_LINKS or is_inside(here, untrusted):
            return None
        links.append((here, target))
        if target.startswith("/"):
            real = Path("/")
        waiting += reversed(Path(target).parts[1:] if target.startswith("/") else target.split("/"))
    return ResolvedPath(real, tuple(links)) if os.path.exists(real) else None
