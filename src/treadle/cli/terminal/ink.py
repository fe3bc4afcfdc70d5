"""Styles for the lines of the interactive terminal, and the words of its key hints."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.cli.console import measure_width, strip_codes, truncate_line

_STYLES = {"bold": "1", "dim": "2", "italic": "3", "underline": "4"}
_HUES = {"red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}
_ASCII = {"›": ">", "✓": "+", "✗": "x", "⊘": "-", "■": "#", "●": "*", "○": "o", "▸": ">", "│": "|", "┃": "|"}


@dataclass(frozen=True, slots=True)
class Ink:
    """What a terminal can show. Without `has_colour` only the hues go, without `has_style` every escape code."""

    has_colour: bool = True
    has_style: bool = True
    is_ascii: bool = False

    def paint(self, text: str, style: str) -> str:
        """Apply a style such as `dim` or `bold red`."""
        codes = [_STYLES[word] for word in style.split() if word in _STYLES and self.has_style]
        codes += [_HUES[word] for word in style.split() if word in _HUES and self.has_colour]
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text else text

    def glyph(self, character: str) -> str:
        """Return the character, or its ASCII form on a terminal without UTF-8."""
        return _ASCII.get(character, character) if self.is_ascii else character

    @property
    def separator(self) -> str:
        return " - " if self.is_ascii else " · "

    def join_keys(self, keys: list[tuple[str, str]], width: int) -> str:
        """Render a line of keys and what they do. Keys are dropped from its end, but never the last: the way out."""
        while True:
            parts = [f"{self.paint(key, 'bold')}{self.paint(f' {what}', 'dim')}" for key, what in keys]
            line = f"  {self.paint(self.separator, 'dim').join(parts)}"
            if len(keys) < 2 or measure_width(strip_codes(line)) < width:
                return line
            keys = [*keys[:-2], keys[-1]]

    def join_facts(self, facts: list[str], width: int) -> str:
        """Join facts that are already styled. They are dropped from the end until the line fits."""
        while facts:
            line = self.paint(self.separator, "dim").join(facts)
            if len(facts) == 1 or measure_width(strip_codes(line)) <= width:
                return line
            facts = facts[:-1]
        return ""

    def underline(self, text: str, places: set[int], style: str = "") -> str:
        """Style a text, and underline the characters at these places."""
        if not places:
            return self.paint(text, style)
        runs: list[tuple[bool, str]] = []
        for place, character in enumerate(text):
            marked = place in places
            if runs and runs[-1][0] == marked:
                runs[-1] = (marked, runs[-1][1] + character)
            else:
                runs.append((marked, character))
        return "".join(self.paint(part, f"{style} underline" if marked else style) for marked, part in runs)


def pad(text: str, columns: int) -> str:
    """Cut a text to so many columns, and fill it up to them."""
    text = truncate_line(text, columns) if measure_width(text) > columns else text
    return text + " " * (columns - measure_width(text))
