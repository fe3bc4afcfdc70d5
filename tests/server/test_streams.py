"""Server-sent events: replay without gaps or duplicates, slow clients, clients that leave, and shutdown."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.kit.fake_model import FakeModel
from tests.kit.server import Client, read_until, serve_agents, serve_script
from tests.kit.sessions import PATIENCE, HeldTool
from treadle import Agent, TextDelta
from treadle.messages import Reply, Request
from treadle.models.base import ModelEvent
from treadle.testing import ScriptedModel, call


class SlowModel(FakeModel):
    """A model that says one word at a time, and pauses in the middle until it is released."""

    name, window = "slowly", None

    def __init__(self, words: int, pause_at: int) -> None:
        self.words, self.pause_at = words, pause_at
        self.paused, self.go = asyncio.Event(), asyncio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        said: list[str] = []
        for number in range(self.words):
            if number == self.pause_at:
                self.paused.set()
                await self.go.wait()
            said.append(f"w{number} ")
            yield TextDelta(text=said[-1])
        yield Reply("".join(said))


async def test_a_stream_that_is_resumed_after_any_event_gives_the_whole_log() -> None:
    script = [call("note", text="a"), call("note", text="b"), "done"]
    async with serve_script(*script) as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        facts = await client.facts(session_id)
        assert len(facts) >= 12
        path = f"/v1/sessions/{session_id}/events"
        for cut in range(1, len(facts)):
            async with client.stream(path) as events:
                before = [await anext(events) for _ in facts[:cut]]
            async with client.stream(path, headers={"Last-Event-ID": before[-1].id}) as events:
                after = [await anext(events) for _ in facts[cut:]]
            assert [one.data for one in (*before, *after)] == facts


async def test_a_live_run_is_seen_whole_by_a_client_that_reconnects_after_every_fact() -> None:
    async with serve_script(*(call("note", text=str(number)) for number in range(6)), "done") as client:
        session_id = await client.session()
        sending = asyncio.create_task(client.send(session_id, "go"))
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["type"] != "run_finished":
            headers = {"Last-Event-ID": str(seen[-1]["seq"])} if seen else {}
            async with client.stream(f"/v1/sessions/{session_id}/events", headers=headers) as events:
                async for one in events:
                    if one.id:
                        seen.append(one.data)
                        break
        await sending
        assert seen == await client.facts(session_id)


@pytest.mark.parametrize("words", [50, 5000])
async def test_a_watcher_who_joins_during_a_reply_gets_the_text_so_far_and_then_the_rest(words: int) -> None:
    model = SlowModel(words, words - 20)
    async with serve_agents(Agent(model)) as client:
        session_id = await client.session()
        sending = asyncio.create_task(client.send(session_id, "go"))
        async with asyncio.timeout(PATIENCE):
            await model.paused.wait()
        text = ""
        async with client.stream(f"/v1/sessions/{session_id}/events") as events:
            async for one in events:
                if one.data["type"] == "text_delta":
                    text += one.data["text"]
                    if text.endswith(f"w{words - 21} "):
                        model.go.set()
                if one.data["type"] == "model_replied":
                    assert text == one.data["text"]
                    break
        assert (await sending)["reply"] == text


async def test_a_run_continues_when_its_client_leaves() -> None:
    async with serve_script(*[call("wait")] * 3, *["done"] * 3) as client:
        blocked, sending, _ = await client.start_run("call_started")
        sending.cancel()
        streamed, on_socket = await client.session(), await client.session()
        async with client.stream(f"/v1/sessions/{streamed}/messages/stream", {"content": "go"}) as events:
            await read_until(events, type="tool_start")
        async with client.open_socket(session_id=on_socket) as socket:
            await socket.send(type="user", content="go")
            await socket.receive_until(type="tool_start")
        client.held.free.set()
        for session_id in (blocked, streamed, on_socket):
            assert (await client.wait_for(session_id, "run_finished"))[-1]["reason"] == "answered"


async def test_a_client_that_does_not_read_slows_nobody_and_catches_up() -> None:
    model = SlowModel(20_000, 1)
    async with serve_agents(Agent(model)) as client:
        session_id = await client.session()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(client.base.rpartition(":")[2]), limit=2**16)
        lines = [f"GET /v1/sessions/{session_id}/events HTTP/1.1", f"Host: {client.base[7:]}"]
        lines += [f"Authorization: {client.headers['authorization']}", "", ""]
        writer.write("\r\n".join(lines).encode())
        await reader.readuntil(b"\r\n\r\n")
        sending = asyncio.create_task(client.send(session_id, "go"))
        async with asyncio.timeout(PATIENCE):
            await model.paused.wait()
        model.go.set()
        answer = await sending  # while nobody reads the other line
        assert answer["outcome"]["status"] == "answered"
        read = b""
        async with asyncio.timeout(PATIENCE):
            while b'"run_finished"' not in read:
                piece = await reader.read(2**16)
                assert piece, "the line broke"
                read += piece
        writer.close()
        ids = [int(line[4:]) for line in read.split(b"\n") if line.startswith(b"id: ")]
        assert ids == [fact["seq"] for fact in await client.facts(session_id)]


async def test_a_quiet_stream_is_kept_alive_by_comments() -> None:
    async with serve_script(keep_alive=0.05) as client:
        session_id = await client.session()
        async with client.stream(f"/v1/sessions/{session_id}/events") as events:
            while (await anext(events)).id:
                pass
            assert [(await anext(events)).comment for _ in range(2)] == ["ping", "ping"]


async def test_streams_get_a_comment_and_sockets_a_code_at_shutdown() -> None:
    async with serve_script() as client, client.open_socket() as one, client.open_socket("/v1/ws") as other:
        session_id = await client.session()
        async with client.stream(f"/v1/sessions/{session_id}/events") as events:
            assert (await anext(events)).data["type"] == "session_created"
            client.app.state.service.drain()
            assert "shutting down" in [one async for one in events][-1].comment
        for socket in (one, other):
            await socket.check_closed(1012)
        problem = await client.problem("POST", f"/v1/sessions/{session_id}/messages", {"content": "x"}, 503)
        assert problem["type"] == "shutting_down"


class ChoosingModel(ScriptedModel):
    """A model that takes long to say whether it is available."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.asked, self.there = asyncio.Event(), asyncio.Event()

    async def resolve(self) -> None:
        self.asked.set()
        await self.there.wait()


