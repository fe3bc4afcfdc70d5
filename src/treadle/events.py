"""Every fact and every delta, in two closed unions on one page.

A fact is durable: it has a `seq`, and the log stores it before any watcher sees it. A delta is a live fragment: it is
never stored, and no state depends on it. Treat a new field here like a new database column.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct, field

from treadle.errors import BadInput, ModelErrorKind
from treadle.messages import NO_USAGE, Call, FinishReason, Json, Message, Part, Sampling, ToolSpec, Usage

Safety = Literal["safe", "caution", "destructive"]
Tier = Literal["plan", "read-only", "sandbox", "full"]  # the narrowest first
Decision = Literal["allow", "deny"]
Scope = Literal["call", "tool", "pattern", "session"]
MessageMode = Literal["queue", "interrupt", "follow_up"]  # a follow-up waits for the next run
Trigger = Literal["message", "continue", "regenerate", "recover", "resume", "command"]
CallStatus = Literal["ok", "error", "denied", "refused", "cancelled", "interrupted", "timed_out"]
LimitReason = Literal["turn_limit", "call_limit", "token_limit", "time_limit", "cost_limit", "doom_loop"]
CLIENT_SANDBOX = "client"  # `CallStarted.sandbox` of a call that the client runs
LIMIT_REASONS: frozenset[str] = frozenset(get_args(LimitReason))
EndReason = Literal["answered", LimitReason, "stuck", "yielded", "cancelled", "failed"]
ReplySignal = Literal["stuck", "uncertain", "yielded", "answered"]  # what a model says of its own work
SignalKind = Literal[
    ReplySignal, "doom_loop", "empty_reply", "stray_calls", "invalid_output", "tool_retry", "compaction_failed", "hook"
]
NOBODY_ASKED = "the command line"
"""The author of a denial when no user can be asked. It separates these denials from those of a user."""
TURN_CEILING = 200  # the most turns of a run, unless the operator sets another ceiling


class Limits(Struct, frozen=True, omit_defaults=True):
    """The budget of one run. `turns=0` means text only. None means no limit of that kind.

    `retry_seconds` is how long the run waits for a provider that is overloaded or cannot be reached, before it fails.
    `attempts` is how often a turn is tried when the model fails by an error of its own. `doom_loop` detects repeated
    calls, `implicit_signals` a stuck model and a hand-back in plain words. More turns than `ceiling` are refused.
    """

    turns: int = 50
    calls: int = 50
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    attempts: int = 4
    doom_loop: bool = True
    implicit_signals: bool = True
    ceiling: int = TURN_CEILING
    retry_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("turns", "calls", "tokens", "seconds", "cost", "attempts", "retry_seconds", "ceiling"):
            value, is_optional = getattr(self, name), name in ("tokens", "seconds", "cost")
            if is_optional and value is None:
                continue
            kinds = int | float if name in ("seconds", "cost", "retry_seconds") else int
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise BadInput(f"limits: {name} must be a number, not {value!r}")
            if not (value > 0 if is_optional else value >= 0):
                what = "more than 0; leave it out for no limit" if is_optional else "0 or more; turns=0 means text only"
                raise BadInput(f"limits: {name} must be {what}")
        if self.turns > self.ceiling:
            raise BadInput(f"limits: turns is {self.turns}, above the ceiling of {self.ceiling}; use fewer turns")


class Grant(Struct, frozen=True, omit_defaults=True):
    """What may run: the tier, and patterns such as `read_*`, `shell(git *)` or `write_file(src/**)`.

    Only the `tools` may be used. `forbid` wins over `ask`, and `ask` over `approve`. `yes` approves every call that
    would be asked. `ask_all` asks for every call that `approve` does not name, and `cautious` for every call that is
    not safe. `always` are the patterns that a person approved permanently: they approve like `approve`, except calls
    that must be asked each time. `approve_flow` are the patterns of calls that may let private data out, or make a
    lasting change, after text that others wrote. Only those of the operator's grant count.
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
    approve_flow: tuple[str, ...] = ()


