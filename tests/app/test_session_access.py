"""The access of a running session: who changes it, when it counts, and what plan mode refuses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.sessions import HeldTool, Store, Tables, build_agent, either_store, file_store, some_tables
from tests.kit.shell import needs_sandbox
from treadle import Agent, Grant, RunFinished, Runtime, Session, later
from treadle.app import session_access
from treadle.app.session_access import accept_plan, change_access, find_access, find_plan, restore_access
from treadle.errors import BadInput, Conflict
from treadle.events import CallFinished, CallStarted, MessageReceived, SessionConfigured, Tier
from treadle.messages import TextPart, UserMessage, render_parts
from treadle.sandbox import backend
from treadle.testing import call
from treadle.tools.shell import Shell

store, on_file, tables = either_store, file_store, some_tables
NOTE = call("note", id="n", text="x")


@asynccontextmanager
async def opened(log: Any, agent: Agent, **options: Any) -> AsyncIterator[tuple[Runtime, Session]]:
    async with Runtime(log, [agent], recover=False) as runtime, runtime.session(agent.name, **options) as session:
        yield runtime, session


async def finish(run: Any) -> RunFinished:
    async with run:
        ended = await run.wait()
    assert ended is not None
    return ended


def select(facts: Any, kind: type[Any]) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


# ── the order and the words ────────────────────────────────────────────────────────────────────────────────


def test_one_press_from_the_usual_access_never_lands_on_full() -> None:
    seen: list[Tier] = ["sandbox"]
    while len(seen) < 5:
        seen.append(session_access.next_access(seen[-1]))
    assert seen == ["sandbox", "plan", "read-only", "full", "sandbox"]
    assert len({session_access.describe_access(access) for access in seen}) == 4


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ((), "; no network"),
        (("a.org",), "; network: 1 host"),
        (("a.org", "*.b.org", "registries"), "; network: 2 hosts and package registries"),
        (("a.org", "*"), "; network: all public hosts"),
    ],
)
def test_the_description_of_the_sandbox_names_the_network_that_it_has(network: tuple[str, ...], said: str) -> None:
    assert session_access.describe_access("sandbox", network).endswith(said)


# ── a change ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_change_is_recorded_and_counts_from_the_next_call_on(store: Store, tables: Tables) -> None:
    agent, _ = build_agent(NOTE, "done", NOTE, "refused", tools=tables.tools)
    async with opened(store.open(), agent) as (runtime, session):
        await kit.run_to_end(session)
        await change_access(runtime, session.id, "plan", by="ada")
        await kit.run_to_end(session, "again")
        facts = await session.facts()
    assert tables.done == ["x"]
    [changed] = select(facts, SessionConfigured)
    assert (changed.by, changed.access_before, changed.access) == ("ada", "sandbox", "plan") and changed.at
    assert [started.access for started in select(facts, CallStarted)] == ["sandbox"]
    refused = select(facts, CallFinished)[-1]
    assert refused.status == "denied" and "plan mode" in refused.output and "into the plan" in refused.output


async def test_a_running_call_keeps_its_access_and_the_next_one_has_the_new(store: Store, tables: Tables) -> None:
    held = HeldTool()
    agent, _ = build_agent(call("wait", id="a"), NOTE, "done", tools=[held.tool, *tables.tools])
    async with opened(store.open(), agent) as (runtime, session):
        await session.send("go")
        await kit.wait_for(session, CallStarted)
        await change_access(runtime, session.id, "plan")
        held.free.set()
        await kit.wait_for(session, RunFinished)
        results = await kit.read_finished_calls(session)
    assert (results["a"].status, results["n"].status, tables.done) == ("ok", "denied", [])


async def test_a_change_to_plan_closes_a_question_that_is_then_allowed(store: Store, tables: Tables) -> None:
    agent, _ = build_agent(kit.DROP, "done", tools=tables.tools, gate=later)
    async with opened(store.open(), agent) as (runtime, session):
        async with session.run("go") as run:
            await run.wait()
        await change_access(runtime, session.id, "plan")
        await session.approve("a")
        await kit.wait_for(session, RunFinished)
        assert (await kit.read_finished_calls(session))["a"].status == "denied"
    assert tables.done == []


async def test_the_new_access_holds_in_a_process_that_begins_after_a_kill(on_file: Store, tables: Tables) -> None:
    agent, _ = build_agent("hello", tools=tables.tools)
    async with opened(on_file.open(), agent) as (runtime, session):
        await kit.run_to_end(session)
        await change_access(runtime, session.id, "plan")
    agent, _ = build_agent(NOTE, "refused", tools=tables.tools)
    async with opened(on_file.open(), agent, id=session.id) as (runtime, again):
        await kit.run_to_end(again, "go")
        assert await restore_access(runtime, again.id) == "access is plan, as before"
        assert (await kit.read_finished_calls(again))["n"].status == "denied"
    assert tables.done == []


# ── full ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_full_access_ends_with_the_program_that_allowed_it(on_file: Store) -> None:
    agent, _ = build_agent("hello")
    async with opened(on_file.open(), agent) as (runtime, session):
        await change_access(runtime, session.id, "full")
        assert await find_access(runtime, session.id) == "full"
        fork = await session.fork()
        assert await find_access(runtime, fork.id) == "sandbox"
    async with opened(on_file.open(), agent, id=session.id) as (runtime, again):
        assert await find_access(runtime, again.id) == "sandbox"
        assert "access is sandbox again" in await restore_access(runtime, again.id)
        changed = select(await again.facts(), SessionConfigured)[-1]
        assert (changed.access, changed.by) == ("sandbox", "resume")


async def test_a_stored_fact_never_allows_more_than_the_program(store: Store) -> None:
    agent, _ = build_agent("hello", grant=Grant(tier="read-only"))
    async with opened(store.open(), agent) as (runtime, session):
        await runtime.log.post(session.id, [SessionConfigured(access="full", by="mallory")])
        assert await find_access(runtime, session.id) == "read-only"
    async with Runtime(store.open(), [agent], recover=False) as runtime:
        with pytest.raises(Conflict, match="not open here"):
            await change_access(runtime, session.id, "full")


async def test_a_narrower_grant_of_the_session_stays_in_force(store: Store) -> None:
    agent, _ = build_agent("hello")
    async with opened(store.open(), agent, grant=Grant(tier="read-only")) as (runtime, session):
        await change_access(runtime, session.id, "full")
        assert await find_access(runtime, session.id) == "read-only"


# ── plan mode ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_plan_is_made_accepted_and_carried_out_as_it_was_edited(store: Store, tables: Tables) -> None:
    agent, model = build_agent("1. note x", NOTE, "done", tools=tables.tools, grant=Grant(tier="plan"))
    async with opened(store.open(), agent) as (runtime, session):
        ended = await finish(session.run("note x"))
        assert find_plan(ended, "plan") == "1. note x" and find_plan(ended, "sandbox") == ""
        assert "plan mode" in model.requests[0].system
        edited = "1. note x\n2. say so\n"
        await finish(accept_plan(runtime, session.id, edited))
        facts = await session.facts()
    assert tables.done == ["x"]
    assert "plan mode" not in model.requests[1].system
    said = [message for message in model.requests[1].messages if isinstance(message, UserMessage)][-1]
    assert said.parts[-1] == TextPart(edited)
    changed, message = select(facts, SessionConfigured)[0], select(facts, MessageReceived)[1]
    assert (changed.access, changed.access_before) == ("sandbox", "plan") and message.seq == changed.seq + 1
    assert message.parts[-1] == TextPart(edited)


async def test_a_plan_can_only_be_accepted_in_plan_mode_and_when_there_is_one(store: Store) -> None:
    agent, _ = build_agent("hello")
    async with opened(store.open(), agent) as (runtime, session):
        with pytest.raises(Conflict, match="not in plan mode"):
            await finish(accept_plan(runtime, session.id, "1. all"))
        with pytest.raises(BadInput, match="empty"):
            accept_plan(runtime, session.id, " \n")
        assert not select(await session.facts(), MessageReceived)


async def test_a_session_that_began_in_plan_mode_stays_in_it_without_the_flag(on_file: Store, tables: Tables) -> None:
    agent, _ = build_agent("1. drop", tools=tables.tools, grant=Grant(tier="plan"))
    async with opened(on_file.open(), agent) as (_, session):
        await kit.run_to_end(session)
    agent, _ = build_agent(NOTE, "refused", tools=tables.tools)
    async with opened(on_file.open(), agent, id=session.id) as (_, again):
        await kit.run_to_end(again, "go")
    assert tables.done == []


@pytest.mark.parametrize("grant", [Grant(tier="plan", yes=True), Grant(tier="plan", approve=("*",), always=("*",))])
async def test_nothing_that_was_approved_beforehand_counts_in_plan_mode(
    store: Store, tables: Tables, grant: Grant
) -> None:
    run = await store.run_script(NOTE, kit.DROP, "done", tools=tables.tools, grant=grant)
    assert {result.status for result in run.results.values()} == {"denied"} and tables.done == []


# ── commands of the user ───────────────────────────────────────────────────────────────────────────────────


def list_texts(request: Any) -> list[str]:
    return [render_parts(message.parts) for message in request.messages if isinstance(message, UserMessage)]


@needs_sandbox
async def test_a_command_of_the_user_runs_without_the_model_which_reads_it_later(store: Store, tmp_path: Path) -> None:
    agent, model = build_agent("I see", tools=[Shell(backend)])
    async with opened(store.open(), agent, workspace=tmp_path) as (_, session):
        ended = await finish(session.run_command("echo one; exit 3"))
        assert (ended.reason, ended.answer, model.requests) == ("answered", "", [])
        [started] = select(await session.facts(), CallStarted)
        assert started.tool == "shell" and started.sandbox != "none" and started.access == "sandbox"
        await kit.run_to_end(session, "what was that?")
    ran, asked = list_texts(model.requests[0])
    assert "I ran this command" in ran and "echo one; exit 3" in ran and "one\n[exit code 3]" in ran
    assert asked == "what was that?"


@needs_sandbox
async def test_a_command_of_the_user_obeys_the_access(store: Store, tmp_path: Path) -> None:
    agent, _ = build_agent(tools=[Shell(backend)], grant=Grant(tier="plan"))
    async with opened(store.open(), agent, workspace=tmp_path) as (_, session):
        await finish(session.run_command("touch made"))
        await finish(session.run_command("ls"))
        results = await kit.read_finished_calls(session)
    assert [one.status for one in results.values()] == ["denied", "ok"]
    assert not (tmp_path / "made").exists()


@needs_sandbox
async def test_a_command_is_refused_while_the_agent_works_and_can_be_stopped(store: Store, tmp_path: Path) -> None:
    agent, _ = build_agent("hello", tools=[Shell(backend)])
    async with opened(store.open(), agent, workspace=tmp_path) as (_, session):
        running = session.run_command("echo begun; sleep 600")
        async with running:
            await kit.wait_for(session, CallStarted)
            with pytest.raises(Conflict, match="unfinished run"):
                await finish(session.run_command("ls"))
            await session.cancel()
        [result] = (await kit.read_finished_calls(session)).values()
        assert result.status == "cancelled" and running.outcome is not None
        with pytest.raises(BadInput, match="empty"):
            session.run_command("  ")


@needs_sandbox
async def test_a_command_does_not_release_messages_that_wait_after_a_stop(store: Store, tmp_path: Path) -> None:
    held = HeldTool()
    agent, model = build_agent(call("wait", id="a"), "never", tools=[held.tool, Shell(backend)])
    async with opened(store.open(), agent, workspace=tmp_path) as (_, session):
        await session.send("go")
        await kit.wait_for(session, CallStarted)
        await session.send("and then")
        await session.cancel()
        await finish(session.run_command("ls"))
        state = await session.state()
        assert state.is_held and len(state.queue) == 1 and len(model.requests) == 1
