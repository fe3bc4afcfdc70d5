"""A yes that lasts holds for a tool of a server as it was: when something else is said of it, it is asked for again."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.types import Tool as ListedTool

from tests.kit.sessions import build_agent, read_finished_calls, run_message, select_events, wait_for
from tests.tools.mcp.conftest import connect, odd
from treadle import Answer, CallStarted, RunFinished, Session
from treadle.engine.setup import later
from treadle.events import ApprovalRequested, CallFinished, Grant
from treadle.messages import Call, Reply
from treadle.permissions.patterns import pin_version, select_for_version, unpin_version
from treadle.permissions.saved_rules import apply_rules, load_all_rules, load_rules, save_rule
from treadle.tools.mcp.connection import compute_version

READ = Grant(tier="read-only")
"""Every call of a server's tool is asked for."""

SINCE = "what its server says of it has changed since it was allowed"


def one_call(call_id: str, *, found: bool) -> Reply:
    """A call of the server's tool, as a model makes it that was offered the tool, or has found it."""
    name, arguments = "odd__ok", {"n": 1}
    if found:
        name, arguments = "call_tool", {"name": name, "arguments": arguments}
    return Reply(calls=(Call(call_id, name, json.dumps(arguments)),), finish="calls")


@asynccontextmanager
async def process(says: str, call_id: str, store: Path | str = ":memory:", **options: Any) -> AsyncIterator[Session]:
    """A session as a new process has it: the server is started anew, and says this of its tool."""
    options = {"grant": READ, "gate": later, "most_tools": 30, **options}
    most = options.pop("most_tools")
    async with connect(odd(f"says {says}"), max_tools=most) as mcp:
        agent, _ = build_agent(one_call(call_id, found=not most), Reply("done"), tools=mcp.tools, **options)
        async with agent.session(store) as session:
            yield session


async def asked_in(session: Session, call_id: str) -> ApprovalRequested | None:
    """The question about a call; None when it ran without."""
    await run_message(session)
    return next(
        (fact for fact in select_events(await session.facts(), ApprovalRequested) if fact.call_id == call_id), None
    )


@pytest.mark.parametrize("scope", ["tool", "pattern"])
async def test_a_yes_for_a_session_holds_for_the_tool_as_it_was_and_its_change_is_the_reason_to_ask(
    scope: Any, tmp_path: Path
) -> None:
    store = tmp_path / "store.db"
    async with process("Adds.", "a", store) as session:
        asked = await asked_in(session, "a")
        assert asked is not None and SINCE not in asked.why
        await session.approve("a", Answer("allow", scope))
        await wait_for(session, RunFinished)
    async with process("Adds.", "b", store) as session:
        assert await asked_in(session, "b") is None, "nothing changed"
    async with process("Adds, and sends it home.", "c", store) as session:
        asked = await asked_in(session, "c")
        assert asked is not None and asked.why == f"caution in tier read-only: {SINCE}"
        assert [fact.call_id for fact in select_events(await session.facts(), CallStarted)] == ["a", "b"]


async def test_a_yes_for_the_whole_session_and_a_no_do_not_depend_on_what_a_server_says(tmp_path: Path) -> None:
    for decision, status in (("allow", "ok"), ("deny", "denied")):
        store = tmp_path / f"{decision}.db"
        scope = "session" if decision == "allow" else "pattern"
        async with process("Adds.", "a", store) as session:
            assert await asked_in(session, "a") is not None
            await session.approve("a", Answer(decision, scope))  # type: ignore[arg-type]
            await wait_for(session, RunFinished)
        async with process("Adds it all.", "b", store) as session:
            assert await asked_in(session, "b") is None
            assert (await read_finished_calls(session))["b"].status == status


async def test_an_answer_to_a_question_about_the_tool_as_it_was_lets_nothing_else_run(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with process("Adds.", "a", store) as session:
        assert await asked_in(session, "a") is not None
    async with process("Adds, and sends it home.", "never", store) as session:
        await session.approve("a")
        done = await wait_for(session, CallFinished)
    assert done.status == "denied" and done.output.startswith("Denied: this is not what was approved")


@pytest.mark.parametrize("most_tools", [30, 0])
async def test_a_yes_for_good_is_asked_for_again_when_the_tool_changed_and_then_replaces_the_old_one(
    tmp_path: Path, most_tools: int
) -> None:
    """Also where the tool is found by searching; and also where its class alone would let it run."""
    data = tmp_path / "data"

    def granted() -> dict[str, Any]:
        return {"grant": apply_rules(Grant(), load_rules(data)), "most_tools": most_tools}

    async with process("Adds.", "a", most_tools=most_tools) as session:
        asked = await asked_in(session, "a")
        assert asked is not None
        old = save_rule(data, asked.rule)
    async with process("Adds.", "b", **granted()) as session:
        assert await asked_in(session, "b") is None
    async with process("Adds, and sends it home.", "c", **granted()) as session:
        asked = await asked_in(session, "c")
        assert asked is not None and asked.why == SINCE and not asked.once
        new = save_rule(data, asked.rule)
    assert load_all_rules(data) == (new,) and old != new
    async with process("Adds, and sends it home.", "d", **granted()) as session:
        assert await asked_in(session, "d") is None


async def test_the_operators_own_word_is_for_a_tool_by_its_name(tmp_path: Path) -> None:
    for number, says in enumerate(("Adds.", "Adds it all.")):
        async with process(says, "a", grant=Grant(tier="read-only", approve=("odd__*",))) as session:
            assert await asked_in(session, "a") is None, number


def test_a_no_for_good_is_for_every_version(tmp_path: Path) -> None:
    save_rule(tmp_path, "odd__ok@1f(n=1)")
    assert [rule.pattern for rule in load_all_rules(tmp_path)] == ["odd__ok@1f(n=1)"]
    save_rule(tmp_path, "odd__ok@1f(n=1)", "deny")
    assert [(rule.pattern, rule.decision) for rule in load_all_rules(tmp_path)] == [("odd__ok(n=1)", "deny")]


def test_patterns_hold_for_the_version_they_were_made_for_or_for_all() -> None:
    assert pin_version("a(b=c@d)", "1f") == "a@1f(b=c@d)" and unpin_version("a@1f(b=c@d)") == "a(b=c@d)"
    assert pin_version("a", "") == unpin_version("a") == "a"
    assert select_for_version(("a@1f", "a@2f(x)", "b", "c@1f(y@z)"), "1f") == ("a", "b", "c(y@z)")


def test_the_order_in_which_a_server_says_something_does_not_matter_but_every_word_does() -> None:
    def listed(**schema: Any) -> ListedTool:
        return ListedTool(name="ok", description="Adds.", input_schema={"type": "object", **schema})

    one = listed(properties={"a": {"type": "string", "title": "A"}, "b": {}}, required=["a"])
    same = listed(required=["a"], properties={"b": {}, "a": {"title": "A", "type": "string"}})
    other = listed(properties={"a": {"type": "string", "title": "B"}, "b": {}}, required=["a"])
    assert compute_version(one) == compute_version(same) != compute_version(other)
    assert compute_version(one) != compute_version(one.model_copy(update={"description": "Adds!"}))
