"""Compute the state of a session from its facts. Pure: no clock, no I/O, no tools.

`fold(facts)` returns a State, and `apply(state, fact)` adds one fact to it. Any sequence of facts folds,
even one that the engine would never write. `steps.py` decides what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    CancelRequested,
    ContextCompacted,
    Custom,
    EndReason,
    FilesKept,
    InputAnswered,
    InputRequested,
    Limits,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    Rewound,
    RunFinished,
    RunRequested,
    RunStarted,
    SessionConfigured,
    SessionCreated,
    SessionRenamed,
    SignalDetected,
    TurnStarted,
)
from treadle.messages import MESSAGE_TOKENS, Call, Json, Usage, estimate_parts, estimate_text
from treadle.permissions.patterns import covers_call, unpin_version
from treadle.permissions.policy import RememberedAnswer

TRAIL = 12
FREED = 0.9
"""A compaction has freed room when the next reply counts fewer tokens than this share of the tokens before it."""
OUTCOME_UNKNOWN = "Outcome unknown: this call was broken off, and it may have run. Check before you repeat it."


class CallState(Struct):
    """One call, its questions and answers, and its result."""

    call: Call
    asked: ApprovalRequested | None = None
    answer: ApprovalAnswered | None = None
    input_asked: InputRequested | None = None
    input_answer: InputAnswered | None = None
    started: CallStarted | None = None
    finished: CallFinished | None = None

    @property
    def pending(self) -> ApprovalRequested | InputRequested | None:
        """The question that is not answered yet."""
        if self.finished is not None:
            return None
        if self.asked is not None and self.answer is None:
            return self.asked
        if self.input_asked is not None and self.input_answer is None:
            return self.input_asked
        return None


class Turn(Struct):
    """One model call and the calls in its reply."""

    number: int
    tools: bool = True
    wrap_up: EndReason | None = None
    failed: ModelFailed | None = None
    compacted_at: int = 0
    reply: ModelReplied | None = None
    calls: dict[str, CallState] = {}
    left: int = 0
    signals: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether there is a reply and each of its calls has a result (none is `left`)."""
        return self.reply is not None and not self.left

    @property
    def last_seq(self) -> int:
        """The position of the last result, or of the reply if there is no result."""
        seqs = [call.finished.seq for call in self.calls.values() if call.finished is not None]
        return max(seqs, default=self.reply.seq if self.reply is not None else 0)


class RunState(Struct):
    """The budget of one run and how much of it is used. `began` is the number of entries before the run."""

    id: str
    limits: Limits
    started_at: float
    began: int = 0
    turns: int = 0
    calls: int = 0
    usage: Usage = Usage()
    empty: int = 0
    invalid: int = 0
    warned_at: int | None = None
    waited: float = 0.0
    waited_until: float = 0.0
    doomed: bool = False
    cancel: CancelRequested | None = None
    interrupted: bool = False
    trail: list[tuple[str, str]] = []


Entry: TypeAlias = MessageReceived | Turn | SignalDetected | TurnStarted | ModelFailed | RunStarted
"""The parts of the conversation, in order. context.py turns them into messages."""


class PastRun(NamedTuple):
    """The conversation before the rewind at `seq`."""

    seq: int
    entries: list[Entry]
    compacted: list[ContextCompacted]


class State(Struct):
    """Everything that the log says about a session at one position.

    `tokens` is the estimated size of the next request: the provider's last count, and an estimate of what came after.
    `counted` is true while the provider has counted what the model is shown.
    `crowded` counts the compactions in a row that freed nothing. `touched` has the files that calls changed.
    """

    seq: int = 0
    created: SessionCreated | None = None
    name: str = ""
    named_by_user: bool = False
    agent: str = ""
    model: str = ""
    configured: SessionConfigured | None = None
    to_configure: list[SessionConfigured] = []
    notes: dict[str, Json] = {}
    queue: list[MessageReceived] = []
    held: bool = False
    requested: RunRequested | None = None
    run: RunState | None = None
    turn: Turn | None = None
    runs: int = 0
    last: RunFinished | None = None
    entries: list[Entry] = []
    calls: dict[str, CallState] = {}
    used: set[str] = set()
    remembered: list[RememberedAnswer] = []
    rewound: list[PastRun] = []
    compacted: list[ContextCompacted] = []
    tokens: int = 0
    counted: bool = False
    crowded: int = 0
    touched: dict[str, None] = {}
    generation: int = 0
    usage: Usage = Usage()

    @property
    def pending(self) -> list[ApprovalRequested | InputRequested]:
        """The unanswered questions, in the order of their calls."""
        if self.turn is None:
            return []
        return [call.pending for call in self.turn.calls.values() if call.pending is not None]


