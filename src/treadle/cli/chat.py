"""`treadle chat`: talk to an agent, steer it while it works and answer its questions. All state is in the log."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from textwrap import wrap

from treadle import Run, __version__, events
from treadle.app.compose import open_keyring, set_progress_listener
from treadle.app.git_branch import read_branch
from treadle.app.session_access import describe_access, find_plan
from treadle.app.session_worktree import describe_next_steps
from treadle.cli.approval_text import shorten_home
from treadle.cli.chat_access import cycle_access, offer_plan
from treadle.cli.choose_session import choose_session
from treadle.cli.console import Notifier, escape_controls, is_dumb_terminal, is_terminal, measure_width, print_note
from treadle.cli.find_session import find_latest_session
from treadle.cli.first_start import offer_first_start
from treadle.cli.interactive import InteractiveTerminal
from treadle.cli.message_content import build_message
from treadle.cli.open_session import OpenSession, open_session
from treadle.cli.options import (
    Parser,
    add_message_options,
    add_run_options,
    create_parser,
    is_message,
    load_command_settings,
    take_back_word,
)
from treadle.cli.questions import QuestionQueue
from treadle.cli.slash_commands import COMMANDS, read_custom_commands, run_slash_command
from treadle.cli.status_script import StatusScript
from treadle.cli.terminal.status_line import ACCESS_ROLES, StatusFact, render_status
from treadle.engine.state import State
from treadle.errors import BadInput, Conflict, MessageRefused, MessageStopped, TreadleError
from treadle.events import Tier
from treadle.log.base import Watch
from treadle.messages import Part
from treadle.secrets.keyring import Keyring

EXAMPLES = """\
  treadle chat                          a new session in this folder; `treadle` alone does the same
  treadle chat "why is the build red?"  the same, with a first message
  treadle chat --continue               the last session of this folder
  treadle chat --resume                 choose one of the last sessions
  treadle chat --session 3f2a91         an existing session
  treadle chat --worktree               work on a branch, in a folder of its own
  treadle chat --model ollama:qwen3 --access read-only

Messages that you send while the agent works steer it. Esc or Ctrl-C stops it. A second Ctrl-C leaves.
/help shows the slash commands."""

POLL_SECONDS = 0.1
"""Seconds between two checks whether an ended run has been released."""

STATUS_SECONDS = 1.0
"""Seconds between two looks at the branch and the user's own status line."""

RECAP_MESSAGES = 2
HOOK_HINT = "  hooks read the message · Esc stops them"
HOOK_HINT_SECONDS = 0.5
"""Seconds after which a hint says that hooks read a message. It is not stored yet, and no run shows that it works."""

REWIND_HINT = "  Esc again goes back to before a message"
POSTED_FACTS = (events.MessageReceived, events.RunRequested, events.ApprovalAnswered, events.InputAnswered)


def parser() -> Parser:
    options = create_parser("chat", "Talk to an agent. Everything is recorded, so you can leave at any time.", EXAMPLES)
    options.add_argument("prompt", nargs="?", metavar="MESSAGE", help="the first message")
    add_message_options(options, with_picker=True)
    add_run_options(options)
    return options


async def main(args: argparse.Namespace) -> int:
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        raise BadInput('a chat needs a terminal; without one, use `treadle run "…"`')
    if is_dumb_terminal():
        raise BadInput("a chat cannot be drawn here (TERM=dumb or TREADLE_PLAIN); use `treadle run --session`")
    build_message("", Path(), args.image)  # rejects invalid images before the chat starts
    loaded = load_command_settings(args)
    if args.latest or args.resume:
        find = choose_session if args.resume else find_latest_session
        args.session = await find(loaded.settings)
        if not args.session:
            print_note(f"there is no session in {loaded.settings.folder} yet; this is a new one")
    prompt = args.prompt or take_back_word(args, "approve", "forbid", "image", is_no_value=is_message) or ""
    keyring = open_keyring(loaded.settings)
    loaded = await offer_first_start(args, loaded, keyring)
    while True:
        questions = QuestionQueue()
        async with AsyncExitStack() as stack:
            opened = await open_session(stack, args, loaded, questions, keyring, follow_up=True)
            terminal = ChatTerminal(opened, questions, args.image, keyring)
            terminal.first_message, prompt = prompt, ""
            await terminal.interact()
        if not terminal.next_session:
            last = opened.session.id[:12]
            print_note(f"session {last} · continue with: treadle chat --session {last}")
            if opened.worktree is not None:
                print_note(describe_next_steps(opened.worktree, opened.session.id))
            return 0
        args.session, args.image, args.worktree_name = terminal.next_session, list[str](), None


