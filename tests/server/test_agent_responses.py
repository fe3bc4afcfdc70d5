"""Stored and background responses of agents, by OpenAI's own client over a real socket."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.kit.server import OWNER, Client, create_token, read_until, serve_agents, serve_script
from tests.server.test_openai_sdk import connect_sdk
from tests.server.test_responses import read_stream, wait_for_status
from tests.server.worker import fake_model, start_forker
from treadle import Agent, Grant, ReasoningDelta, TextDelta
from treadle.errors import ModelError
from treadle.events import Custom
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Reply, ResultMessage, Usage
from treadle.messages import Request as ModelRequest
from treadle.models.base import ModelEvent
from treadle.server import event_feed
from treadle.server.agent_responses import NUMBER_GAP
from treadle.testing import ScriptedModel, call

AGENT = "agent:agent"
LOCATE: Any = [{"type": "function", "name": "locate", "parameters": {"type": "object"}, "strict": False}]
TRIP = [["Let me see.", call("note", id="n1", text="a")], [call("locate", id="c1", place="x")], "It is here."]


class PiecesModel(ScriptedModel):
    """A model that says reasoning and text in pieces. The text of an error comes before the error."""

    def __init__(self, *replies: Reply | ModelError, pieces: int = 3) -> None:
        super().__init__()
        self.replies, self.size, self.go = [*replies], pieces, asyncio.Semaphore(1000)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        reply = self.replies.pop(0)
        said = reply if isinstance(reply, Reply) else Reply("lost words")
        for kind, text in ((ReasoningDelta, said.reasoning), (TextDelta, said.text)):
            for start in range(0, len(text), self.size):
                await self.go.acquire()
                yield kind(text=text[start : start + self.size])
        if isinstance(reply, ModelError):
            raise reply
        await self.go.acquire()
        yield reply


TURNS = (
    Reply("First I note it.", "thinking", calls=(call("note", id="n1", text="a"),), finish="calls", usage=Usage(3, 4)),
    ModelError("slow down", kind="overloaded", retryable=True, retry_after=0.001),
    Reply("Then I answer.", "more", usage=Usage(1, 2)),
)


@asynccontextmanager
async def serve_model(model: ScriptedModel, **options: Any) -> AsyncIterator[tuple[Client, openai.AsyncOpenAI]]:
    """A server with one agent of this model, and OpenAI's client."""
    agent = Agent(model, tools=[note], grant=Grant(yes=True))
    async with serve_agents(agent, **options) as plain, connect_sdk(plain) as client:
        yield plain, client


@asynccontextmanager
async def serve_turns(*script: Any, **options: Any) -> AsyncIterator[tuple[Client, openai.AsyncOpenAI]]:
    async with serve_script(*script, **options) as plain, connect_sdk(plain) as client:
        yield plain, client


def note(text: str) -> str:
    """Keep a text."""
    return text


async def ask(client: openai.AsyncOpenAI, given: Any = "hi", **options: Any) -> Any:
    return await client.responses.create(**{"model": AGENT, "input": given, **options})


def get_session(response: Any) -> str:
    return response.model_extra["treadle"]["session_id"]


