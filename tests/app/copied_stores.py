"""Stores to copy for tests: named, filled, described and looked into."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.kit.postgres import PostgresServer
from tests.log.conftest import Make
from treadle.app import store_copy
from treadle.app.store_copy import CopySummary, copy_store
from treadle.events import AgentConfig, Parent, SessionCreated, SessionMarked, SessionRenamed
from treadle.log.base import Log, SessionQuery
from treadle.log.open_log import open_log
from treadle.memory.base import Memory

MakeStore = Callable[[str], str]
numbers = count(1)


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def make_store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeStore]:
    """Name a new store of a kind: a file, or an empty database."""
    with ExitStack() as stack:

        def make(kind: str) -> str:
            number = next(numbers)
            if kind == "sqlite":
                return str(tmp_path / f"store{number}.db")
            server: PostgresServer = request.getfixturevalue("postgres_server")
            return stack.enter_context(server.make_database(f"copy_{number}"))

        yield make


def each_direction(test: Any) -> Any:
    directions = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite"), ("postgres", "postgres")]
    return pytest.mark.parametrize("kinds", directions, ids=" to ".join)(test)


def each_target(test: Any) -> Any:
    return pytest.mark.parametrize("kind", ["sqlite", "postgres"])(test)


async def copy(source: str, target: str, **options: Any) -> CopySummary:
    return await copy_store(source, target, lambda _: None, **options)


def count_outcomes(done: CopySummary) -> tuple[int, int, int, int, int]:
    """Sessions that were copied, extended, unchanged, had gone on, and were left out."""
    return done.copied, done.extended, done.unchanged, len(done.went_on), len(done.left_out)


async def fill(store: str, small: int = 3, large: int = 0) -> None:
    """Small sessions with all that belongs to one, and a session of many facts with artifacts."""
    async with open_log(store) as log:
        for number in range(small):
            name = f"small{number}"
            parent = Parent(session_id="small0", seq=1, call_id="c") if number else None
            created = SessionCreated(session_id=name, agent=AgentConfig(name="agent"), workspace="/w", parent=parent)
            await log.create(name, [created])
            await log.post(name, [Make.message("hé")], key="my key")
            await log.post(
                name, [SessionRenamed(name="It's Ännchen", by="user"), SessionMarked(pinned=True)], wake=False
            )
            claim = await log.claim("me", 30, name)
            assert claim is not None
            await log.append(claim, 4, Make.notes("a", "b"), key="turn 1")
            await log.put_artifact(name, f"large output {number}".encode(), "text/html", claim=claim)
            await log.release(claim, 6, 4_000_000_000.0, waiting=True)
        if large:
            await log.create("large", [Make.created("large")])
            for _ in range(0, large, 100):
                await log.post("large", Make.notes(*"x" * 100), wake=False)
            for number in range(3):
                await log.put_artifact("large", b"%d" % number)
        await log.memories.add(Memory("the build needs Java", scope="/w", kind="procedure", session_id="small0"))
        await log.get_approval_key()


async def describe(log: Log) -> dict[str, Any]:
    """All that a log shows of its sessions."""
    found: dict[str, Any] = {"memories": await log.memories.list(), "key": await log.get_approval_key()}
    async for info in log.iterate_sessions(SessionQuery()):
        found[info.id] = info, [fact async for piece in log.read_in_pieces(info.id) for fact in piece]
    return found


async def describe_store(store: str) -> dict[str, Any]:
    async with open_log(store) as log:
        return await describe(log)


def dump(store: str) -> Any:
    """All that is stored, byte for byte."""
    if "://" not in store:
        return Path(store).read_bytes()
    with psycopg.connect(store, autocommit=True) as db:
        names = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'treadle' ORDER BY 1").fetchall()
        return {name: sorted(map(repr, db.execute(f'SELECT * FROM treadle."{name}"').fetchall())) for (name,) in names}  # type: ignore[arg-type]


async def list_artifacts(store: str, session_id: str) -> list[str]:
    reader = await store_copy._open_store(store)  # pyright: ignore[reportPrivateUsage]
    try:
        record = await reader.get_session(session_id)
        assert record is not None
        return await reader.list_artifacts(record.num)
    finally:
        await reader.close()


def change(store: str, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        assert db.execute(sql, values).rowcount, "nothing was changed"


def query(store: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store)) as db:
        return db.execute(sql).fetchall()
