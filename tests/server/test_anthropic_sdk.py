"""Anthropic's Messages, by Anthropic's own client and by requests as Claude Code sends them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import PROTOCOLS, anthropic_model, chat_model, responses_model
from tests.kit.fakes.responses import StrictResponses
from tests.kit.fakes.server import Odd, Strict
from tests.kit.server import Client, serve_agents, serve_script
from tests.kit.sessions import PATIENCE
from treadle import Agent
from treadle.errors import ModelError
from treadle.messages import Call, ImagePart, ModelMessage, Reply, ResultMessage, TextPart, Usage, UserMessage
from treadle.models.remote import RemoteModel
from treadle.testing import call, say

ASKED: Any = [{"role": "user", "content": "hi"}]
ADD: Any = {"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {}}}
THINKING: Any = {"type": "enabled", "budget_tokens": 2048}
BODY: Any = {"model": "scripted", "max_tokens": 100, "messages": ASKED}
PATH = "/v1/messages"


def connect_sdk(plain: Client) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=plain.base, api_key=plain.token, max_retries=0, timeout=PATIENCE)


@asynccontextmanager
async def open_sdk(*script: Any, **options: Any) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Client]]:
    """Anthropic's client and our own, for a server with one agent that follows a script."""
    async with serve_script(*script, **options) as plain, connect_sdk(plain) as client:
        yield client, plain


