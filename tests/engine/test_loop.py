"""The loop as its user sees it: which calls run when, what the model reads, and how a run ends."""

import asyncio
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.fake_model import FakeModel
from tests.kit.sessions import Store, note
from treadle import Agent, CallFinished, CallStarted, Limits, ModelReplied, ReasoningDelta, TextDelta, tool
from treadle.engine.model_call import compute_backoff
from treadle.errors import ModelError
from treadle.events import ModelFailed, RunFinished, SignalDetected, TurnStarted
from treadle.messages import Call, Reply, Request, ResultMessage, Usage, UserMessage
from treadle.testing import SteppingClock, call, say


@tool(safety="safe")
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


SUMMARY_IS_MISSING = (
    "The run stopped (turn limit) after 1 turns and 1 calls, and the model gave no summary. "
    "The session's log shows what was done."
)


# --- the order of things


async def test_a_run_is_a_message_turns_calls_and_one_ending(store: Store) -> None:
    run = await store.run_script(
        ["let me see", call("note", id="a", text="x")], "done", tools=[note], instructions="be good", content="please"
    )
    before, turn = ["session_created", "message_received", "run_started"], ["turn_started", "model_replied"]
    assert kit.list_kinds(run.facts) == [*before, *turn, "call_started", "call_finished", *turn, "run_finished"]
    assert (run.reason, run.answer, run.outcome.turns, run.outcome.calls) == ("answered", "done", 2, 1)
    assert not run.outcome.can_continue
    first, second = run.requests
    assert first.system == "be good" and kit.list_user_texts(first) == ["please"]
    assert [spec.name for spec in first.tools] == ["note"]
    assert list(second.messages[: len(first.messages)]) == list(first.messages)
    assert kit.select_results(second)["a"].text == "noted x"


async def test_safe_calls_run_at_once_and_are_recorded_and_shown_in_their_order(store: Store) -> None:
    second_is_done = asyncio.Event()

    @tool(safety="safe")
    async def slow() -> str:
        await second_is_done.wait()  # would never end if the calls ran one after another
        return "slow"

    @tool(safety="safe")
    async def quick() -> str:
        second_is_done.set()
        return "quick"

    run = await store.run_script([call("slow", id="a"), call("quick", id="b")], "done", tools=[slow, quick])
    assert [fact.call_id for fact in run.select(CallStarted)] == ["a", "b"]
    assert [fact.call_id for fact in run.select(CallFinished)] == ["a", "b"]
    assert list(run.messages) == ["a", "b"]


async def test_calls_that_are_not_safe_run_alone_and_in_their_order_between_safe_ones(store: Store) -> None:
    running, together = set[str](), list[str]()

    @tool(safety=lambda arguments: "caution" if arguments["name"].isupper() else "safe")
    async def work(name: str) -> str:
        running.add(name)
        for _ in range(5):
            await asyncio.sleep(0)
        together.append("".join(sorted(running)))
        running.discard(name)
        return ""

    run = await store.run_script([call("work", id=name, name=name) for name in "abCDef"], "done", tools=[work])
    steps = [fact.call_id for fact in run.facts if isinstance(fact, CallStarted | CallFinished)]
    assert [fact.call_id for fact in run.select(CallStarted)] == list("abCDef") and steps[4:8] == ["C", "C", "D", "D"]
    assert "ab" in together and "ef" in together
    assert [group for group in together if {"C", "D"} & {*group}] == ["C", "D"]


async def test_the_safety_class_may_depend_on_the_arguments() -> None:
    @tool(safety=lambda arguments: "safe" if arguments["path"] == "/tmp" else "destructive")
    def touch(path: str) -> str:
        return path

    calls = [call("touch", id="a", path="/tmp"), call("touch", id="b", path="/etc")]
    run = await kit.run_script(calls, "done", tools=[touch])
    assert [fact.safety for fact in run.select(CallStarted)] == ["safe"]
    assert (run.results["a"].status, run.results["b"].status) == ("ok", "denied")


# --- calls that cannot run are answered


