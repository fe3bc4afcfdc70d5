"""What a session's facts amount to. Pure: no clock, no I/O, no tools.

`fold(facts)` gives a State and `apply(state, fact)` takes it one fact further. Any sequence of facts
folds, also one that no engine would write. What to do next is in steps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from treadle.engine.token_estimate import MESSAGE_TOKENS, estimate_parts, estimate_text
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
from treadle.messages import Call, Json, Usage
from treadle.permissions.patterns import covers_call, unpin_version
from treadle.permissions.policy import RememberedAnswer

TRAIL = 12
FREED = 0.9
"""A compaction has freed something when the next reply counts less than this share of what there was."""
OUTCOME_UNKNOWN = "Outcome unknown: this call was broken off, and it may have run. Check before you repeat it."


class CallState(Struct):
    """One call and what has become of it."""

    call: Call
    asked: ApprovalRequested | None = None
    answer: ApprovalAnswered | None = None
    input_asked: InputRequested | None = None
    input_answer: InputAnswered | None = None
    started: CallStarted | None = None
    finished: CallFinished | None = None

    @property
    def pending(self) -> ApprovalRequested | InputRequested | None:
        """The question that nobody has answered yet."""
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
        """Whether there is a reply and every call in it has its result: none is `left`."""
        return self.reply is not None and not self.left

    @property
    def last_seq(self) -> int:
        """The position at which the reply and the results so far were whole."""
        seqs = [call.finished.seq for call in self.calls.values() if call.finished is not None]
        return max(seqs, default=self.reply.seq if self.reply is not None else 0)


class RunState(Struct):
    """One run's budget and what it has used; it `began` after so many entries."""

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
"""What the conversation is made of, in order; see context.py for how a model is shown it."""


class PastRun(NamedTuple):
    """The conversation as it was before it was rewound at `seq`."""

    seq: int
    entries: list[Entry]
    compacted: list[ContextCompacted]


