"""A runtime that starts again takes up what a crash or a restart left behind."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import Store, Tables, note
from treadle import Agent, Answer, Middleware, ModelReplied, RunFinished, Runtime
from treadle.log.in_memory import InMemoryLog
from treadle.testing import ScriptedModel, call


async def test_a_runtime_that_starts_again_asks_open_questions_again(tmp_path: Path) -> None:
    store, tables, asked = Store(tmp_path / "again.db"), Tables(), list[str]()
    async with tables.open_session(store.open()) as session:
        pass

    async def gate(question: Any) -> Answer:
        asked.append(question.call_id)
        return Answer(by="ada")

    again = Agent(ScriptedModel("done"), tools=tables.tools, gate=gate)
    async with Runtime(store.open(), [again]) as runtime:
        await runtime.coordinator.wait_until_idle(session.id)
        facts = await runtime.log.read(session.id)
    await store.close()
    assert asked == ["a"]
    assert isinstance(facts[-1], RunFinished) and facts[-1].answer == "done"


async def test_a_reply_is_in_the_log_before_middleware_is_asked_about_its_calls() -> None:
    seen: list[bool] = []

    class Check(Middleware):
        async def may_run(self, tool: str, safety: Any, arguments: Any) -> None:
            seen.append(any(isinstance(fact, ModelReplied) for fact in await log.read(session.id)))

    log = InMemoryLog()
    agent = Agent(ScriptedModel(call("note", text="x"), "done"), tools=[note], middleware=[Check()])
    async with agent.session(log) as session:
        assert await session.ask("go") == "done"
    assert seen == [True]


async def test_a_session_is_found_by_its_name_however_many_others_hold_that_name_in_theirs() -> None:
    async with Runtime(InMemoryLog(), [Agent(ScriptedModel())], recover=False) as runtime:
        first = await runtime.create(name="work")
        for number in range(201):
            await runtime.create(name=f"work {number}")
        async with runtime.session(name="work") as session:
            assert session.id == first.id


async def test_the_bus_carries_the_facts_of_all_sessions_in_the_order_of_each(tmp_path: Path) -> None:
    store = Store(tmp_path / "bus.db")
    agent = Agent(ScriptedModel(call("note", text="x"), "one", call("note", text="y"), "two"), tools=[note])
    async with Runtime(store.open(), [agent]) as runtime:
        bus = runtime.watch()
        sessions = [await runtime.create(), await runtime.create()]
        for session in sessions:
            await session.ask("go")
        seen = [await anext(bus)]
        while len(seen) < sum([len(await session.facts()) for session in sessions]):
            seen.append(await anext(bus))
        for session in sessions:
            assert [item.fact for item in seen if item.session_id == session.id] == await session.facts()
    async with Runtime(store.open(), [agent]) as runtime:
        again = runtime.watch(after=seen[4].cursor)
        assert [await anext(again) for _ in seen[5:]] == seen[5:]
        assert [await anext(runtime.watch(0))] == seen[:1]
    await store.close()


async def test_what_is_kept_of_recent_sessions_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.runtime.MAX_RECENT_BYTES", 100_000)
    async with Runtime(InMemoryLog(), [Agent(ScriptedModel(*["ok"] * 20))]) as runtime:
        ids = [(await runtime.create()).id for _ in range(5)]
        for session_id in ids:
            await (await runtime.open(session_id)).ask("x" * 40_000)
        await (await runtime.open(ids[0])).state()  # this reads a dropped session again
        await runtime.coordinator.wait_until_idle(ids[-1])
        kept = [one for one in ids if one in runtime.coordinator._entries]  # pyright: ignore
        assert kept == [ids[0], ids[4]]
        for session_id in ids:
            assert await (await runtime.open(session_id)).ask("again") == "ok"
        await (await runtime.open(ids[1])).ask("x" * 100_000)
        assert ids[1] not in runtime.coordinator._entries  # pyright: ignore
        assert len((await (await runtime.open(ids[1])).state()).entries) == 6