def fold(facts: Iterable[AnyFact]) -> State:
    """Compute the state from facts."""
    state = State()
    for fact in facts:
        apply(state, fact)
    return state


def apply(state: State, fact: AnyFact) -> None:
    """Add one fact to `state`, in place."""
    state.seq = fact.seq
    _APPLY_FACT[type(fact)](state, fact)


def _apply_session_fact(state: State, fact: SessionCreated | SessionRenamed | FilesKept | Custom) -> None:
    match fact:
        case SessionCreated():
            state.created, state.agent = fact, fact.agent.name
        case SessionRenamed():
            if fact.by == "user" or not state.named_by_user:
                state.name, state.named_by_user = fact.name, fact.by == "user"
        case FilesKept():  # a summary lists the changed files
            state.touched.update((file.path, None) for file in fact.files)
        case Custom():  # the tools read the last note of each name, but the engine does not
            state.notes[fact.name] = fact.data


def _apply_request(state: State, fact: MessageReceived | RunRequested | CancelRequested) -> None:
    match fact:
        case MessageReceived():
            state.queue.append(fact)
            state.held = False
            if fact.mode == "interrupt" and state.run is not None:
                state.run.interrupted = True
        case RunRequested():
            state.requested, state.held = fact, False
        case CancelRequested():
            if state.run is not None:
                state.run.cancel = state.run.cancel or fact
            state.requested, state.held = None, bool(state.queue)


def _apply_configured(state: State, fact: SessionConfigured) -> None:
    if state.run is not None:  # a run keeps its configuration to its end, even if another process resumes it
        state.to_configure.append(fact)
        return
    state.agent = fact.agent or state.agent
    state.model = fact.model or state.model
    state.remembered.extend(
        RememberedAnswer(pattern, "allow", fact.by, was_given_beforehand=True) for pattern in fact.approve
    )
    before = state.configured or fact
    state.configured = msgspec.structs.replace(
        fact,
        instructions=fact.instructions or before.instructions,
        limits=fact.limits or before.limits,
        approval_ttl=fact.approval_ttl or before.approval_ttl,
    )


def _apply_run_started(state: State, fact: RunStarted) -> None:
    state.turn = state.requested = None
    state.runs += 1
    if fact.trigger == "regenerate":
        last = next((entry for entry in reversed(state.entries) if isinstance(entry, MessageReceived)), None)
        kept = state.entries[: state.entries.index(last) + 1] if last is not None else []
        # A summary that reaches further contains the answer that the user rejected.
        compacted = [fact for fact in state.compacted if last is not None and fact.through <= last.seq]
        _replace_entries(state, kept, compacted)
    elif fact.trigger != "message" and state.entries:
        state.entries.append(fact)
    state.run = RunState(fact.run_id, fact.limits, fact.at, len(state.entries))
    if state.last is not None and state.last.reason == "failed":  # a new run may try compaction again
        state.crowded = 0


def _apply_turn_started(state: State, fact: TurnStarted) -> None:
    state.turn = Turn(fact.turn, fact.tools, fact.wrap_up) if state.run is not None else None
    if fact.messages:
        chosen = set(fact.messages)
        promoted = [message for message in state.queue if message.id in chosen]
        state.entries.extend(promoted)
        state.tokens += sum(map(estimate_entry_tokens, promoted))
        state.queue = [message for message in state.queue if message.id not in chosen]
    if fact.wrap_up is not None:
        state.entries.append(fact)
    elif state.run is not None:
        state.run.turns += 1


