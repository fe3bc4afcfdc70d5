"""Looking after a store for the surfaces: check, backup, recovery, shrinking, and deleting old sessions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from treadle.app.settings import Settings
from treadle.errors import BadInput, Conflict, NotFound, StoreError
from treadle.log.base import RESPONSES_AGENT, Log, SessionInfo, SessionQuery
from treadle.log.maintenance import StoreCheck, backup_store, check_store, shrink_store, vacuum_store
from treadle.log.recovery import Recovered, recover_store
from treadle.secrets.store_url import is_postgres_url

RETENTION_SECONDS = 3600.0
"""How often a server deletes old sessions."""
UNFINISHED = ("running", "waiting")

__all__ = [
    "Recovered",
    "StoreCheck",
    "backup_store",
    "check_store",
    "find_old_sessions",
    "find_store_file",
    "prune_sessions",
    "recover_store",
    "run_retention",
    "shrink_store",
    "vacuum_store",
]

_logger = logging.getLogger("treadle")


def find_store_file(settings: Settings) -> Path:
    """Return the file of the store. Raise `BadInput` if there is none."""
    file = settings.store_file
    if file is None and is_postgres_url(settings.store_location):
        raise BadInput(
            f"{settings.store_name} is looked after with PostgreSQL's own tools: pg_dump and pg_basebackup back it up, "
            "pg_restore restores it, autovacuum gives space back, and pg_amcheck checks it. Nothing was done"
        )
    if file is None:
        raise BadInput(f"{settings.store_name} is not a file; this command looks after stores in files")
    if not file.is_file():
        raise BadInput(f"there is no store {file}; --store names another one")
    return file


async def find_old_sessions(log: Log, before: float, *, keep_named: bool) -> list[SessionInfo]:
    """Find the sessions that ended before a time, the last changed first, with those of stored responses.

    A session that runs, waits for a person or has work left is never among them. A helper goes with the session that
    started it. `keep_named` keeps the sessions that a user named.
    """
    old: dict[str, SessionInfo] = {}
    for agent in ("", RESPONSES_AGENT):
        async for info in log.iterate_sessions(SessionQuery(agent=agent, before=before)):
            if info.status not in UNFINISHED and not info.owner and info.wake_at is None:
                old[info.id] = info
    return [info for info in old.values() if not await _is_kept(log, info, old, keep_named)]


async def _is_kept(log: Log, info: SessionInfo, old: dict[str, SessionInfo], keep_named: bool) -> bool:
    while not (keep_named and info.named_by_user):
        if info.parent is None or not info.parent.call_id:
            return False
        starter = old.get(info.parent.session_id)
        if starter is None:
            try:
                await log.get_info(info.parent.session_id)
            except NotFound:
                return False
            return True
        info = starter
    return True


async def prune_sessions(
    log: Log, sessions: list[SessionInfo], report: Callable[[str], None] = lambda _: None
) -> list[SessionInfo]:
    """Delete sessions, unless they changed since they were found. Return the deleted ones."""
    deleted: list[SessionInfo] = []
    for number, info in enumerate(sessions, 1):
        with suppress(NotFound, Conflict):
            if (await log.get_info(info.id)).updated_at == info.updated_at:
                await log.delete(info.id)
                deleted.append(info)
        report(f"deleting {number} of {len(sessions)} sessions")
        await asyncio.sleep(0)  # a server goes on meanwhile
    return deleted


@asynccontextmanager
async def run_retention(log: Log, seconds: float) -> AsyncGenerator[None]:
    """Delete sessions that ended so long ago, now and every hour. Those that a user named are kept."""

    async def prune() -> None:
        while True:
            try:
                old = await find_old_sessions(log, time.time() - seconds, keep_named=True)
                if deleted := await prune_sessions(log, old):
                    _logger.info("retention: %d old sessions were deleted", len(deleted))
            except StoreError as error:  # the store may work again next time
                _logger.warning("old sessions could not be deleted: %s", error)
            await asyncio.sleep(RETENTION_SECONDS)

    task = asyncio.create_task(prune())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
