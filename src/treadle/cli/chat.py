"""`treadle chat`: talk to an agent, steer it while it works and answer its questions. All state is in the log."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

from treadle import Run
from treadle.app.compose import open_keyring, open_store, set_progress_listener
from treadle.app.settings import LoadedSettings, Settings, data_folder
from treadle.cli.console import (
    Console,
    Notifier,
    capture_warnings,
    escape_controls,
    handle_signals,
    is_dumb_terminal,
    is_terminal,
    print_note,
    style_text,
)
from treadle.cli.message_content import build_message
from treadle.cli.open_session import OpenSession, open_session
from treadle.cli.options import Parser, SeveralValues, add_run_options, create_parser, load_command_settings
from treadle.cli.prompt import ANSWER, PROMPT, PromptCompleter, PromptConsole, PromptInterrupted
from treadle.cli.questions import INERT_SECONDS, OpenQuestion, QuestionQueue
from treadle.cli.screen import STEER_NOTE, TICK_SECONDS, Screen
from treadle.cli.slash_commands import COMMANDS, run_slash_command
from treadle.engine.state import State
from treadle.errors import BadInput, Conflict, TreadleError
from treadle.events import (
    ApprovalAnswered,
    Event,
    Fact,
    InputAnswered,
    MessageReceived,
    Progress,
    RunFinished,
    RunRequested,
    RunStarted,
)
from treadle.log.base import SessionQuery, Watch
from treadle.secrets.keyring import Keyring

EXAMPLES = """\
  treadle chat                          a new session in this folder
  treadle chat --continue               this folder's last session
  treadle chat --session 3f2a91         a certain one
  treadle chat --model ollama:qwen3 --access read-only

