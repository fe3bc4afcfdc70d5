"""Moves branches, HEAD and the index back to where they were before a command, for a rewind.

Only what is still where the command left it is moved. The commits stay in the repository and in the logs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from treadle.git.git_folder import LockHeld, UnsafeFile
from treadle.git.index_file import find_newest_file
from treadle.git.names import is_branch, is_ref_name, show_name
from treadle.git.object_links import parse_commit
from treadle.git.pack_file import DamagedObject
from treadle.git.real_repository import RealRepository, RefMoved
from treadle.git.reflogs import MAX_LOG_BYTES, append_lines, parse_log, remove_log, render_line
from treadle.git.repository import Repository
from treadle.git.worktrees import list_foreign_branches
from treadle.sandbox.base import RefChange

MESSAGE = "treadle: rewind"
_STASH = "refs/stash"


def check_restore(repository: Repository, changes: Sequence[RefChange]) -> list[str]:
    """Describe the changes that `restore_repository` could not undo now. Nothing is changed."""
    with RealRepository(repository) as real:
        restore = _Restore(real)
        return [fault for change in reversed(changes) if (fault := restore.find_fault(change))]


def restore_repository(repository: Repository, changes: Sequence[RefChange], index: bytes | None) -> list[str]:
    """Undo changes of refs and HEAD, and put an index file back. Returns a sentence for each that was not undone.

    `changes` are in the order in which they happened. `index` must be the bytes of a `GitReport`: treadle has read them
    from this repository. Empty bytes: there was no index. It is put back only if all refs went back.
    """
    with RealRepository(repository) as real, real.hold():
        restore = _Restore(real)
        faults = [restore.find_fault(change) or restore.undo(change) for change in reversed(changes)]
        sentences = [fault for fault in faults if fault]
        if index is not None and sentences:
            sentences.append("What is staged was not changed, because not everything went back.")
        elif index is not None:
            sentences.extend(restore.put_index_back(index))
        return sentences


class _Restore:
    """Undoes changes of one repository."""

    def __init__(self, real: RealRepository) -> None:
        self._real = real
        self._foreign = list_foreign_branches(real)

    def find_fault(self, change: RefChange) -> str:
        """Say why a change cannot be undone; empty when it can."""
        name = show_name(change.ref)
        try:
            current = self._real.read_ref(change.ref) if change.ref == "HEAD" or is_ref_name(change.ref) else None
        except UnsafeFile as error:
            return f"{name} was not moved back: {error}"
        if current is None:
            return f"{name} was not moved back: it is not the name of a ref."
        if current != change.after:
            return f"{name} was not moved back: it has been changed since."
        if change.ref in self._foreign:
            return f"{name} was not moved back: it is checked out in another worktree."
        if change.ref == "HEAD" and not change.before:
            return "HEAD was not moved back: the repository was new."
        if change.before.startswith("ref: "):
            target = change.before.removeprefix("ref: ")
            is_allowed = change.ref == "HEAD" and is_branch(target) and target not in self._foreign
            return "" if is_allowed else f"{name} was not moved back: {show_name(target)} cannot be checked out here."
        if change.before and not self._real.objects.has(change.before):
            return f"{name} was not moved back: the object {show_name(change.before[:12])} is gone."
        return ""

    def undo(self, change: RefChange) -> str:
        """Undo one change; returns why not, or nothing."""
        name, null = change.ref, self._real.form.null_id
        try:
            here = self._real.resolve_ref("HEAD")
            if name == _STASH:
                self._undo_stash(change)
                return ""
            self._real.update_ref(name, change.after, change.before)
        except (RefMoved, LockHeld, UnsafeFile) as error:
            reason = "it has been changed since" if isinstance(error, RefMoved) else str(error)
            return f"{show_name(name)} was not moved back: {show_name(reason)}."
        with suppress(UnsafeFile, OSError):
            now = self._real.resolve_ref("HEAD")
            if now and (now != here or name == "HEAD"):
                append_lines(self._real.git, "HEAD", [render_line(here or null, now, MESSAGE)])
            if name.startswith("refs/heads/") and change.before:
                append_lines(self._real.common, name, [render_line(change.after or null, change.before, MESSAGE)])
            elif name.startswith("refs/"):
                remove_log(self._real.choose_folder(name), name)
        return ""

    def _undo_stash(self, change: RefChange) -> None:
        """Take the last stash off the list again, or put one back on it. The list is the log of the ref."""
        log = f"logs/{_STASH}"
        data = self._real.common.read_file(log, MAX_LOG_BYTES) or b""
        lines = parse_log(data, self._real.form) or []
        texts = [line.text for line in lines]
        values = ["", *(line.new for line in lines)]
        if values[-2:] == [change.before, change.after]:
            texts.pop()
        elif change.before and change.before != change.after:
            texts.append(
                render_line(change.after or self._real.form.null_id, change.before, self._read_subject(change.before))
            )
        else:
            raise UnsafeFile("the list of stashes has been changed since")
        if change.before:
            self._real.common.write_file(log, b"\n".join(texts) + b"\n")
        self._real.update_ref(_STASH, change.after, change.before)
        if not change.before:
            remove_log(self._real.common, _STASH)

    def _read_subject(self, object_id: str) -> str:
        with suppress(DamagedObject):
            if stored := self._real.objects.read(object_id):
                return show_name(parse_commit(stored.data, self._real.form).subject)
        return MESSAGE

    def put_index_back(self, index: bytes) -> list[str]:
        try:
            with self._real.git.lock_file("index") as lock:
                if index:
                    lock.replace(index, find_newest_file(index, self._real.form, int(time.time())))
                else:
                    self._real.git.remove_file("index")
        except LockHeld as error:
            return [f"What is staged was not changed back: {error}"]
        return []