def answer(response: Any, output: str = "here") -> Any:
    """The results of the client's calls in a response."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": item.call_id, "output": output} for item in calls]


async def test_an_agents_response_is_a_position_in_its_session_and_is_found_again() -> None:
    async with serve_turns("one", "two") as (plain, client):
        made = await ask(client, "hello", metadata={"a": "b"})
        session_id = get_session(made)
        facts = await plain.facts(session_id)
        (message,) = [fact for fact in facts if fact["type"] == "message_received"]
        assert made.id == f"resp_{session_id}_{message['seq']}" and made.store is True
        assert await client.responses.retrieve(made.id) == made and made.metadata == {"a": "b"}
        assert made.completed_at is not None and made.usage is not None
        items = await client.responses.input_items.list(made.id)
        assert items.data[0].content[0].text == "hello"  # type: ignore[union-attr]
        assert session_id in [one["id"] for one in (await plain.json("GET", "/v1/sessions"))["sessions"]]


async def test_deleting_an_agents_response_hides_it_and_keeps_its_session() -> None:
    async with serve_turns("one") as (plain, client):
        made = await ask(client)
        await client.responses.delete(made.id)
        for path in ("", "?stream=true", "/input_items"):
            await plain.problem("GET", f"/v1/responses/{made.id}{path}", status=404)
        assert (await plain.json("GET", f"/v1/sessions/{get_session(made)}"))["id"] == get_session(made)


async def test_the_whole_form_has_the_items_that_the_stream_adds_up_to() -> None:
    async with serve_turns(*TRIP[:1], "done", *TRIP[:1], "done") as (_, client):
        whole = await ask(client)
        async with client.responses.stream(model=AGENT, input="hi") as stream:
            done = [event.item async for event in stream if event.type == "response.output_item.done"]
            final: Any = await stream.get_final_response()
        texts = [[item.content[0].text for item in output] for output in (whole.output, done, final.output)]
        assert texts == [["Let me see.", "done"]] * 3 and whole.output_text == "Let me see.done"
        kinds = [event["type"] for event in final.model_extra["treadle"]["events"]]
        assert kinds == [event["type"] for event in whole.model_extra["treadle"]["events"]]
        assert kinds == ["call_started", "call_finished", "run_finished"]


@pytest.mark.parametrize("kept", [event_feed.MAX_KEPT, 4])
async def test_a_stream_can_be_rejoined_at_every_number_during_the_run_and_after_it(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "MAX_KEPT", kept)
    model, log = PiecesModel(*TURNS), InMemoryLog()
    model.go = asyncio.Semaphore(0)
    async with serve_model(model, store=log) as (plain, client):
        made = await ask(client, background=True)
        assert made.status == "queued"
        joined: list[asyncio.Task[list[dict[str, Any]]]] = []
        async with plain.stream(f"/v1/responses/{made.id}?stream=true") as events:
            first: list[dict[str, Any]] = []
            model.go.release()
            async for event in events:
                if event.data is not None:
                    first.append(event.data)
                    number = event.data["sequence_number"]
                    joined.append(asyncio.create_task(read_stream(plain, made.id, number)))
                    model.go.release()
        assert [event["sequence_number"] for event in first] == list(range(len(first)))
        assert first[-1]["type"] == "response.completed"
        texts = [one["content"][0]["text"] for one in first[-1]["response"]["output"] if one["type"] == "message"]
        assert texts == ["First I note it.", "lost words", "Then I answer."]
        for number, task in enumerate(joined):
            assert await task == first[number + 1 :]
        for number in range(-1, len(first)):
            assert await read_stream(plain, made.id, number) == first[number + 1 :]
    async with serve_model(PiecesModel(), store=log) as (plain, client):
        assert await read_stream(plain, made.id) == first, "also from the log alone"
        assert (await plain.json("GET", f"/v1/responses/{made.id}")) == first[-1]["response"]


async def test_previous_response_id_continues_the_session_of_its_last_response_and_forks_an_older_one() -> None:
    async with serve_turns("one", "two", "three") as (plain, client):
        first = await ask(client, "a")
        second = await ask(client, "b", previous_response_id=first.id)
        assert get_session(second) == get_session(first) and len(plain.model.requests[1].messages) == 3
        other = await ask(client, "c", previous_response_id=first.id)
        assert get_session(other) != get_session(first) and len(plain.model.requests[2].messages) == 3
        for response, text in ((first, "one"), (second, "two"), (other, "three")):
            assert (await client.responses.retrieve(response.id)).output_text == text


async def test_two_requests_that_continue_one_response_at_once_get_a_session_each() -> None:
    async with serve_turns("one", "two", "three") as (_, client):
        first = await ask(client)
        both = await asyncio.gather(*(ask(client, text, previous_response_id=first.id) for text in "bc"))
        assert len({get_session(one) for one in both}) == 2


async def test_a_client_answers_calls_with_previous_response_id_and_sends_no_history() -> None:
    async with serve_turns(*TRIP, "Somewhere else.") as (plain, client):
        first = await ask(client, "where?", tools=LOCATE)
        assert first.status == "completed" and [item.type for item in first.output] == ["message", "function_call"]
        options: Any = {"tools": LOCATE, "previous_response_id": first.id}
        with pytest.raises(openai.ConflictError, match="waits for the client's results"):
            await ask(client, "well?", **options)
        last = await ask(client, answer(first), **options)
        assert last.output_text == "It is here." and get_session(last) == get_session(first)
        again = await ask(client, answer(first), **options)
        assert again == last, "a repeated request gets the same response"
        other = await ask(client, answer(first, "there"), **options)
        assert other.output_text == "Somewhere else." and get_session(other) != get_session(first)
        results = [one.text for one in plain.model.requests[-1].messages if isinstance(one, ResultMessage)]
        assert results[-1] == "there"
        for response in (first, last, other):
            assert await client.responses.retrieve(response.id) == response
            events = await read_stream(plain, response.id)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_a_background_response_waits_for_an_approval_and_shows_it() -> None:
    async with serve_turns(call("drop", id="d1", table="t"), "dropped") as (plain, client):
        made = await ask(client, background=True)
        await plain.wait_for(get_session(made), "approval_requested")
        waiting: Any = await client.responses.retrieve(made.id)
        assert waiting.status == "in_progress"
        assert waiting.model_extra["treadle"]["events"][-1]["type"] == "approval_requested"
        with pytest.raises(openai.BadRequestError, match="in progress"):
            await ask(client, previous_response_id=made.id)
        await plain.answer_approval()
        ended = await wait_for_status(client, made.id)
        assert ended.status == "completed" and ended.output_text == "dropped"


async def test_a_background_response_is_cancelled_with_its_run() -> None:
    model = PiecesModel(Reply("never ends"), Reply("more"))
    model.go = asyncio.Semaphore(2)
    async with serve_model(model) as (plain, client):
        made = await ask(client, background=True)
        async with plain.stream(f"/v1/responses/{made.id}?stream=true") as events:
            seen = await read_until(events, type="response.output_text.delta", delta="er ")
            ended = await client.responses.cancel(made.id)
            seen += [event.data async for event in events if event.data is not None]
        assert ended.status == "cancelled" and ended.output_text == "never "
        assert seen[-1]["response"]["status"] == "cancelled" and await read_stream(plain, made.id) == seen
        state = await plain.json("GET", f"/v1/sessions/{get_session(made)}")
        assert state["status"] not in ("running", "waiting")
        assert await client.responses.cancel(made.id) == ended
        model.go = asyncio.Semaphore(1000)
        assert (await ask(client, previous_response_id=made.id)).output_text == "more"


async def test_a_server_that_stops_says_so_and_the_response_goes_on_at_the_next_start() -> None:
    model, log = PiecesModel(Reply("a long answer")), InMemoryLog()
    model.go = asyncio.Semaphore(1)
    async with serve_model(model, store=log) as (plain, _):
        async with plain.stream("/v1/responses", {"model": AGENT, "input": "hi", "stream": True}) as events:
            seen = await read_until(events, type="response.output_text.delta")
            plain.app.state.service.drain()
            last = [event.data async for event in events if event.data is not None][-1]
        assert last["error"]["type"] == "shutting_down"
    async with serve_model(PiecesModel(Reply("another answer")), store=log) as (plain, client):
        ended = await wait_for_status(client, seen[0]["response"]["id"])
        assert ended.status == "completed" and ended.output_text == "another answer"


async def test_a_response_that_was_not_stored_leaves_only_the_agents_session() -> None:
    log = InMemoryLog()
    async with serve_turns("one", store=log) as (plain, client):
        made = await ask(client, store=False)
        assert made.store is False and made.output_text == "one"
        await plain.problem("GET", f"/v1/responses/{made.id}", status=404)
        facts = await log.read(get_session(made))
        assert not [fact for fact in facts if isinstance(fact, Custom)]


async def test_what_an_agent_cannot_do_with_stored_responses_is_refused_with_its_field() -> None:
    async with serve_turns("one", "two") as (plain, client):
        agents, bare = await ask(client), await ask(client, model="scripted")
        conversation = await client.conversations.create()
        for param, options in (
            ("conversation", {"conversation": conversation.id}),
            ("session_id", {"previous_response_id": agents.id, "session_id": "0" * 32}),
            ("previous_response_id", {"previous_response_id": agents.id, "model": "scripted"}),
        ):
            body = {"model": AGENT, "input": "hi", **options}
            assert (await plain.problem("POST", "/v1/responses", body))["param"] == param
        assert bare.output_text == "two"


async def test_an_item_of_an_agents_response_can_be_referred_to() -> None:
    async with serve_turns("one", "two") as (plain, client):
        made = await ask(client)
        await ask(client, [{"type": "item_reference", "id": made.output[0].id}, {"role": "user", "content": "more"}])
        assert [getattr(one, "text", "") for one in plain.model.requests[1].messages][-2:] == ["one", ""]


async def test_a_narrow_token_does_not_see_the_responses_of_a_wider_session() -> None:
    narrow = create_token("narrow", grant=Grant(tier="read-only"))
    async with serve_turns("one", tokens=(OWNER, narrow)) as (plain, client):
        made = await ask(client)
        async with Client(plain.base, narrow.value) as other:
            await other.problem("GET", f"/v1/responses/{made.id}", status=403)
            body = {"model": AGENT, "input": "hi", "previous_response_id": made.id}
            await other.problem("POST", "/v1/responses", body, 403)


async def test_a_background_run_of_an_agent_survives_a_kill_and_its_stream_goes_on(tmp_path: Path) -> None:
    spec = {"model": "steps-2-tok-30-delay-25ms", "side": str(tmp_path / "side"), "store": str(tmp_path / "log.db")}
    with fake_model() as port, start_forker() as forker:
        async with Client(forker.start(**spec, port=port)) as client:
            body = {"model": AGENT, "input": "go", "background": True, "stream": True}
            async with client.stream("/v1/responses", body) as events:
                seen = await read_until(events, type="treadle.activity")
                seen += await read_until(events, type="response.output_text.delta")
                forker.kill()
        response_id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        async with Client(forker.start(**spec, port=port)) as client:
            rest = await read_stream(client, response_id, last)
            numbers = [event["sequence_number"] for event in rest]
            assert numbers == sorted(set(numbers)) and numbers[0] > NUMBER_GAP > last
            ended = await client.json("GET", f"/v1/responses/{response_id}")
            assert ended["status"] == "completed" and rest[-1]["response"] == ended
            again = await read_stream(client, response_id)
        known = [event["sequence_number"] for event in again if event["sequence_number"] <= last]
        assert again[len(known) :] == rest and seen[: len(known)] == again[: len(known)]
        forker.kill()
        async with Client(forker.start(**spec, port=port)) as client:
            assert await read_stream(client, response_id) == again
        added = [json.loads(line) for line in (tmp_path / "side").read_text().split()]
        assert len(added) == len(set(added)), "no call ran twice"
