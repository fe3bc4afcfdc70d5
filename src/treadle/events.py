"""Every fact and every delta: one closed union each, on one page.

A fact is durable: it has a `seq`, and is stored before anyone is told. A delta is a live fragment: never
stored, never needed to rebuild state. Treat a new field here like a new database column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from treadle.errors import BadInput, ModelErrorKind
from treadle.messages import NO_USAGE, Call, FinishReason, Json, Part, Sampling, Usage

Safety = Literal["safe", "caution", "destructive"]
Tier = Literal["read-only", "sandbox", "full"]
Decision = Literal["allow", "deny"]
Scope = Literal["call", "tool", "pattern", "session"]
Trigger = Literal["message", "continue", "regenerate", "recover"]
CallStatus = Literal["ok", "error", "denied", "refused", "cancelled", "interrupted", "timed_out"]
EndReason = Literal[
    "answered",
    "turn_limit",
    "call_limit",
    "token_limit",
    "time_limit",
    "cost_limit",
    "doom_loop",
    "stuck",
    "yielded",
    "cancelled",
    "failed",
]
LIMIT_REASONS: frozenset[str] = frozenset(
    ("turn_limit", "call_limit", "token_limit", "time_limit", "cost_limit", "doom_loop")
)
SignalKind = Literal[
    "doom_loop",
    "stuck",
    "uncertain",
    "yielded",
    "answered",
    "empty_reply",
    "stray_calls",
    "invalid_output",
    "tool_retry",
    "compaction_failed",
]


class Limits(Struct, frozen=True, omit_defaults=True):
    """How much one run may use. `turns=0` means text only; None means no limit of that kind."""

    turns: int = 50
    calls: int = 50
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    attempts: int = 4
    doom_loop: bool = True


class Grant(Struct, frozen=True, omit_defaults=True):
    """What may run: the tier, and patterns such as `read_*`, `shell(git *)` or `write_file(src/**)`.

    `tools` are the only ones that may be used at all. `forbid` beats `ask`, `ask` beats `approve`, and
    `yes` approves whatever would be asked. `ask_all` asks for every call that `approve` does not name, `cautious` for
    every one that is not safe. `always` is what a person said yes to for good: it approves as `approve` does, but
    nothing that must be asked for each time.
    """

    tier: Tier = "sandbox"
    approve: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    tools: tuple[str, ...] = ("*",)
    yes: bool = False
    ask_all: bool = False
    cautious: bool = False
    always: tuple[str, ...] = ()


class AgentConfig(Struct, frozen=True, omit_defaults=True):
    """An agent as it was resolved when the session was made; values only, so that it can be stored."""

    name: str = "agent"
    instructions: str = ""
    tools: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    output_schema: dict[str, Json] | None = None


class Parent(Struct, frozen=True, omit_defaults=True):
    """Where a forked session comes from, or which call of which session started it."""

    session_id: str
    seq: int
    call_id: str = ""


class Question(Struct, frozen=True, omit_defaults=True):
    """Something only a person can answer; `options` are suggestions unless `strict`."""

    text: str
    options: tuple[str, ...] = ()
    strict: bool = False


class Truncation(Struct, frozen=True, omit_defaults=True):
    """What was left out of an output, in characters, and the artifact that has it whole."""

    kept: int
    dropped: int
    artifact: str = ""


class KeptFile(Struct, frozen=True, omit_defaults=True):
    """What a file held before it was changed: `before` names the kept content and is empty where there was no file."""

    path: str
    before: str = ""
    mode: int = 0o644


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="type", tag=_snake):
    """A durable event. `seq` and `at` are stamped once, by the log that stores it."""

    seq: int = 0
    at: float = 0.0


class SessionCreated(Fact, frozen=True):
    """`grants` are the operator's and then each narrower one: the strictest of them decides."""

    session_id: str
    agent: AgentConfig = AgentConfig()
    model: str = ""
    workspace: str = ""
    limits: Limits = Limits()
    grants: tuple[Grant, ...] = (Grant(),)
    parent: Parent | None = None


class SessionRenamed(Fact, frozen=True):
    name: str
    by: Literal["user", "auto"] = "user"


class MessageReceived(Fact, frozen=True):
    id: str
    parts: tuple[Part, ...]
    mode: Literal["queue", "interrupt"] = "queue"
    key: str = ""


