"""Telling that a text holds a secret by its looks: keys with a known form, private keys, passwords given a value.

A guess, and on the safe side: for refusing to keep something, not for hiding it where it is needed.
"""

from __future__ import annotations

import math
import re
from collections import Counter

_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY")),
    ("an API key", re.compile(r"\b(sk|pk|rk)[-_](live|test|ant|proj|or)?[-_]?[A-Za-z0-9_-]{16,}")),
    ("an access key", re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b")),
    (
        "a token",
        re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,})"),
    ),
    ("a token", re.compile(r"\b(hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|AIza[\w-]{30,})")),
    ("a token", re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}")),
    ("a password in an address", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]{3,}@")),
    ("a token", re.compile(r"\b[Bb]earer\s+[A-Za-z0-9._~+/-]{16,}")),
)
_GIVEN = re.compile(
    r"(?i)\b(pass(word|wd|phrase)?|secret|token|api[-_ ]?key|access[-_ ]?key|private[-_ ]?key|pin|credentials?)\b"
    r"[\"']?\s*(?:(?:is|was|lautet)\b|[:=])\s*[\"']?([^\s\"',;]{4,})"
)
_LONG = re.compile(r"(?<![\w/.-])[A-Za-z0-9+/_-]{32,}={0,2}(?![\w/])")
_HARMLESS = re.compile(r"(?i)[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[a-z]+([-_/][a-z]+)+")
_BITS = 4.2
"""Random letters and digits have about five bits each, words and names under four."""


def secret_in(text: str) -> str:
    """What a text seems to give away, in words, or nothing."""
    for what, form in _FORMS:
        if form.search(text):
            return what
    for found in _GIVEN.finditer(text):
        value = found[3]
        if any(letter.isdigit() or not letter.isalnum() for letter in value.rstrip(".!?")) or len(value) >= 12:
            return f"a {found[1].lower()}"
    for found in _LONG.finditer(text):
        if not _HARMLESS.fullmatch(found[0]) and _bits(found[0]) > _BITS:
            return "a key or token"
    return ""


def _bits(text: str) -> float:
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
