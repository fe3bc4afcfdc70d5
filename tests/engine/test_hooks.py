"""Hooks of middleware: they can deny, ask and add text, and each result is recorded once."""

import asyncio
from typing import Any

import pytest

from tests.engine.test_middleware import LOOK, build_middleware, fail, look
from tests.kit import sessions as kit
from tests.kit.sessions import DROP, PATIENCE, FinishedRun, Store, Tables
from treadle import Answer, ApprovalRequested, CallStarted, Grant, Middleware, RunFinished, later
from treadle.engine.hook_result import HOOK_NOTE, HookCall, HookResult
from treadle.errors import MessageRefused, MessageStopped
from treadle.events import CallFinished, Custom, MessageReceived, SignalDetected
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Request
from treadle.testing import call
from treadle.testing.crash_points import cut

DENY = HookResult("deny", "the house rules")


def build_counting(point: str, *results: HookResult | None) -> tuple[Middleware, list[tuple[Any, ...]]]:
    """Build middleware whose hook says one result after another, and the list of its calls."""
    seen: list[tuple[Any, ...]] = []

    def hook(*args: Any) -> HookResult | None:
        seen.append(args)
        return results[min(len(seen), len(results)) - 1]

    return build_middleware(**{point: hook}), seen


def list_records(run: FinishedRun) -> list[Any]:
    return [fact.data for fact in run.select(Custom) if fact.name == HOOK_NOTE]


async def test_a_hook_before_a_tool_denies_the_call_and_the_model_reads_why(store: Store) -> None:
    hook, seen = build_counting("before_tool", DENY)
    run = await store.run_script([LOOK], "done", tools=[look], middleware=[hook])
    assert "the house rules" in run.results["l"].output and run.results["l"].status == "denied"
    assert run.select(CallStarted) == [] and len(seen) == 1
    call: HookCall = seen[0][0]
    assert (call.tool, call.arguments, call.safety) == ("look", {"at": "it"}, "safe")
    said = {"decision": "deny", "reason": "the house rules"}
    assert list_records(run) == [{"point": "before_tool", "result": said, "call_id": "l"}]


async def test_a_hook_can_ask_but_cannot_allow_what_the_policy_denies(store: Store, tables: Tables) -> None:
    asking, _ = build_counting("before_tool", HookResult("ask", "look twice"))
    run = await store.run_script([LOOK], "done", tools=[look], middleware=[asking])
    assert run.results["l"].status == "denied" and "look twice" in run.results["l"].output, "nobody can be asked here"
    silent, seen = build_counting("before_tool", HookResult())
    agent, _ = kit.build_agent([DROP], "done", tools=tables.tools, middleware=[silent], grant=Grant(forbid=("drop",)))
    denied = await kit.run_agent(agent)
    assert [one.status for one in denied.select(CallFinished)] == ["denied"] and seen == []


async def test_a_hook_that_raises_denies_the_call(store: Store) -> None:
    run = await store.run_script([LOOK], "done", tools=[look], middleware=[build_middleware(before_tool=fail)])
    assert run.results["l"].status == "denied" and "ZeroDivisionError" in run.results["l"].output


async def test_the_note_of_a_hook_after_a_tool_follows_the_result(store: Store) -> None:
    hook, seen = build_counting("after_tool", HookResult(note="format it"))
    run = await store.run_script([LOOK], "done", tools=[look], middleware=[hook])
    assert len(seen) == 1 and seen[0][1].output == "saw it"
    assert "format it" in str(run.requests[1].messages[-1])
    assert [fact.kind for fact in run.select(SignalDetected)] == ["hook"]


async def test_a_hook_at_the_end_continues_an_answered_run_three_times_at_most(store: Store) -> None:
    hook, seen = build_counting("on_run_end", HookResult("continue", "the tests fail"))
    run = await store.run_script("one", "two", "three", "four", "five", middleware=[hook])
    assert run.answer == "four" and len(seen) == 4
    assert len(run.select(RunFinished)) == 1
    assert "the tests fail" in str(run.requests[1].messages[-1])


async def test_a_refused_message_is_not_stored_and_the_refusal_is(store: Store) -> None:
    def refuse(session_id: str, parts: Any) -> Any:
        raise MessageRefused("no secrets here")

    agent, model = kit.build_agent("hi", middleware=[build_middleware(on_user_message=refuse)])
    async with agent.session(store.open()) as session:
        with pytest.raises(MessageRefused, match="no secrets here"):
            await kit.run_to_end(session, "my password")
        facts = await session.facts()
    assert not any(isinstance(fact, MessageReceived) for fact in facts) and model.requests == []
    assert [fact.data["point"] for fact in facts if isinstance(fact, Custom)] == ["prompt"]


