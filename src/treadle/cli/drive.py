"""Run a one-shot command: show events on the screen or as JSON lines, handle Ctrl-C and report the result."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Literal, Protocol, TextIO

import msgspec
from msgspec import Struct, field

from treadle import Answer, Run, Session, events, later
from treadle.agent import Gate
from treadle.app.compose import open_keyring, set_progress_listener
from treadle.app.session_worktree import describe_next_steps
from treadle.app.settings import LoadedSettings
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
from treadle.cli.draw.run_lines import list_run_facts, render_summary
from treadle.cli.first_start import offer_first_start
from treadle.cli.open_session import OpenSession, open_session
from treadle.cli.questions import AgentQuestion, Keyboard, QuestionQueue, TerminalReader, describe_client_call
from treadle.cli.screen import Screen
from treadle.errors import BadInput, MessageStopped, TreadleError
from treadle.messages import Json, Usage, render_parts
from treadle.sandbox.registries import are_registries

ANSWERED, FAILED, USAGE, STOPPED, UNANSWERED, CANCELLED = 0, 1, 2, 3, 4, 130
"""The exit codes. Scripts rely on them."""

MAX_NAME = 48
OutputMode = Literal["screen", "json", "jsonl"]
Status = Literal["answered", "stopped", "failed", "waiting", "denied", "cancelled"]


class CallReport(Struct, frozen=True):
    tool: str
    status: str


class Report(Struct, frozen=True):
    """The JSON document that `--json` prints.

    `tools_called` are the tools of the successful calls. With `nothing_to_resume`, the run had already ended.
    """

    session_id: str
    status: Status
    reason: str
    answer: str
    turns: int
    calls: tuple[CallReport, ...]
    tools_called: tuple[str, ...]
    denied: tuple[dict[str, Json], ...]
    pending: tuple[dict[str, Json], ...]
    usage: Usage
    cost: float
    error: str
    nothing_to_resume: bool = False

    @property
    def exit_code(self) -> int:
        if self.reason == "usage":
            return USAGE
        if self.nothing_to_resume:
            return ANSWERED
        codes: dict[Status, int] = {"answered": ANSWERED, "failed": FAILED, "stopped": STOPPED, "cancelled": CANCELLED}
        return codes.get(self.status, UNANSWERED)

    def encode(self) -> bytes:
        """Encode the document as one line of UTF-8. It contains every usage field, even if it is zero."""
        usage = {name: getattr(self.usage, name) for name in Usage.__struct_fields__ if name != "cost"}
        return msgspec.json.encode({**msgspec.structs.asdict(self), "usage": usage}) + b"\n"


class ReportBuilder(Struct):
    """Collects the events of a run. `refused` are the questions, also of helpers, that no user could answer."""

    calls: list[CallReport] = field(default_factory=list[CallReport])
    denied: dict[str, dict[str, Json]] = field(default_factory=dict[str, dict[str, Json]])
    asked: dict[str, AgentQuestion] = field(default_factory=dict[str, AgentQuestion])
    refused: list[AgentQuestion] = field(default_factory=list[AgentQuestion])
    turns: int = 0
    usage: Usage = Usage()

    def handle_event(self, event: events.Event) -> None:
        match event:
            case events.TurnStarted():
                self.turns += 1
            case events.ModelReplied():
                self.usage += event.usage
            case events.ApprovalRequested() | events.InputRequested():
                self.asked[event.call_id] = event
            case events.ApprovalAnswered() | events.InputAnswered():
                question = self.asked.pop(event.call_id, None)
                if question is not None and event.by == events.NOBODY_ASKED:
                    self.refused.append(question)
                    self.denied[event.call_id] = _describe_question(question)
                elif question is not None:  # a user answered first
                    self.refused = [one for one in self.refused if one != question]
            case events.CallFinished():
                self.asked = {key: one for key, one in self.asked.items() if not events.settles_question(event, one)}
                self.calls.append(CallReport(event.tool, event.status))
                self.usage += event.usage
                if event.status == "denied":
                    entry = {"tool": event.tool, "call_id": event.call_id, "why": event.output}
                    self.denied.setdefault(event.call_id, entry)
            case _:
                pass

    def build_report(
        self, session_id: str, outcome: events.RunFinished | None, client_calls: Iterable[events.CallStarted] = ()
    ) -> Report:
        """Build the report. Without an outcome the run waits for an answer, or for the client's results of calls."""
        denied = [*self.denied.values()]
        denied += [entry for entry in map(_describe_question, self.refused) if entry not in denied]  # of helpers
        status: Status = "waiting"
        if outcome is not None:
            status = outcome.reason if outcome.reason in ("answered", "failed", "cancelled") else "stopped"
        usage = self.usage if outcome is None else outcome.usage
        return Report(
            session_id=session_id,
            status="denied" if status == "answered" and self.refused else status,
            reason=status if outcome is None else outcome.reason,
            answer="" if outcome is None else outcome.answer,
            turns=self.turns if outcome is None else outcome.turns,
            calls=tuple(self.calls),
            tools_called=tuple(call.tool for call in self.calls if call.status == "ok"),
            denied=tuple(denied),
            pending=tuple(map(_describe_question, (*self.asked.values(), *client_calls))) if outcome is None else (),
            usage=usage,
            cost=usage.cost,
            error="" if outcome is None else outcome.error,
        )


