"""Keeping known secrets out of whatever leaves: by value, in every spelling a program is likely to give them. Pure.

It knows only secrets that it was told, and does not guess by looks.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, MutableMapping
from typing import cast
from urllib.parse import quote, quote_plus

from treadle.messages import Json

MIN_SECRET_LENGTH = 6
"""Shorter values are not hidden: they would be found everywhere, and are too short to be secrets."""

PLACEHOLDER = "[secret]"


class Redactor:
    """Hides the secrets it was made with. Cheap where there are none."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = [secret for secret in secrets if len(secret.strip()) >= MIN_SECRET_LENGTH]
        self._plain = {form for secret in known for form in _forms(secret)}
        self._folded = {form for secret in known for form in _in_base64(secret.encode("utf-8", "surrogateescape"))}
        written = {form: re.escape(form) for form in self._plain}
        # Programs that write base64 break its lines wherever a line is full.
        written |= {form: "\n?".join(map(re.escape, form)) for form in self._folded}
        longest_first = sorted(written, key=len, reverse=True)
        self._pattern = re.compile("|".join(written[form] for form in longest_first)) if written else None
        self._firsts = {form[0] for form in written}
        self._longest = max((2 * len(form) if form in self._folded else len(form) for form in written), default=0)

    def redact_text(self, text: str) -> str:
        """The text without secrets."""
        return self._pattern.sub(PLACEHOLDER, text) if self._pattern is not None else text

    def redact_value(self, value: Json) -> Json:
        """The same for everything inside of a JSON value, names included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, list):
            return [self.redact_value(one) for one in cast("list[Json]", value)]
        if isinstance(value, dict):
            return {
                self.redact_text(name): self.redact_value(one) for name, one in cast("dict[str, Json]", value).items()
            }
        return value

    def start_stream(self) -> RedactedStream:
        """For text that comes in pieces: a secret may be cut anywhere."""
        return RedactedStream(self)

    def split_text(self, text: str) -> tuple[str, str]:
        """What of a text can be passed on, without secrets, and the end that may be the beginning of one."""
        if self._pattern is None:
            return text, ""
        cut, told, at = self._beginning(text, 0), list[str](), 0
        for found in self._pattern.finditer(text):
            if found.start() >= cut:
                break
            told += (text[at : found.start()], PLACEHOLDER)
            at = found.end()
            if at > cut:
                cut = self._beginning(text, at)
        return "".join((*told, text[at:cut])), text[cut:]

    def _beginning(self, text: str, start: int) -> int:
        """Where at the end of a text a secret begins that may go on; its length when there is none."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[at] in self._firsts and self._may_go_on(text[at:]):
                return at
        return len(text)

    def _may_go_on(self, end: str) -> bool:
        unfolded = end.replace("\n", "")
        return any(form.startswith(end) for form in self._plain) or any(
            form.startswith(unfolded) for form in self._folded
        )


class RedactedStream:
    """Text in pieces, without secrets. What may be the beginning of one is held back until it is known."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor, self._held = redactor, ""

    def feed(self, text: str) -> str:
        """What can be passed on now."""
        told, self._held = self._redactor.split_text(self._held + text)
        return told

    def finish(self) -> str:
        """The rest, when nothing more comes."""
        held, self._held = self._held, ""
        return self._redactor.redact_text(held)


def take_secrets(environ: MutableMapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Read these variables and remove them, so that no child and no dump of the environment has them."""
    return {name: value for name in names if (value := environ.pop(name, ""))}


def _forms(secret: str) -> set[str]:
    """A secret as it may be written in one piece: as it is, in a URL and in JSON."""
    escaped = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    in_urls = {
        quote(secret, safe="", errors="replace"),
        quote(secret, errors="replace"),
        quote_plus(secret, errors="replace"),
    }
    in_urls |= {re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in in_urls}
    return {secret, secret.strip(), *escaped, *in_urls}


def _in_base64(secret: bytes) -> set[str]:
    """The letters that stand for nothing but the secret, for each of the three places where it may begin."""
    forms: set[str] = set()
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            letters = encode(bytes(before) + secret).decode()
            forms.add(letters[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6])
    return forms
