"""Which log a user means by a path, a URL or a log of their own."""

from __future__ import annotations

from pathlib import Path

from treadle.errors import BadInput
from treadle.log.base import Log
from treadle.log.in_memory import InMemoryLog


def open_log(store: str | Path | Log) -> Log:
    """The log at a path (`":memory:"` for one that is not kept), or the log that is passed in."""
    if isinstance(store, Log):
        return store
    if store == ":memory:":
        return InMemoryLog()
    if isinstance(store, str):
        scheme = store.partition("://")[0].lower() if "://" in store else ""
        if scheme in ("postgres", "postgresql"):
            raise BadInput("PostgreSQL logs are not available yet; pass the path of an SQLite file")
        if scheme or not store:
            raise BadInput(f"{store!r} is not a log; pass a path, or ':memory:'")
    from treadle.log.sqlite import SqliteLog

    return SqliteLog(store)
