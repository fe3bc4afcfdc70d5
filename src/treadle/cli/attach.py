"""`treadle attach`: watch, steer and answer a session that another process runs. Detaching does not stop it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from treadle import events
from treadle.app.compose import find_default_tools
from treadle.cli.console import TerminalConsole, is_dumb_terminal, is_terminal
from treadle.cli.interactive import InteractiveTerminal
from treadle.cli.open_session import open_stored_session
from treadle.cli.options import Parser, add_session_argument, add_store_options, add_token_option, create_parser
from treadle.cli.questions import AgentQuestion, QuestionQueue, describe_client_call
from treadle.cli.screen import Screen
from treadle.cli.session_link import HttpSession, ServerUnreachable, SessionLink, open_http_session
from treadle.cli.terminal.status_line import StatusFact, render_status
from treadle.engine.fold import fold
from treadle.errors import TreadleError

EXAMPLES = """\
  treadle attach 3f2a91                                   over the store
  treadle attach 3f2a91 --url http://127.0.0.1:8420       over a server, with live text

Your messages steer the agent. /stop stops the run. /quit, Ctrl-C or Ctrl-D leaves, and the run continues."""

COMMANDS = {"stop": "stop the run", "quit": "leave; the run continues"}


def parser() -> Parser:
    options = create_parser("attach", "Watch and steer a session that another process runs.", EXAMPLES)
    add_session_argument(options)
    options.add_argument("--url", help="use this server instead of the store; TREADLE_TOKEN or a file has its token")
    add_token_option(options)
    add_store_options(options)
    return options


async def main(args: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        session: SessionLink
        if args.url:
            session = await stack.enter_async_context(open_http_session(args.url, args.session, args.token_file))
        else:
            session, _ = await stack.enter_async_context(open_stored_session(args, args.session))
        facts = await session.facts()
        if is_terminal(sys.stdin) and is_terminal(sys.stdout) and not is_dumb_terminal():
            await AttachedTerminal(session, facts).interact()
            return 0
        screen = Screen(TerminalConsole(sys.stdout))
        screen.show_history(facts)
        if screen.is_running:
            async for event in session.watch(facts[-1].seq):
                screen.handle_event(event)
                if isinstance(event, events.RunFinished):
                    break
    return 0


class AttachedTerminal(InteractiveTerminal):
    """A terminal attached to a session that runs in another process."""

    way_out = ("Ctrl-C", "leaves; the run continues")

    def __init__(self, session: SessionLink, facts: Sequence[events.AnyFact]) -> None:
        first = facts[0]
        folder = Path(first.workspace or ".") if isinstance(first, events.SessionCreated) else Path(".")
        self._ask = QuestionQueue()
        super().__init__(self._ask, COMMANDS, find_default_tools(), folder)
        self._session, self._facts = session, facts
        self.has_messages = True
        self.screen.retry_keys = "Enter: now, /stop: stop"
        if isinstance(session, HttpSession):
            session.on_notice = lambda text: self.write_note(text, "dim")

    async def show_start(self) -> None:
        self.show_history(self._facts)
        questions: dict[str, AgentQuestion] = {}
        for fact in self._facts:
            match fact:
                case events.ApprovalRequested() | events.InputRequested():
                    questions[fact.call_id] = fact
                case events.RunFinished():
                    questions.clear()
                case _:
                    settled = [one for one in questions.values() if events.settles_question(fact, one)]
                    for question in settled:
                        del questions[question.call_id]
        for question in questions.values():
            self.start_task(self._ask_user(question))
        for call in fold(self._facts).client_calls:
            self.write_note(describe_client_call(call), "dim")

    async def follow_events(self) -> None:
        try:
            async for event in self._session.watch(self._facts[-1].seq):
                self.show_event(event)
                if isinstance(event, AgentQuestion):
                    self.start_task(self._ask_user(event))
                elif isinstance(event, events.CallStarted) and event.sandbox == events.CLIENT_SANDBOX:
                    self.write_note(describe_client_call(event), "dim")
        except TreadleError as error:
            self.write_note(str(error), "red")
        self.leave()

    async def _ask_user(self, question: AgentQuestion) -> None:
        """Send the user's answer. Ask again if the server did not get it."""
        while (answer := await self._ask(question)) is not None:
            try:
                if isinstance(question, events.ApprovalRequested):
                    await self._session.approve(question.call_id, answer, digest=question.digest)
                else:
                    await self._session.answer(question.call_id, *answer.answers)
                return
            except ServerUnreachable as error:
                self.write_note(str(error), "red")
            except TreadleError as error:  # another client has answered already
                self.write_note(str(error), "red")
                return

    async def handle_text(self, text: str) -> None:
        match text.strip():
            case "/quit":
                self.leave()
            case "/stop":
                await self._session.cancel(why="stopped from an attached terminal")
            case _:
                await self._session.send(text)

    async def retry_now(self) -> None:
        await self._session.retry_now()

    async def show_end(self) -> None:
        state = " continues" if self.screen.is_running else ""
        self.screen.end_text()
        self.console.write_block(f"detached; session {self._session.id[:12]}{state}")

    @property
    def is_busy(self) -> bool:
        return self.screen.is_running

    def describe_status(self, columns: int) -> str:
        known = self.screen.status_facts()
        facts = [StatusFact("attached", ""), StatusFact(self._session.id[:12])]
        if known.context_share:
            facts.append(StatusFact(f"{known.context_share:.0%} context"))
        return render_status([*facts, StatusFact("Ctrl-D leaves")], self.console.theme, columns)

    def handle_shift_tab(self) -> None:
        """Ignore it: the process that runs the session decides what it may do."""

    def handle_ctrl_c(self) -> None:
        self.leave()

    def handle_escape(self) -> None:
        """Ignore Escape: it must not stop a run of another process."""
