"""Notices when a model repeats the same words over and over, while its text arrives. It changes no text."""

from __future__ import annotations

import re

LEAST_REPEATED = 120
"""Words and marks that must have come again in the same order before a text counts as a loop."""
LEAST_CYCLES = 4
"""How often a cycle must have come again. A text that is quoted twice, or a refrain, is no loop."""
COMPARED = 8
LONGEST_HELD = 256

_UNITS = re.compile(r"(?<=\n)\s*\d+[.)]|([^\W_]{1,16}|([^\w\s])\2{0,15}|_+)")
"""Words, and runs of the same mark. A number that begins a line is skipped: numbered lines can be a loop too."""


class LoopDetector:
    """Finds a cycle of words at the end of a text. It remembers where each run of eight words was last seen."""

    def __init__(self) -> None:
        self._held = ""
        self._recent: list[str] = []
        self._places: dict[tuple[str, ...], int] = {}
        self._count = 0
        self._cycle = 0
        self._repeated = 0

    def feed(self, text: str) -> bool:
        """Take in the next text. True means that it has become a loop."""
        self._held += text
        # The last word may go on in the next piece. Some scripts write no blanks.
        end = max(self._held.rfind(" "), self._held.rfind("\n"))
        if end <= 0:
            end = len(self._held) if len(self._held) > LONGEST_HELD else 0
        words = [match.group(1).lower() for match in _UNITS.finditer(self._held, 0, end) if match.group(1)]
        self._held = self._held[end:]
        return any([self._add_word(word) for word in words])

    def _add_word(self, word: str) -> bool:
        self._recent = [*self._recent[1 - COMPARED :], word]
        place = self._count
        self._count += 1
        run = tuple(self._recent)
        cycle = place - self._places.get(run, place)
        self._places[run] = place
        self._repeated = self._repeated + 1 if cycle and cycle == self._cycle else 0
        self._cycle = cycle
        return cycle > 0 and self._repeated >= max(LEAST_REPEATED, LEAST_CYCLES * cycle)
