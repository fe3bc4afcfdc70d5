"""Draw when a session worked and waited: a row for each model call, tool call, retry and wait, with its bar."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle import events
from treadle.cli.console import (
    escape_controls,
    format_count,
    format_duration,
    is_terminal,
    measure_width,
    print_note,
    terminal_width,
    wants_colour,
    wants_style,
)
from treadle.cli.draw.calls import NOT_FOLDED, describe_facts, summarize_arguments
from treadle.cli.draw.glyphs import ASCII_GLYPHS, Theme, choose_theme
from treadle.cli.draw.run_lines import RunFacts, describe_ending, list_run_facts
from treadle.cli.session_list import describe_status
from treadle.engine.state import OWN_ERRORS
from treadle.export.run_steps import Step, build_steps, split_runs
from treadle.log.base import Log, SessionInfo, SessionQuery
from treadle.messages import NO_USAGE, Json

WIDE_COLUMNS, PIPE_COLUMNS = 80, 100
"""Width from which a row has its facts and its time beside the bar, and the width where there is no terminal."""
NAME_COLUMNS, FACT_COLUMNS, TIME_COLUMNS, MAX_BAR_COLUMNS = 19, 17, 9, 76
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 30, 50, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (0, "s"))


class TraceRow(Struct):
    """A line of the trace. `parts` are the start, the end and the kind of each piece of its bar: work, try or wait."""

    name: str
    fact: str
    role: str
    turn: int
    parts: list[tuple[float, float, str]]
    folds: str = ""

    @property
    def seconds(self) -> float:
        return sum(end - start for start, end, _ in self.parts)


async def print_trace(log: Log, info: SessionInfo, limit: int, *, as_json: bool) -> None:
    """Print the trace of a session to stdout: the last `limit` rows, or all steps as JSON lines."""
    calls = [one async for one in log.iterate_sessions(SessionQuery(parent=info.id)) if one.is_helper]
    helpers = {one.parent.call_id: one.id for one in calls if one.parent}
    status = describe_status(info)
    now = 0.0 if status == "unfinished" else time.time()  # nothing goes on where no process works
    runs = split_runs(await log.read(info.id))
    if as_json:
        _print_steps(runs, helpers, now)
        return
    theme = choose_theme(has_colour=wants_colour(sys.stdout), has_style=wants_style(sys.stdout))
    theme = theme if is_terminal(sys.stdout) else replace(theme, glyphs=ASCII_GLYPHS)
    width = terminal_width() if is_terminal(sys.stdout) else PIPE_COLUMNS
    drawer = TraceDrawer(helpers, status, now, width, theme)
    sys.stdout.write("\n".join(drawer.render(info, runs, limit)) + "\n")
    if not runs:
        print_note("no run has started in this session yet")


def find_end(run: Sequence[events.AnyFact], now: float) -> float:
    """Find when a run ended. One that goes on lasts until now."""
    return run[-1].at if isinstance(run[-1], events.RunFinished) else max(now, run[-1].at)


def _print_steps(runs: Sequence[Sequence[events.AnyFact]], helpers: Mapping[str, str], now: float) -> None:
    for number, run in enumerate(runs, 1):
        for step in build_steps(run, find_end(run, now)):
            call_id: str = getattr(step.began or step.ended, "call_id", "")
            line = {"run": number, "turn": step.turn, "kind": step.kind, "name": step.label, "start": step.start}
            line |= {"seconds": round(step.end - step.start, 3), "ok": step.is_ok, "call_id": call_id}
            line["helper"] = helpers.get(call_id, "") if step.kind == "tool" else ""
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


class TraceDrawer:
    """Draws the runs of a session. `helpers` maps calls to the sessions that they started."""

    def __init__(self, helpers: Mapping[str, str], status: str, now: float, width: int, theme: Theme) -> None:
        self._helpers, self._status, self._now, self._width, self._theme = helpers, status, now, width, theme
        self._is_wide = width >= WIDE_COLUMNS
        self._left = NAME_COLUMNS + (FACT_COLUMNS if self._is_wide else TIME_COLUMNS)
        self._columns = max(8, min(width - self._left - 2, MAX_BAR_COLUMNS))

    def render(self, info: SessionInfo, runs: Sequence[Sequence[events.AnyFact]], limit: int) -> list[str]:
        """Render the last `limit` rows below a line about the session. The last line names the slowest step."""
        theme, total, seconds = self._theme, RunFacts(), 0.0
        lines: list[str] = []
        rows = [self._build_rows(run) for run in runs]
        left_out = max(0, sum(map(len, rows)) - limit)
        if left_out:
            hint = f"{theme.glyphs.more} {left_out:,} earlier rows{theme.dot}--limit {limit + left_out} shows them"
            lines.append(theme.paint(hint, "quiet"))
        hidden = left_out
        for number, (run, of_run) in enumerate(zip(runs, rows, strict=True), 1):
            end, used = find_end(run, self._now), count_usage(run)
            seconds, total.turns = seconds + end - run[0].at, total.turns + used.turns
            total.usage, total.calls = total.usage + used.usage, total.calls + used.calls
            shown = of_run[min(hidden, len(of_run)) :]
            if shown or not of_run:
                head = self._render_run_head(number, run, used, end) if len(runs) > 1 else []
                origin = run[0].at if len(shown) == len(of_run) else shown[0].parts[0][0]
                lines += [*head, *self._render_rows(shown, origin - run[0].at, origin, max(end - origin, 0.001))]
            hidden = max(0, hidden - len(of_run))
        head = f"{theme.cut(escape_controls(info.name) or 'session', max(20, self._width - 44))}"
        facts = [info.id[:12], *list_run_facts(replace(total, since=1.0), 1.0 + seconds)]
        facts_shown = theme.paint(theme.join_facts(head, facts, self._width), "quiet")
        return [
            theme.paint(head, "strong") + facts_shown,
            *lines,
            *self._render_summary([one for run in rows for one in run]),
        ]

    def _render_run_head(self, number: int, run: Sequence[events.AnyFact], used: RunFacts, end: float) -> list[str]:
        head, last = f"run {number}", run[-1]
        ending = describe_ending(last) if isinstance(last, events.RunFinished) else self._status
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run[0].at))
        facts = [when, *([] if ending == "answered" else [ending]), *list_run_facts(used, end)]
        return [
            "",
            self._theme.paint(head, "strong")
            + self._theme.paint(self._theme.join_facts(head, facts, self._width), "quiet"),
        ]

    def _build_rows(self, run: Sequence[events.AnyFact]) -> list[TraceRow]:
        """Build the rows of a run. The tries of a turn are one row, and so are successive calls that only read."""
        rows: list[TraceRow] = []
        requested = {
            call.id: call.arguments for fact in run if isinstance(fact, events.ModelReplied) for call in fact.calls
        }
        limits = getattr(run[0], "limits", events.Limits())
        for step in build_steps(run, find_end(run, self._now)):
            row = self._build_call_row(step, requested) if step.kind == "tool" else _build_row(step, limits)
            last = rows[-1] if rows else None
            if last is not None and row.folds and (last.folds, last.turn) == (row.folds, row.turn):
                last.parts += row.parts
                is_call = step.kind == "tool"
                last.fact = f"{len(last.parts)} calls" if is_call else row.fact or last.fact
                last.name = f"  {step.label}" if is_call else row.name
            else:
                rows.append(row)
        return rows

    def _build_call_row(self, step: Step, requested: Mapping[str, str]) -> TraceRow:
        """Build the row of a tool call."""
        call_id: str = getattr(step.began or step.ended, "call_id", "")
        started, ended = step.began, step.ended
        is_started = isinstance(started, events.CallStarted)
        arguments = started.arguments if is_started else _read_arguments(requested.get(call_id, ""))
        name = f"  {step.label} {summarize_arguments(step.label, arguments)}".rstrip()
        role, fact = "ok" if step.is_ok else "bad", "stopped" if ended else "running"
        if isinstance(ended, events.CallFinished):
            fact = next(iter(describe_facts(replace(ended, duration=0.0), self._theme)), "")
            role = "need" if ended.status in ("denied", "refused", "cancelled") else role
        if call_id in self._helpers and step.is_ok:
            fact = f"helper {self._helpers[call_id][:8]}"
        folds = step.label if role == "ok" and ended and step.label not in NOT_FOLDED else ""
        return TraceRow(escape_controls(name), fact, role, step.turn, [(step.start, step.end, "work")], folds)

    def _render_rows(self, rows: Sequence[TraceRow], offset: float, origin: float, length: float) -> list[str]:
        """Render rows below a scale. It begins `offset` seconds after the run."""
        theme, room = self._theme, self._width - self._left
        scale = render_scale(offset, length, self._columns, room)
        lines = [theme.paint(f"{'':{self._left}}{scale}", "quiet")] if rows else []
        for row in rows:
            took = format_duration(row.seconds) if row.seconds >= 0.05 else ""
            name = theme.cut(row.name, NAME_COLUMNS - 1)
            fact = theme.cut(row.fact, FACT_COLUMNS - 1) if self._is_wide else f"{took:>{TIME_COLUMNS - 2}}"
            bar = self._draw_bar(row, origin, length)
            start, after = len(bar) - len(bar.lstrip()), ""
            before = " " * start
            if self._is_wide and took and len(bar) + len(took) < room:
                after = f" {took}"
            elif self._is_wide and took and start > len(took):
                before = f"{took:>{start - 1}} "
            name += " " * (NAME_COLUMNS - measure_width(name))
            fact += " " * (self._left - NAME_COLUMNS - measure_width(fact))
            line = name + theme.paint(fact + before, "quiet") + theme.paint(bar[start:], row.role)
            lines.append(line + theme.paint(after, "quiet"))
        return lines

    def _draw_bar(self, row: TraceRow, origin: float, length: float) -> str:
        """Draw a bar, with the space before it. A piece covers one cell at least, but a failed try may cover none."""
        cells = [" "] * self._columns
        for start, end, kind in row.parts:
            first, last = (int((at - origin) / length * self._columns) for at in (start, end))
            first = min(first, self._columns - 1)
            for cell in range(first, min(max(last, first + (kind != "try")), self._columns)):
                cells[cell] = self._theme.glyphs.waiting if kind == "wait" else self._theme.glyphs.full
        return "".join(cells).rstrip()

    def _render_summary(self, rows: Sequence[TraceRow]) -> list[str]:
        """Render what the bars mean, the slowest step, and how long the session waited."""
        facts: list[str] = []
        slowest = max((row for row in rows if row.parts[0][2] == "work"), key=lambda one: one.seconds, default=None)
        if slowest is not None and slowest.seconds >= 0.05:
            is_model = slowest.name.startswith("turn ")
            name = f"model, turn {slowest.turn}" if is_model else self._theme.cut(slowest.name.strip(), 30)
            facts.append(f"slowest: {name} ({format_duration(slowest.seconds)})")
        for name, role in (("you", "quiet"), ("retries", "need")):
            waited = sum(
                end - start for row in rows if row.role == role for start, end, kind in row.parts if kind == "wait"
            )
            facts += [f"{name}: {format_duration(waited)}"] if waited >= 1 else []
        if not facts:
            return []
        glyphs = self._theme.glyphs
        line = (f"{glyphs.full} working  {glyphs.waiting} waiting  " if self._is_wide else "") + facts[0]
        return [self._theme.paint(line + self._theme.join_facts(line, facts[1:], self._width), "quiet")]


def count_usage(run: Sequence[events.AnyFact]) -> RunFacts:
    """Count the turns, the calls and the tokens of a run."""
    used = RunFacts(run[0].at)
    for fact in run:
        used.turns = max(used.turns, fact.turn) if isinstance(fact, events.TurnStarted) else used.turns
        used.calls += isinstance(fact, events.CallFinished)
        used.usage += fact.usage if isinstance(fact, (events.ModelReplied, events.CallFinished)) else NO_USAGE
    return used


def _build_row(step: Step, limits: events.Limits) -> TraceRow:
    """Build the row of a model call, or of a wait for a person or for the provider."""
    ended, part = step.ended, (step.start, step.end, "work" if step.kind == "model" else "wait")
    match step.kind, ended:
        case ("person", events.ApprovalAnswered(by=events.NOBODY_ASKED)):
            return TraceRow("  nobody asked", "denied", "quiet", step.turn, [part])
        case ("person", events.ApprovalAnswered() | events.InputAnswered()):
            decision = {"allow": "allowed", "deny": "denied"}.get(getattr(ended, "decision", ""), "")
            return TraceRow(f"  {escape_controls(ended.by) or 'you'} answered", decision, "quiet", step.turn, [part])
        case ("person", _):
            return TraceRow("  not answered" if ended else "  waits for you", step.label, "quiet", step.turn, [part])
        case ("model", events.ModelReplied(usage=usage)):
            fact = f"{format_count(usage.input_tokens)} in {format_count(usage.output_tokens)} out"
            return TraceRow(f"turn {step.turn}  model", fact, "accent", step.turn, [part])
        case _:
            pass
    failed = step.began if step.kind == "provider" else ended
    if not isinstance(failed, events.ModelFailed):
        return TraceRow(f"turn {step.turn}  model", "stopped" if ended else "running", "accent", step.turn, [part])
    why = str(failed.status or failed.kind.replace("_", " "))
    if failed.wait is None:
        return TraceRow(f"turn {step.turn}  model", f"failed: {why}", "bad", step.turn, [part])
    tries = f"{failed.attempt + 1} of {limits.attempts}" if failed.kind in OWN_ERRORS else f"try {failed.attempt + 1}"
    name = f"turn {step.turn}  retry {failed.status or ''}".rstrip()
    fact = tries if failed.status else f"{tries}, {why}"
    part = (*part[:2], "wait" if step.kind == "provider" else "try")
    return TraceRow(name, fact, "need", step.turn, [part], "retry")


def render_scale(offset: float, length: float, columns: int, room: int) -> str:
    """Render a scale that begins at `offset` seconds. A time that would touch another is left out."""
    count = 4.5 if columns > 40 else 2.5
    tick = next((tick for tick in TICKS if length / tick <= count), 86400 * -(-length // (86400 * count)))
    size, unit = next(one for one in _UNITS if tick >= one[0])
    scale, number = "", int(-(-offset // tick))
    while (at := number * tick - offset) <= length:
        label = f"{round(number * tick / (size or 1), 1):g} {unit}"
        column = min(int(at / length * columns), room - len(label))
        if not scale or column > len(scale):
            scale += " " * (column - len(scale)) + label
        number += 1
    return scale


def _read_arguments(text: str) -> dict[str, Json]:
    """The arguments of a call by their names, or nothing if the model wrote no JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Json])
    except (msgspec.MsgspecError, ValueError):  # ValueError: half of a surrogate pair
        return {}
