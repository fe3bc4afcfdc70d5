"""The fold: any sequence of facts gives a state, and each fact changes it in its own way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.facts import BEGIN, RUN, approval, build_cases, message, new_run, result, start
from tests.kit.strategies import build_values, fold_story, histories
from treadle.engine.fold import MAX_TRAIL_LENGTH, apply, fold
from treadle.engine.state import State, build_signature
from treadle.events import (
    AgentConfig,
    AnyFact,
    ApprovalAnswered,
    CancelRequested,
    ContextCompacted,
    Custom,
    InputAnswered,
    InputRequested,
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
from treadle.messages import Call, Usage
from treadle.permissions.policy import RememberedAnswer

Story = tuple[AnyFact | float, ...]

TURN = TurnStarted(turn=1)
A, B = Call("a", "write", '{"path": "src/a"}'), Call("b", "write", '{"path": "src/b"}')
REPLY = ModelReplied(calls=(A, B), usage=Usage(10, 4))
CALLED = (RUN, TURN, REPLY)
AUTO, MINE = SessionRenamed(name="auto", by="auto"), SessionRenamed(name="mine", by="user")
YES, NO = ApprovalAnswered(call_id="a", decision="allow"), ApprovalAnswered(call_id="a", decision="deny")
QUESTION = InputRequested(call_id="b", questions=(Question("which?"),))
CREATED = SessionCreated(session_id="s", agent=AgentConfig(name="default"))
CANCEL, END = CancelRequested(by="ann"), RunFinished(run_id="run_1", reason="answered")
AGAIN = new_run(number=2, trigger="regenerate")
TALK = (*BEGIN, ModelReplied(text="one"), END)


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


# ── one fact after another ─────────────────────────────────────────────────────────────────────────────────


def allow(scope: Any, call_id: str = "a") -> ApprovalAnswered:
    return ApprovalAnswered(call_id=call_id, decision="allow", scope=scope, by="ann")


def read(value: Any, path: str) -> Any:
    """Follow a path of attributes and keys, such as `calls.a.answer`."""
    for name in path.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("story", "values"),
    build_cases(
        an_automatic_name=((AUTO,), {"name": "auto"}),
        a_users_name_stays=((MINE, AUTO), {"name": "mine"}),
        a_users_new_name=((AUTO, SessionRenamed(name="old", by="user"), MINE), {"name": "mine"}),
        the_last_agent_and_model=(
            (CREATED, SessionConfigured(model="local"), SessionConfigured(agent="coder")),
            {"agent": "coder", "model": "local"},
        ),
        turns_calls_and_usage=(
            (*CALLED, start(A), result(A), result(B), TURN, REPLY),
            {"run.turns": 2, "run.calls": 1, "run.usage": Usage(20, 8), "usage": Usage(20, 8)},
        ),
        the_usage_of_two_runs=((*CALLED, END, new_run(number=2)), {"usage": Usage(10, 4), "run.usage": Usage()}),
        a_wrap_up_turn_does_not_count=((RUN, TURN, TurnStarted(turn=2, wrap_up="call_limit")), {"run.turns": 1}),
        a_call_that_starts_twice_counts_once=(
            (*CALLED, start(A), start(A, attempt=2)),
            {"run.calls": 1, "calls.a.started.attempt": 2},
        ),
        a_finished_run_leaves_nothing_open=(
            (*CALLED, approval(A), END),
            {"run": None, "turn": None, "pending": [], "last.reason": "answered"},
        ),
        the_first_cancel_request=((RUN, CANCEL, CancelRequested(by="bob")), {"run.cancel.by": "ann"}),
        a_cancelled_request_for_a_run=((RunRequested(trigger="continue"), CANCEL), {"requested": None}),
        an_interrupting_message=((RUN, message("m1", interrupt=True)), {"run.is_interrupted": True}),
        a_queued_message=((RUN, message("m1")), {"run.is_interrupted": False}),
        an_interrupting_message_before_the_run=((message("m1", interrupt=True), RUN), {"run.is_interrupted": False}),
        the_first_result=((*CALLED, result(A, "one"), result(A, "two")), {"calls.a.finished.output": "one"}),
        a_result_for_an_earlier_turn=((*CALLED, TurnStarted(turn=2), result(A)), {"calls.a.finished": None}),
        a_known_call_id_is_no_new_call=(
            (*CALLED, result(A), result(B), TurnStarted(turn=2), ModelReplied(calls=(A, Call("", "x")))),
            {"turn.calls": {}, "calls.a.finished.status": "ok"},
        ),
        an_answer_without_a_question=((*CALLED, allow("session")), {"calls.a.answer": None, "remembered": []}),
        the_first_answer=((*CALLED, approval(A), NO, YES), {"calls.a.answer.decision": "deny"}),
        an_answer_to_a_call_that_is_asked_each_time_is_not_remembered=(
            (*CALLED, approval(A, once=True), approval(B, once=True), allow("tool"), allow("session", "b")),
            {"remembered": [], "pending": []},
        ),
        a_pattern_for_a_call_that_is_asked_each_time=(
            (*CALLED, approval(A, once=True), allow("pattern")),
            {"remembered": []},
        ),
        a_pattern_without_a_rule_remembers_the_tool=(
            (*CALLED, approval(A), allow("pattern")),
            {"remembered": [RememberedAnswer("write", "allow", "ann")]},
        ),
        an_approval_in_advance=(
            (SessionConfigured(approve=("shell",), by="ann"),),
            {"remembered": [RememberedAnswer("shell", "allow", "ann", was_given_beforehand=True)]},
        ),
        an_answer_settles_only_open_questions=(
            (*CALLED, approval(A), approval(B), result(B), allow("session")),
            {"calls.b.answer": None},
        ),
        an_answer_does_not_settle_a_call_that_is_asked_each_time=(
            (*CALLED, approval(A), approval(B, once=True), allow("session")),
            {"calls.b.answer": None},
        ),
        overlapping_waits_count_once=(
            (*CALLED, 10.0, approval(A), 5.0, QUESTION, 5.0, YES, 20.0, InputAnswered(call_id="b", answers=("this",))),
            {"run.waited": 30.0},
        ),
        regenerating_without_a_message=((RUN, TURN, ModelReplied(text="one"), AGAIN), {"entries": []}),
        the_partial_text_of_a_broken_reply=(
            (RUN, TURN, ModelFailed(kind="network", message="broke off", partial="It is ")),
            {"entries": []},
        ),
        a_failure_after_the_reply=((*CALLED, ModelFailed(kind="network", message="late")), {"turn.failed": None}),
        a_rewind_of_files=((*TALK, Rewound(to=1, what="files")), {"entries": fold_story(*TALK).entries}),
    ),
)
def test_a_fact_changes_the_state_in_its_own_way(story: Story, values: dict[str, object]) -> None:
    state = fold_story(*story)
    assert {path: read(state, path) for path in values} == values


def test_the_partial_text_of_a_cancelled_reply_is_an_entry() -> None:
    assert len(fold_story(RUN, TURN, ModelFailed(kind="cancelled", message="stopped", partial="It is ")).entries) == 1


def test_every_compaction_starts_a_new_generation() -> None:
    state = fold_story(ContextCompacted(kind="prune", through=3), ContextCompacted(kind="summary", through=5))
    assert state.generation == 2 and [fact.through for fact in state.compacted] == [3, 5]


def test_messages_wait_until_a_turn_promotes_them() -> None:
    state = fold_story(message("m1"), RUN, message("m2"), message("m3"))
    assert [one.id for one in state.queue] == ["m1", "m2", "m3"] and state.entries == []
    apply(state, TurnStarted(turn=1, messages=("m1", "m3")))
    assert [one.id for one in state.queue] == ["m2"]
    assert [entry.id for entry in state.entries if isinstance(entry, MessageReceived)] == ["m1", "m3"]


def test_the_last_note_of_each_name_is_kept_and_changes_nothing_else() -> None:
    notes = (Custom(name="acme.audit", data=1), Custom(name="other.thing"), Custom(name="acme.audit", data=2))
    state = fold_story(*notes)
    assert state.notes == {"acme.audit": 2, "other.thing": None}
    state.notes.clear()
    assert state == State(seq=3)


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
    assert state.is_held is held
    assert len(state.queue) == sum(isinstance(fact, MessageReceived) for fact in story)


def test_a_turn_is_settled_when_every_call_has_its_result() -> None:
    state = fold_story(RUN, TURN)
    assert state.turn is not None and not state.turn.is_settled
    for fact, settled in ((REPLY, False), (result(A), False), (result(B), True)):
        apply(state, fact)
        assert state.turn.is_settled is settled


def test_questions_are_pending_in_the_order_of_their_calls() -> None:
    state = fold_story(*CALLED, QUESTION, approval(A))
    assert [one.call_id for one in state.pending] == ["a", "b"]
    apply(state, YES)
    assert [one.call_id for one in state.pending] == ["b"]
    apply(state, InputAnswered(call_id="b", answers=("this",)))
    assert state.pending == []


@pytest.mark.parametrize(
    ("scope", "pattern", "pending"),
    [("call", None, ["b", "c"]), ("tool", "write", []), ("pattern", "write(path=src/**)", ["c"]), ("session", "*", [])],
)
def test_an_answer_is_remembered_by_its_scope_and_settles_other_questions(
    scope: str, pattern: str | None, pending: list[str]
) -> None:
    elsewhere = Call("c", "write", '{"path": "etc/c"}')
    asked = (approval(A, "write(path=src/**)"), approval(B), approval(elsewhere))
    state = fold_story(RUN, TURN, ModelReplied(calls=(A, B, elsewhere)), *asked, allow(scope))
    assert state.remembered == ([RememberedAnswer(pattern, "allow", "ann")] if pattern else [])
    assert [question.call_id for question in state.pending] == pending
    assert (state.calls["b"].answer is None) is ("b" in pending)


# ── rewinding and regenerating ─────────────────────────────────────────────────────────────────────────────


def test_a_rewind_hides_later_entries_and_can_be_undone_and_redone() -> None:
    later = (message("m2"), RUN, TurnStarted(turn=1, messages=("m2",)), ModelReplied(text="two"))
    whole, first = fold_story(*TALK, *later).entries, fold_story(*TALK).entries
    assert len(whole) == len(first) + 2
    for positions, entries in (((5,), first), ((5, 9), whole), ((5, 9, 10), first)):
        assert fold_story(*TALK, *later, *(Rewound(to=to) for to in positions)).entries == entries


def test_a_rewind_keeps_whole_turns_and_drops_later_compactions() -> None:
    story = (*TALK[:3], REPLY, result(A), result(B), ContextCompacted(kind="prune", through=6))
    inside = fold_story(*story, Rewound(to=5))
    assert inside.entries == fold_story(*TALK[:3]).entries and inside.compacted == []
    whole = fold_story(*story, Rewound(to=6))
    assert len(whole.entries) == len(inside.entries) + 1 and whole.compacted == []


def test_regenerating_removes_the_entries_after_the_last_message() -> None:
    second = (message("m2"), TurnStarted(turn=2, messages=("m2",)), REPLY, SignalDetected(kind="uncertain"))
    end = (RunFinished(run_id="run_1", reason="failed"), AGAIN)
    state = fold_story(*TALK[:4], *second, *end)
    assert [type(entry).__name__ for entry in state.entries] == ["MessageReceived", "Turn", "MessageReceived"]
    assert state.generation == 1


# ── signals ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_arguments_spelled_differently_are_the_same_call() -> None:
    one, other = Call("a", "look", '{"x": 1, "y": [2]}'), Call("b", "look", '{ "y":[2],"x":1 }')
    assert build_signature(one) == build_signature(other) != build_signature(Call("c", "look", '{"x": 1, "y": [3]}'))
    assert build_signature(one) != build_signature(Call("a", "read", one.arguments))


@pytest.mark.parametrize("text", ["", "nonsense", '{"x":', "[" * 100_000 + "]" * 100_000, '{"x": 1e999}', "9" * 5000])
def test_unreadable_arguments_are_compared_as_text(text: str) -> None:
    assert build_signature(Call("a", "look", text)) == ("look", text)


def test_the_trail_of_calls_is_bounded() -> None:
    calls = tuple(Call(f"c{number}", "look", f'{{"x":{number}}}') for number in range(MAX_TRAIL_LENGTH + 5))
    state = fold_story(RUN, TURN, ModelReplied(calls=calls))
    assert state.run is not None and len(state.run.trail) == MAX_TRAIL_LENGTH
    assert state.run.trail[-1] == ("look", f'{{"x":{MAX_TRAIL_LENGTH + 4}}}')


@pytest.mark.parametrize(
    ("turns", "doomed"), [((0,), False), ((1,), False), ((1, 2), True), ((1, 3), False), ((1, 3, 4), True)]
)
def test_warnings_in_two_consecutive_turns_doom_a_run(turns: tuple[int, ...], doomed: bool) -> None:
    warning = SignalDetected(kind="doom_loop")
    facts = [fact for turn in turns for fact in ((TurnStarted(turn=turn), warning) if turn else (warning,))]
    run = fold_story(RUN, *facts).run
    assert run is not None and run.is_looping is doomed


@pytest.mark.parametrize(("texts", "empty"), [([""], 1), (["", " \n"], 2), (["", "so"], 0), (["", "so", ""], 1)])
def test_empty_replies_are_counted_until_a_reply_has_text(texts: list[str], empty: int) -> None:
    run = fold_story(RUN, *(ModelReplied(text=text) for text in texts)).run
    assert run is not None and run.empty_replies == empty
