"""Approvals and questions: facts that anyone with the log can answer, once, before and after a restart."""

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit import sessions as kit
from tests.kit.sessions import DROP, PATIENCE, Store, Tables
from treadle import Answer, Grant, NotAnswered, RunFinished, Runtime, later, tool
from treadle.errors import AlreadyAnswered, Conflict
from treadle.events import ApprovalAnswered, ApprovalRequested, CallStarted, CancelRequested, SessionCreated
from treadle.log.in_memory import InMemoryLog
from treadle.testing import call

# --- a gate


async def test_a_gate_brings_the_question_to_a_person_and_the_call_runs(store: Store, tables: Tables) -> None:
    asked: list[Any] = []

    async def gate(question: Any) -> Answer:
        asked.append(question)
        return Answer("allow", by="ada")

    run = await store.run_script(DROP, "done", tools=tables.tools, gate=gate)
    assert run.reason == "answered" and tables.done == ["users"]
    question, answer = run.select(ApprovalRequested)[0], run.select(ApprovalAnswered)[0]
    assert asked == [question]
    assert (question.tool, question.arguments, question.safety) == ("drop", {"table": "users"}, "destructive")
    assert "destructive" in question.why and question.rule and question.digest
    assert (answer.call_id, answer.decision, answer.by) == ("a", "allow", "ada")
    order = [kind for kind in kit.list_kinds(run.facts) if "approval" in kind or "call" in kind]
    assert order == ["approval_requested", "approval_answered", "call_started", "call_finished"]


async def test_a_denied_call_is_answered_to_the_model_with_the_comment_and_the_run_goes_on(
    store: Store, tables: Tables
) -> None:
    gate = kit.build_gate(Answer("deny", comment="use the archive instead", by="ada"))
    run = await store.run_script(DROP, "as you wish", tools=tables.tools, gate=gate)
    assert (run.reason, run.answer, tables.done) == ("answered", "as you wish", [])
    shown = run.messages["a"]
    assert "ada said no" in shown.text and "use the archive instead" in shown.text and not shown.ok


async def test_without_a_gate_a_gated_call_is_denied_with_what_to_do(store: Store, tables: Tables) -> None:
    run = await store.run_script(DROP, "as you wish", tools=tables.tools)
    assert run.reason == "answered" and not run.select(ApprovalRequested)
    assert run.results["a"].status == "denied"
    text = run.messages["a"].text
    assert "Nobody can be asked here" in text and "--full-access" in text and "sandbox" in text and "--approve" in text
    assert run.results["a"].safety == "destructive"
    assert tables.done == []


async def break_later(question: Any) -> Any:
    raise OSError("no terminal")


def break_at_once(question: Any) -> Any:
    raise OSError("no terminal")


@pytest.mark.parametrize("gate", [break_later, break_at_once])
async def test_a_gate_that_fails_leaves_the_question_for_anyone_to_answer(
    store: Store, tables: Tables, caplog: pytest.LogCaptureFixture, gate: Any
) -> None:
    async with tables.open_session(store.open(), "done", gate=gate) as session:
        assert "no terminal" in caplog.text and "still waits" in caplog.text
        await session.approve("a")
        assert (await kit.finish_run(session.resume())).answer == "done"
    assert tables.done == ["users"]
    assert [record.levelno for record in caplog.records if record.name == "treadle"] == [logging.ERROR]


async def test_a_session_can_have_its_own_gate(tables: Tables) -> None:
    agent, _ = kit.build_agent(DROP, "done", tools=tables.tools)
    async with agent.session(gate=kit.build_gate(Answer("allow"))) as session:
        assert (await kit.run_to_end(session)).answer == "done"
    assert tables.done == ["users"]


async def test_an_approval_can_be_answered_the_moment_it_is_announced(store: Store, tables: Tables) -> None:
    agent, _ = kit.build_agent(DROP, "done", tools=tables.tools, gate=later)
    async with agent.session(store.open()) as session:
        async with session.run("go") as run:
            async for event in run:
                if isinstance(event, ApprovalRequested):
                    await session.approve(event.call_id, Answer(by="ada"))
        assert run.outcome is not None and run.outcome.answer == "done"
    assert tables.done == ["users"]


async def test_ask_raises_an_error_that_names_the_call_it_waits_for(store: Store, tables: Tables) -> None:
    agent, _ = kit.build_agent(DROP, tools=tables.tools, gate=later)
    async with agent.session(store.open()) as session:
        with pytest.raises(NotAnswered, match="waits for somebody: drop") as caught:
            await session.ask("go")
        assert caught.value.outcome is None and caught.value.session_id == session.id
        assert (await session.state()).run is not None, "it was not cancelled"


# --- across a restart


