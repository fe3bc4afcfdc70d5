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
from treadle.models.think_tags import ThinkSplitter, without_opening


class Slot:
    """One call as its pieces come in; `told` is how many of its argument pieces were passed on."""

    __slots__ = ("arguments", "extra", "id", "index", "name", "told")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: Raw | None = None
        self.told = -1

    def delta(self) -> CallDelta:
        """What was not passed on yet; the tool's name goes with the first piece."""
        name = self.name if self.told < 0 else ""
        new = "".join(self.arguments[max(self.told, 0) :])
        self.told = len(self.arguments)
        return CallDelta(index=self.index, tool=name, arguments=new)

    def is_whole(self) -> bool:
        """Whether the arguments so far are a complete JSON object."""
        end = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        if not end.rstrip().endswith("}"):
            return False  # asked of every piece by some servers, and the whole is long
        try:
            msgspec.json.decode("".join(self.arguments))
        except msgspec.DecodeError:
            return False
        return True


class Gather:
    """Collects the pieces of a reply. `take` gives the deltas since the last `take`."""

    __slots__ = ("_events", "_run", "_splitter", "_thinking", "_touched", "said", "slots", "thought")

    def __init__(self, *, think_tags: bool = False) -> None:
        self.said: list[str] = []
        self.thought: list[str] = []
        self.slots: list[Slot] = []
        self._events: list[ModelEvent] = []
        self._run: list[str] = []
        self._thinking = False
        self._touched: list[Slot] = []
        self._splitter = ThinkSplitter() if think_tags else None

    def say(self, text: str) -> None:
        if self._thinking:
            self._flush()
            self._thinking = False
        self._run.append(text)

    def think(self, text: str) -> None:
        if not self._thinking:
            self._flush()
            self._thinking = True
        self._run.append(text)

    def new_slot(self) -> Slot:
        slot = Slot(len(self.slots))
        self.slots.append(slot)
        return slot

    def touch(self, slot: Slot) -> None:
        """Note that a call has grown."""
        self._touched.append(slot)

    def take(self) -> list[ModelEvent]:
        if self._run:
            self._flush()
        events = self._events
        self._events = []
        if self._touched:
            events += [slot.delta() for slot in self._touched if slot.told < len(slot.arguments)]
            self._touched.clear()
        return events

    def finish(self) -> list[ModelEvent]:
        """The last deltas, with what was held back."""
        events = self.take()
        if self._splitter is not None:
            self._tell(*self._splitter.finish())
            events += self.take()
        return events

    def so_far(self) -> str:
        """What was said, also what no delta has told yet: a failure may stand right behind it."""
        if self._run:
            self._flush()
        return "".join(self.said)

    def texts(self) -> tuple[str, str]:
        """`(said, thought)`, whole."""
        said, thought = "".join(self.said), "".join(self.thought)
        if self._splitter is not None and not thought and "</think>" in said:
            thought, said = without_opening(said)
        return said, thought

    def calls(self, *, cut: bool) -> tuple[Call, ...]:
        """The calls; `cut` says that the reply broke off, so that missing arguments are no empty ones."""
        calls: list[Call] = []
        ids: set[str] = set()
        for slot in self.real_slots():
            arguments = "".join(slot.arguments)
            arguments = arguments if cut or arguments.strip() else "{}"
            call_id = slot.id if slot.id and slot.id not in ids else new_id()
            ids.add(call_id)
            calls.append(Call(call_id, slot.name, arguments))
        return tuple(calls)

    def real_slots(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.name or slot.arguments]

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
            self.thought.append(thought)
            self._events.append(ReasoningDelta(text=thought))
        if said:
            self.said.append(said)
            self._events.append(TextDelta(text=said))


def written_calls(text: str, tools: tuple[ToolSpec, ...]) -> tuple[str, tuple[Call, ...]]:
    """The text of a reply without the calls that stand in it as text, and those calls."""
    if not ("{" in text or "<" in text or "[" in text):
        return text, ()
    from treadle.models.text_calls import recover

    rest, found = recover(text, tools)
    return rest, tuple(Call(new_id(), call.tool, call.arguments) for call in found)


def new_id() -> str:
    """An id for a call that came without one."""
    return f"call_{uuid.uuid4().hex[:24]}"
