"""Leases in one process: no effect begins without a young lease, and one renewal that hangs holds up nobody else."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.kit.fake_model import FakeModel, HangingModel
from treadle import Agent, Middleware, Runtime, tool
from treadle.engine import claims, setup
from treadle.engine.claims import ClaimKeeper
from treadle.engine.session_entry import SessionEntries
from treadle.engine.setup import EFFECT_SHARE, Lease, Stopwatch, wait_for_store
from treadle.errors import BadInput, ClaimLost, StoreAway
from treadle.events import CallStarted, Custom, RunFinished
from treadle.log.base import Claim, Claimant, Node
from treadle.log.in_memory import InMemoryLog
from treadle.log.owner import is_gone, make_node_name
from treadle.messages import Call, Reply, Request, ResultMessage
from treadle.tools.base import Tool

LEASE = 0.4


async def wait_until(what: Callable[[], object]) -> None:
    while not what():  # noqa: ASYNC110 - of time that passes, and of many small events
        await asyncio.sleep(0.01)


class HangingLog(InMemoryLog):
    """A log whose renewals can hang, as when the database is away: all, or those of one session."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals, self.hanging = Counter[str](), Counter[str]()
        self._free = asyncio.Event()
        self._free.set()
        self._only = ""

    def hang(self, only: str = "") -> None:
        self._free.clear()
        self._only = only

    def go_on(self) -> None:
        self._free.set()

    async def renew(self, claim: Claim) -> None:
        if self._only in ("", claim.session_id):
            self.hanging[claim.session_id] += 1
            await self._free.wait()
            self.hanging[claim.session_id] -= 1
        await super().renew(claim)
        self.renewals[claim.session_id] += 1


class Effects:
    """An agent that calls a tool twice. At the effect `stops_at`, the log hangs until the lease is old."""

    def __init__(self, log: HangingLog, stops_at: str) -> None:
        self.log, self._stops_at = log, stops_at
        self.began: list[str] = []
        effects = self

        class Model(FakeModel):
            name = "calls-twice"

            async def stream(self, request: Request) -> AsyncIterator[Reply]:
                results = sum(isinstance(message, ResultMessage) for message in request.messages)
                await effects.note(f"model {results}")
                if results < 2:
                    yield Reply("", calls=(Call(f"c{results}", "work", f'{{"number": {results}}}'),), finish="calls")
                else:
                    yield Reply("done")

        class Hook(Middleware):
            async def on_pre_llm(self, request: Request) -> Request:
                results = sum(isinstance(message, ResultMessage) for message in request.messages)
                await effects.note(f"hook {results}")
                return request

        self.agent = Agent(Model(), tools=[self._build_tool()], middleware=[Hook()], on_error="retry")

    def _build_tool(self) -> Tool:
        @tool
        async def work(number: int) -> str:
            name = f"tool {number}"
            is_first = name not in self.began
            await self.note(name)
            if is_first:
                raise ValueError("try again")
            return "done"

        return work

    async def note(self, name: str) -> None:
        self.began.append(name)
        if name == self._stops_at:
            self._stops_at = ""
            self.log.hang()
            old = Stopwatch()
            await wait_until(lambda: old.measure() > LEASE * EFFECT_SHARE)


ALL_EFFECTS = ["hook 0", "model 0", "tool 0", "tool 0", "hook 1", "model 1", "tool 1", "tool 1", "hook 2", "model 2"]


@pytest.mark.parametrize(
    ("stops_at", "begun"),
    [("hook 1", 5), ("model 0", 2), ("tool 1", 7), ("model 1", 6)],
    ids=["a model call after middleware", "a call", "another attempt of a call", "a call of a later turn"],
)
async def test_no_effect_begins_while_the_lease_cannot_be_renewed(stops_at: str, begun: int) -> None:
    log = HangingLog()
    effects = Effects(log, stops_at)
    async with Runtime(log, [effects.agent], lease=LEASE) as runtime, runtime.session() as session:
        async with session.run("go") as run:
            await wait_until(lambda: log.hanging[session.id] == 2)  # the keeper of the claim, and the run
            late = Stopwatch()
            await wait_until(lambda: late.measure() > LEASE)  # the lease is over, and the session is due
            assert effects.began == ALL_EFFECTS[:begun]
            log.go_on()
            outcome = await run.wait()
        assert outcome is not None and outcome.answer == "done"
        assert effects.began == ALL_EFFECTS
        epochs = {fact.epoch for fact in await log.read(session.id) if isinstance(fact, CallStarted)}
        assert epochs == {1}, "it must renew its own claim, and not take the session over from itself"


