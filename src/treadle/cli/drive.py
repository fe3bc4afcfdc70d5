"""Driving a run for a one-shot command: events to the screen or as JSON lines, Ctrl-C, and what it all came to."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Literal, Protocol, TextIO

from treadle import Agent, Answer, ApprovalRequested, InputRequested, Run, RunFinished, Session, later
from treadle.app.settings import Settings, heed
from treadle.cli.console import Bell, Terminal
from treadle.cli.gate import TerminalGate, refuse
from treadle.cli.log_capture import heard
from treadle.cli.open_session import Gate, Opened, opened
from treadle.cli.report import Report, Tally, not_run
from treadle.cli.screen import TICK, Screen
from treadle.cli.signals import acting
from treadle.cli.terminal_text import harmless, is_terminal, silence, styled
from treadle.errors import BadInput, TreadleError
from treadle.events import Event, MessageReceived, Progress, SessionCreated, encode
from treadle.messages import Json, render_parts

Mode = Literal["screen", "json", "jsonl"]
NAME = 48


class Sink(Protocol):
    """Something that is shown events."""

    def event(self, event: Event) -> None: ...


class Lines:
    """Every event as a line of JSON. Where they are only `beside` the document, nobody needs to read them."""

    def __init__(self, stream: TextIO, *, beside: bool = False) -> None:
        self._stream, self._beside = stream.buffer, beside

    def event(self, event: Event) -> None:
        try:
            self._stream.write(encode(event) + b"\n")
            self._stream.flush()
        except OSError:  # its reader has gone, or its disk is full
            if not self._beside:
                raise
            silence(sys.stderr)


async def follow(session: Session, run: Run, after: int, *sinks: Sink) -> RunFinished | None:
    """Let a run go on to its end, and show every event after a position, also those from before it began."""
    watch = session.watch(after)

    async def pump() -> None:
        async for event in watch:
            for sink in sinks:
                sink.event(event)

    pumping = asyncio.create_task(pump())
    try:
        outcome = await run.wait()
        watch.stop_at(outcome.seq if outcome is not None else (await session.state()).seq)
        await pumping
        return outcome
    finally:
        watch.close()
        await asyncio.gather(pumping, return_exceptions=True)


@asynccontextmanager
async def stopping(session: Session) -> AsyncGenerator[None]:
    """Ctrl-C, SIGTERM and a terminal that goes away stop the run and wait until that is recorded.

    A second Ctrl-C or SIGTERM leaves at once.
    """
    task = asyncio.current_task()
    asked: list[asyncio.Task[RunFinished | None]] = []

    def stop() -> None:
        if asked and task is not None:
            task.cancel()
        asked.append(asyncio.ensure_future(session.cancel(why="stopped at the terminal")))

    def hang_up() -> None:  # it may come twice, from the terminal and from the shell
        if not asked:
            asked.append(asyncio.ensure_future(session.cancel(why="the terminal went away")))

    try:
        with acting({signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: hang_up}):
            yield
    finally:
        await asyncio.gather(*asked, return_exceptions=True)


class Show:
    """How a one-shot command shows itself and how it asks, by its options and by who looks."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.mode: Mode = "json" if args.json else "jsonl" if args.jsonl else "screen"
        self.stream = sys.stdout if is_terminal(sys.stdout) else sys.stderr
        self.stage = Terminal(self.stream, beside=self.stream is not sys.stdout)
        self.bell = Bell(self.stream, "off", 0)
        self.tally = Tally()
        self._gate: TerminalGate | None = None
        self._later = bool(args.ask_later)
        self._asks = self.mode == "screen" and is_terminal(self.stream) and is_terminal(sys.stdin)

    def gate_for(self, agent: Agent, settings: Settings) -> Gate:
        """Where questions go: to the log for later, to the terminal, or nowhere, which is a no."""
        self.bell = Bell(self.stream, settings.notify if self.mode == "screen" else "off", settings.notify_after)
        if self._later:
            return later
        if not self._asks:
            return self._refuse
        self._gate = TerminalGate(self.stage, agent.toolbox, settings.folder, self.bell)
        return self._gate

    async def _refuse(self, question: ApprovalRequested | InputRequested) -> Answer:
        self.tally.refused.append(question)  # no event of the run tells what its helpers asked
        return await refuse(question)

    def sinks(self, session: Opened, message_id: str) -> list[Sink]:
        """Who is shown the events."""
        if self.mode == "screen":
            apart = self.stream is not sys.stdout
            screen = Screen(self.stage, window=session.model.window, mine=message_id, apart=apart)
            screen.asks_here = self._gate is not None
            return [screen] if self._gate is None else [screen, self._gate]
        return [Lines(sys.stdout) if self.mode == "jsonl" else Lines(sys.stderr, beside=True)]

    def note(self, text: str) -> None:
        """A word beside the run: on the screen, or among the events as a line of its own kind."""
        if self.mode == "screen":
            self.stage.line(styled(harmless(text), "dim", self.stage.colour))
        else:
            sys.stderr.write(json.dumps({"type": "log", "message": text}) + "\n")
            sys.stderr.flush()

    def readying(self, sinks: list[Sink]) -> Callable[[str, float, float], None]:
        """Where a model tells what it does before it can answer: the tail, or a word once where there is none."""
        loop, screen, told = asyncio.get_running_loop(), sinks[0], set[str]()

        def put(message: str, done: float, total: float) -> None:
            if isinstance(screen, Screen) and self.stage.live:
                screen.event(Progress(message, done=done, total=total))
            elif message not in told:
                told.add(message)
                self.note(f"{message} …")

        def tell(message: str, done: float, total: float) -> None:
            loop.call_soon_threadsafe(put, message, done, total)

        return tell

    def unsettled(self, report: Report) -> Report:
        """Say why a run has no end in the log: no event tells it."""
        if self.mode != "json":
            self.note(report.error)
        return report

    def give(self, report: Report) -> int:
        """Hand over what it came to; the exit code."""
        if self.mode == "json":
            sys.stdout.buffer.write(report.encode())
        elif self.mode == "screen":
            self.stage.tail("")
            if report.answer and self.stream is not sys.stdout:
                sys.stdout.write(report.answer.rstrip() + "\n")
            self._after(report)
        sys.stdout.flush()
        return report.exit_code

    def _after(self, report: Report) -> None:
        short = report.session_id[:12]
        if report.status == "denied":
            self.note(
                f"nobody could be asked, so this was denied: {_names(report.denied)}; --approve and --yes allow it"
            )
        if report.status == "waiting":
            self.note(f"waits for an answer ({_names(report.pending)}): treadle approvals list")
        if report.status == "stopped":
            self.note(f"go on with a fresh budget: treadle sessions continue {short}")
        self.note(f"session {short} · go on with: treadle chat --session {short}")
        self.bell.ring(f"treadle: {report.status}")


