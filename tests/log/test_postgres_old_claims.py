"""A claim fits only the session that it was made for, whatever gets its id or its number later."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.kit.postgres import PostgresServer, needs_postgres
from tests.log.nodes import Nodes
from treadle.errors import ClaimLost, NotFound, StoreLostFacts
from treadle.events import AgentConfig, Custom, SessionCreated
from treadle.log.base import Claim
from treadle.log.postgres import PostgresLog

pytestmark = needs_postgres

GIVE_UP_SECONDS = 30


@pytest.fixture
async def log(postgres_url: str) -> AsyncIterator[PostgresLog]:
    async with asyncio.timeout(GIVE_UP_SECONDS), PostgresLog(postgres_url) as opened:
        yield opened


async def begin(log: PostgresLog, name: str, ttl: float = 60) -> Claim:
    await log.create(name, [SessionCreated(session_id=name, agent=AgentConfig(name="agent"))])
    claim = await log.claim("me", ttl, name)
    assert claim is not None
    return claim


async def check_is_refused(log: PostgresLog, claim: Claim) -> None:
    """Check that no write with the claim is stored."""
    for write in (
        lambda: log.append(claim, 1, [Custom(name="a.late")]),
        lambda: log.append(claim, 1, [Custom(name="a.late")], "key"),
        lambda: log.renew(claim),
        lambda: log.release(claim, 1),
        lambda: log.put_artifact(claim.session_id, b"late", claim=claim),
        lambda: log.create("helper", [SessionCreated(session_id="helper")], claim=claim),
        lambda: log.post("other", [Custom(name="a.late")], claim=claim),
    ):
        with pytest.raises((ClaimLost, NotFound, StoreLostFacts)):
            await write()


async def test_a_claim_on_a_deleted_session_does_not_fit_a_new_one_with_its_id(
    log: PostgresLog, postgres_url: str
) -> None:
    await begin(log, "other")
    old = await begin(log, "s", ttl=0.0)
    async with PostgresLog(postgres_url) as elsewhere:
        await elsewhere.delete("s")
        await elsewhere.create("s", [SessionCreated(session_id="s", agent=AgentConfig(name="agent"))])
        new = await log.claim("me", 60, "s")
        assert new is not None
        await check_is_refused(log, old)
        assert len(await elsewhere.read("s")) == 1 and (await elsewhere.get_info("s")).owner == "me"
        await log.append(new, 1, [Custom(name="a.new")])


async def test_a_claim_on_a_lost_session_does_not_fit_one_that_got_its_number(
    log: PostgresLog, postgres_server: PostgresServer, postgres_url: str
) -> None:
    await begin(log, "other")
    old = await begin(log, "lost")
    # As after a fail-over to a standby that knew nothing of it.
    database = postgres_url.rpartition("/")[2]
    ((num,),) = postgres_server.query("DELETE FROM treadle.sessions WHERE id = 'lost' RETURNING num", database=database)
    postgres_server.query("DELETE FROM treadle.facts WHERE session = %s", num, database=database)
    postgres_server.query(f"ALTER TABLE treadle.sessions ALTER num RESTART WITH {num}", database=database)
    new = await begin(log, "new")
    await check_is_refused(log, old)
    assert len(await log.read("new")) == 1 and (await log.get_info("new")).owner == "me"
    await log.append(new, 1, [Custom(name="a.new")])


@pytest.mark.parametrize("listens", [True, False])
async def test_a_watch_ends_when_another_session_has_got_the_id(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS), Nodes(postgres_url) as nodes:
        here, elsewhere = await nodes.open(), await nodes.open()
        await elsewhere.create("s", [SessionCreated(session_id="s")])
        await elsewhere.post("s", [Custom(name="a.old"), Custom(name="a.old")])
        screen = nodes.watch(here)
        await screen.shows("[1][2][3]")
        if not listens:
            monkeypatch.setattr(here._wakeups, "_receive", lambda payload: None)
        await elsewhere.delete("s")
        await elsewhere.create("s", [SessionCreated(session_id="s")])
        await asyncio.wait((screen._task,))
        assert screen.text == "[1][2][3]"
        again = nodes.watch(here)
        await again.shows("[1]")


async def test_the_watch_of_an_owner_ends_when_its_session_has_lost_facts(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS), Nodes(postgres_url) as nodes:
        log = await nodes.open()
        claim = await begin(log, "s")
        await log.append(claim, 1, [Custom(name="a.lost"), Custom(name="a.lost")])
        screen = nodes.watch(log)
        await screen.shows("[1][2][3]")
        database = postgres_url.rpartition("/")[2]
        postgres_server.query("DELETE FROM treadle.facts WHERE seq > 1", database=database)
        postgres_server.query("UPDATE treadle.sessions SET head = 1", database=database)
        with pytest.raises(StoreLostFacts):
            await log.append(claim, 3, [Custom(name="a.next")])
        await asyncio.wait((screen._task,))
        await log.append(claim, 1, [Custom(name="a.again")])
        again = nodes.watch(log)
        await again.shows("[1][2]")
