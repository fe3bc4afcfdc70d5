"""A session as REST clients see it live: delta, iteration, tool_start, tool_end, approval_request, done and the like.

Sent by `POST …/messages/stream` and the WebSocket `…/stream`. `done` comes of a stored fact, so never before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import field

from treadle.dialects.base import Frame, ReplyText, build_approval_id, is_rejected, list_options, shorten_output
from treadle.events import (
    ApprovalRequested,
    CallFinished,
    CallStarted,
    EndReason,
    Event,
    InputRequested,
    ModelFailed,
    ModelReplied,
    RunFinished,
    RunStarted,
    TextDelta,
    TurnStarted,
)
from treadle.messages import Call, Json


class DeltaFrame(Frame, frozen=True, tag="delta"):
    text: str


class ToolStartFrame(Frame, frozen=True, tag="tool_start"):
    name: str
    args: dict[str, Json]
    class_: str = field(name="class")
    id: str = ""


class ToolEndFrame(Frame, frozen=True, tag="tool_end"):
    name: str
    ok: bool
    summary: str
    id: str = ""
    status: str = ""


class ToolRejectedFrame(Frame, frozen=True, tag="tool_rejected"):
    name: str
    class_: str = field(name="class")
    id: str = ""
    reason: str = ""


class IterationFrame(Frame, frozen=True, tag="iteration"):
    n: int


class DoneFrame(Frame, frozen=True, tag="done"):
    """The run is over and stored. `reason` is `answered`, or says why there is no answer."""

    reply: str
    turns: int
    reason: EndReason
    can_continue: bool = False


class ErrorFrame(Frame, frozen=True, tag="error"):
    message: str


class RetryFrame(Frame, frozen=True, tag="retry"):
    """The model failed and is asked again: the text of this iteration so far is void."""

    message: str
    wait: float


class ApprovalRequestFrame(Frame, frozen=True, tag="approval_request"):
    id: str
    name: str
    args: dict[str, Json]
    class_: str = field(name="class")
    why: str = ""
    digest: str = ""
    expires_at: float | None = None


class InputRequestFrame(Frame, frozen=True, tag="input_request"):
    """The model asks the user; answered like an approval, with words. `options` are suggested for each question."""

    id: str
    questions: tuple[str, ...]
    expires_at: float | None = None
    options: tuple[tuple[str, ...], ...] = ()


class SessionFramesDialect:
    """Turns one session's events into frames. `classes` are the tools' safety classes, for calls that never began."""

    def __init__(self, session_id: str, classes: Mapping[str, str] | None = None) -> None:
        self._session_id = session_id
        self._classes = classes or {}
        self._calls: dict[str, Call] = {}
        self._asked: dict[str, str] = {}
        self._begun: set[str] = set()
        self._pieces = ReplyText()

    def feed(self, event: Event) -> Sequence[Frame]:
        """The frames that one of our events amounts to."""
        if type(event) is TextDelta:
            self._pieces.add(event.text)
            return (DeltaFrame(event.text),)
        match event:
            case RunStarted():
                self._calls.clear()
                self._asked.clear()
                self._begun.clear()
            case TurnStarted():
                self._pieces.clear()
                return (IterationFrame(event.turn),)
            case ModelReplied():
                self._calls.update((call.id, call) for call in event.calls)
                rest = self._pieces.take_rest(event.text)
                return (DeltaFrame(rest),) if rest else ()
            case ModelFailed():
                self._pieces.clear()
                if event.wait is not None:
                    return (RetryFrame(event.message, event.wait),)
            case ApprovalRequested() | InputRequested():
                return (self._question(event),)
            case CallStarted():
                if event.call_id not in self._begun:  # a safe call that runs again was told already
                    self._begun.add(event.call_id)
                    return (ToolStartFrame(event.tool, event.arguments, event.safety, event.call_id),)
            case CallFinished():
                return self._call_finished(event)
            case RunFinished():
                done = DoneFrame(event.answer, event.turns, event.reason, event.can_continue)
                return (ErrorFrame(event.error), done) if event.reason == "failed" else (done,)
            case _:
                pass
        return ()

    def _question(self, fact: ApprovalRequested | InputRequested) -> Frame:
        name = build_approval_id(self._session_id, fact.call_id)
        if isinstance(fact, InputRequested):
            return InputRequestFrame(
                name, tuple(one.text for one in fact.questions), fact.expires_at, list_options(fact)
            )
        self._asked[fact.call_id] = fact.safety
        return ApprovalRequestFrame(
            name, fact.tool, fact.arguments, fact.safety, fact.why, digest=fact.digest, expires_at=fact.expires_at
        )

    def _call_finished(self, fact: CallFinished) -> Sequence[Frame]:
        safety = self._asked.get(fact.call_id) or self._classes.get(fact.tool, "caution")
        if is_rejected(fact):
            return (ToolRejectedFrame(fact.tool, safety, fact.call_id, shorten_output(fact.output)),)
        end = ToolEndFrame(fact.tool, fact.status == "ok", shorten_output(fact.output), fact.call_id, fact.status)
        if fact.call_id in self._begun:
            return (end,)
        # What failed before it began still has a beginning here: clients pair the two.
        return (ToolStartFrame(fact.tool, self._arguments(fact.call_id), safety, fact.call_id), end)

    def _arguments(self, call_id: str) -> dict[str, Json]:
        call = self._calls.get(call_id)
        try:
            return msgspec.json.decode(call.arguments, type=dict[str, Json]) if call is not None else {}
        except (msgspec.MsgspecError, RecursionError):
            return {}
