"""Draw a table of Markdown: columns below one rule, or one record a row when the columns do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from treadle.cli.draw.glyphs import Theme

GAP = 3
"""Cells between two columns."""

MIN_COLUMN = 24
"""Cells from which on the text of a cell may be wrapped, before the table becomes records."""

_QUIET, _STRONG = Style(dim=True), Style(bold=True)
WrapText = Callable[[Text, int], list[Text]]


class TableCell(NamedTuple):
    """The text of a cell, and on which side it stands: left, right or center."""

    text: Text
    side: str

    @property
    def width(self) -> int:
        return cell_len(self.text.plain)


class Table(NamedTuple):
    """The head and the rows below it."""

    head: list[TableCell]
    rows: list[list[TableCell]]


def draw_table(table: Table, width: int, theme: Theme, wrap: WrapText) -> list[Text]:
    """Draw the table in at most `width` cells."""
    columns = list(zip(table.head, *table.rows, strict=True))
    wanted = [max(cell.width for cell in column) for column in columns]
    least = [max(cell.width if place == 0 else min(cell.width, MIN_COLUMN) for place, cell in enumerate(column))
             for column in columns]  # fmt: skip
    room = width - GAP * (len(columns) - 1)
    if sum(least) > room:
        return draw_records(table, width, theme, wrap)
    widths = share_width(wanted, least, room)
    rule = Text.assemble((theme.glyphs.rule * (sum(widths) + GAP * (len(widths) - 1)), _QUIET))
    for cell in table.head:
        cell.text.stylize_before(_STRONG)
    lines = [*_draw_row(table.head, widths, wrap), rule]
    for row in table.rows:
        lines += _draw_row(row, widths, wrap)
    return lines


def share_width(wanted: list[int], least: list[int], room: int) -> list[int]:
    """Give each column what it wants. If that is too much, the widest ones get less."""
    widths = list(wanted)
    while (excess := sum(widths) - room) > 0:
        shrinkable = [at for at, width in enumerate(widths) if width > least[at]]
        at = max(shrinkable, key=lambda place: widths[place])
        others = [widths[place] for place in shrinkable if place != at]
        widths[at] = max(least[at], widths[at] - excess, min(max(others, default=0), widths[at] - 1))
    return widths


def _draw_row(row: list[TableCell], widths: list[int], wrap: WrapText) -> list[Text]:
    cells = [wrap(cell.text, width) or [Text()] for cell, width in zip(row, widths, strict=True)]
    lines: list[Text] = []
    for height in range(max(map(len, cells))):
        line = Text()
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            part = cells[at][height] if height < len(cells[at]) else Text()
            free = width - cell_len(part.plain)
            before = {"right": free, "center": free // 2}.get(cell.side, 0)
            line.append(" " * (before + (GAP if at else 0)))
            line.append_text(part)
            line.append(" " * (free - before))
        line.rstrip()
        lines.append(line)
    return lines


def draw_records(table: Table, width: int, theme: Theme, wrap: WrapText) -> list[Text]:
    """Draw each row as a record: its first cell as the heading, below it a line for each other cell."""
    lines: list[Text] = []
    names = [cell.text.plain for cell in table.head[1:]]
    indent = min(max(map(cell_len, names), default=0) + 2, max(8, width // 2))
    for row in table.rows:
        row[0].text.stylize_before(_STRONG)
        for place, line in enumerate(wrap(row[0].text, width - 2) or [Text()]):
            lines.append(Text.assemble("  " if place else (f"{theme.glyphs.bullet} ", _QUIET), line))
        for name, cell in zip(names, row[1:], strict=True):
            for place, line in enumerate(wrap(cell.text, max(8, width - 2 - indent))):
                start = theme.cut(name, indent - 2) if place == 0 else ""
                lines.append(Text.assemble("  ", (start + " " * (indent - cell_len(start)), _QUIET), line))
    return lines
