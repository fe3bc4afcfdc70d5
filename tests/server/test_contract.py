"""What clients rely on: methods, addresses, bodies, and lists that are complete."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.server import Client, read_until, serve_agents, serve_script
from tests.kit.sessions import PATIENCE, build_agent, note
from treadle import Agent
from treadle.errors import ModelError
from treadle.log.in_memory import InMemoryLog
from treadle.testing import ScriptedModel, call


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/sessions", "/metrics", "/openapi.json", "/"])
async def test_head_is_get_without_its_body(path: str) -> None:
    async with serve_script() as client, client.request("GET", path) as whole, client.request("HEAD", path) as head:
        assert (head.status, head.headers["content-type"]) == (whole.status, whole.headers["content-type"])
        assert await head.read() == b"" and await whole.read()


async def test_the_head_of_a_stream_ends_and_nobody_watches_afterwards() -> None:
    async with serve_script() as client:
        for path in (f"/v1/sessions/{await client.session()}/events", "/api/agent/sessions/stream"):
            async with client.request("HEAD", path) as head:
                assert head.status == 200 and head.headers["content-type"].startswith("text/event-stream")
        async with asyncio.timeout(PATIENCE):
            while "\ntreadle_watchers 0.0\n" not in await fetch_metrics(client):
                pass  # a stream ends after its head was sent
        async with client.request("HEAD", "/v1/sessions/nope/events") as head:
            assert head.status == 404


async def fetch_metrics(client: Client) -> str:
    async with client.request("GET", "/metrics") as answer:
        return await answer.text()


async def test_a_wrong_method_is_answered_with_the_allowed_ones() -> None:
    async with serve_script() as client:
        for path, methods in (
            ("/v1/sessions", "OPTIONS, HEAD, GET, POST"),
            (f"/v1/sessions/{await client.session()}", "OPTIONS, HEAD, GET, PATCH, DELETE"),
            ("/v1/memory", "OPTIONS, HEAD, GET, POST, DELETE"),
            ("/v1/chat/completions", "OPTIONS, POST"),
        ):
            async with client.request("PUT", path, json={}) as answer:
                assert answer.status == 405 and answer.headers["allow"] == methods
                assert (await answer.json())["error"]["type"] == "method_not_allowed"
            async with client.request("OPTIONS", path) as answer:
                assert answer.status == 204 and answer.headers["allow"] == methods
        async with client.request("OPTIONS", "/nowhere") as answer:
            assert answer.status == 404


async def test_a_compressed_body_is_refused() -> None:
    async with serve_script() as client:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        body = gzip.compress(b"{}")
        problem = await client.problem("POST", "/v1/sessions", status=415, data=body, headers=headers)
        assert problem["type"] == "encoded" and "Content-Encoding" in problem["hint"]
        headers["content-encoding"] = "identity"
        await client.json("POST", "/v1/sessions", status=201, data=b"{}", headers=headers)


async def test_a_query_parameter_without_a_value_is_ignored() -> None:
    async with serve_script("hello") as client:
        session_id = await client.session(name="tea")
        listed = await client.json("GET", "/v1/sessions?status=&q=tea&limit=&cursor=")
        assert [one["id"] for one in listed["sessions"]] == [session_id]
        assert (await client.json("GET", "/api/agent/sessions?status=&limit=&cursor="))["sessions"]
        assert await client.json("GET", f"/v1/sessions/{session_id}/events?after=&follow=false&dialect=")
        assert (await client.problem("GET", "/v1/memory/search?q=", status=422))["param"] == "q"


@pytest.mark.parametrize("cursor", ["zzz", "nan_1", "inf_1", "1.0_1_1", f"1.0_{10**30}", "1.0_-1", "_", "1.0_%D9%A1"])
@pytest.mark.parametrize("path", ["/v1/sessions", "/api/agent/sessions"])
async def test_an_invalid_cursor_is_refused(tmp_path: Path, path: str, cursor: str) -> None:
    async with serve_script(store=tmp_path / "store.db") as client:
        assert "not a cursor" in (await client.problem("GET", f"{path}?cursor={cursor}"))["message"]


async def test_a_question_during_another_call_is_listed_and_can_be_answered() -> None:
    async with serve_script([call("wait"), call("drop", table="users")], "done") as client:
        session_id, sending, _ = await client.start_run("approval_requested")
        asked = await client.answer_approval()
        assert (asked["session_id"], asked["tool"]) == (session_id, "drop")
        assert await client.json("GET", "/v1/approvals") == []
        client.held.free.set()
        await sending
        assert client.tables.done == ["users"]


async def test_suggested_answers_are_sent_in_every_format() -> None:
    async with serve_script(call("ask_user", question="Which?", options=["red", "blue"]), "done") as client:
        session_id = await client.session()
        sending = {"content": "paint"}
        async with client.stream(f"/v1/sessions/{session_id}/messages/stream", sending) as frames:
            asked = (await read_until(frames, type="input_request"))[-1]
            assert (asked["questions"], asked["options"]) == (["Which?"], [["red", "blue"]])
            (pending,) = await client.json("GET", "/v1/approvals")
            assert (pending["kind"], pending["options"]) == ("input", [["red", "blue"]])
            for dialect in ("loop", "frames", "wire", "rpc"):
                told = await client.json("GET", f"/v1/sessions/{session_id}/events?follow=false&dialect={dialect}")
                assert '"options": [["red", "blue"]]' in json.dumps(told), dialect
            await client.json("POST", f"/v1/sessions/{session_id}/answers/{pending['call_id']}", {"answers": ["red"]})
            await read_until(frames, type="done")


class CountingLog(InMemoryLog):
    """A log that counts the facts that were read."""

    facts_read = 0

    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> Any:
        facts = await super().read(session_id, after, limit)
        self.facts_read += len(facts)
        return facts


async def test_the_registry_reads_again_only_what_is_new() -> None:
    agent, _ = build_agent(*["hello"] * 5, call("note", text="a"), "noted", tools=[note])
    log = CountingLog()
    async with serve_agents(agent, store=log) as client:
        sessions = [await client.session() for _ in range(5)]
        for session_id in sessions:
            await client.send(session_id, "hi")
        first = (await client.json("GET", "/api/agent/sessions"))["sessions"]
        before = log.facts_read
        assert (await client.json("GET", "/api/agent/sessions"))["sessions"] == first
        assert (await client.json("GET", "/api/agent/sessions?status=running"))["sessions"] == []
        assert log.facts_read == before
        await client.send(sessions[2], "and more")
        before = log.facts_read
        line = (await client.json("GET", "/api/agent/sessions?limit=1"))["sessions"][0]
        read = log.facts_read - before
        counts = {name: line[name] for name in ("thoughts", "tool_calls", "results", "errors", "objective")}
        assert counts == {"thoughts": 2, "tool_calls": 1, "results": 1, "errors": 0, "objective": "hi"}
        assert read == len(await client.facts(sessions[2])) - len(await client.facts(sessions[1]))


@pytest.mark.parametrize(("told", "wait"), [(7.0, "7"), (None, "5")])
async def test_a_busy_model_is_429_with_retry_after(told: float | None, wait: str) -> None:
    busy = ModelError("busy", kind="overloaded", retryable=True, retry_after=told)
    async with serve_agents(Agent(ScriptedModel(busy, busy))) as client:
        for stream in (False, True):
            body = {"model": "default", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
            async with client.request("POST", "/v1/chat/completions", json=body) as answer:
                assert answer.status == 429 and answer.headers["retry-after"] == wait
