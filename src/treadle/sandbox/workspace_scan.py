"""Finds the paths in a workspace that matter for safety. It looks at every folder, follows no link and changes nothing.

It remembers each folder. One whose time of change is the same has the same entries, and no command can set that time.
So a second scan only asks the system about each folder, and lists those that changed.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

from treadle.permissions import paths

GitKind = Literal["folder", "file", "link", "bare"]
"""What git may take for a repository: a `.git` that is a folder, a file or a link, or a folder of any name."""

OPEN_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_FOLDERS = 1_000_000
_MAX_PATH_BYTES = 3000
"""Nothing can be mounted at a path that is much longer."""

_MAX_OPENED_BYTES = 4096
"""Git cannot open a path that is longer."""

_MAX_OPEN = 100
"""Folders that are open at the same time. Deeper ones are opened again from the top."""

_MAX_WORKSPACES = 4
_SETTLED_NS = 2_000_000_000
"""A file system's clock is coarse: a folder that changed just now may change again at the same time."""

_TRUSTED_SYSTEMS = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
"""File systems that note each change of a folder at once. On others each scan lists every folder."""

_RUN_OUTSIDE = frozenset(paths.RUN_OUTSIDE)
_GIT_NAMES = frozenset(("HEAD", "objects", "refs", "commondir"))


class FoundPaths(Struct, frozen=True):
    """What a scan found, relative to the workspace, nearest first.

    A repository of the name "" is the workspace itself, which looks like a bare one. `run_outside` are `.treadle` and
    the files of editors, agents and hooks. `logs` may be logs of sessions. `half_bare` look like a repository and lack
    something. `too_deep` are folders whose path is too long: of what is in them, only repositories are listed, as
    `deep_repositories`. `closed` are folders that we may not list. `is_complete` is False when there are too many.
    """

    env_files: tuple[str, ...] = ()
    run_outside: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    repositories: dict[str, GitKind] = {}
    deep_repositories: dict[str, GitKind] = {}
    half_bare: tuple[str, ...] = ()
    too_deep: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    is_complete: bool = True


class _Folder:
    """What is remembered of a folder: which version of it was listed, its subfolders, and the names that matter."""

    __slots__ = ("folders", "is_settled", "names", "version")

    def __init__(self, version: tuple[int, ...]) -> None:
        self.version = version
        self.is_settled = False
        self.folders: dict[str, _Folder | None] = {}
        self.names: tuple[tuple[str, str], ...] = ()


class _TooLarge(Exception):
    """There are more folders than are looked at."""


_memory: OrderedDict[str, _Folder] = OrderedDict()
_memory_lock = threading.Lock()


def scan_workspace(workspace: Path) -> FoundPaths:
    """Find what matters for safety below a workspace. It takes long only for what changed since the last scan."""
    key = str(workspace)
    with _memory_lock:
        before = _memory.get(key)
    scan = _Scan(workspace)
    root = scan.run(before)
    with _memory_lock:
        if root is not None:
            _memory[key] = root
            _memory.move_to_end(key)
        while len(_memory) > _MAX_WORKSPACES:
            _memory.popitem(last=False)
    return scan.collect()


def open_parent(workspace: Path, name: str) -> int:
    """Open the folder of a path in the workspace part by part, through no link. The caller closes it."""
    here = os.open(workspace, OPEN_FOLDER)
    try:
        for part in name.split("/")[:-1]:
            inner = os.open(part, OPEN_FOLDER, dir_fd=here)
            os.close(here)
            here = inner
    except OSError:
        os.close(here)
        raise
    return here


