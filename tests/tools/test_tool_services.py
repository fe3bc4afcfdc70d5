"""What a running call may do with its session's log, and the aliases and the sandbox that a tool declares."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kit.sessions import Store, build_agent, either_store, read_finished_calls, run_agent, run_script, run_to_end
from treadle import CallStarted, Grant, Runtime, ToolContext, tool
from treadle.errors import NotFound
from treadle.events import Custom, FilesKept, KeptFile, Safety, SessionConfigured, Tier
from treadle.messages import Call, Json, Reply, ToolSpec
from treadle.testing import ScriptedModel, call
from treadle.tools.base import ParsedArguments, Tool

store = either_store


@tool(safety="safe")
async def step(context: ToolContext) -> str:
    """Go one step further than the last call did."""
    place = context.notes.get("acme.place", 0) + 1
    await context.services.save_note("acme.place", place)
    return f"at {place}"


async def test_a_note_of_one_call_is_there_for_the_next_also_after_a_restart(store: Store) -> None:
    for expected in ("at 1", "at 2"):
        agent, _ = build_agent(call("step"), "done", tools=[step])
        done = await store.run_agent(agent, name="walk")
        assert [result.text for result in done.messages.values()][-1] == expected
    assert [fact.data for fact in done.select(Custom)] == [1, 2]


async def test_old_contents_are_recorded_under_the_call_that_changes_them(store: Store) -> None:
    @tool
    async def change(context: ToolContext) -> str:
        await context.services.record_kept_files([KeptFile("a.txt", "abc", 0o600)], tree="t", left_out=["big.bin"])
        return "changed"

    (kept,) = (await store.run_script(call("change", id="c1"), "done", tools=[change])).select(FilesKept)
    assert (kept.call_id, kept.files) == ("c1", (KeptFile("a.txt", "abc", 0o600),))
    assert (kept.tree, kept.left_out) == ("t", ("big.bin",))


async def test_a_call_reads_the_artifacts_of_its_own_session_only(store: Store) -> None:
    @tool(safety="safe")
    async def look(artifact: str, context: ToolContext) -> str:
        return (await context.services.read_artifact(artifact)).decode()

    log = store.open()
    wanted: list[Call] = []
    agent, _ = build_agent(lambda request: Reply(calls=tuple(wanted)), "done", tools=[look])
    async with Runtime(log, [agent]) as runtime:
        async with runtime.session(new=True) as other:
            secret = await log.put_artifact(other.id, b"theirs")
        async with runtime.session(new=True) as session:
            mine = await log.put_artifact(session.id, b"mine")
            wanted += [Call(name, "look", f'{{"artifact": "{one}"}}') for name, one in (("a", mine), ("b", secret))]
            await run_to_end(session)
            results = await read_finished_calls(session)
    assert (results["a"].status, results["a"].output) == ("ok", "mine")
    assert results["b"].status == "error" and "theirs" not in results["b"].output


class SandboxedTool(Tool):
    """A tool with an alias and a sandbox that depends on the tier."""

    spec = ToolSpec("shell", "Run a command.", {"type": "object", "properties": {}})
    aliases = ("bash",)

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return "caution"

    def parse(self, arguments: str) -> ParsedArguments:
        return ParsedArguments({}, {})

    def describe_sandbox(self, tier: Tier) -> str:
        return f"sandbox of {tier}"

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> str:
        return f"ran in tier {context.tier}"


@pytest.mark.parametrize(("narrower", "tier"), [(None, "full"), (Grant(tier="sandbox"), "sandbox")])
async def test_the_narrowest_tier_decides_about_the_sandbox(narrower: Grant | None, tier: Tier) -> None:
    agent, _ = build_agent(call("shell", id="a"), "done", tools=[SandboxedTool()], grant=Grant(tier="full"))
    done = await run_agent(agent, grant=narrower)
    assert done.results["a"].output == f"ran in tier {tier}"
    assert [started.sandbox for started in done.select(CallStarted)] == [f"sandbox of {tier}"]


@pytest.mark.parametrize(("grant", "status"), [(Grant(), "ok"), (Grant(forbid=("shell",)), "denied")])
async def test_a_tool_is_found_by_its_alias_and_authorized_by_its_name(grant: Grant, status: str) -> None:
    done = await run_script(call("bash", id="a"), "done", tools=[SandboxedTool()], grant=grant)
    assert done.results["a"].status == status
    assert [spec.name for spec in done.requests[0].tools] == ["shell"]


async def test_services_without_a_log_have_no_artifacts() -> None:
    with pytest.raises(NotFound):
        await ToolContext("s", "c", Path()).services.read_artifact("x")


async def test_a_session_that_chose_a_model_keeps_it_from_the_next_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ScriptedModel("from the chosen one")
    monkeypatch.setattr("treadle.models.catalog.resolve_model", lambda name, keyring: {"other": chosen}[name])
    agent, _ = build_agent("from the agent's own")
    async with agent.session() as session:
        assert (await run_to_end(session)).answer == "from the agent's own"
        await session.configure(model="other")
        assert (await run_to_end(session)).answer == "from the chosen one"
        assert any(isinstance(fact, SessionConfigured) for fact in await session.facts())
