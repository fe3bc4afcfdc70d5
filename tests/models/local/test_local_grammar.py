"""Whatever a grammar made from a schema admits is JSON that fits the schema."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.models.local.gbnf import generate_sentence
from treadle.models.local import gbnf

Schema = dict[str, Any]

NAMES = st.sampled_from(["path", "text", "count", "größe", 'a"b', "x y", "back\\slash"])
VALUES = st.one_of(st.text(max_size=6), st.integers(-99, 99), st.booleans(), st.none())


@st.composite
def strings(draw: st.DrawFn) -> Schema:
    least = draw(st.integers(0, 4))
    limits: Schema = {"minLength": least} if least else {}
    return {"type": "string", **limits, **draw(st.sampled_from([{}, {"maxLength": least + 3}]))}


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(["integer", "number"]))
    low, high = sorted((draw(st.integers(-1100, 1100)), draw(st.integers(-1100, 1100))))
    lower = [{}, {"minimum": low}, {"exclusiveMinimum": low - 1}]
    upper = [{}, {"maximum": high}, {"exclusiveMaximum": high + 1}]
    return {"type": kind, **draw(st.sampled_from(lower)), **draw(st.sampled_from(upper))}


SCALARS = st.one_of(
    strings(),
    numbers(),
    st.sampled_from([{"type": "number"}, {"type": "boolean"}, {"type": "null"}, {}, {"type": ["string", "null"]}]),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=4, unique_by=repr)),
    st.builds(lambda value: {"const": value}, VALUES),
)


def nest_schemas(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    arrays = st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        inner, st.integers(0, 2), st.integers(0, 2),
    )  # fmt: skip
    tuples = st.builds(lambda items: {"type": "array", "prefixItems": items}, st.lists(inner, min_size=1, max_size=3))
    maps = st.builds(lambda value: {"type": "object", "additionalProperties": value}, inner)
    either = st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3))
    return st.one_of(arrays, tuples, maps, either, objects(inner))


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema] = SCALARS) -> Schema:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def check(schema: Schema, text: str) -> None:
    assert "\n" not in text
    Draft202012Validator(schema).validate(json.loads(text))


@given(st.recursive(SCALARS, nest_schemas, max_leaves=6), st.integers())
def test_what_the_grammar_admits_fits_the_schema(schema: Schema, seed: int) -> None:
    check(schema, generate_sentence(gbnf.build_schema_grammar(schema), random.Random(seed)))


TREE: Schema = {
    "type": "object",
    "properties": {"leaf": {"type": "integer"}, "more": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["leaf"],
}
BASE: Schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PARTS = [{"$ref": "#/$defs/base"}, {"properties": {"b": {"const": "x"}}, "required": ["b"]}]


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}, id="one that holds itself"),
        pytest.param({"allOf": PARTS, "$defs": {"base": BASE}}, id="parts that must all hold"),
    ],
)
def test_what_the_grammar_of_a_schema_with_references_admits_fits_the_schema(schema: Schema) -> None:
    for seed in range(30):
        check(schema, generate_sentence(gbnf.build_schema_grammar(schema), random.Random(seed)))


@pytest.mark.parametrize(("low", "high"), [(0, 9), (1, 12), (7, 105), (-3, 3), (98, 1002), (-120, -99)])
def test_a_range_of_integers_admits_them_and_no_others(low: int, high: int) -> None:
    rule = gbnf.build_schema_grammar({"type": "integer", "minimum": low, "maximum": high})
    admitted = {int(generate_sentence(rule, random.Random(seed))) for seed in range(6000)}
    assert admitted <= set(range(low, high + 1))
    assert len(admitted) > 0.9 * (high - low + 1)


def test_every_optional_argument_can_be_left_out_or_given() -> None:
    schema: Schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}}
    admitted = {generate_sentence(gbnf.build_schema_grammar(schema), random.Random(seed)) for seed in range(200)}
    assert {frozenset(json.loads(text)) for text in admitted} == {
        frozenset(each) for each in ("", "a", "b", "c", "ab", "ac", "bc", "abc")
    }


def test_the_values_of_an_argument_can_be_narrowed_to_those_that_were_found() -> None:
    schema: Schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    narrowed = gbnf.build_schema_grammar(schema, {"path": gbnf.build_choice(["a.txt", 'b "c".txt'])})
    admitted = {json.loads(generate_sentence(narrowed, random.Random(seed)))["path"] for seed in range(20)}
    assert admitted == {"a.txt", 'b "c".txt'}


@given(st.lists(st.tuples(NAMES, objects()), min_size=1, max_size=3, unique_by=lambda each: each[0]), st.integers())
def test_a_call_grammar_admits_a_well_formed_call_or_the_answer(calls: list[tuple[str, Schema]], seed: int) -> None:
    text = generate_sentence(
        gbnf.build_call_grammar(calls, gbnf.quote_literal('{"tool": "answer"}')), random.Random(seed)
    )
    if text != '{"tool": "answer"}':
        call = json.loads(text)
        check(dict(calls)[call["tool"]], json.dumps(call["arguments"]))
