"""Finds the commits that one branch has and others have not, newest first. It reads objects and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from treadle.git.object_links import Commit, parse_commit
from treadle.git.object_store import ObjectStore
from treadle.git.pack_file import DamagedObject

MAX_READ = 2000
"""Commits that are read at most. A person cannot look at more, and history may be long."""


def find_new_commits(objects: ObjectStore, tip: str, known: Iterable[str]) -> dict[str, Commit] | None:
    """Find the commits that lead to `tip` and to none of the `known` ones. Return None when there are too many."""
    is_known = dict.fromkeys(known, True)
    is_known.setdefault(tip, False)
    waiting: list[tuple[int, str]] = []
    read: dict[str, Commit] = {}
    for object_id in is_known:
        _add_commit(objects, object_id, read, waiting)
    found: dict[str, Commit] = {}
    while any(not is_known[object_id] for _, object_id in waiting):
        object_id = heappop(waiting)[1]
        if not is_known[object_id]:
            found[object_id] = read[object_id]
        for parent in read[object_id].parents:
            if parent not in is_known:
                is_known[parent] = is_known[object_id]
                _add_commit(objects, parent, read, waiting)
            elif is_known[object_id]:
                is_known[parent] = True
        if len(read) > MAX_READ:
            return None
    return {object_id: commit for object_id, commit in found.items() if not is_known[object_id]}


def _add_commit(objects: ObjectStore, object_id: str, read: dict[str, Commit], waiting: list[tuple[int, str]]) -> None:
    """Read a commit. One that is missing, as in a shallow clone, ends the history."""
    try:
        stored = objects.read(object_id)
        if stored is not None and stored.kind == "commit":
            read[object_id] = parse_commit(stored.data, objects.form)
            heappush(waiting, (-read[object_id].time, object_id))
    except DamagedObject:
        return
