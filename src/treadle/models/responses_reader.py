"""Reads OpenAI Responses: events, and whole responses of servers that do not stream. No network here."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from treadle.errors import ModelError
from treadle.messages import FinishReason, Reply, Usage
from treadle.models.base import ModelEvent
from treadle.models.prices import add_cost
from treadle.models.reply_builder import PendingCall, ReplyBuilder
from treadle.models.reports import ReportedFailure
from treadle.models.request_parts import MISSING, OpaqueState, encode_state, estimate_tokens, read_raw
from treadle.models.sse import MalformedStream, MessageDecoder, MessageStream


class _InputDetails(Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    model: str | None = None
    status: str | None = None
    output: list[Raw] | None = None
    usage: _Usage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _Event(Struct, gc=False):
    type: str = ""
    delta: Any = None
    output_index: int | None = 0
    summary_index: int | None = 0
    item: Raw = MISSING
    response: _Response | None = None
    code: Any = None
    message: Any = None
    error: Any = None


class _Text(Struct):
    text: str | None = None
    refusal: str | None = None


class _Item(Struct):
    """What is looked at in an output item; the item itself is kept raw."""

    type: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    content: list[_Text] | None = None
    summary: list[_Text] | None = None


_EVENTS = MessageDecoder(
    _Event,
    frozenset(
        (
            "response.output_text.delta",
            "response.refusal.delta",
            "response.function_call_arguments.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning_text.delta",
            "response.reasoning_summary_part.added",
            "response.output_item.added",
            "response.output_item.done",
            "response.completed",
            "response.incomplete",
            "response.failed",
            "error",
        )
    ),
)
_item = msgspec.json.Decoder(_Item)
_fields = msgspec.json.Decoder(dict[str, Raw])
_response = msgspec.json.Decoder(_Response)
_FINISH: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "filter"}


class ResponsesReader:
    """The reply of one exchange, in the making."""

    def __init__(self, owner: str, *, sent: int = 0) -> None:
        self._owner = owner
        self._sent = sent
        self._stream = MessageStream(_EVENTS)
        self._made = ReplyBuilder()
        self._slots: dict[int, PendingCall] = {}
        self._items: dict[int, bytes] = {}
        self._streamed: set[int] = set()
        self._refused: list[str] = []
        self._response: _Response | None = None

    @property
    def text(self) -> str:
        return self._made.join_text()

    @property
    def is_done(self) -> bool:
        return self._response is not None

    @property
    def has_ended(self) -> bool:
        return self.is_done

    def feed(self, data: bytes) -> list[ModelEvent]:
        for event in self._stream.feed(data):
            self._read(event)
        return self._made.take_deltas()

    def finish(self) -> list[ModelEvent]:
        if (document := self._stream.join_document()) is not None:
            try:
                whole = _response.decode(document)
            except msgspec.DecodeError as error:
                raise MalformedStream(str(error)) from None
            if whole.output is None and not whole.error:
                raise MalformedStream(repr(document[:200].decode()))
            self._end(whole)
        for event in self._stream.finish():
            self._read(event)
        events = self._made.finish()
        if self._response is None:
            raise ModelError(
                f"{self._owner} ended its stream before the reply was complete", kind="network", retryable=True
            )
        return events

    def build_reply(self) -> Reply:
        response = self._response or _Response()
        text, thought = self._made.join_texts()
        why = response.incomplete_details.reason if response.incomplete_details is not None else None
        finish = _FINISH.get(why or "", "other") if why or response.status == "incomplete" else "stop"
        calls = self._made.build_calls(is_cut_off=finish == "length")
        if calls and finish == "stop":
            finish = "calls"
        elif self._refused:
            text, finish = text or "".join(self._refused), "filter"
        size = len(text) + len(thought) + sum(len(call.arguments) for call in calls)
        return Reply(
            text=text,
            reasoning=thought,
            calls=calls,
            finish=finish,
            usage=self._counts(response.usage, size),
            model=response.model or self._owner.partition(":")[2],
            opaque=self._opaque(),
        )

    def _read(self, event: _Event) -> None:
        place = event.output_index or 0
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta" | "response.function_call_arguments.delta":
                self._grow(event, place)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._streamed.add(place)
                self._made.add_reasoning(str(event.delta))
            case "response.reasoning_summary_part.added" if event.summary_index:
                self._made.add_reasoning("\n\n")
            case "response.output_item.added" if read_raw(event.item):
                item = _item.decode(event.item)
                if item.type == "function_call":
                    self._call(place, item)
            case "response.output_item.done" if read_raw(event.item):
                self._item_done(place, event.item)
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(event.response or _Response(status=event.type.removeprefix("response.")))
            case "error":
                raise ReportedFailure(event.error or {"code": event.code, "message": event.message})
            case _ if event.error:  # as proxies say it whatever they stand before
                raise ReportedFailure(event.error)
            case _:
                pass

    def _grow(self, event: _Event, place: int) -> None:
        self._streamed.add(place)
        text = str(event.delta)
        if event.type == "response.output_text.delta":
            self._made.add_text(text)
        elif event.type == "response.refusal.delta":
            self._refused.append(text)
        else:
            slot = self._slots.get(place) or self._call(place, _Item())
            slot.arguments.append(text)
            self._made.mark_changed(slot)

    def _call(self, place: int, item: _Item) -> PendingCall:
        slot = self._slots.get(place)
        if slot is None:
            slot = self._slots[place] = self._made.start_call()
        slot.id, slot.name = item.call_id or slot.id, item.name or slot.name
        self._made.mark_changed(slot)
        return slot

    def _item_done(self, place: int, raw: Raw) -> None:
        """A finished item counts as it is; what of it was not streamed is told now."""
        whole = self._items[place] = bytes(raw).decode("utf-8", "replace").encode()
        item = _item.decode(whole)
        if item.type == "function_call":
            slot = self._call(place, item)
            if place not in self._streamed and (given_all := item.arguments):
                is_text = isinstance(given_all, str)
                slot.arguments.append(given_all if is_text else msgspec.json.encode(given_all).decode())
        elif place not in self._streamed:
            for part in item.content or ():
                if item.type == "message":
                    self._refused += [part.refusal] if part.refusal else []
                    self._made.add_text(part.text or "")
                elif item.type == "reasoning":
                    self._made.add_reasoning(part.text or "")
            if item.type == "reasoning" and item.summary:
                self._made.add_reasoning("\n\n".join(part.text or "" for part in item.summary))

    def _end(self, response: _Response) -> None:
        if response.status not in ("completed", "incomplete") and (response.error or response.status == "failed"):
            raise ReportedFailure(response.error or {"message": "the response failed, and nothing says why"})
        if not self._items:
            for place, raw in enumerate(response.output or ()):
                self._item_done(place, raw)
        self._response = response

    def _counts(self, usage: _Usage | None, size: int) -> Usage:
        if usage is None or (not usage.input_tokens and not usage.output_tokens):
            return add_cost(self._owner, Usage(estimate_tokens(self._sent), estimate_tokens(size), estimated=True))
        inside, outside = usage.input_tokens_details, usage.output_tokens_details
        count = Usage(
            input_tokens=usage.input_tokens or 0,
            output_tokens=usage.output_tokens or 0,
            cached_tokens=(inside.cached_tokens if inside is not None else None) or 0,
            reasoning_tokens=(outside.reasoning_tokens if outside is not None else None) or 0,
        )
        return add_cost(self._owner, count, (inside.cache_write_tokens if inside is not None else None) or 0)

    def _opaque(self) -> str:
        """The items as they came, where there is reasoning among them.

        Messages and calls lose their ids: they name things a stateless provider does not keep.
        """
        kinds = {place: _item.decode(raw).type for place, raw in self._items.items()}
        if all(kind in ("message", "function_call") for kind in kinds.values()):
            return ""
        items: list[Raw] = []
        for place in sorted(self._items):
            if kinds[place] == "function_call":
                items.append(Raw(b'{"type":"function_call"}'))
            elif kinds[place] == "message":
                fields = _fields.decode(self._items[place])
                fields.pop("id", None)
                items.append(Raw(msgspec.json.encode(fields)))
            elif kinds[place] != "reasoning" or b'"encrypted_content"' in self._items[place]:
                items.append(Raw(self._items[place]))
        return encode_state(OpaqueState(owner=f"responses:{self._owner}", items=items))
