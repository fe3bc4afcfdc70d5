"""Stored responses that several clients use at once, and where their sessions show."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.kit.server import Client, serve_agents, serve_script
from tests.server.test_responses import SteppingModel
from treadle import Agent, TextDelta
from treadle.log.base import RESPONSES_AGENT, SessionQuery
from treadle.messages import Request as ModelRequest
from treadle.models.base import ModelEvent
from treadle.server.stored_responses import OUTPUT, OutputRecord, build_fact
from treadle.server.tokens import Token
from treadle.testing import ScriptedModel

OWN = Token("own", "not-used-here")


async def create(client: Client, **fields: Any) -> Any:
    return await client.json("POST", "/v1/responses", {"model": "scripted", "input": "hi", **fields})


async def list_response_sessions(client: Client) -> tuple[Any, ...]:
    log = client.app.state.service.runtime.log
    return (await log.list_sessions(SessionQuery(agent=RESPONSES_AGENT))).sessions


@pytest.mark.parametrize("cancels_first", [True, False])
async def test_the_first_end_of_a_response_that_is_stored_counts(*, cancels_first: bool) -> None:
    model = SteppingModel("one", "two")
    async with serve_agents(Agent(model)) as client:
        made = await create(client, background=True)
        path, runs = f"/v1/responses/{made['id']}", client.app.state.service.responses
        stored, turn = await runs.store.find_turn(made["id"], OWN)
        live = await runs.find_live(stored, turn)
        cancelled = OutputRecord(turn.seq, 1, status="cancelled")
        if cancels_first:  # as another process does, which cannot stop the model here
            await runs.store.add_facts(stored, build_fact(OUTPUT, cancelled))
        for _ in range(3):
            model.steps.release()
        await live.wait()
        await runs.cancel(stored, turn)  # as a request that had read the response before it ended
        shown = await client.json("GET", path)
        assert shown["status"] == ("cancelled" if cancels_first else "completed")
        assert live.dialect.response.status == shown["status"]
        assert (await client.json("POST", f"{path}/cancel"))["status"] == shown["status"]
        async with client.stream(f"{path}?stream=true") as events:
            *_, last = [one.data async for one in events if one.data is not None]
        assert last["response"] == shown


async def test_a_response_that_ends_while_it_is_looked_up_is_not_asked_again() -> None:
    model = SteppingModel("one")
    async with serve_agents(Agent(model)) as client:
        made = await create(client, background=True)
        runs = client.app.state.service.responses
        stored, turn = await runs.store.find_turn(made["id"], OWN)
        live = await runs.find_live(stored, turn)
        model.steps.release()
        model.steps.release()
        await live.wait()
        assert turn.output is None  # what was read before is out of date
        assert await runs.find_live(stored, turn) is None
        assert len(model.requests) == 1
        assert turn.output is not None and turn.output.reply.text == "one"
        assert (await create(client, previous_response_id=made["id"], background=True))["status"] == "queued"


async def test_a_response_to_one_of_a_conversation_leaves_the_conversation_alone() -> None:
    async with serve_script("one", "two", "aside", "more aside", "three") as client:
        conversation = (await client.json("POST", "/v1/conversations", {"metadata": {"a": "b"}}))["id"]
        first = await create(client, input="a", conversation=conversation)
        await create(client, input="b", conversation=conversation)
        items = await client.json("GET", f"/v1/conversations/{conversation}/items")
        aside = await create(client, input="c", previous_response_id=first["id"])
        further = await create(client, input="d", previous_response_id=aside["id"])
        assert await client.json("GET", f"/v1/conversations/{conversation}/items") == items
        seen = [[getattr(one, "text", "") for one in request.messages] for request in client.model.requests]
        assert [len(texts) for texts in seen] == [1, 3, 3, 5]
        session = aside["id"].split("_")[1]
        assert session == further["id"].split("_")[1]
        await client.problem("GET", f"/v1/conversations/conv_{session}", status=404)
        await create(client, input="e", conversation=conversation)
        assert [len(request.messages) for request in client.model.requests][-1] == 5
        for made in (aside, further):
            await client.json("DELETE", f"/v1/responses/{made['id']}")
        assert [one.id for one in await list_response_sessions(client)] == [conversation.removeprefix("conv_")]


async def test_a_deleted_response_takes_its_copy_of_earlier_ones_with_it() -> None:
    async with serve_script("one", "two", "three") as client:
        first = await create(client)
        second = await create(client, previous_response_id=first["id"])
        third = await create(client, previous_response_id=first["id"])
        assert len(await list_response_sessions(client)) == 2
        await client.json("DELETE", f"/v1/responses/{third['id']}")
        (kept,) = await list_response_sessions(client)
        assert first["id"].startswith(f"resp_{kept.id}")
        await client.json("DELETE", f"/v1/responses/{first['id']}")
        await client.json("DELETE", f"/v1/responses/{second['id']}")
        assert await list_response_sessions(client) == ()


async def test_stored_responses_are_in_no_list_or_stream_of_sessions() -> None:
    async with serve_agents(Agent(ScriptedModel("zebra", "hello"))) as client:
        made = await create(client, input="zebra")
        conversation = await client.json("POST", "/v1/conversations", {"items": [{"role": "user", "content": "zebra"}]})
        session = await client.session()
        await client.send(session, "go")
        for stored in (made["id"].split("_")[1], conversation["id"].removeprefix("conv_")):
            for path in (f"/v1/sessions/{stored}", f"/v1/sessions/{stored}/export", f"/api/agent/sessions/{stored}"):
                await client.problem("GET", path, status=404)
        for path in ("/v1/sessions", "/v1/sessions?q=zebra", "/api/agent/sessions"):
            listed = (await client.json("GET", path))["sessions"]
            assert [one.get("id") or one["session_id"] for one in listed] == ([] if "zebra" in path else [session])
        async with client.stream("/v1/events?after=0") as events:
            async for event in events:
                assert event.data is None or event.data["session_id"] == session
                if event.data is not None and event.data["fact"]["type"] == "run_finished":
                    break


class HeldModel(ScriptedModel):
    """A model that begins a reply and never ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        yield TextDelta(text="one")
        self.begun.set()
        await asyncio.Event().wait()


SHORT_CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", SHORT_CHAT),
        ("/v1/chat/completions", {**SHORT_CHAT, "n": 2}),
        ("/v1/messages", SHORT_CHAT),
        ("/v1/responses", {"model": "scripted", "input": "hi"}),
        ("/v1/responses", {"model": "scripted", "input": "hi", "store": False}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_that_the_grace_period_cuts_off_ends_with_an_error(
    path: str, body: dict[str, Any], *, stream: bool
) -> None:
    model = HeldModel()
    async with serve_agents(Agent(model)) as client:

        async def cut_off() -> None:
            """Cancel the request as uvicorn does after its grace period, once the model has begun."""
            await model.begun.wait()
            for task in asyncio.all_tasks():
                if "run_asgi" in str(task.get_coro()):
                    task.cancel()

        cutting = None if stream else asyncio.create_task(cut_off())
        async with client.request("POST", path, json={**body, "stream": stream}) as answer:
            assert answer.status == (200 if stream else 503)
            await (cutting or cut_off())
            assert "shuts down" in (await answer.text()).rpartition('"error":')[2]
