"""The bodies of HTTP requests and responses about sessions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from treadle import ApprovalRequested, FilePart, Grant, ImagePart, InputRequested, Limits, RunFinished, TextPart
from treadle.dialects.base import build_approval_id, check_base64, list_options
from treadle.errors import BadInput
from treadle.log.base import SessionInfo
from treadle.messages import Part
from treadle.server.problems import build_field_error

MAX_TURNS = 200
Name = Annotated[str, Field(max_length=200)]


class LenientBody(BaseModel):
    """A null field counts as missing, because many clients send every field that they know."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = cast("dict[str, Any]", given)
        return {name: value for name, value in fields.items() if value is not None}


class StrictBody(LenientBody):
    """A request's body. Unknown fields are refused, so that typing mistakes are found."""

    model_config = ConfigDict(extra="forbid")


class Attachment(StrictBody):
    """An image or a file that goes with a message: base64 `data`, or for images a `url`."""

    name: str = Field("", max_length=500)
    media_type: str = Field("application/octet-stream", max_length=200)
    data: str = ""
    url: str = Field("", max_length=8000)

    def build_part(self) -> Part:
        try:
            data = check_base64(self.data, "data")
        except BadInput:
            raise build_field_error("attachments.data", "must be base64") from None
        if self.media_type.startswith("image/") or self.url:
            if self.url and not self.url.startswith(("https://", "http://")):
                raise build_field_error("attachments.url", "must be http or https")
            if not self.data and not self.url:
                raise build_field_error("attachments", "an image needs `data` or a `url`")
            kind = self.media_type if self.media_type.startswith("image/") else "image/png"
            return ImagePart(data=data, media_type=kind, url=self.url)
        return FilePart(name=self.name or "file", data=data, media_type=self.media_type)


class LimitsBody(StrictBody):
    """The limits of one run. Missing limits are the agent's."""

    turns: int | None = Field(None, ge=0, le=MAX_TURNS)
    calls: int | None = Field(None, ge=0, le=100_000)
    tokens: int | None = Field(None, ge=1, le=2**53)
    seconds: float | None = Field(None, gt=0, le=10**9)
    cost: float | None = Field(None, gt=0, le=10**9)

    def apply_to(self, defaults: Limits) -> Limits:
        """Combine these limits with the defaults. Tokens, seconds and cost never exceed the operator's."""
        return Limits(
            turns=defaults.turns if self.turns is None else min(self.turns, MAX_TURNS),
            calls=defaults.calls if self.calls is None else self.calls,
            tokens=_take_smaller(self.tokens, defaults.tokens),
            seconds=_take_smaller(self.seconds, defaults.seconds),
            cost=_take_smaller(self.cost, defaults.cost),
            attempts=defaults.attempts,
            doom_loop=defaults.doom_loop,
        )


def _take_smaller(requested: Any, default: Any) -> Any:
    if requested is None or default is None:
        return default if requested is None else requested
    return min(requested, default)


class NewSession(StrictBody):
    """The settings of a new session."""

    agent: Name = ""
    model: Name = ""
    name: Name = ""
    workspace: str = Field("", max_length=4000)
    limits: LimitsBody | None = None
    approve: list[Name] = Field(default_factory=list, max_length=200)
    forbid: list[Name] = Field(default_factory=list, max_length=200)

    def build_grant(self) -> Grant | None:
        return build_request_grant(self.approve, self.forbid)


def build_request_grant(approve: list[str], forbid: list[str], *, ask_all: bool = False) -> Grant | None:
    """The grant of a request. The stricter of it and the operator's grant decides."""
    if not approve and not forbid and not ask_all:
        return None
    return Grant(tier="full", approve=tuple(approve), forbid=tuple(forbid), ask_all=ask_all)


class ChangeSession(StrictBody):
    """What to change in a session, starting with its next run."""

    name: Name | None = None
    agent: Name = ""
    model: Name = ""
    limits: LimitsBody | None = None


class NewMessage(StrictBody):
    """A message for a session. It steers a current run, or stops it first with `interrupt`."""

    content: str = ""
    attachments: list[Attachment] = Field(default_factory=list[Attachment], max_length=100)
    mode: Literal["queue", "interrupt"] = "queue"

    def build_parts(self, field: str = "content") -> tuple[Part, ...]:
        """The parts of the message. `field` is the name of the text in errors."""
        if not self.content.strip() and not self.attachments:
            raise build_field_error(field, "the message is empty")
        text: tuple[Part, ...] = (TextPart(self.content),) if self.content else ()
        return (*text, *(attachment.build_part() for attachment in self.attachments))


class ApprovalAnswer(StrictBody):
    decision: Literal["allow", "deny"]
    scope: Literal["call", "tool", "pattern", "session"] = "call"
    comment: str = Field("", max_length=10_000)
    digest: str = Field("", max_length=200)