class ChatTerminal(InteractiveTerminal):
    """An interactive chat with one session in the terminal. `next_session` is where the chat continues after it."""

    postponed_note = (
        "the question stays open: it is asked again with your next message, and `treadle approvals` can answer it"
    )

    def __init__(self, opened: OpenSession, questions: QuestionQueue, images: list[str], keyring: Keyring) -> None:
        settings = opened.settings
        commands = {**COMMANDS, **read_custom_commands(settings.folder).describe()}
        super().__init__(questions, commands, opened.agent.toolbox, settings.folder)
        self.opened, self.session = opened, opened.session
        self.next_session = self.first_message = ""
        self.model_name = opened.model.name
        self.screen.window = opened.model.window
        self.screen.retry_keys = "Enter: now, Esc: stop"
        self.notifier = Notifier(sys.stdout, settings.notify, settings.notify_after)
        self.keyring = keyring
        self.access: Tier = opened.access
        self._changing_access = asyncio.Lock()
        self._status_script = StatusScript(settings.terminal.status_command)
        self._branch = read_branch(settings.folder)
        self._images = images
        self._run: Run | None = None
        self._run_released = asyncio.Event()
        self._has_ended = False
        self._shown_seq = 0
        self._idle_watch: Watch | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._sent_text = ""

    @property
    def is_running(self) -> bool:
        return self._run is not None

    @property
    def is_busy(self) -> bool:
        """Whether the agent works, as the user sees it. The release of a run may follow shortly after its shown end."""
        return self.is_running and not self._has_ended

    def start_run(self, run: Run) -> None:
        """Start a run and show its events in the background."""
        self._run, self._has_ended = run, False
        self._run_released.clear()
        if self._idle_watch is not None:
            self._idle_watch.close()

    def switch_session(self, session_id: str) -> None:
        """Leave this session and continue in another one. An empty id ends the chat."""
        self.next_session, self.has_left = session_id, True

    def leave(self) -> None:
        """End the chat, even if it was about to continue in another session."""
        self.next_session = ""
        super().leave()

    async def wait_until_idle(self, action: str) -> None:
        """Raise `Conflict` while the agent works. If the end of the run is recorded, wait until the run is released."""
        while self.is_running and not self.has_left and (await self.session.state()).run is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._run_released.wait(), POLL_SECONDS)
        if self.is_running:
            raise Conflict(f"the agent is working: stop it with Esc before you {action}")

    async def show_start(self) -> None:
        """Show folder, model and access, then the latest messages. Resume unfinished work."""
        facts = await self.session.facts()
        self.console.write_block("\n".join(self._render_banner(facts)), "message")
        for text in self.opened.notes:
            self.write_note(text)
        count = sum(isinstance(fact, events.MessageReceived) for fact in facts)
        if count > RECAP_MESSAGES:
            more = f"… {count - RECAP_MESSAGES} earlier messages"
            self.write_note(f"{more}; show them with: treadle sessions show {self.session.id[:12]}")
        self.has_messages = bool(count)
        self.show_history(facts if count else (), RECAP_MESSAGES)
        self._shown_seq = facts[-1].seq
        self.start_task(self.follow_status())
        set_progress_listener(self.opened.model, self.screen.handle_event)
        if _has_work(await self.session.state()):
            self.write_note("resuming unfinished work")
            self.start_run(self.session.resume())
        if self.first_message:
            try:
                await self.handle_text(self.first_message)
            except TreadleError as error:
                self.write_note(str(error), "red")
                self.console.draft = self.first_message

    def _render_banner(self, facts: Sequence[events.AnyFact]) -> list[str]:
        """Render name and folder, model and why it was chosen, access and what it allows. Long reasons stand below."""
        theme, settings, opened = self.console.theme, self.opened.settings, self.opened
        lines = [f"{theme.paint('treadle', 'pick')} {__version__}  {escape_controls(shorten_home(settings.folder))}"]
        rows = [("model", opened.model.name, opened.model_reason)]
        messages = sum(isinstance(fact, events.MessageReceived) for fact in facts)
        if messages:
            name = next((fact.name for fact in reversed(facts) if isinstance(fact, events.SessionRenamed)), "")
            rows.append(("session", name or self.session.id[:12], f"{messages} message{'s' if messages > 1 else ''}"))
        rows.append(("access", self.access, describe_access(self.access, settings.network)))
        column = max(len(name) for name, _, _ in rows)
        for name, value, why in rows:
            value, why = escape_controls(value), escape_controls(why)
            room = max(20, self.console.width - column - 5)
            fits = measure_width(value) + 2 + measure_width(why) <= room
            beside, below = (why, []) if fits else ("", wrap(why, room))
            head = f"  {theme.paint(f'{name:<{column}}', 'quiet')}  {value}  {theme.paint(beside, 'quiet')}"
            lines += [head.rstrip(), *(f"{' ' * (column + 4)}{theme.paint(line, 'quiet')}" for line in below)]
        return lines

    def describe_status(self, columns: int) -> str:
        if self._status_script.line:
            return f"  {self._status_script.line}"
        facts = [StatusFact(self.access, ACCESS_ROLES.get(self.access, "")), StatusFact(self.model_name)]
        known = self.screen.status_facts()
        if known.context_share:
            role = "warn" if known.context_share >= 0.8 else "quiet"
            facts.append(StatusFact(f"{known.context_share:.0%} context", role))
        if known.cost:
            facts.append(StatusFact(f"${known.cost:.2f}"))
        if self._branch:
            facts.append(StatusFact(self._branch))
        return render_status(facts, self.console.theme, columns)

    async def follow_status(self) -> None:
        """Keep the branch and the user's own status line up to date."""
        while True:
            self._branch = await asyncio.to_thread(read_branch, self.opened.settings.folder)
            known = self.screen.status_facts()
            problem = await self._status_script.update(
                {
                    "session": self.session.id,
                    "folder": str(self.opened.settings.folder),
                    "model": self.model_name,
                    "access": self.access,
                    "context": known.context_share,
                    "cost": known.cost,
                    "branch": self._branch,
                    "is_busy": self.is_busy,
                }
            )
            if problem:
                self.write_note(problem)
            self.console.redraw()
            await asyncio.sleep(STATUS_SECONDS)

    def handle_shift_tab(self) -> None:
        """Go to the next access mode."""
        self.start_action(self._cycle_access())

    async def _cycle_access(self) -> None:
        async with self._changing_access:
            await cycle_access(self)

    async def handle_text(self, text: str) -> None:
        if text.startswith("/"):
            await run_slash_command(self, text)
            return
        if text.startswith("!"):
            await self.wait_until_idle("run a command")
            self.start_run(self.session.run_command(text[1:].strip()))
            return
        self._sent_text = text
        parts = build_message(text, self.opened.settings.folder, self._images)
        self._images = []
        await self.send_message(parts)

    async def send_message(self, parts: list[Part]) -> None:
        """Send a message: to the current run, or to a new one."""
        self.console.ghost = ""
        if self.is_running:
            await self.session.send(parts)
        else:
            self.start_run(self.session.run(parts))

    async def retry_now(self) -> None:
        await self.session.retry_now()

    async def follow_events(self) -> None:
        """Show every event of the session. Only one watch is open at a time: of a run, or of the idle session."""
        while True:
            if self._run is None:
                self._run_released.set()
                await self._wait_for_post()
            if self._run is not None:
                self._run = await self._follow_run(self._run)

    async def _wait_for_post(self) -> None:
        """Show the events of the idle session until the next run starts."""
        watch = self._idle_watch = self.session.watch(self._shown_seq)
        try:
            async for event in watch:
                self.show_event(event)
                if isinstance(event, POSTED_FACTS) and self._run is None:
                    self.start_run(self.session.resume())  # another client posted it, and no other process runs it
        finally:
            self._idle_watch = None
            watch.close()

    async def _follow_run(self, run: Run) -> Run | None:
        """Show a run until it ends or waits for an answer. Return the next run if work is left."""
        hint = asyncio.get_running_loop().call_later(HOOK_HINT_SECONDS, self.console.set_hint, HOOK_HINT)
        try:
            run.watch_from(self._shown_seq)
            async with run:
                self._end_hook_hint(hint)
                async for event in run:
                    self.show_event(event)
            if run.outcome is not None and _has_work(await self.session.state()):
                return self.session.resume()
        except TreadleError as error:
            self.write_note(str(error), "red")
            if isinstance(error, MessageRefused | MessageStopped):  # the user can change it and send it again
                self.console.draft = self.console.draft or self._sent_text
        finally:
            self._end_hook_hint(hint)
        return None

    def _end_hook_hint(self, hint: asyncio.TimerHandle) -> None:
        hint.cancel()
        if self.console.hint == HOOK_HINT:
            self.console.set_hint("")

    def show_event(self, event: events.Event) -> None:
        super().show_event(event)
        if isinstance(event, events.Fact):
            self._shown_seq = event.seq
        if isinstance(event, events.RunStarted | events.RunFinished):
            self._has_ended = isinstance(event, events.RunFinished)
        if isinstance(event, events.RunFinished):
            self.notifier.notify(f"treadle: {event.reason}")
            self.console.ghost = "/continue" if event.can_continue and event.reason != "answered" else ""
            if event.reason == "answered" and self.console.queue.kept:
                self.start_task(self._send_kept())
            elif plan := find_plan(event, self.access):
                self.start_action(offer_plan(self, plan))

    async def _send_kept(self) -> None:
        """Send the first message that was kept until the run had ended."""
        text = self.console.queue.take()
        try:
            await self.wait_until_idle("send it")
            await self.handle_text(text)
        except TreadleError as error:
            self.write_note(str(error), "red")
            self.console.queue.kept.insert(0, text)

    def handle_escape(self) -> None:
        """Stop the run. When the agent is idle and the input is empty, the second Escape opens the rewind picker."""
        if self.is_busy:
            if self._stopping is None or self._stopping.done():
                self._stopping = self.start_action(self.session.cancel(why="stopped at the terminal"))
        elif not self.console.draft and self.console.hint == REWIND_HINT:
            self.console.set_hint("")
            self.start_action(run_slash_command(self, "/rewind"))
        elif not self.console.draft and self.has_messages:
            self.console.set_hint(REWIND_HINT)

    def handle_ctrl_c(self) -> None:
        """Stop the run, clear the draft, or leave."""
        if self.is_busy and (self._stopping is None or self._stopping.done()):
            self.handle_escape()
            self.is_leave_announced = True
        elif self.console.draft and not self.is_busy:
            self.console.clear_draft()
            self.is_leave_announced = False
        elif self.is_busy or self.is_leave_announced:
            self.leave()
        else:
            self.is_leave_announced = True
            self.console.set_hint("  press Ctrl-C again, or Ctrl-D, to leave")

    async def show_end(self) -> None:
        """Show the facts that were recorded since the last shown one. The run is stopped, its questions stay open."""
        with suppress(TreadleError):
            for fact in await self.session.facts(self._shown_seq):
                self.show_event(fact)


def _has_work(state: State) -> bool:
    """Whether a run is unfinished or the queue has messages that are not held."""
    return state.run is not None or (bool(state.queue) and not state.is_held)
