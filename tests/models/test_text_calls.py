"""Calls in text are found where they fit a tool. An answer stays an answer."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.fakes.clients import ADD, ECHO
from treadle.messages import ToolSpec
from treadle.models.text_calls import recover_calls

NOW = ToolSpec("now", "The time.", {"type": "object", "properties": {}})
READ = ToolSpec(
    "read_file", "Read.", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
)
TOOLS = (ADD, ECHO, NOW, READ)
ADDED = [("add", {"a": 1, "b": 2})]
ONE = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


def recover(text: str) -> tuple[str, list[tuple[str, Any]]]:
    rest, calls = recover_calls(text, TOOLS)
    return rest, [(call.tool, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{ONE}\n</tool_call>",
        f"<tool_call>{ONE}",
        f"<tool_call>```json\n{ONE}\n```</tool_call>",
        f"<|tool_call|>{ONE}<|/tool_call|>",
        f"<function_call>{ONE}</function_call>",
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>2</parameter>\n</function>\n</tool_call>",
        '<function=add>{"a": 1, "b": 2}</function>',
        '<function_calls><invoke name="add"><parameter name="a">1</parameter><parameter name="b">2</parameter>'
        "</invoke></function_calls>",
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key><arg_value>2</arg_value></tool_call>",
        "<add><a>1</a><b>2</b></add>",
        f"```json\n{ONE}\n```",
        f"```\n[{ONE}]\n```",
        ONE,
        f"[{ONE}]",
        '{"tool": "add", "args": {"a": 1, "b": 2}}',
        '{"function": {"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}, "type": "function"}',
        "{'name': 'add', 'arguments': {'a': 1, 'b': 2}}",
        "[add(a=1, b=2)]",
        f"[TOOL_CALLS][{ONE}]",
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}<|eom_id|>',
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a":1,"b":2}<|tool_call_end|><|tool_calls_section_end|>',
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a":1,"b":2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a":1,"b":2}<｜tool▁call▁end｜>',
    ],
)
def test_a_call_is_found_in_any_common_notation(text: str) -> None:
    assert recover(text) == ("", ADDED)
    assert recover(f"I will add them.\n\n{text}") == ("I will add them.", ADDED)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "arguments": {"a": 1, "b": 2}}',
        '{"name": "add", "arguments": {"a": 1}}',
        '{"name": "add", "arguments": {"a": 1, "b": 2, "c": 3}}',
        '{"name": "add", "age": 3}',
        '{"a": 1, "b": 2}',
        '```json\n{"city": "Rome"}\n```',
        f'[{ONE}, {{"name": "Bob"}}]',
        "<tool_call>not a call</tool_call>",
        "<add>just text</add>",
        "Use add(a=1, b=2) for that.",
        "[add(a=x, b=2)]",
        "The list is [1, 2, 3].",
        f"The format is {ONE}, as you know.",
        "",
        "{" * 5000,
        "[" * 5000,
        "<tool_call>" * 2000,
    ],
)
def test_text_that_fits_no_tool_is_left_alone(text: str) -> None:
    assert recover(text) == (text, [])


@pytest.mark.parametrize(
    ("start", "again"),
    [
        ("", "<add>"),
        ("add", "```json\n{\n"),
        ("add", '\n{"a":1}'),
        ("<function=add>", "<parameter=a>"),
        ("<tool_call>add\n", "<arg_key>"),
        ("<tool_call>add\n<arg_key>a</arg_key>", "<arg_value>"),
        ("<tool_call>add\n<arg_key>", " "),
        ("<tool_call>add\n", "<a><b><c><d>"),
    ],
)
def test_endless_repetition_is_searched_in_linear_time(start: str, again: str) -> None:
    text = (start + again * (400_000 // len(again)))[:400_000]
    assert recover(text) == (text, []), "where every start is looked at to the end, this takes many minutes"


def test_a_repeated_call_is_found_every_time() -> None:
    rest, calls = recover(f"<tool_call>{ONE}</tool_call>\n" * 5000)
    assert (rest, calls) == ("", ADDED * 5000)


def test_several_calls_keep_their_order_and_the_words_between_them() -> None:
    text = f'First.\n<tool_call>{ONE}</tool_call>\nThen.\n<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>'
    rest, calls = recover(text)
    assert calls == [*ADDED, ("now", {})]
    assert rest.split() == ["First.", "Then."]
    assert recover(f'{ONE}\n{{"name": "now", "arguments": {{}}}}')[1] == [*ADDED, ("now", {})]


def test_text_in_tags_stays_text_where_the_schema_wants_text() -> None:
    text = "<function=read_file><parameter=path>\n007\n</parameter></function>"
    assert recover(text) == ("", [("read_file", {"path": "007"})])


def test_half_a_surrogate_pair_in_a_call_is_replaced() -> None:
    assert recover(r'{"name": "echo", "arguments": {"text": "a\ud83d"}}') == ("", [("echo", {"text": "a?"})])


plain = st.text(st.characters(blacklist_categories=("Cs",)), max_size=40)
forms = st.sampled_from(
    [
        "<tool_call>{}</tool_call>",
        "<tool_call>\n{}\n</tool_call>\n",
        "<function_call>{}</function_call>",
        "```json\n{}\n```",
        "{}",
    ]
)


@given(plain, forms)
def test_any_argument_survives_its_notation(value: str, form: str) -> None:
    call = json.dumps({"name": "echo", "arguments": {"text": value}})
    rest, calls = recover(form.replace("{}", call))
    if "</tool_call>" in value or "</function_call>" in value or "```" in value:
        return
    assert (rest, calls) == ("", [("echo", {"text": value})])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | plain,
        lambda v: st.lists(v, max_size=3) | st.dictionaries(plain, v, max_size=3),
        max_leaves=8,
    )
)
def test_json_answers_are_never_taken_for_calls(value: Any) -> None:
    text = json.dumps(value)
    assert recover(text) == (text, [])
    assert recover(f"```json\n{text}\n```") == (f"```json\n{text}\n```", [])


@given(st.text(max_size=200))
def test_no_text_raises_an_error(text: str) -> None:
    rest, calls = recover_calls(text, TOOLS)
    assert calls or rest == text
