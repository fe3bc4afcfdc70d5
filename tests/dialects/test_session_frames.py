"""The frames of REST clients, for every kind of run."""

from itertools import pairwise
from typing import Any

import pytest

from tests.kit import recorded_runs as recordings
from tests.kit.recorded_runs import Scenario, every_scenario, select_facts, translate
from treadle.dialects.base import parse_approval_id, summarize_output
from treadle.dialects.session_frames import SessionFramesDialect
from treadle.events import CallFinished, Event, RunFinished, TextDelta

TYPES = {"delta", "tool_start", "tool_end", "tool_rejected", "iteration", "done", "error", "approval_request"}
ADDED = {"retry", "input_request"}


def write(events: list[Event], classes: dict[str, str] | None = None) -> list[dict[str, Any]]:
    return translate(SessionFramesDialect("s1", classes), events)


def select_frames(frames: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [frame for frame in frames if frame["type"] == kind]


@every_scenario
async def test_every_run_counts_its_iterations_ends_its_calls_and_ends_in_one_done(scenario: Scenario) -> None:
    events = await scenario()
    frames = write(events)
    assert {frame["type"] for frame in frames} <= TYPES | ADDED
    endings = [event for event in events if isinstance(event, RunFinished)]
    answers = [ending.answer for ending in endings if ending.reason != "failed"]
    assert [done["reply"] for done in select_frames(frames, "done")] == answers
    errors = [ending.error for ending in endings if ending.reason == "failed"]
    assert [error["message"] for error in select_frames(frames, "error")] == errors
    assert frames[-1]["type"] == ("error" if endings[-1].reason == "failed" else "done")
    positions = [frame["seq"] for frame in frames]
    assert positions == sorted(positions) and positions[-1] == endings[-1].seq
    numbers = [frame["n"] for frame in select_frames(frames, "iteration")]
    assert numbers[0] == 1 and all(after - before in (0, 1) or after == 1 for before, after in pairwise(numbers))
    starts = [start["id"] for start in select_frames(frames, "tool_start")]
    assert starts == [end["id"] for end in select_frames(frames, "tool_end")] and len(set(starts)) == len(starts)


@every_scenario
async def test_a_late_watcher_gets_the_same_frames(scenario: Scenario) -> None:
    events = await scenario()
    assert join_fragments(write(events)) == join_fragments(write(select_facts(events)))
    first_only: list[Event] = []
    for event in events:
        if not isinstance(event, TextDelta) or not isinstance(first_only[-1], TextDelta):
            first_only.append(event)
    assert join_fragments(write(first_only)) == join_fragments(write(select_facts(events)))


def join_fragments(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join fragments that follow each other. A live one has the position before the reply, a stored one its own."""
    whole: list[dict[str, Any]] = []
    for frame in frames:
        if whole and frame["type"] == whole[-1]["type"] == "delta":
            whole[-1] = {"type": "delta", "text": whole[-1]["text"] + frame["text"]}
        elif frame["type"] == "delta":
            whole.append({"type": "delta", "text": frame["text"]})
        else:
            whole.append(frame)
    return whole


async def test_a_call_is_sent_with_its_arguments_and_class() -> None:
    frames = write(await recordings.two_turns_with_calls())
    start, end = select_frames(frames, "tool_start")[0], select_frames(frames, "tool_end")[0]
    assert (start["name"], start["args"], start["class"]) == ("note", {"text": "é"}, "caution")
    assert (end["name"], end["ok"], end["summary"]) == ("note", True, "noted é")


async def test_an_approval_has_an_id_that_names_its_session_and_call() -> None:
    (asked,) = select_frames(write(await recordings.an_approved_call()), "approval_request")
    session_id, call_id = parse_approval_id(asked["id"])
    assert session_id == "s1" and call_id
    assert (asked["name"], asked["args"], asked["class"]) == ("drop", {"table": "users"}, "destructive")


@pytest.mark.parametrize("name", ["a_denied_call", "a_call_denied_by_policy"])
async def test_a_call_that_may_not_run_is_rejected_with_its_class(name: str) -> None:
    frames = write(await getattr(recordings, name)(), {"drop": "destructive"})
    (rejected,) = select_frames(frames, "tool_rejected")
    assert (rejected["name"], rejected["class"]) == ("drop", "destructive")
    assert not select_frames(frames, "tool_start") and "denied" in rejected["reason"].lower()


async def test_after_the_error_of_a_failed_run_no_done_is_sent() -> None:
    frames = write(await recordings.a_failure())
    assert [frame["type"] for frame in frames] == ["iteration", "error"]
    assert "no such key" in frames[-1]["message"]


async def test_the_turns_of_done_are_those_of_the_session() -> None:
    frames = write(await recordings.a_regenerated_answer())
    assert [done["turns"] for done in select_frames(frames, "done")] == [1, 2]
    assert [frame["n"] for frame in select_frames(frames, "iteration")] == [1, 1]


@every_scenario
async def test_rejoining_anywhere_repeats_nothing_and_misses_nothing(scenario: Scenario) -> None:
    facts = select_facts(await scenario())
    whole = [(fact.seq, frame) for fact in facts for frame in write_one(facts, fact)]  # type: ignore[union-attr]
    for seen in range(1, len(whole) + 1):
        position = whole[seen - 1][1]["seq"]
        rejoined = [frame for seq, frame in whole if seq > position]
        assert rejoined == [frame for _, frame in whole][seen:] or whole[seen][0] == whole[seen - 1][0]


def write_one(facts: list[Event], wanted: Event) -> list[dict[str, Any]]:
    """The frames of one fact for a client that has those before it."""
    dialect = SessionFramesDialect("s1")
    for fact in facts[: facts.index(wanted)]:
        dialect.feed(fact)
    return translate(dialect, [wanted])


def test_the_class_of_a_rejected_call_is_the_one_that_decided() -> None:
    denied = CallFinished(call_id="c1", tool="shell", status="denied", output="Denied: …", safety="destructive")
    (rejected,) = write([denied], {"shell": "caution"})
    assert rejected["class"] == "destructive"


async def test_a_limit_is_not_sent_as_an_answer() -> None:
    done = write(await recordings.a_turn_limit())[-1]
    assert done["reason"] == "turn_limit" and done["can_continue"] and done["reply"] == "so far so good"


async def test_void_text_is_followed_by_a_retry() -> None:
    kinds = [frame["type"] for frame in write(await recordings.a_failure_and_a_retry())]
    assert kinds == ["iteration", "retry", "delta", "done"]


def test_a_summary_is_one_line_cut_on_characters_and_says_how_much_is_missing() -> None:
    assert summarize_output("é" * 501) == "é" * 500 + " [… 1 characters more]"
    assert summarize_output("é" * 500) == "é" * 500
    assert summarize_output("one\n\n  two\tthree\r\n") == "one two three"
