"""The SQLite log with many processes on one file at once."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.log.conftest import claim, sqlite_log
from tests.log.workers import Start, Worker, read_line, send_command
from treadle.errors import NotFound, StoreTooNew
from treadle.events import Custom, SessionCreated, TextDelta
from treadle.log.base import Claim, SessionQuery
from treadle.log.sqlite import SqliteLog

log = sqlite_log


@pytest.fixture
def worker(log: SqliteLog, start: Start) -> Worker:
    """Another process that obeys commands, see `send_command`."""
    started = start("obey", log.path)
    assert read_line(started) == "ready"
    return started


async def test_eight_processes_append_to_one_file_without_an_error_and_without_a_loss(log, start: Start) -> None:
    workers = {f"w{number}": start("append_many", log.path, f"w{number}", 200) for number in range(8)}
    for worker in workers.values():
        assert read_line(worker) == "ready"
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers.values():
        assert read_line(worker) == "done"
        assert worker.wait() == 0
    together = await log.read("s", 1)
    assert [fact.seq for fact in together] == list(range(2, 1602))
    for name in workers:
        for facts in (await log.read(name, 1), together):
            assert [one.data for one in facts if isinstance(one, Custom) and one.name == name] == list(range(200))
    log.check_integrity()


async def test_eight_processes_make_the_same_new_store_at_once(path: Path, start: Start) -> None:
    workers = [start("obey", path) for _ in range(8)]
    assert [read_line(worker) for worker in workers] == ["ready"] * 8


async def test_a_killed_writer_leaves_every_acknowledged_fact_and_its_session_is_free_at_once(
    path: Path, start: Start
) -> None:
    worker = start("append_forever", path)
    for _ in range(50):
        acknowledged = int(read_line(worker))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    async with SqliteLog(path) as log:
        facts = await log.read("s")
        assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))
        assert len(facts) >= acknowledged
        assert len(facts) % 2 == 1  # both facts of an append, or none
        assert (await log.get_info("s")).seq == len(facts)
        mine = await claim(log, "")
        assert mine.epoch == 2
        await log.append(mine, len(facts), [Custom(name="on")])


async def test_a_session_of_a_live_process_is_not_free(path: Path, start: Start) -> None:
    read_line(start("append_forever", path))
    async with SqliteLog(path) as log:
        assert await log.claim("me", 30) is None
        assert await log.claim("me", 30, "s") is None


async def test_what_another_process_writes_reaches_watchers_and_listener(log, mine, worker: Worker) -> None:
    await log.create("t", [SessionCreated(session_id="t")])
    called: asyncio.Queue[str] = asyncio.Queue()
    log.listener = called.put_nowait
    watches = [log.watch("s", after=1), log.watch("s", after=1), log.watch("t", after=1)]
    readers = [asyncio.ensure_future(anext(watch)) for watch in watches]
    send_command(worker, "post s")
    send_command(worker, "post t")
    assert [(await reader).seq for reader in readers] == [2, 2, 2]  # pyright: ignore
    assert await called.get() == "s"
    assert called.empty()
    assert log.get_head("s") == 2
    log.publish("s", TextDelta(text="on"))
    await log.append(mine, 2, [Custom(name="x")])
    assert [type(await anext(watches[0])) for _ in range(2)] == [TextDelta, Custom]


async def test_no_fact_is_missed_when_one_from_elsewhere_was_not_noticed_before_the_next(log, mine) -> None:
    watch = log.watch("s", after=1)
    async with SqliteLog(log.path) as other:
        await other.post("s", [Custom(name="unnoticed")])
    await log.append(mine, 2, [Custom(name="noticed")])
    watch.stop_at(3)
    assert [event.name async for event in watch if isinstance(event, Custom)] == ["unnoticed", "noticed"]


async def test_the_listener_is_called_for_posts_elsewhere_when_nobody_watches(log, mine, worker: Worker) -> None:
    called: asyncio.Queue[str] = asyncio.Queue()
    log.listener = called.put_nowait
    send_command(worker, "post s")
    assert await called.get() == "s"
    assert log.get_head("s") == 2


async def test_a_watcher_fails_when_another_process_writes_a_fact_it_cannot_read(log, worker: Worker) -> None:
    reader = asyncio.ensure_future(anext(log.watch("s", after=1)))
    send_command(worker, "unknown s")
    with pytest.raises(StoreTooNew, match="dream_dreamt"):
        await reader


async def test_a_session_that_another_process_deleted_is_gone_here_too(log: SqliteLog, worker: Worker) -> None:
    await log.create("t", [SessionCreated(session_id="t")])
    assert [len(await log.read(session_id)) for session_id in ("s", "t")] == [1, 1]
    reader = asyncio.ensure_future(anext(log.watch("s", after=1), None))
    send_command(worker, "delete s")
    assert await reader is None
    with pytest.raises(NotFound):
        await log.read("s")
    with pytest.raises(NotFound):
        await log.append(Claim("s", "me", 1, 30), 1, [Custom(name="x")])
    send_command(worker, "remake t")
    assert [type(fact) for fact in await log.read("t")] == [SessionCreated, Custom]
    assert [info.id for info in (await log.list_sessions(SessionQuery())).sessions] == ["t"]


async def test_a_session_made_after_another_was_deleted_is_never_taken_for_it(log: SqliteLog, worker: Worker) -> None:
    assert len(await log.read("s")) == 1
    send_command(worker, "delete s")
    send_command(worker, "make other")
    with pytest.raises(NotFound):
        await log.read("s")


async def test_a_second_log_on_the_same_file_does_not_cost_the_first_its_locks(log, path, start: Start) -> None:
    await SqliteLog(path).close()
    # Were the locks of this process gone, the other one would think itself the last and remove the journal.
    other = start("open_and_close", path)
    assert read_line(other) == "1"
    assert other.wait() == 0
    assert path.with_name("log.db-wal").exists()
    await log.post("s", [Custom(name="x")])
    assert read_line(start("open_and_close", path)) == "2"
