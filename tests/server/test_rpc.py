"""JSON-RPC chat over POST and over a WebSocket."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.server import Client, served
from tests.kit.sessions import HeldTool, Tables, build_agent, note
from tests.server.test_sockets import until
from treadle import Agent
from treadle.server.tokens import Token
from treadle.testing import ScriptedModel, call


def request(method: str, number: int | None = 1, **params: Any) -> dict[str, Any]:
    called = {} if number is None else {"id": number}
    return {"jsonrpc": "2.0", "method": method, "params": params, **called}


async def events(socket: Any, kind: str) -> list[dict[str, Any]]:
    """The notifications up to one of a kind."""
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["kind"] != kind:
        message = json.loads(await socket.recv())
        assert message["method"] == "agents.chat.event"
        seen.append(message["params"])
    return seen


async def test_a_chat_is_acknowledged_before_its_events_are_sent() -> None:
    agent, _ = build_agent(call("note", text="a"), "hello\nthere", tools=[note])
    async with served(agent) as client, client.socket("/v1/rpc") as socket:
        await socket.send(json.dumps(request("agents.chat", prompt="hi")))
        accepted = json.loads(await socket.recv())
        assert accepted["id"] == 1 and accepted["result"]["accepted"] is True
        seen = await events(socket, "done")
        assert {one["session_id"] for one in seen} == {accepted["result"]["session_id"]}
        kinds = [one["kind"] for one in seen]
        assert kinds == ["tool_call", "tool_result", "token", "token", "done"]
        assert seen[-1]["status"] == "success" and seen[-1]["tools_called"] == ["note"]


async def test_the_singular_is_understood_and_a_chat_goes_on_in_its_session() -> None:
    agent, model = build_agent("one", "two")
    async with served(agent) as client, client.socket("/v1/rpc") as socket:
        await socket.send(json.dumps(request("agent.chat", prompt="hi", stream=False)))
        session_id = json.loads(await socket.recv())["result"]["session_id"]
        assert [one["kind"] for one in await events(socket, "done")] == ["done"]
        await socket.send(json.dumps(request("agents.chat", 2, prompt="more", session_id=session_id)))
        assert json.loads(await socket.recv())["result"]["session_id"] == session_id
        assert (await events(socket, "done"))[-1]["summary"] == "two"
        assert len(model.requests[1].messages) == 3


async def test_an_approval_is_pending_and_answered() -> None:
    made = Tables()
    agent, _ = build_agent(call("drop", table="t"), "done", tools=made.tools)
    async with served(agent) as client, client.socket("/v1/rpc") as socket:
        await socket.send(json.dumps(request("agents.chat", prompt="drop")))
        session_id = json.loads(await socket.recv())["result"]["session_id"]
        asked = (await events(socket, "approval_pending"))[-1]
        answer = {"session_id": session_id, "approval_id": asked["approval_id"]}
        wrong = request("agents.chat.approve", 2, session_id=session_id, approval_id="nope", decision="allow")
        await socket.send(json.dumps(wrong))
        assert (await until(socket, id=2))[-1]["result"]["resolved"] is False
        await socket.send(json.dumps(request("agents.chat.approve", 3, **answer, decision="allow")))
        seen = await until(socket, id=3)
        assert seen[-1]["result"] == {"resolved": True}
        while "params" not in seen[-1] or seen[-1]["params"]["kind"] != "done":
            seen.append(json.loads(await socket.recv()))
        assert made.done == ["t"]
        await socket.send(json.dumps(request("agent.chat.approve", 4, **answer, decision="deny")))
        assert (await until(socket, id=4))[-1]["result"]["resolved"] is False


async def test_a_chat_is_cancelled() -> None:
    held = HeldTool()
    agent, _ = build_agent(call("wait"), "never", tools=[held.tool])
    async with served(agent) as client, client.socket("/v1/rpc") as socket:
        await socket.send(json.dumps(request("agents.chat", prompt="wait")))
        session_id = json.loads(await socket.recv())["result"]["session_id"]
        await events(socket, "tool_call")
        await socket.send(json.dumps(request("agents.chat.cancel", 2, session_id=session_id)))
        seen = await until(socket, id=2)
        assert seen[-1]["result"] == {"cancelled": True}
        told = [one["params"] for one in seen if "params" in one]
        while not told or told[-1]["kind"] != "done":
            told.append(json.loads(await socket.recv())["params"])
        assert told[-1]["status"] == "cancelled"


async def test_two_messages_to_one_session_are_both_answered_and_no_event_is_sent_twice() -> None:
    held = HeldTool()
    agent, _ = build_agent(call("wait"), "to both", "and more", tools=[held.tool])
    async with served(agent) as client, client.socket("/v1/rpc") as socket:
        await socket.send(json.dumps(request("agents.chat", prompt="one")))
        session_id = json.loads(await socket.recv())["result"]["session_id"]
        await events(socket, "tool_call")
        await socket.send(json.dumps(request("agents.chat", 2, prompt="two", session_id=session_id)))
        assert json.loads(await socket.recv())["result"]["accepted"]
        held.free.set()
        assert [one["kind"] for one in await events(socket, "done")] == ["tool_result", "token", "done"]
        await socket.send(json.dumps(request("agents.chat", 3, prompt="three", session_id=session_id)))
        assert json.loads(await socket.recv())["id"] == 3  # nothing else was left to tell
        assert [one["kind"] for one in await events(socket, "done")] == ["token", "done"]


async def test_null_fields_are_ignored_and_a_blank_prompt_creates_no_session() -> None:
    agent, _ = build_agent("hello")
    async with served(agent) as client:
        nulls = dict.fromkeys(("session_id", "agent", "model", "attachments", "stream"))
        assert (await client.json("POST", "/v1/rpc", request("agents.chat", prompt="hi", **nulls)))["result"][
            "accepted"
        ]
        blank = await client.json("POST", "/v1/rpc", request("agents.chat", prompt=" "))
        assert blank["error"]["code"] == -32602 and blank["error"]["message"].startswith("prompt")
        assert len((await client.json("GET", "/v1/sessions"))["sessions"]) == 1


async def test_the_chats_of_a_batch_are_sent_after_the_batch_is_answered() -> None:
    agent, _ = build_agent("one", "two", "three")
    async with served(agent) as client, client.socket("/v1/rpc") as socket:
        await socket.send(json.dumps([request("agent.chat", number, prompt="hi") for number in range(3)]))
        answers = json.loads(await socket.recv())
        assert isinstance(answers, list) and [one["id"] for one in answers] == [0, 1, 2]
        done = [(await events(socket, "done"))[-1]["session_id"] for _ in answers]
        assert sorted(done) == sorted(one["result"]["session_id"] for one in answers)


async def test_a_message_to_a_session_without_its_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = build_agent()
    store = tmp_path / "store.db"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-tests")
    async with served(agent, store=store, models=("openai:gpt-4o",)) as client:
        session_id = await client.session(model="openai:gpt-4o")
    monkeypatch.delenv("OPENAI_API_KEY")
    async with served(agent, store=store, models=("openai:gpt-4o",)) as client:
        chat = request("agents.chat", prompt="hi", session_id=session_id)
        assert (await client.json("POST", "/v1/rpc", chat))["error"]["data"]["status"] == 503
        for path in ("messages", "messages/stream"):
            await client.problem("POST", f"/v1/sessions/{session_id}/{path}", {"content": "hi"}, 503)
        assert [fact["type"] for fact in await client.facts(session_id)] == ["session_created", "session_configured"]


async def test_over_post_there_are_batches_errors_and_notifications() -> None:
    agent, _ = build_agent("hello", "again")
    other = Agent(ScriptedModel("from the other", name="other"), name="second")
    async with served(agent, other) as client:
        answers = await client.json(
            "POST",
            "/v1/rpc",
            [
                request("agents.chat", 1, prompt="hi", agent="second", model="other"),
                request("nothing.known", 2),
                request("agents.chat", 3, prompt=7),
                request("agents.chat", 4, prompt=" "),
                request("agents.chat", 5, prompt="x", session_id="nope"),
                request("agents.chat", None, prompt="told nobody"),
                {"jsonrpc": "2.0", "method": "agents.chat", "params": ["hi"], "id": 6},
            ],
        )
        assert [answer["id"] for answer in answers] == [1, 2, 3, 4, 5, 6]
        assert answers[0]["result"]["accepted"]
        assert [answer["error"]["code"] for answer in answers[1:]] == [-32601, -32602, -32602, -32000, -32602]
        async with client.request("POST", "/v1/rpc", json=request("agents.chat", None, prompt="x")) as answer:
            assert answer.status == 204
        broken = {"content-type": "application/json"}
        document = await client.json("POST", "/v1/rpc", data=b"{", headers=broken)
        assert document["error"]["code"] == -32700


async def test_a_token_that_may_only_view_can_call_no_method() -> None:
    agent, _ = build_agent()
    looker = Token("looker", "looker-secret-of-the-tests", frozenset(("view",)))
    async with served(agent, tokens=(looker,)) as owner, Client(owner.base, looker.value) as client:
        for method, params in (
            ("agents.chat", {"prompt": "x"}),
            ("agents.chat.cancel", {"session_id": "x"}),
            ("agents.chat.approve", {"approval_id": "a.b", "decision": "allow"}),
        ):
            answer = await client.json("POST", "/v1/rpc", request(method, **params))
            assert answer["error"]["data"]["status"] == 403