def _apply_reply(state: State, fact: ModelReplied) -> None:
    turn = state.turn
    if turn is None or turn.reply is not None:
        turn = Turn(0 if turn is None else turn.number)
        state.turn = turn if state.run is not None else None
    turn.reply = fact
    state.entries.append(turn)
    state.usage += fact.usage
    for call in fact.calls:
        if call.id and call.id not in state.calls:  # reply.py makes ids unique before they are stored
            turn.calls[call.id] = state.calls[call.id] = CallState(call)
    turn.left = len(turn.calls)
    used = fact.usage
    state.tokens = (
        used.input_tokens + used.output_tokens if used.input_tokens else state.tokens + estimate_entry_tokens(turn)
    )
    state.counted = bool(used.input_tokens) and not used.estimated
    if state.crowded and (not state.compacted or state.tokens < FREED * state.compacted[-1].tokens_before):
        state.crowded = 0
    if state.run is not None:
        state.run.usage += fact.usage
        state.run.trail.extend(build_signature(call) for call in fact.calls)
        del state.run.trail[:-TRAIL]
        state.run.empty = 0 if fact.text.strip() or fact.calls else state.run.empty + 1


def _apply_model_failure(state: State, fact: ModelFailed) -> None:
    if state.turn is not None and state.turn.reply is None:
        state.turn.failed = fact
        if fact.kind == "too_long":  # try again a compaction that failed while there was still room
            state.turn.signals = tuple(kind for kind in state.turn.signals if kind != "compaction_failed")
        if fact.kind == "cancelled" and fact.partial.strip():
            state.entries.append(fact)
            state.tokens += estimate_entry_tokens(fact)


def _apply_call_fact(
    state: State,
    fact: ApprovalRequested | ApprovalAnswered | InputRequested | InputAnswered | CallStarted | CallFinished,
) -> None:
    """Apply a fact to a call of the current turn that has no result yet. Facts about other calls change nothing."""
    turn, run = state.turn, state.run
    call = turn.calls.get(fact.call_id) if turn is not None else None
    if turn is None or call is None or call.finished is not None:
        return
    match fact:
        case CallStarted():
            if call.started is None and run is not None:
                run.calls += 1
            call.started = fact
            state.used.add(fact.tool)
        case CallFinished():
            call.finished = fact
            turn.left -= 1
            state.tokens += _estimate_result_tokens(fact)
            state.usage += fact.usage
            if run is not None:
                run.usage += fact.usage
        case ApprovalRequested():
            call.asked = call.asked or fact
        case ApprovalAnswered():
            if call.asked is not None and call.answer is None:
                call.answer = fact
                _add_waiting_time(state, call.asked.at, fact.at)
                _remember_answer(state, call.asked, fact)
        case InputRequested():
            call.input_asked = call.input_asked or fact
        case InputAnswered():
            if call.input_asked is not None and call.input_answer is None:
                call.input_answer = fact
                _add_waiting_time(state, call.input_asked.at, fact.at)


def _remember_answer(state: State, asked: ApprovalRequested, fact: ApprovalAnswered) -> None:
    """Remember an answer for more than one call, and settle the other open questions that it covers."""
    if fact.scope == "call" or (asked.once and fact.decision == "allow"):
        return
    rule = {"tool": asked.rule.partition("(")[0], "pattern": asked.rule, "session": "*"}[fact.scope]
    rule = unpin_version(rule) if fact.decision == "deny" else rule  # a no is valid for every version of the tool
    remembered = RememberedAnswer(rule or asked.tool, fact.decision, fact.by)
    state.remembered.append(remembered)
    for other in state.turn.calls.values() if state.turn is not None else ():
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


def _apply_signal(state: State, fact: SignalDetected) -> None:
    state.entries.append(fact)
    if state.turn is not None:
        state.turn.signals += (fact.kind,)
    run = state.run
    if run is None:
        return
    if fact.kind == "invalid_output":
        run.invalid += 1
    elif fact.kind == "doom_loop":
        number = state.turn.number if state.turn is not None else 0
        run.doomed = run.doomed or run.warned_at == number - 1
        run.warned_at = number


