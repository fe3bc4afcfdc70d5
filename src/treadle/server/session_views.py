"""What the API shows of a session: its entry in a list, its questions and messages, and how a run went."""

from __future__ import annotations

import time
from typing import Any, Literal

from pydantic import BaseModel, Field

from treadle import ApprovalRequested, InputRequested, RunFinished
from treadle.dialects.base import build_approval_id, describe_question
from treadle.engine.earlier_messages import EarlierMessages
from treadle.engine.state import State, Turn
from treadle.events import CallStarted, MessageReceived, ModelFailed, ModelReplied
from treadle.log.base import SessionInfo
from treadle.messages import ResultMessage, UserMessage, render_message, render_parts


class PendingQuestion(BaseModel):
    """What a run waits for: a person, or with the kind `client_call` the client's result of a call.

    `options` are the suggested answers to each of `questions`, and `strict` says where only these count. With `once`,
    a yes holds for this call alone. `during` names a call that runs and asks for more.
    """

    id: str
    session_id: str
    call_id: str
    kind: Literal["approval", "input", "client_call"]
    tool: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    safety: str = ""
    why: str = ""
    rule: str = ""
    digest: str = ""
    questions: list[str] = Field(default_factory=list[str])
    options: list[list[str]] = Field(default_factory=list[list[str]])
    strict: list[bool] = Field(default_factory=list[bool])
    once: bool = False
    asked_at: float = 0.0
    expires_at: float | None = None
    during: str = ""

    @classmethod
    def from_fact(cls, session_id: str, fact: ApprovalRequested | InputRequested | CallStarted) -> PendingQuestion:
        kind: Literal["approval", "input", "client_call"] = "approval"
        question: dict[str, Any]
        if isinstance(fact, CallStarted):
            kind = "client_call"
            question = {name: getattr(fact, name) for name in ("call_id", "tool", "arguments", "expires_at")}
        else:
            question = describe_question(fact)
            if isinstance(fact, InputRequested):
                kind = "input"
                question |= {"tool": "", "why": "", "strict": [one.strict for one in fact.questions]}
            else:
                question |= {"during": fact.during, "once": fact.once}
        return cls(
            id=build_approval_id(session_id, fact.call_id),
            session_id=session_id,
            kind=kind,
            asked_at=fact.at,
            **question,
        )

    @classmethod
    def list_open(cls, session_id: str, state: State) -> list[PendingQuestion]:
        """List what the session's run waits for."""
        return [cls.from_fact(session_id, fact) for fact in (*state.pending, *state.client_calls)]


class SessionView(BaseModel):
    """One entry in a list of sessions. `retry_at` is when a run that is parked asks its model again.

    `parent_call` is the call of `parent` that started a helper. It is empty for a fork. `parent_seq` is the position
    in the parent. `asks` counts the open questions to a person. `first_words` are those of the first message, as long
    as the session has no name.
    """

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
    retry_at: float | None = None
    model: str = ""
    pinned: bool = False
    archived: bool = False
    parent_call: str = ""
    parent_seq: int = 0
    asks: int = 0
    first_words: str = ""

    @classmethod
    def from_info(cls, info: SessionInfo, agent: str = "", asks: int = 0, first_words: str = "") -> SessionView:
        """Build the entry. `agent` is the current agent, if it is known."""
        fields: dict[str, Any] = {name: getattr(info, name, None) for name in SessionView.model_fields}
        fields |= {"agent": agent or info.agent, "asks": asks, "first_words": first_words}
        fields |= {"parent": None, "parent_call": "", "parent_seq": 0}
        if (parent := info.parent) is not None:
            fields |= {"parent": parent.session_id, "parent_call": parent.call_id, "parent_seq": parent.seq}
        fields["retry_at"] = info.wake_at if info.wake_at is not None and info.is_parked(time.time()) else None
        return cls(**fields)


class MessageView(BaseModel):
    """One message. `partial` marks a reply that was broken off."""

    role: Literal["user", "assistant"]
    content: str
    at: float
    seq: int
    partial: bool = False


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


class RunOutcome(BaseModel):
    """How a run went. `answered` is the only success. `waiting` means that somebody must answer first.

    `partial_answer` is the text of a run that ended without an answer.
    """

    status: Literal["answered", "stopped", "failed", "cancelled", "waiting"]
    reason: str
    turns: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    can_continue: bool = False
    error: str = ""
    partial_answer: str = ""
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
            partial_answer=fact.answer if fact.reason != "answered" else "",
        )


class SessionDetail(SessionView):
    """A session with its messages and open questions, and how its last run ended.

    `web` says whether its next run may use the web tools: the operator, the project and the session allow them.
    `context` and `web` are null when its model is not available. While its run waits for its provider, `retry_at` is
    when the model is asked again, and `retry_reason` why that is necessary.
    """

    messages: list[MessageView] = Field(default_factory=list[MessageView])
    pending: list[PendingQuestion] = Field(default_factory=list[PendingQuestion])
    last_run: RunOutcome | None = None
    context: ContextView | None = None
    web: bool | None = None
    retry_reason: str = ""


class SessionPageView(BaseModel):
    sessions: list[SessionView]
    cursor: str = ""


class MessageAnswer(BaseModel):
    """The answer to a message."""

    reply: str
    session: SessionView
    outcome: RunOutcome
    message_id: str


def list_messages(state: State) -> list[MessageView]:
    """List the messages of a session, also those that wait."""
    messages: list[MessageView] = []
    for entry in (*state.entries, *state.queue):
        match entry:
            case EarlierMessages():
                for one in entry.messages:
                    text = "" if isinstance(one, ResultMessage) else render_message(one)
                    role = "user" if isinstance(one, UserMessage) else "assistant"
                    messages += [MessageView(role=role, content=text, at=0.0, seq=entry.seq)] if text else []
            case MessageReceived():
                messages.append(MessageView(role="user", content=render_parts(entry.parts), at=entry.at, seq=entry.seq))
            case Turn(reply=ModelReplied() as reply) if reply.text:
                messages.append(MessageView(role="assistant", content=reply.text, at=reply.at, seq=reply.seq))
            case ModelFailed(partial=text):
                messages.append(MessageView(role="assistant", content=text, at=entry.at, seq=entry.seq, partial=True))
            case _:
                pass
    return messages
