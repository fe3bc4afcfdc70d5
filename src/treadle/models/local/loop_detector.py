"""Ends the reply of a model that repeats the same words over and over, while its text arrives."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import Json, Reply
from treadle.models.base import ModelEvent

LEAST_REPEATED = 120
"""Words and marks that must have come again in the same order before a text counts as a loop."""
LEAST_REPEATED_MARKS = 1000
"""The same for data and markup, which have more marks and numbers than words: boards and tables repeat a cell."""
LEAST_CYCLES = 4
"""How often a cycle must have come again. A text that is quoted twice, or a refrain, is no loop."""
COMPARED = 8
LONGEST_HELD = 256
MOST_BLANKS = 1000
BROKEN_CALL = "(The model repeated itself while it wrote a call. The call was not made.)"
BROKEN_REASONING = "(The model repeated itself while it thought. It gave no answer.)"

_UNITS = re.compile(r"(?<=\n)\s*\d+[.)]|([^\W_]{1,16}|([^\w\s])\2{0,15}|_{1,16})")
"""Words, and runs of the same mark. A number that begins a line is skipped: numbered lines can be a loop too."""

_WORD_END = re.compile(r"\w(?=[^\w\s])")


class LoopDetector:
    """Finds a cycle of words at the end of a text. It remembers where each run of eight words was last seen."""

    def __init__(self) -> None:
        self._held = ""
        self._recent: list[str] = []
        self._places: dict[tuple[str, ...], int] = {}
        self._count = 0
        self._cycle = 0
        self._repeated = 0
        self._repeated_words = 0
        self._blanks = 0

    def feed(self, text: str) -> bool:
        """Take in the next text. True means that it has become a loop."""
        self._held += text
        self._blanks = self._blanks + len(text) if not text or text.isspace() else 0
        # The last word may go on in the next piece.
        end = max(self._held.rfind(" "), self._held.rfind("\n"), 0)
        if not end and len(self._held) > LONGEST_HELD:  # Some scripts write no blanks.
            ends = [match.end() for match in _WORD_END.finditer(self._held)]
            end = ends[-1] if ends else LONGEST_HELD
        words = [match.group(1).lower() for match in _UNITS.finditer(self._held, 0, end) if match.group(1)]
        self._held = self._held[end:]
        return any(self._add_word(word) for word in words) or self._blanks > MOST_BLANKS

    def _add_word(self, word: str) -> bool:
        self._recent = [*self._recent[1 - COMPARED :], word]
        place = self._count
        self._count += 1
        run = tuple(self._recent)
        cycle = place - self._places.get(run, place)
        self._places[run] = place
        if not cycle or cycle != self._cycle:
            self._repeated = self._repeated_words = 0
        else:
            self._repeated += 1
            self._repeated_words += word.isalpha()
        self._cycle = cycle
        is_prose = 2 * self._repeated_words > self._repeated
        least = LEAST_REPEATED if is_prose else LEAST_REPEATED_MARKS
        return cycle > 0 and self._repeated >= max(least, LEAST_CYCLES * cycle)


async def end_at_loop(events: AsyncGenerator[ModelEvent, None], model: str) -> AsyncGenerator[ModelEvent, None]:
    """Pass on the events of a reply. When its text, its reasoning or a call becomes a loop, the reply ends there."""
    detectors: dict[str, LoopDetector] = {}
    text, reasoning = "", ""
    logprobs: list[Json] = []
    async for event in events:
        yield event
        match event:
            case TextDelta():
                place, new = "text", event.text
                text += new
                logprobs += event.logprobs
            case ReasoningDelta():
                place, new = "reasoning", event.text
                reasoning += new
            case CallDelta():
                place, new = f"call {event.index}", event.arguments
            case _:
                continue
        if detectors.setdefault(place, LoopDetector()).feed(new):
            if place != "text":
                # A reply without text would be asked for again.
                note = BROKEN_REASONING if place == "reasoning" else BROKEN_CALL
                text += note
                yield TextDelta(text=note)
            yield Reply(text, reasoning, finish="other", model=model, logprobs=tuple(logprobs))
            return
