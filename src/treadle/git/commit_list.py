"""Lists the commits of a repository that came after others, without git. It changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from treadle.git.names import show_name
from treadle.git.object_format import ObjectFormat
from treadle.git.object_links import Commit, parse_commit
from treadle.git.object_store import ObjectStore
from treadle.git.pack_file import DamagedObject
from treadle.git.real_repository import RealRepository
from treadle.git.repository import Repository

MAX_SUBJECT = 100
_MAX_READ = 20_000


def read_commits(
    repository: Repository, before: str, after: str, limit: int, *, known: Iterable[str] = ()
) -> list[str]:
    """List the commits that lead to `after` and not to `before`, as `ID SUBJECT`, newest first, at most `limit`.

    An empty `before` means all. Commits that lead to one of the `known` ones are left out too. A commit that is missing
    or damaged ends its line of history.
    """
    with RealRepository(repository) as real:
        walk = _Walk(real.objects, real.form)
        walk.add(after, is_old=False)
        for old in (before, *known):
            walk.add(old, is_old=True)
        return [describe_commit(object_id, commit) for object_id, commit in walk.list_new(limit)]


def describe_commit(object_id: str, commit: Commit) -> str:
    """Describe a commit by its short id and its subject."""
    return f"{object_id[:7]} {show_name(commit.subject)[:MAX_SUBJECT]}"


class _Walk:
    """Visits commits, newest first. What an old commit leads to is old, also if it was visited as a new one before."""

    def __init__(self, objects: ObjectStore, form: ObjectFormat) -> None:
        self._objects, self._form = objects, form
        self._commits: dict[str, Commit] = {}
        self._old: set[str] = set()
        self._heap: list[tuple[int, int, str]] = []
        self._count = 0

    def add(self, object_id: str, *, is_old: bool) -> None:
        """Let a commit be visited, if it was not or only as a new one."""
        if object_id in self._commits and (not is_old or object_id in self._old):
            return
        commit = self._commits.get(object_id) or self._read(object_id)
        if commit is None:
            return
        self._commits[object_id] = commit
        if is_old:
            self._old.add(object_id)
        self._count += 1
        heapq.heappush(self._heap, (-commit.time, self._count, object_id))

    def list_new(self, limit: int) -> list[tuple[str, Commit]]:
        """List the new commits. Commits of the same second may come in any order, so the last second is completed."""
        found: dict[str, Commit] = {}
        oldest = 0
        while self._heap:
            time = -self._heap[0][0]
            is_enough = len(found) >= limit or not any(entry[2] not in self._old for entry in self._heap)
            if is_enough and (not found or time < oldest):
                break
            _, _, object_id = heapq.heappop(self._heap)
            if object_id not in self._old:
                found[object_id] = self._commits[object_id]
                oldest = time
            for parent in self._commits[object_id].parents:
                self.add(parent, is_old=object_id in self._old)
        return [item for item in found.items() if item[0] not in self._old][:limit]

    def _read(self, object_id: str) -> Commit | None:
        if len(self._commits) >= _MAX_READ or not self._form.is_id(object_id):
            return None
        try:
            stored = self._objects.read(object_id)
            return parse_commit(stored.data, self._form) if stored and stored.kind == "commit" else None
        except DamagedObject:
            return None
