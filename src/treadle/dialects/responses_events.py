"""Replies in the format of OpenAI's Responses: the response object, and the events that it is streamed as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from treadle.dialects.base import Activity, EventTracker, ReplyFormat, RunExtension
from treadle.dialects.openai_chat import UsageDocument, build_usage
from treadle.events import LIMIT_REASONS, AnyFact, Event, RunFinished
from treadle.messages import Json, Reply


class TextOut(Struct, frozen=True):
    """The text of a message."""

    text: str
    annotations: tuple[Json, ...] = ()
    type: str = "output_text"


class MessageItem(Struct, frozen=True):
    """A message in the response's output."""

    id: str
    content: tuple[TextOut, ...]
    status: str = "completed"
    role: str = "assistant"
    type: str = "message"


class CallItem(Struct, frozen=True):
    """A call for the client to run."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"
    type: str = "function_call"


OutputItem: TypeAlias = MessageItem | CallItem


class ResponseObject(Struct, frozen=True):
    """A response: in progress, or whole."""

    id: str
    created_at: float
    model: str
    status: str
    output: tuple[MessageItem | CallItem, ...] = ()
    usage: UsageDocument | None = None
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    parallel_tool_calls: bool = True
    temperature: float | None = None
    tool_choice: str = "auto"
    tools: tuple[Json, ...] = ()
    top_p: float | None = None
    object: str = "response"
    treadle: RunExtension | UnsetType = UNSET


class ResponseEvent(Struct, frozen=True, omit_defaults=True):
    """One streamed event. It has only the fields of its type."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: MessageItem | CallItem | UnsetType = UNSET
    part: TextOut | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: tuple[Json, ...] | UnsetType = UNSET
    treadle: RunExtension | UnsetType = UNSET


class ResponsesDialect(ReplyFormat):
    """A reply in the format of Responses: of a bare model's events, or of an agent's run."""

    end_mark = b""
    can_report_failure = True

    def __init__(self, response_id: str, model: str, created: float) -> None:
        self._response = ResponseObject(response_id, created, model, "in_progress")
        self._item_id = f"msg_{response_id}"
        self._number = 0
        self._text: list[str] = []
        self._has_message = False
        self._tracker = EventTracker()

    def begin(self) -> Sequence[ResponseEvent]:
        if self.session_id:
            self._response = msgspec.structs.replace(self._response, treadle=RunExtension(self.session_id))
        return (
            self._build_event("response.created", response=self._response),
            self._build_event("response.in_progress", response=self._response),
        )

    def feed(self, event: Event | Reply) -> Sequence[ResponseEvent]:
        if text := self._tracker.track(event):
            return self._add_text(text)
        match event:
            case Reply():
                message, calls = self._close_message(event.text), self._stream_calls(event)
                return (*message, *calls, self._end(self.complete_reply(event)))
            case RunFinished():
                response = self._complete_run(event, "".join(self._text) or event.answer)
                return (*self._close_message(event.answer), self._end(response))
            case _ if isinstance(event, Activity):
                return (self._build_event("treadle.activity", treadle=RunExtension(self.session_id, event)),)
            case _:
                return ()

    def complete_reply(self, reply: Reply) -> ResponseObject:
        cut = {"length": "max_output_tokens", "filter": "content_filter"}.get(reply.finish)
        return msgspec.structs.replace(
            self._response,
            status="incomplete" if cut else "completed",
            output=(*self._build_message(reply.text), *_build_calls(reply)),
            usage=build_usage(reply.usage, "input", "output"),
            incomplete_details={"reason": cut} if cut else None,
        )

    def complete_run(self, ending: RunFinished | Reply, activity: Sequence[AnyFact]) -> ResponseObject:
        if isinstance(ending, Reply):
            response, facts = self.complete_reply(ending), tuple(activity)
        else:
            response, facts = self._complete_run(ending, ending.answer), (*activity, ending)
        return msgspec.structs.replace(response, treadle=RunExtension(self.session_id, events=facts))

    def _complete_run(self, ending: RunFinished, text: str) -> ResponseObject:
        status, error, details = "completed", None, None
        if ending.reason in ("failed", "cancelled"):
            status, error = ending.reason, {"code": "server_error", "message": ending.error}
        elif ending.reason in LIMIT_REASONS:
            status, details = "incomplete", {"reason": "max_output_tokens"}
        return msgspec.structs.replace(
            self._response,
            status=status,
            output=self._build_message(text),
            usage=build_usage(ending.usage, "input", "output"),
            error=error,
            incomplete_details=details,
        )

    def _build_message(self, text: str) -> tuple[OutputItem, ...]:
        return (MessageItem(self._item_id, (TextOut(text),)),) if text else ()

    def _build_event(self, kind: str, **fields: Json) -> ResponseEvent:
        self._number += 1
        return ResponseEvent(kind, self._number - 1, **fields)

    def _add_text(self, text: str) -> Sequence[ResponseEvent]:
        place: dict[str, Json] = {"output_index": 0, "content_index": 0, "item_id": self._item_id}
        events: list[ResponseEvent] = []
        if not self._has_message:
            self._has_message = True
            item = MessageItem(self._item_id, (), "in_progress")
            events.append(self._build_event("response.output_item.added", output_index=0, item=item))
            events.append(self._build_event("response.content_part.added", **place, part=TextOut("")))
        self._text.append(text)
        events.append(self._build_event("response.output_text.delta", **place, delta=text, logprobs=()))
        return events

    def _close_message(self, reply_text: str) -> Sequence[ResponseEvent]:
        added = self._add_text(reply_text) if not self._text and reply_text else ()
        if not self._has_message:
            return added
        text = "".join(self._text)
        place: dict[str, Json] = {"output_index": 0, "content_index": 0, "item_id": self._item_id}
        part = TextOut(text)
        return (
            *added,
            self._build_event("response.output_text.done", **place, text=text, logprobs=()),
            self._build_event("response.content_part.done", **place, part=part),
            self._build_event("response.output_item.done", output_index=0, item=MessageItem(self._item_id, (part,))),
        )

    def _stream_calls(self, reply: Reply) -> Sequence[ResponseEvent]:
        events: list[ResponseEvent] = []
        for index, item in enumerate(_build_calls(reply), int(self._has_message)):
            started = msgspec.structs.replace(item, arguments="", status="in_progress")
            place: dict[str, Json] = {"output_index": index, "item_id": item.id}
            written: dict[str, Json] = {"name": item.name, "arguments": item.arguments}
            events += (
                self._build_event("response.output_item.added", output_index=index, item=started),
                self._build_event("response.function_call_arguments.delta", **place, delta=item.arguments),
                self._build_event("response.function_call_arguments.done", **place, **written),
                self._build_event("response.output_item.done", output_index=index, item=item),
            )
        return events

    def _end(self, response: ResponseObject) -> ResponseEvent:
        name = "failed" if response.status == "cancelled" else response.status  # there is no event for cancelled
        return self._build_event(f"response.{name}", response=response)


def _build_calls(reply: Reply) -> tuple[CallItem, ...]:
    return tuple(
        CallItem(f"fc_{index}_{call.id}", call.id or f"call_{index}", call.tool, call.arguments)
        for index, call in enumerate(reply.calls)
    )
