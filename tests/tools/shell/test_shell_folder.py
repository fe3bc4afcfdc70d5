"""The folder of a command is authorized, shown and approved together with the command."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import (
    build_agent,
    read_finished_calls,
    run_agent,
    run_message,
    run_to_end,
    select_events,
    wait_for,
)
from treadle import Agent, Answer, CallStarted, RunFinished, Session
from treadle.cli.approval_text import render_approval
from treadle.cli.draw.glyphs import Theme
from treadle.engine.setup import later
from treadle.events import ApprovalRequested, Grant
from treadle.messages import Call, Reply
from treadle.sandbox import backend as sandbox
from treadle.tools.base import FOLDER_NOTE
from treadle.tools.shell import Shell

CAREFUL = Grant(tier="full", cautious=True)
"""All commands that do more than read are asked. They run on the host: the sandbox is tested elsewhere."""


def commands(*wanted: str, first: int = 1) -> Reply:
    made = [Call(f"c{n}", "shell", json.dumps({"command": text})) for n, text in enumerate(wanted, first)]
    return Reply(calls=tuple(made), finish="calls")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    for place in ("out", "sub/out"):
        (folder / place).mkdir(parents=True)
        (folder / place / "kept").touch()
    return folder


def build_shell_agent(*script: Reply, grant: Grant = CAREFUL) -> Agent:
    agent, _ = build_agent(*script, Reply("done"), tools=[Shell(sandbox)], grant=grant, gate=later)
    return agent


@asynccontextmanager
async def run_until_question(
    workspace: Path, *script: Reply, **options: Any
) -> AsyncIterator[tuple[Session, ApprovalRequested]]:
    """Run a script until a command is asked for. Yield the session and the question."""
    async with build_shell_agent(*script, **options).session(workspace=workspace) as session:
        assert await run_message(session) is None
        (question,) = select_events(await session.facts(), ApprovalRequested)
        yield session, question


async def test_a_command_is_asked_after_the_one_before_and_the_question_names_its_folder(workspace: Path) -> None:
    async with run_until_question(workspace, commands("cd sub", "rm -rf out")) as (session, question):
        assert (question.arguments["command"], question.arguments["folder"]) == ("rm -rf out", "sub")
        assert (await read_finished_calls(session))["c1"].seq < question.seq
        await session.approve("c2", digest=question.digest)
        await wait_for(session, RunFinished)
    assert (workspace / "out" / "kept").exists() and not (workspace / "sub" / "out").exists()


async def test_the_terminal_shows_the_folder_and_each_part_of_the_command(workspace: Path) -> None:
    async with run_until_question(workspace, commands("cd sub", "mkdir a && touch b")) as (_, question):
        lines = render_approval(question, {"shell": Shell(sandbox)}, workspace, 200, Theme())
    assert lines[0] == "mkdir a && touch b" and "folder: sub" in lines
    assert lines[lines.index("1 mkdir a") + 1] == "2 touch b"
    assert [line.split() for line in lines if line.startswith("where")] == [["where", str(workspace)]]


async def test_an_approval_holds_only_for_the_folder_that_was_shown(workspace: Path) -> None:
    async with run_until_question(workspace, commands("rm -rf out")) as (session, _):
        await session.note(FOLDER_NOTE, "sub")
        await session.approve("c1")
        await wait_for(session, RunFinished)
        done = (await read_finished_calls(session))["c1"]
    assert done.status == "denied" and "its folder" in done.output
    assert (workspace / "out" / "kept").exists() and (workspace / "sub" / "out" / "kept").exists()


@pytest.mark.parametrize("link", ["", "moved"], ids=["gone", "now a link"])
async def test_an_approval_for_a_folder_that_is_gone_runs_nothing(link: str, workspace: Path) -> None:
    async with run_until_question(workspace, commands("cd sub", "rm -rf out")) as (session, _):
        (workspace / "sub").rename(workspace / "moved")
        if link:
            (workspace / "sub").symlink_to(link)
        await session.approve("c2")
        await wait_for(session, RunFinished)
        done = (await read_finished_calls(session))["c2"]
    assert done.status == "error" and done.output.startswith("Not run: the folder sub")
    assert (workspace / "out" / "kept").exists() and (workspace / "moved" / "out" / "kept").exists()


async def test_reading_commands_run_together_once_their_folder_is_known(workspace: Path) -> None:
    agent = build_shell_agent(commands("ls", "pwd", "cd sub", "pwd", "ls", "cd out && pwd", "pwd"))
    done = await run_agent(agent, workspace=workspace)
    started = done.select(CallStarted)
    assert [one.arguments.get("folder", "") for one in started] == ["", "", "", "sub", "sub", "sub", "sub/out"]
    shown = [done.results[f"c{n}"].output.splitlines()[0] for n in (2, 4, 6, 7)]
    assert shown == [str(workspace / folder) for folder in ("", "sub", "sub/out", "sub/out")]
    # Those that stand together are started together: nothing of their results lies between.
    batches = [{one.seq - place for place, one in enumerate(started)} for started in (started[:3], started[3:6])]
    assert [len(starts) for starts in batches] == [1, 1]


async def test_a_call_of_another_tool_between_commands_keeps_its_place(workspace: Path) -> None:
    calls = (*commands("mkdir a").calls, Call("n", "nosuch", "{}"), *commands("mkdir b", first=2).calls)
    async with run_until_question(workspace, Reply(calls=calls)) as (session, question):
        assert question.call_id == "c1" and await read_finished_calls(session) == {}
        await session.approve("c1", Answer("allow", "tool"))
        await wait_for(session, RunFinished)
        assert select_events(await session.facts(), ApprovalRequested) == [question]
        assert list(await read_finished_calls(session)) == ["c1", "n", "c2"]
    assert (workspace / "a").is_dir() and (workspace / "b").is_dir()


async def test_writing_instructions_is_asked_also_inside_their_folder(workspace: Path) -> None:
    (workspace / ".github" / "workflows").mkdir(parents=True)
    script = commands("cd .github"), commands("touch workflows/ci.yml", first=2)
    async with run_until_question(workspace, *script, grant=Grant(tier="full")) as (_, question):
        assert question.once and "instructs agents, editors or build services" in question.why


async def test_a_command_cannot_choose_its_own_folder(workspace: Path) -> None:
    call = Call("c1", "shell", json.dumps({"command": "pwd", "folder": "sub"}))
    done = await run_agent(build_shell_agent(Reply(calls=(call,))), workspace=workspace)
    assert done.results["c1"].status == "error"


async def test_a_fork_and_a_rewind_restore_the_folder(workspace: Path) -> None:
    script = commands("cd sub"), Reply("one"), commands("pwd", first=2), Reply("two"), commands("pwd", first=3)
    agent = build_shell_agent(*script)
    async with agent.session(workspace=workspace) as session:
        before = (await session.state()).seq
        await run_to_end(session)
        fork = await session.fork()
        await run_to_end(fork)
        assert (await read_finished_calls(fork))["c2"].output == str(workspace / "sub")
        await session.rewind(before)
        await run_to_end(session)
        assert (await read_finished_calls(session))["c3"].output == str(workspace)
        await session.undo_rewind()
        assert (await session.state()).notes[FOLDER_NOTE] == "sub"


async def test_a_folder_whose_name_is_not_utf8_is_left_again(workspace: Path) -> None:
    script = commands(r"mkdir $'odd\xff' && cd $'odd\xff'"), commands("pwd", first=2)
    agent = build_shell_agent(*script, grant=Grant(tier="full"))
    done = (await run_agent(agent, workspace=workspace)).results
    assert "not UTF-8: the next command starts in the workspace again" in str(done["c1"].output)
    assert str(done["c2"].output).strip() == str(workspace)
