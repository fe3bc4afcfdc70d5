"""Going on, going back and going sideways: continue, regenerate, resume, checkpoints and forks."""

from collections import Counter
from pathlib import Path

import pytest

from tests.kit import sessions as kit
from tests.kit.sessions import HeldTool, Store, Tables, note
from treadle import CallStarted, RunFinished, Runtime, tool
from treadle.errors import Conflict, ModelError, NotFound
from treadle.events import ModelReplied, SessionCreated, TurnStarted
from treadle.export.import_session import import_session, parse_json_lines
from treadle.export.transcript import render_transcript
from treadle.messages import ModelMessage
from treadle.testing import call

store = kit.either_store


# --- continue, regenerate, resume


async def test_regenerate_answers_the_last_message_again_without_the_old_answer(store: Store) -> None:
    agent, model = kit.build_agent(
        "hello", call("note", id="a", text="x"), "bad answer", "better answer", "ok", tools=[note]
    )
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session, "hi")
        await kit.run_to_end(session, "question")
        assert (await kit.finish_run(session.regenerate())).answer == "better answer"
        assert "bad answer" in [fact.text for fact in kit.select_events(await session.facts(), ModelReplied)], (
            "nothing is lost"
        )
        await kit.run_to_end(session, "thanks")
    assert list(kit.list_user_texts(model.requests[3])) == ["hi", "question"]
    spoken = [m.text for m in model.requests[4].messages if isinstance(m, ModelMessage)]
    assert spoken == ["hello", "better answer"]


async def test_continue_and_regenerate_need_a_message(store: Store) -> None:
    agent, _ = kit.build_agent()
    async with agent.session(store.open()) as session:
        for again in (session.continue_, session.regenerate):
            with pytest.raises(Conflict, match="no message yet"):
                await kit.finish_run(again())
        assert kit.list_kinds(await session.facts()) == ["session_created"]


async def test_continue_is_refused_while_a_run_is_unfinished(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open(), "done") as session:
        with pytest.raises(Conflict, match="unfinished run; wait for it, resume it or cancel it"):
            await kit.finish_run(session.continue_())
        held.free.set()
        await kit.wait_for(session, RunFinished)


async def test_resume_goes_on_after_a_failure_and_does_nothing_when_all_is_done(store: Store) -> None:
    agent, model = kit.build_agent(ModelError("no route", kind="network"), "ok")
    async with agent.session(store.open()) as session:
        assert (await kit.run_to_end(session)).reason == "failed"
        assert (await kit.finish_run(session.resume())).answer == "ok"
        before = await session.facts()
        assert await kit.resume_run(session) is None and await session.facts() == before
    assert "broke off" in kit.list_user_texts(model.requests[1])[-1]


# --- going back, and sideways


async def test_checkpoints_are_positions_to_look_at_and_to_fork_from(store: Store) -> None:
    agent, _model = kit.build_agent(
        [call("note", id="a", text="1"), call("note", id="b", text="2")], "done", "other", tools=[note]
    )
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session)
        points = await session.checkpoints()
        kinds = "after_user_input before_llm before_tool_calls after_tool_calls before_llm"
        assert [point.kind for point in points] == kinds.split()
        then = await session.at(points[2].seq)
        assert then.seq == points[2].seq and then.turn is not None and list(then.turn.calls) == ["a", "b"]
        assert all(one.finished is None for one in then.turn.calls.values())


