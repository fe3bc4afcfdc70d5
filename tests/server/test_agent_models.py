"""Agents that answer in a model's place: their sessions, and the clients' tools, by the clients' own libraries."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.kit.server import Client, create_token, read_events, read_until, serve_agents, serve_script
from tests.kit.sessions import PATIENCE
from tests.server.worker import fake_model, start_forker
from treadle import Agent, Grant
from treadle.errors import ModelError
from treadle.messages import Call, ModelMessage, ResultMessage, Sampling, TextPart, ToolSpec, UserMessage
from treadle.testing import ScriptedModel, call

SESSION = "x-treadle-session"
PARAMETERS: Any = {"type": "object", "properties": {"place": {"type": "string"}}}
LOCATE: Any = [{"type": "function", "function": {"name": "locate", "parameters": PARAMETERS}}]
CHAT = "/v1/chat/completions"
TRIP = [
    ["Let me see.", call("note", id="n1", text="a")],
    [call("locate", id="call.0", place="x"), call("locate", id="call.1", place="y")],
    "It is here.",
]
"""A conversation of three steps: the agent's own tool, two calls of the client's, the answer."""


def connect_openai(plain: Client) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{plain.base}/v1", api_key=plain.token, max_retries=0, timeout=PATIENCE)


def say(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_an_agent_names_its_session_in_the_first_chunk_the_document_and_a_header() -> None:
    async with serve_script(call("note", text="a"), "noted", "two", "three") as plain, connect_openai(plain) as client:
        chat: Any = client.chat.completions.with_raw_response
        raw = await chat.create(model="agent:agent", messages=say("go"), stream=True)
        chunks = [chunk async for chunk in raw.parse()]
        session_id = raw.headers[SESSION]
        extensions = [chunk.model_extra["treadle"] for chunk in chunks if chunk.model_extra]
        assert chunks[0].model_extra and {one["session_id"] for one in extensions} == {session_id}
        kinds = [one["event"]["type"] for one in extensions if "event" in one]
        assert kinds == ["call_started", "call_finished", "run_finished"]
        raw = await chat.create(model="agent:agent", messages=say("more"), extra_headers={SESSION: session_id})
        whole = raw.parse()
        assert raw.headers[SESSION] == whole.model_extra["treadle"]["session_id"] == session_id
        body = {"treadle": whole.model_extra["treadle"]}
        await client.chat.completions.create(model="agent:agent", messages=say("and more"), extra_body=body)
        assert len(plain.model.requests[-1].messages) == 7, "one session has all three messages"


async def test_responses_and_completions_of_an_agent_name_its_session() -> None:
    async with serve_script("one", "two", "three") as plain, connect_openai(plain) as client:
        async with client.responses.stream(model="agent:agent", input="hi") as stream:
            first, *_ = [event async for event in stream]
            final: Any = await stream.get_final_response()
        assert first.type == "response.created" and first.response.model_extra is not None
        session_id = first.response.model_extra["treadle"]["session_id"]
        assert final.model_extra["treadle"]["session_id"] == session_id
        body = {"session_id": session_id}
        whole: Any = await client.responses.create(model="agent:agent", input="more", extra_body=body)
        assert whole.model_extra["treadle"]["session_id"] == session_id
        text: Any = await client.completions.create(model="agent:agent", prompt="more", extra_body=body)
        assert text.model_extra["treadle"]["session_id"] == session_id
        assert len(plain.model.requests[-1].messages) == 5


async def test_a_session_is_continued_only_by_its_own_agent_and_by_a_token_that_may() -> None:
    narrow = create_token("narrow", grant=Grant(tier="read-only"))
    agents = [Agent(ScriptedModel("hi", "hi"), name=name) for name in ("one", "two")]
    async with serve_agents(*agents, tokens=(create_token("owner"), narrow)) as plain:
        plain.http.headers["authorization"] = "Bearer owner-secret-of-the-tests"
        session_id = await plain.session(agent="one")
        body = {"messages": say("hi"), "session_id": session_id}
        problem = await plain.problem("POST", "/v1/chat/completions", {"model": "agent:two", **body}, 422)
        assert problem["param"] == "model" and "agent:one" in problem["message"]
        await plain.problem("POST", "/v1/chat/completions", {**body, "model": "agent:one", "session_id": "0" * 32}, 404)
        async with Client(plain.base, narrow.value) as other:
            await other.problem("POST", "/v1/chat/completions", {"model": "agent:one", **body}, 403)
            header = {SESSION: session_id}
            plainly = {"model": "agent:one", "messages": say("hi")}
            await other.problem("POST", "/v1/chat/completions", plainly, 403, headers=header)


@asynccontextmanager
async def serve_trip(**options: Any) -> AsyncIterator[tuple[Client, openai.AsyncOpenAI]]:
    async with serve_script(*TRIP, **options) as plain, connect_openai(plain) as client:
        yield plain, client


async def ask(client: openai.AsyncOpenAI, messages: Any, **options: Any) -> Any:
    options = {"model": "agent:agent", "tools": LOCATE, **options}
    return await client.chat.completions.create(messages=messages, **options)


def answer_calls(message: Any, *outputs: str) -> list[Any]:
    """The message with its calls, and their results."""
    results = zip(message.tool_calls, outputs, strict=False)
    return [message, *({"role": "tool", "tool_call_id": one.id, "content": text} for one, text in results)]


async def test_the_agents_tools_run_at_the_server_and_the_clients_at_the_client() -> None:
    async with serve_trip() as (plain, client):
        first = await ask(client, say("where?"))
        choice = first.choices[0]
        assert choice.finish_reason == "tool_calls" and [one.function.name for one in choice.message.tool_calls] == [
            "locate",
            "locate",
        ]
        assert choice.message.tool_calls[0].function.arguments == '{"place":"x"}'
        assert all(one.id.replace("_", "").isalnum() for one in choice.message.tool_calls), "Anthropic's rule for ids"
        assert [one["tool"] for one in first.model_extra["treadle"]["events"]] == ["note", "note", "locate", "locate"]
        history = [*say("where?"), *answer_calls(choice.message, "north", "south")]
        last = await ask(client, history)
        assert last.choices[0].message.content == "It is here." and last.choices[0].finish_reason == "stop"
        assert last.model_extra["treadle"]["session_id"] == first.model_extra["treadle"]["session_id"]
        messages = plain.model.requests[-1].messages
        assert len(messages) == 6, "the history is not taken again"
        assert [one.text for one in messages[-2:] if isinstance(one, ResultMessage)] == ["north", "south"]
        again = await ask(client, history)
        assert again.choices[0].message.content == "It is here.", "a repeated request has the same answer"
        assert len(plain.model.requests) == 3


async def test_a_stream_ends_with_the_clients_calls_and_goes_on_with_their_results() -> None:
    async with serve_trip() as (_, client):
        options: Any = {"model": "agent:agent", "tools": LOCATE}
        async with client.chat.completions.stream(messages=say("where?"), **options) as stream:
            first = await stream.get_final_completion()
        message: Any = first.choices[0].message
        assert message.content == "Let me see.\n\n" and first.choices[0].finish_reason == "tool_calls"
        history = [*say("where?"), *answer_calls(message, "north", "south")]
        async with client.chat.completions.stream(messages=history, **options) as stream:
            last = await stream.get_final_completion()
        assert last.choices[0].message.content == "It is here."


async def test_a_client_that_sends_one_of_two_results_gets_the_other_call_again() -> None:
    async with serve_trip() as (plain, client):
        message = (await ask(client, say("where?"))).choices[0].message
        rest = (await ask(client, [*say("where?"), *answer_calls(message, "north")])).choices[0].message
        assert [one.id for one in rest.tool_calls] == [message.tool_calls[1].id]
        history = [*say("where?"), *answer_calls(message, "north", "south"), *say("and be quick")]
        last = await ask(client, history)
        assert last.choices[0].message.content == "It is here."
        assert plain.model.requests[-1].messages[-1] == UserMessage((TextPart("and be quick"),))


async def test_another_result_for_a_call_is_a_conflict_and_a_message_without_results_too() -> None:
    async with serve_trip() as (plain, client):
        first = await ask(client, say("where?"))
        message, session_id = first.choices[0].message, first.model_extra["treadle"]["session_id"]
        with pytest.raises(openai.ConflictError, match="waits for the client's results of locate"):
            await ask(client, say("well?"), extra_body={"session_id": session_id})
        history = [*say("where?"), *answer_calls(message, "north", "south")]
        await ask(client, history)
        with pytest.raises(openai.ConflictError, match="another result"):
            await ask(client, [*say("where?"), *answer_calls(message, "east", "south")])
        unknown: Any = [{"role": "assistant", "tool_calls": [{"id": f"{session_id}_1", "function": {"name": "x"}}]}]
        unknown += [{"role": "tool", "tool_call_id": f"{session_id}_1", "content": "x"}]
        with pytest.raises(openai.NotFoundError, match="made no call"):
            await ask(client, unknown)
        assert len(plain.model.requests) == 3


async def test_a_run_that_waits_for_the_client_is_continued_over_rest() -> None:
    owner, viewer = create_token("owner"), create_token("viewer", "view")
    async with serve_trip(tokens=(owner, viewer)) as (plain, client):
        session_id = (await ask(client, say("where?"))).model_extra["treadle"]["session_id"]
        path = f"/v1/sessions/{session_id}"
        waiting = (await plain.json("GET", path))["pending"]
        assert [(one["kind"], one["tool"], one["arguments"]) for one in waiting] == [
            ("client_call", "locate", {"place": "x"}),
            ("client_call", "locate", {"place": "y"}),
        ]
        assert await plain.json("GET", "/v1/approvals") == [], "nobody can approve them"
        said = await plain.json("POST", f"{path}/messages", {"content": "be quick"})
        assert (said["outcome"]["status"], said["outcome"]["reason"]) == ("waiting", "waiting")
        assert said["outcome"]["pending"] == waiting
        first, second = (f"{path}/calls/{one['call_id']}/result" for one in waiting)
        async with Client(plain.base, viewer.value) as other:
            await other.problem("POST", first, {"output": "north"}, 403)
        await plain.problem("POST", f"{path}/calls/n1/result", {"output": "x"}, 404)
        await plain.problem("POST", first, {"output": 3}, 422)
        for _ in range(2):
            assert await plain.json("POST", first, {"output": "north"}) == {"resolved": True}
        assert (await plain.problem("POST", first, {"output": "east"}, 409))["type"] == "already_answered"
        [left] = (await plain.json("GET", path))["pending"]
        assert left == waiting[1]
        await plain.json("POST", second, {"output": "nobody there", "ok": False})
        stream = await plain.request("GET", f"{path}/events")
        await read_until(read_events(stream.content), type="run_finished")
        stream.close()
        results = [one for one in plain.model.requests[-1].messages if isinstance(one, ResultMessage)][-2:]
        assert [(one.text, one.ok) for one in results] == [("north", True), ("nobody there", False)]
        assert (await plain.json("GET", path))["messages"][-1]["content"] == "It is here."
        await plain.problem("POST", second, {"output": "found"}, 409)


async def test_a_message_whose_run_calls_a_client_tool_is_answered_with_the_calls() -> None:
    async with serve_trip() as (plain, _):
        session_id = await plain.session()
        session = await plain.app.state.service.runtime.open(session_id)
        await session.configure(client_tools=[ToolSpec("locate", "", PARAMETERS)])
        said = await plain.json("POST", f"/v1/sessions/{session_id}/messages", {"content": "where?"})
        assert [one["call_id"] for one in said["outcome"]["pending"]] == ["call.0", "call.1"]


async def test_a_cancelled_run_takes_no_result_of_the_client() -> None:
    async with serve_trip() as (plain, client):
        first = await ask(client, say("where?"))
        session_id = first.model_extra["treadle"]["session_id"]
        assert (await plain.json("GET", f"/v1/sessions/{session_id}"))["status"] == "waiting"
        await plain.json("POST", f"/v1/sessions/{session_id}/cancel")
        statuses = [fact["status"] for fact in await plain.facts(session_id) if fact["type"] == "call_finished"]
        assert statuses == ["ok", "interrupted", "interrupted"]
        with pytest.raises(openai.ConflictError, match="interrupted"):
            await ask(client, [*say("where?"), *answer_calls(first.choices[0].message, "north", "south")])


async def test_a_second_client_cannot_answer_for_the_session_of_a_wider_token() -> None:
    narrow = create_token("narrow", grant=Grant(tier="read-only"))
    async with serve_trip(tokens=(create_token("owner"), narrow)) as (plain, _):
        async with Client(plain.base, "owner-secret-of-the-tests") as owner, connect_openai(owner) as client:
            message = (await ask(client, say("where?"))).choices[0].message
        async with Client(plain.base, narrow.value) as other, connect_openai(other) as stranger:
            with pytest.raises(openai.PermissionDeniedError):
                await ask(stranger, [*say("where?"), *answer_calls(message, "north", "south")])


async def test_a_client_that_echoes_its_history_starts_a_session_with_it() -> None:
    async with serve_script("one") as plain, connect_openai(plain) as client:
        called = {"role": "assistant", "content": "hm", "tool_calls": [{"id": "c", "function": {"name": "look"}}]}
        result = {"role": "tool", "tool_call_id": "c", "content": "blue"}
        lost = {"role": "assistant", "tool_calls": [{"id": "d", "function": {"name": "look"}}]}
        history: Any = [*say("first"), called, result, {"role": "assistant", "content": "blue"}, lost, *say("second")]
        raw = await client.chat.completions.with_raw_response.create(model="agent:agent", messages=history)
        assert raw.parse().choices[0].message.content == "one"
        messages = list(plain.model.requests[0].messages)
        assert messages[:3] == [
            UserMessage((TextPart("first"),)),
            ModelMessage("hm", (Call("c", "look"),)),
            ResultMessage("c", "look", "blue"),
        ]
        assert messages[-2].text == "(no result is known)" and messages[-1] == UserMessage((TextPart("second"),))
        detail = await plain.json("GET", f"/v1/sessions/{raw.headers[SESSION]}")
        assert [one["content"] for one in detail["messages"]] == ["first", "hm", "blue", "second", "one"]


async def test_options_of_a_request_count_for_the_agents_run() -> None:
    async with serve_script('{"a": 1}', "two") as plain, connect_openai(plain) as client:
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        options: Any = {"response_format": form, "temperature": 0.5, "max_tokens": 500}
        first = await ask(client, say("hi"), **options)
        request = plain.model.requests[0]
        assert (request.sampling, request.max_tokens) == (Sampling(0.5), 500)
        assert request.output_schema == {"type": "object"} and request.tools[-1].name == "locate"
        body = {"session_id": first.model_extra["treadle"]["session_id"]}
        await client.chat.completions.create(model="agent:agent", messages=say("and now?"), extra_body=body)
        request = plain.model.requests[1]
        assert request.output_schema is None and "locate" not in {tool.name for tool in request.tools}


@pytest.mark.parametrize("ending", [[call("locate", id="c1", place="x")], "It is here."])
async def test_the_whole_reply_of_an_agent_is_what_its_stream_adds_up_to(ending: Any) -> None:
    lost = ModelError("gone", kind="network", retryable=True)
    script = [TRIP[0], lost, ["And then.", call("note", id="n2", text="b")], ending]
    chat: Any = {"model": "agent:agent", "messages": say("go"), "tools": LOCATE}
    tools: Any = [{"name": "locate", "input_schema": PARAMETERS}]
    anthropic_chat: Any = {"model": "agent:agent", "messages": say("go"), "tools": tools, "max_tokens": 1000}
    async with serve_script(*script * 6) as plain, connect_openai(plain) as client:
        whole: Any = await client.chat.completions.create(**chat)
        message = whole.choices[0].message
        async with client.chat.completions.stream(**chat) as stream:
            streamed = (await stream.get_final_completion()).choices[0].message
        assert (message.content or "") == (streamed.content or "") and "And then." in (message.content or "")
        assert len(message.tool_calls or ()) == len(streamed.tool_calls or ())
        if isinstance(ending, str):  # the old format has no calls
            asked: Any = {"model": "agent:agent", "prompt": "go"}
            text = (await client.completions.create(**asked)).choices[0].text
            chunks = [chunk async for chunk in await client.completions.create(**asked, stream=True)]
            assert text == "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) and "And then." in text
        other = anthropic.AsyncAnthropic(base_url=plain.base, api_key=plain.token, max_retries=0, timeout=PATIENCE)
        async with other, other.messages.stream(**anthropic_chat) as pieces:
            added = await pieces.get_final_message()
            document = await other.messages.create(**anthropic_chat)
        blocks = [[(block.type, getattr(block, "text", "")) for block in one.content] for one in (added, document)]
        assert blocks[0] == blocks[1] and ("text", "And then.") in blocks[0]


async def test_the_openai_client_continues_an_agents_calls_over_responses() -> None:
    async with serve_trip() as (plain, client):
        tools: Any = [{"type": "function", "name": "locate", "parameters": PARAMETERS, "strict": False}]
        first = await client.responses.create(model="agent:agent", input="where?", tools=tools)
        calls = [item for item in first.output if item.type == "function_call"]
        assert [item.name for item in calls] == ["locate", "locate"]
        outputs: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "here"} for item in calls]
        items: Any = [{"role": "user", "content": "where?"}, *first.output, *outputs]
        last = await client.responses.create(model="agent:agent", input=items, tools=tools)
        assert last.output_text == "It is here." and len(plain.model.requests[-1].messages) == 6


async def test_the_anthropic_client_continues_an_agents_calls_over_messages() -> None:
    tools: Any = [{"name": "locate", "input_schema": PARAMETERS}]
    async with serve_trip() as (plain, _):
        client = anthropic.AsyncAnthropic(base_url=plain.base, api_key=plain.token, max_retries=0, timeout=PATIENCE)
        options: Any = {"model": "agent:agent", "max_tokens": 1000, "tools": tools}
        async with client, client.messages.stream(messages=say("where?"), **options) as stream:
            first = await stream.get_final_message()
            calls: Any = [block for block in first.content if block.type == "tool_use"]
            assert [block.name for block in calls] == ["locate", "locate"] and first.stop_reason == "tool_use"
            results = [{"type": "tool_result", "tool_use_id": block.id, "content": "here"} for block in calls]
            answered: Any = {"role": "assistant", "content": first.content}
            history: Any = [*say("where?"), answered, {"role": "user", "content": results}]
            last: Any = await client.messages.create(messages=history, **options)
        assert last.content[0].text == "It is here." and len(plain.model.requests[-1].messages) == 6


async def test_a_client_continues_after_the_server_was_killed_while_it_waited(tmp_path: Path) -> None:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    with fake_model() as port, start_forker() as forker:
        spec = {"port": port, "model": "steps-2", "side": "", "store": str(tmp_path / "store.db")}
        messages: list[Any] = say("go")
        sessions: set[str] = set()
        for _ in range(2):
            async with Client(forker.start(**spec)) as plain, connect_openai(plain) as client:
                reply = await ask(client, messages, tools=tools)
                sessions.add(reply.model_extra["treadle"]["session_id"])
                assert reply.choices[0].finish_reason == "tool_calls"
                messages += answer_calls(reply.choices[0].message, "3")
            forker.kill()
        async with Client(forker.start(**spec)) as plain, connect_openai(plain) as client:
            reply = await ask(client, messages, tools=tools)
            assert reply.choices[0].finish_reason == "stop" and reply.choices[0].message.content
            (session_id,) = sessions | {reply.model_extra["treadle"]["session_id"]}
            facts = await plain.facts(session_id)
        kinds = [fact["type"] for fact in facts]
        assert (kinds.count("call_started"), kinds.count("call_finished"), kinds.count("run_finished")) == (2, 2, 1)