def _apply_compaction(state: State, fact: ContextCompacted) -> None:
    if fact.kind != "undo":
        state.compacted.append(fact)
        state.crowded += 1
        state.tokens = fact.tokens_after or fact.tokens_before or state.tokens
    elif state.compacted:
        state.tokens += state.compacted.pop().saved_tokens
        state.crowded = 0
    state.counted = False
    state.generation += 1
    if state.turn is not None and state.turn.reply is None:
        state.turn.compacted_at = fact.seq
    state.usage += fact.usage
    if state.run is not None:
        state.run.usage += fact.usage


def _apply_run_finished(state: State, fact: RunFinished) -> None:
    state.last = fact
    state.run = state.turn = None
    waiting, state.to_configure = state.to_configure, []
    for configured in waiting:
        _apply_configured(state, configured)


def _apply_rewind(state: State, fact: Rewound) -> None:
    """Return to an earlier conversation, of whole turns only. The hidden entries are kept for a rewind back."""
    if fact.what == "files":
        return
    current = PastRun(fact.seq, state.entries, state.compacted)
    target = next((past for past in state.rewound if past.seq > fact.to), current)
    state.rewound.append(current)
    kept = [entry for entry in target.entries if (entry.last_seq if isinstance(entry, Turn) else entry.seq) <= fact.to]
    _replace_entries(state, kept, [compaction for compaction in target.compacted if compaction.seq <= fact.to])


def _replace_entries(state: State, entries: list[Entry], compacted: list[ContextCompacted]) -> None:
    removed = sum(map(estimate_entry_tokens, state.entries)) - sum(fact.saved_tokens for fact in state.compacted)
    added = sum(map(estimate_entry_tokens, entries)) - sum(fact.saved_tokens for fact in compacted)
    state.tokens, state.counted = max(0, state.tokens - removed + added), False
    state.entries, state.compacted, state.crowded = entries, compacted, 0
    state.generation += 1


def estimate_entry_tokens(entry: Entry) -> int:
    """Estimate the tokens of an entry in a request that has it whole."""
    match entry:
        case MessageReceived(parts=parts):
            return MESSAGE_TOKENS + estimate_parts(parts)
        case Turn(reply=reply, calls=calls):
            written = estimate_text(reply.text) if reply is not None else 0
            called = (MESSAGE_TOKENS + estimate_text(call.call.tool + call.call.arguments) for call in calls.values())
            results = (_estimate_result_tokens(call.finished) for call in calls.values() if call.finished is not None)
            return MESSAGE_TOKENS + written + sum(called) + sum(results)
        case ModelFailed(partial=partial):
            return 2 * MESSAGE_TOKENS + estimate_text(partial)
        case _:
            return MESSAGE_TOKENS


def _estimate_result_tokens(fact: CallFinished) -> int:
    return MESSAGE_TOKENS + estimate_text(fact.output) + estimate_parts(fact.parts)


_APPLY_FACT: dict[type, Callable[[State, Any], None]] = {
    SessionCreated: _apply_session_fact,
    SessionRenamed: _apply_session_fact,
    MessageReceived: _apply_request,
    RunRequested: _apply_request,
    CancelRequested: _apply_request,
    RunStarted: _apply_run_started,
    TurnStarted: _apply_turn_started,
    ModelReplied: _apply_reply,
    ModelFailed: _apply_model_failure,
    ApprovalRequested: _apply_call_fact,
    ApprovalAnswered: _apply_call_fact,
    InputRequested: _apply_call_fact,
    InputAnswered: _apply_call_fact,
    CallStarted: _apply_call_fact,
    CallFinished: _apply_call_fact,
    SignalDetected: _apply_signal,
    ContextCompacted: _apply_compaction,
    RunFinished: _apply_run_finished,
    SessionConfigured: _apply_configured,
    FilesKept: _apply_session_fact,
    Rewound: _apply_rewind,
    Custom: _apply_session_fact,
}


@lru_cache(maxsize=16)  # needed twice: when the reply comes, and when it is applied
def build_signature(call: Call) -> tuple[str, str]:
    """Build a key that is equal for equal calls, however their arguments are formatted."""
    try:
        arguments = msgspec.json.decode(call.arguments)
        return call.tool, msgspec.json.encode(arguments, order="sorted").decode()
    except (msgspec.DecodeError, RecursionError):
        return call.tool, call.arguments
