"""What can stand in the place of the input: a picker, a question or a confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from treadle.cli.draw.glyphs import Theme

Focus = Literal["keys", "entry", "message"]
"""What letters are: keys of the panel, text of its own line, or text of the user's message."""


@dataclass(frozen=True, slots=True)
class PanelRoom:
    """The room that a panel has, and how it may be styled."""

    theme: Theme
    columns: int
    rows: int


class Panel(Protocol):
    """It draws itself around an optional line of its own, and gets every key."""

    @property
    def focus(self) -> Focus: ...

    @property
    def is_done(self) -> bool:
        """Whether the user has answered it. The next key is not for it any more."""
        ...

    def start(self) -> None:
        """Called when it appears."""
        ...

    def follow(self, entry: str) -> None:
        """Called after each change of its own line."""
        ...

    def press(self, key: str, entry: str) -> None:
        """Handle a key. `entry` is the text of its own line."""
        ...

    def abandon(self) -> None:
        """Called when the user leaves the terminal without an answer. Nobody may wait for one any more."""
        ...

    def render_above(self, room: PanelRoom) -> list[str]:
        """Render what stands above its line."""
        ...

    def render_prefix(self, theme: Theme) -> str:
        """Render the start of its line."""
        ...

    def render_below(self, room: PanelRoom) -> list[str]:
        """Render what stands below its line."""
        ...
