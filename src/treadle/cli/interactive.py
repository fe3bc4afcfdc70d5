"""An interactive terminal: a prompt, the screen above it and the questions of a session. Chat and attach use it."""

from __future__ import annotations

import asyncio
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from treadle import Tool
from treadle.app.settings import data_folder
from treadle.cli.console import Notifier, capture_warnings, escape_controls, handle_signals, style_text
from treadle.cli.prompt import ANSWER, PROMPT, PromptCompleter, PromptConsole, PromptInterrupted
from treadle.cli.questions import INERT_SECONDS, QuestionQueue
from treadle.cli.screen import Screen
from treadle.errors import TreadleError
from treadle.events import Event

STEER_NOTE = "  the agent reads this at its next turn:"
"""The note above a message that was sent during a run."""


class InteractiveTerminal(ABC):
    """Shows a session and reads messages, slash commands and answers until the user leaves.

    `postponed_note` is written after the user postponed an answer.
    """

    postponed_note = ""

    def __init__(
        self, questions: QuestionQueue, commands: dict[str, str], tools: Mapping[str, Tool], folder: Path
    ) -> None:
        keys = {"c-c": self.handle_ctrl_c, "escape": self.handle_escape}
        self.console = PromptConsole(sys.stdout, data_folder() / "history", PromptCompleter(commands, folder), keys)
        self.screen = Screen(self.console, asks_here=True)
        self.notifier = Notifier(sys.stdout, "off", 0)
        self.draft = ""
        self.has_left = False
        self.is_leave_announced = False
        """Whether the user was told that the next Ctrl-C leaves. Any input resets it."""
        self._questions, self._tools, self._folder = questions, tools, folder
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        questions.on_change = self.console.interrupt

    @abstractmethod
    async def show_start(self) -> None:
        """Show the session as it is now. No input is read yet."""

    @abstractmethod
    async def follow_events(self) -> None:
        """Show the events of the session. Runs in the background until the user leaves."""

    @abstractmethod
    async def handle_text(self, text: str) -> None:
        """Handle a message or a slash command. A `TreadleError` is shown to the user."""

    @abstractmethod
    async def retry_now(self) -> None:
        """End the wait for the provider of the model. A `TreadleError` is shown to the user."""

    @abstractmethod
    async def show_end(self) -> None:
        """Show how the session is when the user leaves."""

    @abstractmethod
    def handle_ctrl_c(self) -> None: ...

    @abstractmethod
    def handle_escape(self) -> None: ...

    async def interact(self) -> None:
        """Show the session and read input until the user leaves."""
        # Install the handlers before taking over the terminal, so that its state is restored after a signal.
        with handle_signals({signal.SIGTERM: self.leave, signal.SIGHUP: self.leave}), self.console.hold_terminal():
            await self.show_start()
            for work in (self.follow_events(), self.screen.refresh_status()):
                self.start_task(work).add_done_callback(self._check_task)
            try:
                # Ctrl-C arrives as a signal when no prompt is active.
                with handle_signals({signal.SIGINT: self.handle_ctrl_c}), capture_warnings(self.write_note):
                    while not self.has_left:
                        await self._read_input()
            finally:
                tasks = list(self._tasks)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self.show_end()
        if self._failure is not None:
            raise self._failure

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start background work. It is cancelled when the user leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _check_task(self, task: asyncio.Task[Any]) -> None:
        """Leave with the error of a failed background task. Without these tasks no events are shown."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failure = error
            self.leave()

    async def _read_input(self) -> None:
        """Read one line and handle it as an answer, a message or a slash command."""
        question = self._questions.first
        if question is not None and not question.is_shown:
            self.notifier.notify("treadle needs an answer")
            question.show(self.console, self._tools, self._folder)
        try:
            if question is None:
                text = await self.console.read(PROMPT, self.draft)
            else:
                text = await self.console.read(ANSWER, inert=INERT_SECONDS, remember=False)
        except PromptInterrupted as interruption:
            self.draft = self.draft if question else interruption.draft
            return
        except EOFError:
            self.leave()
            return
        self.notifier.mark_active()
        self.is_leave_announced = False
        try:
            if question is not None:
                self.write_note(f"{ANSWER}{text}", "dim")
                question.accept_answer(text, self._folder)
                if self.postponed_note and question.settled.done() and question.settled.result() is None:
                    self.write_note(self.postponed_note)
                return
            self.draft = ""
            if text.startswith("/"):
                self.write_note(f"{PROMPT}{text}", "dim")
            if text.strip():
                await self.handle_text(text)
            elif self.screen.retry_in is not None:
                await self.retry_now()
        except TreadleError as error:
            self.write_note(str(error), "red")

    def show_event(self, event: Event) -> None:
        """Show an event, and remove the questions that it settles."""
        self.screen.handle_event(event)
        self._questions.handle_event(event)

    def write_note(self, text: str, style: str = "") -> None:
        """Write a line that is not part of the conversation."""
        self.console.write_block(style_text(escape_controls(text), style, self.console.has_colour))

    def leave(self) -> None:
        """End the input and leave the terminal."""
        self.has_left = True
        self.console.leave()
