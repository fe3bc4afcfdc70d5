"""A list to pick from, with a search line. Letters always search."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from treadle.cli.console import measure_width
from treadle.cli.draw.glyphs import Theme
from treadle.cli.picker_rows import PickerRow
from treadle.cli.terminal.cells import join_keys, pad
from treadle.cli.terminal.panel import Focus, PanelRoom

PICKER_ROWS = 8
MORE = "\x01"
_MAX_LABEL = 42


class Picker:
    """A panel that shows rows and returns the value of one. `result` is None when the user left it.

    `more_key` says what Ctrl-A does, which returns `MORE`. `empty` is shown if there are no rows at all.
    """

    focus: Focus = "entry"

    def __init__(
        self, title: str, rows: Sequence[PickerRow], enter: str = "choose", more_key: str = "", empty: str = ""
    ) -> None:
        self.result: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._title, self._enter, self._more_key, self._empty = title, enter, more_key, empty
        self._rows = sorted((row.escape() for row in rows), key=lambda row: bool(row.problem))
        self._found, self._picked = self._rows, 0
        self._problem = ""

    @property
    def is_done(self) -> bool:
        return self.result.done()

    def start(self) -> None:
        """Nothing to do when the list appears."""

    def follow(self, entry: str) -> None:
        """Show the rows that have every word of the search."""
        words = entry.lower().split()
        self._found = [
            row
            for row in self._rows
            if all(word in f"{row.label} {' '.join(row.facts)} {row.passage}".lower() for word in words)
        ]
        self._picked, self._problem = 0, ""

    def press(self, key: str, entry: str) -> None:
        step = {"up": -1, "down": 1, "pageup": -PICKER_ROWS, "pagedown": PICKER_ROWS}.get(key)
        if step is not None:
            self._picked, self._problem = max(0, min(self._picked + step, len(self._found) - 1)), ""
        elif key in ("escape", "c-c"):
            self.finish(None)
        elif key == "c-a" and self._more_key:
            self.finish(MORE)
        elif key == "enter" and self._found:
            row = self._found[self._picked]
            if row.problem:
                self._problem = row.problem
            else:
                self.finish(row.value)

    def abandon(self) -> None:
        self.finish(None)

    def finish(self, value: str | None) -> None:
        if not self.result.done():
            self.result.set_result(value)

    def render_prefix(self, theme: Theme) -> str:
        return f"{theme.paint(theme.glyphs.you, 'pick')} "

    def render_above(self, room: PanelRoom) -> list[str]:
        count = "" if len(self._found) == len(self._rows) else f" {len(self._found)} of {len(self._rows)}"
        return [room.theme.paint(self._title, "strong") + room.theme.paint(count, "quiet")]

    def render_below(self, room: PanelRoom) -> list[str]:
        theme, height = room.theme, max(2, min(PICKER_ROWS, room.rows - 6))
        first = max(0, min(self._picked - height + 1, len(self._found) - height))
        shown = self._found[first : first + height]
        longest = max((measure_width(row.label) for row in shown), default=0)
        column = min(max(12, longest), _MAX_LABEL if room.columns >= 76 else 28, room.columns - 4)
        usable = [row for row in shown if not row.problem]
        widths = [
            max(measure_width(row.facts[at]) for row in usable if len(row.facts) > at)
            for at in range(max((len(row.facts) for row in usable), default=0))
        ]
        lines: list[str] = []
        for place, row in enumerate(shown, first):
            if row.problem and (place == 0 or not self._found[place - 1].problem):
                lines.append(theme.paint("  not reachable", "quiet"))
            lines.append(self._render_row(room, row, place == self._picked, column, widths))
        rest = len(self._found) - first - len(shown)
        if rest > 0:
            lines.append(theme.paint(f"  {theme.glyphs.down} {rest} more", "quiet"))
        if not self._found:
            nothing = "nothing matches" if self._rows else self._empty or "nothing to choose from"
            lines.append(theme.paint(f"  {nothing}", "quiet"))
        picked = self._found[self._picked] if self._found else None
        if self._problem:
            lines += [f"  {theme.paint('!', 'need')} {pad(self._problem, room.columns - 5, theme).rstrip()}"]
        elif picked is not None and picked.passage:
            passage = pad(picked.passage, room.columns - 5, theme).rstrip()
            lines.append(theme.paint(f"  {theme.glyphs.pipe} {passage}", "quiet"))
        more = [("Ctrl-A", self._more_key)] if self._more_key else []
        enter = [("Enter", self._enter)] if self._rows else []
        return [*lines, join_keys([*enter, *more, ("Esc", "back")], theme, room.columns)]

    def _render_row(self, room: PanelRoom, row: PickerRow, is_picked: bool, column: int, widths: list[int]) -> str:
        """Render a row. Its last facts are dropped if they do not fit."""
        theme = room.theme
        mark = f"{theme.paint(theme.glyphs.folded, 'pick')} " if is_picked else "  "
        style = "pick" if is_picked else "quiet" if row.problem else ""
        line, used = mark + theme.paint(pad(row.label, column, theme), style), column + 2
        if row.problem and used + 12 < room.columns:
            return f"{line}  {theme.paint(pad(row.problem, room.columns - used - 3, theme).rstrip(), 'quiet')}"
        for fact, width in zip(() if row.problem else row.facts, widths, strict=False):
            if used + 2 + width > room.columns - 1:
                break
            line, used = f"{line}  {theme.paint(pad(fact, width, theme), 'quiet')}", used + 2 + width
        return line.rstrip()
