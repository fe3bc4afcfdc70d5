"""The projection: always valid for the strictest provider, and only growing, whatever the log holds."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.simulation import Simulation
from tests.kit.strategies import LIMITS, build_history, facts, fold_story, histories, stamp_history
from tests.kit.strict import check_growth, check_request
from treadle.engine.context import Projection
from treadle.engine.state import OUTCOME_UNKNOWN, apply, fold
from treadle.events import (
    AnyFact,
    CallFinished,
    CallStatus,
    CancelRequested,
    ContextCompacted,
    EndReason,
    Limits,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    RunFinished,
    RunStarted,
    SessionCreated,
    SignalDetected,
    SignalKind,
    Trigger,
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

RUN = RunStarted(run_id="run_1", limits=Limits())
MESSAGE = MessageReceived(id="m1", parts=(TextPart("do it"),))
ASK = UserMessage((TextPart("do it"),))
TURN = TurnStarted(turn=1, messages=("m1",))
A, B = Call("a", "look"), Call("b", "write", '{"path": "x"}')
START = (MESSAGE, RUN, TURN)
CALLS = ModelReplied(text="I look.", calls=(A, B), reasoning="hm", opaque="sig", model="m")
TOLD = ModelMessage("I look.", (A, B), "hm", "sig", "m")


def ended(call: Call, output: str = "seen", status: CallStatus = "ok") -> CallFinished:
    return CallFinished(call_id=call.id, tool=call.tool, status=status, output=output)


def shown(*story: AnyFact | float) -> list[Message]:
    return list(Projection().build_messages(fold_story(*story)))


def note(message: Message) -> str:
    assert isinstance(message, UserMessage)
    return render_parts(message.parts)


def build_request(projection: Projection, history: list[AnyFact]) -> Request:
    return Request(system="", messages=projection.build_messages(fold(history)))


# ── any log ─────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=300)
@given(histories)
def test_the_projection_of_any_facts_is_valid(history: list[AnyFact]) -> None:
    check_request(build_request(Projection(), history))


@given(histories, st.integers(0, 25), st.sampled_from(["prune", "summary"]), st.integers(-1, 60))
def test_the_projection_stays_valid_after_a_compaction_anywhere(
    history: list[AnyFact], place: int, kind: str, through: int
) -> None:
    compacted = ContextCompacted(kind=kind, through=through, summary="in short")  # type: ignore[arg-type]
    pieces = [([fact], 1.0) for fact in (*history[:place], compacted, *history[place:])]
    check_request(build_request(Projection(), stamp_history(pieces)))


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
    state, projection = fold_story(*START), Projection()
    views: list[tuple[Messages, list[Message]]] = []
    for fact in new:
        view = projection.build_messages(state)
        views.append((view, list(view)))
        apply(state, msgspec.structs.replace(fact, seq=state.seq + 1))
    projection.build_messages(state)
    assert all(list(view) == copy for view, copy in views)


# ── turns, calls and results ───────────────────────────────────────────────────────────────────────────────


def test_a_conversation_is_projected_in_order() -> None:
    after = build_history(*START, CALLS, ended(B, "written"), ended(A), TurnStarted(turn=2))
    results = [ResultMessage("a", "look", "seen"), ResultMessage("b", "write", "written")]
    assert shown(*after) == [ASK, TOLD, *results]


def test_a_queued_message_is_shown_when_a_turn_promotes_it() -> None:
    more = MessageReceived(id="m2", parts=(TextPart("and this"),))
    story = [*START, ModelReplied(calls=(A,)), more, ended(A)]
    assert len(shown(*story)) == 3
    assert note(shown(*story, TurnStarted(turn=2, messages=("m2",)))[-1]) == "and this"


def test_images_stay_with_their_message_in_every_request() -> None:
    parts: tuple[Part, ...] = (TextPart("what is it?"), ImagePart("aGk="))
    story = (MessageReceived(id="m1", parts=parts), RUN, TURN, ModelReplied(calls=(A,)), ended(A), TurnStarted(turn=2))
    assert shown(*story)[0] == UserMessage(parts)


@pytest.mark.parametrize("parts", [(), (TextPart(""),), (TextPart(" \n"), TextPart(""))])
def test_an_empty_message_is_shown_as_a_placeholder(parts: tuple[Part, ...]) -> None:
    assert note(shown(MessageReceived(id="m1", parts=parts), RUN, TURN)[0]) == "(an empty message)"


def test_an_empty_reply_is_replaced_by_a_note() -> None:
    messages = shown(*START, ModelReplied(text=" ", reasoning="hm"), SignalDetected(kind="empty_reply"))
    assert messages[0] == ASK and len(messages) == 2 and "empty" in note(messages[1])


def test_a_call_without_a_result_has_an_unknown_outcome() -> None:
    messages = shown(*START, CALLS, ended(B), RunFinished(run_id="run_1", reason="failed"))
    assert messages[2] == ResultMessage("a", "look", OUTCOME_UNKNOWN, ok=False)
    assert messages[3] == ResultMessage("b", "write", "seen")


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
    messages = shown(*START, ModelReplied(calls=(A,)), ended(A, output, status))
    assert messages[-1] == ResultMessage("a", "look", text, ok)


def test_the_parts_of_a_result_are_shown() -> None:
    result = CallFinished(call_id="a", tool="look", status="ok", output="see", parts=(ImagePart("aGk="),))
    assert shown(*START, ModelReplied(calls=(A,)), result)[-1] == ResultMessage("a", "look", "see", True, result.parts)


def test_a_cancelled_reply_is_shown_as_broken_off() -> None:
    stopped = ModelFailed(kind="cancelled", message="stopped", partial="It is ")
    more = MessageReceived(id="m2", parts=(TextPart("go on"),))
    messages = shown(*START, stopped, CancelRequested(), more, RUN, TurnStarted(turn=1, messages=("m2",)))
    assert messages[1] == ModelMessage("It is ") and "broken off" in note(messages[2]) and note(messages[3]) == "go on"


# ── the runtime's notes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("doom_loop", "repeating the same calls"),
        ("empty_reply", "Your reply was empty"),
        ("invalid_output", "does not fit"),
        ("uncertain", None),
        ("stray_calls", None),
        ("tool_retry", None),
    ],
)
def test_the_model_reads_a_note_only_on_signals_that_it_can_act_on(kind: SignalKind, words: str | None) -> None:
    messages = shown(*START, SignalDetected(kind=kind, detail="look, look, look"))
    assert len(messages) == (1 if words is None else 2)
    if words is not None:
        assert words in note(messages[1]) and "look, look, look" in note(messages[1])


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
    messages = shown(*START, TurnStarted(turn=2, tools=False, wrap_up=limit))
    assert words in note(messages[-1]) and "Without tools" in note(messages[-1])


@pytest.mark.parametrize(
    ("trigger", "words"), [("continue", "Go on where you left off."), ("recover", "Go on where it stopped.")]
)
def test_a_run_without_a_message_starts_with_a_note_to_go_on(trigger: Trigger, words: str) -> None:
    again = RunStarted(run_id="run_2", limits=Limits(), trigger=trigger)
    messages = shown(*START, ModelReplied(text="One."), RunFinished(run_id="run_1", reason="turn_limit"), again)
    assert messages[:2] == [ASK, ModelMessage("One.")] and words in note(messages[2]) and len(messages) == 3


def test_regenerating_hides_the_old_answer() -> None:
    again = RunStarted(run_id="run_2", limits=Limits(), trigger="regenerate")
    end = RunFinished(run_id="run_1", reason="answered")
    assert shown(*START, ModelReplied(text="One."), end, again, TurnStarted(turn=1)) == [ASK]


def test_notes_stay_in_the_messages() -> None:
    state, projection = fold_story(*START), Projection()
    seen = list(projection.build_messages(state))
    for fact in (
        ModelReplied(),
        SignalDetected(kind="empty_reply"),
        TurnStarted(turn=2),
        ModelReplied(text="So."),
        TurnStarted(turn=3, wrap_up="turn_limit"),
    ):
        apply(state, fact)
        request = Request(system="", messages=projection.build_messages(state))
        if isinstance(fact, TurnStarted):
            check_growth(seen, request)
            seen = list(request.messages)
    assert len(seen) == 4


def test_the_models_message_is_never_first_last_or_doubled() -> None:
    messages = shown(RUN, ModelReplied(text="One."), ModelReplied(text="Two."))
    assert [type(message) for message in messages] == [
        UserMessage,
        ModelMessage,
        UserMessage,
        ModelMessage,
        UserMessage,
    ]
    assert len(shown()) == 1 and isinstance(shown()[0], UserMessage)


# ── compaction ─────────────────────────────────────────────────────────────────────────────────────────────

LONG = (*START, ModelReplied(text="I look.", calls=(A,)), ended(A, "x" * 500), TurnStarted(turn=2))  # seqs 1 to 6


def test_pruned_output_is_replaced_by_a_short_text() -> None:
    pruned = shown(*LONG, ModelReplied(calls=(B,)), ended(B), ContextCompacted(kind="prune", through=5))
    assert pruned[2] == ResultMessage(
        "a", "look", "[500 characters of older output left out; kept whole as artifact a]"
    )
    assert pruned[4] == ResultMessage("b", "write", "seen")


def test_pruned_output_names_its_artifact() -> None:
    cut = CallFinished(call_id="a", tool="look", status="ok", output="x" * 99, truncation=Truncation(99, 9, "art_1"))
    messages = shown(*START, ModelReplied(calls=(A,)), cut, ContextCompacted(kind="prune", through=5))
    assert "kept whole as artifact art_1" in messages[-1].text  # type: ignore[union-attr]


def test_a_summary_replaces_only_whole_turns() -> None:
    for through, kept in ((3, 2), (4, 2), (5, 0), (6, 0)):
        summary = ContextCompacted(kind="summary", through=through, summary="You looked.")
        messages = shown(*LONG, summary)
        assert "You looked." in note(messages[0])
        assert len(messages) == 1 + kept, through
        check_request(Request(system="", messages=messages))


def test_a_summary_of_nothing_hides_nothing() -> None:
    assert shown(*LONG, ContextCompacted(kind="summary", through=0, summary="Nothing.")) == shown(*LONG)


def test_only_the_last_summary_is_shown() -> None:
    one = ContextCompacted(kind="summary", through=3, summary="One.")
    two = ContextCompacted(kind="summary", through=5, summary="Two.")
    assert "Two." in note(shown(*LONG, one, two)[0]) and len(shown(*LONG, one, two)) == 1


def test_only_a_compaction_replaces_the_render_cache() -> None:
    state, projection = fold_story(*START), Projection()
    projection.build_messages(state)
    cache = projection.render_cache
    for fact in (ModelReplied(calls=(A,)), ended(A), TurnStarted(turn=2)):
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