class RunRequested(Fact, frozen=True):
    """Somebody asked for a run without a new message."""

    trigger: Trigger
    limits: Limits | None = None
    by: str = ""


class CancelRequested(Fact, frozen=True):
    """Somebody asked for the run to stop; the one who runs it settles it."""

    by: str = ""
    why: str = ""


class RunStarted(Fact, frozen=True):
    run_id: str
    limits: Limits
    trigger: Trigger = "message"


class TurnStarted(Fact, frozen=True):
    """`wrap_up` names the limit that was reached: the last turn, without tools."""

    turn: int
    messages: tuple[str, ...] = ()
    tools: bool = True
    wrap_up: EndReason | None = None


class ModelReplied(Fact, frozen=True):
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: FinishReason = "stop"
    usage: Usage = NO_USAGE
    model: str = ""
    opaque: str = ""
    confidence: float | None = None


class ModelFailed(Fact, frozen=True):
    """`wait` is the number of seconds before the next attempt, or None when there will be none."""

    kind: ModelErrorKind
    message: str
    retryable: bool = False
    attempt: int = 1
    wait: float | None = None
    partial: str = ""


class ApprovalRequested(Fact, frozen=True):
    """`digest` binds an answer to exactly what was shown; `rule` is what scope `pattern` would remember.

    `once` means that a yes counts for this call only, whatever its scope: it is too dangerous to be remembered.
    """

    call_id: str
    tool: str
    arguments: dict[str, Json]
    safety: Safety
    why: str
    rule: str = ""
    once: bool = False
    digest: str = ""
    expires_at: float | None = None


class ApprovalAnswered(Fact, frozen=True):
    call_id: str
    decision: Decision
    scope: Scope = "call"
    by: str = ""
    comment: str = ""


class InputRequested(Fact, frozen=True):
    call_id: str
    questions: tuple[Question, ...]
    expires_at: float | None = None


class InputAnswered(Fact, frozen=True):
    call_id: str
    answers: tuple[str, ...]
    by: str = ""


class CallStarted(Fact, frozen=True):
    """The intent, stored before the effect. `arguments` are what really runs, checked and converted.

    One that `resumes` goes on, when it is run again, with what it had begun: a crash never closes it.
    """

    call_id: str
    tool: str
    arguments: dict[str, Json] = field(default_factory=dict[str, Json])
    attempt: int = 1
    safety: Safety = "caution"
    sandbox: str = "none"
    why: str = ""
    owner: str = ""
    epoch: int = 0
    resumes: bool = False


class CallFinished(Fact, frozen=True):
    """`fatal` means that the run ends as failed once the other calls of the reply are settled.

    `usage` is what models used while it ran, such as a helper's: it counts as the run's own.
    """

    call_id: str
    tool: str
    status: CallStatus
    output: str = ""
    parts: tuple[Part, ...] = ()
    truncation: Truncation | None = None
    duration: float = 0.0
    fatal: bool = False
    usage: Usage = NO_USAGE


class SignalDetected(Fact, frozen=True):
    kind: SignalKind
    detail: str = ""


class ContextCompacted(Fact, frozen=True):
    """From now on the facts up to `through` are shown to the model pruned, or as `summary` only.

    `undo` takes back the last one that is in effect. `usage` is what writing the summary took.
    """

    kind: Literal["prune", "summary", "undo"]
    through: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    summary: str = ""
    usage: Usage = NO_USAGE

    @property
    def spared(self) -> int:
        """About what every request since has been spared."""
        return self.tokens_before - self.tokens_after


class RunFinished(Fact, frozen=True):
    run_id: str
    reason: EndReason
    answer: str = ""
    usage: Usage = NO_USAGE
    turns: int = 0
    calls: int = 0
    can_continue: bool = False
    error: str = ""
    confidence: float | None = None


class SessionConfigured(Fact, frozen=True):
    """From the next run on the session has this agent, this model and so on; what is empty stays as it was.

    `approve` are patterns that somebody with the right to it answered beforehand: they turn ask into allow.
    """

    agent: str = ""
    model: str = ""
    instructions: str = ""
    limits: Limits | None = None
    approval_ttl: float | None = None
    approve: tuple[str, ...] = ()
    by: str = ""


