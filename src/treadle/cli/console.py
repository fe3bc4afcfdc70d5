"""Where lines go. Finished text goes to the scrollback and stays; only the tail, one line, is drawn again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TextIO

from treadle.cli.terminal_text import (
    is_terminal,
    measure_width,
    silence_stream,
    style_text,
    terminal_width,
    truncate_line,
    wants_colour,
)

LineStyler = Callable[[str], str]
"""Puts colour into a whole line."""


class Console(Protocol):
    """A place to show a run. `colour` says whether escape codes may be used."""

    has_colour: bool

    def write(self, text: str, paint: LineStyler | None = None, *, dim: bool = False) -> None:
        """Prose as it comes; it need not end with a line. It is dim at once, but painted a whole line at a time."""
        ...

    def write_line(self, text: str) -> None:
        """A whole line, or several, of their own."""
        ...

    def write_aside(self, text: str) -> None:
        """The same, but it has nothing to do with the prose that is open, and does not end it where that can be."""
        ...

    def set_status(self, text: str) -> None:
        """What stands below everything until the next tail; empty takes it away."""
        ...

    @property
    def width(self) -> int: ...


class NullConsole:
    """A stage that nobody looks at."""

    has_colour, width = False, 80

    def write(self, text: str, paint: LineStyler | None = None, *, dim: bool = False) -> None: ...

    def write_line(self, text: str) -> None: ...

    def write_aside(self, text: str) -> None: ...

    def set_status(self, text: str) -> None: ...


class TerminalConsole:
    """A terminal, or a plain stream: then there is no tail and no escape code.

    What is only `beside` an answer that goes elsewhere need not find anybody who reads it.
    """

    def __init__(self, stream: TextIO, *, beside: bool = False) -> None:
        self.has_colour = wants_colour(stream)
        self._beside = beside
        self._stream, self.is_live = stream, is_terminal(stream) and self.has_colour
        self._tail = ""
        self._current = ""
        self._paint: LineStyler | None = None
        self._drawn = self._open = False

    @property
    def width(self) -> int:
        return terminal_width() if self.is_live else 120

    def write(self, text: str, paint: LineStyler | None = None, *, dim: bool = False) -> None:
        self._paint = paint
        for piece in text.splitlines(keepends=True):
            self._current += piece.rstrip("\n")
            self._put(style_text(piece.rstrip("\n"), "dim", dim and self.has_colour))
            self._open = True
            if piece.endswith("\n"):
                self._end()

    def write_line(self, text: str) -> None:
        if self._open:
            self._end()
        self._put(f"{text}\n")
        self._draw()

    def write_aside(self, text: str) -> None:
        self.write_line(text)

    def _end(self) -> None:
        """End the line that is open. It is painted where that means to draw one row again, and no more."""
        painted = self._paint(self._current) if self._paint is not None else self._current
        if self.is_live and painted != self._current and measure_width(self._current) < terminal_width():
            self._put(f"\r\x1b[2K{painted}")
        self._put("\n")
        self._current, self._open = "", False

    def end_input_line(self) -> None:
        """The person has ended the line that was open, by pressing Enter."""
        self._current, self._open = "", False

    def set_status(self, text: str) -> None:
        self._tail = text
        if self.is_live and not self._open:
            self._draw()

    def _put(self, text: str) -> None:
        if self._drawn:
            text, self._drawn = f"\r\x1b[2K{text}", False
        self._send(text)

    def _draw(self) -> None:
        if not self.is_live or not (self._tail or self._drawn):
            return
        self._send(f"\r\x1b[2K{style_text(truncate_line(self._tail, terminal_width() - 1), 'dim', self.has_colour)}")
        self._drawn = bool(self._tail)

    def _send(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # its reader has gone, or its disk is full
            if not self._beside:
                raise
            silence_stream(self._stream)


class Notifier:
    """Tells a person who looks elsewhere, once it has taken long enough that they may."""

    def __init__(self, stream: TextIO, how: str, after: float) -> None:
        self._stream, self._after = stream, after
        self._how = _kind(how) if is_terminal(stream) else "off"
        self._since = time.monotonic()

    def mark_active(self) -> None:
        """The person is here."""
        self._since = time.monotonic()

    def notify(self, text: str) -> None:
        """Something ended, or needs the person."""
        if self._how == "off" or time.monotonic() - self._since < self._after:
            return
        plain = "".join(character for character in text if character.isprintable())
        self._stream.write("\a" if self._how == "bell" else f"\x1b]9;{plain}\x07")
        self._stream.flush()
        self.mark_active()


def _kind(how: str) -> str:
    import os

    if how != "auto":
        return how
    program, term = os.environ.get("TERM_PROGRAM", ""), os.environ.get("TERM", "")
    return "osc9" if program in ("iTerm.app", "WezTerm", "ghostty") or "kitty" in term else "bell"
