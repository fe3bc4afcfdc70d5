"""Find marks such as <answer> or <stuck> in a model's text, and reasoning that leaked into it. Pure.

One splitter reads the live stream and the final text, so both show the same.
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
_KINDS: dict[str, SignalKind] = {"answer": "answered", "uncertain": "uncertain", "stuck": "stuck", "yield": "yielded"}
_LONGEST_TAG = 120


class MarkSplitter(Struct):
    """Splits streamed text into answer and reasoning, and removes the marks.

    `signals` collects the marks. Text that may be the start of a mark is held back until that is certain.
    """

    signals: list[SignalKind] = []
    confidence: float | None = None
    _held: str = ""
    _thinking: bool = False

    def feed(self, text: str) -> tuple[str, str]:
        """Return the answer text and the reasoning that are certain by now."""
        if not self._held and "<" not in text:
            return ("", text) if self._thinking else (text, "")
        text = self._held + text
        start = _TAG_START.search(text, max(0, len(text) - _LONGEST_TAG))
        self._held = text[start.start() :] if start else ""
        return self._split(text[: start.start()] if start else text)

    def finish(self) -> tuple[str, str]:
        """Return the text that was held back: no more text follows."""
        rest, self._held = self._held, ""
        return ("", rest) if self._thinking else (rest, "")

    def _split(self, text: str) -> tuple[str, str]:
        answer: list[str] = []
        reasoning: list[str] = []
        position = 0
        for tag in _TAG.finditer(text):
            name, opening = tag[2], not tag[1]
            # Inside reasoning the model only writes about a mark.
            if len(tag[0]) > _LONGEST_TAG or (self._thinking and name in _MARKS):
                continue
            (reasoning if self._thinking else answer).append(text[position : tag.start()])
            position = tag.end()
            if name in _THINKING:
                self._thinking = opening and not tag[4]
            elif opening:
                self._record_signal(name, tag[3])
        (reasoning if self._thinking else answer).append(text[position:])
        return "".join(answer), "".join(reasoning)

    def _record_signal(self, name: str, attributes: str) -> None:
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
    """A whole text without its marks, and the signals in them."""

    text: str
    reasoning: str
    signals: tuple[SignalKind, ...]
    confidence: float | None


def split_marks(text: str) -> SplitReply:
    """Remove the marks and the leaked reasoning from a whole text."""
    if "<" not in text:
        return SplitReply(text if text.strip() else "", "", (), None)
    # Some chat templates open the thinking block in the prompt, so only its end is in the reply.
    leaked = re.match(rf"(?s)(?:(?!<(?:{'|'.join(_THINKING)})[\s>]).)*?</(?:{'|'.join(_THINKING)})>", text)
    prefix = ""
    if leaked:
        prefix, text = leaked[0][: leaked[0].rindex("</")].strip(), text[leaked.end() :]
    splitter = MarkSplitter()
    answer, reasoning = splitter.feed(text)
    rest_answer, rest_reasoning = splitter.finish()
    answer += rest_answer
    is_changed = leaked is not None or splitter.signals or reasoning or rest_reasoning or not answer.strip()
    return SplitReply(
        answer.strip() if is_changed else answer,
        "\n".join(piece for piece in (prefix, (reasoning + rest_reasoning).strip()) if piece),
        tuple(splitter.signals),
        splitter.confidence,
    )
