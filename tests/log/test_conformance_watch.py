"""Watching, for every log: replay, then live; facts exactly once and in order, deltas as far as they fit."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.conftest import claim
from treadle.events import Custom, Delta, Event, TextDelta
from treadle.log import hub
from treadle.log.base import Claim, Log, Watch
from treadle.log.hub import BATCH, RING
from treadle.log.in_memory import InMemoryLog


def show(event: Event) -> str | int:
    """A fact as its seq, a delta as its text."""
    return event.text if isinstance(event, TextDelta) else getattr(event, "seq", 0)


async def take(watch: Watch, count: int) -> list[str | int]:
    return [show(await anext(watch)) for _ in range(count)]


async def rest(watch: Watch) -> list[str | int]:
    return [show(event) async for event in watch]


async def until_waiting(task: "asyncio.Task[object]") -> None:
    """Let a task run until it can go no further by itself."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()


async def start_waiting(reading: Coroutine[Any, Any, list[str | int]]) -> "asyncio.Task[list[str | int]]":
    """Read in a task, which goes on when there is more to read."""
    task = asyncio.create_task(reading)
    await until_waiting(task)
    return task


async def append(log: Log, claim: Claim, count: int = 1) -> None:
    head = log.get_head("s")
    await log.append(claim, head, [Custom(name=f"n{head + i}") for i in range(1, count + 1)])


def say(log: Log, *texts: str) -> None:
    for text in texts:
        log.publish("s", TextDelta(text=text, after=log.get_head("s")))


async def test_a_watch_replays_and_then_follows(log: Log, mine: Claim) -> None:
    await append(log, mine, 2)
    watch = log.watch("s")
    assert await take(watch, 3) == [1, 2, 3]
    following = await start_waiting(take(watch, 4))
    say(log, "a", "b")
    await append(log, mine, 2)
    assert await following == ["a", "b", 4, 5]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param("append append append append watch:3", [4, 5], id="the facts after its position"),
        pytest.param("watch:1 post append post", [2, 3, 4], id="posts and appends"),
        pytest.param("watch:1 say:a append say:b", ["a", 2, "b"], id="all that came before its first read"),
        pytest.param("say:old append say:a say:b watch:0 say:c", [1, 2, "a", "b", "c"], id="the unfinished reply"),
        pytest.param("say:a post say:b watch:0", [1, 2, "a", "b"], id="the unfinished reply, with a post within it"),
        pytest.param("watch:0 say:a post say:b", [1, 2, "a", "b"], id="an unfinished reply that it saw begin"),
        pytest.param("watch:1 say:old append watch:0", [1, 2], id="no deltas of a finished reply when it joins late"),
        pytest.param("watch:0 say:old append say:new", [1, 2, "new"], id="no deltas older than its facts"),
    ],
)
async def test_a_watch_sees(log: Log, mine: Claim, make, steps: str, expected: list[str | int]) -> None:
    watches: list[Watch] = []  # the last one counts
    for action, _, value in (step.partition(":") for step in steps.split()):
        match action:
            case "watch":
                watches.append(log.watch("s", int(value)))
            case "say":
                say(log, value)
            case "append":
                await append(log, mine)
            case _:
                await log.post("s", make.notes("posted"))
    assert await take(watches[-1], len(expected)) == expected and watches[-1].ready() == []


async def test_all_watchers_of_a_session_see_the_same(log: Log, mine: Claim) -> None:
    watches = [log.watch("s") for _ in range(20)]
    assert [await take(watch, 1) for watch in watches] == [[1]] * 20
    readers = [asyncio.create_task(take(watch, 5)) for watch in watches]
    for _ in range(2):
        await until_waiting(readers[0])
        say(log, "x", "y")
        await append(log, mine)
    seen = [await reader for reader in readers]
    assert seen == [["x", "y", 2, "x", "y"]] * 20


async def test_deltas_of_a_session_that_is_neither_claimed_nor_watched_go_nowhere(log: Log) -> None:
    say(log, "unseen")
    watch = log.watch("s", after=1)
    say(log, "seen")
    assert await take(watch, 1) == ["seen"]