def build_failure_report(reason: Literal["usage", "failed", "cancelled"], error: str, session_id: str = "") -> Report:
    """Build the report of a run that did not start."""
    status: Status = "cancelled" if reason == "cancelled" else "failed"
    return Report(session_id, status, reason, "", 0, (), (), (), (), Usage(), 0.0, error)


def _describe_question(question: AgentQuestion | events.CallStarted) -> dict[str, Json]:
    if isinstance(question, events.CallStarted):
        entry = {"tool": question.tool, "call_id": question.call_id, "arguments": question.arguments}
        return {**entry, "why": describe_client_call(question)}
    if isinstance(question, events.ApprovalRequested):
        entry = {"tool": question.tool, "call_id": question.call_id, "arguments": question.arguments}
        return {**entry, "why": question.why, "rule": question.rule}
    return {"tool": "ask_user", "call_id": question.call_id, "questions": [one.text for one in question.questions]}


class RetryKey:
    """Ends the wait for the provider of the model when the user presses Enter.

    It gets an event before the screen does. To drop earlier keys also drops a Ctrl-C that the kernel has not handled
    yet, so this happens before the user is told of the keys.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._keyboard = session, Keyboard(sys.stdin.fileno())
        self._reading: asyncio.Task[None] | None = None

    def handle_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Fact):
            return
        if self._reading is not None:
            self._reading.cancel()
        is_waiting = isinstance(event, events.ModelFailed) and event.wait is not None
        if is_waiting and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():  # reading would stop a background job
            self._keyboard.discard_input()
            self._reading = asyncio.create_task(self._read_key())

    async def _read_key(self) -> None:
        if await self._keyboard.read_line() is not None:
            with suppress(TreadleError):  # the wait has just ended
                await self._session.retry_now()


class EventSink(Protocol):
    """Receives the events of a run."""

    def handle_event(self, event: events.Event) -> None: ...


class JsonLinesSink:
    """Writes every event as a line of JSON.

    `ignore_errors` ignores write errors. It is for a stream that does not carry the result.
    """

    def __init__(self, stream: TextIO, *, ignore_errors: bool = False) -> None:
        self._stream, self._ignore_errors = stream, ignore_errors

    def handle_event(self, event: events.Event) -> None:
        try:
            self._stream.buffer.write(events.serialize_event(event) + b"\n")
            self._stream.buffer.flush()
        except OSError:  # the reader has closed the stream, or the disk is full
            if not self._ignore_errors:
                raise
            silence_stream(self._stream)


@asynccontextmanager
async def stop_on_signals(session: Session) -> AsyncGenerator[None]:
    """Stop the run on Ctrl-C, SIGTERM or SIGHUP, and wait until the stop is recorded.

    A second Ctrl-C or SIGTERM exits immediately.
    """
    task = asyncio.current_task()
    requests: list[asyncio.Task[events.RunFinished | None]] = []

    def stop() -> None:
        if requests and task is not None:
            task.cancel()
        requests.append(asyncio.ensure_future(session.cancel(why="stopped at the terminal")))

    def hang_up() -> None:  # SIGHUP may arrive twice: from the terminal and from the shell
        if not requests:
            requests.append(asyncio.ensure_future(session.cancel(why="the terminal went away")))

    try:
        with handle_signals({signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: hang_up}):
            yield
    finally:
        await asyncio.gather(*requests, return_exceptions=True)


class RunOutput:
    """The output and the questions of a one-shot command. They depend on its options and on its terminals."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.mode: OutputMode = "json" if args.json else "jsonl" if args.jsonl else "screen"
        self.stream = sys.stdout if is_terminal(sys.stdout) else sys.stderr
        is_apart = self.stream is not sys.stdout
        self.console = TerminalConsole(self.stream, ignore_errors=is_apart, gaps=is_terminal(self.stream))
        self._prefix = "" if is_terminal(self.stream) else "treadle: "
        self.screen = Screen(self.console, hide_answer=is_apart, prefix=self._prefix)
        self.screen.announces = is_terminal(self.stream) and not self.console.has_style
        self.screen.stop_keys = "Ctrl-C stops"
        self.notifier = Notifier(self.stream, "off", 0)
        self.report_builder = ReportBuilder()
        self.events: EventSink = self.screen
        if self.mode != "screen":
            is_json = self.mode == "json"
            self.events = JsonLinesSink(sys.stderr if is_json else sys.stdout, ignore_errors=is_json)
        self.sinks: list[EventSink] = [self.report_builder, self.events]
        self.gate: Gate = later if args.ask_later else self._refuse
        self.has_keyboard = self.mode == "screen" and is_terminal(self.stream) and is_terminal(sys.stdin)
        self.screen.retry_keys = "Enter tries now, Ctrl-C stops" if self.has_keyboard else "Ctrl-C stops"
        self._progress_messages: set[str] = set()
        self._questions: QuestionQueue | None = None
        if not args.ask_later and self.has_keyboard:
            self.gate = self._questions = QuestionQueue()
            self.screen.asks_here = True
            self.sinks.append(self._questions)

    def prepare(self, opened: OpenSession) -> None:
        """Prepare the output for a session: its settings, its tools and its model."""
        settings = opened.settings
        if self.mode == "screen":
            self.notifier = Notifier(self.stream, settings.notify, settings.notify_after)
        if self._questions is not None:
            tools = opened.agent.toolbox
            TerminalReader(self._questions, self.console, tools, settings.folder, self.notifier)
        self.screen.window = opened.model.window
        set_progress_listener(opened.model, self.show_progress)
        for text in opened.notes:
            self.write_note(text)

    async def _refuse(self, question: AgentQuestion) -> Answer:
        """Deny at once, because no user can be asked. The comment tells the model what the user can change."""
        self.report_builder.refused.append(question)  # the events of the run omit the questions of its helpers
        if isinstance(question, events.InputRequested):
            comment = "Nobody can be asked here. Decide yourself, and say what you assumed."
        else:
            option = f"--approve {question.rule!r}" if question.rule else "--approve-flow" if question.flow else "--yes"
            if question.during and are_registries((str(question.arguments.get("host", "")),)):
                option += ', or all package registries with network = "registries" in the configuration'
            comment = "Nobody can be asked here" if question.during else f"Nobody can be asked here ({question.why})"
            comment += f". Keep to what the sandbox allows, or tell the user to allow it with {option}."
            comment += "" if question.during else " --full-access runs tools without the sandbox."
            if question.hook:
                comment = f"Nobody can be asked here ({question.why}). A hook asks, and only a person can answer it."
        return Answer("deny", comment=comment, by=events.NOBODY_ASKED)

    def write_note(self, text: str) -> None:
        """Write a note: as a line on the screen, or as a JSON line of type `log` on stderr."""
        if self.mode == "screen":
            self.console.write_block(self._prefix + style_text(escape_controls(text), "dim", self.console.has_style))
        else:
            sys.stderr.write(json.dumps({"type": "log", "message": text}) + "\n")
            sys.stderr.flush()

    def show_progress(self, progress: events.Progress) -> None:
        """Show the progress of a model before it can answer: in the status line, or else each message once."""
        if self.mode == "screen" and self.console.is_live:
            self.screen.handle_event(progress)
        elif progress.message not in self._progress_messages:
            self._progress_messages.add(progress.message)
            self.write_note(progress.message)

    def deliver_report(self, report: Report) -> int:
        """Write the result of the run and return the exit code."""
        if self.mode == "json":
            sys.stdout.buffer.write(report.encode())
        elif self.mode == "screen":
            self.console.set_work_line("")
            if report.answer and self.stream is not sys.stdout:
                sys.stdout.write(report.answer.rstrip() + "\n")
            self._write_next_steps(report)
        sys.stdout.flush()
        return report.exit_code

    def _write_next_steps(self, report: Report) -> None:
        session = report.session_id[:12]
        if report.status == "denied":
            tools = _list_tools(report.denied)
            asked = [one for one in self.report_builder.refused if isinstance(one, events.ApprovalRequested)]
            rules = {one.rule for one in asked}
            how = "--approve and --yes allow it, --full-access leaves the sandbox"
            if any(one.hook for one in asked):
                how = "a hook asks, and only a person can answer it"
            elif any(one.flow for one in asked):
                how = "--approve-flow and --yes allow it"
            elif len(rules) == 1 and all(rules):
                how = f"--approve {rules.pop()!r} and --yes allow it"
            self.write_note(f"denied, because nobody could be asked: {tools}; {how}")
        if report.status == "waiting" and self.report_builder.asked:
            self.write_note(f"waits for an answer ({_list_tools(report.pending)}): treadle approvals list")
        if report.status == "stopped":
            self.write_note(f"continue with new limits: treadle sessions continue {session}")
        if self.console.has_style:
            is_done = report.status in ("answered", "denied")
            self.console.write_block(
                "\n".join(render_summary(self.screen.run_facts, session, self.console, is_done=is_done))
            )
        else:
            facts = ", ".join(list_run_facts(self.screen.run_facts))
            if report.status == "answered" and facts:
                self.write_note(f"done: {facts}")
            self.write_note(f"session {session}, continue with: treadle chat --session {session}")
        self.notifier.notify(f"treadle: {report.status}")


