"""Limits and wrap-ups: a run always ends with a reason, and can continue with a fresh budget."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit import sessions as kit
from tests.kit.fake_model import HangingModel
from tests.kit.sessions import DROP, PATIENCE, HeldTool, Store, Tables, note
from treadle import Agent, CallStarted, Limits, RunFinished, tool
from treadle.errors import BadInput, ModelError
from treadle.events import ModelFailed, RunStarted, TurnStarted, decode_fact
from treadle.messages import Reply, Usage
from treadle.testing import call, say

# --- limits of every kind


async def test_at_the_turn_limit_the_model_wraps_up_and_continue_has_a_fresh_budget(store: Store) -> None:
    lines = [call("note", text="1"), call("note", text="2"), "half done", call("note", text="3"), "all done"]
    run = await store.run_script(*lines, tools=[note], limits=Limits(turns=2))
    run.check_wrap_up("turn_limit", "all the turns")
    assert (run.outcome.turns, run.outcome.calls) == (2, 2)
    async with run.agent.session(store.open(), id=run.session_id) as session:
        outcome = await kit.finish_run(session.continue_())
        facts = await session.facts()
    assert (outcome.reason, outcome.answer, outcome.turns) == ("answered", "all done", 2)
    assert "Go on where you left off." in kit.list_user_texts(run.requests[3])[-1]
    assert [fact.wrap_up for fact in kit.select_events(facts, TurnStarted)] == [None, None, "turn_limit", None, None]
    kit.check_settled(facts)


@pytest.mark.parametrize(
    ("line", "limits"),
    [(call("note", text="1"), Limits(turns=2)), ([call("note", text="1"), call("note", text="2")], Limits(calls=2))],
    ids=["turns", "calls"],
)
async def test_a_run_that_uses_exactly_its_limit_needs_no_wrap_up(line: Any, limits: Limits) -> None:
    run = await kit.run_script(line, "done", tools=[note], limits=limits)
    assert run.reason == "answered" and len(run.requests) == 2


@pytest.mark.parametrize("safety", ["safe", "caution"])
async def test_at_the_call_limit_the_first_calls_run_and_the_rest_are_refused(store: Store, safety: Any) -> None:
    @tool(safety=safety)
    def act(text: str) -> str:
        return text

    calls = [call("act", id=name, text=name) for name in "abcd"]
    run = await store.run_script(calls, "half done", tools=[act], limits=Limits(calls=2))
    run.check_wrap_up("call_limit", "all the tool calls")
    assert [fact.call_id for fact in run.select(CallStarted)] == ["a", "b"] and run.outcome.calls == 2
    assert [run.results[name].status for name in "abcd"] == ["ok", "ok", "refused", "refused"]
    assert "limit of 2 calls" in run.messages["c"].text


async def test_calls_that_did_not_run_do_not_count(store: Store, tables: Tables) -> None:
    calls = [call("nope", id="x"), DROP, call("note", id="c", text="x")]
    run = await store.run_script(calls, "done", tools=tables.tools, limits=Limits(calls=1))
    assert {name: fact.status for name, fact in run.results.items()} == {"x": "error", "a": "denied", "c": "ok"}
    assert (run.reason, run.outcome.calls) == ("answered", 1)


async def test_retries_of_one_call_count_once() -> None:
    left = [2]

    @tool(on_error="retry")
    def flaky() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("broken")
        return "mended"

    run = await kit.run_script([call("flaky"), call("flaky")], "done", tools=[flaky], limits=Limits(calls=2))
    assert (run.reason, run.outcome.calls) == ("answered", 2)


async def test_the_token_limit_is_passed_to_the_model_and_ends_the_run(store: Store) -> None:
    lines = [say("", call("note", text=str(spent)), usage=Usage(output_tokens=spent)) for spent in (60, 45)]
    run = await store.run_script(*lines, "half done", tools=[note], limits=Limits(tokens=100))
    run.check_wrap_up("token_limit", "tokens")
    assert [request.max_tokens for request in run.requests[:2]] == [100, 40]
    assert run.requests[2].max_tokens is not None and run.requests[2].max_tokens > 0


@pytest.mark.parametrize(
    ("lines", "limits", "reason", "words"),
    [
        (
            [say("", call("note", text=text), usage=Usage(cost=0.6)) for text in "ab"],
            Limits(cost=1.0),
            "cost_limit",
            "money",
        ),
        ([Reply(text="The answer is 4", finish="length")], Limits(), "token_limit", "tokens"),
        ([ModelError("busy", retryable=True, retry_after=50)], Limits(seconds=0.5), "time_limit", "time"),
    ],
    ids=["cost", "a reply cut for its length", "the wait for a busy model"],
)
async def test_a_limit_ends_the_run_with_a_wrap_up(
    store: Store, lines: list[Any], limits: Limits, reason: str, words: str
) -> None:
    run = await store.run_script(*lines, "half done", tools=[note], limits=limits)
    run.check_wrap_up(reason, words)


@pytest.mark.parametrize(("turns", "late"), [(["a", "b"], ""), (["abcd"], "cd")], ids=["turns", "one reply"])
async def test_no_call_starts_after_the_time_limit(store: Store, turns: list[str], late: str) -> None:
    clock, done = store.use_stepping_clock(), list[str]()

    @tool
    def work(text: str) -> str:
        done.append(text)
        clock.step(40)
        return "worked"

    lines = [[call("work", id=text, text=text) for text in turn] for turn in turns]
    run = await store.run_script(*lines, "half done", tools=[work], limits=Limits(seconds=60), clock=clock)
    run.check_wrap_up("time_limit", "time")
    assert done == ["a", "b"] == [name for name, fact in run.results.items() if fact.status == "ok"]
    stopped = [(run.results[name].status, run.results[name].output) for name in late]
    assert stopped == [("cancelled", "Not run: the time for this run is over.")] * len(late)


async def test_the_time_limit_stops_a_running_tool(store: Store) -> None:
    held = HeldTool(safety="safe")
    calls = [call("wait"), call("wait")]
    run = await store.run_script(calls, "half done", tools=[held.tool], limits=Limits(seconds=0.5))
    run.check_wrap_up("time_limit", "time")
    assert held.ends == 2
    assert {fact.status for fact in run.results.values()} == {"cancelled"}


@pytest.mark.parametrize("clock", ["real", "set back"])
async def test_the_time_limit_stops_a_streaming_model_and_keeps_its_partial_text(store: Store, clock: str) -> None:
    options: Any = {"clock": store.use_stepping_clock()} if clock == "set back" else {}
    run = await store.run_agent(Agent(HangingModel(reply="half done"), limits=Limits(seconds=0.5), **options))
    assert (run.reason, run.answer) == ("time_limit", "half done")
    assert [fact.partial for fact in run.select(ModelFailed)] == ["Once upon"]


async def test_a_hanging_model_does_not_delay_the_end_of_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.engine.steps.SHORT_WRAP_UP_SECONDS", 0.2)
    async with asyncio.timeout(PATIENCE):
        run = await kit.run_agent(Agent(HangingModel(text=""), limits=Limits(seconds=0.5)))
    assert (run.reason, len(run.requests)) == ("time_limit", 2)
    assert "gave no summary" in run.answer


async def test_a_failure_in_the_last_turn_is_reported_as_a_failure(store: Store) -> None:
    limits = Limits(turns=1, seconds=60, tokens=1)
    run = await store.run_script(ModelError("bad key", kind="auth"), "never asked", limits=limits)
    assert (run.reason, run.outcome.error) == ("failed", "auth: bad key")
    assert len(run.requests) == 1


async def test_waiting_for_a_person_does_not_count_as_time(store: Store, tables: Tables) -> None:
    clock, lines = store.use_stepping_clock(), [call("note", text="x"), "done"]
    async with tables.open_session(store.open(), *lines, clock=clock, limits=Limits(seconds=60)) as session:
        clock.step(86_400)
        await session.approve("a")
        outcome = await kit.finish_run(session.resume())
    assert outcome.reason == "answered"


async def test_continue_accepts_other_limits() -> None:
    agent, model = kit.build_agent(call("note", text="1"), "half done", "done", tools=[note], limits=Limits(turns=1))
    async with agent.session() as session:
        await kit.run_to_end(session)
        assert (await kit.finish_run(session.continue_(Limits(turns=0)))).answer == "done"
    assert model.requests[-1].tools == ()


def test_limits_above_the_ceiling_are_refused_when_they_are_made() -> None:
    with pytest.raises(BadInput, match="turns is 300, above the ceiling of 200"):
        Limits(turns=300)
    with pytest.raises(BadInput, match="above the ceiling of 20;"):
        replace(Limits(turns=20, ceiling=20), turns=21)
    assert Limits(turns=300, ceiling=300).turns == 300


def test_limits_that_are_negative_or_no_numbers_are_refused_when_they_are_made() -> None:
    for name in ("turns", "calls"):
        with pytest.raises(BadInput, match="must be 0 or more"):
            Limits(**{name: -1})
    for wrong in ({"tokens": 0}, {"seconds": -1}, {"cost": float("nan")}):
        with pytest.raises(BadInput, match="must be more than 0; leave it out"):
            Limits(**wrong)
    for wrong in ({"turns": "5"}, {"calls": False}, {"turns": None}, {"tokens": 1.5}, {"cost": "1"}, {"ceiling": True}):
        with pytest.raises(BadInput, match=f"{next(iter(wrong))} must be a number"):
            Limits(**wrong)


def test_a_log_with_limits_that_are_refused_today_is_read_with_the_ceiling() -> None:
    body = b'{"type":"run_started","seq":3,"run_id":"run_1","limits":{"turns":300,"calls":-1,"seconds":2.5}}'
    fact = decode_fact(body)
    assert isinstance(fact, RunStarted) and (fact.seq, fact.limits) == (3, Limits(turns=200, seconds=2.5))


# --- the wrap-up itself


@pytest.mark.parametrize(
    "line", ["", ModelError("gone", kind="network"), ZeroDivisionError("bug")], ids=["empty", "failure", "bug"]
)
async def test_a_wrap_up_without_text_gets_a_default_text(store: Store, line: Any) -> None:
    run = await store.run_script(call("note", id="a", text="1"), line, tools=[note], limits=Limits(turns=1))
    assert (run.reason, run.outcome.can_continue, run.outcome.calls) == ("turn_limit", True, 1)
    assert "after 1 turns and 1 calls" in run.answer and "no summary" in run.answer
    assert len(run.requests) == 2


async def test_a_wrap_up_is_retried_when_the_model_is_busy(store: Store) -> None:
    lines = [call("note", text="1"), ModelError("busy", kind="overloaded", retryable=True), "half done"]
    run = await store.run_script(*lines, tools=[note], limits=Limits(turns=1), clock=store.use_stepping_clock())
    assert (run.reason, run.answer) == ("turn_limit", "half done")


async def test_a_pause_in_the_last_turn_does_not_start_the_wrap_up(store: Store, tables: Tables) -> None:
    async with tables.open_session(store.open(), "half done", limits=Limits(turns=1, calls=1)) as session:
        assert len(tables.model.requests) == 1 and len(await kit.read_questions(session)) == 1
        assert not kit.select_events(await session.facts(), RunFinished)
        assert await kit.resume_run(session) is None, "resuming starts no wrap-up either"
        assert len(tables.model.requests) == 1
        await session.approve("a")
        outcome = await kit.resume_run(session)
    assert tables.done == ["users"]
    assert outcome is not None and (outcome.reason, outcome.answer) == ("turn_limit", "half done")
