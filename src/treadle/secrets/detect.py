"""Detect secrets in a text by their form: keys of known providers, private keys, passwords with a value.

It is a guess, on the safe side. Use it to refuse to store a text, not to hide a value that is needed.
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
    ("a password", re.compile(r"(?i)\blogin\s+\S+\s+password\s+\S")),  # the form of .netrc
    ("a session's cookie", re.compile(r"(?i)\bcookie[\"']?:\s*[\"']?[^\s=]{1,64}=\S{8,}")),
    ("an address that is a key", re.compile(r"hooks\.slack\.com/services/\S{16,}|/api/webhooks/\d+/\S{16,}")),
    ("a seed phrase", re.compile(r"(?i)\b(?:seed|recovery)\s+(?:phrase|words)[^\n:=]{0,20}[:=]\s*(?:[a-z]+\s+){5}")),
)
_NAMED_VALUE = re.compile(
    r"(?:(?<![^\W_])|(?<=[a-z])(?=[A-Z]))"  # also DB_PASSWORD and clientSecret
    r"(?P<name>(?i:pass(?:word|wd|phrase|code)?|pwd?|secret(?:[-_ ]?key)?|(?:auth)?token|pin|credentials?"
    r"|(?:api|access|private)[-_ ]?key|passwort|kennwort|mot de passe|contraseña|senha|пароль|密码|パスワード))"
    r"(?![A-Za-z0-9])[\"']?(?:\s+(?:for|of|to|on|für|von|de)(?:\s+[\w.'-]+){1,5}?)?"
    r"\s*(?:\b(?i:is|was|ist|lautet|est|es)\b|は|是|[:=]>?|->|→)\s*[\"'`]?(?P<value>[^\s\"',;`]{4,})"
)
_LONG_WORD = re.compile(r"(?<![\w/.-])[A-Za-z0-9+/_-]{32,}={0,2}(?![\w/])")
_HASH_OR_NAME = re.compile(r"(?i)[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[a-z]+([-_/][a-z]+)+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_MIN_ENTROPY = 4.2
"""Bits per character. Random letters and digits have about five, words and names less than four."""


def find_secret(text: str) -> str:
    """Return the kind of secret that a text seems to have, in words, or an empty string."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    for kind, form in _FORMS:
        if form.search(text):
            return kind
    for found in _NAMED_VALUE.finditer(text):
        value = found["value"]
        has_symbol = any(character.isdigit() or not character.isalnum() for character in value.rstrip(".!?"))
        if has_symbol or len(value) >= 12:
            return f"a {found['name'].lower()}"
    for found in _LONG_WORD.finditer(text):
        word = found[0]
        shares = [count / len(word) for count in Counter(word).values()]
        entropy = -sum(share * math.log2(share) for share in shares)
        if entropy > _MIN_ENTROPY and not _HASH_OR_NAME.fullmatch(word):
            return "a key or token"
    return ""
