"""Sessions with a past that changes, and messages that wait: to compare what is computed from facts with the facts.

The dialects are tested on the runs of `recorded_runs.py`. These sessions are more than one run.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engine.test_compaction import FIRST
from tests.engine.test_compaction_sessions import Reader, open_session
from tests.engine.test_permission_requests import FETCH, fetch
from tests.kit import recorded_runs
from tests.kit.counting_model import CountingModel
from tests.kit.recorded_runs import Action
from tests.kit.rewinding import Place, positions, write
from tests.kit.sessions import (
    PATIENCE,
    HeldTool,
    Tables,
    build_agent,
    finish_run,
    read_questions,
    run_message,
    run_to_end,
    wait_for,
)
from tests.tools.test_delegate import DELEGATE, FamilyModel
from treadle import Agent, Answer, Runtime, Session, later, tool
from treadle.errors import ModelError
from treadle.events import (
    AnyFact,
    ApprovalRequested,
    CallStarted,
    Delta,
    MessageEdited,
    MessageReceived,
    ModelFailed,
    RunFinished,
    TextDelta,
)
from treadle.log.base import SessionQuery
from treadle.messages import TextPart, Usage
from treadle.testing import call, say
from treadle.tools.delegate import build_delegate_tool
from treadle.tools.todo import todo

Recording = Callable[[], Awaitable[list[AnyFact]]]
RECORDINGS: list[Recording] = []


def add(recording: Recording) -> Recording:
    RECORDINGS.append(recording)
    return recording


async def record(agent: Agent, act: Action, **options: Any) -> list[AnyFact]:
    """Return the facts of a session after some actions."""
    async with Runtime(":memory:", [agent]) as runtime, runtime.session(new=True, **options) as session:
        async with asyncio.timeout(PATIENCE):
            await act(session)
        return await session.facts()


@contextmanager
def open_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        yield place
        place.kept.close()


async def record_files(act: Action, *script: Any) -> list[AnyFact]:
    with open_place() as place:
        agent = place.agent(*script)
        return await record(agent, act, workspace=place.workspace)


SPENDING = [say(f"answer {number}", usage=Usage(100 + number, 10, 5, 2, 0.1)) for number in range(5)]


@add
async def a_rewound_conversation() -> list[AnyFact]:
    async def act(session: Session) -> None:
        for text in ("one", "two", "three"):
            await run_to_end(session, text)
        _, second, _ = await positions(session)
        await session.rewind(second - 1, "conversation")
        await run_to_end(session, "another two")

    return await record(build_agent(*SPENDING)[0], act)


@add
async def rewound_files() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await run_to_end(session, "write it")
        await run_to_end(session, "write it again")
        _, second = await positions(session)
        await session.rewind(second - 1, "files")

    return await record_files(act, write("a.txt", "1"), "ok", [write("a.txt", "2"), write("b.txt", "2")], "done")


@add
async def an_undone_rewind() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await run_to_end(session, "write it")
        await run_to_end(session, "write it again")
        first, second = await positions(session)
        await session.rewind(second - 1, "both")
        await session.undo_rewind()
        await session.undo_rewind()
        await session.rewind(first, "conversation")
        await session.undo_rewind()

    return await record_files(act, write("a.txt", "1"), "ok", write("b.txt", "2"), "done")


@add
async def a_run_from_a_checkpoint() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await run_to_end(session, "note it")
        (point, *_) = [one for one in await session.checkpoints() if one.kind == "before_tool_calls"]
        await finish_run(session.resume_from(point.seq))

    agent, _ = build_agent(call("note", text="x"), "noted", "noted again", tools=[recorded_runs.note])
    return await record(agent, act)


@add
async def a_fork() -> list[AnyFact]:
    facts: list[AnyFact] = []

    async def act(session: Session) -> None:
        await run_to_end(session, "one")
        position = len(await session.facts())
        await run_to_end(session, "two")
        fork = await session.fork(position)
        await run_to_end(fork, "another two")
        facts.extend(await fork.facts())

    await record(build_agent(*SPENDING)[0], act)
    return facts


@add
async def compactions() -> list[AnyFact]:
    async with open_session(CountingModel(Reader(8), window=32_000)) as session:
        await run_to_end(session, FIRST)
        assert await session.compact() is not None
        await session.undo_compaction()
        assert await session.compact() is not None
        await run_to_end(session, "and?")
        return await session.facts()


@add
async def two_regenerated_answers() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await run_to_end(session, "zero")
        await run_to_end(session, "one")
        await finish_run(session.regenerate())
        await finish_run(session.regenerate())

    return await record(build_agent(*SPENDING)[0], act)


@add
async def a_steered_run() -> list[AnyFact]:
    held = HeldTool()

    async def act(session: Session) -> None:
        await session.send("wait for it")
        await wait_for(session, CallStarted)
        await session.send("and hurry")
        held.free.set()
        await wait_for(session, RunFinished)

    return await record(build_agent(call("wait"), "I hurried", tools=[held.tool])[0], act)


@add
async def an_interrupted_run() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await session.send("wait for it")
        started = await wait_for(session, CallStarted)
        await session.send("something else", mode="interrupt")
        await wait_for(session, RunFinished, lambda fact: fact.reason == "answered", started.seq)

    return await record(build_agent(call("wait"), "something else it is", tools=[HeldTool().tool])[0], act)


@add
async def a_run_cancelled_in_mid_stream() -> list[AnyFact]:
    """Cancel while the model writes, with a message that is then held back, and continue."""
    begun = asyncio.Event()

    class Slow:
        name, window = "slow", None

        def __init__(self) -> None:
            self.is_asked = False

        async def stream(self, request: Any) -> Any:
            if not self.is_asked:
                self.is_asked = True
                yield TextDelta(text="Once upon ")
                begun.set()
                await asyncio.Event().wait()
            yield say("Once upon a time.")

        async def close(self) -> None:
            """Nothing is open."""

    async def act(session: Session) -> None:
        await session.send("tell me a story")
        await begun.wait()
        await session.send("a short one")
        await session.cancel(by="ada", why="too slow")
        await finish_run(session.continue_())

    slow: Any = Slow()
    return await record(Agent(slow), act)


@add
async def a_question_of_a_running_call() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await session.send("go")
        question = await wait_for(session, ApprovalRequested)
        await session.approve(question.call_id, Answer(by="bob"))
        await wait_for(session, RunFinished)

    return await record(build_agent(FETCH, "done", tools=[fetch], gate=later)[0], act)


@add
async def an_answer_that_settles_two_questions() -> list[AnyFact]:
    async def act(session: Session) -> None:
        assert await run_message(session, "drop them") is None
        first, _ = await read_questions(session)
        await session.approve(first.call_id, Answer(scope="tool"))
        await wait_for(session, RunFinished)

    calls = [call("drop", table="users"), call("drop", table="orders")]
    return await record(build_agent(calls, "dropped", tools=Tables().tools, gate=later)[0], act)


@add
async def a_wait_for_the_provider() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await session.send("hi")
        failed = await wait_for(session, ModelFailed)
        await session.note("acme.seen", failed.seq)
        await session.retry_now()
        await wait_for(session, RunFinished)

    overloaded = ModelError("overloaded", kind="overloaded", retryable=True, retry_after=3600)
    return await record(build_agent(overloaded, "Hello")[0], act)


@add
async def a_plan() -> list[AnyFact]:
    first = call("todo", items=[{"text": "tests", "status": "doing"}, "fix"])
    second = call("todo", items=[{"text": "tests", "status": "done"}, {"text": "fix", "status": "doing"}])
    agent, _ = build_agent(first, second, "going on", tools=[todo])

    async def act(session: Session) -> None:
        await run_to_end(session, "fix it")

    return await record(agent, act)


async def _record_family() -> tuple[list[AnyFact], list[AnyFact]]:
    """Record a session and its helper."""
    model: Any = FamilyModel(
        DELEGATE, say("all done", usage=Usage(50, 5, cost=0.25)), helper=lambda task, count: "found it"
    )
    agent = Agent(model, tools=[build_delegate_tool()])
    async with Runtime(":memory:", [agent]) as runtime, runtime.session(new=True) as session:
        await run_to_end(session, "find it")
        (helper,) = (await runtime.sessions(SessionQuery(parent=session.id))).sessions
        return await session.facts(), await runtime.log.read(helper.id)


@add
async def a_session_with_a_helper() -> list[AnyFact]:
    return (await _record_family())[0]


@add
async def a_helper() -> list[AnyFact]:
    return (await _record_family())[1]


@add
async def a_configured_session() -> list[AnyFact]:
    """Change the name, and during a run the agent's settings."""
    held = HeldTool()

    async def act(session: Session) -> None:
        await session.rename("my work")
        await session.rename("not taken", by="auto")
        await session.send("wait")
        await wait_for(session, CallStarted)
        await session.configure(model="scripted", web=False)
        held.free.set()
        await wait_for(session, RunFinished)

    return await record(build_agent(call("wait"), "waited", tools=[held.tool])[0], act)


