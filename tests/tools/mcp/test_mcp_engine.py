"""MCP tools in a session: the same policy and limits as for other tools, and a search when there are many."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sandbox import until
from tests.kit.sessions import (
    advance_loop_clock,
    build_agent,
    read_finished_calls,
    read_questions,
    run_message,
    run_script,
    wait_for,
)
from tests.tools.mcp.conftest import child, connect, odd
from treadle import CallStarted
from treadle.engine.setup import later
from treadle.events import ApprovalRequested, Grant, Progress
from treadle.testing import call


async def test_a_call_is_allowed_asked_or_denied_as_any_other() -> None:
    calls = [call("served__add", id="add", a=1, b=2), call("served__wipe", id="wipe")]
    async with connect(child()) as mcp:
        done = (await run_script(calls, "done", tools=mcp.tools)).results
        assert (done["add"].status, done["add"].output) == ("ok", "3")
        assert done["wipe"].status == "denied" and "destructive in tier sandbox" in done["wipe"].output
        agent, _ = build_agent(calls, tools=mcp.tools, grant=Grant(tier="read-only"), gate=later)
        async with agent.session() as session:
            assert await run_message(session) is None
            (question,) = await read_questions(session)
            assert isinstance(question, ApprovalRequested)
            assert (question.tool, question.safety) == ("served__add", "caution")


async def test_a_slow_call_times_out_and_is_cancelled_at_the_server(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    script = call("served__wait", path=str(trace)), call("served__append", path=str(trace), word="after"), "done"
    async with connect(child(safety="caution", timeout=300.0)) as mcp:
        agent, _ = build_agent(*script, tools=mcp.tools)
        async with agent.session() as session, session.run("go") as run:
            await until(lambda: trace.exists() and trace.read_text() == "waiting\n")
            advance_loop_clock(300)
            await run.wait()
            statuses = [finished.status for finished in (await read_finished_calls(session)).values()]
    assert statuses == ["timed_out", "ok"]
    assert trace.read_text().splitlines() == ["waiting", "cancelled", "after"]


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_cancelling_the_run_cancels_the_call_and_its_progress_was_seen(era: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with connect(child(safety="caution", protocol=era)) as mcp:
        agent, _ = build_agent(call("served__wait", path=str(trace)), tools=mcp.tools)
        async with agent.session() as session:
            seen = asyncio.create_task(wait_for(session, Progress))
            await asyncio.sleep(0)  # from here on it watches: a delta is not repeated
            async with session.run("go") as run:
                progress = await seen
                assert (progress.message, progress.done, progress.total) == ("a quarter", 1.0, 4.0)
                await session.cancel()
                outcome = await run.wait()
                assert outcome is not None and outcome.reason == "cancelled"
        await until(lambda: "cancelled" in trace.read_text())
        assert mcp.health.state == "up" and await mcp.add(2, 2) == "4"
    assert trace.read_text().splitlines() == ["waiting", "cancelled"]


async def test_two_hundred_tools_are_searched_for_and_called_under_their_own_names() -> None:
    calls = [
        call("call_tool", id="found", name="served__job_77", arguments={"text": "hello"}),
        call("call_tool", id="as text", name="served__job_78", arguments='{"text": "as text"}'),
        call("call_tool", id="forbidden", name="served__job_9", arguments={"text": "no"}),
        call("call_tool", id="unknown", name="served__job_999", arguments={}),
        call("call_tool", id="wrong", name="served__job_77", arguments={"text": 5}),
    ]
    async with connect(child("served", "--many", "200", safety="caution")) as mcp:
        assert [tool.name for tool in mcp.tools] == ["search_tools", "call_tool"]
        search = call("search_tools", id="search", query="topic77")
        done = await run_script(search, calls, "done", tools=mcp.tools, grant=Grant(forbid=("served__job_9*",)))
    found = done.results["search"].output
    assert found.startswith("served__job_77: Do the job number 77") and '"text"' in found
    assert [fact.tool for fact in done.select(CallStarted)] == ["search_tools", "served__job_77", "served__job_78"]
    for name, status, output in (
        ("found", "ok", "77: hello"),
        ("as text", "ok", "78: as text"),
        ("forbidden", "denied", "Denied: forbidden by served__job_9*. Do without it."),
        ("unknown", "error", "no tool named 'served__job_999'"),
        ("wrong", "error", "text: must be string"),
    ):
        assert done.results[name].status == status and output in done.results[name].output
    assert len({str(request.tools) for request in done.requests}) == 1, "the prompt's beginning changed"


async def test_a_destructive_tool_that_was_searched_for_is_asked_for_by_its_own_name() -> None:
    async with connect(odd("plain", safety="destructive"), max_tools=3) as mcp:
        agent, _ = build_agent(call("call_tool", name="odd__ok", arguments={"n": 1}), tools=mcp.tools, gate=later)
        async with agent.session() as session:
            assert await run_message(session) is None
            (question,) = await read_questions(session)
    assert isinstance(question, ApprovalRequested)
    assert (question.tool, question.safety, question.arguments) == ("odd__ok", "destructive", {"n": 1})


@pytest.mark.parametrize(("limits", "count"), [({}, 5), ({"max_tools": 4}, 2), ({"max_bytes": 500}, 2)])
async def test_above_either_limit_the_tools_are_searched_for(limits: dict[str, int], count: int) -> None:
    async with connect(odd("plain"), **limits) as mcp:
        assert len(mcp.tools) == count and ("search_tools" in [tool.name for tool in mcp.tools]) == bool(limits)
