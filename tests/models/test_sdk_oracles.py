"""The providers' own SDKs read the same bytes as our models and know the same fields."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, get_type_hints

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
from tests.kit.fakes.clients import ADD, ECHO, PROTOCOLS, ask, collect_reply, results, user
from tests.kit.fakes.server import Odd
from treadle.messages import Call, ImagePart, ModelMessage, Reply, Sampling, Usage

CALLS = (Call("call_1", "add", '{"a": 1, "b": 2}'), Call("call_2", "echo", '{"text": "größer ✓"}'))
REPLIES = [
    Reply(text="Hello — 你好 👋"),
    Reply(calls=CALLS, usage=Usage(120, 30, 64)),
    Reply(text="Let me see.", reasoning="first this, then that", calls=CALLS[:1], usage=Usage(9, 8, 0, 3)),
    Reply(text="cut o", finish="length"),
    Reply(),
]
RICH = ask(
    user("look", ImagePart(data="QUJD")),
    ModelMessage("I add.", CALLS),
    *results(CALLS),
    "and now?",
    tools=(ADD, ECHO),
    sampling=Sampling(0.5, 0.9, extra={"tool_choice": "required"}),
    output_schema={"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    max_tokens=500,
)


class SdkReply(NamedTuple):
    """A reply as a provider's SDK reads it, with its own word for the reason to finish."""

    text: str
    reasoning: str | None
    calls: list[Any]
    finish: str
    tokens: tuple[int, int, int]


async def read_chat_with_sdk(base_url: str) -> SdkReply:
    prompt: list[Any] = [{"role": "user", "content": "hi"}]
    async with (
        AsyncOpenAI(base_url=base_url, api_key="sk-test", max_retries=0) as client,
        client.chat.completions.stream(model="m", messages=prompt, stream_options={"include_usage": True}) as stream,
    ):
        await stream.until_done()
        final = stream.current_completion_snapshot  # the final one refuses a reply that was cut off
    choice, usage = final.choices[0], final.usage
    made = choice.message.tool_calls or ()
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in made]
    assert usage is not None and usage.prompt_tokens_details is not None
    tokens = (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens or 0)
    return SdkReply(choice.message.content or "", None, calls, choice.finish_reason, tokens)


async def read_messages_with_sdk(base_url: str) -> SdkReply:
    async with (
        AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key="sk-test", max_retries=0) as client,
        client.messages.stream(
            model="m", max_tokens=99, messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        ) as stream,
    ):
        final = await stream.get_final_message()
    text = "".join(block.text for block in final.content if block.type == "text")
    reasoning = "".join(block.thinking for block in final.content if block.type == "thinking")
    calls = [(block.id, block.name, block.input) for block in final.content if block.type == "tool_use"]
    cached = final.usage.cache_read_input_tokens or 0
    tokens = (final.usage.input_tokens + cached, final.usage.output_tokens, cached)
    return SdkReply(text, reasoning, calls, final.stop_reason or "", tokens)


async def read_responses_with_sdk(base_url: str) -> SdkReply:
    final = None
    async with AsyncOpenAI(base_url=base_url, api_key="sk-test", max_retries=0) as client:
        prompt: list[Any] = [{"role": "user", "content": "hi"}]
        async for event in await client.responses.create(
            model="m", input=prompt, stream=True, store=False, include=["reasoning.encrypted_content"]
        ):
            if event.type in ("response.completed", "response.incomplete"):
                final = event.response
    assert final is not None and final.usage is not None
    made = [item for item in final.output if item.type == "function_call"]
    calls = [(call.call_id, call.name, json.loads(call.arguments)) for call in made]
    reasoning = "".join(part.text for item in final.output if item.type == "reasoning" for part in item.summary)
    usage = final.usage
    tokens = (usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens)
    finish = "tool_calls" if calls else (final.status or "")
    return SdkReply(final.output_text, reasoning, calls, finish, tokens)


FINISH = {"stop": "stop", "end_turn": "stop", "completed": "stop", "length": "length", "max_tokens": "length"}
FINISH |= {"incomplete": "length", "tool_calls": "calls", "tool_use": "calls"}


@pytest.mark.parametrize("split", [0, 3], ids=["whole", "in pieces"])
@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize(
    ("protocol", "read"),
    [("chat", read_chat_with_sdk), ("anthropic", read_messages_with_sdk), ("responses", read_responses_with_sdk)],
)
async def test_a_reply_is_read_as_the_providers_sdk_reads_it(
    protocol: str, read: Callable[[str], Awaitable[SdkReply]], reply: Reply, split: int
) -> None:
    fake, make = PROTOCOLS[protocol]
    async with fake([Odd(reply, split=split)]) as server:
        ours = await collect_reply(make(server), ask("hi", tools=(ADD, ECHO)))
        theirs = await read(server.base_url)
    assert ours.text == theirs.text
    assert theirs.reasoning in (None, ours.reasoning)
    assert [(call.id, call.tool, json.loads(call.arguments)) for call in ours.calls] == theirs.calls
    assert ours.finish == FINISH[theirs.finish]
    assert (ours.usage.input_tokens, ours.usage.output_tokens, ours.usage.cached_tokens) == theirs.tokens


@pytest.mark.parametrize(
    ("protocol", "shape"),
    [
        ("chat", CompletionCreateParamsStreaming),
        ("anthropic", MessageCreateParamsStreaming),
        ("responses", ResponseCreateParamsStreaming),
    ],
)
async def test_what_we_send_has_the_shape_the_sdk_declares(protocol: str, shape: Any) -> None:
    fake, make = PROTOCOLS[protocol]
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
