"""Moves a ref, HEAD or the index back to where it was before a command, for a rewind.

It moves only what is still where the command left it. The commits stay in the repository and in the logs.
"""

from __future__ import annotations

import time
from contextlib import suppress

from treadle.git.git_folder import LockHeld, UnsafeFile
from treadle.git.index_file import find_newest_file
from treadle.git.names import is_branch, is_ref_name, show_name
from treadle.git.real_repository import RealRepository, RefMoved
from treadle.git.reflogs import REWIND_MESSAGE, append_lines, remove_log, render_line
from treadle.git.repository import Repository
from treadle.git.worktrees import list_foreign_branches
from treadle.sandbox.base import RefChange


def restore_ref(repository: Repository, change: RefChange) -> str:
    """Undo the change of a branch, a tag or HEAD, and say why if it stays. For the stash there is `restore_stash`."""
    name = show_name(change.ref)
    with RealRepository(repository) as real, real.hold():
        if reason := _find_fault(real, change):
            return f"{name} was not moved back: {reason}."
        try:
            here = real.resolve_ref("HEAD")
            real.update_ref(change.ref, change.after, change.before)
        except (RefMoved, LockHeld, UnsafeFile) as error:
            reason = "it has been changed since" if isinstance(error, RefMoved) else show_name(str(error).rstrip("."))
            return f"{name} was not moved back: {reason}."
        with suppress(UnsafeFile, OSError):
            now, null = real.resolve_ref("HEAD"), real.form.null_id
            if now and (now != here or change.ref == "HEAD"):
                append_lines(real.git, "HEAD", [render_line(here or null, now, REWIND_MESSAGE)])
            if is_branch(change.ref) and change.before:
                line = render_line(change.after or null, change.before, REWIND_MESSAGE)
                append_lines(real.common, change.ref, [line])
            elif change.ref != "HEAD":
                remove_log(real.choose_folder(change.ref), change.ref)
    return ""


def _find_fault(real: RealRepository, change: RefChange) -> str:
    """Say why a change cannot be undone; empty when it can."""
    if change.ref != "HEAD" and not is_ref_name(change.ref):
        return "it is not the name of a ref"
    foreign = list_foreign_branches(real)
    target = change.before.removeprefix("ref: ")
    try:
        if real.read_ref(change.ref) != change.after:
            return "it has been changed since"
    except UnsafeFile as error:
        return str(error).rstrip(".")
    if change.ref in foreign:
        return "it is checked out in another worktree"
    if change.ref == "HEAD" and not change.before:
        return "the repository was new"
    if target != change.before:
        is_allowed = change.ref == "HEAD" and is_branch(target) and target not in foreign
        return "" if is_allowed else f"{show_name(target)} cannot be checked out here"
    if change.before and not real.objects.has(change.before):
        return f"the object {show_name(change.before[:12])} is gone"
    return ""


def restore_index(repository: Repository, index: bytes) -> str:
    """Put an index file back, and say why if it stays. Empty bytes: there was none.

    It must be a file that treadle has read from this repository.
    """
    with RealRepository(repository) as real, real.hold():
        try:
            with real.git.lock_file("index") as lock:
                if index:
                    lock.replace(index, find_newest_file(index, real.form, int(time.time())))
                else:
                    real.git.remove_file("index")
        except LockHeld as error:
            return f"What is staged was not changed back: {error}"
    return ""
