"""Sessions of every kind, run on a scripted model and recorded as the events of a watcher, to test dialects on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kit.sessions import PATIENCE, HeldTool, Tables, build_agent, finish_run, note, wait_for
from treadle import Agent, Answer, AskUser, Limits, Runtime, Session, later
from treadle.errors import ModelError
from treadle.events import (
    ApprovalRequested,
    CallFinished,
    CallStarted,
    Delta,
    Event,
    InputRequested,
    RunFinished,
    SessionCreated,
)
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Reply, Usage
from treadle.testing import call, say

Doing = Callable[[Session], Awaitable[Any]]
Scenario = Callable[[], Awaitable[list[Event]]]


async def watched(agent: Agent, doing: Doing) -> list[Event]:
    """What a watcher from the beginning sees, up to the last fact when all is done."""
    async with Runtime(":memory:", [agent]) as runtime, runtime.session(new=True) as session:
        seen: list[Event] = []
        watch = session.watch()

        async def look() -> None:
            async for event in watch:
                seen.append(event)

        looking = asyncio.create_task(look())
        async with asyncio.timeout(PATIENCE):
            await doing(session)
            watch.stop_at((await session.facts())[-1].seq)
            await looking
        watch.close()
        return seen


def sending(*texts: str) -> Doing:
    async def doing(session: Session) -> None:
        for text in texts:
            after = (await session.facts())[-1].seq
            await session.send(text)
            await wait_for(session, RunFinished, after=after)

    return doing


async def a_plain_answer() -> list[Event]:
    agent, _ = build_agent(say("Hello\nthere", usage=Usage(7, 3)))
    return await watched(agent, sending("hi"))


async def two_turns_with_calls() -> list[Event]:
    agent, _ = build_agent(["let me see", call("note", text="é"), call("note", text="b")], "noted", tools=[note])
    return await watched(agent, sending("note this"))


async def _asked(answer: Answer) -> list[Event]:
    agent, _ = build_agent(
        call("drop", table="users"), "as you say", tools=Tables().tools, gate=later, approval_ttl=300
    )

    async def doing(session: Session) -> None:
        await session.send("drop users")
        question = await wait_for(session, ApprovalRequested)
        await session.approve(question.call_id, answer)
        await wait_for(session, RunFinished)

    return await watched(agent, doing)


async def an_approved_call() -> list[Event]:
    return await _asked(Answer())


async def a_denied_call() -> list[Event]:
    return await _asked(Answer("deny", comment="not today"))


async def a_call_denied_by_policy() -> list[Event]:
    agent, _ = build_agent(call("drop", table="users"), "well then", tools=Tables().tools)
    return await watched(agent, sending("drop users"))


async def an_unknown_tool_and_bad_arguments() -> list[Event]:
    agent, _ = build_agent([call("fly"), call("note", txt=1)], "sorry", tools=[note])
    return await watched(agent, sending("fly"))


async def an_answered_question() -> list[Event]:
    agent, _ = build_agent(call("ask_user", question="Which one?"), "the red one", tools=[AskUser()], gate=later)

    async def doing(session: Session) -> None:
        await session.send("paint it")
        question = await wait_for(session, InputRequested)
        await session.answer(question.call_id, "red")
        await wait_for(session, RunFinished)

    return await watched(agent, doing)


async def a_turn_limit() -> list[Event]:
    agent, _ = build_agent(call("note", text="x"), "so far so good", tools=[note], limits=Limits(turns=1))
    return await watched(agent, sending("go on for ever"))


async def a_call_limit() -> list[Event]:
    calls = [call("note", text=str(number)) for number in range(3)]
    agent, _ = build_agent(calls, "that is all", tools=[note], limits=Limits(calls=2))
    return await watched(agent, sending("note three"))


async def a_token_limit() -> list[Event]:
    cut = Reply("half a sent", finish="length", usage=Usage(5, 9))
    agent, _ = build_agent(cut, "in short: half", limits=Limits(tokens=9))
    return await watched(agent, sending("tell me a story"))


async def a_doom_loop() -> list[Event]:
    again = [call("note", text="x")] * 5
    agent, _ = build_agent(*again, "I was going round", *(["over"] * 3), tools=[note])
    return await watched(agent, sending("go round"))


async def a_failure_and_a_retry() -> list[Event]:
    broken = ModelError("overloaded", kind="overloaded", retryable=True, retry_after=0.001, partial="Hel")
    agent, _ = build_agent(broken, "Hello")
    return await watched(agent, sending("hi"))


async def a_failure() -> list[Event]:
    agent, _ = build_agent(ModelError("no such key", kind="auth"))
    return await watched(agent, sending("hi"))


async def a_cancelled_call() -> list[Event]:
    held = HeldTool()
    agent, _ = build_agent(call("wait"), "never", tools=[held.tool])

    async def doing(session: Session) -> None:
        await session.send("wait")
        await wait_for(session, CallStarted)
        await session.cancel(by="operator")

    return await watched(agent, doing)


async def being_stuck() -> list[Event]:
    agent, _ = build_agent("<stuck>I cannot</stuck>")
    return await watched(agent, sending("square the circle"))


async def yielding() -> list[Event]:
    agent, _ = build_agent("<yield>your turn</yield>")
    return await watched(agent, sending("play"))


async def an_answer_with_confidence() -> list[Event]:
    agent, _ = build_agent('<answer confidence="0.9">42</answer>')
    return await watched(agent, sending("the answer?"))


async def an_empty_reply() -> list[Event]:
    agent, _ = build_agent("", "here I am")
    return await watched(agent, sending("hello?"))


async def a_regenerated_answer() -> list[Event]:
    agent, _ = build_agent("first", "second")

    async def doing(session: Session) -> None:
        await sending("hi")(session)
        await finish_run(session.regenerate())

    return await watched(agent, doing)


async def a_crash_in_a_call() -> list[Event]:
    """The process went away while a call ran: another one takes the session up."""
    held, log = HeldTool(), InMemoryLog()
    agent, _ = build_agent(call("wait"), tools=[held.tool])
    async with Runtime(log, [agent]) as runtime, runtime.session(new=True) as session:
        await session.send("wait")
        await wait_for(session, CallStarted)
        left = await session.facts()
    again, _ = build_agent("it may have run", tools=[held.tool])
    copy, first = InMemoryLog(), left[0]
    assert isinstance(first, SessionCreated)
    await copy.create(first.session_id, left)
    async with Runtime(copy, [again]) as runtime, runtime.session(id=first.session_id) as session:
        await finish_run(session.resume())
        facts: list[Event] = [*await session.facts()]
    await log.close()
    await copy.close()
    return facts


SCENARIOS = [
    a_plain_answer,
    two_turns_with_calls,
    an_approved_call,
    a_denied_call,
    a_call_denied_by_policy,
    an_unknown_tool_and_bad_arguments,
    an_answered_question,
    a_turn_limit,
    a_call_limit,
    a_token_limit,
    a_doom_loop,
    a_failure_and_a_retry,
    a_failure,
    a_cancelled_call,
    being_stuck,
    yielding,
    an_answer_with_confidence,
    an_empty_reply,
    a_regenerated_answer,
    a_crash_in_a_call,
]

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)


def stored(events: list[Event]) -> list[Event]:
    """The same session as it is read from the log later: without deltas."""
    return [event for event in events if not isinstance(event, Delta)]


def finished_ids(events: list[Event]) -> list[str]:
    return [event.call_id for event in events if isinstance(event, CallFinished)]