async def test_an_unknown_tool_is_answered_with_the_one_that_was_meant(store: Store) -> None:
    run = await store.run_script(call("nota", id="a", text="x"), call("zzz", id="b"), "sorry", tools=[note, look])
    assert run.reason == "answered" and run.outcome.calls == 0
    first, second = kit.select_results(run.requests[2]).values()
    assert "no tool named 'nota'" in first.text and "Did you mean note?" in first.text and not first.ok
    assert "Did you mean" not in second.text and "look, note" in second.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"text": "cut off', "not valid JSON"),
        ("", "text: Field required"),
        ("[1, 2]", "do not fit"),
        ("null", "do not fit"),
        ('{"text": 5}', "text: Input should be a valid string (got '5')"),
        ('{"text": "x", "mood": "good"}', "mood: Extra inputs are not permitted"),
        ("[" * 100_000 + "]" * 100_000, "not valid JSON"),
        ('{"text": "\\ud83d"}', "not valid JSON"),
    ],
)
@pytest.mark.parametrize("doom_loop", [True, False])
async def test_arguments_that_do_not_fit_are_answered_with_the_reason(
    arguments: str, words: str, doom_loop: bool
) -> None:
    run = await kit.run_script(Call("a", "note", arguments), "sorry", tools=[note], limits=Limits(doom_loop=doom_loop))
    done = run.results["a"]
    assert run.reason == "answered", run.outcome.error
    assert done.status == "error" and words in done.output and "note" in done.output
    assert run.messages["a"].text == done.output


async def test_missing_and_repeated_call_ids_are_made_unique_for_the_whole_session(store: Store) -> None:
    lines = [call("note", text="1"), call("note", text="2"), *(call("note", id="call_0", text=n) for n in "3456")]
    agent, model = kit.build_agent(lines[:3], lines[3:5], "done", lines[5], "done again", tools=[note])
    async with agent.session(store.open()) as session:
        await kit.run_to_end(session)
        await kit.run_to_end(session, "again")
        facts = await session.facts()
    kit.check_settled(facts)
    ids = [one.id for fact in kit.select_events(facts, ModelReplied) for one in fact.calls]
    assert len(set(ids)) == 6 and all(ids) and ids.count("call_0") == 1
    assert [fact.arguments["text"] for fact in kit.select_events(facts, CallStarted)] == list("123456")
    shown = kit.select_results(model.requests[-1])
    assert [message.text for message in shown.values()] == [f"noted {n}" for n in range(1, 7)]


# --- what a model says beside its answer


async def test_an_answer_mark_carries_its_confidence_and_is_not_part_of_the_answer() -> None:
    run = await kit.run_script('<thinking>6 times 7</thinking>\n<answer confidence="0.9">42</answer>')
    replied = run.select(ModelReplied)[0]
    assert (run.reason, run.answer, run.outcome.confidence) == ("answered", "42", 0.9)
    assert (replied.text, replied.reasoning) == ("42", "6 times 7")


@pytest.mark.parametrize(
    ("text", "reason", "answer", "signal"),
    [
        ("<stuck>no key to the door</stuck>", "stuck", "no key to the door", "stuck"),
        ("<stuck/>", "stuck", "", "stuck"),
        ("Over to you.<yield/>", "yielded", "Over to you.", "yielded"),
        ("<uncertain>perhaps 7</uncertain>", "answered", "perhaps 7", "uncertain"),
    ],
)
async def test_marks_in_the_text_end_the_run_as_what_they_say(text: str, reason: str, answer: str, signal: str) -> None:
    run = await kit.run_script(text)
    signals = [fact.kind for fact in run.select(SignalDetected)]
    assert (run.reason, run.answer) == (reason, answer)
    assert signal in signals
    assert run.outcome.can_continue == (reason != "answered")


async def test_leaked_reasoning_is_neither_answer_nor_streamed_as_one() -> None:
    agent, _model = kit.build_agent("I should add.\n</think>\n\nThe sum is 4.", "<think>hm\nhm</think>Yes.")
    async with agent.session() as session:
        assert (await kit.run_to_end(session)).answer == "The sum is 4."
        async with session.run("sure?") as run:
            events = [event async for event in run]
        assert run.outcome is not None and run.outcome.answer == "Yes."
        reasoning = [fact.reasoning for fact in kit.select_events(await session.facts(), ModelReplied)]
    assert reasoning == ["I should add.", "hm\nhm"]
    assert "".join(event.text for event in kit.select_events(events, TextDelta)) == "Yes."
    assert "".join(event.text for event in kit.select_events(events, ReasoningDelta)) == "hm\nhm"


async def test_an_empty_reply_is_nudged_twice_and_then_the_run_is_stuck(store: Store) -> None:
    run = await store.run_script("", "<thinking>hm</thinking>", "  \n", "never asked")
    assert (run.reason, run.answer, run.outcome.can_continue) == ("stuck", "", True)
    assert "3 empty replies" in run.outcome.error
    assert len(run.requests) == 3
    assert [len([text for text in kit.list_user_texts(r) if "was empty" in text]) for r in run.requests] == [0, 1, 2]


async def test_an_empty_reply_that_is_followed_by_an_answer_leaves_no_trace_in_it() -> None:
    run = await kit.run_script(["first", call("look", at="it")], "", "second", tools=[look])
    assert (run.reason, run.answer) == ("answered", "second")


