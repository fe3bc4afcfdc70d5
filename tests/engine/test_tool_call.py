"""Tool calls: time-outs, errors and their consequences, and cancelling."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.sessions import PATIENCE, HeldTool, Store
from treadle import Agent, Middleware, TextPart, ToolContext, ToolError, ToolResult, tool
from treadle.events import CallFinished, CallStarted, MessageReceived, ModelReplied, SignalDetected
from treadle.testing import ScriptedModel, call


@tool
def work() -> str:
    """Do something."""
    return "worked"


# --- time-outs


async def test_an_async_tool_is_stopped_at_its_time_out(store: Store) -> None:
    held = HeldTool(timeout=0.05)
    run = await store.run_script(call("wait", id="a"), "gave up", tools=[held.tool])
    assert held.ends == 1 and run.reason == "answered"
    assert run.results["a"].status == "timed_out" and run.results["a"].duration >= 0.05
    shown = run.messages["a"]
    assert "Timed out after 0.05 s" in shown.text and "may have had effects" in shown.text and not shown.ok


async def test_a_sync_tool_that_never_returns_is_abandoned_and_asked_to_stop() -> None:
    stopping, release = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def hang(context: ToolContext) -> str:
        while not context.cancelled and not release.is_set():
            release.wait(0.01)
        stopping.set()
        return "too late"

    agent, _ = kit.build_agent(call("hang", id="a"), "gave up", "still here", tools=[hang])
    try:
        async with agent.session() as session:
            outcome = await kit.run_to_end(session)
            done = await kit.read_finished_calls(session)
            assert outcome.answer == "gave up" and done["a"].status == "timed_out"
            assert await asyncio.to_thread(stopping.wait, PATIENCE)
            assert (await kit.run_to_end(session, "and?")).answer == "still here"
            assert await kit.read_finished_calls(session) == done, "a late result is not recorded"
    finally:
        release.set()


async def test_a_tool_can_report_its_own_time_out_with_partial_output() -> None:
    @tool(on_error="retry")
    def slow() -> ToolResult:
        return ToolResult("half of it", ok=False, timed_out=True)

    done = (await kit.run_script(call("slow", id="a"), "done", tools=[slow])).results["a"]
    assert (done.status, done.output) == ("timed_out", "half of it")


# --- tools that fail


class OddError(BaseException):
    pass


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words for it")


ERRORS = [
    (ToolError("the door is locked"), "the door is locked"),
    (ValueError("no\x1b[31m way"), "ValueError: no way"),
    (KeyError("x"), "KeyError: 'x'"),
    (TimeoutError("no answer from example.org"), "TimeoutError: no answer from example.org"),
    (SystemExit(3), "SystemExit: 3"),
    (StopIteration("s"), "StopIteration"),
    (asyncio.CancelledError(), "cancelled"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (OddError("very"), "OddError: very"),
    (UnreadableError(), "UnreadableError: (it has no readable message)"),
    (ExceptionGroup("two", [OSError("disk"), ValueError("bad")]), "OSError: disk; ValueError: bad"),
]


@pytest.mark.parametrize(
    ("kind", "raised", "text"),
    [
        pytest.param(kind, raised, text, id=f"{kind}-{type(raised).__name__}")
        for kind in ("sync", "async")
        for raised, text in ERRORS
        # asyncio raises these in whoever runs the loop, so no tool result can be made of them
        if kind == "sync" or not isinstance(raised, KeyboardInterrupt | StopIteration | OddError)
    ],
)
async def test_any_exception_of_a_tool_becomes_its_result(raised: BaseException, text: str, kind: str) -> None:
    def fail() -> str:
        raise raised

    async def fail_later() -> str:
        raise raised

    tools = [tool(name="fail")(fail if kind == "sync" else fail_later)]
    run = await kit.run_script(call("fail", id="a"), "I see", tools=tools)
    assert run.answer == "I see" and run.results["a"].status == "error"
    assert text.lower() in run.messages["a"].text.lower() and not run.messages["a"].ok


FLAKY = call("flaky", id="a")


class FlakyTool:
    """A tool that fails its first `times` times."""

    def __init__(self, times: int, **options: Any) -> None:
        self.left, self.attempts = times, list[int]()

        @tool(name="flaky", **options)
        async def flaky(context: ToolContext) -> str:
            self.attempts.append(context.attempt)
            if self.left > 0:
                self.left -= 1
                raise OSError(f"broken {self.left}")
            return "mended"

        self.tool = flaky


@pytest.mark.parametrize("where", ["agent", "tool"])
async def test_retry_records_the_intent_of_each_attempt(store: Store, where: str) -> None:
    flaky = FlakyTool(2, **({"on_error": "retry"} if where == "tool" else {}))
    options = {"on_error": "retry"} if where == "agent" else {}
    run = await store.run_script(FLAKY, "ok", tools=[flaky.tool], **options)
    assert flaky.attempts == [1, 2, 3] == [fact.attempt for fact in run.select(CallStarted)]
    assert [fact.kind for fact in run.select(SignalDetected)] == ["tool_retry"] * 2
    assert "broken 1" in run.select(SignalDetected)[0].detail
    assert run.messages["a"].text == "mended"
    assert run.outcome.calls == 1


@pytest.mark.parametrize(
    ("options", "attempts", "text"),
    [
        ({}, [1], "OSError: broken 8"),
        ({"on_error": "retry"}, [1, 2, 3], "OSError: broken 6"),
        ({"on_error": lambda tool, error, attempt: "retry"}, [1, 2, 3], "OSError: broken 6"),
    ],
    ids=["default", "word", "function"],
)
async def test_a_failed_call_is_reported_to_the_model_after_at_most_three_attempts(
    options: Any, attempts: list[int], text: str
) -> None:
    flaky = FlakyTool(9)
    run = await kit.run_script(FLAKY, "ok", tools=[flaky.tool], **options)
    assert run.reason == "answered"
    assert flaky.attempts == attempts and run.messages["a"].text == text


async def test_stop_ends_the_run_after_the_other_calls(store: Store) -> None:
    lines = [[FLAKY, call("work", id="b")], "again"]
    run = await store.run_script(*lines, tools=[FlakyTool(1).tool, work], on_error="stop")
    assert (run.reason, run.outcome.error) == ("failed", "flaky: OSError: broken 0")
    assert run.results["a"].fatal and run.results["b"].status == "cancelled"
    assert [fact.call_id for fact in run.select(CallStarted)] == ["a"] and len(run.requests) == 1
    async with run.agent.session(store.open(), id=run.session_id) as session:
        assert (await kit.finish_run(session.continue_())).answer == "again"


@pytest.mark.parametrize(("strategy", "reason"), [("retry", "answered"), ("stop", "failed")])
async def test_a_call_that_timed_out_is_never_retried_but_can_stop_the_run(strategy: Any, reason: str) -> None:
    held = HeldTool(timeout=0.02)
    run = await kit.run_script(call("wait", id="a"), "ok", tools=[held.tool], on_error=strategy)
    assert held.starts == 1 and run.results["a"].output.startswith("Timed out")
    assert run.reason == reason and run.outcome.error.startswith("wait: Timed out" if reason == "failed" else "")


async def test_a_strategy_function_gets_the_tool_the_error_and_the_attempt() -> None:
    asked: list[tuple[str, str, int]] = []

    def strategy(name: str, error: str, attempt: int) -> str:
        asked.append((name, error, attempt))
        return "retry" if attempt == 1 else "stop"

    run = await kit.run_script(FLAKY, tools=[FlakyTool(5).tool], on_error=strategy)
    assert run.reason == "failed"
    assert asked == [("flaky", "OSError: broken 4", 1), ("flaky", "OSError: broken 3", 2)]


async def test_a_strategy_that_raises_stops_the_run(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def strategy(name: str, error: str, attempt: int) -> str:
        raise ZeroDivisionError("in the strategy")

    run = await store.run_script(FLAKY, tools=[FlakyTool(5).tool], on_error=strategy)
    assert (run.reason, run.outcome.error) == ("failed", "flaky: OSError: broken 4")
    assert "ZeroDivisionError: in the strategy" in caplog.text


class Elsewhere:
    """Another process on the same file. It can post at any moment, because a post to SQLite never waits."""

    def __init__(self, place: Store) -> None:
        self.log, self.session_id, self.posts = place.open(), "", 0

    def post(self) -> None:
        self.posts += 1
        hurry = MessageReceived(id=f"m{self.posts}", parts=(TextPart("and hurry"),))
        with pytest.raises(StopIteration):
            self.log.post(self.session_id, [hurry]).send(None)


@pytest.mark.parametrize("then", ["tell", "retry", "stop"])
async def test_the_error_of_a_call_survives_a_post_from_another_process(on_file: Store, then: str) -> None:
    elsewhere = Elsewhere(on_file)

    def strategy(name: str, error: str, attempt: int) -> str:
        if attempt == 1:
            elsewhere.post()
        return then

    agent, model = kit.build_agent(FLAKY, "ok", tools=[FlakyTool(1).tool], on_error=strategy)
    async with agent.session(on_file.open()) as session:
        elsewhere.session_id = session.id
        await kit.run_to_end(session)
        await kit.resume_run(session)
        facts = await session.facts()
    kit.check_settled(facts)
    [done] = kit.select_events(facts, CallFinished)
    assert (done.status, done.output) == ("error", "OSError: broken 0"), "the outcome is not unknown"
    assert kit.list_user_texts(model.requests[-1])[-1] == "and hurry"


async def test_a_reply_survives_a_post_from_another_process(on_file: Store) -> None:
    elsewhere = Elsewhere(on_file)

    class PostingCheck(Middleware):
        async def may_run(self, tool: str, safety: Any, arguments: Any) -> None:
            if not elsewhere.posts:
                elsewhere.post()

    agent, model = kit.build_agent(
        [call("work", id="a"), call("work", id="b")], "ok", tools=[work], middleware=[PostingCheck()]
    )
    async with agent.session(on_file.open()) as session:
        elsewhere.session_id = session.id
        assert (await kit.run_to_end(session)).reason == "answered"
        facts = await session.facts()
    kit.check_settled(facts)
    assert len(kit.select_events(facts, ModelReplied)) == len(model.requests) == 2
    assert [fact.call_id for fact in kit.select_events(facts, CallStarted)] == ["a", "b"]
    assert kit.list_user_texts(model.requests[1])[-1] == "and hurry"


# --- being stopped while a tool runs


async def test_cancelling_stops_a_running_tool(store: Store) -> None:
    held = HeldTool()
    agent, model = kit.build_agent([call("wait", id="a"), call("wait", id="b")], "fine", tools=[held.tool])
    async with agent.session(store.open()) as session:
        await session.send("go")
        await kit.wait_for(session, CallStarted)
        outcome = await session.cancel(by="ada", why="enough")
        facts = await session.facts()
        assert held.ends == 1 and outcome is not None
        assert (outcome.reason, outcome.error, outcome.can_continue) == ("cancelled", "cancelled by ada: enough", True)
        assert facts[-1] == outcome, "cancel returns only after the end is recorded"
        kit.check_settled(facts)
        assert (await kit.run_to_end(session, "and now?")).answer == "fine"
    shown = kit.select_results(model.requests[-1])
    assert "may have had effects" in shown["a"].text and "Not run" in shown["b"].text


async def test_a_tool_that_ignores_cancellation_does_not_delay_the_end(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    release, freed = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        freed.set()
        return "at last"

    agent = Agent(ScriptedModel(call("stubborn", id="a"), "fine"), tools=[stubborn])
    loop = asyncio.get_running_loop()
    try:
        async with agent.session(store.open()) as session:
            async with session.run("go") as run:
                await kit.wait_for(session, CallStarted)
                began = loop.time()
            assert loop.time() - began < PATIENCE
            assert run.outcome is not None and run.outcome.reason == "cancelled"
            facts = await session.facts()
            kit.check_settled(facts)
            assert kit.select_events(facts, CallFinished)[0].status == "cancelled"
            assert (await kit.run_to_end(session, "and now?")).answer == "fine"
            release.set()
            await freed.wait()
            assert len(await session.facts()) == len(facts) + 5, "a late result is not recorded"
    finally:
        release.set()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