async def test_a_request_that_starts_during_shutdown_does_not_wait_forever() -> None:
    held, model = HeldTool(), ChoosingModel(call("wait"))
    async with serve_agents(Agent(model, tools=[held.tool])) as client:
        sending = asyncio.create_task(client.send(await client.session(), "go"))
        async with asyncio.timeout(PATIENCE):
            await model.asked.wait()
        client.app.state.service.drain()
        model.there.set()
        assert (await sending)["outcome"]["reason"] == "shutting_down"


async def test_every_client_learns_at_shutdown_that_the_run_continues_later() -> None:
    async with serve_script(*[call("wait")] * 4) as client:
        body = {"model": "agent:agent", "messages": [{"role": "user", "content": "go"}]}
        asking = asyncio.create_task(client.problem("POST", "/v1/chat/completions", body, 503))
        sending = asyncio.create_task(client.send(await client.session(), "go"))
        path = f"/v1/sessions/{await client.session()}/messages/stream"
        async with (
            client.stream(path, {"content": "go"}) as frames,
            client.stream("/v1/chat/completions", {**body, "stream": True}) as chunks,
        ):
            await read_until(frames, type="tool_start")
            await anext(chunks)
            async with asyncio.timeout(PATIENCE):
                while client.held.starts < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            client.app.state.service.drain()
            assert "goes on" in (await read_until(frames, type="error"))[-1]["message"]
            rest = [one.data async for one in chunks if one.data]
            assert rest[-1]["error"]["type"] == "shutting_down"
        assert "goes on" in (await asking)["message"]
        assert (await sending)["outcome"]["reason"] == "shutting_down"
        client.held.free.set()


