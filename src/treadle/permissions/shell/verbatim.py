"""Takes long texts in which nothing runs out of a script, so that the parser gets a short one. Pure.

The parser's time grows with the square of a script's length where the script has errors, and it stops every thread
meanwhile. So it never gets more than `MAX_SYNTAX` characters. Long scripts are mostly text: files in here-documents
and programs in quotes. Each such text is replaced by a mark. This module only guesses where a text ends. The tree
shows whether the guess was right: then each mark is a whole text (`grammar.py`). Otherwise the script is unreadable.
"""

from __future__ import annotations

import re

from msgspec import Struct

MAX_SYNTAX = 5000
"""How many characters of a script the parser gets at most."""

MARK = re.compile("\x01(\\d+)\x01")
"""What replaces a text. No script that is parsed holds such a character itself."""

_MIN_LENGTH = 40
_MAX_MISSING_ENDS = 20
_TOKEN = re.compile(
    r"\\."  # an escaped character
    r"|(?<![^\s;&|()])#[^\n]*"  # a comment
    r"|'(?P<raw>[^']*)'"
    r'|"(?P<text>(?:[^"\\]|\\.)*)"'
    r"|(?<!<)<<(?P<dash>-?)[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)(?!\w)",
    re.DOTALL,
)
_EXPANDED = re.compile(r"[$`\\]")


class ShortScript(Struct):
    """A script in which marks stand for long texts."""

    source: str
    texts: list[str]

    def restore(self, text: str) -> str:
        """Put the texts back in a piece of the script."""
        return MARK.sub(lambda found: self.texts[int(found[1])], text) if self.texts else text

    def hide(self, text: str, can_hide: bool) -> str:
        """Return a mark for a text that can be hidden and is long, or the text itself."""
        if not can_hide or len(text) < _MIN_LENGTH:
            return text
        self.texts.append(text)
        return f"\x01{len(self.texts) - 1}\x01"

    def hide_body(self, body: str, marker: str, *, is_verbatim: bool) -> str:
        """Hide the body of a here-document, unless something in it runs or bash may see another end."""
        has_other_end = marker in map(str.strip, body.splitlines())
        is_plain = is_verbatim or not _EXPANDED.search(body)
        hidden = self.hide(body.removesuffix("\n"), is_plain and not has_other_end)
        return hidden + "\n" * body.endswith("\n")


def shorten_script(source: str) -> ShortScript | None:
    """Replace long texts in a script that is long; None when it stays too long for the parser."""
    if len(source) <= MAX_SYNTAX:
        return ShortScript(source, [])
    short = ShortScript("", [])
    pieces, position, missing = list[str](), 0, 0
    while found := _TOKEN.search(source, position):
        pieces.append(source[position : found.start()])
        whole, position = found[0], found.end()
        if found["raw"] is not None:
            whole = f"'{short.hide(found['raw'], can_hide=True)}'"
        elif found["text"] is not None:
            whole = f'"{short.hide(found["text"], not _EXPANDED.search(found["text"]))}"'
        elif marker := found["end"]:
            start = source.find("\n", position) + 1
            end_line = re.compile(rf"^\t*{marker}$" if found["dash"] else rf"^{marker}$", re.MULTILINE)
            end = end_line.search(source, start) if start else None
            missing += end is None
            if missing > _MAX_MISSING_ENDS:
                return None
            if end is not None:
                body = short.hide_body(source[start : end.start()], marker, is_verbatim=bool(found["quote"]))
                whole, position = f"{whole}{source[position:start]}{body}", end.start()
        pieces.append(whole)
    pieces.append(source[position:])
    short.source = "".join(pieces)
    return short if len(short.source) <= MAX_SYNTAX else None
