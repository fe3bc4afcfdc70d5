"""The list of sessions as a table: helpers stand below the session whose call started them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from treadle.app.compose import is_abandoned
from treadle.app.settings import Settings
from treadle.cli import console
from treadle.cli.draw.glyphs import wants_ascii
from treadle.errors import StoreTooNew
from treadle.events import RunFinished
from treadle.log.base import Log, SessionInfo, SessionQuery

NARROW_COLUMNS = 76
"""Terminal width below which the list has no cost and no turns."""
WIDE_COLUMNS = 100
"""Terminal width from which the list also has the folder."""
MIN_NAME_COLUMNS = 12
MAX_HELPERS = 20
"""How many rows there may be for each session that `--limit` counts."""
_STATUS_WORDS = {"waiting": "needs you"}
# By the first word of the status.
_STYLES = {
    **dict.fromkeys(("needs", "unfinished", "retries"), "bold yellow"),
    **dict.fromkeys(("answered", "idle", "stopped", "cancelled"), "dim"),
    "running": "magenta",
    "failed": "red",
}


async def collect_sessions(log: Log, query: SessionQuery, limit: int) -> tuple[list[SessionInfo], bool]:
    """Read up to `limit` sessions, the last changed first, and whether there are more.

    Helpers do not count, unless only sessions with a status are wanted: then each may stand alone.
    """
    found: list[SessionInfo] = []
    count = 0
    async with aclosing(log.iterate_sessions(query)) as sessions:
        async for info in sessions:
            count += not info.is_helper or query.status is not None
            if count > limit or len(found) == limit * MAX_HELPERS:
                return found, True
            found.append(info)
    return found, False


async def sum_cost_of_today(log: Log) -> float:
    """Sum up the cost of the runs that ended today, in local time. A helper's cost is in that of its session."""
    midnight, cost = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1)), 0.0
    async with aclosing(log.iterate_sessions(SessionQuery())) as sessions:
        async for info in sessions:
            if info.updated_at < midnight:
                break
            if info.is_helper or not info.cost:
                continue
            if info.created_at >= midnight:
                cost += info.cost
            else:
                with suppress(StoreTooNew):  # the others count all the same
                    facts = await log.read(info.id)
                    runs = [one for one in facts if isinstance(one, RunFinished) and one.at >= midnight]
                    cost += sum(one.usage.cost for one in runs)
    return cost


def arrange_sessions(found: Sequence[SessionInfo]) -> Iterator[tuple[SessionInfo, tuple[bool, ...]]]:
    """Yield each session, and below it its helpers in the order of their start.

    The second value has an item for each level of nesting: whether the helper is the last one of that level.
    """
    ids = {info.id for info in found}
    helpers: dict[str, list[SessionInfo]] = {}
    tops: list[SessionInfo] = []
    for info in found:
        is_nested = info.parent is not None and info.is_helper and info.parent.session_id in ids
        (helpers.setdefault(info.parent.session_id, []) if info.parent and is_nested else tops).append(info)

    def descend(info: SessionInfo, levels: tuple[bool, ...]) -> Iterator[tuple[SessionInfo, tuple[bool, ...]]]:
        yield info, levels
        below = sorted(helpers.get(info.id, ()), key=lambda one: one.created_at)
        for helper in below:
            yield from descend(helper, (*levels, helper is below[-1]))

    for info in tops:
        yield from descend(info, ())


def print_sessions(found: Sequence[SessionInfo], settings: Settings) -> None:
    """Print the sessions to stdout and fit the table to the terminal."""
    width = console.terminal_width() if console.is_terminal(sys.stdout) else 0
    colour = console.wants_colour(sys.stdout)
    heads = ("session", "status", "name", "age", "cost", "turns", "workspace")
    shown = [0, 1, 2, 3] if 0 < width < NARROW_COLUMNS else list(range(7 if not width or width >= WIDE_COLUMNS else 6))
    rows = [_build_row(info, levels, settings) for info, levels in arrange_sessions(found)]
    cells = [[" ".join(console.escape_controls(row[at]).split()) for at in shown] for row in (heads, *rows)]
    prefixes = ["", *(row[-1] for row in rows)]
    names = [prefix + row[2] for prefix, row in zip(prefixes, cells, strict=True)]
    widths = [max(map(console.measure_width, column)) for column in zip(*cells, strict=True)]
    widths[2] = max(map(console.measure_width, names))
    if width:
        others = sum(widths) - widths[2] + 2 * (len(widths) - 1)
        widths[2] = min(widths[2], max(MIN_NAME_COLUMNS, width - 1 - others))
    for number, (row, prefix) in enumerate(zip(cells, prefixes, strict=True)):
        row[2] = prefix + console.truncate_line(row[2], widths[2] - len(prefix))
        styles = {1: _STYLES.get(row[1].partition(" ")[0], ""), 2: "dim" if prefix else ""} if number else {}
        pieces: list[str] = []
        for at, text in enumerate(row):
            space = " " * (widths[at] - console.measure_width(text))
            styled = console.style_text(text, styles.get(at, "dim"), colour)
            pieces.append(f"{space}{styled}" if 3 <= at <= 5 else f"{styled}{space}")
        sys.stdout.write("  ".join(pieces).rstrip() + "\n")


def _build_row(info: SessionInfo, levels: tuple[bool, ...], settings: Settings) -> list[str]:
    folder = info.workspace
    if folder.startswith(os.path.realpath(settings.worktree_parent)):
        from treadle.app.session_worktree import describe_folder  # it brings the code for git, which most lists spare

        folder = describe_folder(folder, settings)
    status = describe_status(info)
    bars = choose_bars()
    prefix = "".join("  " if is_last else f"{bars['line']} " for is_last in levels[:-1])
    prefix += f"{bars['end'] if levels[-1] else bars['fork']} " if levels else ""
    name = f"{info.agent}: {info.name}" if levels and info.name else info.name or (info.agent if levels else "–")
    return [
        info.id[:12],
        _STATUS_WORDS.get(status, status),
        name,
        console.format_time_since(info.updated_at),
        f"${info.cost:.2f}" if info.cost >= 0.005 else "–",
        str(info.turns),
        _shorten_folder(folder),
        prefix,
    ]


def choose_bars() -> Mapping[str, str]:
    """Choose the signs of the tree: plain ASCII where the reader may not show others."""
    if wants_ascii() or not console.is_terminal(sys.stdout):
        return {"line": "|", "fork": "|", "end": "`"}
    return {"line": "│", "fork": "├", "end": "└"}


def describe_status(info: SessionInfo) -> str:
    """Describe the status for the user. A session that no process runs any more is unfinished, not running."""
    if info.wake_at is not None and info.is_parked(time.time()):
        return f"retries at {time.strftime('%H:%M', time.localtime(info.wake_at))}"
    return "unfinished" if is_abandoned(info) else info.status


def _shorten_folder(folder: str) -> str:
    home = str(Path.home())
    folder = f"~{folder[len(home) :]}" if folder == home or folder.startswith(f"{home}/") else folder
    return folder if len(folder) <= 32 else f"…{folder[-31:]}"
