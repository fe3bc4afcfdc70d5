"""A crash after any fact, with real adapters: no provider rejects a request, and each turn extends the one before.

Like the real services, the strict fakes answer 400 to an orphaned call, a missing result, a wrong role or an unknown
field. They run on real sockets.
"""

import itertools
from typing import Any

import pytest

from tests.crash.test_cut_everywhere import (
    EffectTools,
    check_after_crash,
    either_reply,
    record_full_session,
    resume_session,
)
from tests.kit.fake_model import FunctionModel
from tests.kit.fakes.travel import WIRES, open_wire_model
from treadle import Agent, Limits, tool
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Message, Reply, Request
from treadle.models.wire_format import MessageBuffer
from treadle.testing import call


@either_reply
@pytest.mark.parametrize("wire", WIRES)
async def test_after_a_crash_at_any_fact_no_provider_rejects_a_request(wire: str, reply: Any) -> None:
    points = await record_full_session(InMemoryLog(), EffectTools(held=True))
    assert len(points) > 50
    for point in points:
        async with open_wire_model(wire, FunctionModel(reply)) as (model, fake):
            facts, tools = await resume_session(InMemoryLog(), point, model)
            assert fake.rejected == [], f"cut {point}"
            check_after_crash(point, facts, tools)
            assert fake.seen


def look_in_fifty_turns(request: Request, number: int) -> Reply:
    """Make a call in each of fifty turns, two in every third turn, then answer."""
    if number > 50:
        return Reply(text="done")
    calls = [call("look", page=number), call("look", page=-number)]
    return Reply(text="" if number % 2 else "hm", calls=tuple(calls[: 2 if number % 3 == 0 else 1]))


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Collect the messages that adapters serialize."""
    writes: list[Message] = []
    extend: Any = MessageBuffer.extend

    def record_writes(self: MessageBuffer, messages: Any, write: Any, start: Any) -> Any:
        def record(message: Message, state: Any) -> Any:
            writes.append(message)
            return write(message, state)

        return extend(self, messages, record, start)

    monkeypatch.setattr(MessageBuffer, "extend", record_writes)
    return writes


@pytest.mark.parametrize("wire", WIRES)
async def test_the_messages_of_each_turn_are_a_byte_prefix_of_the_next_turns(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(safety="safe")
    async def look(page: int) -> str:
        """Look at a page."""
        return f"page {page} says “näh”"

    writes = count_writes(monkeypatch)
    async with open_wire_model(wire, FunctionModel(look_in_fifty_turns)) as (model, fake):
        agent = Agent(model, tools=[look], instructions="Look.", limits=Limits(turns=60, calls=200))
        assert await agent.ask("go") == "done"
        bodies = [seen.raw for seen in fake.seen]
    assert len(bodies) == 51 and fake.rejected == []
    assert len(writes) == 1 + 50 + 66, "each message is serialized once: the user's, the replies, the results"
    name = b'"input":[' if wire == "responses" else b'"messages":['
    for before, after in itertools.pairwise(bodies):
        start = before.index(name)
        sent = before[start : before.rindex(b"]")]
        # The cache mark moves to the last message. The marked messages do not change.
        sent, following = (body.replace(b',"cache_control":{"type":"ephemeral"}', b"") for body in (sent, after))
        assert sent.rstrip(b"]}") in following, "the earlier messages are an unchanged prefix"
        assert following.index(sent.rstrip(b"]}")[: len(name) + 40]) == following.index(name)