def _names(entries: Iterable[Mapping[str, Json]]) -> str:
    return ", ".join(dict.fromkeys(str(entry["tool"]) for entry in entries))


async def drive(args: argparse.Namespace, begin: Callable[[Opened], Run], name: str = "") -> int:
    """Open the session, begin a run in it, show it, and hand over what it came to."""
    show = Show(args)
    with heard(show.note):
        return await _opened(args, begin, name, show)


async def _opened(args: argparse.Namespace, begin: Callable[[Opened], Run], name: str, show: Show) -> int:
    async with opened(args, show.gate_for, name) as session:
        for text in session.notes:
            show.note(text)
        try:
            report = await _driven(session, begin, show)
        except BadInput:
            raise
        except TreadleError as error:
            report = show.unsettled(not_run("failed", str(error), session.session.id))
        except asyncio.CancelledError:
            left = "left before it was settled; it can be resumed"
            report = show.unsettled(not_run("cancelled", left, session.session.id))
        return show.give(report)


async def _driven(opened_session: Opened, begin: Callable[[Opened], Run], show: Show) -> Report:
    session, tally = opened_session.session, show.tally
    facts = await session.facts()
    after = start = 0 if opened_session.fresh else facts[-1].seq
    run = begin(opened_session)
    sinks = show.sinks(opened_session, run.message_id)
    heed(opened_session.model, show.readying(sinks))
    if after and isinstance(sinks[0], Screen):
        sinks[0].take_up(facts)
    elif after:
        assert isinstance(facts[0], SessionCreated)
        sinks[0].event(facts[0])  # the first line tells the session, whatever it is
    ticking = asyncio.create_task(_tick(sinks))
    try:
        async with stopping(session):
            while True:
                async with run:
                    outcome = await follow(session, run, after, tally, *sinks)
                state = await session.state()
                if outcome is not None or run.pending or state.run is None:
                    break
                # Somebody else answered what was asked here, and nobody runs it now.
                run, after = session.resume(), state.seq
    finally:
        ticking.cancel()
    if outcome is None and state.last is not None and state.last.seq > start:
        outcome = state.last  # another process has seen it to its end
    if outcome is None and not run.pending:
        raise BadInput("nothing in this session is unfinished; give an objective, or use `treadle sessions continue`")
    await _name(opened_session)
    for question in run.pending if outcome is None else ():
        tally.asked.setdefault(question.call_id, question)
    return tally.report(session.id, outcome)


async def _name(opened_session: Opened) -> None:
    """Call a new session by its first words: nobody waits here for a model to find better ones."""
    state = await opened_session.session.state()
    if state.name or not opened_session.settings.auto_name:
        return
    said = (fact for fact in await opened_session.session.facts() if isinstance(fact, MessageReceived))
    words = " ".join(render_parts(next(said).parts[:1]).split())  # files go with it as parts of their own
    await opened_session.session.rename(words if len(words) <= NAME else f"{words[:NAME]}…", by="auto")


async def _tick(sinks: list[Sink]) -> None:
    while True:
        await asyncio.sleep(TICK)
        for sink in sinks:
            if isinstance(sink, Screen):
                sink.tick()
