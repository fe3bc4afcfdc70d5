"""Rules for every protocol: stable prefixes, replies in pieces, histories of other models, missing ends."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.fakes import clients
from tests.kit.fakes.clients import ADD, PROTOCOLS, TOOLS, as_message, ask, collect_events, collect_reply, results, user
from tests.kit.fakes.server import Odd, Strict
from tests.kit.fakes.travel import WIRES
from tests.kit.sessions import note, run_agent
from treadle import Agent, Limits, messages
from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import (
    Call,
    ImagePart,
    Message,
    Messages,
    ModelMessage,
    Reply,
    Request,
    ResultMessage,
    Sampling,
    SignedReasoning,
)
from treadle.models.chat_completions import ChatCompletions
from treadle.models.openai_responses import OpenAIResponses
from treadle.models.wire_format import WireFormat

CALLS = (Call("call_1", "add", '{"a":1,"b":2}'), Call("call_2", "echo", '{"text":"größer"}'))


def find_wire(protocol: str) -> WireFormat:
    return PROTOCOLS[protocol].model("http://127.0.0.1:9")._wire


def drop_cache_marks(body: bytes) -> bytes:
    return body.replace(b',"cache_control":{"type":"ephemeral"}', b"")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_turn_begins_with_the_bytes_of_the_turn_before(protocol: str) -> None:
    wire, cache, items = find_wire(protocol), {}, [user("start — größer")]
    before = b""
    for turn in range(50):
        sent = drop_cache_marks(wire.build_body(Request("You help.", Messages(items), TOOLS, render_cache=cache), None))
        assert sent == drop_cache_marks(wire.build_body(Request("You help.", list(items), TOOLS), None))
        assert sent.startswith(before)
        json.loads(sent)
        before = sent.removesuffix(b"]}").removesuffix(b"]}")
        calls = (Call(f"call_{turn}", "add", f'{{"a": {turn}, "b": 1}}'), Call(f"x{turn}", "echo"))
        items += [ModelMessage(f"turn {turn}", calls), *results(calls[:1])]
        items.append(ResultMessage(f"x{turn}", "echo", "ok", parts=(ImagePart(data="QUJD"),)))
        if turn % 7 == 0:
            items.append(user("and on"))


@pytest.mark.parametrize("instructions", ["You help.", ""])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_body_is_the_only_copy_of_a_long_history(protocol: str, instructions: str) -> None:
    wire, cache, items = find_wire(protocol), {}, [user("x" * 1000) for _ in range(2000)]
    wire.build_body(Request(instructions, Messages(items), TOOLS, render_cache=cache), None)
    items += [ModelMessage("done"), user("and on")]
    request = Request(instructions, Messages(items), TOOLS, render_cache=cache)
    tracemalloc.start()
    try:
        body = wire.build_body(request, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(body) > 2_000_000
    assert peak < 1.5 * len(body), "the messages were copied more than once"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(data=st.data())
def test_a_context_is_written_the_same_whatever_was_written_before(protocol: str, data: st.DataObject) -> None:
    wire, cache, note = find_wire(protocol), {}, user("(Go on.)")
    calls = (Call("1", "add"), Call("2", "add"))
    flat: list[Message] = [user("one"), ModelMessage("a", calls), ResultMessage("1", "add", "x")]
    flat += [ResultMessage("2", "add", "y", parts=(ImagePart(data="QUJD"),)), user("two"), ModelMessage()]
    flat += [ModelMessage("b"), user("three"), ModelMessage("", calls[:1]), *results(calls[:1])]
    for _ in range(6):
        shown = flat[: data.draw(st.integers(1, len(flat)))]
        shown = [*([note] if data.draw(st.booleans()) else []), *shown, *([note] if data.draw(st.booleans()) else [])]
        tools = data.draw(st.sampled_from([(ADD,), TOOLS]))
        sent = wire.build_body(Request("s", shown, tools, render_cache=cache), None)
        assert sent == wire.build_body(Request("s", list(shown), tools), None)
        json.loads(sent)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_reply_becomes_deltas_and_one_reply_in_one_piece_or_byte_by_byte(protocol: str) -> None:
    fake, make = PROTOCOLS[protocol]
    reply = Reply(text="I add.", reasoning="hm", calls=CALLS, usage=messages.Usage(100, 20, 60, 5))
    async with fake([reply, Odd(reply, split=1)]) as server:
        model = make(server)
        burst = await collect_events(model, ask("hi", tools=TOOLS))
        slow = await collect_events(model, ask("hi", tools=TOOLS))
    assert [event for event in burst[:-1] if not isinstance(event, SignedReasoning)] == [
        ReasoningDelta(text="hm"),
        TextDelta(text="I add."),
        CallDelta(index=0, tool="add", arguments=CALLS[0].arguments),
        CallDelta(index=1, tool="echo", arguments=CALLS[1].arguments),
    ]
    named = [(event.index, event.tool) for event in slow if isinstance(event, CallDelta) and event.tool]
    assert named == [(0, "add"), (1, "echo")], "only the first piece of a call carries its name"
    for whole in (burst[-1], slow[-1]):
        assert isinstance(whole, Reply)
        assert (whole.text, whole.reasoning, whole.finish) == ("I add.", "hm", "calls")
        assert [(call.tool, call.arguments) for call in whole.calls] == [(c.tool, c.arguments) for c in CALLS]
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (100, 20)
        if protocol != "ollama":  # which has neither ids nor a count of cached tokens
            assert (whole.calls, whole.usage.cached_tokens) == (CALLS, 60)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("leak", ["◁think▷hm◁/think▷", "thought\nhm\n\n", "<|channel|>analysis<|message|>hm<|end|>"])
async def test_leaked_reasoning_is_reasoning_with_every_protocol(protocol: str, leak: str) -> None:
    fake, make = PROTOCOLS[protocol]
    reply = Reply(text=f"{leak}I add.")
    async with fake([reply, Odd(reply, split=1)]) as server:
        for events in [await collect_events(make(server), ask("hi")) for _ in range(2)]:
            whole = events[-1]
            assert isinstance(whole, Reply) and (whole.text, whole.reasoning) == ("I add.", "hm")
            assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "I add."
            assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "hm"


@pytest.mark.parametrize(
    ("protocol", "kinds"),
    [
        ("anthropic", ["thinking", "text", "tool_use", "tool_use"]),
        ("responses", ["reasoning", "message", "function_call", "function_call"]),
    ],
)
async def test_a_tool_loop_with_reasoning_is_accepted_turn_after_turn(protocol: str, kinds: list[str]) -> None:
    fake, make = PROTOCOLS[protocol]
    reasoned = Reply(text="I add.", reasoning="let me think", calls=CALLS)
    async with fake([reasoned, Reply(text="3", reasoning="done")]) as server:
        model, items, cache = make(server), [user("hi")], {}
        for turn in range(4):
            reply = await collect_reply(model, Request("You help.", Messages(items), TOOLS, render_cache=cache))
            calls = tuple(Call(f"call_{turn}_{n}", call.tool, call.arguments) for n, call in enumerate(reply.calls))
            items.append(ModelMessage(reply.text, calls, reply.reasoning, reply.opaque))
            items += results(calls) or [user("again")]
        assert server.rejected == []
        body = server.seen[1].body
    sent = body["messages"][1]["content"] if protocol == "anthropic" else body["input"][1:5]
    assert [item["type"] for item in sent] == kinds


@pytest.mark.parametrize("protocol", WIRES)
async def test_ids_names_and_arguments_of_other_models_are_made_acceptable(protocol: str) -> None:
    odd = (Call("toolu_" + "x" * 90, "functions.add", '{"a"'), Call("functions.add:0", "", "[]"))
    odd = (*odd, Call("ü", "add", ""), Call("", "add"))
    await clients.capture_body(protocol, "hi", ModelMessage(" ", odd), *results(odd), tools=TOOLS)


@pytest.mark.parametrize("protocol", WIRES)
async def test_a_last_turn_without_calls_keeps_the_tools_and_forbids_them(protocol: str) -> None:
    fake, make = PROTOCOLS[protocol]
    history = ("hi", ModelMessage("", CALLS), *results(CALLS))
    async with fake() as server:
        model, cache = make(server), {}
        await collect_reply(model, ask(*history, tools=TOOLS, render_cache=cache))
        await collect_reply(model, ask(*history, "sum up", tools=TOOLS, tool_choice="none", render_cache=cache))
        extra = {"tool_choice": "required", "parallel_tool_calls": True}
        await collect_reply(model, ask("no tools at all", sampling=Sampling(extra=extra)))
        assert server.rejected == []
        with_tools, last, plain = (seen.body for seen in server.seen)
    assert last["tools"] == with_tools["tools"]
    assert last["tool_choice"] in ("none", {"type": "none"})
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & plain.keys()


NO_RESULTS, NO_CALLS = ("hi", ModelMessage("", CALLS), "no results"), ("hi", *results(CALLS))
LAST_WORD = ("hi", as_message(Reply(text="the last word")))


@pytest.mark.parametrize(
    ("protocol", "orphans"),
    [
        ("chat", [NO_RESULTS, NO_CALLS]),
        ("anthropic", [NO_RESULTS, NO_CALLS, LAST_WORD]),
        ("responses", [NO_RESULTS, NO_CALLS, LAST_WORD]),
    ],
)
async def test_the_fakes_refuse_what_a_provider_refuses(protocol: str, orphans: Any) -> None:
    fake, make = PROTOCOLS[protocol]
    async with fake() as server:
        for history in orphans:
            error = await clients.collect_failure(make(server), ask(*history, tools=TOOLS))
            assert error.kind == "bad_request"
        assert len(server.rejected) == len(orphans)


def list_bodies(server: Strict) -> list[dict[str, Any]]:
    """The requests for a reply, without those that ask about the model."""
    return [seen.body for seen in server.seen if not seen.path.endswith("/show")]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("obeys", [True, False], ids=["a model that writes", "a model that always calls"])
async def test_a_wrap_up_offers_no_tools_on_the_wire(protocol: str, obeys: bool) -> None:
    fake, make = PROTOCOLS[protocol]
    calling = Reply(text="So far.", calls=(Call("call_1", "note", '{"text":"x"}'),), finish="calls")

    def answer(body: dict[str, Any]) -> Reply:
        return Reply(text="In short.") if obeys and len(list_bodies(server)) > 1 else calling

    async with fake(answer) as server:
        run = await run_agent(Agent(make(server), tools=[note], limits=Limits(turns=1)))
        assert server.rejected == []
        first, wrap_up, *again = list_bodies(server)
    assert (run.reason, run.answer) == ("turn_limit", "In short." if obeys else "So far.")
    assert "Write something down" in json.dumps(first["tools"])
    if protocol == "anthropic":  # it wants the tools of the history declared, so they stand there without content
        [declared] = wrap_up["tools"]
        assert (declared["name"], declared["description"]) == ("note", "")
        assert declared["input_schema"] == {"type": "object"}
        assert wrap_up["tool_choice"] == {"type": "none"}
    else:
        assert not {"tools", "tool_choice"} & wrap_up.keys()
    assert len(again) == (0 if obeys else 1)
    for body in again:
        assert not {"tools", "tool_choice"} & body.keys()
        text = json.dumps(body)
        assert not any(word in text for word in ('"tool_use"', '"tool_result"', '"tool_calls"', '"function_call'))
        assert "You called note" in text and "noted x" in text


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_text_only_run_offers_no_tools_on_the_wire(protocol: str) -> None:
    fake, make = PROTOCOLS[protocol]
    calling = Reply(calls=(Call("call_1", "note", '{"text":"x"}'),), finish="calls")
    async with fake([calling, Reply(text="Words.")]) as server:
        run = await run_agent(Agent(make(server), tools=[note], limits=Limits(turns=0)))
        assert server.rejected == []
        first, again = list_bodies(server)
    assert not {"tools", "tool_choice"} & (first.keys() | again.keys())
    assert (run.reason, run.answer) == ("answered", "Words.")


@pytest.mark.parametrize("wire", [ChatCompletions("fake", "m"), OpenAIResponses("fake", "m")])
def test_a_limit_of_tokens_fits_beside_the_input_in_the_window(wire: ChatCompletions | OpenAIResponses) -> None:
    def read_limit(window: int | None, *parts: str | messages.Part, most: int = 32_000) -> int:
        return json.loads(wire.build_body(ask(user("hi", *parts), max_tokens=most), window))[wire.limit_field]

    assert read_limit(None) == 32_000
    assert read_limit(128_000) == 32_000
    assert 7_000 < read_limit(8_192) < 8_192
    assert 3_000 < read_limit(8_192, "word " * 2_500) < 8_192 - 2_500
    assert 7_000 < read_limit(8_192, messages.ImagePart("A" * 100_000)) < 8_192, "an image's bytes are no tokens"
    assert read_limit(8_192, "word " * 8_000) == 256
    assert read_limit(8_192, "word " * 8_000, most=100) == 100
