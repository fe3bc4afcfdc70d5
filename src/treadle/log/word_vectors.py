"""Words as PostgreSQL indexes and scores them: tsvector, tsquery, and how well a text fits a query. Pure.

They are written from our own words: PostgreSQL's parser and its dictionaries are not used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256

from treadle.log.full_text import split_words

_LONGEST_WORD = 400
"""A word in a tsvector has at most 2046 bytes. A longer one is known by its beginning and a hash."""
MOST_BYTES = 1_000_000
"""A tsvector holds a little more."""
CHUNK = 20_000
"""Other threads wait while a regular expression runs: a long text is split in steps, between two words."""

SCORE_FUNCTION = """CREATE FUNCTION treadle.score_words(words tsvector, query tsquery, length float8, average float8)
    RETURNS float8 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT ts_rank(ARRAY[1 / (1 + damping), 2 / (2 + damping), 4 / (4 + damping), 10 / (10 + damping)]::real[],
            words, query) FROM (SELECT 1.2 * (0.25 + 0.75 * length / average) AS damping) AS weighed $$"""
"""Score a text for any of these words, as SQLite's bm25 does: another occurrence of a word counts less than the one
before, and in a long text each counts less. The weight of a word (D, C, B or A) says how often it occurs."""


def count_words(text: str) -> Counter[str]:
    """Count the words of a text as the index has them."""
    counts = Counter[str]()
    for chunk in re.findall(rf"(?s).{{1,{CHUNK}}}\S*", text):
        counts.update(split_words(chunk, index=True))
    return counts


def build_vectors(counts: Mapping[str, int]) -> list[str]:
    """Write words and how often each occurs as a tsvector. Very many are written as several, each word in one."""
    vectors, lexemes, size = list[str](), list[str](), 0
    for word, count in counts.items():
        weight = "" if count < 2 else "C" if count < 3 else "B" if count < 6 else "A"
        lexeme = f"{_quote(word)}:1{weight}" if weight else _quote(word)
        size += len(lexeme.encode()) + 4
        if size > MOST_BYTES:
            vectors.append(" ".join(lexemes))
            lexemes, size = [], len(lexeme.encode()) + 4
        lexemes.append(lexeme)
    return [*vectors, " ".join(lexemes)]


def build_word_query(word: str, *, is_prefix: bool = False) -> str:
    """Write a word as a tsquery."""
    return f"{_quote(word[:_LONGEST_WORD] if is_prefix else word)}{':*' if is_prefix else ''}"


def build_query(word_queries: Iterable[str], *, wants_all: bool) -> str:
    """Write a tsquery for all of some words, or for any of them."""
    return (" & " if wants_all else " | ").join(word_queries)


def _quote(word: str) -> str:
    if len(word) > _LONGEST_WORD:
        word = word[:_LONGEST_WORD] + sha256(word.encode()).hexdigest()[:16]
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"
