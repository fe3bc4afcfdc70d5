"""`treadle chat`: talk to an agent, steer it while it works, answer what it asks. The log is the only memory."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

from treadle import Run
from treadle.app.settings import data_folder, heed, open_store
from treadle.cli.chat_questions import Asking, Open
from treadle.cli.console import Bell, Stage
from treadle.cli.find_session import each
from treadle.cli.gate import INERT
from treadle.cli.log_capture import heard
from treadle.cli.message_content import message_of
from treadle.cli.open_session import Opened, opened
from treadle.cli.options import Parser, Several, add_options, parser_of, settings_of
from treadle.cli.prompt import ANSWER, PROMPT, Interrupted, Line, Words
from treadle.cli.screen import STEERS, TICK, Screen
from treadle.cli.signals import acting
from treadle.cli.slash_commands import COMMANDS, obey
from treadle.cli.terminal_text import harmless, is_dumb, is_terminal, note, styled
from treadle.engine.session_name import name_session
from treadle.errors import BadInput, Conflict, TreadleError
from treadle.events import (
    ApprovalAnswered,
    InputAnswered,
    MessageReceived,
    Progress,
    RunFinished,
    RunRequested,
    RunStarted,
)
from treadle.knowledge.skill_drafts import Drafts
from treadle.log.base import SessionQuery

EXAMPLES = """\
  treadle chat                          a new session in this folder
  treadle chat --continue               this folder's last session
  treadle chat --session 3f2a91         a certain one
  treadle chat --model ollama:qwen3 --access read-only