class AgentConfig(Struct, frozen=True, omit_defaults=True):
    """The agent's configuration when the session was created. It has only values, so it can be stored."""

    name: str = "agent"
    instructions: str = ""
    tools: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    output_schema: dict[str, Json] | None = None


class Parent(Struct, frozen=True, omit_defaults=True):
    """The session that this one was forked from, or the session and call that started it."""

    session_id: str
    seq: int
    call_id: str = ""


class Question(Struct, frozen=True, omit_defaults=True):
    """A question to a person. The `options` are suggestions, unless `strict` is set."""

    text: str
    options: tuple[str, ...] = ()
    strict: bool = False


class Truncation(Struct, frozen=True, omit_defaults=True):
    """The numbers of kept and dropped characters of an output, and the artifact with the whole output."""

    kept: int
    dropped: int
    artifact: str = ""


class KeptFile(Struct, frozen=True, omit_defaults=True):
    """A file before a change. `before` names the kept content, and is empty if there was no file."""

    path: str
    before: str = ""
    mode: int = 0o644


class KeptRef(Struct, frozen=True, omit_defaults=True):
    """A branch, a tag, the stash, `HEAD` or the index of a git repository, before and after a change.

    `repository` is the work tree's folder, empty for the workspace. An empty value means that there was none. A value
    is the id of an object; that of `HEAD` may be `ref: refs/heads/NAME`. If there are several stashes, a hash of their
    list follows. That of `index` is a hash of its entries. `content` names the earlier index, or log of the stash.
    """

    ref: str
    before: str = ""
    after: str = ""
    repository: str = ""
    content: str = ""


def _build_tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="type", tag=_build_tag):
    """A durable event. The log that stores it sets `seq` and `at` once."""

    seq: int = 0
    at: float = 0.0


class SessionCreated(Fact, frozen=True):
    """`grants` has the operator's grant first, and then the narrower ones. The strictest of them decides.

    `sources` are those of the parent when it started this session: see `permissions/data_flow.py`.
    """

    session_id: str
    agent: AgentConfig = AgentConfig()
    model: str = ""
    workspace: str = ""
    limits: Limits = Limits()
    grants: tuple[Grant, ...] = (Grant(),)
    parent: Parent | None = None
    sources: tuple[str, ...] = ()


class SessionRenamed(Fact, frozen=True):
    name: str
    by: Literal["user", "auto"] = "user"


class SessionMarked(Fact, frozen=True):
    """Somebody pinned the session, archived it, or took that back. None changes nothing."""

    pinned: bool | None = None
    archived: bool | None = None
    by: str = ""


class MessageReceived(Fact, frozen=True):
    """`history` is what the sender's conversation had before. It counts only for the first message of a session."""

    id: str
    parts: tuple[Part, ...]
    mode: MessageMode = "queue"
    key: str = ""
    history: tuple[Message, ...] = ()


class MessageEdited(Fact, frozen=True):
    """Other `parts` for a message that no run has taken yet. Without parts, the message is withdrawn."""

    id: str
    parts: tuple[Part, ...] = ()
    by: str = ""


class RunRequested(Fact, frozen=True):
    """Somebody asked for a run without a message: with the calls of the reply at `after`, or of their own `command`."""

    trigger: Trigger
    limits: Limits | None = None
    by: str = ""
    after: int = 0
    command: str = ""


class CancelRequested(Fact, frozen=True):
    """Somebody asked to stop the run. The process that runs it settles its calls."""

    by: str = ""
    why: str = ""


class RetryRequested(Fact, frozen=True):
    """Somebody asked to end the wait for the provider: the model is asked again now."""

    by: str = ""


class RunStarted(Fact, frozen=True):
    run_id: str
    limits: Limits
    trigger: Trigger = "message"


