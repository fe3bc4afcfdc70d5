"""The glyphs and the roles of colour of the terminal. Rich is not needed for them."""

from __future__ import annotations

import locale
import os

from msgspec import Struct

from treadle.cli.console import measure_width


class Glyphs(Struct, frozen=True):
    """The marks of the terminal. Each covers one cell; in ASCII `more` covers three."""

    you: str = "›"
    done: str = "✓"
    failed: str = "✗"
    denied: str = "⊘"
    stopped: str = "■"
    question: str = "?"
    warning: str = "!"
    running: str = "●"
    todo: str = "○"
    folded: str = "▸"
    pipe: str = "│"
    bar: str = "┃"
    rule: str = "─"
    bullet: str = "•"
    dot: str = "·"
    more: str = "…"
    down: str = "↓"
    minus: str = "−"
    times: str = "×"
    full: str = "█"
    waiting: str = "░"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


ASCII_GLYPHS = Glyphs(
    you=">",
    done="+",
    failed="x",
    denied="-",
    stopped="#",
    running="*",
    todo="o",
    folded=">",
    pipe="|",
    bar="|",
    rule="-",
    bullet="-",
    dot="-",
    more="...",
    down="v",
    minus="-",
    times="x",
    full="#",
    waiting=".",
    spinner="|/-\\",
)

# Each role has an attribute and a hue. NO_COLOR removes the hue.
_ROLES = {
    "quiet": ("2", ""),
    "strong": ("1", ""),
    "accent": ("", "35"),
    "pick": ("1", "35"),
    "ok": ("", "32"),
    "bad": ("", "31"),
    "danger": ("1", "31"),
    "need": ("1", "33"),
    "warn": ("", "33"),
    "ref": ("", "36"),
    "thought": ("2;3", ""),
    "removed_word": ("1;4", "31"),
    "added_word": ("1;4", "32"),
}


class Theme(Struct, frozen=True):
    """How to draw: with which glyphs, and with or without styles and colours."""

    has_colour: bool = False
    has_style: bool = False
    glyphs: Glyphs = Glyphs()

    @property
    def dot(self) -> str:
        """What stands between two facts."""
        return f" {self.glyphs.dot} "

    def paint(self, text: str, role: str) -> str:
        """Apply the escape codes of a role to a text."""
        if not role or not text or not self.has_style:
            return text
        attribute, hue = _ROLES[role]
        codes = ";".join(code for code in (attribute, hue if self.has_colour else "") if code)
        return f"\x1b[{codes}m{text}\x1b[0m" if codes else text

    def cut(self, text: str, columns: int, *, keep_end: bool = False) -> str:
        """Shorten a text to one line of so many cells. Commands lose their end, paths their beginning (`keep_end`)."""
        text = " ".join(text.split()) if any(one in text for one in "\n\t") else text
        if measure_width(text) <= columns:
            return text
        more, room = self.glyphs.more, columns - len(self.glyphs.more)
        if room <= 0:
            return more[: max(0, columns)]
        kept: list[str] = []
        for character in reversed(text) if keep_end else text:
            room -= measure_width(character)
            if room < 0:
                break
            kept.append(character)
        return more + "".join(reversed(kept)) if keep_end else "".join(kept).rstrip() + more

    def join_facts(self, head: str, facts: list[str], columns: int) -> str:
        """Add facts to a line. Those at the end that do not fit are dropped."""
        used, shown = measure_width(head), ""
        for fact in facts:
            used += measure_width(fact) + 3
            if used > columns:
                break
            shown += f"{self.dot}{fact}"
        return shown


def choose_theme(*, has_colour: bool, has_style: bool) -> Theme:
    """Build the theme of a console: its flags, and the glyphs that the environment can show."""
    return Theme(has_colour, has_style, ASCII_GLYPHS if wants_ascii() else Glyphs())


def wants_ascii() -> bool:
    """Whether only ASCII can be shown: by choice, on the Linux console, or because the locale is not UTF-8."""
    if os.environ.get("TREADLE_GLYPHS") == "ascii" or os.environ.get("TERM") == "linux":
        return True
    return locale.getpreferredencoding(do_setlocale=False).lower().replace("-", "") != "utf8"
