"""The questions of agents: their text, one queue for a terminal, and two ways to read an answer.

A chat reads answers on its prompt line. A one-shot command reads them with `TerminalReader`.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import sys
import termios
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from treadle import Answer, ApprovalRequested, InputRequested, Tool, events
from treadle.app.settings import data_folder
from treadle.cli.console import Console, Notifier, TerminalConsole, escape_hidden, style_text, truncate_line
from treadle.cli.draw.diff import render_diff
from treadle.cli.draw.glyphs import choose_theme
from treadle.errors import BadInput
from treadle.messages import Json
from treadle.permissions.requests import NETWORK, READ_FOLDER, USUAL_PORTS, WRITE_FOLDER
from treadle.permissions.saved_rules import save_rule

AgentQuestion = ApprovalRequested | InputRequested
"""What an agent can ask: the approval of a call, or input."""

INERT_SECONDS = 0.5
"""Seconds in which keys are ignored: a key typed for something else must not approve a call."""

MAX_PREVIEW_BYTES = 1 << 20
_MAX_COMMAND_COLUMNS = 50
_WISHES = {NETWORK: "wants", READ_FOLDER: "wants to read", WRITE_FOLDER: "wants to change"}
_STYLES = {"safe": "green", "caution": "yellow", "destructive": "bold red"}


def describe_client_call(call: events.CallStarted) -> str:
    """Describe a call that waits for a client of the server. Nobody at a terminal can answer it."""
    return f"waits for the client's result of {call.tool} ({call.call_id})"


def render_approval(
    question: ApprovalRequested, tools: Mapping[str, Tool], folder: Path, width: int, *, colour: bool
) -> list[str]:
    """Render the whole question: tool, safety class, reason, every exact argument, and the resulting diff."""
    what = f"{style_text(escape_hidden(question.tool), 'bold', colour)} wants to run"
    if question.during:
        what = describe_wish(question)
    head = f"{style_text('?', 'bold yellow', colour)} {what}  "
    head += style_text(f"[{question.safety}]", _STYLES[question.safety], colour)
    text = question.why
    if question.during and (wanted := _describe_wanted(question)) in text:
        text = text.partition(wanted)[2].lstrip("; ")  # the rest of it is in the head
    why = textwrap.wrap(escape_hidden(text), max(20, width - 16))  # the other texts are shown exactly
    lines = [head, *(f"  {'' if place else 'why asked:':10} {line}" for place, line in enumerate(why))]
    lines.append(f"  workspace: {escape_hidden(str(folder))}")
    for name, value in question.arguments.items():
        text = escape_hidden(_render_argument(value))
        values = text.split("\n")
        lines.append(f"  {escape_hidden(name)}:{f' {text}' if len(values) == 1 else ''}")
        lines += [f"    {line}" for line in values if len(values) > 1]
    commands = _list_commands(question, tools, folder)
    if len(commands) > 1:
        lines += ["  it consists of:", *(f"    {escape_hidden(command)}" for command in commands)]
    diff = [escape_hidden(line) for line in preview_diff(question.tool, question.arguments, folder)]
    theme = choose_theme(has_colour=colour, has_style=colour)
    return lines + [f"  {line}" for line in render_diff(diff, width - 2, theme)]


def _render_argument(value: Json) -> str:
    """Render a text as it is, a list of lines with one item on each, and everything else as JSON."""
    match value:
        case str():
            return value
        case [str(), *_] if all(isinstance(item, str) and item.splitlines() == [item] for item in value):
            return "\n".join(f"- {item}" for item in value)
        case _:
            return json.dumps(value, ensure_ascii=False, indent=1)


def describe_wish(question: ApprovalRequested) -> str:
    """Say what a running call wants besides what it has: a host, or a folder."""
    command = truncate_line(escape_hidden(str(question.arguments.get("command", "the command"))), _MAX_COMMAND_COLUMNS)
    return f"`{command}` {escape_hidden(_describe_wanted(question))}"


def _describe_wanted(question: ApprovalRequested) -> str:
    wanted, port = next(iter(question.arguments.values()), ""), question.arguments.get("port", USUAL_PORTS[0])
    return f"{_WISHES.get(question.tool, question.tool)} {wanted}{'' if port in USUAL_PORTS else f':{port}'}"


def _list_commands(question: ApprovalRequested, tools: Mapping[str, Tool], folder: Path) -> Sequence[str]:
    """List the simple commands of a compound command."""
    tool = tools.get(question.tool)
    if tool is None:
        return ()
    known = tool.spec.parameters.get("properties", {})  # the folder of a command is shown but is not a parameter
    arguments = {name: value for name, value in question.arguments.items() if name in known}
    try:
        return tool.assess(tool.parse(json.dumps(arguments)), folder).commands or ()
    except BadInput:
        return ()


def preview_diff(tool: str, arguments: Mapping[str, Json], folder: Path) -> list[str]:
    """Preview the diff of a call, if its arguments are enough to compute it."""
    path, content = arguments.get("path"), arguments.get("content")
    old, new = arguments.get("old"), arguments.get("new")
    if tool == "apply_patch" and isinstance(arguments.get("patch"), str):
        return str(arguments["patch"]).splitlines()
    if not isinstance(path, str):
        return []
    try:
        file = folder / path
        before = file.read_text("utf-8") if file.is_file() and file.stat().st_size <= MAX_PREVIEW_BYTES else ""
    except (OSError, ValueError):
        before = ""
    if tool == "write_file" and isinstance(content, str):
        return _build_diff(before, content, path)
    if tool == "edit_file" and isinstance(old, str) and isinstance(new, str):
        if old and old in before:
            return _build_diff(before, before.replace(old, new, -1 if arguments.get("replace_all") else 1), path)
        return _build_diff(old, new, path)
    return []


def _build_diff(before: str, after: str, path: str) -> list[str]:
    old, new = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(old, new, f"{path} (before)", f"{path} (after)", lineterm=""))


def render_choices(question: ApprovalRequested) -> list[str]:
    """Render the possible answers and their meaning."""
    lines = ["  y  yes, once"]
    if _has_tool_scope(question):
        lines.append(f"  t  yes, and allow {question.tool} in this session")
    if _has_rule(question):
        lines.append(f"  p  yes, and in this session also allow: {escape_hidden(question.rule)}")
        lines.append("  a  like p, but always in this workspace")
    later = "later: the command waits, for 10 minutes at most" if question.during else "later: it stays open"
    return [*lines, "  n  no; the model gets the words after it: n too risky", f"  l  {later}"]


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
            keys = [line.split()[0] for line in render_choices(question)]
            raise BadInput(f"answer {', '.join(keys[:-1])} or {keys[-1]}")


def _has_tool_scope(question: ApprovalRequested) -> bool:
    """Whether all calls of the tool may be allowed. A running call gets one host or folder at a time."""
    return not question.once and not question.during


def _has_rule(question: ApprovalRequested) -> bool:
    return bool(question.rule) and not question.once


def render_input_question(question: events.Question, *, colour: bool) -> list[str]:
    """Render a question of the agent and its options."""
    lines = [f"{style_text('?', 'bold yellow', colour)} {escape_hidden(question.text)}"]
    return lines + [f"  {number}  {escape_hidden(option)}" for number, option in enumerate(question.options, 1)]


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
        if isinstance(self.request, ApprovalRequested):
            lines = render_approval(self.request, tools, folder, console.width, colour=console.has_colour)
            lines = [*lines, *render_choices(self.request)]
        else:
            lines = render_input_question(self.request.questions[len(self.answers)], colour=console.has_colour)
        console.write_block("\n".join(lines), gap=True)

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
                await asyncio.sleep(INERT_SECONDS)
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
