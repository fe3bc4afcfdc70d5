"""Facts as lines for a person: which argument of a call matters, what came of it. Pure; writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from treadle.cli.terminal_text import escape_controls, format_duration, style_text, truncate_line
from treadle.events import CallFinished, RunFinished
from treadle.messages import Json

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


def summarize_arguments(tool: str, arguments: Mapping[str, Json]) -> str:
    """The argument that tells what a call is about, on one line."""
    if plan := _plan(tool, arguments):
        return f"{sum(status == 'done' for status, _ in plan)} of {len(plan)} done"
    name = next((name for name in MAIN_ARGUMENTS if arguments.get(name)), next(iter(arguments), ""))
    value = arguments.get(name, "")
    return escape_controls(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def render_call(fact: CallFinished, arguments: Mapping[str, Json], room: int, *, colour: bool) -> list[str]:
    """What came of a call: one line, and then its diff or the end of its output."""
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
    return lines + [f"  {piece}" for piece in _shown(fact, room - 2, colour=colour)]


def _plan(tool: str, arguments: Mapping[str, Json]) -> list[tuple[str, str]]:
    """The steps of a plan with their status, if the call is about one."""
    items = arguments.get("items")
    if tool != "todo" or not isinstance(items, list):
        return []
    steps: list[tuple[str, str]] = []
    for item in cast("list[Json]", items):
        step = cast("dict[str, Json]", item) if isinstance(item, dict) else {"text": item}
        steps.append((str(step.get("status", "")), str(step.get("text", ""))))
    return steps


def _shown(fact: CallFinished, room: int, *, colour: bool) -> list[str]:
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
    """A unified diff, cut to a screenful."""
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
    """How a run ended, when that is not with an answer."""
    words = ENDING_TEXTS.get(outcome.reason, outcome.reason)
    if outcome.error.startswith(words):
        return escape_controls(outcome.error)
    return escape_controls(f"{words}: {outcome.error}" if outcome.error else words)
