"""Show a run to the user: streamed text, a line for each call, and a status line at the bottom."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import cast

from treadle.cli.console import (
    Console,
    NullConsole,
    escape_controls,
    format_count,
    format_duration,
    style_text,
    truncate_line,
)
from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    ContextCompacted,
    Custom,
    Event,
    Fact,
    InputAnswered,
    InputRequested,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    OutputDelta,
    Progress,
    ReasoningDelta,
    Rewound,
    RunFinished,
    RunStarted,
    SignalDetected,
    TextDelta,
    TurnStarted,
)
from treadle.messages import Json, Part, Usage, render_parts

TICK_SECONDS = 0.5
"""Seconds between two redraws of the status line while no event arrives."""

STEER_NOTE = "  it reads this at its next turn:"
"""The note above a message that was sent during a run."""

_SIGNALS = {
    "doom_loop": "the same calls again and again: the model is warned",
    "uncertain": "the model is not sure",
    "empty_reply": "an empty reply: the model is asked again",
    "invalid_output": "the answer has the wrong form: the model is asked again",
    "stray_calls": "calls that were not offered are dropped",
}
_HEADING = re.compile(r"^#{1,6} +(.*)$")
_FENCE = re.compile(r"^\s*(```|~~~)")
_BULLET = re.compile(r"^(\s*)[-*+] +")
_INLINE = re.compile(r"`([^`]+)`|\*\*(\S(?:(?:(?!\*\*).)*?\S)?)\*\*")
MAIN_ARGUMENTS = ("command", "path", "url", "pattern", "query", "expression", "question", "name", "task", "text")
STATUS_MARKS = {
    "ok": ("✓", "green"),
    "denied": ("⊘", "yellow"),
    "refused": ("⊘", "yellow"),
    "cancelled": ("■", "yellow"),
}
_STEPS = {"done": "☑", "doing": "▸"}
OUTPUT_LINES = 6
DIFF_LINES = 40
_HUNK = re.compile(r"^(@@ .* @@|--- |\+\+\+ |diff )")

ENDING_TEXTS = {
    "turn_limit": "stopped: the limit of turns is reached",
    "call_limit": "stopped: the limit of calls is reached",
    "token_limit": "stopped: the limit of tokens is reached",
    "time_limit": "stopped: the time is up",
    "cost_limit": "stopped: the limit of cost is reached",
    "doom_loop": "stopped: it repeated the same calls",
    "stuck": "stopped: the agent is stuck",
    "yielded": "stopped: the agent hands over to you",
    "cancelled": "cancelled",
    "failed": "failed",
}


class Screen:
    """Shows events on a console. It keeps only the state of the status line, and all of that is in the log.

    With `hide_answer` it shows only the text between calls, because the caller prints the answer itself.
    """

    def __init__(
        self, console: Console, *, window: int | None = None, own_message: str = "", hide_answer: bool = False
    ) -> None:
        self.console = console
        self._apart = hide_answer
        self.window = window
        self.usage, self.context_tokens = Usage(), 0
        self.is_running = False
        self.asks_here = False
        """Whether another object asks the questions on the same console."""
        self._mine = own_message
        self._waiting: set[str] = set()
        self._arguments: dict[str, dict[str, Json]] = {}
        self._started: dict[str, tuple[str, float]] = {}
        self._doing = self._readying = ""
        self._kind = ""
        self._painter = MarkdownStyler()
        self._written = ""
        self._turn, self._turns, self._calls = 0, 0, 0
        self._began = time.monotonic()

    def handle_event(self, event: Event) -> None:
        match event:
            case TextDelta(text=text):
                if not self._apart:
                    self._prose(text, "text")
            case ReasoningDelta(text=text):
                if not self._apart:
                    self._prose(text, "reasoning")
            case Progress(call_id=""):
                share = f" {event.done / event.total:.0%}" if event.done is not None and event.total else ""
                self._readying = f"{event.message}{share}"
            case OutputDelta(text=text) | Progress(message=text):
                self._doing = next((line for line in reversed(text.splitlines()) if line.strip()), self._doing)
            case CallStarted():
                self._arguments[event.call_id] = event.arguments
                self._started[event.call_id] = (event.tool, _since(event))
            case ModelReplied():
                self._replied(event)
            case CallFinished():
                self._finished(event)
            case RunStarted():
                self.is_running, self._began = True, _since(event)
                self._turn, self._calls, self._turns = 0, 0, event.limits.turns
            case TurnStarted():
                self._turned(event)
            case RunFinished():
                self._ended(event)
            case _:
                self._aside(event)
        self.redraw_status()

    def show_history(self, facts: Sequence[AnyFact], messages: int = 1) -> None:
        """Show the history from the last `messages` messages on, and the whole active run if there is one."""
        runs = [fact.seq for fact in facts if isinstance(fact, RunStarted)]
        began = runs[-1] if runs else 0
        said = [fact.seq for fact in facts if isinstance(fact, MessageReceived)]
        start = min((said[-messages:] or [0])[0], max((seq for seq in said if seq < began), default=began))
        for fact in facts:
            if fact.seq >= start:
                self.handle_event(fact)

    def restore_run(self, facts: Sequence[AnyFact]) -> None:
        """Restore the status line and the open calls of an active run, without showing its events again."""
        began = max((at for at, fact in enumerate(facts) if isinstance(fact, RunStarted)), default=len(facts))
        if any(isinstance(fact, RunFinished) for fact in facts[began:]):
            return
        stage, self.console = self.console, NullConsole()
        for fact in facts[began:]:
            self.handle_event(fact)
        self.console = stage

    def redraw_status(self) -> None:
        """Redraw the status line, to update the elapsed time."""
        self.console.set_status(self._status() if self.is_running else "")

    def _status(self) -> str:
        now = time.monotonic()
        parts = [f"turn {self._turn}/{self._turns}", f"{self._calls} call{'s' if self._calls != 1 else ''}"]
        if self.window and self.context_tokens:
            parts.append(f"context {self.context_tokens / self.window:.0%}")
        parts.append(f"{format_count(self.usage.input_tokens + self.usage.output_tokens)} tokens")
        if self.usage.cost:
            parts.append(f"${self.usage.cost:.4f}")
        doing = [
            f"{tool} {truncate_line(argument, 40)} {format_duration(now - since)}"
            for call_id, (tool, since) in self._started.items()
            for argument in [summarize_arguments(tool, self._arguments.get(call_id, {}))]
        ]
        if self._waiting:
            doing = ["waits for an answer"]
        elif not doing and not self._kind:
            doing = [f"{escape_controls(self._readying) or 'thinking'} {format_duration(now - self._began)}"]
        live = [truncate_line(escape_controls(self._doing), 40)] if self._doing and self._started else []
        return " · ".join([*doing, *live, *parts])

    def _prose(self, text: str, kind: str) -> None:
        text = escape_controls(text)
        if self._kind != kind:
            text = text.lstrip()
            if not text:
                return
            if self._kind:
                self.console.write_line("")
            self._kind, self._painter = kind, MarkdownStyler()
        if kind == "text":
            self._written += text
            self.console.write(text, self._painter.style_line)
        else:
            self.console.write(text, dim=True)

    def _close(self) -> None:
        """End the open text and its line."""
        if self._kind:
            self.console.write_line("")
        self._kind = ""

    def _replied(self, fact: ModelReplied) -> None:
        if not self._written.strip() and fact.text.strip() and (fact.calls or not self._apart):
            self._prose(fact.text, "text")  # no live text: it ran in another process, or earlier
        self._close()
        self._written = ""
        self.usage += fact.usage
        self.context_tokens = fact.usage.input_tokens + fact.usage.output_tokens
        for call in fact.calls:
            self._arguments[call.id] = _parsed(call.arguments)

    def _finished(self, fact: CallFinished) -> None:
        self._started.pop(fact.call_id, None)
        self._waiting.discard(fact.call_id)
        self._doing = ""
        self._calls += 1
        arguments = self._arguments.pop(fact.call_id, {})
        for line in render_call(fact, arguments, self.console.width - 1, colour=self.console.has_colour):
            self.console.write_line(line)

    def _turned(self, fact: TurnStarted) -> None:
        self._close()
        self._written = self._readying = ""
        self._turn, self._began = fact.turn, _since(fact)
        if fact.wrap_up:
            self._dim(f"a limit is reached ({fact.wrap_up.replace('_', ' ')}): one last turn to sum up")

    def _ended(self, fact: RunFinished) -> None:
        self._close()
        self.is_running = False
        self._started.clear()
        self._waiting.clear()
        if fact.reason != "answered":
            self.console.write_line(
                style_text(
                    describe_ending(fact), "red" if fact.reason == "failed" else "yellow", self.console.has_colour
                )
            )

    def _aside(self, event: Event) -> None:
        match event:
            case ModelFailed() if event.wait is not None:
                self._close()
                wait = f"trying again in {format_duration(event.wait)}"
                self._dim(f"no reply ({event.kind}: {event.message}); {wait}, attempt {event.attempt + 1}")
            case SignalDetected() if event.kind in _SIGNALS:
                self._dim(_SIGNALS[event.kind])
            case ContextCompacted(kind="undo"):
                self._dim("the last compaction is taken back: the model is shown again what it left out")
            case Custom(name="treadle.skill_proposed", data={"name": str(name)}):
                self._dim(f"a skill is drafted from what was done: {name}; see treadle skills proposals")
            case ContextCompacted():
                before, after = format_count(event.tokens_before), format_count(event.tokens_after)
                self._dim(f"context compacted: {before} to {after} tokens")
            case ApprovalAnswered() | InputAnswered():
                self._answered(event)
            case ApprovalRequested() | InputRequested():
                self._asked(event)
            case MessageReceived() if event.id != self._mine:
                self.console.write_aside(
                    style_text(escape_controls(f"› {_render_message(event.parts)}"), "blue", self.console.has_colour)
                )
            case Rewound():
                self._dim(f"back to position {event.to} ({event.what})")
            case _:
                pass

    def _asked(self, question: ApprovalRequested | InputRequested) -> None:
        self._waiting.add(question.call_id)
        if self.asks_here:
            return
        if isinstance(question, ApprovalRequested):
            self._dim(f"{question.tool} is asked for: {question.why}")
        else:
            self._dim(f"the agent asks: {question.questions[0].text if question.questions else ''}")

    def _answered(self, answer: ApprovalAnswered | InputAnswered) -> None:
        self._waiting.discard(answer.call_id)
        if isinstance(answer, ApprovalAnswered) and answer.scope != "call":
            verb = "allowed" if answer.decision == "allow" else "denied"
            self._dim(f"{verb} for this {answer.scope} by {answer.by or 'somebody'}")

    def _dim(self, text: str) -> None:
        self.console.write_line(
            style_text(
                truncate_line(escape_controls(text), max(20, self.console.width * 3)), "dim", self.console.has_colour
            )
        )


def _render_message(parts: Sequence[Part]) -> str:
    """Render the text of a message. Of each attachment, show only the first line and the number of lines."""
    lines = [render_parts(parts[:1])]
    for part in parts[1:]:
        first, _, rest = render_parts((part,)).strip().partition("\n")
        lines.append(f"  {first}" + (f" … {len(rest.strip().splitlines())} lines" if rest else ""))
    return "\n".join(lines)


def _since(fact: Fact) -> float:
    """Convert the time of a fact to the monotonic clock. The fact may be older than this screen."""
    return time.monotonic() - max(0.0, time.time() - fact.at) if fact.at else time.monotonic()


def _parsed(arguments: str) -> dict[str, Json]:
    try:
        value: object = json.loads(arguments)
    except ValueError:
        return {}
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


class MarkdownStyler:
    """Styles the lines of one text in order. Lines between fences are code."""

    def __init__(self) -> None:
        self._code = False

    def style_line(self, text: str) -> str:
        """Replace the Markdown marks of a line by escape codes. The words stay the same."""
        if _FENCE.match(text):
            self._code = not self._code
            return style_text(text, "dim", colour=True)
        if self._code:
            return style_text(text, "cyan", colour=True)
        if heading := _HEADING.match(text):
            return style_text(heading[1].rstrip().rstrip("#"), "bold", colour=True)
        bullet = _BULLET.match(text)
        start = f"{bullet[1]}• " if bullet else ""
        return start + _INLINE.sub(_inline, text[bullet.end() if bullet else 0 :])


def _inline(match: re.Match[str]) -> str:
    return style_text(match[1] or match[2], "cyan" if match[1] else "bold", colour=True)


def summarize_arguments(tool: str, arguments: Mapping[str, Json]) -> str:
    """Return the main argument of a call on one line."""
    if plan := _plan(tool, arguments):
        return f"{sum(status == 'done' for status, _ in plan)} of {len(plan)} done"
    name = next((name for name in MAIN_ARGUMENTS if arguments.get(name)), next(iter(arguments), ""))
    value = arguments.get(name, "")
    return escape_controls(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def render_call(fact: CallFinished, arguments: Mapping[str, Json], room: int, *, colour: bool) -> list[str]:
    """Render the result of a call: one line, then its diff or the end of its output."""
    mark, style = STATUS_MARKS.get(fact.status, ("✗", "red"))
    took = f" · {format_duration(fact.duration)}" if fact.duration >= 0.05 else ""
    status = "" if fact.status == "ok" else f" · {fact.status.replace('_', ' ')}"
    end = f"{status}{took}"
    line = truncate_line(f"{fact.tool}  {summarize_arguments(fact.tool, arguments)}", max(10, room - 2 - len(end)))
    lines = [f"{style_text(mark, style, colour)} {line}{style_text(end, 'dim', colour)}"]
    if fact.status == "ok" and (plan := _plan(fact.tool, arguments)):
        return lines + [
            f"  {_STEPS.get(status, '☐')} {truncate_line(escape_controls(text), room - 4)}" for status, text in plan
        ]
    return lines + [f"  {piece}" for piece in _render_output(fact, room - 2, colour=colour)]


def _plan(tool: str, arguments: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Return the steps of a plan with their status, if the call updates a plan."""
    items = arguments.get("items")
    if tool != "todo" or not isinstance(items, list):
        return []
    steps: list[tuple[str, str]] = []
    for item in cast("list[Json]", items):
        step = cast("dict[str, Json]", item) if isinstance(item, dict) else {"text": item}
        steps.append((str(step.get("status", "")), str(step.get("text", ""))))
    return steps


