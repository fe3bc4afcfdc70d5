"""JSON-RPC chat over POST and over a WebSocket."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.server import Client, Socket, create_token, serve_agents, serve_script
from tests.kit.sessions import build_agent
from treadle import Agent
from treadle.testing import ScriptedModel, call


def request(method: str, number: int | None = 1, **params: Any) -> dict[str, Any]:
    called = {} if number is None else {"id": number}
    return {"jsonrpc": "2.0", "method": method, "params": params, **called}


async def ask(socket: Socket, method: str, number: int = 1, **params: Any) -> dict[str, Any]:
    """Send a request and return its result. Other messages before it are dropped."""
    await socket.send(request(method, number, **params))
    return (await socket.receive_last(id=number))["result"]


async def receive_events(socket: Socket, kind: str) -> list[dict[str, Any]]:
    """The notifications up to one of a kind."""
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["kind"] != kind:
        message = await socket.receive()
        assert message["method"] == "agents.chat.event"
        seen.append(message["params"])
    return seen


async def test_a_chat_is_acknowledged_before_its_events_are_sent() -> None:
    script = [call("note", text="a"), "hello\nthere"]
    async with serve_script(*script) as client, client.open_socket("/v1/rpc") as socket:
        await socket.send(request("agents.chat", prompt="hi"))
        accepted = await socket.receive()
        assert accepted["id"] == 1 and accepted["result"]["accepted"] is True
        seen = await receive_events(socket, "done")
        assert {one["session_id"] for one in seen} == {accepted["result"]["session_id"]}
        assert [one["kind"] for one in seen] == ["tool_call", "tool_result", "token", "token", "done"]
        assert seen[-1]["status"] == "success" and seen[-1]["tools_called"] == ["note"]


async def test_the_singular_is_understood_and_a_chat_goes_on_in_its_session() -> None:
    async with serve_script("one", "two") as client, client.open_socket("/v1/rpc") as socket:
        session_id = (await ask(socket, "agent.chat", prompt="hi", stream=False))["session_id"]
        assert [one["kind"] for one in await receive_events(socket, "done")] == ["done"]
        again = await ask(socket, "agents.chat", 2, prompt="more", session_id=session_id)
        assert again["session_id"] == session_id
        assert (await receive_events(socket, "done"))[-1]["summary"] == "two"
        assert len(client.model.requests[1].messages) == 3


async def test_an_approval_is_pending_and_answered() -> None:
    async with serve_script(call("drop", table="t"), "done") as client, client.open_socket("/v1/rpc") as socket:
        session_id = (await ask(socket, "agents.chat", prompt="drop"))["session_id"]
        asked = (await receive_events(socket, "approval_pending"))[-1]
        wrong = {"session_id": session_id, "approval_id": "nope", "decision": "allow"}
        assert (await ask(socket, "agents.chat.approve", 2, **wrong))["resolved"] is False
        answer = {"session_id": session_id, "approval_id": asked["approval_id"]}
        await socket.send(request("agents.chat.approve", 3, **answer, decision="allow"))
        seen = [await socket.receive()]
        while "params" not in seen[-1] or seen[-1]["params"]["kind"] != "done":
            seen.append(await socket.receive())
        assert [one["result"] for one in seen if "result" in one] == [{"resolved": True}]
        assert client.tables.done == ["t"]
        assert (await ask(socket, "agent.chat.approve", 4, **answer, decision="deny"))["resolved"] is False


async def test_a_chat_is_cancelled() -> None:
    async with serve_script(call("wait"), "never") as client, client.open_socket("/v1/rpc") as socket:
        session_id = (await ask(socket, "agents.chat", prompt="wait"))["session_id"]
        await receive_events(socket, "tool_call")
        await socket.send(request("agents.chat.cancel", 2, session_id=session_id))
        seen = await socket.receive_until(id=2)
        assert seen[-1]["result"] == {"cancelled": True}
        events = [one["params"] for one in seen if "params" in one]
        while not events or events[-1]["kind"] != "done":
            events.append((await socket.receive())["params"])
        assert events[-1]["status"] == "cancelled"


async def test_two_messages_to_one_session_are_both_answered_and_no_event_is_sent_twice() -> None:
    script = [call("wait"), "to both", "and more"]
    async with serve_script(*script) as client, client.open_socket("/v1/rpc") as socket:
        session_id = (await ask(socket, "agents.chat", prompt="one"))["session_id"]
        await receive_events(socket, "tool_call")
        assert (await ask(socket, "agents.chat", 2, prompt="two", session_id=session_id))["accepted"]
        client.held.free.set()
        assert [one["kind"] for one in await receive_events(socket, "done")] == ["tool_result", "token", "done"]
        await socket.send(request("agents.chat", 3, prompt="three", session_id=session_id))
        assert (await socket.receive())["id"] == 3  # no event was left to send
        assert [one["kind"] for one in await receive_events(socket, "done")] == ["token", "done"]


async def test_null_fields_are_ignored_and_a_blank_prompt_creates_no_session() -> None:
    async with serve_script("hello") as client:
        nulls = dict.fromkeys(("session_id", "agent", "model", "attachments", "stream"))
        assert (await client.json("POST", "/v1/rpc", request("agents.chat", prompt="hi", **nulls)))["result"][
            "accepted"
        ]
        blank = await client.json("POST", "/v1/rpc", request("agents.chat", prompt=" "))
        assert blank["error"]["code"] == -32602 and blank["error"]["message"].startswith("prompt")
        assert len((await client.json("GET", "/v1/sessions"))["sessions"]) == 1


async def test_the_chats_of_a_batch_are_sent_after_the_batch_is_answered() -> None:
    async with serve_script("one", "two", "three") as client, client.open_socket("/v1/rpc") as socket:
        await socket.send([request("agent.chat", number, prompt="hi") for number in range(3)])
        answers = await socket.receive()
        assert isinstance(answers, list) and [one["id"] for one in answers] == [0, 1, 2]
        done = [(await receive_events(socket, "done"))[-1]["session_id"] for _ in answers]
        assert sorted(done) == sorted(one["result"]["session_id"] for one in answers)


async def test_a_message_to_a_session_without_its_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = build_agent()
    store = tmp_path / "store.db"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-tests")
    async with serve_agents(agent, store=store, models=("openai:gpt-4o",)) as client:
        session_id = await client.session(model="openai:gpt-4o")
    monkeypatch.delenv("OPENAI_API_KEY")
    async with serve_agents(agent, store=store, models=("openai:gpt-4o",)) as client:
        chat = request("agents.chat", prompt="hi", session_id=session_id)
        assert (await client.json("POST", "/v1/rpc", chat))["error"]["data"]["status"] == 503
        for path in ("messages", "messages/stream"):
            await client.problem("POST", f"/v1/sessions/{session_id}/{path}", {"content": "hi"}, 503)
        assert [fact["type"] for fact in await client.facts(session_id)] == ["session_created", "session_configured"]


async def test_over_post_there_are_batches_errors_and_notifications() -> None:
    agent, _ = build_agent("hello", "again")
    other = Agent(ScriptedModel("from the other", name="other"), name="second")
    async with serve_agents(agent, other) as client:
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
    viewer = create_token("viewer", "view")
    async with serve_script(tokens=(viewer,)) as owner, Client(owner.base, viewer.value) as client:
        for method, params in (
            ("agents.chat", {"prompt": "x"}),
            ("agents.chat.cancel", {"session_id": "x"}),
            ("agents.chat.approve", {"approval_id": "a.b", "decision": "allow"}),
        ):
            answer = await client.json("POST", "/v1/rpc", request(method, **params))
            assert answer["error"]["data"]["status"] == 403
