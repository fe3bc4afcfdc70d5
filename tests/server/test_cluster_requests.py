"""Several `treadle serve` on one database, behind a load balancer: any node answers any request."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.kit.balancer import Balancer
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.postgres import needs_postgres
from tests.kit.serve_process import start_nodes
from tests.kit.server import Client, SentEvent, read_until
from tests.kit.sessions import PATIENCE
from treadle.messages import Call, Reply

pytestmark = needs_postgres


def build_call(call_id: str, name: str, **arguments: Any) -> Reply:
    return Reply(calls=(Call(call_id, name, json.dumps(arguments)),), finish="calls")


WRITE = build_call("w1", "write_file", path="note.txt", content="kept\n")
ASK = build_call("a1", "ask_user", question="Which one?")


@asynccontextmanager
async def serve_twice(tmp_path: Path, url: str, *script: Any) -> AsyncIterator[tuple[Client, Client, Balancer]]:
    """Two nodes with a client each, and the balancer in front of them."""
    async with (
        StrictChat(script) as provider,
        start_nodes(tmp_path, provider, url) as (balancer, (one, two)),
        Client(one.address, one.token) as first,
        Client(two.address, two.token) as second,
    ):
        yield first, second, balancer


@asynccontextmanager
async def open_balanced(balancer: Balancer, client: Client) -> AsyncIterator[Client]:
    """A client whose every request goes to the next node."""
    balanced = Client(balancer.address, client.token)
    async with balanced:
        await balanced.http.close()
        connector = aiohttp.TCPConnector(force_close=True)
        balanced.http = aiohttp.ClientSession(balancer.address, headers=balanced.headers, connector=connector)
        balanced.request = balanced.http.request
        yield balanced


async def wait_for_status(client: Client, session_id: str, status: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            shown = await client.json("GET", f"/v1/sessions/{session_id}")
            if shown["status"] == status:
                return shown
            await asyncio.sleep(0.02)


async def wait_for_event(events: AsyncIterator[SentEvent], name: str, **wanted: Any) -> Any:
    """Read events up to one of that name with these values. Returns its data."""
    async for sent in events:
        if sent.event == name and all(sent.data.get(key) == value for key, value in wanted.items()):
            return sent.data
    raise AssertionError(f"the stream ended without {name}")


async def test_each_request_of_a_session_may_go_to_another_node(tmp_path: Path, postgres_url: str) -> None:
    replies = (Reply(text="First."), Reply(text="Second."), Reply(text="Third."))
    async with (
        serve_twice(tmp_path, postgres_url, *replies) as (first, _, balancer),
        open_balanced(balancer, first) as client,
    ):
        session_id = await client.session(name="shared")
        path = f"/v1/sessions/{session_id}"
        for number in range(2):
            message = {"content": "one"}
            key = {"idempotency-key": "the first"}
            answer = await client.json("POST", f"{path}/messages", message, headers=key)
            assert answer["reply"] == "First.", number
        assert (await client.send(session_id, "two"))["reply"] == "Second."
        for _ in range(2):
            shown = await client.json("GET", path)
            assert [one["content"] for one in shown["messages"]] == ["one", "First.", "two", "Second."]
            state = await client.json("GET", f"{path}/state")
            assert state["usage"] and shown["status"] == "answered"
            (hit, *_) = await client.json("GET", "/v1/search?q=second")
            assert hit["session_id"] == session_id
            assert [one["id"] for one in (await client.json("GET", "/v1/sessions"))["sessions"]] == [session_id]
            async with client.request("GET", f"{path}/export?form=markdown") as export:
                assert "Second." in await export.text()
        points = (await client.json("GET", f"{path}/checkpoints"))["checkpoints"]
        again = await client.json("POST", f"{path}/resume", {"after": points[-1]["seq"]})
        await client.wait_for(session_id, "run_finished", after=again["after"])
        assert (await client.json("GET", path))["messages"][-1]["content"] == "Third."
        await client.json("PATCH", path, {"name": "renamed", "pinned": True})
        assert (await client.json("GET", path))["name"] == (await client.json("GET", path))["name"] == "renamed"
        await client.json("DELETE", path, status=204)
        for _ in range(2):
            await client.problem("GET", path, status=404)
        assert set(balancer.served) == set(balancer.nodes)


async def test_a_run_on_one_node_is_steered_followed_and_cancelled_on_another(
    tmp_path: Path, postgres_url: str
) -> None:
    held = asyncio.Event()
    script = (
        Odd(Reply(text="First."), held=held),
        Reply(text="Second."),
        Odd(Reply(text="never"), held=asyncio.Event()),
    )
    async with serve_twice(tmp_path, postgres_url, *script) as (first, second, _):
        session_id = await first.session(name="shared")
        path = f"/v1/sessions/{session_id}"
        await first.json("POST", f"{path}/messages?wait=0", {"content": "one"})
        async with second.stream(f"{path}/events") as events:
            await read_until(events, type="turn_started")
            waiting = asyncio.create_task(second.send(session_id, "two"))
            await read_until(events, type="message_received")
            held.set()
            await read_until(events, type="run_finished")
        assert (await waiting)["reply"] == "Second."
        assert await first.facts(session_id) == await second.facts(session_id)

        await first.json("POST", f"{path}/messages?wait=0", {"content": "three"})
        await wait_for_status(second, session_id, "running")
        cancelled = await second.json("POST", f"{path}/cancel")
        assert cancelled["outcome"]["reason"] == "cancelled"
        assert (await first.json("GET", path))["status"] == "cancelled"


async def test_a_stream_goes_on_at_another_node_without_a_gap_or_a_duplicate(tmp_path: Path, postgres_url: str) -> None:
    script = [build_call(f"w{n}", "write_file", path=f"{n}.txt", content="kept") for n in range(12)]
    async with serve_twice(tmp_path, postgres_url, *script, Reply(text="Done.")) as (first, second, _):
        session_id = await first.session(name="shared")
        path = f"/v1/sessions/{session_id}"
        sending = asyncio.create_task(first.send(session_id, "go"))
        ids, last, node = list[int](), "", 0
        store_ids, cursor = list[int](), "0"
        while not sending.done() or len(ids) < len(await first.facts(session_id)):
            client, node = (first, second)[node % 2], node + 1
            async with client.stream(f"{path}/events", headers={"last-event-id": last or "0"}) as events:
                for _ in range(5):
                    sent = await anext(events)
                    if sent.id:
                        ids.append(int(sent.id))
                        last = sent.id
                    if sending.done() and len(ids) == len(await first.facts(session_id)):
                        break
            async with client.stream("/v1/events", headers={"last-event-id": cursor}) as events:
                await anext(events)
                sent = await anext(events)
                while not sent.id:
                    sent = await anext(events)
                store_ids.append(sent.data["fact"]["seq"])
                cursor = sent.id
        assert (await sending)["reply"] == "Done."
        assert ids == list(range(1, len(ids) + 1))
        assert store_ids == list(range(1, len(store_ids) + 1))


async def test_a_question_is_answered_on_any_node_and_once(tmp_path: Path, postgres_url: str) -> None:
    async with serve_twice(tmp_path, postgres_url, WRITE, ASK, Reply(text="Done.")) as (first, second, _):
        async with first.stream("/api/agent/run", {"objective": "go", "sessionName": "shared"}) as events:
            await wait_for_event(events, "tool_approval_required")
            (question,) = await second.json("GET", "/v1/approvals")
            answers = await asyncio.gather(
                *(
                    client.request("POST", f"/v1/approvals/{question['id']}", json={"approved": True})
                    for client in (first, second)
                )
            )
            assert sorted(answer.status for answer in answers) == [200, 409]
            session_id = question["session_id"]
            *_, asked = await second.wait_for(session_id, "input_requested")
            await second.json("POST", f"/v1/sessions/{session_id}/answers/{asked['call_id']}", {"answers": ["both"]})
            await wait_for_event(events, "loop_completed")
        shown = await second.json("GET", f"/v1/sessions/{session_id}")
        assert shown["messages"][-1]["content"] == "Done."
        assert (tmp_path / "work" / "note.txt").read_text("utf-8") == "kept\n"
        (seq,) = [fact["seq"] for fact in await second.facts(session_id) if fact["type"] == "message_received"]
        done = await second.json("POST", f"/v1/sessions/{session_id}/rewind", {"seq": seq, "what": "files"})
        assert [one["path"] for one in done["changes"]] == ["note.txt"], done
        assert not (tmp_path / "work" / "note.txt").exists()


async def test_sockets_and_rpc_work_on_another_node(tmp_path: Path, postgres_url: str) -> None:
    script = (Reply(text="First."), Reply(text="Second."), Reply(text="Third."))
    async with serve_twice(tmp_path, postgres_url, *script) as (first, second, _):
        session_id = await first.session(name="shared")
        async with second.open_socket(session_id=session_id) as socket, second.open_socket("/v1/ws") as status:
            assert (await first.send(session_id, "one"))["reply"] == "First."
            assert (await socket.receive_last(type="done"))["type"] == "done"
            await status.receive_until(type="chat_status", session_id=session_id, status="idle")
            await socket.send(type="user", content="two")
            await socket.receive_last(type="done")
        assert (await first.json("GET", f"/v1/sessions/{session_id}"))["messages"][-1]["content"] == "Second."
        seen = len(await first.facts(session_id))
        call = {"jsonrpc": "2.0", "id": 1, "method": "agents.chat", "params": {"session_id": session_id, "prompt": "3"}}
        assert (await second.json("POST", "/v1/rpc", call))["result"]["accepted"]
        assert (await first.wait_for(session_id, "run_finished", after=seen))[-1]["answer"] == "Third."


async def test_a_list_on_one_node_shows_what_happens_on_another(tmp_path: Path, postgres_url: str) -> None:
    async with (
        serve_twice(tmp_path, postgres_url, Reply(text="First.")) as (first, second, _),
        second.stream("/v1/sessions/stream") as events,
    ):
        session_id = await first.session(name="shared")
        await wait_for_event(events, "session", id=session_id)
        await first.send(session_id, "one")
        await wait_for_event(events, "session", id=session_id, status="answered")
        await first.json("DELETE", f"/v1/sessions/{session_id}", status=204)
        await wait_for_event(events, "removed", id=session_id)
