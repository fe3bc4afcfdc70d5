"""WebSockets: frames of a session, message frames, and the status of all sessions."""

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest
from msgspec import Struct, to_builtins
from websockets.exceptions import InvalidStatus

from tests.dialects.test_message_frames import Page, assert_same_page
from tests.kit.fake_model import HangingModel
from tests.kit.server import OWNER, Client, create_token, serve_agents, serve_script
from tests.kit.sessions import PATIENCE, build_agent
from treadle import Agent
from treadle.errors import ModelError, StoreError
from treadle.server.sockets import _send_statuses
from treadle.testing import ScriptedModel, call


async def test_one_socket_sends_messages_and_receives_frames() -> None:
    async with serve_script(call("note", text="a"), "done", "again") as client:
        session_id = await client.session()
        async with client.open_socket(session_id=session_id) as socket:
            await socket.send(type="user", content="go")
            kinds = [one["type"] for one in await socket.receive_until(type="done")]
            assert kinds == ["iteration", "tool_start", "tool_end", "iteration", "delta", "done"]
            await socket.send(type="user", content="more")
            assert (await socket.receive_last(type="done"))["reply"] == "again"
        async with client.open_socket(f"/v1/sessions/{session_id}/stream?after=0") as socket:
            assert [one for one in await socket.receive_until(type="done") if one["type"] == "tool_start"]


async def test_rejoining_in_the_middle_of_a_call_repeats_nothing_and_misses_nothing() -> None:
    async with serve_script(call("wait"), "done") as client:
        path = f"/v1/sessions/{await client.session()}/stream"
        async with client.open_socket(f"{path}?after=0") as socket:
            await socket.send(type="user", content="go")
            seen = await socket.receive_until(type="tool_start")
        async with client.open_socket(f"{path}?after={seen[-1]['seq']}") as socket:
            client.held.free.set()
            rest = await socket.receive_until(type="done")
        assert [frame["type"] for frame in (*seen, *rest)] == [
            *("iteration", "tool_start", "tool_end", "iteration", "delta", "done")
        ]
        async with client.open_socket(f"{path}?after={rest[-2]['seq']}") as socket:
            assert (await socket.receive_last(type="done"))["seq"] == rest[-1]["seq"]


async def test_a_stream_of_frames_is_rejoined_with_its_key_and_last_event_id() -> None:
    async with serve_script("first", call("wait"), "done") as client:
        session_id = await client.session()
        await client.send(session_id, "hi")
        path, headers = f"/v1/sessions/{session_id}/messages/stream", {"Idempotency-Key": "k"}
        async with client.stream(path, {"content": "go"}, headers=headers) as events:
            while (last := await anext(events)).data["type"] != "tool_start":
                pass
        assert last.data["seq"] == int(last.id or 0)
        headers["Last-Event-ID"] = last.id or ""
        async with client.stream(path, {"content": "go"}, headers=headers) as events:
            client.held.free.set()
            rest = [event.data async for event in events if event.data]
        assert [frame["type"] for frame in rest] == ["tool_end", "iteration", "delta", "done"]
        assert rest[-1]["turns"] == 3, "the turns of the whole session"


async def test_a_run_is_approved_answered_and_cancelled_over_the_socket() -> None:
    script = [call("drop", table="t"), call("ask_user", question="Sure?"), call("wait"), "never"]
    async with serve_script(*script) as client, client.open_socket() as socket:
        await socket.send(type="user", content="go")
        asked = await socket.receive_last(type="approval_request")
        await socket.send(type="approval", id=asked["id"], approved=True, digest=asked["digest"])
        question = await socket.receive_last(type="input_request")
        assert client.tables.done == ["t"]
        await socket.send(type="answer", id=question["id"], answers=["yes"])
        await socket.receive_until(type="tool_start", name="wait")
        await socket.send(type="cancel")
        assert (await socket.receive_last(type="done"))["reason"] == "cancelled"
        await socket.send(type="approval", id=asked["id"], approved=True)
        assert "answered already" in (await socket.receive_last(type="error"))["message"]
        session_id = asked["id"].partition(".")[0]
        assert (await client.facts(session_id))[-1]["reason"] == "cancelled"


async def test_the_wait_for_a_provider_is_shown_and_ended_over_the_socket() -> None:
    busy = ModelError("slow down", kind="overloaded", retryable=True, retry_after=300)
    async with serve_script(busy, "at last") as client, client.open_socket() as socket:
        await socket.send(type="user", content="go")
        shown = await socket.receive_last(type="retry")
        assert (shown["message"], shown["wait"]) == ("slow down", 300.0)
        await socket.send(type="retry")
        assert (await socket.receive_last(type="done"))["reason"] == "answered"
        await socket.send(type="retry")
        assert "does not wait" in (await socket.receive_last(type="error"))["message"]