class State(Struct):
    """All that is known of a session at one position of its log.

    `tokens` is about what the next request has: the provider's last count, and a guess for what came since. It is
    `counted` from a reply on that came with such a count, until something else is shown than what was counted.
    `crowded` counts the compactions in a row that freed nothing, `touched` the files that calls have changed.
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
        """The questions that wait for a person, in the order of their calls."""
        if self.turn is None:
            return []
        return [call.pending for call in self.turn.calls.values() if call.pending is not None]


def fold(facts: Iterable[AnyFact]) -> State:
    """The state that these facts amount to."""
    state = State()
    for fact in facts:
        apply(state, fact)
    return state


def apply(state: State, fact: AnyFact) -> None:
    """Take `state` one fact further, in place."""
    state.seq = fact.seq
    _APPLY[type(fact)](state, fact)


def _created(state: State, fact: SessionCreated) -> None:
    state.created = fact
    state.agent = fact.agent.name


def _configured(state: State, fact: SessionConfigured) -> None:
    if state.run is not None:  # a run keeps what it began with, also when it is taken up again in the middle
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


def _renamed(state: State, fact: SessionRenamed) -> None:
    if fact.by == "user" or not state.named_by_user:
        state.name, state.named_by_user = fact.name, fact.by == "user"


def _message(state: State, fact: MessageReceived) -> None:
    state.queue.append(fact)
    state.held = False
    if fact.mode == "interrupt" and state.run is not None:
        state.run.interrupted = True


def _requested(state: State, fact: RunRequested) -> None:
    state.requested = fact
    state.held = False


def _cancel(state: State, fact: CancelRequested) -> None:
    if state.run is not None:
        state.run.cancel = state.run.cancel or fact
    state.requested = None
    state.held = bool(state.queue)


def _run_started(state: State, fact: RunStarted) -> None:
    state.turn = None
    state.requested = None
    state.runs += 1
    if fact.trigger == "regenerate":
        last = next((entry for entry in reversed(state.entries) if isinstance(entry, MessageReceived)), None)
        kept = state.entries[: state.entries.index(last) + 1] if last is not None else []
        # A summary that reaches further tells of the answer that is not wanted.
        compacted = [one for one in state.compacted if last is not None and one.through <= last.seq]
        _show_instead(state, kept, compacted)
    elif fact.trigger != "message" and state.entries:  # there is something to go on from
        state.entries.append(fact)
    state.run = RunState(fact.run_id, fact.limits, fact.at, len(state.entries))
    if state.last is not None and state.last.reason == "failed":  # whoever tries again gets a try
        state.crowded = 0


def _turn_started(state: State, fact: TurnStarted) -> None:
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


def _replied(state: State, fact: ModelReplied) -> None:
    turn = state.turn
    if turn is None or turn.reply is not None:
        turn = Turn(0 if turn is None else turn.number)
        state.turn = turn if state.run is not None else None
    turn.reply = fact
    state.entries.append(turn)
    state.usage += fact.usage
    for call in fact.calls:
        if call.id and call.id not in state.calls:  # ids are made unique before they are stored; see reply.py
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


def _failed(state: State, fact: ModelFailed) -> None:
    if state.turn is not None and state.turn.reply is None:
        state.turn.failed = fact
        if fact.kind == "too_long":  # reason enough to try again what may have failed while there was room
            state.turn.signals = tuple(kind for kind in state.turn.signals if kind != "compaction_failed")
        if fact.kind == "cancelled" and fact.partial.strip():
            state.entries.append(fact)
            state.tokens += estimate_entry_tokens(fact)


def _open(state: State, call_id: str) -> CallState | None:
    """The call, while it can still change: what comes for a turn that is over changes nothing."""
    call = state.turn.calls.get(call_id) if state.turn is not None else None
    return call if call is not None and call.finished is None else None


def _approval_requested(state: State, fact: ApprovalRequested) -> None:
    call = _open(state, fact.call_id)
    if call is not None and call.asked is None:
        call.asked = fact


def _approval_answered(state: State, fact: ApprovalAnswered) -> None:
    call = _open(state, fact.call_id)
    if call is None or call.asked is None or call.answer is not None:
        return
    call.answer = fact
    _waited(state, call.asked.at, fact.at)
    if fact.scope == "call" or (call.asked.once and fact.decision == "allow"):
        return
    rule = {"tool": call.asked.rule.partition("(")[0], "pattern": call.asked.rule, "session": "*"}[fact.scope]
    rule = unpin_version(rule) if fact.decision == "deny" else rule  # a no holds whatever the tool becomes
    remembered = RememberedAnswer(rule or call.asked.tool, fact.decision, fact.by)
    state.remembered.append(remembered)
    # The same answer settles what else is being asked, so that one "always" is enough for a whole reply.
    for other in state.turn.calls.values() if state.turn is not None else ():
        if other.asked is not None and other.answer is None and other.finished is None:
            settled = fact.decision == "deny" or not other.asked.once
            if settled and covers_call(unpin_version(remembered.pattern), other.asked.tool, other.asked.arguments):
                other.answer = fact


def _input_requested(state: State, fact: InputRequested) -> None:
    call = _open(state, fact.call_id)
    if call is not None and call.input_asked is None:
        call.input_asked = fact


def _input_answered(state: State, fact: InputAnswered) -> None:
    call = _open(state, fact.call_id)
    if call is not None and call.input_asked is not None and call.input_answer is None:
        call.input_answer = fact
        _waited(state, call.input_asked.at, fact.at)


def _waited(state: State, since: float, until: float) -> None:
    """Time spent waiting for a person does not count against the run's."""
    if state.run is not None:
        since = max(since, state.run.waited_until)
        state.run.waited += max(0.0, until - since)
        state.run.waited_until = max(until, state.run.waited_until)


def _call_started(state: State, fact: CallStarted) -> None:
    call = _open(state, fact.call_id)
    if call is None:
        return
    if call.started is None and state.run is not None:
        state.run.calls += 1
    call.started = fact
    state.used.add(fact.tool)


def _call_finished(state: State, fact: CallFinished) -> None:
    call = _open(state, fact.call_id)
    if call is None or state.turn is None:
        return
    call.finished = fact
    state.turn.left -= 1
    state.tokens += _tokens_of_result(fact)
    state.usage += fact.usage
    if state.run is not None:
        state.run.usage += fact.usage


def _signal(state: State, fact: SignalDetected) -> None:
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


