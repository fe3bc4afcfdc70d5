"""A process that is frozen while it holds the write lock: readers go on, writers wait without blocking the loop."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.crash.children import wait_until
from tests.log.conftest import Make, claim
from tests.log.workers import Start, Worker, read_line
from treadle.errors import ClaimLost, StoreBusy
from treadle.events import Custom, SessionCreated
from treadle.log.base import Claim, SessionQuery
from treadle.log.lock_wait import find_lock_holder
from treadle.log.sqlite import SqliteLog
from treadle.memory.base import Memory

PATIENCE = 60
SHORT = 0.3


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SqliteLog]:
    opened = SqliteLog(path, busy_timeout=SHORT)
    await opened.create("s", [Make.created("s")])
    yield opened
    await opened.close()


@pytest.fixture
async def mine(log: SqliteLog) -> Claim:
    return await claim(log)


class Frozen:
    """A process that holds the write lock and is stopped."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.pid = worker, worker.pid
        assert read_line(worker) == "held"
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] == "T")

    def thaw(self) -> None:
        assert self.worker.stdin is not None
        self.worker.stdin.write("\n")
        self.worker.stdin.flush()
        os.kill(self.pid, signal.SIGCONT)


@pytest.fixture
def frozen(log: SqliteLog, mine: Claim, start: Start) -> Frozen:
    return Frozen(start("hold", log.path))


async def test_every_writer_gives_up_after_the_time_out_and_names_the_frozen_process(
    log: SqliteLog, mine: Claim, frozen: Frozen
) -> None:
    attempts = [
        log.create("t", [SessionCreated(session_id="t")]),
        log.post("s", [Custom(name="x")], "key"),
        log.claim("you", 30, "s"),
        log.release(mine, 1),
        log.put_artifact("s", b"x"),
        log.delete("s"),
        log.memories.add(Memory("likes tea")),
    ]
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE):  # nothing ends this wait if one of them blocks the loop for ever
        ends = await asyncio.gather(*attempts, return_exceptions=True)
    assert {type(end) for end in ends} == {StoreBusy}
    assert time.monotonic() - began >= SHORT
    for end in ends:
        assert f"was held for more than {SHORT:g} s by process {frozen.pid}" in str(end)
        assert "which is stopped; nothing was written" in str(end)
        assert f"kill -CONT {frozen.pid}" in str(end)
    assert len(await log.read("s")) == 1


async def test_readers_do_not_wait_for_a_frozen_writer(log: SqliteLog, frozen: Frozen) -> None:
    def refuse_to_sleep(*args: object) -> None:
        raise AssertionError("a read waited")

    watch = log.watch("s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treadle.log.lock_wait.asyncio.sleep", refuse_to_sleep)
        assert (await anext(watch)).seq == 1  # pyright: ignore
        assert len(await log.read("s")) == 1
        assert (await log.get_info("s")).seq == 1
        assert len((await log.list_sessions(SessionQuery())).sessions) == 1
        assert (await anext(log.watch_all(0))).session_id == "s"
        assert await log.claim("you", 30) is None
        assert await log.memories.list() == []
    assert await log.search("anything") == []
    watch.close()


async def test_a_store_can_be_opened_and_read_while_a_writer_is_frozen(log: SqliteLog, frozen: Frozen) -> None:
    other = SqliteLog(log.path, busy_timeout=SHORT)
    assert len(await other.read("s")) == 1
    with pytest.raises(StoreBusy):
        await other.post("s", [Custom(name="x")])
    await other.close()


async def test_the_owner_waits_on_and_records_what_it_did_when_the_lock_is_released(
    log: SqliteLog, mine: Claim, frozen: Frozen, caplog: pytest.LogCaptureFixture
) -> None:
    writes = [log.append(mine, 1, [Custom(name="done")]), log.renew(mine), log.put_artifact("s", b"x", claim=mine)]
    waiting = [asyncio.create_task(write) for write in writes]
    with pytest.raises(StoreBusy):
        await log.post("s", [Custom(name="x")])
    await asyncio.sleep(SHORT)  # they have waited for longer than the time-out, and others can still work
    assert not any(write.done() for write in waiting)
    assert (
        f"a run waits to record what it did: {log.path} was held for more than {SHORT:g} s by process {frozen.pid}"
        in caplog.text
    )
    frozen.thaw()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waiting)
    assert [fact.name for fact in await log.read("s", 1) if isinstance(fact, Custom)] == ["done"]


