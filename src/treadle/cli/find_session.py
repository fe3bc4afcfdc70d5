"""Open the store of a command and find a session in it by id, prefix of an id, or name."""

from __future__ import annotations

import argparse

from treadle.app.compose import open_store
from treadle.cli.options import load_command_settings
from treadle.errors import BadInput, NotFound
from treadle.log.base import SESSIONS_PER_PAGE, Log, SessionInfo, SessionQuery

MIN_PREFIX = 3
"""Minimum length of an id prefix, so that a typing error does not select a session."""


def open_command_store(args: argparse.Namespace, *, read_only: bool = False) -> Log:
    """Open the store that the arguments and settings of a command select."""
    return open_store(load_command_settings(args).settings, read_only=read_only)


async def find_session(log: Log, reference: str) -> SessionInfo:
    """Return the session that `reference` selects. Raise `NotFound`, or `BadInput` if several sessions match."""
    reference = reference.encode("utf-8", "replace").decode()  # shell arguments may be invalid UTF-8
    if not reference.strip():  # an unset shell variable must not select an unnamed session
        raise BadInput("name a session by its id, the start of its id, or its name; see `treadle sessions list`")
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
