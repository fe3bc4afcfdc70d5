"""A question that is answered by one key, and one that is answered in words. A heavy bar marks every line of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from treadle.cli.console import measure_width, truncate_line
from treadle.cli.draw.glyphs import Theme
from treadle.cli.terminal.cells import join_keys
from treadle.cli.terminal.panel import Focus, PanelRoom

INERT_SECONDS = 0.5
"""Seconds without a key before keys count: a key typed for something else must not approve a call."""

BODY_SECONDS, BODY_PAUSE = 1.0, 20
"""Seconds for which a drawn body is kept, and how many times as long as drawing it takes."""

WAIT_HINT = "  keys count in a moment"
KEPT_HINT = "; what you type is kept for your message"


class KeyChoice(NamedTuple):
    """The key that was pressed, and the reason that was typed after it."""

    key: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QuestionContent:
    """What a question shows. `render_body` gets the columns that it has, `summary` is the body in one line.

    `views` are keys that show more and leave the question open. `reason_key` opens a line for the reason. `escape` is
    the key that Esc stands for. `way_out` is a key that leaves.
    """

    title: str
    render_body: Callable[[Theme, int], list[str]]
    choices: tuple[tuple[str, str], ...]
    facts: str = ""
    summary: str = ""
    is_harmful: bool = False
    views: Mapping[str, Callable[[], None]] = field(default_factory=dict[str, Callable[[], None]])
    reason_key: str = ""
    reason_prompt: str = "no, because:"
    escape: str = ""
    way_out: tuple[str, str] = ("Esc", "stops the run")


class QuestionPlace(Protocol):
    """Where a question is shown."""

    def type_text(self, text: str) -> None:
        """Add text to the message of the user."""
        ...

    def update_focus(self) -> None:
        """Draw again, and let letters go where the panel wants them."""
        ...


class _TimedPanel:
    """A panel whose keys are dead until no key was pressed for a while. Until then letters go to the message."""

    def __init__(self, place: QuestionPlace) -> None:
        self.is_dead, self.has_kept = True, False
        self._place = place
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Let the keys count after a while."""
        if self._timer is not None:
            self._timer.cancel()
        if self.is_dead:
            self._timer = asyncio.get_running_loop().call_later(INERT_SECONDS, self.enable)

    def enable(self) -> None:
        self.is_dead = False
        self._place.update_focus()

    def keep_text(self, key: str) -> None:
        """Add a letter to the message, and wait again."""
        if len(key) == 1 and key.isprintable():
            self._place.type_text(key)
            self.has_kept = True
        self.start()


