"""What the tests of the SQLite log share: workers in processes of their own, and a look into the file."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.events import AnyFact, Custom, SessionCreated
from treadle.log.sqlite import SqliteLog

Worker = subprocess.Popen[str]
Start = Callable[..., Worker]


def read_line(worker: Worker) -> str:
    """The next line a worker says; what went wrong when it says none."""
    assert worker.stdout is not None
    assert worker.stderr is not None
    return worker.stdout.readline().strip() or pytest.fail(worker.stderr.read())


def send_command(worker: Worker, command: str) -> None:
    """Make a worker do something, and wait until it is done."""
    assert worker.stdin is not None
    worker.stdin.write(f"{command}\n")
    worker.stdin.flush()
    assert read_line(worker) == command.split()[0]


async def fill_store(path: Path, notes: int = 1) -> None:
    """A store with one session, closed again."""
    log = SqliteLog(path)
    facts: list[AnyFact] = [Custom(name=f"n{number}", data="x" * 300) for number in range(notes)]
    await log.create("s", [SessionCreated(session_id="s"), *facts])
    await log.close()


def read_pragma(log: SqliteLog, name: str) -> object:
    return log._file.get_connection().execute(f"PRAGMA {name}").fetchone()[0]  # pyright: ignore
