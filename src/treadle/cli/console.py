"""Terminal output of the commands: safe text, consoles, formatting, signal handlers and captured warnings."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import time
import unicodedata
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Protocol, TextIO

LineStyler = Callable[[str], str]
"""Adds colour to a whole line."""
# Both match control characters except line feed and tab, and characters that reorder text.
# `_HIDDEN` also matches invisible characters.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_COLOURS = {
    "dim": "2",
    "bold": "1",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class Console(Protocol):
    """Shows a run. `has_colour` says whether escape codes are allowed."""

    has_colour: bool

    def write(self, text: str, style_line: LineStyler | None = None, *, dim: bool = False) -> None:
        """Write streamed text, which may end within a line.

        `dim` applies immediately. `style_line` applies to each line once it is complete.
        """
        ...

    def write_line(self, text: str) -> None:
        """Write one or more whole lines. End an open line first."""
        ...

    def write_aside(self, text: str) -> None:
        """Write whole lines that do not belong to the streamed text. Keep the open line open if possible."""
        ...

    def set_status(self, text: str) -> None:
        """Set the status line below all output. An empty text removes it."""
        ...

    @property
    def width(self) -> int: ...


class TerminalConsole:
    """Writes to a terminal or to a plain stream. A plain stream gets no status line and no escape codes.

    `ignore_errors` ignores write errors. It is for a stream that does not carry the answer.
    """

    def __init__(self, stream: TextIO, *, ignore_errors: bool = False) -> None:
        self.has_colour = wants_colour(stream)
        self._ignore_errors = ignore_errors
        self._stream, self.is_live = stream, is_terminal(stream) and self.has_colour
        self._status = self._line = ""
        self._style_line: LineStyler | None = None
        self._is_status_drawn = self._is_line_open = False

    @property
    def width(self) -> int:
        return terminal_width() if self.is_live else 120

    def write(self, text: str, style_line: LineStyler | None = None, *, dim: bool = False) -> None:
        self._style_line = style_line
        for piece in text.splitlines(keepends=True):
            words = piece.rstrip("\n")
            self._line += words
            self._write_text(style_text(words, "dim", dim and self.has_colour))
            self._is_line_open = True
            if piece.endswith("\n"):
                self._end_line()

    def write_line(self, text: str) -> None:
        if self._is_line_open:
            self._end_line()
        self._write_text(f"{text}\n")
        self._draw_status()

    def write_aside(self, text: str) -> None:
        self.write_line(text)

    def _end_line(self) -> None:
        """End the open line. Redraw it with its style only if it fits on one row."""
        styled = self._style_line(self._line) if self._style_line is not None else self._line
        if self.is_live and styled != self._line and measure_width(self._line) < terminal_width():
            self._write_text(f"\r\x1b[2K{styled}")
        self._write_text("\n")
        self.end_input_line()

    def end_input_line(self) -> None:
        """Record that the open line has ended, for example because the user pressed Enter."""
        self._line, self._is_line_open = "", False

    def set_status(self, text: str) -> None:
        self._status = text
        if self.is_live and not self._is_line_open:
            self._draw_status()

    def _write_text(self, text: str) -> None:
        if self._is_status_drawn:
            text, self._is_status_drawn = f"\r\x1b[2K{text}", False
        self._send(text)

    def _draw_status(self) -> None:
        if self.is_live and (self._status or self._is_status_drawn):
            status = truncate_line(self._status, terminal_width() - 1)
            self._send(f"\r\x1b[2K{style_text(status, 'dim', self.has_colour)}")
            self._is_status_drawn = bool(self._status)

    def _send(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the reader has closed the stream, or the disk is full
            if not self._ignore_errors:
                raise
            silence_stream(self._stream)


class Notifier:
    """Notifies the user after a minimum time without activity, when they may no longer watch the terminal."""

    def __init__(self, stream: TextIO, kind: str, after: float) -> None:
        self._stream, self._after = stream, after
        if kind == "auto":
            program, term = os.environ.get("TERM_PROGRAM", ""), os.environ.get("TERM", "")
            kind = "osc9" if program in ("iTerm.app", "WezTerm", "ghostty") or "kitty" in term else "bell"
        self._kind = kind if is_terminal(stream) else "off"
        self._active_at = time.monotonic()

    def mark_active(self) -> None:
        """Record that the user is active."""
        self._active_at = time.monotonic()

    def notify(self, text: str) -> None:
        """Notify the user that something ended or needs an answer."""
        if self._kind == "off" or time.monotonic() - self._active_at < self._after:
            return
        plain = "".join(character for character in text if character.isprintable())
        self._stream.write("\a" if self._kind == "bell" else f"\x1b]9;{plain}\x07")
        self._stream.flush()
        self.mark_active()


def escape_controls(text: str) -> str:
    """Replace control and reordering characters by visible escapes. Emoji stay intact."""
    return _UNSAFE.sub(_escape_character, text.replace("\r\n", "\n"))


def escape_hidden(text: str) -> str:
    """Replace every character that could hide or disguise text by a visible escape. Used for approval questions."""
    return _HIDDEN.sub(_escape_character, text)


def _escape_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def measure_width(text: str) -> int:
    """Return the number of columns that the text covers."""
    if text.isascii():
        return len(text)
    return sum(_measure_character(character) for character in text)


def _measure_character(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def truncate_line(text: str, columns: int) -> str:
    """Shorten the text to one line of `columns` columns. An ellipsis replaces the rest."""
    text = " ".join(text.split())
    if measure_width(text) <= columns:
        return text
    kept, used = "", 0
    for character in text:
        used += _measure_character(character)
        if used > columns - 1:
            break
        kept += character
    return kept + "…"


def wrap_rows(text: str, columns: int) -> list[str]:
    """Split a line into the rows that it covers on a terminal of `columns` columns."""
    if text.isascii():
        return [text[at : at + columns] for at in range(0, len(text), columns)]
    rows, used = [""], 0
    for character in text:
        width = _measure_character(character)
        if used + width > columns:
            rows.append("")
            used = 0
        rows[-1] += character
        used += width
    return rows


def style_text(text: str, style: str, colour: bool) -> str:
    """Apply a style such as `dim` or `bold red` if `colour` is true."""
    if not colour or not text or not style:
        return text
    codes = ";".join(_COLOURS[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal."""
    try:
        return stream.isatty()
    except ValueError:  # the stream is closed
        return False


