"""Checkpoints carry what the run had at them, and a run goes on from any of them: in place and in a fork."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tests.engine.test_random_actions import EffectTools, RandomModel, answer
from tests.kit import sessions as kit
from tests.kit.sessions import HeldTool, Store, Tables, note
from tests.kit.strict import StrictModel
from treadle import Agent, Limits, Run, Session, later, tool
from treadle.engine.checkpoints import Checkpoint
from treadle.errors import BadInput, Conflict
from treadle.events import CallFinished, CallStarted, ModelReplied, RunFinished, RunStarted, TurnStarted
from treadle.messages import TextPart, UserMessage
from treadle.testing import SteppingClock, call
from treadle.tools.builtin import build_default_tools

store = kit.either_store


async def test_checkpoints_carry_input_messages_tools_calls_results_and_turns(store: Store) -> None:
    calls = [call("note", id="a", text="1"), call("note", id="b", text="2")]
    agent, model = kit.build_agent(calls, "done", "again", tools=[note])
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session, "go")
        await kit.run_to_end(session, "more")
        points = await session.checkpoints()
        first, asking, before, after, *rest = points
        assert (first.kind, first.user_input, first.turns) == ("after_user_input", (TextPart("go"),), 0)
        assert (asking.kind, asking.turns) == ("before_llm", 1)
        assert (before.kind, [one.id for one in before.calls], before.results) == ("before_tool_calls", ["a", "b"], ())
        assert (after.kind, after.turns, [one.id for one in after.calls]) == ("after_tool_calls", 1, ["a", "b"])
        assert [(one.call_id, one.status) for one in after.results] == [("a", "ok"), ("b", "ok")]
        assert [(point.kind, point.turns) for point in rest] == [
            ("before_llm", 2),
            ("after_user_input", 0),
            ("before_llm", 1),
        ]
        asked = [point for point in points if point.kind == "before_llm"]
        assert [list(point.messages) for point in asked] == [list(request.messages) for request in model.requests]
        assert [point.tools for point in asked] == [request.tools for request in model.requests]
        assert msgspec.json.decode(msgspec.json.encode(points), type=list[Checkpoint]) == points
        assert await session.checkpoints(after=points[2].seq, limit=2) == points[3:5]


async def resume_in_place(session: Session, point: Checkpoint) -> tuple[Session, Run]:
    return session, session.resume_from(point.seq)


async def resume_in_fork(session: Session, point: Checkpoint) -> tuple[Session, Run]:
    fork = await session.fork(point.seq)
    return fork, fork.resume()


@pytest.mark.parametrize("place", range(5))
async def test_a_run_goes_on_in_place_from_any_checkpoint(store: Store, place: int) -> None:
    ran: list[str] = []

    @tool
    def act(name: str) -> str:
        ran.append(name)
        return f"did {name}"

    lines = [[call("act", id="a", name="1"), call("act", id="b", name="2")], "done"]
    agent, model = kit.build_agent(*lines, tools=[act])
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session)
        whole = await session.facts()
        point = (await session.checkpoints())[place]
        ran.clear()
        replies = kit.select_events(whole[: point.seq], ModelReplied)
        agent.model.inner._script = iter(lines[len(replies) :])
        outcome = await kit.finish_run(session.resume_from(point.seq))
        facts = await session.facts()
        kit.check_settled(facts)
        assert facts[: len(whole)] == whole, "nothing is lost"
        assert outcome.reason == "answered" and outcome.answer == "done"
        assert Counter(ran) == Counter(["1", "2"] if place < 3 else [])
        new = facts[len(whole) :]
        turns = [fact.turn for fact in kit.select_events(new, TurnStarted)]
        asked = len(lines) - len(replies)
        assert turns == ([0] if point.kind == "before_tool_calls" else []) + list(range(1, asked + 1))
        assert outcome.turns == asked, "a turn is counted where the model is asked"
        assert (await session.log.get_info(session.id)).turns == len(lines) + asked
        assert kit.select_events(new, RunStarted)[0].trigger == "resume"
        last = model.requests[-1].messages
        assert len(last) == 4 and isinstance(last[0], UserMessage), "the conversation has each message once"
        ids = [fact.call_id for fact in kit.select_events(facts, CallStarted)]
        assert len(ids) == len(set(ids)), "an id is never used twice"


async def test_a_call_that_was_approved_is_asked_for_again_when_it_runs_again(store: Store) -> None:
    tables = Tables()
    async with tables.open_session(store.open(), "done", "again") as session:
        await session.approve("a")
        await kit.wait_for(session, RunFinished)
        (point,) = [point for point in await session.checkpoints() if point.kind == "before_tool_calls"]
        async with session.resume_from(point.seq) as run:
            assert await run.wait() is None
            (question,) = run.pending
            assert question.call_id != "a"
            run.detach()
        await session.approve(question.call_id)
        await kit.wait_for(session, RunFinished, after=(await session.facts())[-1].seq - 1)
        kit.check_settled(await session.facts())


async def test_an_answer_that_was_regenerated_away_can_be_resumed(store: Store) -> None:
    agent, _ = kit.build_agent(call("note", id="a", text="x"), "first", "second", "third", tools=[note])
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session)
        points = await session.checkpoints()
        assert (await kit.finish_run(session.regenerate())).answer == "second"
        assert (await kit.finish_run(session.resume_from(points[2].seq))).answer == "third"
        assert len(await kit.read_finished_calls(session)) == 2
        kit.check_settled(await session.facts())


async def test_only_a_checkpoint_of_a_session_without_a_run_can_be_resumed(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open(), "done", "again") as session:
        point = (await session.checkpoints())[0]
        with pytest.raises(Conflict, match="unfinished run"):
            await kit.finish_run(session.resume_from(point.seq))
        held.free.set()
        await kit.wait_for(session, RunFinished)
        for seq in (0, -1, 1, 10_000):
            with pytest.raises(BadInput, match=f"position {seq} is no checkpoint"):
                await kit.finish_run(session.resume_from(seq))


@pytest.mark.parametrize("files", [False, True])
async def test_files_go_back_only_on_request(tmp_path: Path, store: Store, files: bool) -> None:
    (tmp_path / "work").mkdir()
    page = tmp_path / "work" / "page.txt"
    page.write_text("one")
    script = [call("write_file", path="page.txt", content="two"), "done", "again"]
    agent, _ = kit.build_agent(*script, tools=build_default_tools(kept=tmp_path / "kept"))
    async with agent.session(store.open(), workspace=tmp_path / "work") as session:
        await kit.run_to_end(session)
        assert page.read_text() == "two"
        outcome = await kit.finish_run(session.resume_from((await session.checkpoints())[0].seq, files=files))
    assert outcome.answer == "again" and page.read_text() == ("one" if files else "two")


@pytest.mark.parametrize("resume", [resume_in_place, resume_in_fork])
@pytest.mark.parametrize("seed", range(4))
async def test_from_every_checkpoint_of_a_random_run_the_run_ends_and_every_rule_holds(
    store: Store, seed: int, resume: Any
) -> None:
    random = Random(seed)
    tools, clock, model = EffectTools(random), SteppingClock(), StrictModel(RandomModel(random))
    agent = Agent(model, tools=tools.all, gate=later, clock=clock, limits=Limits(turns=4, calls=8))
    async with agent.session(store.open()) as session:
        for _ in range(2):
            await session.send("do something")
            await finish(session, session.resume(), random)
        points = await session.checkpoints()
        assert len(points) >= 4
        for point in points:
            resumed, run = await resume(session, point)
            await finish(resumed, run, random)
            facts = await resumed.facts()
            kit.check_settled(facts)
            assert not (await resumed.state()).pending and (await resumed.state()).run is None
            results = Counter(fact.call_id for fact in kit.select_events(facts, CallFinished))
            assert set(results.values()) <= {1}
    assert model.violations == [] and set(tools.effects.values()) <= {1}


async def finish(session: Session, run: Run, random: Random) -> None:
    """Answer every question until the run has ended."""
    async with run:
        await run.wait()
        run.detach()
    while (state := await session.state()).run is not None or state.queue:
        for question in await kit.read_questions(session):
            await answer(session, question, random)
        async with session.resume() as run:
            await run.wait()
            run.detach()
