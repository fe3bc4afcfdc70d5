"""Full-text search: which text of a fact can be found, and what a query's words are.

Nothing is indexed when facts are stored. A search first indexes what is new, then asks.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from treadle.events import (
    AnyFact,
    CallFinished,
    ContextCompacted,
    MessageReceived,
    ModelReplied,
    SessionRenamed,
)
from treadle.messages import TextPart

_BARE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts without blanks between words, or with endings on every word: Thai, Lao, Burmese, Khmer, Japanese, Chinese,
Korean. No word list is needed to find what is written in them by any two letters that stand together."""
_PIECE = re.compile(r"\S{1,1000}\s*|\s+")
_RUN = re.compile(f"[{_BARE}]+")
_WORD = re.compile(f"[{_BARE}]+|[^\\W_]+")
_AROUND = 80


def extract_text(fact: AnyFact) -> str:
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


def has_unspaced_script(text: str) -> bool:
    """Whether any of it is in a script whose words do not stand apart."""
    return not text.isascii() and _RUN.search(_composed(text)) is not None


def _composed(text: str) -> str:
    """A text in one spelling, word by word: it takes time in the square of how many marks follow one another."""
    return "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECE.findall(text))


def prepare_for_index(text: str) -> str:
    """A text as an index is given it: letters of scripts without blanks singly and in pairs."""
    return _apart(text, singly=True)


def _apart(text: str, *, singly: bool = False) -> str:
    if text.isascii():
        return text

    def pairs(found: re.Match[str]) -> str:
        # FTS5 takes marks above and below letters for blanks.
        run = "".join(letter for letter in found[0] if unicodedata.category(letter) != "Mn")
        parts = [*run] if singly or len(run) == 1 else []
        return f" {' '.join((*parts, *map(''.join, pairwise(run))))} "

    return _RUN.sub(pairs, _composed(text))


def split_words(text: str, *, index: bool = False) -> list[str]:
    """What a text is looked for by, or with `index` found by: its words, without case and accents."""
    return [_plain(word) for word in _WORD.findall(_apart(text, singly=index))]


def _plain(word: str) -> str:
    if word.isascii() or _RUN.match(word):  # there a mark makes another letter
        return word.casefold()
    apart = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in apart if not unicodedata.combining(letter)).casefold()


def parse_query(text: str) -> dict[str, bool]:
    """The words that something short is looked for by, and whether one that only begins so will do.

    So a plural finds what was noted of one, and the other way round. Short words begin too many others.
    """
    found = {word: len(word) >= 4 and not _RUN.match(word) for word in split_words(text)}
    return {
        word[:-1] if begins and word[-1] == "s" and len(word) > 4 else word: begins for word, begins in found.items()
    }


def build_match_query(text: str) -> str:
    """An FTS5 query for all words of `text`; quoted, so that nothing in it is taken for syntax."""
    return " ".join(f'"{word}"' for word in _WORD.findall(_apart(text)))


def make_snippet(text: str, word: str) -> str:
    """A line of `text` around the first place where `word` stands."""
    found = max(text.casefold().find(word), 0)
    start = max(found - _AROUND, 0)
    end = found + len(word) + _AROUND
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