class TurnStarted(Fact, frozen=True):
    """`wrap_up` names the limit that was reached. It is set for the last turn, which has no tools.

    Turn 0 is not counted, because the model is not asked: it has the calls of an earlier reply, or a person's `calls`.
    """

    turn: int
    messages: tuple[str, ...] = ()
    tools: bool = True
    wrap_up: EndReason | None = None
    calls: tuple[Call, ...] = ()


class ModelReplied(Fact, frozen=True):
    """`sources` name the texts besides the conversation that the model read for the first time, such as AGENTS.md.

    `first_token` is how many seconds after the request the first fragment of the reply came, if that was measured.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: FinishReason = "stop"
    usage: Usage = NO_USAGE
    model: str = ""
    opaque: str = ""
    confidence: float | None = None
    sources: tuple[str, ...] = ()
    first_token: float | None = None


class ModelFailed(Fact, frozen=True):
    """`wait` is the number of seconds before the next attempt, or None if there is no next attempt.

    `give_up_at` is when the attempts end, and `status` the HTTP status of the provider, if there was one.
    """

    kind: ModelErrorKind
    message: str
    retryable: bool = False
    attempt: int = 1
    wait: float | None = None
    partial: str = ""
    status: int = 0
    give_up_at: float | None = None


class ApprovalRequested(Fact, frozen=True):
    """`digest` binds an answer to the call that was shown. `rule` is the pattern that scope `pattern` remembers.

    `once`: a yes is valid for this call only, whatever its scope, because the call is too dangerous. `flow`: it could
    let private data out, or make a lasting change, because text of others asked for it. `hook`: a hook asks, so no
    option and no rule answers. `during` names a running call that asks for more; then `call_id` names this question.
    """

    call_id: str
    tool: str
    arguments: dict[str, Json]
    safety: Safety
    why: str
    rule: str = ""
    once: bool = False
    flow: bool = False
    digest: str = ""
    expires_at: float | None = None
    during: str = ""
    hook: bool = False


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
    """The intent, stored before the effect. `arguments` are the checked and converted arguments that really run.

    A call that `resumes` continues its work when it is run again, so a crash never closes it. With the sandbox
    "client" the client runs the call: the run waits for the result, until `expires_at`. `access` is the tier it has.
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
    expires_at: float | None = None
    access: Tier | None = None


class CallFinished(Fact, frozen=True):
    """`fatal` means that the run ends as failed once the other calls of the reply are settled.

    `usage` is the usage of models during the call, such as a helper's. It counts as the run's own usage. `safety` is
    the class that decided, for a call that was denied before it began. `sources` are what the result is made of,
    besides what the tool always brings in.
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
    safety: Safety | None = None
    sources: tuple[str, ...] = ()


class SignalDetected(Fact, frozen=True):
    kind: SignalKind
    detail: str = ""


class ContextCompacted(Fact, frozen=True):
    """From now on the model reads the facts up to `through` pruned, or reads the `summary` instead of them.

    `undo` cancels the last compaction that is in effect. `usage` is the usage for writing the summary.
    """

    kind: Literal["prune", "summary", "undo"]
    through: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    summary: str = ""
    usage: Usage = NO_USAGE

    @property
    def saved_tokens(self) -> int:
        """The estimated tokens that each later request saves."""
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
    """The session's agent, model and other settings from the next run on. Empty fields change nothing.

    `approve` are patterns that an authorized person approved in advance: they turn ask into allow. `web` is false for
    a session that may not use the web tools. It cannot allow more than the operator and the project allow.
    `client_tools` are offered to the model from the next turn on, and the client runs their calls. `access` replaces
    `access_before` from the next call on, as far as the running process allows. An empty `output_schema` means text.
    """

    agent: str = ""
    model: str = ""
    instructions: str = ""
    limits: Limits | None = None
    approval_ttl: float | None = None
    approve: tuple[str, ...] = ()
    web: bool | None = None
    by: str = ""
    sampling: Sampling | None = None
    output_schema: dict[str, Json] | None = None
    client_tools: tuple[ToolSpec, ...] | None = None
    access: Tier | None = None
    access_before: Tier | None = None


class FilesKept(Fact, frozen=True):
    """The old contents of files that a call changes. It is stored before the change, if the files are known by then.

    `tree` names a list of all files before the call, for calls that may change any file. `refs` has what a command
    changed in git repositories. It is stored after the change.
    """

    call_id: str
    files: tuple[KeptFile, ...] = ()
    tree: str = ""
    left_out: tuple[str, ...] = ()
    refs: tuple[KeptRef, ...] = ()


class Rewound(Fact, frozen=True):
    """The session was rewound to position `to`. `files` and `refs` say what was there, so that this can be undone."""

    to: int
    what: Literal["files", "conversation", "both"] = "both"
    files: tuple[KeptFile, ...] = ()
    by: str = ""
    refs: tuple[KeptRef, ...] = ()


class Custom(Fact, frozen=True):
    """Data of middleware or a tool, under a namespaced name such as `acme.audit`."""

    name: str
    data: Json = None


class Delta(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="type", tag=_build_tag):
    """A live fragment. `after` is the log position that it follows."""

    after: int = 0


class TextDelta(Delta, frozen=True):
    """A piece of the reply's text. `logprobs` has an entry for each of its tokens, if the request asked for them."""

    text: str
    logprobs: tuple[Json, ...] = ()


