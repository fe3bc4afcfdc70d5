"""Agents that answer in a model's place: their sessions, and the clients' tools, by the clients' own libraries."""

from typing import Any

import openai

from tests.kit.server import Client, create_token, serve_agents, serve_script
from tests.kit.sessions import PATIENCE
from treadle import Agent, Grant
from treadle.testing import ScriptedModel, call

SESSION = "x-treadle-session"


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