async def test_a_cancelled_owner_still_records_what_it_did(log: SqliteLog, mine: Claim, frozen: Frozen) -> None:
    log.busy_timeout = PATIENCE
    append = asyncio.create_task(log.append(mine, 1, [Custom(name="done")]))
    await asyncio.sleep(0)
    append.cancel()
    await asyncio.sleep(0)
    frozen.thaw()
    with pytest.raises(asyncio.CancelledError):
        await append
    assert [fact.name for fact in await log.read("s", 1) if isinstance(fact, Custom)] == ["done"]


async def test_a_cancelled_owner_does_not_wait_for_ever(log: SqliteLog, mine: Claim, frozen: Frozen) -> None:
    append = asyncio.create_task(log.append(mine, 1, [Custom(name="done")]))
    await asyncio.sleep(0)
    append.cancel()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            await append
    assert len(await log.read("s")) == 1


async def test_an_owner_that_lost_its_claim_while_it_waited_writes_nothing(
    log: SqliteLog, mine: Claim, start: Start
) -> None:
    other = SqliteLog(log.path, clock=lambda: time.time() + 60)
    frozen = Frozen(start("hold", log.path))
    append = asyncio.create_task(log.append(mine, 1, [Custom(name="late")]))
    await asyncio.sleep(0)
    os.kill(frozen.pid, signal.SIGKILL)
    frozen.worker.wait()
    assert (await claim(other, owner="you")).epoch == mine.epoch + 1
    with pytest.raises(ClaimLost):
        await append
    assert len(await log.read("s")) == 1
    await other.close()


async def test_a_post_that_is_cancelled_while_it_waits_is_not_stored_later(log: SqliteLog, frozen: Frozen) -> None:
    post = asyncio.create_task(log.post("s", [Custom(name="x")]))
    await asyncio.sleep(0)
    post.cancel()
    with pytest.raises(asyncio.CancelledError):
        await post
    frozen.thaw()
    assert read_line(frozen.worker) == "released"
    assert len(await log.read("s")) == 1


async def test_opening_a_store_that_must_be_upgraded_says_who_is_in_the_way(path: Path, start: Start) -> None:
    log = SqliteLog(path)
    frozen = Frozen(start("hold", path))
    log._file.get_connection().execute("SELECT 1")  # pyright: ignore
    await log.close()
    from treadle.log.schema import MIGRATIONS
    from treadle.log.sqlite_file import SqliteFile

    with pytest.raises(StoreBusy, match=f"process {frozen.pid} .*which is stopped"):
        SqliteFile(path, "process", SHORT, migrations=(*MIGRATIONS, ("CREATE TABLE more (x)",)))


def test_the_holder_of_the_lock_is_unknown_where_the_system_does_not_say(path: Path, tmp_path: Path) -> None:
    assert find_lock_holder(path) is None
    Path(f"{path}-shm").touch()
    inode = Path(f"{path}-shm").stat().st_ino
    locks = tmp_path / "locks"
    for line, pid in {
        "": None,
        f"1: POSIX  ADVISORY  WRITE 4711 08:01:{inode} 120 120": 4711,
        f"1: POSIX  ADVISORY  WRITE 4711 08:01:{inode} 0 EOF": 4711,
        f"1: POSIX  ADVISORY  READ  4711 08:01:{inode} 120 120": None,
        f"1: POSIX  ADVISORY  WRITE 4711 08:01:{inode} 124 127": None,
        f"1: POSIX  ADVISORY  WRITE 0 08:01:{inode} 120 120": None,
        f"1: -> POSIX  ADVISORY  WRITE 4711 08:01:{inode} 120 120": None,
        f"1: POSIX  ADVISORY  WRITE 4711 08:01:{inode + 1} 120 120": None,
    }.items():
        locks.write_text(line)
        assert find_lock_holder(path, locks) == pid
