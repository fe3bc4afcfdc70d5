"""Shared pieces of the engine's tests: stores of both kinds, agents on a scripted model, and waiting for a fact.

A test module takes a fixture by a name of its own: `store = either_store`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.kit.strict import StrictModel
from treadle import Agent, Answer, AskUser, Run, RunFinished, Session, later, tool
from treadle.engine.fold import fold
from treadle.engine.state import State
from treadle.events import (
    AnyFact,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    Event,
    InputRequested,
    ModelReplied,
    RunStarted,
    fact_type,
)
from treadle.log.base import Log, PostResult
from treadle.log.in_memory import InMemoryLog
from treadle.log.sqlite import SqliteLog
from treadle.messages import Request, ResultMessage, UserMessage, render_parts
from treadle.testing import ScriptedModel, SteppingClock, call

PATIENCE = 60.0
"""Seconds to wait for a fact before the test fails. A slow machine needs them; a passing test does not wait."""

Kind = TypeVar("Kind")


class Store:
    """A place for sessions that can be opened repeatedly, like by new processes."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.clock: SteppingClock | None = None
        self._memory: InMemoryLog | None = None
        self._opened: list[SqliteLog] = []

    def use_stepping_clock(self) -> SteppingClock:
        """Switch the store to a stepping clock. Give the clock to the agent too."""
        self.clock = SteppingClock()
        return self.clock

    def open(self) -> Log:
        """Open a log on this store. On a file each log has its own connection."""
        options: dict[str, Any] = {} if self.clock is None else {"clock": self.clock.now}
        if self.path is not None:
            self._opened.append(SqliteLog(self.path, **options))
            return self._opened[-1]
        if self._memory is None:
            self._memory = InMemoryLog(**options)
        return self._memory

    async def run_agent(self, agent: Agent, content: Any = "go", **options: Any) -> "FinishedRun":
        return await run_agent(agent, content, self.open(), **options)

    async def run_script(self, *script: Any, content: Any = "go", **options: Any) -> "FinishedRun":
        return await self.run_agent(build_agent(*script, **options)[0], content)

    async def close(self) -> None:
        for log in self._opened:
            await log.close()
        if self._memory is not None:
            await self._memory.close()


@pytest.fixture(params=["memory", "sqlite"])
def either_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store.db" if request.param == "sqlite" else None)
    yield made
    asyncio.run(made.close())


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store.db")
    yield made
    asyncio.run(made.close())


@tool
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


class HeldTool:
    """A tool that runs until it is released, and counts its starts and ends."""

    def __init__(self, **options: Any) -> None:
        self.free, self.starts, self.ends = asyncio.Event(), 0, 0

        @tool(name="wait", **options)
        async def wait() -> str:
            self.starts += 1
            try:
                await self.free.wait()
            finally:
                self.ends += 1
            return "waited"

        self.tool = wait

    @asynccontextmanager
    async def open_session(self, log: Log, *script: Any) -> AsyncIterator[Session]:
        """Open a session whose run has started this tool as call `a`. The model goes on with the script."""
        self.agent, self.model = build_agent(call("wait", id="a"), *script, tools=[self.tool])
        async with self.agent.session(log) as session:
            await session.send("go")
            await wait_for(session, CallStarted)
            yield session


DROP = call("drop", id="a", table="users")
QUESTION = call("ask_user", id="q", question="Which colour?", options=["red", "blue"])


