"""Compaction against strict fakes of the three wire formats, over real sockets: nothing is ever refused."""

from typing import Any

import pytest

from tests.engine.test_compaction import FIRST, page, render_request
from tests.kit.counting_model import CountingModel
from tests.kit.fakes.travel import WIRES, open_wire_model
from tests.kit.sessions import run_agent
from treadle import Agent, Limits
from treadle.events import ContextCompacted
from treadle.messages import Request
from treadle.testing import call, say


def read_pages(request: Request, number: int) -> Any:
    """Read one or two pages a turn, for sixty turns."""
    if number >= 60:
        return "All counted."
    return say(f"Page {number}.", *(call("page", number=number) for _ in range(1 + number % 2)))


@pytest.mark.parametrize("wire", WIRES)
async def test_no_provider_refuses_any_of_sixty_turns_in_a_small_window(wire: str) -> None:
    inner = CountingModel(read_pages)
    async with open_wire_model(wire, inner) as (model, provider):
        model.window = inner.window
        run = await run_agent(Agent(model, tools=[page], limits=Limits(turns=100, calls=200)), FIRST)
        assert provider.rejected == []
    assert run.reason == "answered", run.outcome.error
    assert len(run.select(ContextCompacted)) > 3 and inner.refused == 0
    assert len(inner.requests) == 60 and all(FIRST in render_request(request) for request in inner.requests)