def _compacted(state: State, fact: ContextCompacted) -> None:
    if fact.kind != "undo":
        state.compacted.append(fact)
        state.crowded += 1
        state.tokens = fact.tokens_after or fact.tokens_before or state.tokens
    elif state.compacted:
        state.tokens += state.compacted.pop().spared
        state.crowded = 0
    state.counted = False
    state.generation += 1
    if state.turn is not None and state.turn.reply is None:
        state.turn.compacted_at = fact.seq
    state.usage += fact.usage
    if state.run is not None:
        state.run.usage += fact.usage


def _finished(state: State, fact: RunFinished) -> None:
    state.last = fact
    state.run = state.turn = None
    waiting, state.to_configure = state.to_configure, []
    for configured in waiting:
        _configured(state, configured)


def _rewound(state: State, fact: Rewound) -> None:
    """Show the conversation as it was: whole turns only. What is hidden is kept, for the way back."""
    if fact.what == "files":
        return
    now = PastRun(fact.seq, state.entries, state.compacted)
    then = next((past for past in state.rewound if past.seq > fact.to), now)
    state.rewound.append(now)
    kept = [entry for entry in then.entries if (entry.last_seq if isinstance(entry, Turn) else entry.seq) <= fact.to]
    _show_instead(state, kept, [one for one in then.compacted if one.seq <= fact.to])


def _show_instead(state: State, entries: list[Entry], compacted: list[ContextCompacted]) -> None:
    gone = sum(map(estimate_entry_tokens, state.entries)) - sum(one.spared for one in state.compacted)
    left = sum(map(estimate_entry_tokens, entries)) - sum(one.spared for one in compacted)
    state.tokens, state.counted = max(0, state.tokens - gone + left), False
    state.entries, state.compacted, state.crowded = entries, compacted, 0
    state.generation += 1


def estimate_entry_tokens(entry: Entry) -> int:
    """About what an entry takes in a request that shows it whole."""
    match entry:
        case MessageReceived(parts=parts):
            return MESSAGE_TOKENS + estimate_parts(parts)
        case Turn(reply=reply, calls=calls):
            written = estimate_text(reply.text) if reply is not None else 0
            called = (MESSAGE_TOKENS + estimate_text(call.call.tool + call.call.arguments) for call in calls.values())
            results = (_tokens_of_result(call.finished) for call in calls.values() if call.finished is not None)
            return MESSAGE_TOKENS + written + sum(called) + sum(results)
        case ModelFailed(partial=partial):
            return 2 * MESSAGE_TOKENS + estimate_text(partial)
        case _:
            return MESSAGE_TOKENS


def _tokens_of_result(fact: CallFinished) -> int:
    return MESSAGE_TOKENS + estimate_text(fact.output) + estimate_parts(fact.parts)


def _noted(state: State, fact: Custom) -> None:
    """Mean nothing to the engine; the last of each name is at hand for the tools."""
    state.notes[fact.name] = fact.data


def _kept(state: State, fact: FilesKept) -> None:
    """Files are no part of the conversation, but a summary of it names them."""
    state.touched.update((file.path, None) for file in fact.files)


_APPLY: dict[type, Callable[[State, Any], None]] = {
    SessionCreated: _created,
    SessionRenamed: _renamed,
    MessageReceived: _message,
    RunRequested: _requested,
    CancelRequested: _cancel,
    RunStarted: _run_started,
    TurnStarted: _turn_started,
    ModelReplied: _replied,
    ModelFailed: _failed,
    ApprovalRequested: _approval_requested,
    ApprovalAnswered: _approval_answered,
    InputRequested: _input_requested,
    InputAnswered: _input_answered,
    CallStarted: _call_started,
    CallFinished: _call_finished,
    SignalDetected: _signal,
    ContextCompacted: _compacted,
    RunFinished: _finished,
    SessionConfigured: _configured,
    FilesKept: _kept,
    Rewound: _rewound,
    Custom: _noted,
}


@lru_cache(maxsize=16)  # a call is looked at when its reply comes, and again when the reply is applied
def build_signature(call: Call) -> tuple[str, str]:
    """What makes two calls the same: the tool and its arguments, however they were spelled."""
    try:
        arguments = msgspec.json.decode(call.arguments)
        return call.tool, msgspec.json.encode(arguments, order="sorted").decode()
    except (msgspec.DecodeError, RecursionError):
        return call.tool, call.arguments
