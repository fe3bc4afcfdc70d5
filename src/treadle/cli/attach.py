"""`treadle attach`: watch, steer and answer a session that another process runs. Detaching does not stop it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from treadle import ApprovalRequested, InputRequested
from treadle.app.compose import find_default_tools
from treadle.app.settings import data_folder
from treadle.cli.console import (
    TerminalConsole,
    escape_controls,
    handle_signals,
    is_dumb_terminal,
    is_terminal,
    print_note,
    style_text,
)
from treadle.cli.options import Parser, add_store_options, create_parser
from treadle.cli.screen import STEER_NOTE, TICK_SECONDS, Screen
from treadle.cli.session_link import ServerUnreachable, SessionLink, StoreLink, open_http_link
from treadle.errors import TreadleError
from treadle.events import AnyFact, ApprovalAnswered, CallFinished, InputAnswered, RunFinished, SessionCreated

EXAMPLES = """\
  treadle attach 3f2a91                                   over the store
  treadle attach 3f2a91 --url http://127.0.0.1:8420       over a server, with text as it is written

What you type steers it; /stop stops the run; /quit, Ctrl-C or Ctrl-D leaves, and the run goes on."""

COMMANDS = {"stop": "stop the run", "quit": "leave; the run goes on"}


def parser() -> Parser:
    made = create_parser("attach", "Watch and steer a session that runs elsewhere.", EXAMPLES)
    made.add_argument("session", metavar="SESSION", help="an id, the beginning of one, or a name")
    made.add_argument("--url", help="a server, instead of the store; its token from TREADLE_TOKEN or a file")
    made.add_argument("--token-file", metavar="FILE", help="default: tokens.json in the user's data folder")
    add_store_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    return asyncio.run(_attach(args))


async def _attach(args: argparse.Namespace) -> int:
    async with _link(args) as link:
        facts = await link.read_facts()
        if is_terminal(sys.stdin) and is_terminal(sys.stdout) and not is_dumb_terminal():
            first = facts[0]
            folder = Path(first.workspace or ".") if isinstance(first, SessionCreated) else Path(".")
            await AttachedTerminal(link, folder).run(facts)
        else:
            await _watch(link, facts)
    return 0


@asynccontextmanager
async def _link(args: argparse.Namespace) -> AsyncGenerator[SessionLink]:
    if args.url:
        async with open_http_link(
            args.url, args.session, args.token_file or str(data_folder() / "tokens.json")
        ) as link:
            yield link
        return
    from treadle.cli.open_session import open_stored_session

    async with open_stored_session(args, args.session) as (session, _):
        yield StoreLink(session)


async def _watch(link: SessionLink, facts: list[AnyFact]) -> None:
    """Show the events of the current run until it ends. Used without a terminal."""
    screen = Screen(TerminalConsole(sys.stdout))
    screen.show_history(facts)
    if not screen.is_running:
        return
    async for event in link.watch_events(facts[-1].seq):
        screen.handle_event(event)
        if isinstance(event, RunFinished):
            return


def find_open_questions(facts: Iterable[AnyFact]) -> list[ApprovalRequested | InputRequested]:
    """Return the questions in these facts that have no answer yet."""
    found: dict[str, ApprovalRequested | InputRequested] = {}
    for fact in facts:
        match fact:
            case ApprovalRequested() | InputRequested():
                found[fact.call_id] = fact
            case ApprovalAnswered() | InputAnswered() | CallFinished():
                found.pop(fact.call_id, None)
            case RunFinished():
                found.clear()
            case _:
                pass
    return list(found.values())


class AttachedTerminal:
    """A terminal attached to a session that runs in another process."""

    def __init__(self, link: SessionLink, folder: Path) -> None:
        from treadle.cli.prompt import PromptCompleter, PromptConsole
        from treadle.cli.questions import QuestionQueue

        self._link, self._folder = link, folder
        link.on_notice = self._say
        self._tools = find_default_tools()
        self._asking = QuestionQueue()
        self._line = PromptConsole(
            sys.stdout, data_folder() / "history", PromptCompleter(COMMANDS, folder), {"c-c": self._leave}
        )
        self._screen = Screen(self._line)
        self._screen.asks_here = True
        self._asking.on_change = self._line.interrupt
        self._tasks: set[asyncio.Task[None]] = set()
        self._draft = ""
        self._left = False

    def _leave(self) -> None:
        self._left = True
        self._line.leave()

    async def run(self, facts: list[AnyFact]) -> None:
        """Show the session and read input until the user leaves."""
        # Ctrl-C arrives as a signal when no prompt is active.
        with (
            handle_signals(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._leave)),
            self._line.hold_terminal(),
        ):
            await self._stay(facts)
        on = " goes on without you" if self._screen.is_running else ""
        print_note(f"detached; session {self._link.session_id[:12]}{on}")

    async def _stay(self, facts: list[AnyFact]) -> None:
        self._screen.show_history(facts)
        for question in find_open_questions(facts):
            self._bring(question)
        watching = asyncio.create_task(self._watch(facts[-1].seq))
        self._tasks |= {watching, asyncio.create_task(self._tick())}
        try:
            while not self._left and not watching.done() and await self._once():
                pass
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if not watching.cancelled():
            watching.result()  # raises the error that ended the task

    async def _once(self) -> bool:
        """Read one line and execute it. Return False if the user wants to leave."""
        from treadle.cli.prompt import ANSWER, PROMPT, PromptInterrupted
        from treadle.cli.questions import INERT_SECONDS

        question = self._asking.first
        try:
            if question is None:
                text = await self._line.read(PROMPT, self._draft)
                self._draft = ""
                if text.startswith("/"):
                    self._echo(PROMPT, text)
                return await self._typed(text)
            if not question.is_shown:
                question.show(self._line, self._tools, self._folder)
            text = await self._line.read(ANSWER, inert=INERT_SECONDS, passing=True)
            self._echo(ANSWER, text)
            question.accept_answer(text, self._folder)
        except PromptInterrupted as gave_way:
            self._draft = self._draft if question else gave_way.draft
        except EOFError:
            return False
        except TreadleError as error:
            self._tell(error)
        return True

    async def _typed(self, text: str) -> bool:
        match text.strip():
            case "/quit":
                return False
            case "/stop":
                await self._link.cancel()
            case "":
                pass
            case _:
                if self._screen.is_running:
                    self._say(STEER_NOTE)
                try:
                    await self._link.send(text)
                except TreadleError:
                    self._draft = text  # keeps the text so that the user can send it again
                    raise
        return True

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._screen.redraw_status()

    def _bring(self, question: ApprovalRequested | InputRequested) -> None:
        async def asked() -> None:
            while (answer := await self._asking(question)) is not None:
                try:
                    await self._link.answer(question, answer)
                except ServerUnreachable as error:
                    self._tell(error)  # the loop asks again
                except TreadleError as error:  # another client has answered already
                    self._tell(error)
                    return
                else:
                    return

        task = asyncio.create_task(asked())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, after: int) -> None:
        try:
            async for event in self._link.watch_events(after):
                self._screen.handle_event(event)
                self._asking.handle_event(event)
                if isinstance(event, ApprovalRequested | InputRequested):
                    self._bring(event)
        except TreadleError as error:
            self._tell(error)
        finally:
            self._line.leave()

    def _echo(self, label: str, text: str) -> None:
        self._say(escape_controls(f"{label}{text}"))

    def _say(self, text: str) -> None:
        self._line.write_aside(style_text(text, "dim", self._line.has_colour))

    def _tell(self, error: TreadleError) -> None:
        self._line.write_line(style_text(escape_controls(str(error)), "red", self._line.has_colour))
