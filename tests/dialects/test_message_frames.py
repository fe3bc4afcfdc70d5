"""The message frames of a chat page. A page that applies them shows what the log says."""

from datetime import datetime
from typing import Any

import pytest

from tests.kit import recorded_runs as recordings
from tests.kit.recorded_runs import Scenario, every_scenario, list_finished_ids, select_facts, translate
from treadle.dialects.message_frames import ChatStatusDialect, MessageFramesDialect
from treadle.events import (
    CLIENT_SANDBOX,
    CallFinished,
    CallStarted,
    Event,
    Limits,
    MessageReceived,
    ModelReplied,
    Rewound,
    RunFinished,
    RunStarted,
    SessionCreated,
    SessionRenamed,
    TextDelta,
    TurnStarted,
)
from treadle.messages import Call, TextPart, render_parts


def write(events: list[Event]) -> list[dict[str, Any]]:
    return translate(MessageFramesDialect("s1", window=8192), events)


class Page:
    """A page that knows nothing but frames, and checks their fields."""

    def __init__(self, frames: list[dict[str, Any]]) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.results: list[str] = []
        self.seq: float = 0
        for frame in frames:
            self.apply(frame)

    def apply(self, frame: dict[str, Any]) -> None:
        check_fields(frame)
        assert frame["seq"] > self.seq, "positions grow"
        self.seq = frame["seq"]
        match frame["type"]:
            case "message_started":
                assert frame["message_id"] not in self.messages
                self.messages[frame["message_id"]] = {"role": frame["role"], "text": "", "open": True}
            case "delta":
                message = self.messages[frame["message_id"]]
                assert message["open"], "text for a message that is complete"
                message["text"] += frame["content"]
            case "message_complete":
                message = self.messages[frame["message_id"]]
                assert message["open"]
                assert frame["finished_at"] >= frame["started_at"]
                if frame["role"] == "assistant" and message["text"]:
                    assert message["text"] == frame["content"] or frame["reason"] != "stop"
                message.update(text=frame["content"], open=False, reason=frame["reason"])
            case "messages_deleted":
                for message_id in frame["message_ids"]:
                    del self.messages[message_id]
            case "tool_result":
                assert self.messages[frame["tool_message_id"]]["role"] == "tool"
                self.results.append(frame["tool_call_id"])
            case "tool_call" | "usage" | "approval_request":
                assert frame["message_id"] in self.messages
            case _:
                pass


COUNTS = {"tokens_used": int | None, "completion_tokens": int | None, "ctx_used": int | None, "ctx_max": int | None}
FIELDS: dict[str, dict[str, Any]] = {
    "message_started": {"role": str, "model": str | None, "started_at": datetime},
    "delta": {"content": str},
    "tool_call": {"tool_call": dict},
    "tool_result": {"tool_message_id": str, "tool_call_id": str, "output": str, "truncated": bool},
    "message_complete": {
        "content": str,
        "metadata": dict | None,
        **COUNTS,
        "started_at": datetime,
        "finished_at": datetime,
        "model": str | None,
    },
    "usage": COUNTS,
}
OTHER_FIELDS: dict[str, dict[str, Any]] = {
    "messages_deleted": {"message_ids": list},
    "session_renamed": {"name": str},
    "chat_renamed": {"name": str},
    "error": {"error": str, "reason": str},
}


def check_fields(frame: dict[str, Any]) -> None:
    """Fail on a field that is missing, misnamed or of another type."""
    kind = frame["type"]
    wanted: dict[str, Any] = {"session_id": str, "chat_id": str, "seq": int | float}
    if kind in FIELDS:
        wanted |= {"message_id": str, **FIELDS[kind]}
    wanted |= OTHER_FIELDS.get(kind, {})
    for field, type_ in wanted.items():
        assert field in frame, f"{kind} has no {field}"
        value = datetime.fromisoformat(frame[field]) if type_ is datetime else frame[field]
        assert isinstance(value, type_), f"{kind}.{field} is {value!r}"
    assert not {"text", "message", "at"} & frame.keys()
    if kind == "tool_call":
        assert isinstance(frame["tool_call"]["arguments"], dict)
        assert frame["tool_call"]["id"] and frame["tool_call"]["name"]
    if kind == "message_complete" and frame["metadata"] is not None:
        assert frame["metadata"]["kind"] in ("cap_hit", "doom_loop", "error")


