"""Middleware: what passes can be rewritten at three points, and a call can be refused; nothing can be widened."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.sessions import (
    PATIENCE,
    Store,
    build_agent,
    check_settled,
    list_user_texts,
    read_finished_calls,
    read_questions,
    run_message,
    run_script,
    run_to_end,
    select_events,
    select_results,
    wait_for,
)
from treadle import (
    CallFinished,
    CallStarted,
    Grant,
    Limits,
    Middleware,
    ModelReplied,
    RunFinished,
    TextPart,
    later,
    tool,
)
from treadle.errors import BadInput
from treadle.events import ApprovalRequested, MessageReceived
from treadle.messages import Reply, Request, UserMessage
from treadle.permissions.policy import Verdict
from treadle.testing import call


@tool(safety="safe")
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


@tool(safety="destructive")
def drop(table: str) -> str:
    """Drop a table."""
    return f"dropped {table}"


TOOLS = [look, drop]


class Says(Middleware):
    """Answers `may_run` with a fixed verdict and remembers what it was asked."""

    def __init__(self, action: Any, why: str = "the house rules") -> None:
        self.verdict = Verdict(action, why)
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []

    async def may_run(self, tool: str, safety: Any, arguments: Mapping[str, Any]) -> Verdict | None:
        self.asked.append((tool, safety, arguments))
        return self.verdict


async def test_a_message_is_rewritten_before_it_is_stored(store: Store) -> None:
    class Redact(Middleware):
        async def on_user_message(self, session_id: str, parts: Any) -> Any:
            return tuple(TextPart(part.text.replace("hunter2", "***")) for part in parts)

    class Shout(Middleware):
        async def on_user_message(self, session_id: str, parts: Any) -> Any:
            return tuple(TextPart(part.text.upper()) for part in parts)

    run = await store.run_script("ok", middleware=[Redact(), Shout()], content="my password is hunter2")
    assert run.select(MessageReceived)[0].parts == (TextPart("MY PASSWORD IS ***"),)
    assert list_user_texts(run.requests[0]) == ["MY PASSWORD IS ***"]


async def test_a_message_that_middleware_refuses_is_not_stored() -> None:
    class Refuse(Middleware):
        async def on_user_message(self, session_id: str, parts: Any) -> Any:
            raise BadInput("not here")

    agent, _ = build_agent(middleware=[Refuse()])
    async with agent.session() as session:
        with pytest.raises(BadInput, match="not here"):
            await session.send("hello")
        assert len(await session.facts()) == 1


async def test_a_request_is_rewritten_for_the_model_only_and_does_not_grow_the_history(store: Store) -> None:
    class Remind(Middleware):
        async def on_pre_llm(self, request: Request) -> Request:
            reminder = UserMessage((TextPart("(remember: be brief)"),))
            return replace(request, messages=[*request.messages, reminder], tools=(), render_cache={})

    agent, model = build_agent("one", "two", "three", tools=[look], middleware=[Remind()])
    async with agent.session(store.open()) as session:
        for number in range(3):
            await run_to_end(session, f"message {number}")
        assert "remember" not in str(await session.facts())
    for request in model.requests:
        assert [text for text in list_user_texts(request) if "remember" in text] == ["(remember: be brief)"]
        assert request.tools == ()


async def test_a_reply_is_rewritten_before_it_is_stored(store: Store) -> None:
    class Censor(Middleware):
        async def on_post_llm(self, reply: Reply) -> Reply:
            calls = tuple(one for one in reply.calls if one.tool != "drop")
            return replace(reply, text=reply.text.replace("damn", "d*mn"), calls=calls)

    run = await store.run_script(
        ["damn", call("drop", id="a", table="x"), call("look", id="b", at="y")],
        "done",
        tools=[look, drop],
        middleware=[Censor()],
    )
    assert run.select(ModelReplied)[0].text == "d*mn"
    assert [fact.tool for fact in run.select(CallStarted)] == ["look"]


async def test_middleware_runs_in_the_order_given() -> None:
    class Sign(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        async def on_post_llm(self, reply: Reply) -> Reply:
            return replace(reply, text=f"{reply.text} {self.name}")

    agent, _ = build_agent("hi", middleware=[Sign("a"), Sign("b")])
    assert await agent.ask("hello") == "hi a b"


@pytest.mark.parametrize("hook", ["on_pre_llm", "on_post_llm"])
async def test_middleware_that_fails_around_the_model_ends_the_run_as_failed(store: Store, hook: str) -> None:
    async def broken(self: Any, thing: Any) -> Any:
        raise ZeroDivisionError("in middleware")

    run = await store.run_script("hi", middleware=[type("Broken", (Middleware,), {hook: broken})()])
    assert run.reason == "failed" and "ZeroDivisionError: in middleware" in run.outcome.error


class Forgetful(Middleware):
    def __init__(self, point: str) -> None:
        setattr(self, point, self._forget)

    async def _forget(self, *given: Any) -> Any:
        """Look, and do not return it."""


@pytest.mark.parametrize(("point", "kind"), [("on_pre_llm", "Request"), ("on_post_llm", "Reply")])
async def test_middleware_that_forgets_to_return_what_it_got_is_told_so(store: Store, point: str, kind: str) -> None:
    run = await store.run_script("hello", middleware=[Forgetful(point)])
    assert run.reason == "failed"
    assert f"Forgetful.{point} returned a NoneType; it must return a {kind}, changed or not" in run.outcome.error


async def test_middleware_that_forgets_to_return_a_message_is_told_so_and_nothing_is_stored(store: Store) -> None:
    agent, _ = build_agent("hello", middleware=[Forgetful("on_user_message")])
    async with agent.session(store.open()) as session:
        with pytest.raises(BadInput, match=r"Forgetful.on_user_message returned a NoneType; it must return a tuple"):
            await session.send("go")
        assert select_events(await session.facts(), MessageReceived) == []


async def test_middleware_can_refuse_a_call_and_the_model_is_told_why(store: Store) -> None:
    rule = Says("deny")
    run = await store.run_script(call("look", id="a", at="it"), "ok", tools=[look], middleware=[rule])
    assert run.reason == "answered"
    assert run.results["a"].status == "denied"
    assert "the house rules" in select_results(run.requests[1])["a"].text
    assert rule.asked == [("look", "safe", {"at": "it"})]


async def test_middleware_can_have_a_call_asked_for(store: Store) -> None:
    agent, _ = build_agent(call("look", id="a", at="it"), "ok", tools=[look], middleware=[Says("ask")], gate=later)
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        [question] = await read_questions(session)
        assert isinstance(question, ApprovalRequested) and question.why == "the house rules"
        await session.approve("a")
        assert (await wait_for(session, RunFinished)).answer == "ok"
        assert (await read_finished_calls(session))["a"].output == "saw it"


@pytest.mark.parametrize("grant", [Grant(forbid=("drop",)), Grant(tools=("look",)), Grant(tier="read-only"), Grant()])
async def test_middleware_cannot_allow_what_the_policy_does_not(store: Store, grant: Grant) -> None:
    run = await store.run_script(
        call("drop", id="a", table="x"), "ok", tools=[look, drop], grant=grant, middleware=[Says("allow")]
    )
    assert not run.select(CallStarted)
    assert run.results["a"].status == "denied"


async def test_the_strictest_of_several_decides() -> None:
    rules = [Says("allow"), Says("deny", "the second says no"), Says("ask")]
    run = await run_script(call("look", id="a", at="it"), "ok", tools=[look], middleware=rules, gate=later)
    assert run.reason == "answered"
    assert "the second says no" in select_results(run.requests[1])["a"].text


async def test_a_check_that_fails_denies_the_call_and_the_run_goes_on(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Middleware):
        async def may_run(self, tool: str, safety: Any, arguments: Any) -> Verdict | None:
            raise ZeroDivisionError("in the check")

    run = await store.run_script(call("look", id="a", at="it"), "ok", tools=[look], middleware=[Broken()])
    assert run.reason == "answered"
    assert not run.select(CallStarted)
    shown = select_results(run.requests[1])["a"].text
    assert "Denied" in shown and "ZeroDivisionError" in shown
    assert "in the check" in caplog.text


class Hangs(Middleware):
    """Never says whether a call may run."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def may_run(self, tool: str, safety: Any, arguments: Mapping[str, Any]) -> Verdict | None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_a_check_that_hangs_does_not_keep_a_run_from_being_cancelled(store: Store) -> None:
    check = Hangs()
    agent, _ = build_agent(
        [call("look", id="a", at="x"), call("drop", id="b", table="t")], tools=TOOLS, middleware=[check]
    )
    async with agent.session(store.open()) as session, asyncio.timeout(PATIENCE):
        await session.send("go")
        await check.asked.wait()
        outcome = await session.cancel()
        facts = await session.facts()
    check_settled(facts)
    assert outcome is not None and outcome.reason == "cancelled"
    assert [fact.output for fact in select_events(facts, CallFinished)] == ["Not run: the run was stopped."] * 2


