"""Hide known secrets in output: by value, in each spelling that a program is likely to use. Pure.

`detect.py` finds unknown secrets by their form.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import cast
from urllib.parse import quote, quote_plus

from treadle.messages import Json

MIN_SECRET_LENGTH = 6
"""Shorter values are not hidden: they occur everywhere, and are too short to be secrets."""

PLACEHOLDER = "[secret]"


class Redactor:
    """Hides its secrets. Without secrets it costs next to nothing."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._plain, self._base64 = set[str](), set[str]()
        for secret in secrets:
            if len(secret.strip()) < MIN_SECRET_LENGTH:
                continue
            in_json = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
            in_urls = {quote(secret, safe=safe, errors="replace") for safe in ("", "/")}
            in_urls.add(quote_plus(secret, errors="replace"))
            in_urls |= {re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in in_urls}
            self._plain |= {secret, secret.strip(), *in_json, *in_urls}
            # The letters that encode only the secret, for each of the three offsets at which it may start.
            data = secret.encode("utf-8", "surrogateescape")
            for offset in range(3):
                for encode in (base64.b64encode, base64.urlsafe_b64encode):
                    letters = encode(bytes(offset) + data).decode()
                    self._base64.add(letters[-(-offset * 8 // 6) : (offset + len(data)) * 8 // 6])
        patterns = {form: re.escape(form) for form in self._plain}
        # Programs that write base64 break its lines wherever a line is full.
        patterns |= {form: "\n?".join(map(re.escape, form)) for form in self._base64}
        longest_first = sorted(patterns, key=len, reverse=True)
        self._pattern = re.compile("|".join(patterns[form] for form in longest_first)) if patterns else None
        self._first_characters = {form[0] for form in patterns}
        self._max_length = max((2 * len(form) if form in self._base64 else len(form) for form in patterns), default=0)

    def redact_text(self, text: str) -> str:
        """Return the text without secrets."""
        return self._pattern.sub(PLACEHOLDER, text) if self._pattern is not None else text

    def redact_value(self, value: Json) -> Json:
        """Return a JSON value without secrets, also in the names of fields."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, list):
            return [self.redact_value(one) for one in cast("list[Json]", value)]
        if isinstance(value, dict):
            fields = cast("dict[str, Json]", value)
            return {self.redact_text(name): self.redact_value(one) for name, one in fields.items()}
        return value

    def split_text(self, text: str) -> tuple[str, str]:
        """Return the part of a text that is certain, without secrets, and an end that may be the start of a secret."""
        if self._pattern is None:
            return text, ""
        cut, pieces, position = self._find_possible_start(text, 0), list[str](), 0
        for found in self._pattern.finditer(text):
            if found.start() >= cut:
                break
            pieces += (text[position : found.start()], PLACEHOLDER)
            position = found.end()
            if position > cut:
                cut = self._find_possible_start(text, position)
        return "".join((*pieces, text[position:cut])), text[cut:]

    def _find_possible_start(self, text: str, start: int) -> int:
        """Return the position where a secret may start that the end cuts off, or the length of the text."""
        for position in range(max(start, len(text) - self._max_length + 1), len(text)):
            if text[position] in self._first_characters:
                end = text[position:]
                unfolded = end.replace("\n", "")
                if any(form.startswith(end) for form in self._plain) or any(
                    form.startswith(unfolded) for form in self._base64
                ):
                    return position
        return len(text)


class RedactedStream:
    """Redacts a text that comes in pieces. A possible start of a secret is held back until the next piece."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor, self._held = redactor, ""

    def feed(self, text: str) -> str:
        """Add a piece, and return the text that is certain by now."""
        ready, self._held = self._redactor.split_text(self._held + text)
        return ready

    def finish(self) -> str:
        """Return the rest: no more pieces follow."""
        held, self._held = self._held, ""
        return self._redactor.redact_text(held)