def wants_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal that supports escape codes and NO_COLOR is not set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and not is_dumb_terminal()


def is_dumb_terminal() -> bool:
    """Whether TERM says that the terminal supports no escape codes."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def terminal_width() -> int:
    """Return the width of the terminal in columns, at least 20."""
    import shutil

    return max(20, shutil.get_terminal_size((80, 24)).columns)


def print_line(text: str) -> None:
    """Print a line to stdout."""
    sys.stdout.write(escape_controls(text) + "\n")


def print_note(text: str) -> None:
    """Print a line for the user to stderr, separate from the output of the command."""
    sys.stderr.write(escape_controls(text) + "\n")
    sys.stderr.flush()


def describe_bug(error: BaseException) -> str:
    """Return the message for an unexpected error."""
    what = f"{type(error).__name__}: {error}"
    return f"a bug in treadle ({what}); nothing that was recorded is lost. TREADLE_DEBUG=1 shows the traceback"


def silence_stream(stream: TextIO) -> None:
    """Redirect a stream to /dev/null after its reader has closed it, so that later writes do not fail, even at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def format_time_since(at: float) -> str:
    """Format the time since a moment in one unit."""
    seconds = time.time() - at
    for size, unit in ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def format_duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def format_count(number: int) -> str:
    """Format a number of tokens, in thousands from 1000 on."""
    return f"{number / 1000:.1f}k" if number >= 1000 else str(number)


def format_table(rows: list[list[str]], heads: list[str], width: int) -> list[str]:
    """Format rows as a table below `heads`. The last column gets the remaining width."""
    cells = [heads, *([" ".join(escape_controls(cell).split()) for cell in row] for row in rows)]
    widths = [max(map(measure_width, column)) for column in zip(*cells, strict=True)]
    lines: list[str] = []
    for row in cells:
        left = "  ".join(cell + " " * (widths[at] - measure_width(cell)) for at, cell in enumerate(row[:-1]))
        last = truncate_line(row[-1], max(10, width - measure_width(left) - 2)) if width else row[-1]
        lines.append(f"{left}  {last}".rstrip())
    return lines


def print_table(rows: list[list[str]], heads: list[str], styles: Mapping[str, str] | None = None) -> None:
    """Print a table to stdout and fit it to a terminal. The heads are bold. `styles` maps first cells to styles."""
    colour = wants_colour(sys.stdout)
    head, *lines = format_table(rows, heads, terminal_width() if is_terminal(sys.stdout) else 0)
    sys.stdout.write(style_text(head, "bold", colour) + "\n")
    for line in lines:
        first, space, rest = line.partition(" ")
        sys.stdout.write(f"{style_text(first, (styles or {}).get(first, ''), colour)}{space}{rest}\n")


async def confirm(question: str) -> bool:
    """Ask the person at the terminal. Only `y` and `yes` mean yes."""
    sys.stderr.write(escape_controls(f"{question} [y/N] "))
    sys.stderr.flush()
    return (await read_line()).strip().lower() in ("y", "yes")


async def read_line() -> str:
    """Read one line from the terminal."""
    # Not in a thread: nothing could end its read, and the program would not end after Ctrl-C.
    loop, has_line = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, has_line.set)
    try:
        await has_line.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


@contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Generator[None]:
    """Install signal handlers for the duration of the block. Signals that the process ignores stay ignored."""
    loop = asyncio.get_running_loop()
    watched = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
    for number in watched:
        loop.add_signal_handler(number, handlers[number])
    try:
        yield
    finally:
        for number in watched:
            loop.remove_signal_handler(number)


@contextmanager
def capture_warnings(write_note: Callable[[str], None]) -> Generator[None]:
    """Send the log warnings of treadle only to `write_note` for the duration of the block."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            write_note(record.getMessage())

    logger, handler = logging.getLogger("treadle"), Handler(logging.WARNING)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