async def test_an_approval_is_answered_after_a_restart_by_another_runtime(store: Store, tables: Tables) -> None:
    agent, _ = kit.build_agent(DROP, tools=tables.tools, gate=later)
    async with Runtime(store.open(), [agent]) as runtime, runtime.session() as session:
        assert await kit.run_message(session) is None
        session_id, before = session.id, len(await session.facts())
        assert (await runtime.sessions()).sessions[0].status == "waiting"
    again, model = kit.build_agent("done", tools=tables.tools)
    async with Runtime(store.open(), [again]) as runtime, runtime.session(id=session_id) as session:
        assert len(await session.facts()) == before, "looking at it changes nothing"
        [question] = await kit.read_questions(session)
        await session.approve(question.call_id, Answer(by="phone"))
        ending = await kit.wait_for(session, RunFinished)
    assert (ending.reason, tables.done) == ("answered", ["users"])
    assert kit.select_results(model.requests[0])["a"].text == "dropped users"


@pytest.mark.parametrize("where", ["the same store", "another store"])
async def test_an_approval_counts_only_in_the_store_where_it_was_asked(
    store: Store, tables: Tables, where: str
) -> None:
    log = store.open()
    async with tables.open_session(log) as session:
        facts = await session.facts()
    there = log if where == "the same store" else InMemoryLog()
    first, copied = facts[0], "c" * 32
    assert isinstance(first, SessionCreated)
    answer = ApprovalAnswered(call_id="a", decision="allow", by="user")
    await there.create(copied, [replace(first, session_id=copied), *facts[1:], answer])
    agent, _ = kit.build_agent("done", tools=tables.tools, gate=later)
    async with agent.session(there, id=copied) as session:
        await kit.resume_run(session)
        result = (await kit.read_finished_calls(session))["a"]
    if there is log:
        assert tables.done == ["users"] and result.status == "ok"
    else:
        assert tables.done == [] and "this is not what was approved" in result.output


async def test_an_approved_call_runs_also_if_its_approver_leaves_at_once(store: Store, tables: Tables) -> None:
    async with tables.open_session(store.open()):
        pass
    other, _ = kit.build_agent(tools=tables.tools)
    async with other.session(store.open()) as session:
        await session.approve("a", Answer(by="phone"))
    assert not tables.done
    again, _ = kit.build_agent("done", tools=tables.tools)
    async with again.session(store.open()) as session:
        outcome = await kit.finish_run(session.resume())
        result = (await kit.read_finished_calls(session))["a"]
    assert outcome.reason == "answered"
    assert (result.status, tables.done) == ("ok", ["users"])


async def test_a_gate_is_asked_again_after_a_restart(on_file: Store, tables: Tables) -> None:
    async with tables.open_session(on_file.open()):
        pass
    again, _ = kit.build_agent("done", tools=tables.tools, gate=kit.build_gate(Answer("allow", by="terminal")))
    async with again.session(on_file.open()) as session:
        outcome = await kit.finish_run(session.resume())
    assert outcome.answer == "done" and tables.done == ["users"]


# --- answers for more than one call


@pytest.mark.parametrize(
    ("scope", "asked_again"),
    [("call", ["users", "users", "orders"]), ("tool", []), ("pattern", ["orders"]), ("session", [])],
)
async def test_a_scope_is_remembered_after_a_restart(
    on_file: Store, tables: Tables, scope: Any, asked_again: list[str]
) -> None:
    async with tables.open_session(on_file.open(), "done") as session:
        await session.approve("a", Answer("allow", scope, by="ada"))
        await kit.wait_for(session, RunFinished)
    asked: list[str] = []

    async def gate(question: Any) -> Answer:
        asked.append(question.arguments["table"])
        return Answer("allow")

    lines = [call("drop", table=table) for table in ("users", "users", "orders")]
    again, _ = kit.build_agent(*lines, "done again", tools=tables.tools, gate=gate)
    async with again.session(on_file.open()) as session:
        assert (await kit.run_to_end(session)).reason == "answered"
        started = kit.select_events(await session.facts(), CallStarted)
    assert asked == asked_again
    assert tables.done == ["users", "users", "users", "orders"]
    assert scope == "call" or "ada allowed" in started[1].why


async def test_a_denial_for_the_tool_is_remembered_too(store: Store, tables: Tables) -> None:
    async with tables.open_session(store.open(), call("drop", id="b", table="orders"), "ok") as session:
        await session.approve("a", Answer("deny", "tool", by="ada"))
        await kit.wait_for(session, RunFinished)
        assert len(kit.select_events(await session.facts(), ApprovalRequested)) == 1
    assert "ada denied drop" in kit.select_results(tables.model.requests[2])["b"].text and tables.done == []


async def test_an_answer_for_the_tool_settles_the_other_questions_of_the_reply(store: Store, tables: Tables) -> None:
    lines = [call("drop", id=name, table=name) for name in "abc"]
    async with tables.open_session(store.open(), "done", first=lines) as session:
        assert [question.call_id for question in await kit.read_questions(session)] == ["a", "b", "c"]
        await session.approve("b", Answer("allow", "tool"))
        outcome = await kit.wait_for(session, RunFinished)
        with pytest.raises(AlreadyAnswered):
            await session.deny("c")
    assert outcome.answer == "done" and tables.done == ["a", "b", "c"]