async def test_a_renewal_that_hangs_does_not_stop_the_others() -> None:
    log, free = HangingLog(), asyncio.Event()

    @tool
    async def work(number: int) -> str:
        await free.wait()
        return "done"

    class Model(FakeModel):
        async def stream(self, request: Request) -> AsyncIterator[Reply]:
            is_done = any(isinstance(message, ResultMessage) for message in request.messages)
            yield Reply("done") if is_done else Reply("", calls=(Call("c", "work", '{"number": 1}'),), finish="calls")

    async with Runtime(log, [Agent(Model(), tools=[work])], lease=LEASE) as runtime:
        stuck, other = await runtime.create(), await runtime.create()
        log.hang(only=stuck.id)
        for session in (stuck, other):
            await session.post("go")
        await wait_until(lambda: log.hanging[stuck.id] and log.renewals[other.id] >= 5)
        assert log.hanging[stuck.id] == 1, "one renewal at a time"
        log.go_on()
        free.set()
        for session in (stuck, other):
            async for event in session.watch():
                if isinstance(event, RunFinished):
                    break


async def test_an_answer_that_comes_too_late_is_no_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = SimpleNamespace(now=1000.0), list[float]()
    fake_time = SimpleNamespace(monotonic=lambda: clock.now, time=time.time)
    monkeypatch.setattr(setup, "time", fake_time)

    class FrozenLog(InMemoryLog):
        async def renew(self, claim: Claim) -> None:
            asked.append(clock.now)
            clock.now += 60 if len(asked) == 1 else 1  # the process was frozen before it read the answer

    lease = Lease(FrozenLog(), Claim("s", "me", 1, ttl=10))
    clock.now += 7
    await lease.renew_if_due()
    assert asked == [1007.0, 1067.0]
    await lease.renew_if_due()
    assert len(asked) == 2


async def test_a_lease_counts_from_the_question_of_the_claim() -> None:
    asked = Stopwatch()
    asked._wall -= 8  # pyright: ignore[reportPrivateUsage]
    assert Lease(InMemoryLog(), Claim("s", "me", 1, ttl=10), asked).is_due(EFFECT_SHARE)
    assert not Lease(InMemoryLog(), Claim("s", "me", 1, ttl=20), asked).is_due(EFFECT_SHARE)


async def test_only_a_store_that_is_away_is_waited_for() -> None:
    failures: list[Exception] = [StoreAway("not now"), StoreAway("not now"), ClaimLost("gone")]

    async def read() -> Any:
        raise failures.pop(0)

    with pytest.raises(ClaimLost):
        await wait_for_store(read)
    assert failures == []


@pytest.mark.parametrize("lease", [0, -1, float("nan")])
async def test_a_runtime_needs_a_lease(lease: float) -> None:
    with pytest.raises(BadInput, match="lease is"):
        Runtime(":memory:", [], lease=lease)


def test_the_name_of_a_node_is_short_and_never_taken_for_a_process_of_this_machine() -> None:
    name = make_node_name()
    assert len(name.split(":")) == 3
    assert not is_gone(name)


class SharedLog(InMemoryLog):
    """A log that other nodes share, which run so many sessions each."""

    is_shared = True

    def __init__(self, *others: int) -> None:
        super().__init__()
        self.others = others

    async def list_nodes(self) -> list[Node]:
        return [Node(f"other-{number}", sessions=count) for number, count in enumerate(self.others)]


async def recover(log: SharedLog, count: int) -> list[float]:
    """Take as many sessions as are due in a log. Return the pauses of that."""
    pauses = list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    agent = Agent(HangingModel(), name="any")
    for number in range(count):
        await log.create(f"s{number}", [agent.build_created_fact(f"s{number}", Path())])
        await log.post(f"s{number}", [Custom(name="test.due")])
    claimed = list[Lease]()
    keeper = ClaimKeeper(log, Claimant("me", 60), setup.Clock(), SessionEntries(), claimed.append, _never_wake)
    with patch.object(claims.asyncio, "sleep", pause):
        assert await keeper.recover() == count == len(claimed)
    await keeper.close()
    return pauses


async def _never_wake(session_id: str) -> None:
    raise AssertionError(session_id)


async def test_a_node_without_others_takes_everything_at_once() -> None:
    assert await recover(SharedLog(), 50) == []


async def test_nodes_take_turns_and_the_one_with_more_sessions_waits_longer() -> None:
    idle, busy = await recover(SharedLog(100), 40), await recover(SharedLog(0), 40)
    assert len(idle) == len(busy) == 10, "it pauses after every fourth session"
    assert sum(idle) < sum(busy)


async def test_a_node_pauses_only_for_a_second_altogether(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "TURN_SECONDS", 0.5)
    pauses = await recover(SharedLog(0), 100)
    assert 0 < sum(pauses) < claims.MAX_PAUSE_SECONDS + max(pauses)
    assert len(pauses) < 25
