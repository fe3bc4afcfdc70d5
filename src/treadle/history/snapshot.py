"""Snapshots of a workspace before and after a command, because nobody can tell beforehand which files it will change.

Use `async with record_changes(store, context):` around the command. Links are neither followed nor stored. Files that
are too many, too large, secret or generated are left out. Of git repositories only the refs and the index are stored.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.events import KeptFile
from treadle.history.base import Contents, SeenFile
from treadle.history.content_store import MAX_KEPT_BYTES
from treadle.history.git_changes import (
    GitChanges,
    KeptRepository,
    compare_reports,
    compare_states,
    keep_repository,
    read_repositories,
)
from treadle.messages import hash_content
from treadle.permissions.paths import is_secret_folder, is_secret_name
from treadle.sandbox.base import GitReport
from treadle.tools.base import LEFT_NOTE, ToolContext
from treadle.workspace.folder import O_PATH, open_beneath
from treadle.workspace.worker_threads import run_in_thread

MAX_FILES = 20_000
MAX_BYTES = 64 * 1024 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
_MAX_LISTED = 50
_SETTLED_NS = 2_000_000_000  # a file that changed later than this ago may change again with the same stamp
_DATABASE_SUFFIXES = ("-wal", "-shm", "-journal")
_SKIPPED_FOLDERS = frozenset(
    (
        ".git",
        ".treadle",
        "node_modules",
        ".venv",
        "venv",
        "__pycache__",
        ".tox",
        ".nox",
        ".gradle",
        ".cache",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".hypothesis",
        ".next",
        ".turbo",
    )
)


class TreeFile(Struct, frozen=True, array_like=True):
    """A file in a tree. Without `id` only its existence is known."""

    path: str
    id: str
    mode: int


class FileTree(Struct, frozen=True):
    """All files of a workspace at one time; not `whole` when there were too many. `nonce` makes each tree unique."""

    files: list[TreeFile]
    whole: bool
    nonce: str
    repositories: list[KeptRepository] = []


class _FileStat(Struct, frozen=True):
    size: int
    mode: int
    stamp: str
    changed_ns: int


class _Walk(Struct):
    """The files of a workspace. `in_use` are databases that somebody has open: they must not be restored.

    `undecodable` are names that are not UTF-8, so that no record can hold them. `repositories` are folders with `.git`.
    """

    found: dict[str, _FileStat] = {}
    repositories: list[str] = []
    in_use: set[str] = set()
    undecodable: set[str] = set()
    is_whole: bool = True


class Snapshot:
    """The contents of a workspace, stored before a command. `tree` is the name of the list of its files.

    `left_out` are files that cannot be restored. `left` has the hash of each changed file after the command. Set
    `reports` to what the sandbox reports about git. Without them the refs before and after are compared.
    """

    reports: Sequence[GitReport] | None = None

    def __init__(self, store: Contents, workspace: Path) -> None:
        self.workspace = workspace
        self.left: dict[str, str] = {}
        self._found: Sequence[str] = ()
        self._ids: dict[str, str] = {}
        self._settled_before = time.time_ns() - _SETTLED_NS
        place = os.path.realpath(workspace)
        known = store.load_seen(place)
        with _OpenWorkspace(workspace) as root:
            self._first = root.walk(MAX_FILES)
            stats = self._first.found
            left_out = [*self._first.undecodable]
            fresh: dict[str, SeenFile] = {}
            batch: list[bytes] = []
            size = total = 0
            for path, about in sorted(stats.items(), key=lambda item: item[1].size):
                total += about.size
                if about.size > MAX_KEPT_BYTES or total > MAX_BYTES:
                    left_out.append(path)
                    continue
                seen = known.get(path)
                if seen is not None and seen.stamp == about.stamp:
                    self._ids[path] = seen.id
                    continue
                data = root.read_file(path)
                if data is None:
                    left_out.append(path)
                    continue
                self._ids[path] = hash_content(data)
                if self._is_settled(about):
                    fresh[path] = SeenFile(about.stamp, self._ids[path])
                batch.append(data)
                size += len(data)
                if size > _BATCH_BYTES:
                    store.put(*batch)
                    batch, size = [], 0
            self._repositories = read_repositories(workspace, self._first.repositories)
        repositories = [keep_repository(state, store) for state in self._repositories.values()]
        files = [TreeFile(path, self._ids.get(path, ""), about.mode) for path, about in stats.items()]
        files += [TreeFile(path, "", 0) for path in self._first.in_use]
        tree = msgspec.json.encode(FileTree(files, self._first.is_whole, os.urandom(8).hex(), repositories))
        self.tree = store.put(*batch, tree)[-1]
        if fresh or known.keys() - stats.keys():
            store.save_seen(place, fresh, known.keys() - stats.keys())
        self.left_out = _shorten_list(left_out, is_whole=self._first.is_whole)

    def find_changes(self) -> list[KeptFile]:
        """Find the files that have changed since, with their old contents."""
        changed: list[KeptFile] = []
        stats, is_whole = self._first.found, self._first.is_whole
        with _OpenWorkspace(self.workspace) as root:
            walk = root.walk(2 * MAX_FILES)
            self._found = walk.repositories
            now, unknown = walk.found, [*walk.undecodable ^ self._first.undecodable]
            for path, about in now.items():
                old = stats.get(path)
                is_same = old is not None and old.stamp == about.stamp and self._is_settled(old)
                if path in self._first.in_use or is_same:
                    continue
                if old is None and not is_whole and self._is_settled(about):
                    continue  # the first walk did not reach it
                if path not in self._ids and (old is not None or not is_whole):
                    if old is None or old.stamp != about.stamp:
                        unknown.append(path)
                    continue
                data = root.read_file(path)
                digest = hash_content(data) if data is not None else "?"
                if old is None or digest != self._ids[path] or old.mode != about.mode:
                    changed.append(KeptFile(path, self._ids[path], old.mode) if old is not None else KeptFile(path))
                    self.left[path] = digest
            for path, name in self._ids.items():
                if path not in now and not root.has_file(path):
                    changed.append(KeptFile(path, name, stats[path].mode))
                    self.left[path] = ""
        self.left_out = _shorten_list(unknown, is_whole=True)
        return sorted(changed, key=lambda file: file.path)

    def find_git_changes(self, store: Contents) -> GitChanges:
        """Find the refs that have changed since, after `find_changes` has found the repositories."""
        if self.reports is not None:
            return compare_reports(self.workspace, self.reports, self._repositories, store)
        return compare_states(self.workspace, self._found, self._repositories, store)

    def _is_settled(self, about: _FileStat) -> bool:
        """Whether a file was unchanged for so long that any later change shows in its stamp."""
        return about.changed_ns < self._settled_before


@asynccontextmanager
async def record_changes(store: Contents, context: ToolContext) -> AsyncGenerator[Snapshot]:
    """Record the changes of a command in the workspace, so that they can be rewound even if it is cut off."""
    snapshot = await run_in_thread(Snapshot, store, context.workspace)
    await context.services.record_kept_files((), tree=snapshot.tree, left_out=snapshot.left_out)
    try:
        yield snapshot
    finally:
        files = await run_in_thread(snapshot.find_changes)
        git = await run_in_thread(snapshot.find_git_changes, store)
        left_out = (*snapshot.left_out, *git.left_out)
        await context.services.record_kept_files(files, left_out=left_out, refs=git.refs)
        if snapshot.left:
            await context.services.save_note(LEFT_NOTE, snapshot.left)
        await run_in_thread(store.drop, snapshot.tree)  # the changes are recorded, so nobody needs the list


def hash_workspace(workspace: Path) -> dict[str, str]:
    """Hash the present files of a workspace as a snapshot would see them, by path."""
    with _OpenWorkspace(workspace) as root:
        contents = ((path, root.read_file(path)) for path in root.walk(2 * MAX_FILES).found)
        return {path: hash_content(data) for path, data in contents if data is not None}


def _shorten_list(left_out: Iterable[str], *, is_whole: bool) -> tuple[str, ...]:
    names = sorted(left_out)
    more = [f"… and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
    cut = [] if is_whole else [f"… and everything beyond the first {MAX_FILES} files"]
    return (*names[:_MAX_LISTED], *more, *cut)


class _OpenWorkspace:
    """A workspace that is open for a walk."""

    def __init__(self, workspace: Path) -> None:
        self._fd = os.open(workspace, (O_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> _OpenWorkspace:
        return self

    def __exit__(self, *ignored: object) -> None:
        os.close(self._fd)

    def walk(self, limit: int) -> _Walk:
        """Find every regular file, upper folders first."""
        walk = _Walk()
        folders = deque([""])
        while folders:
            if len(walk.found) >= limit:
                walk.is_whole = False
                break
            files = self._list_files(folders, walk)
            for suffix in _DATABASE_SUFFIXES:
                for path in files:
                    if path.endswith(suffix):
                        walk.in_use.update((path, path.removesuffix(suffix)))
            walk.found.update((path, about) for path, about in files.items() if path not in walk.in_use)
        return walk

    def _list_files(self, folders: deque[str], walk: _Walk) -> dict[str, _FileStat]:
        """List the regular files in the first of `folders`, and add its subfolders to them."""
        folder, found = folders.popleft(), dict[str, _FileStat]()
        try:
            opened = open_beneath(self._fd, folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # deleted in the meantime, or not readable
            return found
        try:
            with os.scandir(opened) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if not entry.name.isascii() and (readable := os.fsencode(path).decode("utf-8", "replace")) != path:
                        walk.undecodable.add(readable)
                    elif entry.name == ".git":
                        walk.repositories.append(folder)
                    elif entry.is_dir(follow_symlinks=False):
                        if entry.name not in _SKIPPED_FOLDERS and not is_secret_folder(entry.name):
                            folders.append(path)
                    elif entry.is_file(follow_symlinks=False) and not is_secret_name(entry.name):
                        if (about := _read_stat(entry)) is not None:
                            found[path] = about
        finally:
            os.close(opened)
        return found

    def read_file(self, path: str) -> bytes | None:
        """Read a file; None when it cannot be read or is too large."""
        try:
            opened = open_beneath(self._fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        with open(opened, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return None
            data = file.read(MAX_KEPT_BYTES + 1)
            while data and len(data) <= MAX_KEPT_BYTES and (more := file.read(MAX_KEPT_BYTES + 1)):
                data += more
        return data if len(data) <= MAX_KEPT_BYTES else None

    def has_file(self, path: str) -> bool:
        """Whether a regular file is at a path that the walk did not reach."""
        try:
            opened = open_beneath(self._fd, path, O_PATH or os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return stat.S_ISREG(os.fstat(opened).st_mode)
        finally:
            os.close(opened)


def _read_stat(entry: os.DirEntry[str]) -> _FileStat | None:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:  # deleted in the meantime
        return None
    changed_ns = max(about.st_mtime_ns, about.st_ctime_ns)
    stamp = f"{about.st_size}:{about.st_mtime_ns}:{about.st_ctime_ns}:{about.st_ino}"
    return _FileStat(about.st_size, about.st_mode & 0o777, stamp, changed_ns)
