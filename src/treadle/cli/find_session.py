"""Open the store of a command and find a session in it by id, prefix of an id, name, or `last`."""

from __future__ import annotations

import argparse
from contextlib import aclosing

from treadle.app.compose import open_store
from treadle.app.settings import Settings
from treadle.cli.options import load_command_settings
from treadle.errors import BadInput, NotFound
from treadle.log.base import LAST, SESSIONS_PER_PAGE, Log, SessionInfo, SessionQuery

MIN_PREFIX = 3
"""Minimum length of an id prefix, so that a typing error does not select a session."""


def open_command_store(args: argparse.Namespace, *, read_only: bool = False) -> Log:
    """Open the store that the arguments and settings of a command select."""
    return open_store(load_command_settings(args).settings, read_only=read_only)


async def find_latest_session(settings: Settings) -> str:
    """Find the session that was changed last in this folder, or in a worktree of its repository. Empty if none."""
    from treadle.app.session_worktree import list_project_folders

    found: list[SessionInfo] = []
    async with open_store(settings) as log:
        for folder in list_project_folders(settings.folder):
            found += [info] if (info := await _find_last(log, SessionQuery(workspace=folder))) else []
    return max(found, key=lambda info: info.updated_at).id if found else ""


async def _find_last(log: Log, query: SessionQuery) -> SessionInfo | None:
    """Find the session that was changed last. The sessions of helpers do not count."""
    async with aclosing(log.iterate_sessions(query)) as sessions:
        async for info in sessions:
            if not info.is_helper:
                return info
    return None


async def find_session(log: Log, reference: str) -> SessionInfo:
    """Return the session that `reference` selects. `last` is the session that was changed last.

    Raise `NotFound` if there is none, and `BadInput` if several sessions match.
    """
    reference = reference.encode("utf-8", "replace").decode()  # shell arguments may be invalid UTF-8
    if not reference.strip():  # an unset shell variable must not select an unnamed session
        raise BadInput("name a session by its id, the start of its id, or its name; see `treadle sessions list`")
    if reference == LAST:
        if (last := await _find_last(log, SessionQuery())) is None:
            raise NotFound("the store has no session yet, so there is no last one")
        return last
    try:
        return await log.get_info(reference)
    except NotFound:
        pass
    found = [info async for info in log.iterate_sessions(SessionQuery(name=reference))]
    if not found and len(reference) >= MIN_PREFIX:
        found = list((await log.list_sessions(SessionQuery(prefix=reference, limit=SESSIONS_PER_PAGE))).sessions)
    if not found:
        raise NotFound(f"no session has the id or the name {reference!r}; `treadle sessions list` shows all sessions")
    if len(found) > 1:
        ids = ", ".join(info.id[:12] for info in found[:5]) + (", …" if len(found) > 5 else "")
        raise BadInput(f"{reference!r} matches {len(found)} sessions ({ids}); write more of the id")
    return found[0]
