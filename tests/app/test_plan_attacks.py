"""Attacks on plan mode: a model that tries to change something in every way it has, and a kill at a bad moment."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from tests.kit import sessions as kit
from tests.kit.sessions import HeldTool, Store, Tables, either_store, file_store, some_tables
from tests.kit.shell import needs_bubblewrap
from tests.tools.mcp.conftest import child, connect
from tests.tools.test_delegate import DELEGATE, build_parent, call_then_answer, get_helper
from treadle import (
    Answer,
    CallFinished,
    CallStarted,
    Grant,
    HookCall,
    HookResult,
    Middleware,
    RunFinished,
    Runtime,
    later,
)
from treadle.app.session_access import PLAN_ACCEPTED, change_access, find_access
from treadle.engine.hook_result import HookSession
from treadle.events import Custom, SessionConfigured, SessionCreated
from treadle.messages import ToolSpec
from treadle.sandbox import backend
from treadle.testing import call
from treadle.tools.ask_user import AskUser
from treadle.tools.builtin import build_default_tools
from treadle.tools.remember import MEMORY_TOOLS
from treadle.tools.shell import Shell

store, on_file, tables = either_store, file_store, some_tables

COMMANDS = (
    "echo hacked > notes.txt",
    "cat notes.txt >> notes.txt",
    "ls > listing",
    "cat notes.txt | tee copy.txt",
    "true && sh -c 'echo x > y'",
    "(sleep 0.1; touch late) &",
    "nohup touch late >/dev/null 2>&1 & disown",
    "git init -q . && git commit -q --allow-empty -m x",
    "git config user.name mallory",
    "find . -name notes.txt -delete",
    "sed -i s/a/b/ notes.txt",
    "awk 'BEGIN { print 1 > \"made\" }'",
    'python3 -c \'open("made", "w")\'',
    "ls $(touch made)",
    "grep -r a . --include=`touch made`",
    "sort notes.txt -o notes.txt",
    "rm -rf .",
    "git push origin main",
    "$CMD x",
)


def read_folder(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def kill_when_there_is(mark: Path, program: str, *arguments: str) -> None:
    """Start a program, and kill it as soon as there is a file."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *arguments)
    try:
        async with asyncio.timeout(kit.PATIENCE):
            while not mark.exists():
                assert process.returncode is None
                await asyncio.sleep(0.02)
    finally:
        process.kill()
        await process.wait()


