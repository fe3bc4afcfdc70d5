"""Gates of the command line: one that asks at the terminal, and one for where nobody can be asked."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

from treadle import Answer, ApprovalRequested, CallFinished, InputRequested, RunFinished, Tool
from treadle.cli.console import Notifier, TerminalConsole
from treadle.cli.question_text import (
    parse_decision,
    parse_reply,
    render_approval,
    render_choices,
    render_input_question,
)
from treadle.cli.report import NOBODY_ASKED
from treadle.errors import BadInput
from treadle.events import ApprovalAnswered, CancelRequested, Event, InputAnswered

INERT = 0.5
"""Seconds in which nothing typed counts: keys that were meant for something else must not approve anything."""


async def refuse_question(question: ApprovalRequested | InputRequested) -> Answer:
    """Say no at once, because nobody can be asked, and tell the model what the user could do about it."""
    if isinstance(question, InputRequested):
        return Answer(
            "deny", comment="Nobody can be asked here. Decide yourself, and say what you assumed.", by=NOBODY_ASKED
        )
    way = f"--approve {question.rule!r}" if question.rule else "--yes"
    comment = f"Nobody can be asked here ({question.why}). Do without it, or tell the user to allow it with {way}."
    return Answer("deny", comment=comment, by=NOBODY_ASKED)


class Keyboard:
    """Lines from the terminal. Waiting for one can be given up at any time."""

    def __init__(self, fd: int = 0) -> None:
        self._fd, self._rest = fd, b""

    def discard_input(self) -> None:
        """Forget what was typed before it was asked for."""
        self._rest = b""
        if os.isatty(self._fd):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    async def read_line(self) -> str | None:
        """The next line; None at the end of input."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._fd, lambda ready=ready: ready.done() or ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(self._fd)
            data = os.read(self._fd, 4096)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace")


class TerminalGate:
    """Asks at the terminal, one question at a time. Told of events, it takes back a question that others settled."""

    def __init__(self, stage: TerminalConsole, tools: Mapping[str, Tool], folder: Path, bell: Notifier) -> None:
        self._stage, self._tools, self._folder, self._bell = stage, tools, folder, bell
        self._keyboard = Keyboard(sys.stdin.fileno())
        self._turn = asyncio.Lock()
        self._asking: dict[str, asyncio.Task[Answer | None]] = {}

    def handle_event(self, event: Event) -> None:
        match event:
            case ApprovalAnswered(call_id=call_id) | InputAnswered(call_id=call_id) | CallFinished(call_id=call_id):
                settled = [call_id]
            case RunFinished() | CancelRequested():
                settled = list(self._asking)
            case _:
                return
        for one in settled:
            if one in self._asking:
                self._asking[one].cancel()

    async def __call__(self, question: ApprovalRequested | InputRequested) -> Answer | None:
        asking = self._asking[question.call_id] = asyncio.create_task(self._ask(question))
        try:
            return await asking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                asking.cancel()
                raise
            self._stage.write_line("(settled elsewhere)")
            return None
        finally:
            del self._asking[question.call_id]

    async def _ask(self, question: ApprovalRequested | InputRequested) -> Answer | None:
        async with self._turn:
            self._bell.notify("treadle needs you")
            try:
                if isinstance(question, InputRequested):
                    return await self._questions(question)
                return await self._approval(question)
            finally:
                self._bell.mark_active()

    async def _approval(self, question: ApprovalRequested) -> Answer | None:
        stage = self._stage
        for line in render_approval(question, self._tools, self._folder, stage.width, colour=stage.has_colour):
            stage.write_line(line)
        for line in render_choices(question):
            stage.write_line(line)
        await asyncio.sleep(INERT)
        self._keyboard.discard_input()
        while True:
            line = await self._typed()
            if line is None:
                return None
            try:
                return parse_decision(line, question, self._folder)
            except BadInput as error:
                stage.write_line(f"  {error}")

    async def _questions(self, asked: InputRequested) -> Answer | None:
        answers: list[str] = []
        self._keyboard.discard_input()
        for number, question in enumerate(asked.questions):
            for line in render_input_question(question, colour=self._stage.has_colour):
                self._stage.write_line(line)
            while len(answers) == number:
                line = await self._typed()
                if line is None:
                    return None
                try:
                    answers.append(parse_reply(line, question))
                except BadInput as error:
                    self._stage.write_line(f"  {error}")
        return Answer(answers=tuple(answers))

    async def _typed(self) -> str | None:
        self._stage.set_status("")
        self._stage.write("answer> ")
        line = await self._keyboard.read_line()
        if line is not None:
            self._stage.end_input_line()
        return line
