"""Decides which entries of a command's index the real index gets. Pure but for the questions it asks.

The user's entry wins when both changed a path. What git remembers of a file is never taken from the command, so that
its index cannot hide a change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from msgspec import Struct

from treadle.git.index_file import SKIP_WORKTREE, Content, Entries, EntryState
from treadle.git.names import is_dangerous_path, show_name
from treadle.git.object_format import GITLINK

_FILE_MODES = {0o100644, 0o100755, 0o120000}


class IndexChecks(Struct, frozen=True):
    """What is asked about a new entry: is its content there, may it be a submodule, is its file missing?"""

    has_blob: Callable[[str], bool]
    is_clean_gitlink: Callable[[str], bool]
    is_missing: Callable[[bytes], bool]

    def find_fault(self, contents: Iterable[Content]) -> str:
        """Say why the entries of a path are not taken over; empty when they are."""
        stages: set[int] = set()
        for path, stage, mode, object_id, _ in contents:
            stages.add(stage)
            if is_dangerous_path(path):
                return "it leads out of the work tree or into .git"
            if mode == 0o120000 and path.rpartition(b"/")[2].lower() == b".gitmodules":
                return ".gitmodules may not be a link"
            if mode == GITLINK:
                if not self.is_clean_gitlink(path.decode(errors="surrogateescape")):
                    return "it is a new submodule, and only the user can add one"
            elif mode not in _FILE_MODES:
                return "it has an unknown mode"
            elif not self.has_blob(object_id.hex()):
                return "its content is missing"
        return "it has a conflict and none at once" if 0 in stages and len(stages) > 1 else ""


def merge_index(base: Entries, command: Entries, user: Entries, checks: IndexChecks) -> tuple[Entries, list[str]]:
    """Merge what the command changed since `base` into the user's index. Returns it, and sentences on what was not."""
    rejected: list[str] = []
    changed = _find_changed_paths(base, command)
    busy = changed & _find_changed_paths(base, user) if user is not base else set[bytes]()
    wanted = _group(command, changed)
    current = _group(user, busy)
    for path in sorted(busy):
        changed.discard(path)
        if wanted.get(path) != current.get(path):
            rejected.append(f"The staged state of {show_name(path)} was not kept: the user changed it meanwhile.")
    for path in sorted(changed):
        if reason := checks.find_fault(wanted.get(path, ())):
            changed.discard(path)
            rejected.append(f"The staged entry {show_name(path)} was not kept: {reason}.")
    for path in sorted(_find_collisions(user, wanted, changed)):
        changed.discard(path)
        rejected.append(f"The staged entry {show_name(path)} was not kept: a file and a folder have the same name.")
    result = {content: state for content, state in user.items() if content[0] not in changed}
    is_sparse = any(state.marks & SKIP_WORKTREE for state in base.values())
    marks = {content[0]: state.marks for content, state in user.items() if content[0] in changed}
    for path in changed:
        for content in wanted.get(path, ()):
            kept = marks.get(path, 0)
            if is_sparse and path not in marks and command[content].marks & SKIP_WORKTREE and checks.is_missing(path):
                kept = SKIP_WORKTREE
            result[content] = EntryState(marks=kept)
    return result, rejected


def _find_changed_paths(old: Entries, new: Entries) -> set[bytes]:
    return {content[0] for content in (old.keys() ^ new.keys())}


def _group(entries: Entries, paths: set[bytes]) -> dict[bytes, tuple[Content, ...]]:
    found: dict[bytes, tuple[Content, ...]] = {}
    for content in entries:
        if content[0] in paths:
            found[content[0]] = (*found.get(content[0], ()), content)
    return found


def _find_collisions(user: Entries, wanted: dict[bytes, tuple[Content, ...]], changed: set[bytes]) -> set[bytes]:
    """Find new paths below a path that is a file, or above another path. Conflicts may have such paths for a while."""
    kept = {content[0] for content in user if not content[1] and content[0] not in changed}
    new = {path for path in changed if any(not content[1] for content in wanted.get(path, ()))}
    paths = kept | new
    ordered = sorted(paths)
    found: set[bytes] = set()
    for path in new:
        parts = path.split(b"/")
        place = bisect_left(ordered, path + b"/")
        is_above = place < len(ordered) and ordered[place].startswith(path + b"/")
        if is_above or any(b"/".join(parts[:count]) in paths for count in range(1, len(parts))):
            found.add(path)
    return found
