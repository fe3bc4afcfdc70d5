"""Telling that a text holds a secret by its looks: keys with a known form, private keys, passwords given a value.

A guess, and on the safe side: for refusing to keep something, not for hiding it where it is needed.
"""

from __future__ import annotations

import math
import re
import unicodedata
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
    ("a token", re.compile(r"\beyJ[\w-]{8,2000}\.[\w-]{8,}\.[\w-]{4,}")),
    ("a password in an address", re.compile(r"[a-z0-9+.-]://[^\s/:@]+:[^\s/@]{3,}@")),
    ("a token", re.compile(r"\b[Bb]earer\s+[A-Za-z0-9._~+/-]{16,}")),
    ("a token", re.compile(r"\b(ya29\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,})")),
    ("a password", re.compile(r"(?i)\bauthorization[\"']?\s*[:=]\s*[\"']?[a-z]+\s+\S{8,}")),
    ("a password", re.compile(r"(?i)\blogin\s+\S+\s+password\s+\S")),  # as .netrc has it
    ("a session's cookie", re.compile(r"(?i)\bcookie[\"']?:\s*[\"']?[^\s=]{1,64}=\S{8,}")),
    ("an address that is a key", re.compile(r"hooks\.slack\.com/services/\S{16,}|/api/webhooks/\d+/\S{16,}")),
    ("a seed phrase", re.compile(r"(?i)\b(?:seed|recovery)\s+(?:phrase|words)[^\n:=]{0,20}[:=]\s*(?:[a-z]+\s+){5}")),
)
_GIVEN = re.compile(
    r"(?:(?<![^\W_])|(?<=[a-z])(?=[A-Z]))"  # also DB_PASSWORD and clientSecret
    r"(?P<what>(?i:pass(?:word|wd|phrase|code)?|pwd?|secret(?:[-_ ]?key)?|(?:auth)?token|pin|credentials?"
    r"|(?:api|access|private)[-_ ]?key|passwort|kennwort|mot de passe|contraseña|senha|пароль|密码|パスワード))"
    r"(?![A-Za-z0-9])[\"']?(?:\s+(?:for|of|to|on|für|von|de)(?:\s+[\w.'-]+){1,5}?)?"
    r"\s*(?:\b(?i:is|was|ist|lautet|est|es)\b|は|是|[:=]>?|->|→)\s*[\"'`]?(?P<value>[^\s\"',;`]{4,})"
)
_LONG = re.compile(r"(?<![\w/.-])[A-Za-z0-9+/_-]{32,}={0,2}(?![\w/])")
_HARMLESS = re.compile(r"(?i)[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[a-z]+([-_/][a-z]+)+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_BITS = 4.2
"""Random letters and digits have about five bits each, words and names under four."""


def find_secret(text: str) -> str:
    """What a text seems to give away, in words, or nothing."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    for what, form in _FORMS:
        if form.search(text):
            return what
    for found in _GIVEN.finditer(text):
        value = found["value"]
        if any(letter.isdigit() or not letter.isalnum() for letter in value.rstrip(".!?")) or len(value) >= 12:
            return f"a {found['what'].lower()}"
    for found in _LONG.finditer(text):
        if not _HARMLESS.fullmatch(found[0]) and _bits(found[0]) > _BITS:
            return "a key or token"
    return ""


def _bits(text: str) -> float:
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
