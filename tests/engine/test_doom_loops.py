"""Repeated calls: one warning, then the end of the run, and no false alarms."""

from typing import Any

import pytest

from tests.kit.sessions import (
    Store,
    build_agent,
    check_wrap_up,
    list_user_texts,
    note,
    run_script,
    run_to_end,
    select_events,
)
from treadle import Limits, tool
from treadle.events import SignalDetected
from treadle.messages import Call
from treadle.testing import call


def doom(facts: Any) -> list[SignalDetected]:
    return [fact for fact in select_events(facts, SignalDetected) if fact.kind == "doom_loop"]


def notes(*texts: str) -> list[Any]:
    return [call("note", text=text) for text in texts]


@pytest.mark.parametrize(
    ("texts", "warned_after"),
    [("aaaa", 3), ("ababab", 4), ("abcabcabc", 6), ("xyaaaa", 5)],
    ids=["three alike", "a cycle of two", "a cycle of three", "after other things"],
)
async def test_a_loop_gets_one_warning_and_then_ends_the_run(store: Store, texts: str, warned_after: int) -> None:
    run = await store.run_script(*notes(*texts[: warned_after + 1]), "half done", tools=[note])
    check_wrap_up(run.model, run.outcome, "doom_loop", "repeating the same calls")
    warnings = [len([text for text in list_user_texts(r) if "do something different" in text]) for r in run.requests]
    assert warnings[warned_after - 1] == 0 and warnings[warned_after] == 1
    assert len(doom(run.facts)) == 2 and "note" in doom(run.facts)[0].detail
    assert [fact.status for fact in run.results.values()] == ["ok"] * warned_after + ["refused"]


async def test_a_run_continues_when_the_model_changes_its_calls() -> None:
    run = await run_script(*notes(*"aaa"), *notes(*"bcd"), "done", tools=[note])
    assert run.reason == "answered"
    assert len(doom(run.facts)) == 1


async def test_the_same_arguments_spelled_differently_are_the_same() -> None:
    @tool
    def add(a: int, b: int) -> int:
        return a + b

    spelled = [
        Call("", "add", '{"a":1,"b":2}'),
        Call("", "add", '{ "b": 2, "a": 1 }'),
        Call("", "add", '{"a":1, "b":2}'),
    ]
    run = await run_script(*spelled, "done", tools=[add])
    assert len(doom(run.facts)) == 1


@pytest.mark.parametrize("texts", ["aabb", "abcab", "abac", "aba", "aabaa"])
async def test_repeated_calls_without_a_cycle_are_no_loop(texts: str) -> None:
    run = await run_script(*notes(*texts), "done", tools=[note])
    assert run.reason == "answered"
    assert doom(run.facts) == []


async def test_a_loop_inside_one_reply_is_detected() -> None:
    run = await run_script(notes(*"aaa"), notes("a"), "half done", tools=[note])
    assert run.reason == "doom_loop"


@tool(safety="safe", polling=True)
def status() -> str:
    return "still busy"


@pytest.mark.parametrize("lines", [[call("status")] * 9, [[call("status")] * 4] * 2], ids=["turns", "one reply"])
async def test_a_polling_tool_may_repeat_its_calls(lines: list[Any]) -> None:
    run = await run_script(*lines, "done", tools=[status])
    assert run.reason == "answered"
    assert doom(run.facts) == []


async def test_a_polling_tool_does_not_hide_a_loop_of_other_calls() -> None:
    mixed = [line for line in notes(*"aaaa") for line in (line, call("status"))]
    run = await run_script(*mixed, "done", tools=[status, note])
    assert len(doom(run.facts)) == 2
    assert any("do something different" in text for text in list_user_texts(run.requests[-1]))


async def test_loop_detection_can_be_switched_off() -> None:
    run = await run_script(*notes(*"a" * 9), "done", tools=[note], limits=Limits(doom_loop=False))
    assert run.reason == "answered"
    assert doom(run.facts) == []


async def test_calls_that_keep_failing_the_same_way_are_a_loop_too() -> None:
    run = await run_script(*[call("nope")] * 4, "half done", tools=[note])
    assert run.reason == "doom_loop"


async def test_a_new_run_starts_with_an_empty_trail() -> None:
    agent, _ = build_agent(*notes(*"aa"), "done", *notes(*"aa"), "done", tools=[note])
    async with agent.session() as session:
        await run_to_end(session)
        assert (await run_to_end(session, "again")).reason == "answered"
        assert doom(await session.facts()) == []
