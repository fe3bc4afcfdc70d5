"""Limits and wrap-ups: a run always ends with a reason, and can continue with a fresh budget."""

import asyncio
from typing import Any

import pytest

from tests.kit.fake_model import FakeModel
from tests.kit.sessions import (
    PATIENCE,
    Store,
    build_agent,
    check_settled,
    check_wrap_up,
    finish_run,
    list_user_texts,
    note,
    read_finished_calls,
    read_questions,
    resume_run,
    run_message,
    run_script,
    run_to_end,
    select_events,
    select_results,
)
from treadle import Agent, CallStarted, Limits, RunFinished, TextDelta, later, tool
from treadle.engine.steps import TURN_CEILING
from treadle.errors import BadInput, ModelError
from treadle.events import ModelFailed, TurnStarted
from treadle.messages import Reply, Request, Usage
from treadle.testing import ScriptedModel, call, say


@tool(safety="destructive")
def drop(table: str) -> str:
    """Drop a table."""
    return f"dropped {table}"


# --- limits of every kind


async def test_at_the_turn_limit_the_model_wraps_up_and_continue_has_a_fresh_budget(store: Store) -> None:
    agent, model = build_agent(
        call("note", text="1"),
        call("note", text="2"),
        "half done",
        call("note", text="3"),
        "all done",
        tools=[note],
        limits=Limits(turns=2),
    )
    async with agent.session(store.open()) as session:
        outcome = await run_to_end(session)
        check_wrap_up(model, outcome, "turn_limit", "all the turns")
        assert (outcome.turns, outcome.calls) == (2, 2)
        async with session.continue_() as run:
            await run.wait()
        facts = await session.facts()
    assert run.outcome is not None
    assert (run.outcome.reason, run.outcome.answer, run.outcome.turns) == ("answered", "all done", 2)
    assert "Go on where you left off." in list_user_texts(model.requests[3])[-1]
    assert [fact.wrap_up for fact in select_events(facts, TurnStarted)] == [None, None, "turn_limit", None, None]
    check_settled(facts)


async def test_an_answer_in_the_last_turn_needs_no_wrap_up() -> None:
    run = await run_script(call("note", text="1"), "done", tools=[note], limits=Limits(turns=2))
    assert run.reason == "answered"
    assert len(run.requests) == 2


@pytest.mark.parametrize("safety", ["safe", "caution"])
async def test_at_the_call_limit_the_first_calls_run_and_the_rest_are_refused(store: Store, safety: Any) -> None:
    @tool(safety=safety)
    def act(text: str) -> str:
        return text

    run = await store.run_script(
        [call("act", id=name, text=name) for name in "abcd"], "half done", tools=[act], limits=Limits(calls=2)
    )
    assert [fact.call_id for fact in run.select(CallStarted)] == ["a", "b"]
    check_wrap_up(run.model, run.outcome, "call_limit", "all the tool calls")
    assert run.outcome.calls == 2
    assert {name: run.results[name].status for name in "abcd"} == {"a": "ok", "b": "ok", "c": "refused", "d": "refused"}
    assert "limit of 2 calls" in select_results(run.requests[1])["c"].text


async def test_calls_that_did_not_run_do_not_count(store: Store) -> None:
    run = await store.run_script(
        [call("nope", id="a"), call("drop", id="b", table="t"), call("note", id="c", text="x")],
        "done",
        tools=[note, drop],
        limits=Limits(calls=1),
    )
    assert {name: fact.status for name, fact in run.results.items()} == {"a": "error", "b": "denied", "c": "ok"}
    assert (run.reason, run.outcome.calls) == ("answered", 1)


async def test_a_run_may_use_exactly_its_call_limit() -> None:
    run = await run_script(
        [call("note", text="1"), call("note", text="2")], "done", tools=[note], limits=Limits(calls=2)
    )
    assert run.reason == "answered"


async def test_retries_of_one_call_count_once() -> None:
    left = [2]

    @tool(on_error="retry")
    def flaky() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("broken")
        return "mended"

    run = await run_script(
        [call("flaky", id="a"), call("flaky", id="b")], "done", tools=[flaky], limits=Limits(calls=2)
    )
    assert (run.reason, run.outcome.calls) == ("answered", 2)