@pytest.mark.parametrize("point", ["before_tool", "after_tool", "on_run_end"])
async def test_a_message_that_arrives_during_a_hook_does_not_run_it_again(store: Store, point: str) -> None:
    entered, go_on, calls = asyncio.Event(), asyncio.Event(), list[str]()

    async def hook(self: Middleware, *args: Any) -> HookResult:
        calls.append(point)
        entered.set()
        await go_on.wait()
        return HookResult()

    middleware: Middleware = type("Slow", (Middleware,), {point: hook})()
    agent, _ = kit.build_agent([LOOK], "done", "steered", tools=[look], middleware=[middleware])
    async with asyncio.timeout(PATIENCE), agent.session(store.open()) as session:
        run = asyncio.ensure_future(kit.run_to_end(session, "go"))
        await entered.wait()
        await session.send("faster")
        go_on.set()
        await run
        facts = await session.facts()
    ends = sum(isinstance(fact, RunFinished) for fact in facts)
    records = [fact for fact in facts if isinstance(fact, Custom)]
    # A message that arrives at the end starts another run, which has its own end.
    assert len(calls) == len(records) == (ends if point == "on_run_end" else 1)


def reply(request: Request) -> Any:
    return "done" if kit.select_results(request) else [LOOK]


@pytest.mark.parametrize("point", ["before_tool", "after_tool", "on_run_end"])
async def test_a_run_cut_after_any_fact_runs_no_recorded_hook_again(store: Store, point: str) -> None:
    hook, _ = build_counting(point, HookResult())
    whole = (await store.run_script([LOOK], "done", tools=[look], middleware=[hook])).facts
    for point_of_crash in list(cut(whole))[2:-1]:
        again, seen = build_counting(point, HookResult())
        agent, _ = kit.build_agent(reply, reply, reply, tools=[look], middleware=[again])
        log = InMemoryLog()
        session_id = await point_of_crash.plant(log)
        async with asyncio.timeout(PATIENCE), agent.session(log, id=session_id) as session:
            await kit.resume_run(session)
            facts = await session.facts()
        was_recorded = any(isinstance(fact, Custom) for fact in point_of_crash.facts)
        assert len(seen) == (0 if was_recorded else 1), point_of_crash
        assert [sum(isinstance(fact, kind) for fact in facts) for kind in (Custom, RunFinished)] == [1, 1]


@pytest.mark.parametrize("said", ["a text", True, HookResult("allow"), HookResult(note=5)])  # pyright: ignore[reportArgumentType]
@pytest.mark.parametrize("point", ["before_tool", "after_tool", "on_run_end"])
async def test_a_result_that_does_not_fit_counts_as_a_failure_and_the_run_ends(
    store: Store, point: str, said: Any
) -> None:
    hook, seen = build_counting(point, said)
    run = await store.run_script([LOOK], "done", tools=[look], middleware=[hook])
    assert run.answer == "done" and len(seen) == 1
    assert run.results["l"].status == ("denied" if point == "before_tool" else "ok")
    told = run.results["l"].output if point == "before_tool" else str(list_records(run))
    assert "must return a HookResult or None" in told


@pytest.mark.parametrize("point", ["after_tool", "on_run_end"])
async def test_a_result_that_is_no_utf8_or_too_long_is_made_to_fit(store: Store, point: str) -> None:
    hook, _ = build_counting(point, HookResult(reason="\udcff", note=f"\ud800{'x' * 20_000}"))
    run = await store.run_script([LOOK], "done", tools=[look], middleware=[hook])
    [record] = list_records(run)
    assert run.answer == "done" and record["result"]["reason"] == "?"
    assert record["result"]["note"].startswith("?x") and len(record["result"]["note"]) <= 8000


async def test_a_yes_to_all_calls_of_a_tool_does_not_answer_what_a_hook_asks(store: Store) -> None:
    hook, _ = build_counting("before_tool", HookResult(), HookResult("ask", "look twice"))
    calls = [LOOK, call("look", id="second", at="that")]
    grant = Grant(ask=("look",))
    agent, _ = kit.build_agent(calls, "done", tools=[look], middleware=[hook], grant=grant, gate=later)
    async with asyncio.timeout(PATIENCE), agent.session(store.open()) as session:
        assert await kit.run_message(session) is None
        by_rule, by_hook = [fact for fact in await session.facts() if isinstance(fact, ApprovalRequested)]
        assert (by_rule.hook, by_rule.once, by_hook.hook, by_hook.once, by_hook.rule) == (False, False, True, True, "")
        assert "look twice" in by_hook.why
        await session.approve("l", Answer("allow", scope="tool"))
        assert (await session.state()).calls["second"].answer is None


async def test_where_nobody_can_be_asked_a_hook_names_no_option_that_would_not_help(store: Store) -> None:
    hook, _ = build_counting("before_tool", HookResult("ask", "look twice"))
    run = await store.run_script([LOOK], "done", tools=[look], middleware=[hook], grant=Grant(yes=True))
    told = run.results["l"]
    assert told.status == "denied" and "look twice" in told.output and "--" not in told.output


async def test_cancel_ends_a_hook_that_reads_a_message_and_the_message_is_not_stored(store: Store) -> None:
    entered = asyncio.Event()

    async def wait(self: Middleware, *args: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    agent, model = kit.build_agent("hi", middleware=[type("Slow", (Middleware,), {"on_user_message": wait})()])
    async with asyncio.timeout(PATIENCE), agent.session(store.open()) as session:
        run = asyncio.ensure_future(kit.run_to_end(session))
        await entered.wait()
        await session.cancel()
        with pytest.raises(MessageStopped, match="was not sent"):
            await run
        facts = await session.facts()
    assert not any(isinstance(fact, MessageReceived) for fact in facts) and model.requests == []
