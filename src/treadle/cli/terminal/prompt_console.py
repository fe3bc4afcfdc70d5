"""The console of a chat: finished blocks scroll above one area that prompt-toolkit draws at the bottom.

From above, the area has the open block, the work line, the queue, the input, and one of status line, hint, menu or
panel. It never asks the terminal for the cursor's position.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.processors import AfterInput, ConditionalProcessor
from prompt_toolkit.output import ColorDepth

from treadle.cli.console import BlockKind, escape_controls, needs_gap, terminal_width, wants_colour, wants_style
from treadle.cli.draw.glyphs import choose_theme
from treadle.cli.picker_rows import PickerRow
from treadle.cli.terminal.held_output import HeldOutput
from treadle.cli.terminal.keys import KeyActions, build_bindings
from treadle.cli.terminal.menu import Menu
from treadle.cli.terminal.message_queue import MessageQueue
from treadle.cli.terminal.panel import Panel, PanelRoom
from treadle.cli.terminal.picker import Picker
from treadle.cli.terminal.terminal_holder import TerminalHolder
from treadle.cli.user_programs import find_editor, read_program
from treadle.errors import BadInput

MAX_INPUT_ROWS = 8
MIN_OPEN_ROWS = 3
PAGER_LINES = 200
"""Lines from which a text is shown in the pager instead of the scrollback."""

BATCH_SECONDS = 0.02
"""Seconds to collect output before it is written and the area is drawn again below it."""

REDRAW_SECONDS = 0.04
"""Minimum seconds between two redraws of the area, however fast the model writes."""

ESCAPE_SECONDS = 0.08
"""Seconds after which an escape byte counts as the Escape key, not as the start of a sequence."""


class Entry(NamedTuple):
    """What the user entered. `is_after` means that it is kept until the run has ended."""

    text: str
    is_after: bool = False


class PromptConsole:
    """A console with an input at the bottom. It runs from the start of a chat to its end.

    `describe_status` renders the line below the input for so many columns. `placeholder` stands in an empty
    input, and so does `ghost`, which the right arrow takes.
    """

    def __init__(self, stream: TextIO, history: Path, menu: Menu, actions: KeyActions) -> None:
        self.has_colour, self.has_style = wants_colour(stream), wants_style(stream)
        self.theme = choose_theme(has_colour=self.has_colour, has_style=self.has_style)
        self.describe_status: Callable[[int], str] = lambda columns: ""
        self.placeholder = self.ghost = ""
        self.hint = ""
        """A line that replaces the status line until the input changes."""
        self.menu, self.queue = menu, MessageQueue()
        menu.on_change = self.redraw
        self._last_kind: BlockKind | None = None
        self._open_lines: Sequence[str] = ()
        self._open_kind: BlockKind = "answer"
        self._work_line = ""
        self._panels: list[Panel] = []
        self._entries: asyncio.Queue[Entry | None] = asyncio.Queue()
        self._pending_output: list[str] = []
        self._writer: asyncio.Task[None] | None = None
        history.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(history, os.O_CREAT | os.O_APPEND, 0o600))
        self.history = FileHistory(str(history))
        self.buffer = Buffer(history=self.history, multiline=True, on_text_changed=self._follow_input)
        self.buffer.on_cursor_position_changed += self._follow_cursor
        self.entry = Buffer(multiline=False, on_text_changed=lambda buffer: self._follow_entry(buffer.text))
        self._output = HeldOutput(
            stream, lambda: measure_terminal(stream), term=os.environ.get("TERM"), enable_cpr=False
        )
        self.app: Application[None] = self._build_app(actions)
        self.holder = TerminalHolder(self.app, self._flush_output)

    def _build_app(self, actions: KeyActions) -> Application[None]:
        self._top = Window(
            FormattedTextControl(lambda: ANSI("\n".join(self._render_top())), focusable=True, show_cursor=False),
            dont_extend_height=True,
        )
        placeholder = AfterInput(lambda: ANSI(self.theme.paint(self.ghost or self.placeholder, "quiet")))
        self._input = Window(
            BufferControl(
                self.buffer,
                input_processors=[ConditionalProcessor(placeholder, Condition(lambda: not self.buffer.text))],
            ),
            height=Dimension(min=1, max=MAX_INPUT_ROWS),
            dont_extend_height=True,
            wrap_lines=True,
            get_line_prefix=lambda line, wrap: ANSI(self._input_prefix) if line == wrap == 0 else "  ",
        )
        self._entry_line = Window(
            BufferControl(self.entry),
            height=1,
            get_line_prefix=lambda line, wrap: ANSI(self.panel.render_prefix(self.theme) if self.panel else ""),
        )
        below = Window(FormattedTextControl(lambda: ANSI("\n".join(self._render_below()))), dont_extend_height=True)
        is_message = Condition(lambda: self.panel is None or self.panel.focus == "message")
        is_entry = Condition(lambda: self.panel is not None and self.panel.focus == "entry")
        parts = [
            self._top,
            ConditionalContainer(self._input, is_message),
            ConditionalContainer(self._entry_line, is_entry),
            below,
        ]
        app: Application[None] = Application(
            Layout(HSplit(parts, align=VerticalAlign.TOP), focused_element=self._input),
            key_bindings=build_bindings(self, actions),
            output=self._output,
            color_depth=ColorDepth.DEPTH_4_BIT,
            erase_when_done=True,
            min_redraw_interval=REDRAW_SECONDS,
        )
        app.ttimeoutlen = app.timeoutlen = ESCAPE_SECONDS
        return app

    # --- input

    async def run(self) -> None:
        """Draw the area and read keys until `leave`. Raises `OSError` or `EOFError` if the terminal is gone."""
        self._flush_output()
        try:
            await self.app.run_async(handle_sigint=False, set_exception_handler=False)
        finally:
            self._flush_output()
            for panel in self._panels:
                panel.abandon()
            self._entries.put_nowait(None)

    async def read(self) -> Entry:
        """Wait for what the user enters next. Raises `EOFError` when the user has left."""
        entry = await self._entries.get()
        if entry is None:
            self._entries.put_nowait(None)
            raise EOFError
        return entry

    def submit(self, *, is_after: bool = False) -> None:
        """Enter the text of the input."""
        text = self.buffer.text
        self.clear_draft()
        self.hint = ""
        self._entries.put_nowait(Entry(text, is_after))

    def leave(self) -> None:
        """End the input as Ctrl-D does."""
        if self.app.is_running and not self.app.is_done:
            self.app.exit()
        else:
            self._entries.put_nowait(None)

    @property
    def draft(self) -> str:
        """The text that is typed but not entered yet."""
        return self.buffer.text

    @draft.setter
    def draft(self, text: str) -> None:
        self.buffer.set_document(Document(text), bypass_readonly=True)
        self.menu.close()
        self.redraw()

    def clear_draft(self) -> None:
        """Empty the input. The history keeps what was in it."""
        self.buffer.append_to_history()
        self.buffer.reset()
        self.menu.close()

    def set_hint(self, text: str) -> None:
        """Show a line below the input until the input changes."""
        self.hint = text
        self.redraw()

    def _follow_input(self, buffer: Buffer) -> None:
        self.hint = ""
        self._follow_menu()

    def _follow_cursor(self, buffer: Buffer) -> None:
        self._follow_menu()

    def _follow_menu(self) -> None:
        if self.buffer.text:
            self.menu.follow(self.buffer.document.text_before_cursor)
        else:
            self.menu.close()

    def _follow_entry(self, text: str) -> None:
        if self.panel is not None:
            self.panel.follow(text)

    async def edit_text(self, text: str) -> str:
        """Let the user change a text in their editor. If that fails, it is noted and the text stays."""
        if self.holder.is_lent:
            return text
        try:
            command = find_editor()
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "message.md"
                file.write_text(text, "utf-8", "replace")
                code = await self.holder.lend([*command, str(file)])
                if code == 0:
                    return file.read_text("utf-8", "replace").rstrip("\n")
            problem = f"{command[0]} ended with code {code}"
        except BadInput as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
        finally:
            self._write_text("")  # what came while the editor had the terminal
        self.write_block(escape_controls(f"{problem}; the text stays as it was"))
        return text

    async def show_text(self, text: str) -> None:
        """Write a text to the scrollback, or show it in the pager if it is long."""
        command = ["less", "-R"]
        try:
            command = read_program("PAGER") or command
        except BadInput as error:
            self.write_block(escape_controls(str(error)))
        if text.count("\n") < PAGER_LINES or shutil.which(command[0]) is None or self.holder.is_lent:
            self.write_block(text, gap=True)
            return
        try:
            await self.holder.lend(command, text, {"LESS": "-R", **os.environ})
        except OSError:
            self.write_block(text, gap=True)
        finally:
            self._write_text("")

    # --- panels

    @property
    def panel(self) -> Panel | None:
        return self._panels[0] if self._panels else None

    def show_panel(self, panel: Panel) -> None:
        """Show a panel instead of the input, or after the panels that wait already."""
        self._panels.append(panel)
        if self.panel is panel:
            self._start_panel()

    def close_panel(self, panel: Panel) -> None:
        """Remove a panel. The next one appears, or the input with what was typed in it."""
        if panel in self._panels:
            was_first = self.panel is panel
            self._panels.remove(panel)
            if was_first:
                self._start_panel()

    def _start_panel(self) -> None:
        self.entry.reset()
        if self.panel is not None:
            self.menu.close()
            self.panel.start()
        self.update_focus()

    def update_focus(self) -> None:
        """Let letters go where the panel wants them."""
        focus = self.panel.focus if self.panel is not None else "message"
        self.app.layout.focus({"message": self._input, "entry": self._entry_line, "keys": self._top}[focus])
        self.redraw()

    def press(self, key: str) -> None:
        """Give a key to the panel."""
        if self.panel is not None:
            before, focus = self.panel, self.panel.focus
            self.panel.press(key, self.entry.text)
            if before.is_done:
                self.close_panel(before)
            elif self.panel is before and self.panel.focus != focus:
                self.entry.reset()
            self.update_focus()

    def type_text(self, text: str) -> None:
        """Add text to the message, whatever has the focus."""
        self.buffer.insert_text(text)

    async def pick(
        self,
        title: str,
        rows: Sequence[PickerRow],
        search: str = "",
        *,
        enter: str = "choose",
        more_key: str = "",
        empty: str = "",
    ) -> str | None:
        """Let the user pick a row. Return its value, or None if the user left. `more_key` is for more rows: `MORE`."""
        picker = Picker(title, rows, enter, more_key, empty)
        self.show_panel(picker)
        if search:
            self.entry.text = search
        try:
            return await picker.result
        finally:
            self.close_panel(picker)

    # --- the console

    @property
    def width(self) -> int:
        return terminal_width()

    def write_block(self, text: str, kind: BlockKind = "note", *, gap: bool | None = None) -> None:
        gap = needs_gap(self._last_kind, kind) if gap is None else gap
        self._last_kind = kind
        self._write_text(f"{chr(10) if gap else ''}{text}\n")

    def set_open_block(self, lines: Sequence[str], kind: BlockKind = "answer") -> None:
        if (lines, kind) != (self._open_lines, self._open_kind):
            self._open_lines, self._open_kind = lines, kind
            self.redraw()

    def set_work_line(self, text: str) -> None:
        if text != self._work_line:
            self._work_line = text
            self.redraw()

    def redraw(self) -> None:
        self.app.invalidate()

    def clear_screen(self) -> None:
        """Erase the window and draw the area again, below the first row: some terminals keep what was in that."""
        with self._output.hold():
            self.app.renderer.erase()
            self._output.erase_screen()
            self._output.cursor_goto(2, 0)
            self.app.renderer.render(self.app, self.app.layout)

    def _write_text(self, text: str) -> None:
        """Add text to the scrollback. While the area is drawn, text is collected and written in batches."""
        self._pending_output.append(text)
        if not self.app.is_running:
            self._flush_output()
        elif self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_above_area())

    async def _write_above_area(self) -> None:
        """Erase the area, write, and draw it again. It keeps control of the terminal, so no key is lost."""
        await asyncio.sleep(BATCH_SECONDS)
        while self._pending_output:
            if self.holder.is_lent or self.app.is_done or not self.app.is_running:
                return  # the text is written when the terminal is back or the chat ends
            try:
                with self._output.hold():
                    self.app.renderer.erase()
                    self._flush_output()
                    self.app.renderer.render(self.app, self.app.layout)
            except OSError as gone:  # nobody awaits this task: raise in `run` instead
                self.app.exit(exception=gone)

    def _flush_output(self) -> None:
        text, self._pending_output = "".join(self._pending_output), []
        if text:
            self._output.enable_autowrap()
            self._output.write_raw(text)
            self._output.flush()

    # --- drawing

    @property
    def _input_prefix(self) -> str:
        return f"{self.theme.paint(self.theme.glyphs.you, 'pick')} "

    def _build_room(self) -> PanelRoom:
        size = self._output.get_size()
        return PanelRoom(self.theme, size.columns, size.rows)

    def _render_top(self) -> list[str]:
        """Render everything above the input, so that the whole area fits in the window."""
        room = self._build_room()
        middle = self._work_line.split("\n") if self._work_line else []
        queue = self.queue.render(self.theme, room.columns)
        panel = self.panel
        rows = room.rows - len(self._render_below()) - 1
        if panel is None or panel.focus == "message":
            rows -= self._input.preferred_height(room.columns, room.rows).preferred
        if panel is not None:
            asked = panel.render_above(PanelRoom(self.theme, room.columns, rows))
            rows -= len(asked) + 1 + (panel.focus == "entry")
            queue = []
        else:
            asked = []
        if rows < len(middle) + len(queue) + 2 + MIN_OPEN_ROWS:
            middle = middle[-1:]  # the plan goes first
            queue = queue[: max(0, rows - 3 - MIN_OPEN_ROWS)]
        middle = middle + queue
        opened = list(self._open_lines)[-max(MIN_OPEN_ROWS, rows - len(middle) - 3) :] if self._open_lines else []
        if opened and needs_gap(self._last_kind, self._open_kind):
            opened.insert(0, "")
        if panel is not None and not isinstance(panel, Picker):
            middle = []  # the question says what happens now
        return [*opened, *(["", *middle] if middle else []), "", *asked]

    def _render_below(self) -> list[str]:
        room = self._build_room()
        if self.panel is not None:
            return self.panel.render_below(room)
        if self.queue.picked is not None:
            return [self.queue.render_keys(self.theme, room.columns)]
        if self.menu.is_open:
            return self.menu.render(self.theme, room.columns)[-max(3, room.rows - 5) :]
        return (self.hint or self.describe_status(room.columns)).split("\n")[: max(1, room.rows - 4)]


def measure_terminal(stream: TextIO) -> Size:
    """Return the size of the terminal, or a usual one if it is not known."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return Size(rows=24, columns=80)
    return Size(rows=size.lines or 24, columns=size.columns or 80)


def list_history(history: FileHistory) -> list[PickerRow]:
    """List what was entered before, the latest first, as rows of a picker."""
    found = dict.fromkeys(text for text in history.load_history_strings() if text.strip())
    return [PickerRow(text, " ".join(text.split())) for text in found]
