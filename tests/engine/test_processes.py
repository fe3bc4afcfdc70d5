"""Several processes on one store: they share it, see each other's facts at once, and take over from each other."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from tests.crash.children import freeze, join_all, kill, run_child, start, start_fork_server, thaw, wait_until
from tests.crash.notes import Notes, ReportingLog, compute_digest
from tests.crash.session_processes import (
    approve_call,
    build_obedient_agent,
    count_turns,
    open_store_at,
    post_messages,
    run_order,
    serve_sessions,
)
from tests.kit.sessions import PATIENCE, finish_run, select_events, wait_for
from treadle import CallFinished, CallStarted, RunFinished, Runtime, Session, TextPart
from treadle.errors import StoreBusy
from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    ApprovalRequested,
    Delta,
    MessageReceived,
    ModelReplied,
    TurnStarted,
)
from treadle.log.base import LEASE_SECONDS, SessionQuery
from treadle.log.sqlite import SqliteLog

PROCESSES = 8
TURNS = 200
SHORT, LONG = 1.0, 600.0
"""A lease that a test waits for the end of, and one that never ends in a test, however long a process is kept waiting.

Whoever could lose a session against a test's will has a long one: a whole machine may stand still for seconds.
"""


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


@asynccontextmanager
async def open_session(notes: Notes, log: SqliteLog | None = None, **options: Any) -> AsyncIterator[Session]:
    """Open the session named `one` in this process."""
    log = log or ReportingLog(notes)
    async with (
        Runtime(log, [build_obedient_agent(notes)], **options) as runtime,
        runtime.session(name="one") as session,
    ):
        yield session
    await log.close()
    assert notes.read("trouble") == []


@asynccontextmanager
async def open_run(
    notes: Notes, order: str, lease: float = LEASE_SECONDS
) -> AsyncIterator[tuple[Session, ForkServerProcess]]:
    """Open the session in this process, while another process runs an order in it."""
    async with open_session(notes, recover=False) as session:
        with run_child(run_order, notes, order, lease) as owner:
            yield session, owner


def check_calls_ran_once(notes: Notes) -> None:
    assert set(Counter(key for key, *_ in notes.read("lines")).values()) == {1}


async def test_eight_processes_run_two_hundred_turns_each_on_one_file(notes: Notes) -> None:
    children = [start(count_turns, notes, f"p{number}", 1, TURNS - 1) for number in range(PROCESSES)]
    join_all(notes, *children)
    assert notes.read("trouble") == []
    log = ReportingLog(notes)
    facts = {info.id: await log.read(info.id) for info in (await log.list_sessions(SessionQuery())).sessions}
    log.check_integrity()
    await log.close()
    assert len(facts) == PROCESSES
    lines = Counter(key for key, *_ in notes.read("lines"))
    for session_id, one in facts.items():
        assert sum(isinstance(fact, TurnStarted) for fact in one) == TURNS
        assert sum(isinstance(fact, CallFinished) and fact.status == "ok" for fact in one) == TURNS - 1
        assert [fact.seq for fact in one] == list(range(1, len(one) + 1))
        assert {lines[f"{session_id}:step-{number}"] for number in range(TURNS - 1)} == {1}
    acknowledged = notes.read("acknowledged")
    assert len(acknowledged) == sum(len(one) - 2 for one in facts.values())  # made with its name in one go
    assert all(compute_digest(facts[session_id][int(seq) - 1]) == digest for session_id, seq, digest, _ in acknowledged)


def test_processes_that_make_the_same_new_store_at_once_all_get_it(tmp_path: Path) -> None:
    start_fork_server()
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        notes = Notes(tmp_path / str(number))
        soon = time.monotonic() + 0.05  # one makes it, and the others come at every moment of that
        children = [start(open_store_at, notes, soon + place * 0.002) for place in range(4)]
        join_all(notes, *children)


async def test_a_message_posted_by_another_process_steers_the_run_at_once(notes: Notes) -> None:
    async with open_run(notes, "tick") as (session, _):
        await wait_for(session, CallFinished)
        await session.send("stop")
        message = await wait_for(session, MessageReceived, after=(await wait_for(session, CallFinished)).seq)
        turn = await wait_for(session, TurnStarted, after=message.seq)
        outcome = await wait_for(session, RunFinished)
        wait_until(lambda: notes.read("outcome"))
    assert turn.messages == (message.id,), "the next turn has it"
    assert outcome.seq > turn.seq
    assert outcome.reason == "answered" and outcome.answer.startswith("stopped after")
    assert [ending for _, ending in notes.read("outcome")] == ["answered"]


async def test_an_answer_given_by_another_process_is_acted_on_by_the_one_that_runs(notes: Notes) -> None:
    async with open_run(notes, "wait") as (session, owner):
        question = await wait_for(session, ApprovalRequested)
        await wait_for(session, CallStarted)
        await session.approve(question.call_id)
        notes.write("go", "now")
        started = await wait_for(session, CallStarted, after=question.seq + 2)
        outcome = await wait_for(session, RunFinished)
        pid = str(owner.pid)
    assert started.tool == "careful" and started.owner.split(":")[2] == pid
    assert outcome.reason == "answered"
    assert [name for _, name, _ in notes.read("lines")] == ["careful"]


@pytest.mark.parametrize("order", ["hold async", "hold thread", "think", "tick"])
async def test_a_cancel_from_another_process_settles_at_once(notes: Notes, order: str) -> None:
    async with open_run(notes, order) as (session, owner):
        await wait_for(session, TurnStarted if order == "think" else CallStarted)
        async with asyncio.timeout(PATIENCE):  # what is held or thought about takes ten times as long
            outcome = await session.cancel(by="somebody else", why="enough")
        owner.join(PATIENCE)
        assert owner.exitcode == 0
        facts, lines = await session.facts(), notes.read("lines")
    assert outcome is not None and outcome.reason == "cancelled" and "somebody else" in outcome.error
    if order.startswith("hold"):
        assert [fact.status for fact in select_events(facts, CallFinished)] == ["cancelled"]
    calls = [call.id for fact in select_events(facts, ModelReplied) for call in fact.calls]
    assert [fact.call_id for fact in select_events(facts, CallFinished)] == calls
    assert len(lines) <= len(select_events(facts, CallStarted))
    assert isinstance(facts[-1], RunFinished)
    assert [ending for _, ending in notes.read("outcome")] == ["cancelled"]


async def test_a_watch_in_another_process_gives_every_fact_once(notes: Notes) -> None:
    async with open_session(notes, recover=False) as session:
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
        with run_child(run_order, notes, "count 50"):
            await anext(leaving)
            leaving.close()
            await wait_for(session, CallFinished)
            late = asyncio.create_task(follow())
            async with asyncio.timeout(PATIENCE):
                mine, theirs = await first, await late
        unread.close()
        facts = await session.facts()
    assert mine == theirs == facts


async def test_a_killed_owner_is_taken_over_without_waiting_for_its_lease(notes: Notes) -> None:
    async with open_run(notes, "tick", LONG) as (session, owner):
        last = await wait_for(session, CallFinished)  # before there is anybody else who could take the message up
        with run_child(serve_sessions, notes):
            wait_until(lambda: notes.read("serving"))
            _, lapses = _read_claim(notes)
            kill(owner)
            known = (await session.facts())[-1].seq
            taken = await wait_for(session, CallStarted, after=known)
            await session.send("stop")
            outcome = await wait_for(session, RunFinished)
        facts = await session.facts()
    assert taken.at < lapses
    epochs = [fact.epoch for fact in select_events(facts, CallStarted)]
    assert set(epochs) == {1, 2} and epochs == sorted(epochs) and taken.epoch == 2
    assert outcome.reason == "answered" and last.status == "ok"
    check_calls_ran_once(notes)


async def test_a_frozen_owner_is_taken_over_and_can_do_no_harm_when_it_wakes_up(notes: Notes) -> None:
    async with open_run(notes, "tick", SHORT) as (session, frozen):
        await wait_for(session, CallFinished)
        freeze(frozen, notes.store)
        _, lapses = _read_claim(notes)
        known = (await session.facts())[-1].seq
        with run_child(serve_sessions, notes, LONG):
            taken = await wait_for(session, CallStarted, after=known)
            thaw(frozen)
            wait_until(lambda: notes.read("refused"))
            later = (await session.facts())[-1].seq
            assert (await wait_for(session, CallStarted, after=later)).owner == taken.owner
            await session.send("stop")
            outcome = await wait_for(session, RunFinished)
            frozen.join(60)
        pid, exitcode = str(frozen.pid), frozen.exitcode
        facts = await session.facts()
    assert lapses < taken.at
    assert exitcode == 0, "it sees the end of the run that it no longer runs"
    assert outcome.reason == "answered"
    assert all(refused[0] == pid and refused[2] == "1" for refused in notes.read("refused"))
    epochs = [fact.epoch for fact in select_events(facts, CallStarted)]
    assert set(epochs) == {1, 2} and epochs == sorted(epochs)
    check_calls_ran_once(notes)


async def test_a_frozen_owner_stops_its_calls_when_it_wakes_up_and_goes_on_with_other_work(notes: Notes) -> None:
    async with open_session(notes, recover=False) as session:
        with run_child(serve_sessions, notes, SHORT) as frozen:
            await post_order(notes, session, "hold async")
            await wait_for(session, CallStarted)
            freeze(frozen, notes.store)
            with run_child(serve_sessions, notes, LONG):
                outcome = await wait_for(session, RunFinished)
            thaw(frozen)
            wait_until(lambda: notes.read("refused"))
            await post_order(notes, session, "count 2")
            again = await wait_for(session, CallStarted, after=outcome.seq)
            ending = await wait_for(session, RunFinished, after=outcome.seq)
            assert again.owner.split(":")[2] == str(frozen.pid) and again.epoch == 3
        facts = await session.facts()
    assert (outcome.reason, ending.reason) == ("answered", "answered")
    assert [fact.status for fact in select_events(facts, CallFinished)] == ["interrupted", "ok"]
    check_calls_ran_once(notes)


async def test_a_frozen_owner_cannot_write_even_before_its_successor_has(notes: Notes) -> None:
    async with open_run(notes, "mull", SHORT) as (session, frozen):
        await wait_for(session, TurnStarted)
        freeze(frozen, notes.store)
        with run_child(serve_sessions, notes, LONG) as successor:
            wait_until(lambda: f":{successor.pid}:" in _read_claim(notes)[0])
            freeze(successor, notes.store)
            notes.write("go", "now")
            thaw(frozen)
            wait_until(lambda: notes.read("refused"))
            thaw(successor)
            outcome = await wait_for(session, RunFinished)
            assert {refused[0] for refused in notes.read("refused")} == {str(frozen.pid)}
        facts = await session.facts()
    assert outcome.answer == "stopped after 0"
    assert len(select_events(facts, ModelReplied)) == 1


def _read_claim(notes: Notes) -> tuple[str, float]:
    """Read the owner of the session and the end of its lease."""
    with closing(sqlite3.connect(notes.store)) as db:
        return db.execute("SELECT owner, lease FROM sessions").fetchone()


async def post_order(notes: Notes, session: Session, text: str) -> None:
    """Post a message as a process would that runs nothing itself."""
    log = ReportingLog(notes)
    await log.post(session.id, [MessageReceived(id=f"msg_{text}", parts=(TextPart(text),))])
    await log.close()


either_stop = pytest.mark.parametrize("stop", [lambda owner, store: kill(owner), freeze], ids=["killed", "frozen"])


@either_stop
async def test_whoever_waits_for_a_run_takes_it_over_when_its_process_is_gone(notes: Notes, stop: Any) -> None:
    async with open_run(notes, "hold async", SHORT) as (session, owner):
        await wait_for(session, CallStarted)
        async with session.run("count 5") as run:
            stop(owner, notes.store)
            async with asyncio.timeout(PATIENCE):
                outcome = await run.wait()
    assert outcome is not None and outcome.answer == "stopped after 5"
    check_calls_ran_once(notes)


@either_stop
async def test_a_cancel_settles_a_run_whose_process_is_gone(notes: Notes, stop: Any) -> None:
    async with open_run(notes, "hold async", SHORT) as (session, owner):
        await wait_for(session, CallStarted)
        stop(owner, notes.store)
        async with asyncio.timeout(PATIENCE):
            outcome = await session.cancel()
        facts = await session.facts()
    assert outcome is not None and outcome.reason == "cancelled"
    assert [fact.status for fact in select_events(facts, CallFinished)] == ["interrupted"]


async def test_a_question_outlives_the_process_that_asked_it_and_one_of_many_answers_counts(notes: Notes) -> None:
    async with open_run(notes, "ask") as (session, asking):
        asking.join(60)
        assert asking.exitcode == 0 and [ending for _, ending in notes.read("outcome")] == ["none"]
        question = await wait_for(session, ApprovalRequested)
        people = [f"person{number}" for number in range(4)]
        children = [start(approve_call, notes, session.id, question.call_id, person) for person in people]
        wait_until(lambda: len(notes.read("ready")) == len(people))
        notes.write("go", "now")
        join_all(notes, *children)
        outcome = await finish_run(session.resume())
        facts = await session.facts()
    answers = notes.read("answers")
    (winner,) = [by for how, by in answers if how == "won"]
    assert len(answers) == len(people) and {by for _, by in answers} == {winner}, "the late ones learn who was first"
    assert [fact.by for fact in select_events(facts, ApprovalAnswered)] == [winner]
    assert outcome.reason == "answered"
    assert [name for _, name, _ in notes.read("lines")] == ["careful"]


async def test_messages_from_many_processes_are_each_stored_and_shown_to_the_model_once(notes: Notes) -> None:
    async with open_run(notes, "tick") as (session, _):
        await wait_for(session, CallFinished)
        children = [start(post_messages, notes, session.id, f"p{number}", 40) for number in range(4)]
        join_all(notes, *children)
        await session.send("stop")
        outcome = await wait_for(session, RunFinished)
        facts = await session.facts()
    received = [fact.id for fact in select_events(facts, MessageReceived)]
    promoted = [one for fact in select_events(facts, TurnStarted) for one in fact.messages]
    assert promoted == received and len(set(received)) == len(received) == 4 * 40 + 2
    assert outcome.reason == "answered"
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))


async def test_a_process_that_could_not_reach_its_store_for_a_while_goes_on(notes: Notes) -> None:
    log = SqliteLog(notes.store, busy_timeout=0.1)
    async with (
        Runtime(log, [build_obedient_agent(notes)], lease=1.0) as runtime,
        runtime.session(name="one") as session,
    ):
        await post_order(notes, session, "tick")
        await wait_for(session, CallFinished)
        with closing(sqlite3.connect(notes.store, isolation_level=None)) as hog:
            hog.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(1.2)  # longer than the lease: it cannot be renewed either
            assert runtime.coordinator.is_running(session.id)
            with pytest.raises(StoreBusy, match=f"by process {os.getpid()}"):
                await session.send("stop")
            hog.execute("ROLLBACK")
        await post_order(notes, session, "stop")
        outcome = await wait_for(session, RunFinished)
    await log.close()
    assert outcome.reason == "answered"
    check_calls_ran_once(notes)


async def test_a_clock_that_is_set_forward_does_not_make_a_process_take_over_from_itself(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    log = SqliteLog(notes.store, clock=lambda: time.time())
    async with open_session(notes, log, lease=2.0) as session:
        await session.send("tick")
        last = await wait_for(session, CallFinished)
        for _ in range(3):
            ahead += 3600
            # Longer than it takes to look for work.
            last = await wait_for(session, CallFinished, after=last.seq + 24)
        await session.send("stop")
        await wait_for(session, RunFinished)
        facts = await session.facts()
    assert {fact.epoch for fact in select_events(facts, CallStarted)} == {1}
    check_calls_ran_once(notes)


async def test_a_cancel_takes_back_a_question_that_somebody_is_being_asked(notes: Notes) -> None:
    asked = asyncio.Event()

    async def nobody_answers(question: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with (
        Runtime(notes.store, [build_obedient_agent(notes)]) as runtime,
        runtime.session(name="one", gate=nobody_answers) as session,
        session.run("ask") as run,
    ):
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
            outcome = await session.cancel()
            assert outcome is not None and outcome.reason == "cancelled"
            assert await run.wait() == outcome
    assert notes.read("lines") == []
