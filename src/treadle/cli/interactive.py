"""An interactive terminal: an input, the screen above it and the questions of a session. Chat and attach use it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from treadle import ApprovalRequested, Tool, events
from treadle.app.settings import data_folder
from treadle.cli.approval_text import describe_request, render_approval, summarize_request
from treadle.cli.console import (
    Notifier,
    capture_warnings,
    describe_bug,
    escape_controls,
    handle_signals,
    measure_width,
    style_text,
    truncate_line,
)
from treadle.cli.draw.run_lines import render_message
from treadle.cli.message_content import find_missing_files
from treadle.cli.questions import OpenQuestion, QuestionQueue, is_harmful, list_choices, render_input_question
from treadle.cli.screen import Screen
from treadle.cli.terminal.cells import join_keys
from treadle.cli.terminal.key_help import KEYS, START_KEYS, STEER_KEYS, render_key_table
from treadle.cli.terminal.keys import KeyActions
from treadle.cli.terminal.menu import Menu
from treadle.cli.terminal.prompt_console import PromptConsole, list_history
from treadle.cli.terminal.question import ChoiceQuestion, KeyChoice, QuestionContent, TextQuestion
from treadle.errors import BadInput, TreadleError
from treadle.messages import render_parts

SHELL_HINT = "runs as the agent would run it; the model reads it with your next message"
_SCOPES = {"call": "once", "tool": "in this session", "pattern": "by its rule"}


class InteractiveTerminal(KeyActions, ABC):
    """Shows a session and reads messages, slash commands and answers until the user leaves.

    `postponed_note` is written after the user postponed an answer. `way_out` is the key that leaves a question.
    """

    postponed_note = ""
    way_out = ("Esc", "stops the run")

    def __init__(
        self, questions: QuestionQueue, commands: Mapping[str, str], tools: Mapping[str, Tool], folder: Path
    ) -> None:
        self.commands = dict(commands)
        """The slash commands of the menu: the name of each and what it does."""
        menu = Menu(lambda: self.commands, folder)
        self.console = PromptConsole(sys.stdout, data_folder() / "history", menu, self)
        self.console.describe_status = self._describe_below
        self.screen = Screen(self.console, asks_here=True)
        self.notifier = Notifier(sys.stdout, "off", 0)
        self.has_left = False
        self.has_messages = False
        """Whether the conversation has begun. Until then hints stand in the place of the status line."""
        self.is_leave_announced = False
        """Whether the user was told that the next Ctrl-C leaves. Any input resets it."""
        self._questions, self._tools, self._folder = questions, tools, folder
        self._panels: dict[OpenQuestion, ChoiceQuestion | TextQuestion] = {}
        self._asked: dict[str, ApprovalRequested] = {}
        self._answered_here: set[str] = set()
        self._recorded: set[str] = set()  # the approvals that this session asked for, not its helpers
        self._confirmed_text = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._reading: asyncio.Task[None] | None = None
        questions.on_change = self._show_questions

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

    @abstractmethod
    def handle_shift_tab(self) -> None: ...

    @abstractmethod
    def describe_status(self, columns: int) -> str:
        """Render the status line."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether the agent works, as the user sees it."""

    async def interact(self) -> None:
        """Show the session and read input until the user leaves."""
        # Install the handlers before taking over the terminal, so that its state is restored after a signal.
        leave = {signal.SIGTERM: self.abort, signal.SIGHUP: self.abort}
        with handle_signals(leave), self.console.holder.hold(self._show_task_error):
            await self.show_start()
            for work in (self.follow_events(), self.screen.refresh_status()):
                self.start_task(work).add_done_callback(self._check_task)
            try:
                # Ctrl-C arrives as a signal when nothing is drawn.
                with handle_signals({signal.SIGINT: self._handle_interrupt}), capture_warnings(self.write_note):
                    drawing = asyncio.create_task(self.console.run())
                    try:
                        self._reading = asyncio.create_task(self._read_inputs())
                        await asyncio.wait([self._reading])
                        if not self._reading.cancelled():
                            self._reading.result()
                    finally:
                        self.console.leave()
                        await asyncio.gather(drawing, return_exceptions=True)
            finally:
                tasks = list(self._tasks)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for text in self.console.queue.kept:
                    self.write_note(f"not sent: {text}")
                await self.show_end()
        if self._failure is not None:
            raise self._failure

    def _handle_interrupt(self) -> None:
        if not self.console.holder.is_lent:  # else Ctrl-C was for the editor or the pager
            self.handle_ctrl_c()

    def _show_task_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Show the errors of background tasks above the input, so that they do not overwrite it."""
        error = context.get("exception")
        self.write_note(describe_bug(error) if error is not None else str(context.get("message")))

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start background work. It is cancelled when the user leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_action(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start what a key does, in the background. A `TreadleError` is shown to the user."""
        task = self.start_task(work)
        task.add_done_callback(self._show_failure)
        return task

    def _show_failure(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, TreadleError):
            self.write_note(str(error), "red")
        elif error is not None:
            raise error  # the handler of the loop shows it

    def _check_task(self, task: asyncio.Task[Any]) -> None:
        """Leave with the error of a failed background task. Without these tasks no events are shown."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failure = error
            self.abort()

    async def _read_inputs(self) -> None:
        while not self.has_left:
            await self._read_input()

    async def _read_input(self) -> None:
        """Read one entry and handle it as a message or a slash command."""
        try:
            text, is_after = await self.console.read()
        except EOFError:
            self.leave()
            return
        self.notifier.mark_active()
        self.is_leave_announced = False
        try:
            if is_after and self.is_busy:
                self.console.queue.keep(text)
            elif text.strip():
                if text.startswith("/"):
                    self.console.write_block(self.console.theme.paint(f"› {escape_controls(text)}", "quiet"), gap=True)
                await self.handle_text(text)
            elif self.screen.retry_in is not None:
                await self.retry_now()
        except TreadleError as error:
            self.write_note(str(error), "red")
            if not text.startswith("/") and not self.console.draft:
                self.console.draft = text  # the user can change it and send it again
        self.console.redraw()

    # --- keys

    def handle_enter(self, *, is_after: bool = False) -> None:
        """Enter the input. A message with a missing file is entered only after the user was told."""
        text = self.console.draft
        missing = [name for name in self._find_missing(text) if "/" in name or "." in name]
        if missing and self._confirmed_text != text:
            self._confirmed_text = text
            self.console.set_hint(self._warn(f"{missing[0]} is not there; Enter sends it as plain text"))
        elif not is_after or self.is_busy:
            self.console.submit(is_after=is_after)

    def _find_missing(self, text: str) -> list[str]:
        return [] if text.startswith(("/", "!")) else find_missing_files(text, self._folder)

    def show_keys(self) -> None:
        """Show what each key does, below the input. The second time the character itself is typed."""
        table = render_key_table(KEYS, self.console.theme, self.console.width)
        if self.console.hint == table:
            self.console.type_text("?")
        else:
            self.console.set_hint(table)

    def unfold(self) -> None:
        """Show in full what was cut or folded last and was not shown yet."""
        text = self.screen.unfold()
        if text:
            self.start_task(self.console.show_text(text))
        else:
            self.console.set_hint("  nothing else was cut or folded")

    def toggle_plan(self) -> None:
        """Show or hide the plan above the work line."""
        self.screen.shows_plan = not self.screen.shows_plan
        self.screen.redraw_status()

    def search_history(self) -> None:
        """Let the user pick from what was entered before."""
        self.start_action(self._pick_history())

    async def _pick_history(self) -> None:
        rows = list_history(self.console.history)
        picked = await self.console.pick("History", rows, search=self.console.draft, enter="take", empty="no history")
        if picked is not None:
            self.console.draft = picked

    def edit_message(self) -> None:
        """Open the message in the editor of the user."""
        self.start_action(self._edit_message())

    async def _edit_message(self) -> None:
        self.console.draft = await self.console.edit_text(self.console.draft)

    def _describe_below(self, columns: int) -> str:
        """Render the line below the input: a warning, the keys of the moment, or the status line."""
        theme, draft = self.console.theme, self.console.draft
        if missing := self._find_missing(draft) if "@" in draft else []:
            return self._warn(f"{missing[0]} is not there; it is sent as plain text")
        if draft.startswith("!"):
            return f"  {theme.paint('!', 'need')} {theme.paint(SHELL_HINT, 'quiet')}"
        if self.is_busy and draft:
            keys = [STEER_KEYS[0], *([("Up", "the queue")] if self.console.queue.kept else []), *STEER_KEYS[1:]]
            return join_keys(keys, theme, columns)
        if not self.has_messages:
            return join_keys(START_KEYS, theme, columns)
        return self.describe_status(columns)

    def _warn(self, text: str) -> str:
        text = truncate_line(escape_controls(text), self.console.width - 5)
        return f"  {self.console.theme.paint('!', 'need')} {text}"

    # --- questions

    async def ask(self, content: QuestionContent) -> KeyChoice:
        """Ask the user a question that is answered by a key."""
        question = ChoiceQuestion(content, self.console, lambda key: None)
        self.console.show_panel(question)
        try:
            return await question.result
        finally:
            self.console.close_panel(question)

    def _show_questions(self) -> None:
        """Show the questions that are open now, and remove those that are settled."""
        for one, panel in list(self._panels.items()):
            if one.settled.done():
                self.console.close_panel(panel)
                del self._panels[one]
        for one in self._questions.list_open():
            if one not in self._panels:
                self._panels[one] = panel = self._build_panel(one)
                self.notifier.notify("treadle needs an answer")
                self.console.show_panel(panel)

    def _build_panel(self, one: OpenQuestion) -> ChoiceQuestion | TextQuestion:
        request = one.request
        if not isinstance(request, ApprovalRequested):
            return TextQuestion(
                lambda theme, width: render_input_question(request.questions[len(one.answers)], width, theme),
                lambda text: self._answer(one, text),
                self.console,
                self._leave_question,
                self.way_out,
            )
        self._asked[request.call_id] = request
        content = QuestionContent(
            describe_request(request),
            lambda theme, width: render_approval(request, self._tools, self._folder, width, theme),
            tuple(list_choices(request).items()),
            facts=request.safety,
            summary=summarize_request(request),
            is_harmful=is_harmful(request),
            reason_key="n",
            way_out=self.way_out,
        )
        panel = ChoiceQuestion(content, self.console, self._leave_question)
        panel.result.add_done_callback(
            lambda done: None if done.cancelled() else self._answer(one, " ".join(done.result()).strip())
        )
        return panel

    def show_history(self, facts: Sequence[events.AnyFact], messages: int = 1) -> None:
        """Show the last messages of a session that is opened again."""
        self._recorded |= {fact.call_id for fact in facts if isinstance(fact, ApprovalRequested)}
        self.screen.show_history(facts, messages)
        self.update_placeholder()

    def _leave_question(self, key: str) -> None:
        if key == "c-c":
            self.handle_ctrl_c()
        else:
            self.handle_escape()

    def _answer(self, one: OpenQuestion, text: str) -> str:
        """Answer a question. Return what is wrong with the answer."""
        self.notifier.mark_active()
        self._answered_here.add(one.request.call_id)
        try:
            one.accept_answer(text, self._folder)
        except BadInput as error:
            return str(error)
        if isinstance(one.request, ApprovalRequested):
            answer = one.settled.result() if one.settled.done() else None
            if answer is None and self.postponed_note:
                self.write_note(self.postponed_note)
            elif answer is not None and one.request.call_id not in self._recorded:  # a helper asked: its log has it
                self._asked.pop(one.request.call_id, None)
                self._write_approval(one.request, answer.decision, answer.scope, answer.comment)
        else:
            self._write_decision(
                self.console.theme.glyphs.done, "ok", "you answered", escape_controls(one.answers[-1]), ""
            )
        self.console.entry.reset()
        self._show_questions()
        return ""

    def _show_answer(self, fact: events.ApprovalAnswered) -> None:
        """Write the line that stays of a question."""
        question = self._asked.pop(fact.call_id, None)
        if question is None:
            return
        elsewhere = ""
        if fact.call_id not in self._answered_here:
            at = time.strftime("%H:%M", time.localtime(fact.at)) if fact.at else ""
            elsewhere = f"by {fact.by or 'somebody'}, {at}".rstrip(", ")
        elif fact.decision == "deny":
            self.screen.note_denial(fact.call_id)
        self._write_approval(question, fact.decision, fact.scope, fact.comment, elsewhere)

    def _write_approval(
        self, question: ApprovalRequested, decision: str, scope: str, comment: str, elsewhere: str = ""
    ) -> None:
        """Write who decided about a call, and how. `elsewhere` says who did it if it was not the user here."""
        glyphs, is_allowed = self.console.theme.glyphs, decision == "allow"
        mark, role, verb = (glyphs.done, "ok", "allowed") if is_allowed else (glyphs.denied, "need", "denied")
        facts = elsewhere or comment or (_SCOPES.get(scope, scope) if is_allowed else "")
        if scope == "pattern" and not elsewhere:
            facts = f"by its rule: {question.rule}"
        who = verb if elsewhere else f"you {verb}"
        self._write_decision(mark, role, who, summarize_request(question), escape_controls(facts))

    def _write_decision(self, mark: str, role: str, who: str, what: str, facts: str) -> None:
        theme, width = self.console.theme, self.console.width
        tail = f"{theme.dot}{facts}" if facts else ""
        what = theme.cut(what, max(20, width - 16 - measure_width(tail)))
        line = f"{theme.paint(mark, role)} {theme.paint(f'{who:<12}', 'quiet')} {what}{theme.paint(tail, 'quiet')}"
        self.console.write_block(line, "call")

    # --- events

    def show_event(self, event: events.Event) -> None:
        """Show an event, and remove the questions that it settles."""
        queue = self.console.queue
        match event:
            case events.ApprovalRequested():
                self._asked[event.call_id] = event
                self._recorded.add(event.call_id)
            case events.ApprovalAnswered():
                self._show_answer(event)
            case events.MessageReceived():
                self.has_messages = True
                if self.screen.is_running:  # the screen writes it where it takes effect
                    queue.steering[event.id] = render_parts(event.parts[:1])
            case events.MessageEdited() if event.id in queue.steering and event.parts:
                queue.steering[event.id] = render_parts(event.parts[:1])
            case events.MessageEdited():
                queue.steering.pop(event.id, None)
            case events.TurnStarted():
                for message in event.messages:
                    queue.steering.pop(message, None)
            case events.RunFinished():
                queue.steering.clear()
            case events.RunRequested(command=command) if command:
                self.has_messages = True
                self.console.write_block(render_message(f"!{command}", self.console.theme), "message")
            case events.Rewound():
                queue.steering.clear()
            case _:
                pass
        self.screen.handle_event(event)
        self.update_placeholder()
        self._questions.handle_event(event)
        self._show_questions()

    def update_placeholder(self) -> None:
        """Say in the empty input what a message would do."""
        started = "Ask, or / for commands" if self.has_messages else "What shall be done?"
        self.console.placeholder = "Type to steer" if self.screen.is_running else started

    def write_note(self, text: str, style: str = "") -> None:
        """Write a line that is not part of the conversation."""
        self.console.write_block(style_text(escape_controls(text), style, self.console.has_colour))

    def abort(self) -> None:
        """Leave at once, also while a command of the user is under way or a program has the terminal."""
        self.console.holder.end_program()
        self.leave()
        if self._reading is not None:
            self._reading.cancel()

    def leave(self) -> None:
        """End the input and leave the terminal."""
        self.has_left = True
        self.console.leave()
