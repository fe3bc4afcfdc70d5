"""Who is asked for a push, fetch or clone, what they see, and what an answer or a rule covers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.git_servers import GitHome, read_served
from tests.kit.shell import needs_bubblewrap
from treadle import Answer, RunFinished
from treadle.engine.setup import later
from treadle.events import ApprovalRequested, CallFinished, CallStarted, Grant
from treadle.messages import Call
from treadle.sandbox import backend
from treadle.testing import call
from treadle.tools.base import Tool
from treadle.tools.builtin import build_default_tools
from treadle.tools.git_remote import GitRemote
from treadle.tools.shell import Shell

PUSH = call("shell", id="a", command="git push")


def build_tools() -> list[Tool]:
    """Build the shell and its remote."""
    shell = Shell(backend)
    shell.remote = GitRemote(backend)
    return [shell, shell.remote]


async def run_calls(work: Path, *script: Any, tools: Sequence[Tool] | None = None, **options: Any) -> list[Any]:
    """Run the calls to the end. Return the facts."""
    agent, _ = kit.build_agent(*script, "done", tools=tools or build_tools(), **options)
    async with agent.session(":memory:", workspace=work) as session:
        await kit.run_to_end(session)
        return list(await session.facts())


@pytest.fixture
def commit(home: GitHome, work: Path) -> str:
    return home.commit(work, "new")


async def test_a_push_that_is_typed_in_the_shell_is_asked_with_all_that_matters(
    home: GitHome, shared: Path, port: int, work: Path, commit: str
) -> None:
    facts = await run_calls(work, PUSH, gate=kit.build_gate(Answer("allow")))
    [asked] = kit.select_events(facts, ApprovalRequested)
    assert (asked.tool, asked.safety, asked.once) == ("git_remote", "destructive", False)
    assert asked.arguments["host"] == f"127.0.0.1:{port}" and asked.arguments["commit"] == commit
    assert asked.arguments["commits"] == [f"{commit[:7]} Add new"]
    assert f"it sends main to 127.0.0.1:{port} with the user's own credentials" in asked.why
    assert asked.rule == f"git_remote(operation=push main to git://127.0.0.1:{port}/app.git)"
    [started] = kit.select_events(facts, CallStarted)
    assert (started.tool, started.arguments) == ("git_remote", asked.arguments)
    assert read_served(home, shared) == commit


@pytest.mark.parametrize("typed", [PUSH, call("git_remote", id="a", action="push")])
@pytest.mark.parametrize(
    ("grant", "status", "reason"),
    [
        (Grant(), "denied", "--approve"),
        (Grant(yes=True), "ok", ""),
        (Grant(approve=("git_remote(push *)",)), "ok", ""),
        (Grant(approve=("git_remote(action=push)",)), "ok", ""),
        (Grant(approve=("git_remote(push * to git://127.0.0.1:*/app.git)",)), "ok", ""),
        (Grant(approve=("git_remote(push * to https://example.org/*)",)), "denied", "--approve"),
        (Grant(approve=("git_remote(fetch *)", "shell")), "denied", "--approve"),
        (Grant(tier="read-only", yes=True), "denied", "destructive in tier read-only"),
        (Grant(yes=True, forbid=("git_remote",)), "denied", "forbidden by git_remote"),
        (Grant(yes=True, forbid=("shell(git push *)",)), "denied", "forbidden by shell"),
        (Grant(yes=True, forbid=("bash(git push origin main*)",)), "denied", "forbidden by"),
    ],
)
async def test_what_is_allowed_and_forbidden_beforehand_holds(
    home: GitHome, shared: Path, work: Path, commit: str, typed: Call, grant: Grant, status: str, reason: str
) -> None:
    before = read_served(home, shared)
    [result] = kit.select_events(await run_calls(work, typed, grant=grant), CallFinished)
    assert (result.status, reason in result.output) == (status, True), result.output
    assert read_served(home, shared) == (commit if status == "ok" else before)


async def test_an_answer_does_not_hold_for_what_changed_meanwhile(
    home: GitHome, shared: Path, work: Path, commit: str
) -> None:
    before = read_served(home, shared)
    agent, _ = kit.build_agent(PUSH, "done", tools=build_tools(), gate=later)
    async with agent.session(":memory:", workspace=work) as session:
        assert await kit.run_message(session) is None
        home.git("remote", "set-url", "origin", "https://evil.example/app.git", at=work)
        await session.approve("a")
        await kit.wait_for(session, RunFinished)
        [result] = kit.select_events(await session.facts(), CallFinished)
    assert result.status == "denied" and "not what was approved" in result.output
    assert read_served(home, shared) == before


@needs_bubblewrap
async def test_a_push_in_the_same_reply_is_asked_after_the_commit_before_it(
    home: GitHome, shared: Path, work: Path
) -> None:
    (work / "new").write_text("new\n")
    command = "git add new && git -c user.name=A -c user.email=a@b.c commit -qm New"
    reply = [call("shell", id="a", command=command), call("git_remote", id="b", action="push")]
    facts = await run_calls(work, reply, gate=kit.build_gate(Answer("allow")), grant=Grant(approve=("shell",)))
    asked = [fact for fact in kit.select_events(facts, ApprovalRequested) if fact.tool == "git_remote"]
    assert [fact.arguments["commit"] for fact in asked] == [read_served(home, shared)]
    assert home.git("rev-parse", "HEAD", at=work) == read_served(home, shared)


async def test_a_push_after_reading_text_of_others_is_a_question_about_data(
    work: Path, commit: str, tmp_path: Path
) -> None:
    tools = build_default_tools(kept=tmp_path / "kept")
    read = call("read_file", id="r", path="README")
    facts = await run_calls(work, read, PUSH, tools=tools, grant=Grant(approve=("git_remote",)))
    result = kit.select_events(facts, CallFinished)[-1]
    assert result.status == "denied" and "--approve-flow" in result.output


async def test_with_full_access_git_push_stays_a_command(work: Path) -> None:
    shell = build_tools()[0]
    parsed = shell.parse('{"command": "git push"}')
    assert await shell.bind_call(parsed, work, "full") == (shell, parsed)
    assert (await shell.bind_call(parsed, work, "sandbox"))[0].name == "git_remote"


@pytest.mark.parametrize(
    ("hosts", "address", "is_command"),
    [
        ((), "https://git.example.org/x", True),
        (("git.example.org",), "https://git.example.org/x", True),
        (("git.example.org",), "https://git.example.org:8443/x", False),
        (("git.example.org",), "me@git.example.org:x", False),
        (("pypi.org",), "https://git.example.org/x", False),
    ],
)
async def test_a_clone_stays_a_command_if_commands_reach_its_host(
    work: Path, hosts: tuple[str, ...], address: str, is_command: bool
) -> None:
    shell = Shell(backend, network=True, allow_hosts=hosts)
    shell.remote = GitRemote(backend)
    parsed = shell.parse(f'{{"command": "git clone {address}"}}')
    assert ((await shell.bind_call(parsed, work, "sandbox"))[0] is shell) is is_command
