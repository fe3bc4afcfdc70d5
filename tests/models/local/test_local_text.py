"""What is read from a request without a model, and how arguments are found in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from treadle.engine import context
from treadle.messages import Json, ResultMessage, TextPart, ToolSpec, UserMessage
from treadle.models.local import argument_values, quote_result, request_text
from treadle.models.local.argument_values import ValueSources
from treadle.models.local.chat_prompt import split_conversation

STARTERS = {"read", "list", "write", "count"}
WORDS = ["take", "007", "2.5", "-3", "a.txt", "~/b", "and", "then", "it", "as", "'x y'", '"', "seven", "50%", "é"]
WORDS += ["1e9", "."]
SCHEMAS: list[dict[str, Json]] = [
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^[a-z]+$"},
    {"type": "integer", "minimum": 1, "maximum": 10},
    {"type": "integer", "exclusiveMinimum": 2},
    {"type": "number", "exclusiveMaximum": 5},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
]


def tool(
    properties: dict[str, Json], *examples: tuple[str, dict[str, Json]], optional: tuple[str, ...] = ()
) -> ToolSpec:
    required = [name for name in properties if name not in optional]
    return ToolSpec("t", "Do it.", {"type": "object", "properties": properties, "required": required}, examples)


def values(spec: ToolSpec, sources: ValueSources) -> dict[str, list[Json]]:
    return argument_values.narrow_arguments(spec, sources)[1]


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        ("List the files and read a.txt", ["List the files", "read a.txt"]),
        ("Read a.txt, then count its words", ["Read a.txt", "count its words"]),
        ("What is 2 + 2? Which day is it?", ["What is 2 + 2?", "Which day is it?"]),
        ("Who wrote Romeo and Juliet?", ["Who wrote Romeo and Juliet?"]),
        ("Add 3 and 4, and what time is it?", ["Add 3 and 4", "what time is it?"]),
        ("", []),
    ],
)
def test_a_request_is_split_where_another_request_begins(request_: str, parts: list[str]) -> None:
    assert request_text.split_clauses(request_, STARTERS) == parts


def test_a_long_message_has_few_clauses_and_loses_nothing() -> None:
    parts = request_text.split_clauses("One. Two. Three. Four. Five. Six.", STARTERS)
    assert len(parts) == request_text.MOST_CLAUSES
    assert " ".join(parts) == "One. Two. Three. Four. Five. Six."


def test_a_short_result_replaces_it_in_the_clause() -> None:
    assert request_text.insert_result("multiply that by 3", "14") == "multiply 14 by 3"
    assert request_text.insert_result("what time is it?", "14") == "what time is it?"
    assert request_text.insert_result("remember that I am late", "14") == "remember that I am late"
    assert request_text.insert_result("count the words in it", "first line\nsecond line") == "count the words in it"


def test_paths_addresses_and_numbers_are_distinguished() -> None:
    said = "Copy ~/a/b.md and ../c to https://example.org/x?y=1, 24/7 or 2.5 times, e.g. seven."
    assert request_text.find_paths(said) == ["~/a/b.md", "../c", "https://example.org/x?y=1"]
    assert request_text.find_numbers(said) == ["24", "7", "2.5", "7"]


READ = tool({"path": {"type": "string"}}, ("Read x.txt", {"path": "x.txt"}))
NOTE = tool({"text": {"type": "string"}}, ("Note: feed the cat", {"text": "feed the cat"}))


def test_a_path_is_taken_from_the_request_before_the_conversation() -> None:
    assert values(READ, ValueSources("open b.txt", ("c.txt",), ("a.txt",))) == {"path": ["b.txt"]}
    assert values(READ, ValueSources("open it", ("c.txt\nd.txt",), ("a.txt",))) == {"path": ["c.txt", "d.txt"]}
    assert values(READ, ValueSources("open it", (), ("a.txt",))) == {"path": ["a.txt"]}


def test_a_tool_without_a_value_for_its_argument_is_not_chosen() -> None:
    assert not argument_values.can_fill(READ, ValueSources("hello"))
    assert argument_values.can_fill(READ, ValueSources("read a.txt"))


def test_numbers_fit_the_schema_or_are_not_offered() -> None:
    spec = tool({"count": {"type": "integer", "minimum": 1, "maximum": 10}})
    assert values(spec, ValueSources("take 3 or 2.5 or 50 of them")) == {"count": [3]}
    assert not argument_values.can_fill(spec, ValueSources("take 99"))


def test_a_sum_is_built_from_the_numbers_of_the_request() -> None:
    spec = tool({"sum": {"type": "string"}}, ("3 plus 4", {"sum": "3 + 4"}), ("6 times 9", {"sum": "6 * 9"}))
    assert set(values(spec, ValueSources("12 times 7"))["sum"]) == {"12 + 7", "12 * 7", "7 + 12", "7 * 12"}
    assert values(spec, ValueSources("work out 17 * 23")) == {"sum": ["17 * 23"]}
    assert "14 * 3" in values(spec, ValueSources("times 3", ("14",)))["sum"]


def test_a_value_reaches_the_end_as_it_does_in_the_examples() -> None:
    assert values(NOTE, ValueSources("Note: bring 5 euros."))["text"] == ["bring 5 euros"]
    assert values(NOTE, ValueSources("Note that I owe Tom 5 euros."))["text"] == [
        "that I owe Tom 5 euros", "I owe Tom 5 euros", "owe Tom 5 euros", "Tom 5 euros", "5 euros", "euros",
    ]  # fmt: skip


def test_quotes_mark_a_value_unless_they_are_part_of_it() -> None:
    assert values(NOTE, ValueSources("Write 'buy milk' on my list")) == {"text": ["buy milk"]}
    assert values(NOTE, ValueSources('Note: echo "a b"')) == {"text": ['echo "a b"']}
    assert values(NOTE, ValueSources('Note: "a b"')) == {"text": ["a b"]}


def test_earlier_results_are_offered_when_the_request_refers_to_them() -> None:
    sources = ValueSources.collect("save it as a note", ["one\ntwo\nthree"], [])
    assert values(NOTE, sources)["text"] == ["one\ntwo\nthree", "one", "two", "three"]


def test_an_optional_word_is_one_that_the_examples_do_not_have() -> None:
    examples = (("List the files", {}), ("List the docs", {"folder": "docs"}))
    spec = tool({"folder": {"type": "string"}}, *examples, optional=("folder",))
    assert values(spec, ValueSources("List the files in music, please")) == {"folder": ["music"]}
    narrowed = argument_values.narrow_arguments(spec, ValueSources("List the files"))
    assert argument_values.find_only_arguments(*narrowed) == {}


def test_an_argument_without_examples_is_found_by_its_schema() -> None:
    spec = tool({"path": {"type": "string"}, "city": {"anyOf": [{"type": "string"}, {"type": "null"}]}})
    kinds = {field.name: field.kind for field in argument_values.list_fields(spec)}
    assert kinds == {"path": "path", "city": "span"}


@given(
    st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
    st.sampled_from(SCHEMAS),
    st.booleans(),
)
def test_only_values_that_fit_the_schema_are_offered(said: str, schema: dict[str, Json], shown: bool) -> None:
    examples = (("Take a.txt", {"it": "a.txt"}), ("Take word", {"it": "word"})) if shown else ()
    spec = tool({"it": schema}, *examples)
    for clause in request_text.split_clauses(said, STARTERS):
        for value in values(spec, ValueSources.collect(clause, ["7"], [said])).get("it", []):
            Draft202012Validator(schema).validate(value)


def test_a_long_result_is_shortened_to_the_nearest_lines() -> None:
    result = "\n".join([f"line {i} is about nothing much at all" for i in range(50)] + ["The rent is 750 euros."])
    quote = quote_result.shorten_result(result, "How high is the rent?")
    assert "The rent is 750 euros." in quote
    assert len(quote) <= quote_result.LONGEST_QUOTE + 10
    assert quote.endswith("…")


def clean(text: str, *, ok: bool = True) -> str:
    return quote_result.clean_result(ResultMessage("c", "read_file", text, ok=ok))


def test_a_result_is_quoted_without_what_is_meant_for_the_model() -> None:
    assert clean("     1\tbuy milk\n     2\tcall Anna\n") == "buy milk\ncall Anna"
    assert clean("1\tbuy milk\n[3 more lines. Read on with offset=2.]") == "buy milk"
    assert clean("name\tage\nAnna\t7") == "name\tage\nAnna\t7"
    cut = "\n[… 900 characters left out; the whole is artifact a1 …]\n"
    assert clean(f"1\tone\n2\ttwo\n3\tth{cut}ght\n9\tnine\n") == "one\ntwo\nnine"
    assert clean(f"1\tone\n2\ttwo\n3{cut}7\tseven\n8\teight") == "one\ntwo\neight"
    assert clean(f"one{cut}two") == "one\ntwo"
    failure = "There is no file a.txt. Use list_files to see the files."
    assert clean(failure, ok=False) == "There is no file a.txt."
    assert clean("Call list_files first.", ok=False) == "Call list_files first."
    denied = "Denied: Nobody can be asked. Keep to the sandbox, or tell the user to allow it with --yes."
    assert clean(denied, ok=False) == "Denied: Nobody can be asked."


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("bash: wx: command not found\n[exit code 127]", "bash: wx: command not found"),
        ("[exit code 1]", "exit code 1"),
        ("[no output]", "no output"),
        ("3\n[now in src]\n[it changed AGENTS.md, which tells agents what to do: say so to the user]", "3"),
        ("[From https://a.example/. Others wrote what follows.]\nHello\n[end of https://a.example/]", "Hello"),
        ("one\n[… 90 characters left out; the whole is artifact 9f …]\ntwo", "one\ntwo"),
        ("a.txt: milk\n[It took too long or there is too much: not all was seen.]", "a.txt: milk"),
        ("[1, 2, 3]", "[1, 2, 3]"),
        ('["call Anna", "buy milk"]', '["call Anna", "buy milk"]'),
        ("- [x] call Anna", "- [x] call Anna"),
        ("[true, false]", "[true, false]"),
    ],
)
def test_a_note_of_a_tool_is_quoted_only_where_there_is_nothing_else(text: str, quoted: str) -> None:
    assert clean(text) == quoted
    assert clean(text, ok=False) == quoted


def test_notes_of_the_runtime_are_no_part_of_a_result_or_a_request() -> None:
    note = context._WRAP_UP["token_limit"]
    assert clean(f"84\n\n[{note}]") == "84"
    told = UserMessage((TextPart(note),))
    assert split_conversation([UserMessage((TextPart("hi"),)), told]).request == "hi"
