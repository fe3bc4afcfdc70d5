"""Ollama is spoken to in its own words, so that the window is what was asked for."""

import json

import pytest

from tests.kit.fakes.clients import ADD, ECHO, ask, events_of, model_of, reply_of, results, said, user
from tests.kit.fakes.ollama import FakeOllama
from tests.kit.fakes.server import Odd
from treadle.errors import ModelError
from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import (
    Call,
    ImagePart,
    Messages,
    ModelMessage,
    Reply,
    Request,
    ResultMessage,
    Sampling,
    TextPart,
    UserMessage,
)
from treadle.models.model_info import probe_ollama
from treadle.models.ollama_chat import OllamaChat
from treadle.models.remote import RemoteModel

CALLS = (Call("", "add", '{"a":1,"b":2}'), Call("", "echo", '{"text":"größer"}'))
TOOLS = (ADD, ECHO)


def ollama_model(fake: FakeOllama) -> RemoteModel:
    model = model_of(fake, OllamaChat("ollama", "m"), provider="ollama")
    return RemoteModel(OllamaChat("ollama", "m"), model.endpoint, probe=probe_ollama)


@pytest.mark.parametrize(
    ("parameters", "context", "window"),
    [("", 8192, 8192), ("", 131_072, 32_768), ("stop  x\nnum_ctx    16384", 131_072, 16_384)],
)
async def test_the_window_is_asked_and_set(parameters: str, context: int, window: int) -> None:
    async with FakeOllama() as fake:
        fake.parameters, fake.context = parameters, context
        model = ollama_model(fake)
        await reply_of(model, ask("hi"))
        assert model.window == window
        assert fake.seen[-1].body["options"]["num_ctx"] == window


async def test_what_does_not_fit_is_refused_and_not_cut() -> None:
    async with FakeOllama() as fake:
        fake.context = 4000
        with pytest.raises(ModelError, match="the window of ollama:m has 4000") as caught:
            await reply_of(ollama_model(fake), ask("x" * 40_000))
        assert caught.value.kind == "too_long"
        unprobed = model_of(fake, OllamaChat("ollama", "m"))
        with pytest.raises(ModelError) as caught:
            await reply_of(unprobed, ask("x" * 40_000))
        assert caught.value.kind == "too_long"


async def test_a_tool_loop_is_accepted_and_read() -> None:
    script = [Reply(text="I add.", reasoning="hm", calls=CALLS), Reply(text="3")]
    async with FakeOllama([*script, Odd(script[0], split=1)]) as fake:
        model = ollama_model(fake)
        got = await events_of(model, ask("hi", tools=TOOLS))
        assert [type(event) for event in got] == [ReasoningDelta, TextDelta, CallDelta, CallDelta, Reply]
        first = got[-1]
        assert isinstance(first, Reply)
        assert [(c.tool, c.arguments) for c in first.calls] == [(c.tool, c.arguments) for c in CALLS]
        assert len({call.id for call in first.calls}) == 2
        assert (first.finish, first.usage.input_tokens, first.usage.estimated) == ("calls", 11, False)
        picture = ResultMessage(first.calls[1].id, "echo", "see", parts=(ImagePart(data="QUJD"),))
        request = ask("hi", said(first), *results(first.calls[:1]), picture, tools=TOOLS)
        assert (await reply_of(model, request)).text == "3"
        assert fake.rejected == []
        assert fake.seen[-1].body["messages"][-1]["images"] == ["QUJD"]
        again = await reply_of(model, ask("hi", tools=TOOLS))
        assert (again.text, again.reasoning) == (first.text, first.reasoning)


async def test_sampling_and_format_are_translated() -> None:
    sampling = Sampling(0.1, 0.5, 3, ("END",), {"options": {"top_k": 5, "num_ctx": 99_000}, "keep_alive": "1h"})
    async with FakeOllama() as fake:
        request = ask(UserMessage((TextPart("look"), ImagePart(data="QUJD"))), sampling=sampling, max_tokens=9)
        request = Request(
            request.system, request.messages, sampling=sampling, max_tokens=9, output_schema={"type": "object"}
        )
        await reply_of(ollama_model(fake), request)
        assert fake.rejected == []
        sent = fake.seen[-1].body
        await reply_of(ollama_model(fake), ask("hi", tools=TOOLS, tool_choice="none"))
        assert "tools" not in fake.seen[-1].body
    assert sent["options"] == {
        "num_ctx": 99_000,
        "num_predict": 9,
        "temperature": 0.1,
        "top_p": 0.5,
        "seed": 3,
        "stop": ["END"],
        "top_k": 5,
    }
    assert sent["format"] == {"type": "object"}
    assert sent["keep_alive"] == "1h"


def test_turn_n_is_a_byte_prefix_of_turn_n_plus_one() -> None:
    wire, cache, items = OllamaChat("ollama", "m"), {}, [user("start")]
    before = b""
    for turn in range(50):
        sent = wire.build_body(Request("You help.", Messages(items), TOOLS, render_cache=cache), 4096)
        assert sent.startswith(before)
        json.loads(sent)
        before = sent.removesuffix(b"]}")
        call = Call(f"call_{turn}", "add", f'{{"a": {turn}, "b": 1}}')
        items += [ModelMessage(f"turn {turn}", (call,)), *results((call,))]


async def test_calls_as_text_failures_and_early_ends() -> None:
    text = '<think>hm</think>{"name": "add", "parameters": {"a": 1, "b": 2}}'
    broken = b'{"message":{"content":"so far"},"done":false}\n{"error":"llama runner process has terminated"}\n'
    early = b'{"message":{"content":"so far"},"done":false}\n'
    async with FakeOllama(
        [Reply(text=text), Odd(raw=broken), Odd(raw=early), Reply(text="cut", finish="length")]
    ) as fake:
        model = ollama_model(fake)
        reply = await reply_of(model, ask("hi", tools=TOOLS))
        assert (reply.text, reply.reasoning, reply.calls[0].tool) == ("", "hm", "add")
        for kind in ("internal", "network"):
            with pytest.raises(ModelError) as caught:
                await reply_of(model, ask("hi"))
            assert (caught.value.kind, caught.value.retryable, caught.value.partial) == (kind, True, "so far")
        assert (await reply_of(model, ask("hi"))).finish == "length"
