"""Draw Markdown for a terminal: prose wrapped at words, no frames and no padding. A copy gives what was written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from treadle.cli.console import escape_controls
from treadle.cli.draw.code import highlight_code
from treadle.cli.draw.glyphs import Theme
from treadle.cli.draw.table import Table, TableCell, draw_table

MAX_PROSE = 96
"""Columns of prose at most. Tables and code use the whole width."""

MAX_PARSED = 30_000
"""Characters of a block from which on it is drawn as plain text: the parser needs too long for some of them."""

_QUIET, _CODE, _QUOTE = Style(dim=True), Style(color="cyan"), Style(italic=True)
_LINK = Style(color="cyan", underline=True)
_HEADINGS = {"h1": Style(bold=True, underline=True), "h2": Style(bold=True), "h3": Style(bold=True, italic=True)}
_MARKS = {"strong": Style(bold=True), "em": Style(italic=True), "s": Style(strike=True)}
_SAFE_URL = re.compile(r"(?:https?://|mailto:)[!-~]+", re.IGNORECASE)
_LOOKS_LIKE_URL = re.compile(
    r"^\s*(?:[a-z][a-z0-9+.-]*://|www\.)|^\s*[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}/?\s*$", re.IGNORECASE
)


@cache
def build_parser() -> MarkdownIt:
    """Return the parser. Raw HTML is text."""
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


@cache
def build_block_parser() -> MarkdownIt:
    """Return a parser that finds blocks only, and not what is in their text."""
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("inline")


@cache
def _build_console() -> Console:
    """Return the console that rich needs to resolve styles. Nothing is written to it."""
    return Console(color_system=None, force_terminal=False)


def render_markdown(text: str, width: int, theme: Theme, *, links: bool = True, wrap_code: bool = False) -> list[str]:
    """Render Markdown as lines with escape codes.

    `links` makes links clickable. `wrap_code` breaks lines of code at the width, for an area whose rows are counted.
    """
    lines = MarkdownDrawer(theme, wrap_code=wrap_code).draw_text(text, width, {})
    return [encode_line(line, theme, links=links) for line in lines]


def encode_line(line: Text, theme: Theme, *, links: bool) -> str:
    """Encode a line with escape codes. Links are codes of their own, and only safe addresses are links."""
    if not theme.has_style:
        return line.plain.rstrip()
    line.rstrip()
    codes = ""
    for piece, style, _ in Segment.simplify(line.render(_build_console(), end="")):
        if style is None:
            codes += piece
            continue
        shown = style if theme.has_colour else style.without_color
        text = shown.update_link(None).render(piece, color_system=ColorSystem.STANDARD)
        codes += f"\x1b]8;;{style.link}\x1b\\{text}\x1b]8;;\x1b\\" if links and style.link else text
    return codes


class MarkdownDrawer:
    """Draws the blocks of parsed Markdown as lines that rich can style."""

    def __init__(self, theme: Theme, *, wrap_code: bool) -> None:
        self._theme, self._glyphs, self._wrap_code = theme, theme.glyphs, wrap_code

    def draw_text(self, text: str, width: int, references: dict[str, Any], first_number: int = 0) -> list[Text]:
        """Draw Markdown. `references` are the link definitions that are known; those of the text are added.

        With `first_number`, the text is the rest of a list with numbers.
        """
        if len(text) > MAX_PARSED and "\n\n" not in text.strip():
            return self.wrap(Text(escape_controls(text)), min(width, MAX_PROSE))
        tokens = build_parser().parse(text, {"references": references})
        if first_number and tokens and tokens[0].type == "ordered_list_open":
            tokens[0].attrs["start"] = first_number
        return self.draw_blocks(SyntaxTreeNode(tokens).children, width)

    def wrap(self, text: Text, width: int) -> list[Text]:
        """Wrap a text at words. A word that is longer than a line is broken."""
        lines = text.wrap(_build_console(), max(4, width), overflow="fold", tab_size=4)
        for line in lines:
            line.rstrip()
        return list(lines)

    def draw_blocks(self, nodes: Sequence[SyntaxTreeNode], width: int, *, is_item: bool = False) -> list[Text]:
        """Draw blocks with an empty line between them. In an item of a list, a list follows its text at once."""
        lines: list[Text] = []
        for node in nodes:
            block = self._draw_block(node, width)
            is_close = is_item and node.type in ("bullet_list", "ordered_list")
            if lines and block and not is_close:
                lines.append(Text())
            lines += block
        return lines

    def _draw_block(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        prose = min(width, MAX_PROSE)
        match node.type:
            case "heading":
                text = self._draw_inline(node.children, Style())
                text.stylize(_HEADINGS.get(node.tag, _QUOTE))
                return self.wrap(text, prose)
            case "fence" | "code_block":
                language = node.info.split()[0] if node.info.split() else ""
                return self._indent(self.draw_code(node.content.removesuffix("\n"), language, width), "", "", Style())
            case "blockquote":
                inner = self.draw_blocks(node.children, prose - 2)
                for line in inner:
                    line.stylize_before(_QUOTE)
                return self._indent(inner, f"{self._glyphs.pipe} ", f"{self._glyphs.pipe} ", _QUIET)
            case "bullet_list" | "ordered_list":
                return self._draw_list(node, width)
            case "hr":
                return [Text.assemble((self._glyphs.rule * 3, _QUIET))]
            case "table":
                return self._draw_table(node, width)
            case _:
                return self.wrap(self._draw_inline(node.children, Style()), prose)

    def draw_code(self, code: str, language: str, width: int, skip: int = 0) -> list[Text]:
        """Draw code between two short rules. The first `skip` lines are read but not drawn."""
        rule = self._glyphs.rule * 3
        lines = highlight_code(escape_controls(code), language)[skip:]
        if self._wrap_code:
            lines = [
                row for line in lines for row in line.wrap(_build_console(), width, overflow="fold", no_wrap=False)
            ]
        head = f"{rule} {escape_controls(language)}".rstrip()
        return [Text.assemble((head, _QUIET)), *lines, Text.assemble((rule, _QUIET))]

    def _draw_list(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        lines: list[Text] = []
        for place, item in enumerate(node.children):
            mark = f"{self._glyphs.bullet} "
            if node.type == "ordered_list":
                mark = f"{int(node.attrs.get('start', 1)) + place}. "
            inner = self.draw_blocks(item.children, max(8, width - len(mark)), is_item=True) or [Text()]
            lines += self._indent(inner, mark, " " * len(mark), _QUIET)
        return lines

    def _indent(self, lines: Iterable[Text], first: str, other: str, style: Style) -> list[Text]:
        """Put a mark before the first line, and another one before the others."""
        shown: list[Text] = []
        for line in lines:
            start = other if shown else first
            shown.append(Text.assemble((start, style), line) if start else line)
        return shown

    def _draw_table(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        rows: list[list[TableCell]] = []
        for row in (row for part in node.children for row in part.children):
            cells: list[TableCell] = []
            for cell in row.children:
                place = str(cell.attrs.get("style", "")).removeprefix("text-align:")
                text = self._draw_inline(cell.children, Style())
                cells.append(TableCell(text, place or "left"))
            rows.append(cells)
        return draw_table(Table(rows[0], rows[1:]), width, self._theme, self.wrap)

    def _draw_inline(self, nodes: Iterable[SyntaxTreeNode], style: Style) -> Text:
        text = Text()
        for node in nodes:
            match node.type:
                case "inline" | "link" | "strong" | "em" | "s":
                    inner = style + _MARKS.get(node.type, Style())
                    if node.type == "link":
                        self._draw_link(text, node, style)
                    else:
                        text.append_text(self._draw_inline(node.children, inner))
                case "code_inline":
                    text.append(escape_controls(node.content), style + _CODE)
                case "softbreak":
                    text.append(" ", style)
                case "hardbreak":
                    text.append("\n", style)
                case "image":
                    alternative = escape_controls(node.content) or "image"
                    url = str(node.attrs.get("src", ""))
                    is_safe = _SAFE_URL.fullmatch(url)
                    text.append(f"[{alternative}]", style + _LINK + Style(link=url if is_safe else None))
                case _:
                    text.append(escape_controls(node.content), style)
        return text

    def _draw_link(self, text: Text, node: SyntaxTreeNode, style: Style) -> None:
        """Draw a link. Show the address too if the words look like another address, or if it is not safe to follow."""
        url = str(node.attrs.get("href", ""))
        is_safe = _SAFE_URL.fullmatch(url) is not None
        words = self._draw_inline(node.children, style + _LINK + Style(link=url if is_safe else None))
        text.append_text(words)
        plain = words.plain.strip()
        if not url.rstrip("/").endswith(plain.rstrip("/")) and (not is_safe or _LOOKS_LIKE_URL.search(plain)):
            text.append(f" ({escape_controls(url)})", style)
