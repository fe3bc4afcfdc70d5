"""The status line below the input: a few facts that are dropped from the right when the window is narrow."""

from __future__ import annotations

from typing import NamedTuple

from treadle.cli.console import escape_controls, measure_width
from treadle.cli.draw.glyphs import Theme

ACCESS_ROLES = {"plan": "accent", "read-only": "ref", "full": "danger"}


class StatusFact(NamedTuple):
    """A fact of the status line and its role of colour."""

    text: str
    role: str = "quiet"


def render_status(facts: list[StatusFact], theme: Theme, columns: int) -> str:
    """Render the facts that fit. The first is always there."""
    used, parts = 1, list[str]()
    for fact in facts:
        text = escape_controls(" ".join(fact.text.split()))
        used += measure_width(text) + 3
        if parts and used > columns:
            break
        parts.append(theme.paint(text, fact.role))
    return f"  {theme.paint(theme.dot, 'quiet').join(parts)}"
