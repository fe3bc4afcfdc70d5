"""MCP tools in a session: judged by the same policy, stopped by the same limits, searched for when they are many."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sandbox import until
from tests.kit.sessions import (
    advance_loop_clock,
    build_agent,
    read_finished_calls,
    run_message,
    select_events,
    select_results,
    wait_for,
)
from tests.tools.mcp.conftest import child, connect, odd
from treadle import CallStarted
from treadle.engine.setup import later
from treadle.events import ApprovalRequested, Grant, Progress
from treadle.messages import Call, Reply


def calls(*wanted: tuple[str, dict[str, Any]]) -> Reply:
    made = [Call(f"c{number}", name, json.dumps(arguments)) for number, (name, arguments) in enumerate(wanted, 1)]
    return Reply(calls=tuple(made), finish="calls")


async def test_a_call_is_allowed_asked_or_denied_as_any_other(tmp_path: Path) -> None:
    async with connect(child()) as mcp:
        script = calls(("served__add", {"a": 1, "b": 2}), ("served__wipe", {})), Reply("done")
        agent, _ = build_agent(*script, tools=mcp.tools)
        async with agent.session(workspace=tmp_path) as session:
            await run_message(session)
            done = await read_finished_calls(session)
            assert (done["c1"].status, done["c1"].output) == ("ok", "3")
            assert done["c2"].status == "denied" and "destructive in tier sandbox" in done["c2"].output
        agent, _ = build_agent(*script, tools=mcp.tools, grant=Grant(tier="read-only"), gate=later)
        async with agent.session(workspace=tmp_path) as session:
            assert await run_message(session) is None
            (asked,) = select_events(await session.facts(), ApprovalRequested)
            assert (asked.tool, asked.safety) == ("served__add", "caution")


async def test_a_slow_call_times_out_and_is_cancelled_at_the_server(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with connect(child(safety="caution", timeout=300.0)) as mcp:
        agent, _ = build_agent(
            calls(("served__wait", {"path": str(trace)})),
            calls(("served__append", {"path": str(trace), "word": "after"})),
            Reply("done"),
            tools=mcp.tools,
        )
        async with agent.session(workspace=tmp_path) as session, session.run("go") as run:
            await until(lambda: trace.exists() and trace.read_text() == "waiting\n")
            advance_loop_clock(300)
            await run.wait()
            statuses = [call.status for call in (await read_finished_calls(session)).values()]
    assert statuses == ["timed_out", "ok"]
    assert trace.read_text().splitlines() == ["waiting", "cancelled", "after"]


async def test_cancelling_the_run_cancels_the_call_and_its_progress_was_seen(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with connect(child(safety="caution")) as mcp:
        agent, _ = build_agent(calls(("served__wait", {"path": str(trace)})), tools=mcp.tools)
        async with agent.session(workspace=tmp_path) as session:
            seen = asyncio.create_task(wait_for(session, Progress))
            await asyncio.sleep(0)  # from here on it watches: what was said before is not told again
            async with session.run("go") as run:
                progress = await seen
                assert (progress.message, progress.done, progress.total) == ("a quarter", 1.0, 4.0)
                await session.cancel()
                outcome = await run.wait()
                assert outcome is not None and outcome.reason == "cancelled"
        await until(lambda: "cancelled" in trace.read_text())
        assert mcp.health.state == "up"
    assert trace.read_text().splitlines() == ["waiting", "cancelled"]


async def test_two_hundred_tools_are_searched_for_and_called_under_their_own_names(tmp_path: Path) -> None:
    async with connect(child("served", "--many", "200", safety="caution")) as mcp:
        assert [tool.name for tool in mcp.tools] == ["search_tools", "call_tool"]
        agent, model = build_agent(
            calls(("search_tools", {"query": "topic77"})),
            calls(
                ("call_tool", {"name": "served__job_77", "arguments": {"text": "hello"}}),
                ("call_tool", {"name": "served__job_78", "arguments": '{"text": "as text"}'}),
                ("call_tool", {"name": "served__job_9", "arguments": {"text": "no"}}),
                ("call_tool", {"name": "served__job_999", "arguments": {}}),
                ("call_tool", {"name": "served__job_77", "arguments": {"text": 5}}),
            ),
            Reply("done"),
            tools=mcp.tools,
            grant=Grant(forbid=("served__job_9*",)),
        )
        async with agent.session(workspace=tmp_path) as session:
            await run_message(session)
            facts = await session.facts()
            done = list((await read_finished_calls(session)).values())
        found = next(iter(select_results(model.requests[1]).values())).text
        assert found.startswith("served__job_77: Do the job number 77") and '"text"' in found
        assert [fact.tool for fact in select_events(facts, CallStarted)] == [
            "search_tools",
            "served__job_77",
            "served__job_78",
        ]
        outputs = [(call.status, call.output) for call in done[1:]]
        assert ("ok", "77: hello") in outputs and ("ok", "78: as text") in outputs
        assert ("denied", "Denied: forbidden by served__job_9*. Do without it.") in outputs
        assert any(status == "error" and "no tool named 'served__job_999'" in text for status, text in outputs)
        assert any(status == "error" and "text: must be string" in text for status, text in outputs)
        assert len({json.dumps(str(request.tools)) for request in model.requests}) == 1, (
            "the prompt's beginning changed"
        )


async def test_a_destructive_tool_is_asked_for_by_its_own_name_also_when_it_was_searched_for(tmp_path: Path) -> None:
    async with connect(odd("plain", safety="destructive"), max_tools=3) as mcp:
        agent, _ = build_agent(
            calls(("call_tool", {"name": "odd__ok", "arguments": {"n": 1}})), Reply("done"), tools=mcp.tools, gate=later
        )
        async with agent.session(workspace=tmp_path) as session:
            assert await run_message(session) is None
            (asked,) = select_events(await session.facts(), ApprovalRequested)
            assert (asked.tool, asked.safety, asked.arguments) == ("odd__ok", "destructive", {"n": 1})


@pytest.mark.parametrize("limits", [{"max_tools": 4}, {"max_bytes": 500}])
async def test_either_limit_makes_tools_searched_for(limits: dict[str, int], tmp_path: Path) -> None:
    async with connect(odd("plain")) as mcp:
        assert len(mcp.tools) == 5
    async with connect(odd("plain"), **limits) as mcp:
        assert [tool.name for tool in mcp.tools] == ["search_tools", "call_tool"]