async def test_a_text_only_agent_offers_no_tools_and_is_asked_once_more_after_a_stray_call(store: Store) -> None:
    run = await store.run_script(["Wait.", call("note", text="x")], "Done.", tools=[note], limits=Limits(turns=0))
    assert (run.reason, run.answer, run.outcome.turns, run.outcome.calls) == ("answered", "Done.", 2, 0)
    assert [request.tools for request in run.requests] == [(), ()]
    stray = run.select(SignalDetected)
    assert [fact.kind for fact in stray] == ["stray_calls"] and "note" in stray[0].detail
    assert run.select(CallStarted) == [] and run.select(ModelReplied)[0].calls == ()


async def test_a_text_only_agent_that_only_calls_is_asked_once_more_and_ends(store: Store) -> None:
    stray = call("note", text="x")
    run = await store.run_script(stray, stray, "never asked", tools=[note], limits=Limits(turns=0))
    assert run.reason == "stuck" and "calls tools although none are offered" in run.outcome.error
    assert len(run.requests) == 2 and "cannot call tools" in kit.list_user_texts(run.requests[1])[-1]


STRAY = call("note", text="x")


@pytest.mark.parametrize(
    ("replies", "reason", "answer"),
    [
        ([["so", STRAY], ["so", STRAY]], "failed", "so"),
        ([STRAY, ["so", STRAY]], "failed", "so"),
        ([["1", STRAY], [STRAY]], "answered", "1"),
        ([["so", STRAY], [STRAY]], "stuck", ""),
        ([STRAY, Reply("cut o", calls=(STRAY,), finish="length")], "token_limit", "cut o"),
        ([STRAY, Reply("bad", calls=(STRAY,), finish="filter")], "failed", "bad"),
    ],
)
async def test_the_second_stray_call_ends_a_text_only_run_whatever_else_the_reply_says(
    store: Store, replies: list[Any], reason: str, answer: str
) -> None:
    run = await store.run_script(*replies, "never asked", tools=[note], output=int, limits=Limits(turns=0))
    assert (run.reason, run.answer, len(run.requests)) == (reason, answer, 2), run.outcome.error


async def test_text_beside_a_stray_call_is_no_answer_when_it_does_not_fit_the_schema(store: Store) -> None:
    run = await store.run_script(["so", STRAY], "", "2", tools=[note], output=int, limits=Limits(turns=0))
    assert (run.reason, run.answer) == ("answered", "2")


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        ([[call("note", text="y")], "half done"], "half done"),
        ([["so far", call("note", text="y")], ["half done", call("note", text="z")]], "half done"),
        ([["half done", call("note", text="y")], [call("note", text="z")]], "half done"),
        ([["half done", call("note", text="y")], ""], "half done"),
        ([call("note", text="y"), call("note", text="z")], SUMMARY_IS_MISSING),
    ],
)
async def test_a_wrap_up_that_calls_a_tool_is_asked_once_more_without_any_tool_in_the_request(
    store: Store, replies: list[Any], answer: str
) -> None:
    first = ["I note.", call("note", text="x")]
    run = await store.run_script(first, *replies, "never asked", tools=[note], limits=Limits(turns=1))
    assert (run.reason, run.answer, run.outcome.turns, run.outcome.calls) == ("turn_limit", answer, 1, 1)
    _, wrap_up, again = run.requests
    kit.check_wrap_up_request(wrap_up, "all the turns")
    kit.check_wrap_up_request(again, "all the turns")
    assert any(isinstance(message, ResultMessage) for message in wrap_up.messages)
    assert all(isinstance(message, UserMessage) or not message.calls for message in again.messages)
    shown = "\n".join(map(str, again.messages))
    assert 'You called note with {"text":"x"}' in shown.replace("\\", "") and "noted x" in shown
    assert len([turn for turn in run.select(TurnStarted) if turn.wrap_up is not None]) == 2


# --- a model that fails


async def test_a_retryable_failure_is_tried_again_with_growing_waits_each_attempt_a_fact(store: Store) -> None:
    clock = store.use_stepping_clock()
    busy = ModelError("busy", kind="overloaded", retryable=True)
    run = await store.run_script(busy, busy, busy, "at last", clock=clock)
    failed = run.select(ModelFailed)
    assert (run.reason, run.answer, run.outcome.turns) == ("answered", "at last", 1)
    assert [(fact.attempt, fact.kind, fact.retryable) for fact in failed] == [
        (n, "overloaded", True) for n in (1, 2, 3)
    ]
    assert clock.slept == pytest.approx([fact.wait for fact in failed])
    for wait, most in zip(clock.slept, (0.5, 1.0, 2.0), strict=True):
        assert most / 2 <= wait <= most
    assert len({tuple(request.messages) for request in run.requests}) == 1


