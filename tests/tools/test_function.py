"""Tools from plain functions: their schema, their arguments, and their definitions gone wrong."""

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from treadle.errors import BadInput, ToolDefinitionError
from treadle.events import Question
from treadle.tools.ask_user import AskUser
from treadle.tools.base import ParsedArguments, Tool, ToolContext, ToolError, ToolInputError
from treadle.tools.function import tool

CONTEXT = ToolContext("s", "c", Path("/w"))


class Point(BaseModel):
    x: int
    y: int = 0


def get_error(tool: Tool, arguments: str) -> str:
    with pytest.raises(ToolInputError) as error:
        tool.parse(arguments)
    return str(error.value)


async def run_tool(tool: Tool, arguments: str) -> object:
    return await tool.run(tool.parse(arguments), CONTEXT)


# ── what a model reads of a function ─────────────────────────────────────────────────────────────────────


def test_a_function_becomes_a_tool_by_its_hints_and_docstring() -> None:
    @tool
    def word_count(path: str, unit: Literal["words", "lines"] = "words", tries: int = 3) -> int:
        """Count the words in a text file.

        Args:
            path: the file to look at
            unit (str): what to count
        """
        return tries

    assert (word_count.spec.name, word_count.spec.description) == ("word_count", "Count the words in a text file.")
    assert word_count.spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["path"],
        "properties": {
            "path": {"type": "string", "description": "the file to look at"},
            "unit": {"type": "string", "enum": ["words", "lines"], "default": "words", "description": "what to count"},
            "tries": {"type": "integer", "default": 3},
        },
    }
    assert word_count("x", tries=5) == 5, "it is still the function it was"


@pytest.mark.parametrize(
    ("docstring", "description", "of_x"),
    [
        ("Move.\n\nArgs:\n    x: to the right,\n        or left\nReturns:\n    y", "Move.", "right, or left"),
        ("Move.\n\n:param x: to the right,\n    or left\n:returns: nothing", "Move.", "right, or left"),
        ("Move.\n\n:param int x: to the right", "Move.", "right"),
        ("Move.\n\nArgs:\n    x: to the right\n\nIt cannot be undone.", "Move.\n\nIt cannot be undone.", "right"),
    ],
)
def test_a_docstring_describes_the_function_and_its_parameters(docstring: str, description: str, of_x: str) -> None:
    def move(x: int) -> None: ...

    move.__doc__ = docstring
    spec = tool(move).spec
    assert spec.description == description
    assert spec.parameters["properties"]["x"]["description"] == f"to the {of_x}"


def test_a_field_in_the_hint_or_as_a_default_describes_and_limits_its_parameter() -> None:
    up = Annotated[int, Field(description="upwards", ge=1)]

    @tool
    def move(up: up, x: int = Field(3, description="to the right", ge=1), y: int = Field(le=9), z: int = 0) -> None:
        """Move there.

        Args:
            y: to the top
        """

    assert move.spec.parameters["properties"] == {
        "up": {"type": "integer", "minimum": 1, "description": "upwards"},
        "x": {"type": "integer", "minimum": 1, "description": "to the right", "default": 3},
        "y": {"type": "integer", "maximum": 9, "description": "to the top"},
        "z": {"type": "integer", "default": 0},
    }
    assert move.spec.parameters["required"] == ["up", "y"]
    assert move.parse('{"up": 2, "y": 1}').values == {"up": 2, "x": 3, "y": 1, "z": 0}
    assert "x: Input should be greater than or equal to 1" in get_error(move, '{"up": 2, "x": 0, "y": 1}')


def test_options_override_the_function() -> None:
    words = {"name": "distance", "description": "How far it is.", "examples": [("how far?", {"to": "Rome"})]}

    @tool(safety="safe", timeout=5, cap=99, polling=True, on_error="stop", **words)
    def _far(to: str) -> int:
        return 1

    assert (_far.name, _far.spec.description, _far.assess_safety({})) == ("distance", "How far it is.", "safe")
    assert (_far.timeout, _far.cap, _far.polling, _far.on_error) == (5, 99, True, "stop")
    assert _far.spec.examples == (("how far?", {"to": "Rome"}),)


def test_a_function_without_options_is_described_by_its_name_and_needs_caution() -> None:
    def list_all_files() -> None: ...

    made = tool(list_all_files)
    assert (made.spec.description, made.spec.parameters["properties"]) == ("list all files", {})
    assert made.assess_safety({}) == "caution"


