"""Replies in the format of OpenAI's Responses: the events of a stream, and the response that they add up to."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from treadle.dialects.base import Activity, EventTracker, ReplyFormat, RunExtension
from treadle.dialects.openai_chat import build_usage
from treadle.dialects.responses_objects import (
    CallItem,
    CustomCallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponseObject,
    SummaryText,
    TextOut,
)
from treadle.dialects.responses_requests import encode_state
from treadle.dialects.responses_tools import ToolTable, read_custom_input
from treadle.events import LIMIT_REASONS, AnyFact, Event, Fact, ModelFailed, ReasoningDelta, RunFinished, TurnStarted
from treadle.messages import Call, Json, Reply

_CUT_REASONS = {"length": "max_output_tokens", "filter": "content_filter"}


class ResponseEvent(Struct, frozen=True, omit_defaults=True):
    """One streamed event. It has only the fields of its type."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: TextOut | SummaryText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    logprobs: tuple[Json, ...] | UnsetType = UNSET
    treadle: RunExtension | UnsetType = UNSET


class OpenItem(Struct):
    """An item that is being written. Reasoning has a part for each run of it, and a message has one part."""

    index: int
    id: str
    parts: list[list[str]]
    is_part_open: bool = False

    @property
    def text(self) -> str:
        return "".join(piece for part in self.parts for piece in part)