async def test_the_token_limit_is_passed_to_the_model_and_ends_the_run(store: Store) -> None:
    run = await store.run_script(
        say("", call("note", text="1"), usage=Usage(output_tokens=60)),
        say("", call("note", text="2"), usage=Usage(output_tokens=45)),
        "half done",
        tools=[note],
        limits=Limits(tokens=100),
    )
    check_wrap_up(run.model, run.outcome, "token_limit", "tokens")
    assert [request.max_tokens for request in run.requests[:2]] == [100, 40]
    assert run.requests[2].max_tokens is not None and run.requests[2].max_tokens > 0


async def test_a_reply_cut_for_its_length_is_no_answer() -> None:
    run = await run_script(Reply(text="The answer is 4", finish="length"), "half done", tools=[note])
    check_wrap_up(run.model, run.outcome, "token_limit", "tokens")


async def test_the_cost_limit_ends_the_run(store: Store) -> None:
    agent, model = build_agent(
        say("", call("note", text="1"), usage=Usage(cost=0.6)),
        say("", call("note", text="2"), usage=Usage(cost=0.6)),
        "half done",
        tools=[note],
        limits=Limits(cost=1.0),
    )
    async with agent.session(store.open()) as session:
        outcome = await run_to_end(session)
        check_wrap_up(model, outcome, "cost_limit", "money")
        assert outcome.usage.cost == pytest.approx(1.2)


async def test_the_time_limit_is_checked_between_turns(store: Store) -> None:
    clock = store.stepping()

    @tool
    def work() -> str:
        clock.step(40)
        return "worked"

    agent, model = build_agent(
        call("work", id="a"), call("work", id="b"), "half done", tools=[work], limits=Limits(seconds=60), clock=clock
    )
    async with agent.session(store.open()) as session:
        check_wrap_up(model, await run_to_end(session), "time_limit", "time")


async def test_the_time_limit_stops_a_running_tool(store: Store) -> None:
    stopped: list[bool] = []

    @tool(safety="safe")
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    run = await store.run_script(
        [call("hang", id="a"), call("hang", id="b")], "half done", tools=[hang], limits=Limits(seconds=0.5)
    )
    check_wrap_up(run.model, run.outcome, "time_limit", "time")
    assert stopped == [True, True]
    assert {fact.status for fact in run.results.values()} == {"cancelled"}


async def test_no_call_starts_after_the_time_limit(store: Store) -> None:
    clock, done = store.stepping(), list[str]()

    @tool
    def work(text: str) -> str:
        done.append(text)
        clock.step(40)
        return "worked"

    calls = [call("work", id=text, text=text) for text in "abcd"]
    agent, model = build_agent(calls, "half done", tools=[work], limits=Limits(seconds=60), clock=clock)
    async with agent.session(store.open()) as session:
        check_wrap_up(model, await run_to_end(session), "time_limit", "time")
        done_calls = await read_finished_calls(session)
        check_settled(await session.facts())
    assert done == ["a", "b"]
    assert [done_calls[text].status for text in "abcd"] == ["ok", "ok", "cancelled", "cancelled"]
    assert done_calls["c"].output == "Not run: the time for this run is over."


@pytest.mark.parametrize("clock", ["real", "set back"])
async def test_the_time_limit_stops_a_streaming_model_and_keeps_its_partial_text(store: Store, clock: str) -> None:
    class Talker(FakeModel):
        name, window, asked = "talker", None, 0

        async def stream(self, request: Request) -> Any:
            self.asked += 1
            if self.asked == 1:
                yield TextDelta(text="Once upon")
                await asyncio.Event().wait()
            yield Reply(text="half done")

    options: Any = {"clock": store.stepping()} if clock == "set back" else {}
    agent = Agent(Talker(), limits=Limits(seconds=0.5), **options)
    async with agent.session(store.open()) as session:
        outcome = await run_to_end(session)
        failed = select_events(await session.facts(), ModelFailed)
    assert (outcome.reason, outcome.answer) == ("time_limit", "half done")
    assert [fact.partial for fact in failed] == ["Once upon"]


async def test_a_hanging_model_does_not_delay_the_end_of_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.engine.loop.SHORT_WRAP_UP_SECONDS", 0.2)

    class Stalled(FakeModel):
        name, window, asked = "stalled", None, 0

        async def stream(self, request: Request) -> Any:
            self.asked += 1
            await asyncio.Event().wait()
            yield TextDelta(text="never")

    model = Stalled()
    async with Agent(model, limits=Limits(seconds=0.5)).session() as session:
        async with asyncio.timeout(PATIENCE):
            outcome = await run_to_end(session)
    assert (outcome.reason, model.asked) == ("time_limit", 2)
    assert "gave no summary" in outcome.answer


