"""Show a run to the user: its events as blocks, an open block and a work line of a console."""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from treadle import events
from treadle.cli.call_list import CallList
from treadle.cli.console import Console, TerminalConsole, escape_controls, format_count, format_duration
from treadle.cli.draw.calls import render_plan, summarize_arguments
from treadle.cli.draw.glyphs import choose_theme
from treadle.cli.draw.run_lines import (
    RunFacts,
    describe_ending,
    describe_failure,
    describe_retries,
    render_ending,
    render_message,
    render_work_line,
)
from treadle.cli.reply_drawer import ReplyDrawer
from treadle.messages import Usage, render_parts

TICK_SECONDS, CALM_TICK_SECONDS = 0.125, 5.0
"""Seconds between two redraws of the work line while no event arrives. The second is for TREADLE_MOTION=off."""

DRAW_SECONDS = 0.04
"""Minimum seconds between two redraws of the open block, however fast the model writes."""

STILL_SECONDS = 30
"""Seconds after which a console that redraws nothing says that the work goes on."""

_SIGNALS = {
    "doom_loop": "the model repeats the same calls: it gets a warning",
    "uncertain": "the model is uncertain",
    "empty_reply": "the reply is empty: the model is asked again",
    "invalid_output": "the answer has the wrong format: the model is asked again",
    "stray_calls": "calls of tools that were not offered are ignored",
    "hook": "a hook adds a note for the model",
}
_ENDS_RETRY = (events.RetryRequested, events.ModelReplied, events.TurnStarted, events.RunFinished)


class StatusFacts(NamedTuple):
    """The facts of a session that the status line shows."""

    context_share: float | None
    cost: float


