"""Hooks of middleware: they can deny, ask and add text, and each result is recorded once."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.test_middleware import LOOK, build_middleware, fail, look
from tests.kit import sessions as kit
from tests.kit.sessions import DROP, PATIENCE, FinishedRun, Store, Tables
from treadle import CallStarted, Grant, Middleware, RunFinished
from treadle.engine.hook_result import HOOK_NOTE, HookCall, HookResult, HookSession
from treadle.engine.setup import MessageRefused
from treadle.events import ApprovalRequested, CallFinished, Custom, MessageReceived, SignalDetected

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
    assert list_records(run) == [{"point": "before_tool", "result": {"decision": "deny", "reason": "the house rules"}, "call_id": "l"}]


async def test_a_hook_can_ask_but_cannot_allow_what_the_policy_denies(store: Store, tables: Tables) -> None:
    asking, _ = build_counting("before_tool", HookResult("ask", "look twice"))
    run = await store.run_script([LOOK], "done", tools=[look], middleware=[asking])
    assert run.select(ApprovalRequested)[0].why == "look twice"
    silent, seen = build_counting("before_tool", HookResult())
    denied = await store.run_script([DROP], "done", tools=tables.tools, middleware=[silent], grant=Grant(forbid=("drop",)))
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
    # The message starts a new turn, whose end has its own hooks.
    expected = 2 if point == "on_run_end" else 1
    assert len(calls) == len(records) == expected and ends == 1


@pytest.mark.parametrize("point", ["before_tool", "after_tool", "on_run_end"])
async def test_a_run_cut_after_any_fact_runs_no_recorded_hook_again(store: Store, point: str) -> None:
    """Cut the log after every fact and resume: a hook whose result is in the log is not asked again."""
    hook, _ = build_counting(point, HookResult())
    whole = (await store.run_script([LOOK], "done", tools=[look], middleware=[hook])).facts
    for cut in range(3, len(whole)):
        again, seen = build_counting(point, HookResult())
        agent, _ = kit.build_agent(*[lambda request: "done" if kit.select_results(request) else [LOOK]] * 3)
        agent.tools, agent.middleware = [look], [again]
        facts = await resume_after(agent, whole[:cut])
        recorded = any(isinstance(fact, Custom) for fact in whole[:cut])
        assert len(seen) == (0 if recorded or isinstance(whole[cut - 1], RunFinished) else 1), (cut, seen)
        assert sum(isinstance(fact, Custom) for fact in facts) == 1
        assert sum(isinstance(fact, RunFinished) for fact in facts) == 1


async def resume_after(agent: Any, facts: Any) -> Any:
    """Resume a session whose log ends after these facts."""
    from treadle.log.in_memory import InMemoryLog

    log = InMemoryLog()
    session_id = facts[0].session_id
    await log.post(session_id, facts)
    async with asyncio.timeout(PATIENCE), agent.session(log, id=session_id) as session:
        await kit.resume_run(session)
        return await session.facts()