While it works, what you type steers it. Esc or Ctrl-C stops it, a second Ctrl-C leaves; /help shows the rest."""

GLANCE = 0.1
"""Seconds between two looks whether a run that has ended is let go."""

RECAP = 2
POSTED = (MessageReceived, RunRequested, ApprovalAnswered, InputAnswered)


def parser() -> Parser:
    made = parser_of("chat", "Talk to an agent. Leaving loses nothing; the way back is printed.", EXAMPLES)
    which = made.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID|NAME", default="", help="go on with this session")
    which.add_argument("--continue", dest="latest", action="store_true", help="go on with this folder's last session")
    made.add_argument("--name", metavar="NAME", default="", help="name the new session")
    made.add_argument("--image", metavar="FILE", nargs="+", action=Several, default=[], help="with the first message")
    add_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        raise BadInput('a chat needs a terminal; without one there is `treadle run "…"`')
    if is_dumb():
        raise BadInput("TERM says that this terminal only prints; a chat draws: use `treadle run --session`")
    message_of("", Path(), args.image)  # what is no image is told before anything is said
    return asyncio.run(_chat(args))


async def _chat(args: argparse.Namespace) -> int:
    if args.latest:
        args.session = await _latest(args)
    following: str | None = None
    while following != "":
        following = await _one(args)
    return 0


async def _one(args: argparse.Namespace) -> str:
    """Chat in one session; the one to go on with, or nothing when the person left."""
    asking = Asking()
    async with opened(args, lambda agent, settings: asking, args.name) as session:
        args.session = await Chat(session, asking, args.image).talk()
        last = session.session.id[:12]
    args.image = list[str]()
    if not args.session:
        note(f"session {last} · come back with: treadle chat --session {last}")
    return args.session


async def _latest(args: argparse.Namespace) -> str:
    settings = settings_of(args).settings
    log = open_store(settings)
    found = ""
    try:
        async with aclosing(each(log, SessionQuery(workspace=str(settings.folder)))) as sessions:
            async for info in sessions:
                if info.parent is None or not info.parent.call_id:  # a helper's is nobody's to talk to
                    found = info.id
                    break
    finally:
        await log.close()
    if not found:
        note(f"no session works in {settings.folder} yet; this is a new one")
    return found


class Chat:
    """One session at the terminal."""

    def __init__(self, opened_: Opened, asking: Asking, images: list[str]) -> None:
        self.opened, self.session = opened_, opened_.session
        self._asking, self._images = asking, images
        folder = opened_.settings.folder
        keys = {"c-c": self._stop_or_leave, "escape": self._stop}
        self._line = Line(sys.stdout, data_folder() / "history", Words(COMMANDS, folder), keys)
        self.stage: Stage = self._line
        self.screen = Screen(self.stage, window=opened_.model.window)
        self.screen.asks_here = True
        if opened_.settings.auto_name:
            opened_.runtime.after_answer.append(name_session)
        if opened_.settings.skill_autogen:
            opened_.runtime.after_answer.append(Drafts(opened_.library))
        self._bell = Bell(sys.stdout, opened_.settings.notify, opened_.settings.notify_after)
        self._driver: asyncio.Task[None] | None = None
        self._over: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[RunFinished | None] | None = None
        self._next: str | None = None
        self._draft = ""
        self._posted = 0
        self._broken: BaseException | None = None
        self._warned = False
        asking.changed = self._line.interrupt

    @property
    def running(self) -> bool:
        return self._driver is not None and not self._driver.done()

    @property
    def busy(self) -> bool:
        """Whether it works, as the person sees it: a run whose end was shown may take a moment to be let go."""
        return self.running and self._over is not self._driver

    def tell(self, text: str) -> None:
        """A line beside the conversation."""
        self.stage.aside(text if "\x1b[" in text and self.stage.colour else harmless(text))

    def begin(self, run: Run) -> None:
        """Drive a run in the background; the events show themselves."""
        self._driver = self._begun(self._drive(run))

    def switch(self, session_id: str) -> None:
        """Leave this session, for another or for good."""
        self._next = session_id

    async def at_rest(self, what: str) -> None:
        """Refuse what cannot be done while it works. A run whose end is recorded is waited for until it is let go."""
        while self._driver is not None and self.running and self._next is None:
            if (await self.session.state()).run is not None:
                break
            await asyncio.wait((self._driver,), timeout=GLANCE)
        if self.running:
            raise Conflict(f"it is working: stop it with Esc before you {what}")

    def position(self, text: str) -> int:
        if not text.isdigit():
            raise BadInput(f"{text!r} is no position; positions are numbers from 1")
        return int(text)

    async def confirmed(self, question: str) -> bool:
        """Whether the person says yes; anything else is a no."""
        if self._next is not None:  # told to leave while this was made ready
            return False
        try:
            text = await self._line.read(question, passing=True)
            self._echo(question, text)
            return text.strip().lower() in ("y", "yes")
        except (EOFError, Interrupted):
            return False

    def propose(self, text: str) -> None:
        """Put a text on the line, to be changed and sent."""
        self._draft = text

    async def talk(self) -> str:
        """Until the person leaves; the session to go on with, if it is another one."""
        # Heeded before the terminal is taken in hand: whatever ends us, it is given back.
        with acting({signal.SIGTERM: self._go, signal.SIGHUP: self._go}), self._line.held():
            return await self._talk()

    async def _talk(self) -> str:
        shown = await self._recap()
        state = await self.session.state()
        self._heed(asyncio.get_running_loop())
        background = [self._begun(self._show(shown)), self._begun(self._tick())]
        if state.run is not None or (state.queue and not state.held):
            self.tell("taking up what was left unfinished")
            self.begin(self.session.resume())
        try:
            # Between two prompts Ctrl-C is a signal.
            with acting({signal.SIGINT: self._stop_or_leave}), heard(self.tell):
                while self._next is None:
                    await self._once()
        finally:
            await self._leave(background)
        if self._broken is not None:
            raise self._broken
        return self._next

    def _begun(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What a task broke with ends the chat and is told: without that task it would be blind or mute."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broken = error
            self._go()

    def _heed(self, loop: asyncio.AbstractEventLoop) -> None:
        def tell(message: str, done: float, total: float) -> None:
            loop.call_soon_threadsafe(self.screen.event, Progress(message, done=done, total=total))

        heed(self.opened.model, tell)

    async def _recap(self) -> int:
        """Say where we are, and show the end of what was said before; the position that was reached."""
        settings = self.opened.settings
        for text in self.opened.notes:
            self.tell(text)
        self.tell(f"treadle · {self.opened.model.name} · {settings.access} access · {settings.folder}")
        facts = await self.session.facts()
        said = [fact.seq for fact in facts if isinstance(fact, MessageReceived)]
        if said:
            if len(said) > RECAP:
                self.tell(f"… {len(said) - RECAP} messages before; treadle sessions show {self.session.id[:12]}")
            self.screen.recall(facts, RECAP)
        else:
            self.tell("type a message; /help shows what else there is")
        return facts[-1].seq

    async def _once(self) -> None:
        """Read one line and do what it says."""
        question = self._asking.first
        if question is not None and not question.shown:
            self._bell.ring("treadle needs you")
            question.show(self.stage, self.opened.agent.toolbox, self.opened.settings.folder)
        try:
            if question is None:
                text = await self._line.read(PROMPT, self._draft)
            else:
                text = await self._line.read(ANSWER, inert=INERT, passing=True)
        except Interrupted as gave_way:
            self._draft = self._draft if question else gave_way.draft
            return
        except EOFError:
            self._next = ""
            return
        self._bell.touched()
        self._warned = False
        try:
            await self._typed(text, question)
        except TreadleError as error:
            self.tell(styled(harmless(str(error)), "red", self.stage.colour))

    async def _typed(self, text: str, question: Open | None) -> None:
        if question is not None:
            self._echo(ANSWER, text)
            question.take(text, self.opened.settings.folder)
            if question.settled.done() and question.settled.result() is None:
                self.tell("it waits: it is asked again with your next message, and answered with `treadle approvals`")
            return
        self._draft = ""
        if not text.strip():
            return
        if text.startswith("/"):
            self._echo(PROMPT, text)
            await obey(self, text)
            return
        parts = message_of(text, self.opened.settings.folder, self._images)
        self._images = []
        if self.busy:
            self.tell(styled(STEERS, "dim", self.stage.colour))
        if self.running:
            await self.session.send(parts)
        else:
            self.begin(self.session.run(parts))

    def _echo(self, label: str, text: str) -> None:
        """Leave what was typed in the scrollback, where no event does."""
        self.tell(styled(harmless(f"{label}{text}"), "dim", self.stage.colour))

    async def _drive(self, run: Run) -> None:
        try:
            seen = -1
            while True:
                async with run:
                    await run.wait()
                state = await self.session.state()
                rests = state.run is None and (not state.queue or state.held)
                waits = bool(run.pending) and state.pending == run.pending
                if (rests or waits or state.seq == seen) and self._posted <= state.seq:
                    return
                seen, run = state.seq, self.session.resume()
        except TreadleError as error:
            self.tell(styled(harmless(f"{error}"), "red", self.stage.colour))

    async def _show(self, after: int) -> None:
        watch = self.session.watch(after)
        try:
            async for event in watch:
                self.screen.event(event)
                self._asking.event(event)
                if isinstance(event, POSTED):
                    self._posted = event.seq
                    if not self.running:
                        self.begin(self.session.resume())  # posted by somebody else, and nobody else runs it
                if isinstance(event, RunStarted | RunFinished):
                    self._over = self._driver if isinstance(event, RunFinished) else None
                if isinstance(event, RunFinished):
                    self._bell.ring(f"treadle: {event.reason}")
        finally:
            watch.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.screen.tick()

    def _stop(self) -> None:
        if self.busy and (self._stopping is None or self._stopping.done()):
            self.tell(styled("stopping …", "dim", self.stage.colour))
            self._stopping = asyncio.create_task(self.session.cancel(why="stopped at the terminal"))

    def _stop_or_leave(self) -> None:
        if self.busy and (self._stopping is None or self._stopping.done()):
            self._stop()
            self._warned = True
        elif self._line.draft and not self.busy:
            self._line.clear()
            self._warned = False
        elif self.busy or self._warned:
            self._go()
        else:
            self._warned = True
            self.tell(styled("Ctrl-C again, or Ctrl-D, leaves", "dim", self.stage.colour))

    def _go(self) -> None:
        self._next = ""
        self._line.leave()

    async def _leave(self, background: list[asyncio.Task[None]]) -> None:
        """Stop what is under way and show its end. What waits for an answer stays open."""
        tasks = [task for task in (self._driver, self._stopping) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
