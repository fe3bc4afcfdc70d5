"""The worktree of a session: start a session in one, find it again, and merge, keep or drop it at the end."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct

from treadle.app.compose import is_abandoned
from treadle.app.settings import Settings
from treadle.errors import BadInput, Conflict, NotFound
from treadle.events import AnyFact, Custom, validate_fact
from treadle.git.session_worktrees import (
    BRANCH_PREFIX,
    WORKTREE_NOTE,
    Worktree,
    list_worktree_folders,
    parse_worktree,
    remove_worktree,
)
from treadle.log.base import Log, SessionQuery
from treadle.sandbox import backend
from treadle.sandbox.base import Sandbox
from treadle.sandbox.worktree_commands import (
    WorktreeState,
    check_complete,
    commit_worktree,
    find_top_repository,
    inspect_worktree,
    list_changes,
    merge_branch,
    start_worktree,
)

WorktreeAction = Literal["merge", "keep", "drop"]
"""Merge the branch and remove the worktree, merge and keep both, or remove them without a merge."""


class WorktreeEnd(Struct, frozen=True):
    """What was done with a worktree. `commits` were on its branch or checked out: git keeps them for some weeks.

    `ignored` is what git ignores: it was in the folder and in no commit. `output` is what git said about the merge.
    """

    worktree: Worktree
    commits: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    output: str = ""


class StartedWorktree(Struct, frozen=True):
    """A new worktree, and what the user should know about it."""

    worktree: Worktree
    note: str


@asynccontextmanager
async def start_session_worktree(
    settings: Settings, name: str, sandbox: Sandbox = backend
) -> AsyncGenerator[StartedWorktree]:
    """Create a worktree of the workspace for a session that the block creates. After an error it is removed again."""
    folder = settings.folder
    async with start_worktree(sandbox, folder, name, settings.worktree_parent) as worktree:
        left_out = len((await list_changes(sandbox, folder)).files)
        note = f"worktree: {worktree.folder} on the branch {worktree.branch}"
        if left_out:
            note += f"; it does not have the {left_out} uncommitted change{'s' * (left_out != 1)} of {folder}"
        yield StartedWorktree(worktree, note)


def read_worktree(facts: Iterable[AnyFact]) -> Worktree | None:
    """Read the worktree of a session from its facts. Return None if it has none, or none any more."""
    notes = [fact.data for fact in facts if isinstance(fact, Custom) and fact.name == WORKTREE_NOTE]
    return parse_worktree(notes[-1]) if notes else None


def list_project_folders(folder: Path) -> list[str]:
    """List a folder and the worktrees that sessions have of it: where the sessions of one project work."""
    with suppress(BadInput):
        return [str(folder), *list_worktree_folders(find_top_repository(folder))]
    return [str(folder)]


def describe_folder(folder: str, settings: Settings) -> str:
    """Describe the folder of a session: its path, or the project and the branch of a worktree."""
    path = Path(folder)
    if path.parent.parent != Path(os.path.realpath(settings.worktree_parent)):
        return folder
    return f"{path.name} ({BRANCH_PREFIX}{path.parent.name.rpartition('-')[0]})"


def describe_next_steps(worktree: Worktree, session_id: str) -> str:
    """Tell the user how to take over what a session did in its worktree."""
    how = f"treadle sessions merge {session_id[:12]}"
    return f"its work is on the branch {worktree.branch} · take it over with: {how} · throw it away with: {how} --drop"


async def inspect_session_worktree(
    log: Log, session_id: str, sandbox: Sandbox = backend
) -> tuple[Worktree, WorktreeState]:
    """Find the worktree of a session and what is in it. Raises `Conflict` while the session, or a fork, works there."""
    worktree, info = read_worktree(await log.read(session_id)), await log.get_info(session_id)
    if worktree is None:
        raise NotFound(f"session {session_id[:12]} has no worktree, or it was merged or dropped. Nothing was changed")
    others = [one async for one in log.iterate_sessions(SessionQuery(workspace=worktree.folder))]
    for one in (info, *others):
        if one.status in ("running", "waiting") and not is_abandoned(one):
            raise Conflict(f"session {one.id[:12]} is {one.status}: let it end, or cancel it. Nothing was changed")
    return worktree, await inspect_worktree(sandbox, worktree)


async def end_worktree(
    log: Log, session_id: str, action: WorktreeAction, *, commit: bool = False, sandbox: Sandbox = backend
) -> WorktreeEnd:
    """Merge, keep or drop the worktree of a session. If that does not work, everything stays as it is.

    Changes that are not committed stop a merge, unless `commit` says to commit them first. A drop always commits them,
    so that the returned commit has everything.
    """
    worktree, state = await inspect_session_worktree(log, session_id, sandbox)
    if not state.tip and action != "drop":
        raise NotFound(f"the branch {worktree.branch} is gone, so there is nothing to merge. `--drop` removes the rest")
    if state.checked_out and action != "drop":
        raise Conflict(
            f"{worktree.folder} has {state.checked_out} checked out, and not {worktree.branch}. Nothing was changed. "
            "Switch back to the branch, or merge with git yourself"
        )
    if action != "keep" or state.changes.files:
        check_complete(worktree, state, is_kept=action != "drop")
    if state.changes.files:
        if action != "drop" and not commit:
            count = len(state.changes.files)
            raise Conflict(
                f"{worktree.folder} has {count} uncommitted change{'s' * (count != 1)}, for example "
                f"{state.changes.files[0]}. Nothing was changed. `--commit` commits first"
            )
        name = (await log.get_info(session_id)).name
        await commit_worktree(sandbox, worktree, f"Work of the session {name or session_id[:12]}")
        worktree, state = await inspect_session_worktree(log, session_id, sandbox)
    output = "" if action == "drop" else await merge_branch(sandbox, worktree)
    if action != "keep":
        remove_worktree(worktree, state.tip)
        await log.post(session_id, [validate_fact(Custom(name=WORKTREE_NOTE, data=None))], wake=False)
    commits = tuple(dict.fromkeys(filter(None, (state.tip, state.detached))))
    return WorktreeEnd(worktree, commits, state.changes.ignored, output)
