"""Options of Chat Completions, Completions and Embeddings, by OpenAI's own client, with strict providers behind."""

import asyncio
import base64
import json
import logging
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import anthropic_model, chat_model, responses_model
from tests.kit.fakes.responses import StrictResponses
from tests.kit.fakes.server import Odd, Strict, status
from tests.kit.server import serve_agents
from tests.kit.sessions import PATIENCE
from tests.server.test_openai_sdk import ASKED, TOOLS, connect_sdk
from treadle import Agent
from treadle.messages import Reply, Usage
from treadle.models.base import Embeddings, Model
from treadle.testing import ScriptedModel, call, say

FUNCTION: Any = TOOLS[0]["function"]


@asynccontextmanager
async def serve_model(model: Model) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serve_agents(Agent(model)) as plain, connect_sdk(plain) as client:
        yield client


@asynccontextmanager
async def serve_provider(script: Any = (), kind: type[Strict] = StrictChat) -> AsyncIterator[tuple[Any, Strict]]:
    """OpenAI's client, and the strict provider behind the server."""
    builders = {StrictChat: chat_model, StrictAnthropic: anthropic_model, StrictResponses: responses_model}
    async with kind(script) as fake, serve_model(builders[kind](fake)) as client:
        yield client, fake


async def chat(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    return await client.chat.completions.create(**{"model": "default", "messages": ASKED, **fields})


async def refuse(asking: Any) -> Any:
    with pytest.raises(openai.APIStatusError) as caught:
        await asking
    return caught.value


async def test_options_of_the_client_reach_the_provider_and_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    options: dict[str, Any] = {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"50256": -100},
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "service_tier": "flex",
        "metadata": {"ticket": "secret-ticket"},
        "user": "secret-user",
        "seed": 4,
        "prompt_cache_key": "secret-key",
        "safety_identifier": "secret-identifier",
    }
    async with serve_provider() as (client, fake):
        await chat(client, tools=[{"type": "function", "function": {**FUNCTION, "strict": True}}], **options)
        assert fake.rejected == []
        sent = fake.seen[-1].body
    assert {name: sent[name] for name in options} == options
    assert sent["tools"][0]["function"]["strict"] is True
    assert "secret-" not in caplog.text


async def test_an_option_that_the_provider_cannot_take_is_a_400_with_its_name() -> None:
    async with serve_provider(kind=StrictAnthropic) as (client, fake):
        for fields in (
            {"logit_bias": {"1": 2}},
            {"logprobs": True},
            {"presence_penalty": 1},
            {"extra_body": {"min_p": 0.1}},
        ):
            for stream in (False, True):
                error = await refuse(chat(client, stream=stream, **fields))
                assert error.status_code == 400 and error.body["message"]
                assert error.param in (*fields, "min_p")
        assert fake.seen == []
        await chat(client, user="me", metadata={"a": "b"}, store=False, extra_body={"top_k": 3})
        assert fake.seen[-1].body["top_k"] == 3 and fake.rejected == []


async def test_the_field_that_a_provider_refuses_is_named() -> None:
    refused = status(400, "no such effort")
    assert refused.raw is not None
    refused.raw = refused.raw.replace(b'"code": null', b'"code": null, "param": "reasoning_effort"')
    async with serve_provider([refused]) as (client, _):
        error = await refuse(chat(client, reasoning_effort="low"))
        assert (error.status_code, error.param) == (400, "reasoning_effort")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 100_000}, "n"),
        ({"n": "two"}, "n"),
        ({"messages": []}, "messages"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"presence_penalty": 9}, "presence_penalty"),
        ({"tools": TOOLS, "functions": [FUNCTION]}, "functions"),
        ({"messages": [{"role": "function", "name": "add", "content": "1"}]}, "messages"),
        ({"max_completion_tokens": 0}, "max_tokens"),
    ],
)
async def test_a_wrong_value_is_refused_with_the_name_of_its_field(fields: dict[str, Any], param: str) -> None:
    async with serve_model(ScriptedModel("never")) as client:
        error = await refuse(chat(client, **fields))
        assert error.status_code in (400, 422) and error.param == param


