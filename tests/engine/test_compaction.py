"""Compaction: plans, summaries, when it is due, and undo. Requests stay valid, and the log keeps everything."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.simulation import Simulation, check_results, check_runs, check_session, now_or_never
from tests.kit.strategies import LIMITS, build_history, fold_story, histories
from tests.kit.strict import check_request
from treadle import CallFinished, Limits, tool
from treadle.engine.compaction import (
    HAPPENED,
    SAID,
    build_compaction_fact,
    build_summary_request,
    compose_summary,
    compute_room,
    plan_compaction,
    plan_summary,
)
from treadle.engine.context import Projection, count_entries_through
from treadle.engine.model_call import compact_or_note_failure
from treadle.engine.state import State, Turn, apply, fold
from treadle.engine.steps import AskModel, Compact, Record, Rest, Work, next_step
from treadle.events import (
    AnyFact,
    ContextCompacted,
    FilesKept,
    InputAnswered,
    InputRequested,
    KeptFile,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    Question,
    RunStarted,
    SessionCreated,
    SignalDetected,
    TurnStarted,
    stamp_fact,
)
from treadle.messages import (
    Call,
    ImagePart,
    Part,
    Reply,
    Request,
    ResultMessage,
    TextPart,
    Usage,
    UserMessage,
    estimate_messages,
    estimate_text,
    render_parts,
)
from treadle.testing import ScriptedModel

WORDS = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore"
FIRST = "Count every page of the great book, and never use the red ink."


@tool(safety="safe")
async def page(number: int) -> str:
    """Read a page."""
    return f"page-{number} marker{number}x " + f"{WORDS} " * 6


def shown_text(request: Request) -> str:
    texts: list[str] = []
    for message in request.messages:
        if isinstance(message, UserMessage):
            texts.append(render_parts(message.parts))
        elif isinstance(message, ResultMessage):
            texts.append(message.text)
        else:
            texts.extend((message.text, *(one.arguments for one in message.calls)))
    return "\n".join(texts)


# ── plans for any log ─────────────────────────────────────────────────────────────────────────────────────


def planted(history: Sequence[AnyFact], tokens: int) -> State:
    state = fold(history)
    state.tokens = tokens
    return state


@settings(max_examples=300)
@given(histories, st.sampled_from([16, 64, 1024]), st.booleans())
def test_a_planned_compaction_of_any_log_is_valid_and_keeps_calls_with_their_results(
    history: list[AnyFact], window: int, asked: bool
) -> None:
    state = planted(history, window)
    room = compute_room(window, state)
    wanted = plan_summary(state, room) if asked else plan_compaction(state, room)
    if wanted is None:
        return
    check_request(build_summary_request(state, room, wanted))
    fact = build_compaction_fact(state, room, wanted, compose_summary(state, room, wanted, "so it was"))
    whole = count_entries_through(state, fact.through)
    apply(state, msgspec.structs.replace(fact, seq=state.seq + 1))
    assert all(not isinstance(entry, Turn) or entry.is_settled for entry in state.entries[:whole])
    check_request(Request(system="", messages=Projection().build_messages(state)))


@settings(max_examples=150)
@given(histories, st.data())
def test_repeated_compactions_come_to_an_end(history: list[AnyFact], data: st.DataObject) -> None:
    state = planted(history, 512)
    for _ in range(len(history) + 2):
        room = compute_room(512, state)
        wanted = plan_compaction(state, room) if data.draw(st.booleans()) else plan_summary(state, room)
        if wanted is None:
            return
        fact = build_compaction_fact(state, room, wanted, compose_summary(state, room, wanted, "so"))
        apply(state, msgspec.structs.replace(fact, seq=state.seq + 1))
    raise AssertionError("compaction does not come to an end")


def rich() -> list[AnyFact]:
    """Build a log with parallel calls, images, questions, a steering message, a failure and a second run."""
    parts: tuple[Part, ...] = (TextPart("look at this picture"), ImagePart("aGk="))
    story: list[AnyFact] = [
        MessageReceived(id="m1", parts=(TextPart(FIRST),)),
        RunStarted(run_id="run_1", limits=Limits()),
        TurnStarted(turn=1, messages=("m1",)),
        ModelReplied(calls=(Call("a", "look"), Call("b", "look"))),
        CallFinished(call_id="b", tool="look", status="ok", output="b " * 300, parts=(ImagePart("aGk="),)),
        MessageReceived(id="m2", parts=parts),
        CallFinished(call_id="a", tool="look", status="error", output="no such shelf " * 30),
        TurnStarted(turn=2, messages=("m2",)),
        ModelReplied(text="I ask.", calls=(Call("c", "ask_user"),)),
        InputRequested(call_id="c", questions=(Question("which?"),)),
        InputAnswered(call_id="c", answers=("this",)),
        CallFinished(call_id="c", tool="ask_user", status="ok", output="this"),
        TurnStarted(turn=3),
        ModelReplied(text="Done. " * 200),
        MessageReceived(id="m3", parts=(TextPart("and now the second volume"),)),
        RunStarted(run_id="run_2", limits=Limits()),
        TurnStarted(turn=1, messages=("m3",)),
        ModelReplied(calls=(Call("d", "look"),)),
        CallFinished(call_id="d", tool="look", status="ok", output="d " * 300),
        TurnStarted(turn=2),
    ]
    return build_history(*story)


def test_a_compaction_at_any_position_keeps_the_users_words() -> None:
    tried = 0
    for length in range(len(rich()) + 1):
        state = planted(rich()[:length], 300)
        room = compute_room(300, state)
        for wanted in filter(None, (plan_compaction(state, room), plan_summary(state, room))):
            tried += 1
            after = fold(rich()[:length])
            fact = build_compaction_fact(state, room, wanted, compose_summary(state, room, wanted, "so"))
            apply(after, msgspec.structs.replace(fact, seq=length + 1))
            request = Request(system="", messages=Projection().build_messages(after))
            check_request(request)
            assert FIRST in shown_text(request)
            for later in rich()[length:]:
                apply(after, msgspec.structs.replace(later, seq=after.seq + 1))
                check_request(Request(system="", messages=Projection().build_messages(after)))
    assert tried > 20


def test_a_summary_does_not_separate_an_answer_from_its_question() -> None:
    story: list[AnyFact] = []
    for number in range(4):
        story += [
            MessageReceived(id=f"m{number}", parts=(TextPart(f"question {number} " + "word " * 200),)),
            RunStarted(run_id=f"run_{number}", limits=Limits()),
            TurnStarted(turn=1, messages=(f"m{number}",)),
            ModelReplied(text=f"answer {number}"),
        ]
    state = planted(build_history(*story[:-1]), 900)
    wanted = plan_summary(state, compute_room(900, state))
    assert wanted is not None
    apply(state, ContextCompacted(kind="summary", through=wanted.through, summary="so", seq=state.seq + 1))
    shown = shown_text(Request(system="", messages=Projection().build_messages(state)))
    assert "answer 2" not in shown and "question 2" not in shown and "question 3" in shown


def test_the_last_results_are_never_pruned_or_summarized() -> None:
    large = "much " * 2000
    story = rich()[:18] + build_history(
        CallFinished(call_id="d", tool="look", status="ok", output=large), TurnStarted(turn=2)
    )
    for number, fact in enumerate(story, 1):
        stamp_fact(fact, number, 0.0)
    for most in (300, 3000, 4000):
        state = planted(story, most)
        wanted = plan_compaction(state, compute_room(most, state))
        assert wanted is not None
        apply(state, ContextCompacted(kind=wanted.kind, through=wanted.through, summary="so", seq=state.seq + 1))
        assert large in shown_text(Request(system="", messages=Projection().build_messages(state))), (most, wanted)


def test_an_unanswered_message_is_never_summarized() -> None:
    story = rich()[:8]  # m2 came while a and b ran: it is older than their results, and not answered yet
    state = planted(story, 100)
    wanted = plan_summary(state, compute_room(100, state))
    assert wanted is not None
    apply(state, ContextCompacted(kind="summary", through=wanted.through, summary="so", seq=9))
    assert any(isinstance(part, ImagePart) for message in Projection().build_messages(state)
               if isinstance(message, UserMessage) for part in message.parts)  # fmt: skip


def test_a_summary_keeps_the_plan_the_files_and_the_failures() -> None:
    state = fold(rich())
    state.notes["treadle.todo"] = [{"text": "volume two", "status": "doing"}, {"text": "index", "status": "pending"}]
    apply(state, FilesKept(call_id="d", files=(KeptFile("shelf/list.txt"),), seq=state.seq + 1))
    room = compute_room(4096, state)
    wanted = plan_summary(state, msgspec.structs.replace(room, window=600))
    assert wanted is not None
    text = compose_summary(state, room, wanted, "The ink is black.")
    assert "- [>] volume two\n- [ ] index" in text
    assert "shelf/list.txt" in text and "no such shelf" in text and text.startswith(f"{HAPPENED}\nThe ink is black.")
    assert text.index("volume two") < text.index(SAID) < text.index(FIRST)


@settings(max_examples=50)
@given(histories, st.sampled_from([2048, 8192]), st.integers(0, 40), st.sampled_from([WORDS, "größer ", "東京の話。"]))
def test_the_request_for_a_summary_has_no_tools_and_fits_the_window(
    history: list[AnyFact], window: int, more: int, words: str
) -> None:
    long = [
        fact
        for number in range(more)
        for fact in (TurnStarted(turn=number), ModelReplied(text=words * (4000 // len(words)), calls=()))
    ]
    state = planted(build_history(*history, *long), window)
    room = compute_room(window, state)
    wanted = plan_summary(state, room)
    if wanted is not None:
        request = build_summary_request(state, room, wanted)
        check_request(request)
        assert request.tools == () and request.tool_choice == "none" and request.max_tokens is not None
        assert estimate_text(request.system) + estimate_messages(request.messages) + request.max_tokens <= window


def test_the_second_summary_includes_the_first() -> None:
    state = fold(rich())
    first = ContextCompacted(kind="summary", through=14, summary=f"x\n{HAPPENED}\nThe ink is black.", seq=state.seq + 1)
    apply(state, first)
    state.tokens = 300
    wanted = plan_summary(state, compute_room(300, state))
    assert wanted is not None and wanted.through > 14
    asked = shown_text(build_summary_request(state, compute_room(300, state), wanted))
    assert "The ink is black." in asked and "second volume" in asked and "look at this picture" not in asked


# ── when it is due ─────────────────────────────────────────────────────────────────────────────────────────


def at(tokens: int, *more: AnyFact) -> State:
    story = [*rich()[:13], *more]
    return planted(build_history(*story), tokens)


def test_a_compaction_is_due_at_85_percent_of_the_window() -> None:
    assert isinstance(next_step(at(869), 0.0, window=1024), AskModel)
    assert isinstance(next_step(at(871), 0.0, window=1024), Compact)
    assert isinstance(next_step(at(10**6), 0.0), AskModel), "an unknown window cannot be full"


def test_a_compaction_never_comes_between_a_call_and_its_result() -> None:
    for length in range(len(rich())):
        state = planted(rich()[:length], 10**6)
        step = next_step(state, 0.0, window=1024)
        if isinstance(step, Compact):
            assert all(entry.is_settled for entry in state.entries if isinstance(entry, Turn))


def test_the_token_count_is_the_providers_plus_an_estimate() -> None:
    counted = ModelReplied(text="So.", usage=Usage(900, 50))
    state = fold_story(*rich()[:13], counted)
    assert state.tokens == 950
    apply(state, MessageReceived(id="m9", parts=(TextPart("x" * 400),), seq=state.seq + 1))
    apply(state, TurnStarted(turn=4, messages=("m9",), seq=state.seq + 1))
    assert 1040 < state.tokens < 1070
    silent = fold_story(*rich()[:13], ModelReplied(text="x" * 400))
    assert silent.tokens > fold(rich()[:13]).tokens + 90


def test_two_useless_compactions_in_a_row_stop_the_run() -> None:
    nothing = ContextCompacted(kind="summary", through=3, tokens_before=1000, tokens_after=1000)
    step = next_step(at(1000, nothing, nothing), 0.0, window=1024)
    assert isinstance(step, Record)
    [end] = step.facts
    assert end.reason == "failed" and "1000 tokens of the 1024" in end.error  # type: ignore[union-attr]
    freed = ModelReplied(calls=(Call("z", "look"),), usage=Usage(500, 10))
    more = [nothing, nothing, freed, CallFinished(call_id="z", tool="look", status="ok"), TurnStarted(turn=4)]
    assert fold_story(*rich()[:13], *more).crowded == 0


def test_a_request_that_is_too_long_is_compacted_and_sent_again() -> None:
    refused = ModelFailed(kind="too_long", message="too much")
    assert isinstance(next_step(at(10, refused), 0.0), Compact)
    done = ContextCompacted(kind="summary", through=3, tokens_before=10, tokens_after=5)
    assert next_step(at(5, refused, done), 0.0) == AskModel(2)
    failed = SignalDetected(kind="compaction_failed")
    step = next_step(at(10, refused, failed), 0.0)
    assert isinstance(step, Record) and "too_long" in step.facts[0].error  # type: ignore[union-attr]


def test_a_failed_compaction_is_not_repeated_in_the_same_turn() -> None:
    assert isinstance(next_step(at(1000, SignalDetected(kind="compaction_failed")), 0.0, window=1024), AskModel)


def test_an_undone_compaction_restores_all_messages() -> None:
    pruned = ContextCompacted(kind="prune", through=7, tokens_before=900, tokens_after=100)
    undo = ContextCompacted(kind="undo")
    state = fold_story(*rich(), pruned, undo)
    assert list(Projection().build_messages(state)) == list(Projection().build_messages(fold(rich())))
    assert (state.tokens, state.compacted) == (900, [])
    one, two = fold_story(*rich(), pruned, pruned, undo), fold_story(*rich(), pruned)
    assert list(Projection().build_messages(one)) == list(Projection().build_messages(two))


# ── any actions of model, tools and people ───────────────────────────────────────────────────────────────────


class Notes(ScriptedModel):
    """Writes a summary whenever it is asked for one."""

    async def stream(self, request: Request) -> Any:
        yield Reply("- so it went")


class Filling(Simulation):
    """A simulation in a window that is always nearly full."""

    def __init__(self, data: st.DataObject, history: list[AnyFact], limits: Limits, window: int) -> None:
        super().__init__(data, history, limits, meddling=3)
        self.setup = msgspec.structs.replace(self.setup, model=Notes(window=window))

    def fill(self, bound: int = 400) -> None:
        """Run until nothing is left to do."""
        for _ in range(bound):
            step = next_step(self.state, self.clock.now(), self.setup.limits, self.setup.model.window)
            if isinstance(step, Compact):
                assert all(entry.is_settled for entry in self.state.entries if isinstance(entry, Turn) and entry.reply)
                if self._chance(4):
                    self.crash()
                self.record(now_or_never(compact_or_note_failure(self.setup, self.state)))
            elif isinstance(step, Rest) and not step.waiting:
                return
            else:
                self.act(step)
        raise AssertionError(f"no rest after {bound} steps")

    def act(self, step: Any) -> None:
        match step:
            case Record(facts=facts):
                self.record(*facts)
            case AskModel():
                self._ask_model(step)
            case Work():
                self._work(step)
            case Rest():
                self._answer_question(step)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(LIMITS), st.sampled_from([8, 17, 30, 60]))
def test_every_run_in_a_nearly_full_window_ends_once(data: st.DataObject, limits: Limits, window: int) -> None:
    session = Filling(
        data,
        build_history(SessionCreated(session_id="s"), MessageReceived(id="m1", parts=(TextPart(FIRST),))),
        limits,
        window,
    )
    session.fill()
    assert check_runs(session.facts[session.start :]) >= 1
    check_session(session.state)
    check_results(session.facts)
