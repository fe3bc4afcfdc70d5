"""Answers: what comes too late, twice, to nothing or to something else is refused; questions are like approvals."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.sessions import (
    Store,
    Tables,
    build_agent,
    build_gate,
    check_settled,
    read_finished_calls,
    read_questions,
    resume_run,
    run_message,
    run_to_end,
    select_events,
    select_results,
    wait_for,
)
from treadle import (
    Answer,
    ApprovalRequested,
    AskUser,
    Grant,
    InputRequested,
    NotAnswered,
    RunFinished,
    Runtime,
    later,
    tool,
)
from treadle.engine.steps import build_answer_key
from treadle.errors import AlreadyAnswered, BadInput, Conflict, Expired, NotFound
from treadle.events import ApprovalAnswered, InputAnswered, Question
from treadle.testing import call
from treadle.tools.base import ParsedArguments

# --- answers that come too late, or to nothing


async def test_an_approval_that_nobody_answers_expires_and_a_late_answer_is_told_so(
    store: Store, tables: Tables
) -> None:
    clock = store.stepping()
    agent, model = build_agent(
        call("drop", id="a", table="users"), "done", tools=tables.tools, gate=later, approval_ttl=60, clock=clock
    )
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        [question] = await read_questions(session)
        assert question.expires_at == pytest.approx(clock.now() + 60)
        assert (await resume_run(session)) is None, "not yet"
        clock.step(61)
        outcome = await resume_run(session)
        assert outcome is not None and outcome.answer == "done"
        with pytest.raises(Expired, match="the time to answer is over"):
            await session.approve("a")
        check_settled(await session.facts())
    assert "Nobody answered in time" in select_results(model.requests[1])["a"].text
    assert tables.done == []


async def test_a_late_answer_is_refused_even_if_nobody_has_noticed_the_time_yet(store: Store, tables: Tables) -> None:
    clock = store.stepping()
    options: Any = {"tools": tables.tools, "gate": later, "approval_ttl": 60, "clock": clock}
    agent, _ = build_agent(call("drop", id="a", table="users"), **options)
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
    clock.step(61)
    again, _ = build_agent("done", **options)
    async with again.session(store.open()) as session:
        with pytest.raises(Expired, match="the time to answer is over"):
            await session.approve("a")
        assert (await wait_for(session, RunFinished)).answer == "done"
        assert [fact.by for fact in select_events(await session.facts(), ApprovalAnswered)] == ["expiry"]
    assert tables.done == []


async def test_an_approval_expires_without_anybody_looking(store: Store, tables: Tables) -> None:
    clock = store.stepping()
    agent, _ = build_agent(
        call("drop", id="a", table="users"), "done", tools=tables.tools, gate=later, approval_ttl=60, clock=clock
    )
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        clock.step(61)
        assert (await wait_for(session, RunFinished)).answer == "done"


async def test_a_session_that_was_deleted_does_not_keep_the_questions_of_others_from_expiring(
    store: Store, tables: Tables
) -> None:
    clock, line = store.stepping(), call("drop", id="a", table="users")
    agent, _ = build_agent(line, line, "done", tools=tables.tools, gate=later, approval_ttl=60, clock=clock)
    async with (
        Runtime(store.open(), [agent], recover=False) as runtime,
        runtime.session(new=True) as first,
        runtime.session(new=True) as second,
    ):
        assert await run_message(first) is None and await run_message(second) is None
        await first.delete()
        clock.step(61)
        assert (await wait_for(second, RunFinished)).answer == "done"


async def test_an_answer_that_beats_the_expiry_by_a_moment_counts(on_file: Store, tables: Tables) -> None:
    """Another process stores its answer after this one has decided that the time is over."""
    clock = on_file.stepping()
    agent, model = build_agent(
        call("drop", id="a", table="users"), "done", tools=tables.tools, gate=later, approval_ttl=60, clock=clock
    )
    async with Runtime(on_file.open(), [agent], recover=False) as runtime, runtime.session() as session:
        assert await run_message(session) is None
        elsewhere, post = on_file.open(), runtime.log.post

        async def slow_post(session_id: str, facts: Any, key: str = "", **options: Any) -> Any:
            assert key == build_answer_key("a") and facts[0].by == "expiry"
            await elsewhere.post(session.id, [ApprovalAnswered(call_id="a", decision="allow", by="ada")], key=key)
            return await post(session_id, facts, key, **options)

        runtime.log.post = slow_post  # type: ignore[method-assign]
        clock.step(61)
        outcome = await resume_run(session)
        facts = await session.facts()
    assert outcome is not None and outcome.answer == "done"
    assert [fact.by for fact in select_events(facts, ApprovalAnswered)] == ["ada"]
    assert tables.done == ["users"] and select_results(model.requests[1])["a"].text == "dropped users"


async def test_there_is_nothing_to_answer_for_an_unknown_an_ungated_or_a_finished_call(
    store: Store, tables: Tables
) -> None:
    lines = [call("note", id="n", text="x"), call("drop", id="a", table="users")]
    agent, _ = build_agent(lines, "done", tools=tables.tools, gate=build_gate(Answer("allow", by="ada")))
    async with agent.session(store.open()) as session:
        with pytest.raises(NotFound, match="no question for call 'nope'"):
            await session.approve("nope")
        await run_to_end(session)
        before = await session.facts()
        with pytest.raises(NotFound, match="no question for call 'n'"):
            await session.approve("n")
        with pytest.raises(AlreadyAnswered, match="call a was answered already, by ada: allow"):
            await session.deny("a")
        assert await session.facts() == before


async def test_an_answer_to_something_else_than_what_was_shown_is_refused(store: Store, tables: Tables) -> None:
    agent, _ = build_agent(call("drop", id="a", table="users"), "done", tools=tables.tools, gate=later)
    async with Runtime(store.open(), [agent]) as runtime, runtime.session() as session:
        assert await run_message(session) is None
        [question] = await read_questions(session)
        assert isinstance(question, ApprovalRequested)
        with pytest.raises(Conflict, match="not the one that was shown"):
            await runtime.coordinator.answer(session.id, "a", Answer(), digest="something else")
        assert len(await read_questions(session)) == 1
        await runtime.coordinator.answer(session.id, "a", Answer(), digest=question.digest)
        await wait_for(session, RunFinished)
    assert tables.done == ["users"]


async def test_what_was_approved_does_not_run_when_it_has_become_something_else(on_file: Store) -> None:
    """A default changed with the program while the approval waited: the person never saw this call."""
    done: list[Any] = []

    def version(default: bool) -> Any:
        @tool(safety="destructive", name="drop")
        def drop(table: str, cascade: bool = default) -> str:
            done.append((table, cascade))
            return "dropped"

        return drop

    agent, _ = build_agent(call("drop", id="a", table="users"), tools=[version(False)], gate=later)
    async with agent.session(on_file.open()) as session:
        assert await run_message(session) is None
        [question] = await read_questions(session)
        assert isinstance(question, ApprovalRequested) and question.arguments == {"table": "users", "cascade": False}
    again, model = build_agent("ok", tools=[version(True)], gate=later)
    async with again.session(on_file.open()) as session:
        await session.approve("a")
        await wait_for(session, RunFinished)
        assert (await read_finished_calls(session))["a"].status == "denied"
    assert done == []
    assert "not what was approved" in select_results(model.requests[0])["a"].text


async def test_what_was_approved_runs_also_where_other_things_are_allowed_now(on_file: Store, tables: Tables) -> None:
    asked = call("drop", id="a", table="users")
    agent, _ = build_agent(asked, tools=tables.tools, gate=later, grant=Grant(approve=("read_*",)))
    async with agent.session(on_file.open()) as session:
        assert await run_message(session) is None
    again, _ = build_agent("ok", tools=tables.tools, gate=later)
    async with again.session(on_file.open()) as session:
        await session.approve("a")
        await wait_for(session, RunFinished)
    assert tables.done == ["users"]


@pytest.mark.parametrize(
    ("grant", "told"), [(Grant(tier="full"), "not what was approved"), (Grant(forbid=("drop",)), "forbidden by drop")]
)
async def test_what_was_approved_does_not_run_without_walls_or_where_it_is_forbidden_now(
    on_file: Store, tables: Tables, grant: Grant, told: str
) -> None:
    agent, _ = build_agent(call("drop", id="a", table="users"), tools=tables.tools, gate=later)
    async with agent.session(on_file.open()) as session:
        assert await run_message(session) is None
    again, model = build_agent("ok", tools=tables.tools, gate=later, grant=grant)
    async with again.session(on_file.open()) as session:
        await session.approve("a")
        await wait_for(session, RunFinished)
    assert tables.done == [] and told in select_results(model.requests[0])["a"].text


# --- questions


async def test_a_question_is_answered_like_an_approval_also_after_a_restart(on_file: Store) -> None:
    asked = call("ask_user", id="q", question="Which colour?", options=["red", "blue"])
    agent, _ = build_agent(asked, tools=[AskUser()], gate=later)
    async with agent.session(on_file.open()) as session:
        with pytest.raises(NotAnswered, match="waits for somebody: a question"):
            await session.ask("paint it")
        [question] = await read_questions(session)
        assert isinstance(question, InputRequested)
        assert (question.questions[0].text, question.questions[0].options) == ("Which colour?", ("red", "blue"))
    again, model = build_agent("painted", tools=[AskUser()])
    async with again.session(on_file.open()) as session:
        await session.answer("q", "blue", by="ada")
        assert (await wait_for(session, RunFinished)).answer == "painted"
        assert [(fact.answers, fact.by) for fact in select_events(await session.facts(), InputAnswered)] == [
            (("blue",), "ada")
        ]
        with pytest.raises(AlreadyAnswered, match="by ada"):
            await session.answer("q", "red")
        check_settled(await session.facts())
    assert select_results(model.requests[0])["q"].text == "blue"


async def test_a_question_that_has_to_be_answered_by_a_choice_takes_nothing_else(store: Store) -> None:
    class Strictly(AskUser):
        def questions(self, parsed: ParsedArguments) -> tuple[Question, ...]:
            return tuple(replace(question, strict=True) for question in super().questions(parsed))

    asked = call("ask_user", id="q", question="Which colour?", options=["red", "blue"])
    agent, model = build_agent(asked, "ok", tools=[Strictly()], gate=later)
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        with pytest.raises(BadInput, match="call q: 'green' is none of the answers to choose from: 'red', 'blue'"):
            await session.answer("q", "green")
        await session.answer("q", "blue")
        assert (await wait_for(session, RunFinished)).answer == "ok"
    assert select_results(model.requests[1])["q"].text == "blue"


async def test_a_gate_answers_a_question_and_without_one_the_model_decides_itself() -> None:
    asked = call("ask_user", id="q", question="Which colour?")
    agent, model = build_agent(asked, "ok", tools=[AskUser()], gate=build_gate(Answer(answers=("blue",))))
    async with agent.session() as session:
        assert (await run_to_end(session)).answer == "ok"
    assert select_results(model.requests[1])["q"].text == "blue"
    agent, model = build_agent(asked, "ok", tools=[AskUser()])
    async with agent.session() as session:
        assert (await run_to_end(session)).answer == "ok"
    assert "Decide yourself" in select_results(model.requests[1])["q"].text


async def test_a_question_expires_too(store: Store) -> None:
    clock = store.stepping()
    asked = call("ask_user", id="q", question="Which colour?")
    agent, model = build_agent(asked, "ok", tools=[AskUser()], gate=later, approval_ttl=60, clock=clock)
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        clock.step(61)
        assert (outcome := await resume_run(session)) and outcome.answer == "ok"
        with pytest.raises(Expired):
            await session.answer("q", "blue")
    assert "Nobody answered in time" in select_results(model.requests[1])["q"].text


async def test_a_question_without_words_is_answered_to_the_model() -> None:
    agent, model = build_agent(
        call("ask_user", id="a", question=" "), call("ask_user", id="b"), "ok", tools=[AskUser()]
    )
    async with agent.session(gate=later) as session:
        assert (await run_to_end(session)).answer == "ok"
    shown = select_results(model.requests[2])
    assert "question is empty" in shown["a"].text and "do not fit" in shown["b"].text


async def test_words_are_no_approval_and_an_approval_is_no_answer(store: Store, tables: Tables) -> None:
    """`answer(call, "no")` must never be taken for a yes."""
    asked = [call("drop", id="a", table="users"), call("ask_user", id="q", question="Which colour?")]
    agent, model = build_agent(asked, "ok", tools=[*tables.tools, AskUser()], gate=later)
    async with agent.session(store.open()) as session:
        assert await run_message(session) is None
        before = await session.facts()
        with pytest.raises(BadInput, match="call a waits for an approval: approve or deny it"):
            await session.answer("a", "no")
        with pytest.raises(BadInput, match="call q waits for an answer in words"):
            await session.approve("q")
        assert await session.facts() == before and tables.done == []
        await session.deny("a")
        await session.deny("q", "none of your business")
        assert (await wait_for(session, RunFinished)).answer == "ok"
    assert "do not want to answer. They say: none of your business" in select_results(model.requests[1])["q"].text
    assert tables.done == []


async def test_of_two_who_answer_a_question_at_once_one_counts_and_the_other_is_told_who(on_file: Store) -> None:
    asked = call("ask_user", id="q", question="Which colour?")
    agent, _ = build_agent(asked, "painted", tools=[AskUser()], gate=later)
    other, _ = build_agent("painted", tools=[AskUser()])
    async with agent.session(on_file.open()) as session:
        assert await run_message(session) is None
        async with other.session(on_file.open(), id=session.id) as elsewhere:
            answers = await asyncio.gather(
                session.answer("q", "red", by="ada"),
                elsewhere.answer("q", "blue", by="bob"),
                session.deny("q", "mind your own business", by="eve"),
                return_exceptions=True,
            )
            await wait_for(session, RunFinished)
        facts = await session.facts()
    [answer] = select_events(facts, InputAnswered)
    losers = [error for error in answers if error is not None]
    assert len(losers) == 2
    for error in losers:
        assert isinstance(error, AlreadyAnswered)
        assert f"by {answer.by}: answered" in str(error) and error.answer == answer


async def test_an_answer_in_words_that_loses_the_race_to_the_log_is_told_who_won(on_file: Store) -> None:
    """Both have read that the question is open; the log decides."""
    asked = call("ask_user", id="q", question="Which colour?")
    agent, model = build_agent(asked, "painted", tools=[AskUser()], gate=later)
    async with Runtime(on_file.open(), [agent]) as runtime, runtime.session() as session:
        assert await run_message(session) is None
        elsewhere, post = on_file.open(), runtime.log.post

        async def slow_post(session_id: str, facts: Any, key: str = "", **options: Any) -> Any:
            runtime.log.post = post  # type: ignore[method-assign]
            await elsewhere.post(session_id, [InputAnswered(call_id="q", answers=("blue",), by="bob")], key=key)
            return await post(session_id, facts, key, **options)

        runtime.log.post = slow_post  # type: ignore[method-assign]
        with pytest.raises(AlreadyAnswered, match="call q was answered already, by bob"):
            await session.answer("q", "red", by="ada")
        await wait_for(session, RunFinished)
        assert [fact.by for fact in select_events(await session.facts(), InputAnswered)] == ["bob"]
    assert select_results(model.requests[1])["q"].text == "blue"