class ResponsesDialect(ReplyFormat):
    """A reply in the format of Responses: of a bare model's events, or of an agent's run.

    The whole response is what the events add up to. `ended_at` is the time that the response gets as its end.
    """

    end_mark = b""
    can_report_failure = True

    def __init__(self, response: ResponseObject, tools: ToolTable | None = None, *, wants_state: bool = False) -> None:
        self.response = response
        self.ended_at: int | None = None
        self.tools, self._wants_state = tools or ToolTable(), wants_state
        self.ignored_tools = self.tools.ignored
        self._suffix = response.id.partition("_")[2]
        self._number = 0
        self._output: list[OutputItem | None] = []
        self._reasoning: OpenItem | None = None
        self._message: OpenItem | None = None
        self._activity: list[AnyFact] = []
        self._tracker = EventTracker()

    def begin(self) -> Sequence[ResponseEvent]:
        events: list[ResponseEvent] = []
        if self.session_id:
            self.response = replace(self.response, treadle=RunExtension(self.session_id))
        if self.response.background:
            self.response = replace(self.response, status="queued")
            events += [self._build_event(f"response.{kind}", response=self.response) for kind in ("created", "queued")]
        self.response = replace(self.response, status="in_progress")
        kinds = ("in_progress",) if events else ("created", "in_progress")
        return [*events, *(self._build_event(f"response.{kind}", response=self.response) for kind in kinds)]

    def feed(self, event: Event | Reply) -> Sequence[ResponseEvent]:
        if isinstance(event, Fact):
            self.ended_at = int(event.at)
        if isinstance(event, Activity | RunFinished):
            self._activity.append(event)
        if text := self._tracker.track(event):
            return self._add_text(text)
        match event:
            case ReasoningDelta():
                return self._add_reasoning(event.text)
            case Reply():
                return self._end_reply(event)
            case TurnStarted():  # each turn of an agent writes items of its own
                return self._close_items()
            case ModelFailed():
                return self._close_items("incomplete")
            case RunFinished():
                return self._end_run(event)
            case _ if isinstance(event, Activity):
                return (self._build_event("treadle.activity", treadle=RunExtension(self.session_id, event)),)
            case _:
                return ()

    def fail(self, code: str, message: str, status: str = "failed") -> Sequence[ResponseEvent]:
        """End the response without a reply. What was written stays, as incomplete items."""
        error = {"code": code, "message": message} if status == "failed" else None
        return [*self._close_items("incomplete"), self._end(status=status, error=error)]

    def complete_reply(self, reply: Reply) -> ResponseObject:
        self.feed(reply)
        return self.response

    def complete_run(self, ending: RunFinished | Reply, activity: Sequence[AnyFact]) -> ResponseObject:
        self.feed(ending)
        return self.response

    def show_progress(self) -> ResponseObject:
        """The response as far as it is written: its finished items, and what an agent's tools did."""
        output = tuple(item for item in self._output if item is not None)
        extension = RunExtension(self.session_id, events=tuple(self._activity)) if self.session_id else UNSET
        return replace(self.response, output=output, treadle=extension)

    def skip_numbers(self, count: int) -> None:
        """Leave out some sequence numbers."""
        self._number += count

    def read_shown(self) -> tuple[str, str]:
        """The reasoning and the text of the current reply, as the events have shown them."""
        return self._reasoning.text if self._reasoning else "", self._message.text if self._message else ""

    # ── endings ──────────────────────────────────────────────────────────────────────────────────────

    def _end_reply(self, reply: Reply) -> Sequence[ResponseEvent]:
        events: list[ResponseEvent] = []
        reasoning, text = self.read_shown()
        if reply.reasoning.startswith(reasoning) and (rest := reply.reasoning[len(reasoning) :]):
            events += self._add_reasoning(rest)
        if reply.text.startswith(text) and (rest := reply.text[len(text) :]):
            events += self._add_text(rest)
        cut = _CUT_REASONS.get(reply.finish)
        events += self._close_items("incomplete" if cut else "completed", reply)
        for number, call in enumerate(reply.calls):
            events += self._stream_call(call, number)
        details = {"reason": cut} if cut else None
        usage = build_usage(reply.usage, "input", "output")
        status = "incomplete" if cut else "completed"
        return [*events, self._end(status=status, usage=usage, incomplete_details=details)]

    def _end_run(self, ending: RunFinished) -> Sequence[ResponseEvent]:
        has_text = self._message is not None or any(isinstance(item, MessageItem) for item in self._output)
        events = [] if has_text or not ending.answer else list(self._add_text(ending.answer))
        status, error, details = "completed", None, None
        if ending.reason in ("failed", "cancelled"):
            status, error = ending.reason, {"code": "server_error", "message": ending.error}
        elif ending.reason in LIMIT_REASONS:
            status, details = "incomplete", {"reason": "max_output_tokens"}
        usage = build_usage(ending.usage, "input", "output")
        ended = {"status": status, "error": error, "usage": usage, "incomplete_details": details}
        return [*events, *self._close_items(), self._end(**ended)]

    def _end(self, **fields: Json) -> ResponseEvent:
        completed_at = self.ended_at if fields["status"] == "completed" else None
        self.response = replace(self.show_progress(), completed_at=completed_at, **fields)
        status = self.response.status
        name = "failed" if status == "cancelled" else status  # there is no event for cancelled
        return self._build_event(f"response.{name}", response=self.response)

    # ── items ────────────────────────────────────────────────────────────────────────────────────────

    def _build_event(self, kind: str, **fields: Json) -> ResponseEvent:
        self._number += 1
        return ResponseEvent(kind, self._number - 1, **fields)

    def _open_item(self, prefix: str) -> OpenItem:
        self._output.append(None)
        index = len(self._output) - 1
        return OpenItem(index, f"{prefix}_{self._suffix}_{index}", [])

    def _add_reasoning(self, text: str) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        if self._reasoning is None:
            self._reasoning = self._open_item("rs")
            item = ReasoningItem(self._reasoning.id, status="in_progress")
            events.append(
                self._build_event("response.output_item.added", output_index=self._reasoning.index, item=item)
            )
        opened = self._reasoning
        if not opened.is_part_open:
            opened.is_part_open = True
            opened.parts.append([])
            place = self._locate_summary(opened)
            events.append(self._build_event("response.reasoning_summary_part.added", **place, part=SummaryText("")))
        opened.parts[-1].append(text)
        place = self._locate_summary(opened)
        return [*events, self._build_event("response.reasoning_summary_text.delta", **place, delta=text)]

    def _locate_summary(self, item: OpenItem) -> dict[str, Json]:
        return {"output_index": item.index, "summary_index": len(item.parts) - 1, "item_id": item.id}

    def _end_summary(self) -> list[ResponseEvent]:
        item = self._reasoning
        if item is None or not item.is_part_open:
            return []
        item.is_part_open = False
        text, place = "".join(item.parts[-1]), self._locate_summary(item)
        return [
            self._build_event("response.reasoning_summary_text.done", **place, text=text),
            self._build_event("response.reasoning_summary_part.done", **place, part=SummaryText(text)),
        ]

    def _add_text(self, text: str) -> list[ResponseEvent]:
        events = self._end_summary()
        if self._message is None:
            opened = self._message = self._open_item("msg")
            opened.parts.append([])
            item = MessageItem(opened.id, (), "in_progress")
            events.append(self._build_event("response.output_item.added", output_index=opened.index, item=item))
            events.append(
                self._build_event("response.content_part.added", **self._locate_text(opened), part=TextOut(""))
            )
        opened = self._message
        opened.parts[-1].append(text)
        place = self._locate_text(opened)
        return [*events, self._build_event("response.output_text.delta", **place, delta=text, logprobs=())]

    def _locate_text(self, item: OpenItem) -> dict[str, Json]:
        return {"output_index": item.index, "content_index": 0, "item_id": item.id}

    def _close_items(self, status: str = "completed", reply: Reply | None = None) -> list[ResponseEvent]:
        """Close the reasoning and the message. Reasoning is closed here, because its state comes with the reply."""
        events = self._end_summary()
        state: str | UnsetType = UNSET
        if self._wants_state and reply is not None and reply.opaque:
            state = encode_state(reply)
            if self._reasoning is None:
                opened = self._reasoning = self._open_item("rs")
                item = ReasoningItem(opened.id, status="in_progress")
                events.append(self._build_event("response.output_item.added", output_index=opened.index, item=item))
        finished: dict[int, OutputItem] = {}
        if (opened := self._reasoning) is not None:
            summary = tuple(SummaryText("".join(part)) for part in opened.parts)
            finished[opened.index] = ReasoningItem(opened.id, summary, state, status)
        if (opened := self._message) is not None:
            part = TextOut(opened.text, logprobs=reply.logprobs if reply is not None else ())
            finished[opened.index] = MessageItem(opened.id, (part,), status)
            place, logprobs = self._locate_text(opened), part.logprobs
            events.append(self._build_event("response.output_text.done", **place, text=part.text, logprobs=logprobs))
            events.append(self._build_event("response.content_part.done", **place, part=part))
        self._reasoning = self._message = None
        return [*events, *(self._finish_item(index, finished[index]) for index in sorted(finished))]

    def _finish_item(self, index: int, item: OutputItem) -> ResponseEvent:
        self._output[index] = item
        return self._build_event("response.output_item.done", output_index=index, item=item)

    def _stream_call(self, call: Call, number: int) -> list[ResponseEvent]:
        tool = self.tools.find_client_tool(call.tool)
        opened = self._open_item("ctc" if tool.is_custom else "fc")
        call_id, namespace = call.id or f"call_{number}", tool.namespace or UNSET
        place: dict[str, Json] = {"output_index": opened.index, "item_id": opened.id}
        if tool.is_custom:
            text, name = read_custom_input(call.arguments), "custom_tool_call_input"
            item: OutputItem = CustomCallItem(opened.id, call_id, tool.name, text, namespace=namespace)
            started: OutputItem = replace(item, input="", status="in_progress")
            whole: dict[str, Json] = {"input": text}
        else:
            text, name = call.arguments, "function_call_arguments"
            item = CallItem(opened.id, call_id, tool.name, text, namespace=namespace)
            started = replace(item, arguments="", status="in_progress")
            whole = {"name": tool.name, "arguments": text}
        return [
            self._build_event("response.output_item.added", output_index=opened.index, item=started),
            self._build_event(f"response.{name}.delta", **place, delta=text),
            self._build_event(f"response.{name}.done", **place, **whole),
            self._finish_item(opened.index, item),
        ]
