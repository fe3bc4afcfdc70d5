"""The projection: always valid for the strictest provider, and only growing, whatever the log holds."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.facts import BEGIN, MESSAGE, RUN, TURN, build_cases, message, new_run, result
from tests.kit.simulation import Simulation
from tests.kit.strategies import LIMITS, build_history, facts, fold_story, histories
from tests.kit.strict import check_request
from treadle.engine.context import Projection
from treadle.engine.fold import apply, fold
from treadle.engine.state import OUTCOME_UNKNOWN
from treadle.events import (
    AnyFact,
    CallStatus,
    CancelRequested,
    ContextCompacted,
    EndReason,
    Limits,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    RunFinished,
    SessionCreated,
    SignalDetected,
    SignalKind,
    Truncation,
    TurnStarted,
)
from treadle.messages import (
    Call,
    ImagePart,
    Message,
    Messages,
    ModelMessage,
    Part,
    Request,
    ResultMessage,
    TextPart,
    UserMessage,
    render_parts,
)

Story = tuple[AnyFact | float, ...]

ASK = UserMessage((TextPart("do it"),))
A, B = Call("a", "look"), Call("b", "write", '{"path": "x"}')
CALLS = ModelReplied(text="I look.", calls=(A, B), reasoning="hm", opaque="sig", model="m")
MODEL = ModelMessage("I look.", (A, B), "hm", "sig", "m")
IMAGE: tuple[Part, ...] = (TextPart("what is it?"), ImagePart("aGk="))
ANSWERED = (*BEGIN, ModelReplied(text="One."), RunFinished(run_id="run_1", reason="turn_limit"))
SAID = [ASK, ModelMessage("One.")]
LONG = (*BEGIN, ModelReplied(text="I look.", calls=(A,)), result(A, "x" * 500), TurnStarted(turn=2))  # seqs 1 to 6


def project(*story: AnyFact | float) -> list[Message]:
    return list(Projection().build_messages(fold_story(*story)))


def read_note(message: Message) -> str:
    assert isinstance(message, UserMessage)
    return render_parts(message.parts)


def build_request(projection: Projection, history: list[AnyFact]) -> Request:
    return Request(system="", messages=projection.build_messages(fold(history)))


# ── any log ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stored_call_with_an_id_of_the_clients_conversation_is_left_out_of_requests() -> None:
    earlier = (UserMessage((TextPart("go"),)), ModelMessage("so", (Call("c1", "look"),)))
    first = MessageReceived(id="m1", parts=(TextPart("go on"),), history=earlier)
    story = build_history(
        first, RUN, TURN, ModelReplied(text="I look.", calls=(Call("c1", "look"), Call("c2", "look")))
    )
    request = build_request(Projection(), story)
    check_request(request)
    assert [call.id for one in request.messages if isinstance(one, ModelMessage) for call in one.calls] == ["c1", "c2"]


@settings(max_examples=300)
@given(histories)
def test_the_projection_of_any_facts_is_valid(history: list[AnyFact]) -> None:
    check_request(build_request(Projection(), history))


@given(histories, st.integers(0, 25), st.sampled_from(["prune", "summary"]), st.integers(-1, 60))
def test_the_projection_stays_valid_after_a_compaction_anywhere(
    history: list[AnyFact], place: int, kind: str, through: int
) -> None:
    compacted = ContextCompacted(kind=kind, through=through, summary="in short")  # type: ignore[arg-type]
    check_request(build_request(Projection(), build_history(*history[:place], compacted, *history[place:])))


@given(histories)
def test_one_projection_is_valid_after_each_of_any_facts(history: list[AnyFact]) -> None:
    state, projection = fold([]), Projection()
    for fact in history:
        apply(state, fact)
        check_request(Request(system="", messages=projection.build_messages(state)))


@settings(max_examples=150)
@given(st.data(), histories, st.sampled_from(LIMITS))
def test_each_request_starts_with_the_previous_one_until_a_compaction(
    data: st.DataObject, history: list[AnyFact], limits: Limits
) -> None:
    # The simulation checks every request it makes, and each against the one before.
    session = Simulation(data, history, limits, meddling=4)
    session.run()
    assert session.requests == sum(
        isinstance(fact, ModelReplied | ModelFailed) for fact in session.facts[session.start :]
    )


@settings(max_examples=150)
@given(st.data(), st.sampled_from(LIMITS))
def test_a_new_process_builds_the_same_messages_as_the_old_one(data: st.DataObject, limits: Limits) -> None:
    session = Simulation(data, build_history(SessionCreated(session_id="s"), MESSAGE), limits)
    session.run()
    state, followed = fold([]), Projection()
    for fact in session.facts:
        apply(state, fact)
        # The projection has rendered unfinished entries after earlier facts. It must not keep them.
        assert list(followed.build_messages(state)) == list(Projection().build_messages(state))


@given(st.lists(facts, max_size=20))
def test_a_view_of_the_messages_does_not_change_later(new: list[AnyFact]) -> None:
    state, projection = fold_story(*BEGIN), Projection()
    views: list[tuple[Messages, list[Message]]] = []
    for fact in new:
        view = projection.build_messages(state)
        views.append((view, list(view)))
        apply(state, msgspec.structs.replace(fact, seq=state.seq + 1))
    projection.build_messages(state)
    assert all(list(view) == copy for view, copy in views)


# ── turns, calls and results ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("story", "messages"),
    build_cases(
        results_in_the_order_of_their_calls=(
            (*BEGIN, CALLS, result(B, "written"), result(A, "seen"), TurnStarted(turn=2)),
            [ASK, MODEL, ResultMessage("a", "look", "seen"), ResultMessage("b", "write", "written")],
        ),
        a_call_without_a_result=(
            (*BEGIN, CALLS, result(B, "seen"), RunFinished(run_id="run_1", reason="failed")),
            [ASK, MODEL, ResultMessage("a", "look", OUTCOME_UNKNOWN, ok=False), ResultMessage("b", "write", "seen")],
        ),
        an_image_in_a_later_turn=(
            (
                MessageReceived(id="m1", parts=IMAGE),
                RUN,
                TURN,
                ModelReplied(calls=(A,)),
                result(A),
                TurnStarted(turn=2),
            ),
            [UserMessage(IMAGE), ModelMessage("", (A,)), ResultMessage("a", "look", "done")],
        ),
        a_result_with_parts=(
            (*BEGIN, ModelReplied(calls=(A,)), result(A, "see", parts=IMAGE)),
            [ASK, ModelMessage("", (A,)), ResultMessage("a", "look", "see", True, IMAGE)],
        ),
        a_regenerated_answer=((*ANSWERED, new_run(number=2, trigger="regenerate"), TurnStarted(turn=1)), [ASK]),
        a_summary_of_nothing=((*LONG, ContextCompacted(kind="summary", through=0, summary="Nothing.")), project(*LONG)),
    ),
)
def test_a_conversation_is_projected_in_order(story: Story, messages: list[Message]) -> None:
    assert project(*story) == messages


def test_a_queued_message_is_shown_when_a_turn_promotes_it() -> None:
    story = [*BEGIN, ModelReplied(calls=(A,)), message("m2", "and this"), result(A)]
    assert len(project(*story)) == 3
    assert read_note(project(*story, TurnStarted(turn=2, messages=("m2",)))[-1]) == "and this"


@pytest.mark.parametrize("parts", [(), (TextPart(""),), (TextPart(" \n"), TextPart(""))])
def test_an_empty_message_is_shown_as_a_placeholder(parts: tuple[Part, ...]) -> None:
    assert read_note(project(MessageReceived(id="m1", parts=parts), RUN, TURN)[0]) == "(an empty message)"


@pytest.mark.parametrize(
    ("status", "output", "text", "ok"),
    [
        ("ok", "seen", "seen", True),
        ("ok", "", "(no output)", True),
        ("ok", "\n", "(no output)", True),
        ("error", "exit 1\nno such file", "exit 1\nno such file", False),
        ("denied", "Denied: no.", "Denied: no.", False),
        ("cancelled", "", "(cancelled)", False),
    ],
)
def test_a_result_shows_output_and_status(status: CallStatus, output: str, text: str, ok: bool) -> None:
    messages = project(*BEGIN, ModelReplied(calls=(A,)), result(A, output, status))
    assert messages[-1] == ResultMessage("a", "look", text, ok)


def test_a_cancelled_reply_is_shown_as_broken_off() -> None:
    stopped = ModelFailed(kind="cancelled", message="stopped", partial="It is ")
    later = (message("m2", "go on"), RUN, TurnStarted(turn=1, messages=("m2",)))
    messages = project(*BEGIN, stopped, CancelRequested(), *later)
    assert messages[1] == ModelMessage("It is ") and "broken off" in read_note(messages[2])
    assert read_note(messages[3]) == "go on"


# ── the runtime's notes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("story", "earlier", "words"),
    build_cases(
        an_empty_reply=((*BEGIN, ModelReplied(text=" "), SignalDetected(kind="empty_reply")), [ASK], "was empty"),
        continue_=((*ANSWERED, new_run(number=2, trigger="continue")), SAID, "Go on where you left off."),
        recover=((*ANSWERED, new_run(number=2, trigger="recover")), SAID, "Go on where it stopped."),
    ),
)
def test_a_note_replaces_an_empty_reply_and_starts_a_run_without_a_message(
    story: Story, earlier: list[Message], words: str
) -> None:
    *before, last = project(*story)
    assert before == earlier and words in read_note(last)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("doom_loop", ["repeating the same calls"]),
        ("empty_reply", ["Your reply was empty"]),
        ("invalid_output", ["does not fit"]),
        ("uncertain", []),
        ("stray_calls", ["You cannot call tools now"]),
        ("tool_retry", []),
    ],
)
def test_the_model_reads_a_note_only_on_signals_that_it_can_act_on(kind: SignalKind, words: list[str]) -> None:
    notes = project(*BEGIN, SignalDetected(kind=kind, detail="look, look, look"))[1:]
    for note, text in zip(notes, words, strict=True):
        assert text in read_note(note) and "look, look, look" in read_note(note)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("turn_limit", "all the turns"),
        ("call_limit", "all the tool calls"),
        ("token_limit", "tokens"),
        ("time_limit", "time"),
        ("cost_limit", "money"),
        ("doom_loop", "repeating"),
    ],
)
def test_the_wrap_up_note_names_the_limit(limit: EndReason, words: str) -> None:
    last = read_note(project(*BEGIN, TurnStarted(turn=2, tools=False, wrap_up=limit))[-1])
    assert words in last and "Without tools" in last


# ── compaction ─────────────────────────────────────────────────────────────────────────────────────────────


def test_pruned_output_is_replaced_by_a_short_text() -> None:
    pruned = project(*LONG, ModelReplied(calls=(B,)), result(B, "seen"), ContextCompacted(kind="prune", through=5))
    short = "[500 characters of older output left out; kept whole as artifact a]"
    assert pruned[2] == ResultMessage("a", "look", short)
    assert pruned[4] == ResultMessage("b", "write", "seen")


def test_pruned_output_names_its_artifact() -> None:
    cut = result(A, "x" * 99, truncation=Truncation(99, 9, "art_1"))
    messages = project(*BEGIN, ModelReplied(calls=(A,)), cut, ContextCompacted(kind="prune", through=5))
    assert "kept whole as artifact art_1" in messages[-1].text  # type: ignore[union-attr]


@pytest.mark.parametrize(("through", "kept"), [(3, 2), (4, 2), (5, 0), (6, 0)])
def test_a_summary_replaces_only_whole_turns(through: int, kept: int) -> None:
    messages = project(*LONG, ContextCompacted(kind="summary", through=through, summary="You looked."))
    assert "You looked." in read_note(messages[0]) and len(messages) == 1 + kept
    check_request(Request(system="", messages=messages))


def test_only_the_last_summary_is_shown() -> None:
    one = ContextCompacted(kind="summary", through=3, summary="One.")
    two = ContextCompacted(kind="summary", through=5, summary="Two.")
    [last] = project(*LONG, one, two)
    assert "Two." in read_note(last)


def test_only_a_compaction_replaces_the_render_cache() -> None:
    state, projection = fold_story(*BEGIN), Projection()
    projection.build_messages(state)
    cache = projection.render_cache
    for fact in (ModelReplied(calls=(A,)), result(A), TurnStarted(turn=2)):
        apply(state, fact)
        projection.build_messages(state)
        assert projection.render_cache is cache
    apply(state, ContextCompacted(kind="prune", through=1))
    projection.build_messages(state)
    assert projection.render_cache is not cache


# ── views ──────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 6), st.integers(0, 6), st.slices(8), st.integers(-9, 9))
def test_a_view_equals_a_list_of_its_length(length: int, more: int, cut: slice, index: int) -> None:
    items: list[Message] = [ModelMessage(str(number)) for number in range(length)]
    view, copy = Messages(items), list(items)
    items.extend(ModelMessage("later") for _ in range(more))
    assert list(view) == copy and len(view) == length and view[cut] == copy[cut]
    if -length <= index < length:
        assert view[index] == copy[index]
    else:
        with pytest.raises(IndexError):
            view[index]
