"""The messages that wait: `next` steers the agent at its next turn, `after` is sent when the run has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.cli.console import escape_controls
from treadle.cli.draw.glyphs import Theme
from treadle.cli.terminal.cells import join_keys, pad

QUEUE_ROWS = 4


@dataclass(slots=True)
class MessageQueue:
    """The recorded messages that steer (by their id), and the texts that are kept here until the run has ended.

    Only kept texts can be picked and changed: a message that steers is recorded already.
    """

    steering: dict[str, str] = field(default_factory=dict[str, str])
    kept: list[str] = field(default_factory=list[str])
    picked: int | None = None

    def keep(self, text: str) -> None:
        self.kept.append(text)

    def take(self, place: int = 0) -> str:
        """Take a kept text out of the queue."""
        self.picked = None
        return self.kept.pop(place)

    def move(self, by: int) -> None:
        """Pick another kept text. Moving below the last one leaves the queue."""
        at = len(self.kept) if self.picked is None else self.picked
        self.picked = max(0, at + by) if at + by < len(self.kept) else None

    def render(self, theme: Theme, width: int) -> list[str]:
        """Render a line for each message. A long queue shows its end."""
        rows = [("next", text, False) for text in self.steering.values()]
        rows += [("after", text, place == self.picked) for place, text in enumerate(self.kept)]
        lines: list[str] = []
        for kind, text, is_picked in rows:
            words = pad(escape_controls(" ".join(text.split())), width - 9, theme).rstrip()
            if is_picked:
                lines.append(theme.paint(f"{theme.glyphs.folded} {kind:<5} {words}", "pick"))
            else:
                lines.append(f"  {theme.paint(f'{kind:<5}', 'accent' if kind == 'next' else 'quiet')} {words}")
        if len(lines) > QUEUE_ROWS:
            hidden = len(lines) - QUEUE_ROWS + 1
            lines = [theme.paint(f"  … {hidden} more", "quiet"), *lines[hidden:]]
        return lines

    def render_keys(self, theme: Theme, width: int) -> str:
        keys = [("Enter", "edit"), ("Backspace", "take out"), ("Tab", "steer with it now"), ("Esc", "back")]
        return join_keys(keys, theme, width)
