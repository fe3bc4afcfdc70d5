"""WebSockets by a client from the package index: frames of a session, message frames, and the channel of all."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Struct, to_builtins
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.dialects.test_message_frames import Page
from tests.kit.server import OWNER, Client, served
from tests.kit.sessions import PATIENCE, HeldTool, Tables, build_agent, note
from treadle import Agent, AskUser
from treadle.errors import StoreError
from treadle.server.sockets import _poll_statuses
from treadle.server.tokens import Token
from treadle.testing import ScriptedModel, call


async def until(socket: Any, **wanted: Any) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            seen.append(json.loads(await socket.recv()))
            if all(seen[-1].get(name) == value for name, value in wanted.items()):
                return seen


def frame(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


async def test_one_socket_sends_messages_and_receives_frames() -> None:
    agent, _ = build_agent(call("note", text="a"), "done", "again", tools=[note])
    async with served(agent) as client:
        session_id = await client.session()
        async with client.socket(f"/v1/sessions/{session_id}/stream") as socket:
            await socket.send(frame("user", content="go"))
            frames = await until(socket, type="done")
            kinds = [one["type"] for one in frames]
            assert kinds == ["iteration", "tool_start", "tool_end", "iteration", "delta", "done"]
            await socket.send(frame("user", content="more"))
            assert (await until(socket, type="done"))[-1]["reply"] == "again"
        async with client.socket(f"/v1/sessions/{session_id}/stream?after=0") as socket:
            assert [one for one in await until(socket, type="done") if one["type"] == "tool_start"]


async def test_cancel_over_the_socket_cancels() -> None:
    held = HeldTool()
    agent, _ = build_agent(call("wait"), "never", tools=[held.tool])
    async with served(agent) as client:
        session_id = await client.session()
        async with client.socket(f"/v1/sessions/{session_id}/stream") as socket:
            await socket.send(frame("user", content="go"))
            await until(socket, type="tool_start")
            await socket.send(frame("cancel"))
            done = (await until(socket, type="done"))[-1]
            assert done["reason"] == "cancelled"
        assert (await client.facts(session_id))[-1]["reason"] == "cancelled"


async def test_approvals_and_questions_are_answered_over_the_socket() -> None:
    made = Tables()
    script = [call("drop", table="t"), call("ask_user", question="Sure?"), "done"]
    agent, _ = build_agent(*script, tools=[*made.tools, AskUser()])
    async with served(agent) as client, client.socket(f"/v1/sessions/{await client.session()}/stream") as socket:
        await socket.send(frame("user", content="go"))
        asked = (await until(socket, type="approval_request"))[-1]
        await socket.send(frame("approval", id=asked["id"], approved=True, digest=asked["digest"]))
        question = (await until(socket, type="input_request"))[-1]
        await socket.send(frame("answer", id=question["id"], answers=["yes"]))
        assert (await until(socket, type="done"))[-1]["reply"] == "done" and made.done == ["t"]
        await socket.send(frame("approval", id=asked["id"], approved=True))
        assert "answered already" in (await until(socket, type="error"))[-1]["message"]


async def test_an_invalid_frame_is_answered_and_the_socket_stays_open() -> None:
    agent, _ = build_agent("hello")
    async with served(agent) as client, client.socket(f"/v1/sessions/{await client.session()}/stream") as socket:
        for text in ("nonsense", "[]", '{"type":"dance"}', '{"type":"user","content":1}', '{"a":1}'):
            await socket.send(text)
            assert (await until(socket, type="error"))[-1]["message"]
        await socket.send(frame("user", content="hi"))
        assert (await until(socket, type="done"))[-1]["reply"] == "hello"


async def test_a_run_continues_when_its_client_closes_the_socket() -> None:
    held = HeldTool()
    agent, _ = build_agent(call("wait"), "done", tools=[held.tool])
    async with served(agent) as client:
        session_id = await client.session()
        async with client.socket(f"/v1/sessions/{session_id}/stream") as socket:
            await socket.send(frame("user", content="go"))
            await until(socket, type="tool_start")
        held.free.set()
        async with client.socket(f"/v1/sessions/{session_id}/stream?after=0") as socket:
            assert (await until(socket, type="done"))[-1]["reason"] == "answered"


async def test_a_page_that_follows_message_frames_shows_what_the_log_says() -> None:
    agent, _ = build_agent(call("note", text="a"), "done", tools=[note])
    async with served(agent) as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        await client.json("PATCH", f"/v1/sessions/{session_id}", {"name": "Notes"})
        async with client.socket(f"/v1/ws?session={session_id}") as socket:
            frames = await until(socket, type="chat_renamed")
        page = Page(frames)
        assert [message["text"] for message in page.messages.values()] == ["go", "", "done"]
        assert len(page.results) == 1


async def test_the_channel_tells_all_devices_which_session_needs_somebody() -> None:
    made = Tables()
    agent, _ = build_agent(call("drop", table="t"), "done", tools=made.tools)
    async with served(agent) as client:
        old = await client.session(name="Old")
        async with client.socket("/v1/ws") as one, client.socket("/v1/ws") as other:
            first = (await until(one, session_id=old))[-1]
            assert (first["type"], first["status"], first["name"]) == ("chat_status", "idle", "Old")
            session_id = await client.session()
            sending = asyncio.create_task(client.send(session_id, "drop"))
            for socket in (one, other):
                await until(socket, session_id=session_id, status="needs_you")
            (asked,) = await client.json("GET", "/v1/approvals")
            await client.json("POST", f"/v1/approvals/{asked['id']}", {"approved": True})
            for socket in (one, other):
                statuses = [seen["status"] for seen in await until(socket, session_id=session_id, status="idle")]
                assert statuses[-1] == "idle"
            await sending


class Halting:
    """A line that is slow to take what it is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.full, self.free = asyncio.Event(), asyncio.Event()

    async def send_frame(self, frame: Struct) -> None:
        self.sent.append(to_builtins(frame))
        self.full.set()
        await self.free.wait()


