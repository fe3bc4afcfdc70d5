"""Which log a path, a URL or a log means."""

import sys
from pathlib import Path

import pytest

from treadle.errors import BadInput
from treadle.log.in_memory import InMemoryLog
from treadle.log.open_log import open_log
from treadle.log.postgres import PostgresLog
from treadle.log.sqlite import SqliteLog


async def test_a_path_is_an_sqlite_file(tmp_path: Path) -> None:
    for store in (tmp_path / "one.db", str(tmp_path / "two.db")):
        log = open_log(store)
        assert isinstance(log, SqliteLog)
        await log.close()
        assert Path(store).exists()


def test_memory_is_not_stored_and_a_log_is_itself() -> None:
    log = open_log(":memory:")
    assert isinstance(log, InMemoryLog) and open_log(log) is log


async def test_a_url_of_postgresql_is_a_database_that_nothing_connects_to_yet() -> None:
    log = open_log("postgresql://nobody@nowhere.invalid/none")
    assert isinstance(log, PostgresLog) and log.is_shared
    await log.close()


def test_without_psycopg_a_url_of_postgresql_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BadInput, match=r"pip install 'treadle\[postgres\]'"):
        open_log("postgresql://host/db")


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("redis://host", "not a log"),
        ("", "not a log"),
        ("postgresql://user@host:port/db", "the URL of the store is wrong"),
    ],
)
def test_what_is_no_log_is_bad_input(store: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        open_log(store)
