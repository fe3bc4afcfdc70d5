"""Automatic session names: after the first answer, in the background, never over a person's name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kit.sessions import Store, run_agent, run_to_end, select_events, wait_for
from tests.kit.strict import StrictModel
from treadle import Agent, Runtime, Session
from treadle.errors import ModelError
from treadle.events import SessionRenamed
from treadle.messages import Request
from treadle.runtime import name_session
from treadle.testing import ScriptedModel


class NamingModel(ScriptedModel):
    """Answers, and returns a name when it is asked for one."""

    def __init__(self, name: Any = "Tea in the garden") -> None:
        super().__init__()
        self.given = name
        self.asked = 0

    async def stream(self, request: Request) -> Any:
        is_naming = request.system.startswith("You name conversations")
        self.asked += is_naming
        inner = ScriptedModel(self.given if is_naming else "Here is some tea.")
        async for event in inner.stream(request):
            yield event


@asynccontextmanager
async def open_session(model: Any, log: Any = ":memory:") -> AsyncIterator[Session]:
    """Open a session that is named after its first answer."""
    async with Runtime(log, [Agent(StrictModel(model))], recover=False) as runtime:
        runtime.after_answer.append(name_session)
        async with runtime.session() as session:
            yield session


async def test_a_session_is_named_once_after_its_first_answer(store: Store) -> None:
    model, log = NamingModel(), store.open()
    async with open_session(model, log) as session:
        await run_to_end(session, "tea please")
        fact = await wait_for(session, SessionRenamed)
        await run_to_end(session, "and biscuits")
    assert (fact.name, fact.by) == ("Tea in the garden", "auto")
    assert (await log.get_info(session.id)).name == "Tea in the garden"
    assert model.asked == 1 and len(select_events(await log.read(session.id), SessionRenamed)) == 1


async def test_a_name_that_a_person_gave_is_not_replaced(store: Store) -> None:
    model, log = NamingModel(), store.open()
    async with Runtime(log, [Agent(model)], recover=False) as runtime, runtime.session(name="mine") as session:
        runtime.after_answer.append(name_session)
        await run_to_end(session, "tea please")
        while runtime._background:  # pyright: ignore[reportPrivateUsage]
            await next(iter(runtime._background))  # pyright: ignore[reportPrivateUsage]
        await session.rename("theirs", by="auto")
        assert (await session.state()).name == "mine"
    assert model.asked == 0 and (await log.get_info(session.id)).name == "mine"


FIRST_WORDS = "tea please, with so many words that it can no longer be a…"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ('"Title: Tea, at last."', "Tea, at last"),
        ("## Tea\nand more", "Tea"),
        ("", FIRST_WORDS),
        ("x " * 80, FIRST_WORDS),
        (ModelError("no names today"), FIRST_WORDS),
    ],
    ids=["title in quotes", "heading", "empty", "too long", "failure"],
)
async def test_a_bad_name_is_cleaned_or_replaced_by_the_first_words(given: Any, name: str) -> None:
    async with open_session(NamingModel(given)) as session:
        await run_to_end(session, "tea please, with so many words that it can no longer be a name for anything")
        assert (await wait_for(session, SessionRenamed)).name == name


async def test_a_model_that_cannot_summarize_is_not_asked_for_a_name() -> None:
    model: Any = NamingModel()
    model.can_summarize = False
    async with open_session(model) as session:
        await run_to_end(session, "tea please")
        assert (await wait_for(session, SessionRenamed)).name == "tea please" and model.asked == 0


async def test_no_name_is_asked_for_unless_naming_is_switched_on() -> None:
    model = NamingModel()
    assert (await run_agent(Agent(StrictModel(model)), "tea please")).answer and model.asked == 0