async def test_a_listed_status_is_not_sent_after_a_newer_one() -> None:
    agent, _ = build_agent(call("drop", table="t"), tools=Tables().tools)
    async with served(agent) as client:
        first, second = await client.session(), await client.session()
        line, seen = Halting(), dict[str, Any]()
        looking = asyncio.create_task(_poll_statuses(client.app.state.service, line, seen))  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE):
            await line.full.wait()
        sending = asyncio.create_task(client.send(second, "drop"))
        async with client.socket("/v1/ws") as socket:
            await until(socket, session_id=second, status="needs_you")
        seen[second] = ("needs_you", "")
        third = await client.session()
        line.free.set()
        async with asyncio.timeout(PATIENCE):
            while line.sent[-1]["session_id"] != third:
                await client.json("GET", "/health")
        looking.cancel()
        sending.cancel()
        assert [(one["session_id"], one["status"]) for one in line.sent] == [(first, "idle"), (third, "idle")]


async def test_sockets_are_closed_with_a_code_at_shutdown() -> None:
    agent, _ = build_agent()
    async with served(agent) as client:
        session_id = await client.session()
        async with client.socket(f"/v1/sessions/{session_id}/stream") as one, client.socket("/v1/ws") as other:
            client.app.state.service.drain()
            for socket in (one, other):
                with pytest.raises(ConnectionClosed) as closed:
                    await until(socket, type="nothing that is ever sent")
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012


