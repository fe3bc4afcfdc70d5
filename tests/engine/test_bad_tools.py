"""Bad tools: no result, exception or argument of a tool harms the session, and the model reads what happened."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.sessions import Store, build_agent, check_settled, note, read_finished_calls, run_to_end, select_results
from treadle import Agent, AskUser, Grant, Limits, Middleware, Runtime, ToolResult, later, tool
from treadle.errors import BadInput, ToolDefinitionError
from treadle.testing import ScriptedModel, call
from treadle.tools.base import ParsedArguments


class Weird:
    def __repr__(self) -> str:
        return "<weird>"


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Weird(), "which is not JSON"),
        ({1: Weird()}, "which is not JSON"),
        ({(1, 2): 3}, "which is not JSON"),
        (lambda: None, "which is not JSON"),
        (ENDLESS, "which is not JSON"),
        (ToolResult("a cat", ("cat.png",)), "not text, images or files"),  # type: ignore[arg-type]
    ],
    ids=["object", "object inside", "key", "function", "endless list", "parts"],
)
async def test_a_result_that_cannot_be_stored_is_an_error(store: Store, value: Any, problem: str) -> None:
    @tool
    def give() -> Any:
        return value

    run = await store.run_script(call("give", id="a"), "ok", tools=[give])
    assert run.reason == "answered"
    done = run.results["a"]
    assert done.status == "error" and problem in done.output and "It may have run" in done.output
    assert select_results(run.requests[1])["a"].text == done.output


async def test_a_call_whose_arguments_cannot_be_stored_is_denied(store: Store) -> None:
    class Broken(AskUser):
        spec = replace(AskUser.spec, name="broken")

        def parse(self, arguments: str) -> ParsedArguments:
            return ParsedArguments({"question": object(), "options": []}, {})

    class Asks(Broken):
        spec = replace(AskUser.spec, name="asks")

        def questions(self, parsed: ParsedArguments) -> Any:
            return ("not a question",)

    class Runs(Broken):
        spec = replace(AskUser.spec, name="runs")

        def questions(self, parsed: ParsedArguments) -> Any:
            return ()

    lines = [call("broken", id="a"), call("asks", id="b"), call("runs", id="c")]
    agent, model = build_agent(lines, "ok", tools=[Broken(), Asks(), Runs()])
    async with agent.session(store.open(), gate=later) as session:
        assert (await run_to_end(session)).reason == "answered"
        check_settled(await session.facts())
    assert all("could not be found out" in shown.text for shown in select_results(model.requests[1]).values())


async def test_fifty_megabytes_of_output_are_cut_for_the_model_and_stored_whole(on_file: Store) -> None:
    size = 50 * 1024 * 1024

    @tool(safety="safe")
    def dump() -> str:
        return "0123456789abcdef" * (size // 16)

    agent, model = build_agent(call("dump", id="a"), "ok", tools=[dump])
    async with agent.session(on_file.open()) as session:
        assert (await run_to_end(session)).reason == "answered"
        done = (await read_finished_calls(session))["a"]
        assert done.truncation is not None
        assert len((await session.artifact(done.truncation.artifact)).data) == size
    assert len(select_results(model.requests[1])["a"].text) < 17_000


def untyped(what):  # type: ignore[no-untyped-def]
    return what


def starred(*names: str) -> str:
    return ""


def unreadable(what: "NoSuchType") -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def unschemable(what: threading.Event) -> str:
    return ""


def odd_default(what: Callable[[], None]) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (untyped, "parameter 'what' has no type hint; add one, such as `what: str`"),
        (starred, "has no name a model could use"),
        (unreadable, "its type hints cannot be read"),
        (unschemable, "no schema can be made"),
        (odd_default, "no schema can be made"),
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
        ({"limits": Limits(turns=None)}, r"limits: Expected `int`, got `null` - at `\$.turns`"),  # type: ignore[arg-type]
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
