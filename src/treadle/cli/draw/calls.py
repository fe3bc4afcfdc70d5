"""Draw calls: one line with a mark, the tool, its main argument and facts, then its diff or the end of its output."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from treadle.cli.console import escape_controls, format_duration, measure_width, wrap_rows
from treadle.cli.draw.diff import DIFF_LINES, count_changes, find_diff, render_diff
from treadle.cli.draw.glyphs import ASCII_GLYPHS, Theme
from treadle.events import CallFinished, CallStarted
from treadle.messages import Json
from treadle.permissions.policy import PLAN_REFUSAL

MAIN_ARGUMENTS = ("command", "path", "url", "pattern", "query", "expression", "question", "name", "task", "text")
OUTPUT_LINES, FAILED_LINES, OWN_LINES = 3, 8, 20
"""Lines at the end of the output that are shown of a command that went well, of a call that failed, and of a command
that the user ran.
"""

CHAIN_CALLS = 3
"""Successive calls that only read and went well, from which on they are folded to one line."""

PLAN_ROWS = 6
TOOL_COLUMN = 13
"""Cells for the name of a tool, in a window of at least `WIDE` columns."""

WIDE = 76
NOT_FOLDED = ("shell", "bash", "todo", "delegate", "ask_user")
_EXIT = re.compile(r"exit code (-?\d+)")
_NEW_FILE = re.compile(r"Made .* \(\d+ bytes, (\d+) lines?\)\.$")
# The glyph, the role of the mark and the plain word of each state.
STATES = {
    "ok": ("done", "ok", "ok"),
    "error": ("failed", "bad", "failed"),
    "timed_out": ("failed", "bad", "failed"),
    "denied": ("denied", "need", "denied"),
    "refused": ("denied", "need", "denied"),
    "cancelled": ("stopped", "need", "stopped"),
    "interrupted": ("warning", "bad", "unknown"),
    "running": ("running", "accent", "running"),
    "asks": ("question", "need", "asks"),
}


_FAILURES = ("error", "timed_out", "denied", "refused")
"""The states that need a reason."""

_FINISHED_WORDS = ("ok", "failed", "denied", "stopped", "unknown")
MAX_STEPS = 8


class RunningCall(Struct):
    """A call under way: what it runs, since when, the end of its output, and the steps of its helper."""

    started: CallStarted
    since: float
    output: str = ""
    steps: list[str] = []
    finished_steps: int = 0

    def add_step(self, step: str) -> None:
        """Add a step of the helper. The end of a step replaces its beginning."""
        word, _, rest = step.partition(" ")
        if word != "running":
            self.finished_steps += word in _FINISHED_WORDS
            self.steps = [one for one in self.steps if one != f"running {rest}"]
        self.steps = [*self.steps, step][-MAX_STEPS:]


def list_plan_steps(tool: str, arguments: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Return the status and text of each step of a plan, if the call updates a plan."""
    items = arguments.get("items")
    if tool != "todo" or not isinstance(items, list):
        return []
    steps: list[tuple[str, str]] = []
    for item in cast("list[Json]", items):
        step = cast("dict[str, Json]", item) if isinstance(item, dict) else {"text": item}
        steps.append((str(step.get("status", "")), escape_controls(str(step.get("text", "")))))
    return steps


