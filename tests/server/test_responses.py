"""Responses by OpenAI's own client: stored, continued, in the background, rejoined, cancelled and deleted."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.kit.server import OWNER, Client, create_token, read_until, serve_agents
from tests.kit.sessions import PATIENCE
from tests.server.test_openai_sdk import SlowModel, connect_sdk, open_sdk
from tests.server.worker import fake_model, start_forker
from treadle import Agent, Grant, ReasoningDelta, TextDelta
from treadle.errors import ModelError
from treadle.events import Custom
from treadle.log.base import RESPONSES_AGENT, SessionQuery
from treadle.log.in_memory import InMemoryLog
from treadle.log.open_log import open_log
from treadle.messages import Call, ImagePart, ModelMessage, Reply, ResultMessage, TextPart, Usage, UserMessage
from treadle.messages import Request as ModelRequest
from treadle.models.base import ModelEvent
from treadle.testing import ScriptedModel, call, say

FUNCTION: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
PIXEL = "data:image/png;base64,AAAA"
ENCRYPTED: Any = ["reasoning.encrypted_content"]


class SteppingModel(ScriptedModel):
    """A model that writes a reply in pieces, one each time it is let go on."""

    def __init__(self, *pieces: str) -> None:
        super().__init__()
        self.pieces, self.steps = pieces, asyncio.Semaphore(0)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        yield ReasoningDelta(text="hm")
        for piece in self.pieces:
            await self.steps.acquire()
            yield TextDelta(text=piece)
        await self.steps.acquire()
        yield Reply("".join(self.pieces), "hm", usage=Usage(3, 4))


async def ask(client: openai.AsyncOpenAI, text: Any = "hi", **options: Any) -> Any:
    return await client.responses.create(**{"model": "scripted", "input": text, **options})


async def read_stream(client: Client, response_id: str, after: int = -1) -> list[dict[str, Any]]:
    path = f"/v1/responses/{response_id}?stream=true" + (f"&starting_after={after}" if after >= 0 else "")
    async with client.stream(path) as events:
        return [one.data async for one in events if one.data is not None]


async def wait_for_status(client: openai.AsyncOpenAI, response_id: str) -> Any:
    """Wait until a response has ended."""
    async for _ in await client.responses.retrieve(response_id, stream=True):
        pass
    return await client.responses.retrieve(response_id)


@asynccontextmanager
async def open_shared(log: InMemoryLog, model: ScriptedModel) -> AsyncIterator[tuple[openai.AsyncOpenAI, Client]]:
    """A server on a log that outlives it."""
    async with serve_agents(Agent(model), store=log) as plain, connect_sdk(plain) as client:
        yield client, plain


# ── stored responses ─────────────────────────────────────────────────────────────────────────────────


async def test_a_response_is_stored_shown_listed_and_deleted() -> None:
    async with open_sdk(say("Hello", usage=Usage(7, 3))) as (client, plain):
        made = await ask(client, [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}])
        shown = await client.responses.retrieve(made.id)
        assert shown == made and shown.output_text == "Hello"
        items = (await client.responses.input_items.list(made.id, order="asc")).data
        assert [item.content for item in items] == ["one", "two"]  # type: ignore[union-attr]
        first = await client.responses.input_items.list(made.id, order="asc", limit=1)
        assert first.has_more and [item.id async for item in first] == [item.id for item in items]
        assert (await plain.json("GET", "/v1/sessions"))["sessions"] == []
        await client.responses.delete(made.id)
        for missing in (made.id, "resp_1", f"resp_{'0' * 32}_2"):
            with pytest.raises(openai.NotFoundError, match="no response"):
                await client.responses.retrieve(missing)
        log = plain.app.state.service.runtime.log
        assert (await log.list_sessions(SessionQuery(agent=RESPONSES_AGENT))).sessions == ()


async def test_a_response_with_store_false_is_not_stored() -> None:
    async with open_sdk("Hello") as (client, _):
        made = await ask(client, store=False)
        assert made.output_text == "Hello" and made.model_extra is not None
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(client, store=False, background=True)
        assert refused.value.param == "background"


async def test_a_response_continues_another_and_does_not_inherit_its_instructions() -> None:
    async with open_sdk(say("one", reasoning="think"), "two", "three") as (client, plain):
        first = await ask(client, "a", instructions="be brief")
        second = await ask(client, "b", previous_response_id=first.id)
        third = await ask(client, "c", previous_response_id=first.id)  # the first one went on already
        assert second.previous_response_id == third.previous_response_id == first.id
        one, two, three = plain.model.requests
        assert (one.system, two.system, three.system) == ("be brief", "", "")
        assert two.messages == [
            UserMessage((TextPart("a"),)),
            ModelMessage("one", reasoning="think", model="scripted"),
            UserMessage((TextPart("b"),)),
        ]
        assert three.messages == [*two.messages[:2], UserMessage((TextPart("c"),))]
        await client.responses.delete(first.id)
        assert (await client.responses.retrieve(second.id)).output_text == "two"
        with pytest.raises(openai.NotFoundError):
            await ask(client, "d", previous_response_id=first.id)


async def test_calls_of_an_earlier_response_are_answered_by_their_ids() -> None:
    async with open_sdk(call("add", id="c1", a=1), "three") as (client, plain):
        asked = await ask(client, "add", tools=[FUNCTION])
        (made,) = asked.output
        result = {"type": "function_call_output", "call_id": made.call_id, "output": "3"}
        answer = await ask(client, [result], previous_response_id=asked.id, tools=[FUNCTION])
        assert answer.output_text == "three"
        assert plain.model.requests[1].messages[2] == ResultMessage("c1", "add", "3")
        assert plain.model.requests[1].tools[0].strict is True


async def test_items_are_found_by_reference() -> None:
    async with open_sdk("one", "two") as (client, plain):
        first = await ask(client, "a")
        item_id = first.output[0].id
        asked, more = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
        await ask(client, [asked, {"type": "item_reference", "id": item_id}, more])
        assert plain.model.requests[1].messages[1:] == [ModelMessage("one"), UserMessage((TextPart("b"),))]
        with pytest.raises(openai.NotFoundError, match="msg_unknown"):
            await ask(client, [{"type": "item_reference", "id": "msg_unknown"}])


async def test_a_conversation_collects_the_items_of_its_responses() -> None:
    async with open_sdk("one", ModelError("gone", kind="auth"), "two") as (client, plain):
        made = await client.conversations.create(
            metadata={"topic": "tea"}, items=[{"type": "message", "role": "user", "content": "before"}]
        )
        first = await ask(client, "a", conversation=made.id)
        assert first.conversation.id == made.id
        with pytest.raises(openai.InternalServerError):
            await ask(client, "lost", conversation=made.id)
        await ask(client, "b", conversation={"id": made.id})
        assert [getattr(one, "text", "") or one.parts[0].text for one in plain.model.requests[2].messages] == [  # type: ignore[union-attr]
            *("before", "a", "one", "b")
        ]
        items = [item async for item in client.conversations.items.list(made.id, order="asc", limit=2)]
        assert len(items) == 5 and items[2].role == "assistant"  # type: ignore[union-attr]
        found = await client.conversations.items.retrieve(items[0].id or "", conversation_id=made.id)
        assert found.id == items[0].id
        await client.conversations.items.delete(items[0].id or "", conversation_id=made.id)
        added = await client.conversations.items.create(made.id, items=[{"role": "user", "content": "more"}])
        assert len(added.data) == 1
        changed = await client.conversations.update(made.id, metadata={"topic": "milk"})
        assert (await client.conversations.retrieve(made.id)).metadata == changed.metadata == {"topic": "milk"}
        assert (await client.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)


async def test_a_token_with_a_grant_sees_only_its_own_responses() -> None:
    narrow = create_token("narrow", grant=Grant(tools=("note",)))
    agent = Agent(ScriptedModel("one", "two", "three"))
    async with (
        serve_agents(agent, tokens=(OWNER, narrow)) as plain,
        connect_sdk(plain) as owner,
        Client(plain.base, narrow.value) as other,
        connect_sdk(other) as client,
    ):
        wide, own = await ask(owner), await ask(client)
        assert (await client.responses.retrieve(own.id)).output_text == "two"
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.retrieve(wide.id)
        with pytest.raises(openai.PermissionDeniedError):
            await ask(client, previous_response_id=wide.id)
        assert (await owner.responses.retrieve(own.id)).output_text == "two"


async def test_every_field_of_the_request_is_echoed_with_defaults_for_the_others() -> None:
    given: dict[str, Any] = {
        "instructions": "be brief",
        "max_output_tokens": 50,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "temperature": 0.5,
        "top_p": 0.9,
        "tools": [FUNCTION, {"type": "web_search", "search_context_size": "low"}],
        "tool_choice": {"type": "function", "name": "add"},
        "user": "u",
    }
    async with open_sdk("one", "two") as (_, plain):
        whole = await plain.json("POST", "/v1/responses", {"model": "scripted", "input": "hi", **given})
        assert {name: whole[name] for name in given} == given
        assert isinstance(whole["created_at"], int) and isinstance(whole["completed_at"], int)
        bare = await plain.json("POST", "/v1/responses", {"model": "scripted", "input": "hi"})
        defaults = {
            "temperature": 1.0,
            "top_p": 1.0,
            "truncation": "disabled",
            "tools": [],
            "tool_choice": "auto",
            "text": {"format": {"type": "text"}},
            "metadata": {},
            "store": True,
            "background": False,
            "reasoning": {"effort": None, "summary": None},
            "previous_response_id": None,
        }
        assert {name: bare[name] for name in defaults} == defaults


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncation": "auto"}, "truncation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "conversation"),
        ({"tool_choice": {"type": "function", "name": "fly"}}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "poem"}]}, "input.0"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "judge", "content": "x"}]}, "input.1"),
    ],
)
async def test_a_request_that_cannot_be_honoured_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    async with open_sdk() as (_, plain):
        problem = await plain.problem("POST", "/v1/responses", {"model": "scripted", "input": "hi", **fields})
        assert problem["param"] == param


# ── in the background, left and rejoined ───────────────────────────────────────────────────────────────


async def test_a_background_response_is_left_and_rejoined_at_every_number() -> None:
    model, log = SteppingModel("Hel", "lo ", "you"), InMemoryLog()
    body = {"model": "default", "input": "hi", "background": True, "stream": True}
    async with open_shared(log, model) as (client, plain):
        async with plain.stream("/v1/responses", body) as events:
            whole = await read_until(events, type="response.reasoning_summary_text.delta")
            response_id = whole[0]["response"]["id"]
            assert (await client.responses.retrieve(response_id)).status == "in_progress"
            async with plain.stream(f"/v1/responses/{response_id}?stream=true&starting_after=2") as second:
                rejoined = await read_until(second, type="response.reasoning_summary_text.delta")  # and it leaves
            assert rejoined == whole[3:]
            for _ in range(len(model.pieces) + 1):
                model.steps.release()
            whole += await read_until(events, type="response.completed")
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert [event["type"] for event in whole[:4]] == [
            *("response.created", "response.queued", "response.in_progress", "response.output_item.added")
        ]
        for after in range(-1, len(whole)):
            assert await read_stream(plain, response_id, after) == whole[after + 1 :]
        assert await plain.json("GET", f"/v1/responses/{response_id}") == whole[-1]["response"]
    async with open_shared(log, model) as (_, plain):
        for after in range(-1, len(whole)):
            assert await read_stream(plain, response_id, after) == whole[after + 1 :]
    assert len(model.requests) == 1


async def test_a_background_response_is_cancelled_and_keeps_what_was_written() -> None:
    model = SteppingModel("Hel", "lo")
    async with serve_agents(Agent(model)) as plain, connect_sdk(plain) as client:
        made = await ask(client, background=True)
        assert made.status == "queued"
        following = asyncio.create_task(read_stream(plain, made.id))
        model.steps.release()
        async for event in await client.responses.retrieve(made.id, stream=True):
            if event.type == "response.output_text.delta":
                break
        cancelled = await client.responses.cancel(made.id)
        assert cancelled.status == "cancelled" and cancelled.output_text == "Hel"
        seen = await following
        assert seen[-1]["response"]["status"] == "cancelled" and seen == await read_stream(plain, made.id)
        assert (await client.responses.cancel(made.id)) == cancelled
        with pytest.raises(openai.BadRequestError, match="cancelled"):
            await ask(client, previous_response_id=made.id)


async def test_only_a_background_response_can_be_cancelled_and_a_deleted_one_stops() -> None:
    model = SteppingModel("never")
    async with serve_agents(Agent(model)) as plain, connect_sdk(plain) as client:
        stream = await ask(client, stream=True)
        created = await anext(aiter(stream))
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(created.response.id)
        await client.responses.delete(created.response.id)
        kinds = [event.type async for event in stream]
        assert kinds[-1] == "response.failed"


async def test_a_stored_stream_goes_on_when_its_client_leaves() -> None:
    model = SteppingModel("all")
    async with serve_agents(Agent(model)) as plain, connect_sdk(plain) as client:
        stream = await ask(client, stream=True)
        created = await anext(aiter(stream))
        await stream.close()
        model.steps.release()
        model.steps.release()
        assert (await wait_for_status(client, created.response.id)).output_text == "all"


async def test_a_client_that_leaves_a_stream_that_is_not_stored_ends_the_reply() -> None:
    model = SlowModel("never")
    body = {"model": "default", "stream": True, "input": "hi", "store": False}
    async with serve_agents(Agent(model), keep_alive=0.05) as client:
        async with client.stream("/v1/responses", body) as events:
            await anext(events)
        async with asyncio.timeout(PATIENCE):
            await model.left.wait()


async def test_a_response_that_the_server_left_unfinished_is_asked_again_at_the_next_start() -> None:
    log, model = InMemoryLog(), SteppingModel("never")
    async with open_shared(log, model) as (client, _):
        made = await ask(client, background=True)
    async with open_shared(log, ScriptedModel("done")) as (client, _):
        ended = await wait_for_status(client, made.id)
        assert (ended.status, ended.output_text) == ("completed", "done")
    log, model = InMemoryLog(), SteppingModel("never")
    async with open_shared(log, model) as (client, _):
        made = await ask(client, background=True)
    async with open_shared(log, ScriptedModel(name="another")) as (client, _):
        ended = await wait_for_status(client, made.id)
        assert ended.status == "failed" and "no model 'scripted'" in ended.error.message


async def test_a_failure_is_an_error_and_a_failed_response() -> None:
    overloaded = ModelError("slow down", kind="overloaded", retryable=True, retry_after=3)
    async with open_sdk(overloaded, overloaded, overloaded) as (client, _):
        for options in ({}, {"stream": True}):
            with pytest.raises(openai.RateLimitError):
                await ask(client, **options)
        made = await ask(client, background=True)
        ended = await wait_for_status(client, made.id)
        assert ended.status == "failed" and ended.error.code == "rate_limit_exceeded"


async def test_a_background_response_survives_a_kill_and_ends_once_after_the_restart(tmp_path: Path) -> None:
    spec = {"model": "steps-0-tok-40-delay-25ms", "side": str(tmp_path / "side"), "store": str(tmp_path / "log.db")}
    with fake_model() as port, start_forker() as forker:
        async with Client(forker.start(**spec, port=port)) as client:
            body = {"model": "default", "input": "go", "background": True, "stream": True}
            async with client.stream("/v1/responses", body) as events:
                seen = await read_until(events, type="response.output_text.delta")
                forker.kill()
        response_id = seen[0]["response"]["id"]
        async with Client(forker.start(**spec, port=port)) as client:
            told = await read_stream(client, response_id)
            ended = await client.json("GET", f"/v1/responses/{response_id}")
            assert ended["status"] == "completed" and told[-1]["response"] == ended
            assert len(ended["output"][0]["content"][0]["text"].split()) == 40
    log = open_log(spec["store"])
    facts = await log.read(response_id.split("_")[1])
    await log.close()
    names = [fact.name for fact in facts if isinstance(fact, Custom)]
    assert names == ["responses.input", "responses.output"]


async def test_namespaces_are_flattened_for_the_provider_and_restored_for_the_client() -> None:
    tools: Any = [
        FUNCTION,
        {"type": "namespace", "name": "agents", "tools": [{**FUNCTION, "name": "spawn"}]},
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "execution": "client"},
    ]
    async with open_sdk(call("agents__spawn", id="c1", a=1), "done") as (client, plain):
        raw = await client.responses.with_raw_response.create(model="scripted", input="go", tools=tools, store=False)
        assert raw.headers["x-treadle-ignored-tools"] == "web_search, tool_search"
        (made,) = raw.parse().output
        assert made.type == "function_call" and (made.name, made.namespace) == ("spawn", "agents")
        assert [tool.name for tool in plain.model.requests[0].tools] == ["add", "agents__spawn"]
        history = [
            {"role": "user", "content": "go"},
            json.loads(made.to_json()),
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
        ]
        await ask(client, history, tools=tools, store=False)
        assert plain.model.requests[1].messages[1:] == [
            ModelMessage(calls=(Call("c1", "agents__spawn", '{"a":1}'),)),
            ResultMessage("c1", "agents__spawn", "1"),
        ]


async def test_custom_tools_take_text_and_additional_tools_count_as_tools() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}
    members = [{"type": "custom", "name": "exec", "description": "Run.", "format": grammar}]
    given: Any = [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "namespace", "name": "fn", "tools": members}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    ]
    async with open_sdk(call("fn__exec", id="c1", input="xx\n"), "done") as (client, plain):
        asked = await ask(client, given)
        (made,) = asked.output
        assert (made.type, made.name, made.namespace, made.input) == ("custom_tool_call", "exec", "fn", "xx\n")
        (tool,) = plain.model.requests[0].tools
        assert tool.name == "fn__exec" and "start: /x+/" in tool.description and "Run." in tool.description
        result = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
        await ask(client, [*given, json.loads(made.to_json()), result])
        assert plain.model.requests[1].messages[1:] == [
            ModelMessage(calls=(Call("c1", "fn__exec", '{"input":"xx\\n"}'),)),
            ResultMessage("c1", "fn__exec", "ok"),
        ]


async def test_reasoning_is_emitted_and_accepted_back_with_the_providers_state() -> None:
    thought = Reply("so", "because", (Call("c1", "add", "{}"),), "calls", model="scripted", opaque='{"owner":"x"}')
    async with open_sdk(thought, "done") as (client, plain):
        asked = await ask(client, "go", include=ENCRYPTED, store=False, tools=[FUNCTION])
        reasoning, message, made = (json.loads(item.to_json()) for item in asked.output)
        assert reasoning["summary"] == [{"type": "summary_text", "text": "because"}]
        result = {"type": "function_call_output", "call_id": "c1", "output": "1"}
        foreign = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAA"}
        await ask(client, [{"role": "user", "content": "go"}, foreign, reasoning, message, made, result], store=False)
        assert plain.model.requests[1].messages[1] == ModelMessage(
            "so", thought.calls, "because", thought.opaque, "scripted"
        )


async def test_images_in_tool_results_reach_the_model() -> None:
    items: Any = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", "name": "view", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PIXEL}],
        },
    ]
    async with open_sdk("a pixel") as (client, plain):
        await ask(client, items)
        assert plain.model.requests[0].messages[2] == ResultMessage("c1", "view", "see", parts=(ImagePart("AAAA"),))


async def test_what_codex_sends_is_served() -> None:
    """A second turn in the shape of codex: no instructions, everything in the input, tools of four kinds."""
    body: dict[str, Any] = {
        "model": "scripted",
        "stream": True,
        "store": False,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "client_metadata": {"x": "y"},
        "tools": [
            {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}},
            {"type": "namespace", "name": "multi", "description": "", "tools": [{**FUNCTION, "name": "wait_agent"}]},
            {
                "type": "custom",
                "name": "apply_patch",
                "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
            },
            {"type": "web_search", "external_web_access": False},
        ],
        "input": [
            {"type": "message", "id": "1", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "id": "2", "role": "developer", "content": [{"type": "input_text", "text": "more"}]},
            {"type": "message", "id": "3", "role": "user", "content": [{"type": "input_text", "text": "where"}]},
            {"type": "message", "id": "4", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
            {"type": "reasoning", "id": "5", "summary": [], "content": None, "encrypted_content": None},
            {"type": "function_call", "id": "6", "call_id": "a", "name": "exec_command", "arguments": "{}"},
            {"type": "function_call_output", "id": "7", "call_id": "a", "output": "files"},
            {"type": "message", "id": "8", "role": "developer", "content": [{"type": "input_text", "text": "note"}]},
        ],
    }
    async with open_sdk(["on it", call("multi__wait_agent", id="b")]) as (_, plain):
        headers = {"accept": "text/event-stream", "session-id": "s", "originator": "codex_exec"}
        async with plain.stream("/v1/responses", body, headers=headers) as events:
            seen = [one.data async for one in events if one.data is not None]
        done = [event["item"] for event in seen if event["type"] == "response.output_item.done"]
        assert [item["type"] for item in done] == ["message", "function_call"]
        assert (done[1]["name"], done[1]["namespace"]) == ("wait_agent", "multi")
        assert seen[-1]["type"] == "response.completed" and seen[-1]["response"]["usage"]["total_tokens"]
        (request,) = plain.model.requests
        assert request.system == "rules\n\nmore"
        assert request.messages[-1] == UserMessage((TextPart("note"),), is_system=True)
