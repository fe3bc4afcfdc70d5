"""Values that PostgreSQL cannot store: none of them stops another session, and none is an error of the store."""

import asyncio
import random
import string
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.kit.postgres import needs_postgres
from treadle.errors import NotFound, StoreError
from treadle.events import AgentConfig, AnyFact, Custom, RunFinished, SessionConfigured, SessionCreated, SessionRenamed
from treadle.log.base import Claim, SessionQuery
from treadle.log.postgres import PostgresLog
from treadle.log.postgres_writes import Batcher
from treadle.messages import Usage

pytestmark = needs_postgres

GIVE_UP_SECONDS = 30
LONG = "".join(random.Random(7).choices(string.ascii_letters, k=20_000))
BAD = ["a\0b", "a\ud800b", LONG]


@pytest.fixture
async def log(postgres_url: str) -> AsyncIterator[PostgresLog]:
    async with asyncio.timeout(GIVE_UP_SECONDS), PostgresLog(postgres_url) as opened:
        yield opened


async def begin(log: PostgresLog, name: str) -> Claim:
    await log.create(name, [SessionCreated(session_id=name, agent=AgentConfig(name="agent"))])
    claim = await log.claim("me", 60, name)
    assert claim is not None
    return claim


def finish_for(cost: float) -> RunFinished:
    return RunFinished(run_id="r", reason="answered", turns=1, usage=Usage(cost=cost))


async def test_facts_that_cannot_be_stored_do_not_stop_other_sessions(log: PostgresLog) -> None:
    claims = [await begin(log, f"s{number}") for number in range(5)]
    await log.append(claims[2], 1, [finish_for(1.5e308)])
    # The sum of the costs is larger than what the column can hold.
    facts: list[list[AnyFact]] = [[Custom(name="a.b")] for _ in claims]
    facts[2] = [finish_for(1.5e308)]
    heads = [log.get_head(claim.session_id) for claim in claims]
    results = await asyncio.gather(*map(log.append, claims, heads, facts), return_exceptions=True)
    assert isinstance(results.pop(2), StoreError)
    assert results == [None] * 4
    await log.append(claims[2], 2, [Custom(name="a.c")])  # this session goes on too
    assert [len(await log.read(claim.session_id)) for claim in claims] == [2, 2, 3, 2, 2]


async def test_an_error_that_nobody_expects_ends_one_batch_only() -> None:
    async def write(items: list[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        if 3 in items:
            raise RuntimeError("a bug")
        return [-item for item in items]

    async with asyncio.timeout(GIVE_UP_SECONDS):
        batcher = Batcher(write, lambda item: 1)
        results = await asyncio.gather(*map(batcher.add, range(1, 6)), return_exceptions=True)
        assert isinstance(results[2], RuntimeError) and results[:2] + results[3:] == [-1, -2, -4, -5]
        assert await batcher.add(7) == -7


async def test_all_who_wait_for_a_write_are_told_that_it_was_given_up() -> None:
    has_begun = asyncio.Event()

    async def write(items: list[int]) -> Sequence[int]:
        has_begun.set()
        await asyncio.Event().wait()
        return items

    async with asyncio.timeout(GIVE_UP_SECONDS):
        batcher = Batcher(write, lambda item: 1)
        first = asyncio.create_task(batcher.add(1))
        await has_begun.wait()
        second = asyncio.create_task(batcher.add(2))
        await asyncio.sleep(0)
        assert batcher._task is not None
        batcher._task.cancel()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(result, RuntimeError) for result in results)


@pytest.mark.parametrize("bad", BAD, ids=["zero", "half a letter", "long"])
async def test_text_that_cannot_be_stored_finds_nothing(log: PostgresLog, bad: str) -> None:
    await begin(log, "s")
    for asking in (
        log.get_info(bad),
        log.read(bad),
        log.claim("me", 5, bad),
        log.post(bad, [Custom(name="a.b")]),
        log.delete(bad),
        log.get_artifact("s", bad),
    ):
        with pytest.raises(NotFound):
            await asking
    with pytest.raises(NotFound):
        await anext(log.watch(bad))
    for field in ("agent", "workspace", "text", "name", "parent", "prefix"):
        assert not (await log.list_sessions(SessionQuery(**{field: bad}))).sessions
    assert await log.shared.get(bad) is None
    assert not await log.search(bad)


@pytest.mark.parametrize("bad", BAD, ids=["zero", "half a letter", "long"])
async def test_a_key_may_have_any_letters_and_any_length(log: PostgresLog, bad: str) -> None:
    claim = await begin(log, "s")
    assert (await log.post("s", [Custom(name="a.b")], bad)).is_new
    assert not (await log.post("s", [Custom(name="a.b")], bad)).is_new
    assert (await log.post("s", [Custom(name="a.b")], f"{bad}!")).is_new
    for _ in range(2):
        await log.append(claim, 3, [Custom(name="a.b")], f"own {bad}")
    assert len(await log.read("s")) == 4


@pytest.mark.parametrize("bad", [BAD[0], BAD[2]], ids=["zero", "long"])
async def test_a_session_may_have_any_name_and_model_that_json_has(log: PostgresLog, bad: str) -> None:
    claim = await begin(log, "s")
    await log.append(claim, 1, [SessionRenamed(name=bad), SessionConfigured(model=bad)])
    assert [getattr(fact, "name", "") for fact in await log.read("s", 1)] == [bad, ""]
    (found,) = (await log.list_sessions(SessionQuery(name=bad))).sessions
    assert found.id == "s"
