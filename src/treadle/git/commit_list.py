"""Small readers of a repository, without git: where HEAD is, and which commits came after another one."""

from __future__ import annotations

import heapq

from treadle.git.names import show_name
from treadle.git.object_format import ObjectFormat
from treadle.git.object_links import Commit, parse_commit
from treadle.git.object_store import ObjectStore
from treadle.git.pack_file import DamagedObject
from treadle.git.real_repository import RealRepository
from treadle.git.repository import Repository

MAX_SUBJECT = 100
_MAX_READ = 20_000


def read_head(repository: Repository) -> tuple[str, str]:
    """Read the current branch, empty when HEAD is detached, and its commit, empty before the first one.

    Raises `RepositoryUnsupported`, and `UnsafeFile` when HEAD is not a regular file.
    """
    with RealRepository(repository) as real:
        value = real.read_ref("HEAD")
        branch = value.removeprefix("ref: refs/heads/") if value.startswith("ref: refs/heads/") else ""
        return branch, real.resolve_ref("HEAD")


def read_commits(repository: Repository, before: str, after: str, limit: int) -> list[str]:
    """List the commits that lead to `after` and not to `before`, as `ID SUBJECT`, newest first, at most `limit`.

    An empty `before` means all. A commit that is missing or damaged ends its line of history.
    """
    with RealRepository(repository) as real:
        found: list[str] = []
        waiting = _Waiting(real.objects, real.form)
        waiting.add(after, is_old=False)
        waiting.add(before, is_old=True)
        while len(found) < limit and (entry := waiting.take()):
            object_id, commit, is_old = entry
            if not is_old:
                found.append(describe_commit(object_id, commit))
            for parent in commit.parents:
                waiting.add(parent, is_old=is_old)
        return found


def describe_commit(object_id: str, commit: Commit) -> str:
    """Describe a commit by its short id and its subject."""
    return f"{object_id[:7]} {show_name(commit.subject)[:MAX_SUBJECT]}"


class _Waiting:
    """Commits to be visited, newest first. A commit that an old one leads to is old, however it was found first."""

    def __init__(self, objects: ObjectStore, form: ObjectFormat) -> None:
        self._objects, self._form = objects, form
        self._heap: list[tuple[int, int, str, Commit]] = []
        self._is_old: dict[str, bool] = {}
        self._new = 0

    def add(self, object_id: str, *, is_old: bool) -> None:
        known = self._is_old.get(object_id)
        if known is not None:
            if is_old and not known:
                self._is_old[object_id] = True
                self._new -= any(entry[2] == object_id for entry in self._heap)
            return
        if len(self._is_old) >= _MAX_READ or not self._form.is_id(object_id):
            return
        try:
            stored = self._objects.read(object_id)
            if stored is None or stored.kind != "commit":
                return
            commit = parse_commit(stored.data, self._form)
        except DamagedObject:
            return
        self._is_old[object_id] = is_old
        self._new += not is_old
        heapq.heappush(self._heap, (-commit.time, len(self._is_old), object_id, commit))

    def take(self) -> tuple[str, Commit, bool] | None:
        """Take the newest commit, until only old ones wait."""
        if not self._new or not self._heap:
            return None
        _, _, object_id, commit = heapq.heappop(self._heap)
        is_old = self._is_old[object_id]
        self._new -= not is_old
        return object_id, commit, is_old
