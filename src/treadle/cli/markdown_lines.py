"""Markdown a line at a time, by bold and colour alone. What it does not know stays text."""

from __future__ import annotations

import re

from treadle.cli.terminal_text import style_text

_HEADING = re.compile(r"^#{1,6} +(.*)$")
_FENCE = re.compile(r"^\s*(```|~~~)")
_BULLET = re.compile(r"^(\s*)[-*+] +")
_INLINE = re.compile(r"`([^`]+)`|\*\*(\S(?:(?:(?!\*\*).)*?\S)?)\*\*")


class MarkdownStyler:
    """Paints the lines of one text in their order: between fences everything is code."""

    def __init__(self) -> None:
        self._code = False

    def style_line(self, text: str) -> str:
        """The line with escape codes; without them it has the same words."""
        if _FENCE.match(text):
            self._code = not self._code
            return style_text(text, "dim", colour=True)
        if self._code:
            return style_text(text, "cyan", colour=True)
        if heading := _HEADING.match(text):
            return style_text(heading[1].rstrip().rstrip("#"), "bold", colour=True)
        bullet = _BULLET.match(text)
        start = f"{bullet[1]}• " if bullet else ""
        return start + _INLINE.sub(_inline, text[bullet.end() if bullet else 0 :])


def _inline(match: re.Match[str]) -> str:
    return style_text(match[1] or match[2], "cyan" if match[1] else "bold", colour=True)
