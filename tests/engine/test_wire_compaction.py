"""Compaction against strict fakes of the three wire formats, over real sockets: nothing is ever refused."""

import itertools
import json
from typing import Any

import pytest

from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import anthropic_model, chat_model, responses_model
from tests.kit.fakes.responses import StrictResponses
from tests.kit.sessions import run_to_end, select_events
from treadle import Agent, Limits, tool
from treadle.events import ContextCompacted
from treadle.messages import Call, Reply, Usage

FIRST = "Count every page of the great book, and never use the red ink."
PROTOCOLS: dict[str, tuple[Any, Any]] = {
    "chat": (StrictChat, chat_model),
    "anthropic": (StrictAnthropic, anthropic_model),
    "responses": (StrictResponses, responses_model),
}


@tool(safety="safe")
async def page(number: int) -> str:
    """Read a page."""
    return f"page {number} " + "lorem ipsum dolor sit amet " * 20


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_no_provider_refuses_any_of_sixty_turns_in_a_small_window(name: str) -> None:
    fake, make = PROTOCOLS[name]
    numbers = itertools.count(1)
    bodies: list[str] = []

    def script(body: dict[str, Any]) -> Reply:
        text = json.dumps(body)
        usage = Usage(len(text) // 4, 20)
        if "You keep the notes" in text:
            return Reply(text="- pages were read", usage=usage)
        bodies.append(text)
        number = next(numbers)
        if number >= 60:
            return Reply(text="All counted.", usage=usage)
        calls = tuple(
            Call(f"c{number}_{place}", "page", json.dumps({"number": number})) for place in range(1 + number % 2)
        )
        return Reply(text=f"Page {number}.", calls=calls, finish="calls", usage=usage)

    async with fake(script) as provider:
        model = make(provider)
        model._window = 4096
        agent = Agent(model, tools=[page], limits=Limits(turns=100, calls=200))
        try:
            async with agent.session() as session:
                outcome = await run_to_end(session, FIRST)
                compactions = select_events(await session.facts(), ContextCompacted)
        finally:
            await model.close()
        assert provider.rejected == []
    assert outcome.reason == "answered", outcome.error
    assert len(compactions) > 3 and all(FIRST in body for body in bodies)
    assert max(map(len, bodies)) // 4 < 4096
