"""Facts as lines for a person: which argument of a call matters, what came of it. Pure; writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from treadle.cli.terminal_text import cut, elapsed, harmless, styled
from treadle.events import CallFinished, RunFinished
from treadle.messages import Json

MATTERS = ("command", "path", "url", "pattern", "query", "expression", "question", "name", "task", "text")
MARKS = {"ok": ("✓", "green"), "denied": ("⊘", "yellow"), "refused": ("⊘", "yellow"), "cancelled": ("■", "yellow")}
_STEPS = {"done": "☑", "doing": "▸"}
OUTPUT_LINES = 6
DIFF_LINES = 40
_HUNK = re.compile(r"^(@@ .* @@|--- |\+\+\+ |diff )")

ENDINGS = {
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


def matters(tool: str, arguments: Mapping[str, Json]) -> str:
    """The argument that tells what a call is about, on one line."""
    if plan := _plan(tool, arguments):
        return f"{sum(status == 'done' for status, _ in plan)} of {len(plan)} done"
    name = next((name for name in MATTERS if arguments.get(name)), next(iter(arguments), ""))
    value = arguments.get(name, "")
    return harmless(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def finished_lines(fact: CallFinished, arguments: Mapping[str, Json], room: int, *, colour: bool) -> list[str]:
    """What came of a call: one line, and then its diff or the end of its output."""
    mark, style = MARKS.get(fact.status, ("✗", "red"))
    took = f" · {elapsed(fact.duration)}" if fact.duration >= 0.05 else ""
    status = "" if fact.status == "ok" else f" · {fact.status.replace('_', ' ')}"
    end = f"{status}{took}"
    line = cut(f"{fact.tool}  {matters(fact.tool, arguments)}", max(10, room - 2 - len(end)))
    lines = [f"{styled(mark, style, colour)} {line}{styled(end, 'dim', colour)}"]
    if fact.status == "ok" and (plan := _plan(fact.tool, arguments)):
        return lines + [f"  {_STEPS.get(status, '☐')} {cut(harmless(text), room - 4)}" for status, text in plan]
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
    lines = harmless(fact.output).rstrip().splitlines()
    start = next((at for at, line in enumerate(lines) if _HUNK.match(line)), None)
    if start is not None and fact.status == "ok":
        return diff_lines(lines[start:], room, colour=colour)
    if fact.status == "ok" and fact.tool not in ("shell", "bash"):
        return []
    kept = [line for line in lines if line.strip()]
    more = [f"… {len(kept) - OUTPUT_LINES} lines above"] if len(kept) > OUTPUT_LINES else []
    return [styled(cut(line, room), "dim", colour) for line in [*more, *kept[-OUTPUT_LINES:]]]


def diff_lines(lines: list[str], room: int, *, colour: bool) -> list[str]:
    """A unified diff, cut to a screenful."""
    shown = [_diff_line(line, room, colour=colour) for line in lines[:DIFF_LINES]]
    left = len(lines) - DIFF_LINES
    return [*shown, styled(f"… {left} more lines", "dim", colour)] if left > 0 else shown


def _diff_line(line: str, room: int, *, colour: bool) -> str:
    line = line if len(line) <= room else line[: room - 1] + "…"
    if line.startswith(("+++", "---", "diff ")):
        return styled(line, "bold", colour)
    style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
    return styled(line, style, colour) if style else line


def ending(outcome: RunFinished) -> str:
    """How a run ended, when that is not with an answer."""
    words = ENDINGS.get(outcome.reason, outcome.reason)
    if outcome.error.startswith(words):
        return harmless(outcome.error)
    return harmless(f"{words}: {outcome.error}" if outcome.error else words)
