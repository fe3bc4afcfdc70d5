"""Bad tools: what they return, raise or make of their arguments never harms the session, and the model is told."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.sessions import (
    Store,
    agent_of,
    check_settled,
    either_store,
    ended,
    file_store,
    finished_calls,
    note,
    results,
)
from treadle import (
    Agent,
    AskUser,
    Grant,
    Limits,
    Middleware,
    Runtime,
    ToolContext,
    ToolResult,
    later,
    tool,
)
from treadle.errors import (
    BadInput,
    ToolDefinitionError,
)
from treadle.testing import ScriptedModel, call
from treadle.tools.base import ParsedArguments

store = either_store
on_file = file_store


class Weird:
    def __repr__(self) -> str:
        return "<weird>"


@pytest.mark.parametrize("value", [Weird(), {1: Weird()}, {(1, 2): 3}, lambda: None], ids=lambda v: str(v)[:8])
async def test_a_tool_that_returns_something_that_is_not_json_has_failed(store: Store, value: Any) -> None:
    @tool
    def give() -> Any:
        return value

    agent, model = agent_of(call("give", id="a"), "ok", tools=[give])
    async with agent.session(store.open()) as session:
        assert (await ended(session)).reason == "answered"
        done = (await finished_calls(session))["a"]
    assert done.status == "error"
    assert "which is not JSON" in done.output and "It may have run" in done.output
    assert results(model.requests[1])["a"].text == done.output


async def test_a_tool_whose_parts_are_none_has_failed(store: Store) -> None:
    @tool
    def draw() -> ToolResult:
        return ToolResult("a cat", ("cat.png",))  # type: ignore[arg-type]

    agent, _ = agent_of(call("draw", id="a"), "ok", tools=[draw])
    async with agent.session(store.open()) as session:
        assert (await ended(session)).reason == "answered"
        done = (await finished_calls(session))["a"]
    assert done.status == "error" and "not text, images or files" in done.output


async def test_a_tool_that_makes_something_unspeakable_of_its_arguments_is_denied(store: Store) -> None:
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
    agent, model = agent_of(lines, "ok", tools=[Broken(), Asks(), Runs()])
    async with agent.session(store.open(), gate=later) as session:
        assert (await ended(session)).reason == "answered"
        check_settled(await session.facts())
    assert all("could not be found out" in shown.text for shown in results(model.requests[1]).values())


async def test_a_tool_that_returns_itself_in_itself_has_failed() -> None:
    endless: list[Any] = []
    endless.append(endless)

    @tool
    def give() -> Any:
        return endless

    agent, _ = agent_of(call("give", id="a"), "ok", tools=[give])
    async with agent.session() as session:
        assert (await ended(session)).reason == "answered"
        assert (await finished_calls(session))["a"].status == "error"


async def test_a_tool_that_returns_fifty_megabytes_is_shown_in_part_and_kept_whole(on_file: Store) -> None:
    size = 50 * 1024 * 1024

    @tool(safety="safe")
    def dump() -> str:
        return "0123456789abcdef" * (size // 16)

    agent, model = agent_of(call("dump", id="a"), "ok", tools=[dump])
    async with agent.session(on_file.open()) as session:
        assert (await ended(session)).reason == "answered"
        done = (await finished_calls(session))["a"]
        assert done.truncation is not None
        assert len((await session.artifact(done.truncation.artifact)).data) == size
    assert len(results(model.requests[1])["a"].text) < 17_000


async def test_a_tool_that_never_returns_does_not_keep_the_session(store: Store) -> None:
    release = threading.Event()

    @tool(timeout=0.05)
    def hang(context: ToolContext) -> str:
        release.wait()
        return "too late"

    agent, _ = agent_of(call("hang", id="a"), "ok", "still ok", tools=[hang])
    try:
        async with agent.session(store.open()) as session:
            assert (await ended(session)).answer == "ok"
            before = await session.facts()
            release.set()
            assert (await ended(session, "and?")).answer == "still ok"
            assert (await session.facts())[: len(before)] == before
    finally:
        release.set()


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
    ("function", "told"),
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
def test_a_function_without_a_schema_is_refused_when_the_agent_is_made(function: Any, told: str) -> None:
    with pytest.raises(ToolDefinitionError, match=told):
        Agent(ScriptedModel(), tools=[function])


def test_other_mistakes_in_an_agent_are_refused_when_it_is_made() -> None:
    with pytest.raises(BadInput, match="two tools are named 'note'"):
        Agent(ScriptedModel(), tools=[note, note])
    with pytest.raises(ToolDefinitionError, match="It takes name, description, safety"):
        tool(dangerous=True)(lambda: None)
    with pytest.raises(BadInput, match="two agents have the same name"):
        Runtime(":memory:", [Agent(ScriptedModel()), Agent(ScriptedModel())])


@pytest.mark.parametrize(
    ("given", "told"),
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
def test_what_has_the_wrong_shape_is_refused_when_the_agent_is_made(given: Any, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        Agent(**given)


async def test_an_option_that_a_session_does_not_have_is_refused_and_nothing_is_made(store: Store) -> None:
    agent: Any = Agent(ScriptedModel(), tools=[note])
    with pytest.raises(BadInput, match=r"no option 'grants'; there are: .*grant"):
        async with agent.session(store.open(), grants=Grant(forbid=("note",))):
            pass
    async with Runtime(store.open(), [agent], recover=False) as runtime:
        assert not (await runtime.sessions()).sessions


async def test_the_sync_form_says_what_to_write_where_a_loop_runs() -> None:
    with pytest.raises(BadInput, match=r"await agent.ask"):
        Agent(ScriptedModel("Hello.")).ask_sync("Hi")
