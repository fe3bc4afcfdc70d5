"""Typed answers: what schema they have, what is taken for one, and what is said of one that does not fit."""

import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from treadle.errors import BadInput
from treadle.typed_output import build_output_schema, check_output, parse_output


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


def test_the_schema_is_that_of_the_type() -> None:
    assert build_output_schema(City)["required"] == ["name", "people"]
    assert build_output_schema(Literal["yes", "no"]) == {"type": "string", "enum": ["yes", "no"]}
    assert build_output_schema(list[int]) == {"type": "array", "items": {"type": "integer"}}


def test_a_type_that_cannot_be_kept_by_its_hash_works_too() -> None:
    assert build_output_schema(Annotated[int, {"unhashable": True}]) == {"type": "integer"}


@pytest.mark.parametrize("wanted", [threading.Lock, Callable[[int], int], "Nowhere", 5])
def test_a_type_without_a_schema_is_refused(wanted: Any) -> None:
    with pytest.raises(BadInput, match="cannot be made into a schema"):
        build_output_schema(wanted)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Rome", "people": 3}',
        ' \n{"name": "Rome", "people": 3}\n',
        '```json\n{"name": "Rome", "people": 3}\n```',
        '```\n{"name": "Rome", "people": 3}```',
        '\n```JSON\n{"name": "Rome", "people": "3"}\n```\n',
    ],
)
def test_an_answer_is_read_also_from_a_code_fence(text: str) -> None:
    assert check_output(City, text) == ""
    assert parse_output(City, text) == City(name="Rome", people=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Rome has 3.", "the answer: Invalid JSON"),
        ("", "the answer: Invalid JSON"),
        ('Here: ```json\n{"name": "Rome", "people": 3}\n```', "the answer: Invalid JSON"),
        ('{"name": "Rome"}', "people: Field required"),
        ('{"name": "Rome", "people": -1}', "people: Input should be greater than or equal to 0; got -1"),
        ('{"name": 5, "people": "many"}', "name: Input should be a valid string; got 5; people: "),
        ('{"name": "Rome", "people": "' + "many" * 50 + '"}', "got 'manymany"),
        ("[" * 100_000, "the answer: Invalid JSON"),
    ],
)
def test_an_answer_that_does_not_fit_is_answered_with_what_is_wrong(text: str, words: str) -> None:
    assert words in check_output(City, text)
    with pytest.raises(ValidationError):
        parse_output(City, text)


def test_only_the_first_faults_are_reported() -> None:
    assert check_output(list[int], '["x","x","x","x","x","x","x"]').count("valid integer") == 5
    assert check_output(list[int], '["x","x","x","x","x","x","x"]').endswith("; and 2 more")
    assert "0.people: " in check_output(list[City], '[{"name": "Rome", "people": null}]')


@given(st.text())
def test_any_text_is_an_answer_or_has_a_reason_why_not(text: str) -> None:
    said = check_output(City, text)
    assert said.startswith("the answer: ") and "; got " in said


@given(st.builds(City, name=st.text(), people=st.integers(0, 2**40)))
def test_what_fits_comes_back_as_it_was(city: City) -> None:
    assert parse_output(City, city.model_dump_json()) == city
