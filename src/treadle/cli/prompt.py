"""The input line of the chat. prompt-toolkit draws it at the bottom, and output scrolls above it."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from treadle.cli.console import (
    BlockKind,
    describe_bug,
    escape_controls,
    handle_signals,
    needs_gap,
    style_text,
    terminal_height,
    terminal_width,
    wants_colour,
    wants_style,
)

MAX_INPUT_ROWS = 8
"""Rows that the open block leaves for the input."""

BATCH_SECONDS = 0.02
"""Seconds to collect output before it is written and the prompt is redrawn below it."""

REDRAW_SECONDS = 0.04
"""Minimum seconds between two redraws of the prompt, however fast the model writes."""

PROMPT, ANSWER = "› ", "answer> "
"""The labels of the input line for a message and for an answer."""

ESCAPE_SECONDS = 0.08
"""Seconds after which an escape byte counts as the Escape key, not as the start of a sequence."""


class PromptInterrupted(Exception):
    """Something else needed the input line. `draft` is the text typed so far."""

    def __init__(self, draft: str) -> None:
        super().__init__()
        self.draft = draft


class PromptConsole:
    """A console with a prompt at the bottom. Finished blocks scroll above it.

    The open block and the work line are part of the prompt.
    """

    def __init__(
        self, stream: TextIO, history: Path, completer: Completer, keys: dict[str, Callable[[], None]]
    ) -> None:
        self.has_colour, self.has_style = wants_colour(stream), wants_style(stream)
        self._last_kind: BlockKind | None = None
        self._open_lines: list[str] = []
        self._work_line = ""
        self._label = PROMPT
        self._is_interrupted = self._is_inert = self._has_editor = False
        self._remember = True
        history.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(history, os.O_CREAT | os.O_APPEND, 0o600))
        self._session: PromptSession[str] = PromptSession(
            message=self._build_message,
            history=FileHistory(str(history)),
            completer=completer,
            complete_while_typing=True,
            reserve_space_for_menu=4,
            multiline=True,
            prompt_continuation="  ",
            key_bindings=self._build_bindings(keys),
            erase_when_done=True,
        )
        self._session.app.ttimeoutlen = self._session.app.timeoutlen = ESCAPE_SECONDS
        self._session.app.min_redraw_interval = REDRAW_SECONDS
        self._session.app.renderer.cpr_not_supported_callback = None  # the default warns and releases the terminal
        self._pending_output: list[str] = []
        self._writer: asyncio.Task[None] | None = None

    @contextmanager
    def hold_terminal(self) -> Generator[None]:
        """Control the terminal between two prompts too. It echoes nothing and loses no keys except signal keys."""
        fd = self._session.app.input.fileno()
        before = termios.tcgetattr(fd)
        _set_cbreak(fd)
        stops = {signal.SIGTSTP: lambda: self._suspend(before), signal.SIGCONT: self._restore_terminal}
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._show_task_error)
        try:
            with handle_signals(stops):
                yield
        finally:
            loop.set_exception_handler(None)
            try:
                self._flush_output()
            finally:
                with suppress(termios.error):  # the terminal may be gone
                    termios.tcsetattr(fd, termios.TCSANOW, before)

    def _show_task_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Show the errors of background tasks above the prompt, so that they do not overwrite it."""
        error = context.get("exception")
        self.write_block(escape_controls(describe_bug(error) if error is not None else str(context.get("message"))))

    def _suspend(self, before: list[Any]) -> None:
        """Return the terminal to the shell and stop until the shell continues this process."""
        app, loop = self._session.app, asyncio.get_running_loop()
        if not self._has_editor:  # an editor that stops too restores the terminal itself
            if app.is_running:
                app.renderer.erase()
            termios.tcsetattr(app.input.fileno(), termios.TCSANOW, before)
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend, before)
        self._restore_terminal()

    def _restore_terminal(self) -> None:
        """Set up the terminal again after a stop. The shell may have changed it."""
        app = self._session.app
        if self._has_editor:
            return
        _set_cbreak(app.input.fileno())
        if app.is_running and not app.is_done:
            app.input.raw_mode().__enter__()  # never exited: the prompt exits its own raw mode later
            app.renderer.erase()
            app.renderer.render(app, app.layout)

    async def read(self, label: str, draft: str = "", *, inert: float = 0.0, remember: bool = True) -> str:
        """Read the next input. Raises `EOFError` at Ctrl-D and `PromptInterrupted` when something else needs the line.

        Input in the first `inert` seconds is dropped: the user typed it for something else. With `remember` the input
        is added to the history.
        """
        self._flush_output()
        self._remember = remember
        self._label, self._is_inert = "wait … " if inert else label, inert > 0
        timer = asyncio.get_running_loop().call_later(inert, self._enable_input, label) if inert else None
        try:
            text = await self._session.prompt_async(default=draft, handle_sigint=False, set_exception_handler=False)
        finally:
            if timer is not None:
                timer.cancel()
            self._flush_output()
        if self._is_interrupted:
            self._is_interrupted = False
            raise PromptInterrupted(text)
        return text

    def _enable_input(self, label: str) -> None:
        self._label, self._is_inert = label, False
        self.clear()
        self._redraw()

    def interrupt(self) -> None:
        """Interrupt the current input and keep the draft. An open editor can finish first."""
        app = self._session.app
        if app.is_running and not app.is_done:
            self._is_interrupted = True
            if not self._has_editor:
                app.exit(result=self.draft)

    @property
    def draft(self) -> str:
        """The text that is typed but not entered yet."""
        return self._session.default_buffer.text if self._session.app.is_running else ""

    def clear(self) -> None:
        self._session.default_buffer.reset()

    def leave(self) -> None:
        """End the input as Ctrl-D does."""
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(exception=EOFError)

    # --- the console

    @property
    def width(self) -> int:
        return terminal_width()

    def write_block(self, text: str, kind: BlockKind = "note", *, gap: bool | None = None) -> None:
        gap = needs_gap(self._last_kind, kind) if gap is None else gap
        self._last_kind = kind
        self._write_text(f"{chr(10) if gap else ''}{text}\n")
        self._redraw()

    def set_open_block(self, lines: Sequence[str], kind: BlockKind = "answer") -> None:
        lines = ["", *lines] if lines and needs_gap(self._last_kind, kind) else list(lines)
        if lines != self._open_lines:
            self._open_lines = lines
            self._redraw()

    def set_work_line(self, text: str) -> None:
        if text != self._work_line:
            self._work_line = text
            self._redraw()

    def _write_text(self, text: str) -> None:
        """Add text to the scrollback. While the prompt is shown, text is collected and written in batches."""
        self._pending_output.append(text)
        if not self._session.app.is_running:
            self._flush_output()
        elif self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_above_prompt())

    async def _write_above_prompt(self) -> None:
        """Erase the prompt, write, and redraw it. The prompt keeps control of the terminal, so no key is lost."""
        app = self._session.app
        await asyncio.sleep(BATCH_SECONDS)
        while self._pending_output:
            if app.output.responds_to_cpr:
                await app.renderer.wait_for_cpr_responses()
            if self._has_editor or app.is_done or not app.is_running:
                return  # the text is written when the editor or the prompt ends
            try:
                app.renderer.erase()
                self._flush_output()
                if not app.key_processor.input_queue:
                    app.renderer.request_absolute_cursor_position()
                app.renderer.render(app, app.layout)
            except OSError as gone:  # nobody awaits this task: raise in `read` instead
                app.exit(exception=gone)

    def _flush_output(self) -> None:
        text, self._pending_output = "".join(self._pending_output), []
        if text:
            output = self._session.app.output
            output.enable_autowrap()
            output.write_raw(text)
            output.flush()

    def _close_editor(self) -> None:
        self._has_editor = False
        if self._is_interrupted:
            self.interrupt()
        else:
            self._write_text("")

    def _redraw(self) -> None:
        self._session.app.invalidate()

    def _build_message(self) -> ANSI:
        work = ["", *self._work_line.split("\n"), ""] if self._work_line else []
        room = max(3, terminal_height() - len(work) - MAX_INPUT_ROWS)
        rows = [*self._open_lines[-room:], *work]
        return ANSI("\n".join([*rows, style_text(self._label, "bold", self.has_style)]))

    def _build_bindings(self, keys: dict[str, Callable[[], None]]) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add("enter")
        @bindings.add("c-j")  # Enter arrives as a line feed if no prompt was active
        def _(event: KeyPressEvent) -> None:
            if not self._remember and not self._is_inert:
                event.app.exit(result=event.current_buffer.text)
            elif not self._is_inert:
                event.current_buffer.validate_and_handle()

        @bindings.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @bindings.add("c-d")
        def _(event: KeyPressEvent) -> None:
            if not event.current_buffer.text:
                event.app.exit(exception=EOFError)

        @bindings.add("c-x", "c-e")
        def _(event: KeyPressEvent) -> None:
            self._has_editor = True
            event.current_buffer.open_in_editor().add_done_callback(lambda _: self._close_editor())

        @bindings.add("c-z")
        def _(event: KeyPressEvent) -> None:
            os.kill(os.getpid(), signal.SIGTSTP)

        for key, action in keys.items():

            @bindings.add(key)
            def _(event: KeyPressEvent, action: Callable[[], None] = action) -> None:
                action()

        return bindings


def _set_cbreak(fd: int) -> None:
    """Set the terminal to cbreak mode. Signal keys discard neither pending input nor output."""
    tty.setcbreak(fd, termios.TCSANOW)  # the other modes discard pending input
    mode = termios.tcgetattr(fd)
    mode[3] |= termios.NOFLSH
    termios.tcsetattr(fd, termios.TCSANOW, mode)


class PromptCompleter(Completer):
    """Completes slash commands at the start of a line, and `@path` anywhere."""

    def __init__(self, commands: dict[str, str], folder: Path) -> None:
        self._commands, self._folder = commands, folder

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text:
            for name, about in self._commands.items():
                if name.startswith(text[1:]):
                    yield Completion(f"/{name}", -len(text), display_meta=about)
            return
        word = text.split()[-1] if text and not text[-1].isspace() else ""
        if word.startswith("@"):
            yield from self._complete_path(word[1:])

    def _complete_path(self, typed: str) -> Iterator[Completion]:
        folder, _, start = typed.rpartition("/")
        try:
            entries = sorted(os.scandir(self._folder / folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries[:2000]:
            if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith(".")):
                name = entry.name + ("/" if entry.is_dir() else "")
                yield Completion(name, -len(start))