async def test_a_socket_needs_a_token_a_session_and_the_right_to_view() -> None:
    agent, _ = build_agent()
    blind = Token("blind", "blind-secret-of-the-tests", frozenset(("send",)))
    async with served(agent, tokens=(OWNER, blind)) as client:
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}/stream"
        for caller, where, status in (
            (Client(client.base, ""), path, 401),
            (Client(client.base, "wrong"), path, 401),
            (Client(client.base, blind.value), path, 403),
            (client, "/v1/sessions/nope/stream", 404),
            (client, "/v1/ws?session=nope", 404),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await caller.socket(where)
            answer = refused.value.response
            assert answer.status_code == status and answer.headers["x-content-type-options"] == "nosniff"
            assert {"type", "message", "hint"} <= set(json.loads(answer.body)["error"])


async def test_a_binary_frame_is_read_and_invalid_text_is_answered_with_an_error() -> None:
    agent, _ = build_agent("hello")
    async with served(agent) as client:
        async with client.socket(f"/v1/sessions/{await client.session()}/stream") as socket:
            await socket.send(b"\xff\x00\xfe")
            assert "JSON" in (await until(socket, type="error"))[-1]["message"]
            await socket.send(frame("user", content="hi").encode())
            assert (await until(socket, type="done"))[-1]["reply"] == "hello"
        async with client.socket("/v1/rpc") as socket:
            await socket.send(b"\xff\x00\xfe")
            assert json.loads(await socket.recv())["error"]["code"] == -32700


async def test_a_page_knows_the_window_of_the_model_that_the_session_has() -> None:
    agent, _ = build_agent("hello")
    other = Agent(ScriptedModel("hello again", name="wide", window=123_456), name="other")
    async with served(agent, other) as client:
        session_id = await client.session(model="wide")
        await client.send(session_id, "hi")
        async with client.socket(f"/v1/ws?session={session_id}") as socket:
            assert (await until(socket, type="usage"))[-1]["ctx_max"] == 123_456


async def test_a_token_that_may_only_view_cannot_send_over_the_socket() -> None:
    agent, _ = build_agent()
    looker = Token("looker", "looker-secret-of-the-tests", frozenset(("view",)))
    async with served(agent, tokens=(OWNER, looker)) as client:
        path = f"/v1/sessions/{await client.session()}/stream"
        async with Client(client.base, looker.value).socket(path) as socket:
            for sent in (frame("user", content="x"), frame("cancel"), frame("approval", id="x", approved=True)):
                await socket.send(sent)
                assert "may not" in (await until(socket, type="error"))[-1]["message"]


async def test_a_socket_closes_when_its_session_is_deleted() -> None:
    agent, _ = build_agent("hello")
    async with served(agent) as client:
        session_id = await client.session()
        await client.send(session_id, "hi")
        paths = (f"/v1/sessions/{session_id}/stream", f"/v1/ws?session={session_id}")
        async with client.socket(paths[0]) as frames, client.socket(paths[1]) as page:
            await until(page, type="usage")  # so it is being told by now
            await client.json("DELETE", f"/v1/sessions/{session_id}", status=204)
            for socket in (frames, page):
                with pytest.raises(ConnectionClosed) as closed:
                    await until(socket, type="nothing that is ever sent")
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000


async def test_a_channel_is_closed_when_its_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _ = build_agent()
    async with served(agent) as client:

        async def failing(query: Any) -> Any:
            raise StoreError("the disk is gone")

        monkeypatch.setattr(client.app.state.service.runtime, "sessions", failing)
        async with client.socket("/v1/ws") as socket:
            with pytest.raises(ConnectionClosed) as closed:
                await until(socket, type="nothing that is ever sent")
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011


async def test_a_position_beyond_the_end_is_the_end() -> None:
    agent, _ = build_agent("hello")
    async with served(agent) as client:
        session_id = await client.session()
        paths = (f"/v1/sessions/{session_id}/stream?after={10**30}", f"/v1/ws?session={session_id}&after=99")
        async with client.socket(paths[0]) as frames, client.socket(paths[1]) as page:
            await client.send(session_id, "hi")
            assert (await until(frames, type="done"))[-1]["reply"] == "hello"
            await until(page, type="message_complete", content="hello")
