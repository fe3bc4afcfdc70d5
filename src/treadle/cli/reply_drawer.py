"""The text of a reply while it is written: as drawn Markdown on a terminal, or as it was written on a plain stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.console import Console, escape_controls, terminal_height
from treadle.cli.draw.glyphs import Theme

if TYPE_CHECKING:
    from treadle.cli.draw.markdown_stream import DrawnBlock, MarkdownStream

ROWS_BELOW = 12
"""Rows of the window that the open block leaves for the rest."""


class ReplyDrawer:
    """Writes a reply to a console: finished blocks to the scrollback, and the rest as the open block."""

    def __init__(self, console: Console, theme: Theme) -> None:
        self.console, self._theme = console, theme
        self._stream: MarkdownStream | None = None
        self._unwritten = ""
        self._open_lines: list[str] | None = []
        self.is_open = False

    def write(self, text: str) -> None:
        """Add text that arrived."""
        text = escape_controls(text)
        if not self.is_open:
            text = text.lstrip("\n")
            if not text.strip():
                return
        is_first, self.is_open = not self.is_open, True
        if not self._theme.has_style:
            done, found, rest = (self._unwritten + text).rpartition("\n\n")
            self._unwritten = rest if found else done + rest
            if found and done.strip():
                self.console.write_block(done.rstrip("\n"), "answer")
            return
        if is_first:
            from treadle.cli.draw.markdown_stream import MarkdownStream

            self._stream = MarkdownStream(self._theme, self.console.width)
        assert self._stream is not None
        self._stream.width = self.console.width
        self._stream.max_lines = max(6, terminal_height() - ROWS_BELOW)
        self._open_lines = None
        self._write_blocks(self._stream.feed(text))

    def draw_open(self) -> list[str]:
        """Return the lines of the block that is not finished. They are drawn again only after new text."""
        if self._open_lines is None:
            self._open_lines = self._stream.draw_open() if self._stream is not None else []
        return self._open_lines

    def end(self) -> None:
        """Write the rest of the reply."""
        self._open_lines = []
        self.console.set_open_block(())
        if self._stream is not None:
            self._write_blocks(self._stream.end())
        elif self._unwritten.strip():
            self.console.write_block(self._unwritten.rstrip("\n"), "answer")
        self._stream, self._unwritten, self.is_open = None, "", False

    def _write_blocks(self, blocks: list[DrawnBlock]) -> None:
        for block in blocks:
            self.console.write_block("\n".join(block.lines), "answer", gap=False if block.continues else None)
