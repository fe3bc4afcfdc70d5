"""Compute the state of a session from its facts. Pure: no clock, no I/O, no tools.

`fold(facts)` returns a State, and `apply(state, fact)` adds one fact to it. Any sequence of facts folds,
even one that the engine would never write. `steps.py` decides what to do next.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, cast

import msgspec

from treadle import events
from treadle.engine.earlier_messages import EarlierMessages
from treadle.engine.hook_result import HOOK_NOTE, HookRecord, read_hook_record
from treadle.engine.state import (
    OWN_ERRORS,
    CallState,
    Entry,
    PastConversation,
    RunState,
    State,
    Turn,
    build_signature,
    estimate_entry_tokens,
    estimate_result_tokens,
)
from treadle.messages import Call, Json, ResultMessage, Usage, is_attached
from treadle.permissions.data_flow import ANSWER, ATTACHMENT, HISTORY, HOOK, MESSAGE, SEEN_NOTE
from treadle.permissions.patterns import covers_call, unpin_version
from treadle.permissions.policy import RememberedAnswer

MAX_TRAIL_LENGTH = 12
FREED_SHARE = 0.9
"""A compaction has freed room when the next reply counts fewer tokens than this share of the tokens before it."""

_CHANGED_AT_ONCE = ("client_tools", "access")
"""The fields of `SessionConfigured` that count during a run too."""

_KEPT_SETTINGS = ("instructions", "limits", "approval_ttl", "web", "sampling", "output_schema", *_CHANGED_AT_ONCE)
"""The fields of `SessionConfigured` that stay until another one sets them."""


def fold(facts: Iterable[events.AnyFact]) -> State:
    """Compute the state from facts."""
    state = State()
    for fact in facts:
        apply(state, fact)
    return state


def apply(state: State, fact: events.AnyFact) -> None:
    """Add one fact to `state`, in place."""
    state.seq = fact.seq
    _APPLY_FACT[type(fact)](state, fact)


async def apply_pieces(
    state: State, pieces: AsyncIterable[Iterable[events.AnyFact]], is_free: Callable[[], bool] = lambda: True
) -> bool:
    """Add facts to `state` as they are read. It ends early, and returns False, when the state is not free any more.

    Several callers may read for the same state at a time.
    """
    async for facts in pieces:
        if not is_free():
            return False
        for fact in facts:
            if fact.seq > state.seq:
                apply(state, fact)
    return True


def _apply_session_fact(
    state: State,
    fact: events.SessionCreated | events.SessionRenamed | events.SessionMarked | events.FilesKept | events.Custom,
) -> None:
    match fact:
        case events.SessionCreated():
            state.created, state.agent = fact, fact.agent.name
            state.seen.update(dict.fromkeys(fact.sources))
        case events.SessionRenamed():
            if fact.by == "user" or not state.named_by_user:
                state.name, state.named_by_user = fact.name, fact.by == "user"
        case events.SessionMarked():
            state.pinned = state.pinned if fact.pinned is None else fact.pinned
            state.archived = state.archived if fact.archived is None else fact.archived
        case events.FilesKept():  # a summary lists the changed files
            state.changed_files.update((file.path, None) for file in fact.files)
        case events.Custom() if fact.name == HOOK_NOTE and (record := read_hook_record(fact.data)) is not None:
            _apply_hook_record(state, record)
        case events.Custom():  # the tools read the last note of each name, but the engine does not
            state.notes[fact.name] = fact.data
            if fact.name.startswith(SEEN_NOTE) and isinstance(fact.data, list):
                state.seen.update(dict.fromkeys(map(str, cast("list[Json]", fact.data))))


def _apply_hook_record(state: State, record: HookRecord) -> None:
    call, run = state.calls.get(record.call_id), state.run
    if record.point == "run_end" and run is not None and run.id == record.run_id:
        run.hooked_turn = record.turn
    elif record.point == "after_tool" and call is not None:
        call.has_after_hooks = True
    elif record.point == "before_tool" and call is not None:
        call.hooked = call.hooked or record


def _apply_request(
    state: State,
    fact: events.MessageReceived
    | events.MessageEdited
    | events.RunRequested
    | events.CancelRequested
    | events.RetryRequested,
) -> None:
    match fact:
        case events.MessageReceived():
            state.queue.append(fact)
            state.seen[MESSAGE] = None
            if any(map(is_attached, fact.parts)):
                state.seen[ATTACHMENT] = None
            if any(isinstance(message, ResultMessage) for message in fact.history):
                state.seen[HISTORY] = None
            state.is_held = False
            if fact.mode == "interrupt" and state.run is not None:
                state.run.is_interrupted = True
        case events.MessageEdited():
            edit_queued_message(state, fact)
        case events.RunRequested():
            state.requested, state.is_held = fact, state.is_held and fact.trigger == "command"
        case events.CancelRequested():
            if state.run is not None:
                state.run.cancel = state.run.cancel or fact
            state.requested, state.is_held = None, bool(state.queue)
        case events.RetryRequested():
            if state.turn is not None and state.turn.retry_at is not None:
                state.turn.is_retry_requested = True


def edit_queued_message(state: State, fact: events.MessageEdited) -> None:
    """Change or withdraw a queued message. One that a run has taken stays as it is."""
    place = next((place for place, message in enumerate(state.queue) if message.id == fact.id), None)
    if place is None:
        return
    if fact.parts:
        state.queue[place] = msgspec.structs.replace(state.queue[place], parts=fact.parts)
        if any(map(is_attached, fact.parts)):
            state.seen[ATTACHMENT] = None
    else:
        del state.queue[place]
        state.is_held = state.is_held and bool(state.queue)


def _apply_configured(state: State, fact: events.SessionConfigured) -> None:
    if state.run is not None:  # a run keeps its configuration to its end, even if another process resumes it
        state.to_configure.append(fact)
        # A client may have other tools when it sends a result, and a person may change the access at any time.
        changed = {name: getattr(fact, name) for name in _CHANGED_AT_ONCE if getattr(fact, name) is not None}
        if changed:
            before = state.configured or events.SessionConfigured()
            state.configured = msgspec.structs.replace(before, seq=fact.seq, **changed)
        return
    state.agent = fact.agent or state.agent
    state.model = fact.model or state.model
    state.remembered.extend(
        RememberedAnswer(pattern, "allow", fact.by, was_given_beforehand=True) for pattern in fact.approve
    )
    before = state.configured or fact
    kept = {name: getattr(before, name) for name in _KEPT_SETTINGS if getattr(fact, name) in (None, "")}
    state.configured = msgspec.structs.replace(fact, **kept)


def _apply_run_fact(state: State, fact: events.RunStarted | events.TurnStarted | events.RunFinished) -> None:
    match fact:
        case events.RunStarted():
            state.turn = state.requested = None
            state.runs += 1
            if fact.trigger == "regenerate":
                last = next(
                    (entry for entry in reversed(state.entries) if isinstance(entry, events.MessageReceived)), None
                )
                kept = state.entries[: state.entries.index(last) + 1] if last is not None else []
                # A summary that reaches further contains the answer that the user rejected.
                compacted = [one for one in state.compacted if last is not None and one.through <= last.seq]
                state.rewound.append(PastConversation(fact.seq, state.entries, state.compacted))
                _replace_entries(state, kept, compacted)
            elif fact.trigger != "message" and state.entries:
                state.entries.append(fact)
            state.run = RunState(fact.run_id, fact.limits, fact.at, len(state.entries), trigger=fact.trigger)
            if state.last is not None and state.last.reason == "failed":  # a new run may try compaction again
                state.futile_compactions = 0
        case events.TurnStarted():
            state.turn = Turn(fact.turn, fact.tools, fact.wrap_up) if state.run is not None else None
            if fact.messages:
                chosen = set(fact.messages)
                promoted: list[Entry] = [message for message in state.queue if message.id in chosen]
                first = promoted[0] if promoted and not state.entries else None
                if isinstance(first, events.MessageReceived) and first.history:
                    promoted.insert(0, EarlierMessages.from_message(first))
                state.entries.extend(promoted)
                state.tokens += sum(map(estimate_entry_tokens, promoted))
                state.queue = [message for message in state.queue if message.id not in chosen]
            if fact.wrap_up is not None:
                state.entries.append(fact)
            elif state.run is not None and fact.turn:
                state.run.turns += 1
            if state.turn is not None and fact.calls:
                state.turn.is_command = True
                _add_reply(state, state.turn, events.ModelReplied(seq=fact.seq, at=fact.at, calls=fact.calls))
                state.tokens += estimate_entry_tokens(state.turn)
        case events.RunFinished():
            state.last = fact
            state.run = state.turn = None
            if fact.reason != "answered" and all(message.mode == "follow_up" for message in state.queue):
                state.is_held = bool(state.queue)
            waiting, state.to_configure = state.to_configure, []
            for configured in waiting:
                _apply_configured(state, configured)


def _apply_model_fact(state: State, fact: events.ModelReplied | events.ModelFailed) -> None:
    turn, run = state.turn, state.run
    if isinstance(fact, events.ModelFailed):
        if turn is not None and turn.reply is None:
            turn.parked_seconds = turn.measure_parked_seconds(fact.at)
            turn.failing_since = turn.failing_since or fact.at
            turn.errors += fact.kind in OWN_ERRORS
            turn.failed, turn.is_retry_requested = fact, False
            if fact.kind == "too_long":  # try again a compaction that failed while there was still room
                turn.signals = tuple(kind for kind in turn.signals if kind != "compaction_failed")
            if fact.kind == "cancelled" and fact.partial.strip():
                state.entries.append(fact)
                state.tokens += estimate_entry_tokens(fact)
        return
    if turn is None or turn.reply is not None:
        turn = Turn(0 if turn is None else turn.number)
        state.turn = turn if run is not None else None
    _add_reply(state, turn, fact)
    used = fact.usage
    state.tokens = (
        used.input_tokens + used.output_tokens if used.input_tokens else state.tokens + estimate_entry_tokens(turn)
    )
    state.is_counted = bool(used.input_tokens) and not used.estimated
    if state.futile_compactions and (
        not state.compacted or state.tokens < FREED_SHARE * state.compacted[-1].tokens_before
    ):
        state.futile_compactions = 0
    if run is not None:
        run.trail.extend(build_signature(call) for call in fact.calls)
        del run.trail[:-MAX_TRAIL_LENGTH]
        run.empty_replies = 0 if fact.text.strip() or fact.calls else run.empty_replies + 1


def _add_reply(state: State, turn: Turn, fact: events.ModelReplied) -> None:
    """Add a reply to its turn and to the conversation, with its calls."""
    turn.reply = fact
    state.entries.append(turn)
    _add_usage(state, fact.usage)
    taken = {"", *state.earlier_ids}
    for call in fact.calls:
        if call.id not in state.calls and call.id not in taken:  # reply.py makes ids unique before they are stored
            turn.calls[call.id] = state.calls[call.id] = CallState(call)
    turn.unfinished_calls = len(turn.calls)
    if fact.sources:
        state.seen.update(dict.fromkeys(fact.sources))
    turn.seen = len(state.seen)


def _apply_call_fact(
    state: State,
    fact: events.ApprovalRequested
    | events.ApprovalAnswered
    | events.InputRequested
    | events.InputAnswered
    | events.CallStarted
    | events.CallFinished,
) -> None:
    """Apply a fact to a call of the current turn that has no result yet. Facts about other calls change nothing."""
    turn, run = state.turn, state.run
    if isinstance(fact, events.ApprovalRequested) and fact.during:
        _add_request(state, fact)
        return
    call = turn.calls.get(fact.call_id) if turn is not None else None
    if turn is not None and call is None and isinstance(fact, events.ApprovalAnswered):
        call = turn.find_request(fact.call_id)
    if turn is None or call is None or call.finished is not None:
        return
    match fact:
        case events.CallStarted():
            if call.started is None and run is not None:
                run.calls += 1
            _end_requests(call, events.CallFinished(call_id=fact.call_id, tool=fact.tool, status="interrupted"))
            call.started = fact
            state.seen[fact.tool] = None
        case events.CallFinished():
            if call.at_client is not None:
                _add_waiting_time(state, call.at_client.at, fact.at)
            call.finished = fact
            _end_requests(call, fact)
            turn.unfinished_calls -= 1
            state.tokens += estimate_result_tokens(fact)
            _add_usage(state, fact.usage)
            if fact.sources:
                state.seen.update(dict.fromkeys(fact.sources))
        case events.ApprovalRequested():
            call.asked = call.asked or fact
        case events.ApprovalAnswered():
            if call.asked is not None and call.answer is None:
                call.answer = fact
                _add_waiting_time(state, call.asked.at, fact.at)
                _remember_answer(state, call.asked, fact)
        case events.InputRequested():
            call.input_asked = call.input_asked or fact
        case events.InputAnswered():
            if call.input_asked is not None and call.input_answer is None:
                call.input_answer = fact
                state.seen[ANSWER] = None
                _add_waiting_time(state, call.input_asked.at, fact.at)


def _add_request(state: State, fact: events.ApprovalRequested) -> None:
    """Add the question of a running call. It is a call of its own in all but its result."""
    running = state.turn.calls.get(fact.during) if state.turn is not None else None
    is_running = running is not None and running.started is not None and running.finished is None
    if running is not None and is_running and fact.call_id not in state.calls:
        request = CallState(Call(fact.call_id, fact.tool, ""), asked=fact)
        state.calls[fact.call_id] = request
        running.requests.append(request)


def _end_requests(call: CallState, result: events.CallFinished) -> None:
    """End the requests of a call. Nobody waits any longer for those that have no answer."""
    for request in call.requests:
        request.finished = request.finished or result


def _remember_answer(state: State, asked: events.ApprovalRequested, fact: events.ApprovalAnswered) -> None:
    """Remember an answer for more than one call, and settle the other open questions that it covers."""
    if fact.scope == "call" or (asked.once and fact.decision == "allow"):
        return
    rule = {"tool": asked.rule.partition("(")[0], "pattern": asked.rule, "session": "*"}[fact.scope]
    rule = unpin_version(rule) if fact.decision == "deny" else rule  # a no is valid for every version of the tool
    remembered = RememberedAnswer(rule or asked.tool, fact.decision, fact.by)
    state.remembered.append(remembered)
    calls = state.turn.calls.values() if state.turn is not None else ()
    for other in (one for call in calls for one in (call, *call.requests)):
        if other.asked is not None and other.answer is None and other.finished is None:
            may_settle = fact.decision == "deny" or not other.asked.once
            if may_settle and covers_call(unpin_version(remembered.pattern), other.asked.tool, other.asked.arguments):
                other.answer = fact


def _add_waiting_time(state: State, since: float, until: float) -> None:
    """Add time that was spent waiting for a person. It does not count against the run's time limit."""
    if state.run is not None:
        since = max(since, state.run.waited_until)
        state.run.waited += max(0.0, until - since)
        state.run.waited_until = max(until, state.run.waited_until)


