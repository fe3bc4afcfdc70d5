"""Full-text search: the searchable text of a fact, and the words of a query. Pure.

Storing facts indexes nothing. A search first indexes new facts, then queries.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from treadle.events import AnyFact, CallFinished, ContextCompacted, MessageReceived, ModelReplied, SessionRenamed
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


def extract_text(fact: AnyFact) -> str:
    """Extract the searchable text of a fact. Most kinds have none."""
    match fact:
        case MessageReceived(parts=parts, history=history):
            said = (part.text for part in parts if isinstance(part, TextPart))
            return "\n".join((*map(render_message, history), *said))
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
    """Whether some of the text is in a script that does not separate words."""
    return not text.isascii() and _UNSPACED_RUN.search(_normalize(text)) is not None


def _normalize(text: str) -> str:
    """Normalize a text word by word: the time grows with the square of the marks that follow one another."""
    return "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECE.findall(text))


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

    return _UNSPACED_RUN.sub(split_run, _normalize(text))


def split_words(text: str, *, index: bool = False) -> list[str]:
    """Split a text into words without case and accents, as a query, or with `index` as the index has them."""
    return [_fold_word(word) for word in _WORD.findall(_split_unspaced(text, singly=index))]


def _fold_word(word: str) -> str:
    if word.isascii() or _UNSPACED_RUN.match(word):  # in those scripts a mark makes another letter
        return word.casefold()
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


def parse_query(text: str) -> dict[str, bool]:
    """Split a short query into words, each with whether a word that only begins like it matches.

    So a plural finds the singular, and the other way round. Short words are the beginning of too many others.
    """
    found = {word: len(word) >= 4 and not _UNSPACED_RUN.match(word) for word in split_words(text)}
    return {
        word[:-1] if is_prefix and word[-1] == "s" and len(word) > 4 else word: is_prefix
        for word, is_prefix in found.items()
    }


def build_match_query(text: str) -> str:
    """Build an FTS5 query for all words of `text`. The words are quoted, so that none is taken for syntax."""
    return " ".join(f'"{word}"' for word in _WORD.findall(_split_unspaced(text)))


def make_snippet(text: str, word: str) -> str:
    """Cut a line out of `text` around the first occurrence of `word`."""
    found = max(text.casefold().find(word), 0)
    start = max(found - _SNIPPET_MARGIN, 0)
    end = found + len(word) + _SNIPPET_MARGIN
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
