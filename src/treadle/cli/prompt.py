"""The line a person types on while the agent works: prompt-toolkit below, the scrollback above."""

from __future__ import annotations

import asyncio
import os
import termios
import tty
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from treadle.cli.stage import Paint
from treadle.cli.text import columns, cut, styled, wants_colour

SHOWN_LINES = 6
"""Rows of unfinished text that are drawn again and again; the rest of it shows once its line is whole."""

BUNDLE = 0.02
"""Seconds in which text is gathered before the prompt is drawn anew below it."""

REDRAW = 0.04
"""Seconds between two drawings of the prompt, however fast a model writes."""

ESCAPE = 0.08
"""Seconds after which an escape is the key itself, and not the beginning of another."""


class Interrupted(Exception):
    """The prompt gave way to something else; `draft` is what had been typed."""

    def __init__(self, draft: str) -> None:
        super().__init__()
        self.draft = draft


class Line:
    """A prompt at the bottom and a stage above it. Finished lines scroll away; the tail is part of the prompt."""

    def __init__(
        self, stream: TextIO, history: Path, completer: Completer, keys: dict[str, Callable[[], None]]
    ) -> None:
        self.colour = wants_colour(stream)
        self._open = self._tail = ""
        self._paint: Paint | None = None
        self._label = "› "
        self._ending = self._inert = self._editing = False
        history.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(history, os.O_CREAT | os.O_APPEND, 0o600))
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            history=FileHistory(str(history)),
            completer=completer,
            complete_while_typing=True,
            reserve_space_for_menu=4,
            multiline=True,
            prompt_continuation="  ",
            key_bindings=self._bindings(keys),
            erase_when_done=True,
        )
        self._session.app.ttimeoutlen = self._session.app.timeoutlen = ESCAPE
        self._session.app.min_redraw_interval = REDRAW
        self._above: list[str] = []
        self._writing: asyncio.Task[None] | None = None

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep the terminal from reading keys by itself, between two prompts too: no echo, no key lost but signals."""
        fd = self._session.app.input.fileno()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd, termios.TCSANOW)  # any other moment to change it throws away what was typed ahead
        try:
            yield
        finally:
            self._finish()
            self._write_out()
            termios.tcsetattr(fd, termios.TCSANOW, before)

    async def read(self, label: str, draft: str = "", inert: float = 0.0) -> str:
        """What is typed next. Raises `EOFError` at Ctrl-D and `Interrupted` when something else needs the line.

        For the first `inert` seconds nothing that is typed counts: it was meant for something else.
        """
        self._write_out()
        self._label, self._inert = "wait … " if inert else label, inert > 0
        waking = asyncio.get_running_loop().call_later(inert, self._wake, label) if inert else None
        try:
            text = await self._session.prompt_async(default=draft, handle_sigint=False)
        finally:
            if waking is not None:
                waking.cancel()
            self._write_out()
        if self._ending:
            self._ending = False
            raise Interrupted(text)
        return text

    def _wake(self, label: str) -> None:
        self._label, self._inert = label, False
        self.clear()
        self._redraw()

    def interrupt(self) -> None:
        """Take the line away from whoever types on it; the draft is kept."""
        app = self._session.app
        if app.is_running and not app.is_done:
            self._ending = True
            app.exit(result=self._session.default_buffer.text)

    @property
    def draft(self) -> str:
        """What is typed so far."""
        return self._session.default_buffer.text

    def clear(self) -> None:
        self._session.default_buffer.reset()

    def leave(self) -> None:
        """As if Ctrl-D had been pressed."""
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(exception=EOFError)

    # --- the stage

    @property
    def room(self) -> int:
        return columns()

    def write(self, text: str, paint: Paint | None = None) -> None:
        self._paint = paint
        *whole, self._open = (self._open + text).split("\n")
        for one in whole:
            self._put(f"{self._painted(one)}\n")
        self._redraw()

    def _painted(self, line: str) -> str:
        return self._paint(line) if self._paint is not None and self.colour else line

    def line(self, text: str) -> None:
        self._finish()
        self._put(f"{text}\n")
        self._redraw()

    def tail(self, text: str) -> None:
        if text != self._tail:
            self._tail = text
            self._redraw()

    def _finish(self) -> None:
        if self._open:
            self._put(f"{self._painted(self._open)}\n")
        self._open = ""

    def _put(self, text: str) -> None:
        """Text for the scrollback; while the prompt is drawn, what comes together is written together."""
        self._above.append(text)
        if not self._session.app.is_running:
            self._write_out()
        elif self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_above())

    async def _write_above(self) -> None:
        """Take the prompt away, write, draw it again. The terminal stays in the prompt's hands: no key goes astray."""
        app = self._session.app
        await asyncio.sleep(BUNDLE)
        while self._above:
            if app.output.responds_to_cpr:
                await app.renderer.wait_for_cpr_responses()
            if self._editing or app.is_done or not app.is_running:
                return  # it is written out at the end of that
            app.renderer.erase()
            self._write_out()
            if not app.key_processor.input_queue:
                app.renderer.request_absolute_cursor_position()
            app.renderer.render(app, app.layout)

    def _write_out(self) -> None:
        text, self._above = "".join(self._above), []
        if text:
            output = self._session.app.output
            output.enable_autowrap()
            output.write_raw(text)
            output.flush()

    def _edited(self) -> None:
        self._editing = False
        self._put("")

    def _redraw(self) -> None:
        self._session.app.invalidate()

    def _message(self) -> ANSI:
        room = columns() * SHOWN_LINES
        unfinished = self._open if len(self._open) <= room else f"…{self._open[-room:]}"
        above = f"{unfinished}\n" if unfinished else ""
        if self._tail:
            above += styled(cut(self._tail, columns() - 1), "dim", self.colour) + "\n"
        return ANSI(above + styled(self._label, "bold", self.colour))

    def _bindings(self, keys: dict[str, Callable[[], None]]) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add("enter")
        @bindings.add("c-j")  # what was typed while no prompt was there comes as line feeds
        def _(event: KeyPressEvent) -> None:
            if not self._inert:
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
            self._editing = True
            event.current_buffer.open_in_editor().add_done_callback(lambda _: self._edited())

        for key, act in keys.items():
            bindings.add(key)(_ignoring_the_event(act))
        return bindings


def _ignoring_the_event(act: Callable[[], None]) -> Callable[[KeyPressEvent], None]:
    return lambda event: act()


class Words(Completer):
    """Completes slash commands at the beginning of a line, and `@path` anywhere."""

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
            yield from self._paths(word[1:])

    def _paths(self, typed: str) -> Iterator[Completion]:
        folder, _, start = typed.rpartition("/")
        try:
            entries = sorted(os.scandir(self._folder / folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries[:2000]:
            if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith(".")):
                name = entry.name + ("/" if entry.is_dir() else "")
                yield Completion(name, -len(start))
