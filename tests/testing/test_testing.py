"""`treadle.testing`: the test doubles for users."""

import asyncio

import msgspec
import pytest

from tests.kit.sessions import PATIENCE, build_agent, list_user_texts, run_to_end, select_events
from treadle import Agent, CallFinished, ReasoningDelta, Runtime, TextDelta, tool
from treadle.errors import ModelError, NotFound
from treadle.events import ModelFailed, ModelReplied, SessionCreated
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Call, Reply, Request, TextPart, Usage, UserMessage
from treadle.models.base import Model
from treadle.testing import ScriptedModel, SteppingClock, call, crash_points, say
from treadle.testing.crash_points import cut
from treadle.testing.scripted_model import ScriptRanOut


@tool
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


def request(text: str = "hello") -> Request:
    return Request(system="", messages=[UserMessage((TextPart(text),))])


async def ask_model(model: Model, asked: Request | None = None) -> Reply:
    events = [event async for event in model.stream(asked or request())]
    assert isinstance(events[-1], Reply)
    return events[-1]


async def test_a_line_can_be_text_calls_a_reply_an_error_or_a_function() -> None:
    note_x = call("note", id="a", text="x")
    model = ScriptedModel(
        "text",
        note_x,
        ["both", note_x, call("note", text="y")],
        Reply(text="whole", finish="length"),
        lambda asked: f"you said {asked.messages[0].parts[0].text}",
        lambda asked: lambda again: "a function may give a function",
        ModelError("gone", kind="network"),
    )
    assert (await ask_model(model)).text == "text"
    assert (await ask_model(model)).calls == (Call("a", "note", '{"text":"x"}'),)
    both = await ask_model(model)
    assert (both.text, both.finish, [one.id for one in both.calls]) == ("both", "calls", ["a", ""])
    assert (await ask_model(model)).finish == "length"
    assert (await ask_model(model, request("hi"))).text == "you said hi"
    assert (await ask_model(model)).text == "a function may give a function"
    with pytest.raises(ModelError, match="gone"):
        await ask_model(model)
    assert len(model.requests) == 7 and isinstance(model, Model)


async def test_a_script_that_runs_out_raises() -> None:
    model = ScriptedModel("only one", name="short")
    await ask_model(model)
    with pytest.raises(ScriptRanOut, match="the script of short has no line for this request; add one"):
        await ask_model(model)
    agent, _ = build_agent(call("note", text="x"), tools=[note])
    async with agent.session() as session:
        outcome = await run_to_end(session)
        assert select_events(await session.facts(), ModelFailed)
    assert outcome.reason == "failed" and "ScriptRanOut" in outcome.error


async def test_a_scripted_model_streams_its_text_and_keeps_its_requests() -> None:
    model = ScriptedModel(say("one\ntwo", reasoning="hm"))
    events = [event async for event in model.stream(request("hello"))]
    assert [event.text for event in select_events(events, TextDelta)] == ["one\n", "two"]
    assert [event.text for event in select_events(events, ReasoningDelta)] == ["hm"]
    assert list_user_texts(model.requests[0]) == ["hello"]
    forgetful = ScriptedModel("x", keep=False)
    await ask_model(forgetful)
    assert forgetful.requests == []


async def test_a_scripted_reply_can_have_a_usage() -> None:
    usage = Usage(input_tokens=1, output_tokens=2, cost=0.5)
    agent, _ = build_agent(say("hi", usage=usage), "hi")
    async with agent.session() as session:
        assert (await run_to_end(session)).usage == usage
        assert (await run_to_end(session)).usage.output_tokens > 0, "a reply has a usage by default"


async def test_a_stepping_clock_moves_only_when_stepped_or_slept_on() -> None:
    clock = SteppingClock(1000.0)
    assert clock.now() == clock.now() == 1000.0
    clock.step(5)
    await asyncio.wait_for(clock.sleep(3600), PATIENCE)
    assert clock.now() == 4605.0 and clock.slept == [3600]


async def test_a_run_does_not_really_wait_on_a_stepping_clock() -> None:
    clock = SteppingClock()
    agent, _ = build_agent(ModelError("busy", retryable=True, retry_after=45), "ok", clock=clock)
    began = asyncio.get_running_loop().time()
    assert await agent.ask("go") == "ok"
    assert clock.slept == pytest.approx([45]) and asyncio.get_running_loop().time() - began < 30


async def test_crash_points_are_all_prefixes_and_can_be_resumed() -> None:
    agent, _ = build_agent(call("note", id="a", text="x"), "done", tools=[note])
    async with agent.session() as session:
        await run_to_end(session)
        points = await crash_points(session)
        facts = await session.facts()
    assert [len(point.facts) for point in points] == list(range(1, len(facts) + 1))
    assert str(points[2]) == "after 3 facts, the last a run_started"
    for point in points:
        again = Agent(ScriptedModel(*build_rest_of_script(point.facts)), tools=[note])
        log = InMemoryLog()
        assert await point.plant(log) == session.id
        async with Runtime(log, [again], recover=False) as runtime, runtime.session(id=session.id) as planted:
            assert await planted.facts() == list(point.facts)
            async with planted.resume() as run:
                await run.wait()
            assert len(select_events(await planted.facts(), CallFinished)) <= 1


def build_rest_of_script(facts: object) -> list[object]:
    replies = len(select_events(facts, ModelReplied))  # type: ignore[arg-type]
    return [call("note", id="a", text="x"), "done"][replies:]


async def test_a_crash_point_does_not_change_when_it_is_resumed() -> None:
    agent, _ = build_agent("one", "two")
    async with agent.session() as session:
        await run_to_end(session)
        point = (await crash_points(session))[-1]
        before = [msgspec.to_builtins(fact) for fact in point.facts]
        for _ in range(2):
            log = InMemoryLog()
            await point.plant(log)
            async with build_agent("again")[0].session(log, id=session.id) as planted:
                await run_to_end(planted)
        assert [msgspec.to_builtins(fact) for fact in point.facts] == before


def test_only_a_log_with_its_first_fact_can_be_cut() -> None:
    with pytest.raises(msgspec.ValidationError, match="starts with session_created"):
        list(cut([ModelReplied(text="x")]))
    assert len(list(cut([SessionCreated(session_id="s")]))) == 1


async def test_a_crash_point_is_not_planted_twice() -> None:
    log = InMemoryLog()
    [point] = cut([SessionCreated(session_id="s")])
    await point.plant(log)
    with pytest.raises(Exception, match="there is a session s already"):
        await point.plant(log)
    with pytest.raises(NotFound):
        await InMemoryLog().read("s")
