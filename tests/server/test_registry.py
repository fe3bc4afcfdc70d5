"""The registry of `/api/agent/sessions`: its lists and its live streams."""

from typing import Any

from tests.dialects.test_registry_events import check_agent_event
from tests.kit.server import Client, SentEvent, read_until, serve_script
from tests.server.test_agent_run import run_objective
from treadle import AskUser, tool
from treadle.testing import call

FOUR = ("session_started", "session_updated", "agent_event", "session_ended")


async def read_all(client: Client, path: str, **options: Any) -> list[SentEvent]:
    """All events of a stream that the server closes."""
    async with client.stream(path, **options) as events:
        return [event async for event in events if not event.comment]


async def run_session(client: Client, **fields: Any) -> str:
    return (await run_objective(client, autoApprove=["*"], **fields))[0]["data"]["session_id"]


async def test_registry_events_are_the_four_kinds_and_carry_thoughts_calls_results_and_errors() -> None:
    script = (["I will note it", call("note", text="a"), call("fly")], "all noted")
    async with serve_script(*script) as client:
        async with client.stream("/api/agent/sessions/stream") as live:
            await anext(live)
            session_id = await run_session(client, objective="Note it", sessionName="Notes")
            everything = await read_until(live, event="session_ended")
        sent = await read_all(client, f"/api/agent/sessions/{session_id}/stream")
        assert all(one.event == one.data["event"] in FOUR for one in sent)
        assert [one.data for one in sent] == everything
        started, *_, ended = (one.data["data"] for one in sent)
        assert (started["name"], started["objective"], started["max_iterations"]) == ("Notes", "Note it", 10)
        assert started["tools"] == ["ask_user", "drop", "note", "wait"]
        assert (ended["status"], ended["reason"], ended["iterations"]) == ("completed", "answered", 2)
        did = [one.data["data"] for one in sent if one.event == "agent_event"]
        for event in did:
            check_agent_event(event)
            assert event["session_id"] == session_id
        kinds = ["thought", "tool_call", "tool_call", "tool_result", "tool_result", "thought"]
        assert [event["type"] for event in did] == kinds
        assert did[0]["thought"] == {"content": "I will note it"}
        assert did[1]["tool_call"] == {"id": did[1]["id"], "name": "note", "input": {"text": "a"}}
        assert {event["id"]: event["success"] for event in did[3:5]} == {did[1]["id"]: True, did[2]["id"]: False}
        detail = await client.json("GET", f"/api/agent/sessions/{session_id}")
        assert detail["recent_events"] == did


async def test_thoughts_are_cut_after_500_characters() -> None:
    async with serve_script("é" * 700) as client:
        session_id = await run_session(client)
        detail = await client.json("GET", f"/api/agent/sessions/{session_id}")
        assert detail["recent_events"][-1]["thought"]["content"] == "é" * 500 + "..."


async def test_each_session_of_the_registry_lists_its_tools() -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with serve_script("done", tools=[add, AskUser()]) as client:
        session_id = await run_session(client)
        (line,) = (await client.json("GET", "/api/agent/sessions"))["sessions"]
        detail = await client.json("GET", f"/api/agent/sessions/{session_id}")
        assert line["tools"] == detail["tools"] == ["add", "ask_user"]


async def test_the_stream_of_an_ended_session_says_so_and_closes() -> None:
    async with serve_script(call("note", text="a"), "one", "two") as client:
        session_id = await run_session(client)
        path = f"/api/agent/sessions/{session_id}/stream"
        whole = await read_all(client, path)
        assert whole[-1].event == "session_ended" and [one.event for one in whole].count("session_ended") == 1
        for place, event in enumerate(whole):
            if event.id:  # a client that has all is told again that the session has ended
                rest = await read_all(client, path, headers={"last-event-id": event.id})
                wanted = whole[place + 1 :] or whole[-1:]
                assert [(one.id, one.text) for one in rest] == [(one.id, one.text) for one in wanted]
                assert [one.text for one in await read_all(client, f"{path}?after={event.id}")] == [
                    one.text for one in wanted
                ]
        await client.send(session_id, "again")
        twice = await read_all(client, path)
        assert [one.text for one in twice[: len(whole)]] == [one.text for one in whole]
        assert [one.event for one in twice].count("session_ended") == 2 and twice[-1].event == "session_ended"
        assert [one.event for one in await read_all(client, f"{path}?after=99999")] == ["session_ended"]


async def test_the_stream_of_a_running_session_closes_when_it_ends() -> None:
    async with serve_script("before", call("wait"), "free") as client:
        session_id = await run_session(client)
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "wait"})
        await client.wait_for(session_id, "call_started")
        async with client.stream(f"/api/agent/sessions/{session_id}/stream") as events:
            seen = await read_until(events, event="session_ended")
            client.held.free.set()
            async for event in events:
                seen.append(event.data)
        assert [one["event"] for one in seen].count("session_ended") == 2
        assert seen[-1]["event"] == "session_ended" and seen[-2]["data"]["content"] == "free"


async def test_a_session_without_a_run_has_not_ended_and_is_streamed_when_it_runs() -> None:
    async with serve_script("hello") as client:
        session_id = await client.session()
        async with client.stream(f"/api/agent/sessions/{session_id}/stream") as events:
            await client.send(session_id, "hi")
            seen = await read_until(events, event="session_ended")
            assert seen[0]["event"] == "session_started"
            assert [one async for one in events] == []


async def test_the_status_of_a_result_is_success_partial_success_failure_or_denied() -> None:
    @tool
    def write_much() -> str:
        """Write much."""
        return "x" * 100_000

    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("it broke")

    @tool
    def note() -> str:
        """Note."""
        return "noted"

    calls = [call("note"), call("write_much"), call("fail"), call("note"), call("note")]
    async with serve_script(calls, "over", tools=[write_much, fail, note]) as client:
        events = await run_objective(client, autoApprove=["*"], forbidden=["unknown"], maxToolCalls=4)
        results = [one["data"]["result"] for one in events if one["event"] == "tool_execution_completed"]
        found = {(one["status"], one["treadle_status"]) for one in results}
        assert found == {("success", "ok"), ("partial_success", "ok"), ("failure", "error"), ("denied", "refused")}
    async with serve_script(call("note"), "over", tools=[note]) as client:
        events = await run_objective(client, forbidden=["note"])
        (result,) = [one["data"]["result"] for one in events if one["event"] == "tool_execution_completed"]
        assert (result["status"], result["treadle_status"]) == ("denied", "denied")


async def test_the_stream_of_all_sessions_has_ids_and_resumes() -> None:
    async with serve_script(call("note", text="a"), "one", "two") as client:
        path = "/api/agent/sessions/stream"
        for objective in ("first", "second"):
            await run_session(client, objective=objective)
        whole: list[SentEvent] = []
        async with client.stream(f"{path}?after=0") as events:
            while [one.event for one in whole].count("session_ended") < 2:
                whole += [one] if (one := await anext(events)).data else []
        assert [one.data["data"]["objective"] for one in whole if one.event == "session_started"] == ["first", "second"]
        cursors = [int(one.id) for one in whole if one.id]
        assert cursors == sorted(set(cursors)) and whole[-1].id
        for place, event in enumerate(whole[:-1]):
            if event.id:
                async with client.stream(path, headers={"last-event-id": event.id}) as events:
                    assert (await anext(events)).id == event.id
                    rest = [await anext(events) for _ in whole[place + 1 :]]
                assert [(one.id, one.text) for one in rest] == [(one.id, one.text) for one in whole[place + 1 :]]
        await client.problem("GET", path, headers={"last-event-id": "x"})
