"""Full-text search: the searchable text of a fact, and the words of a query. Pure.

Storing facts indexes nothing. A search first indexes new facts, then queries.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from treadle.events import (
    AnyFact,
    CallFinished,
    ContextCompacted,
    MessageEdited,
    MessageReceived,
    ModelReplied,
    SessionRenamed,
)
from treadle.messages import TextPart, render_message

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts without spaces between words, or with endings on every word: Thai, Lao, Burmese, Khmer, Japanese, Chinese,
Korean. Text in them is found by any two letters that stand together, so no dictionary is needed."""
_PIECE = re.compile(r"\S{1,1000}\s*|\s+")
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = re.compile(f"[{_UNSPACED}]+|[^\\W_]+")
_SNIPPET_MARGIN = 80
_SNIPPET_SEARCHED, _SNIPPET_WORDS = 50_000, 3
"""In how many letters, and for how many words, a snippet is looked for. So a long text takes no longer."""
MAX_QUERY_WORDS = 32
MAX_INDEXED = 1_000_000
"""How many letters of a fact can be found. Longer texts are files or outputs of programs."""


def extract_text(fact: AnyFact) -> str:
    """Extract the searchable text of a fact, or the beginning of a long one. Most kinds have none."""
    match fact:
        case MessageReceived(parts=parts, history=history):
            said = (part.text for part in parts if isinstance(part, TextPart))
            text = "\n".join((*map(render_message, history), *said))
        case MessageEdited(parts=parts):
            text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
        case (
            ModelReplied(text=text)
            | CallFinished(output=text)
            | ContextCompacted(summary=text)
            | SessionRenamed(name=text)
        ):
            pass
        case _:
            text = ""
    return text[:MAX_INDEXED]


def prepare_for_index(text: str) -> str:
    """Prepare a text for the index: letters of unspaced scripts become single letters and pairs."""
    return _split_unspaced(text, singly=True)


def _split_unspaced(text: str, *, singly: bool = False) -> str:
    if text.isascii():
        return text

    def split_run(found: re.Match[str]) -> str:
        # FTS5 takes marks above and below letters for spaces.
        run = "".join(letter for letter in found[0] if unicodedata.category(letter) != "Mn")
        parts = [*run] if singly or len(run) == 1 else []
        return f" {' '.join((*parts, *map(''.join, pairwise(run))))} "

    # Word by word: the time grows with the square of the marks that follow one another.
    normal = "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECE.findall(text))
    return _UNSPACED_RUN.sub(split_run, normal)


def split_words(text: str, *, index: bool = False) -> list[str]:
    """Split a text into words without case and accents, as a query, or with `index` as the index has them."""
    return [_fold_word(word) for word in _WORD.findall(_split_unspaced(text, singly=index))]


def _fold_word(word: str) -> str:
    if word.isascii() or _UNSPACED_RUN.match(word):  # in those scripts a mark makes another letter
        return word.casefold()
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


def fold_words(words: Iterable[str]) -> list[str]:
    """Fold words of a search as the index has them: without case and accents, each once."""
    return list(dict.fromkeys(map(_fold_word, words)))


def parse_query(text: str) -> dict[str, bool]:
    """Split a short query into words, each with whether a word that only begins like it matches.

    So a plural finds the singular, and the other way round. Short words are the beginning of too many others.
    """
    found = {word: len(word) >= 4 and not _UNSPACED_RUN.match(word) for word in split_words(text)}
    return {
        word[:-1] if is_prefix and word[-1] == "s" and len(word) > 4 else word: is_prefix
        for word, is_prefix in found.items()
    }


def split_search(text: str) -> list[str]:
    """Split what a user searches for into words, as they are written. Only the first different ones count."""
    return list(dict.fromkeys(_WORD.findall(_split_unspaced(text))))[:MAX_QUERY_WORDS]


def build_match_query(words: Iterable[str]) -> str:
    """Build an FTS5 query for all these words. They are quoted, so that none is taken for syntax."""
    return " ".join(f'"{word}"' for word in words)


def score_text(text: str, words: Iterable[str]) -> int:
    """Count how often these words occur in a text. 0 when one of them is missing."""
    found, wanted = Counter(split_words(text, index=True)), fold_words(words)
    return sum(found[word] for word in wanted) if found.keys() >= set(wanted) else 0


def mark_words(text: str, query: str) -> str:
    """Put U+0002 and U+0003 around each word of `text` that a search for `query` finds."""
    wanted = set(fold_words(split_search(query)))

    def mark(found: re.Match[str]) -> str:
        is_found = not wanted.isdisjoint(split_words(found[0], index=True))
        return f"\x02{found[0]}\x03" if is_found else found[0]

    return _WORD.sub(mark, text.replace("\x02", "").replace("\x03", ""))


def make_snippet(text: str, words: Sequence[str]) -> str:
    """Cut a line out of the beginning of `text`, around the first occurrence of one of the first words."""
    start, end = _find_word(text[:_SNIPPET_SEARCHED], words[:_SNIPPET_WORDS])
    start, end = max(start - _SNIPPET_MARGIN, 0), end + _SNIPPET_MARGIN
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"


def _find_word(text: str, words: Sequence[str]) -> tuple[int, int]:
    """Find one of the words in the text. Return where it begins and ends."""
    spaced = [re.escape(word) for word in words if not _UNSPACED_RUN.match(word)]
    unspaced = [re.escape(word) for word in words if _UNSPACED_RUN.match(word)]
    pattern = "|".join((*(f"(?<![^\\W_]){word}(?![^\\W_])" for word in spaced), *unspaced))
    if found := re.search(pattern, text, re.IGNORECASE):
        return found.span()
    folded = fold_words(words)
    return next((word.span() for word in _WORD.finditer(text) if _fold_word(word[0]) in folded), (0, 0))
