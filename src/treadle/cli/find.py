"""Which session a person means: an id, the beginning of one, or a name."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from msgspec.structs import replace

from treadle.errors import BadInput, NotFound
from treadle.log.base import Log, SessionInfo, SessionQuery

_PAGE = 200


async def find(log: Log, reference: str) -> SessionInfo:
    """The one session that is meant. Raises `NotFound`, or `BadInput` when it could be several."""
    try:
        return await log.info(reference)
    except NotFound:
        pass
    named = [info async for info in each(log, SessionQuery(text=reference)) if info.name == reference]
    if named:
        return _only(reference, named)
    if re.fullmatch(r"[0-9a-f]{3,31}", reference):
        found: list[SessionInfo] = []
        async for info in each(log, SessionQuery()):
            if info.id.startswith(reference):
                found.append(info)
        if found:
            return _only(reference, found)
    raise NotFound(f"no session has the id or the name {reference!r}; `treadle sessions list` shows those there are")


async def each(log: Log, query: SessionQuery) -> AsyncIterator[SessionInfo]:
    """Every session that a query means, page by page."""
    query = replace(query, limit=_PAGE)
    while True:
        page = await log.sessions(query)
        for info in page.sessions:
            yield info
        if not page.cursor:
            return
        query = replace(query, cursor=page.cursor)


def _only(reference: str, found: list[SessionInfo]) -> SessionInfo:
    if len(found) > 1:
        ids = ", ".join(info.id[:12] for info in found[:5])
        raise BadInput(f"{reference!r} could be {len(found)} sessions ({ids}…); write more of the id")
    return found[0]
