"""Messages that wait: follow-ups get a run of their own, and a queued message can be changed until a run takes it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kit.sessions import (
    PATIENCE,
    HeldTool,
    Store,
    build_agent,
    either_store,
    file_store,
    finish_run,
    list_user_texts,
    resume_run,
    run_message,
    run_to_end,
    select_events,
    wait_for,
)
from treadle import Session
from treadle.engine.steps import Record, next_step
from treadle.errors import Conflict, ModelError, NotFound
from treadle.events import MessageEdited, MessageReceived, RunFinished, RunStarted, TurnStarted
from treadle.log.base import Log
from treadle.messages import TextPart
from treadle.testing import ScriptedModel, crash_points

store, one_file = either_store, file_store


@asynccontextmanager
async def open_busy(store: Store, *script: Any) -> AsyncIterator[tuple[Session, HeldTool, ScriptedModel]]:
    """Open a session whose run is in the middle of a call."""
    held = HeldTool()
    async with held.open_session(store.open(), *script) as session:
        yield session, held, held.model


async def wait_for_runs(session: Session, count: int) -> list[RunFinished]:
    """Wait until so many runs have ended."""
    async with asyncio.timeout(PATIENCE):
        after = 0
        for _ in range(count):
            after = (await wait_for(session, RunFinished, after=after)).seq
    return select_events(await session.facts(), RunFinished)


async def read_taken(session: Session) -> list[tuple[str, ...]]:
    """Read which messages each run has taken, by their texts."""
    texts: dict[str, str] = {}
    runs: list[tuple[str, ...]] = []
    for fact in await session.facts():
        match fact:
            case MessageReceived(id=id, parts=(TextPart(text),)):
                texts[id] = text
            case RunStarted():
                runs.append(())
            case TurnStarted():
                runs[-1] += tuple(texts[id] for id in fact.messages)
            case _:
                pass
    return runs


# --- follow-ups


async def test_a_follow_up_waits_for_the_answer_and_then_gets_a_run_by_itself(store: Store) -> None:
    async with open_busy(store, "done", "followed up") as (session, held, model):
        await session.send("then this", mode="follow_up")
        await session.send("and hurry")
        held.free.set()
        first, second = await wait_for_runs(session, 2)
        assert (first.answer, second.answer) == ("done", "followed up")
        assert await read_taken(session) == [("go", "and hurry"), ("then this",)]
        assert [list_user_texts(request)[-1] for request in model.requests] == ["go", "and hurry", "then this"]


async def test_each_follow_up_gets_a_run_of_its_own_in_their_order(store: Store) -> None:
    async with open_busy(store, "done", "one", "two") as (session, held, _):
        await session.send("first", mode="follow_up")
        await session.send("second", mode="follow_up")
        held.free.set()
        await wait_for_runs(session, 3)
        assert await read_taken(session) == [("go",), ("first",), ("second",)]


async def test_a_follow_up_to_an_idle_session_begins_at_once(store: Store) -> None:
    agent, _ = build_agent("hello")
    async with agent.session(store.open()) as session:
        outcome = await run_message(session, "hi", mode="follow_up")
        assert outcome is not None and outcome.answer == "hello"


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
async def test_a_follow_up_is_held_after_a_run_without_an_answer_until_the_next_one(store: Store, ending: str) -> None:
    broken = ModelError("no such key", kind="auth")
    lines = ["new", "followed up"] if ending == "cancelled" else [broken, "new", "followed up"]
    async with open_busy(store, *lines) as (session, held, _):
        message = await session.post("then this", mode="follow_up")
        following = session.follow(message)
        if ending == "cancelled":
            await session.cancel()
        held.free.set()
        (outcome,) = await wait_for_runs(session, 1)
        async with asyncio.timeout(PATIENCE):
            assert await following.wait() is None and following.is_held
        state = await session.state()
        assert outcome.reason == ending and state.run is None and state.is_held
        assert [one.id for one in state.queue] == [message.id]
        await session.send("something else")
        await wait_for_runs(session, 3)
        assert await read_taken(session) == [("go",), ("something else",), ("then this",)]


async def test_an_interrupting_message_goes_before_a_follow_up(store: Store) -> None:
    async with open_busy(store, "no, that", "followed up") as (session, _, _):
        following = session.follow(await session.post("then this", mode="follow_up"))
        await session.send("no, that", mode="interrupt")
        async with asyncio.timeout(PATIENCE):
            outcome = await following.wait()
        assert outcome is not None and outcome.answer == "followed up"
        assert await read_taken(session) == [("go",), ("no, that",), ("then this",)]


async def test_a_continued_run_leaves_a_held_follow_up_to_the_next_run(store: Store) -> None:
    async with open_busy(store, "continued", "followed up") as (session, _, _):
        await session.send("then this", mode="follow_up")
        await session.cancel()
        await finish_run(session.continue_())
        await wait_for_runs(session, 3)
        assert await read_taken(session) == [("go",), (), ("then this",)]


async def test_a_follow_up_gets_its_run_after_a_crash_at_any_fact(one_file: Store, tmp_path: Any) -> None:
    async with open_busy(one_file, "done", "followed up") as (session, held, _):
        message_id = await session.send("then this", mode="follow_up")
        held.free.set()
        await wait_for_runs(session, 2)
        points = await crash_points(session)
    for number, point in enumerate(points):
        if not any(isinstance(fact, MessageReceived) and fact.id == message_id for fact in point.facts):
            continue
        planted = Store(tmp_path / f"{number}.db")
        log = planted.open()
        await point.plant(log)
        agent, _ = build_agent(*["again"] * 3, tools=[HeldTool().tool])
        async with agent.session(log, id=point.session_id) as again:
            await resume_run(again)
            ended = select_events(point.facts, RunFinished)
            await wait_for_runs(again, 2)
            taken = [fact for fact in select_events(await again.facts(), TurnStarted) if message_id in fact.messages]
            assert len(taken) == 1 and len(ended) <= 2, number
        await planted.close()


# --- edits


async def test_the_model_reads_a_queued_message_as_it_was_edited_last(store: Store) -> None:
    async with open_busy(store, "done") as (session, held, model):
        edited, withdrawn = await session.send("left"), await session.send("never mind")
        await session.edit_message(edited, "right")
        await session.edit_message(edited, "straight on")
        await session.withdraw_message(withdrawn)
        held.free.set()
        await wait_for_runs(session, 1)
        assert list_user_texts(model.requests[-1]) == ["go", "straight on"]


async def test_a_message_that_a_run_has_taken_is_not_changed(store: Store) -> None:
    async with open_busy(store, "done") as (session, held, _):
        (taken,) = select_events(await session.facts(), MessageReceived)
        withdrawn = await session.send("never mind")
        await session.withdraw_message(withdrawn)
        head = (await session.state()).seq
        with pytest.raises(Conflict, match="taken it already"):
            await session.edit_message(taken.id, "something else")
        with pytest.raises(Conflict, match="was withdrawn"):
            await session.edit_message(withdrawn, "after all")
        with pytest.raises(NotFound, match="no message"):
            await session.withdraw_message("msg_x")
        assert (await session.state()).seq == head, "nothing was stored"
        held.free.set()
        await wait_for_runs(session, 1)


async def test_withdrawing_the_only_follow_up_starts_no_run(store: Store) -> None:
    async with open_busy(store, "done") as (session, held, _):
        message = await session.post("then this", mode="follow_up")
        following = session.follow(message)
        await session.withdraw_message(message.id)
        async with asyncio.timeout(PATIENCE):
            assert await following.wait() is None and following.is_withdrawn
        held.free.set()
        await wait_for_runs(session, 1)
        state = await session.state()
        assert state.run is None and not state.queue and state.runs == 1


async def test_an_edit_that_comes_after_the_run_took_the_message_is_refused(store: Store) -> None:
    """The run takes the message after the edit has looked at the queue, and before it is stored."""
    async with open_busy(store, "done") as (session, held, model):
        message_id = await session.send("left")
        post = session.log.post

        async def post_late(*args: Any, **options: Any) -> Any:
            session.log.post = post  # type: ignore[method-assign]
            held.free.set()
            await wait_for_runs(session, 1)
            return await post(*args, **options)

        session.log.post = post_late  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="taken it already"):
            await session.edit_message(message_id, "right")
        assert list_user_texts(model.requests[-1]) == ["go", "left"]
        state = await session.state()
        assert [entry.parts[0].text for entry in state.entries if isinstance(entry, MessageReceived)] == ["go", "left"]


@pytest.mark.parametrize("edit", ["right", ""])
async def test_an_edit_that_is_stored_before_the_turn_counts(store: Store, edit: str) -> None:
    """The run has decided to take the message, and finds the edit in the log when it writes that."""
    async with open_busy(store, "done") as (session, held, model):
        await session.send("left")
        posted = edit_at_turn(session.log, store.open(), session.id, edit)
        held.free.set()
        await wait_for_runs(session, 1)
        assert posted and list_user_texts(model.requests[-1]) == ["go", *filter(None, [edit])]


async def test_a_run_whose_only_message_was_withdrawn_does_not_ask_the_model(store: Store) -> None:
    """A fork may begin between the start of a run and its first turn."""
    agent, _ = build_agent("one", "two")
    async with agent.session(store.open()) as session:
        await run_to_end(session)
        await run_to_end(session)
        started = select_events(await session.facts(), RunStarted)[-1]
        fork = await session.fork(started.seq)
        (queued,) = (await fork.state()).queue
        await fork.withdraw_message(queued.id)
        step = next_step(await fork.state(), 0.0)
        assert isinstance(step, Record) and isinstance(step.facts[0], RunFinished)
        assert (step.facts[0].reason, step.facts[0].error) == ("cancelled", "its message was withdrawn")


def edit_at_turn(log: Log, elsewhere: Log, session_id: str, text: str) -> list[Any]:
    """Let another process edit a message in the moment in which this one first writes that it takes it."""
    append, posted = log.append, list[Any]()

    async def slow_append(claim: Any, seq: int, facts: Any, *args: Any, **options: Any) -> None:
        taken = [message_id for fact in facts if isinstance(fact, TurnStarted) for message_id in fact.messages]
        if taken and not posted:
            parts = (TextPart(text),) if text else ()
            posted.append(await elsewhere.post(session_id, [MessageEdited(id=taken[0], parts=parts)], wake=False))
        await append(claim, seq, facts, *args, **options)

    log.append = slow_append  # type: ignore[method-assign]
    return posted


async def test_an_attachment_that_is_added_by_an_edit_counts_as_one(store: Store) -> None:
    async with open_busy(store, "done") as (session, held, model):
        message_id = await session.send("look")
        await session.edit_message(message_id, ["look", TextPart("the text", file="a.txt")])
        held.free.set()
        await wait_for_runs(session, 1)
        assert "the text" in list_user_texts(model.requests[-1])[-1]
        assert "attachment" in " ".join((await session.state()).seen)


async def test_a_fork_of_a_marked_session_is_not_marked(store: Store) -> None:
    agent, _ = build_agent("one")
    async with agent.session(store.open()) as session:
        await run_to_end(session)
        await session.mark(pinned=True, by="ada")
        await session.mark(archived=True)
        state = await session.state()
        assert (state.pinned, state.archived) == (True, True)
        await session.mark(pinned=False)
        fork = await session.fork()
        info = await session.log.get_info(fork.id)
        assert (info.pinned, info.archived, (await fork.state()).archived) == (False, False, False)
        info = await session.log.get_info(session.id)
        assert (info.pinned, info.archived) == (False, True)
