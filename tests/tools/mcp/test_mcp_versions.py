"""A lasting approval holds for a tool as its server described it. A tool with a new description is asked for again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.types import Tool as ListedTool

from tests.kit.sessions import build_agent, read_finished_calls, read_questions, run_message, select_events, wait_for
from tests.tools.mcp.conftest import connect, odd
from treadle import Answer, CallStarted, RunFinished, Session
from treadle.engine.setup import later
from treadle.errors import StoreError
from treadle.events import ApprovalRequested, CallFinished, Grant
from treadle.permissions.patterns import pin_version, select_for_version, unpin_version
from treadle.permissions.saved_rules import apply_rules, load_all_rules, save_rule
from treadle.testing import call
from treadle.tools.mcp.connection import compute_version
from treadle.tools.mcp.known_tools import KnownTools

SINCE = "what its server says of it has changed since it was allowed"


@asynccontextmanager
async def open_process(
    description: str,
    call_id: str,
    store: Path | str = ":memory:",
    *,
    grant: Grant | None = None,
    tool: str = "ok",
    **options: Any,
) -> AsyncIterator[Session]:
    """Open a session as a new process does. The server starts anew, and describes its tool so.

    The model calls the tool, or, when no tools are offered, finds it first. By default every call is asked for.
    """
    async with connect(odd(f"says {description}"), **options) as mcp:
        found = call("call_tool", id=call_id, name=f"odd__{tool}", arguments={"n": 1})
        script = call(f"odd__{tool}", id=call_id, n=1) if options.get("max_tools", 30) else found, "done"
        agent, _ = build_agent(*script, tools=mcp.tools, grant=grant or Grant(tier="read-only"), gate=later)
        async with agent.session(store) as session:
            yield session


async def find_question(session: Session) -> ApprovalRequested | None:
    """Run a message. Return the question about its call; None when the call ran without one."""
    await run_message(session)
    question = next(iter(await read_questions(session)), None)
    assert question is None or isinstance(question, ApprovalRequested)
    return question


@pytest.mark.parametrize("scope", ["tool", "pattern"])
async def test_an_approval_for_a_session_ends_when_the_tool_changes_and_the_question_says_so(
    scope: Any, tmp_path: Path
) -> None:
    store = tmp_path / "store.db"
    async with open_process("Adds.", "a", store) as session:
        asked = await find_question(session)
        assert asked is not None and SINCE not in asked.why
        await session.approve("a", Answer("allow", scope))
        await wait_for(session, RunFinished)
    async with open_process("Adds.", "b", store) as session:
        assert await find_question(session) is None, "nothing changed"
    async with open_process("Adds, and sends it home.", "c", store) as session:
        asked = await find_question(session)
        assert asked is not None and asked.why == f"caution in tier read-only: {SINCE}"
        assert [fact.call_id for fact in select_events(await session.facts(), CallStarted)] == ["a", "b"]


async def test_an_approval_of_the_whole_session_and_a_denial_hold_for_every_version(tmp_path: Path) -> None:
    for decision, status in (("allow", "ok"), ("deny", "denied")):
        store = tmp_path / f"{decision}.db"
        scope = "session" if decision == "allow" else "pattern"
        async with open_process("Adds.", "a", store) as session:
            assert await find_question(session) is not None
            await session.approve("a", Answer(decision, scope))  # type: ignore[arg-type]
            await wait_for(session, RunFinished)
        async with open_process("Adds it all.", "b", store) as session:
            assert await find_question(session) is None
            assert (await read_finished_calls(session))["b"].status == status


async def test_an_answer_to_a_question_about_the_tool_as_it_was_lets_nothing_else_run(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with open_process("Adds.", "a", store) as session:
        assert await find_question(session) is not None
    async with open_process("Adds, and sends it home.", "never", store) as session:
        await session.approve("a")
        done = await wait_for(session, CallFinished)
    assert done.status == "denied" and done.output.startswith("Denied: this is not what was approved")


@pytest.mark.parametrize("max_tools", [30, 0])
async def test_a_saved_approval_is_asked_for_again_when_the_tool_changed_and_then_replaced(
    tmp_path: Path, max_tools: int
) -> None:
    """This also holds where the tool is found by searching, and where its class alone would let it run."""
    data = tmp_path / "data"

    def granted() -> dict[str, Any]:
        return {"grant": apply_rules(Grant(), load_all_rules(data)), "max_tools": max_tools}

    async with open_process("Adds.", "a", max_tools=max_tools) as session:
        asked = await find_question(session)
        assert asked is not None
        old = save_rule(data, asked.rule)
    async with open_process("Adds.", "b", **granted()) as session:
        assert await find_question(session) is None
    async with open_process("Adds, and sends it home.", "c", **granted()) as session:
        asked = await find_question(session)
        assert asked is not None and asked.why == SINCE and not asked.once
        new = save_rule(data, asked.rule)
    assert load_all_rules(data) == (new,) and old != new
    async with open_process("Adds, and sends it home.", "d", **granted()) as session:
        assert await find_question(session) is None


async def test_an_approval_in_the_settings_is_for_a_tool_by_its_name(tmp_path: Path) -> None:
    for number, says in enumerate(("Adds.", "Adds it all.")):
        async with open_process(says, "a", grant=Grant(tier="read-only", approve=("odd__*",))) as session:
            assert await find_question(session) is None, number


@pytest.mark.parametrize("max_tools", [30, 0])
@pytest.mark.parametrize("grant", [Grant(approve=("odd__*",)), Grant(always=("odd__*",)), Grant()])
async def test_a_tool_that_changed_or_is_new_since_the_last_process_is_asked_for_once(
    tmp_path: Path, max_tools: int, grant: Grant
) -> None:
    """A pattern that was approved, and a class that needs no question, do not cover what nobody has seen yet."""
    options: dict[str, Any] = {"known": tmp_path / "known.json", "max_tools": max_tools, "grant": grant}
    async with open_process("Adds.", "a", **options) as session:
        assert await find_question(session) is None
    for tool in ("ok", "more"):
        async with open_process("Adds more.", "b", tool=tool, **options) as session:
            asked = await find_question(session)
            assert asked is not None and "it is new, or its server says something else of it" in asked.why
            await session.approve("b", Answer("allow"))
            await wait_for(session, RunFinished)
            assert (await read_finished_calls(session))["b"].status == "ok"
        async with open_process("Adds more.", "c", tool=tool, **options) as session:
            assert await find_question(session) is None, "a person has allowed it as it is now"


async def test_a_changed_tool_that_is_denied_stays_unknown(tmp_path: Path) -> None:
    options: dict[str, Any] = {"known": tmp_path / "known.json", "grant": Grant(approve=("*",))}
    async with open_process("Adds.", "a", **options) as session:
        assert await find_question(session) is None
    for decision in ("deny", "deny"):
        async with open_process("Adds, and sends it home.", "b", **options) as session:
            assert await find_question(session) is not None
            await session.approve("b", Answer(decision))
            await wait_for(session, RunFinished)
            assert (await read_finished_calls(session))["b"].status == "denied"


def test_a_file_of_known_tools_that_cannot_be_read_trusts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    assert KnownTools(path).find_changed("odd", {"ok": "1"}) == set()
    assert KnownTools(path).find_changed("odd", {"ok": "2", "new": "1"}) == {"ok", "new"}
    KnownTools(path).accept("odd", "ok", "2")
    assert KnownTools(path).find_changed("odd", {"ok": "2", "new": "1"}) == {"new"}
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{")
    with pytest.raises(StoreError, match="Delete it to start anew"):
        KnownTools(path).find_changed("odd", {"ok": "2"})


def test_a_saved_denial_is_for_every_version(tmp_path: Path) -> None:
    save_rule(tmp_path, "odd__ok@1f(n=1)")
    assert [rule.pattern for rule in load_all_rules(tmp_path)] == ["odd__ok@1f(n=1)"]
    save_rule(tmp_path, "odd__ok@1f(n=1)", "deny")
    assert [(rule.pattern, rule.decision) for rule in load_all_rules(tmp_path)] == [("odd__ok(n=1)", "deny")]


def test_patterns_hold_for_the_version_they_were_made_for_or_for_all() -> None:
    assert pin_version("a(b=c@d)", "1f") == "a@1f(b=c@d)" and unpin_version("a@1f(b=c@d)") == "a(b=c@d)"
    assert pin_version("a", "") == unpin_version("a") == "a"
    assert select_for_version(("a@1f", "a@2f(x)", "b", "c@1f(y@z)"), "1f") == ("a", "b", "c(y@z)")


def test_the_version_of_a_tool_depends_on_every_word_and_not_on_their_order() -> None:
    def listed(**schema: Any) -> ListedTool:
        return ListedTool(name="ok", description="Adds.", input_schema={"type": "object", **schema})

    one = listed(properties={"a": {"type": "string", "title": "A"}, "b": {}}, required=["a"])
    same = listed(required=["a"], properties={"b": {}, "a": {"title": "A", "type": "string"}})
    other = listed(properties={"a": {"type": "string", "title": "B"}, "b": {}}, required=["a"])
    assert compute_version(one) == compute_version(same) != compute_version(other)
    for changed in ({"description": "Adds!"}, {"output_schema": {}}, {"annotations": {"readOnlyHint": True}}):
        assert compute_version(one) != compute_version(ListedTool.model_validate({**one.model_dump(), **changed}))