class ReasoningDelta(Delta, frozen=True):
    text: str


class CallDelta(Delta, frozen=True):
    """A piece of a call that the model is still writing. `index` is the place of the call in the reply."""

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
    | SessionMarked
    | MessageReceived
    | MessageEdited
    | RunRequested
    | CancelRequested
    | RetryRequested
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
    """Serialize one event as JSON, as it is stored and streamed."""
    return _encoder.encode(event)


def decode_fact(data: bytes | str) -> AnyFact:
    """Decode a serialized fact. Raises `msgspec.ValidationError` for a kind that this version does not know."""
    try:
        return _fact_decoder.decode(data)
    except BadInput:  # an older version stored limits that are refused today, and stopped at the ceiling
        document = msgspec.json.decode(data)
        document["limits"] = {
            name: min(max(value, 0), TURN_CEILING) if name == "turns" else value
            for name, value in document["limits"].items()
            if name in ("turns", "attempts", "doom_loop", "implicit_signals") or value > 0
        }
        return msgspec.convert(document, AnyFact)


def decode_event(data: bytes | str) -> Event:
    """Decode a serialized fact or delta."""
    return _event_decoder.decode(data)


def validate_fact(fact: AnyFact) -> AnyFact:
    """Return the fact as the log will read it. Raises `BadInput` for a fact that could be stored but not read."""
    try:
        return decode_fact(serialize_event(fact))
    except UnicodeEncodeError as error:
        text = repr(error.object[:100])
        raise BadInput(f"this cannot be stored as {fact_type(fact)}: {text} has bytes that are not UTF-8") from None
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise BadInput(f"this cannot be stored as {fact_type(fact)}: {error}") from None


def settles_question(event: Event, question: ApprovalRequested | InputRequested) -> bool:
    """Whether an event answers a question, or ends the call that it belongs to."""
    if isinstance(event, ApprovalAnswered | InputAnswered):
        return event.call_id == question.call_id
    return isinstance(event, CallFinished) and event.call_id in (question.call_id, getattr(question, "during", ""))


def stamp_fact(fact: Fact, seq: int, at: float) -> None:
    """Give a fact its position and time. Only a log does this, once, when it stores or reads the fact."""
    msgspec.structs.force_setattr(fact, "seq", seq)
    msgspec.structs.force_setattr(fact, "at", at)


def fact_type(fact: Fact) -> str:
    """Return the snake_case name of a fact's kind, as in its `type` field."""
    return str(fact.__struct_config__.tag)
