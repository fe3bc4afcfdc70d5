"""Sessions under an id that the program chooses: `agent.session(store, id="case-7")`."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, Runtime
from treadle.errors import BadInput, Conflict, NotFound
from treadle.events import AnyFact, MessageReceived
from treadle.log.in_memory import InMemoryLog
from treadle.testing import ScriptedModel

OPEN_CASE = """\
import asyncio, sys
from treadle import Agent
from treadle.testing import ScriptedModel

async def main():
    async with Agent(ScriptedModel()).session(sys.argv[1], id="case-7") as session:
        print(session.id, (await session.facts())[0].at)

asyncio.run(main())
"""


async def test_an_id_creates_a_session_and_opens_it_again(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel("one", "two"))
    async with agent.session(tmp_path / "cases.db", id="case-7", name="the case") as session:
        assert session.id == "case-7" and await session.ask("first") == "one"
    async with agent.session(tmp_path / "cases.db", id="case-8") as session:
        assert session.id == "case-8"
    async with agent.session(tmp_path / "cases.db", id="case-7") as session:
        assert (await session.state()).name == "the case" and await session.ask("second") == "two"
        assert sum(isinstance(fact, MessageReceived) for fact in await session.facts()) == 2


async def test_a_runtime_with_several_agents_creates_a_session_only_for_a_named_one() -> None:
    agents = [Agent(ScriptedModel(), name=name) for name in ("a", "b")]
    async with Runtime(":memory:", agents) as runtime:
        with pytest.raises(NotFound, match="no session case-7"):
            async with runtime.session(id="case-7"):
                pass
        async with runtime.session("b", id="case-7"):
            pass
        async with runtime.session(id="case-7") as session:
            assert session.agent.name == "b"
        with pytest.raises(BadInput, match="belongs to the agent 'b'"):
            async with runtime.session("a", id="case-7"):
                pass


async def test_new_with_an_id_that_is_taken_is_a_conflict() -> None:
    log, agent = InMemoryLog(), Agent(ScriptedModel())
    async with agent.session(log, id="case-7", new=True):
        pass
    with pytest.raises(Conflict, match="case-7"):
        async with agent.session(log, id="case-7", new=True):
            pass


@pytest.mark.parametrize("wrong", ["", "last", "a/b", "..", "-x", "x y", "é", "x" * 65, "x\n", 7, None])
async def test_an_id_that_is_no_id_is_refused(wrong: Any) -> None:
    log, agent = InMemoryLog(), Agent(ScriptedModel())
    async with agent.session(log):
        pass
    with pytest.raises(BadInput, match="cannot be the id of a session; it has 1 to 64 letters"):
        async with agent.session(log, id=wrong):
            pass


class CrowdedLog(InMemoryLog):
    """A log in which another process always creates the session first."""

    async def create(self, session_id: str, facts: Sequence[AnyFact], **options: Any) -> None:
        await super().create(session_id, facts)
        await super().create(session_id, facts, **options)


async def test_a_session_that_another_process_creates_meanwhile_is_opened() -> None:
    async with Agent(ScriptedModel("one")).session(CrowdedLog(), id="case-7") as session:
        assert session.id == "case-7" and await session.ask("first") == "one"


async def test_processes_that_open_the_same_id_at_once_share_one_session(tmp_path: Path) -> None:
    words = [sys.executable, "-c", OPEN_CASE, str(tmp_path / "cases.db")]
    started = [await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE) for _ in range(4)]
    said = {(await process.communicate())[0] for process in started}
    assert len(said) == 1 and said.pop().startswith(b"case-7 ")
