"""The menu below the input: slash commands, and files after an `@`. It follows what is typed and never blocks it."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from treadle.app.file_search import FileMatch, list_paths, match_letters, search_paths
from treadle.cli.console import escape_controls, measure_width
from treadle.cli.draw.glyphs import Theme
from treadle.cli.terminal.cells import join_keys, pad, underline

MENU_ROWS = 6
LISTING_SECONDS = 5.0
"""Seconds after which the files are listed again."""
_MENTION = re.compile(r"(?<!\S)@(\"?)([^\"\s]*|(?<=\")[^\"]*)$")
_MAX_LABEL = 48


class MenuRow(NamedTuple):
    """A row of the menu: what it inserts, and which of its letters were typed."""

    text: str
    places: set[int]
    about: str


class Menu:
    """Completes a slash command at the start of the input, and `@path` anywhere.

    `commands` gives the name of each command and what it does. `on_change` is called when a search has ended.
    """

    def __init__(self, commands: Callable[[], Mapping[str, str]], folder: Path) -> None:
        self.rows: list[MenuRow] = []
        self.picked = 0
        self.on_change: Callable[[], None] = lambda: None
        self._commands, self._folder = commands, folder
        self._typed = ""
        self._is_command = False
        self._paths: list[str] = []
        self._listed_at = float("-inf")
        self._search: asyncio.Task[None] | None = None

    def follow(self, text: str) -> None:
        """Show what completes the text before the cursor."""
        mention = _MENTION.search(text)
        self._is_command = text.startswith("/") and not re.search(r"\s", text)
        if self._is_command:
            self._typed, self.picked = text[1:], 0
            names = [name for name in self._commands() if name.startswith(self._typed)]
            names.sort(key=lambda name: name != self._typed)  # a whole name comes first
            marked = set(range(1, len(text)))
            self.rows = [MenuRow(f"/{name}", marked, self._commands()[name]) for name in names]
        elif mention is not None:
            self._typed = mention[2]
            if self._search is None or self._search.done():
                self._search = asyncio.create_task(self._search_files())
        else:
            self.close()

    async def _search_files(self) -> None:
        """Search in a thread until what was found belongs to what is typed now."""
        typed, found = None, list[FileMatch]()
        while typed != self._typed:
            typed = self._typed
            found = await asyncio.to_thread(self._find_files, typed)
        if not self._is_command:
            self.rows = [MenuRow(one.path, one.places, "folder" if one.path.endswith("/") else "") for one in found]
            self.picked = 0
            self.on_change()

    def _find_files(self, typed: str) -> list[FileMatch]:
        start, slash, name = typed.rpartition("/")
        if typed.startswith(("/", "~", "..")):  # outside of the workspace only one folder at a time is listed
            base = self._folder / Path(f"{start}/").expanduser() if slash else self._folder / ".."
            try:
                with os.scandir(base) as opened:
                    names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in opened)[:2000]
            except (OSError, RuntimeError):
                return []
            matches = ((one, match_letters(name, one)) for one in names if one.isprintable())
            far = len(start) + len(slash)
            return [FileMatch(f"{start}{slash}{one}", {far + at for at in match[1]}) for one, match in matches if match]
        if time.monotonic() - self._listed_at > LISTING_SECONDS:
            self._paths, self._listed_at = list_paths(self._folder), time.monotonic()
        return search_paths(typed, self._paths)

    @property
    def has_commands(self) -> bool:
        return self._is_command

    @property
    def is_open(self) -> bool:
        return bool(self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether the input already has what the picked row would insert."""
        return not self.rows or self.rows[self.picked].text == ("/" if self._is_command else "") + self._typed

    def close(self) -> None:
        self.rows, self.picked, self._typed, self._is_command = [], 0, "", False
        if self._search is not None:
            self._search.cancel()

    def move(self, by: int) -> None:
        self.picked = max(0, min(self.picked + by, len(self.rows) - 1))

    def complete(self, text: str) -> str:
        """Return the text before the cursor with the picked row in it."""
        row = self.rows[self.picked]
        if self._is_command:
            return f"{row.text} "
        before = text[: text.rindex("@")]
        if " " not in row.text:
            return f"{before}@{row.text}"
        return f'{before}@"{row.text}' + ("" if row.text.endswith("/") else '"')

    def render(self, theme: Theme, width: int) -> list[str]:
        """Render at most six rows, how many more there are, and the keys."""
        first = max(0, min(self.picked - MENU_ROWS + 1, len(self.rows) - MENU_ROWS))
        shown = self.rows[first : first + MENU_ROWS]
        column = min(_MAX_LABEL, max(measure_width(row.text) for row in shown))
        lines: list[str] = []
        for place, row in enumerate(shown, first):
            is_picked = place == self.picked
            mark = f"{theme.paint(theme.glyphs.folded, 'pick')} " if is_picked else "  "
            label = pad(escape_controls(row.text), min(column, width - 4), theme)
            line = mark + underline(label, row.places, "pick" if is_picked else "", theme)
            room = width - 6 - measure_width(label)
            about = pad(escape_controls(row.about), room, theme).rstrip() if row.about and room > 8 else ""
            lines.append((line + (f"  {theme.paint(about, 'quiet')}" if about else "")).rstrip())
        rest = len(self.rows) - first - len(shown)
        keys = [("Tab", "complete"), ("Enter", "run")] if self._is_command else [("Tab", "take, or go in")]
        more = [(theme.glyphs.down, f"{rest} more")] if rest > 0 else []
        return [*lines, join_keys([*more, *keys, ("Esc", "close")], theme, width)]