# --- several at once


async def test_calls_of_one_reply_with_several_approvals_resume_one_by_one_and_none_runs_twice(
    on_file: Store, tables: Tables
) -> None:
    lines = [call("note", id="n1", text="n1"), call("drop", id="d1", table="d1")]
    lines += [call("drop", id="d2", table="d2"), call("note", id="n2", text="n2")]
    async with tables.open_session(on_file.open(), first=lines) as session:
        assert [question.call_id for question in await kit.read_questions(session)] == ["d1", "d2"]
        first = list(tables.done)

    async def answer(call_id: str, decision: Any) -> list[str]:
        again, _ = kit.build_agent("done", tools=tables.tools, gate=later)
        async with again.session(on_file.open()) as session:
            await session.approve(call_id, Answer(decision))
            await kit.resume_run(session)
            return [question.call_id for question in await kit.read_questions(session)]

    assert await answer("d2", "deny") == ["d1"]
    assert await answer("d1", "allow") == []
    async with kit.build_agent("done", tools=tables.tools)[0].session(on_file.open()) as session:
        await kit.resume_run(session)
        facts = await session.facts()
    kit.check_settled(facts)
    assert first in ([], ["n1"])
    assert tables.done == ["n1", "d1", "n2"], "in the order of the calls, each once"
    assert [fact.call_id for fact in kit.select_events(facts, CallStarted)] == ["n1", "d1", "n2"]


async def test_a_message_during_an_open_approval_is_kept_and_shown_after_it(store: Store, tables: Tables) -> None:
    async with tables.open_session(store.open(), "done") as session:
        await session.send("and be quick")
        assert await kit.resume_run(session) is None
        await session.approve("a")
        await kit.wait_for(session, RunFinished)
        kit.check_settled(await session.facts())
    assert kit.list_user_texts(tables.model.requests[1])[-1] == "and be quick"


async def test_cancelling_a_run_closes_its_question(store: Store, tables: Tables) -> None:
    async with tables.open_session(store.open(), "fine") as session:
        outcome = await session.cancel()
        assert outcome is not None and outcome.reason == "cancelled"
        with pytest.raises(Conflict, match=r"call a is finished \(cancelled\); there is nothing left to answer"):
            await session.approve("a")
        kit.check_settled(await session.facts())
        assert (await kit.run_to_end(session, "and now?")).answer == "fine"
    assert tables.done == []


# --- grants


async def test_a_sessions_grant_can_only_narrow_the_agents(tables: Tables) -> None:
    lines = [call("drop", id="a", table="x"), call("note", id="b", text="y")]
    agent, _ = kit.build_agent(lines, "ok", tools=tables.tools, grant=Grant(forbid=("drop",)))
    async with agent.session(grant=Grant(tier="full", yes=True, tools=("drop",))) as session:
        await kit.run_to_end(session)
        done = await kit.read_finished_calls(session)
    assert tables.done == []
    assert "forbidden by drop" in done["a"].output and "not among the tools" in done["b"].output


async def test_a_narrower_grant_still_holds_after_a_restart(on_file: Store, tables: Tables) -> None:
    agent, _ = kit.build_agent("hello", tools=tables.tools)
    async with agent.session(on_file.open(), grant=Grant(forbid=("note",))) as session:
        await kit.run_to_end(session)
    again, _ = kit.build_agent(call("note", id="a", text="x"), "ok", tools=tables.tools)
    async with again.session(on_file.open()) as session:
        await kit.run_to_end(session)
        assert (await kit.read_finished_calls(session))["a"].status == "denied"
    assert tables.done == []


async def test_nobody_waits_for_a_question_that_is_cancelled_before_it_is_asked(on_file: Store, tables: Tables) -> None:
    agent, _ = kit.build_agent(DROP, tools=tables.tools, gate=kit.build_gate(Answer("allow")))
    log, elsewhere = on_file.open(), on_file.open()
    async with Runtime(log, [agent], recover=False) as runtime, runtime.session() as session:
        posted = kit.post_at_release(log, elsewhere, session.id, CancelRequested(by="ada"))
        assert (await kit.run_to_end(session)).reason == "cancelled"
        async with asyncio.timeout(PATIENCE):
            await runtime.coordinator.wait_until_idle(session.id)
    assert posted and tables.done == []


async def test_nobody_is_asked_about_a_call_of_a_run_that_has_failed(store: Store, tables: Tables) -> None:
    @tool(on_error="stop")
    def explode() -> str:
        raise OSError("boom")

    lines = [call("explode", id="a"), call("drop", id="b", table="users")]
    agent, _ = kit.build_agent(lines, tools=[explode, *tables.tools], gate=later)
    async with agent.session(store.open()) as session:
        outcome = await kit.run_to_end(session)
        kit.check_settled(await session.facts())
        assert (await kit.read_finished_calls(session))["b"].status == "cancelled"
        with pytest.raises(Conflict, match="nothing left to answer"):
            await session.approve("b")
    assert outcome.reason == "failed" and tables.done == []