@add
async def marked_sessions() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await session.mark(pinned=True)
        await run_to_end(session, "one")
        await session.mark(archived=True)
        await session.mark(pinned=False)

    return await record(build_agent(*SPENDING)[0], act)


@add
async def follow_ups() -> list[AnyFact]:
    """Two follow-ups get a run each. Another one is held after a cancelled run until the next message."""
    held, again = HeldTool(), asyncio.Event()

    @tool
    async def wait_again() -> str:
        await again.wait()
        return "waited"

    async def act(session: Session) -> None:
        await session.send("wait")
        started = await wait_for(session, CallStarted)
        await session.send("first", mode="follow_up")
        await session.send("second", mode="follow_up")
        held.free.set()
        second = await wait_for(session, CallStarted, after=started.seq)
        await session.send("third", mode="follow_up")
        await session.cancel()
        await session.send("something else")
        for _ in range(3):
            second = await wait_for(session, RunFinished, after=second.seq)

    script = [call("wait"), "waited", "the first", call("wait_again"), "something else", "the third"]
    return await record(build_agent(*script, tools=[held.tool, wait_again])[0], act)


@add
async def edited_and_withdrawn_messages() -> list[AnyFact]:
    held = HeldTool()

    async def act(session: Session) -> None:
        await session.send("wait")
        await wait_for(session, CallStarted)
        taken = (await positions(session))[0]
        edited, withdrawn = await session.send("left"), await session.send("never mind")
        follow_up = await session.send("then this", mode="follow_up")
        await session.edit_message(edited, "right")
        await session.edit_message(edited, ["straight", "on"])
        await session.withdraw_message(withdrawn)
        await session.withdraw_message(follow_up)
        (message,) = [fact for fact in await session.facts() if fact.seq == taken]
        assert isinstance(message, MessageReceived)
        late = MessageEdited(id=message.id, parts=(TextPart("too late"),))
        await session.log.post(session.id, [late], wake=False)
        held.free.set()
        await wait_for(session, RunFinished)

    return await record(build_agent(call("wait"), "straight on it is", tools=[held.tool])[0], act)


@add
async def a_withdrawn_message_of_a_cancelled_run() -> list[AnyFact]:
    """What was held after a cancel is taken back, and the next message starts a run."""

    async def act(session: Session) -> None:
        await session.send("wait")
        await wait_for(session, CallStarted)
        message_id = await session.send("never mind")
        await session.cancel()
        await session.withdraw_message(message_id)
        await run_to_end(session, "again")

    return await record(build_agent(call("wait"), "again it is", tools=[HeldTool().tool])[0], act)


@add
async def a_chosen_access() -> list[AnyFact]:
    async def act(session: Session) -> None:
        await session.choose_access("plan")
        await run_to_end(session, "one")
        await session.choose_access("sandbox")
        await run_to_end(session, "two")

    return await record(build_agent(*SPENDING)[0], act)


async def record_all() -> dict[str, list[AnyFact]]:
    """Record every scenario by its name."""
    recorded: dict[str, list[AnyFact]] = {}
    for scenario in recorded_runs.SCENARIOS:
        recorded[scenario.__name__] = [event for event in await scenario() if not isinstance(event, Delta)]
    for recording in RECORDINGS:
        recorded[recording.__name__] = await recording()
    return recorded
