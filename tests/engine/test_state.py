"""The fold: any sequence of facts gives a state, and each fact changes it in its own way."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.strategies import build_history, build_values, fold_story, histories
from treadle.engine.state import TRAIL, State, apply, build_signature, fold
from treadle.events import (
    AgentConfig,
    AnyFact,
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    CancelRequested,
    ContextCompacted,
    Custom,
    InputAnswered,
    InputRequested,
    Limits,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    Question,
    Rewound,
    RunFinished,
    RunRequested,
    RunStarted,
    SessionConfigured,
    SessionCreated,
    SessionRenamed,
    SignalDetected,
    TurnStarted,
    decode_fact,
    serialize_event,
)
from treadle.messages import Call, TextPart, Usage
from treadle.permissions.policy import RememberedAnswer

RUN = RunStarted(run_id="run_1", limits=Limits())
TURN = TurnStarted(turn=1)
A, B = Call("a", "write", '{"path": "src/a"}'), Call("b", "write", '{"path": "src/b"}')
REPLY = ModelReplied(calls=(A, B), usage=Usage(10, 4))


def message(id: str, text: str = "do it", *, interrupt: bool = False) -> MessageReceived:
    return MessageReceived(id=id, parts=(TextPart(text),), mode="interrupt" if interrupt else "queue")


def asked(call: Call, rule: str = "") -> ApprovalRequested:
    arguments = msgspec.json.decode(call.arguments)
    return ApprovalRequested(call_id=call.id, tool=call.tool, arguments=arguments, safety="caution", why="", rule=rule)


def ended(call: Call, output: str = "done") -> CallFinished:
    return CallFinished(call_id=call.id, tool=call.tool, status="ok", output=output)


# ── any facts in any order ─────────────────────────────────────────────────────────────────────────────────


@given(histories)
def test_any_facts_in_any_order_fold(history: list[AnyFact]) -> None:
    state = fold(history)
    assert state.seq == len(history)
    assert (state.turn is None) or (state.run is not None)
    assert state.runs == sum(isinstance(fact, RunStarted) for fact in history)


@given(st.lists(st.one_of([build_values(kind) for kind in AnyFact.__args__]), max_size=8))
def test_facts_with_any_values_fold(history: list[AnyFact]) -> None:
    assert fold(history).seq == (history[-1].seq if history else 0)


@given(histories, st.integers(0, 25))
def test_applying_facts_one_by_one_equals_folding_them_all(history: list[AnyFact], place: int) -> None:
    state = fold(history[:place])
    for fact in history[place:]:
        apply(state, decode_fact(serialize_event(fact)))
    assert state == fold(history)


@given(histories)
def test_folding_does_not_change_the_facts(history: list[AnyFact]) -> None:
    before = [serialize_event(fact) for fact in history]
    fold(history)
    assert [serialize_event(fact) for fact in history] == before


@given(histories)
def test_a_call_has_at_most_one_result_question_and_answer(history: list[AnyFact]) -> None:
    state, known = State(), dict[tuple[str, str], object]()
    for fact in history:
        apply(state, fact)
        for id, call in state.calls.items():
            assert id == call.call.id != ""
            assert call.pending is None or call.finished is None
            for what in ("asked", "answer", "input_asked", "input_answer", "finished"):
                now = getattr(call, what)
                assert known.setdefault((id, what), now) in (None, now)
                known[id, what] = now
    assert {question.call_id for question in state.pending} <= set(state.calls)


def test_no_facts_give_an_empty_state() -> None:
    assert fold([]) == State()


# ── names, messages and runs ───────────────────────────────────────────────────────────────────────────────


def test_a_name_chosen_by_a_user_is_never_overwritten() -> None:
    auto, user = SessionRenamed(name="auto", by="auto"), SessionRenamed(name="mine", by="user")
    assert fold([auto]).name == "auto"
    assert fold([user, auto]).name == "mine"
    assert fold([auto, user, SessionRenamed(name="new", by="user")]).name == "new"


def test_messages_wait_until_a_turn_promotes_them() -> None:
    state = fold_story(message("m1"), RUN, message("m2"), message("m3"))
    assert [one.id for one in state.queue] == ["m1", "m2", "m3"] and state.entries == []
    apply(state, TurnStarted(turn=1, messages=("m1", "m3")))
    assert [one.id for one in state.queue] == ["m2"]
    assert [entry.id for entry in state.entries if isinstance(entry, MessageReceived)] == ["m1", "m3"]


def test_a_run_counts_turns_calls_and_usage() -> None:
    state = fold(
        build_history(RUN, TURN, REPLY, CallStarted(call_id="a", tool="write"), ended(A), ended(B), TURN, REPLY)
    )
    assert state.run is not None
    assert (state.run.turns, state.run.calls, state.run.usage) == (2, 1, Usage(20, 8))
    assert state.usage == Usage(20, 8)


def test_a_session_sums_the_usage_of_its_runs() -> None:
    again = RunStarted(run_id="run_2", limits=Limits())
    state = fold_story(RUN, TURN, REPLY, RunFinished(run_id="run_1", reason="answered"), again)
    assert state.usage == Usage(10, 4) and state.run is not None and state.run.usage == Usage()


def test_the_wrap_up_turn_does_not_count() -> None:
    state = fold_story(RUN, TURN, TurnStarted(turn=2, tools=False, wrap_up="call_limit"))
    assert state.run is not None and state.run.turns == 1


def test_a_call_that_starts_twice_counts_once() -> None:
    once, twice = CallStarted(call_id="a", tool="write"), CallStarted(call_id="a", tool="write", attempt=2)
    state = fold_story(RUN, TURN, REPLY, once, twice)
    assert state.run is not None and state.run.calls == 1
    assert state.calls["a"].started is not None and state.calls["a"].started.attempt == 2


def test_a_finished_run_leaves_nothing_open() -> None:
    end = RunFinished(run_id="run_1", reason="failed")
    state = fold_story(RUN, TURN, REPLY, asked(A), end)
    assert (state.run, state.turn, state.pending) == (None, None, [])
    assert state.last is not None and state.last.reason == "failed"


def test_the_last_note_of_each_name_is_kept_and_changes_nothing_else() -> None:
    state = fold(
        build_history(Custom(name="acme.audit", data=1), Custom(name="other.thing"), Custom(name="acme.audit", data=2))
    )
    assert state.notes == {"acme.audit": 2, "other.thing": None}
    state.notes.clear()
    assert state == State(seq=3)


def test_the_last_configured_agent_and_model_are_used() -> None:
    created = SessionCreated(session_id="s", agent=AgentConfig(name="default"))
    state = fold_story(created, SessionConfigured(model="local"), SessionConfigured(agent="coder"))
    assert (state.agent, state.model) == ("coder", "local")


# ── rewinding ──────────────────────────────────────────────────────────────────────────────────────────────

TALK = (
    message("m1"),
    RUN,
    TurnStarted(turn=1, messages=("m1",)),
    ModelReplied(text="one"),
    RunFinished(run_id="run_1", reason="answered"),
)


def test_a_rewind_hides_later_entries_and_can_be_undone_and_redone() -> None:
    later = (message("m2"), RUN, TurnStarted(turn=1, messages=("m2",)), ModelReplied(text="two"))
    before = fold_story(*TALK, *later).entries
    assert len(before) == len(fold_story(*TALK).entries) + 2
    back = build_history(*TALK, *later, Rewound(to=5))
    assert fold(back).entries == fold_story(*TALK).entries
    undone = build_history(*TALK, *later, Rewound(to=5), Rewound(to=9))
    assert fold(undone).entries == before
    again = build_history(*TALK, *later, Rewound(to=5), Rewound(to=9), Rewound(to=10))
    assert fold(again).entries == fold(back).entries


def test_a_rewind_keeps_whole_turns_and_drops_later_compactions() -> None:
    story = (*TALK[:3], REPLY, ended(A), ended(B), ContextCompacted(kind="prune", through=6))
    inside = fold_story(*story, Rewound(to=5))
    assert inside.entries == fold_story(*TALK[:3]).entries and inside.compacted == []
    whole = fold_story(*story, Rewound(to=6))
    assert len(whole.entries) == len(inside.entries) + 1 and whole.compacted == []


def test_a_rewind_of_files_does_not_change_the_conversation() -> None:
    assert fold_story(*TALK, Rewound(to=1, what="files")).entries == fold_story(*TALK).entries


# ── cancelling and interrupting ────────────────────────────────────────────────────────────────────────────


def test_the_first_cancel_request_counts() -> None:
    state = fold_story(RUN, CancelRequested(by="ann"), CancelRequested(by="bob"))
    assert state.run is not None and state.run.cancel is not None and state.run.cancel.by == "ann"


@pytest.mark.parametrize(
    ("story", "held"),
    [
        ((message("m1"), CancelRequested()), True),
        ((message("m1"), CancelRequested(), message("m2")), False),
        ((message("m1"), CancelRequested(), RunRequested(trigger="continue")), False),
        ((CancelRequested(),), False),
    ],
    ids=["queued message", "new message", "requested run", "empty queue"],
)
def test_cancelling_holds_queued_messages_until_somebody_acts(story: tuple[AnyFact, ...], held: bool) -> None:
    state = fold_story(*story)
    assert state.held is held
    assert len(state.queue) == sum(isinstance(fact, MessageReceived) for fact in story)


def test_cancelling_removes_a_requested_run() -> None:
    assert fold_story(RunRequested(trigger="continue"), CancelRequested()).requested is None


def test_only_an_interrupting_message_during_a_run_interrupts() -> None:
    def interrupted(*story: AnyFact | float) -> bool:
        run = fold_story(*story).run
        return run is not None and run.interrupted

    assert interrupted(RUN, message("m1", interrupt=True))
    assert not interrupted(RUN, message("m1"))
    assert not interrupted(message("m1", interrupt=True), RUN)


# ── calls, questions and answers ───────────────────────────────────────────────────────────────────────────


def test_the_first_result_of_a_call_counts() -> None:
    state = fold_story(RUN, TURN, REPLY, ended(A, "first"), ended(A, "second"))
    assert state.calls["a"].finished is not None and state.calls["a"].finished.output == "first"


def test_a_result_for_an_earlier_turn_changes_nothing() -> None:
    state = fold_story(RUN, TURN, REPLY, TurnStarted(turn=2), ended(A))
    assert state.calls["a"].finished is None


def test_a_known_call_id_is_no_new_call() -> None:
    state = fold(
        build_history(RUN, TURN, REPLY, ended(A), ended(B), TurnStarted(turn=2), ModelReplied(calls=(A, Call("", "x"))))
    )
    assert state.turn is not None and state.turn.calls == {}
    assert state.calls["a"].finished is not None


def test_a_turn_is_settled_when_every_call_has_its_result() -> None:
    state = fold_story(RUN, TURN)
    assert state.turn is not None and not state.turn.is_settled
    for fact, settled in ((REPLY, False), (ended(A), False), (ended(B), True)):
        apply(state, fact)
        assert state.turn.is_settled is settled


def test_questions_are_pending_in_the_order_of_their_calls() -> None:
    question = InputRequested(call_id="a", questions=(Question("which?"),))
    state = fold_story(RUN, TURN, REPLY, asked(B), question)
    assert [one.call_id for one in state.pending] == ["a", "b"]
    apply(state, InputAnswered(call_id="a", answers=("this",)))
    assert [one.call_id for one in state.pending] == ["b"]
    apply(state, ApprovalAnswered(call_id="b", decision="allow"))
    assert state.pending == []


def test_an_answer_without_a_question_changes_nothing() -> None:
    state = fold_story(RUN, TURN, REPLY, ApprovalAnswered(call_id="a", decision="allow", scope="session"))
    assert state.calls["a"].answer is None and state.remembered == []


def test_the_first_answer_counts() -> None:
    yes, no = ApprovalAnswered(call_id="a", decision="allow"), ApprovalAnswered(call_id="a", decision="deny")
    state = fold_story(RUN, TURN, REPLY, asked(A), no, yes)
    assert state.calls["a"].answer is not None and state.calls["a"].answer.decision == "deny"


@pytest.mark.parametrize(
    ("scope", "pattern", "settles_sibling"),
    [("call", None, False), ("tool", "write", True), ("pattern", "write(path=src/**)", True), ("session", "*", True)],
)
def test_an_answer_is_remembered_by_its_scope_and_settles_other_questions(
    scope: str, pattern: str | None, settles_sibling: bool
) -> None:
    answer = ApprovalAnswered(call_id="a", decision="allow", scope=scope, by="ann")  # type: ignore[arg-type]
    state = fold_story(RUN, TURN, REPLY, asked(A, "write(path=src/**)"), asked(B), answer)
    assert state.remembered == ([RememberedAnswer(pattern, "allow", "ann")] if pattern else [])
    assert (state.calls["b"].answer is not None) is settles_sibling
    assert state.pending == [] or not settles_sibling


def test_an_answer_for_a_pattern_does_not_settle_other_calls() -> None:
    elsewhere = Call("c", "write", '{"path": "etc/c"}')
    answer = ApprovalAnswered(call_id="a", decision="allow", scope="pattern")
    story = build_history(
        RUN, TURN, ModelReplied(calls=(A, elsewhere)), asked(A, "write(path=src/**)"), asked(elsewhere), answer
    )
    assert [one.call_id for one in fold(story).pending] == ["c"]


def test_one_always_does_not_settle_calls_that_are_asked_each_time() -> None:
    answer = ApprovalAnswered(call_id="a", decision="allow", scope="session")
    story = build_history(RUN, TURN, REPLY, asked(A), msgspec.structs.replace(asked(B), once=True), answer)
    assert [one.call_id for one in fold(story).pending] == ["b"]


def test_an_answer_settles_only_open_questions() -> None:
    answer = ApprovalAnswered(call_id="a", decision="deny", scope="session")
    state = fold_story(RUN, TURN, REPLY, asked(A), asked(B), ended(B), answer)
    assert state.calls["b"].answer is None


def test_a_pattern_without_a_rule_remembers_the_tool() -> None:
    answer = ApprovalAnswered(call_id="a", decision="deny", scope="pattern")
    assert fold_story(RUN, TURN, REPLY, asked(A), answer).remembered == [RememberedAnswer("write", "deny")]


def test_approvals_in_advance_are_remembered() -> None:
    state = fold_story(SessionConfigured(approve=("shell",), by="ann"))
    assert state.remembered == [RememberedAnswer("shell", "allow", "ann", was_given_beforehand=True)]


def test_overlapping_waits_for_people_are_counted_once() -> None:
    question = InputRequested(call_id="b", questions=(Question("which?"),))
    yes = ApprovalAnswered(call_id="a", decision="allow")
    no_hurry = InputAnswered(call_id="b", answers=("this",))
    state = fold_story(RUN, TURN, REPLY, 10.0, asked(A), 5.0, question, 5.0, yes, 20.0, no_hurry)
    assert state.run is not None and state.run.waited == 30.0


# ── signals ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_arguments_spelled_differently_are_the_same_call() -> None:
    one, other = Call("a", "look", '{"x": 1, "y": [2]}'), Call("b", "look", '{ "y":[2],"x":1 }')
    assert build_signature(one) == build_signature(other) != build_signature(Call("c", "look", '{"x": 1, "y": [3]}'))
    assert build_signature(one) != build_signature(Call("a", "read", one.arguments))


@pytest.mark.parametrize("text", ["", "nonsense", '{"x":', "[" * 100_000 + "]" * 100_000, '{"x": 1e999}', "9" * 5000])
def test_unreadable_arguments_are_compared_as_text(text: str) -> None:
    assert build_signature(Call("a", "look", text)) == ("look", text)


def test_the_trail_of_calls_is_bounded() -> None:
    calls = tuple(Call(f"c{number}", "look", f'{{"x":{number}}}') for number in range(TRAIL + 5))
    state = fold_story(RUN, TURN, ModelReplied(calls=calls))
    assert state.run is not None and len(state.run.trail) == TRAIL
    assert state.run.trail[-1] == ("look", f'{{"x":{TRAIL + 4}}}')


@pytest.mark.parametrize(
    ("turns", "doomed"), [((0,), False), ((1,), False), ((1, 2), True), ((1, 3), False), ((1, 3, 4), True)]
)
def test_warnings_in_two_consecutive_turns_doom_a_run(turns: tuple[int, ...], doomed: bool) -> None:
    warning = SignalDetected(kind="doom_loop")
    facts = [fact for turn in turns for fact in ((TurnStarted(turn=turn), warning) if turn else (warning,))]
    run = fold_story(RUN, *facts).run
    assert run is not None and run.doomed is doomed


def test_empty_replies_are_counted_until_a_reply_has_text() -> None:
    def empty(*texts: str) -> int:
        run = fold_story(RUN, *(ModelReplied(text=text) for text in texts)).run
        assert run is not None
        return run.empty

    assert [empty(""), empty("", " \n"), empty("", "so"), empty("", "so", "")] == [1, 2, 0, 1]


# ── the entries of the conversation ───────────────────────────────────────────────────────────────────────


def test_regenerating_removes_the_entries_after_the_last_message() -> None:
    again = RunStarted(run_id="run_2", limits=Limits(), trigger="regenerate")
    first, second = TurnStarted(turn=1, messages=("m1",)), TurnStarted(turn=2, messages=("m2",))
    story = build_history(message("m1"), RUN, first, ModelReplied(text="one"), message("m2"), second, REPLY)
    end = build_history(*story, SignalDetected(kind="uncertain"), RunFinished(run_id="run_1", reason="failed"), again)
    state = fold(end)
    assert [type(entry).__name__ for entry in state.entries] == ["MessageReceived", "Turn", "MessageReceived"]
    assert state.generation == 1


def test_regenerating_without_a_message_removes_everything() -> None:
    again = RunStarted(run_id="run_2", limits=Limits(), trigger="regenerate")
    assert fold_story(RUN, TURN, ModelReplied(text="one"), again).entries == []


def test_the_partial_text_of_a_cancelled_reply_is_an_entry() -> None:
    stopped = ModelFailed(kind="cancelled", message="stopped", partial="It is ")
    broken = ModelFailed(kind="network", message="broke off", partial="It is ")
    assert len(fold_story(RUN, TURN, stopped).entries) == 1
    assert len(fold_story(RUN, TURN, broken).entries) == 0


def test_a_failure_after_the_reply_changes_nothing() -> None:
    state = fold_story(RUN, TURN, REPLY, ModelFailed(kind="network", message="late"))
    assert state.turn is not None and state.turn.failed is None


def test_every_compaction_starts_a_new_generation() -> None:
    state = fold_story(ContextCompacted(kind="prune", through=3), ContextCompacted(kind="summary", through=5))
    assert state.generation == 2 and [fact.through for fact in state.compacted] == [3, 5]
