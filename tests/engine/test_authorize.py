"""Authorization: dangerous commands are asked each time, a reduced sandbox, and private data that could leak."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.sessions import Store
from treadle import Answer, RunFinished, Session
from treadle.engine.setup import later
from treadle.events import ApprovalAnswered, ApprovalRequested, CallStarted, Grant, Safety, Tier
from treadle.messages import Call, Json, ToolSpec
from treadle.permissions.data_flow import Trait
from treadle.permissions.policy import Assessment
from treadle.sandbox.base import CommandResult, Job, OnOutput, ProbeResult, SandboxLevel
from treadle.testing import call
from treadle.tools.base import ParsedArguments, Tool, ToolContext
from treadle.tools.shell import Shell


class RecordingSandbox:
    """A sandbox that records the commands and runs none."""

    def __init__(self, level: SandboxLevel = "bubblewrap") -> None:
        self.level: SandboxLevel = level
        self.ran: list[str] = []

    def probe(self) -> ProbeResult:
        return ProbeResult(self.level, "")

    async def run_in_sandbox(self, job: Job, on_output: OnOutput) -> CommandResult:
        self.ran.append(job.argv[-1].rpartition("; eval ")[2].strip("'"))
        return CommandResult(0, "exited", None, 0.0, 0)

    async def run_on_host(self, job: Job, on_output: OnOutput) -> CommandResult:
        return await self.run_in_sandbox(job, on_output)


class TraitTool(Tool):
    """A tool that does nothing but has the given traits."""

    def __init__(self, name: str, *traits: Trait, safety: Safety = "caution") -> None:
        self.spec = ToolSpec(name=name, description=name, parameters={"type": "object", "properties": {}})
        self._traits, self._safety = frozenset(traits), safety

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return self._safety

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        return self._traits

    def parse(self, arguments: str) -> ParsedArguments:
        return ParsedArguments({}, {})

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        return "done"


def shell(command: str, id: str = "a") -> Call:
    return call("shell", id=id, command=command)


async def read_approval(session: Session) -> ApprovalRequested:
    """Return the only open question."""
    [question] = await kit.read_questions(session)
    assert isinstance(question, ApprovalRequested)
    return question


@pytest.mark.parametrize("scope", ["call", "tool", "pattern", "session"])
async def test_a_yes_to_a_dangerous_command_is_valid_once(store: Store, scope: Any) -> None:
    sandbox = RecordingSandbox()
    lines = [shell("git push --force"), shell("git push --force", "b")]
    agent, _ = kit.build_agent(*lines, "done", tools=[Shell(sandbox)], gate=later)
    async with agent.session(store.open()) as session:
        assert await kit.run_message(session) is None
        asked = await read_approval(session)
        assert asked.once and asked.rule == "" and "overwrites" in asked.why
        await session.approve("a", Answer("allow", scope, by="ann"))
        await kit.wait_for(session, ApprovalRequested, lambda fact: fact.call_id == "b")
        assert [fact.scope for fact in kit.select_events(await session.facts(), ApprovalAnswered)] == ["call"]
        await session.approve("b")
        await kit.wait_for(session, RunFinished)
        started = kit.select_events(await session.facts(), CallStarted)
    assert sandbox.ran == ["git push --force"] * 2
    assert [fact.why for fact in started] == [f"{who} allowed this call ({asked.why})" for who in ("ann", "user")]


async def test_one_always_does_not_allow_a_dangerous_command_in_the_same_reply(store: Store) -> None:
    sandbox = RecordingSandbox()
    lines = [shell("make x"), shell("sudo make x", "b")]
    agent, _ = kit.build_agent(lines, "done", tools=[Shell(sandbox)], gate=later, grant=Grant(cautious=True))
    async with agent.session(store.open()) as session:
        assert await kit.run_message(session) is None
        assert not (await read_approval(session)).once
        await session.approve("a", Answer("allow", "session"))
        assert (await kit.wait_for(session, ApprovalRequested, lambda fact: fact.call_id == "b")).once
        await session.deny("b")
        await kit.wait_for(session, RunFinished)
    assert sandbox.ran == ["make x"]


async def test_a_no_to_a_dangerous_command_is_remembered(store: Store) -> None:
    lines, gate = [shell("sudo ls"), shell("sudo ls", "b")], kit.build_gate(Answer("deny", "tool", by="ann"))
    run = await store.run_script(*lines, "done", tools=[Shell(RecordingSandbox())], gate=gate)
    assert len(run.select(ApprovalRequested)) == 1
    assert "ann denied shell" in run.results["b"].output


async def test_a_remembered_rule_covers_only_commands_of_its_kind() -> None:
    sandbox = RecordingSandbox()
    asked: list[str] = []

    async def gate(question: Any) -> Answer:
        asked.append(question.arguments["command"])
        return Answer("allow", "pattern", by="ann")

    commands = ["git add a", "git add b", "timeout 5 git add c", "git add d; make", "git add e > f", "git commit"]
    lines = [call("bash", command=command) for command in commands]
    run = await kit.run_script(*lines, "done", tools=[Shell(sandbox)], gate=gate, grant=Grant(cautious=True))
    started = run.select(CallStarted)
    assert asked == ["git add a", "git add d; make", "git add e > f", "git commit"] and len(sandbox.ran) == 6
    assert started[1].why == "ann allowed shell(command=git add *) for this session"
    assert {fact.tool for fact in started} == {"shell"} and {fact.sandbox for fact in started} == {"bubblewrap"}


@pytest.mark.parametrize(
    ("grant", "statuses"),
    [
        (Grant(forbid=("bash",)), ["denied", "denied"]),
        (Grant(forbid=("bas*(rm *)",)), ["ok", "denied"]),
        (Grant(tools=("bash",)), ["ok", "ok"]),
        (Grant(tools=("batch",)), ["denied", "denied"]),
        (Grant(ask_all=True, approve=("bash",)), ["ok", "ok"]),
        (Grant(ask_all=True, approve=("bash(make *)",)), ["ok", "denied"]),
        (Grant(ask=("bash(rm *)",)), ["ok", "denied"]),
    ],
)
@pytest.mark.parametrize("name", ["bash", "shell"])
async def test_a_pattern_can_use_a_tools_alias(grant: Grant, statuses: list[str], name: str) -> None:
    lines = [call(name, command="make x"), call(name, command="rm x")]
    run = await kit.run_script(*lines, "done", tools=[Shell(RecordingSandbox())], grant=grant)
    assert [fact.status for fact in run.results.values()] == statuses


async def test_a_reduced_sandbox_asks_for_every_command() -> None:
    sandbox = RecordingSandbox("landlock")
    agent, _ = kit.build_agent(shell("ls"), "done", tools=[Shell(sandbox)], gate=later)
    async with agent.session() as session:
        assert await kit.run_message(session) is None
        asked = await read_approval(session)
    assert "reduced" in asked.why and not asked.once and sandbox.ran == []


class SlowlyAssessed(TraitTool):
    """A tool whose assessment waits for the event loop."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.begun, self.loop_goes_on = threading.Event(), threading.Event()

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        self.begun.set()
        assert self.loop_goes_on.wait(10), "the event loop was held up"
        return Assessment("safe")