async def test_an_invalid_frame_is_answered_and_a_binary_one_is_read() -> None:
    async with serve_script("hello") as client, client.open_socket() as socket, client.open_socket("/v1/rpc") as rpc:
        for text in ("nonsense", "[]", '{"type":"dance"}', '{"type":"user","content":1}', '{"a":1}'):
            await socket.send(text)
            assert (await socket.receive_last(type="error"))["message"]
        for line in (socket, rpc):
            await line.send(b"\xff\x00\xfe")
        assert "JSON" in (await socket.receive_last(type="error"))["message"]
        assert (await rpc.receive())["error"]["code"] == -32700
        await socket.send(b'{"type": "user", "content": "hi"}')
        assert (await socket.receive_last(type="done"))["reply"] == "hello"


async def test_a_page_that_follows_message_frames_shows_what_the_log_says() -> None:
    async with serve_script(call("note", text="a"), "done") as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        await client.json("PATCH", f"/v1/sessions/{session_id}", {"name": "Notes"})
        async with client.open_socket(f"/v1/ws?session={session_id}") as socket:
            page = Page(await socket.receive_until(type="chat_renamed"))
        assert [message["text"] for message in page.messages.values()] == ["go", "", "noted a", "done"]
        assert len(page.results) == 1


async def test_message_frames_resume_behind_any_frame_without_repeating_or_losing() -> None:
    async with serve_script(["I note.", call("note", text="a")], "one\ntwo") as client:
        session_id = await client.session()
        path = f"/v1/ws?session={session_id}"
        async with client.open_socket(path) as socket:
            await client.send(session_id, "go")
            whole = await socket.receive_until(type="message_complete", content="one\ntwo")
        assert len(whole) > 12
        for cut, frame in enumerate(whole[:-1], 1):
            async with client.open_socket(f"{path}&after={frame['seq']}") as socket:
                rest = await socket.receive_until(type="message_complete", content="one\ntwo")
            assert_same_page([*whole[:cut], *rest], whole)


async def test_message_frames_resume_inside_a_call_and_inside_a_message() -> None:
    async with serve_script(call("wait"), "never") as client:
        session_id, sending, _ = await client.start_run("call_started")
        path = f"/v1/ws?session={session_id}"
        async with client.open_socket(path) as socket:
            seen = await socket.receive_until(type="message_started", role="tool")
        async with client.open_socket(f"{path}&after={seen[-1]['seq']}") as socket:
            client.held.free.set()
            rest = await socket.receive_until(type="tool_result")
        assert [frame["type"] for frame in rest] == ["tool_result"], "the call is not announced again"
        await sending
    async with serve_agents(Agent(HangingModel("Once upon"))) as client:
        session_id, sending, _ = await client.start_run("text_delta")
        path = f"/v1/ws?session={session_id}"
        async with client.open_socket(path) as socket:
            seen = await socket.receive_until(type="delta", content="Once upon")
        async with client.open_socket(f"{path}&after={seen[-1]['seq']}") as socket:
            await client.json("POST", f"/v1/sessions/{session_id}/cancel")
            rest = await socket.receive_until(type="message_complete", role="assistant")
        assert [frame["type"] for frame in rest] == ["message_complete"], "the text is not sent again"
        assert rest[-1]["content"] == "Once upon" and rest[-1]["reason"] == "cancelled"
        await sending


async def test_the_channel_tells_all_devices_which_session_needs_somebody() -> None:
    async with serve_script(call("drop", table="t"), "done") as client:
        old = await client.session(name="Old")
        async with client.open_socket("/v1/ws") as one, client.open_socket("/v1/ws") as other:
            first = await one.receive_last(session_id=old)
            assert (first["type"], first["status"], first["name"]) == ("chat_status", "idle", "Old")
            assert first["chat_id"] == old and datetime.fromisoformat(first["at"])
            session_id = await client.session()
            sending = asyncio.create_task(client.send(session_id, "drop"))
            for socket in (one, other):
                await socket.receive_until(session_id=session_id, status="needs_you")
            await client.answer_approval()
            for socket in (one, other):
                await socket.receive_until(session_id=session_id, status="idle")
            await sending