@every_scenario
async def test_a_page_shows_the_messages_and_results_of_the_log_and_leaves_none_open(scenario: Scenario) -> None:
    events = await scenario()
    page = Page(write(events))
    assert not any(message["open"] for message in page.messages.values())
    assert page.results == list_finished_ids(events)
    assert page.messages == Page(write(select_facts(events))).messages
    shown = [message["text"] for message in page.messages.values() if message["role"] == "user"]
    assert shown == [render_parts(event.parts) for event in events if isinstance(event, MessageReceived)]
    replies = [event.text for event in events if isinstance(event, ModelReplied)]
    assistant = [message["text"] for message in page.messages.values() if message["role"] == "assistant"]
    assert assistant == ["second"] if scenario is recordings.a_regenerated_answer else set(replies) <= set(assistant)


async def test_the_text_of_a_failed_attempt_is_deleted_before_the_next() -> None:
    frames = write(await recordings.a_failure_and_a_retry())
    kinds = [frame["type"] for frame in frames if frame["type"] in ("messages_deleted", "error", "message_started")]
    assert kinds == ["message_started", "message_started", "messages_deleted", "error", "message_started"]
    assert [message["text"] for message in Page(frames).messages.values()] == ["hi", "Hello"]


@pytest.mark.parametrize(
    ("scenario", "kind", "reason"),
    [
        (recordings.a_turn_limit, "cap_hit", "turn_limit"),
        (recordings.a_call_limit, "cap_hit", "call_limit"),
        (recordings.a_token_limit, "cap_hit", "token_limit"),
        (recordings.a_doom_loop, "doom_loop", "doom_loop"),
        (recordings.being_stuck, "error", "stuck"),
    ],
)
async def test_a_sentinel_is_a_system_message_that_is_started_written_and_completed(
    scenario: Scenario, kind: str, reason: str
) -> None:
    started, delta, complete = write(await scenario())[-3:]
    assert (started["type"], started["role"]) == ("message_started", "system")
    assert (delta["type"], complete["type"]) == ("delta", "message_complete")
    assert started["message_id"] == delta["message_id"] == complete["message_id"]
    assert delta["content"] == complete["content"] != ""
    metadata = complete["metadata"]
    assert (metadata["kind"], metadata["reason"], metadata["can_continue"]) == (kind, reason, True)


async def test_a_failed_run_says_the_error_for_people_and_the_reason_for_programs() -> None:
    frames = write(await recordings.a_failure())
    *_, complete, error = frames
    assert complete["metadata"] == {"kind": "error", "reason": "auth", "error": "no such key"}
    assert (error["type"], error["error"], error["reason"]) == ("error", "auth: no such key", "failed")
    assert error["message_id"] == complete["message_id"]


async def test_a_call_is_an_object_and_its_result_a_message_of_its_own() -> None:
    frames = write(await recordings.two_turns_with_calls())
    first, second = [frame for frame in frames if frame["type"] == "tool_call"]
    assert first["tool_call"] == {"id": first["tool_call"]["id"], "name": "note", "arguments": {"text": "é"}}
    results = [frame for frame in frames if frame["type"] == "tool_result"]
    assert [one["tool_call_id"] for one in results] == [first["tool_call"]["id"], second["tool_call"]["id"]]
    assert all(one["message_id"] == first["message_id"] != one["tool_message_id"] for one in results)
    assert [one["output"] for one in results] == ["noted é", "noted b"] and "error" not in results[0]


async def test_a_failed_call_has_an_error_and_unreadable_arguments_are_shown_as_text() -> None:
    frames = write(await recordings.bad_calls())
    for result in [frame for frame in frames if frame["type"] == "tool_result"]:
        assert result["error"] == result["output"] and result["status"] == "error"
    calls = (Call("c1", "note", '{"text": '), Call("c2", "note", "[1]"))
    shown = write([ModelReplied(seq=1, calls=calls)])
    texts = [frame["tool_call"]["arguments_text"] for frame in shown if frame["type"] == "tool_call"]
    assert texts == ['{"text": ', "[1]"]


@every_scenario
async def test_a_page_resumes_behind_any_frame_without_repeating_or_losing(scenario: Scenario) -> None:
    events = await scenario()
    for seen in (events, select_facts(events)):  # cut while it runs, or while it is read from the log
        whole = translate(MessageFramesDialect("s1", 8192), seen)
        for cut, frame in enumerate(whole):
            rest = translate(MessageFramesDialect("s1", 8192, frame["seq"]), events)
            assert_same_page([*whole[: cut + 1], *rest], whole)
            late = translate(MessageFramesDialect("s1", 8192, frame["seq"]), select_facts(events))
            assert_same_page([*whole[: cut + 1], *late], whole)


