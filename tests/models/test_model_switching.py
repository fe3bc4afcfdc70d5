"""A session may go to another model at any turn, in any direction, with reasoning and calls in its history."""

import itertools
from typing import Any

import pytest

from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.clients import PROTOCOLS, TOOLS, anthropic_model, collect_reply, responses_model, results, user
from tests.kit.fakes.responses import StrictResponses
from tests.kit.fakes.travel import WIRES
from treadle.messages import Call, Message, Messages, ModelMessage, Reply, Request, Sampling
from treadle.models.remote import RemoteModel

SCRIPT = [
    Reply(
        text="I add.",
        reasoning="both at once",
        calls=(Call("call:1", "add", '{"a":1,"b":2}'), Call("call.2" * 12, "echo", "")),
    ),
    Reply(text="That makes 3.", reasoning="easy"),
]


async def take_turns(model: RemoteModel, items: list[Message], cache: dict[str, Any], count: int) -> None:
    """Let `model` answer `count` times, with unique call ids as the engine gives them."""
    thinks = "Anthropic" in type(model._wire).__name__
    sampling = Sampling(extra={"thinking": {"type": "enabled", "budget_tokens": 2000}} if thinks else {})
    for _ in range(count):
        request = Request("You help.", Messages(items), TOOLS, sampling=sampling, render_cache=cache)
        reply = await collect_reply(model, request)
        calls = tuple(Call(f"{call.id}_{len(items)}", call.tool, call.arguments) for call in reply.calls)
        items.append(ModelMessage(reply.text, calls, reply.reasoning, reply.opaque, reply.model))
        items += results(calls) if calls else [user("and on")]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WIRES, WIRES)))
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_switching_after_any_turn_is_accepted(first: str, second: str, at: int) -> None:
    (fake_a, make_a), (fake_b, make_b) = PROTOCOLS[first], PROTOCOLS[second]
    async with fake_a(SCRIPT * 9) as one, fake_b(SCRIPT * 9) as two:
        a, b = make_a(one, "model-a"), make_b(two, "model-b")
        items: list[Message] = [user("add and echo")]
        cache: dict[str, Any] = {}
        await take_turns(a, items, cache, at)
        await take_turns(b, items, cache, 3)
        await take_turns(a, items, cache, 2)
        assert one.rejected + two.rejected == []
        assert len(one.seen) == at + 2
        assert len(two.seen) == 3


async def test_own_reasoning_comes_back_after_a_turn_of_another_model() -> None:
    async with StrictAnthropic(SCRIPT * 9) as one, StrictResponses(SCRIPT * 9) as two:
        items: list[Message] = [user("go")]
        cache: dict[str, Any] = {}
        await take_turns(anthropic_model(one, "model-a"), items, cache, 2)
        await take_turns(responses_model(two, "model-b"), items, cache, 2)
        await take_turns(anthropic_model(one, "model-a"), items, cache, 1)
        kinds = [[b["type"] for b in m["content"]] for m in one.seen[-1].body["messages"] if m["role"] == "assistant"]
        assert kinds[0][0] == "thinking"
        assert kinds[1][0] == "thinking"
        assert "thinking" not in kinds[2] + kinds[3]
        assert one.rejected == []
