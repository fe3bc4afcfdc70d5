"""The registry dialect: four events, four kinds of agent events, and the same from the log as live."""

from typing import Any

from tests.kit import recorded_runs as recordings
from tests.kit.recorded_runs import Scenario, encode, every_scenario, list_finished_ids, select_facts, translate
from treadle.dialects.registry_events import RegistryDialect, build_agent_events
from treadle.events import (
    CancelRequested,
    EndReason,
    Limits,
    MessageEdited,
    MessageMode,
    MessageReceived,
    ModelReplied,
    RunFinished,
    RunStarted,
    TurnStarted,
)
from treadle.messages import Call, TextPart

KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "thought": {"content": str},
    "tool_call": {"id": str, "name": str, "input": (dict, list, str, int, float, bool, type(None))},
    "tool_result": {"id": str, "output": str, "success": bool},
    "error": {"message": str},
}


def check_agent_event(event: dict[str, Any]) -> None:
    """An agent event has its kind, the fields of the kind beside it, and the same fields under the kind's name."""
    fields = KINDS[event["type"]]
    assert set(event[event["type"]]) == set(fields)
    assert not (set(KINDS) - {event["type"]}) & set(event)
    for name, kind in fields.items():
        assert isinstance(event[name], kind) and event[name] == event[event["type"]][name]


def build_reply_events(reply: ModelReplied) -> list[Any]:
    return encode(build_agent_events("s", reply))


@every_scenario
async def test_every_run_is_four_registry_events_live_and_later(scenario: Scenario) -> None:
    events = await scenario()
    sent = translate(RegistryDialect("s"), events)
    assert sent == translate(RegistryDialect("s"), select_facts(events))
    assert (sent[0]["event"], sent[-1]["event"]) == ("session_started", "session_ended")
    assert all(one["data"]["session_id"] == "s" for one in sent)
    did = [one["data"] for one in sent if one["event"] == "agent_event"]
    for event in did:
        check_agent_event(event)
    assert [event["id"] for event in did if event["type"] == "tool_result"] == list_finished_ids(events)
    assert {one["event"] for one in sent} <= {"session_started", "session_updated", "agent_event", "session_ended"}


async def test_a_failure_is_an_error_and_a_failed_session() -> None:
    sent = translate(RegistryDialect("s"), await recordings.a_failure())
    assert sent[-2]["data"]["type"] == "error" and "no such key" in sent[-2]["data"]["error"]["message"]
    assert (sent[-1]["data"]["status"], sent[-1]["data"]["reason"]) == ("failed", "failed")
    retried = translate(RegistryDialect("s"), await recordings.a_failure_and_a_retry())
    assert [one["data"]["type"] for one in retried if one["event"] == "agent_event"] == ["error", "thought"]


async def test_who_waits_for_an_approval_is_updated_and_goes_on() -> None:
    sent = translate(RegistryDialect("s"), await recordings.an_approved_call())
    updated = [one["data"] for one in sent if one["event"] == "session_updated"]
    assert [one["status"] for one in updated] == ["running", "awaiting_approval", "running", "running"]
    assert updated[-1]["tool_calls"] == updated[-1]["results"] == 1 and updated[1]["call_id"]


def test_a_thought_is_cut_after_500_characters() -> None:
    for length in (1, 499, 500):
        (event,) = build_reply_events(ModelReplied(text="é" * length))
        assert event["content"] == "é" * length
    (event,) = build_reply_events(ModelReplied(text="é" * 501))
    assert event["content"] == event["thought"]["content"] == "é" * 500 + "..."


def test_the_input_of_a_call_is_an_object_or_the_text_of_the_model() -> None:
    written = ('{"a": [1, {"b": null}]}', "[1]", "", "not json", '{"a":')
    calls = tuple(Call(f"call_{number}", "note", text) for number, text in enumerate(written))
    values = [event["input"] for event in build_reply_events(ModelReplied(calls=calls))]
    assert values == [{"a": [1, {"b": None}]}, "[1]", {}, "not json", '{"a":']


def test_a_session_goes_on_when_a_message_came_during_its_last_run() -> None:
    dialect = RegistryDialect("s")
    ended = RunFinished(run_id="run_1", reason="turn_limit")
    started = (RunStarted(run_id="run_1", limits=Limits()), TurnStarted(turn=1, messages=("m1",)))
    translate(dialect, (MessageReceived(id="m1", parts=(TextPart("hi"),)), *started, ended))
    assert not dialect.will_go_on
    translate(dialect, (*started, MessageReceived(id="m2", parts=(TextPart("and"),)), ended))
    assert dialect.will_go_on
    translate(dialect, (CancelRequested(),))
    assert not dialect.will_go_on


def test_a_withdrawn_message_and_a_held_follow_up_start_no_run() -> None:
    started = (RunStarted(run_id="run_1", limits=Limits()), TurnStarted(turn=1))
    cases: tuple[tuple[MessageMode, tuple[MessageEdited, ...], EndReason, bool], ...] = (
        ("queue", (), "answered", True),
        ("queue", (), "failed", True),
        ("follow_up", (), "answered", True),
        ("follow_up", (), "failed", False),
        ("queue", (MessageEdited(id="m"),), "answered", False),
        ("queue", (MessageEdited(id="m", parts=(TextPart("b"),)),), "answered", True),
    )
    for mode, edited, reason, goes_on in cases:
        dialect = RegistryDialect("s")
        queued = MessageReceived(id="m", parts=(TextPart("a"),), mode=mode)
        translate(dialect, (*started, queued, *edited, RunFinished(run_id="run_1", reason=reason)))
        assert dialect.will_go_on is goes_on, (mode, edited, reason)
