"""Where lines go. Finished text goes to the scrollback and stays; only the tail, one line, is drawn again and again."""

from __future__ import annotations

import time
from typing import Protocol, TextIO

from treadle.cli.text import columns, cut, is_terminal, styled, wants_colour


class Stage(Protocol):
    """A place to show a run. `colour` says whether escape codes may be used."""

    colour: bool

    def write(self, text: str) -> None:
        """Prose as it comes; it need not end with a line."""
        ...

    def line(self, text: str) -> None:
        """A whole line, or several, of their own."""
        ...

    def tail(self, text: str) -> None:
        """What stands below everything until the next tail; empty takes it away."""
        ...

    @property
    def room(self) -> int: ...


class Terminal:
    """A terminal, or a plain stream: then there is no tail and no escape code."""

    def __init__(self, stream: TextIO) -> None:
        self.colour = wants_colour(stream)
        self._stream, self._live = stream, is_terminal(stream) and self.colour
        self._tail = ""
        self._drawn = self._open = False

    @property
    def room(self) -> int:
        return columns() if self._live else 120

    def write(self, text: str) -> None:
        if not text:
            return
        self._put(text)
        self._open = not text.endswith("\n")

    def line(self, text: str) -> None:
        self._put(f"\n{text}\n" if self._open else f"{text}\n")
        self._open = False
        self._draw()

    def tail(self, text: str) -> None:
        self._tail = text
        if self._live and not self._open:
            self._draw()

    def _put(self, text: str) -> None:
        if self._drawn:
            text, self._drawn = f"\r\x1b[2K{text}", False
        self._stream.write(text)
        self._stream.flush()

    def _draw(self) -> None:
        if not self._live or not (self._tail or self._drawn):
            return
        self._stream.write(f"\r\x1b[2K{styled(cut(self._tail, columns() - 1), 'dim', self.colour)}")
        self._stream.flush()
        self._drawn = bool(self._tail)


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
