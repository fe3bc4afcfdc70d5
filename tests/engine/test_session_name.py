"""Automatic session names: after the first answer, in the background, never over a person's name."""

from typing import Any

import pytest

from tests.kit.sessions import Store, run_to_end, select_events, wait_for
from tests.kit.strict import StrictModel
from treadle import Agent, Runtime
from treadle.errors import ModelError
from treadle.events import SessionRenamed
from treadle.messages import Request
from treadle.runtime import name_session
from treadle.testing import ScriptedModel


class Namer(ScriptedModel):
    """Answers, and returns a name when it is asked for one."""

    def __init__(self, name: Any = "Tea in the garden") -> None:
        super().__init__()
        self.given = name
        self.asked = 0

    async def stream(self, request: Request) -> Any:
        naming = request.system.startswith("You name conversations")
        self.asked += naming
        inner = ScriptedModel(self.given if naming else "Here is some tea.")
        async for event in inner.stream(request):
            yield event


async def test_a_session_is_named_after_its_first_answer(store: Store) -> None:
    model = Namer()
    async with Runtime(store.open(), [Agent(StrictModel(model))], recover=False) as runtime:
        runtime.after_answer.append(name_session)
        async with runtime.session() as session:
            await run_to_end(session, "tea please")
            fact = await wait_for(session, SessionRenamed)
            await run_to_end(session, "and biscuits")
            assert (fact.name, fact.by) == ("Tea in the garden", "auto")
            assert (await runtime.log.get_info(session.id)).name == "Tea in the garden"
            assert model.asked == 1 and len(select_events(await session.facts(), SessionRenamed)) == 1


async def test_a_name_that_a_person_gave_is_not_replaced(store: Store) -> None:
    model = Namer()
    async with Runtime(store.open(), [Agent(StrictModel(model))], recover=False) as runtime:
        runtime.after_answer.append(name_session)
        async with runtime.session(name="mine") as session:
            await run_to_end(session, "tea please")
            while runtime._background:  # pyright: ignore[reportPrivateUsage]
                await next(iter(runtime._background))  # pyright: ignore[reportPrivateUsage]
            assert model.asked == 0
            await session.rename("theirs", by="auto")
            assert (await session.state()).name == "mine" and (await runtime.log.get_info(session.id)).name == "mine"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ('"Title: Tea, at last."', "Tea, at last"),
        ("## Tea\nand more", "Tea"),
        ("", "tea please, with so many words that it can no longer be a…"),
        ("x " * 80, "tea please, with so many words that it can no longer be a…"),
        (ModelError("no names today"), "tea please, with so many words that it can no longer be a…"),
    ],
)
async def test_a_bad_name_is_cleaned_or_replaced_by_the_first_words(given: Any, name: str) -> None:
    async with Runtime(":memory:", [Agent(Namer(given))], recover=False) as runtime:
        runtime.after_answer.append(name_session)
        async with runtime.session() as session:
            await run_to_end(session, "tea please, with so many words that it can no longer be a name for anything")
            assert (await wait_for(session, SessionRenamed)).name == name


async def test_a_model_that_cannot_summarize_is_not_asked_for_a_name() -> None:
    model = Namer()
    model.can_summarize = False  # pyright: ignore[reportAttributeAccessIssue]
    async with Runtime(":memory:", [Agent(model)], recover=False) as runtime:
        runtime.after_answer.append(name_session)
        async with runtime.session() as session:
            await run_to_end(session, "tea please")
            assert (await wait_for(session, SessionRenamed)).name == "tea please" and model.asked == 0


async def test_no_name_is_asked_for_unless_naming_is_switched_on() -> None:
    model = Namer()
    async with Agent(StrictModel(model)).session() as session:
        await run_to_end(session, "tea please")
    assert model.asked == 0