async def test_the_time_limit_ends_the_wait_for_a_busy_model(store: Store) -> None:
    busy = ModelError("busy", retryable=True, retry_after=50)
    agent, model = build_agent(busy, "half done", limits=Limits(seconds=0.5), tools=[note])
    async with agent.session(store.open()) as session:
        check_wrap_up(model, await run_to_end(session), "time_limit", "time")


async def test_a_failure_in_the_last_turn_is_reported_as_a_failure(store: Store) -> None:
    limits = Limits(turns=1, seconds=60, tokens=1)
    run = await store.run_script(ModelError("bad key", kind="auth"), "never asked", limits=limits)
    assert (run.reason, run.outcome.error) == ("failed", "auth: bad key")
    assert len(run.requests) == 1


async def test_waiting_for_a_person_does_not_count_as_time(store: Store) -> None:
    clock = store.stepping()
    agent, _model = build_agent(
        call("drop", id="a", table="t"),
        call("note", text="x"),
        "done",
        tools=[drop, note],
        gate=later,
        clock=clock,
        limits=Limits(seconds=60),
    )
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        clock.step(86_400)
        await session.approve("a")
        outcome = await resume_run(session)
    assert outcome is not None and outcome.reason == "answered"


async def test_no_run_gets_more_turns_than_the_ceiling() -> None:
    asked: list[int] = []

    def next_call(request: Request) -> Any:
        asked.append(1)
        return "half done" if request.tool_choice == "none" else call("note", text=str(len(asked)))

    run = await run_script(*[next_call] * 500, tools=[note], limits=Limits(turns=10_000, calls=10_000))
    assert (run.reason, run.outcome.turns) == ("turn_limit", TURN_CEILING)
    assert len(asked) == TURN_CEILING + 1


async def test_continue_accepts_other_limits() -> None:
    agent, model = build_agent(call("note", text="1"), "half done", "done", tools=[note], limits=Limits(turns=1))
    async with agent.session() as session:
        await run_to_end(session)
        assert (await finish_run(session.continue_(Limits(turns=0)))).answer == "done"
    assert model.requests[-1].tools == ()


def test_negative_limits_are_refused() -> None:
    for wrong in (Limits(turns=-1), Limits(calls=-1)):
        with pytest.raises(BadInput, match="cannot be negative"):
            Agent(ScriptedModel(), limits=wrong)
    for wrong in (Limits(tokens=0), Limits(seconds=-1), Limits(cost=float("nan"))):
        with pytest.raises(BadInput, match="must be more than 0; leave it out"):
            Agent(ScriptedModel(), limits=wrong)


# --- the wrap-up itself


@pytest.mark.parametrize(
    "line",
    [call("note", text="more"), "", ModelError("gone", kind="network"), ZeroDivisionError("bug")],
    ids=["calls", "empty", "failure", "bug"],
)
async def test_a_wrap_up_without_text_gets_a_default_text(store: Store, line: Any) -> None:
    run = await store.run_script(call("note", id="a", text="1"), line, tools=[note], limits=Limits(turns=1))
    assert (run.reason, run.outcome.can_continue, run.outcome.calls) == ("turn_limit", True, 1)
    assert "after 1 turns and 1 calls" in run.answer and "no summary" in run.answer
    assert len(run.requests) == 2


async def test_a_wrap_up_is_retried_when_the_model_is_busy(store: Store) -> None:
    clock = store.stepping()
    busy = ModelError("busy", kind="overloaded", retryable=True)
    run = await store.run_script(
        call("note", text="1"), busy, "half done", tools=[note], limits=Limits(turns=1), clock=clock
    )
    assert (run.reason, run.answer) == ("turn_limit", "half done")


async def test_a_pause_in_the_last_turn_does_not_start_the_wrap_up(store: Store) -> None:
    agent, model = build_agent(
        call("drop", id="a", table="t"), "half done", tools=[drop], gate=later, limits=Limits(turns=1, calls=1)
    )
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        assert len(model.requests) == 1 and len(await read_questions(session)) == 1
        assert not select_events(await session.facts(), RunFinished)
        assert await resume_run(session) is None, "resuming starts no wrap-up either"
        assert len(model.requests) == 1
        await session.approve("a")
        outcome = await resume_run(session)
        done = await read_finished_calls(session)
    assert done["a"].output == "dropped t"
    assert outcome is not None and (outcome.reason, outcome.answer) == ("turn_limit", "half done")