class SimpleAnswer(StrictBody):
    approved: bool
    digest: str = Field("", max_length=200)


class AnswersBody(StrictBody):
    answers: list[str] = Field(min_length=1, max_length=100)


class ForkBody(StrictBody):
    after: int | None = Field(None, ge=1, le=2**53)


class NextRunBody(StrictBody):
    limits: LimitsBody | None = None


class PendingQuestion(BaseModel):
    """A question that waits for a person. `options` are the suggested answers to each of `questions`."""

    id: str
    session_id: str
    call_id: str
    kind: Literal["approval", "input"]
    tool: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    safety: str = ""
    why: str = ""
    rule: str = ""
    digest: str = ""
    questions: list[str] = Field(default_factory=list[str])
    options: list[list[str]] = Field(default_factory=list[list[str]])
    asked_at: float = 0.0
    expires_at: float | None = None

    @classmethod
    def from_fact(cls, session_id: str, fact: ApprovalRequested | InputRequested) -> PendingQuestion:
        pending = cls(
            id=build_approval_id(session_id, fact.call_id),
            session_id=session_id,
            call_id=fact.call_id,
            kind="input" if isinstance(fact, InputRequested) else "approval",
            asked_at=fact.at,
            expires_at=fact.expires_at,
        )
        if isinstance(fact, InputRequested):
            pending.questions = [question.text for question in fact.questions]
            pending.options = [list(options) for options in list_options(fact)]
        else:
            pending.tool, pending.arguments, pending.safety = fact.tool, fact.arguments, fact.safety
            pending.why, pending.rule, pending.digest = fact.why, fact.rule, fact.digest
        return pending


class SessionView(BaseModel):
    """One entry in a list of sessions."""

    id: str
    name: str
    agent: str
    status: str
    seq: int
    turns: int
    cost: float
    workspace: str
    created_at: float
    updated_at: float
    parent: str | None = None

    @classmethod
    def from_info(cls, info: SessionInfo, agent: str = "") -> SessionView:
        """Build the entry. `agent` is the current agent, if it is known."""
        fields: dict[str, Any] = {name: getattr(info, name) for name in SessionView.model_fields}
        fields["agent"] = agent or info.agent
        fields["parent"] = info.parent.session_id if info.parent is not None else None
        return cls(**fields)


class MessageView(BaseModel):
    role: Literal["user", "assistant"]
    content: str
    at: float
    seq: int


class ContextView(BaseModel):
    """What fills the model's window, in tokens. `window` and `free` are null when the window is unknown."""

    window: int | None
    used: int
    system: int
    tools: int
    skills: int
    files: int
    history: int
    free: int | None
    estimated: bool


class SessionDetail(SessionView):
    """A session with its messages and open questions. `context` is null when its model is not available."""

    model: str = ""
    messages: list[MessageView] = Field(default_factory=list[MessageView])
    pending: list[PendingQuestion] = Field(default_factory=list[PendingQuestion])
    context: ContextView | None = None


class SessionPageView(BaseModel):
    sessions: list[SessionView]
    cursor: str = ""


class RunOutcome(BaseModel):
    """How a run went. `answered` is the only success. `waiting` means that somebody must answer first."""

    status: Literal["answered", "stopped", "failed", "cancelled", "waiting"]
    reason: str
    turns: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    can_continue: bool = False
    error: str = ""
    pending: list[PendingQuestion] = Field(default_factory=list[PendingQuestion])

    @classmethod
    def from_fact(cls, fact: RunFinished) -> RunOutcome:
        status = fact.reason if fact.reason in ("answered", "failed", "cancelled") else "stopped"
        return cls(
            status=status,
            reason=fact.reason,
            turns=fact.turns,
            calls=fact.calls,
            input_tokens=fact.usage.input_tokens,
            output_tokens=fact.usage.output_tokens,
            cost=fact.usage.cost,
            can_continue=fact.can_continue,
            error=fact.error,
        )


class MessageAnswer(BaseModel):
    """The answer to a message."""

    reply: str
    session: SessionView
    outcome: RunOutcome
    message_id: str


class RunAccepted(BaseModel):
    """A run was started. Watch the events after `after`."""

    session_id: str
    after: int


class ResolvedView(BaseModel):
    resolved: bool = True


class CancelledView(BaseModel):
    cancelled: bool
    outcome: RunOutcome | None = None

    @classmethod
    def from_ending(cls, fact: RunFinished | None) -> CancelledView:
        """The end of the cancelled run; None says that nothing was running."""
        return cls(cancelled=fact is not None, outcome=RunOutcome.from_fact(fact) if fact is not None else None)


class CompactBody(StrictBody):
    """`undo` reverts the last compaction: the model sees the older turns again."""

    undo: bool = False


class CompactView(BaseModel):
    compacted: bool
    tokens_before: int = 0
    tokens_after: int = 0
