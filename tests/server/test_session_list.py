"""The list of sessions over HTTP: marks, filters, open questions, search, and a stream of changes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.server import OWNER, Client, SentEvent, create_token, serve_agents, serve_script
from tests.kit.sessions import PATIENCE, Tables, build_agent
from treadle import Agent, Grant, later
from treadle.log.in_memory import InMemoryLog
from treadle.server.first_words import FirstWords
from treadle.server.list_changes import ListChanges
from treadle.server.open_questions import OpenQuestions
from treadle.testing import ScriptedModel, call

DROP = call("drop", id="a", table="users")


async def list_ids(client: Client, query: str = "") -> list[str]:
    return [one["id"] for one in (await client.json("GET", f"/v1/sessions{query}"))["sessions"]]


# --- marks and filters


async def test_sessions_are_pinned_and_archived_and_found_by_it() -> None:
    async with serve_script("hello") as client:
        first, second = await client.session(name="First"), await client.session()
        assert await list_ids(client, "?archived=false") == [second, first]
        changed = await client.json("PATCH", f"/v1/sessions/{first}", {"pinned": True, "archived": True})
        assert (changed["pinned"], changed["archived"], changed["name"]) == (True, True, "First")
        assert await list_ids(client, "?archived=true") == [first]
        assert await list_ids(client, "?archived=false") == [second]
        assert set(await list_ids(client)) == {first, second}
        changed = await client.json("PATCH", f"/v1/sessions/{first}", {"archived": False})
        assert (changed["pinned"], changed["archived"]) == (True, False)
        facts = [one for one in await client.facts(first) if one["type"] == "session_marked"]
        assert [(one.get("pinned"), one.get("archived"), one["by"]) for one in facts] == [
            (True, True, "owner"),
            (None, False, "owner"),
        ]
        state = await client.json("GET", f"/v1/sessions/{first}/state")
        assert (state["pinned"], state["archived"]) == (True, False)


async def test_the_list_is_narrowed_by_agent_workspace_and_parent(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    agents = [Agent(ScriptedModel("hello", "hello"), name=name) for name in ("default", "other")]
    async with serve_agents(*agents, roots=[tmp_path]) as client:
        first, second = await client.session(), await client.session(agent="other", workspace="a")
        await client.send(first, "hi")
        fork = (await client.json("POST", f"/v1/sessions/{first}/fork", {"after": 2}, 201))["id"]
        assert await list_ids(client, "?agent=other") == [second]
        assert await list_ids(client, f"?workspace={tmp_path / 'a'}") == [second]
        assert await list_ids(client, f"?parent={first}") == [fork]
        (view,) = (await client.json("GET", f"/v1/sessions?parent={first}"))["sessions"]
        assert (view["parent"], view["parent_call"], view["parent_seq"]) == (first, "", 2)
        await client.json("GET", "/v1/sessions?archived=maybe", status=422)


async def test_the_list_counts_the_open_questions_of_each_session_and_names_its_model() -> None:
    calls = [call("drop", id="a", table="users"), call("drop", id="b", table="orders")]
    agent, _ = build_agent(calls, "done", tools=Tables().tools, name="default")
    async with serve_agents(agent) as client:
        session_id = await client.session()
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "drop them"})
        first = (await client.wait_for(session_id, "approval_requested"))[-1]
        await client.wait_for(session_id, "approval_requested", first["seq"])

        async def count() -> tuple[int, int]:
            (view,) = (await client.json("GET", "/v1/sessions"))["sessions"]
            return view["asks"], (await client.json("GET", f"/v1/sessions/{session_id}"))["asks"]

        assert await count() == (2, 2)
        body = {"decision": "allow", "scope": "tool"}
        await client.json("POST", f"/v1/sessions/{session_id}/approvals/a", body)
        await client.wait_for(session_id, "run_finished")
        assert await count() == (0, 0)


async def test_open_questions_are_found_again_when_they_are_no_longer_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.server.open_questions.MAX_FOLLOWED", 1)
    log, questions = InMemoryLog(), OpenQuestions()
    for name in ("s", "t"):
        agent, _ = build_agent(call("drop", id=name, table="x"), "done", tools=Tables().tools, gate=later)
        async with agent.session(log, id=name) as session, session.run("go") as run:
            assert await run.wait() is None
    for _ in range(2):
        found = [await questions.find(log, await log.get_info(name)) for name in ("s", "t")]
        assert [[one.call_id for one in each] for each in found] == [["s"], ["t"]]


async def test_a_session_without_a_name_shows_how_it_began_until_it_has_one() -> None:
    async with serve_script("done", "done") as client:
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}"

        async def read_words() -> tuple[str, str]:
            (view,) = (await client.json("GET", "/v1/sessions"))["sessions"]
            shown = await client.json("GET", path)
            return view["first_words"], shown["first_words"]

        async with watch_list(client) as seen:
            assert await read_words() == ("", "")
            await client.send(session_id, "  Move the images\nto another bucket")
            assert await read_words() == ("Move the images", "Move the images")
            await seen.wait_until(lambda: bool(seen.sessions.get(session_id, {}).get("first_words")))
            assert seen.sessions[session_id]["first_words"] == "Move the images"
            await client.send(session_id, "And the texts")
            assert (await client.json("PATCH", path, {"pinned": True}))["first_words"] == "Move the images"
            assert (await client.json("PATCH", path, {"name": "Images"}))["first_words"] == ""
            assert await read_words() == ("", "")


# --- access


async def test_a_session_gets_no_more_access_than_the_server_allows() -> None:
    sender = create_token("sender", "view", "send")
    async with serve_script("hello", grant=Grant(tier="sandbox"), tokens=(OWNER, sender)) as client:
        session_id = await client.session(access="read-only")
        path = f"/v1/sessions/{session_id}"
        assert (await client.json("GET", f"{path}/state"))["access"] == "read-only"
        for method, at in (("PATCH", path), ("POST", "/v1/sessions")):
            assert (await client.problem(method, at, {"access": "full"}, 403))["type"] == "wider_access"
        async with Client(client.base, sender.value) as other:  # who may not approve may only narrow the access
            assert (await other.problem("PATCH", path, {"access": "sandbox"}, 403))["type"] == "no_right"
            await other.json("PATCH", path, {"access": "plan"})
        await client.json("PATCH", path, {"access": "sandbox"})
        assert (await client.json("GET", f"{path}/state"))["access"] == "sandbox"
        changes = [one for one in await client.facts(session_id) if one["type"] == "session_configured"]
        assert [(one.get("access_before"), one["access"]) for one in changes[1:]] == [
            ("read-only", "plan"),
            ("plan", "sandbox"),
        ]


async def test_a_change_that_is_refused_changes_nothing() -> None:
    async with serve_script("hello", grant=Grant(tier="sandbox")) as client:
        session_id = await client.session(name="before")
        path, before = f"/v1/sessions/{session_id}", await client.facts(session_id)
        wider = {"name": "after", "pinned": True, "web": False, "access": "full"}
        assert (await client.problem("PATCH", path, wider, 403))["type"] == "wider_access"
        await client.problem("PATCH", path, {"name": "after", "limits": {"turns": 10**6}}, 422)
        assert await client.facts(session_id) == before


# --- search


async def test_search_finds_words_in_all_transcripts_and_marks_them() -> None:
    async with serve_script("The plum is ripe.", "Nothing else.") as client:
        first, second = await client.session(name="Fruit"), await client.session()
        await client.send(first, "tell me of fruit")
        await client.send(second, "what else")
        (hit,) = await client.json("GET", "/v1/search?q=PLUM ripe")
        reply = next(one for one in await client.facts(first) if one["type"] == "model_replied")
        assert (hit["session_id"], hit["name"], hit["seq"]) == (first, "Fruit", reply["seq"])
        assert hit["snippet"] == "The \x02plum\x03 is \x02ripe\x03."
        assert await client.json("GET", "/v1/search?q=pear") == []
        assert len(await client.json("GET", "/v1/search?q=else&limit=1")) == 1
        await client.problem("GET", "/v1/search?q=", status=422)


# --- the stream


class ListWatcher:
    """The events of the stream, as a page keeps them."""

    def __init__(self, events: AsyncIterator[SentEvent]) -> None:
        self._events = events
        self.sessions: dict[str, dict[str, Any]] = {}
        self.questions: dict[str, list[Any]] = {}
        self.removed: list[str] = []
        self.count = 0

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                event = await anext(self._events)
                self.count += 1
                match event.event:
                    case "session":
                        self.sessions[event.data["id"]] = event.data
                    case "questions":
                        self.questions[event.data["session_id"]] = event.data["questions"]
                    case "removed":
                        self.removed.append(event.data["id"])
                    case _:
                        raise AssertionError(event.text)


@asynccontextmanager
async def watch_list(client: Client) -> AsyncGenerator[ListWatcher]:
    async with client.stream("/v1/sessions/stream") as events:
        yield ListWatcher(events)


async def test_the_stream_sends_each_change_of_the_list() -> None:
    async with serve_script("hello") as client:
        before = await client.session()
        async with watch_list(client) as seen:
            session_id = await client.session(name="First")
            await seen.wait_until(lambda: session_id in seen.sessions)
            assert (seen.sessions[session_id]["name"], seen.sessions[session_id]["status"]) == ("First", "idle")
            await client.send(session_id, "hi")
            await seen.wait_until(lambda: seen.sessions[session_id]["status"] == "answered")
            await client.json("PATCH", f"/v1/sessions/{session_id}", {"pinned": True})
            await seen.wait_until(lambda: seen.sessions[session_id]["pinned"])
            listed = (await client.json("GET", "/v1/sessions"))["sessions"]
            assert seen.sessions[session_id] == next(one for one in listed if one["id"] == session_id)
            await client.json("DELETE", f"/v1/sessions/{session_id}", status=204)
            await seen.wait_until(lambda: seen.removed == [session_id])
            assert before not in seen.sessions, "nothing is sent of what did not change"


async def test_the_stream_sends_questions_and_that_they_are_answered() -> None:
    async with serve_script(DROP, "done") as client, watch_list(client) as seen:
        session_id = await client.session()
        sending = asyncio.create_task(client.send(session_id, "drop them"))
        await seen.wait_until(lambda: seen.sessions.get(session_id, {}).get("status") == "waiting")
        await seen.wait_until(lambda: bool(seen.questions.get(session_id)))
        (question,) = seen.questions[session_id]
        (approval,) = await client.json("GET", "/v1/approvals")
        assert question == approval and seen.sessions[session_id]["asks"] == 1
        await client.json("POST", f"/v1/sessions/{session_id}/approvals/a", {"decision": "allow"})
        await seen.wait_until(lambda: not seen.questions[session_id])
        await seen.wait_until(lambda: seen.sessions[session_id]["status"] == "answered")
        assert seen.sessions[session_id]["asks"] == 0
        await sending


async def test_a_client_that_connects_late_learns_that_a_question_is_settled() -> None:
    async with serve_script(DROP, "done") as client:
        session_id = await client.session()
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "go"})
        await client.wait_for(session_id, "approval_requested")
        async with watch_list(client) as seen:
            await client.json("POST", f"/v1/sessions/{session_id}/cancel")
            await seen.wait_until(lambda: seen.questions.get(session_id) == [])


async def test_many_facts_become_few_events() -> None:
    async with serve_script("hello") as client, watch_list(client) as seen:
        session_id = await client.session()
        for number in range(200):
            await client.json("PATCH", f"/v1/sessions/{session_id}", {"name": f"name {number}"})
        await seen.wait_until(lambda: seen.sessions.get(session_id, {}).get("name") == "name 199")
        assert seen.count < 100


async def test_a_client_that_does_not_read_costs_only_the_ids_of_changed_sessions() -> None:
    async with serve_script("hello") as client:
        runtime = client.app.state.service.runtime
        changes = ListChanges(runtime, OpenQuestions(), FirstWords())
        events = changes.render()
        assert await anext(events) == b""
        session_id = await client.session()
        for number in range(300):
            await client.json("PATCH", f"/v1/sessions/{session_id}", {"name": f"name {number}"})
        assert list(changes._changed) == [session_id]  # pyright: ignore[reportPrivateUsage]
        data = await asyncio.wait_for(anext(events), PATIENCE)
        assert data.count(b"event: session") == 1 and b"name 299" in data
        await events.aclose()


async def test_the_stream_ends_with_the_server_and_stored_responses_are_no_part_of_it() -> None:
    async with serve_script("hello", "hello") as client, client.stream("/v1/sessions/stream") as events:
        await client.json("POST", "/v1/responses", {"model": "scripted", "input": "hi"})
        session_id = await client.session()
        first = await anext(events)
        assert (first.event, first.data["id"]) == ("session", session_id)
        client.app.state.service.drain()
        async with asyncio.timeout(PATIENCE):
            rest = [event async for event in events]
        assert any("shutting down" in event.comment for event in rest)