def test_how_dangerous_a_call_is_can_depend_on_its_arguments() -> None:
    @tool(safety=lambda arguments: "destructive" if arguments["force"] else "safe")
    def push(force: bool) -> None: ...

    assert push.assess_safety({"force": False}) == "safe" and push.assess_safety({"force": True}) == "destructive"


@pytest.mark.parametrize("classify", [lambda arguments: arguments["missing"], lambda arguments: "harmless"])
def test_a_call_of_unknown_danger_is_destructive(classify: Any) -> None:
    @tool(safety=classify)
    def push() -> None: ...

    assert push.assess_safety({}) == "destructive"


# ── definitions that cannot be ─────────────────────────────────────────────────────────────────────────────


def no_hint(x): ...  # type: ignore[no-untyped-def]
def starred(*args: int) -> None: ...
def starred_keywords(**kwargs: int) -> None: ...
def positional(x: int, /) -> None: ...
def unknown_hint(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def no_schema(x: threading.Lock) -> None: ...  # type: ignore[valid-type]
def no_json_schema(x: Callable[[int], int]) -> None: ...
def yielding() -> Iterator[int]:
    yield 1


async def yielding_later() -> AsyncIterator[int]:
    yield 1


def odd_default(x: Any = object()) -> None: ...  # noqa: B008


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_hint, "no_hint: parameter 'x' has no type hint; add one, such as `x: str`"),
        (starred, r"starred: parameter \*args: int has no name a model could use"),
        (starred_keywords, r"parameter \*\*kwargs: int has no name"),
        (positional, "parameter x: int has no name a model could use"),
        (unknown_hint, "unknown_hint: its type hints cannot be read: name 'Nowhere' is not defined"),
        (no_schema, "no_schema: no schema can be made from its parameters"),
        (no_json_schema, "no_json_schema: no schema can be made from its parameters"),
        (odd_default, "odd_default: no schema can be made from its parameters: Default value .* not JSON"),
        (yielding, "yielding: it yields; return the result"),
        (yielding_later, "yielding_later: it yields; return the result"),
        (lambda: None, "'<lambda>' cannot be a tool's name: give one of letters"),
        (functools.partial(starred), "cannot be a tool's name"),
        (dict, r"dict is a class: pass dict\(\)"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_the_reason(function: Any, words: str) -> None:
    with pytest.raises(ToolDefinitionError, match=words):
        tool(function)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"safty": "safe"}, "Unexpected keyword argument 'safty'. It takes name, description, safety"),
        ({"safety": "harmless"}, r"safety='harmless' is not one of \('safe', 'caution', 'destructive'\)"),
        ({"on_error": "ignore"}, "on_error='ignore' is not one of"),
        ({"timeout": "10"}, "timeout='10' is no number of seconds; None is no limit"),
        ({"timeout": 0}, "timeout=0 is no number of seconds"),
        ({"cap": -1}, "cap=-1 is no number of bytes to show of its output"),
        ({"name": "two words"}, "'two words' cannot be a tool's name"),
        ({"name": "x" * 65}, "cannot be a tool's name"),
    ],
)
def test_options_that_mean_nothing_are_refused_with_those_that_do(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolDefinitionError, match=words):
        tool(**options)(starred)


def test_a_definition_gone_wrong_is_bad_input() -> None:
    assert issubclass(ToolDefinitionError, BadInput) and issubclass(ToolInputError, BadInput)


# ── arguments ──────────────────────────────────────────────────────────────────────────────────────────────


@tool
def draw(start: Point, rest: list[Point] | None = None, label: str = "") -> str:
    """Draw a line."""
    return f"{start!r} {rest!r} {label}"


async def test_pydantic_models_are_given_as_models_and_kept_as_json() -> None:
    parsed = draw.parse('{"rest": [{"x": "2"}], "start": {"x": 1}}')
    assert parsed.arguments == {"start": {"x": 1, "y": 0}, "rest": [{"x": 2, "y": 0}], "label": ""}
    assert list(parsed.arguments) == ["start", "rest", "label"], "in the order of the parameters"
    assert parsed.values["start"] == Point(x=1)
    assert await run_tool(draw, '{"start": {"x": 1}}') == "Point(x=1, y=0) None "


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "start: Field required"),
        ('{"start": {"x": 1}', "not valid JSON (Invalid JSON: EOF"),
        ("I think so", "not valid JSON"),
        ("null", "arguments: Input should be an object (got 'None')"),
        ("[1]", "arguments: Input should be an object"),
        ('{"start": {"x": "one"}}', "start.x: Input should be a valid integer"),
        ('{"start": {"x": 1}, "colour": "red"}', "colour: Extra inputs are not permitted (got 'red')"),
        ('{"start": {"x": 1}, "label": "\\ud800"}', "not valid JSON"),
        ('{"start": {"x": 1}, "label": "\ud800"}', "do not fit"),
        ("[" * 100_000, "not valid JSON"),
        ('{"start": {"x": %s}}' % ("9" * 5000), "not valid JSON"),
    ],
)
def test_arguments_that_do_not_fit_are_answered_with_what_is_wrong(arguments: str, words: str) -> None:
    text = get_error(draw, arguments)
    assert words in text and "draw" in text
    assert text.encode(), "it can be stored"


