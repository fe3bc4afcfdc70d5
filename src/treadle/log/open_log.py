"""Opening a log by its path, its URL, or as an object."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from treadle.errors import BadInput, StoreFull, StoreReadOnly
from treadle.log.base import Log
from treadle.log.in_memory import InMemoryLog
from treadle.secrets.store_url import is_postgres_url


def open_log(store: str | Path | Log, *, read_only: bool = False) -> Log:
    """Open the log at a path. `":memory:"` opens one that is not stored; a log is returned as it is.

    With `read_only` a store that cannot be written, also because its disk is full, is opened all the same. It can only
    be read.
    """
    if isinstance(store, Log):
        return store
    if store == ":memory:":
        return InMemoryLog()
    if isinstance(store, str):
        if is_postgres_url(store):
            return _open_postgres_log(store)
        if "://" in store or not store:
            raise BadInput(f"{store!r} is not a log; pass a path, postgresql://USER@HOST/DATABASE, or ':memory:'")
    from treadle.log.sqlite import SqliteLog

    try:
        return SqliteLog(store)
    except (StoreReadOnly, StoreFull):
        if not read_only:
            raise
        return SqliteLog(store, read_only=True)


def _open_postgres_log(url: str) -> Log:
    require_psycopg()
    from treadle.log.postgres import PostgresLog

    return PostgresLog(url)


def require_psycopg() -> None:
    """Raise `BadInput` where the package that PostgreSQL needs is not installed."""
    try:
        import_module("psycopg")  # without it, the next import would fail in a way that says less
    except ImportError as error:
        raise BadInput(
            f"a store on PostgreSQL needs psycopg ({error}); install it with `pip install 'treadle[postgres]'`"
        ) from None
