"""Middleware: what passes can be rewritten at three points, and a call can be refused; nothing can be widened."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit import sessions as kit
from tests.kit.sessions import DROP, PATIENCE, Store, Tables
from treadle import CallStarted, Grant, Limits, Middleware, RunFinished, TextPart, later, tool
from treadle.errors import BadInput
from treadle.events import ApprovalRequested, CallFinished, MessageReceived, ModelReplied
from treadle.messages import Reply, Request, UserMessage
from treadle.permissions.policy import Verdict
from treadle.testing import call

LOOK = call("look", id="l", at="it")


@tool(safety="safe")
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def build_middleware(**hooks: Callable[..., Any]) -> Middleware:
    """Build middleware from functions that are named like its hooks."""

    def build_hook(function: Callable[..., Any]) -> Any:
        async def hook(self: Middleware, *args: Any) -> Any:
            return function(*args)

        return hook

    return type("Hooks", (Middleware,), {name: build_hook(function) for name, function in hooks.items()})()


def build_check(action: Any, why: str = "the house rules") -> Middleware:
    """Build middleware that has one verdict on every call."""
    return build_middleware(may_run=lambda tool, safety, arguments: Verdict(action, why))


def fail(*args: Any) -> Any:
    raise ZeroDivisionError("in middleware")


def add_reminder(request: Request) -> Request:
    return replace(request, messages=[*request.messages, UserMessage((TextPart("(remember: be brief)"),))])


# --- messages, requests and replies


async def test_a_message_is_rewritten_before_it_is_stored(store: Store) -> None:
    def redact(session_id: str, parts: Any) -> Any:
        return tuple(TextPart(part.text.replace("hunter2", "***")) for part in parts)

    def shout(session_id: str, parts: Any) -> Any:
        return tuple(TextPart(part.text.upper()) for part in parts)

    middleware = [build_middleware(on_user_message=redact), build_middleware(on_user_message=shout)]
    run = await store.run_script("ok", middleware=middleware, content="my password is hunter2")
    assert run.select(MessageReceived)[0].parts == (TextPart("MY PASSWORD IS ***"),)
    assert kit.list_user_texts(run.requests[0]) == ["MY PASSWORD IS ***"]


async def test_a_request_is_rewritten_for_the_model_only_and_does_not_grow_the_history(store: Store) -> None:
    middleware = build_middleware(on_pre_llm=lambda request: replace(add_reminder(request), tools=(), render_cache={}))
    agent, model = kit.build_agent("one", "two", "three", tools=[look], middleware=[middleware])
    async with agent.session(store.open()) as session:
        for number in range(3):
            await kit.run_to_end(session, f"message {number}")
        assert "remember" not in str(await session.facts())
    for request in model.requests:
        assert [text for text in kit.list_user_texts(request) if "remember" in text] == ["(remember: be brief)"]
        assert request.tools == ()


async def test_middleware_can_change_messages_without_knowledge_of_the_adapters_cache(store: Store) -> None:
    def check_cache(request: Request) -> str:
        kept = request.render_cache.setdefault("shown", [])
        assert kept == list(request.messages)[: len(kept)], "the cache has other messages"
        request.render_cache["shown"] = list(request.messages)
        return "ok"

    agent, _ = kit.build_agent(*[check_cache] * 3, middleware=[build_middleware(on_pre_llm=add_reminder)])
    async with agent.session(store.open()) as session:
        for number in range(3):
            outcome = await kit.run_to_end(session, f"message {number}")
            assert outcome.reason == "answered", outcome.error


async def test_a_reply_is_rewritten_before_it_is_stored(store: Store, tables: Tables) -> None:
    def censor(reply: Reply) -> Reply:
        calls = tuple(one for one in reply.calls if one.tool != "drop")
        return replace(reply, text=reply.text.replace("damn", "d*mn"), calls=calls)

    middleware = [build_middleware(on_post_llm=censor)]
    run = await store.run_script(["damn", DROP, LOOK], "done", tools=[look, *tables.tools], middleware=middleware)
    assert run.select(ModelReplied)[0].text == "d*mn"
    assert [fact.tool for fact in run.select(CallStarted)] == ["look"]


async def test_middleware_runs_in_the_order_given() -> None:
    def build_signature(name: str) -> Middleware:
        return build_middleware(on_post_llm=lambda reply: replace(reply, text=f"{reply.text} {name}"))

    run = await kit.run_script("hi", middleware=[build_signature("a"), build_signature("b")])
    assert run.answer == "hi a b"


@pytest.mark.parametrize(
    ("hook", "function", "error"),
    [
        ("on_pre_llm", fail, "ZeroDivisionError: in middleware"),
        ("on_post_llm", fail, "ZeroDivisionError: in middleware"),
        ("on_pre_llm", lambda request: None, "on_pre_llm returned a NoneType; it must return a Request"),
        ("on_post_llm", lambda reply: None, "on_post_llm returned a NoneType; it must return a Reply"),
    ],
    ids=["error before", "error after", "no request", "no reply"],
)
async def test_middleware_that_fails_around_the_model_ends_the_run_as_failed(
    store: Store, hook: str, function: Any, error: str
) -> None:
    run = await store.run_script("hi", middleware=[build_middleware(**{hook: function})])
    assert run.reason == "failed" and error in run.outcome.error


def refuse(session_id: str, parts: Any) -> Any:
    raise BadInput("not here")


@pytest.mark.parametrize(
    ("function", "error"),
    [(refuse, "not here"), (lambda *given: None, r"on_user_message returned a NoneType; it must return a tuple")],
    ids=["refused", "no message"],
)
async def test_a_message_that_middleware_does_not_pass_on_is_not_stored(
    store: Store, function: Any, error: str
) -> None:
    agent, _ = kit.build_agent(middleware=[build_middleware(on_user_message=function)])
    async with agent.session(store.open()) as session:
        with pytest.raises(BadInput, match=error):
            await session.send("hello")
        assert len(await session.facts()) == 1


# --- calls


async def test_middleware_can_refuse_a_call_with_a_reason_for_the_model(store: Store) -> None:
    checks: list[tuple[str, str, Mapping[str, Any]]] = []

    def deny(tool: str, safety: Any, arguments: Mapping[str, Any]) -> Verdict:
        checks.append((tool, safety, arguments))
        return Verdict("deny", "the house rules")

    run = await store.run_script(LOOK, "ok", tools=[look], middleware=[build_middleware(may_run=deny)])
    assert run.reason == "answered" and run.results["l"].status == "denied"
    assert "the house rules" in run.messages["l"].text
    assert checks == [("look", "safe", {"at": "it"})]


async def test_middleware_can_have_a_call_asked_for(store: Store) -> None:
    agent, _ = kit.build_agent(LOOK, "ok", tools=[look], middleware=[build_check("ask")], gate=later)
    async with agent.session(store.open()) as session:
        assert await kit.run_message(session) is None
        [question] = await kit.read_questions(session)
        assert isinstance(question, ApprovalRequested) and question.why == "the house rules"
        await session.approve("l")
        assert (await kit.wait_for(session, RunFinished)).answer == "ok"
        assert (await kit.read_finished_calls(session))["l"].output == "saw it"


@pytest.mark.parametrize("grant", [Grant(forbid=("drop",)), Grant(tools=("look",)), Grant(tier="read-only"), Grant()])
async def test_middleware_cannot_allow_what_the_policy_does_not(store: Store, tables: Tables, grant: Grant) -> None:
    run = await store.run_script(DROP, "ok", tools=tables.tools, grant=grant, middleware=[build_check("allow")])
    assert not run.select(CallStarted) and run.results["a"].status == "denied"


async def test_the_strictest_of_several_checks_decides() -> None:
    checks = [build_check("allow"), build_check("deny", "the second says no"), build_check("ask")]
    run = await kit.run_script(LOOK, "ok", tools=[look], middleware=checks, gate=later)
    assert run.reason == "answered" and "the second says no" in run.messages["l"].text


async def test_a_check_that_fails_denies_the_call_and_the_run_goes_on(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    run = await store.run_script(LOOK, "ok", tools=[look], middleware=[build_middleware(may_run=fail)])
    assert run.reason == "answered" and not run.select(CallStarted)
    assert "Denied" in run.messages["l"].text and "ZeroDivisionError" in run.messages["l"].text
    assert "in middleware" in caplog.text


class HangingCheck(Middleware):
    """Never says whether a call may run."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def may_run(self, tool: str, safety: Any, arguments: Mapping[str, Any]) -> Verdict | None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_a_run_can_be_cancelled_while_a_check_hangs(store: Store, tables: Tables) -> None:
    check = HangingCheck()
    agent, _ = kit.build_agent([LOOK, DROP], tools=[look, *tables.tools], middleware=[check])
    async with agent.session(store.open()) as session, asyncio.timeout(PATIENCE):
        await session.send("go")
        await check.asked.wait()
        outcome = await session.cancel()
        facts = await session.facts()
    kit.check_settled(facts)
    assert outcome is not None and outcome.reason == "cancelled"
    assert [fact.output for fact in kit.select_events(facts, CallFinished)] == ["Not run: the run was stopped."] * 2


async def test_the_time_limit_of_the_run_ends_a_check_that_hangs(store: Store) -> None:
    options: Any = {"middleware": [HangingCheck()], "limits": Limits(seconds=0.2)}
    async with asyncio.timeout(PATIENCE):
        run = await store.run_script(LOOK, "half done", tools=[look], **options)
    assert (run.reason, run.answer, run.outcome.calls) == ("time_limit", "half done", 0)


async def test_a_call_counts_as_destructive_when_its_safety_is_unknown(store: Store) -> None:
    @tool(safety=fail)
    def touch(name: str) -> str:
        return name

    run = await store.run_script(call("touch", id="a", name="x"), "ok", tools=[touch])
    assert run.reason == "answered" and not run.select(CallStarted)
    assert "destructive in tier sandbox" in run.messages["a"].text