def _list_tools(entries: Iterable[Mapping[str, Json]]) -> str:
    return ", ".join(dict.fromkeys(str(entry["tool"]) for entry in entries))


async def drive_run(args: argparse.Namespace, loaded: LoadedSettings, begin: Callable[[OpenSession], Run]) -> int:
    """Open the session, start a run, show it and write its result. Return the exit code."""
    output = RunOutput(args)
    with capture_warnings(output.write_note):
        async with AsyncExitStack() as stack:
            keyring = open_keyring(loaded.settings)
            if output.has_keyboard:
                loaded = await offer_first_start(args, loaded, keyring)
            opened = await open_session(stack, args, loaded, output.gate, keyring)
            output.prepare(opened)
            try:
                report = await _follow_run(opened, begin, output)
            except BadInput:
                raise
            except (TreadleError, asyncio.CancelledError) as error:
                is_error = isinstance(error, TreadleError) and not isinstance(error, MessageStopped)
                text = str(error) or "left before the stop was recorded; the session can be resumed"
                report = build_failure_report("failed" if is_error else "cancelled", text, opened.session.id)
                if output.mode != "json":  # no event contains this reason
                    output.write_note(report.error)
            code = output.deliver_report(report)
            if opened.worktree is not None:
                output.write_note(describe_next_steps(opened.worktree, opened.session.id))
            return code


