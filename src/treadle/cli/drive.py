"""Run a one-shot command: show events on the screen or as JSON lines, handle Ctrl-C and report the result."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, Protocol, TextIO

from treadle import Agent, Answer, ApprovalRequested, InputRequested, Run, RunFinished, Session, later
from treadle.app.compose import open_keyring, set_progress_listener
from treadle.app.settings import LoadedSettings, Settings
from treadle.cli.console import (
    Notifier,
    TerminalConsole,
    capture_warnings,
    escape_controls,
    handle_signals,
    is_terminal,
    silence_stream,
    style_text,
)
from treadle.cli.open_session import Gate, OpenSession, open_session
from treadle.cli.questions import QuestionQueue, TerminalReader, refuse_question
from treadle.cli.report import Report, ReportBuilder, build_failure_report
from treadle.cli.screen import TICK_SECONDS, Screen
from treadle.errors import BadInput, TreadleError
from treadle.events import Event, MessageReceived, Progress, SessionCreated, serialize_event
from treadle.messages import Json, render_parts

OutputMode = Literal["screen", "json", "jsonl"]
MAX_NAME = 48


class EventSink(Protocol):
    """Receives the events of a run."""

    def handle_event(self, event: Event) -> None: ...


class JsonLinesSink:
    """Writes every event as a line of JSON.

    `beside` means that the result goes to another stream. Write errors on this stream are then ignored.
    """

    def __init__(self, stream: TextIO, *, beside: bool = False) -> None:
        self._stream, self._beside = stream.buffer, beside

    def handle_event(self, event: Event) -> None:
        try:
            self._stream.write(serialize_event(event) + b"\n")
            self._stream.flush()
        except OSError:  # the reader has closed the stream, or the disk is full
            if not self._beside:
                raise
            silence_stream(sys.stderr)


async def follow_run(run: Run, *sinks: EventSink) -> None:
    """Show every event of a run. If a write fails, wait for the end of the run before raising the error."""
    try:
        async for event in run:
            for sink in sinks:
                sink.handle_event(event)
    except OSError:  # the reader has closed the event stream, or the disk is full
        await run.wait()
        raise


@asynccontextmanager
async def stop_on_signals(session: Session) -> AsyncGenerator[None]:
    """Stop the run on Ctrl-C, SIGTERM or SIGHUP, and wait until the stop is recorded.

    A second Ctrl-C or SIGTERM exits immediately.
    """
    task = asyncio.current_task()
    asked: list[asyncio.Task[RunFinished | None]] = []

    def stop() -> None:
        if asked and task is not None:
            task.cancel()
        asked.append(asyncio.ensure_future(session.cancel(why="stopped at the terminal")))

    def hang_up() -> None:  # SIGHUP may arrive twice: from the terminal and from the shell
        if not asked:
            asked.append(asyncio.ensure_future(session.cancel(why="the terminal went away")))

    try:
        with handle_signals({signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: hang_up}):
            yield
    finally:
        await asyncio.gather(*asked, return_exceptions=True)


class RunOutput:
    """The output and the questions of a one-shot command. They depend on its options and on its terminals."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.mode: OutputMode = "json" if args.json else "jsonl" if args.jsonl else "screen"
        self.stream = sys.stdout if is_terminal(sys.stdout) else sys.stderr
        self.console = TerminalConsole(self.stream, beside=self.stream is not sys.stdout)
        self.notifier = Notifier(self.stream, "off", 0)
        self.report_builder = ReportBuilder()
        self._questions: QuestionQueue | None = None
        self._later = bool(args.ask_later)
        self._asks = self.mode == "screen" and is_terminal(self.stream) and is_terminal(sys.stdin)

    def build_gate(self, agent: Agent, settings: Settings) -> Gate:
        """Return the gate for questions: leave them open in the log, ask in the terminal, or refuse."""
        self.notifier = Notifier(
            self.stream, settings.notify if self.mode == "screen" else "off", settings.notify_after
        )
        if self._later:
            return later
        if not self._asks:
            return self._refuse
        self._questions = QuestionQueue()
        TerminalReader(self._questions, self.console, agent.toolbox, settings.folder, self.notifier)
        return self._questions

    async def _refuse(self, question: ApprovalRequested | InputRequested) -> Answer:
        self.report_builder.refused.append(question)  # the events of the run omit the questions of its helpers
        return await refuse_question(question)

    def build_sinks(self, session: OpenSession, message_id: str) -> list[EventSink]:
        """Return the sinks that receive the events."""
        if self.mode == "screen":
            apart = self.stream is not sys.stdout
            screen = Screen(self.console, window=session.model.window, own_message=message_id, hide_answer=apart)
            screen.asks_here = self._questions is not None
            return [screen] if self._questions is None else [screen, self._questions]
        return [JsonLinesSink(sys.stdout) if self.mode == "jsonl" else JsonLinesSink(sys.stderr, beside=True)]

    def write_note(self, text: str) -> None:
        """Write a note: as a line on the screen, or as a JSON line of type `log` on stderr."""
        if self.mode == "screen":
            self.console.write_line(style_text(escape_controls(text), "dim", self.console.has_colour))
        else:
            sys.stderr.write(json.dumps({"type": "log", "message": text}) + "\n")
            sys.stderr.flush()

    def build_progress_listener(self, sinks: list[EventSink]) -> Callable[[str, float, float], None]:
        """Return a callback for the progress of a model before it can answer.

        The progress goes to the status line. Without a status line, each message is written once.
        """
        loop, screen, shown = asyncio.get_running_loop(), sinks[0], set[str]()

        def put(message: str, done: float, total: float) -> None:
            if isinstance(screen, Screen) and self.console.is_live:
                screen.handle_event(Progress(message, done=done, total=total))
            elif message not in shown:
                shown.add(message)
                self.write_note(f"{message} …")

        def tell(message: str, done: float, total: float) -> None:
            loop.call_soon_threadsafe(put, message, done, total)

        return tell

    def report_unsettled(self, report: Report) -> Report:
        """Write the reason why a run has no end in the log. No event contains this reason."""
        if self.mode != "json":
            self.write_note(report.error)
        return report

    def deliver_report(self, report: Report) -> int:
        """Write the result of the run and return the exit code."""
        if self.mode == "json":
            sys.stdout.buffer.write(report.encode())
        elif self.mode == "screen":
            self.console.set_status("")
            if report.answer and self.stream is not sys.stdout:
                sys.stdout.write(report.answer.rstrip() + "\n")
            self._after(report)
        sys.stdout.flush()
        return report.exit_code

    def _after(self, report: Report) -> None:
        short = report.session_id[:12]
        if report.status == "denied":
            self.write_note(
                f"nobody could be asked, so this was denied: {_names(report.denied)}; --approve and --yes allow it"
            )
        if report.status == "waiting":
            self.write_note(f"waits for an answer ({_names(report.pending)}): treadle approvals list")
        if report.status == "stopped":
            self.write_note(f"go on with a fresh budget: treadle sessions continue {short}")
        self.write_note(f"session {short} · go on with: treadle chat --session {short}")
        self.notifier.notify(f"treadle: {report.status}")


