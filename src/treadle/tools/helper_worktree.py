"""What becomes of the worktree of a helper that has ended. Nothing that it did is lost."""

from __future__ import annotations

import asyncio

from treadle.errors import TreadleError
from treadle.git.session_worktrees import Worktree, remove_worktree
from treadle.sandbox.base import Sandbox
from treadle.sandbox.worktree_commands import check_complete, commit_worktree, inspect_worktree

_MAX_SUBJECT = 60


async def finish_helper_worktree(sandbox: Sandbox, worktree: Worktree, task: str) -> tuple[bool, str]:
    """Commit what a helper left uncommitted, and remove its worktree if it changed nothing.

    Return whether it was removed, and what to tell the parent.
    """
    try:
        state = await inspect_worktree(sandbox, worktree)
        check_complete(worktree, state, is_kept=True)
        if state.changes.files:
            subject = " ".join(task.split())
            await commit_worktree(sandbox, worktree, f"Work in progress: {subject[:_MAX_SUBJECT]}")
            state = await inspect_worktree(sandbox, worktree)
        if state.tip in ("", worktree.base) and not state.checked_out:
            await asyncio.to_thread(remove_worktree, worktree, state.tip)
            ignored = ", ".join(state.changes.ignored[:5])
            more = f", with what git ignores: {ignored}" if ignored else ""
            return True, f"It changed no files, so its worktree was removed{more}."
    except TreadleError as error:
        return False, f"Its worktree {worktree.folder} on the branch {worktree.branch} is kept: {error}"
    source = (state.checked_out or worktree.branch).removeprefix("refs/heads/")
    return False, f"Its work is committed on {source}. `git merge {source}` takes it over."