def summarize_arguments(tool: str, arguments: Mapping[str, Json]) -> str:
    """Return the main argument of a call on one line."""
    if plan := list_plan_steps(tool, arguments):
        now = next((text for status, text in plan if status == "doing"), "")
        done = f"{sum(status == 'done' for status, _ in plan)} of {len(plan)}"
        return f"{done}, now: {now}" if now else f"{done} done"
    name = next((name for name in MAIN_ARGUMENTS if arguments.get(name)), next(iter(arguments), ""))
    value = arguments.get(name, "")
    return escape_controls(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def render_head(state: str, name: str, argument: str, facts: Sequence[str], width: int, theme: Theme) -> str:
    """Render the line of a call. Its facts stay. A command loses its end, and a path its beginning."""
    is_path = "/" in argument and " " not in argument and "://" not in argument
    glyph, role, _ = STATES[state]
    tail = theme.join_facts("", [fact for fact in facts if fact], max(0, width - len(name) - 10))
    room = max(8, width - 2 - measure_width(name) - measure_width(tail))
    mark = theme.paint(getattr(theme.glyphs, glyph), role)
    tail = theme.paint(tail, {"ok": "quiet", "running": "quiet", "error": "bad", "timed_out": "bad"}.get(state, ""))
    return f"{mark} {theme.paint(name, 'quiet')}{theme.cut(argument, room, keep_end=is_path)}{tail}".rstrip()


def _pad_name(tool: str, width: int) -> str:
    tool = escape_controls(" ".join(tool.split()))  # a model may invent a name
    return f"{tool:<{TOOL_COLUMN}}" if width >= WIDE and len(tool) < TOOL_COLUMN else f"{tool} "


def render_output(lines: Sequence[str], count: int, width: int, theme: Theme, *, is_quiet: bool = True) -> list[str]:
    """Render the end of an output below its call. The first line says how many are above."""
    shown = list(lines[-count:])
    if len(lines) > count:
        hidden = len(lines) - count + 1
        shown = [f"{theme.glyphs.more} {hidden:,} lines above{theme.dot}Ctrl-O shows them", *shown[1:]]
    role = "quiet" if is_quiet else ""
    pipe = theme.paint(theme.glyphs.pipe, "quiet")
    return [f"  {pipe} {theme.paint(theme.cut(line, max(8, width - 4)), role)}".rstrip() for line in shown]


def render_call(
    fact: CallFinished,
    arguments: Mapping[str, Json],
    width: int,
    theme: Theme,
    *,
    whole: bool = False,
    count: int = OUTPUT_LINES,
) -> list[str]:
    """Render the result of a call: one line, then its diff or the last `count` lines of a command's output.

    `whole` shows all, and cuts no line.
    """
    lines = [line for line in split_output(fact.output, whole=whole) if line.strip()]
    facts = describe_facts(fact, theme)
    reason = facts[0] if facts and fact.status in _FAILURES else ""
    name = _pad_name(fact.tool, width)
    is_cut = measure_width(reason) + 3 > width - len(name) - 10
    if is_cut and reason:
        facts[0] = STATES[fact.status][2]
    argument = summarize_arguments(fact.tool, arguments)
    columns = width + measure_width(argument) if whole else width
    head = render_head(fact.status, name, argument, facts, columns, theme)
    if whole:
        lines = [row for line in lines for row in wrap_rows(line.expandtabs(4), max(8, width - 4))]
        count = max(1, len(lines))
    diff = find_diff(escape_controls(fact.output).splitlines()) if fact.status == "ok" else []
    if diff:
        shown = render_diff(diff, width - 2, theme, len(diff) if whole else DIFF_LINES)
        return [head, *(f"  {line}" for line in shown)]
    if fact.status in _FAILURES:
        lines = [line for line in lines if not _EXIT.fullmatch(line.strip(" []()."))]
        if is_denied(fact) or (len(lines) == 1 and lines[0].rstrip(".") == reason):
            rows = textwrap.wrap(" ".join(lines), max(8, width - 4)) if is_cut else []
            lines = [row for line in rows for row in wrap_rows(line, max(8, width - 4))]
        return [head, *render_output(lines, max(count, FAILED_LINES), width, theme, is_quiet=False)]
    if fact.status == "ok" and fact.tool in ("shell", "bash"):
        return [head, *render_output(lines, count, width, theme)]
    return [head]


def split_output(output: str, *, whole: bool = False) -> list[str]:
    """Split an output into lines. Of a line that the program overwrote, the end is left, unless `whole` is wanted."""
    if "\r" in output and not whole:
        lines = (line.rstrip("\r") for line in output.split("\n"))
        output = "\n".join(line.rpartition("\r")[2] for line in lines)
    return escape_controls(output).rstrip().splitlines()


def is_denied(fact: CallFinished) -> bool:
    """Whether a person, a rule or a limit kept a call from running."""
    return fact.status in ("denied", "refused")


def describe_facts(fact: CallFinished, theme: Theme) -> list[str]:
    """Return what is to know about a finished call, the most important first."""
    lines = escape_controls(fact.output).rstrip().splitlines()
    first = lines[0].rstrip(".") if lines else ""
    facts: list[str] = []
    match fact.status:
        case "ok":
            if diff := find_diff(lines):
                added, removed = count_changes(diff)
                facts.append(f"+{added} {theme.glyphs.minus}{removed}")
            elif new := _NEW_FILE.match(first + "."):
                facts.append(f"+{new[1]}")
            elif fact.tool != "todo" and (len(lines) > OUTPUT_LINES or fact.tool == "read_file"):
                facts.append(f"{len(lines):,} lines" if len(lines) != 1 else "1 line")
        case "error" | "timed_out":
            code = _EXIT.search(fact.output)
            facts.append(f"exit {code[1]}" if code else "timed out" if fact.status == "timed_out" else first)
        case "denied" | "refused":
            reason = "denied: plan mode" if PLAN_REFUSAL in fact.output else first
            facts.append(reason[:1].lower() + reason[1:] if reason else fact.status)
        case "cancelled":
            facts.append("stopped")
        case "interrupted":
            facts.append("may have run; not run again")
    if fact.duration >= 0.1:
        facts.append(format_duration(fact.duration))
    return facts


def describe_call(fact: CallFinished, arguments: Mapping[str, Json]) -> str:
    """Describe a finished call in words on one line, where nothing can be drawn."""
    theme = Theme(glyphs=ASCII_GLYPHS)
    facts = ", ".join(one for one in describe_facts(fact, theme) if one)
    if is_denied(fact):
        facts = facts.removeprefix("denied: ")
    call = f"{escape_controls(fact.tool)} {summarize_arguments(fact.tool, arguments)}"
    text = " ".join(f"{STATES[fact.status][2]} {call}".split())
    return f"{text} ({facts})" if facts and fact.status == "ok" else f"{text}: {facts}" if facts else text


def render_running(call: RunningCall, now: float, width: int, theme: Theme) -> list[str]:
    """Render a call under way: its time, and the last lines of its output or the last steps of its helper."""
    facts = [f"{call.finished_steps} calls"] if call.finished_steps else []
    facts.append(format_duration(max(0.0, now - call.since), whole=True))
    argument = summarize_arguments(call.started.tool, call.started.arguments)
    head = render_head("running", _pad_name(call.started.tool, width), argument, facts, width, theme)
    if call.steps:
        return [head, *(f"  {render_step(step, width - 2, theme)}" for step in call.steps[-2:])]
    lines = [line for line in split_output(call.output) if line.strip()]
    pipe = theme.paint(theme.glyphs.pipe, "quiet")
    shown = (theme.paint(theme.cut(line.expandtabs(4), max(8, width - 4)), "quiet") for line in lines[-OUTPUT_LINES:])
    return [head, *(f"  {pipe} {line}" for line in shown)]


def render_step(step: str, width: int, theme: Theme) -> str:
    """Render a step of a helper. It begins with a plain word for its state."""
    word, _, rest = escape_controls(step).partition(" ")
    state = next((state for state, (_, _, name) in STATES.items() if name == word), "")
    if not state:
        return theme.paint(theme.cut(escape_controls(step), width), "quiet")
    tool, _, argument = rest.partition(" ")
    return render_head(state, _pad_name(tool, width), argument, (), width, theme)


def render_chain(calls: Sequence[CallFinished], width: int, theme: Theme) -> str:
    """Render several calls that only read as one line."""
    counts = Counter(escape_controls(call.tool) for call in calls)
    names = ", ".join(f"{tool} {theme.glyphs.times}{count}" if count > 1 else tool for tool, count in counts.items())
    seconds = sum(call.duration for call in calls)
    name = f"{f'{len(calls)} calls':<{TOOL_COLUMN}}" if width >= WIDE else f"{len(calls)} calls "
    time = f"{theme.dot}{format_duration(seconds)}" if seconds >= 0.1 else ""
    names = theme.cut(names, max(1, width - 2 - len(name) - len(time)))
    return theme.paint(f"{theme.glyphs.folded} {name}", "quiet") + names + theme.paint(time, "quiet")


def render_plan(steps: Sequence[tuple[str, str]], width: int, theme: Theme) -> list[str]:
    """Render a plan: its steps with their state. Of a long one, those around the current step are shown."""
    done = sum(status == "done" for status, _ in steps)
    now = next((place for place, (status, _) in enumerate(steps) if status == "doing"), done)
    start = max(0, min(now - 2, len(steps) - PLAN_ROWS + 1))
    lines = [f"{theme.paint('Plan', 'strong')} {theme.paint(f'{done} of {len(steps)}', 'quiet')}"]
    for status, text in steps[start : start + PLAN_ROWS - 1]:
        glyph, role = {"done": ("done", "ok"), "doing": ("running", "accent")}.get(status, ("todo", "quiet"))
        mark = theme.paint(getattr(theme.glyphs, glyph), role)
        words = theme.paint(theme.cut(text, width - 4), {"done": "quiet", "doing": "strong"}.get(status, ""))
        lines.append(f"  {mark} {words}")
    return lines
