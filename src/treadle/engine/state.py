"""What the log says about a session: its calls, turns, runs and conversation. Values only.

`fold.py` computes a State from facts. `steps.py` decides what to do next.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from treadle import events
from treadle.engine.earlier_messages import EarlierMessages
from treadle.engine.hook_result import HookRecord
from treadle.errors import describe_wait
from treadle.messages import MESSAGE_TOKENS, Call, Json, ModelMessage, Usage, estimate_parts, estimate_text
from treadle.permissions.policy import RememberedAnswer

_NO_IDS: Set[str] = frozenset()
MAX_PAUSE_SECONDS = 60.0
"""A run that waits longer for its provider is parked: no process keeps it meanwhile."""
OWN_ERRORS = frozenset(("internal", "stalled"))
"""Errors of the model itself, which waiting hardly heals. A turn is tried a few times after them."""
OUTCOME_UNKNOWN = "Outcome unknown: this call was broken off, and it may have run. Check before you repeat it."


class CallState(Struct):
    """One call, its questions and answers, and its result.

    `requests` are what it asked for while it was running, such as a host. Each of them has a question and an answer,
    and ends when the call ends. `hooked` is what hooks said before it, and `has_after_hooks` that they ran after it.
    """

    call: Call
    asked: events.ApprovalRequested | None = None
    answer: events.ApprovalAnswered | None = None
    input_asked: events.InputRequested | None = None
    input_answer: events.InputAnswered | None = None
    started: events.CallStarted | None = None
    finished: events.CallFinished | None = None
    requests: list[CallState] = []
    hooked: HookRecord | None = None
    has_after_hooks: bool = False

    @property
    def pending(self) -> events.ApprovalRequested | events.InputRequested | None:
        """The question that is not answered yet."""
        if self.finished is not None:
            return None
        if self.asked is not None and self.answer is None:
            return self.asked
        if self.input_asked is not None and self.input_answer is None:
            return self.input_asked
        return None

    @property
    def at_client(self) -> events.CallStarted | None:
        """The start of a call that the client runs, until its result is known."""
        is_open = self.finished is None and self.started is not None and self.started.sandbox == events.CLIENT_SANDBOX
        return self.started if is_open else None


class Turn(Struct):
    """One model call and the calls in its reply.

    `failing_since` is when the model failed first, and `errors` counts its failures by an error of its own.
    `parked_seconds` is how long the run was parked between these failures. `seen` counts the sources of the session
    when the model wrote the reply. A turn that `is_command` has a call of a person: then no model wrote the reply.
    """

    number: int
    tools: bool = True
    wrap_up: events.EndReason | None = None
    failed: events.ModelFailed | None = None
    failing_since: float = 0.0
    parked_seconds: float = 0.0
    errors: int = 0
    is_retry_requested: bool = False
    compacted_at: int = 0
    reply: events.ModelReplied | None = None
    calls: dict[str, CallState] = {}
    seen: int = 0
    unfinished_calls: int = 0
    signals: tuple[str, ...] = ()
    is_command: bool = False

    def find_request(self, request_id: str) -> CallState | None:
        """Find a request of one of the calls by its id."""
        requests = (request for call in self.calls.values() for request in call.requests)
        return next((request for request in requests if request.call.id == request_id), None)

    @property
    def is_settled(self) -> bool:
        """Whether there is a reply and each of its calls has a result."""
        return self.reply is not None and not self.unfinished_calls

    @property
    def retry_at(self) -> float | None:
        """When the model is asked again, if the turn waits for its provider."""
        if self.reply is not None or self.failed is None or self.failed.wait is None or self.is_retry_requested:
            return None
        return self.failed.at + self.failed.wait

    def describe_failure(self) -> str:
        """Describe why the model gave no reply. Empty if it has not failed."""
        failed, gave_up = self.failed, ""
        if failed is None:
            return ""
        if failed.retryable and failed.attempt > 1:
            gave_up = f" (gave up after {failed.attempt} attempts in {describe_wait(failed.at - self.failing_since)})"
        return f"{failed.kind}: {failed.message}{gave_up}"

    def measure_parked_seconds(self, until: float) -> float:
        """Measure how long the run was parked in this turn, up to the end of its last wait."""
        failed = self.failed
        is_parked = failed is not None and failed.wait is not None and failed.wait > MAX_PAUSE_SECONDS
        return self.parked_seconds + (max(0.0, until - failed.at) if failed is not None and is_parked else 0.0)

    @property
    def seq(self) -> int:
        """The position of the last result, or of the reply if there is no result."""
        seqs = [call.finished.seq for call in self.calls.values() if call.finished is not None]
        return max(seqs, default=self.reply.seq if self.reply is not None else 0)


class RunState(Struct):
    """The budget of one run and how much of it is used. `is_looping` means that it repeats calls despite a warning.

    `stray_replies` counts the replies that called a tool although none was offered. `stray_text` is their last text.
    `trigger` is why it started. `continues` counts how often hooks continued it. `hooked_turn` is the turn at whose
    end hooks ran last.
    """

    id: str
    limits: events.Limits
    started_at: float
    entries_before: int = 0
    turns: int = 0
    calls: int = 0
    usage: Usage = Usage()
    empty_replies: int = 0
    invalid_outputs: int = 0
    stray_replies: int = 0
    stray_text: str = ""
    continues: int = 0
    hooked_turn: int = -1
    warned_at: int | None = None
    waited: float = 0.0
    waited_until: float = 0.0
    is_looping: bool = False
    cancel: events.CancelRequested | None = None
    is_interrupted: bool = False
    trigger: events.Trigger = "message"
    trail: list[tuple[str, str]] = []


Entry: TypeAlias = (
    EarlierMessages
    | events.MessageReceived
    | Turn
    | events.SignalDetected
    | events.TurnStarted
    | events.ModelFailed
    | events.RunStarted
)
"""The parts of the conversation, in order. context.py turns them into messages."""


class PastConversation(NamedTuple):
    """The conversation before the rewind or the regeneration at `seq`."""

    seq: int
    entries: list[Entry]
    compacted: list[events.ContextCompacted]


class State(Struct):
    """Everything that the log says about a session at one position.

    `tokens` is the estimated size of the next request: the provider's last count, and an estimate of what came after.
    `is_counted` is true while the provider has counted the whole context. `futile_compactions` counts the compactions
    in a row that freed nothing. `is_held` means that queued messages wait for the next message: after a cancel, and
    follow-ups after every run without an answer. `seen` has the sources of all text that the session knows, in order:
    names of tools and of `data_flow.SOURCES`.
    """

    seq: int = 0
    created: events.SessionCreated | None = None
    name: str = ""
    named_by_user: bool = False
    pinned: bool = False
    archived: bool = False
    agent: str = ""
    model: str = ""
    configured: events.SessionConfigured | None = None
    to_configure: list[events.SessionConfigured] = []
    notes: dict[str, Json] = {}
    queue: list[events.MessageReceived] = []
    is_held: bool = False
    requested: events.RunRequested | None = None
    run: RunState | None = None
    turn: Turn | None = None
    runs: int = 0
    last: events.RunFinished | None = None
    entries: list[Entry] = []
    calls: dict[str, CallState] = {}
    seen: dict[str, None] = {}
    remembered: list[RememberedAnswer] = []
    rewound: list[PastConversation] = []
    compacted: list[events.ContextCompacted] = []
    tokens: int = 0
    is_counted: bool = False
    futile_compactions: int = 0
    changed_files: dict[str, None] = {}
    generation: int = 0
    usage: Usage = Usage()

    @property
    def pending(self) -> list[events.ApprovalRequested | events.InputRequested]:
        """The unanswered questions, in the order of their calls. A running call may have some too."""
        calls = self.turn.calls.values() if self.turn is not None else ()
        questions = (one.pending for call in calls for one in (call, *call.requests))
        return [question for question in questions if question is not None]

    @property
    def access(self) -> events.Tier | None:
        """The access that was chosen for this session, if any. A session that was created in plan mode stays in it."""
        if self.configured is not None and self.configured.access is not None:
            return self.configured.access
        operator = self.created.grants[0] if self.created is not None and self.created.grants else None
        return "plan" if operator is not None and operator.tier == "plan" else None

    @property
    def retry_at(self) -> float | None:
        """When the model is asked again, if the run waits for its provider."""
        return self.turn.retry_at if self.run is not None and self.turn is not None else None

    @property
    def client_calls(self) -> list[events.CallStarted]:
        """The calls whose results the client must send, in their order."""
        calls = self.turn.calls.values() if self.turn is not None else ()
        return [call.at_client for call in calls if call.at_client is not None]

    @property
    def earlier_ids(self) -> Set[str]:
        """The ids of the calls that the client's conversation had before. New calls need other ids."""
        if not self.entries or not isinstance(first := self.entries[0], EarlierMessages):
            return _NO_IDS
        return {call.id for message in first.messages if isinstance(message, ModelMessage) for call in message.calls}


