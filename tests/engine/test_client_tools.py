"""Tools that the client runs: the run waits for their results like for a person, over restarts."""

import asyncio
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.strict import StrictModel
from treadle import Agent, Limits, Runtime, tool
from treadle.engine.fold import fold
from treadle.errors import AlreadyAnswered, Expired, NotFound
from treadle.events import (
    CallFinished,
    CallStarted,
    MessageReceived,
    RunFinished,
    RunStarted,
    SessionConfigured,
    TurnStarted,
)
from treadle.messages import Call, ImagePart, Message, ModelMessage, ResultMessage, TextPart, ToolSpec, UserMessage
from treadle.testing import ScriptedModel, call

store = kit.either_store
LOCATE = ToolSpec("locate", "Find a place.", {"type": "object", "properties": {"place": {"type": "string"}}})


@tool
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


def build_agent(*script: Any, **options: Any) -> Agent:
    return Agent(StrictModel(ScriptedModel(*script)), tools=[note], **options)


async def read_results(session: Any) -> list[tuple[str, str]]:
    return [(fact.call_id, fact.status) for fact in kit.select_events(await session.facts(), CallFinished)]


async def test_calls_run_in_their_order_and_the_run_waits_for_the_client(store: kit.Store) -> None:
    reply = [call("note", id="n1", text="a"), call("locate", id="c1"), call("locate", id="c2")]
    agent = build_agent([*reply, call("note", id="n2", text="b"), call("locate", id="c3")], "done")
    async with agent.session(store.open()) as session:
        await session.configure(client_tools=[LOCATE])
        async with session.run("go") as run:
            assert await run.wait() is None
        assert [one.call_id for one in run.pending] == ["c1", "c2"]
        assert await read_results(session) == [("n1", "ok")], "what follows the client's calls has not run"
        assert (await session.log.get_info(session.id)).status == "waiting"
        await session.finish_call("c2", "south")
        await session.finish_call("c1", "not found", ok=False)
        async with session.resume() as run:
            assert await run.wait() is None
        assert [one.call_id for one in run.pending] == ["c3"]
        await session.finish_call("c3", "", parts=[ImagePart("aGk=")])
        assert (await kit.wait_for(session, RunFinished)).answer == "done"
        assert await read_results(session) == [("n1", "ok"), ("c2", "ok"), ("c1", "error"), ("n2", "ok"), ("c3", "ok")]
        assert agent.model.violations == []  # type: ignore[union-attr]


async def test_a_waiting_run_survives_a_restart_and_takes_its_result_there(store: kit.Store) -> None:
    async with build_agent(call("locate", id="c1")).session(store.open()) as session:
        await session.configure(client_tools=[LOCATE])
        assert await kit.run_message(session, "go") is None
        session_id = session.id
    again = build_agent("done")
    async with Runtime(store.open(), [again]) as runtime:
        session = await runtime.open(session_id)
        assert [one.call_id for one in (await session.state()).client_calls] == ["c1"], "nothing was closed"
        await session.finish_call("c1", "here")
        assert (await kit.wait_for(session, RunFinished)).answer == "done"
    [request] = again.model.requests  # type: ignore[union-attr]
    assert request.messages[-1] == ResultMessage("c1", "locate", "here")


async def test_a_repeated_result_changes_nothing_and_another_one_is_refused() -> None:
    async with build_agent(call("locate", id="c1"), "done").session() as session:
        await session.configure(client_tools=[LOCATE])
        await kit.run_message(session, "go")
        first, second = await asyncio.gather(session.finish_call("c1", "here"), session.finish_call("c1", "here"))
        assert first == second
        await kit.wait_for(session, RunFinished)
        assert await session.finish_call("c1", "here") == first
        with pytest.raises(AlreadyAnswered, match="another result"):
            await session.finish_call("c1", "there")
        with pytest.raises(NotFound):
            await session.finish_call("nope", "here")
        assert await read_results(session) == [("c1", "ok")]


async def test_a_client_that_never_comes_back_holds_no_run_for_ever(store: kit.Store) -> None:
    clock = store.use_stepping_clock()
    agent = build_agent(call("locate", id="c1"), "went on", approval_ttl=60.0, clock=clock)
    async with Runtime(store.open(), [agent]) as runtime, runtime.session() as session:
        await session.configure(client_tools=[LOCATE])
        assert await kit.run_message(session, "go") is None
        clock.step(61.0)
        with pytest.raises(Expired):
            await session.finish_call("c1", "here")
        assert (await kit.wait_for(session, RunFinished)).answer == "went on"
        assert await read_results(session) == [("c1", "timed_out")]


async def test_cancelling_closes_the_clients_calls_as_interrupted() -> None:
    async with build_agent([call("locate", id="c1"), call("note", id="n1", text="a")]).session() as session:
        await session.configure(client_tools=[LOCATE])
        await kit.run_message(session, "go")
        ending = await session.cancel()
        assert ending is not None and ending.reason == "cancelled"
        assert await read_results(session) == [("c1", "interrupted"), ("n1", "cancelled")]
        with pytest.raises(AlreadyAnswered, match="interrupted"):
            await session.finish_call("c1", "here")


async def test_results_of_the_client_are_cut_and_redacted_like_any_output() -> None:
    agent = build_agent(call("locate", id="c1"), "done", secrets=["tell-nobody-1234"])
    async with agent.session() as session:
        await session.configure(client_tools=[LOCATE])
        await kit.run_message(session, "go")
        fact = await session.finish_call("c1", "tell-nobody-1234 \x1b[31m" + "x" * 40_000)
        assert "tell-nobody" not in fact.output and "\x1b" not in fact.output
        assert fact.truncation is not None and len(fact.output) < 40_000
        assert len((await session.artifact(fact.truncation.artifact)).data) > 40_000