def _apply_context_fact(state: State, fact: events.SignalDetected | events.ContextCompacted | events.Rewound) -> None:
    turn, run = state.turn, state.run
    match fact:
        case events.SignalDetected():
            state.entries.append(fact)
            if turn is not None:
                turn.signals += (fact.kind,)
            if fact.kind == "hook":
                state.seen[HOOK] = None
                state.tokens += estimate_entry_tokens(fact)
                if run is not None and turn is not None and not turn.calls:
                    run.continues += 1
            elif run is not None and fact.kind == "invalid_output":
                run.invalid_outputs += 1
                if turn is not None and "stray_calls" in turn.signals:
                    run.stray_text = ""
            elif run is not None and fact.kind == "stray_calls":
                run.stray_replies += 1
                said = turn.reply.text.strip() if turn is not None and turn.reply is not None else ""
                run.stray_text = said or run.stray_text
            elif run is not None and fact.kind == "doom_loop":
                number = turn.number if turn is not None else 0
                run.is_looping = run.is_looping or run.warned_at == number - 1
                run.warned_at = number
        case events.ContextCompacted():
            if fact.kind != "undo":
                state.compacted.append(fact)
                state.futile_compactions += 1
                state.tokens = fact.tokens_after or fact.tokens_before or state.tokens
            elif state.compacted:
                state.tokens += state.compacted.pop().saved_tokens
                state.futile_compactions = 0
            state.is_counted = False
            state.generation += 1
            if turn is not None and turn.reply is None:
                turn.compacted_at = fact.seq
            _add_usage(state, fact.usage)
        case events.Rewound(what="conversation" | "both"):
            # The conversation returns to an earlier one, of whole turns. Hidden entries are kept for a rewind back.
            current = PastConversation(fact.seq, state.entries, state.compacted)
            target = next((past for past in state.rewound if past.seq > fact.to), current)
            state.rewound.append(current)
            kept = [entry for entry in target.entries if entry.seq <= fact.to]
            _replace_entries(state, kept, [compaction for compaction in target.compacted if compaction.seq <= fact.to])
        case events.Rewound():
            pass


