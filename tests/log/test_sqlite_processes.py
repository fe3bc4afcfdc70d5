"""The SQLite log with many processes on one file at once."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.log.workers import Start, line, tell
from treadle.errors import NotFound, StoreTooNew
from treadle.events import Custom, SessionCreated, TextDelta
from treadle.log.base import Claim, SessionQuery
from treadle.log.sqlite import SqliteLog

# --- many processes


async def test_eight_processes_append_to_one_file_without_an_error_and_without_a_loss(path, start: Start) -> None:
    shared = SqliteLog(path)
    await shared.create("shared", [SessionCreated(session_id="shared")])
    workers = {f"w{number}": start("append_many", path, f"w{number}", 200) for number in range(8)}
    for worker in workers.values():
        assert line(worker) == "ready"
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers.values():
        assert line(worker) == "done"
        assert worker.wait() == 0
    for name in workers:
        facts = await shared.read(name, 1)
        assert [fact.data for fact in facts if isinstance(fact, Custom)] == list(range(200))
    together = await shared.read("shared", 1)
    assert [fact.seq for fact in together] == list(range(2, 1602))
    for name in workers:
        of_one = [fact.data for fact in together if isinstance(fact, Custom) and fact.name == name]
        assert of_one == list(range(200))
    shared.check_integrity()
    await shared.close()


async def test_eight_processes_make_the_same_new_store_at_once(path: Path, start: Start) -> None:
    workers = [start("obey", path) for _ in range(8)]
    assert [line(worker) for worker in workers] == ["ready"] * 8


async def test_a_killed_writer_leaves_every_acknowledged_fact_and_its_session_is_free_at_once(
    path: Path, start: Start
) -> None:
    worker = start("append_forever", path)
    for _ in range(50):
        acknowledged = int(line(worker))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    log = SqliteLog(path)
    facts = await log.read("s")
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))
    assert len(facts) >= acknowledged
    assert len(facts) % 2 == 1  # both facts of an append, or none
    assert (await log.get_info("s")).seq == len(facts)
    claim = await log.claim("me", 30)
    assert claim is not None
    assert claim.epoch == 2
    await log.append(claim, len(facts), [Custom(name="on")])
    await log.close()


async def test_a_session_of_a_live_process_is_not_free(path: Path, start: Start) -> None:
    worker = start("append_forever", path)
    line(worker)
    log = SqliteLog(path)
    assert await log.claim("me", 30) is None
    assert await log.claim("me", 30, "s") is None
    await log.close()


async def test_what_another_process_writes_reaches_watchers_and_listener(path: Path, start: Start) -> None:
    log = SqliteLog(path)
    for session_id in ("s", "t"):
        await log.create(session_id, [SessionCreated(session_id=session_id)])
    heard: asyncio.Queue[str] = asyncio.Queue()
    log.listener = heard.put_nowait
    claim = await log.claim("me", 30, "s")
    assert claim is not None
    watches = [log.watch("s", after=1), log.watch("s", after=1), log.watch("t", after=1)]
    readers = [asyncio.ensure_future(anext(watch)) for watch in watches]
    worker = start("obey", path)
    assert line(worker) == "ready"
    tell(worker, "post s")
    tell(worker, "post t")
    assert [(await reader).seq for reader in readers] == [2, 2, 2]  # pyright: ignore
    assert await heard.get() == "s"
    assert heard.empty()
    assert log.get_head("s") == 2
    log.publish("s", TextDelta(text="on"))
    await log.append(claim, 2, [Custom(name="x")])
    assert [type(await anext(watches[0])) for _ in range(2)] == [TextDelta, Custom]
    await log.close()


async def test_no_fact_is_missed_when_one_from_elsewhere_was_not_noticed_before_the_next(path: Path) -> None:
    log, other = SqliteLog(path), SqliteLog(path)
    await log.create("s", [SessionCreated(session_id="s")])
    claim = await log.claim("me", 30, "s")
    assert claim is not None
    watch = log.watch("s", after=1)
    await other.post("s", [Custom(name="unnoticed")])
    await log.append(claim, 2, [Custom(name="noticed")])
    watch.stop_at(3)
    assert [event.name async for event in watch if isinstance(event, Custom)] == ["unnoticed", "noticed"]
    await other.close()
    await log.close()


async def test_the_listener_hears_of_posts_elsewhere_when_nobody_watches(path: Path, start: Start) -> None:
    log = SqliteLog(path)
    await log.create("s", [SessionCreated(session_id="s")])
    heard: asyncio.Queue[str] = asyncio.Queue()
    log.listener = heard.put_nowait
    assert await log.claim("me", 30, "s") is not None
    worker = start("obey", path)
    assert line(worker) == "ready"
    tell(worker, "post s")
    assert await heard.get() == "s"
    assert log.get_head("s") == 2
    await log.close()


async def test_a_watcher_is_told_when_another_process_writes_what_it_cannot_read(path, start: Start) -> None:
    log = SqliteLog(path)
    await log.create("s", [SessionCreated(session_id="s")])
    reader = asyncio.ensure_future(anext(log.watch("s", after=1)))
    worker = start("obey", path)
    assert line(worker) == "ready"
    tell(worker, "unknown s")
    with pytest.raises(StoreTooNew, match="dream_dreamt"):
        await reader
    await log.close()


async def test_a_session_that_another_process_deleted_is_gone_here_too(path: Path, start: Start) -> None:
    log = SqliteLog(path)
    for session_id in ("s", "t"):
        await log.create(session_id, [SessionCreated(session_id=session_id)])
        assert len(await log.read(session_id)) == 1
    watch = log.watch("s", after=1)
    reader = asyncio.ensure_future(anext(watch, None))
    worker = start("obey", path)
    assert line(worker) == "ready"
    tell(worker, "delete s")
    assert await reader is None
    with pytest.raises(NotFound):
        await log.read("s")
    with pytest.raises(NotFound):
        await log.append(Claim("s", "me", 1, 30), 1, [Custom(name="x")])
    tell(worker, "remake t")
    assert [type(fact) for fact in await log.read("t")] == [SessionCreated, Custom]
    assert [info.id for info in (await log.list_sessions(SessionQuery())).sessions] == ["t"]
    await log.close()


async def test_a_session_made_after_another_was_deleted_is_never_taken_for_it(path: Path, start: Start) -> None:
    log = SqliteLog(path)
    await log.create("s", [SessionCreated(session_id="s")])
    assert len(await log.read("s")) == 1
    worker = start("obey", path)
    assert line(worker) == "ready"
    tell(worker, "delete s")
    tell(worker, "make other")
    with pytest.raises(NotFound):
        await log.read("s")
    await log.close()


async def test_a_second_log_on_the_same_file_does_not_cost_the_first_its_locks(path: Path, start: Start) -> None:
    log = SqliteLog(path)
    await log.create("s", [SessionCreated(session_id="s")])
    await SqliteLog(path).close()
    # Were the locks of this process gone, the other one would think itself the last and remove the journal.
    other = start("open_and_close", path)
    assert line(other) == "1"
    assert other.wait() == 0
    assert path.with_name("log.db-wal").exists()
    await log.post("s", [Custom(name="x")])
    assert line(start("open_and_close", path)) == "2"
    await log.close()
