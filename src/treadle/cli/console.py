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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, TextIO

BlockKind = Literal["message", "answer", "call", "note"]
"""What a block shows: a message of the user, text of the model, a call, or anything else."""
# Control characters except line feed and tab, and characters that reorder text.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CODES = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"  # the terminal shows everything between them at once
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
    """Shows a run: finished blocks in the scrollback, below them an open block and a line that says what happens now.

    All texts are safe (control characters are escaped) and styled already. `has_style` allows bold, dim, italic and
    underline. `has_colour` allows colours too.
    """

    has_colour: bool
    has_style: bool

    @property
    def width(self) -> int: ...

    def write_block(self, text: str, kind: BlockKind = "note", *, gap: bool | None = None) -> None:
        """Write finished lines to the scrollback. They are never changed again.

        An empty line separates blocks, but not successive calls or notes. `gap` decides otherwise: the rest of a
        block that is already in part in the scrollback follows without a gap.
        """
        ...

    def set_open_block(self, lines: Sequence[str], kind: BlockKind = "answer") -> None:
        """Replace the lines that may still change. They are drawn above the work line. An empty list removes them."""
        ...

    def set_work_line(self, text: str) -> None:
        """Set the line that says what the agent does now. An empty text removes it. A plan may stand above it."""
        ...


def needs_gap(before: BlockKind | None, kind: BlockKind) -> bool:
    """Whether an empty line separates a block from the one before it."""
    return before is not None and (before != kind or kind in ("message", "answer"))


class TerminalConsole:
    """Writes to a terminal or to a plain stream. A plain stream gets finished blocks only, and no escape codes.

    `ignore_errors` ignores write errors. It is for a stream that does not carry the answer. Without `gaps` there are
    no empty lines between blocks.
    """

    def __init__(self, stream: TextIO, *, ignore_errors: bool = False, gaps: bool = True) -> None:
        self.has_colour, self.has_style = wants_colour(stream), wants_style(stream)
        self.is_live = self.has_style
        self._ignore_errors, self._gaps = ignore_errors, gaps
        self._stream = stream
        self._last_kind: BlockKind | None = None
        self._open_lines: Sequence[str] = ()
        self._open_kind: BlockKind = "answer"
        self._work_line = ""
        self._drawn_lines: list[str] = []
        self._is_input_open = False

    @property
    def width(self) -> int:
        return terminal_width() if self.is_live or is_terminal(self._stream) else 120

    def write_block(self, text: str, kind: BlockKind = "note", *, gap: bool | None = None) -> None:
        if gap is None:
            gap = needs_gap(self._last_kind, kind)
        start = "\n" if self._is_input_open else ""
        self._is_input_open, self._last_kind = False, kind
        space = "\n" if gap and self._gaps else ""
        self._send(f"{self._erase_area()}{start}{space}{text}\n{self._draw_area()}")

    def set_open_block(self, lines: Sequence[str], kind: BlockKind = "answer") -> None:
        self._open_lines, self._open_kind = lines, kind
        self._redraw()

    def set_work_line(self, text: str) -> None:
        self._work_line = text
        self._redraw()

    def write_prompt(self, text: str) -> None:
        """Write the start of a line on which the user types. Nothing is drawn below it."""
        erased, self._is_input_open = self._erase_area(), True
        self._send(f"{erased}{text}")

    def end_input_line(self) -> None:
        """Record that the user has pressed Enter."""
        self._is_input_open = False

    def _redraw(self) -> None:
        if self.is_live and not self._is_input_open and self._drawn_lines != self._build_area():
            erased = self._erase_area()
            self._send(f"{erased}{self._draw_area()}")

    def _build_area(self) -> list[str]:
        """Return the lines of the open block and the work line, with an empty line above each. The open block shows its
        end, so that the whole area fits in the window.
        """
        below = ["", *self._work_line.split("\n")] if self._work_line else []
        room = max(3, terminal_height() - len(below) - 3)
        lines = list(self._open_lines)[-room:]
        if lines and needs_gap(self._last_kind, self._open_kind):
            lines.insert(0, "")
        return lines + (below if lines or self._last_kind is not None else below[1:])

    def _draw_area(self) -> str:
        """Return the codes that draw the area. The cursor stays at the end of its last line."""
        if self.is_live:
            self._drawn_lines = self._build_area()
        return "\n".join(self._drawn_lines)

    def _erase_area(self) -> str:
        """Return the codes that erase exactly the rows of the area, also after the window became narrower."""
        if not self._drawn_lines:
            return ""
        rows = len(self._drawn_lines)
        if reflows_lines():
            width = terminal_width()
            rows = sum(max(1, -(-measure_width(strip_codes(line)) // width)) for line in self._drawn_lines)
        self._drawn_lines = []
        # Row by row: tmux keeps rows in its history that are erased together from the top of the window.
        return "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (rows - 1)

    def _send(self, text: str) -> None:
        if self.is_live:
            text = f"{BEGIN_UPDATE}{text}{END_UPDATE}"
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


def wants_style(stream: TextIO) -> bool:
    """Whether the stream is a terminal that supports escape codes."""
    return is_terminal(stream) and not is_dumb_terminal()


def wants_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal that supports escape codes and NO_COLOR is not set."""
    return wants_style(stream) and not os.environ.get("NO_COLOR")


def is_dumb_terminal() -> bool:
    """Whether the terminal supports no escape codes, or the user wants plain lines (TREADLE_PLAIN)."""
    is_plain = os.environ.get("TREADLE_PLAIN", "") not in ("", "0", "false")
    return is_plain or os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def reflows_lines() -> bool:
    """Whether the terminal breaks lines again when its width changes. xterm, screen and the Linux console do not."""
    term = os.environ.get("TERM", "")
    is_screen = term.startswith("screen") and not os.environ.get("TMUX")
    return not (os.environ.get("XTERM_VERSION") or term.startswith("linux") or is_screen)


def terminal_width() -> int:
    """Return the width of the terminal in columns, at least 20."""
    import shutil

    return max(20, shutil.get_terminal_size((80, 24)).columns)


def terminal_height() -> int:
    """Return the height of the terminal in rows, at least 8."""
    import shutil

    return max(8, shutil.get_terminal_size((80, 24)).lines)


def strip_codes(text: str) -> str:
    """Return the text without escape codes for styles and links."""
    return _CODES.sub("", text) if "\x1b" in text else text


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


def format_duration(seconds: float, *, whole: bool = False) -> str:
    """Format a duration: `0.3 s`, `12 s`, `1m 04s`, `13h 53m`. `whole` drops the fraction, for a time that counts."""
    if seconds < 60:
        return (
            f"{int(seconds)} s" if whole else f"{seconds:.1f} s" if seconds < 19.95 else f"{min(59, round(seconds))} s"
        )
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m {rest:02}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02}m"


def format_count(number: int) -> str:
    """Format a number of tokens, in thousands from 1000 on: `999`, `46.2k`, `200k`."""
    return str(number) if number < 1000 else f"{number / 1000:.1f}k" if number < 99_950 else f"{number / 1000:.0f}k"


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


def print_table(rows: list[list[str]], heads: list[str]) -> None:
    """Print a table to stdout and fit it to a terminal. The heads are bold."""
    head, *lines = format_table(rows, heads, terminal_width() if is_terminal(sys.stdout) else 0)
    sys.stdout.write("\n".join([style_text(head, "bold", wants_colour(sys.stdout)), *lines, ""]))


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