def open_path(workspace: Path, name: str) -> int:
    """Open what is at a path in the workspace, only to mount it, through no link. The caller closes it."""
    folder = open_parent(workspace, name)
    try:
        return os.open(name.rpartition("/")[2], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


def allow_changes(opened: int) -> None:
    """Give ourselves all rights to an open folder: a command may have taken them away."""
    place = f"/proc/self/fd/{opened}"
    os.chmod(place, os.stat(place).st_mode & 0o7777 | 0o700)


def open_folders(workspace: Path, name: str) -> None:
    """Give ourselves all rights to a folder and to all folders in it that we may not list, through no link."""
    pending = [name]
    while pending:
        path = pending.pop()
        here = open_parent(workspace, f"{path}/" if path else "")
        try:
            allow_changes(here)
            for sub in os.listdir(f"/proc/self/fd/{here}"):
                if sub != ".git" and stat.S_ISDIR(mode := os.stat(sub, dir_fd=here, follow_symlinks=False).st_mode):
                    if mode & 0o700 != 0o700:
                        pending.append(f"{path}/{sub}" if path else sub)
        finally:
            os.close(here)


class _Scan:
    """One walk through a workspace, by descriptors: a folder that is exchanged meanwhile leads nowhere else."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        device = workspace.stat().st_dev
        self._trusted = device if is_trusted(workspace, device) else -1
        self._count = 0
        self._found: list[tuple[str, _Folder]] = []
        self._too_deep: list[str] = []
        self._closed: list[str] = []
        self._deferred: list[tuple[str, _Folder]] = []
        self._is_complete = True

    def run(self, before: _Folder | None) -> _Folder | None:
        try:
            root = os.open(self._workspace, OPEN_FOLDER)
        except OSError:
            return None
        try:
            folder = self._visit(root, ".", "", before, 0)
            while self._deferred:
                path, parent = self._deferred.pop()
                with suppress(OSError):  # it was moved meanwhile, and its new place has another time of change
                    here, name = open_parent(self._workspace, path), path.rpartition("/")[2]
                    try:
                        parent.folders[name] = self._visit(here, name, path, parent.folders.get(name), 0)
                    finally:
                        os.close(here)
            return folder
        except _TooLarge:
            self._is_complete = False
            return None
        finally:
            os.close(root)

    def _visit(self, parent: int, name: str, path: str, before: _Folder | None, depth: int) -> _Folder | None:
        """Look at a folder and at all below it. Return what to remember of it."""
        try:
            version = _read_version(os.stat(name, dir_fd=parent, follow_symlinks=False))
            self._count += 1
            if self._count > _MAX_FOLDERS:
                raise _TooLarge
            is_same = before is not None and before.is_settled and before.version == version
            if before is not None and is_same and not before.folders:
                self._note(path, before)
                return before
            here = os.open(name, OPEN_FOLDER if is_same else _LIST_FOLDER, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):  # it is gone
            return None
        except OSError:
            self._closed.append(path)
            return None
        try:
            opened = _read_version(os.fstat(here))
            if before is None or not is_same:
                if not os.access(".", os.X_OK, dir_fd=here):
                    self._closed.append(path)
                    return None
                folder = self._list(here, path, opened)
                if before is not None:
                    folder.folders = {sub: before.folders.get(sub) for sub in folder.folders}
            elif opened == version:
                folder = before
            else:  # it was exchanged just now
                return self._visit(parent, name, path, None, depth)
            self._note(path, folder)
            for sub in folder.folders:
                below = f"{path}/{sub}" if path else sub
                if _is_deep(below) and not _is_deep(path):
                    self._too_deep.append(below)
                if len(below) > _MAX_OPENED_BYTES:
                    continue
                if depth >= _MAX_OPEN:
                    self._deferred.append((below, folder))
                else:
                    folder.folders[sub] = self._visit(here, sub, below, folder.folders[sub], depth + 1)
            return folder
        finally:
            os.close(here)

    def _list(self, here: int, path: str, version: tuple[int, ...]) -> _Folder:
        now = time.time_ns()
        folder = _Folder(version)
        names: dict[str, str] = {}
        subfolders: list[str] = []
        with os.scandir(here) as entries:
            for entry in entries:
                name = entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and name != ".git":
                    subfolders.append(name)
                if name[0] == "." or name in _GIT_NAMES or name.endswith(paths.LOG_FILE_SUFFIXES[1:]):
                    names[name] = "folder" if is_folder else "link" if entry.is_symlink() else "file"
        logs = [name.removesuffix("-wal") for name in names if name.endswith("-wal")]
        kept = {name: kind for name, kind in names.items() if name in _RUN_OUTSIDE or paths.is_env_file(name)}
        kept |= dict.fromkeys(logs, "log")
        if "HEAD" in names and names.keys() & _GIT_NAMES - {"HEAD"}:
            is_bare = "commondir" in names or {"objects", "refs"} <= names.keys()
            kept["HEAD"] = "bare" if is_bare else "half"
            # Nothing in it is looked at: it is protected or replaced as a whole. The workspace itself never is.
            subfolders = [] if is_bare and path else subfolders
        folder.names = tuple(kept.items())
        folder.folders = dict.fromkeys(subfolders)
        folder.is_settled = version[0] == self._trusted and now - version[2] > _SETTLED_NS
        return folder

    def _note(self, path: str, folder: _Folder) -> None:
        if folder.names:
            self._found.append((path, folder))

    def collect(self) -> FoundPaths:
        env_files, run_outside, logs, half_bare = list[str](), list[str](), list[str](), list[str]()
        near: dict[str, GitKind] = {}
        deep: dict[str, GitKind] = {}
        for path, folder in sorted(self._found, key=lambda found: (found[0].count("/"), found[0])):
            repositories = deep if _is_deep(path) else near
            for name, kind in folder.names:
                if repositories is deep and kind != "bare" and name != ".git":
                    continue
                place = f"{path}/{name}" if path else name
                if kind == "log":
                    logs.append(place)
                elif kind == "half":
                    half_bare.append(path)
                elif kind == "bare":
                    repositories[path] = "bare"
                elif name == ".git":
                    repositories[place] = "folder" if kind == "folder" else "link" if kind == "link" else "file"
                elif name in _RUN_OUTSIDE:
                    run_outside.append(place)
                if paths.is_env_file(name):
                    env_files.append(place)
        return FoundPaths(
            env_files=tuple(env_files),
            run_outside=tuple(run_outside),
            logs=tuple(logs),
            repositories=near,
            deep_repositories=deep,
            half_bare=tuple(half_bare),
            too_deep=tuple(self._too_deep),
            closed=tuple(self._closed),
            is_complete=self._is_complete,
        )


def _is_deep(path: str) -> bool:
    return len(os.fsencode(path)) > _MAX_PATH_BYTES


def _read_version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns


@lru_cache(maxsize=_MAX_WORKSPACES)
def is_trusted(workspace: Path, device: int) -> bool:
    """Tell whether the file system of a workspace, a device that it was mounted from, notes each change."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return False
    kind, length = "", -1
    for fields, _, rest in (line.partition(b" - ") for line in lines):
        mounted = Path(os.fsdecode(fields.split()[4].decode("unicode_escape").encode("latin-1")))
        if (workspace == mounted or mounted in workspace.parents) and len(mounted.parts) >= length:
            kind, length = rest.split()[0].decode(errors="replace"), len(mounted.parts)
    return kind in _TRUSTED_SYSTEMS
