"""A workspace before and after a command, where nobody can say beforehand which files it will change.

Use `async with keeping(kept, context):` around the command. Links are neither followed nor kept, and what is too much,
too large, secret or made by machines is left out; git is never touched.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.events import KeptFile
from treadle.history.kept_files import MAX_KEPT_BYTES, ContentStore, SeenFile, hash_content
from treadle.permissions.paths import is_secret_folder, is_secret_name
from treadle.tools.base import ToolContext
from treadle.workspace.beneath import O_PATH, open_beneath
from treadle.workspace.worker_threads import run_in_thread

LEFT = "treadle.left"
"""Under this a command's call notes what each file it changed held when it ended (empty: no file)."""

MOST_FILES = 20_000
MOST_BYTES = 64 * 1024 * 1024
_BATCH = 4 * 1024 * 1024
_NAMED = 50
_SETTLED = 2_000_000_000  # ns: a file changed this shortly before it is looked at may change again under the same stamp
_BESIDE = ("-wal", "-shm", "-journal")
_SKIPPED = frozenset(
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
    """A file in a tree; without `id` only that it was there is known."""

    path: str
    id: str
    mode: int


class FileTree(Struct, frozen=True):
    """All files of a workspace at one time; not `whole` when there were too many. `nonce` keeps each tree apart."""

    files: list[TreeFile]
    whole: bool
    nonce: str


class _Stat(Struct, frozen=True):
    size: int
    mode: int
    stamp: str
    newest: int


class _Walk(Struct):
    """What a walk found; `live` are databases that somebody has open, which must not be put back under their feet.

    `odd` is what has no name in UTF-8, so that no record can name it.
    """

    found: dict[str, _Stat] = {}
    live: set[str] = set()
    odd: set[str] = set()
    whole: bool = True


class Snapshot:
    """One look before and one after; `left_out` cannot be brought back, `left` is what changed files hold now."""

    def __init__(self, kept: ContentStore, workspace: Path) -> None:
        self.kept, self.workspace = kept, workspace
        self.tree = ""
        self.left_out: tuple[str, ...] = ()
        self.left: dict[str, str] = {}
        self._first = _Walk()
        self._ids: dict[str, str] = {}
        self._settled = 0

    async def take_first(self) -> str:
        """Keep what the workspace holds; the name of the list of it, for `desk.keep(tree=...)`."""
        return await run_in_thread(self._before)

    async def find_changes(self) -> list[KeptFile]:
        """What has changed since, with what it held before."""
        return await run_in_thread(self._after)

    async def drop_tree(self) -> None:
        """Drop the list of what was there before, once what has changed is recorded."""
        await run_in_thread(self.kept.drop, name=self.tree)

    def _before(self) -> str:
        place = os.path.realpath(self.workspace)
        known = self.kept.load_seen(place)
        self._settled = time.time_ns() - _SETTLED
        with _Root(self.workspace) as root:
            self._first = root.walk(MOST_FILES)
            stats = self._first.found
            chosen, left_out = _affordable(stats)
            left_out += self._first.odd
            fresh: dict[str, SeenFile] = {}
            batch: list[bytes] = []
            size = 0
            for path in chosen:
                about, seen = stats[path], known.get(path)
                if seen is not None and seen.stamp == about.stamp:
                    self._ids[path] = seen.id
                    continue
                data = root.content(path)
                if data is None:
                    left_out.append(path)
                    continue
                self._ids[path] = hash_content(data)
                if self._is_old(about):
                    fresh[path] = SeenFile(about.stamp, self._ids[path])
                batch.append(data)
                size += len(data)
                if size > _BATCH:
                    self.kept.put(*batch)
                    batch, size = [], 0
        listed = [TreeFile(path, self._ids.get(path, ""), about.mode) for path, about in stats.items()]
        listed += [TreeFile(path, "", 0) for path in self._first.live]
        tree = msgspec.json.encode(FileTree(listed, self._first.whole, os.urandom(8).hex()))
        self.tree = self.kept.put(*batch, tree)[-1]
        if fresh or known.keys() - stats.keys():
            self.kept.save_seen(place, fresh, known.keys() - stats.keys())
        self.left_out = _told(left_out, whole=self._first.whole)
        return self.tree

    def _after(self) -> list[KeptFile]:
        changed: list[KeptFile] = []
        stats, whole = self._first.found, self._first.whole
        with _Root(self.workspace) as root:
            walk = root.walk(2 * MOST_FILES)
            now, unknown = walk.found, [*walk.odd ^ self._first.odd]
            for path, about in now.items():
                old = stats.get(path)
                if path in self._first.live or (old is not None and old.stamp == about.stamp and self._is_old(old)):
                    continue
                if old is None and not whole and self._is_old(about):
                    continue  # one that the first look did not reach
                if path not in self._ids and (old is not None or not whole):
                    if old is None or old.stamp != about.stamp:
                        unknown.append(path)
                    continue
                data = root.content(path)
                digest = hash_content(data) if data is not None else "?"
                if old is None or digest != self._ids[path] or old.mode != about.mode:
                    changed.append(_kept(path, self._ids.get(path, ""), old))
                    self.left[path] = digest
            for path, name in self._ids.items():
                if path not in now and not root.has(path):
                    changed.append(_kept(path, name, stats[path]))
                    self.left[path] = ""
        self.left_out = _told(unknown, whole=True)
        return sorted(changed, key=lambda file: file.path)

    def _is_old(self, about: _Stat) -> bool:
        """Whether a file had been left alone for long enough that its stamp tells any later change."""
        return about.newest < self._settled


def _kept(path: str, name: str, old: _Stat | None) -> KeptFile:
    return KeptFile(path, name, old.mode) if old is not None else KeptFile(path)


def snapshot(kept: ContentStore, workspace: Path) -> Snapshot:
    """A snapshot to be taken."""
    return Snapshot(kept, workspace)


@asynccontextmanager
async def record_changes(kept: ContentStore, context: ToolContext) -> AsyncGenerator[Snapshot]:
    """Around a command: what it changes in the workspace can be rewound, also when it is cut off half-way."""
    taken = Snapshot(kept, context.workspace)
    await context.services.record_kept_files((), tree=await taken.take_first(), left_out=taken.left_out)
    try:
        yield taken
    finally:
        files = await taken.find_changes()
        await context.services.record_kept_files(files, left_out=taken.left_out)
        if taken.left:
            await context.services.save_note(LEFT, taken.left)
        await taken.drop_tree()


def hash_workspace(workspace: Path) -> dict[str, str]:
    """What the workspace holds now, as a snapshot would see it: path -> digest."""
    with _Root(workspace) as root:
        contents = ((path, root.content(path)) for path in root.walk(2 * MOST_FILES).found)
        return {path: hash_content(data) for path, data in contents if data is not None}


def _affordable(stats: dict[str, _Stat]) -> tuple[list[str], list[str]]:
    """Which files are kept, the smallest first, and which are left out."""
    chosen: list[str] = []
    left_out: list[str] = []
    total = 0
    for path, about in sorted(stats.items(), key=lambda item: item[1].size):
        total += about.size
        (chosen if about.size <= MAX_KEPT_BYTES and total <= MOST_BYTES else left_out).append(path)
    return chosen, left_out


def _told(left_out: Iterable[str], *, whole: bool) -> tuple[str, ...]:
    names = sorted(left_out)
    more = [f"… and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    cut = [] if whole else [f"… and what lies beyond the first {MOST_FILES} files"]
    return (*names[:_NAMED], *more, *cut)


class _Root:
    """A workspace opened to be walked."""

    def __init__(self, workspace: Path) -> None:
        self._fd = os.open(workspace, (O_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> _Root:
        return self

    def __exit__(self, *ignored: object) -> None:
        os.close(self._fd)

    def walk(self, most: int) -> _Walk:
        """Every ordinary file, the upper folders first."""
        walk = _Walk()
        folders = deque([""])
        while folders:
            if len(walk.found) >= most:
                walk.whole = False
                break
            folder = folders.popleft()
            try:
                opened = open_beneath(self._fd, folder or ".", os.O_RDONLY | os.O_DIRECTORY)
            except OSError:  # gone meanwhile, or not ours to read
                continue
            try:
                here = _files_in(opened, folder, folders, walk.odd)
            finally:
                os.close(opened)
            beside = [(path, path.removesuffix(end)) for end in _BESIDE for path in here if path.endswith(end)]
            walk.live.update(path for pair in beside for path in pair)
            walk.found.update((path, about) for path, about in here.items() if path not in walk.live)
        return walk

    def content(self, path: str) -> bytes | None:
        """What a file holds, or None when it cannot be read or is too large."""
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

    def has(self, path: str) -> bool:
        """Whether there is an ordinary file at a path that a walk did not reach."""
        try:
            opened = open_beneath(self._fd, path, O_PATH or os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return stat.S_ISREG(os.fstat(opened).st_mode)
        finally:
            os.close(opened)


def _files_in(opened: int, folder: str, folders: deque[str], odd: set[str]) -> dict[str, _Stat]:
    """The ordinary files in a folder; its own folders are added to those still to be looked at, others to the odd."""
    found: dict[str, _Stat] = {}
    with os.scandir(opened) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not entry.name.isascii() and (plain := _readable(path)) != path:
                odd.add(plain)
            elif entry.is_dir(follow_symlinks=False):
                if entry.name not in _SKIPPED and not is_secret_folder(entry.name):
                    folders.append(path)
            elif entry.is_file(follow_symlinks=False) and not is_secret_name(entry.name):
                about = _stat(entry)
                if about is not None:
                    found[path] = about
    return found


def _readable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _stat(entry: os.DirEntry[str]) -> _Stat | None:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    newest = max(about.st_mtime_ns, about.st_ctime_ns)
    stamp = f"{about.st_size}:{about.st_mtime_ns}:{about.st_ctime_ns}:{about.st_ino}"
    return _Stat(about.st_size, about.st_mode & 0o777, stamp, newest)