async def test_n_gives_that_many_choices_with_the_usage_of_all() -> None:
    async with serve_provider([Reply("one", usage=Usage(10, 1))] * 6) as (client, fake):
        whole = await chat(client, n=3, seed=7)
        assert [choice.index for choice in whole.choices] == [0, 1, 2]
        assert {choice.message.content for choice in whole.choices} == {"one"}
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (30, 3, 33)
        assert sorted(seen.body["seed"] for seen in fake.seen) == [7, 8, 9]
        stream = await chat(client, n=3, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    texts = ["", "", ""]
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        assert chunk.usage is None
    assert texts == ["one"] * 3
    roles = [c.choices[0].index for c in chunks[:-1] if c.choices[0].delta.role == "assistant"]
    assert sorted(roles) == [0, 1, 2], "the first chunk of each choice carries the role, and no other"
    assert sorted(c.choices[0].index for c in chunks[:-1] if c.choices[0].finish_reason) == [0, 1, 2]
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 33


async def test_one_choice_that_fails_fails_the_request() -> None:
    async with serve_provider([Reply("one"), status(400, "no"), Reply("three")]) as (client, _):
        assert (await refuse(chat(client, n=3))).status_code == 400


async def test_an_agent_gives_one_choice() -> None:
    async with serve_agents(Agent(ScriptedModel("one"))) as plain, connect_sdk(plain) as client:
        assert (await refuse(chat(client, model="agent:agent", n=2))).param == "n"


async def test_the_usage_of_a_stream_is_null_until_the_last_chunk() -> None:
    async with serve_model(ScriptedModel(say("Hello", usage=Usage(7, 3)), "Hello")) as client:
        asked = await chat(client, stream=True, stream_options={"include_usage": True})
        chunks = [chunk.to_dict() async for chunk in asked]
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 10
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        plain = [chunk.to_dict() async for chunk in await chat(client, stream=True)]
        assert not any("usage" in chunk for chunk in plain)


async def test_log_probabilities_pass_through_whole_and_streamed() -> None:
    async with serve_provider([Reply("Hello there")] * 2) as (client, fake):
        whole = await chat(client, logprobs=True, top_logprobs=2)
        entries = whole.choices[0].logprobs.content
        assert "".join(entry.token for entry in entries) == "Hello there"
        assert (entries[0].logprob, len(entries[0].top_logprobs)) == (-0.5, 2)
        assert (fake.seen[-1].body["logprobs"], fake.seen[-1].body["top_logprobs"]) == (True, 2)
        stream = await chat(client, logprobs=True, stream=True)
        scored = [chunk.choices[0] async for chunk in stream if chunk.choices[0].logprobs]
    assert "".join(entry.token for choice in scored for entry in choice.logprobs.content) == "Hello there"
    assert all("".join(e.token for e in choice.logprobs.content) == choice.delta.content for choice in scored)


async def test_functions_in_the_old_form_are_answered_in_the_old_form() -> None:
    script = [call("add", id="c1", a=1), call("add", id="c2", a=2), "three"]
    model = ScriptedModel(*script)
    async with serve_model(model) as client:
        whole = await chat(client, functions=[FUNCTION], function_call="auto")
        message = whole.choices[0].message
        assert whole.choices[0].finish_reason == "function_call" and message.tool_calls is None
        assert (message.function_call.name, message.function_call.arguments) == ("add", '{"a":1}')
        stream = await chat(client, functions=[FUNCTION], function_call={"name": "add"}, stream=True)
        choices = [chunk.choices[0] async for chunk in stream]
        assert [c.delta.function_call.arguments for c in choices if c.delta.function_call] == ['{"a":2}']
        assert choices[-1].finish_reason == "function_call"
        made = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a":1}'}}
        history = [*ASKED, made, {"role": "function", "name": "add", "content": "1"}]
        last = await chat(client, messages=history, functions=[FUNCTION])
        assert last.choices[0].message.content == "three"
    sent = model.requests[2].messages
    assert (sent[1].calls[0].tool, sent[2].tool, sent[2].text) == ("add", "add", "1")  # type: ignore[union-attr]
    assert model.requests[1].tool_choice == "required"


async def test_instructions_and_images_keep_their_places_on_the_way_to_the_provider() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    made = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a plot"}, image]},
        {"role": "system", "content": "Now in French."},
        {"role": "user", "content": "so?"},
    ]
    async with serve_provider() as (client, fake):
        await chat(client, messages=messages, tools=TOOLS)
        assert fake.rejected == []
        sent = fake.seen[-1].body["messages"]
    roles = ["system", "user", "assistant", "tool", "user", "system", "user"]
    assert [message["role"] for message in sent] == roles
    assert sent[0]["content"] == "Be brief.\n\nBe kind." and sent[5]["content"] == "Now in French."
    assert sent[4]["content"][-1] == image


async def test_strict_of_a_schema_reaches_the_provider() -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    for strict in (True, False):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
        for kind in (StrictChat, StrictResponses):
            async with serve_provider(kind=kind) as (client, fake):
                await chat(client, response_format=form)
                sent = fake.seen[-1].body
            given = sent["response_format"]["json_schema"] if kind is StrictChat else sent["text"]["format"]
            assert given["strict"] is strict