async def test_the_limits_and_the_form_of_arguments_count_for_the_clients_calls_too() -> None:
    reply = [Call("bad", "locate", '["x"]'), call("locate", id="c1"), call("locate", id="c2")]
    async with build_agent(reply, "wrapped up", limits=Limits(calls=1)).session() as session:
        await session.configure(client_tools=[LOCATE])
        await kit.run_message(session, "go")
        await session.finish_call("c1", "here")
        assert (await kit.wait_for(session, RunFinished)).reason == "call_limit"
        assert await read_results(session) == [("bad", "error"), ("c1", "ok"), ("c2", "refused")]


async def test_the_time_that_the_client_takes_is_not_the_runs(store: kit.Store) -> None:
    clock = store.use_stepping_clock()
    agent = build_agent(call("locate", id="c1"), "done", limits=Limits(seconds=100), clock=clock)
    async with agent.session(store.open()) as session:
        await session.configure(client_tools=[LOCATE])
        await kit.run_message(session, "go")
        clock.step(1000.0)
        await session.finish_call("c1", "here")
        assert (await kit.wait_for(session, RunFinished)).reason == "answered"


async def test_an_agents_tool_wins_over_the_clients_tool_of_the_same_name() -> None:
    async with build_agent(call("note", id="n1", text="a"), "done").session() as session:
        await session.configure(client_tools=[ToolSpec("note", "", {"type": "object"})])
        assert (await kit.run_to_end(session, "go")).answer == "done"
        assert await read_results(session) == [("n1", "ok")]


async def test_tools_that_the_client_changes_between_results_count_at_once() -> None:
    agent = build_agent(call("locate", id="c1"), call("measure", id="c2"), "done")
    async with agent.session() as session:
        await session.configure(client_tools=[LOCATE])
        await kit.run_message(session, "go")
        await session.configure(client_tools=[ToolSpec("measure", "", {"type": "object"})])
        await session.finish_call("c1", "here")
        await kit.wait_for(session, CallStarted, lambda fact: fact.call_id == "c2")
        await session.finish_call("c2", "7")
        assert (await kit.wait_for(session, RunFinished)).answer == "done"


# ── the conversation that a client had before ────────────────────────────────────────────────────────────────

HISTORY: tuple[Message, ...] = (
    UserMessage((TextPart("I am Ann"),)),
    ModelMessage("let me look", (Call("c1", "look"), Call("c2", "look")), opaque='{"kept":1}', model="scripted"),
    ResultMessage("c2", "look", "blue"),
    ResultMessage("c9", "look", "nobody asked"),
    ModelMessage("Hello Ann"),
)


async def test_the_history_of_a_client_is_shown_as_messages_and_every_call_has_its_result() -> None:
    agent = build_agent(call("note", id="c1", text="a"), "Ann")
    async with agent.session() as session:
        await session.post("Who am I?", history=HISTORY)
        await kit.wait_for(session, RunFinished)
        request = agent.model.requests[0]  # type: ignore[union-attr]
        assert list(request.messages) == [
            *HISTORY[:2],
            ResultMessage("c1", "look", "(no result is known)", ok=False),
            ResultMessage("c2", "look", "blue"),
            HISTORY[-1],
            UserMessage((TextPart("Who am I?"),)),
        ]
        assert agent.model.violations == [], "the new call has an id of its own"  # type: ignore[union-attr]
        assert [hit.session_id for hit in await session.log.search("ann blue")] == [session.id]


async def test_a_summary_can_replace_the_history_of_a_client() -> None:
    history = [*HISTORY, *[UserMessage((TextPart(f"{number} {'long ' * 300}"),)) for number in range(8)]]
    model = StrictModel(ScriptedModel("- Ann was greeted", "You are Ann", window=3000))
    agent = Agent(model)
    async with agent.session() as session:
        await session.post("Who am I?", history=history)
        assert (await kit.wait_for(session, RunFinished)).answer == "You are Ann"
        first, last = model.requests
        assert "User: I am Ann" in first.messages[0].parts[0].text
        assert len(last.messages) == 2 and "Ann was greeted" in last.messages[0].parts[0].text
        assert last.messages[1] == UserMessage((TextPart("Who am I?"),))


def test_only_the_first_message_of_a_session_brings_a_history() -> None:
    facts: list[Any] = []
    for number in (1, 2):
        facts += build_message_facts(number, HISTORY[:1])
    assert [type(entry).__name__ for entry in fold(facts).entries].count("EarlierMessages") == 1


def build_message_facts(number: int, history: tuple[Message, ...]) -> list[Any]:
    received = MessageReceived(id=f"m{number}", parts=(TextPart("hi"),), history=history, seq=number * 10)
    started = RunStarted(run_id=f"r{number}", limits=Limits(), seq=number * 10 + 1)
    return [received, started, TurnStarted(turn=number, messages=(f"m{number}",), seq=number * 10 + 2)]


def test_a_configuration_without_client_tools_keeps_them() -> None:
    facts: Any = [SessionConfigured(client_tools=(LOCATE,), seq=1), SessionConfigured(model="x", seq=2)]
    configured = fold(facts).configured
    assert configured is not None and configured.client_tools == (LOCATE,)
