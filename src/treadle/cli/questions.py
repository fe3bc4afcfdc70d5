"""The questions of agents: their text, one queue for a terminal, and two ways to read an answer.

A chat reads answers on its prompt line. A one-shot command reads them with `TerminalReader`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treadle import Answer, ApprovalRequested, InputRequested, Tool, events
from treadle.app.hidden_text import escape_hidden
from treadle.app.settings import data_folder
from treadle.cli.approval_text import describe_request, render_approval
from treadle.cli.console import Console, Notifier, TerminalConsole
from treadle.cli.draw.glyphs import Theme, choose_theme
from treadle.cli.terminal import question as question_panel
from treadle.errors import BadInput
from treadle.permissions.saved_rules import save_rule

AgentQuestion = ApprovalRequested | InputRequested
"""What an agent can ask: the approval of a call, or input."""


def describe_client_call(call: events.CallStarted) -> str:
    """Describe a call that waits for a client of the server. Nobody at a terminal can answer it."""
    return f"waits for the client's result of {call.tool} ({call.call_id})"


def list_choices(question: ApprovalRequested) -> dict[str, str]:
    """List the keys of the possible answers and their meaning."""
    choices = {"y": "yes, once"}
    if _has_rule(question):
        choices["p"] = "yes, and the rule for this session"
        choices["a"] = "yes, and the rule for this folder, always"
    if _has_tool_scope(question):
        choices["t"] = f"yes, and all of {escape_hidden(question.tool)} for this session"
    later = "later; the command waits, for 10 minutes at most" if question.during else "later; the question waits"
    return {**choices, "n": "no, and say why", "l": later}


def parse_decision(line: str, question: ApprovalRequested, folder: Path) -> Answer | None:
    """Parse the typed answer. None means later. Raises `BadInput` for an unknown answer.

    A permanent approval is saved in the user's rules, for this folder only.
    """
    word, _, rest = line.strip().partition(" ")
    match word.lower():
        case "y" | "yes":
            return Answer()
        case "t" if _has_tool_scope(question):
            return Answer(scope="tool")
        case "p" if _has_rule(question):
            return Answer(scope="pattern")
        case "a" if _has_rule(question):
            save_rule(data_folder(), question.rule, workspace=folder)
            return Answer(scope="pattern")
        case "n" | "no":
            return Answer("deny", comment=rest.strip())
        case "l" | "later":
            return None
        case _:
            keys = list(list_choices(question))
            raise BadInput(f"answer {', '.join(keys[:-1])} or {keys[-1]}")


def is_harmful(question: AgentQuestion) -> bool:
    """Whether the call may destroy something, or must be asked each time."""
    if not isinstance(question, ApprovalRequested):
        return False
    return question.safety == "destructive" or (question.once and not question.hook)


def _has_tool_scope(question: ApprovalRequested) -> bool:
    """Whether all calls of the tool may be allowed. A running call gets one host or folder at a time."""
    return not question.once and not question.during


def _has_rule(question: ApprovalRequested) -> bool:
    return bool(question.rule) and not question.once


def render_input_question(question: events.Question, width: int, theme: Theme) -> list[str]:
    """Render a question of the agent and its options."""
    rows = textwrap.wrap(escape_hidden(question.text), max(10, width - 2), replace_whitespace=False) or [""]
    lines = [f"{theme.paint('?', 'need')} {theme.paint(rows[0], 'strong')}"]
    lines += [f"  {theme.paint(row, 'strong')}" for row in rows[1:]]
    for number, option in enumerate(question.options, 1):
        lines += [
            f"  {theme.paint(str(number), 'strong') if not at else ' '}  {row}"
            for at, row in enumerate(textwrap.wrap(escape_hidden(option), max(10, width - 6)) or [""])
        ]
    return lines


def parse_reply(line: str, question: events.Question) -> str:
    """Return the typed text, or the option with the typed number. Raises `BadInput` for an invalid answer."""
    text = line.strip()
    if text.isdigit() and 1 <= int(text) <= len(question.options):
        return question.options[int(text) - 1]
    if not text or (question.strict and text not in question.options):
        raise BadInput("type the number of an option" if question.options else "type an answer")
    return text


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
        theme, request = choose_theme(has_colour=console.has_colour, has_style=console.has_style), self.request
        if isinstance(request, ApprovalRequested):
            mark = theme.paint("?", "need") if theme.has_style else "asks:"
            lines = [f"{mark} {theme.paint(describe_request(request), 'strong')}  {request.safety}"]
            lines += [f"  {line}" for line in render_approval(request, tools, folder, console.width - 5, theme)]
            choices = {**list_choices(request), "n": "no, and say why: n too risky"}
            lines += ["", *(f"  {theme.paint(key, 'strong')}  {text}" for key, text in choices.items())]
        else:
            lines = render_input_question(request.questions[len(self.answers)], console.width - 3, theme)
        bar = theme.paint(theme.glyphs.bar, "danger" if is_harmful(request) else "need")
        if theme.has_style:  # else a screen reader would read the bar on each line
            lines = [f"{bar} {line}" for line in lines]
        console.write_block("\n".join(line.rstrip() for line in lines), gap=True)

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

    def list_open(self) -> list[OpenQuestion]:
        """List the questions without an answer, the oldest first."""
        return [one for one in self._open if not one.settled.done()]

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

    def handle_event(self, event: events.Event) -> None:
        """Remove the questions that were settled elsewhere."""
        settled = [one for one in self._open if events.settles_question(event, one.request)]
        if isinstance(event, events.RunFinished | events.CancelRequested):
            settled = list(self._open)
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
            self._console.write_block("(the question is closed)")
        self._question = question
        if question is not None:
            self._reading = asyncio.create_task(self._read_answer(question))

    async def _read_answer(self, question: OpenQuestion) -> None:
        self._notifier.notify("treadle needs an answer")
        try:
            question.show(self._console, self._tools, self._folder)
            if isinstance(question.request, ApprovalRequested):
                await asyncio.sleep(question_panel.INERT_SECONDS)
            self._keyboard.discard_input()
            while not question.settled.done():
                if not question.is_shown:
                    question.show(self._console, self._tools, self._folder)
                self._console.write_prompt("answer> ")
                line = await self._keyboard.read_line()
                if line is None:
                    question.settle(None)
                    return
                self._console.end_input_line()
                try:
                    question.accept_answer(line, self._folder)
                except BadInput as error:
                    self._console.write_block(f"  {error}")
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