async def test_a_watcher_that_never_reads_keeps_no_one_waiting_and_no_memory(log: Log, mine: Claim) -> None:
    idle = log.watch("s")
    reader = log.watch("s", after=1)
    for number in range(RING * 3):
        say(log, str(number))
    await append(log, mine)
    assert await take(reader, 1) == [2]
    channel = log._hub.channels["s"]  # pyright: ignore
    assert len(channel.items) <= 2 * RING
    idle.stop_at(2)
    assert await rest(idle) == [1, 2]


async def test_a_run_that_nobody_watches_keeps_only_the_deltas_after_its_last_fact(log: Log, mine: Claim) -> None:
    for _ in range(10):
        say(log, "a", "b")
        await append(log, mine)
    say(log, "c")
    assert [show(item) for item in log._hub.channels["s"].items] == ["c"]  # pyright: ignore


async def test_a_closed_watch_of_a_released_session_keeps_no_events(log: Log, mine: Claim) -> None:
    watch = log.watch("s")
    say(log, "a")
    await append(log, mine)
    channel = log._hub.channels["s"]  # pyright: ignore
    assert await log.release(mine, expected_seq=None) and channel.items
    watch.close()
    assert not channel.items and "s" not in log._hub.channels  # pyright: ignore


async def test_a_watcher_that_missed_fragments_is_given_none_of_that_reply_until_it_is_stored(
    log: Log, mine: Claim
) -> None:
    watch = log.watch("s")
    assert await take(watch, 1) == [1]
    say(log, "seen")
    assert await take(watch, 1) == ["seen"]
    for number in range(RING * 4):
        say(log, str(number))
    assert watch.ready() == []
    say(log, "the end of it")
    await append(log, mine)
    say(log, "another")
    assert await take(watch, 2) == [2, "another"]


async def test_a_long_replay_goes_over_into_live_without_a_gap(log: Log, mine: Claim) -> None:
    await append(log, mine, 2 * BATCH + 10)
    watch = log.watch("s")
    assert await take(watch, 5) == [1, 2, 3, 4, 5]
    await append(log, mine, 3)
    say(log, "live")
    expected = [*range(6, 2 * BATCH + 15), "live"]
    assert await take(watch, len(expected)) == expected


async def test_stop_at_ends_once_every_fact_up_to_it_was_given(log: Log, mine: Claim) -> None:
    await append(log, mine, 4)
    watch = log.watch("s")
    watch.stop_at(3)
    assert await rest(watch) == [1, 2, 3]
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_stop_at_waits_for_facts_that_are_still_to_come(log: Log, mine: Claim) -> None:
    watch = log.watch("s")
    watch.stop_at(2)
    reading = await start_waiting(rest(watch))
    say(log, "a")
    await until_waiting(reading)
    await append(log, mine, 2)
    assert await reading == [1, "a", 2]


async def test_stop_at_a_position_already_given_ends_a_watch_that_waits(log: Log) -> None:
    watch = log.watch("s")
    reading = await start_waiting(rest(watch))
    watch.stop_at(1)
    assert await reading == [1]


async def test_closing_ends_a_watch_that_waits_and_one_that_has_more_for_good(log: Log, mine: Claim) -> None:
    waiting, behind = log.watch("s", after=1), log.watch("s")
    reading = await start_waiting(rest(waiting))
    waiting.close()
    behind.close()
    behind.close()
    assert await reading == []
    await append(log, mine)
    behind.stop_at(log.get_head("s"))
    assert await rest(behind) == []


async def test_a_cancelled_wait_loses_nothing(log: Log, mine: Claim) -> None:
    watch = log.watch("s", after=1)
    for _ in range(3):
        reading = asyncio.create_task(take(watch, 1))
        await until_waiting(reading)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert not log._hub.channels["s"].waiters  # pyright: ignore
    say(log, "a")
    await append(log, mine)
    assert await take(watch, 2) == ["a", 2]


async def test_a_forgotten_watch_leaves_nothing_behind(log: Log) -> None:
    watch = log.watch("s")
    assert await take(watch, 1) == [1]
    del watch
    gc.collect()
    assert log.get_head("s") == 0
    assert not log._hub.channels  # pyright: ignore


@pytest.mark.parametrize("end", [lambda log: log.delete("s"), lambda log: log.close()], ids=["deleted", "closed"])
async def test_the_watches_of_a_deleted_session_and_of_a_closed_log_end(log: Log, end) -> None:
    watch = log.watch("s", after=1)
    reading = await start_waiting(rest(watch))
    await end(log)
    assert await reading == []


