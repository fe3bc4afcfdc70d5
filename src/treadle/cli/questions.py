"""Questions that wait for the person at this terminal: one queue, and two ways to read an answer.

A chat reads answers on its prompt line. A one-shot command reads them with `TerminalReader`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treadle import Answer, ApprovalRequested, CallFinished, InputRequested, RunFinished, Tool
from treadle.cli.console import Console, Notifier, TerminalConsole
from treadle.cli.question_text import (
    parse_decision,
    parse_reply,
    render_approval,
    render_choices,
    render_input_question,
)
from treadle.errors import BadInput
from treadle.events import ApprovalAnswered, CancelRequested, Event, InputAnswered

AgentQuestion = ApprovalRequested | InputRequested
"""What an agent can ask: the approval of a call, or input."""

INERT_SECONDS = 0.5
"""Seconds in which keys are ignored: a key typed for something else must not approve a call."""


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question without an answer yet. `settled` gets the answer, or None if the user answers later."""

    request: AgentQuestion
    settled: asyncio.Future[Answer | None]
    answers: list[str] = field(default_factory=list[str])
    is_shown: bool = False

    def show(self, console: Console, tools: Mapping[str, Tool], folder: Path) -> None:
        """Write the whole question on the screen."""
        self.is_shown = True
        if isinstance(self.request, ApprovalRequested):
            lines = render_approval(self.request, tools, folder, console.width, colour=console.has_colour)
            lines = [*lines, *render_choices(self.request)]
        else:
            lines = render_input_question(self.request.questions[len(self.answers)], colour=console.has_colour)
        for line in lines:
            console.write_line(line)

    def accept_answer(self, text: str, folder: Path) -> None:
        """Accept the typed text as the answer. Raises `BadInput` if it is not a valid answer."""
        if isinstance(self.request, ApprovalRequested):
            self.settle(parse_decision(text, self.request, folder))
            return
        self.answers.append(parse_reply(text, self.request.questions[len(self.answers)]))
        self.is_shown = False
        if len(self.answers) == len(self.request.questions):
            self.settle(Answer(answers=tuple(self.answers)))

    def settle(self, answer: Answer | None) -> None:
        if not self.settled.done():
            self.settled.set_result(answer)


class QuestionQueue:
    """The gate of a terminal. `on_change` is called when a question is added or removed."""

    def __init__(self) -> None:
        self._open: list[OpenQuestion] = []
        self.on_change: Callable[[], None] = lambda: None

    @property
    def first(self) -> OpenQuestion | None:
        return next((one for one in self._open if not one.settled.done()), None)

    async def __call__(self, question: AgentQuestion) -> Answer | None:
        if isinstance(question, InputRequested) and not question.questions:
            raise BadInput("a question without text cannot be asked")
        one = OpenQuestion(question, asyncio.get_running_loop().create_future())
        self._open.append(one)
        self.on_change()
        try:
            return await one.settled
        finally:
            self._open.remove(one)
            self.on_change()

    def handle_event(self, event: Event) -> None:
        """Remove the questions that were settled elsewhere."""
        match event:
            case ApprovalAnswered(call_id=call_id) | InputAnswered(call_id=call_id) | CallFinished(call_id=call_id):
                settled = [one for one in self._open if one.request.call_id == call_id]
            case RunFinished() | CancelRequested():
                settled = list(self._open)
            case _:
                return
        for one in settled:
            one.settle(None)


class TerminalReader:
    """Reads the answers to the questions of a queue from the terminal, one at a time."""

    def __init__(
        self,
        questions: QuestionQueue,
        console: TerminalConsole,
        tools: Mapping[str, Tool],
        folder: Path,
        notifier: Notifier,
    ) -> None:
        self._questions, self._console, self._tools = questions, console, tools
        self._folder, self._notifier = folder, notifier
        self._keyboard = Keyboard(sys.stdin.fileno())
        self._question: OpenQuestion | None = None
        self._reading: asyncio.Task[None] | None = None
        questions.on_change = self._read_next

    def _read_next(self) -> None:
        """Read the answer to the first question. Stop reading for a question that was settled elsewhere."""
        question = self._questions.first
        if self._reading is not None and not self._reading.done():
            if question is self._question:
                return
            self._reading.cancel()
            self._console.write_line("(answered elsewhere)")
        self._question = question
        if question is not None:
            self._reading = asyncio.create_task(self._read_answer(question))

    async def _read_answer(self, question: OpenQuestion) -> None:
        self._notifier.notify("treadle needs an answer")
        try:
            question.show(self._console, self._tools, self._folder)
            if isinstance(question.request, ApprovalRequested):
                await asyncio.sleep(INERT_SECONDS)
            self._keyboard.discard_input()
            while not question.settled.done():
                if not question.is_shown:
                    question.show(self._console, self._tools, self._folder)
                self._console.set_status("")
                self._console.write("answer> ")
                line = await self._keyboard.read_line()
                if line is None:
                    question.settle(None)
                    return
                self._console.end_input_line()
                try:
                    question.accept_answer(line, self._folder)
                except BadInput as error:
                    self._console.write_line(f"  {error}")
        except Exception as error:  # raised in the gate, which waits for the answer
            if not question.settled.done():
                question.settled.set_exception(error)
        finally:
            self._notifier.mark_active()


class Keyboard:
    """Lines from the terminal. Waiting for one can be cancelled at any time."""

    def __init__(self, fd: int = 0) -> None:
        self._fd, self._unread = fd, b""

    def discard_input(self) -> None:
        """Drop the keys that were typed before the question was shown."""
        self._unread = b""
        if os.isatty(self._fd):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    async def read_line(self) -> str | None:
        """Read the next line. Return None at the end of input."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._unread:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._fd, lambda ready=ready: ready.done() or ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(self._fd)
            data = os.read(self._fd, 4096)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode("utf-8", "replace")
