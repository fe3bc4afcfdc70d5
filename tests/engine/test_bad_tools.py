"""Bad tools: no result, exception or argument of a tool harms the session, and the model reads what happened."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.sessions import Store, note
from treadle import Agent, AskUser, Grant, Middleware, Runtime, later, tool
from treadle.errors import BadInput, ToolDefinitionError
from treadle.testing import ScriptedModel, call
from treadle.tools.base import ParsedArguments


async def test_a_call_whose_arguments_cannot_be_stored_is_denied(store: Store) -> None:
    class BrokenTool(AskUser):
        def __init__(self, name: str, *questions: Any) -> None:
            self.spec = replace(AskUser.spec, name=name)
            self.asks = questions

        def parse(self, arguments: str) -> ParsedArguments:
            return ParsedArguments({"question": object(), "options": []}, {})

        def questions(self, parsed: ParsedArguments) -> Any:
            return self.asks or super().questions(parsed)

    class NeverAsks(BrokenTool):
        def questions(self, parsed: ParsedArguments) -> Any:
            return ()

    tools = [BrokenTool("broken"), BrokenTool("asks", "not a question"), NeverAsks("runs")]
    lines = [call(one.spec.name) for one in tools]
    run = await store.run_script(lines, "ok", tools=tools, gate=later)
    assert run.reason == "answered"
    assert ["could not be found out" in shown.text for shown in run.messages.values()] == [True] * 3


def take_untyped(what):  # type: ignore[no-untyped-def]
    return what


def take_many(*names: str) -> str:
    return ""


def take_unreadable(what: "NoSuchType") -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def take_event(what: threading.Event) -> str:
    return ""


def take_function(what: Callable[[], None]) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (take_untyped, "parameter 'what' has no type hint; add one, such as `what: str`"),
        (take_many, "has no name a model could use"),
        (take_unreadable, "its type hints cannot be read"),
        (take_event, "no schema can be made"),
        (take_function, "no schema can be made"),
        (lambda: None, "cannot be a tool's name"),
        (AskUser, r"pass AskUser\(\)"),
        (3, "pass a function"),
    ],
)
def test_a_function_without_a_schema_is_refused_when_the_agent_is_created(function: Any, problem: str) -> None:
    with pytest.raises(ToolDefinitionError, match=problem):
        Agent(ScriptedModel(), tools=[function])


def test_duplicate_names_and_unknown_tool_options_are_refused() -> None:
    with pytest.raises(BadInput, match="two tools are named 'note'"):
        Agent(ScriptedModel(), tools=[note, note])
    with pytest.raises(ToolDefinitionError, match="It takes name, description, safety"):
        tool(dangerous=True)(lambda: None)
    with pytest.raises(BadInput, match="two agents have the same name"):
        Runtime(":memory:", [Agent(ScriptedModel()), Agent(ScriptedModel())])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": 42}, "model is a name, or an object with name, window, stream and close, but this is a int"),
        ({"tools": note}, "tools is a list, but this is a FunctionTool"),
        ({"tools": "note"}, "tools is a list, but this is a str"),
        ({"middleware": Middleware()}, "middleware is a list, but this is a Middleware"),
        ({"limits": {"turns": 3}}, r"limits is a Limits\(...\), but this is a dict"),
        ({"grant": "full"}, r"grant is a Grant\(...\), but this is a str"),
        ({"sampling": {"temperature": 1}}, r"sampling is a Sampling\(...\), but this is a dict"),
        ({"grant": Grant(approve="shell")}, r"grant: Expected `array`, got `str`"),  # type: ignore[arg-type]
        ({"middleware": [Middleware]}, "objects of a Middleware class, but this has the class Middleware"),
        ({"middleware": [len]}, "objects of a Middleware class, but this has a builtin_function_or_method"),
        ({"secrets": "hunter2"}, "secrets is a list, but this is a str"),
        ({"on_error": "ignore"}, "on_error='ignore' is not one of"),
        ({"approval_ttl": 0}, "approval_ttl must be more than 0"),
        ({"output": threading.Event}, "cannot be made into a schema: Unable to generate"),
    ],
)
def test_an_agent_argument_of_the_wrong_type_is_refused(options: Any, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        Agent(**options)


async def test_an_unknown_session_option_is_refused_and_no_session_is_created(store: Store) -> None:
    agent: Any = Agent(ScriptedModel(), tools=[note])
    with pytest.raises(BadInput, match=r"no option 'grants'; there are: .*grant"):
        async with agent.session(store.open(), grants=Grant(forbid=("note",))):
            pass
    async with Runtime(store.open(), [agent], recover=False) as runtime:
        assert not (await runtime.sessions()).sessions


async def test_ask_sync_in_a_running_loop_says_to_use_await() -> None:
    with pytest.raises(BadInput, match=r"await agent.ask"):
        Agent(ScriptedModel("Hello.")).ask_sync("Hi")