class ChoiceQuestion(_TimedPanel):
    """A question with one key for each answer. Nothing is preselected.

    A letter that is no answer begins text for the next message: it and what follows goes to the input, until Enter or
    Esc. A body that is longer than its room scrolls, and a yes counts only after its end was shown.
    """

    def __init__(self, content: QuestionContent, place: QuestionPlace, on_escape: Callable[[str], None]) -> None:
        super().__init__(place)
        self.result: asyncio.Future[KeyChoice] = asyncio.get_running_loop().create_future()
        self._content, self._on_escape = content, on_escape
        self._state: Focus = "keys"
        self._offset = self._page = 0
        self._is_end_shown = False
        self._body, self._body_columns, self._body_until = list[str](), 0, 0.0

    @property
    def focus(self) -> Focus:
        return self._state

    @property
    def is_done(self) -> bool:
        return self.result.done()

    def follow(self, entry: str) -> None:
        """A reason changes nothing else."""

    def press(self, key: str, entry: str) -> None:
        far = len(self._body)
        scroll = {"up": -1, "down": 1, "pageup": -self._page, "pagedown": self._page, "home": -far, "end": far}.get(key)
        if self.is_dead and key not in ("escape", "c-c"):
            self.keep_text(key)
        elif scroll is not None:
            self._offset = max(0, self._offset + scroll)
        elif self._state == "entry":
            self._press_in_reason(key, entry)
        elif self._state == "message":
            self._state = "keys" if key in ("enter", "escape", "c-c") else "message"
        elif key in ("escape", "c-c"):
            self._leave(key)
        elif key in dict(self._content.choices):
            self._choose(key)
        elif len(key) == 1 and key.isprintable() and not key.isspace():
            self._state = "message"
            self._place.type_text(key)

    def _choose(self, key: str) -> None:
        if key in self._content.views:
            self._content.views[key]()
        elif key == self._content.reason_key:
            self._state = "entry"
        elif self._is_end_shown or key == "l":
            self.finish(KeyChoice(key))

    def _press_in_reason(self, key: str, entry: str) -> None:
        if key == "enter":
            self.finish(KeyChoice(self._content.reason_key, entry.strip()))
        elif key in ("escape", "c-c"):
            self._state = "keys"

    def _leave(self, key: str) -> None:
        if self._content.escape:
            self.finish(KeyChoice(self._content.escape))
        else:
            self._on_escape(key)

    def abandon(self) -> None:
        self.result.cancel()

    def finish(self, choice: KeyChoice) -> None:
        if not self.result.done():
            self.result.set_result(choice)

    def render_prefix(self, theme: Theme) -> str:
        return f"{self._bar(theme)}   {theme.paint(self._content.reason_key, 'strong')}  {self._content.reason_prompt} "

    def render_above(self, room: PanelRoom) -> list[str]:
        theme, bar, content = room.theme, self._bar(room.theme), self._content
        title = f"{bar} {theme.paint('?', self._style)} {theme.paint(content.title, 'strong')}"
        if self._state == "entry":
            summary = truncate_line(content.summary, room.columns - measure_width(content.title) - 8)
            return [f"{title}  {theme.paint(summary, 'quiet')}"]
        title += f"  {theme.paint(content.facts, 'quiet')}" if content.facts else ""
        roles = ("quiet", "quiet") if self.is_dead else ("strong", "")
        keys = [f"{bar}   {theme.paint(key, roles[0])}  {theme.paint(text, roles[1])}" for key, text in content.choices]
        body = self._render_body(theme, max(10, room.columns - 5))
        room_left = room.rows - len(keys) - 3
        if room.rows >= 30 or len(body) + 2 <= room_left:
            body = ["", *body, ""] if body else [""]
        else:
            body = [line for line in body if line] if len(body) > room_left else body
        self._page = max(2, room_left)
        if len(body) <= self._page:
            self._offset, self._is_end_shown = 0, True
            return [title, *(f"{bar}   {line}".rstrip() for line in body), *keys]
        self._page -= 1  # for the line that says how much is hidden
        self._offset = min(self._offset, len(body) - self._page)
        below = len(body) - self._page - self._offset
        self._is_end_shown = self._is_end_shown or below == 0
        more = f"{below} lines below" if below else "the end"
        need = "" if self._is_end_shown else "; a yes counts when the end was shown"
        shown = body[self._offset : self._offset + self._page]
        lines = [*(f"{bar}   {line}".rstrip() for line in shown), f"{bar}   {theme.paint(f'… {more}{need}', 'quiet')}"]
        return [title, *lines, *keys]

    def _render_body(self, theme: Theme, columns: int) -> list[str]:
        """Render the body, at most once a second, and seldom if that takes long. What it reads may change meanwhile."""
        start = time.monotonic()
        if columns != self._body_columns or start >= self._body_until:
            self._body, self._body_columns = self._content.render_body(theme, columns), columns
            end = time.monotonic()
            self._body_until = end + max(BODY_SECONDS, (end - start) * BODY_PAUSE)
        return self._body

    def render_below(self, room: PanelRoom) -> list[str]:
        if self._state == "entry":
            return [join_keys([("Enter", "tells the model"), ("Esc", "back to the keys")], room.theme, room.columns)]
        if self._state == "message":
            return [join_keys([("Enter", "keeps it for afterwards"), ("Esc", "to the keys")], room.theme, room.columns)]
        if self.is_dead:
            return [room.theme.paint(WAIT_HINT + KEPT_HINT * self.has_kept, "quiet")]
        scroll = [] if self._is_end_shown and not self._offset else [("↓", "scrolls")]
        return [join_keys([*scroll, self._content.way_out], room.theme, room.columns)]

    @property
    def _style(self) -> str:
        return "danger" if self._content.is_harmful else "need"

    def _bar(self, theme: Theme) -> str:
        return theme.paint(theme.glyphs.bar, self._style)


class TextQuestion(_TimedPanel):
    """A question that is answered in words. `accept` takes the text, and returns what is wrong with it."""

    def __init__(
        self,
        render: Callable[[Theme, int], list[str]],
        accept: Callable[[str], str],
        place: QuestionPlace,
        on_escape: Callable[[str], None],
        way_out: tuple[str, str] = ("Esc", "stops the run"),
    ) -> None:
        super().__init__(place)
        self._way_out = way_out
        self._render, self._accept, self._on_escape = render, accept, on_escape
        self._problem = ""

    @property
    def focus(self) -> Focus:
        return "keys" if self.is_dead else "entry"

    @property
    def is_done(self) -> bool:
        return False  # `accept` closes it

    def abandon(self) -> None:
        """Nobody waits for its answer here."""

    def follow(self, entry: str) -> None:
        self._problem = ""

    def press(self, key: str, entry: str) -> None:
        if key in ("escape", "c-c"):
            self._on_escape(key)
        elif self.is_dead:
            self.keep_text(key)
        elif key == "enter":
            self._problem = self._accept(entry)

    def render_prefix(self, theme: Theme) -> str:
        return f"{theme.paint(theme.glyphs.bar, 'need')} {theme.paint(theme.glyphs.you, 'pick')} "

    def render_above(self, room: PanelRoom) -> list[str]:
        bar = room.theme.paint(room.theme.glyphs.bar, "need")
        lines = self._render(room.theme, max(10, room.columns - 3))[-max(3, room.rows - 3) :]
        return [f"{bar} {line}".rstrip() for line in lines]

    def render_below(self, room: PanelRoom) -> list[str]:
        if self._problem:
            return [f"  {room.theme.paint('!', 'need')} {self._problem}"]
        if self.is_dead:
            return [room.theme.paint(WAIT_HINT + KEPT_HINT * self.has_kept, "quiet")]
        return [join_keys([("Enter", "answers"), self._way_out], room.theme, room.columns)]