def _names(entries: Iterable[Mapping[str, Json]]) -> str:
    return ", ".join(dict.fromkeys(str(entry["tool"]) for entry in entries))


async def drive_run(args: argparse.Namespace, loaded: LoadedSettings, begin: Callable[[OpenSession], Run]) -> int:
    """Open the session, start a run, show it and write its result. Return the exit code."""
    show = RunOutput(args)
    with capture_warnings(show.write_note):
        async with AsyncExitStack() as stack:
            session = await open_session(stack, args, loaded, show.build_gate, open_keyring(loaded.settings))
            for text in session.notes:
                show.write_note(text)
            try:
                report = await _driven(session, begin, show)
            except BadInput:
                raise
            except TreadleError as error:
                report = show.report_unsettled(build_failure_report("failed", str(error), session.session.id))
            except asyncio.CancelledError:
                left = "left before it was settled; it can be resumed"
                report = show.report_unsettled(build_failure_report("cancelled", left, session.session.id))
            return show.deliver_report(report)


async def _driven(opened_session: OpenSession, begin: Callable[[OpenSession], Run], show: RunOutput) -> Report:
    session, tally = opened_session.session, show.report_builder
    facts = await session.facts()
    after = 0 if opened_session.is_new else facts[-1].seq
    run = begin(opened_session)
    run.watch_from(after)
    sinks = show.build_sinks(opened_session, run.message_id)
    set_progress_listener(opened_session.model, show.build_progress_listener(sinks))
    if after and isinstance(sinks[0], Screen):
        sinks[0].restore_run(facts)
    elif after:
        assert isinstance(facts[0], SessionCreated)
        sinks[0].handle_event(facts[0])  # the first line always describes the session
    ticking = asyncio.create_task(_tick(sinks))
    try:
        async with stop_on_signals(session), run:
            await follow_run(run, tally, *sinks)
    finally:
        ticking.cancel()
    if run.outcome is None and not run.pending:
        raise BadInput("nothing in this session is unfinished; give an objective, or use `treadle sessions continue`")
    await _name(opened_session)
    for question in run.pending if run.outcome is None else ():
        tally.asked.setdefault(question.call_id, question)
    return tally.build_report(session.id, run.outcome)


async def _name(opened_session: OpenSession) -> None:
    """Name an unnamed session after its first message. A one-shot command does not wait for a model to name it."""
    state = await opened_session.session.state()
    if state.name or not opened_session.settings.auto_name:
        return
    said = (fact for fact in await opened_session.session.facts() if isinstance(fact, MessageReceived))
    words = " ".join(render_parts(next(said).parts[:1]).split())  # attached files are separate parts
    await opened_session.session.rename(words if len(words) <= MAX_NAME else f"{words[:MAX_NAME]}…", by="auto")


async def _tick(sinks: list[EventSink]) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        for sink in sinks:
            if isinstance(sink, Screen):
                sink.redraw_status()