def assert_same_page(frames: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    """The frames of two connections show the same as those of one. Text may come in other pieces."""
    joined, alone = Page(frames), Page(whole)
    assert joined.messages == alone.messages and joined.results == alone.results
    kinds = [(one["type"], one.get("message_id")) for one in frames if "delta" not in one["type"]]
    assert kinds == [(one["type"], one.get("message_id")) for one in whole if "delta" not in one["type"]]
    assert join_text(frames) == join_text(whole)


def join_text(frames: list[dict[str, Any]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for frame in frames:
        if frame["type"] == "delta":
            texts[frame["message_id"]] = texts.get(frame["message_id"], "") + frame["content"]
    return texts


def test_a_page_that_is_cut_off_while_another_message_arrives_gets_the_rest_of_the_text_once() -> None:
    start = [SessionCreated(seq=1, session_id="s1"), RunStarted(seq=2, run_id="r", limits=Limits())]
    steered = MessageReceived(seq=4, id="m", parts=(TextPart("hurry"),))
    reply = ModelReplied(seq=5, text="Hello there")
    events: list[Event] = [
        *start,
        TurnStarted(seq=3, turn=1),
        TextDelta(text="Hel"),
        steered,
        TextDelta(text="lo"),
        reply,
    ]
    whole = write(events)
    for cut, frame in enumerate(whole):
        for rest in (events, select_facts(events)):
            more = translate(MessageFramesDialect("s1", 8192, frame["seq"]), rest)
            assert_same_page([*whole[: cut + 1], *more], whole)


async def test_a_complete_reply_has_its_times_its_model_and_what_it_used() -> None:
    frames = write(await recordings.a_plain_answer())
    (*_, reply, usage) = [frame for frame in frames if frame["type"] in ("message_complete", "usage")]
    for frame in (reply, usage):
        assert (frame["tokens_used"], frame["completion_tokens"]) == (10, 3)
        assert (frame["ctx_used"], frame["ctx_max"]) == (10, 8192)
    assert reply["started_at"] <= reply["finished_at"] and reply["finished_at"].endswith("Z")
    assert reply["model"] == "scripted" and reply["reason"] == "stop"


async def test_a_rewind_deletes_what_came_after() -> None:
    events = await recordings.a_plain_answer()
    message = next(event for event in events if isinstance(event, MessageReceived))
    frames = write([*events, Rewound(seq=99, to=message.seq)])
    assert [frame["type"] for frame in frames[-2:]] == ["messages_deleted", "session_rewound"]
    assert [m["role"] for m in Page(frames).messages.values()] == ["user"]


def test_a_new_name_is_sent_for_the_session_and_for_the_chat() -> None:
    frames = write([SessionRenamed(seq=1, name="Plans")])
    assert [frame["type"] for frame in frames] == ["session_renamed", "chat_renamed"]
    assert {frame["name"] for frame in frames} == {"Plans"}


async def test_the_channel_of_all_chats_says_who_needs_you() -> None:
    dialect = ChatStatusDialect("s1")
    events = select_facts(await recordings.an_approved_call())
    frames = translate(dialect, events)
    assert [frame["status"] for frame in frames] == ["idle", "streaming", "needs_you", "streaming", "idle"]
    assert all(frame["chat_id"] == "s1" and datetime.fromisoformat(frame["at"]) for frame in frames)


def test_a_chat_that_waits_for_the_clients_result_needs_you_until_the_last_one_comes() -> None:
    begin = [CallStarted(seq=n, call_id=f"c{n}", tool="locate", sandbox=CLIENT_SANDBOX) for n in (3, 4)]
    ends = [CallFinished(seq=n, call_id=f"c{n - 2}", tool="locate", status="ok") for n in (5, 6)]
    here = CallStarted(seq=2, call_id="c2", tool="look")
    events = [RunStarted(seq=1, run_id="run_1", limits=Limits()), here, *begin, *ends]
    assert [frame["status"] for frame in translate(ChatStatusDialect("s1"), events)] == [
        "streaming",
        "needs_you",
        "streaming",
    ]


async def test_a_message_without_a_reply_is_completed_when_the_run_ends() -> None:
    events = select_facts(await recordings.a_plain_answer())
    cut = [event for event in events if not isinstance(event, ModelReplied | RunFinished)]
    frames = write([*cut, RunFinished(seq=99, at=events[-1].at, run_id="run_1", reason="cancelled", can_continue=True)])
    (reply,) = [message for message in Page(frames).messages.values() if message["role"] == "assistant"]
    assert not reply["open"] and reply["reason"] == "cancelled"
