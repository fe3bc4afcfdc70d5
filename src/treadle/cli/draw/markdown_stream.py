"""Draw Markdown while it is written: finished blocks once, and the open block as often as needed."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from rich.text import Text

from treadle.cli.draw.glyphs import Theme
from treadle.cli.draw.markdown import MarkdownDrawer, build_block_parser, encode_line

CONTEXT_LINES = 100
"""Lines above that the lexer reads again, when the upper lines of a tall block of code are in the scrollback."""

MAX_DRAWN = 6_000
"""Characters of an open block that are drawn. Only its end fits on the screen."""

MAX_DRAWN_LINE = 1_000
"""Characters of a line of open code that are drawn."""

_FENCE = re.compile(r"^( {0,3})(`{3,}(?=[^`]*$)|~{3,})[ \t]*(\S*)")
_UNFINISHED_START = re.compile(r"^\s*(?:\||`{3}|~{3})[^\n]*$")


class DrawnBlock(Struct, frozen=True):
    """Lines for the scrollback. A block that `continues` is the rest of the one before it."""

    lines: list[str]
    continues: bool = False


class OpenCode(Struct):
    """A block of code that has begun. `skip` of its lines are in the scrollback, and are only read by the lexer."""

    indent: int
    fence: str
    language: str
    skip: int = 0

    def is_closed_by(self, line: str) -> bool:
        end = line.strip()
        return len(end) >= len(self.fence) and set(end) == {self.fence[0]} and len(line) - len(line.lstrip()) < 4

    def join(self, lines: list[str]) -> str:
        """Join lines of code. The indent of the fence is no part of them."""
        return "\n".join(line[min(self.indent, len(line) - len(line.lstrip(" "))) :] for line in lines)


class MarkdownStream:
    """Draws the text of one reply. The page is the same, however the text is cut into pieces.

    A block of code or a list with more than `max_lines` lines is handed out from its beginning, before it is finished.
    """

    def __init__(self, theme: Theme, width: int, max_lines: int = 30) -> None:
        self.width, self.max_lines = width, max_lines
        self._theme, self._open = theme, ""
        self._drawer = MarkdownDrawer(theme, wrap_code=False)
        self._references: dict[str, Any] = {}
        self._code: OpenCode | None = None
        self._is_begun = False  # the beginning of the open block is in the scrollback
        self._number = 0  # of the first item of the open list, if items before it are in the scrollback

    def feed(self, delta: str) -> list[DrawnBlock]:
        """Add text. Return the blocks that cannot change any more."""
        self._open += delta
        blocks: list[DrawnBlock] = []
        # An unfinished line decides nothing: "-" may become "---".
        while "\n" in delta and (block := self._take_block()):
            blocks.append(block)
        return blocks

    def end(self) -> list[DrawnBlock]:
        """End the text. Return the rest of it."""
        blocks = self.feed("\n")
        if self._code is not None:
            blocks.append(self._finish_code(self._open.split("\n")[1:], ""))
        elif self._open.strip():
            blocks.append(self._finish(self._open.strip("\n"), ""))
        return blocks

    def draw_open(self) -> list[str]:
        """Draw the block that is not finished. Marks that are still open are closed in the drawn copy."""
        drawer = MarkdownDrawer(self._theme, wrap_code=True)
        if self._code is not None:
            lines = self._open.split("\n")[1:]
            if not lines[-1].strip(f" {self._code.fence[0]}"):  # perhaps the end of the code
                lines.pop()
            code = self._code.join([line if len(line) <= MAX_DRAWN_LINE else line[-MAX_DRAWN_LINE:] for line in lines])
            drawn = drawer.draw_code(code, self._code.language, self.width, self._code.skip)
            return self._encode(drawn[int(self._is_begun) :], links=False)
        text = self._open
        if len(text) > MAX_DRAWN:
            text = text[-MAX_DRAWN:].partition(" ")[2] or text[-MAX_DRAWN:]
        if not text.strip() or _UNFINISHED_START.match(text):  # a table is known by its second line
            return []
        drawn = drawer.draw_text(close_marks(text), self.width, dict(self._references), self._number)
        return self._encode(drawn, links=False)

    def _take_block(self) -> DrawnBlock | None:
        """Take the first block that is finished from the open text, or the upper lines of a tall one."""
        if not self._is_begun:
            self._open = self._open.lstrip("\n")
        first, newline, _ = self._open.partition("\n")
        if self._code is None and newline and (opening := _FENCE.match(first)):
            self._code = OpenCode(len(opening[1]), opening[2], opening[3])
        if self._code is not None:
            return self._take_code(self._code)
        end = self._open.rfind("\n") + 1
        whole, rest = self._open[:end], self._open[end:]
        tokens = build_block_parser().parse(whole, {"references": self._references})
        tops = [token for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
        starts = [token.map[0] for token in tops if token.map]
        lines = whole.split("\n")
        if len(tops) > 1:
            return self._finish("\n".join(lines[: starts[1]]), "\n".join(lines[starts[1] :]) + rest)
        if tops and tops[0].type in ("heading_open", "hr"):
            return self._finish(whole, rest)
        items = [token.map[0] for token in tokens if token.type == "list_item_open" and token.level == 1 and token.map]
        if len(items) > 1 and len(lines) > self.max_lines:
            number = self._number or int(tops[0].attrs.get("start", 1))
            block = self._finish("\n".join(lines[: items[-1]]), "\n".join(lines[items[-1] :]) + rest)
            self._is_begun, self._number = True, number + len(items) - 1
            return block
        return None

    def _take_code(self, code: OpenCode) -> DrawnBlock | None:
        *lines, rest = self._open.split("\n")[1:]
        for place in range(code.skip, len(lines)):
            if code.is_closed_by(lines[place]):
                return self._finish_code(lines[:place], "\n".join([*lines[place + 1 :], rest]))
        if len(lines) - code.skip <= self.max_lines:
            return None
        end = len(lines) - self.max_lines // 2
        drawn = self._drawer.draw_code(code.join(lines), code.language, self.width)
        block = DrawnBlock(self._encode(drawn[1 + code.skip if self._is_begun else 0 : 1 + end]), self._is_begun)
        start = max(0, end - CONTEXT_LINES)
        self._open = "\n".join(["", *lines[start:], rest])
        self._is_begun, code.skip = True, end - start
        return block

    def _finish_code(self, lines: list[str], rest: str) -> DrawnBlock:
        assert self._code is not None
        while len(lines) > self._code.skip and not lines[-1].strip() and not rest:
            lines.pop()
        drawn = self._drawer.draw_code(self._code.join(lines), self._code.language, self.width)
        if len(lines) <= self._code.skip:  # all of it is in the scrollback, except its end
            drawn = [*drawn[: 1 + len(lines)], drawn[-1]]
        return self._close(drawn[1 + self._code.skip if self._is_begun else 0 :], rest)

    def _finish(self, text: str, rest: str) -> DrawnBlock:
        drawn = self._drawer.draw_text(text, self.width, self._references, self._number)
        return self._close(drawn, rest)

    def _close(self, drawn: list[Text], rest: str) -> DrawnBlock:
        block = DrawnBlock(self._encode(drawn), self._is_begun)
        self._open, self._code, self._is_begun, self._number = rest, None, False, 0
        return block

    def _encode(self, lines: list[Text], *, links: bool = True) -> list[str]:
        return [encode_line(line, self._theme, links=links) for line in lines]


def close_marks(text: str) -> str:
    """Close bold text and inline code that are still open in the last paragraph. A mark without text is dropped."""
    head, gap, last = text.rpartition("\n\n")
    for mark in ("`", "**"):
        plain = re.sub(r"`[^`]*`", "", last) if mark == "**" else last.replace("```", "")
        if plain.count(mark) % 2:
            last = last.removesuffix(mark) if last.endswith(mark) else last.rstrip("*") + mark
    return head + gap + last
