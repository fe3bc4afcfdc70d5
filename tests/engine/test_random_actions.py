"""People send, steer, interrupt, cancel, approve and deny at random moments, through two runtimes at once.

In any order, every run ends once, every call has one result, no effect happens twice, no message is lost and no request
breaks a rule. Each seed gives the same actions every time, as far as the event loop allows.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.kit.fake_model import FakeModel
from tests.kit.sessions import check_settled, read_questions, resume_run, select_events
from tests.kit.strict import StrictModel
from treadle import Agent, Answer, ApprovalRequested, AskUser, Limits, Runtime, Session, ToolContext, later, tool
from treadle.errors import BadInput, Conflict, ModelError
from treadle.events import CallStarted, MessageReceived, RunStarted, TurnStarted
from treadle.log.sqlite import SqliteLog
from treadle.messages import Reply, Request, ToolSpec
from treadle.testing import SteppingClock, call

ACTIONS = 25


class RandomModel(FakeModel):
    """A model that does anything a model can do."""

    def __init__(self, random: Random) -> None:
        self.random, self.asked = random, 0

    async def stream(self, request: Request) -> Any:
        self.asked += 1
        await pause(self.random)
        if request.tool_choice == "none" or not request.tools:
            yield Reply(text="so far so good")
            return
        match self.random.randrange(8):
            case 0:
                raise ModelError("busy", kind="overloaded", retryable=True)
            case 1:
                yield Reply()
            case 2 | 3:
                yield Reply(text="that is all")
            case _:
                tools = ("look", "write", "pay", "fail", "ask", "locate")
                names = self.random.choices(tools, k=self.random.randint(1, 4))
                yield Reply(text="let me see", calls=tuple(self.build_call(name) for name in names))

    def build_call(self, name: str) -> Any:
        if name == "ask":
            return call("ask_user", id="call_0", question=f"number {self.asked}?")
        return call(name, id="call_0", number=self.random.randrange(1000))


async def pause(random: Random) -> None:
    for _ in range(random.randrange(6)):
        await asyncio.sleep(0)


class EffectTools:
    """The tools, and every effect they had."""

    def __init__(self, random: Random) -> None:
        self.effects: Counter[str] = Counter()

        @tool(safety="safe")
        async def look(number: int) -> str:
            await pause(random)
            return str(number)

        @tool
        async def write(number: int, context: ToolContext) -> str:
            self.effects[context.key] += 1
            await pause(random)
            return "written"

        @tool(safety="destructive")
        def pay(number: int, context: ToolContext) -> str:
            self.effects[context.key] += 1
            return "paid"

        @tool
        async def fail(number: int) -> str:
            await pause(random)
            raise OSError("broken")

        self.all = [look, write, pay, fail, AskUser()]


async def act(session: Session, random: Random) -> None:
    """Do something that a person may do at any moment. It may be too late for it."""
    with suppress(Conflict, BadInput):
        match random.randrange(10):
            case 0 | 1 | 2:
                await session.send("do something")
            case 3:
                await session.send("no, something else", mode="interrupt")
            case 4:
                await session.cancel()
            case 5:
                async with session.continue_() as run:
                    await run.wait()
            case _:
                await answer_all(session, random)


async def answer_all(session: Session, random: Random) -> None:
    """Answer the open questions, and send the results of the client's tools."""
    for question in await read_questions(session):
        await answer(session, question, random)
    for started in (await session.state()).client_calls:
        with suppress(Conflict):
            await session.finish_call(started.call_id, "here")


async def answer(session: Session, question: Any, random: Random) -> None:
    with suppress(Conflict):
        if isinstance(question, ApprovalRequested):
            scope = random.choice(("call", "call", "call", "tool"))
            await session.approve(question.call_id, Answer(random.choice(("allow", "deny")), scope))
        else:
            await session.answer(question.call_id, "seven")


@pytest.mark.parametrize("seed", range(10))
async def test_after_random_actions_everything_is_settled_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    tools, clock, path = EffectTools(random), SteppingClock(), tmp_path / "random.db"
    model = StrictModel(RandomModel(random))
    agent = Agent(model, tools=tools.all, gate=later, clock=clock, limits=Limits(turns=6, calls=10))
    logs = [SqliteLog(path, clock=clock.now), SqliteLog(path, clock=clock.now)]
    async with (
        Runtime(logs[0], [agent]) as one,
        Runtime(logs[1], [agent], recover=False) as two,
        one.session() as here,
        two.session(id=here.id) as there,
    ):
        await here.configure(client_tools=[ToolSpec("locate", "", {"type": "object"})])
        people: list[asyncio.Task[None]] = []
        for _ in range(ACTIONS):
            people.append(asyncio.create_task(act(random.choice((here, there)), random)))
            await pause(random)
        async with asyncio.timeout(60):
            await asyncio.gather(*people)
            await settle(here, random)
        facts = await here.facts()
        assert facts == await there.facts()
    for log in logs:
        await log.close()
    check_settled(facts)
    assert model.violations == []
    started = [fact.call_id for fact in select_events(facts, CallStarted)]
    assert set(tools.effects.values()) <= {1} and len(started) == len(set(started))
    assert set(tools.effects) <= {f"{here.id}:{call_id}" for call_id in started}
    promoted = [identity for turn in select_events(facts, TurnStarted) for identity in turn.messages]
    assert sorted(promoted) == sorted(fact.id for fact in select_events(facts, MessageReceived))
    assert select_events(facts, RunStarted)


async def settle(session: Session, random: Random) -> None:
    """Answer what is open and take up what a cancel left, until there is nothing more to do."""
    for _ in range(100):
        await resume_run(session)
        await answer_all(session, random)
        state = await session.state()
        if state.run is None and state.queue:
            async with session.continue_() as run:
                await run.wait()
        elif state.run is None:
            return
    raise AssertionError("it does not come to an end")
