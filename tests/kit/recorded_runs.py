"""Sessions of every kind, run on a scripted model and recorded as the events of a watcher, to test dialects on."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from msgspec import Struct

from tests.kit.sessions import PATIENCE, HeldTool, Tables, build_agent, finish_run, note, run_message, wait_for
from treadle import Agent, Answer, AskUser, Limits, Runtime, Session, later
from treadle.dialects.base import Dialect, encode_frame
from treadle.errors import ModelError
from treadle.events import ApprovalRequested, CallFinished, CallStarted, Delta, Event, InputRequested, RunFinished
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Reply, Usage
from treadle.testing import call, say

Action = Callable[[Session], Awaitable[Any]]
Scenario = Callable[[], Awaitable[list[Event]]]
SCENARIOS: list[Scenario] = []


def encode(frames: Iterable[Struct]) -> list[Any]:
    """Return frames as a client decodes them."""
    return [json.loads(encode_frame(frame)) for frame in frames]


def translate(dialect: Dialect, events: Iterable[Event]) -> list[Any]:
    """Return what a client decodes when these events are sent in a dialect."""
    return encode(frame for event in events for frame in dialect.feed(event))


async def record(agent: Agent, act: Action) -> list[Event]:
    """Return the events of a watcher from the beginning, up to the last fact when all is done."""
    async with Runtime(":memory:", [agent]) as runtime, runtime.session(new=True) as session:
        events: list[Event] = []
        watch = session.watch()

        async def follow() -> None:
            async for event in watch:
                events.append(event)

        following = asyncio.create_task(follow())
        async with asyncio.timeout(PATIENCE):
            await act(session)
            watch.stop_at((await session.facts())[-1].seq)
            await following
        watch.close()
        return events


def add_scenario(name: str, act: Action | str, *script: Any, **options: Any) -> Scenario:
    """Add a scenario: a message or other actions, on a script and options of the agent."""

    async def send(session: Session) -> None:
        await run_message(session, act)

    async def scenario() -> list[Event]:
        return await record(build_agent(*script, **options)[0], send if isinstance(act, str) else act)

    scenario.__name__ = name
    SCENARIOS.append(scenario)
    return scenario


def _build_approval(answer: Answer) -> Action:
    async def act(session: Session) -> None:
        await session.send("drop users")
        question = await wait_for(session, ApprovalRequested)
        await session.approve(question.call_id, answer)
        await wait_for(session, RunFinished)

    return act


async def _answer(session: Session) -> None:
    await session.send("paint it")
    question = await wait_for(session, InputRequested)
    await session.answer(question.call_id, "red")
    await wait_for(session, RunFinished)


async def _regenerate(session: Session) -> None:
    await run_message(session, "hi")
    await finish_run(session.regenerate())


NOTE, DROP_USERS = call("note", text="x"), call("drop", table="users")
NOTES = [call("note", text=str(number)) for number in range(3)]
GATE: dict[str, Any] = {"tools": Tables().tools, "gate": later, "approval_ttl": 300}
OVERLOADED = ModelError("overloaded", kind="overloaded", retryable=True, retry_after=0.001, partial="Hel")

a_plain_answer = add_scenario("a_plain_answer", "hi", say("Hello\nthere", usage=Usage(7, 3)))
two_turns_with_calls = add_scenario(
    "two_turns_with_calls",
    "note this",
    ["let me see", call("note", text="é"), call("note", text="b")],
    "noted",
    tools=[note],
)
an_approved_call = add_scenario("an_approved_call", _build_approval(Answer()), DROP_USERS, "as you say", **GATE)
a_denied_call = add_scenario(
    "a_denied_call", _build_approval(Answer("deny", comment="not today")), DROP_USERS, "as you say", **GATE
)
a_call_denied_by_policy = add_scenario(
    "a_call_denied_by_policy", "drop users", DROP_USERS, "well then", tools=Tables().tools
)
bad_calls = add_scenario("bad_calls", "fly", [call("fly"), call("note", txt=1)], "sorry", tools=[note])
an_answered_question = add_scenario(
    "an_answered_question", _answer, call("ask_user", question="Which?"), "the red one", tools=[AskUser()], gate=later
)
a_turn_limit = add_scenario(
    "a_turn_limit", "go on for ever", NOTE, "so far so good", tools=[note], limits=Limits(turns=1)
)
a_call_limit = add_scenario("a_call_limit", "note three", NOTES, "that is all", tools=[note], limits=Limits(calls=2))
a_token_limit = add_scenario(
    "a_token_limit",
    "tell me a story",
    Reply("half a sent", finish="length", usage=Usage(5, 9)),
    "in short: half",
    limits=Limits(tokens=9),
)
a_doom_loop = add_scenario("a_doom_loop", "go round", *[NOTE] * 5, "I was going round", *["over"] * 3, tools=[note])
a_failure_and_a_retry = add_scenario("a_failure_and_a_retry", "hi", OVERLOADED, "Hello")
a_failure = add_scenario("a_failure", "hi", ModelError("no such key", kind="auth"))
being_stuck = add_scenario("being_stuck", "square the circle", "<stuck>I cannot</stuck>")
yielding = add_scenario("yielding", "play", "<yield>your turn</yield>")
an_answer_with_confidence = add_scenario(
    "an_answer_with_confidence", "the answer?", '<answer confidence="0.9">42</answer>'
)
an_empty_reply = add_scenario("an_empty_reply", "hello?", "", "here I am")
a_regenerated_answer = add_scenario("a_regenerated_answer", _regenerate, "first", "second")


async def a_cancelled_call() -> list[Event]:
    async def act(session: Session) -> None:
        await session.send("wait")
        await wait_for(session, CallStarted)
        await session.cancel(by="operator")

    return await record(build_agent(call("wait"), "never", tools=[HeldTool().tool])[0], act)


async def a_crash_in_a_call() -> list[Event]:
    """Run a call, and let another process resume the session from the facts that were recorded by then."""
    held, copy = HeldTool(), InMemoryLog()
    async with held.open_session(InMemoryLog()) as session:
        await copy.create(session.id, await session.facts())
    again, _ = build_agent("it may have run", tools=[held.tool])
    async with again.session(copy, id=session.id) as session:
        await finish_run(session.resume())
        facts: list[Event] = [*await session.facts()]
    await copy.close()
    return facts


SCENARIOS += [a_cancelled_call, a_crash_in_a_call]
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)


def select_facts(events: list[Event]) -> list[Event]:
    """The same session as it is read from the log later: without deltas."""
    return [event for event in events if not isinstance(event, Delta)]


def list_finished_ids(events: list[Event]) -> list[str]:
    return [event.call_id for event in events if isinstance(event, CallFinished)]
