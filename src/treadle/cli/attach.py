"""`treadle attach`: watch a session that another process runs, steer it, answer it. Leaving stops nothing."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from treadle import ApprovalRequested, InputRequested
from treadle.app.settings import data_folder
from treadle.cli.console import Terminal
from treadle.cli.options import Parser, add_store, parser_of
from treadle.cli.screen import STEERS, TICK, Screen
from treadle.cli.session_link import Link, StoreLink, Unreachable, http_link
from treadle.cli.signals import acting
from treadle.cli.terminal_text import harmless, is_dumb, is_terminal, note, styled
from treadle.errors import TreadleError
from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    CallFinished,
    InputAnswered,
    RunFinished,
    SessionCreated,
)

EXAMPLES = """\
  treadle attach 3f2a91                                   over the store
  treadle attach 3f2a91 --url http://127.0.0.1:8420       over a server, with text as it is written

What you type steers it; /stop stops the run; /quit, Ctrl-C or Ctrl-D leaves, and the run goes on."""

COMMANDS = {"stop": "stop the run", "quit": "leave; the run goes on"}


def parser() -> Parser:
    made = parser_of("attach", "Watch and steer a session that runs elsewhere.", EXAMPLES)
    made.add_argument("session", metavar="SESSION", help="an id, the beginning of one, or a name")
    made.add_argument("--url", help="a server, instead of the store; its token from TREADLE_TOKEN or a file")
    made.add_argument("--token-file", metavar="FILE", help="default: tokens.json in the user's data folder")
    add_store(made)
    return made


def main(args: argparse.Namespace) -> int:
    return asyncio.run(_attach(args))


async def _attach(args: argparse.Namespace) -> int:
    async with _link(args) as link:
        facts = await link.facts()
        if is_terminal(sys.stdin) and is_terminal(sys.stdout) and not is_dumb():
            first = facts[0]
            folder = Path(first.workspace or ".") if isinstance(first, SessionCreated) else Path(".")
            await Attached(link, folder).stay(facts)
        else:
            await _watch(link, facts)
    return 0


@asynccontextmanager
async def _link(args: argparse.Namespace) -> AsyncGenerator[Link]:
    if args.url:
        async with http_link(args.url, args.session, args.token_file or str(data_folder() / "tokens.json")) as link:
            yield link
        return
    from treadle.cli.open_session import noted

    async with noted(args, args.session) as (session, _):
        yield StoreLink(session)


async def _watch(link: Link, facts: list[AnyFact]) -> None:
    """Without a terminal: show what happens until the run that is under way is over."""
    screen = Screen(Terminal(sys.stdout))
    screen.recall(facts)
    if not screen.running:
        return
    async for event in link.events(facts[-1].seq):
        screen.event(event)
        if isinstance(event, RunFinished):
            return


def open_questions(facts: Iterable[AnyFact]) -> list[ApprovalRequested | InputRequested]:
    """What these facts leave unanswered."""
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


class Attached:
    """A terminal on a session that runs elsewhere."""

    def __init__(self, link: Link, folder: Path) -> None:
        from treadle.cli.chat_questions import Asking
        from treadle.cli.prompt import Line, Words
        from treadle.tools.builtin import build_default_tools

        self._link, self._folder = link, folder
        link.tell = self._say
        self._tools = {tool.name: tool for tool in build_default_tools()}
        self._asking = Asking()
        self._line = Line(sys.stdout, data_folder() / "history", Words(COMMANDS, folder), {"c-c": self._leave})
        self._screen = Screen(self._line)
        self._screen.asks_here = True
        self._asking.changed = self._line.interrupt
        self._tasks: set[asyncio.Task[None]] = set()
        self._draft = ""
        self._left = False

    def _leave(self) -> None:
        self._left = True
        self._line.leave()

    async def stay(self, facts: list[AnyFact]) -> None:
        """Until the person leaves."""
        # Between two prompts Ctrl-C is a signal.
        with acting(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._leave)), self._line.held():
            await self._stay(facts)
        on = " goes on without you" if self._screen.running else ""
        note(f"detached; session {self._link.session_id[:12]}{on}")

    async def _stay(self, facts: list[AnyFact]) -> None:
        self._screen.recall(facts)
        for question in open_questions(facts):
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
            watching.result()  # what it broke with

    async def _once(self) -> bool:
        """Read one line and do what it says; False when it says to leave."""
        from treadle.cli.gate import INERT
        from treadle.cli.prompt import ANSWER, PROMPT, Interrupted

        question = self._asking.first
        try:
            if question is None:
                text = await self._line.read(PROMPT, self._draft)
                self._draft = ""
                if text.startswith("/"):
                    self._echo(PROMPT, text)
                return await self._typed(text)
            if not question.shown:
                question.show(self._line, self._tools, self._folder)
            text = await self._line.read(ANSWER, inert=INERT, passing=True)
            self._echo(ANSWER, text)
            question.take(text, self._folder)
        except Interrupted as gave_way:
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
                if self._screen.running:
                    self._say(STEERS)
                try:
                    await self._link.send(text)
                except TreadleError:
                    self._draft = text  # to be sent again
                    raise
        return True

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._screen.tick()

    def _bring(self, question: ApprovalRequested | InputRequested) -> None:
        async def asked() -> None:
            while (answer := await self._asking(question)) is not None:
                try:
                    await self._link.answer(question, answer)
                except Unreachable as error:
                    self._tell(error)  # and it is asked again
                except TreadleError as error:  # somebody else was first
                    self._tell(error)
                    return
                else:
                    return

        task = asyncio.create_task(asked())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, after: int) -> None:
        try:
            async for event in self._link.events(after):
                self._screen.event(event)
                self._asking.event(event)
                if isinstance(event, ApprovalRequested | InputRequested):
                    self._bring(event)
        except TreadleError as error:
            self._tell(error)
        finally:
            self._line.leave()

    def _echo(self, label: str, text: str) -> None:
        self._say(harmless(f"{label}{text}"))

    def _say(self, text: str) -> None:
        self._line.aside(styled(text, "dim", self._line.colour))

    def _tell(self, error: TreadleError) -> None:
        self._line.line(styled(harmless(str(error)), "red", self._line.colour))