async def test_retry_after_is_waited_for_as_asked(store: Store) -> None:
    clock = store.use_stepping_clock()
    run = await store.run_script(ModelError("quota", kind="quota", retryable=True, retry_after=7), "ok", clock=clock)
    assert run.answer == "ok"
    assert clock.slept == pytest.approx([7])


@pytest.mark.parametrize(("attempt", "longest"), [(1, 0.5), (2, 1.0), (4, 4.0), (20, 60.0), (9999, 60.0)])
def test_pauses_grow_up_to_a_bound_and_are_not_the_same_for_everybody(attempt: int, longest: float) -> None:
    pauses = [compute_backoff(attempt) for _ in range(100)]
    assert longest / 2 <= min(pauses) < max(pauses) <= longest


@pytest.mark.parametrize("kind", ["internal", "stalled"])
async def test_an_error_of_the_model_itself_is_tried_a_few_times(store: Store, kind: Any) -> None:
    broken = ModelError("broken", kind=kind, retryable=True)
    run = await store.run_script(*[broken] * 9, clock=store.use_stepping_clock(), limits=Limits(attempts=3))
    assert run.reason == "failed" and run.outcome.error.startswith(f"{kind}: broken (gave up after 3 attempts in ")
    assert [fact.wait is None for fact in run.select(ModelFailed)] == [False, False, True]
    assert len(run.requests) == 3


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (ModelError("bad key", kind="auth"), "auth: bad key"),
        (ModelError("in 16 days", kind="quota", retryable=True, retry_after=1e6), "in 16 days"),
        (ZeroDivisionError("oops"), "ZeroDivisionError: oops"),
        (Reply(text="I can", finish="filter"), "content filter"),
    ],
    ids=["bad key", "a wait that is too long", "a bug in the adapter", "content filter"],
)
async def test_a_final_failure_is_not_tried_again_and_the_run_can_continue(store: Store, line: Any, error: str) -> None:
    run = await store.run_script(line, "ok")
    assert run.reason == "failed" and error in run.outcome.error and run.outcome.can_continue
    assert len(run.requests) == 1
    async with run.agent.session(store.open(), id=run.session_id) as session:
        assert (await kit.finish_run(session.continue_())).answer == "ok"


async def test_the_partial_text_of_a_broken_stream_is_kept(store: Store) -> None:
    class BreakingModel(FakeModel):
        async def stream(self, request: Request) -> Any:
            yield TextDelta(text="The answer is ")
            raise ModelError("gone", kind="network")

    run = await store.run_agent(Agent(BreakingModel()))
    assert run.select(ModelFailed)[0].partial == "The answer is " == run.answer
    assert run.reason == "failed"


async def test_a_stream_without_a_reply_is_tried_again() -> None:
    class SilentModel(FakeModel):
        asked = 0

        async def stream(self, request: Request) -> Any:
            self.asked += 1
            if self.asked == 2:
                yield Reply(text="here")

    run = await kit.run_agent(Agent(SilentModel(), clock=SteppingClock()))
    assert run.answer == "here" and "without a reply" in run.select(ModelFailed)[0].message


async def test_what_the_run_used_is_summed_over_its_turns() -> None:
    one = Usage(input_tokens=10, output_tokens=5, cached_tokens=3, reasoning_tokens=1, cost=0.5)
    run = await kit.run_script(say("", call("look", at="x"), usage=one), say("done", usage=one), tools=[look])
    assert run.state.usage == one + one
    assert run.outcome.usage == one + one


async def test_the_ending_says_which_model_really_answered() -> None:
    agent, _ = kit.build_agent(Reply(text="hi", model="bigger-1"), "hi")
    async with agent.session() as session:
        await kit.run_to_end(session)
        await kit.run_to_end(session)
        facts = await session.facts()
    assert [fact.model for fact in kit.select_events(facts, ModelReplied)] == ["bigger-1", "scripted"]
    assert len(kit.select_events(facts, TurnStarted)) == len(kit.select_events(facts, RunFinished)) == 2


async def test_a_reply_knows_how_long_its_first_fragment_took() -> None:
    clock = SteppingClock()

    def think(request: Any) -> str:
        clock.step(1.5)
        return "hello\nthere"

    run = await kit.run_agent(kit.build_agent(think, clock=clock)[0])
    (reply,) = run.select(ModelReplied)
    assert reply.first_token == 1.5


async def test_a_reply_that_comes_at_once_has_no_first_fragment() -> None:
    run = await kit.run_script(call("note", text="x"), "done", tools=[note])
    assert [reply.first_token is None for reply in run.select(ModelReplied)] == [True, False]