def test_the_reason_names_the_parameters_few_of_many_faults_and_no_large_argument_whole() -> None:
    text = get_error(draw, '{"start": {"x": 1}, "rest": [' + ",".join(["1"] * 1000) + "]}")
    assert "and 995 more" in text and len(text) < 1000
    assert text.endswith("Its parameters: start, rest, label.")
    assert len(get_error(draw, '{"start": "%s"}' % ("x" * 100_000))) < 500


@pytest.mark.parametrize(
    "name", ["json", "schema", "copy", "model_dump", "model_config", "_private", "self_", "p0", "validate"]
)
async def test_a_parameter_can_have_any_name(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def echo({name}: str) -> str:\n    return {name}", scope)
    echo = tool(scope["echo"])
    assert list(echo.spec.parameters["properties"]) == echo.spec.parameters["required"] == [name]
    assert echo.parse(f'{{"{name}": "x"}}').arguments == {name: "x"}
    assert await run_tool(echo, f'{{"{name}": "x"}}') == "x"


def test_a_validator_that_breaks_is_an_error_in_the_arguments() -> None:
    class Broken(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def look_up(cls, value: int) -> int:
            raise KeyError(value)

    @tool
    def use(it: Broken) -> None: ...

    assert get_error(use, '{"it": {"x": 1}}') == "The arguments of use cannot be read: KeyError(1)."


def test_a_default_that_does_not_fit_its_hint_is_taken_as_it_is() -> None:
    @tool
    def use(x: int = "none") -> None: ...  # type: ignore[assignment]

    assert use.parse("{}").arguments == {"x": "none"}


@given(st.text())
def test_any_text_is_either_arguments_or_get_error(arguments: str) -> None:
    for one in (draw, AskUser()):
        with contextlib.suppress(ToolInputError):
            assert isinstance(one.parse(arguments), ParsedArguments)


# ── running ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_context_is_filled_in_and_not_shown_to_the_model() -> None:
    @tool
    def where(name: str, context: ToolContext) -> str:
        return f"{context.key} {context.workspace} {name}"

    assert list(where.spec.parameters["properties"]) == ["name"]
    assert await run_tool(where, '{"name": "x"}') == "s:c /w x"
    assert "context" in get_error(where, '{"name": "x", "context": {}}')


async def test_a_direct_call_of_the_function_needs_no_context() -> None:
    @tool
    def where(context: ToolContext | None = None) -> str:
        return context.key if context is not None else "here"

    @tool
    def there(context: Annotated[Optional["ToolContext"], "the runtime's"] = None) -> str:
        return where(context)

    assert (where(), await run_tool(where, "{}"), await run_tool(there, "{}")) == ("here", "s:c", "s:c")
    assert where.spec.parameters["properties"] == there.spec.parameters["properties"] == {}


async def test_an_async_function_runs_in_the_loop_and_a_plain_one_in_a_thread() -> None:
    def is_main_thread() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def is_in_loop() -> bool:
        return is_main_thread()

    def return_awaitable() -> Any:
        return is_in_loop()

    results = [await run_tool(tool(one), "{}") for one in (is_in_loop, is_main_thread, return_awaitable)]
    assert results == [True, False, True], "an awaitable that a plain function returns is awaited"


# ── asking the user ────────────────────────────────────────────────────────────────────────────────────────


def test_ask_user_asks_what_the_model_wants_to_know() -> None:
    ask = AskUser()
    assert ask.questions(ask.parse('{"question": "Which?"}')) == (Question("Which?"),)
    both = ask.parse('{"question": "Which?", "options": ["this", "that"]}')
    assert ask.questions(both) == (Question("Which?", ("this", "that")),)
    assert ask.assess_safety(both.arguments) == "safe"


async def test_ask_user_is_never_run() -> None:
    with pytest.raises(ToolError):
        await run_tool(AskUser(), '{"question": "Which?"}')