def _render_output(fact: CallFinished, room: int, *, colour: bool) -> list[str]:
    lines = escape_controls(fact.output).rstrip().splitlines()
    start = next((at for at, line in enumerate(lines) if _HUNK.match(line)), None)
    if start is not None and fact.status == "ok":
        return render_diff(lines[start:], room, colour=colour)
    if fact.status == "ok" and fact.tool not in ("shell", "bash"):
        return []
    kept = [line for line in lines if line.strip()]
    more = [f"… {len(kept) - OUTPUT_LINES} lines above"] if len(kept) > OUTPUT_LINES else []
    return [style_text(truncate_line(line, room), "dim", colour) for line in [*more, *kept[-OUTPUT_LINES:]]]


def render_diff(lines: list[str], room: int, *, colour: bool) -> list[str]:
    """Render a unified diff, shortened to fit the screen."""
    shown = [_diff_line(line, room, colour=colour) for line in lines[:DIFF_LINES]]
    left = len(lines) - DIFF_LINES
    return [*shown, style_text(f"… {left} more lines", "dim", colour)] if left > 0 else shown


def _diff_line(line: str, room: int, *, colour: bool) -> str:
    line = line if len(line) <= room else line[: room - 1] + "…"
    if line.startswith(("+++", "---", "diff ")):
        return style_text(line, "bold", colour)
    style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
    return style_text(line, style, colour) if style else line


def describe_ending(outcome: RunFinished) -> str:
    """Describe how a run ended if it ended without an answer."""
    words = ENDING_TEXTS.get(outcome.reason, outcome.reason)
    if outcome.error.startswith(words):
        return escape_controls(outcome.error)
    return escape_controls(f"{words}: {outcome.error}" if outcome.error else words)
