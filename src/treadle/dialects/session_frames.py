"""The live frames of REST clients: delta, iteration, tool_start, tool_end, approval_request, done and others.

`POST …/messages/stream` and the WebSocket `…/stream` send them. `done` is sent only after the result is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import field
from msgspec.structs import force_setattr

from treadle import events
from treadle.dialects.base import (
    EventTracker,
    Frame,
    build_approval_id,
    list_options,
    parse_arguments,
    summarize_output,
)
from treadle.messages import Json


class StreamFrame(Frame, frozen=True, kw_only=True):
    """A frame with its position: `?after=` takes the `seq` of the last frame that a client has."""

    seq: int = 0


class DeltaFrame(StreamFrame, frozen=True, tag="delta"):
    """A fragment of the reply's text."""

    text: str


class ToolStartFrame(StreamFrame, frozen=True, tag="tool_start"):
    """A tool call begins."""

    name: str
    args: dict[str, Json]
    class_: str = field(name="class")
    id: str = ""


class ToolEndFrame(StreamFrame, frozen=True, tag="tool_end"):
    """A tool call has ended."""

    name: str
    ok: bool
    summary: str
    id: str = ""
    status: str = ""


class ToolRejectedFrame(StreamFrame, frozen=True, tag="tool_rejected"):
    """A tool call was not allowed to run. `class` is the safety class that decided."""

    name: str
    class_: str = field(name="class")
    id: str = ""
    reason: str = ""


class IterationFrame(StreamFrame, frozen=True, tag="iteration"):
    """A turn begins; `n` counts from 1."""

    n: int


class DoneFrame(StreamFrame, frozen=True, tag="done"):
    """The run is over and stored. `turns` counts the turns of the whole session.

    `reason` is `answered`, or says why there is no answer.
    """

    reply: str
    turns: int
    reason: events.EndReason
    can_continue: bool = False


class ErrorFrame(StreamFrame, frozen=True, tag="error"):
    """The run failed, and is over and stored; or what the client sent was refused."""

    message: str


class RetryFrame(StreamFrame, frozen=True, tag="retry"):
    """The model failed and is asked again. The text of this iteration so far is void."""

    message: str
    wait: float


class ApprovalRequestFrame(StreamFrame, frozen=True, tag="approval_request"):
    """A person must allow or deny a call."""

    id: str
    name: str
    args: dict[str, Json]
    class_: str = field(name="class")
    why: str = ""
    digest: str = ""
    expires_at: float | None = None


class InputRequestFrame(StreamFrame, frozen=True, tag="input_request"):
    """The model asks the user. `options` are the suggested answers to each question."""

    id: str
    questions: tuple[str, ...]
    expires_at: float | None = None
    options: tuple[tuple[str, ...], ...] = ()


class SessionFramesDialect:
    """Turns one session's events into frames. `classes` are the tools' safety classes, for calls that never began."""

    def __init__(self, session_id: str, classes: Mapping[str, str] | None = None) -> None:
        self._session_id = session_id
        self._classes = classes or {}
        self._tracker = EventTracker()

    def feed(self, event: events.Event) -> Sequence[StreamFrame]:
        position = event.after if isinstance(event, events.Delta) else event.seq
        frames = self._translate(event)
        for frame in frames[:-1]:  # a client that is cut off between two frames gets both again
            force_setattr(frame, "seq", position - 1)
        for frame in frames[-1:]:
            force_setattr(frame, "seq", position)
        return frames

    def _translate(self, event: events.Event) -> Sequence[StreamFrame]:
        if text := self._tracker.track(event):
            return (DeltaFrame(text),)
        match event:
            case events.TurnStarted() if event.turn:
                return (IterationFrame(event.turn),)
            case events.ModelFailed() if event.wait is not None:
                return (RetryFrame(event.message, event.wait),)
            case events.ApprovalRequested():
                return (
                    ApprovalRequestFrame(
                        build_approval_id(self._session_id, event.call_id),
                        event.tool,
                        event.arguments,
                        event.safety,
                        event.why,
                        event.digest,
                        event.expires_at,
                    ),
                )
            case events.InputRequested():
                question_id = build_approval_id(self._session_id, event.call_id)
                texts = tuple(question.text for question in event.questions)
                return (InputRequestFrame(question_id, texts, event.expires_at, list_options(event)),)
            case events.CallStarted() if self._tracker.calls[event.call_id].starts == 1:  # a repeated start is not sent
                return (ToolStartFrame(event.tool, event.arguments, event.safety, event.call_id),)
            case events.CallFinished():
                return self._finish_call(event)
            case events.RunFinished():
                if event.reason == "failed":
                    return (ErrorFrame(event.error),)
                return (DoneFrame(event.answer, self._tracker.session_turns, event.reason, event.can_continue),)
            case _:
                return ()

    def _finish_call(self, fact: events.CallFinished) -> Sequence[StreamFrame]:
        call = self._tracker.calls.get(fact.call_id)
        asked = call.safety if call is not None else ""
        safety = fact.safety or asked or self._classes.get(fact.tool, "caution")
        summary = summarize_output(fact.output)
        if fact.status in ("denied", "refused"):  # by a person, the policy or a budget
            return (ToolRejectedFrame(fact.tool, safety, fact.call_id, summary),)
        end = ToolEndFrame(fact.tool, fact.status == "ok", summary, fact.call_id, fact.status)
        if call is not None and call.starts:
            return (end,)
        # A call that failed before it began still gets a start: clients pair the two.
        arguments = (parse_arguments(call.arguments) if call is not None else None) or {}
        return (ToolStartFrame(fact.tool, arguments, safety, fact.call_id), end)
