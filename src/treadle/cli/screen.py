"""Show a run to the user: streamed text, a line for each call, and a status line at the bottom."""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import cast

from treadle import events
from treadle.cli.console import (
    Console,
    TerminalConsole,
    escape_controls,
    format_count,
    format_duration,
    style_text,
    truncate_line,
)
from treadle.messages import Json, Usage, render_parts

TICK_SECONDS = 0.5
"""Seconds between two redraws of the status line while no event arrives."""

_SIGNALS = {
    "doom_loop": "the model repeats the same calls: it gets a warning",
    "uncertain": "the model is uncertain",
    "empty_reply": "the reply is empty: the model is asked again",
    "invalid_output": "the answer has the wrong format: the model is asked again",
    "stray_calls": "calls of tools that were not offered are ignored",
    "hook": "a hook adds a note for the model",
}
_FAILURES = {
    "overloaded": "Provider overloaded",
    "network": "Provider unreachable",
    "stalled": "Provider silent",
    "quota": "Quota used up",
}
_HEADING = re.compile(r"^#{1,6} +(.*)$")
_FENCE = re.compile(r"^\s*(```|~~~)")
_BULLET = re.compile(r"^(\s*)[-*+] +")
_INLINE = re.compile(r"`([^`]+)`|\*\*(\S(?:(?:(?!\*\*).)*?\S)?)\*\*")
_ENDS_RETRY = (events.RetryRequested, events.ModelReplied, events.TurnStarted, events.RunFinished)
MAIN_ARGUMENTS = ("command", "path", "url", "pattern", "query", "expression", "question", "name", "task", "text")
STATUS_MARKS = {
    "ok": ("✓", "green"),
    "denied": ("⊘", "yellow"),
    "refused": ("⊘", "yellow"),
    "cancelled": ("■", "yellow"),
}
_STEP_MARKS = {"done": "☑", "doing": "▸"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
OUTPUT_LINES = 6
DIFF_LINES = 40
_HUNK = re.compile(r"^(@@ .* @@|--- |\+\+\+ |diff )")

ENDING_TEXTS = {
    "turn_limit": "stopped: the turn limit is reached",
    "call_limit": "stopped: the call limit is reached",
    "token_limit": "stopped: the token limit is reached",
    "time_limit": "stopped: the time limit is reached",
    "cost_limit": "stopped: the cost limit is reached",
    "doom_loop": "stopped: the agent repeated the same calls",
    "stuck": "stopped: the agent is stuck",
    "yielded": "stopped: the agent asks you to take over",
    "cancelled": "cancelled",
    "failed": "failed",
}


class Screen:
    """Shows events on a console. It keeps only the state of the status line, and all of that is in the log.

    With `hide_answer` it shows only the text between calls, because the caller prints the answer itself.
    """

    def __init__(self, console: Console, *, asks_here: bool = False, hide_answer: bool = False) -> None:
        self.console = console
        self.window: int | None = None
        self.asks_here = asks_here
        """Whether another object asks the questions on the same console."""
        self.own_message = ""
        """The id of a message that is not shown, because the user has just entered it."""
        self.is_running = False
        self.retry_keys = ""
        """The keys that end the wait for a provider, as the status line names them."""
        self._failure: events.ModelFailed | None = None  # until the model is asked again
        self._hide_answer = hide_answer
        self._usage, self._context_tokens = Usage(), 0
        self._open_questions: dict[str, events.ApprovalRequested | events.InputRequested] = {}
        self._arguments: dict[str, dict[str, Json]] = {}
        self._running_calls: dict[str, tuple[str, float]] = {}
        self._call_output = self._model_progress = ""
        self._text_kind = ""  # of the open text: "text", "reasoning", or empty if no text is open
        self._styler = MarkdownStyler()
        self._streamed_text = ""
        self._turn, self._max_turns, self._calls = 0, 0, 0
        self._turn_start = time.monotonic()

    @property
    def retry_in(self) -> float | None:
        """The seconds until the model is asked again, if the run waits for its provider."""
        left = (self._failure.at + (self._failure.wait or 0.0) - time.time()) if self._failure is not None else 0.0
        return left if left > 0 else None

    def handle_event(self, event: events.Event) -> None:
        if isinstance(event, _ENDS_RETRY):
            self._failure = None
        match event:
            case events.TextDelta(text=text):
                if not self._hide_answer:
                    self._write_text(text, "text")
            case events.ReasoningDelta(text=text):
                if not self._hide_answer:
                    self._write_text(text, "reasoning")
            case events.Progress(call_id=""):
                share = f" {event.done / event.total:.0%}" if event.done is not None and event.total else ""
                self._model_progress = f"{event.message}{share}"
            case events.OutputDelta(text=text) | events.Progress(message=text):
                lines = [line for line in text.splitlines() if line.strip()]
                self._call_output = lines[-1] if lines else self._call_output
            case events.CallStarted():
                self._arguments[event.call_id] = event.arguments
                self._running_calls[event.call_id] = (event.tool, _convert_time(event))
            case events.ModelReplied():
                self._handle_reply(event)
            case events.CallFinished():
                self._handle_call(event)
            case events.RunStarted():
                self.is_running, self._turn_start = True, _convert_time(event)
                self._turn, self._calls, self._max_turns = 0, 0, event.limits.turns
            case events.TurnStarted():
                self._handle_turn(event)
            case events.RunFinished():
                self._handle_end(event)
            case _:
                self._write_event_note(event)
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
        """Restore the status line and the open calls of an active run, without showing its events again.

        A wait for the provider is shown: without a terminal there is no status line.
        """
        began = max((at for at, fact in enumerate(facts) if isinstance(fact, events.RunStarted)), default=len(facts))
        if any(isinstance(fact, events.RunFinished) for fact in facts[began:]):
            return
        console, self.console = self.console, TerminalConsole(io.StringIO())
        for fact in facts[began:]:
            self.handle_event(fact)
        self.console = console
        if self._failure is not None and (left := self.retry_in) is not None:
            self._write_dim(describe_failure(self._failure, left))

    def redraw_status(self) -> None:
        """Redraw the status line, to update the elapsed time."""
        self.console.set_status(self._build_status() if self.is_running else "")

    async def refresh_status(self) -> None:
        """Redraw the status line regularly, until the task is cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.redraw_status()

    def _build_status(self) -> str:
        if self._failure is not None and (left := self.retry_in) is not None:
            keys = f" · {self.retry_keys}" if self.retry_keys else ""
            return f"{describe_failure(self._failure, left)}{keys}"
        now, output = time.monotonic(), truncate_line(escape_controls(self._call_output), 40)
        parts = [f"turn {self._turn}/{self._max_turns}", f"{self._calls} call{'s' if self._calls != 1 else ''}"]
        if self.window and self._context_tokens:
            parts.append(f"context {self._context_tokens / self.window:.0%}")
        parts.append(f"{format_count(self._usage.input_tokens + self._usage.output_tokens)} tokens")
        if self._usage.cost:
            parts.append(f"${self._usage.cost:.4f}")
        activities: list[str] = []
        for call_id, (tool, start) in self._running_calls.items():
            argument = truncate_line(summarize_arguments(tool, self._arguments.get(call_id, {})), 40)
            activities.append(f"{tool} {argument} {format_duration(now - start)}")
        if self._open_questions:
            activities = ["waits for an answer"]
        elif not activities and not self._text_kind:
            progress = escape_controls(self._model_progress) or "thinking"
            activities = [f"{progress} {format_duration(now - self._turn_start)}"]
        if output and self._running_calls:
            activities.append(output)
        return " · ".join([*activities, *parts])

    def _write_text(self, text: str, kind: str) -> None:
        text = escape_controls(text)
        if self._text_kind != kind:
            text = text.lstrip()
            if not text:
                return
            if self._text_kind:
                self.console.write_line("")
            self._text_kind, self._styler = kind, MarkdownStyler()
        if kind == "text":
            self._streamed_text += text
            self.console.write(text, self._styler.style_line)
        else:
            self.console.write(text, dim=True)

    def _end_text(self) -> None:
        """End the open text and its line."""
        if self._text_kind:
            self.console.write_line("")
        self._text_kind = ""

    def _handle_reply(self, fact: events.ModelReplied) -> None:
        if not self._streamed_text.strip() and fact.text.strip() and (fact.calls or not self._hide_answer):
            self._write_text(fact.text, "text")  # no live text: it ran in another process, or earlier
        self._end_text()
        self._streamed_text = ""
        self._usage += fact.usage
        self._context_tokens = fact.usage.input_tokens + fact.usage.output_tokens
        for call in fact.calls:
            try:
                arguments: object = json.loads(call.arguments)
            except ValueError:
                arguments = None
            self._arguments[call.id] = cast("dict[str, Json]", arguments) if isinstance(arguments, dict) else {}

    def _handle_call(self, fact: events.CallFinished) -> None:
        self._running_calls.pop(fact.call_id, None)
        for question in [one for one in self._open_questions.values() if events.settles_question(fact, one)]:
            del self._open_questions[question.call_id]
        self._call_output = ""
        self._calls += 1
        arguments = self._arguments.pop(fact.call_id, {})
        for line in render_call(fact, arguments, self.console.width - 1, colour=self.console.has_colour):
            self.console.write_line(line)

    def _handle_turn(self, fact: events.TurnStarted) -> None:
        self._end_text()
        self._streamed_text = self._model_progress = ""
        self._turn, self._turn_start = fact.turn, _convert_time(fact)
        if fact.wrap_up:
            self._write_dim(f"a limit is reached ({fact.wrap_up.replace('_', ' ')}): one last turn to summarize")

    def _handle_end(self, fact: events.RunFinished) -> None:
        self._end_text()
        self.is_running = False
        self._running_calls.clear()
        self._open_questions.clear()
        if fact.reason != "answered":
            style = "red" if fact.reason == "failed" else "yellow"
            self.console.write_line(style_text(describe_ending(fact), style, self.console.has_colour))

    def _write_event_note(self, event: events.Event) -> None:
        match event:
            case events.ModelFailed() if event.wait is not None:
                self._end_text()
                if event.attempt == 1:  # what the provider says hardly changes
                    self._write_dim(event.message)
                end = time.strftime("%H:%M", time.localtime(event.give_up_at)) if event.give_up_at else ""
                self._write_dim(describe_failure(event, event.wait, f", giving up at {end}" if end else ""))
                self._failure = event
            case events.RetryRequested():
                self._write_dim("Asking the model again now.")
            case events.SignalDetected() if event.kind in _SIGNALS:
                self._write_dim(_SIGNALS[event.kind])
            case events.ContextCompacted(kind="undo"):
                self._write_dim("the last compaction is undone: the model sees the older messages again")
            case events.ContextCompacted():
                before, after = format_count(event.tokens_before), format_count(event.tokens_after)
                self._write_dim(f"context compacted: {before} to {after} tokens")
            case events.Custom(name="treadle.hook", data={"result": {"failures": [str(first), *_]}}):
                self._write_dim(first)
            case events.Custom(name="treadle.skill_proposed", data={"name": str(name)}):
                self._write_dim(f"a skill was drafted from this work: {name}; see treadle skills proposals")
            case events.ApprovalRequested() | events.InputRequested():
                self._open_questions[event.call_id] = event
                if self.asks_here:
                    pass
                elif isinstance(event, events.ApprovalRequested):
                    self._write_dim(f"{event.tool} needs approval: {event.why}")
                else:
                    self._write_dim(f"the agent asks: {event.questions[0].text if event.questions else ''}")
            case events.ApprovalAnswered() | events.InputAnswered():
                self._open_questions.pop(event.call_id, None)
                if isinstance(event, events.ApprovalAnswered) and event.scope != "call":
                    verb = "allowed" if event.decision == "allow" else "denied"
                    self._write_dim(f"{verb} for this {event.scope} by {event.by or 'somebody'}")
            case events.MessageReceived() if event.id != self.own_message:
                lines = [f"› {render_parts(event.parts[:1])}"]
                for part in event.parts[1:]:  # of an attachment, show only the first line and the number of lines
                    first, _, rest = render_parts((part,)).strip().partition("\n")
                    lines.append(f"  {first}" + (f" … {len(rest.strip().splitlines())} lines" if rest else ""))
                text = escape_controls("\n".join(lines))
                self.console.write_aside(style_text(text, "blue", self.console.has_colour))
            case events.Rewound():
                self._write_dim(f"back to position {event.to} ({event.what})")
            case _:
                pass

    def _write_dim(self, text: str) -> None:
        line = truncate_line(escape_controls(text), max(20, self.console.width * 3))
        self.console.write_line(style_text(line, "dim", self.console.has_colour))


def describe_failure(fact: events.ModelFailed, left: float, more: str = "") -> str:
    """Describe a failure after which the model is asked again, in `left` seconds. `more` is said of the attempt."""
    status = f" ({fact.status})" if fact.status else ""
    what = _FAILURES.get(fact.kind, "Provider error")
    return f"{what}{status}, retrying in {format_duration(left)} (attempt {fact.attempt + 1}{more})"


def _convert_time(fact: events.Fact) -> float:
    """Convert the time of a fact to the monotonic clock. The fact may be older than this screen."""
    return time.monotonic() - max(0.0, time.time() - fact.at) if fact.at else time.monotonic()


class MarkdownStyler:
    """Styles the lines of one text in order. Lines between fences are code."""

    def __init__(self) -> None:
        self._is_code = False

    def style_line(self, text: str) -> str:
        """Replace the Markdown marks of a line by escape codes. The words stay the same."""
        if _FENCE.match(text):
            self._is_code = not self._is_code
            return style_text(text, "dim", colour=True)
        if self._is_code:
            return style_text(text, "cyan", colour=True)
        if heading := _HEADING.match(text):
            return style_text(heading[1].rstrip().rstrip("#"), "bold", colour=True)
        bullet = _BULLET.match(text)
        start = f"{bullet[1]}• " if bullet else ""
        return start + _INLINE.sub(
            lambda match: style_text(match[1] or match[2], "cyan" if match[1] else "bold", colour=True),
            text[bullet.end() if bullet else 0 :],
        )


def summarize_arguments(tool: str, arguments: Mapping[str, Json]) -> str:
    """Return the main argument of a call on one line."""
    if plan := _list_plan_steps(tool, arguments):
        return f"{sum(status == 'done' for status, _ in plan)} of {len(plan)} done"
    name = next((name for name in MAIN_ARGUMENTS if arguments.get(name)), next(iter(arguments), ""))
    value = arguments.get(name, "")
    return escape_controls(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def render_call(fact: events.CallFinished, arguments: Mapping[str, Json], width: int, *, colour: bool) -> list[str]:
    """Render the result of a call: one line, then its plan, its diff or the end of its output."""
    mark, style = STATUS_MARKS.get(fact.status, ("✗", "red"))
    status = "" if fact.status == "ok" else f" · {fact.status.replace('_', ' ')}"
    end = status + (f" · {format_duration(fact.duration)}" if fact.duration >= 0.05 else "")
    line = truncate_line(f"{fact.tool}  {summarize_arguments(fact.tool, arguments)}", max(10, width - 2 - len(end)))
    head = f"{style_text(mark, style, colour)} {line}{style_text(end, 'dim', colour)}"
    if fact.status == "ok" and (steps := _list_plan_steps(fact.tool, arguments)):
        below = [
            f"{_STEP_MARKS.get(status, '☐')} {truncate_line(escape_controls(text), width - 4)}"
            for status, text in steps
        ]
        return [head, *(f"  {line}" for line in below)]
    lines = escape_controls(fact.output).rstrip().splitlines()
    start = next((at for at, line in enumerate(lines) if _HUNK.match(line)), None)
    if fact.status == "ok" and start is not None:
        below = render_diff(lines[start:], width - 2, colour=colour)
    elif fact.status == "ok" and fact.tool not in ("shell", "bash"):
        below = []
    else:
        lines = [line for line in lines if line.strip()]
        more = [f"… {len(lines) - OUTPUT_LINES} lines above"] if len(lines) > OUTPUT_LINES else []
        below = [style_text(truncate_line(line, width - 2), "dim", colour) for line in [*more, *lines[-OUTPUT_LINES:]]]
    return [head, *(f"  {line}" for line in below)]


def _list_plan_steps(tool: str, arguments: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Return the status and text of each step of a plan, if the call updates a plan."""
    items = arguments.get("items")
    if tool != "todo" or not isinstance(items, list):
        return []
    steps: list[tuple[str, str]] = []
    for item in cast("list[Json]", items):
        step = cast("dict[str, Json]", item) if isinstance(item, dict) else {"text": item}
        steps.append((str(step.get("status", "")), str(step.get("text", ""))))
    return steps


def render_diff(lines: list[str], width: int, *, colour: bool) -> list[str]:
    """Render a unified diff, shortened to fit the screen."""
    shown: list[str] = []
    for line in lines[:DIFF_LINES]:
        style = "bold" if line.startswith(("+++", "---", "diff ")) else _DIFF_STYLES.get(line[:1], "")
        shown.append(style_text(line if len(line) <= width else line[: width - 1] + "…", style, colour))
    if len(lines) > DIFF_LINES:
        shown.append(style_text(f"… {len(lines) - DIFF_LINES} more lines", "dim", colour))
    return shown


def describe_ending(outcome: events.RunFinished) -> str:
    """Describe how a run ended if it ended without an answer."""
    text = ENDING_TEXTS.get(outcome.reason, outcome.reason)
    if outcome.error.startswith(text):
        return escape_controls(outcome.error)
    return escape_controls(f"{text}: {outcome.error}" if outcome.error else text)
