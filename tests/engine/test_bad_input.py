"""Bad input: each kind gives a clear error, and nothing that was recorded is lost."""

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.fake_model import FakeModel
from tests.kit.sessions import PATIENCE, QUESTION, HeldTool, Store, Tables, note
from treadle import Agent, Answer, CallStarted, Limits, RunFinished, Runtime, Session, TextPart, TreadleError, tool
from treadle.errors import (
    BadInput,
    Conflict,
    NotFound,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreTooNew,
    ToolDefinitionError,
)
from treadle.events import MessageReceived, ModelReplied
from treadle.log.owner import make_owner_name
from treadle.messages import Call, Reply, Request
from treadle.testing import call

# --- models


@pytest.mark.parametrize("name", ["no-such-model", "nobody:gpt-4o"])
async def test_an_unknown_model_name_is_refused_before_a_store_is_created(tmp_path: Path, name: str) -> None:
    agent = Agent(name)
    with pytest.raises(BadInput) as caught:
        await agent.ask("hello", tmp_path / "new.db")
    assert repr(name) in str(caught.value) or name in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "no store was created"


class YieldingModel(FakeModel):
    """A model that yields whatever it is given."""

    def __init__(self, *events: Any) -> None:
        self.events = events

    async def stream(self, request: Request) -> Any:
        for event in self.events:
            yield event


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (("not an event",), "TypeError"),
        ((Reply(text=5),), "Expected `str`, got `int` - at `$.text`"),  # type: ignore[arg-type]
        ((Reply(calls=(Call("a", "note", {"text": "x"}),)),), "at `$.calls[0].arguments`"),  # type: ignore[arg-type]
        ((Reply(text="x", finish="tool_calls"),), "at `$.finish`"),  # type: ignore[arg-type]
    ],
    ids=["no event", "text of a wrong type", "arguments of a wrong type", "unknown finish"],
)
async def test_a_malformed_reply_ends_the_run_as_failed(store: Store, events: Any, problem: str) -> None:
    run = await store.run_agent(Agent(YieldingModel(*events)))
    assert run.reason == "failed" and problem in run.outcome.error


async def test_a_reply_with_lone_surrogates_is_repaired_and_the_session_stays_usable(on_file: Store) -> None:
    reply = Reply(text="half a \ud83d face", reasoning="\udcff", calls=(Call("a", "note", '{"text":"\ud83d"}'),))
    agent, _ = kit.build_agent(reply, Reply(text="\ud83d", model="odd\udcff"), "fine", tools=[note])
    async with agent.session(on_file.open()) as session:
        outcome = await kit.run_to_end(session)
        assert outcome.reason == "answered" and outcome.answer == "?"
        assert kit.select_events(await session.facts(), ModelReplied)[0].text == "half a ? face"
        kit.check_settled(await session.facts())
        assert (await kit.run_to_end(session, "and now?")).answer == "fine"


async def test_a_number_too_large_for_the_log_is_answered_to_the_model(on_file: Store) -> None:
    @tool
    def double(number: int) -> str:
        return "large"

    huge = Call("a", "double", '{"number": 123456789012345678901234567890}')
    run = await on_file.run_script(huge, "fine", tools=[double])
    assert (run.reason, run.answer) == ("answered", "fine")
    assert run.messages["a"].text


# --- actions on a session


EMPTY = "the message is empty: say what is wanted"
NO_CONTENT = "text, or parts such as TextPart and ImagePart"


async def continue_with_bad_limits(session: Session) -> None:
    await kit.finish_run(session.continue_(Limits(turns="many")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        *((methodcaller("ask", empty), BadInput, EMPTY) for empty in ("", "  \n", [], [TextPart(" ")])),
        (methodcaller("send", ""), BadInput, EMPTY),
        *((methodcaller("send", bad), BadInput, NO_CONTENT) for bad in (5, None, [5], {"text": "x"}, b"bytes")),
        (methodcaller("rename", 5), BadInput, "cannot be stored as session_renamed"),
        (methodcaller("rename", "caf\udce9"), BadInput, "cannot be stored as session_renamed: .* not UTF-8"),
        (methodcaller("note", "acme.audit", object), BadInput, "cannot be stored as custom"),
        (methodcaller("note", "audit"), BadInput, "namespaced name"),
        (continue_with_bad_limits, BadInput, "limits: turns must be a number, not 'many'"),
        (methodcaller("configure", agent="nobody"), NotFound, "no agent named 'nobody' here; there are: agent"),
        (methodcaller("configure", model="opnai:x"), NotFound, r"no model 'opnai:x'\. Did you mean openai:x"),
        *((methodcaller("at", seq), BadInput, f"has positions 1 to 6, not {seq}") for seq in (-1, 0, 7)),
        *((methodcaller("fork", seq), BadInput, f"no position {seq} to fork from") for seq in (-1, 0, 7)),
        (methodcaller("artifact", "nope"), NotFound, "has no artifact nope"),
    ],
    ids=lambda value: ascii(value).removeprefix("operator.methodcaller") if isinstance(value, methodcaller) else "",
)
async def test_a_refused_action_is_not_recorded_and_the_session_stays_usable(
    store: Store, act: Callable[[Session], Awaitable[Any]], error: type[TreadleError], words: str
) -> None:
    run = await store.run_script("ok", "still ok")
    async with run.agent.session(store.open(), id=run.session_id) as session:
        with pytest.raises(error, match=words):
            await act(session)
        assert await session.facts() == run.facts and (await session.at(6)).seq == 6
        assert await session.ask("and now?") == "still ok"


