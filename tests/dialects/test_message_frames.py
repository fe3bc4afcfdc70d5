"""The message frames of a chat page. A page that applies them shows what the log says."""

from typing import Any

from tests.kit import recorded_runs as recordings
from tests.kit.recorded_runs import Scenario, every_scenario, list_finished_ids, select_facts, translate
from treadle.dialects.message_frames import ChatStatusDialect, MessageFramesDialect
from treadle.events import Event, MessageReceived, ModelReplied, Rewound, RunFinished, SessionRenamed
from treadle.messages import render_parts


def write(events: list[Event]) -> list[dict[str, Any]]:
    return translate(MessageFramesDialect("s1", window=8192), events)


class Page:
    """A page that knows nothing but frames."""

    def __init__(self, frames: list[dict[str, Any]]) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.results: list[str] = []
        for frame in frames:
            match frame["type"]:
                case "message_started":
                    assert frame["message_id"] not in self.messages
                    self.messages[frame["message_id"]] = {"role": frame["role"], "text": "", "open": True}
                case "delta":
                    message = self.messages[frame["message_id"]]
                    assert message["open"], "text for a message that is complete"
                    message["text"] += frame["text"]
                case "message_complete":
                    message = self.messages[frame["message_id"]]
                    assert message["open"]
                    assert frame["finished_at"] >= frame["started_at"]
                    if frame["role"] == "assistant" and message["text"]:
                        assert frame["content"].startswith(message["text"]) or frame["reason"] != "stop"
                    message.update(text=frame["content"], open=False, reason=frame["reason"])
                case "messages_deleted":
                    for message_id in frame["message_ids"]:
                        del self.messages[message_id]
                case "tool_result":
                    self.results.append(frame["tool_call_id"])
                case "tool_call" | "usage" | "approval_request":
                    assert frame["message_id"] in self.messages
                case _:
                    pass


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


async def test_a_limit_leaves_a_sentinel_that_offers_to_go_on() -> None:
    frames = write(await recordings.a_turn_limit())
    last = [frame for frame in frames if frame["type"] == "message_complete"][-1]
    assert last["role"] == "system" and last["metadata"] == {"sentinel": "turn_limit", "can_continue": True}


async def test_a_complete_reply_has_its_times_its_model_and_what_it_used() -> None:
    frames = write(await recordings.a_plain_answer())
    (*_, reply, usage) = [frame for frame in frames if frame["type"] in ("message_complete", "usage")]
    for frame in (reply, usage):
        assert (frame["tokens_used"], frame["ctx_used"], frame["ctx_max"]) == (3, 10, 8192)
    assert 0 < reply["started_at"] <= reply["finished_at"]
    assert reply["model"] == "scripted" and reply["reason"] == "stop"


async def test_a_rewind_deletes_what_came_after() -> None:
    events = await recordings.a_plain_answer()
    message = next(event for event in events if isinstance(event, MessageReceived))
    frames = write([*events, Rewound(seq=99, to=message.seq)])
    assert [frame["type"] for frame in frames[-2:]] == ["messages_deleted", "session_rewound"]
    assert [m["role"] for m in Page(frames).messages.values()] == ["user"]


def test_a_new_name_is_sent_for_the_session_and_for_the_chat() -> None:
    frames = write([SessionRenamed(name="Plans")])
    assert [frame["type"] for frame in frames] == ["session_renamed", "chat_renamed"]
    assert {frame["name"] for frame in frames} == {"Plans"}


async def test_the_channel_of_all_chats_says_who_needs_you() -> None:
    dialect = ChatStatusDialect("s1")
    events = select_facts(await recordings.an_approved_call())
    statuses = [frame.status for event in events for frame in dialect.feed(event)]
    assert statuses == ["streaming", "needs_you", "streaming", "idle"]


async def test_a_message_without_a_reply_is_completed_when_the_run_ends() -> None:
    events = select_facts(await recordings.a_plain_answer())
    cut = [event for event in events if not isinstance(event, ModelReplied | RunFinished)]
    frames = write([*cut, RunFinished(seq=99, at=events[-1].at, run_id="run_1", reason="cancelled", can_continue=True)])
    (reply,) = [message for message in Page(frames).messages.values() if message["role"] == "assistant"]
    assert not reply["open"] and reply["reason"] == "cancelled"
