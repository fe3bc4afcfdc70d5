"""Watching all sessions, for every log: each fact once, in the order of its session, from any cursor on."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.conftest import Make, claim
from tests.log.test_conformance_watch import until_waiting
from tests.log.workers import Worker, send_command
from treadle.events import Custom
from treadle.log.base import Log, StoredFact, StoreWatch
from treadle.log.hub import BATCH
from treadle.log.in_memory import InMemoryLog
from treadle.log.sqlite import SqliteLog


async def take(watch: StoreWatch, count: int) -> list[StoredFact]:
    return [await anext(watch) for _ in range(count)]


def show(items: list[StoredFact]) -> list[tuple[str, int]]:
    return [(item.session_id, item.fact.seq) for item in items]


async def test_a_watch_of_all_sessions_replays_and_then_follows(log: Log) -> None:
    await log.create("t", [Make.created("t"), *Make.notes("a")])
    await log.post("s", Make.notes("b"))
    watch = log.watch_all(0)
    replayed = await take(watch, 4)
    assert show(replayed) == [("s", 1), ("t", 1), ("t", 2), ("s", 2)]
    following = asyncio.create_task(take(watch, 4))
    await until_waiting(following)
    await log.append(await claim(log, "t"), 2, Make.notes("c", "d"))
    await log.create("u", [Make.created("u")])
    await log.post("s", Make.notes("e"))
    followed = await following
    assert show(followed) == [("t", 3), ("t", 4), ("u", 1), ("s", 3)]
    cursors = [item.cursor for item in (*replayed, *followed)]
    assert cursors == sorted(set(cursors))
    assert isinstance(followed[0].fact, Custom) and followed[0].fact.name == "c"


async def test_a_watch_without_a_cursor_or_beyond_the_last_fact_starts_with_the_next_fact(log: Log) -> None:
    watches = [log.watch_all(), log.watch_all(10**9)]
    await log.post("s", Make.notes("next"))
    assert [show(await take(watch, 1)) for watch in watches] == [[("s", 2)]] * 2


async def test_a_watch_resumes_after_every_cursor(log: Log) -> None:
    for number in range(4):
        await log.create(f"t{number}", [Make.created(f"t{number}"), *Make.notes("a", "b")])
        await log.post("s", Make.notes("c"))
    whole = await take(log.watch_all(0), 17)
    for place, item in enumerate(whole, 1):
        rest = log.watch_all(item.cursor)
        assert await take(rest, len(whole) - place) == whole[place:] and rest.ready() == []


async def test_facts_of_a_deleted_session_are_left_out_and_no_cursor_is_given_twice(log: Log) -> None:
    await log.create("t", [Make.created("t"), *Make.notes("a")])
    last = (await take(log.watch_all(0), 3))[-1].cursor
    await log.delete("t")
    await log.create("t", [Make.created("t")])
    found = await take(log.watch_all(0), 2)
    assert show(found) == [("s", 1), ("t", 1)] and found[-1].cursor > last
    assert show(await take(log.watch_all(last), 1)) == [("t", 1)]


async def test_a_watcher_of_all_sessions_that_is_far_behind_gets_everything_in_batches(log: Log) -> None:
    watch = log.watch_all(0)
    mine = await claim(log)
    await log.append(mine, 1, [Custom(name=f"n{number}") for number in range(3 * BATCH)])
    seen: list[StoredFact] = []
    while len(seen) < 3 * BATCH + 1:
        seen.append(await anext(watch))
        more = watch.ready()
        assert len(more) < BATCH
        seen += more
    assert [item.fact.seq for item in seen] == list(range(1, 3 * BATCH + 2))


async def test_a_closed_watch_of_all_sessions_ends_also_while_it_waits(log: Log) -> None:
    async def read(watch: StoreWatch) -> list[StoredFact]:
        return [item async for item in watch]

    closed, open_at_the_end = log.watch_all(), log.watch_all()
    reading = [asyncio.create_task(read(watch)) for watch in (closed, open_at_the_end)]
    await until_waiting(reading[0])
    closed.close()
    assert await reading[0] == [] and not reading[1].done()
    await log.close()
    assert await reading[1] == []


async def test_a_cursor_is_valid_after_the_store_is_opened_again(sqlite_log: SqliteLog) -> None:
    await sqlite_log.post("s", Make.notes("a", "b"))
    cursor = (await take(sqlite_log.watch_all(0), 2))[-1].cursor
    await sqlite_log.close()
    again = SqliteLog(sqlite_log.path)
    assert show(await take(again.watch_all(cursor), 1)) == [("s", 3)]
    await again.close()


async def test_what_other_processes_write_to_any_session_reaches_a_watcher(sqlite_log: SqliteLog, start) -> None:
    worker: Worker = start("obey", sqlite_log.path)
    assert worker.stdout is not None and worker.stdout.readline().strip() == "ready"
    watch = sqlite_log.watch_all()
    reading = asyncio.create_task(take(watch, 4))
    await until_waiting(reading)
    for command in ("make other", "post s", "post other"):
        await asyncio.to_thread(send_command, worker, command)
    assert show(await asyncio.wait_for(reading, 30)) == [("other", 1), ("other", 2), ("s", 2), ("other", 3)]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["create", "post", "delete", "read"]))))
async def test_nothing_is_lost_or_doubled_whatever_is_written_between_reads(steps) -> None:
    log = InMemoryLog()
    watch, stored, seen = log.watch_all(0), list[tuple[str, int]](), list[tuple[str, int]]()
    heads: dict[str, int] = {}
    for session_id, action in steps:
        if action == "create" and session_id not in heads:
            await log.create(session_id, [Make.created(session_id)])
            heads[session_id] = 1
            stored.append((session_id, 1))
        elif action == "post" and session_id in heads:
            await log.post(session_id, Make.notes("n"))
            heads[session_id] += 1
            stored.append((session_id, heads[session_id]))
        elif action == "read" and len(seen) < len(stored):
            seen += show([await anext(watch), *watch.ready()])
            assert seen == stored
        elif action == "delete" and session_id in heads and len(seen) == len(stored):
            await log.delete(session_id)
            del heads[session_id]
    if len(seen) < len(stored):
        seen += show([await anext(watch), *watch.ready()])
    assert seen == stored
