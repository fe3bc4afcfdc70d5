"""A crash after any fact: the session ends as it should, and no effect happens twice.

One session with facts of every kind is recorded. Its log is cut after each fact, each prefix is written to a store of
its own, and a new agent continues from there. Its model reacts only to the request.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.crash.notes import Notes, open_reporting_log
from tests.kit import sessions as kit
from tests.kit.fake_model import FunctionModel
from tests.kit.simulation import split_runs
from tests.kit.strict import StrictModel
from treadle import Agent, Answer, AskUser, Runtime, Session, ToolContext, later, tool
from treadle.errors import ModelError
from treadle.events import (
    CLIENT_SANDBOX,
    AnyFact,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    ContextCompacted,
    Limits,
    ModelReplied,
    RunFinished,
    RunRequested,
    SignalDetected,
    TurnStarted,
)
from treadle.log.base import Log
from treadle.log.in_memory import InMemoryLog
from treadle.log.sqlite import SqliteLog
from treadle.messages import ModelMessage, Reply, Request, ResultMessage, ToolSpec, UserMessage
from treadle.testing import CrashPoint, ScriptedModel, SteppingClock, call, crash_points
from treadle.testing.crash_points import cut

LIMITS = Limits(turns=4, calls=9)
LOCATE = ToolSpec("locate", "", {"type": "object"})


class EffectTools:
    """The tools of one process, and their effects by the key of the call."""

    def __init__(self, *, held: bool = False) -> None:
        self.effects: list[str] = []
        self.looks: list[str] = []

        @tool(safety="safe")
        async def look(page: int, context: ToolContext) -> str:
            self.looks.append(context.key)
            return f"page {page}"

        @tool
        async def write(text: str, context: ToolContext) -> str:
            self.effects.append(context.key)
            return f"wrote {text}"

        @tool(safety="destructive")
        async def pay(amount: int, context: ToolContext) -> str:
            self.effects.append(context.key)
            return f"paid {amount}"

        @tool(on_error="retry")
        async def broken(context: ToolContext) -> str:
            self.effects.append(f"{context.key} attempt {context.attempt}")
            raise OSError("it broke")

        @tool
        async def hold(context: ToolContext) -> str:
            self.effects.append(context.key)
            if held:
                await asyncio.Event().wait()
            return "held"

        self.all = [look, write, pay, broken, hold, AskUser()]


def reply_once(request: Request, number: int) -> Reply:
    """Make calls once after each user message, then answer."""
    if isinstance(request.messages[-1], ResultMessage) or request.tool_choice == "none" or not request.tools:
        return Reply(text="done now")
    lines = (call("write", text=f"after the crash {number}"), call("locate"), call("look", page=number))
    return Reply(calls=lines)


def reply_with_calls(request: Request, number: int) -> Reply:
    """Make calls as long as they are allowed."""
    if request.tool_choice == "none" or not request.tools:
        return Reply(text="stopped")
    lines = (call("pay", amount=number), call("write", text=str(number)), call("look", page=number))
    return Reply(text="more", calls=lines)


either_reply = pytest.mark.parametrize("reply", [reply_once, reply_with_calls])


@asynccontextmanager
async def open_session(
    log: Log, model: Any, tools: EffectTools, session_id: str = ""
) -> AsyncIterator[tuple[Session, StrictModel]]:
    strict = StrictModel(model)
    agent = Agent(strict, tools=tools.all, limits=LIMITS, gate=later, clock=SteppingClock())
    options: Any = {"id": session_id} if session_id else {}
    async with Runtime(log, [agent], recover=False) as runtime, runtime.session(**options) as session:
        yield session, strict


async def record_full_session(log: Log, tools: EffectTools) -> list[CrashPoint]:
    """Run a session with facts of every kind, and return all its crash points."""
    first = [call("look", id="l1", page=1), call("look", id="l2", page=2)]
    first += [call("write", id="w1", text="a"), call("nope", id="x")]
    second = [call("pay", id="p1", amount=1), call("pay", id="p2", amount=2)]
    second += [call("ask_user", id="q", question="Which?"), call("broken", id="b"), call("look", id="l3", page=3)]
    model = ScriptedModel(
        ModelError("busy", kind="overloaded", retryable=True),
        first,
        second,
        [call("look", id="l5", page=5), call("locate", id="k1"), call("locate", id="k2")],
        "first answer",
        [call("hold", id="h"), call("write", id="w2", text="b")],
        [call("write", id="w3", text="c"), call("look", id="l4", page=4)],
        "all done",
    )
    async with open_session(log, model, tools) as (session, strict):
        await session.configure(client_tools=[LOCATE])
        assert await kit.run_message(session, "begin") is None
        assert [question.call_id for question in await kit.read_questions(session)] == ["p1", "p2", "q"]
        await session.approve("p1", Answer(by="ada"))
        await session.deny("p2", "too much")
        await session.send("and be quick")
        await session.answer("q", "the blue one")
        await kit.wait_for(session, CallStarted, lambda fact: fact.call_id == "k2")
        for call_id in ("k2", "k1"):
            await session.finish_call(call_id, "here")
        ending = await kit.wait_for(session, RunFinished)
        assert ending.answer == "first answer"
        summary = ContextCompacted(kind="summary", through=ending.seq - 2, summary="Pages were read and bills paid.")
        await log.post(session.id, [summary])
        await session.note("acme.audit", {"ok": True})
        await session.send("more")
        await kit.wait_for(session, CallStarted, lambda fact: fact.call_id == "h")
        assert await session.cancel(by="ada") is not None
        assert (await kit.finish_run(session.continue_())).answer == "all done"
        assert strict.violations == []
        points = await crash_points(session)
        kit.check_settled(points[-1].facts)
        return points


async def resume_session(log: Log, point: CrashPoint, model: Any) -> tuple[list[AnyFact], EffectTools]:
    """Write a prefix into a log, resume it like a new process, and answer every question."""
    tools = EffectTools()
    await point.plant(log)
    async with open_session(log, model, tools, point.session_id) as (session, strict):
        for _ in range(40):
            await kit.resume_run(session)
            open_questions = await kit.read_questions(session)
            client_calls = (await session.state()).client_calls
            if not open_questions and not client_calls:
                break
            for started in client_calls:
                await session.finish_call(started.call_id, "here")
            for number, question in enumerate(open_questions):
                if isinstance(question, ApprovalRequested):
                    await session.approve(question.call_id, Answer("deny" if number % 2 else "allow"))
                else:
                    await session.answer(question.call_id, "the red one")
        facts = await session.facts()
        assert strict.violations == []
        outcome = await kit.run_message(session, "are you still there?")
        while outcome is None:
            for question in await kit.read_questions(session):
                await session.deny(question.call_id)
            for started in (await session.state()).client_calls:
                await session.finish_call(started.call_id, "here")
            outcome = await kit.resume_run(session) or await read_ending(session)
        assert strict.violations == [], "the request for the next message is bad"
        kit.check_settled(await session.facts())
    return facts, tools


async def read_ending(session: Session) -> RunFinished | None:
    """Read how the last run ended: the end may be stored before anybody follows the run again."""
    state = await session.state()
    return state.last if state.run is None and not state.queue else None


def check_after_crash(point: CrashPoint, facts: Sequence[AnyFact], tools: EffectTools) -> None:
    """Check everything that must be true after any crash."""
    assert facts[: len(point.facts)] == list(point.facts), "recorded facts must not change"
    kit.check_settled(facts)
    before = {f"{point.session_id}:{fact.call_id}": fact for fact in kit.select_events(point.facts, CallStarted)}
    finished = {f"{point.session_id}:{fact.call_id}" for fact in kit.select_events(point.facts, CallFinished)}
    again = Counter(key.partition(" attempt ")[0] for key in tools.effects)
    assert not set(again) & set(before), "an effect that may have happened happened again"
    assert not {key for key, times in Counter(tools.effects).items() if times > 1}, "an effect happened twice"
    assert not set(tools.looks) & finished, "a finished call was run again"
    for run in split_runs(facts):
        started = {fact.call_id for fact in kit.select_events(run, CallStarted)}
        assert len(started) <= LIMITS.calls
        assert len([turn for turn in kit.select_events(run, TurnStarted) if turn.wrap_up is None]) <= LIMITS.turns
        [ending] = kit.select_events(run, RunFinished)
        assert ending.calls == len(started)
    results = {fact.call_id: fact for fact in kit.select_events(facts, CallFinished)}
    for fact in kit.select_events(point.facts, CallStarted):
        key = f"{point.session_id}:{fact.call_id}"
        if key not in finished:
            runs_on = fact.safety == "safe" or fact.sandbox == CLIENT_SANDBOX
            expected = {"ok"} if runs_on else {"interrupted", "cancelled"}
            assert results[fact.call_id].status in expected


async def test_the_recorded_session_has_facts_of_every_kind(tmp_path: Path) -> None:
    tools, log = EffectTools(held=True), SqliteLog(tmp_path / "whole.db")
    points = await record_full_session(log, tools)
    await log.close()
    facts = points[-1].facts
    assert len(points) == len(facts) > 50
    wanted = {"model_failed", "approval_requested", "approval_answered", "input_requested", "input_answered"}
    wanted |= {"context_compacted", "cancel_requested", "run_requested", "signal_detected", "custom"}
    assert wanted <= set(kit.list_kinds(facts))
    assert {fact.status for fact in kit.select_events(facts, CallFinished)} == {"ok", "error", "denied", "cancelled"}
    assert [fact.kind for fact in kit.select_events(facts, SignalDetected)] == ["tool_retry", "tool_retry"]
    assert [ending.reason for ending in kit.select_events(facts, RunFinished)] == ["answered", "cancelled", "answered"]
    assert kit.select_events(facts, RunRequested)[0].trigger == "continue"
    assert any(len(turn.messages) and turn.turn > 1 for turn in kit.select_events(facts, TurnStarted)), (
        "a message steered it"
    )
    sizes = Counter(len(reply.calls) for reply in kit.select_events(facts, ModelReplied))
    assert sizes == {4: 1, 5: 1, 3: 1, 2: 2, 0: 2}


@either_reply
async def test_after_a_crash_at_any_fact_the_session_ends_and_no_effect_happens_twice(notes: Notes, reply: Any) -> None:
    log = open_reporting_log(notes)
    points = await record_full_session(log, EffectTools(held=True))
    for point in points:
        await log.delete(point.session_id)
        try:
            facts, tools = await resume_session(log, point, FunctionModel(reply))
            check_after_crash(point, facts, tools)
        except BaseException as error:
            error.add_note(f"cut {point}")
            raise
    await log.close()


async def test_a_second_crash_after_resuming_is_survived(tmp_path: Path) -> None:
    points = await record_full_session(InMemoryLog(), EffectTools(held=True))
    tried = 0
    for point in points[::2]:
        facts, _ = await resume_session(InMemoryLog(), point, FunctionModel(reply_with_calls))
        for second in list(cut(facts))[len(point.facts) :: 2]:
            try:
                later_facts, tools = await resume_session(InMemoryLog(), second, FunctionModel(reply_once))
                check_after_crash(second, later_facts, tools)
            except BaseException as error:
                error.add_note(f"cut {point}, and again {second}")
                raise
            tried += 1
    assert tried > 300


async def test_resuming_a_finished_session_changes_nothing(tmp_path: Path) -> None:
    points = await record_full_session(InMemoryLog(), EffectTools(held=True))
    log, tools = InMemoryLog(), EffectTools()
    await points[-1].plant(log)
    async with open_session(log, FunctionModel(reply_once), tools, points[-1].session_id) as (session, _):
        assert await kit.resume_run(session) is None
        assert await session.facts() == list(points[-1].facts)
    assert tools.effects == tools.looks == []


def find_first_start(points: Sequence[CrashPoint], tool: str) -> CrashPoint:
    """Find the crash right after the first call of a tool started."""
    lasts = ((point, point.facts[-1]) for point in points)
    return next(point for point, last in lasts if isinstance(last, CallStarted) and last.tool == tool)


async def test_after_a_crash_the_model_reads_that_a_call_may_have_run(tmp_path: Path) -> None:
    points = await record_full_session(InMemoryLog(), EffectTools(held=True))
    point = find_first_start(points, "write")
    model, log = ScriptedModel("I will check"), InMemoryLog()
    await point.plant(log)
    async with open_session(log, model, EffectTools(), point.session_id) as (session, _):
        assert (await kit.finish_run(session.resume())).answer == "I will check"
        assert (await kit.run_to_end(session, "and?")).reason == "failed", "the script has no more lines"
    [shown] = [m for m in model.requests[0].messages if isinstance(m, ResultMessage) and m.call_id == "w1"]
    assert "may have run" in shown.text and not shown.ok
    assert isinstance(model.requests[0].messages[0], UserMessage)
    assert isinstance(model.requests[0].messages[1], ModelMessage)


async def test_a_safe_call_that_always_crashes_is_given_up() -> None:
    points = await record_full_session(InMemoryLog(), EffectTools(held=True))
    point = find_first_start(points, "look")
    facts = list(point.facts)
    for attempt in (2, 3):
        facts.append(replace(facts[-1], attempt=attempt, seq=len(facts) + 1))
    tools, log = EffectTools(), InMemoryLog()
    await CrashPoint(point.session_id, tuple(facts)).plant(log)
    async with open_session(log, FunctionModel(reply_once), tools, point.session_id) as (session, _):
        await kit.resume_run(session)
        done = {fact.call_id: fact.status for fact in kit.select_events(await session.facts(), CallFinished)}
    last = facts[-1]
    assert isinstance(last, CallStarted) and done[last.call_id] == "interrupted"
    assert f"{point.session_id}:{last.call_id}" not in tools.looks