class Tables:
    """A destructive tool and a harmless one, and a list of what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

        @tool(safety="destructive")
        def drop(table: str) -> str:
            """Drop a table."""
            self.done.append(table)
            return f"dropped {table}"

        @tool
        def note(text: str) -> str:
            """Write something down."""
            self.done.append(text)
            return f"noted {text}"

        self.tools = [drop, note]

    @asynccontextmanager
    async def open_session(
        self, log: Log | str, *script: Any, first: Any = DROP, **options: Any
    ) -> AsyncIterator[Session]:
        """Open a session whose run waits for a person, by default for an approval of call `a`."""
        options = {"gate": later, **options}
        self.agent, self.model = build_agent(first, *script, tools=[*self.tools, AskUser()], **options)
        async with self.agent.session(log) as session:
            assert await run_message(session) is None
            yield session


@pytest.fixture
def some_tables() -> Tables:
    return Tables()


def build_gate(answer: Answer | None) -> Callable[[Any], Awaitable[Answer | None]]:
    """Build a gate that gives the same answer to every question."""

    async def gate(question: ApprovalRequested | InputRequested) -> Answer | None:
        return answer

    return gate


def build_agent(*script: Any, **options: Any) -> tuple[Agent, ScriptedModel]:
    """Build an agent on a scripted model whose requests are checked, and return both."""
    model = ScriptedModel(*script)
    return Agent(StrictModel(model), **options), model


async def run_message(session: Session, content: Any = "go", **options: Any) -> RunFinished | None:
    """Run a message to its end, or until it waits for a person (None)."""
    async with session.run(content, **options) as run:
        return await run.wait()


async def run_to_end(session: Session, content: Any = "go", **options: Any) -> RunFinished:
    """Run a message to its end."""
    outcome = await run_message(session, content, **options)
    assert outcome is not None, "the run waits for a person"
    return outcome


@dataclass
class FinishedRun:
    """A run: its agent, its outcome, and the facts of its session."""

    agent: Agent
    session_id: str
    outcome: RunFinished
    facts: list[AnyFact]

    @property
    def reason(self) -> str:
        return self.outcome.reason

    @property
    def answer(self) -> str:
        return self.outcome.answer

    @property
    def state(self) -> State:
        return fold(self.facts)

    @property
    def requests(self) -> list[Request]:
        return self.agent.model.requests  # type: ignore[union-attr]

    @property
    def results(self) -> dict[str, CallFinished]:
        """The results of the calls by their ids."""
        return {fact.call_id: fact for fact in self.select(CallFinished)}

    @property
    def messages(self) -> dict[str, ResultMessage]:
        """The results that the model read in the last request, by the ids of their calls."""
        return select_results(self.requests[-1])

    def select(self, kind: type[Kind]) -> list[Kind]:
        return select_events(self.facts, kind)

    def check_wrap_up(self, reason: str, words: str) -> None:
        """Check that the run ended at a limit with the answer `half done`, after one last request without calls."""
        assert (self.reason, self.answer, self.outcome.can_continue) == (reason, "half done", True)
        for request in self.requests[:-1]:
            assert request.tool_choice == "auto"
        check_wrap_up_request(self.requests[-1], words)


async def run_agent(
    agent: Agent, content: Any = "go", log: Log | Path | str = ":memory:", **options: Any
) -> FinishedRun:
    """Run one message to its end, and check that everything is settled. The options are those of the session."""
    async with agent.session(log, **options) as session:
        outcome = await run_to_end(session, content)
        facts = await session.facts()
    check_settled(facts)
    return FinishedRun(agent, session.id, outcome, facts)


async def run_script(*script: Any, content: Any = "go", **options: Any) -> FinishedRun:
    """Run one message on a scripted model to its end. The options are those of the agent."""
    return await run_agent(build_agent(*script, **options)[0], content)


async def finish_run(run: Run) -> RunFinished:
    """Wait for the end of a run that a session has returned."""
    async with run:
        outcome = await run.wait()
    assert outcome is not None, "the run waits for a person"
    return outcome


async def resume_run(session: Session) -> RunFinished | None:
    """Resume the unfinished run."""
    async with session.resume() as run:
        return await run.wait()


async def wait_for(
    session: Session, kind: type[Kind], where: Callable[[Kind], bool] = lambda event: True, after: int = 0
) -> Kind:
    """Wait for the first event of a kind after a position."""
    watch = session.watch(after)
    try:
        async with asyncio.timeout(PATIENCE):
            async for event in watch:
                if isinstance(event, kind) and where(event):
                    return event
    finally:
        watch.close()
    raise AssertionError(f"the watch ended without a {kind.__name__}")


def post_at_release(log: Log, elsewhere: Log, session_id: str, fact: AnyFact) -> list[PostResult]:
    """Let another process post a fact in the moment in which this one first releases the session."""
    append, release, posted = log.append, log.release, list[PostResult]()

    async def slow_append(*args: Any, **options: Any) -> None:
        if options.get("release") and not posted:
            posted.append(await elsewhere.post(session_id, [fact]))
        await append(*args, **options)

    async def slow_release(*args: Any, **options: Any) -> bool:
        if not posted:
            posted.append(await elsewhere.post(session_id, [fact]))
        return await release(*args, **options)

    log.append, log.release = slow_append, slow_release  # type: ignore[method-assign]
    return posted


def advance_loop_clock(seconds: float) -> None:
    """Move the clock of this test's loop forward, so that shorter waits end."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


def select_events(events: Iterable[Event], kind: type[Kind]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def list_kinds(facts: Iterable[AnyFact]) -> list[str]:
    return [fact_type(fact) for fact in facts]


async def read_finished_calls(session: Session) -> dict[str, CallFinished]:
    """Return the results of the session's calls by their ids."""
    return {fact.call_id: fact for fact in select_events(await session.facts(), CallFinished)}


async def read_questions(session: Session) -> list[ApprovalRequested | InputRequested]:
    return (await session.state()).pending


def select_results(request: Request) -> dict[str, ResultMessage]:
    """Return the results in a request, in its order."""
    return {message.call_id: message for message in request.messages if isinstance(message, ResultMessage)}


def list_user_texts(request: Request) -> list[str]:
    """Return the texts of the user and the runtime in a request."""
    return [render_parts(message.parts) for message in request.messages if isinstance(message, UserMessage)]


def check_settled(facts: Sequence[AnyFact], *, running: bool = False) -> None:
    """Check that every run ended once, every call has one result, and no call ran without its intent."""
    open_runs: list[str] = []
    for fact in facts:
        if isinstance(fact, RunStarted):
            assert not open_runs, f"{fact.run_id} started while {open_runs} was not finished"
            open_runs.append(fact.run_id)
        elif isinstance(fact, RunFinished):
            assert open_runs == [fact.run_id], f"{fact.run_id} finished, but {open_runs} was running"
            open_runs.clear()
    assert running or not open_runs, f"{open_runs} never finished"
    asked = Counter(call.id for fact in select_events(facts, ModelReplied) for call in fact.calls)
    assert all(count == 1 for count in asked.values()), f"call ids are not unique: {asked}"
    done = Counter(fact.call_id for fact in select_events(facts, CallFinished))
    assert set(done) <= set(asked) and all(count == 1 for count in done.values()), f"results: {done}"
    started = {fact.call_id for fact in select_events(facts, CallStarted)}
    assert started <= set(asked)
    if not running:
        assert set(done) == set(asked), f"calls without a result: {set(asked) - set(done)}"
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))


def check_wrap_up_request(request: Request, words: str) -> None:
    """Check the request of a wrap-up turn: no tools, and a note with the reason."""
    assert request.tool_choice == "none" and request.tools == ()
    last = request.messages[-1]
    note_text = last.text if isinstance(last, ResultMessage) else list_user_texts(request)[-1]
    assert words in note_text and "what was done and what is left" in note_text