async def test_a_watch_outlives_the_run_and_sees_posts_while_nobody_runs_the_session(log, mine: Claim, make) -> None:
    watch = log.watch("s", after=1)
    await log.release(mine, 1)
    following = await start_waiting(take(watch, 2))
    await log.post("s", make.notes("a", "b"))
    assert await following == [2, 3]
    await append(log, await claim(log, owner="you"))
    assert await take(watch, 1) == [4]


async def test_a_watcher_that_does_not_read_holds_few_bytes_and_misses_nothing(log: Log, mine: Claim, make) -> None:
    watch, every = log.watch("s", after=1), log.watch_all(0)
    text = "x" * (hub.RING_BYTES // 2)
    for _ in range(10):
        await log.post("s", make.notes(text))
    channel = log._hub.channels["s"]  # pyright: ignore
    assert sum(map(hub.measure_event, channel.items)) == channel.size <= hub.RING_BYTES
    assert await take(watch, 10) == list(range(2, 12))
    assert [(await anext(every)).fact.seq for _ in range(11)] == list(range(1, 12))


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("post"), st.integers(1, 3)),
        st.tuples(st.just("say"), st.integers(1, 6)),
        st.tuples(st.just("read"), st.integers(1, 8)),
        st.tuples(st.just("join"), st.integers(0, 20)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
        st.tuples(st.just("release"), st.just(0)),
    ),
    max_size=60,
)


class SlowReads(InMemoryLog):
    """A log whose reads for watchers take a turn of the loop, as those of a database server would."""

    def __init__(self, ring: int) -> None:
        super().__init__()
        self._hub = type(self._hub)(self.slow_read, self._read_store, ring)

    async def slow_read(self, session_id: str, after: int, limit: int) -> "list":
        facts = await self.read(session_id, after, min(limit, 4))
        await asyncio.sleep(0)
        return facts


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=actions, ring=st.integers(1, 6), ring_bytes=st.sampled_from([100, 400, 10**6]))
async def test_whatever_happens_every_watcher_gets_each_fact_once_and_in_order(
    steps, ring: int, ring_bytes: int, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RING_BYTES", ring_bytes)
    log = SlowReads(ring)
    await log.create("s", [make.created("s")])
    mine = await claim(log, ttl=1e9)
    watchers: list[tuple[int, Watch, list[Event], asyncio.Task[None]]] = []
    gates: list[asyncio.Semaphore] = []

    async def follow(watch: Watch, seen: list[Event], gate: asyncio.Semaphore) -> None:
        await gate.acquire()
        async for event in watch:
            seen.append(event)
            await gate.acquire()

    for action, amount in steps:
        if action == "append":
            head = (await log.get_info("s")).seq
            await log.append(mine, head, make.notes(*"abcde"[:amount]))
        elif action == "post":
            await log.post("s", make.notes(*"abcde"[:amount]))
        elif action == "say":
            say(log, *(f"{log.get_head('s')}" for _ in range(amount)))
        elif action == "join":
            after = min(amount, (await log.get_info("s")).seq)
            watch, seen, gate = log.watch("s", after), [], asyncio.Semaphore(0)
            gates.append(gate)
            watchers.append((after, watch, seen, asyncio.create_task(follow(watch, seen, gate))))
        elif action == "read":
            for gate in gates[amount % 3 :: 2]:
                for _ in range(amount):
                    gate.release()
            await asyncio.sleep(0)
        elif action == "leave" and amount < len(watchers):
            watchers[amount][1].close()
        else:
            await log.release(mine, None)
            mine = await claim(log, ttl=1e9)
    head = (await log.get_info("s")).seq
    for gate in gates:
        for _ in range(1000):
            gate.release()
    for after, watch, seen, task in watchers:
        watch.stop_at(head)
        async with asyncio.timeout(60):
            await task
        facts = [event.seq for event in seen if not isinstance(event, Delta)]
        assert facts == list(range(after + 1, after + 1 + len(facts)))
        if not watch._is_closed:  # pyright: ignore
            assert facts == list(range(after + 1, head + 1))
    await log.close()
