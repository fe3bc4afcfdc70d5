"""Who controls the terminal: this process between two keys too, the shell while it is stopped, or an editor."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import termios
import tty
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.application.current import set_app
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress

from treadle.cli.console import handle_signals

_MAX_EARLY_BYTES = 65536
ErrorHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]


class TerminalHolder:
    """Holds the terminal for an application. `is_lent` says that an editor or a pager has it."""

    def __init__(self, app: Application[None], flush_output: Callable[[], None]) -> None:
        self.is_lent = False
        self._app, self._flush_output = app, flush_output
        self._program: subprocess.Popen[str] | None = None

    @contextmanager
    def hold(self, show_error: ErrorHandler | None = None) -> Generator[None]:
        """Control the terminal, also before and after the area is drawn. It echoes nothing and loses no keys.

        `show_error` gets the errors of background tasks.
        """
        fd = self._app.input.fileno()
        before = termios.tcgetattr(fd)
        _set_cbreak(fd)
        self._keep_early_keys(fd)
        stops = {signal.SIGTSTP: lambda: self._suspend(before), signal.SIGCONT: self._restore}
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(show_error)
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

    def _keep_early_keys(self, fd: int) -> None:
        """Keep what was typed before this process controlled the terminal, which had turned Enter into a line feed."""
        if select.select([fd], [], [], 0)[0]:
            keys: list[KeyPress] = []
            Vt100Parser(keys.append).feed(os.read(fd, _MAX_EARLY_BYTES).decode("utf-8", "replace").replace("\n", "\r"))
            store_typeahead(self._app.input, keys)

    async def lend(self, command: Sequence[str], text: str | None = None, env: Mapping[str, str] | None = None) -> int:
        """Let a program have the terminal until it ends. Return its exit code. `text` is its input.

        Raises `OSError` if it cannot be started.
        """
        self.is_lent = True
        try:
            with set_app(self._app):
                return await run_in_terminal(lambda: self._run_program(command, text, env), in_executor=True)
        finally:
            self.is_lent = False

    def _run_program(self, command: Sequence[str], text: str | None, env: Mapping[str, str] | None) -> int:
        stdin = None if text is None else subprocess.PIPE
        with subprocess.Popen(command, stdin=stdin, text=True, errors="replace", env=env) as self._program:
            self._program.communicate(text)
            return self._program.returncode

    def end_program(self) -> None:
        """End the program that has the terminal, as when the terminal goes away: editors keep what was typed."""
        if self.is_lent and self._program is not None:
            self._program.send_signal(signal.SIGHUP)

    def stop_process(self) -> None:
        """Stop this process as Ctrl-Z does. The shell continues it."""
        os.kill(os.getpid(), signal.SIGTSTP)

    def _suspend(self, before: list[Any]) -> None:
        """Return the terminal to the shell and stop until the shell continues this process."""
        loop = asyncio.get_running_loop()
        if not self.is_lent:  # an editor that stops too restores the terminal itself
            if self._app.is_running:
                self._app.renderer.erase()
            termios.tcsetattr(self._app.input.fileno(), termios.TCSANOW, before)
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend, before)
        self._restore()

    def _restore(self) -> None:
        """Set up the terminal again after a stop. The shell may have changed it."""
        if self.is_lent:
            return
        app = self._app
        _set_cbreak(app.input.fileno())
        if app.is_running and not app.is_done:
            app.input.raw_mode().__enter__()  # never exited: the application exits its own raw mode later
            app.renderer.erase()
            app.renderer.render(app, app.layout)


def _set_cbreak(fd: int) -> None:
    """Set the terminal to cbreak mode. Signal keys discard neither pending input nor output, and Enter stays Enter."""
    tty.setcbreak(fd, termios.TCSANOW)  # the other modes discard pending input
    mode = termios.tcgetattr(fd)
    mode[0] &= ~termios.ICRNL
    mode[3] |= termios.NOFLSH
    termios.tcsetattr(fd, termios.TCSANOW, mode)