class Screen:
    """Shows events on a console. It keeps only what the open block and the work line need, and all of that is in the
    log.

    With `hide_answer` it shows only the text between calls, because the caller prints the answer itself. `prefix`
    begins each line on a plain stream.
    """

    def __init__(
        self, console: Console, *, asks_here: bool = False, hide_answer: bool = False, prefix: str = ""
    ) -> None:
        self.console = console
        self.window: int | None = None
        self.asks_here = asks_here
        """Whether another object asks the questions on the same console."""
        self.own_message = ""
        """The id of a message that is not shown, because the user has just entered it."""
        self.is_running = False
        self.shows_plan = True
        self.announces = False
        """Whether the start of calls and long waits are lines of their own: for a terminal that redraws nothing."""
        self.stop_keys, self.retry_keys = "Esc stops", ""
        """The keys that the work line names: they end the run, or the wait for a provider."""
        self.is_stopping = False
        self._theme = choose_theme(has_colour=console.has_colour, has_style=console.has_style)
        self._prefix = prefix
        self._reply = ReplyDrawer(console, self._theme)
        self._calls = CallList(self._theme, prefix)
        self._failures: list[events.ModelFailed] = []  # of this turn
        self._is_waiting = False  # for the provider
        self._hide_answer = hide_answer
        self._run, self._usage, self._context_tokens = RunFacts(), Usage(), 0
        self._open_questions: dict[str, events.ApprovalRequested | events.InputRequested] = {}
        self._held_messages: dict[str, events.MessageReceived] = {}
        self._thought, self._thought_since = "", 0.0
        self._has_thought = False  # a thought of this reply has arrived
        self._model_progress = ""
        self._is_streamed = False  # text of this reply has arrived
        self._run_start = self._drawn_at = time.monotonic()
        self._still = 0
        self._has_motion = os.environ.get("TREADLE_MOTION", "") != "off"

    @property
    def retry_in(self) -> float | None:
        """The seconds until the model is asked again, if the run waits for its provider."""
        if not self._is_waiting:
            return None
        left = self._failures[-1].at + (self._failures[-1].wait or 0.0) - time.time()
        return left if left > 0 else None

    def status_facts(self) -> StatusFacts:
        """Return what the status line shows of the session."""
        share = self._context_tokens / self.window if self.window else None
        return StatusFacts(share, self._usage.cost)

    @property
    def run_facts(self) -> RunFacts:
        """What the run has used so far."""
        return self._run

    def unfold(self) -> str:
        """Return what was folded or cut last, in full: a chain of calls, an output or a thought.

        The next call returns what was folded before it. The result is empty when all was shown.
        """
        return self._calls.folded.pop() if self._calls.folded else ""

    def note_denial(self, call_id: str) -> None:
        """Remember a call that the user denied here. The line of their answer says it, so the call gets none."""
        self._calls.denied_here.add(call_id)

    def handle_event(self, event: events.Event) -> None:
        if isinstance(event, _ENDS_RETRY):
            self._is_waiting = False
        match event:
            case events.TextDelta(text=text):
                if not self._hide_answer:
                    self._write_text(text)
            case events.ReasoningDelta(text=text):
                self._thought_since = self._thought_since or time.monotonic()
                self._thought += text
                self._has_thought = True
            case events.Progress(call_id=""):
                share = f" {event.done / event.total:.0%}" if event.done is not None and event.total else ""
                self._model_progress = escape_controls(f"{event.message}{share}")
            case events.OutputDelta():
                self._calls.add_output(event.call_id, event.text)
            case events.Progress():
                self._calls.add_output(event.call_id, event.message, is_step=True)
            case events.CallStarted():
                words = self._calls.start(event)
                if self.announces:
                    self._write_line("", f"running {words}")
            case events.CallFinished():
                self._handle_call(event)
            case events.ModelReplied():
                self._handle_reply(event)
            case events.RunStarted() | events.TurnStarted() | events.RunFinished():
                self._handle_run(event)
            case events.MessageReceived():
                self._handle_message(event)
            case events.MessageEdited() if (held := self._held_messages.get(event.id)) is not None:
                self._held_messages[event.id] = replace(held, parts=event.parts)
                if not event.parts:
                    del self._held_messages[event.id]
            case events.ModelFailed() if event.wait is not None:
                self._handle_failure(event)
            case events.ApprovalRequested() | events.InputRequested():
                self._handle_question(event)
            case events.ApprovalAnswered() | events.InputAnswered():
                self._handle_answer(event)
            case _:
                self._write_event_note(event)
        is_delta = isinstance(event, (events.TextDelta, events.OutputDelta, events.ReasoningDelta))
        if not is_delta or time.monotonic() - self._drawn_at >= DRAW_SECONDS:
            self.redraw_status()

    def show_history(self, facts: Sequence[events.AnyFact], messages: int = 1) -> None:
        """Show the history from the last `messages` messages on, and the whole active run if there is one."""
        began = max((fact.seq for fact in facts if isinstance(fact, events.RunStarted)), default=0)
        sent = [fact.seq for fact in facts if isinstance(fact, events.MessageReceived)]
        start = min((sent[-messages:] or [0])[0], max((seq for seq in sent if seq < began), default=began))
        for fact in facts:
            if fact.seq >= start:
                self.handle_event(fact)

    def restore_run(self, facts: Sequence[events.AnyFact]) -> None:
        """Restore the work line and the open calls of an active run, without showing its events again.

        A wait for the provider is shown: without a terminal there is no work line.
        """
        began = max((at for at, fact in enumerate(facts) if isinstance(fact, events.RunStarted)), default=len(facts))
        if any(isinstance(fact, events.RunFinished) for fact in facts[began:]):
            return
        console, self.console = self.console, TerminalConsole(io.StringIO())
        self._reply.console = self.console
        for fact in facts[began:]:
            self.handle_event(fact)
        self.console = self._reply.console = console
        self._calls.drop_chain()
        if not self._theme.has_style and (left := self.retry_in) is not None:
            self._write_line("!", describe_failure(self._failures[-1], left, self._run.limits))

    def redraw_status(self) -> None:
        """Redraw the open block and the work line."""
        self._drawn_at = time.monotonic()
        if not self._theme.has_style:
            return
        width = self.console.width - 1
        if self._reply.is_open:
            self.console.set_open_block(self._reply.draw_open(), "answer")
        else:
            self.console.set_open_block(self._calls.draw_open(width), "call")
        self.console.set_work_line(self._build_work_line(width) if self.is_running else "")

    async def refresh_status(self) -> None:
        """Redraw the work line regularly, until the task is cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS if self._has_motion else CALM_TICK_SECONDS)
            self.redraw_status()
            seconds = int(time.monotonic() - self._run_start)
            is_working = self.is_running and not self._open_questions
            if self.announces and is_working and seconds // STILL_SECONDS > self._still:
                self._still = seconds // STILL_SECONDS
                self._write_line("", f"still working, {format_duration(seconds, whole=True)}")

    def end_text(self) -> None:
        """Write what is open to the scrollback: the rest of a text, a thought and a chain of calls."""
        self._end_thought()
        if self._reply.is_open:
            self._reply.end()
        self._calls.end_chain(self.console)

    # --- the parts of a run

    def _build_work_line(self, width: int) -> str:
        """Return the line that says what the agent does now, below the plan if there is one."""
        theme, now = self._theme, time.monotonic()
        spin = int(now / TICK_SECONDS) if self._has_motion else -1
        if (left := self.retry_in) is not None:
            text = describe_failure(self._failures[-1], left, self._run.limits)
            mark = theme.paint(theme.glyphs.warning, "need")
            tail = f"{theme.dot}{self.retry_keys}" if self.retry_keys else ""
            if len(text) > width - 2 - len(tail):
                text = text.partition(", until ")[0].removesuffix(")") + ")"
            return f"{mark} {theme.cut(text, width - 2 - len(tail))}{theme.paint(tail, 'quiet')}"
        if self.is_stopping:
            word = "Stopping"
        elif self._open_questions:
            word = "Waiting for an answer"
        elif self._calls.running:
            word = "Working"
        elif self._reply.is_open:
            word = "Writing"
        else:
            word = self._model_progress[:1].upper() + self._model_progress[1:] or "Thinking"
        facts = [format_duration(now - self._run_start, whole=True)]
        facts += [f"turn {self._run.turns}"] if self._run.turns else []
        facts += [f"{format_count(self._run.usage.output_tokens)} tokens out"] if self._run.usage.output_tokens else []
        line = render_work_line(word, facts, "" if self.is_stopping else self.stop_keys, spin, width, theme)
        if self._calls.plan and self.shows_plan:
            return "\n".join([*render_plan(self._calls.plan, width, theme), "", line])
        return line

    def _write_text(self, text: str) -> None:
        if not self._reply.is_open and text.strip():
            self.end_text()
        self._model_progress = ""
        self._is_streamed |= bool(text.strip())
        self._reply.write(text)

    def _end_thought(self) -> None:
        """Write that the model thought. Ctrl-O shows the thought."""
        thought, self._thought = self._thought.strip(), ""
        since, self._thought_since = self._thought_since, 0.0
        if not thought or not self._theme.has_style:
            return
        self._calls.end_chain(self.console)
        seconds = time.monotonic() - since if since else 0.0
        text = f"thought for {format_duration(seconds, whole=True)}" if seconds >= 0.5 else "thought"
        theme = self._theme
        self.console.write_block(theme.paint(f"{theme.glyphs.folded} {text}", "thought"))
        lines = escape_controls(thought).split("\n")
        self._calls.folded.append("\n".join(theme.paint(line, "thought") for line in lines))

    def _handle_reply(self, fact: events.ModelReplied) -> None:
        if fact.reasoning and not self._has_thought:
            self._thought = fact.reasoning  # no live thought: it ran in another process, or earlier
        if not self._is_streamed and fact.text.strip() and (fact.calls or not self._hide_answer):
            self._write_text(fact.text)
        if self._reply.is_open or self._thought:
            self.end_text()
        self._is_streamed = self._has_thought = False
        if len(self._failures) > 1 and self._theme.has_style:
            self._write_line("!", describe_retries(self._failures))
        self._failures = []
        self._usage += fact.usage
        self._run.usage += fact.usage
        self._context_tokens = fact.usage.input_tokens + fact.usage.output_tokens
        self._calls.note_requests(fact.calls)

    def _handle_call(self, fact: events.CallFinished) -> None:
        for question in [one for one in self._open_questions.values() if events.settles_question(fact, one)]:
            del self._open_questions[question.call_id]
        self._run.calls += 1
        self._run.usage += fact.usage
        self._usage += fact.usage
        if self._reply.is_open:
            self.end_text()
        self._calls.finish(fact, self.console)

    def _handle_run(self, fact: events.RunStarted | events.TurnStarted | events.RunFinished) -> None:
        match fact:
            case events.RunStarted():
                self.is_running, self.is_stopping, self._still = True, False, 0
                self._run_start = time.monotonic() - (max(0.0, time.time() - fact.at) if fact.at else 0.0)
                self._run = RunFacts(fact.at or time.time(), limits=fact.limits)
                self._failures = []
            case events.TurnStarted():
                if self._reply.is_open or self._thought:
                    self.end_text()
                self._model_progress, self._is_streamed = "", False
                self._calls.is_own_command = bool(fact.calls)
                for message in fact.messages:
                    if held := self._held_messages.pop(message, None):
                        self._write_message(held, f"steered - turn {fact.turn}" if fact.turn > 1 else "")
                self._run.turns = fact.turn
                if fact.wrap_up:
                    what = fact.wrap_up.replace("_", " ")
                    self._write_line("!", f"a limit is reached ({what}): one last turn to summarize")
            case events.RunFinished():
                self.end_text()
                self._write_end(fact)

    def _write_end(self, fact: events.RunFinished) -> None:
        self.is_running = self.is_stopping = False
        self._calls.clear()
        self._open_questions.clear()
        if fact.reason != "answered":
            if self._theme.has_style:
                failure = self._failures[-1] if self._failures else None
                lines = render_ending(fact, failure, self._run, self.console.width - 1, self._theme)
                self.console.write_block("\n".join(lines))
            else:
                self._write_line("", describe_ending(fact))
        held, self._held_messages = self._held_messages, {}
        for message in held.values():
            self._write_message(message)

    def _handle_message(self, fact: events.MessageReceived) -> None:
        """Show a message, or keep it until the run takes it: it is shown where it took effect."""
        if fact.id == self.own_message:
            return
        if self.is_running:
            self._held_messages[fact.id] = fact
        else:
            self._write_message(fact)

    def _write_message(self, fact: events.MessageReceived, note: str = "") -> None:
        self.end_text()
        lines = [render_message(render_parts(fact.parts[:1]), self._theme, note)]
        for part in fact.parts[1:]:  # of an attachment, show only the first line and the number of lines
            first, _, rest = render_parts((part,)).strip().partition("\n")
            count = f" {self._theme.glyphs.more} {len(rest.strip().splitlines())} lines" if rest else ""
            lines.append(self._theme.paint(escape_controls(f"  {first}{count}"), "quiet"))
        self.console.write_block("\n".join(lines), "message")

    def _handle_failure(self, fact: events.ModelFailed) -> None:
        if self._reply.is_open:
            self.end_text()
        self._failures.append(fact)
        self._is_streamed = False
        self._is_waiting = True
        if not self._theme.has_style:
            self._write_line("!", describe_failure(fact, fact.wait or 0.0, self._run.limits))

    def _handle_question(self, fact: events.ApprovalRequested | events.InputRequested) -> None:
        self.end_text()
        self._open_questions[fact.call_id] = fact
        if self.asks_here:
            return
        if isinstance(fact, events.ApprovalRequested):
            self._write_line("?", f"{fact.tool} needs approval: {fact.why}")
        else:
            self._write_line("?", f"the agent asks: {fact.questions[0].text if fact.questions else ''}")

    def _handle_answer(self, fact: events.ApprovalAnswered | events.InputAnswered) -> None:
        """Keep one line of an approval. The line of a denied call says why it was denied."""
        question = self._open_questions.pop(fact.call_id, None)
        if not isinstance(fact, events.ApprovalAnswered) or not isinstance(question, events.ApprovalRequested):
            return
        if self.asks_here:  # who asks writes the answer
            return
        scope = "" if fact.scope == "call" else f" for this {fact.scope}"
        if fact.decision != "allow":
            if scope:
                self._write_line("", f"denied{scope} by {fact.by or 'you'}")
            return
        what = f"{question.tool} {summarize_arguments(question.tool, question.arguments)}"
        room = max(20, self.console.width - 30)
        text = f"allowed {self._theme.cut(what, room)}{scope}" + (f" (by {fact.by})" if fact.by else "")
        self._write_line("done", text)

    def _write_event_note(self, event: events.Event) -> None:
        match event:
            case events.CancelRequested():
                self.is_stopping = self.is_running
            case events.SignalDetected() if event.kind in _SIGNALS:
                self._write_line("!", _SIGNALS[event.kind])
            case events.ContextCompacted(kind="undo"):
                self._write_line("", "the last compaction is undone: the model sees the older messages again")
            case events.ContextCompacted():
                before, after = format_count(event.tokens_before), format_count(event.tokens_after)
                self._write_line("", f"context compacted: {before} to {after} tokens")
            case events.Custom(name="treadle.hook", data={"result": {"failures": [str(first), *_]}}):
                self._write_line("!", first)
            case events.Custom(name="treadle.skill_proposed", data={"name": str(name)}):
                self._write_line("", f"a skill was drafted from this work: {name}; see treadle skills proposals")
            case events.Rewound():
                self._write_line("", f"back to position {event.to} ({event.what})")
            case _:
                pass

    def _write_line(self, mark: str, text: str) -> None:
        """Write a note on one line, with a mark before it. On a plain stream the words suffice."""
        self.end_text()
        theme = self._theme
        text = " ".join(escape_controls(text).split())
        if not theme.has_style:
            self.console.write_block(self._prefix + text)
            return
        drawn = {"done": theme.paint(theme.glyphs.done, "ok"), "": ""}.get(mark, theme.paint(mark, "need"))
        shown = theme.paint(theme.cut(text, max(20, self.console.width * 3)), "quiet")
        self.console.write_block(f"{drawn} {shown}" if drawn else shown)