def _add_usage(state: State, usage: Usage) -> None:
    state.usage += usage
    if state.run is not None:
        state.run.usage += usage


def _replace_entries(state: State, entries: list[Entry], compacted: list[events.ContextCompacted]) -> None:
    removed = sum(map(estimate_entry_tokens, state.entries)) - sum(fact.saved_tokens for fact in state.compacted)
    added = sum(map(estimate_entry_tokens, entries)) - sum(fact.saved_tokens for fact in compacted)
    state.tokens, state.is_counted = max(0, state.tokens - removed + added), False
    state.entries, state.compacted, state.futile_compactions = entries, compacted, 0
    state.generation += 1


_APPLY_FACT: dict[type, Callable[[State, Any], None]] = {
    events.SessionCreated: _apply_session_fact,
    events.SessionRenamed: _apply_session_fact,
    events.SessionMarked: _apply_session_fact,
    events.MessageReceived: _apply_request,
    events.MessageEdited: _apply_request,
    events.RunRequested: _apply_request,
    events.CancelRequested: _apply_request,
    events.RetryRequested: _apply_request,
    events.RunStarted: _apply_run_fact,
    events.TurnStarted: _apply_run_fact,
    events.ModelReplied: _apply_model_fact,
    events.ModelFailed: _apply_model_fact,
    events.ApprovalRequested: _apply_call_fact,
    events.ApprovalAnswered: _apply_call_fact,
    events.InputRequested: _apply_call_fact,
    events.InputAnswered: _apply_call_fact,
    events.CallStarted: _apply_call_fact,
    events.CallFinished: _apply_call_fact,
    events.SignalDetected: _apply_context_fact,
    events.ContextCompacted: _apply_context_fact,
    events.RunFinished: _apply_run_fact,
    events.SessionConfigured: _apply_configured,
    events.FilesKept: _apply_session_fact,
    events.Rewound: _apply_context_fact,
    events.Custom: _apply_session_fact,
}
