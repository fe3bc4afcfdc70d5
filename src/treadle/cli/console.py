"""Where lines go. Finished text goes to the scrollback and stays; only the tail, one line, is drawn again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TextIO

from treadle.cli.terminal_text import columns, cut, is_terminal, silence, styled, wants_colour, width

Paint = Callable[[str], str]
"""Puts colour into a whole line."""


class Stage(Protocol):
    """A place to show a run. `colour` says whether escape codes may be used."""

    colour: bool

    def write(self, text: str, paint: Paint | None = None, *, dim: bool = False) -> None:
        """Prose as it comes; it need not end with a line. It is dim at once, but painted a whole line at a time."""
        ...

    def line(self, text: str) -> None:
        """A whole line, or several, of their own."""
        ...

    def aside(self, text: str) -> None:
        """The same, but it has nothing to do with the prose that is open, and does not end it where that can be."""
        ...

    def tail(self, text: str) -> None:
        """What stands below everything until the next tail; empty takes it away."""
        ...

    @property
    def room(self) -> int: ...


class Nowhere:
    """A stage that nobody looks at."""

    colour, room = False, 80

    def write(self, text: str, paint: Paint | None = None, *, dim: bool = False) -> None: ...

    def line(self, text: str) -> None: ...

    def aside(self, text: str) -> None: ...

    def tail(self, text: str) -> None: ...


class Terminal:
    """A terminal, or a plain stream: then there is no tail and no escape code.

    What is only `beside` an answer that goes elsewhere need not find anybody who reads it.
    """

    def __init__(self, stream: TextIO, *, beside: bool = False) -> None:
        self.colour = wants_colour(stream)
        self._beside = beside
        self._stream, self.live = stream, is_terminal(stream) and self.colour
        self._tail = ""
        self._current = ""
        self._paint: Paint | None = None
        self._drawn = self._open = False

    @property
    def room(self) -> int:
        return columns() if self.live else 120

    def write(self, text: str, paint: Paint | None = None, *, dim: bool = False) -> None:
        self._paint = paint
        for piece in text.splitlines(keepends=True):
            self._current += piece.rstrip("\n")
            self._put(styled(piece.rstrip("\n"), "dim", dim and self.colour))
            self._open = True
            if piece.endswith("\n"):
                self._end()

    def line(self, text: str) -> None:
        if self._open:
            self._end()
        self._put(f"{text}\n")
        self._draw()

    def aside(self, text: str) -> None:
        self.line(text)

    def _end(self) -> None:
        """End the line that is open. It is painted where that means to draw one row again, and no more."""
        painted = self._paint(self._current) if self._paint is not None else self._current
        if self.live and painted != self._current and width(self._current) < columns():
            self._put(f"\r\x1b[2K{painted}")
        self._put("\n")
        self._current, self._open = "", False

    def entered(self) -> None:
        """The person has ended the line that was open, by pressing Enter."""
        self._current, self._open = "", False

    def tail(self, text: str) -> None:
        self._tail = text
        if self.live and not self._open:
            self._draw()

    def _put(self, text: str) -> None:
        if self._drawn:
            text, self._drawn = f"\r\x1b[2K{text}", False
        self._send(text)

    def _draw(self) -> None:
        if not self.live or not (self._tail or self._drawn):
            return
        self._send(f"\r\x1b[2K{styled(cut(self._tail, columns() - 1), 'dim', self.colour)}")
        self._drawn = bool(self._tail)

    def _send(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # its reader has gone, or its disk is full
            if not self._beside:
                raise
            silence(self._stream)


class Bell:
    """Tells a person who looks elsewhere, once it has taken long enough that they may."""

    def __init__(self, stream: TextIO, how: str, after: float) -> None:
        self._stream, self._after = stream, after
        self._how = _kind(how) if is_terminal(stream) else "off"
        self._since = time.monotonic()

    def touched(self) -> None:
        """The person is here."""
        self._since = time.monotonic()

    def ring(self, text: str) -> None:
        """Something ended, or needs the person."""
        if self._how == "off" or time.monotonic() - self._since < self._after:
            return
        plain = "".join(character for character in text if character.isprintable())
        self._stream.write("\a" if self._how == "bell" else f"\x1b]9;{plain}\x07")
        self._stream.flush()
        self.touched()


def _kind(how: str) -> str:
    import os

    if how != "auto":
        return how
    program, term = os.environ.get("TERM_PROGRAM", ""), os.environ.get("TERM", "")
    return "osc9" if program in ("iTerm.app", "WezTerm", "ghostty") or "kitty" in term else "bell"
