"""What type an answer has, for the reader and for the type checker: `make check` reads this file too."""

from typing import Any, assert_type

import pytest
from pydantic import BaseModel, ValidationError

from treadle import Agent, Runtime
from treadle.testing import ScriptedModel


class Sum(BaseModel):
    total: int


async def test_an_answer_is_text_unless_the_output_says_otherwise() -> None:
    text = assert_type(await Agent(ScriptedModel("four")).ask("2+2?"), str)
    assert text == "four"
    numbers = assert_type(await Agent(ScriptedModel("[1, 2]"), output=list[int]).ask("?"), list[int])
    assert numbers == [1, 2]
    with pytest.raises(ValidationError):
        Agent(ScriptedModel(), output=int).parse_output("four")


async def test_an_answer_has_the_type_of_its_agent_in_its_sessions_and_their_forks() -> None:
    agent = Agent(ScriptedModel('{"total": 4}', '{"total": 5}'), output=Sum)
    async with agent.session() as session:
        assert assert_type(await session.ask("2+2?"), Sum).total == 4
        fork = await session.fork()
        assert assert_type(await fork.ask("and one more?"), Sum).total == 5


async def test_a_runtime_has_agents_of_any_type() -> None:
    agents = [Agent(ScriptedModel("four"), name="text"), Agent(ScriptedModel("4"), name="number", output=int)]
    async with Runtime(":memory:", agents) as runtime, runtime.session("number") as session:
        assert assert_type(await session.ask("2+2?"), Any) == 4
