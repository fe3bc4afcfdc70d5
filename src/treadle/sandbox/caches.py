"""A private cache for each workspace: what package managers of its commands download and install.

It is kept from one command to the next. Nothing outside a sandbox reads it or runs anything in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from treadle.git.git_folder import remove_tree
from treadle.permissions.paths import find_data_folder
from treadle.sandbox.private_folder import lock_file

MAX_BYTES = 10 << 30
"""All caches together. The least recently used are dropped first."""

TRIM_SECONDS = 3600.0
"""How often commands make room."""

_ORPHAN_SECONDS = 86400.0
_INODE_BYTES = 512


class Cache(Struct, frozen=True):
    """The cache of one workspace. `used` is when its last command started, in seconds since 1970."""

    folder: Path
    workspace: Path
    used: float
    size: int


def build_cache_environment(folder: str) -> dict[str, str]:
    """Build the variables that send package managers to the cache, which commands see at `folder`.

    Most follow `XDG_CACHE_HOME`. The others have a variable of their own, also for what they install.
    """
    return {
        "XDG_CACHE_HOME": folder,
        "CARGO_HOME": f"{folder}/cargo",
        "GOPATH": f"{folder}/go",
        "GRADLE_USER_HOME": f"{folder}/gradle",
        "MAVEN_OPTS": f"-Dmaven.repo.local={folder}/maven",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",  # it would ask for a host, after an install that needed none
        "PNPM_HOME": f"{folder}/pnpm",
        "PYTHONUSERBASE": f"{folder}/python",
        "UV_LINK_MODE": "copy",  # the workspace is another mount, so nothing can be linked to it
        "UV_TOOL_DIR": f"{folder}/uv-tools",
        "UV_TOOL_BIN_DIR": f"{folder}/bin",
        "YARN_GLOBAL_FOLDER": f"{folder}/yarn-global",
        "npm_config_cache": f"{folder}/npm",
        "npm_config_prefix": f"{folder}/npm-global",
        "npm_config_update_notifier": "false",
    }


def list_cache_programs(folder: str) -> tuple[str, ...]:
    """List where package managers put programs in the cache. Last on the search path, they replace no others."""
    return tuple(f"{folder}/{name}" for name in ("bin", "cargo/bin", "go/bin", "npm-global/bin", "pnpm", "python/bin"))


@contextmanager
def hold_cache(workspace: Path) -> Generator[Path]:
    """Return the folder of a workspace's cache, and keep it from being removed until the block ends."""
    folder = find_cache_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    top = Path(os.path.realpath(folder))
    name = hashlib.blake2b(os.fsencode(workspace), digest_size=16).hexdigest()
    path = top / f"{name}.lock"
    lock = lock_file(path, fcntl.LOCK_SH)
    try:
        folder = top / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if not os.pread(lock, 1, 0):
            with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
                file.write(os.fsencode(workspace))  # at the beginning, so that two at once write the same
            os.utime(top)  # who reads the list of workspaces reads it again
        os.utime(lock)
        yield folder
    finally:
        os.close(lock)


def list_cached_workspaces() -> tuple[Path, ...]:
    """List the workspaces that have a cache: an agent has worked there."""
    top = find_cache_folder()
    try:
        return _read_workspaces(top, top.stat().st_mtime_ns)
    except OSError:
        return ()


def list_caches() -> list[Cache]:
    """List all caches with their sizes, the least recently used first."""
    top = find_cache_folder()
    caches: list[Cache] = []
    for lock in top.glob("*.lock"):
        folder = lock.with_suffix("")
        with suppress(FileNotFoundError):  # another process has removed it meanwhile
            workspace, used = Path(os.fsdecode(lock.read_bytes())), lock.stat().st_mtime
            if folder.is_dir():
                caches.append(Cache(folder, workspace, used, measure_folder(folder)))
    return sorted(caches, key=lambda cache: cache.used)


def remove_cache(cache: Cache) -> bool:
    """Remove a cache. Return False when a command uses it now.

    That an agent has worked in its workspace stays known as long as the workspace exists.
    """
    path = cache.folder.with_suffix(".lock")
    try:
        lock = lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        with suppress(OSError):
            remove_tree(cache.folder)
        if not cache.workspace.exists():
            path.unlink()
        return not cache.folder.exists()
    finally:
        os.close(lock)


def trim_caches(limit: int = MAX_BYTES, *, every: float = 0.0) -> None:
    """Remove caches whose workspace is gone, and the least recently used until the rest is within the limit.

    It reads all caches, which takes a while. With `every`, it does nothing when that was done within so many seconds.
    """
    stamp = find_cache_folder() / "trimmed"
    with suppress(FileNotFoundError):
        if time.time() - stamp.stat().st_mtime < every:
            return
    if stamp.parent.is_dir():
        stamp.touch()
    caches, now = list_caches(), time.time()
    # One that is too large alone, or cannot be measured, takes no room from the others: it is removed itself.
    total = sum(cache.size for cache in caches if cache.size <= limit)
    for cache in caches:
        is_orphan = now - cache.used > _ORPHAN_SECONDS and not cache.workspace.exists()
        is_too_large = cache.size > limit
        if (is_orphan or is_too_large or total > limit) and remove_cache(cache):
            total -= 0 if is_too_large else cache.size


def find_cache_folder() -> Path:
    """Find the folder of all caches."""
    return find_data_folder() / "sandbox" / "caches"


def measure_folder(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk. What cannot be read counts as too much."""
    total, folders = 0, [str(folder)]
    while folders and total <= MAX_BYTES:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * 512 + _INODE_BYTES
                    if stat.S_ISDIR(found.st_mode):
                        folders.append(entry.path)
        except FileNotFoundError:
            continue  # a command has removed it meanwhile
        except OSError:  # it is too deep, or has no permissions
            return MAX_BYTES + 1
    return total


@lru_cache(maxsize=4)
def _read_workspaces(top: Path, changed: int) -> tuple[Path, ...]:
    texts: list[bytes] = []
    for lock in sorted(top.glob("*.lock")):
        with suppress(FileNotFoundError):  # another process has removed it meanwhile
            texts.append(lock.read_bytes())
    return tuple(Path(os.fsdecode(text)) for text in texts if text)
