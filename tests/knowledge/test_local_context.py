"""The embedded model in a session that is longer than its window: it goes on, and knows what was said first."""

import pytest

from treadle import Agent, Limits
from treadle.events import ContextCompacted
from treadle.messages import Sampling
from treadle.models.local import weights
from treadle.models.local.model import LocalModel

TALE = "The wind went over the hill, and the people of the town sat by the fire and told old tales of kings. " * 5


@pytest.mark.skipif(weights.find(None) is None, reason="THE WEIGHTS OF THE EMBEDDED MODEL ARE MISSING: make weights")
async def test_a_session_longer_than_the_window_answers_a_question_about_its_first_message() -> None:
    model = LocalModel(context=512)
    short = Sampling(temperature=0.0, stop=(".", "!", "?", "\n"))
    agent = Agent(model, instructions="You are a friendly helper.", sampling=short, limits=Limits(turns=3))
    try:
        async with agent.session() as session:
            first = "My dog is called Biscuit. Please remember that."
            for text in (first, *(f"Tale {number}: {TALE}" for number in range(3))):
                async with session.run(text) as run:
                    outcome = await run.wait()
                assert outcome is not None and outcome.reason == "answered", outcome
            async with session.run("What is the name of my dog?") as run:
                outcome = await run.wait()
            facts = await session.facts()
    finally:
        model.unload()
    assert outcome is not None and "Biscuit" in outcome.answer
    assert any(isinstance(fact, ContextCompacted) for fact in facts), "it all fitted"
