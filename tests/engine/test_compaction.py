"""Compaction: plans, summaries, when it is due, and undo. Requests stay valid, and the log keeps everything."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.kit.facts import RUN, TURN, message, new_run, result
from tests.kit.simulation import Simulation, check_results, check_runs, check_session
from tests.kit.strategies import LIMITS, build_history, fold_story, histories
from tests.kit.strict import check_request
from treadle import Limits, events, tool
from treadle.engine.compaction import (
    HAPPENED,
    SAID,
    CompactionPlan,
    Room,
    build_compaction_fact,
    build_summary_request,
    compose_summary,
    compute_room,
    plan_compaction,
    plan_summary,
)
from treadle.engine.context import Projection, count_entries_through
from treadle.engine.fold import apply, fold
from treadle.engine.state import State, Turn
from treadle.engine.steps import AskModel, Compact, Record, next_step
from treadle.messages import (
    Call,
    ImagePart,
    Request,
    ResultMessage,
    TextPart,
    Usage,
    UserMessage,
    estimate_messages,
    estimate_text,
    render_parts,
)

WORDS = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore"
FIRST = "Count every page of the great book, and never use the red ink."


@tool(safety="safe")
async def page(number: int) -> str:
    """Read a page."""
    return f"page-{number} marker{number}x " + f"{WORDS} " * 6


def render_request(request: Request) -> str:
    """Return all texts and arguments of a request."""
    texts: list[str] = []
    for shown in request.messages:
        if isinstance(shown, UserMessage):
            texts.append(render_parts(shown.parts))
        elif isinstance(shown, ResultMessage):
            texts.append(shown.text)
        else:
            texts.extend((shown.text, *(call.arguments for call in shown.calls)))
    return "\n".join(texts)


def project(state: State) -> Request:
    return Request(system="", messages=Projection().build_messages(state))


def apply_next(state: State, fact: events.AnyFact) -> None:
    apply(state, replace(fact, seq=state.seq + 1))


def fold_with_tokens(history: Sequence[events.AnyFact], tokens: int) -> State:
    state = fold(history)
    state.tokens = tokens
    return state


# ── plans for any log ─────────────────────────────────────────────────────────────────────────────────────


def compact(state: State, plan: CompactionPlan, window: int) -> events.ContextCompacted:
    """Carry a plan out and return its fact."""
    room = compute_room(window, state)
    fact = build_compaction_fact(state, room, plan, compose_summary(state, room, plan, "so it was"))
    apply_next(state, fact)
    return fact


@settings(max_examples=300)
@given(histories, st.sampled_from([16, 64, 1024]), st.sampled_from([plan_summary, plan_compaction]))
def test_a_planned_compaction_of_any_log_is_valid_and_keeps_calls_with_their_results(
    history: list[events.AnyFact], window: int, make_plan: Any
) -> None:
    state = fold_with_tokens(history, window)
    room = compute_room(window, state)
    plan = make_plan(state, room)
    if plan is None:
        return
    check_request(build_summary_request(state, room, plan))
    before = fold(history)
    whole = count_entries_through(before, compact(state, plan, window).through)
    assert all(not isinstance(entry, Turn) or entry.is_settled for entry in before.entries[:whole])
    check_request(project(state))


@settings(max_examples=150)
@given(histories, st.data())
def test_repeated_compactions_come_to_an_end(history: list[events.AnyFact], data: st.DataObject) -> None:
    state = fold_with_tokens(history, 512)
    for _ in range(len(history) + 2):
        room = compute_room(512, state)
        plan = plan_compaction(state, room) if data.draw(st.booleans()) else plan_summary(state, room)
        if plan is None:
            return
        compact(state, plan, 512)
    raise AssertionError("compaction does not come to an end")


A, B, C, D = Call("a", "look"), Call("b", "look"), Call("c", "ask_user"), Call("d", "look")
STORY = build_history(
    message("m1", FIRST),
    *(RUN, TURN, events.ModelReplied(calls=(A, B))),
    result(B, "b " * 300, parts=(ImagePart("aGk="),)),
    events.MessageReceived(id="m2", parts=(TextPart("look at this picture"), ImagePart("aGk="))),
    result(A, "no such shelf " * 30, "error"),
    *(events.TurnStarted(turn=2, messages=("m2",)), events.ModelReplied(text="I ask.", calls=(C,))),
    events.InputRequested(call_id="c", questions=(events.Question("which?"),)),
    *(events.InputAnswered(call_id="c", answers=("this",)), result(C, "this")),
    *(events.TurnStarted(turn=3), events.ModelReplied(text="Done. " * 200)),
    *(message("m3", "and now the second volume"), new_run(number=2), events.TurnStarted(turn=1, messages=("m3",))),
    *(events.ModelReplied(calls=(D,)), result(D, "d " * 300), events.TurnStarted(turn=2)),
)
"""Parallel calls, images, questions, a steering message, a failure and a second run."""


def test_a_compaction_at_any_position_keeps_the_users_words() -> None:
    tried = 0
    for length in range(len(STORY) + 1):
        state = fold_with_tokens(STORY[:length], 300)
        room = compute_room(300, state)
        for plan in filter(None, (plan_compaction(state, room), plan_summary(state, room))):
            tried += 1
            after = fold_with_tokens(STORY[:length], 300)
            compact(after, plan, 300)
            check_request(project(after))
            assert FIRST in render_request(project(after))
            for later in STORY[length:]:
                apply_next(after, later)
                check_request(project(after))
    assert tried > 20


def test_a_summary_does_not_separate_an_answer_from_its_question() -> None:
    story: list[events.AnyFact] = []
    for number in range(4):
        question = message(f"m{number}", f"question {number} " + "word " * 200)
        turn = events.TurnStarted(turn=1, messages=(question.id,))
        story += [question, new_run(number=number), turn, events.ModelReplied(text=f"answer {number}")]
    state = fold_with_tokens(build_history(*story[:-1]), 900)
    plan = plan_summary(state, compute_room(900, state))
    assert plan is not None
    apply_next(state, events.ContextCompacted(kind="summary", through=plan.through, summary="so"))
    shown = render_request(project(state))
    assert "answer 2" not in shown and "question 2" not in shown and "question 3" in shown


@pytest.mark.parametrize("window", [300, 3000, 4000])
def test_the_last_results_are_never_pruned_or_summarized(window: int) -> None:
    large = "much " * 2000
    state = fold_with_tokens(build_history(*STORY[:18], result(D, large), events.TurnStarted(turn=2)), window)
    plan = plan_compaction(state, compute_room(window, state))
    assert plan is not None
    compact(state, plan, window)
    assert large in render_request(project(state)), plan


def test_an_unanswered_message_is_never_summarized() -> None:
    state = fold_with_tokens(STORY[:8], 100)  # m2 is older than the results of a and b, and not answered yet
    plan = plan_summary(state, compute_room(100, state))
    assert plan is not None
    compact(state, plan, 100)
    users = [shown for shown in project(state).messages if isinstance(shown, UserMessage)]
    assert any(isinstance(part, ImagePart) for user in users for part in user.parts)


def test_a_summary_keeps_the_plan_the_files_and_the_failures() -> None:
    state = fold(STORY)
    state.notes["treadle.todo"] = [{"text": "volume two", "status": "doing"}, {"text": "index", "status": "pending"}]
    apply_next(state, events.FilesKept(call_id="d", files=(events.KeptFile("shelf/list.txt"),)))
    room = compute_room(4096, state)
    plan = plan_summary(state, replace(room, window=600))
    assert plan is not None
    text = compose_summary(state, room, plan, "The ink is black.")
    assert "- [>] volume two\n- [ ] index" in text
    assert "shelf/list.txt" in text and "no such shelf" in text and text.startswith(f"{HAPPENED}\nThe ink is black.")
    assert text.index("volume two") < text.index(SAID) < text.index(FIRST)


@pytest.mark.parametrize(("size", "is_quoted"), [(100, True), (101, False)], ids=["as much as fits", "one byte more"])
def test_a_summary_quotes_as_much_of_the_newest_messages_as_fits(size: int, is_quoted: bool) -> None:
    asked = [message("m1", FIRST), message("m2", "a" * 60), message("m3", "b" * (size - 60))]
    turn = events.TurnStarted(turn=1, messages=("m1", "m2", "m3"))
    state = fold(build_history(*asked, RUN, turn, events.ModelReplied(text="One.")))
    text = compose_summary(state, Room(250), CompactionPlan("summary", state.seq), "")
    assert ("a" * 60 in text, "1 messages in between" in text) == (is_quoted, not is_quoted)


@settings(max_examples=50)
@given(histories, st.sampled_from([2048, 8192]), st.integers(0, 40), st.sampled_from([WORDS, "größer ", "東京の話。"]))
def test_the_request_for_a_summary_has_no_tools_and_fits_the_window(
    history: list[events.AnyFact], window: int, more: int, words: str
) -> None:
    turns = [
        (events.TurnStarted(turn=turn), events.ModelReplied(text=words * (4000 // len(words)))) for turn in range(more)
    ]
    state = fold_with_tokens(build_history(*history, *chain.from_iterable(turns)), window)
    room = compute_room(window, state)
    plan = plan_summary(state, room)
    if plan is not None:
        request = build_summary_request(state, room, plan)
        check_request(request)
        assert request.tools == () and request.tool_choice == "none" and request.max_tokens is not None
        assert estimate_text(request.system) + estimate_messages(request.messages) + request.max_tokens <= window


def test_the_second_summary_includes_the_first() -> None:
    state = fold(STORY)
    apply_next(state, events.ContextCompacted(kind="summary", through=14, summary=f"x\n{HAPPENED}\nThe ink is black."))
    state.tokens = 300
    plan = plan_summary(state, compute_room(300, state))
    assert plan is not None and plan.through > 14
    text = render_request(build_summary_request(state, compute_room(300, state), plan))
    assert "The ink is black." in text and "second volume" in text and "look at this picture" not in text


# ── when it is due ─────────────────────────────────────────────────────────────────────────────────────────


def fold_turn(tokens: int, *more: events.AnyFact) -> State:
    return fold_with_tokens(build_history(*STORY[:13], *more), tokens)


def test_a_compaction_is_due_at_85_percent_of_the_window() -> None:
    assert isinstance(next_step(fold_turn(869), 0.0, window=1024), AskModel)
    assert isinstance(next_step(fold_turn(871), 0.0, window=1024), Compact)
    assert isinstance(next_step(fold_turn(10**6), 0.0), AskModel), "an unknown window cannot be full"


def test_the_token_count_is_the_providers_plus_an_estimate() -> None:
    counted = events.ModelReplied(text="So.", usage=Usage(900, 50))
    state = fold_story(*STORY[:13], counted)
    assert state.tokens == 950
    apply_next(state, message("m9", "x" * 400))
    apply_next(state, events.TurnStarted(turn=4, messages=("m9",)))
    assert 1040 < state.tokens < 1070
    silent = fold_story(*STORY[:13], events.ModelReplied(text="x" * 400))
    assert silent.tokens > fold(STORY[:13]).tokens + 90


def test_two_useless_compactions_in_a_row_stop_the_run() -> None:
    nothing = events.ContextCompacted(kind="summary", through=3, tokens_before=1000, tokens_after=1000)
    step = next_step(fold_turn(1000, nothing, nothing), 0.0, window=1024)
    assert isinstance(step, Record)
    [end] = step.facts
    assert end.reason == "failed" and "1000 tokens of the 1024" in end.error  # type: ignore[union-attr]
    freed = events.ModelReplied(calls=(Call("z", "look"),), usage=Usage(500, 10))
    more = [nothing, nothing, freed, result(Call("z", "look")), events.TurnStarted(turn=4)]
    assert fold_story(*STORY[:13], *more).futile_compactions == 0


def test_a_request_that_is_too_long_is_compacted_and_sent_again() -> None:
    refused = events.ModelFailed(kind="too_long", message="too much")
    assert isinstance(next_step(fold_turn(10, refused), 0.0), Compact)
    done = events.ContextCompacted(kind="summary", through=3, tokens_before=10, tokens_after=5)
    assert next_step(fold_turn(5, refused, done), 0.0) == AskModel(2)
    failed = events.SignalDetected(kind="compaction_failed")
    step = next_step(fold_turn(10, refused, failed), 0.0)
    assert isinstance(step, Record) and "too_long" in step.facts[0].error  # type: ignore[union-attr]


def test_a_failed_compaction_is_not_repeated_in_the_same_turn() -> None:
    assert isinstance(
        next_step(fold_turn(1000, events.SignalDetected(kind="compaction_failed")), 0.0, window=1024), AskModel
    )


def test_an_undone_compaction_restores_all_messages() -> None:
    pruned = events.ContextCompacted(kind="prune", through=7, tokens_before=900, tokens_after=100)
    undo = events.ContextCompacted(kind="undo")
    state = fold_story(*STORY, pruned, undo)
    assert list(Projection().build_messages(state)) == list(Projection().build_messages(fold(STORY)))
    assert (state.tokens, state.compacted) == (900, [])
    one, two = fold_story(*STORY, pruned, pruned, undo), fold_story(*STORY, pruned)
    assert list(Projection().build_messages(one)) == list(Projection().build_messages(two))


# ── any actions of model, tools and people ───────────────────────────────────────────────────────────────────


@settings(max_examples=200)
@given(st.data(), st.sampled_from(LIMITS), st.sampled_from([8, 17, 30, 60]))
def test_every_run_in_a_nearly_full_window_ends_once(data: st.DataObject, limits: Limits, window: int) -> None:
    history = build_history(events.SessionCreated(session_id="s"), message("m1", FIRST))
    session = Simulation(data, history, limits, meddling=3, window=window)
    session.run()
    assert check_runs(session.facts) >= 1 or any(isinstance(fact, events.CancelRequested) for fact in session.facts)
    check_session(session.state)
    check_results(session.facts)
