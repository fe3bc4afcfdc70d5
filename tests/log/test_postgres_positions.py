"""Positions in the order of a whole store on PostgreSQL, where writers do not wait for each other."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.log.conftest import Make
from treadle.events import Custom
from treadle.log.base import StoredFact, StoreWatch
from treadle.log.postgres import PostgresLog

GIVE_UP_SECONDS = 60.0
"""Longer than any wait here, so that only a hang exceeds it."""
POST = """SELECT treadle.post_facts('slow', %s, ARRAY[%s::bytea], '{}', false, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    1, NULL)"""


@pytest.fixture
async def logs(postgres_url: str, make: type[Make]) -> AsyncIterator[list[PostgresLog]]:
    """Three nodes, and the sessions `s` and `slow`."""
    opened = [PostgresLog(postgres_url) for _ in range(3)]
    await opened[0].create("s", [make.created("s")])
    await opened[0].create("slow", [make.created("slow")])
    yield opened
    for log in opened:
        await log.close()


@pytest.fixture
async def slow(postgres_url: str, logs: list[PostgresLog]) -> AsyncIterator[psycopg.AsyncConnection]:
    """A writer that has taken a position and has not committed: another process whose disk is slow."""
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await connection.execute(POST, ("key", b'{"type":"custom","seq":0,"at":1.0,"name":"slow.fact"}'))
        yield connection


async def take(watch: StoreWatch, count: int) -> list[StoredFact]:
    async with asyncio.timeout(GIVE_UP_SECONDS):
        return [await anext(watch) for _ in range(count)]


def show(items: list[StoredFact]) -> list[tuple[str, int]]:
    return [(item.session_id, item.fact.seq) for item in items]


async def test_a_watch_waits_for_an_earlier_fact_that_is_not_committed(logs, make, slow) -> None:
    watch = logs[1].watch_all(0)
    assert show(await take(watch, 2)) == [("s", 1), ("slow", 1)]
    following = asyncio.create_task(take(watch, 2))
    async with asyncio.timeout(GIVE_UP_SECONDS):
        await logs[0].post("s", make.notes("n.later"))  # no writer waits
        facts, reached = await logs[1]._order.read(2, 10)
        assert facts == [] and reached == 2 and not following.done()
        await slow.commit()
        assert show(await following) == [("slow", 2), ("s", 2)]


async def test_a_watch_goes_on_when_an_earlier_write_is_undone(logs, make, slow) -> None:
    watch = logs[1].watch_all(2)
    following = asyncio.create_task(take(watch, 1))
    await logs[0].post("s", make.notes("n.later"))
    await slow.rollback()
    assert show(await following) == [("s", 2)]


async def test_a_watch_from_now_on_shows_what_is_committed_after_it_began(logs, make, slow, postgres_url) -> None:
    await logs[0].post("s", make.notes("n.later"))
    async with PostgresLog(postgres_url) as fresh:
        await fresh.get_info("s")
        watches = [logs[0].watch_all(), fresh.watch_all()]
        await slow.commit()
        assert [show(await take(watch, 1)) for watch in watches] == [[("slow", 2)]] * 2


async def test_the_search_misses_no_fact_that_was_committed_late(logs, make, slow) -> None:
    await logs[0].post("s", [make.message("kumquat")])
    assert [hit.session_id for hit in await logs[1].search("kumquat")] == []
    await slow.commit()
    assert [hit.session_id for hit in await logs[1].search("kumquat")] == ["s"]


async def test_a_long_transaction_of_somebody_else_holds_nothing_back(logs, make, postgres_url) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await other.execute("CREATE TABLE public.unrelated (n integer)")
        await other.execute("SELECT pg_advisory_xact_lock(1, 1), pg_advisory_xact_lock(7)")
        await logs[0].post("s", make.notes("n"))
        assert show(await take(logs[1].watch_all(2), 1)) == [("s", 2)]


async def test_no_watch_misses_or_repeats_a_fact_while_many_nodes_write(logs: list[PostgresLog], make) -> None:
    rounds, sessions = 40, 12
    for number in range(sessions):
        await logs[0].create(f"s{number}", [make.created(f"s{number}")])
    watches = [log.watch_all(0) for log in logs]
    total = 2 + sessions + rounds * sessions

    async def write(number: int) -> None:
        for count in range(rounds):
            await logs[number % 3].post(f"s{number}", [Custom(name="n", data=count)])

    async with asyncio.timeout(GIVE_UP_SECONDS):
        *seen, _ = await asyncio.gather(
            *(take(watch, total) for watch in watches), asyncio.gather(*map(write, range(sessions)))
        )
    cursors = [[item.cursor for item in items] for items in seen]
    assert all(each == sorted(set(each)) for each in cursors) and cursors[0] == cursors[1] == cursors[2]
    for number in range(sessions):
        own = [item.fact.seq for item in seen[0] if item.session_id == f"s{number}"]
        assert own == list(range(1, rounds + 2))


async def test_owners_that_post_to_each_other_do_not_lock_each_other_out(logs: list[PostgresLog], make) -> None:
    claims = [await log.claim("owner", 60.0, name) for log, name in zip(logs, ("s", "slow"), strict=False)]
    await logs[0].post("s", make.notes("warm"))
    before = [log._database.losses for log in logs]

    async def post(number: int) -> None:
        for _ in range(50):
            await logs[number].post(("slow", "s")[number], make.notes("n"), claim=claims[number])

    async with asyncio.timeout(GIVE_UP_SECONDS):
        await asyncio.gather(post(0), post(1))
    assert [log._database.losses for log in logs] == before