@pytest.mark.parametrize("place", range(5))
async def test_a_fork_from_any_checkpoint_goes_on_from_there_and_repeats_nothing(store: Store, place: int) -> None:
    ran: list[str] = []

    @tool
    def act(name: str) -> str:
        ran.append(name)
        return f"did {name}"

    lines = [[call("act", id="a", name="1"), call("act", id="b", name="2")], "done"]
    agent, _ = kit.build_agent(*lines, tools=[act])
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session)
        whole = await session.facts()
        point = (await session.checkpoints())[place]
        ran.clear()
        replies = list(kit.select_events(whole[: point.seq], ModelReplied))
        agent.model.inner._script = iter(lines[len(replies) :])
        fork = await session.fork(point.seq)
        outcome = await kit.resume_run(fork)
        forked = await fork.facts()
        kit.check_settled(forked)
        assert outcome is not None and outcome.answer == "done"
        finished_before = {fact.arguments["name"] for fact in kit.select_events(whole[: point.seq], CallStarted)}
        assert Counter(ran) == Counter({"1", "2"} - finished_before)
        assert [fact.turn for fact in kit.select_events(forked, TurnStarted)] == [1, 2], "no turn is counted twice"
        assert await session.facts() == whole, "the first session is as it was"
        first = forked[0]
        assert isinstance(first, SessionCreated) and first.parent is not None
        assert (first.session_id, first.parent.session_id, first.parent.seq) == (fork.id, session.id, point.seq)
        assert [fact.at for fact in forked[1 : point.seq]] == [fact.at for fact in whole[1 : point.seq]]


async def test_a_fork_lives_on_its_own_and_has_its_own_artifacts(store: Store) -> None:
    @tool(safety="safe")
    def dump() -> str:
        return "x" * 50_000

    agent, _ = kit.build_agent(call("dump", id="a"), "done", "in the fork", "in the first", tools=[dump])
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session)
        fork = await session.fork()
        assert (await kit.run_to_end(fork, "and?")).answer == "in the fork"
        assert (await kit.run_to_end(session, "and?")).answer == "in the first"
        truncation = (await kit.read_finished_calls(fork))["a"].truncation
        assert truncation is not None
        await session.delete()
        assert (await fork.artifact(truncation.artifact)).data == b"x" * 50_000
        with pytest.raises(NotFound):
            await session.facts()


async def test_a_fork_of_a_session_that_waits_asks_its_own_question(store: Store) -> None:
    tables = Tables()
    async with tables.open_session(store.open(), "done", "done") as session:
        fork = await session.fork()
        await session.approve("a")
        await kit.wait_for(session, RunFinished)
        assert [question.call_id for question in await kit.read_questions(fork)] == ["a"]
        await fork.deny("a")
        await kit.wait_for(fork, RunFinished)
        assert (await kit.read_finished_calls(fork))["a"].status == "denied"
    assert tables.done == ["users"]


async def test_a_fork_is_listed_as_made_now_and_keeps_the_times_of_its_past(store: Store) -> None:
    clock = store.use_stepping_clock()
    agent, _ = kit.build_agent("one", "two", clock=clock)
    async with Runtime(store.open(), [agent], recover=False) as runtime, runtime.session(new=True) as session:
        await kit.run_to_end(session)
        past = await session.facts()
        clock.step(3600)
        async with runtime.session(new=True) as other:
            await kit.run_to_end(other)
        clock.step(60)
        fork = await session.fork()
        listed = (await runtime.sessions()).sessions
        assert [info.id for info in listed] == [fork.id, other.id, session.id]
        assert (listed[0].created_at, listed[0].updated_at) == (clock.now(), clock.now())
        assert [fact.at for fact in (await fork.facts())[1:]] == [fact.at for fact in past[1:]]
        assert (await session.facts())[0] == past[0], "the first session is as it was"


async def test_a_session_that_is_imported_keeps_its_times(store: Store) -> None:
    clock = store.use_stepping_clock()
    agent, _ = kit.build_agent("one", clock=clock)
    async with Runtime(store.open(), [agent], recover=False) as runtime, runtime.session(new=True) as session:
        await kit.run_to_end(session)
        before = await runtime.log.get_info(session.id)
        data = await render_transcript(runtime.log, session.id, "jsonl")
        clock.step(3600)
        created = agent.build_created_fact("c" * 32, Path())
        await import_session(runtime.log, parse_json_lines(data), created, clock.now())
        copy = await runtime.log.get_info("c" * 32)
        assert (copy.created_at, copy.updated_at) == (before.created_at, before.updated_at)
