"""Answers to approvals and questions: late, repeated, unknown and changed ones are refused, and one of many counts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit import sessions as kit
from tests.kit.sessions import DROP, QUESTION, Store, Tables
from treadle import Answer, ApprovalRequested, AskUser, Grant, InputRequested, NotAnswered, RunFinished, Runtime, tool
from treadle.engine.setup import later
from treadle.engine.steps import build_answer_key
from treadle.errors import AlreadyAnswered, BadInput, Conflict, Expired, NotFound
from treadle.events import ApprovalAnswered, InputAnswered, Question
from treadle.session import Session
from treadle.testing import call
from treadle.tools.base import ParsedArguments

Answering = Callable[[Session], Awaitable[Any]]


# --- the time to answer


@pytest.mark.parametrize(
    ("line", "answer"),
    [(DROP, lambda session: session.approve("a")), (QUESTION, lambda session: session.answer("q", "blue"))],
    ids=["approval", "question"],
)
async def test_an_unanswered_question_expires_and_a_late_answer_is_refused(
    store: Store, tables: Tables, line: Any, answer: Answering
) -> None:
    clock = store.use_stepping_clock()
    async with tables.open_session(store.open(), "done", first=line, approval_ttl=60, clock=clock) as session:
        [question] = await kit.read_questions(session)
        assert question.expires_at == pytest.approx(clock.now() + 60)
        assert (await kit.resume_run(session)) is None, "not yet"
        clock.step(61)
        outcome = await kit.finish_run(session.resume())
        assert outcome.answer == "done"
        with pytest.raises(Expired, match="the time to answer is over"):
            await answer(session)
        kit.check_settled(await session.facts())
    assert "Nobody answered in time" in kit.select_results(tables.model.requests[1])[line.id].text
    assert tables.done == []


async def test_a_late_answer_is_refused_before_anybody_has_noticed_the_time(store: Store, tables: Tables) -> None:
    clock = store.use_stepping_clock()
    async with tables.open_session(store.open(), approval_ttl=60, clock=clock):
        pass
    clock.step(61)
    again, _ = kit.build_agent("done", tools=tables.tools, gate=later, approval_ttl=60, clock=clock)
    async with again.session(store.open()) as session:
        with pytest.raises(Expired, match="the time to answer is over"):
            await session.approve("a")
        assert (await kit.wait_for(session, RunFinished)).answer == "done"
        assert [fact.by for fact in kit.select_events(await session.facts(), ApprovalAnswered)] == ["expiry"]
    assert tables.done == []


async def test_questions_expire_while_nobody_looks_also_after_another_session_is_deleted(
    store: Store, tables: Tables
) -> None:
    clock = store.use_stepping_clock()
    agent, _ = kit.build_agent(DROP, DROP, "done", tools=tables.tools, gate=later, approval_ttl=60, clock=clock)
    async with (
        Runtime(store.open(), [agent], recover=False) as runtime,
        runtime.session(new=True) as first,
        runtime.session(new=True) as second,
    ):
        assert await kit.run_message(first) is None and await kit.run_message(second) is None
        await first.delete()
        clock.step(61)
        kit.advance_loop_clock(1)  # the next look comes at once
        assert (await kit.wait_for(second, RunFinished)).answer == "done"


async def test_an_answer_that_is_stored_just_before_the_expiry_counts(on_file: Store, tables: Tables) -> None:
    """Another process stores its answer after this one has decided that the time is over."""
    clock, log, elsewhere = on_file.use_stepping_clock(), on_file.open(), on_file.open()
    async with tables.open_session(log, "done", approval_ttl=60, clock=clock) as session:
        post = log.post

        async def slow_post(session_id: str, facts: Any, key: str = "", **options: Any) -> Any:
            assert key == build_answer_key("a") and facts[0].by == "expiry"
            await elsewhere.post(session.id, [ApprovalAnswered(call_id="a", decision="allow", by="ada")], key=key)
            return await post(session_id, facts, key, **options)

        log.post = slow_post  # type: ignore[method-assign]
        clock.step(61)
        outcome = await kit.finish_run(session.resume())
        facts = await session.facts()
    assert outcome.answer == "done"
    assert [fact.by for fact in kit.select_events(facts, ApprovalAnswered)] == ["ada"]
    assert tables.done == ["users"] and kit.select_results(tables.model.requests[1])["a"].text == "dropped users"


# --- answers to something else


async def test_there_is_nothing_to_answer_for_an_unknown_an_ungated_or_a_finished_call(
    store: Store, tables: Tables
) -> None:
    lines = [call("note", id="n", text="x"), DROP]
    agent, _ = kit.build_agent(lines, "done", tools=tables.tools, gate=kit.build_gate(Answer("allow", by="ada")))
    async with agent.session(store.open()) as session:
        with pytest.raises(NotFound, match="no question for call 'nope'"):
            await session.approve("nope")
        await kit.run_to_end(session)
        before = await session.facts()
        with pytest.raises(NotFound, match="no question for call 'n'"):
            await session.approve("n")
        with pytest.raises(AlreadyAnswered, match="call a was answered already, by ada: allow"):
            await session.deny("a")
        assert await session.facts() == before


async def test_an_answer_counts_only_for_the_call_that_was_shown(store: Store, tables: Tables) -> None:
    async with tables.open_session(store.open(), "done") as session:
        [question] = await kit.read_questions(session)
        assert isinstance(question, ApprovalRequested)
        with pytest.raises(Conflict, match="not the one that was shown"):
            await session.approve("a", digest="something else")
        assert len(await kit.read_questions(session)) == 1
        await session.approve("a", digest=question.digest)
        await kit.wait_for(session, RunFinished)
    assert tables.done == ["users"]


async def test_an_approved_call_does_not_run_when_it_has_changed(on_file: Store) -> None:
    """A default changed with the program while the approval waited: the person never saw this call."""
    done: list[Any] = []

    def build_version(default: bool) -> Any:
        @tool(safety="destructive", name="drop")
        def drop(table: str, cascade: bool = default) -> str:
            done.append((table, cascade))
            return "dropped"

        return drop

    agent, _ = kit.build_agent(DROP, tools=[build_version(False)], gate=later)
    async with agent.session(on_file.open()) as session:
        assert await kit.run_message(session) is None
        [question] = await kit.read_questions(session)
        assert isinstance(question, ApprovalRequested) and question.arguments == {"table": "users", "cascade": False}
    again, model = kit.build_agent("ok", tools=[build_version(True)], gate=later)
    async with again.session(on_file.open()) as session:
        await session.approve("a")
        await kit.wait_for(session, RunFinished)
        assert (await kit.read_finished_calls(session))["a"].status == "denied"
    assert done == []
    assert "not what was approved" in kit.select_results(model.requests[0])["a"].text


@pytest.mark.parametrize(
    ("before", "now", "words", "done"),
    [
        (Grant(approve=("read_*",)), Grant(), "dropped users", ["users"]),
        (Grant(), Grant(tier="full"), "not what was approved", []),
        (Grant(), Grant(forbid=("drop",)), "forbidden by drop", []),
    ],
    ids=["other rule", "no sandbox", "forbidden"],
)
async def test_an_approved_call_runs_only_where_it_is_still_allowed_in_the_same_sandbox(
    on_file: Store, tables: Tables, before: Grant, now: Grant, words: str, done: list[str]
) -> None:
    async with tables.open_session(on_file.open(), grant=before):
        pass
    again, model = kit.build_agent("ok", tools=tables.tools, gate=later, grant=now)
    async with again.session(on_file.open()) as session:
        await session.approve("a")
        await kit.wait_for(session, RunFinished)
    assert tables.done == done and words in kit.select_results(model.requests[0])["a"].text


# --- several answers at once


@pytest.mark.parametrize(
    ("line", "kind", "answers"),
    [
        (
            DROP,
            ApprovalAnswered,
            [
                lambda session: session.approve("a", Answer(by="ada")),
                lambda session: session.deny("a", by="bob"),
                lambda session: session.approve("a", Answer(by="eve")),
            ],
        ),
        (
            QUESTION,
            InputAnswered,
            [
                lambda session: session.answer("q", "red", by="ada"),
                lambda session: session.answer("q", "blue", by="bob"),
                lambda session: session.deny("q", "mind your own business", by="eve"),
            ],
        ),
    ],
    ids=["approval", "question"],
)
async def test_one_of_several_answers_at_once_counts_and_the_others_learn_whose(
    on_file: Store, tables: Tables, line: Any, kind: type[Any], answers: list[Answering]
) -> None:
    other, _ = kit.build_agent("done", tools=[*tables.tools, AskUser()])
    async with tables.open_session(on_file.open(), "done", first=line) as session:
        async with other.session(on_file.open(), id=session.id) as elsewhere:
            places = zip(answers, (session, elsewhere, session), strict=True)
            replies = await asyncio.gather(*(answer(place) for answer, place in places), return_exceptions=True)
            await kit.wait_for(session, RunFinished)
        [winner] = kit.select_events(await session.facts(), kind)
    decision = getattr(winner, "decision", "answered")
    losers = [error for error in replies if error is not None]
    assert len(losers) == 2
    for error in losers:
        assert isinstance(error, AlreadyAnswered)
        assert f"by {winner.by}: {decision}" in str(error) and error.answer == winner
    assert tables.done == (["users"] if decision == "allow" else [])


@pytest.mark.parametrize(
    ("line", "answer", "first", "error"),
    [
        (
            DROP,
            lambda session: session.approve("a", Answer(by="ada")),
            ApprovalAnswered(call_id="a", decision="deny", by="bob"),
            "by bob: deny",
        ),
        (
            QUESTION,
            lambda session: session.answer("q", "red", by="ada"),
            InputAnswered(call_id="q", answers=("blue",), by="bob"),
            "call q was answered already, by bob",
        ),
    ],
    ids=["approval", "question"],
)
async def test_an_answer_that_loses_the_race_to_the_log_learns_who_won(
    on_file: Store, tables: Tables, line: Any, answer: Answering, first: Any, error: str
) -> None:
    """Both have read that the question is open; the log decides."""
    agent, _ = kit.build_agent(line, "done", tools=[*tables.tools, AskUser()], gate=later)
    async with Runtime(on_file.open(), [agent]) as runtime, runtime.session() as session:
        assert await kit.run_message(session) is None
        elsewhere, log, post = on_file.open(), runtime.log, runtime.log.post

        async def slow_post(session_id: str, facts: Any, key: str = "", **options: Any) -> Any:
            log.post = post  # type: ignore[method-assign]
            await elsewhere.post(session_id, [first], key=key)
            return await post(session_id, facts, key, **options)

        log.post = slow_post  # type: ignore[method-assign]
        with pytest.raises(AlreadyAnswered, match=error):
            await answer(session)
        await kit.wait_for(session, RunFinished)
        assert [fact.by for fact in kit.select_events(await session.facts(), type(first))] == ["bob"]
    assert tables.done == []


# --- questions


async def test_a_question_is_answered_like_an_approval_also_after_a_restart(on_file: Store) -> None:
    agent, _ = kit.build_agent(QUESTION, tools=[AskUser()], gate=later)
    async with agent.session(on_file.open()) as session:
        with pytest.raises(NotAnswered, match="waits for somebody: a question"):
            await session.ask("paint it")
        [question] = await kit.read_questions(session)
        assert isinstance(question, InputRequested)
        assert (question.questions[0].text, question.questions[0].options) == ("Which colour?", ("red", "blue"))
    again, model = kit.build_agent("painted", tools=[AskUser()])
    async with again.session(on_file.open()) as session:
        await session.answer("q", "blue", by="ada")
        assert (await kit.wait_for(session, RunFinished)).answer == "painted"
        [answer] = kit.select_events(await session.facts(), InputAnswered)
        assert (answer.answers, answer.by) == (("blue",), "ada")
        with pytest.raises(AlreadyAnswered, match="by ada"):
            await session.answer("q", "red")
        kit.check_settled(await session.facts())
    assert kit.select_results(model.requests[0])["q"].text == "blue"


async def test_a_strict_question_takes_only_one_of_its_options(store: Store) -> None:
    class StrictQuestion(AskUser):
        def questions(self, parsed: ParsedArguments) -> tuple[Question, ...]:
            return tuple(replace(question, strict=True) for question in super().questions(parsed))

    agent, model = kit.build_agent(QUESTION, "ok", tools=[StrictQuestion()], gate=later)
    async with agent.session(store.open()) as session:
        assert await kit.run_message(session) is None
        with pytest.raises(BadInput, match="call q: 'green' is none of the answers to choose from: 'red', 'blue'"):
            await session.answer("q", "green")
        await session.answer("q", "blue")
        assert (await kit.wait_for(session, RunFinished)).answer == "ok"
    assert kit.select_results(model.requests[1])["q"].text == "blue"


@pytest.mark.parametrize(
    ("gate", "text"),
    [(kit.build_gate(Answer(answers=("blue",))), "blue"), (None, "Decide yourself")],
    ids=["a gate answers", "no gate"],
)
async def test_a_gate_answers_a_question_and_without_one_the_model_decides_itself(gate: Any, text: str) -> None:
    run = await kit.run_script(QUESTION, "ok", tools=[AskUser()], gate=gate)
    assert run.answer == "ok" and text in run.messages["q"].text


async def test_a_question_without_words_is_answered_to_the_model() -> None:
    lines = (call("ask_user", id="a", question=" "), call("ask_user", id="b"))
    run = await kit.run_script(*lines, "ok", tools=[AskUser()], gate=later)
    assert run.answer == "ok"
    assert "question is empty" in run.messages["a"].text and "do not fit" in run.messages["b"].text


async def test_an_answer_in_words_is_no_approval_and_an_approval_is_no_answer(store: Store, tables: Tables) -> None:
    """`answer(call, "no")` must never be taken for a yes."""
    async with tables.open_session(store.open(), "ok", first=[DROP, QUESTION]) as session:
        before = await session.facts()
        with pytest.raises(BadInput, match="call a waits for an approval: approve or deny it"):
            await session.answer("a", "no")
        with pytest.raises(BadInput, match="call q waits for an answer in words"):
            await session.approve("q")
        assert await session.facts() == before and tables.done == []
        await session.deny("a")
        await session.deny("q", "none of your business")
        assert (await kit.wait_for(session, RunFinished)).answer == "ok"
    shown = kit.select_results(tables.model.requests[1])["q"].text
    assert "do not want to answer. They say: none of your business" in shown and tables.done == []
