"""Sessions: opened and found again, asked, steered and interrupted."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from tests.kit import sessions as kit
from tests.kit.fake_model import FakeModel, HangingModel
from tests.kit.sessions import HeldTool, Store, note
from treadle import Agent, ImagePart, Limits, NotAnswered, RunFinished, Session, TextDelta, TextPart
from treadle.events import Custom, MessageReceived, RunStarted, SessionCreated, TurnStarted
from treadle.messages import ModelMessage, Reply, Request, UserMessage
from treadle.testing import call

store = kit.either_store
on_file = kit.file_store


# --- opening


async def test_the_same_path_resumes_the_same_session(on_file: Store) -> None:
    assert on_file.path is not None
    agent, _ = kit.build_agent("hello", "you said: first")
    async with agent.session(on_file.path) as session:
        await kit.run_to_end(session, "first")
        first = session.id
    async with agent.session(str(on_file.path)) as session:
        assert session.id == first
        await kit.run_to_end(session, "what did I say?")
        assert [fact.seq for fact in await session.facts()][-1] == len(await session.facts())
    async with agent.session(on_file.path, new=True) as session:
        assert session.id != first


async def test_a_name_finds_a_session_or_makes_one(store: Store) -> None:
    agent, _ = kit.build_agent()
    log = store.open()
    async with agent.session(log, name="trip") as trip, agent.session(log, name="tax") as tax:
        assert trip.id != tax.id
    async with agent.session(log, name="trip") as session:
        assert session.id == trip.id
        await session.rename("journey")
    async with agent.session(log, name="journey") as session:
        assert session.id == trip.id and (await session.state()).name == "journey"
    async with agent.session(log, name="trip") as session:
        assert session.id not in (trip.id, tax.id), "a part of a name is not the name"


async def test_the_first_fact_describes_the_agent(store: Store) -> None:
    agent, _ = kit.build_agent(tools=[note], instructions="be good", name="helper", limits=Limits(turns=3))
    async with agent.session(store.open()) as session:
        [created] = await session.facts()
    assert isinstance(created, SessionCreated)
    assert (created.session_id, created.model, created.limits.turns) == (session.id, "scripted", 3)
    assert (created.agent.name, created.agent.instructions, created.agent.tools) == ("helper", "be good", ("note",))


async def test_a_users_notes_are_facts_without_meaning_to_the_engine() -> None:
    agent, model = kit.build_agent("ok")
    async with agent.session() as session:
        await session.note("acme.audit", {"who": "ada"})
        assert (await kit.run_to_end(session)).answer == "ok"
        assert kit.select_events(await session.facts(), Custom)[0].data == {"who": "ada"}
    assert kit.list_user_texts(model.requests[0]) == ["go"]


# --- ask


def test_ask_works_without_an_event_loop() -> None:
    assert kit.build_agent("4")[0].ask_sync("2+2?") == "4"


async def test_ask_returns_the_answer_in_one_call(on_file: Store) -> None:
    assert on_file.path is not None
    agent, _ = kit.build_agent("4", "5")
    assert await agent.ask("2+2?") == "4"
    assert await agent.ask("3+2?", on_file.path) == "5"
    async with agent.session(on_file.path) as session:
        assert kit.select_events(await session.facts(), RunFinished)[0].answer == "5"


async def test_a_run_without_an_answer_is_an_error_that_says_why_and_what_to_do(store: Store) -> None:
    agent, _ = kit.build_agent(call("note", text="x"), "half", "done", tools=[note], limits=Limits(turns=1))
    async with agent.session(store.open()) as session:
        with pytest.raises(NotAnswered, match=r"without an answer \(turn_limit\); session.continue_") as caught:
            await session.ask("go")
        assert caught.value.outcome is not None and caught.value.outcome.answer == "half"
        assert (await kit.finish_run(session.continue_())).answer == "done"


class Sum(BaseModel):
    total: int
    why: str = ""


async def test_a_typed_answer_that_fits_is_given_as_its_type() -> None:
    agent, model = kit.build_agent('```json\n{"total": 4, "why": "2+2"}\n```', output=Sum)
    assert await agent.ask("2+2?") == Sum(total=4, why="2+2")
    assert model.requests[0].output_schema is not None
    assert set(model.requests[0].output_schema["properties"]) == {"total", "why"}


async def test_an_answer_that_does_not_fit_is_sent_back_twice_with_the_reason(store: Store) -> None:
    agent, model = kit.build_agent("four", '{"total": "four"}', '{"total": 4}', output=Sum)
    async with agent.session(store.open()) as session:
        assert await session.ask("2+2?") == Sum(total=4)
    assert "Invalid JSON" in kit.list_user_texts(model.requests[1])[-1]
    assert "total: Input should be a valid integer" in kit.list_user_texts(model.requests[2])[-1]


async def test_three_answers_that_do_not_fit_are_a_failure(store: Store) -> None:
    agent, model = kit.build_agent("four", "for", "fore", "never asked", output=Sum)
    async with agent.session(store.open()) as session:
        with pytest.raises(NotAnswered, match=r"3 answers in a row did not fit .*the answer: .*got 'fore'") as caught:
            await session.ask("2+2?")
        kit.check_settled(await session.facts())
    assert caught.value.outcome is not None and caught.value.outcome.reason == "failed"
    assert len(model.requests) == 3


@pytest.mark.parametrize(
    ("output", "text", "answer"), [(str, "It is [4].", "It is [4]."), (list[int], "[1, 2]", [1, 2])]
)
async def test_an_output_can_be_plain_text_or_a_plain_type(output: Any, text: str, answer: Any) -> None:
    agent, model = kit.build_agent(text, output=output)
    assert await agent.ask("?") == answer
    assert (model.requests[0].output_schema is None) is (output is str)


# --- messages while one is running


async def test_a_message_sent_while_a_tool_runs_steers_the_next_turn_and_has_the_same_outcome(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open(), "as you say") as session:
        other = asyncio.create_task(kit.run_to_end(session, "in French"))
        sent = await kit.wait_for(session, MessageReceived, lambda fact: fact.parts == (TextPart("in French"),))
        held.free.set()
        assert await kit.wait_for(session, RunFinished) == await other
        facts = await session.facts()
    kit.check_settled(facts)
    assert len(kit.select_events(facts, RunStarted)) == 1 and held.starts == 1
    assert kit.select_events(facts, TurnStarted)[1].messages == (sent.id,)
    assert kit.select_results(held.model.requests[1])["a"].text == "waited"
    assert held.model.requests[1].messages[-1] == UserMessage((TextPart("in French"),))


async def test_a_message_sent_during_the_last_reply_gets_a_run_of_its_own(store: Store) -> None:
    sessions: list[Session] = []

    class SendingModel(FakeModel):
        asked = 0

        async def stream(self, request: Request) -> Any:
            self.asked += 1
            if self.asked == 1:
                await sessions[0].send("and then?")
            yield Reply(text=f"answer {self.asked}")

    async with Agent(SendingModel()).session(store.open()) as session:
        sessions.append(session)
        outcome = await kit.run_to_end(session, "first")
        second = await kit.wait_for(session, RunFinished, after=outcome.seq)
        facts = await session.facts()
    assert (outcome.answer, second.answer) == ("answer 1", "answer 2")
    kit.check_settled(facts)
    assert [len(fact.messages) for fact in kit.select_events(facts, TurnStarted)] == [1, 1]


async def test_two_runs_asked_for_at_once_both_end_and_no_message_is_lost(store: Store) -> None:
    agent, model = kit.build_agent("one", "two", "three")
    async with agent.session(store.open()) as session:
        outcomes = await asyncio.gather(*(kit.run_to_end(session, f"message {n}") for n in range(3)))
        facts = await session.facts()
    kit.check_settled(facts)
    assert all(outcome.reason == "answered" for outcome in outcomes)
    promoted = [identity for fact in kit.select_events(facts, TurnStarted) for identity in fact.messages]
    assert sorted(promoted) == sorted(fact.id for fact in kit.select_events(facts, MessageReceived))
    shown = kit.list_user_texts(model.requests[len(kit.select_events(facts, RunFinished)) - 1])
    assert {f"message {n}" for n in range(3)} <= set(shown)


async def test_a_message_in_interrupt_mode_stops_the_run_and_is_answered_at_once(store: Store) -> None:
    held = HeldTool()
    async with held.open_session(store.open(), "new answer") as session:
        outcome = await kit.run_to_end(session, "no, this instead", mode="interrupt")
        facts = await session.facts()
    kit.check_settled(facts)
    first, second = kit.select_events(facts, RunFinished)
    assert (first.reason, first.error) == ("cancelled", "interrupted by a new message")
    assert second == outcome and outcome.answer == "new answer"
    assert kit.list_user_texts(held.model.requests[1])[-1] == "no, this instead"
    assert "may have had effects" in kit.select_results(held.model.requests[1])["a"].text


async def test_interrupting_a_talking_model_keeps_its_partial_text(store: Store) -> None:
    model = HangingModel(reply="short")
    async with Agent(model).session(store.open()) as session:
        await session.send("tell me a story")
        await kit.wait_for(session, TextDelta)
        outcome = await kit.run_to_end(session, "shorter", mode="interrupt")
        first = kit.select_events(await session.facts(), RunFinished)[0]
    assert (first.answer, outcome.answer) == ("Once upon", "short")
    assert [m.text for m in model.requests[1].messages if isinstance(m, ModelMessage)] == ["Once upon"]


async def test_a_message_with_a_key_is_taken_once(store: Store) -> None:
    agent, model = kit.build_agent("one", "two")
    async with agent.session(store.open()) as session:
        first = await kit.run_to_end(session, "pay the bill", key="k1")
        again = await kit.run_to_end(session, "pay the bill", key="k1")
        assert again == first, "the repetition has the ending of the first"
        [message] = kit.select_events(await session.facts(), MessageReceived)
        assert await session.send("pay the bill", key="k1") == message.id and len(model.requests) == 1
        assert (await kit.run_to_end(session, "pay the bill", key="k2")).answer == "two"


async def test_images_stay_in_the_conversation_after_the_first_turn(store: Store) -> None:
    picture = ImagePart(data="aGk=")
    agent, model = kit.build_agent(call("note", text="x"), "a cat", "still a cat", tools=[note])
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session, ["what is this?", picture])
        await kit.run_to_end(session, "sure?")
    for request in model.requests:
        assert request.messages[0] == UserMessage((TextPart("what is this?"), picture))