class SlowConnection:
    """A connection that is slow to take what it is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.full, self.free = asyncio.Event(), asyncio.Event()

    async def send_frame(self, frame: Struct) -> None:
        self.sent.append(to_builtins(frame))
        self.full.set()
        await self.free.wait()


async def test_a_slow_device_gets_every_status_in_its_order() -> None:
    async with serve_script("Hello.") as client:
        first, second = await client.session(), await client.session()
        line = SlowConnection()
        telling = asyncio.create_task(_send_statuses(client.app.state.service, line))  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE):
            await line.full.wait()
        await client.send(second, "hello")
        third = await client.session()
        line.free.set()
        async with asyncio.timeout(PATIENCE):
            while line.sent[-1]["session_id"] != third:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        telling.cancel()
        told = [(one["session_id"], one["status"]) for one in line.sent]
        assert told[:2] == [(first, "idle"), (second, "idle")], "the list"
        assert told[2:] == [(second, "streaming"), (second, "idle"), (third, "idle")], "each change once"


async def test_what_happens_while_the_sessions_are_listed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_script("Hello.") as client:
        busy = await client.session()
        runtime = client.app.state.service.runtime
        list_sessions = runtime.sessions

        async def run_and_list(query: Any) -> Any:
            await client.send(busy, "hello")  # the watch has these facts too
            return await list_sessions(query)

        monkeypatch.setattr(runtime, "sessions", run_and_list)
        async with client.open_socket("/v1/ws") as socket:
            told = await socket.receive_until(session_id=busy)
            later = await client.session()
            told += await socket.receive_until(session_id=later)
        assert [(one["session_id"], one["status"]) for one in told] == [(busy, "idle"), (later, "idle")]


async def test_a_new_session_is_told_and_a_stored_response_is_not() -> None:
    async with serve_script("Hello.") as client, client.open_socket("/v1/ws") as socket:
        await client.json("POST", "/v1/responses", {"model": "default", "input": "Say hello"})
        session_id = await client.session()
        assert [frame["session_id"] for frame in await socket.receive_until(status="idle")] == [session_id]


async def test_a_socket_needs_a_token_a_session_the_right_to_view_and_valid_fields() -> None:
    blind = create_token("blind", "send")
    async with serve_script(tokens=(OWNER, blind)) as client:
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}/stream"
        for caller, where, status in (
            (Client(client.base, ""), path, 401),
            (Client(client.base, "wrong"), path, 401),
            (Client(client.base, blind.value), path, 403),
            (client, "/v1/sessions/nope/stream", 404),
            (client, "/v1/ws?session=nope", 404),
            (client, "/v1/nowhere", 404),
            (client, f"/v1/ws?session={session_id}&after=nan", 422),
            (client, f"{path}?after=soon", 422),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await caller.socket(where)
            answer = refused.value.response
            assert answer.status_code == status and answer.headers["x-content-type-options"] == "nosniff"
            error = json.loads(answer.body)["error"]
            assert {"type", "message", "hint"} <= set(error)
        assert error["type"] == "invalid_field" and error["message"].startswith("after: ")


async def test_a_page_knows_the_window_of_the_model_that_the_session_has() -> None:
    agent, _ = build_agent("hello")
    other = Agent(ScriptedModel("hello again", name="wide", window=123_456), name="other")
    async with serve_agents(agent, other) as client:
        session_id = await client.session(model="wide")
        await client.send(session_id, "hi")
        async with client.open_socket(f"/v1/ws?session={session_id}") as socket:
            assert (await socket.receive_last(type="usage"))["ctx_max"] == 123_456


async def test_a_token_that_may_only_view_cannot_send_over_the_socket() -> None:
    viewer = create_token("viewer", "view")
    async with serve_script(tokens=(OWNER, viewer)) as client:
        path = f"/v1/sessions/{await client.session()}/stream"
        async with Client(client.base, viewer.value).open_socket(path) as socket:
            approval = {"type": "approval", "id": "x", "approved": True}
            for frame in ({"type": "user", "content": "x"}, {"type": "cancel"}, {"type": "retry"}, approval):
                await socket.send(frame)
                assert "may not" in (await socket.receive_last(type="error"))["message"]


async def test_a_socket_closes_when_its_session_is_deleted() -> None:
    async with serve_script("hello") as client:
        session_id = await client.session()
        await client.send(session_id, "hi")
        pages = client.open_socket(f"/v1/ws?session={session_id}")
        async with client.open_socket(session_id=session_id) as frames, pages as page:
            await page.receive_until(type="usage")  # so the server follows the session by now
            await client.json("DELETE", f"/v1/sessions/{session_id}", status=204)
            for socket in (frames, page):
                await socket.check_closed(1000)


async def test_a_channel_is_closed_when_its_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(query: Any) -> Any:
        raise StoreError("the disk is gone")

    async with serve_script() as client:
        monkeypatch.setattr(client.app.state.service.runtime, "sessions", fail)
        async with client.open_socket("/v1/ws") as socket:
            await socket.check_closed(1011)


async def test_a_position_beyond_the_end_is_the_end() -> None:
    async with serve_script("hello") as client:
        session_id = await client.session()
        stream, pages = f"/v1/sessions/{session_id}/stream?after={10**30}", f"/v1/ws?session={session_id}&after=99"
        async with client.open_socket(stream) as frames, client.open_socket(pages) as page:
            await client.send(session_id, "hi")
            assert (await frames.receive_last(type="done"))["reply"] == "hello"
            await page.receive_until(type="message_complete", content="hello")