async def test_a_check_that_hangs_has_no_longer_than_the_run(store: Store) -> None:
    agent, _ = build_agent(
        call("look", id="a", at="x"), "half done", tools=TOOLS, middleware=[Hangs()], limits=Limits(seconds=0.2)
    )
    async with agent.session(store.open()) as session, asyncio.timeout(PATIENCE):
        outcome = await run_to_end(session)
        check_settled(await session.facts())
    assert (outcome.reason, outcome.answer, outcome.calls) == ("time_limit", "half done", 0)


async def test_a_call_whose_safety_cannot_be_found_out_counts_as_destructive(store: Store) -> None:
    def classify(arguments: Mapping[str, Any]) -> Any:
        raise KeyError("path")

    @tool(safety=classify)
    def touch(name: str) -> str:
        return name

    run = await store.run_script(call("touch", id="a", name="x"), "ok", tools=[touch])
    assert run.reason == "answered"
    assert not run.select(CallStarted)
    assert "destructive in tier sandbox" in select_results(run.requests[1])["a"].text


async def test_middleware_need_not_know_what_adapters_keep_of_the_messages(store: Store) -> None:
    class Remind(Middleware):
        async def on_pre_llm(self, request: Request) -> Request:
            reminder = UserMessage((TextPart("(remember: be brief)"),))
            return replace(request, messages=[*request.messages, reminder])

    def remembering(request: Request) -> str:
        kept = request.render_cache.setdefault("shown", [])
        assert kept == list(request.messages)[: len(kept)], "what was kept is of other messages"
        request.render_cache["shown"] = list(request.messages)
        return "ok"

    agent, _ = build_agent(*[remembering] * 3, middleware=[Remind()])
    async with agent.session(store.open()) as session:
        for number in range(3):
            outcome = await run_to_end(session, f"message {number}")
            assert outcome.reason == "answered", outcome.error
