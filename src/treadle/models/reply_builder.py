"""A reply in the making: what was said, thought and called, and the deltas not passed on yet. Pure.

All that arrives together becomes one delta a run of text, reasoning or a call's arguments.
"""

from __future__ import annotations

import uuid

import msgspec
from msgspec import Raw

from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import Call, ToolSpec
from treadle.models.base import ModelEvent
from treadle.models.think_tags import ThinkSplitter, split_unopened_block


class PendingCall:
    """One call as its pieces come in; `told` is how many of its argument pieces were passed on."""

    __slots__ = ("arguments", "extra", "id", "index", "name", "sent")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: Raw | None = None
        self.sent = -1

    def take_delta(self) -> CallDelta:
        """What was not passed on yet; the tool's name goes with the first piece."""
        name = self.name if self.sent < 0 else ""
        new = "".join(self.arguments[max(self.sent, 0) :])
        self.sent = len(self.arguments)
        return CallDelta(index=self.index, tool=name, arguments=new)

    def is_complete(self) -> bool:
        """Whether the arguments so far are a complete JSON object."""
        end = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        if not end.rstrip().endswith("}"):
            return False  # asked of every piece by some servers, and the whole is long
        try:
            msgspec.json.decode("".join(self.arguments))
        except msgspec.DecodeError:
            return False
        return True


class ReplyBuilder:
    """Collects the pieces of a reply. `take` gives the deltas since the last `take`."""

    __slots__ = ("_events", "_run", "_splitter", "_thinking", "_touched", "calls", "reasoning", "texts")

    def __init__(self, *, think_tags: bool = False) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[PendingCall] = []
        self._events: list[ModelEvent] = []
        self._run: list[str] = []
        self._thinking = False
        self._touched: list[PendingCall] = []
        self._splitter = ThinkSplitter() if think_tags else None

    def add_text(self, text: str) -> None:
        if self._thinking:
            self._flush()
            self._thinking = False
        self._run.append(text)

    def add_reasoning(self, text: str) -> None:
        if not self._thinking:
            self._flush()
            self._thinking = True
        self._run.append(text)

    def start_call(self) -> PendingCall:
        slot = PendingCall(len(self.calls))
        self.calls.append(slot)
        return slot

    def mark_changed(self, slot: PendingCall) -> None:
        """Note that a call has grown."""
        self._touched.append(slot)

    def take_deltas(self) -> list[ModelEvent]:
        if self._run:
            self._flush()
        events = self._events
        self._events = []
        if self._touched:
            events += [slot.take_delta() for slot in self._touched if slot.sent < len(slot.arguments)]
            self._touched.clear()
        return events

    def finish(self) -> list[ModelEvent]:
        """The last deltas, with what was held back."""
        events = self.take_deltas()
        if self._splitter is not None:
            self._tell(*self._splitter.finish())
            events += self.take_deltas()
        return events

    def join_text(self) -> str:
        """What was said, also what no delta has told yet: a failure may stand right behind it."""
        if self._run:
            self._flush()
        return "".join(self.texts)

    def join_texts(self) -> tuple[str, str]:
        """`(said, thought)`, whole."""
        said, thought = "".join(self.texts), "".join(self.reasoning)
        if self._splitter is not None and not thought and "</think>" in said:
            thought, said = split_unopened_block(said)
        return said, thought

    def build_calls(self, *, is_cut_off: bool) -> tuple[Call, ...]:
        """The calls; `cut` says that the reply broke off, so that missing arguments are no empty ones."""
        calls: list[Call] = []
        ids: set[str] = set()
        for slot in self.list_real_calls():
            arguments = "".join(slot.arguments)
            arguments = arguments if is_cut_off or arguments.strip() else "{}"
            call_id = slot.id if slot.id and slot.id not in ids else new_call_id()
            ids.add(call_id)
            calls.append(Call(call_id, slot.name, arguments))
        return tuple(calls)

    def list_real_calls(self) -> list[PendingCall]:
        return [slot for slot in self.calls if slot.name or slot.arguments]

    def _flush(self) -> None:
        text = "".join(self._run)
        self._run.clear()
        if self._thinking:
            self._tell(text, "")
        elif self._splitter is None:
            self._tell("", text)
        elif text:
            self._tell(*self._splitter.feed(text))

    def _tell(self, thought: str, said: str) -> None:
        if thought:
            self.reasoning.append(thought)
            self._events.append(ReasoningDelta(text=thought))
        if said:
            self.texts.append(said)
            self._events.append(TextDelta(text=said))


def extract_text_calls(text: str, tools: tuple[ToolSpec, ...]) -> tuple[str, tuple[Call, ...]]:
    """The text of a reply without the calls that stand in it as text, and those calls."""
    if not ("{" in text or "<" in text or "[" in text):
        return text, ()
    from treadle.models.text_calls import recover_calls

    rest, found = recover_calls(text, tools)
    return rest, tuple(Call(new_call_id(), call.tool, call.arguments) for call in found)


def new_call_id() -> str:
    """An id for a call that came without one."""
    return f"call_{uuid.uuid4().hex[:24]}"