@asynccontextmanager
async def open_provider(fake: Strict, model: RemoteModel) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client for a server whose model is behind a fake provider. The provider refuses nothing."""
    async with serve_agents(Agent(model)) as plain, connect_sdk(plain) as client:
        yield client
    assert fake.rejected == []


async def create(client: anthropic.AsyncAnthropic, **options: Any) -> Any:
    return await client.messages.create(**{**BODY, **options})


async def stream(client: anthropic.AsyncAnthropic, **options: Any) -> Any:
    """The message that a stream adds up to."""
    async with client.messages.stream(**{**BODY, **options}) as events:
        return await events.get_final_message()


async def test_a_message_is_answered_whole_and_streamed() -> None:
    async with open_sdk(*[say("Hello\nthere", usage=Usage(7, 3, 2))] * 2) as (client, plain):
        more = {"temperature": 0.5, "top_k": 3}
        whole = await create(client, system="be brief", stop_sequences=["END"], extra_body=more)
        assert [block.text for block in whole.content] == ["Hello\nthere"] and whole.stop_reason == "end_turn"
        assert (whole.type, whole.role, whole.model, whole.id[:4]) == ("message", "assistant", "scripted", "msg_")
        usage = whole.usage
        assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (5, 3, 2)
        asked = plain.model.requests[0]
        assert (asked.system, asked.max_tokens, asked.sampling.temperature) == ("be brief", 100, 0.5)
        assert asked.sampling.stop == ("END",) and asked.sampling.extra == {"top_k": 3}
        streamed = await stream(client)
        assert streamed.model_dump(exclude={"id"}) == whole.model_dump(exclude={"id"})


async def test_the_clients_tools_are_returned_to_the_client_and_their_results_read() -> None:
    calls = [call("add", id="c1", a=1), call("add", id="c2", a=2)]
    async with open_sdk(["Let me add", *calls], ["", *calls], "three") as (client, plain):
        for ask in (create, stream):
            answer = await ask(client, tools=[ADD], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
            *_, one, two = answer.content
            assert answer.stop_reason == "tool_use" and (one.input, two.input) == ({"a": 1}, {"a": 2})
            assert one.id != two.id and one.id.startswith("toolu_")
        assert plain.model.requests[0].sampling.extra == {"parallel_tool_calls": False}
        image: Any = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
        results: Any = [
            {"type": "text", "text": "Here."},
            {"type": "tool_result", "tool_use_id": one.id, "content": "no", "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": two.id,
                "content": [{"type": "text", "text": "see"}, {"type": "image", "source": image}],
                "cache_control": {"type": "ephemeral"},
            },
        ]
        history = [*ASKED, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
        assert (await create(client, messages=history, tools=[ADD])).content[0].text == "three"
        assert plain.model.requests[2].messages[1:] == [
            ModelMessage(calls=(Call(one.id, "add", '{"a":1}'), Call(two.id, "add", '{"a":2}'))),
            ResultMessage(one.id, "add", "no", ok=False),
            ResultMessage(two.id, "add", "see", parts=(ImagePart("QUJD"),)),
            UserMessage((TextPart("Here."),)),
        ]


async def test_calls_are_streamed_as_the_provider_writes_them() -> None:
    calls = (Call("call_1", "add", '{"a":1,"b":2}'), Call("call_2", "add", '{"a":3}'))
    reply = Reply("I add.", calls=calls, finish="calls")
    async with StrictChat([Odd(reply, split=20)]) as fake, open_provider(fake, chat_model(fake)) as client:
        kinds: list[str] = []
        async with client.messages.stream(**{**BODY, "model": "fake:m", "tools": [ADD]}) as events:
            async for event in events:
                kinds.append(event.type if event.type != "content_block_delta" else event.delta.type)
            streamed = await events.get_final_message()
        assert kinds.count("input_json_delta") > 2, kinds
        assert [block.type for block in streamed.content] == ["text", "tool_use", "tool_use"]
        assert [block.input for block in streamed.content[1:]] == [{"a": 1, "b": 2}, {"a": 3}]
        whole = await create(client, model="fake:m", tools=[ADD])
        assert [block.input for block in whole.content[1:]] == [{"a": 1, "b": 2}, {"a": 3}]


@pytest.mark.parametrize("ask", [create, stream])
async def test_the_thinking_of_anthropic_goes_back_to_anthropic_byte_for_byte(ask: Any) -> None:
    script = [Reply("I add.", "a hard one", (Call("toolu_1", "add", '{"a":1}'),), "calls"), Reply("It is 1.", "easy")]
    async with StrictAnthropic(script) as fake, open_provider(fake, anthropic_model(fake)) as client:
        options: Any = {"model": "fake:m", "max_tokens": 9000, "thinking": THINKING, "tools": [ADD], "system": "Add."}
        first = await ask(client, **options)
        thought, text, made = first.content
        assert (thought.type, thought.thinking, text.text) == ("thinking", "a hard one", "I add.")
        result = {"type": "tool_result", "tool_use_id": made.id, "content": "1"}
        history: Any = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = await ask(client, **options, messages=history)
        sent = fake.seen[-1].body
        assert sent["messages"][1]["content"][0] == {
            "type": "thinking",
            "thinking": "a hard one",
            "signature": thought.signature,
        }
        assert sent["thinking"] == THINKING
        history += [{"role": "assistant", "content": second.content}, *ASKED]
        await ask(client, **options, messages=history)
        kept = [block["type"] for message in fake.seen[-1].body["messages"] for block in message["content"]]
        assert kept.count("thinking") == 2, "also the thinking of a finished turn"


async def test_a_forged_signature_is_left_out_and_not_an_error() -> None:
    forged = [
        {"type": "thinking", "thinking": "hm", "signature": "Zm9yZ2Vk"},
        {"type": "redacted_thinking", "data": "treadle.bm8="},
        {"type": "thinking", "thinking": "hm", "signature": "treadle.%%"},
        {"type": "text", "text": "Hello."},
    ]
    history: Any = [*ASKED, {"role": "assistant", "content": forged}, *ASKED]
    for protocol, (fake_type, make) in PROTOCOLS.items():
        async with (
            fake_type([Reply("fine")]) as fake,
            serve_agents(Agent(make(fake))) as plain,
            connect_sdk(plain) as client,
        ):
            name = "ollama:m" if protocol == "ollama" else "fake:m"
            for ask in (create, stream):
                assert (await ask(client, model=name, messages=history)).content[0].text == "fine", protocol


async def test_the_reasoning_of_another_provider_comes_back_with_its_state() -> None:
    script = [Reply("I add.", "hm", (Call("call_1", "add", '{"a":1}'),), "calls"), Reply("It is 1.")]
    async with StrictResponses(script) as fake, open_provider(fake, responses_model(fake, "o9")) as client:
        options: Any = {"model": "fake:o9", "thinking": {"type": "adaptive"}, "tools": [ADD]}
        first = await stream(client, **options)
        (made,) = [block for block in first.content if block.type == "tool_use"]
        assert first.content[0].type == "thinking" and first.content[0].thinking == "hm"
        result = {"type": "tool_result", "tool_use_id": made.id, "content": "1"}
        history: Any = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        assert (await create(client, **options, messages=history)).content[0].text == "It is 1."
        kinds = [item.get("type") for item in fake.seen[-1].body["input"]]
        assert "reasoning" in kinds and "function_call" in kinds


async def test_thinking_is_shown_omitted_or_left_out_as_the_client_asks() -> None:
    async with open_sdk(*[say("Hello", reasoning="hm")] * 6) as (client, _):
        for ask in (create, stream):
            shown = await ask(client, thinking={"type": "adaptive"})
            assert [block.type for block in shown.content] == ["thinking", "text"] and shown.content[0].signature
            omitted = await ask(client, thinking={"type": "adaptive", "display": "omitted"})
            assert omitted.content[0].thinking == "" and omitted.content[0].signature
            assert [block.type for block in (await ask(client)).content] == ["text"]


async def test_the_ways_to_stop_have_anthropics_names() -> None:
    script: list[Any] = [Reply("ha", finish="length"), Reply("no", finish="filter"), Reply("a", stop_sequence="END")]
    async with open_sdk(*script) as (client, _):
        answers = [await create(client), await stream(client), await stream(client)]
        assert [one.stop_reason for one in answers] == ["max_tokens", "refusal", "stop_sequence"]
        assert answers[-1].stop_sequence == "END"


async def test_errors_are_those_of_anthropic() -> None:
    overloaded = ModelError("slow down", kind="overloaded", retryable=True, retry_after=3)
    async with open_sdk(overloaded, ModelError("no", kind="auth")) as (client, plain):
        with pytest.raises(anthropic.RateLimitError, match="slow down"):
            await create(client)
        with pytest.raises(anthropic.InternalServerError) as failed:
            await create(client)
        assert failed.value.body["error"]["type"] == "api_error"  # type: ignore[index]
        with pytest.raises(anthropic.NotFoundError, match="the models are: scripted"):
            await stream(client, model="claude-opus-5-5")
        bad: list[tuple[Any, int, str]] = [
            ({**BODY, "messages": [{"role": "robot", "content": "x"}]}, 422, "invalid_request_error"),
            ({**BODY, "messages": []}, 400, "invalid_request_error"),
            ({**BODY, "tool_choice": {"type": "tool", "name": "nope"}}, 400, "invalid_request_error"),
            ({"max_tokens": 1}, 422, "invalid_request_error"),
        ]
        for path in (PATH, f"{PATH}/count_tokens"):
            for body, status, kind in bad:
                error = await plain.json("POST", path, body, status)
                assert error["type"] == "error" and error["error"]["type"] == kind and error["error"]["message"]
            async with Client(plain.base, "") as stranger:
                assert (await stranger.json("POST", path, BODY, 401))["error"]["type"] == "authentication_error"
            assert (await plain.json("PUT", path, BODY, 405))["type"] == "error"


async def test_an_error_in_a_stream_is_an_event_of_its_own() -> None:
    cut_off = Odd(Reply("a long text " * 500), end_after=20_000, split=1000)
    async with (
        StrictChat([cut_off]) as fake,
        serve_agents(Agent(chat_model(fake))) as plain,
        plain.stream(PATH, {**BODY, "model": "fake:m", "stream": True}) as events,
    ):
        seen = [one async for one in events]
    assert seen[0].data["type"] == "message_start"
    assert seen[-1].event == "error" and seen[-1].data["error"]["type"] == "api_error"


async def test_tools_that_only_anthropic_runs_are_left_out_and_named() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    deferred = {**ADD, "name": "find", "defer_loading": True}
    placeholder = {**ADD, "name": "DeferredToolPlaceholder", "defer_loading": True}
    async with open_sdk("a", "b", "c") as (_, plain):
        body = {**BODY, "tools": [search], "tool_choice": {"type": "tool", "name": "web_search"}}
        for changes in ({}, {"stream": True}, {"tools": [search, ADD, deferred, placeholder], "tool_choice": None}):
            async with plain.request("POST", PATH, json={**body, **changes}) as answer:
                assert answer.status == 200 and answer.headers["x-treadle-ignored-tools"] == "web_search"
                await answer.read()
        assert [len(one.tools) for one in plain.model.requests] == [0, 0, 2]
        assert [tool.name for tool in plain.model.requests[2].tools] == ["add", "find"]


def build_claude_code_body(**changes: Any) -> Any:
    """A body of the shape that Claude Code sends by default."""
    mark = {"cache_control": {"type": "ephemeral"}}
    system = ["x-anthropic-billing-header: cc_version=2; cch=1;", "You are a coding agent.", "Follow the rules."]
    return {
        "model": "scripted",
        "max_tokens": 32000,
        "stream": True,
        "system": [{"type": "text", "text": text, **mark} for text in system],
        "tools": [{**ADD, "name": name} for name in ("Bash", "Read", "ToolSearch")]
        + [{**ADD, "name": "DeferredToolPlaceholder", "defer_loading": True}],
        "metadata": {"user_id": json.dumps({"device_id": "d", "session_id": "s"})},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two", **mark}]},
            {"role": "system", "content": "# Environment\nLinux"},
        ],
        **changes,
    }


CLAUDE_CODE_HEADERS = {
    "accept": "application/json",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,never-heard-of-2031-01-01",
    "x-app": "cli",
    "anthropic-dangerous-direct-browser-access": "true",
}


async def test_a_conversation_of_claude_code_is_served_unchanged() -> None:
    async with open_sdk(call("Bash", command="ls"), "done") as (_, plain):
        body = build_claude_code_body()
        async with plain.stream(f"{PATH}?beta=true", body, headers=CLAUDE_CODE_HEADERS) as events:
            frames = [one.data async for one in events]
        assert [frame["type"] for frame in frames] == [
            *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
            *("message_delta", "message_stop"),
        ]
        block = frames[1]["content_block"]
        assert frames[0]["message"]["usage"]["input_tokens"] > 0 and block["name"] == "Bash"
        asked = plain.model.requests[0]
        assert asked.system == "You are a coding agent.\n\nFollow the rules." and len(asked.tools) == 3
        assert asked.messages == [
            UserMessage((TextPart("one"), TextPart("two"))),
            UserMessage((TextPart("# Environment\nLinux"),), is_system=True),
        ]
        body["messages"] += [
            {"role": "assistant", "content": [{"type": "tool_use", "id": block["id"], "name": "Bash", "input": {}}]},
            {"role": "user", "content": [{"type": "text", "text": "meanwhile"}]},
            {"role": "system", "content": [{"type": "text", "text": "The date has changed."}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": block["id"],
                        "content": [{"type": "tool_reference", "tool_name": "WebFetch"}],
                    }
                ],
            },
        ]
        whole = await plain.json("POST", f"{PATH}?beta=true", {**body, "stream": False}, headers=CLAUDE_CODE_HEADERS)
        assert whole["content"] == [{"type": "text", "text": "done"}]
        kinds = [type(one).__name__ for one in plain.model.requests[1].messages]
        assert kinds == ["UserMessage", "UserMessage", "ModelMessage", "ResultMessage", "UserMessage", "UserMessage"]


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
async def test_every_provider_takes_the_requests_of_claude_code(protocol: str) -> None:
    fake_type, make = PROTOCOLS[protocol]
    async with fake_type([Reply("Hello")]) as fake, serve_agents(Agent(make(fake))) as plain:
        name = "ollama:m" if protocol == "ollama" else "fake:m"
        whole = await plain.json("POST", PATH, build_claude_code_body(model=name, stream=False))
        assert whole["content"][-1] == {"type": "text", "text": "Hello"}


async def test_an_agent_answers_and_its_activity_comes_in_pings() -> None:
    script = [["let me see", call("note", text="a")], "noted", call("note", text="b"), "again"]
    async with open_sdk(*script) as (client, plain):
        streamed = await stream(client, model="agent:agent")
        assert [block.text for block in streamed.content] == ["let me see", "noted"]
        async with plain.stream(PATH, {**BODY, "model": "agent:agent", "stream": True}) as events:
            seen = [one async for one in events]
        session_id = seen[0].data["message"]["treadle"]["session_id"]
        pings = [one.data["treadle"] for one in seen if one.event == "ping"]
        assert [ping["event"]["type"] for ping in pings] == ["call_started", "call_finished", "run_finished"]
        assert all(ping["session_id"] == session_id for ping in pings)


async def test_an_agent_answers_whole_and_continues_its_session() -> None:
    async with open_sdk(call("note", text="b"), "noted", "again") as (client, plain):
        whole = await create(client, model="agent:agent")
        assert whole.content[0].text == "noted" and whole.stop_reason == "end_turn"
        extension = whole.model_extra["treadle"]
        assert [one["type"] for one in extension["events"]][-1] == "run_finished"
        header = {"x-treadle-session": extension["session_id"]}
        more = await create(client, model="agent:agent", extra_headers=header)
        assert more.model_extra["treadle"]["session_id"] == extension["session_id"]
        assert len(plain.model.requests[-1].messages) > 2


async def test_a_run_that_fails_is_an_error_event_or_status() -> None:
    async with open_sdk(*[ModelError("no", kind="auth")] * 2) as (client, plain):
        with pytest.raises(anthropic.InternalServerError):
            await create(client, model="agent:agent")
        async with plain.stream(PATH, {**BODY, "model": "agent:agent", "stream": True}) as events:
            seen = [one async for one in events]
        assert seen[-1].event == "error" and seen[-1].data["error"]["type"] == "api_error"


class CountingAnthropic(StrictAnthropic):
    """Counts tokens, and how many counts there are at once."""

    def document(self, method: str, path: str) -> Any:
        return {"input_tokens": 42} if path.endswith("/messages/count_tokens") else None


async def test_tokens_are_counted_by_the_provider_where_it_can() -> None:
    async with CountingAnthropic() as fake, open_provider(fake, anthropic_model(fake)) as client:
        counted = await client.messages.count_tokens(model="fake:m", messages=ASKED, tools=[ADD], system="s")
        assert counted.input_tokens == 42
        sent = fake.seen[-1].body
        assert set(sent) == {"model", "messages", "tools", "system"} and fake.seen[-1].path.endswith("count_tokens")
    async with StrictAnthropic() as silent, serve_agents(Agent(anthropic_model(silent))) as plain:
        body = {"model": "fake:m", "messages": ASKED, "tools": []}
        assert 0 < (await plain.json("POST", f"{PATH}/count_tokens", body))["input_tokens"] < 20


async def test_a_burst_of_23_counts_meets_no_limiter() -> None:
    body: Any = {"messages": ASKED, "tools": []}
    async with serve_script() as plain:
        path = f"{PATH}/count_tokens?beta=true"
        asking = [plain.json("POST", path, {**body, "model": "scripted"}) for _ in range(23)]
        assert all(one["input_tokens"] > 0 for one in await asyncio.gather(*asking))
    async with CountingAnthropic() as fake, serve_agents(Agent(anthropic_model(fake))) as plain:
        asking = [plain.json("POST", path, {**body, "model": "fake:m"}) for _ in range(23)]
        assert await asyncio.gather(*asking) == [{"input_tokens": 42}] * 23
        assert len(fake.seen) == 23 and fake.connections <= 4