async def test_each_prompt_of_a_list_gets_its_choices_in_order() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return Reply(f"to {body['messages'][-1]['content']}", usage=Usage(2, 1))

    async with serve_provider(answer) as (client, _):
        whole = await client.completions.create(model="default", prompt=["a", "b"], n=2)
        assert [choice.text for choice in whole.choices] == ["to a", "to a", "to b", "to b"]
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3] and whole.usage.total_tokens == 12
        stream = await client.completions.create(model="default", prompt=["a", "b"], stream=True, echo=True)
        texts = ["", ""]
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == ["ato a", "bto b"]
        scored = await client.completions.create(model="default", prompt="a", logprobs=1)
        logprobs = scored.choices[0].logprobs
        assert "".join(logprobs.tokens) == "to a" and logprobs.token_logprobs[0] == -0.5
        assert logprobs.top_logprobs[0] == {"other 0": -0.5} and logprobs.text_offset[0] == 0


async def test_prompts_of_tokens_need_a_model_that_knows_its_tokens() -> None:
    class WithTokens(ScriptedModel):
        async def detokenize(self, tokens: Sequence[int]) -> str:
            return f"tokens {list(tokens)}"

    model = WithTokens("one", "two")
    async with serve_model(model) as client:
        whole = await client.completions.create(model="default", prompt=[[1, 2], [3]])
        assert {choice.text for choice in whole.choices} == {"one", "two"}
        texts = {request.messages[0].parts[0].text for request in model.requests}  # type: ignore[union-attr]
        assert texts == {"tokens [1, 2]", "tokens [3]"}
    async with serve_model(ScriptedModel("never")) as client:
        for fields in (
            {"prompt": [1, 2]},
            {"prompt": []},
            {"prompt": ["a", 1]},
            {"suffix": "end"},
            {"best_of": 3},
            {"echo": True, "logprobs": 1},
        ):
            error = await refuse(client.completions.create(**{"model": "default", "prompt": "a", **fields}))
            assert (error.status_code, error.param) == (400, next(iter(fields)))


class Vectors(StrictChat):
    """Answers embeddings, the last first, with its own count of tokens."""

    asked: Any = None

    def _answer(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Odd:
        if path != "/v1/embeddings":
            return super()._answer(method, path, headers, raw)
        self.asked = json.loads(raw)
        if self.asked.get("dimensions", 1) > 2:
            return status(400, "this model has no such dimensions")
        data = [{"index": i, "embedding": [float(len(one)), 0.5]} for i, one in enumerate(self.asked["input"])]
        answer = {"data": data[::-1], "usage": {"prompt_tokens": 42, "total_tokens": 42}}
        return Odd(raw=json.dumps(answer).encode(), content_type="application/json")


async def test_embeddings_pass_on_dimensions_and_tokens_and_give_the_providers_usage() -> None:
    vectors = Vectors()
    async with vectors as fake, serve_model(chat_model(fake)) as client:
        given = await client.embeddings.create(
            model="default", input=[[1, 2, 3], [4]], dimensions=2, encoding_format="float"
        )
        assert [one.embedding for one in given.data] == [[3.0, 0.5], [1.0, 0.5]] and given.usage.total_tokens == 42
        assert vectors.asked["input"] == [[1, 2, 3], [4]] and vectors.asked["dimensions"] == 2
        coded = await client.embeddings.create(model="default", input="abc", encoding_format="base64")
        assert array("f", base64.b64decode(str(coded.data[0].embedding))).tolist() == [3.0, 0.5]
        error = await refuse(client.embeddings.create(model="default", input="a", dimensions=3))
        assert (error.status_code, error.param) == (400, "dimensions")
        for fields, param in (({"input": []}, "input"), ({"input": [""]}, "input"), ({"dimensions": 0}, "dimensions")):
            error = await refuse(client.embeddings.create(**{"model": "default", "input": "a", **fields}))
            assert (error.status_code, error.param) == (422, param)


async def test_one_list_of_tokens_is_one_input() -> None:
    class Embedding(ScriptedModel):
        async def embed(self, inputs: Any, dimensions: int | None = None) -> Embeddings:
            return Embeddings([[float(len(one))] for one in inputs])

    async with serve_model(Embedding()) as client:
        given = await client.embeddings.create(model="default", input=[5, 6, 7], encoding_format="float")
        assert [one.embedding for one in given.data] == [[3.0]] and given.usage.prompt_tokens == 3


async def test_a_client_that_leaves_stops_all_its_choices() -> None:
    slow = [Odd(Reply("a long text that does not end"), stall_after=400) for _ in range(2)]
    async with StrictChat(slow) as fake, serve_model(chat_model(fake)) as client:
        stream = await chat(client, n=2, stream=True)
        await stream.close()
        await asyncio.wait_for(fake.hung_up.wait(), PATIENCE)
