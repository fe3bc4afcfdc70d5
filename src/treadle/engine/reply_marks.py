"""Signals in a model's text: marks such as <answer> or <stuck>, and reasoning that leaked into the answer.

Pure. One strainer serves the live stream and the final text, so that both show the same; it also finds
calls that go round in circles.
"""

from __future__ import annotations

import re

from msgspec import Struct

from treadle.events import SignalKind

_THINKING = ("thinking", "think", "reasoning")
_MARKS = ("answer", "uncertain", "stuck", "yield")
_NAMES = "|".join(_THINKING + _MARKS)
_STARTS = "|".join(sorted({name[:end] for name in _THINKING + _MARKS for end in range(len(name))}, reverse=True))
_TAG = re.compile(rf"<(/?)({_NAMES})((?:\s+[\w-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s<>\"']+))*)\s*(/?)>")
_TAG_START = re.compile(rf"</?(?:{_STARTS}|(?:{_NAMES})(?:\s[^<>]*|/)?)\Z")
_CONFIDENCE = re.compile(r"confidence\s*=\s*[\"']?([0-9.]+)")
_KINDS: dict[str, SignalKind] = {
    "answer": "answered",
    "uncertain": "uncertain",
    "stuck": "stuck",
    "yield": "yielded",
}
_LONGEST_TAG = 120


class MarkSplitter(Struct):
    """Takes text as it comes and gives back what is answer and what is reasoning, marks removed.

    `signals` collects the marks that were met; a possible start of a mark is held back until it is clear.
    """

    signals: list[SignalKind] = []
    confidence: float | None = None
    _held: str = ""
    _thinking: bool = False

    def feed(self, text: str) -> tuple[str, str]:
        """(answer, reasoning) of what is clear so far."""
        if not self._held and "<" not in text:
            return ("", text) if self._thinking else (text, "")
        text = self._held + text
        start = _TAG_START.search(text, max(0, len(text) - _LONGEST_TAG))
        self._held = text[start.start() :] if start else ""
        return self._strain(text[: start.start()] if start else text)

    def finish(self) -> tuple[str, str]:
        """What was held back, now that nothing follows."""
        rest, self._held = self._held, ""
        return ("", rest) if self._thinking else (rest, "")

    def _strain(self, text: str) -> tuple[str, str]:
        answer: list[str] = []
        reasoning: list[str] = []
        place = 0
        for tag in _TAG.finditer(text):
            name, opening = tag[2], not tag[1]
            # A mark inside reasoning is only talked about.
            if len(tag[0]) > _LONGEST_TAG or (self._thinking and name in _MARKS):
                continue
            (reasoning if self._thinking else answer).append(text[place : tag.start()])
            place = tag.end()
            if name in _THINKING:
                self._thinking = opening and not tag[4]
            elif opening:
                self._mark(name, tag[3])
        (reasoning if self._thinking else answer).append(text[place:])
        return "".join(answer), "".join(reasoning)

    def _mark(self, name: str, attributes: str) -> None:
        kind = _KINDS[name]
        if kind not in self.signals:
            self.signals.append(kind)
        found = _CONFIDENCE.search(attributes)
        if found:
            try:
                self.confidence = min(1.0, max(0.0, float(found[1])))
            except ValueError:
                self.confidence = None


class SplitReply(Struct, frozen=True):
    """A whole text with its marks taken out."""

    text: str
    reasoning: str
    signals: tuple[SignalKind, ...]
    confidence: float | None


def split_marks(text: str) -> SplitReply:
    """Take the marks and the leaked reasoning out of a whole text."""
    if "<" not in text:
        return SplitReply(text if text.strip() else "", "", (), None)
    # Some chat templates open the thinking block in the prompt, so that only its end is in the reply.
    leaked = re.match(rf"(?s)(?:(?!<(?:{'|'.join(_THINKING)})[\s>]).)*?</(?:{'|'.join(_THINKING)})>", text)
    prefix = ""
    if leaked:
        prefix, text = leaked[0][: leaked[0].rindex("</")].strip(), text[leaked.end() :]
    strainer = MarkSplitter()
    answer, reasoning = strainer.feed(text)
    rest_answer, rest_reasoning = strainer.finish()
    answer += rest_answer
    touched = leaked is not None or strainer.signals or reasoning or rest_reasoning or not answer.strip()
    return SplitReply(
        answer.strip() if touched else answer,
        "\n".join(piece for piece in (prefix, (reasoning + rest_reasoning).strip()) if piece),
        tuple(strainer.signals),
        strainer.confidence,
    )


def find_cycle(trail: list[tuple[str, str]]) -> int:
    """How many calls the trail goes round with: 1 for three alike, 2 or 3 for a cycle, 0 for none."""
    if len(trail) < 3 or trail[-1] not in trail[-4:-1]:
        return 0
    for period, length in ((1, 3), (2, 4), (3, 6)):
        if len(trail) >= length and trail[-length:-period] == trail[period - length :]:
            return period
    return 0
