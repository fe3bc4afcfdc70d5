"""How a small model answers without tools: short, in whole sentences, and none of them twice.

The numbers were measured with the embedded model: see docs/local-model.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from treadle.engine.context import EARLIER_INTRO
from treadle.messages import Json, Message, ModelMessage, UserMessage, render_parts

MOST_TOKENS = 80
SMALL_TALK: dict[str, Json] = {"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1, "seed": 7}
FACTS: dict[str, Json] = {"temperature": 0, "repeat_penalty": 1.1}
LEAST_WORDS = 4
"""Shorter sentences, such as a greeting, may come in several replies."""
LATIN = r"root ::= [\n -~\u00a0-\u024f\u2010-\u2026]*"
"""The embedded model writes only nonsense in other scripts, and rows of pictures."""
HINT = (
    "(This is a small model. It is good at short requests for one tool, such as “list the files” or “what is 12 times "
    "7”. `treadle models pull` lists larger models, and `--model ollama:NAME` uses one of Ollama.)"
)

_SENTENCE_END = re.compile(r"(?<!\d)[.!?…]+[\"')\]”’*]*(?=\s)|[。！？]|\n")
_HASHTAGS = re.compile(r"(?:(?:^|\s)#\w+)+\s*$")
_FACT = re.compile(r"(?:what|which|who|where|when|why|how (?:many|much|long|far|old|big))\b", re.IGNORECASE)
_QUESTION = re.compile(_FACT.pattern + r"|.*(?:\?|\bmy\b)", re.IGNORECASE | re.DOTALL)
_PERSONAL = re.compile(r"\b(?:you|your|i|my|me|we|up)\b", re.IGNORECASE)


class SentenceReader:
    """Passes on the text of a reply in whole sentences. It stops before a sentence that was there already.

    `said` are sentences of earlier replies, as `list_said` finds them.
    """

    def __init__(self, said: Collection[str] = ()) -> None:
        self.has_repeated = False
        self._said = said
        self._held = ""
        self._seen: set[str] = set()

    @property
    def is_copy(self) -> bool:
        """Whether the reply has begun with a sentence of an earlier one."""
        return self.has_repeated and not self._seen

    def feed(self, text: str) -> str:
        """The sentences that are complete now."""
        self._held += text
        passed = ""
        while not self.has_repeated and (end := _SENTENCE_END.search(self._held)):
            passed += self._take(end.end())
        return passed

    def finish(self, *, is_cut_off: bool) -> str:
        """The rest of the reply. Where it was cut off, the sentence that was begun is dropped if there is another."""
        if self.has_repeated or (is_cut_off and self._seen):
            return ""
        self._held = _HASHTAGS.sub("", self._held)
        if self._seen and not re.search(r"\w", self._held):  # marks in place of a picture
            return ""
        return self._take(len(self._held)).rstrip() + ("…" if is_cut_off else "")

    def _take(self, end: int) -> str:
        sentence, self._held = self._held[:end], self._held[end:]
        words = _extract_words(sentence)
        self.has_repeated = bool(words) and (words in self._seen or words in self._said)
        if self.has_repeated:
            return ""
        self._seen |= {words} - {""}
        return sentence


def asks_for_fact(request: str) -> bool:
    """Whether a request asks about the world, and not about the model or the person."""
    return bool(_FACT.match(request.strip()) and not _PERSONAL.search(request))


def list_said(earlier: Sequence[tuple[str, str]], request: str) -> set[str]:
    """The sentences of earlier turns that the reply to `request` should not say again: the model copies itself.

    The answer to a question may be the same as before, and so may that to the same request.
    """
    if _QUESTION.match(request.strip()):
        return set()
    found: set[str] = set()
    asked = ""
    for role, text in earlier:
        if role == "user":
            asked = text
        elif role == "assistant" and _extract_words(asked) != _extract_words(request):
            ends = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
            found |= {_extract_words(text[start:end]) for start, end in pairwise(ends)}
    return {words for words in found if words.count(" ") + 1 >= LEAST_WORDS}


def _extract_words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def needs_hint(messages: Sequence[Message]) -> bool:
    """Whether the model has not said in this conversation what it is good for."""
    for message in messages:
        if isinstance(message, ModelMessage) and HINT in message.text:
            return False
        if isinstance(message, UserMessage) and render_parts(message.parts).startswith(EARLIER_INTRO):
            return False  # An earlier part was left out, which had it.
    return True