@pytest.mark.parametrize("dialect", ["loop", "frames", "wire", "rpc"])
async def test_the_same_session_can_be_watched_in_every_dialect_from_any_position(dialect: str) -> None:
    async with serve_script(call("note", text="a"), "done") as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        path = f"/v1/sessions/{session_id}/events?dialect={dialect}"
        last = {"loop": "loop_completed", "frames": '"done"', "wire": '"usage"', "rpc": '"done"'}[dialect]

        async def watch_from(after: int) -> list[tuple[str, str]]:
            seen: list[tuple[str, str]] = []
            async with client.stream(f"{path}&after={after}") as events:
                async for one in events:
                    seen.append((one.id, one.text))
                    if last in one.text and (dialect != "wire" or "done" in json.dumps(seen)):
                        return seen
            raise AssertionError("ended")

        whole = await watch_from(0)
        array = await client.json("GET", f"{path}&follow=false")
        assert [json.loads(text) for _, text in whole] == array[: len(whole)]
        assert await client.json("GET", f"{path}&follow=false&after=1000") == []
        ids = [int(seq) for seq, _ in whole if seq]
        assert ids == sorted(ids)
        for seq in ids[:-1]:
            place = next(place for place, (one, _) in enumerate(whole) if one == str(seq))
            assert await watch_from(seq) == whole[place + 1 :]


async def test_many_watchers_of_one_session_share_one_encoding() -> None:
    async with serve_script("hello") as client:
        session_id = await client.session()
        shared = client.app.state.service.streams.encoder

        async def watch_all(joined: asyncio.Semaphore) -> list[str]:
            async with Client(client.base) as other, other.stream(f"/v1/sessions/{session_id}/events") as events:
                seen: list[str] = []
                async for one in events:
                    seen.append(one.text)
                    joined.release()
                    if one.data["type"] == "run_finished":
                        return seen
            raise AssertionError("ended")

        joined = asyncio.Semaphore(0)
        watchers = [asyncio.create_task(watch_all(joined)) for _ in range(20)]
        for _ in watchers:
            await joined.acquire()
        await client.send(session_id, "hi")
        views = await asyncio.gather(*watchers)
        assert all(view == views[0] for view in views)
        assert len(shared._kept) < 2 * len(views[0])


async def test_an_invalid_position_is_refused() -> None:
    async with serve_script() as client:
        path = f"/v1/sessions/{await client.session()}/events"
        for last in ("x", "-1", "9" * 30, "1.5", "²"):
            await client.problem("GET", path, headers={"Last-Event-ID": last})


@pytest.mark.parametrize("path", ["/v1/sessions/{}/events", "/v1/sessions/{}/events?dialect=wire"])
async def test_a_position_beyond_the_end_is_the_end_and_what_comes_then_is_seen(path: str) -> None:
    async with serve_script("hello") as client:
        session_id = await client.session()
        headers = {"Last-Event-ID": "99"}
        async with client.stream(path.format(session_id), headers=headers) as events:
            await client.send(session_id, "hi")
            while (await anext(events)).id != "2":
                pass


async def test_the_stream_of_all_sessions_resumes_after_any_event() -> None:
    async with serve_script(call("note", text="a"), "one", "two") as client:
        async with client.stream("/v1/events") as events:
            start = (await anext(events)).id
            sessions = [await client.session(), await client.session()]
            for session_id in sessions:
                await client.send(session_id, "go")
            expected = [await client.facts(session_id) for session_id in sessions]
            seen = [await anext(events) for _ in [*expected[0], *expected[1]]]
        assert all(one.data["cursor"] == int(one.id) for one in seen)
        found = [[one.data["fact"] for one in seen if one.data["session_id"] == session_id] for session_id in sessions]
        assert found == expected
        ids = [start, *(one.id for one in seen)]
        for place in (0, 1, len(seen) // 2, len(seen) - 1):
            for options in ({"headers": {"Last-Event-ID": ids[place]}}, {"params": {"after": ids[place]}}):
                async with client.stream("/v1/events", **options) as events:
                    assert (await anext(events)).id == ids[place]
                    again = [await anext(events) for _ in seen[place:]]
                assert [one.data for one in again] == [one.data for one in seen[place:]]
        await client.problem("GET", "/v1/events?after=-1", status=422)
        await client.problem("GET", "/v1/events", status=400, headers={"Last-Event-ID": "x"})
