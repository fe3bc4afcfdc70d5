"""Replies in the format of OpenAI's Responses: the response object, and the events it is streamed as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from treadle.dialects.base import ReplyText
from treadle.events import (
    LIMIT_REASONS,
    AnyFact,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    Event,
    InputRequested,
    ModelFailed,
    ModelReplied,
    RunFinished,
    TextDelta,
    TurnStarted,
)
from treadle.messages import Json, Reply, Usage


class TextOut(Struct, frozen=True):
    text: str
    annotations: tuple[Json, ...] = ()
    type: str = "output_text"


class MessageItem(Struct, frozen=True):
    id: str
    content: tuple[TextOut, ...]
    status: str = "completed"
    role: str = "assistant"
    type: str = "message"


class CallItem(Struct, frozen=True):
    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"
    type: str = "function_call"


OutputItem: TypeAlias = MessageItem | CallItem


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens_details: dict[str, int]


class ResponseObject(Struct, frozen=True):
    id: str
    created_at: float
    model: str
    status: str
    output: tuple[MessageItem | CallItem, ...] = ()
    usage: ResponseUsage | None = None
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
    treadle: tuple[AnyFact, ...] | UnsetType = UNSET


class ResponseEvent(Struct, frozen=True, omit_defaults=True):
    """One streamed event; only the fields of its type are there."""

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
    treadle: AnyFact | UnsetType = UNSET


class ResponsesDialect:
    """A reply as a stream of events: of a bare model's events, or of an agent's run."""

    def __init__(self, response_id: str, model: str, created: float) -> None:
        self._response = ResponseObject(response_id, created, model, "in_progress")
        self._number = 0
        self._text: list[str] = []
        self._pieces = ReplyText()
        self._open = False

    def begin(self) -> Sequence[ResponseEvent]:
        """What comes before anything is said."""
        return (
            self._event("response.created", response=self._response),
            self._event("response.in_progress", response=self._response),
        )

    def feed(self, event: Event | Reply) -> Sequence[ResponseEvent]:
        """The events that one of ours amounts to."""
        match event:
            case TextDelta():
                self._pieces.add(event.text)
                return (*self._opened(), self._piece(event.text))
            case TurnStarted() | ModelFailed():
                self._pieces.clear()
                return ()
            case ModelReplied():
                rest = self._pieces.take_rest(event.text)
                return (*self._opened(), self._piece(rest)) if rest else ()
            case CallStarted() | CallFinished() | ApprovalRequested() | InputRequested():
                return (self._event("treadle.activity", treadle=event),)
            case Reply():
                return (
                    *self._closed(reply_text=event.text),
                    *self._calls(event),
                    self._ended(complete_with_reply(self._response, event)),
                )
            case RunFinished():
                ended = complete_with_run(self._response, event, "".join(self._text))
                return (*self._closed(reply_text=event.answer), self._ended(ended))
            case _:
                return ()

    def _event(self, kind: str, **fields: Json) -> ResponseEvent:
        self._number += 1
        return ResponseEvent(kind, self._number - 1, **fields)

    @property
    def _item_id(self) -> str:
        return f"msg_{self._response.id}"

    def _opened(self) -> Sequence[ResponseEvent]:
        if self._open:
            return ()
        self._open = True
        item = MessageItem(self._item_id, (), "in_progress")
        return (
            self._event("response.output_item.added", output_index=0, item=item),
            self._event(
                "response.content_part.added", output_index=0, content_index=0, item_id=self._item_id, part=TextOut("")
            ),
        )

    def _piece(self, text: str) -> ResponseEvent:
        self._text.append(text)
        return self._event(
            "response.output_text.delta",
            output_index=0,
            content_index=0,
            item_id=self._item_id,
            delta=text,
            logprobs=(),
        )

    def _closed(self, reply_text: str) -> Sequence[ResponseEvent]:
        before: list[ResponseEvent] = []
        if not self._text and reply_text:
            before = [*self._opened(), self._piece(reply_text)]
        if not self._open:
            return before
        text = "".join(self._text)
        where: dict[str, Json] = {"output_index": 0, "content_index": 0, "item_id": self._item_id}
        part = TextOut(text)
        return (
            *before,
            self._event("response.output_text.done", **where, text=text, logprobs=()),
            self._event("response.content_part.done", **where, part=part),
            self._event("response.output_item.done", output_index=0, item=MessageItem(self._item_id, (part,))),
        )

    def _calls(self, reply: Reply) -> Sequence[ResponseEvent]:
        events: list[ResponseEvent] = []
        for place, item in enumerate(_call_items(reply), int(self._open)):
            started = msgspec.structs.replace(item, arguments="", status="in_progress")
            where: dict[str, Json] = {"output_index": place, "item_id": item.id}
            events += (
                self._event("response.output_item.added", output_index=place, item=started),
                self._event("response.function_call_arguments.delta", **where, delta=item.arguments),
                self._event("response.function_call_arguments.done", **where, name=item.name, arguments=item.arguments),
                self._event("response.output_item.done", output_index=place, item=item),
            )
        return events

    def _ended(self, response: ResponseObject) -> ResponseEvent:
        name = "failed" if response.status == "cancelled" else response.status  # they have no event for that
        return self._event(f"response.{name}", response=response)


def start_response(response_id: str, model: str, created: float) -> ResponseObject:
    """A response that nothing has been said in yet."""
    return ResponseObject(response_id, created, model, "in_progress")


def complete_with_reply(response: ResponseObject, reply: Reply) -> ResponseObject:
    """The response that a bare model's reply amounts to."""
    said = _said(response.id, reply.text)
    cut = {"length": "max_output_tokens", "filter": "content_filter"}.get(reply.finish)
    return msgspec.structs.replace(
        response,
        status="incomplete" if cut else "completed",
        output=(*said, *_call_items(reply)),
        usage=_usage(reply.usage),
        incomplete_details={"reason": cut} if cut else None,
    )


def complete_with_run(
    response: ResponseObject, ending: RunFinished, said: str = "", activity: Sequence[AnyFact] | None = None
) -> ResponseObject:
    """The response that an agent's run amounts to; `said` is what was streamed, the answer counts without."""
    status, error, cut = "completed", None, None
    if ending.reason in ("failed", "cancelled"):
        status, error = ending.reason, {"code": "server_error", "message": ending.error}
    elif ending.reason in LIMIT_REASONS:
        status, cut = "incomplete", {"reason": "max_output_tokens"}
    return msgspec.structs.replace(
        response,
        status=status,
        output=_said(response.id, said or ending.answer),
        usage=_usage(ending.usage),
        error=error,
        incomplete_details=cut,
        treadle=(*activity, ending) if activity is not None else UNSET,
    )


def _said(response_id: str, text: str) -> tuple[OutputItem, ...]:
    return (MessageItem(f"msg_{response_id}", (TextOut(text),)),) if text else ()


def _call_items(reply: Reply) -> tuple[CallItem, ...]:
    return tuple(
        CallItem(f"fc_{index}_{call.id}", call.id or f"call_{index}", call.tool, call.arguments)
        for index, call in enumerate(reply.calls)
    )


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens + usage.output_tokens,
        {"cached_tokens": usage.cached_tokens},
        {"reasoning_tokens": usage.reasoning_tokens},
    )
