"""Every log behind the port, on a clock the test sets, with one session to begin with."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.log.workers import Start, Worker
from treadle.events import AgentConfig, Custom, MessageReceived, SessionCreated
from treadle.log.base import Claim, Log
from treadle.log.in_memory import InMemoryLog
from treadle.log.postgres import PostgresLog
from treadle.log.sqlite import SqliteLog
from treadle.messages import TextPart


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Make:
    """Short ways to write facts; the content does not matter to a log."""

    @staticmethod
    def created(session_id: str, agent: str = "agent", workspace: str = "") -> SessionCreated:
        return SessionCreated(session_id=session_id, agent=AgentConfig(name=agent), workspace=workspace)

    @staticmethod
    def message(text: str) -> MessageReceived:
        return MessageReceived(id=f"m-{text}", parts=(TextPart(text),))

    @staticmethod
    def notes(*names: str) -> list[Custom]:
        return [Custom(name=name) for name in names]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make() -> type[Make]:
    return Make


@pytest.fixture(params=["memory", "sqlite-process", "sqlite-power", "postgres"])
async def log(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Log]:
    opened: Log
    if request.param == "memory":
        opened = InMemoryLog(clock=clock)
    elif request.param == "postgres":
        opened = PostgresLog(request.getfixturevalue("postgres_url"), clock=clock)
    else:
        durability = "power" if request.param == "sqlite-power" else "process"
        opened = SqliteLog(tmp_path / "log.db", durability=durability, clock=clock)
    await opened.create("s", [Make.created("s")])
    yield opened
    await opened.close()


@pytest.fixture
async def mine(log: Log) -> Claim:
    """The right to run the session `s`, for as long as the clock stands still."""
    return await claim(log)


@pytest.fixture
async def sqlite_log(path: Path) -> AsyncIterator[SqliteLog]:
    """A log in a file, on the real clock, with the session `s`."""
    opened = SqliteLog(path)
    await opened.create("s", [Make.created("s")])
    yield opened
    await opened.close()


async def claim(log: Log, session_id: str = "s", owner: str = "me", ttl: float = 30) -> Claim:
    claimed = await log.claim(owner, ttl, session_id)
    assert claimed is not None
    return claimed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start worker.py in a process of its own."""
    workers: list[Worker] = []

    def start(*arguments: object) -> Worker:
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), *map(str, arguments)]
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.communicate()
