"""Lines of keys, lines of facts and padded cells of the interactive terminal."""

from __future__ import annotations

from treadle.cli.console import measure_width, strip_codes
from treadle.cli.draw.glyphs import Theme


def join_keys(keys: list[tuple[str, str]], theme: Theme, width: int) -> str:
    """Render a line of keys and what they do. Keys are dropped from its end, but never the last: the way out."""
    while True:
        parts = [f"{theme.paint(key, 'strong')}{theme.paint(f' {what}', 'quiet')}" for key, what in keys]
        line = f"  {theme.paint(theme.dot, 'quiet').join(parts)}"
        if len(keys) < 2 or measure_width(strip_codes(line)) < width:
            return line
        keys = [*keys[:-2], keys[-1]]


def underline(text: str, places: set[int], role: str, theme: Theme) -> str:
    """Paint a text, and underline the characters at these places."""
    if not theme.has_style or not places:
        return theme.paint(text, role)
    runs: list[tuple[bool, str]] = []
    for place, character in enumerate(text):
        if runs and runs[-1][0] == (place in places):
            runs[-1] = (runs[-1][0], runs[-1][1] + character)
        else:
            runs.append((place in places, character))
    return "".join(
        f"\x1b[4m{theme.paint(part, role)}\x1b[24m" if marked else theme.paint(part, role) for marked, part in runs
    )


def pad(text: str, columns: int, theme: Theme) -> str:
    """Cut a text to so many columns, and fill it up to them."""
    text = theme.cut(text, columns)
    return text + " " * (columns - measure_width(text))
