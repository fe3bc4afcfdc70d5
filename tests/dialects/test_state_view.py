"""What a page shows of a session at each position: it follows from the facts alone."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.kit.recorded_sessions import record_all
from tests.kit.write_recordings import render_recording


@pytest.fixture(scope="module")
def recordings() -> dict[str, Any]:
    """Every recorded session, as the page's own computation is tested with it."""
    recorded = asyncio.run(record_all())
    return {name: msgspec.json.decode(render_recording(facts)) for name, facts in recorded.items()}


def list_states(recording: Any, *fields: str) -> list[Any]:
    """List the states without repeats, as far as they have these fields."""
    seen: list[Any] = []
    for state in recording["states"]:
        picked = [state[field] for field in fields] if len(fields) > 1 else state[fields[0]]
        if not seen or seen[-1] != picked:
            seen.append(picked)
    return seen


def test_a_state_follows_each_fact(recordings: dict[str, Any]) -> None:
    for recording in recordings.values():
        assert [state["seq"] for state in recording["states"]] == [fact["seq"] for fact in recording["facts"]]


def test_a_finished_run_leaves_the_session_idle_with_the_answer(recordings: dict[str, Any]) -> None:
    states = recordings["a_plain_answer"]["states"]
    assert list_states(recordings["a_plain_answer"], "status") == ["idle", "running", "idle"]
    assert [message["text"] for message in states[-1]["messages"]] == ["hi", "Hello\nthere"]
    assert states[-1]["last"] == {"reason": "answered", "error": "", "can_continue": False, "answer": "Hello\nthere"}
    assert states[-1]["usage"]["input_tokens"] == 7


def test_a_message_is_queued_until_a_turn_takes_it(recordings: dict[str, Any]) -> None:
    queues = [[one["text"] for one in queue] for queue in list_states(recordings["a_steered_run"], "queue")]
    assert queues == [[], ["wait for it"], [], ["and hurry"], []]


def test_a_call_goes_through_its_stages(recordings: dict[str, Any]) -> None:
    stages = [[call["status"] for call in calls] for calls in list_states(recordings["an_approved_call"], "calls")]
    assert stages == [[], ["queued"], ["asked"], ["allowed"], ["running"], ["ok"]]
    assert list_states(recordings["an_approved_call"], "status") == ["idle", "running", "waiting", "running", "idle"]


def test_one_answer_settles_two_questions(recordings: dict[str, Any]) -> None:
    counts = [len(pending) for pending in list_states(recordings["an_answer_that_settles_two_questions"], "pending")]
    assert counts == [0, 1, 2, 0]


def test_a_question_of_a_running_call_is_open_while_the_call_runs(recordings: dict[str, Any]) -> None:
    waiting = [one for one in recordings["a_question_of_a_running_call"]["states"] if one["status"] == "waiting"]
    assert waiting and all(one["calls"][0]["status"] == "running" for one in waiting)
    assert all(one["pending"] and one["pending"] != [one["calls"][0]["id"]] for one in waiting)


def test_a_rewind_takes_messages_and_calls_out_of_view_and_an_undo_brings_them_back(recordings: dict[str, Any]) -> None:
    counts = [(len(m), len(c)) for m, c in list_states(recordings["an_undone_rewind"], "messages", "calls")]
    before, rewound, undone = (4, 2), (2, 1), (4, 2)
    start = counts.index(before)
    assert counts[start : start + 4] == [before, rewound, undone, rewound]
    assert recordings["an_undone_rewind"]["states"][-1]["rewound"] > 2


def test_a_regenerated_answer_replaces_the_one_before(recordings: dict[str, Any]) -> None:
    last = recordings["two_regenerated_answers"]["states"][-1]
    assert [one["text"] for one in last["messages"]] == ["zero", "answer 0", "one", "answer 3"]
    assert last["rewound"] == 2


def test_a_compaction_counts_until_it_is_undone(recordings: dict[str, Any]) -> None:
    assert list_states(recordings["compactions"], "compacted") == [0, 1, 0, 1]


def test_the_plan_is_the_last_one_that_was_written_down(recordings: dict[str, Any]) -> None:
    first, *_, last = list_states(recordings["a_plan"], "plan")
    assert first is None and [item["status"] for item in last] == ["done", "doing"]


def test_a_wait_for_the_provider_says_until_when(recordings: dict[str, Any]) -> None:
    waiting = [one for one in recordings["a_wait_for_the_provider"]["states"] if one["status"] == "retrying"]
    assert waiting and all(one["retry_at"] is not None for one in waiting)
    assert recordings["a_wait_for_the_provider"]["states"][-1]["retry_at"] is None


def test_costs_are_rounded_so_that_every_language_shows_the_same_sum(recordings: dict[str, Any]) -> None:
    assert recordings["a_rewound_conversation"]["states"][-1]["usage"]["cost"] == 0.4


def test_changed_files_are_listed_in_their_order(recordings: dict[str, Any]) -> None:
    assert recordings["rewound_files"]["states"][-1]["changed_files"] == ["a.txt", "b.txt"]


def test_marks_are_part_of_the_state(recordings: dict[str, Any]) -> None:
    marks = list_states(recordings["marked_sessions"], "pinned", "archived")
    assert marks == [[False, False], [True, False], [True, True], [False, True]]


def test_a_follow_up_stays_queued_until_its_own_run(recordings: dict[str, Any]) -> None:
    queues = [[one["text"] for one in queue] for queue in list_states(recordings["follow_ups"], "queue")]
    first = queues.index(["first", "second"])
    assert queues[first : first + 4] == [["first", "second"], ["second"], [], ["third"]]
    texts = [one["text"] for one in recordings["follow_ups"]["states"][-1]["messages"] if one["role"] == "user"]
    assert texts == ["wait", "first", "second", "something else", "third"]


def test_an_edit_changes_a_queued_message_and_no_other(recordings: dict[str, Any]) -> None:
    recording = recordings["edited_and_withdrawn_messages"]
    queues = [[one["text"] for one in queue] for queue in list_states(recording, "queue")]
    assert queues[-5:] == [
        ["right", "never mind", "then this"],
        ["straight\non", "never mind", "then this"],
        ["straight\non", "then this"],
        ["straight\non"],
        [],
    ]
    texts = [one["text"] for one in recording["states"][-1]["messages"] if one["role"] == "user"]
    assert texts == ["wait", "straight\non"]


def test_the_chosen_access_is_part_of_the_state(recordings: dict[str, Any]) -> None:
    assert list_states(recordings["a_chosen_access"], "access") == [None, "plan", "sandbox"]
