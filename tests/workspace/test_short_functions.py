"""Where plain functions run: in a thread, or directly when they have proved to be short."""

import asyncio
import contextvars
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit import sessions as kit
from treadle import Agent, CallFinished, Limits, Run, ToolContext, ToolError, tool
from treadle.errors import ToolDefinitionError
from treadle.events import OutputDelta
from treadle.testing import ScriptedModel, call
from treadle.workspace import short_functions
from treadle.workspace.short_functions import NEEDED_CALLS, FunctionPlace


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call is short and waits for nothing, however busy the machine of the test is."""
    monkeypatch.setattr(short_functions, "SHORT_SECONDS", 60.0)
    monkeypatch.setattr(short_functions, "LONG_SECONDS", 60.0)
    monkeypatch.setattr(short_functions, "read_usage", lambda: (0.0, 0))


def is_loop_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


async def prove(function: Callable[[], object]) -> FunctionPlace:
    """Call a function until its next call runs directly."""
    place = FunctionPlace(None)
    while place._needs_thread:
        await place.call(function)
    return place


@pytest.mark.usefixtures("quiet_machine")
async def test_a_function_runs_directly_after_three_short_calls() -> None:
    place = FunctionPlace(None)
    assert [await place.call(is_loop_thread) for _ in range(5)] == [False] * NEEDED_CALLS + [True, True]


async def test_a_really_short_function_proves_itself_on_a_real_machine() -> None:
    place = await asyncio.wait_for(prove(is_loop_thread), kit.PATIENCE)
    assert await place.call(is_loop_thread) is True


@pytest.mark.parametrize("take_long", [lambda: time.sleep(0.003), lambda: spin(0.003)], ids=["waits", "computes"])
async def test_one_long_call_gives_the_function_its_thread_back_for_good(take_long: Callable[[], None]) -> None:
    is_long = False

    def work() -> bool:
        if is_long:
            take_long()
        return is_loop_thread()

    place = await prove(work)
    is_long = True
    assert await place.call(work) is True
    is_long = False
    assert not any([await place.call(work) for _ in range(20)])


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_a_call_that_took_long_only_because_the_machine_is_busy_does_not_count(
    quiet_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await prove(is_loop_thread)
    monkeypatch.setattr(short_functions, "LONG_SECONDS", 0.0)  # so every call is long, without CPU time and waiting
    assert [await place.call(is_loop_thread) for _ in range(2)] == [True, True]


@pytest.mark.parametrize("wait", [lambda: time.sleep(1e-6), lambda: None], ids=["sleeps", "calls the loop back"])
async def test_a_function_that_waits_keeps_its_thread_however_short_it_is(
    wait: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_functions, "SHORT_SECONDS", 60.0)
    loop = asyncio.get_running_loop()

    async def answer() -> bool:
        return True

    def ask_the_loop() -> bool:  # on the loop's own thread this would wait for itself, for ever
        wait()
        return asyncio.run_coroutine_threadsafe(answer(), loop).result() and is_loop_thread()

    place = FunctionPlace(None)
    assert not any([await place.call(ask_the_loop) for _ in range(20)])


# --- what a function may expect is the same in both places


@pytest.fixture(params=["thread", "directly"])
def place(request: pytest.FixtureRequest) -> FunctionPlace:
    return FunctionPlace(request.param == "thread")


async def test_a_function_sees_the_context_of_its_caller_and_does_not_change_it(place: FunctionPlace) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def change() -> str:
        before = variable.get()
        variable.set("by the function")
        return before

    variable.set("by the caller")
    assert await place.call(change) == "by the caller" == variable.get()


async def test_a_function_sees_no_running_loop_and_may_run_its_own(place: FunctionPlace) -> None:
    def run_a_loop() -> str:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.current_task()
        return asyncio.run(asyncio.sleep(0, "ran")) + Agent(ScriptedModel(" asked")).ask_sync("hi")

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert await place.call(run_a_loop) == "ran asked"
    assert asyncio.current_task() is task and asyncio.get_running_loop() is loop
    await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, GeneratorExit, asyncio.CancelledError])
async def test_an_exception_that_would_stop_the_event_loop_is_an_error_of_the_tool(
    kind: type[BaseException], place: FunctionPlace
) -> None:
    def fail() -> None:
        raise kind("enough")

    with pytest.raises(RuntimeError, match=f"the tool raised {kind.__name__}: enough"):
        await place.call(fail)


async def test_a_keyboard_interrupt_in_the_loops_thread_is_the_users() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await FunctionPlace(False).call(interrupt)


async def test_a_parameter_may_have_any_name() -> None:
    @tool(safety="safe")
    def name(function: str, self: str, callable: str) -> str:
        return function + self + callable

    run = await kit.run_script(call("name", id="a", function="a", self="b", callable="c"), "done", tools=[name])
    assert run.results["a"].output == "abc"


@pytest.mark.usefixtures("quiet_machine")
async def test_a_function_that_belongs_to_a_thread_fails_once_and_gets_its_thread_back() -> None:
    database: list[sqlite3.Connection] = []

    def count() -> int:
        if not database:
            database.append(sqlite3.connect(":memory:"))
        return database[0].execute("SELECT 1").fetchone()[0]

    place = await prove(count)  # the thread that was idle last is used first, so one thread makes these calls
    with pytest.raises(sqlite3.ProgrammingError, match="same thread"):
        await place.call(count)
    assert [await place.call(count) for _ in range(20)] == [1] * 20


@pytest.mark.usefixtures("quiet_machine")
async def test_a_tools_own_error_costs_it_nothing() -> None:
    is_refused = False

    def refuse() -> bool:
        if is_refused:
            raise ToolError("no such order")
        return is_loop_thread()

    place = await prove(refuse)
    is_refused = True
    with pytest.raises(ToolError, match="no such order"):
        await place.call(refuse)
    is_refused = False
    assert await place.call(refuse) is True


# --- as tools


@pytest.mark.usefixtures("quiet_machine")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"safety": "safe"}, [False, False, False, True]),
        ({}, [False] * 4),
        ({"safety": lambda arguments: "safe"}, [False] * 4),
        ({"safety": "safe", "thread": True}, [False] * 4),
        ({"thread": False}, [True] * 4),
    ],
    ids=["safe", "with effects", "depends on its arguments", "thread=True", "thread=False"],
)
async def test_only_safe_tools_change_their_place_by_themselves(options: dict[str, Any], expected: list[bool]) -> None:
    where = tool(name="where", polling=True, **options)(is_loop_thread)
    lines = [call("where", id=str(number)) for number in range(4)]
    run = await kit.run_script(*lines, "done", tools=[where])
    assert [run.results[str(number)].output == "true" for number in range(4)] == expected


def test_an_async_function_has_no_thread_to_choose() -> None:
    async def work() -> None: ...

    with pytest.raises(ToolDefinitionError, match="it is async"):
        tool(thread=True)(work)


async def test_output_of_a_direct_call_comes_before_its_result() -> None:
    @tool(thread=False)
    def talk(context: ToolContext) -> str:
        context.output("halfway\n")
        return "done"

    agent, _ = kit.build_agent(call("talk"), "done", tools=[talk])
    async with agent.session() as session, session.run("go") as run:
        seen = [type(event) async for event in run if isinstance(event, OutputDelta | CallFinished)]
    assert seen == [OutputDelta, CallFinished]


async def test_a_run_whose_model_and_tool_never_wait_can_still_be_stopped() -> None:
    calls = 0

    @tool(thread=False, safety="safe", polling=True)
    def work() -> int:
        nonlocal calls
        calls += 1
        return calls

    limits = Limits(turns=20_000, calls=20_000, ceiling=20_000)
    agent = Agent(ScriptedModel(*[call("work")] * 20_000, keep=False), tools=[work], limits=limits)
    async with agent.session() as session, session.run("go") as run:
        await stop_at_first_call(run)
    assert run.outcome is not None and run.outcome.reason == "cancelled"
    assert calls < 19_000


async def stop_at_first_call(run: Run) -> None:
    async for event in run:
        if isinstance(event, CallFinished):
            return
