"""The providers' own SDKs as judges: they read the same bytes as we do, and know the same fields."""

import json
from typing import Any, get_type_hints

import pydantic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai import AsyncOpenAI
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from tests.kit.fakes import anthropic as fake_anthropic
from tests.kit.fakes import chat as fake_chat
from tests.kit.fakes import responses as fake_responses
from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import ADD, ECHO, anthropic_model, ask, chat_model, collect_reply, responses_model, results
from tests.kit.fakes.responses import StrictResponses
from tests.kit.fakes.server import Odd
from treadle.messages import Call, ImagePart, ModelMessage, Reply, Sampling, TextPart, Usage, UserMessage

CALLS = (Call("call_1", "add", '{"a": 1, "b": 2}'), Call("call_2", "echo", '{"text": "größer ✓"}'))
REPLIES = [
    Reply(text="Hello — 你好 👋"),
    Reply(calls=CALLS, usage=Usage(120, 30, 64)),
    Reply(text="Let me see.", reasoning="first this, then that", calls=CALLS[:1], usage=Usage(9, 8, 0, 3)),
    Reply(text="cut o", finish="length"),
    Reply(),
]
WAYS = [Odd(), Odd(split=3)]
RICH = ask(
    UserMessage((TextPart("look"), ImagePart(data="QUJD"))),
    ModelMessage("I add.", CALLS),
    *results(CALLS),
    "and now?",
    tools=(ADD, ECHO),
    sampling=Sampling(0.5, 0.9, extra={"tool_choice": "required"}),
    output_schema={"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    max_tokens=500,
)


def shaped(calls: Any) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments or "{}")) for name, arguments in calls]


@pytest.mark.parametrize("way", WAYS, ids=["whole", "in pieces"])
@pytest.mark.parametrize("reply", REPLIES)
async def test_chat_completions_are_read_as_the_openai_sdk_reads_them(reply: Reply, way: Odd) -> None:
    async with StrictChat([Odd(reply, split=way.split)]) as fake:
        ours = await collect_reply(chat_model(fake), ask("hi", tools=(ADD, ECHO)))
        async with AsyncOpenAI(base_url=fake.base_url, api_key="sk-test", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            text, calls, finish, usage = "", {}, None, None
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
                    for call in choice.delta.tool_calls or ():
                        known = calls.setdefault(call.index, ["", "", ""])
                        assert call.function is not None
                        known[0] += call.id or ""
                        known[1] += call.function.name or ""
                        known[2] += call.function.arguments or ""
    assert usage is not None
    assert ours.text == text
    assert [(call.id, call.tool, call.arguments) for call in ours.calls] == [tuple(call) for call in calls.values()]
    assert {"stop": "stop", "length": "length", "tool_calls": "calls"}[finish or ""] == ours.finish
    assert (ours.usage.input_tokens, ours.usage.output_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    assert usage.prompt_tokens_details is not None
    assert ours.usage.cached_tokens == usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("way", WAYS, ids=["whole", "in pieces"])
@pytest.mark.parametrize("reply", REPLIES)
async def test_messages_are_read_as_the_anthropic_sdk_reads_them(reply: Reply, way: Odd) -> None:
    async with StrictAnthropic([Odd(reply, split=way.split)]) as fake:
        ours = await collect_reply(anthropic_model(fake), ask("hi", tools=(ADD, ECHO)))
        url = fake.base_url.removesuffix("/v1")
        async with AsyncAnthropic(base_url=url, api_key="sk-test", max_retries=0) as client:
            content: list[Any] = [{"type": "text", "text": "hi"}]
            async with client.messages.stream(
                model="m", max_tokens=99, messages=[{"role": "user", "content": content}]
            ) as stream:
                theirs = await stream.get_final_message()
    texts = [block.text for block in theirs.content if block.type == "text"]
    thoughts = [block.thinking for block in theirs.content if block.type == "thinking"]
    calls = [(block.id, block.name, block.input) for block in theirs.content if block.type == "tool_use"]
    assert ours.text == "".join(texts)
    assert ours.reasoning == "".join(thoughts)
    assert [(call.id, call.tool, json.loads(call.arguments)) for call in ours.calls] == calls
    assert {"end_turn": "stop", "max_tokens": "length", "tool_use": "calls"}[theirs.stop_reason or ""] == ours.finish
    cached = theirs.usage.cache_read_input_tokens or 0
    assert ours.usage.input_tokens == theirs.usage.input_tokens + cached
    assert (ours.usage.output_tokens, ours.usage.cached_tokens) == (theirs.usage.output_tokens, cached)


@pytest.mark.parametrize("way", WAYS, ids=["whole", "in pieces"])
@pytest.mark.parametrize("reply", REPLIES)
async def test_responses_are_read_as_the_openai_sdk_reads_them(reply: Reply, way: Odd) -> None:
    async with StrictResponses([Odd(reply, split=way.split)]) as fake:
        ours = await collect_reply(responses_model(fake), ask("hi", tools=(ADD, ECHO)))
        async with AsyncOpenAI(base_url=fake.base_url, api_key="sk-test", max_retries=0) as client:
            stream = await client.responses.create(
                model="m",
                input=[{"role": "user", "content": "hi"}],
                stream=True,
                store=False,
                include=["reasoning.encrypted_content"],
            )
            final = None
            async for event in stream:
                if event.type in ("response.completed", "response.incomplete"):
                    final = event.response
    assert final is not None
    assert final.usage is not None
    assert ours.text == final.output_text
    calls = [(item.call_id, item.name, item.arguments) for item in final.output if item.type == "function_call"]
    assert [(call.id, call.tool, call.arguments) for call in ours.calls] == calls
    thoughts = [part.text for item in final.output if item.type == "reasoning" for part in item.summary]
    assert ours.reasoning == "".join(thoughts)
    assert (ours.usage.input_tokens, ours.usage.output_tokens) == (final.usage.input_tokens, final.usage.output_tokens)


@pytest.mark.parametrize(
    ("fake", "shape", "make"),
    [
        (StrictChat, CompletionCreateParamsStreaming, chat_model),
        (StrictAnthropic, MessageCreateParamsStreaming, anthropic_model),
        (StrictResponses, ResponseCreateParamsStreaming, responses_model),
    ],
)
async def test_what_we_send_has_the_shape_the_sdk_declares(fake: Any, shape: Any, make: Any) -> None:
    async with fake() as server:
        await collect_reply(make(server), RICH)
        body = server.seen[0].body
    for name in ("temperature", "top_p"):  # older models take them, the newest SDK declares them no more
        if name not in get_type_hints(shape):
            body.pop(name, None)
    pydantic.TypeAdapter(pydantic.with_config({"extra": "forbid"})(shape)).validate_python(body)


def test_the_fakes_know_the_fields_the_sdks_know() -> None:
    ours_on_top = {"temperature", "top_p", "top_k"}
    assert set(get_type_hints(CompletionCreateParamsStreaming)) == fake_chat.FIELDS
    assert set(get_type_hints(ResponseCreateParamsStreaming)) == fake_responses.FIELDS
    declared = set(get_type_hints(MessageCreateParamsStreaming))
    assert declared | ours_on_top == fake_anthropic.FIELDS | declared
    assert declared - fake_anthropic.FIELDS == set()
