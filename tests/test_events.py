"""Facts and deltas: what is written can be read, the vocabulary is closed, and its schema says the truth."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.kit.strategies import build_values, kinds_in_histories
from treadle import events
from treadle.export.event_schema import render_schema
from treadle.messages import TextPart

FACTS: tuple[type[events.Fact], ...] = events.AnyFact.__args__
DELTAS: tuple[type[events.Delta], ...] = events.AnyDelta.__args__
SCHEMA = Path(__file__).parent.parent / "docs" / "events.schema.json"


@pytest.mark.parametrize("kind", [*FACTS, *DELTAS], ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_event_comes_back_as_it_was_written(kind: Any, data: st.DataObject) -> None:
    event = data.draw(build_values(kind))
    assert events.decode_event(events.serialize_event(event)) == event
    if isinstance(event, events.Fact):
        assert events.decode_fact(events.serialize_event(event)) == event
    else:
        with pytest.raises(msgspec.ValidationError):
            events.decode_fact(events.serialize_event(event))


@settings(max_examples=200)
@given(st.one_of([build_values(kind) for kind in (*FACTS, *DELTAS)]))
def test_every_event_fits_the_published_schema(event: events.Fact | events.Delta) -> None:
    problems = [error.message for error in build_validator().iter_errors(json.loads(events.serialize_event(event)))]
    assert problems == []


def build_validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))


def test_the_published_schema_is_that_of_the_code() -> None:
    assert SCHEMA.read_text("utf-8") == render_schema(), "run `make schema`"


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "no_such_fact"},
        {"text": "hello"},
        {"type": "call_finished", "call_id": "c1", "tool": "look", "status": "completed"},
        {"type": "message_received", "id": "m1"},
        {"type": "message_received", "id": "m1", "parts": [{"type": "sound"}]},
        {"type": "text_delta", "text": 5},
    ],
)
def test_the_schema_and_the_code_refuse_the_same(bad: dict[str, Any]) -> None:
    assert not build_validator().is_valid(bad)
    with pytest.raises(msgspec.ValidationError):
        events.decode_event(json.dumps(bad))


def test_the_schema_names_every_kind_once() -> None:
    mapping = json.loads(render_schema())["discriminator"]["mapping"]
    assert sorted(mapping) == sorted(kind.__struct_config__.tag for kind in (*FACTS, *DELTAS))


def find_own_kinds(base: type) -> set[type]:
    """Find the kinds of the package. Tests of facts of a newer release add kinds of their own."""
    return {kind for kind in base.__subclasses__() if kind.__module__ == events.__name__}


def test_the_union_has_every_kind_and_the_strategies_know_them_all() -> None:
    assert set(FACTS) == find_own_kinds(events.Fact) == kinds_in_histories
    assert set(DELTAS) == find_own_kinds(events.Delta)
    assert set(events.Event.__args__) == {*FACTS, *DELTAS}


def test_a_kind_is_named_in_snake_case_and_defaults_are_not_written() -> None:
    assert events.fact_type(events.CallFinished(call_id="c", tool="t", status="ok")) == "call_finished"
    assert json.loads(events.serialize_event(events.TextDelta(text="x", after=3))) == {
        "type": "text_delta",
        "text": "x",
        "after": 3,
    }
    message, parts = events.MessageReceived(id="m1", parts=(TextPart("hi"),)), [{"type": "text", "text": "hi"}]
    assert json.loads(events.serialize_event(message)) == {"type": "message_received", "id": "m1", "parts": parts}


def test_a_fact_of_a_newer_version_may_have_fields_we_do_not_know() -> None:
    fact = events.decode_fact('{"type":"turn_started","turn":1,"colour":"blue","seq":4}')
    assert fact == events.TurnStarted(turn=1, seq=4)


def test_a_fact_cannot_be_changed_but_is_stamped_by_the_log() -> None:
    fact = events.TurnStarted(turn=1)
    with pytest.raises(AttributeError):
        fact.turn = 2  # type: ignore[misc]
    events.stamp_fact(fact, 7, 12.5)
    assert (fact.seq, fact.at) == (7, 12.5)


def test_a_fact_that_cannot_be_written_is_refused_before_it_is_stored() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        events.serialize_event(events.MessageReceived(id="m1", parts=(TextPart("\ud800"),)))


def test_a_limit_is_never_an_answer() -> None:
    reasons = set(events.EndReason.__args__)  # type: ignore[attr-defined]
    assert reasons > events.LIMIT_REASONS and "answered" not in events.LIMIT_REASONS
    assert {reason for reason in reasons if reason.endswith("_limit")} < events.LIMIT_REASONS


def test_the_default_limits_are_those_of_the_design() -> None:
    limits = events.Limits()
    assert (limits.turns, limits.calls, limits.tokens, limits.seconds, limits.cost) == (50, 50, None, None, None)