While it works, what you type steers it. Esc or Ctrl-C stops it, a second Ctrl-C leaves; /help shows the rest."""

POLL_SECONDS = 0.1
"""Seconds between two checks whether an ended run has been released."""

RECAP_MESSAGES = 2
POSTED_FACTS = (MessageReceived, RunRequested, ApprovalAnswered, InputAnswered)


def parser() -> Parser:
    made = create_parser("chat", "Talk to an agent. Leaving loses nothing; the way back is printed.", EXAMPLES)
    which = made.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID|NAME", default="", help="go on with this session")
    which.add_argument("--continue", dest="latest", action="store_true", help="go on with this folder's last session")
    made.add_argument("--name", metavar="NAME", default="", help="name the new session")
    made.add_argument(
        "--image", metavar="FILE", nargs="+", action=SeveralValues, default=[], help="with the first message"
    )
    add_run_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        raise BadInput('a chat needs a terminal; without one there is `treadle run "…"`')
    if is_dumb_terminal():
        raise BadInput("TERM says that this terminal only prints; a chat draws: use `treadle run --session`")
    build_message("", Path(), args.image)  # rejects invalid images before the chat starts
    return asyncio.run(_chat(args))


async def _chat(args: argparse.Namespace) -> int:
    loaded = load_command_settings(args)
    if args.latest:
        args.session = await _find_latest_session(loaded.settings)
    keyring = open_keyring(loaded.settings)
    following: str | None = None
    while following != "":
        following = await _one(args, loaded, keyring)
    return 0


async def _one(args: argparse.Namespace, loaded: LoadedSettings, keyring: Keyring) -> str:
    """Chat in one session. Return the id of the next session, or an empty string if the user left."""
    asking = QuestionQueue()
    async with AsyncExitStack() as stack:
        session = await open_session(stack, args, loaded, lambda agent, settings: asking, keyring, follow_up=True)
        args.session = await ChatTerminal(session, asking, args.image).talk()
        last = session.session.id[:12]
    args.image = list[str]()
    if not args.session:
        print_note(f"session {last} · come back with: treadle chat --session {last}")
    return args.session


async def _find_latest_session(settings: Settings) -> str:
    query = SessionQuery(workspace=str(settings.folder))
    async with open_store(settings) as log, aclosing(log.iterate_sessions(query)) as sessions:
        async for info in sessions:
            if info.parent is None or not info.parent.call_id:  # skips the sessions of helpers
                return info.id
    print_note(f"no session works in {settings.folder} yet; this is a new one")
    return ""


class ChatTerminal:
    """An interactive chat with one session in the terminal."""

    def __init__(self, opened_: OpenSession, asking: QuestionQueue, images: list[str]) -> None:
        self.opened, self.session = opened_, opened_.session
        self._asking, self._images = asking, images
        folder = opened_.settings.folder
        keys = {"c-c": self._stop_or_leave, "escape": self._stop}
        self._line = PromptConsole(sys.stdout, data_folder() / "history", PromptCompleter(COMMANDS, folder), keys)
        self.console: Console = self._line
        self.screen = Screen(self.console, window=opened_.model.window)
        self.screen.asks_here = True
        self._bell = Notifier(sys.stdout, opened_.settings.notify, opened_.settings.notify_after)
        self._run: Run | None = None
        self._rested = asyncio.Event()
        self._has_ended = False
        self._shown = 0
        self._idle_watch: Watch | None = None
        self._stopping: asyncio.Task[RunFinished | None] | None = None
        self._next: str | None = None
        self._draft = ""
        self._broken: BaseException | None = None
        self._warned = False
        asking.on_change = self._line.interrupt

    @property
    def is_running(self) -> bool:
        return self._run is not None

    @property
    def is_busy(self) -> bool:
        """Whether the agent works, as the user sees it. The release of a run may follow shortly after its shown end."""
        return self.is_running and not self._has_ended

    def write_note(self, text: str) -> None:
        """Write a line that is not part of the conversation."""
        self.console.write_aside(text if "\x1b[" in text and self.console.has_colour else escape_controls(text))

    def start_run(self, run: Run) -> None:
        """Start a run and show its events in the background."""
        self._run, self._has_ended = run, False
        self._rested.clear()
        if self._idle_watch is not None:
            self._idle_watch.close()

    def switch_session(self, session_id: str) -> None:
        """Leave this session and continue in another one. An empty id ends the chat."""
        self._next = session_id

    async def wait_until_idle(self, what: str) -> None:
        """Raise `Conflict` while the agent works. If the end of the run is recorded, wait until the run is released."""
        while self.is_running and self._next is None and (await self.session.state()).run is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._rested.wait(), POLL_SECONDS)
        if self.is_running:
            raise Conflict(f"it is working: stop it with Esc before you {what}")

    def parse_position(self, text: str) -> int:
        if not text.isdigit():
            raise BadInput(f"{text!r} is no position; positions are numbers from 1")
        return int(text)

    async def confirm(self, question: str) -> bool:
        """Ask the user for confirmation. Every answer except `y` and `yes` means no."""
        if self._next is not None:  # the user left before the question was ready
            return False
        try:
            text = await self._line.read(question, passing=True)
            self._echo(question, text)
            return text.strip().lower() in ("y", "yes")
        except (EOFError, PromptInterrupted):
            return False

    def set_draft(self, text: str) -> None:
        """Put a text into the prompt, so that the user can edit and send it."""
        self._draft = text

    async def talk(self) -> str:
        """Chat until the user leaves. Return the id of the next session, or an empty string."""
        # Install the handlers before taking over the terminal, so that its state is restored after a signal.
        with handle_signals({signal.SIGTERM: self._go, signal.SIGHUP: self._go}), self._line.hold_terminal():
            return await self._talk()

    async def _talk(self) -> str:
        self._shown = await self._recap()
        state = await self.session.state()
        self._heed(asyncio.get_running_loop())
        if _has_work(state):
            self.write_note("taking up what was left unfinished")
            self.start_run(self.session.resume())
        background = [self._begun(self._follow()), self._begun(self._tick())]
        try:
            # Ctrl-C arrives as a signal when no prompt is active.
            with handle_signals({signal.SIGINT: self._stop_or_leave}), capture_warnings(self.write_note):
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
        """End the chat with the error of a failed background task. The chat cannot show events without these tasks."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broken = error
            self._go()

    def _heed(self, loop: asyncio.AbstractEventLoop) -> None:
        def tell(message: str, done: float, total: float) -> None:
            loop.call_soon_threadsafe(self.screen.handle_event, Progress(message, done=done, total=total))

        set_progress_listener(self.opened.model, tell)

    async def _recap(self) -> int:
        """Show model, access and folder, then the latest messages. Return the position of the last fact."""
        settings = self.opened.settings
        for text in self.opened.notes:
            self.write_note(text)
        self.write_note(f"treadle · {self.opened.model.name} · {settings.access} access · {settings.folder}")
        facts = await self.session.facts()
        said = [fact.seq for fact in facts if isinstance(fact, MessageReceived)]
        if said:
            if len(said) > RECAP_MESSAGES:
                self.write_note(
                    f"… {len(said) - RECAP_MESSAGES} messages before; treadle sessions show {self.session.id[:12]}"
                )
            self.screen.show_history(facts, RECAP_MESSAGES)
        else:
            self.write_note("type a message; /help shows what else there is")
        return facts[-1].seq

    async def _once(self) -> None:
        """Read one line and execute it."""
        question = self._asking.first
        if question is not None and not question.is_shown:
            self._bell.notify("treadle needs you")
            question.show(self.console, self.opened.agent.toolbox, self.opened.settings.folder)
        try:
            if question is None:
                text = await self._line.read(PROMPT, self._draft)
            else:
                text = await self._line.read(ANSWER, inert=INERT_SECONDS, passing=True)
        except PromptInterrupted as gave_way:
            self._draft = self._draft if question else gave_way.draft
            return
        except EOFError:
            self._next = ""
            return
        self._bell.mark_active()
        self._warned = False
        try:
            await self._typed(text, question)
        except TreadleError as error:
            self.write_note(style_text(escape_controls(str(error)), "red", self.console.has_colour))

    async def _typed(self, text: str, question: OpenQuestion | None) -> None:
        if question is not None:
            self._echo(ANSWER, text)
            question.accept_answer(text, self.opened.settings.folder)
            if question.settled.done() and question.settled.result() is None:
                self.write_note(
                    "it waits: it is asked again with your next message, and answered with `treadle approvals`"
                )
            return
        self._draft = ""
        if not text.strip():
            return
        if text.startswith("/"):
            self._echo(PROMPT, text)
            await run_slash_command(self, text)
            return
        parts = build_message(text, self.opened.settings.folder, self._images)
        self._images = []
        if self.is_busy:
            self.write_note(style_text(STEER_NOTE, "dim", self.console.has_colour))
        if self.is_running:
            await self.session.send(parts)
        else:
            self.start_run(self.session.run(parts))

    def _echo(self, label: str, text: str) -> None:
        """Write the typed text to the scrollback. Used where no event shows the text."""
        self.write_note(style_text(escape_controls(f"{label}{text}"), "dim", self.console.has_colour))

    async def _follow(self) -> None:
        """Show every event of the session. Only one watch is open at a time: of a run, or of the idle session."""
        while True:
            if self._run is None:
                self._rested.set()
                await self._wait_for_post()
            if self._run is not None:
                self._run = await self._follow_run(self._run)

    async def _wait_for_post(self) -> None:
        """Show the events of the idle session until the next run starts."""
        watch = self._idle_watch = self.session.watch(self._shown)
        try:
            async for event in watch:
                self._show(event)
                if isinstance(event, POSTED_FACTS) and self._run is None:
                    self.start_run(self.session.resume())  # another client posted it, and no other process runs it
        finally:
            self._idle_watch = None
            watch.close()

    async def _follow_run(self, run: Run) -> Run | None:
        """Show a run until it ends or waits for an answer. Return the next run if work is left."""
        try:
            run.watch_from(self._shown)
            async with run:
                async for event in run:
                    self._show(event)
            if run.outcome is not None and _has_work(await self.session.state()):
                return self.session.resume()
        except TreadleError as error:
            self.write_note(style_text(escape_controls(f"{error}"), "red", self.console.has_colour))
        return None

    def _show(self, event: Event) -> None:
        self.screen.handle_event(event)
        self._asking.handle_event(event)
        if isinstance(event, Fact):
            self._shown = event.seq
        if isinstance(event, RunStarted | RunFinished):
            self._has_ended = isinstance(event, RunFinished)
        if isinstance(event, RunFinished):
            self._bell.notify(f"treadle: {event.reason}")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.screen.redraw_status()

    def _stop(self) -> None:
        if self.is_busy and (self._stopping is None or self._stopping.done()):
            self.write_note(style_text("stopping …", "dim", self.console.has_colour))
            self._stopping = asyncio.create_task(self.session.cancel(why="stopped at the terminal"))

    def _stop_or_leave(self) -> None:
        if self.is_busy and (self._stopping is None or self._stopping.done()):
            self._stop()
            self._warned = True
        elif self._line.draft and not self.is_busy:
            self._line.clear()
            self._warned = False
        elif self.is_busy or self._warned:
            self._go()
        else:
            self._warned = True
            self.write_note(style_text("Ctrl-C again, or Ctrl-D, leaves", "dim", self.console.has_colour))

    def _go(self) -> None:
        self._next = ""
        self._line.leave()

    async def _leave(self, background: list[asyncio.Task[None]]) -> None:
        """Stop the run and show its end. Open questions stay open."""
        tasks = [*background, *([self._stopping] if self._stopping is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(TreadleError):
            for fact in await self.session.facts(self._shown):
                self._show(fact)


def _has_work(state: State) -> bool:
    """Whether a run is unfinished or the queue has messages that are not held."""
    return state.run is not None or (bool(state.queue) and not state.held)