async def test_a_message_with_a_lone_surrogate_is_repaired(store: Store) -> None:
    run = await store.run_script("ok", content="caf\udce9")
    assert run.answer == "ok"
    assert run.select(MessageReceived)[0].parts == (TextPart("caf?"),)


@pytest.mark.parametrize(
    "answer",
    [Answer("maybe"), Answer("allow", "forever"), Answer(by=5), Answer(comment="\udcff")],  # type: ignore[arg-type]
    ids=["decision", "scope", "by", "comment"],
)
async def test_an_invalid_answer_is_refused_and_the_question_stays_open(
    store: Store, tables: Tables, answer: Answer
) -> None:
    async with tables.open_session(store.open(), QUESTION, "ok") as session:
        before = await session.facts()
        with pytest.raises(BadInput, match=r"is an Answer\(...\), such as Answer\('deny'\), but this is a bool"):
            await session.approve("a", True)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="cannot be stored as approval_answered"):
            await session.approve("a", answer)
        assert await session.facts() == before and len(await kit.read_questions(session)) == 1
        await session.approve("a")
        assert await kit.resume_run(session) is None
        with pytest.raises(BadInput, match="cannot be stored as input_answered"):
            await session.answer("q", 5)  # type: ignore[arg-type]
        await session.answer("q", "five")
        assert (await kit.wait_for(session, RunFinished)).answer == "ok"


# --- sessions and stores


async def test_using_a_missing_session_raises_not_found(store: Store) -> None:
    agent, _ = kit.build_agent("ok")
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session)
        await session.delete()
        for use in (session.facts, session.state, session.fork, session.checkpoints, session.cancel):
            with pytest.raises(NotFound, match=f"no session {session.id}"):
                await use()
        with pytest.raises(NotFound, match=f"no session {session.id}"):
            await session.ask("hello?")
        with pytest.raises(NotFound):
            session.watch()


async def test_a_session_of_another_agent_is_not_opened(store: Store) -> None:
    run = await store.run_script("ok", name="writer")
    with pytest.raises(BadInput, match=r"session .* belongs to the agent 'writer'"):
        async with kit.build_agent("wrong", name="reader")[0].session(store.open(), id=run.session_id):
            pass


async def test_a_running_session_cannot_be_deleted(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open(), "done") as session:
        with pytest.raises(Conflict, match="is running; cancel it before deleting it"):
            await session.delete()
        held.free.set()
        await kit.wait_for(session, RunFinished)


def change(path: Path, statement: str, *values: Any) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(statement, values)
    db.close()


async def test_a_store_of_a_newer_version_is_refused_and_not_changed(on_file: Store) -> None:
    assert on_file.path is not None
    run = await on_file.run_script("ok", "never asked")
    await on_file.close()
    change(on_file.path, "PRAGMA user_version = 99")
    before = on_file.path.read_bytes()
    with pytest.raises(StoreTooNew, match=r"store version 99.*Upgrade treadle"):
        async with run.agent.session(on_file.path):
            pass
    assert on_file.path.read_bytes() == before