async def _follow_run(opened: OpenSession, begin: Callable[[OpenSession], Run], output: RunOutput) -> Report:
    """Start a run and show it to its end."""
    session, report_builder = opened.session, output.report_builder
    facts = await session.facts()
    run = begin(opened)
    output.screen.own_message = run.message_id
    run.watch_from(0 if opened.is_new else facts[-1].seq)
    if not opened.is_new and output.mode == "screen":
        output.screen.restore_run(facts)
    elif not opened.is_new:
        output.events.handle_event(facts[0])  # the first line always describes the session
    if output.has_keyboard:
        output.sinks.insert(0, key := RetryKey(session))
        key.handle_event(facts[-1])  # the run may wait already
    refreshing = asyncio.create_task(output.screen.refresh_status())
    try:
        async with stop_on_signals(session), run:
            try:
                async for event in run:
                    for sink in output.sinks:
                        sink.handle_event(event)
            except OSError:  # the reader has closed the event stream, or the disk is full
                await run.wait()
                raise
    finally:
        refreshing.cancel()
    state = await session.state()
    if run.outcome is None and not run.pending:
        if state.last is None:
            raise BadInput("this session has no unfinished work; give a task to start a run")
        output.write_note(f"nothing to resume: the last run of this session ended ({state.last.reason})")
        start = max((place for place, fact in enumerate(facts) if isinstance(fact, events.RunStarted)), default=0)
        for fact in facts[start:]:
            report_builder.handle_event(fact)
        return msgspec.structs.replace(report_builder.build_report(session.id, state.last), nothing_to_resume=True)
    if opened.settings.auto_name and not state.name:  # a one-shot command does not wait for a model to name it
        message = next(fact for fact in await session.facts() if isinstance(fact, events.MessageReceived))
        name = " ".join(render_parts(message.parts[:1]).split())  # attached files are separate parts
        await session.rename(name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…", by="auto")
    client_calls: list[events.CallStarted] = []
    for question in run.pending if run.outcome is None else ():
        if isinstance(question, events.CallStarted):
            output.write_note(describe_client_call(question))
            client_calls.append(question)
        else:
            report_builder.asked.setdefault(question.call_id, question)
    return report_builder.build_report(session.id, run.outcome, client_calls)
