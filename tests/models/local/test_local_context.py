"""The embedded model in a session that is longer than its window: it goes on, and is shown what was said first."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tests.kit.sessions import list_user_texts, run_to_end, select_events
from treadle import Agent, Limits
from treadle.events import ContextCompacted, ModelFailed
from treadle.messages import Request, Sampling
from treadle.models.base import ModelEvent
from treadle.models.local import weights
from treadle.models.local.local_model import LocalModel

FIRST = "My dog is called Biscuit. Please remember that."
TALE = "The wind went over the hill, and the people of the town sat by the fire and told old tales of kings. " * 5
TALES, WINDOW = 5, 512


class Listening(LocalModel):
    """The embedded model, and what it was asked."""

    asked: list[Request]

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        self.asked.append(request)
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event


@pytest.mark.skipif(
    weights.find_weights(None) is None, reason="THE WEIGHTS OF THE EMBEDDED MODEL ARE MISSING: make weights"
)
async def test_a_session_longer_than_the_window_keeps_its_first_message() -> None:
    model = Listening(context=WINDOW)
    model.asked = []
    short = Sampling(temperature=0.0, stop=(".", "!", "?", "\n"))
    agent = Agent(model, instructions="You are a friendly helper.", sampling=short, limits=Limits(turns=3))
    try:
        async with agent.session() as session:
            for text in (FIRST, *(f"Tale {number}: {TALE}" for number in range(TALES)), "What is my dog called?"):
                outcome = await run_to_end(session, text)
                assert outcome.reason == "answered" and outcome.answer.strip(), outcome
            facts = await session.facts()
    finally:
        model.unload()
    assert TALES * len(TALE) > 4 * WINDOW, "it all fitted"
    assert select_events(facts, ContextCompacted) and not select_events(facts, ModelFailed)
    # The answer of so small a model depends on the wording: see docs/local-model.md.
    assert FIRST in "\n".join(list_user_texts(model.asked[-1]))
    assert len(model.asked) == TALES + 2, "it was asked for a summary, which it cannot write"