class FilesKept(Fact, frozen=True):
    """Old contents were kept because a call changes these files; stored before it does, as far as that can be known.

    `tree` names a list of all files as they were, where nobody can say beforehand which will change.
    """

    call_id: str
    files: tuple[KeptFile, ...] = ()
    tree: str = ""
    left_out: tuple[str, ...] = ()


class Rewound(Fact, frozen=True):
    """The session went back to how it was at `to`; `files` are what they held just before, so that it can be undone."""

    to: int
    what: Literal["files", "conversation", "both"] = "both"
    files: tuple[KeptFile, ...] = ()
    by: str = ""


class Custom(Fact, frozen=True):
    """Something middleware or a tool wants in the log, under a namespaced name such as `acme.audit`."""

    name: str
    data: Json = None


class Delta(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="type", tag=_snake):
    """A live fragment. `after` is the log position it follows."""

    after: int = 0


class TextDelta(Delta, frozen=True):
    text: str


class ReasoningDelta(Delta, frozen=True):
    text: str


class CallDelta(Delta, frozen=True):
    """A piece of a call that the model is still writing; `index` is its place in the reply."""

    index: int
    tool: str = ""
    arguments: str = ""


class OutputDelta(Delta, frozen=True):
    call_id: str
    text: str


class Progress(Delta, frozen=True):
    message: str
    call_id: str = ""
    done: float | None = None
    total: float | None = None


AnyFact: TypeAlias = (
    SessionCreated
    | SessionRenamed
    | MessageReceived
    | RunRequested
    | CancelRequested
    | RunStarted
    | TurnStarted
    | ModelReplied
    | ModelFailed
    | ApprovalRequested
    | ApprovalAnswered
    | InputRequested
    | InputAnswered
    | CallStarted
    | CallFinished
    | SignalDetected
    | ContextCompacted
    | RunFinished
    | SessionConfigured
    | FilesKept
    | Rewound
    | Custom
)
AnyDelta: TypeAlias = TextDelta | ReasoningDelta | CallDelta | OutputDelta | Progress
Event: TypeAlias = AnyFact | AnyDelta

_encoder = msgspec.json.Encoder()
_fact_decoder = msgspec.json.Decoder(AnyFact)
_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def serialize_event(event: Fact | Delta) -> bytes:
    """The JSON of one event, as it is stored and streamed."""
    return _encoder.encode(event)


def decode_fact(data: bytes | str) -> AnyFact:
    """The fact that `encode` wrote; raises `msgspec.ValidationError` for a kind this version does not know."""
    return _fact_decoder.decode(data)


def decode_event(data: bytes | str) -> Event:
    """The fact or delta that `encode` wrote."""
    return _event_decoder.decode(data)


def validate_fact(fact: AnyFact) -> AnyFact:
    """The fact as it will be read back; raises `BadInput` for one that could be stored but never read again."""
    try:
        return decode_fact(serialize_event(fact))
    except UnicodeEncodeError as error:
        text = repr(error.object[:100])
        raise BadInput(f"this cannot be stored as {fact_type(fact)}: {text} has bytes that are not UTF-8") from None
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise BadInput(f"this cannot be stored as {fact_type(fact)}: {error}") from None


def stamp_fact(fact: Fact, seq: int, at: float) -> None:
    """Give a fact its place in the log. Only a log does this, once, when it stores or reads the fact."""
    msgspec.structs.force_setattr(fact, "seq", seq)
    msgspec.structs.force_setattr(fact, "at", at)


def fact_type(fact: Fact) -> str:
    """The snake_case name of a fact's kind, as it stands in `type`."""
    return str(fact.__struct_config__.tag)


def render_schema() -> str:
    """The JSON schema of all events, as kept in docs/events.schema.json."""
    import inspect

    kinds: Iterable[Any] = Event.__args__
    (schema,), components = msgspec.json.schema_components([Event], ref_template="#/$defs/{name}")
    for component in components.values():  # the indentation of a docstring depends on Python's version
        if "description" in component:
            component["description"] = inspect.cleandoc(component["description"])
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"treadle events ({len(tuple(kinds))} kinds)",
        **schema,
        "$defs": dict(sorted(components.items())),
    }
    return msgspec.json.format(_encoder.encode(document), indent=2).decode() + "\n"
