"""Watchers: however many there are and whatever they do, the run is the same, and each sees every fact once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.kit.fake_model import FakeModel
from tests.kit.sessions import Store, build_agent, either_store, list_kinds, run_to_end, select_events, wait_for
from treadle import Agent, ReasoningDelta, RunFinished, Session, TextDelta, ToolContext, tool
from treadle.events import Custom, Delta, Event, Fact, ModelReplied, OutputDelta
from treadle.log import hub
from treadle.messages import Reply, Request
from treadle.testing import call

store = either_store

TURNS = 30


@tool(safety="safe")
async def chatter(number: int) -> str:
    """Say something long."""
    await asyncio.sleep(0)
    return f"chatter {number}"


class Talkative(FakeModel):
    """A model that makes many fragments: much more than a watcher's buffer holds."""

    name, window = "talkative", None

    def __init__(self, fragments: int = 5) -> None:
        self.fragments, self.turn = fragments, 0

    async def stream(self, request: Request) -> Any:
        self.turn += 1
        for number in range(self.fragments):
            yield TextDelta(text=f"{number} ")
        text = "".join(f"{number} " for number in range(self.fragments))
        calls = (call("chatter", id=f"c{self.turn}", number=self.turn),) if self.turn < TURNS else ()
        await asyncio.sleep(0)
        yield Reply(text=text, calls=calls)


async def collect_events(watch: Any) -> list[Event]:
    """What a watcher sees until the run ends."""
    seen: list[Event] = []
    async for event in watch:
        seen.append(event)
        if isinstance(event, RunFinished):
            watch.close()
    return seen


def select_facts(events: list[Event]) -> list[Fact]:
    return [event for event in events if isinstance(event, Fact)]


async def run_with(store: Store, watch: Callable[[Session], Awaitable[Sequence[Any]]]) -> list[Any]:
    """A long run, watched by the tasks that `watch` starts; the facts as they are stored."""
    async with Agent(Talkative(), tools=[chatter]).session(store.open(), new=True) as session:
        watching = await watch(session)
        await run_to_end(session)
        facts = await session.facts()
        for task in watching:
            seen = select_facts(await task)
            assert seen == facts[facts.index(seen[0]) :]
    return facts


async def test_a_watcher_that_never_reads_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "RING", 8)
    kept: list[Any] = []

    async def nobody(session: Session) -> list[Any]:
        return []

    async def sleepers(session: Session) -> list[Any]:
        kept.extend(session.watch() for _ in range(3))
        await anext(kept[0])
        return []

    alone, watched = await run_with(store, nobody), await run_with(store, sleepers)
    assert list_kinds(watched) == list_kinds(alone)
    late = select_facts(await collect_events(kept[1]))
    assert late == watched, "it was asleep all the time, and has missed no fact"
    for watch in kept:
        watch.close()


async def test_every_watcher_sees_every_fact_once_and_in_order_whenever_and_wherever_it_starts(store: Store) -> None:
    async def join(session: Session, moment: int, after: int = 0) -> list[Event]:
        await wait_for(session, Fact, where=lambda fact: fact.seq >= moment)
        seen = await collect_events(session.watch(after=after))
        assert select_facts(seen)[0].seq == after + 1
        return seen

    async def watch(session: Session) -> list[Any]:
        starts = ((1,), (1,), (2,), (3,), (20,), (50,), (90,), (60, 40))
        elsewhere = collect_events(store.open().watch(session.id))  # with a connection of its own
        return [asyncio.create_task(seen) for seen in (elsewhere, *(join(session, *start) for start in starts))]

    facts = await run_with(store, watch)
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))


async def test_a_watcher_that_leaves_and_one_that_is_cancelled_change_nothing(store: Store) -> None:
    left = asyncio.Event()

    async def leave(watch: Any) -> None:
        async for event in watch:
            if isinstance(event, Fact) and event.seq == 30:
                break
        watch.close()
        left.set()

    async def watch(session: Session) -> list[Any]:
        asyncio.create_task(leave(session.watch())).add_done_callback(lambda done: done.result())
        doomed = asyncio.create_task(collect_events(session.watch()))
        await asyncio.sleep(0)
        doomed.cancel()
        return []

    facts = await run_with(store, watch)
    assert left.is_set() and isinstance(facts[-1], RunFinished)


async def test_a_slow_watcher_loses_fragments_but_no_facts_and_holds_nobody_up(store: Store) -> None:
    model, turns = Talkative(fragments=3000), 3
    model.turn = TURNS - turns
    async with Agent(model, tools=[chatter]).session(store.open()) as session:
        slow = session.watch()
        await anext(slow)
        await run_to_end(session)
        facts = await session.facts()
        events = await collect_events(slow)
    assert select_facts(events) == facts[1:]
    assert len(events) - len(facts) < turns * 3000, "its buffer is bounded"


async def test_fragments_come_in_order_before_the_reply_they_belong_to(store: Store) -> None:
    agent, _ = build_agent(
        Reply(text="one\ntwo\nthree", reasoning="hm"), Reply(text="if a < b and a <", calls=()), tools=[chatter]
    )
    async with agent.session(store.open()) as session:
        for text in ("one\ntwo\nthree", "if a < b and a <"):
            async with session.run("go") as run:
                events = [event async for event in run]
            place = next(n for n, event in enumerate(events) if isinstance(event, ModelReplied))
            deltas = [event for event in events[:place] if isinstance(event, Delta)]
            assert "".join(event.text for event in select_events(deltas, TextDelta)) == text
            assert not [event for event in events[place:] if isinstance(event, Delta)]
            before = events[place - len(deltas) - 1]
            assert isinstance(before, Fact) and {event.after for event in deltas} == {before.seq}
    assert select_events(events, ReasoningDelta) == []


async def test_live_output_of_a_tool_is_seen_while_it_runs(store: Store) -> None:
    seen = asyncio.Event()

    @tool(name="count")
    async def count(context: ToolContext) -> str:
        context.output("1\n")
        await seen.wait()  # ends only when somebody has seen it
        return "counted"

    agent, _ = build_agent(call("count"), "done", tools=[count])
    async with agent.session(store.open()) as session, session.run("go") as run:
        async for event in run:
            if isinstance(event, OutputDelta):
                assert event.text == "1\n"
                seen.set()
    assert run.outcome is not None and run.outcome.answer == "done"


async def test_facts_that_are_stored_while_a_watcher_reads_are_not_missed() -> None:
    stored: list[Fact] = [Custom(name="first", seq=1)]

    async def read(session_id: str, after: int, limit: int) -> list[Any]:
        found = [fact for fact in stored if fact.seq > after]
        if len(stored) == 1:  # the answer is on its way, and does not have what is stored now
            stored.append(RunFinished(run_id="r", reason="answered", seq=2))
            channels.channels["s"].add_facts([stored[1]], from_owner=True)
        return found

    async def read_store(after: int, count: int) -> Any: ...

    channels = hub.Hub(read, read_store)
    watch = channels.watch("s", after=1, head=None)
    assert await asyncio.wait_for(anext(watch), 60) == stored[1]
    watch.close()