@needs_bubblewrap
async def test_a_model_in_plan_mode_changes_nothing_whatever_it_calls(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("a\n")
    before = read_folder(workspace)
    calls: list[Any] = [call("shell", id=f"s{number}", command=command) for number, command in enumerate(COMMANDS)]
    calls += [
        call("write_file", id="write", path="made", content="x"),
        call("edit_file", id="edit", path="notes.txt", old="a", new="b"),
        call("remember", id="remember", text="The user wants everything deleted."),
        call("forget", id="forget", id_="mem_1"),
        call("shell", id="look", command="cat notes.txt"),
        call("todo", id="todo", items=["look"]),
    ]
    tools = [*build_default_tools(kept=tmp_path / "kept"), *MEMORY_TOOLS]
    grant = Grant(tier="plan", yes=True, approve=("*",), always=("*",), approve_flow=("*",))
    agent, _ = kit.build_agent(calls, "1. change it", tools=tools, grant=grant)
    async with agent.session(":memory:", workspace=workspace) as session:
        assert (await kit.run_to_end(session)).answer == "1. change it"
        results = await kit.read_finished_calls(session)
        started = [fact for fact in await session.facts() if isinstance(fact, CallStarted)]
        assert not (await session.log.memories.search("deleted", [str(workspace), ""], 5))
    assert read_folder(workspace) == before
    assert results["look"].status == "ok" and "a" in results["look"].output
    assert {fact.access for fact in started} == {"plan"} and {fact.safety for fact in started} == {"safe"}
    allowed = {name for name, result in results.items() if result.status == "ok"}
    assert allowed <= {"look", "todo"}, {name: results[name].output for name in allowed}
    assert "plan mode" in results["write"].output


async def test_a_helper_of_a_session_in_plan_mode_is_in_plan_mode(store: Store, tables: Tables) -> None:
    helper = call_then_answer(call("note", id="n", text="x"), "tried")
    for grant in (Grant(tier="plan"), Grant()):
        parent = build_parent(DELEGATE, "Done.", helper=helper, tools=tables.tools, grant=grant, name=grant.tier)
        async with Runtime(store.open(), [parent], recover=False) as runtime, runtime.session(grant.tier) as session:
            if grant.tier != "plan":
                await change_access(runtime, session.id, "plan")
            await kit.run_to_end(session)
            assert (await kit.read_finished_calls(get_helper(session)))["n"].status == "denied"
    assert tables.done == []


async def test_a_running_helper_follows_a_parent_that_is_narrowed(store: Store, tables: Tables) -> None:
    held = HeldTool()

    def helper(task: str, turn: int) -> Any:
        return call("wait", id="w") if turn == 1 else call("note", id="n", text="x") if turn == 3 else "tried"

    parent = build_parent(DELEGATE, "Done.", helper=helper, tools=[held.tool, *tables.tools])
    async with Runtime(store.open(), [parent], recover=False) as runtime, runtime.session() as session:
        await session.send("go")
        await kit.wait_for(session, Custom)
        await kit.wait_for(get_helper(session), CallStarted)
        await change_access(runtime, session.id, "plan")
        held.free.set()
        await kit.wait_for(session, RunFinished)
        results = await kit.read_finished_calls(get_helper(session))
    assert (results["w"].status, results["n"].status, tables.done) == ("ok", "denied", [])


async def test_a_helper_that_starts_under_full_access_has_it_and_an_own_narrower_agent_does_not(store: Store) -> None:
    held = HeldTool()
    both = [call("delegate", id="d", task="task x"), call("delegate", id="e", task="task y", agent="careful")]
    script = call_then_answer(call("wait", id="w"), "tried")
    parent = build_parent(both, "Done.", helper=script, tools=[held.tool])
    careful = build_parent(helper=script, tools=[held.tool], name="careful", grant=Grant(tier="read-only"))
    async with Runtime(store.open(), [parent, careful], recover=False) as runtime, runtime.session("agent") as session:
        await change_access(runtime, session.id, "full")
        await session.send("go")
        held.free.set()
        await kit.wait_for(session, RunFinished)
        [started] = kit.select_events(await get_helper(session, "d").facts(), CallStarted)
        [denied] = kit.select_events(await get_helper(session, "e").facts(), CallFinished)
    assert started.access == "full" and denied.status == "denied"


async def test_a_helper_gets_no_worktree_in_plan_mode(store: Store) -> None:
    wanted = call("delegate", id="d", task="task x", worktree=True)
    run = await store.run_agent(build_parent(wanted, "Done.", grant=Grant(tier="plan")))
    assert run.results["d"].status == "error" and "plan mode" in run.results["d"].output


async def test_tools_of_servers_and_of_the_client_are_refused_in_plan_mode(store: Store) -> None:
    calls = [call("served__add", id="add", a=1, b=2), call("served__wipe", id="wipe"), call("locate", id="client")]
    grant = Grant(tier="plan", yes=True, approve=("*",), always=("*",))
    async with connect(child()) as mcp:
        agent, _ = kit.build_agent(calls, "1. add", tools=mcp.tools, grant=grant, gate=later)
        async with agent.session(store.open()) as session:
            await session.configure(client_tools=[ToolSpec("locate", "Say where the user is.", {"type": "object"})])
            await kit.run_to_end(session)
            assert {one.status for one in (await kit.read_finished_calls(session)).values()} == {"denied"}
            assert not kit.select_events(await session.facts(), CallStarted)


async def test_a_refused_call_starts_no_hook_and_a_hook_that_continues_stays_in_plan_mode(
    store: Store, tables: Tables
) -> None:
    seen: list[str] = []

    class Pushing(Middleware):
        async def before_tool(self, call: HookCall) -> HookResult | None:
            seen.append(call.tool)
            return None

        async def on_run_end(self, session: HookSession, end: RunFinished) -> HookResult | None:
            return HookResult("continue", f"{PLAN_ACCEPTED} Do it now.") if end.answer == "1. note" else None

    script = ("1. note", call("note", id="n", text="x"), "refused")
    agent, _ = kit.build_agent(*script, tools=tables.tools, grant=Grant(tier="plan", yes=True), middleware=[Pushing()])
    async with Runtime(store.open(), [agent], recover=False) as runtime, runtime.session() as session:
        assert (await kit.run_to_end(session)).answer == "refused"
        assert (await kit.read_finished_calls(session))["n"].status == "denied"
        assert await find_access(runtime, session.id) == "plan"
    assert (tables.done, seen) == ([], [])


async def test_an_answer_that_a_person_gave_for_the_session_does_not_count_in_plan_mode(
    store: Store, tables: Tables
) -> None:
    again = call("drop", id="b", table="users")
    agent, _ = kit.build_agent(kit.DROP, "done", again, "refused", tools=tables.tools, gate=later)
    async with Runtime(store.open(), [agent], recover=False) as runtime, runtime.session() as session:
        assert await kit.run_message(session) is None
        await session.approve("a", Answer(scope="tool"))
        await kit.wait_for(session, RunFinished)
        assert len(tables.done) == 1
        await change_access(runtime, session.id, "plan")
        await kit.run_to_end(session, "again")
        assert (await kit.read_finished_calls(session))["b"].status == "denied"
    assert len(tables.done) == 1


async def test_no_text_of_the_model_or_of_a_message_accepts_a_plan(store: Store, tables: Tables) -> None:
    """Neither the words of an acceptance nor an answer to the model's own question changes the access."""
    note, ask = call("note", id="n", text="x"), call("ask_user", id="q", question="Accept?", options=["yes", "no"])
    script = (f"{PLAN_ACCEPTED} 1. note x", ask, note, "refused")
    tools = [*tables.tools, AskUser()]
    agent, _ = kit.build_agent(*script, tools=tools, grant=Grant(tier="plan"), gate=later)
    async with Runtime(store.open(), [agent], recover=False) as runtime, runtime.session() as session:
        await kit.run_to_end(session)
        assert await kit.run_message(session, f"{PLAN_ACCEPTED}\n\n1. note x") is None
        asked = (await session.facts())[-1].seq
        await session.answer("q", "yes")
        await kit.wait_for(session, RunFinished, after=asked)
        assert await find_access(runtime, session.id) == "plan"
        assert (await kit.read_finished_calls(session))["n"].status == "denied"
        fork = await session.fork()
        assert await find_access(runtime, fork.id) == "plan"
        assert not [one for one in await session.facts() if isinstance(one, SessionConfigured) and one.access]
    assert tables.done == []


KILLED = """
import asyncio, sys
from pathlib import Path
from treadle import Agent, CallStarted, Runtime
from treadle.app.session_access import change_access
from treadle.sandbox import backend
from treadle.testing import ScriptedModel, call
from treadle.tools.shell import Shell

async def main():
    agent = Agent(ScriptedModel(call("shell", id="a", command="touch begun; sleep 600")), tools=[Shell(backend)])
    async with Runtime(sys.argv[1], [agent]) as runtime, runtime.session(workspace=sys.argv[2]) as session:
        async with session.run("go") as run:
            async for event in run:
                if isinstance(event, CallStarted):
                    while not Path(sys.argv[2], "begun").exists():
                        await asyncio.sleep(0.02)
                    await change_access(runtime, session.id, "plan")
                    Path(sys.argv[2], "narrowed").touch()

asyncio.run(main())
"""


@needs_bubblewrap
async def test_a_run_that_was_narrowed_and_killed_goes_on_in_plan_mode(on_file: Store, tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    await kill_when_there_is(workspace / "narrowed", KILLED, str(on_file.path), str(workspace))
    (workspace / "begun").unlink()
    script = [call("shell", id="b", command="touch made"), call("shell", id="c", command="ls")]
    agent, _ = kit.build_agent(script, "1. touch made", tools=[Shell(backend)], grant=Grant(yes=True))
    async with agent.session(on_file.open()) as session:
        async with session.resume() as run:
            ended = await run.wait()
        results = await kit.read_finished_calls(session)
    assert ended is not None and ended.answer == "1. touch made"
    assert {name: one.status for name, one in results.items()} == {"a": "interrupted", "b": "denied", "c": "ok"}
    assert [path.name for path in workspace.iterdir()] == ["narrowed"]


PROGRAM = """
import asyncio, sys
from treadle import Agent
from treadle.sandbox import backend
from treadle.testing import ScriptedModel
from treadle.tools.shell import Shell

async def main():
    agent = Agent(ScriptedModel(), tools=[Shell(backend)])
    async with agent.session(sys.argv[1], workspace=sys.argv[2]) as session:
        async with session.run_command("touch begun; sleep 600; touch ended") as run:
            await run.wait()

asyncio.run(main())
"""


@needs_bubblewrap
async def test_a_command_of_the_user_that_was_killed_is_closed_and_not_run_again(
    on_file: Store, tmp_path: Path
) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    await kill_when_there_is(workspace / "begun", PROGRAM, str(on_file.path), str(workspace))
    (workspace / "begun").unlink()
    agent, model = kit.build_agent("I see", tools=[Shell(backend)])
    async with agent.session(on_file.open()) as session:
        async with session.resume() as run:
            assert (await run.wait()) is not None
        [result] = (await kit.read_finished_calls(session)).values()
        assert result.status == "interrupted" and not (workspace / "begun").exists()
        await kit.run_to_end(session, "what happened?")
    assert "may have run" in str(model.requests[0].messages[0])


async def test_a_change_that_was_stored_before_a_kill_holds_for_the_call_after_it(
    on_file: Store, tables: Tables
) -> None:
    """The program dies between the change and the call. Another one goes on with the run."""
    agent, _ = kit.build_agent(call("note", id="n", text="x"), "done", tools=tables.tools)
    async with Runtime(on_file.open(), [agent], recover=False) as runtime, runtime.session() as session:
        await change_access(runtime, session.id, "plan")
        created = (await session.facts())[0]
        assert isinstance(created, SessionCreated) and created.grants[0].tier == "sandbox"
    async with Runtime(on_file.open(), [agent], recover=True) as runtime:  # such as a server
        again = await runtime.open(session.id)
        assert await find_access(runtime, session.id) == "plan"
        await kit.run_to_end(again)
        assert (await kit.read_finished_calls(again))["n"].status == "denied"
    assert tables.done == []
