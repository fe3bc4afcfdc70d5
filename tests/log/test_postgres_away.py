"""A database that goes away: a process that uses it waits for it, and can leave without it."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from tests.kit.postgres import PostgresServer, require_postgres
from treadle import Agent, Grant, Runtime, tool
from treadle.events import CallFinished, Event, RunFinished
from treadle.log.base import Node
from treadle.log.postgres import PostgresLog
from treadle.log.postgres_database import STATEMENT_SECONDS
from treadle.testing.scripted_model import Line, ScriptedModel, call

GIVE_UP_SECONDS = 60.0
"""Longer than any wait here, so that only a hang exceeds it."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    require_postgres()
    with PostgresServer() as server:
        yield server


async def test_a_process_leaves_while_its_database_is_away_and_another_goes_on_later(server: PostgresServer) -> None:
    url, ran, has_begun, may_go_on = server.build_url(), list[str](), asyncio.Event(), asyncio.Event()

    @tool(safety="caution")
    async def mark(text: str) -> str:
        """Note a text, and wait until the test allows to go on."""
        ran.append(text)
        has_begun.set()
        await may_go_on.wait()
        return text

    def build_agent(*script: Line) -> Agent:
        return Agent(ScriptedModel(script), tools=[mark], name="agent", grant=Grant(approve=("mark",)))

    async with asyncio.timeout(GIVE_UP_SECONDS):
        async with Runtime(url, [build_agent(call("mark", text="once"))], lease=1.0) as runtime:
            session = await runtime.create("agent")
            await session.post("go")
            await has_begun.wait()
            server.kill()
            may_go_on.set()  # the result cannot be stored
    server.start()
    async with asyncio.timeout(GIVE_UP_SECONDS), Runtime(url, [build_agent("done")], lease=1.0) as runtime:
        facts: list[Event] = []
        async for event in runtime.log.watch(session.id):
            facts.append(event)
            if isinstance(event, RunFinished):
                break
    statuses = [fact.status for fact in facts if isinstance(fact, CallFinished)]
    assert ran == ["once"] and statuses == ["interrupted"]
    assert isinstance(facts[-1], RunFinished) and facts[-1].reason == "answered"


async def test_a_node_closes_its_log_while_the_database_does_not_answer(postgres_url: str) -> None:
    log = PostgresLog(postgres_url)
    await log.join(Node("n"))
    async with await psycopg.AsyncConnection.connect(postgres_url) as blocker:
        await blocker.execute("LOCK TABLE treadle.nodes")
        async with asyncio.timeout(STATEMENT_SECONDS * 2 / 3):
            await log.close()
