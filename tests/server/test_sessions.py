"""`/v1`: sessions and messages, blocking and streamed, approvals, steering."""

from tests.kit import agent_of, note
from tests.server.kit import served, until
from treadle.testing import call


async def test_a_message_is_answered_when_the_answer_is_stored() -> None:
    agent, _ = agent_of(call("note", text="x"), "noted", tools=[note])
    async with served(agent) as client:
        session_id = await client.session(name="Plans")
        answer = await client.send(session_id, "note x")
        assert answer["reply"] == "noted" and answer["outcome"]["status"] == "answered"
        assert answer["session"]["id"] == session_id and answer["session"]["name"] == "Plans"
        facts = await client.facts(session_id)
        assert [fact["type"] for fact in facts][-1] == "run_finished"


async def test_a_streamed_message_ends_in_done() -> None:
    agent, _ = agent_of(call("note", text="x"), "noted", tools=[note])
    async with served(agent) as client:
        session_id = await client.session()
        async with client.stream(f"/v1/sessions/{session_id}/messages/stream", {"content": "go"}) as events:
            frames = await until(events, type="done")
        assert [frame["type"] for frame in frames] == [
            "iteration",
            "tool_start",
            "tool_end",
            "iteration",
            "delta",
            "done",
        ]