def estimate_entry_tokens(entry: Entry) -> int:
    """Estimate the tokens of an entry in a request that has it whole."""
    match entry:
        case events.MessageReceived(parts=parts):
            return MESSAGE_TOKENS + estimate_parts(parts)
        case EarlierMessages():
            return entry.tokens
        case Turn(reply=reply, calls=calls):
            written = estimate_text(reply.text) if reply is not None else 0
            called = (MESSAGE_TOKENS + estimate_text(call.call.tool + call.call.arguments) for call in calls.values())
            results = (estimate_result_tokens(call.finished) for call in calls.values() if call.finished is not None)
            return MESSAGE_TOKENS + written + sum(called) + sum(results)
        case events.SignalDetected(kind="hook", detail=detail):
            return MESSAGE_TOKENS + estimate_text(detail)
        case events.ModelFailed(partial=partial):
            return 2 * MESSAGE_TOKENS + estimate_text(partial)
        case _:
            return MESSAGE_TOKENS


def estimate_result_tokens(fact: events.CallFinished) -> int:
    """Estimate the tokens of a call's result."""
    return MESSAGE_TOKENS + estimate_text(fact.output) + estimate_parts(fact.parts)


@lru_cache(maxsize=16)  # needed twice: when the reply comes, and when it is applied
def build_signature(call: Call) -> tuple[str, str]:
    """Build a key that is equal for equal calls, however their arguments are formatted."""
    try:
        arguments = msgspec.json.decode(call.arguments)
        return call.tool, msgspec.json.encode(arguments, order="sorted").decode()
    except (msgspec.DecodeError, RecursionError):
        return call.tool, call.arguments