async def test_a_long_call_is_judged_beside_the_event_loop() -> None:
    tool = SlowlyAssessed()
    running = asyncio.ensure_future(kit.run_script(call("slow", text="x" * 3000), "done", tools=[tool]))
    await asyncio.to_thread(tool.begun.wait)
    tool.loop_goes_on.set()
    assert [fact.status for fact in (await running).results.values()] == ["ok"]


async def test_without_a_gate_an_unclear_command_is_denied_with_the_reason() -> None:
    sandbox = RecordingSandbox()
    run = await kit.run_script(shell("ls; $CMD"), "done", tools=[Shell(sandbox)])
    done = run.results["a"]
    assert done.status == "denied" and "nobody can tell what this would run: $CMD" in done.output and sandbox.ran == []


# ── untrusted text, private data and a way out ──────────────────────────────────────────────────────────────

FETCH = TraitTool("fetch", "untrusted", "way_out")
READ = TraitTool("read", "private", safety="safe")
SEND = TraitTool("send", "way_out")
PEEK = TraitTool("peek", "way_out", safety="safe")
TOOLS = [FETCH, READ, SEND, PEEK]


HARMLESS = ["fetch", "read fetch", "read send", "fetch read"]


@pytest.mark.parametrize(
    ("calls", "asked"),
    [
        *((calls, []) for calls in HARMLESS),
        ("fetch send", ["send"]),  # the user's message is private too
        ("fetch fetch", ["fetch"]),
        ("fetch read send", ["send"]),
        ("fetch peek", ["peek"]),  # a search only reads, and its words still leave
        ("read fetch fetch", ["fetch"]),
        ("read fetch send", ["send"]),
    ],
)
async def test_a_call_is_asked_when_all_three_come_together(calls: str, asked: list[str]) -> None:
    lines = [call(name) for name in calls.split()]
    run = await kit.run_script(*lines, "done", tools=TOOLS, gate=kit.build_gate(Answer("allow")))
    found = run.select(ApprovalRequested)
    assert [fact.tool for fact in found] == asked
    assert all("private data is in reach" in fact.why for fact in found)


async def test_seen_data_is_remembered_after_a_restart_and_for_missing_tools(store: Store) -> None:
    await store.run_script(call("fetch"), call("read"), "done", tools=TOOLS)
    again, _ = kit.build_agent(call("send", id="s"), "done", tools=[SEND])
    async with again.session(store.open()) as session:
        await kit.run_to_end(session)
        assert (await kit.read_finished_calls(session))["s"].status == "denied"


async def test_a_denied_call_brings_nothing_in() -> None:
    grant = Grant(forbid=("fetch",))
    run = await kit.run_script(call("fetch"), call("read"), call("send"), "done", tools=TOOLS, grant=grant)
    assert [fact.status for fact in run.results.values()] == ["denied", "ok", "ok"]


@pytest.mark.parametrize(
    ("tier", "network", "hosts", "traits"),
    [
        ("sandbox", False, (), {"workspace", "private"}),
        ("sandbox", True, ("example.org",), {"workspace", "private", "way_out"}),
        ("sandbox", True, (), {"workspace", "private", "way_out", "untrusted"}),
        ("full", False, (), {"workspace", "private", "way_out", "host"}),
    ],
)
def test_a_shell_is_a_way_out_where_it_has_the_network(
    tier: Tier, network: bool, hosts: tuple[str, ...], traits: set[str]
) -> None:
    assert Shell(RecordingSandbox(), network=network, allow_hosts=hosts).list_traits(tier) == traits
