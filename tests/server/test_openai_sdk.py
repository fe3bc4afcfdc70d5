"""OpenAI's endpoints, by OpenAI's own client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.kit.server import Client, serve_agents, serve_script
from tests.kit.sessions import PATIENCE
from treadle import Agent, TextDelta
from treadle.errors import ModelError
from treadle.messages import Reply, ResultMessage, Usage
from treadle.messages import Request as ModelRequest
from treadle.models.base import Embeddings, ModelEvent
from treadle.testing import ScriptedModel, call, say

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
ASKED: Any = [{"role": "user", "content": "hi"}]


def connect_sdk(plain: Client) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{plain.base}/v1", api_key=plain.token, max_retries=0, timeout=PATIENCE)


@asynccontextmanager
async def open_sdk(*script: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Client]]:
    """OpenAI's client and our own, for a server with one agent that follows a script."""
    async with serve_script(*script) as plain, connect_sdk(plain) as client:
        yield client, plain


async def chat(client: openai.AsyncOpenAI, **options: Any) -> Any:
    return await client.chat.completions.create(**{"model": "scripted", "messages": ASKED, **options})


async def test_a_chat_is_completed_whole_and_in_chunks() -> None:
    async with open_sdk(*[say("Hello\nthere", usage=Usage(7, 3))] * 2) as (client, plain):
        whole = await chat(client, temperature=0.5)
        assert whole.choices[0].message.content == "Hello\nthere" and whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None and whole.usage.total_tokens == 10
        stream = await chat(client, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello\nthere"
        assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 10
        assert plain.model.requests[0].sampling.temperature == 0.5


async def test_the_clients_tools_are_returned_to_the_client_and_not_run_here() -> None:
    async with open_sdk(call("add", id="c1", a=1), call("add", id="c2", a=2), "three") as (client, plain):
        whole = await chat(client, tools=TOOLS)
        (made,) = whole.choices[0].message.tool_calls or ()
        assert made.function.arguments == '{"a":1}' and whole.choices[0].finish_reason == "tool_calls"  # type: ignore[union-attr]
        async with client.chat.completions.stream(model="scripted", messages=ASKED, tools=TOOLS) as stream:
            final = await stream.get_final_completion()
        (streamed,) = final.choices[0].message.tool_calls or ()
        assert streamed.id == "c2"
        history = [*ASKED, whole.choices[0].message, {"role": "tool", "tool_call_id": made.id, "content": "1"}]
        last = await chat(client, messages=history, tools=TOOLS)
        assert last.choices[0].message.content == "three"
        assert plain.model.requests[2].messages[2] == ResultMessage("c1", "add", "1")


async def test_max_tokens_gives_length_and_a_schema_is_passed_on() -> None:
    async with open_sdk(Reply("hal", finish="length"), '{"a":1}') as (client, plain):
        cut = await chat(client, max_tokens=1)
        assert cut.choices[0].finish_reason == "length" and plain.model.requests[0].max_tokens == 1
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        await chat(client, response_format=form)
        assert plain.model.requests[1].output_schema == {"type": "object"}


async def test_responses_whole_and_streamed() -> None:
    async with open_sdk(say("Hello", usage=Usage(7, 3)), "Hello\nthere", call("add", id="c1", a=1)) as (client, _):
        whole = await client.responses.create(model="scripted", input="hi", instructions="be brief")
        assert whole.output_text == "Hello" and whole.status == "completed"
        assert whole.usage is not None and whole.usage.total_tokens == 10
        async with client.responses.stream(model="scripted", input="hi") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "Hello\nthere" and kinds[-1] == "response.completed"
        tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
        asked = await client.responses.create(model="scripted", input="add", tools=[tool])
        assert asked.output[0].type == "function_call" and asked.output[0].call_id == "c1"


async def test_embeddings_are_given_where_the_model_can() -> None:
    class Embedding(ScriptedModel):
        async def embed(self, inputs: Any, dimensions: int | None = None) -> Embeddings:
            return Embeddings([[float(len(text)), 0.5] for text in inputs])

    embedding, other = Agent(Embedding(name="embedding"), name="other"), Agent(ScriptedModel())
    async with serve_agents(embedding, other) as plain, connect_sdk(plain) as client:
        given = await client.embeddings.create(model="embedding", input=["a", "bcd"])
        assert [one.embedding for one in given.data] == [[1.0, 0.5], [3.0, 0.5]]
        with pytest.raises(openai.BadRequestError, match="no embeddings"):
            await client.embeddings.create(model="scripted", input="a")


async def test_an_agent_answers_in_a_models_place_and_its_tools_run_here() -> None:
    script = [["let me see", call("note", text="a")], "noted", call("note", text="b"), "again"]
    async with open_sdk(*script) as (client, _):
        stream = await chat(client, model="agent:agent", stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "let me see\n\nnoted"
        extensions = [c.model_extra["treadle"] for c in chunks if c.model_extra]
        activity = [extension["event"]["type"] for extension in extensions if "event" in extension]
        assert activity == ["call_started", "call_finished", "run_finished"]
        assert not any(c.choices[0].delta.tool_calls for c in chunks)
        whole = await chat(client, model="agent:agent")
        assert whole.choices[0].message.content == "again"
        assert whole.model_extra is not None
        assert [one["type"] for one in whole.model_extra["treadle"]["events"]][-1] == "run_finished"


async def test_an_agent_continues_a_session_and_knows_the_earlier_messages() -> None:
    async with open_sdk("one", "two", "three") as (client, plain):
        session_id = await plain.session()
        for text in ("first", "second"):
            messages: Any = [{"role": "user", "content": text}]
            extra = {"session_id": session_id}
            await chat(client, model="agent:agent", messages=messages, extra_body=extra)
        assert len(plain.model.requests[1].messages) == 3
        whole = await client.responses.create(model="agent:agent", input="third", instructions="be kind")
        assert whole.output_text == "three" and plain.model.requests[2].system.endswith("be kind")


async def test_an_agents_approval_is_answered_elsewhere_while_its_client_waits() -> None:
    async with open_sdk(call("drop", table="t"), "dropped") as (client, plain):
        asking = asyncio.create_task(chat(client, model="agent:agent"))
        async with plain.open_socket("/v1/ws") as socket:
            await socket.receive_until(status="needs_you")
        await plain.answer_approval()
        assert (await asking).choices[0].message.content == "dropped"


async def test_failures_are_errors_that_the_client_library_knows() -> None:
    overloaded = ModelError("slow down", kind="overloaded", retryable=True, retry_after=3)
    async with open_sdk(overloaded, ModelError("no", kind="auth")) as (client, plain):
        for model in ("nope", "agent:nope"):
            with pytest.raises(openai.NotFoundError):
                await chat(client, model=model)
        with pytest.raises(openai.BadRequestError):
            await chat(client, messages=[])
        with pytest.raises(openai.RateLimitError) as limited:
            await chat(client)
        assert limited.value.response.headers["retry-after"] == "3"
        with pytest.raises(openai.APIStatusError) as failed:
            await chat(client, stream=True)
        assert failed.value.status_code == 502
        problem = await plain.problem("POST", "/v1/chat/completions", {"model": "scripted", "messages": 1}, 422)
        assert (problem["param"], problem["message"][:10]) == ("messages", "messages: ")
        problem = await plain.problem("POST", "/v1/chat/completions", {"model": "x", "messages": [{}]}, 422)
        assert (problem["param"], problem["message"]) == ("messages.0.role", "messages.0.role: Field required")
        problem = await plain.problem("POST", "/v1/responses", [], 422)
        assert problem["message"].startswith("the body: ")


async def test_a_request_that_an_agent_cannot_answer_is_refused_and_creates_no_session() -> None:
    async with open_sdk() as (client, plain):
        for messages in ([*ASKED, {"role": "assistant", "content": "yes"}], [*ASKED, {"role": "user", "content": " "}]):
            with pytest.raises(openai.BadRequestError):
                await chat(client, model="agent:agent", messages=messages)  # type: ignore[arg-type]
        own: Any = [{"type": "function", "function": {"name": "note"}}]
        for options in ({"tools": own}, {"tool_choice": "required", "tools": TOOLS}):
            with pytest.raises(openai.UnprocessableEntityError) as refused:
                await chat(client, model="agent:agent", **options)
            assert refused.value.param in options
        assert (await plain.json("GET", "/v1/sessions"))["sessions"] == []


async def test_null_fields_count_as_missing() -> None:
    made: Any = {"id": None, "function": {"name": None, "arguments": None}}
    messages: Any = [
        {"role": "user", "content": "hi", "tool_call_id": None, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        *ASKED,
    ]
    body: Any = {"stream_options": {"include_usage": None}, "session_id": None, "tools": None, "stop": None}
    agent = Agent(ScriptedModel(*["hello"] * 4))  # its requests are not checked: the call has no name
    async with serve_agents(agent) as plain, connect_sdk(plain) as client:
        for model in ("scripted", "agent:agent"):
            answer = await chat(client, model=model, messages=messages, extra_body=body)
            assert answer.choices[0].message.content == "hello"
        await plain.json("POST", "/v1/completions", {"model": "scripted", "prompt": "hi", "session_id": None})
        await plain.json("POST", "/v1/responses", {"model": "scripted", "input": "hi", "session_id": None})


async def test_a_failure_in_the_middle_of_a_stream_is_sent_in_the_stream() -> None:
    class Breaking(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            yield TextDelta(text="Hel")
            raise ModelError("the line broke", kind="network")

    async with serve_agents(Agent(Breaking())) as plain, connect_sdk(plain) as client:
        stream = await chat(client, stream=True)
        with pytest.raises(openai.APIError, match="the line broke"):
            _ = [chunk async for chunk in stream]


async def test_models_and_agents_are_listed_and_looked_up_by_their_names() -> None:
    async with open_sdk() as (client, _):
        names = ["scripted", "agent:agent"]
        assert [model.id async for model in client.models.list()] == names
        assert [(await client.models.retrieve(name)).id for name in names] == names
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("vendor/unknown")


async def test_an_agent_answers_bare_prompts_and_streams_their_usage() -> None:
    reply = say("a\nb", usage=Usage(7, 3))
    async with open_sdk(reply, reply, call("note", text="x"), reply, call("note", text="x"), reply) as (client, _):
        for model in ("scripted", "agent:agent"):
            whole = await client.completions.create(model=model, prompt="go")
            assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("a\nb", "stop")
            stream = await client.completions.create(
                model=model, prompt="go", stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "a\nb"
            assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
            assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens >= 3


async def test_an_agent_that_failed_is_an_error_and_never_an_empty_answer() -> None:
    broken = ModelError("no such key", kind="auth")
    async with open_sdk(*[broken] * 5) as (client, _):
        with pytest.raises(openai.InternalServerError, match="no such key") as failed:
            await chat(client, model="agent:agent")
        assert failed.value.status_code == 502 and failed.value.code == "run_failed"
        with pytest.raises(openai.APIError, match="no such key"):
            [chunk async for chunk in await chat(client, model="agent:agent", stream=True)]
        with pytest.raises(openai.InternalServerError, match="no such key"):
            await client.completions.create(model="agent:agent", prompt="hi")
        with pytest.raises(openai.APIError, match="no such key"):
            [chunk async for chunk in await client.completions.create(model="agent:agent", prompt="hi", stream=True)]
        response = await client.responses.create(model="agent:agent", input="hi")
        assert response.status == "failed" and response.error is not None


class SlowModel(ScriptedModel):
    """A model that waits until it is released, and then answers or fails."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.free, self.left = asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        try:
            await self.free.wait()
            async for event in super().stream(request):
                yield event
        finally:
            self.left.set()


@pytest.mark.parametrize("path", ["chat/completions", "responses", "completions"])
async def test_comments_keep_a_silent_models_stream_alive_and_a_late_failure_is_sent_in_it(path: str) -> None:
    model = SlowModel("hello", ModelError("gone", kind="network"))
    asked: dict[str, Any] = {"chat/completions": {"messages": ASKED}, "responses": {"input": "hi"}}
    body = {"model": "default", "stream": True, **asked.get(path, {"prompt": "hi"})}
    async with serve_agents(Agent(model), keep_alive=0.05) as client:
        for wanted in ("hello", '"gone"'):
            model.free.clear()
            async with client.stream(f"/v1/{path}", body) as events:
                assert (await anext(events)).comment == "ping"
                model.free.set()
                assert wanted in "".join([one.text async for one in events])


async def test_a_client_that_leaves_ends_a_bare_models_reply() -> None:
    model = SlowModel("never")
    body = {"model": "default", "stream": True, "messages": ASKED}
    async with serve_agents(Agent(model), keep_alive=0.05) as client:
        async with client.stream("/v1/chat/completions", body) as events:
            await anext(events)
        async with asyncio.timeout(PATIENCE):
            await model.left.wait()
