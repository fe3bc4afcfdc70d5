"""Full-text search: which text of a fact can be found, and what a query's words are.

Nothing is indexed when facts are stored. A search first indexes what is new, then asks.
"""

from __future__ import annotations

import re
import unicodedata

from treadle.events import (
    AnyFact,
    CallFinished,
    ContextCompacted,
    MessageReceived,
    ModelReplied,
    SessionRenamed,
)
from treadle.messages import TextPart

_WORD = re.compile(r"[^\W_]+")
_AROUND = 80


def text_in(fact: AnyFact) -> str:
    """What a search may find of a fact; empty for most kinds."""
    match fact:
        case MessageReceived(parts=parts):
            return "\n".join(part.text for part in parts if isinstance(part, TextPart))
        case ModelReplied(text=text):
            return text
        case CallFinished(output=output):
            return output
        case ContextCompacted(summary=summary):
            return summary
        case SessionRenamed(name=name):
            return name
        case _:
            return ""


def words_in(text: str) -> list[str]:
    """The words of a text, without case and accents: letters and digits, whatever stands between them."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return _WORD.findall(plain.casefold())


def match_words(text: str) -> str:
    """An FTS5 query for all words of `text`; quoted, so that nothing in it is taken for syntax."""
    return " ".join(f'"{word}"' for word in _WORD.findall(text))


def snippet(text: str, word: str) -> str:
    """A line of `text` around the first place where `word` stands."""
    found = max(text.casefold().find(word), 0)
    start = max(found - _AROUND, 0)
    end = found + len(word) + _AROUND
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
