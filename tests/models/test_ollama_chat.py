"""Ollama's own API: the window, requests and replies."""

import pytest

from tests.kit.fakes.clients import (
    TOOLS,
    as_message,
    ask,
    build_model,
    capture_body,
    collect_failure,
    collect_reply,
    ollama_model,
    read_reply,
    results,
    user,
)
from tests.kit.fakes.ollama import FakeOllama
from treadle.messages import Call, ImagePart, Reply, ResultMessage, Sampling
from treadle.models.ollama_chat import OllamaChat

CALLS = (Call("", "add", '{"a":1,"b":2}'), Call("", "echo", '{"text":"größer"}'))


@pytest.mark.parametrize(
    ("parameters", "context", "window"),
    [("", 8192, 8192), ("", 131_072, 32_768), ("stop  x\nnum_ctx    16384", 131_072, 16_384)],
)
async def test_the_window_is_asked_and_set(parameters: str, context: int, window: int) -> None:
    async with FakeOllama() as fake:
        fake.parameters, fake.context = parameters, context
        model = ollama_model(fake)
        await collect_reply(model, ask("hi"))
        assert model.window == window
        assert fake.seen[-1].body["options"]["num_ctx"] == window


async def test_a_request_that_does_not_fit_is_refused() -> None:
    async with FakeOllama() as fake:
        fake.context = 4000
        error = await collect_failure(ollama_model(fake), ask("x" * 40_000))
        assert "the window of ollama:m has 4000" in str(error) and not error.retryable
        unprobed = build_model(fake, OllamaChat("ollama", "m"))
        assert error.kind == (await collect_failure(unprobed, ask("x" * 40_000))).kind == "too_long"


async def test_a_tool_loop_is_accepted_and_read() -> None:
    async with FakeOllama([Reply(text="I add.", reasoning="hm", calls=CALLS), Reply(text="3")]) as fake:
        model = ollama_model(fake)
        first = await collect_reply(model, ask("hi", tools=TOOLS))
        assert len({call.id for call in first.calls}) == 2
        assert (first.finish, first.usage.input_tokens, first.usage.estimated) == ("calls", 11, False)
        picture = ResultMessage(first.calls[1].id, "echo", "see", parts=(ImagePart(data="QUJD"),))
        request = ask("hi", as_message(first), *results(first.calls[:1]), picture, tools=TOOLS)
        assert (await collect_reply(model, request)).text == "3"
        assert fake.rejected == []
        assert fake.seen[-1].body["messages"][-1]["images"] == ["QUJD"]


async def test_sampling_and_format_are_translated() -> None:
    sampling = Sampling(0.1, 0.5, 3, ("END",), {"options": {"top_k": 5, "num_ctx": 99_000}, "keep_alive": "1h"})
    message = user("look", ImagePart(data="QUJD"))
    sent = await capture_body("ollama", message, sampling=sampling, max_tokens=9, output_schema={"type": "object"})
    assert "tools" not in await capture_body("ollama", "hi", tools=TOOLS, tool_choice="none")
    options = {"num_ctx": 99_000, "num_predict": 9, "temperature": 0.1, "top_p": 0.5, "seed": 3, "top_k": 5}
    assert sent["options"] == {**options, "stop": ["END"]}
    assert (sent["format"], sent["keep_alive"]) == ({"type": "object"}, "1h")


async def test_calls_in_text_and_cut_replies_are_read() -> None:
    text = '<think>hm</think>{"name": "add", "parameters": {"a": 1, "b": 2}}'
    reply = await read_reply("ollama", Reply(text=text), tools=TOOLS)
    assert (reply.text, reply.reasoning, reply.calls[0].tool) == ("", "hm", "add")
    assert (await read_reply("ollama", Reply(text="cut", finish="length"))).finish == "length"
