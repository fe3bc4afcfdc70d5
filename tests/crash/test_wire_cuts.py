"""Cut everywhere, over the wire: after a crash at any fact no provider has anything to reject, and turns stay prefixes.

The strict fakes answer 400 to an orphaned call, a missing result, a wrong role or an unknown field, as the real
services do. They run on real sockets, and our own adapters talk to them.
"""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.crash.test_cut_everywhere import Greedy, Modest, World, check, everything, go_on
from tests.kit.fakes.travel import WIRES, travelling
from treadle import Agent, Limits, tool
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Message, Reply, Request
from treadle.models.request_parts import MessageBuffer
from treadle.testing import call


@pytest.mark.parametrize("inner", [Modest, Greedy])
@pytest.mark.parametrize("wire", WIRES)
async def test_after_a_cut_at_any_fact_no_provider_rejects_what_it_is_sent(wire: str, inner: Any) -> None:
    points = await everything(InMemoryLog(), World(held=True))
    assert len(points) > 50
    for point in points:
        async with travelling(wire, inner()) as (model, fake):
            facts, world = await go_on(InMemoryLog(), point, model)
            assert fake.rejected == [], f"cut {point}"
            check(point, facts, world)
            assert fake.seen


class Fifty(Modest):
    """Calls in each of fifty turns, two at once in every third, then answers."""

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        self.asked += 1
        if self.asked > 50:
            yield Reply(text="done")
        else:
            calls = [call("look", page=self.asked), call("look", page=-self.asked)]
            yield Reply(text="" if self.asked % 2 else "hm", calls=tuple(calls[: 2 if self.asked % 3 == 0 else 1]))


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """The messages that adapters serialise, as they do it."""
    writes: list[Message] = []
    extend: Any = MessageBuffer.extend

    def noted(self: MessageBuffer, messages: Any, write: Any, start: Any) -> Any:
        def noting(message: Message, state: Any) -> Any:
            writes.append(message)
            return write(message, state)

        return extend(self, messages, noting, start)

    monkeypatch.setattr(MessageBuffer, "extend", noted)
    return writes


@pytest.mark.parametrize("wire", WIRES)
async def test_the_messages_of_each_turn_are_a_byte_prefix_of_the_next_turns_over_fifty_turns(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(safety="safe")
    async def look(page: int) -> str:
        """Look at a page."""
        return f"page {page} says “näh”"

    writes = count_writes(monkeypatch)
    async with travelling(wire, Fifty()) as (model, fake):
        agent = Agent(model, tools=[look], instructions="Look.", limits=Limits(turns=60, calls=200))
        assert await agent.ask("go") == "done"
        bodies = [seen.raw for seen in fake.seen]
    assert len(bodies) == 51 and fake.rejected == []
    assert len(writes) == 1 + 50 + 66, "each message is serialised once: the user's, the replies, the results"
    name = b'"input":[' if wire == "responses" else b'"messages":['
    for before, after in itertools.pairwise(bodies):
        start = before.index(name)
        sent = before[start : before.rindex(b"]")]
        # The cache mark moves on with the last message; what it marks does not change.
        sent, following = (body.replace(b',"cache_control":{"type":"ephemeral"}', b"") for body in (sent, after))
        assert sent.rstrip(b"]}") in following, "the earlier messages stand unchanged at the beginning of the later"
        assert following.index(sent.rstrip(b"]}")[: len(name) + 40]) == following.index(name)
