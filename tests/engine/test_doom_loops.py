"""Repeated calls: one warning, then the end of the run, and no false alarms."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.kit.sessions import Store, build_agent, list_user_texts, note, run_script, run_to_end, select_events
from treadle import Limits, tool
from treadle.events import AnyFact, SignalDetected
from treadle.messages import Call
from treadle.testing import call


@tool
def add(a: int, b: int) -> int:
    return a + b


@tool(safety="safe", polling=True)
def status() -> str:
    return "still busy"


def select_warnings(facts: Iterable[AnyFact]) -> list[SignalDetected]:
    return [fact for fact in select_events(facts, SignalDetected) if fact.kind == "doom_loop"]


def notes(texts: str) -> list[Any]:
    return [call("note", text=text) for text in texts]


@pytest.mark.parametrize(
    ("texts", "warned_after"),
    [("aaaa", 3), ("ababab", 4), ("abcabcabc", 6), ("xyaaaa", 5)],
    ids=["three alike", "a cycle of two", "a cycle of three", "after other things"],
)
async def test_a_loop_gets_one_warning_and_then_ends_the_run(store: Store, texts: str, warned_after: int) -> None:
    run = await store.run_script(*notes(texts[: warned_after + 1]), "half done", tools=[note])
    run.check_wrap_up("doom_loop", "repeating the same calls")
    warnings = [len([text for text in list_user_texts(r) if "do something different" in text]) for r in run.requests]
    assert warnings[warned_after - 1] == 0 and warnings[warned_after] == 1
    assert len(select_warnings(run.facts)) == 2 and "note" in select_warnings(run.facts)[0].detail
    assert [fact.status for fact in run.results.values()] == ["ok"] * warned_after + ["refused"]


@pytest.mark.parametrize(
    ("lines", "reason", "warnings"),
    [
        *(pytest.param(notes(texts), "answered", 0, id=texts) for texts in ("aabb", "abcab", "abac", "aba", "aabaa")),
        pytest.param(notes("aaabcd"), "answered", 1, id="the model changes its calls"),
        pytest.param(
            [Call("", "add", text) for text in ('{"a":1,"b":2}', '{ "b": 2, "a": 1 }', '{"a":1, "b":2}')],
            "answered",
            1,
            id="the same arguments spelled differently",
        ),
        pytest.param([notes("aaa"), notes("a")], "doom_loop", 2, id="inside one reply"),
        pytest.param([call("nope")] * 4, "doom_loop", 2, id="calls that fail the same way"),
        pytest.param([call("status")] * 9, "answered", 0, id="polling"),
        pytest.param([[call("status")] * 4] * 2, "answered", 0, id="polling in one reply"),
        pytest.param(
            [line for one in notes("aaaa") for line in (one, call("status"))],
            "answered",
            2,
            id="polling between repeated calls",
        ),
    ],
)
async def test_only_a_cycle_of_calls_that_do_not_poll_is_a_loop(lines: list[Any], reason: str, warnings: int) -> None:
    run = await run_script(*lines, "done", tools=[note, add, status])
    assert run.reason == reason and len(select_warnings(run.facts)) == warnings


async def test_loop_detection_can_be_switched_off() -> None:
    run = await run_script(*notes("a" * 9), "done", tools=[note], limits=Limits(doom_loop=False))
    assert run.reason == "answered" and select_warnings(run.facts) == []


async def test_a_new_run_starts_with_an_empty_trail() -> None:
    agent, _ = build_agent(*notes("aa"), "done", *notes("aa"), "done", tools=[note])
    async with agent.session() as session:
        await run_to_end(session)
        assert (await run_to_end(session, "again")).reason == "answered"
        assert select_warnings(await session.facts()) == []
