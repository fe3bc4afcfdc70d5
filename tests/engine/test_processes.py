"""Several processes on one store: they share it, see each other's facts at once, and take over from each other."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar

import pytest

from tests.crash.children import freeze, kill, running, start, thaw, until, warm_up
from tests.crash.owners import answer, count, obedient_agent, open_at, own, post, serve
from tests.crash.paper import Paper, ReportingLog, compute_digest
from tests.kit.sessions import PATIENCE
from treadle import (
    ApprovalRequested,
    CallFinished,
    CallStarted,
    InputRequested,
    ModelReplied,
    RunFinished,
    Runtime,
    Session,
    TextPart,
)
from treadle.events import AnyFact, ApprovalAnswered, Delta, MessageReceived, TurnStarted
from treadle.log.base import SessionQuery
from treadle.log.sqlite import SqliteLog

F = TypeVar("F", bound=AnyFact)

PROCESSES = 8
TURNS = 200
SHORT, LONG = 1.0, 600.0
"""A lease that a test waits for the end of, and one that never ends in a test, however long a process is kept waiting.

Whoever could lose a session against a test's will has a long one: a whole machine may stand still for seconds.
"""


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path)


@asynccontextmanager
async def beside(paper: Paper) -> AsyncIterator[Session]:
    """The session named `one` as this process, which is another than the one that runs it, sees it."""
    log = ReportingLog(paper)
    async with Runtime(log, [obedient_agent(paper)], recover=False) as runtime, runtime.session(name="one") as session:
        yield session
    await log.close()
    assert paper.read("trouble") == []


async def seen(session: Session, kind: type[F], after: int = 0) -> F:
    """The first fact of a kind, as soon as it is seen here."""
    watch = session.watch(after)
    try:
        async with asyncio.timeout(PATIENCE):
            async for event in watch:
                if isinstance(event, kind):
                    return event
    finally:
        watch.close()
    raise AssertionError(f"the watch ended without {kind.__name__}")


async def test_eight_processes_run_two_hundred_turns_each_on_one_file(paper: Paper) -> None:
    children = [start(count, paper, f"p{number}", 1, TURNS - 1) for number in range(PROCESSES)]
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0] * PROCESSES, paper.read("trouble")
    assert paper.read("trouble") == []
    log = ReportingLog(paper)
    facts = {info.id: await log.read(info.id) for info in (await log.list_sessions(SessionQuery())).sessions}
    log.check_integrity()
    await log.close()
    assert len(facts) == PROCESSES
    lines = Counter(key for key, *_ in paper.read("lines"))
    for session_id, one in facts.items():
        assert sum(isinstance(fact, TurnStarted) for fact in one) == TURNS
        assert sum(isinstance(fact, CallFinished) and fact.status == "ok" for fact in one) == TURNS - 1
        assert [fact.seq for fact in one] == list(range(1, len(one) + 1))
        assert {lines[f"{session_id}:step-{number}"] for number in range(TURNS - 1)} == {1}
    acknowledged = paper.read("acknowledged")
    assert len(acknowledged) == sum(len(one) - 2 for one in facts.values())  # made with its name in one go
    assert all(compute_digest(facts[session_id][int(seq) - 1]) == digest for session_id, seq, digest in acknowledged)


def test_processes_that_make_the_same_new_store_at_once_all_get_it(tmp_path: Path) -> None:
    warm_up()
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        paper = Paper(tmp_path / str(number))
        soon = time.monotonic() + 0.05  # one makes it, and the others come at every moment of that
        children = [start(open_at, paper, soon + place * 0.002) for place in range(4)]
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0] * 4, paper.read("trouble")


async def test_a_message_posted_by_another_process_steers_the_run_at_once(paper: Paper) -> None:
    async with beside(paper) as session:
        with running(own, paper, "tick"):
            await seen(session, CallFinished)
            await session.send("stop")
            message = await seen(session, MessageReceived, after=(await seen(session, CallFinished)).seq)
            turn = await seen(session, TurnStarted, after=message.seq)
            outcome = await seen(session, RunFinished)
            until(lambda: paper.read("outcome"))
    assert turn.messages == (message.id,), "the next turn has it"
    assert outcome.seq > turn.seq
    assert outcome.reason == "answered" and outcome.answer.startswith("stopped after")
    assert [ending for _, ending in paper.read("outcome")] == ["answered"]


async def test_an_answer_given_by_another_process_is_acted_on_by_the_one_that_runs(paper: Paper) -> None:
    async with beside(paper) as session:
        with running(own, paper, "wait") as owner:
            question = await seen(session, ApprovalRequested)
            await seen(session, CallStarted)
            await session.approve(question.call_id)
            paper.write("go", "now")
            started = await seen(session, CallStarted, after=question.seq + 2)
            outcome = await seen(session, RunFinished)
            pid = str(owner.pid)
    assert started.tool == "careful" and started.owner.split(":")[2] == pid
    assert outcome.reason == "answered"
    assert [name for _, name, _ in paper.read("lines")] == ["careful"]


@pytest.mark.parametrize("order", ["hold async", "hold thread", "think", "tick"])
async def test_a_cancel_from_another_process_settles_at_once(paper: Paper, order: str) -> None:
    async with beside(paper) as session:
        with running(own, paper, order) as owner:
            await seen(session, TurnStarted if order == "think" else CallStarted)
            async with asyncio.timeout(PATIENCE):  # what is held or thought about takes ten times as long
                outcome = await session.cancel(by="somebody else", why="enough")
            owner.join(PATIENCE)
            assert owner.exitcode == 0
            facts, lines = await session.facts(), paper.read("lines")
    assert outcome is not None and outcome.reason == "cancelled" and "somebody else" in outcome.error
    if order.startswith("hold"):
        assert [fact.status for fact in facts if isinstance(fact, CallFinished)] == ["cancelled"]
    calls = [call.id for fact in facts if isinstance(fact, ModelReplied) for call in fact.calls]
    assert [fact.call_id for fact in facts if isinstance(fact, CallFinished)] == calls
    assert len(lines) <= len([fact for fact in facts if isinstance(fact, CallStarted)])
    assert isinstance(facts[-1], RunFinished)
    assert [ending for _, ending in paper.read("outcome")] == ["cancelled"]


async def test_a_watch_in_another_process_gives_every_fact_once(paper: Paper) -> None:
    async with beside(paper) as session:
        unread, leaving = session.watch(), session.watch()

        async def follow() -> list[AnyFact]:
            got: list[AnyFact] = []
            async for event in session.watch():
                assert not isinstance(event, Delta)
                got.append(event)
                if isinstance(event, RunFinished):
                    break
            return got

        first = asyncio.create_task(follow())
        with running(own, paper, "count 50"):
            await anext(leaving)
            leaving.close()
            await seen(session, CallFinished)
            late = asyncio.create_task(follow())
            async with asyncio.timeout(PATIENCE):
                mine, theirs = await first, await late
        unread.close()
        facts = await session.facts()
    assert mine == theirs == facts


async def test_a_killed_owner_is_taken_over_without_waiting_for_its_lease(paper: Paper) -> None:
    async with beside(paper) as session:
        with running(own, paper, "tick", LONG) as owner:
            last = await seen(session, CallFinished)  # before there is anybody else who could take the message up
            with running(serve, paper):
                until(lambda: paper.read("serving"))
                lapses = _held_until(paper)
                kill(owner)
                known = (await session.facts())[-1].seq
                taken = await seen(session, CallStarted, after=known)
                await session.send("stop")
                outcome = await seen(session, RunFinished)
        facts = await session.facts()
    assert taken.at < lapses
    epochs = [fact.epoch for fact in facts if isinstance(fact, CallStarted)]
    assert set(epochs) == {1, 2} and epochs == sorted(epochs) and taken.epoch == 2
    assert outcome.reason == "answered" and last.status == "ok"
    assert set(Counter(key for key, *_ in paper.read("lines")).values()) == {1}


async def test_a_frozen_owner_is_taken_over_and_can_do_no_harm_when_it_wakes_up(paper: Paper) -> None:
    async with beside(paper) as session:
        with running(own, paper, "tick", SHORT) as frozen:
            await seen(session, CallFinished)
            freeze(frozen, paper.store)
            lapses = _held_until(paper)
            known = (await session.facts())[-1].seq
            with running(serve, paper, LONG):
                taken = await seen(session, CallStarted, after=known)
                thaw(frozen)
                until(lambda: paper.read("refused"))
                later = (await session.facts())[-1].seq
                assert (await seen(session, CallStarted, after=later)).owner == taken.owner
                await session.send("stop")
                outcome = await seen(session, RunFinished)
                frozen.join(60)
            pid, exitcode = str(frozen.pid), frozen.exitcode
        facts = await session.facts()
    assert lapses < taken.at
    assert exitcode == 0, "it sees the end of the run that it no longer runs"
    assert outcome.reason == "answered"
    assert all(refused[0] == pid and refused[2] == "1" for refused in paper.read("refused"))
    epochs = [fact.epoch for fact in facts if isinstance(fact, CallStarted)]
    assert set(epochs) == {1, 2} and epochs == sorted(epochs)
    assert set(Counter(key for key, *_ in paper.read("lines")).values()) == {1}


async def test_a_frozen_owner_stops_its_calls_when_it_wakes_up_and_goes_on_with_other_work(paper: Paper) -> None:
    async with beside(paper) as session:
        with running(serve, paper, SHORT) as frozen:
            await order(paper, session, "hold async")
            await seen(session, CallStarted)
            freeze(frozen, paper.store)
            with running(serve, paper, LONG):
                outcome = await seen(session, RunFinished)
            thaw(frozen)
            until(lambda: paper.read("refused"))
            await order(paper, session, "count 2")
            again = await seen(session, CallStarted, after=outcome.seq)
            ending = await seen(session, RunFinished, after=outcome.seq)
            assert again.owner.split(":")[2] == str(frozen.pid) and again.epoch == 3
        facts = await session.facts()
    assert (outcome.reason, ending.reason) == ("answered", "answered")
    assert [fact.status for fact in facts if isinstance(fact, CallFinished)] == ["interrupted", "ok"]
    assert set(Counter(key for key, *_ in paper.read("lines")).values()) == {1}


async def test_a_frozen_owner_cannot_write_even_before_its_successor_has(paper: Paper) -> None:
    async with beside(paper) as session:
        with running(own, paper, "mull", SHORT) as frozen:
            await seen(session, TurnStarted)
            freeze(frozen, paper.store)
            with running(serve, paper, LONG) as successor:
                until(lambda: _owned_by(paper, successor.pid))
                freeze(successor, paper.store)
                paper.write("go", "now")
                thaw(frozen)
                until(lambda: paper.read("refused"))
                thaw(successor)
                outcome = await seen(session, RunFinished)
                assert {refused[0] for refused in paper.read("refused")} == {str(frozen.pid)}
        facts = await session.facts()
    assert outcome.answer == "stopped after 0"
    assert len([fact for fact in facts if isinstance(fact, ModelReplied)]) == 1


def _held_until(paper: Paper) -> float:
    with closing(sqlite3.connect(paper.store)) as db:
        return db.execute("SELECT lease FROM sessions").fetchone()[0]


def _owned_by(paper: Paper, pid: int | None) -> bool:
    with closing(sqlite3.connect(paper.store)) as db:
        return f":{pid}:" in db.execute("SELECT owner FROM sessions").fetchone()[0]


async def order(paper: Paper, session: Session, text: str) -> None:
    """Post a message as a process would that runs nothing itself."""
    log = ReportingLog(paper)
    await log.post(session.id, [MessageReceived(id=f"msg_{text}", parts=(TextPart(text),))])
    await log.close()


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_whoever_waits_for_a_run_takes_it_over_when_its_process_is_gone(paper: Paper, how: str) -> None:
    async with beside(paper) as session:
        with running(own, paper, "hold async", SHORT) as owner:
            await seen(session, CallStarted)
            async with session.run("count 5") as run:
                if how == "killed":
                    kill(owner)
                else:
                    freeze(owner, paper.store)
                async with asyncio.timeout(PATIENCE):
                    outcome = await run.wait()
    assert outcome is not None and outcome.answer == "stopped after 5"
    assert set(Counter(key for key, *_ in paper.read("lines")).values()) == {1}


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_cancel_settles_a_run_whose_process_is_gone(paper: Paper, how: str) -> None:
    async with beside(paper) as session:
        with running(own, paper, "hold async", SHORT) as owner:
            await seen(session, CallStarted)
            if how == "killed":
                kill(owner)
            else:
                freeze(owner, paper.store)
            async with asyncio.timeout(PATIENCE):
                outcome = await session.cancel()
        facts = await session.facts()
    assert outcome is not None and outcome.reason == "cancelled"
    assert [fact.status for fact in facts if isinstance(fact, CallFinished)] == ["interrupted"]


async def test_a_question_outlives_the_process_that_asked_it_and_one_of_many_answers_counts(paper: Paper) -> None:
    async with beside(paper) as session:
        with running(own, paper, "ask") as asking:
            asking.join(60)
            assert asking.exitcode == 0 and [ending for _, ending in paper.read("outcome")] == ["none"]
        question = await seen(session, ApprovalRequested)
        people = [f"person{number}" for number in range(4)]
        children = [start(answer, paper, session.id, question.call_id, person) for person in people]
        until(lambda: len(paper.read("ready")) == len(people))
        paper.write("go", "now")
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0] * len(people), paper.read("trouble")
        async with session.resume() as run:
            outcome = await run.wait()
        facts = await session.facts()
    answers = paper.read("answers")
    (winner,) = [by for how, by in answers if how == "won"]
    assert len(answers) == len(people) and {by for _, by in answers} == {winner}, "the late are told who was first"
    assert [fact.by for fact in facts if isinstance(fact, ApprovalAnswered)] == [winner]
    assert outcome is not None and outcome.reason == "answered"
    assert [name for _, name, _ in paper.read("lines")] == ["careful"]


async def test_messages_from_many_processes_are_each_stored_and_shown_to_the_model_once(paper: Paper) -> None:
    async with beside(paper) as session:
        with running(own, paper, "tick"):
            await seen(session, CallFinished)
            children = [start(post, paper, session.id, f"p{number}", 40) for number in range(4)]
            for child in children:
                child.join(60)
            assert [child.exitcode for child in children] == [0] * 4, paper.read("trouble")
            await session.send("stop")
            outcome = await seen(session, RunFinished)
        facts = await session.facts()
    received = [fact.id for fact in facts if isinstance(fact, MessageReceived)]
    promoted = [one for fact in facts if isinstance(fact, TurnStarted) for one in fact.messages]
    assert promoted == received and len(set(received)) == len(received) == 4 * 40 + 2
    assert outcome.reason == "answered"
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))


async def test_a_process_that_could_not_reach_its_store_for_a_while_goes_on(paper: Paper) -> None:
    log = SqliteLog(paper.store, busy_timeout=0.1)
    async with Runtime(log, [obedient_agent(paper)], lease=1.0) as runtime, runtime.session(name="one") as session:
        await order(paper, session, "tick")
        await seen(session, CallFinished)
        with closing(sqlite3.connect(paper.store, isolation_level=None)) as hog:
            hog.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(PATIENCE):
                await runtime.coordinator.wait_until_idle(session.id)
            await asyncio.sleep(1.2)  # longer than the lease: it cannot be renewed either
            hog.execute("ROLLBACK")
        await order(paper, session, "stop")
        outcome = await seen(session, RunFinished)
    await log.close()
    assert outcome.reason == "answered"
    assert set(Counter(key for key, *_ in paper.read("lines")).values()) == {1}


async def test_a_clock_that_is_set_forward_does_not_make_a_process_take_over_from_itself(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    log = SqliteLog(paper.store, clock=lambda: time.time())
    async with Runtime(log, [obedient_agent(paper)], lease=2.0) as runtime, runtime.session(name="one") as session:
        await session.send("tick")
        last = await seen(session, CallFinished)
        for _ in range(3):
            ahead += 3600
            last = await seen(session, CallFinished, after=last.seq + 24)  # for longer than it takes to look for work
        await session.send("stop")
        await seen(session, RunFinished)
        facts = await session.facts()
    await log.close()
    assert {fact.epoch for fact in facts if isinstance(fact, CallStarted)} == {1}
    assert set(Counter(key for key, *_ in paper.read("lines")).values()) == {1}


async def test_a_cancel_takes_back_a_question_that_somebody_is_being_asked(paper: Paper) -> None:
    asked = asyncio.Event()

    async def nobody_answers(question: ApprovalRequested | InputRequested) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with (
        Runtime(paper.store, [obedient_agent(paper)]) as runtime,
        runtime.session(name="one", gate=nobody_answers) as session,
        session.run("ask") as run,
    ):
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
            outcome = await session.cancel()
            assert outcome is not None and outcome.reason == "cancelled"
            assert await run.wait() == outcome
    assert paper.read("lines") == []