async def test_a_session_with_a_fact_of_a_newer_version_is_not_run_and_not_changed(on_file: Store) -> None:
    assert on_file.path is not None
    agent, _ = kit.build_agent("ok", "ok")
    async with agent.session(on_file.path, name="new") as session:
        await kit.run_to_end(session)
    new = session.id
    async with agent.session(on_file.path, name="old") as session:
        await kit.run_to_end(session)
    place = "(SELECT num << 32 | 4 FROM sessions WHERE id = ?)"
    body = b'{"type":"mind_read","seq":4,"at":1.0}'
    change(on_file.path, f"UPDATE facts SET body = ? WHERE place = {place}", body, new)
    async with agent.session(on_file.path, id=new) as session:
        for use in (session.facts, session.state, session.checkpoints, session.fork):
            with pytest.raises(StoreTooNew, match=r"fact 4 was written by a newer treadle.*Upgrade"):
                await use()
        with pytest.raises(StoreTooNew):
            await session.cancel()
    async with agent.session(on_file.path, name="old") as session:
        assert (await session.state()).last is not None, "the other sessions are as usable as before"


async def test_a_file_that_is_no_store_is_refused_and_not_changed(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Ada, " * 1000)
    agent, _ = kit.build_agent()
    with pytest.raises(StoreDamaged, match="not a treadle store"):
        await agent.ask("hello", letter)
    assert letter.read_text() == "Dear Ada, " * 1000
    with pytest.raises(StoreError, match="is not a file"):
        await agent.ask("hello", tmp_path)
    with pytest.raises(BadInput, match="is not a log"):
        await agent.ask("hello", "redis://localhost")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_store_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="cannot be written"):
        await kit.build_agent()[0].ask("hello", tmp_path / "new.db")


async def test_every_error_is_a_treadle_error() -> None:
    for error in (BadInput, Conflict, NotFound, StoreError, ToolDefinitionError, StoreTooNew):
        assert issubclass(error, TreadleError)


def fail_after_start(log: Any, error: StoreError, *names: str) -> list[bool]:
    """Let methods of a log fail as soon as a call has started, until the returned switch is off."""
    is_failing = [False]

    def wrap(write: Any) -> Any:
        async def fail_or_write(*given: Any, **options: Any) -> Any:
            if is_failing[0]:
                raise error
            is_failing[0] = write.__name__ == "append" and any(isinstance(fact, CallStarted) for fact in given[2])
            return await write(*given, **options)

        return fail_or_write

    for name in names:
        setattr(log, name, wrap(getattr(log, name)))
    return is_failing


async def test_a_store_error_during_a_run_is_raised_and_the_run_can_be_resumed(on_file: Store) -> None:
    agent, _ = kit.build_agent(call("note", id="a", text="x"), "never", tools=[note])
    log = on_file.open()
    async with Runtime(log, [agent], recover=False) as runtime, runtime.session() as session:
        is_failing = fail_after_start(log, StoreError("no room left"), "append")
        with pytest.raises(StoreError, match="no room left"):
            await session.ask("go")
        is_failing[0] = False
        assert isinstance((await session.facts())[-1], CallStarted)
    again, model = kit.build_agent("checked", tools=[note])
    async with again.session(on_file.open(), id=session.id) as session:
        assert (await kit.finish_run(session.resume())).answer == "checked"
        kit.check_settled(await session.facts())
    assert "Outcome unknown" in kit.select_results(model.requests[0])["a"].text


async def test_a_full_store_raises_and_the_session_resumes_once_there_is_room(
    on_file: Store, caplog: pytest.LogCaptureFixture
) -> None:
    agent, model = kit.build_agent(call("note", id="a", text="x"), "done", tools=[note])
    log = on_file.open()
    is_failing = fail_after_start(log, StoreFull("no room left"), "append", "release", "claim", "renew")
    async with Runtime(log, [agent], recover=False, lease=10_000) as runtime, runtime.session() as session:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreFull, match="no room left"):
                await session.ask("go")
            is_failing[0] = False
            assert (await kit.finish_run(session.resume())).answer == "done", "long before its lease lapses"
        kit.check_settled(await session.facts())
    assert len(model.requests) == 2
    assert "it can be resumed: no room left" in caplog.text and "Traceback" not in caplog.text


async def test_waiting_for_a_run_elsewhere_raises_when_the_store_is_gone(on_file: Store) -> None:
    async def fail(*given: Any) -> None:
        raise StoreError("the file was moved")

    agent, _ = kit.build_agent("never")
    async with agent.session(log := on_file.open()) as session:
        assert await on_file.open().claim(make_owner_name(), 10_000, session.id) is not None
        async with asyncio.timeout(PATIENCE), session.run("go") as run:
            log.claim = fail  # type: ignore[method-assign]
            with pytest.raises(StoreError, match="moved"):
                await run.wait()
        del log.claim  # type: ignore[attr-defined]
