"""The keys of the interactive terminal in words."""

from __future__ import annotations

from treadle.cli.console import measure_width
from treadle.cli.draw.glyphs import Theme
from treadle.cli.terminal.cells import pad

START_KEYS = [
    ("/", "commands"),
    ("@", "files"),
    ("!", "shell"),
    ("Shift-Tab", "access"),
    ("?", "keys"),
    ("Ctrl-D", "leaves"),
]
STEER_KEYS = [("Enter", "steers at the next turn"), ("Tab", "keeps it for after")]
KEYS = [
    ("Enter", "send; steer while it works"),
    ("Tab", "complete; keep for after while it works"),
    ("Alt-Enter, Ctrl-J", "new line"),
    ("Esc", "close the menu; stop the run"),
    ("Esc Esc", "rewind"),
    ("Shift-Tab", "next access mode"),
    ("Up, Down", "cursor, queue, history"),
    ("Ctrl-O", "show what was cut"),
    ("Ctrl-T", "plan on and off"),
    ("Ctrl-G", "editor"),
    ("Ctrl-R", "search what was typed"),
    ("Ctrl-L", "draw again"),
    ("Ctrl-C", "clear; stop; twice: leave"),
    ("Ctrl-D, Ctrl-Z", "leave; suspend"),
]


def render_key_table(keys: list[tuple[str, str]], theme: Theme, width: int) -> str:
    """Render keys in one or two columns."""
    names = max(measure_width(key) for key, _ in keys)
    words = max(measure_width(what) for _, what in keys)
    count = 2 if width > 2 * (names + words + 5) else 1
    rows = -(-len(keys) // count)
    lines: list[str] = []
    for row in range(rows):
        cells = [
            f"{theme.paint(pad(key, names, theme), 'strong')}  {theme.paint(pad(what, words, theme), 'quiet')}"
            for key, what in keys[row::rows]
        ]
        lines.append("  " + "  ".join(cells))
    return "\n".join(lines)
