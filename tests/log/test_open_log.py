"""Which log a path, a URL or a log means."""

from pathlib import Path

import pytest

from treadle.errors import BadInput
from treadle.log.in_memory import InMemoryLog
from treadle.log.open_log import open_log
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


@pytest.mark.parametrize(
    ("store", "message"),
    [("postgresql://host/db", "not available yet"), ("redis://host", "not a log"), ("", "not a log")],
)
def test_what_is_no_log_is_bad_input(store: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        open_log(store)
