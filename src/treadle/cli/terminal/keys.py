"""The keys of the interactive terminal. What a key means depends on the panel, the queue and the menu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition, Filter
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

if TYPE_CHECKING:
    from treadle.cli.terminal.prompt_console import PromptConsole

PANEL_KEYS = ("enter", "escape", "up", "down", "pageup", "pagedown", "tab", "c-c", "c-a")


class KeyActions:
    """What the keys do that concern the session. Here: nothing, as in a picker without a session."""

    def handle_enter(self, *, is_after: bool = False) -> None: ...
    def handle_escape(self) -> None: ...
    def handle_ctrl_c(self) -> None: ...
    def handle_shift_tab(self) -> None: ...
    def show_keys(self) -> None: ...
    def unfold(self) -> None: ...
    def toggle_plan(self) -> None: ...
    def search_history(self) -> None: ...
    def edit_message(self) -> None: ...


def build_bindings(console: PromptConsole, actions: KeyActions) -> KeyBindings:
    """Bind all keys."""
    bindings = KeyBindings()
    has_panel = Condition(lambda: console.panel is not None)
    is_queue = Condition(lambda: console.panel is None and console.queue.picked is not None)
    is_input = ~has_panel & ~is_queue
    _bind_panel(bindings, console, has_panel)
    _bind_queue(bindings, console, actions, is_queue)
    _bind_input(bindings, console, actions, is_input)
    _bind_actions(bindings, console, actions, is_input)

    @bindings.add("c-d")
    def _(event: KeyPressEvent) -> None:
        if not console.draft or console.panel is not None:
            console.leave()
        else:
            console.buffer.delete()

    @bindings.add("c-z")
    def _(event: KeyPressEvent) -> None:
        console.holder.stop_process()

    @bindings.add("c-l")
    def _(event: KeyPressEvent) -> None:
        console.clear_screen()

    @bindings.add("c-o")
    def _(event: KeyPressEvent) -> None:
        actions.unfold()

    @bindings.add("c-t")
    def _(event: KeyPressEvent) -> None:
        actions.toggle_plan()

    return bindings


def _bind_panel(bindings: KeyBindings, console: PromptConsole, has_panel: Condition) -> None:
    is_keys = Condition(lambda: console.panel is not None and console.panel.focus == "keys")
    for key in PANEL_KEYS:

        @bindings.add(key, filter=has_panel)
        def _(event: KeyPressEvent, key: str = key) -> None:
            console.press(key)

    for key in ("home", "end"):  # in a line of text they move the cursor

        @bindings.add(key, filter=is_keys)
        def _(event: KeyPressEvent, key: str = key) -> None:
            console.press(key)

    @bindings.add(Keys.Any, filter=is_keys)
    def _(event: KeyPressEvent) -> None:
        console.press(event.data)

    @bindings.add(Keys.BracketedPaste, filter=is_keys)
    def _(event: KeyPressEvent) -> None:
        console.type_text(event.data)


def _bind_queue(bindings: KeyBindings, console: PromptConsole, actions: KeyActions, is_queue: Condition) -> None:
    queue = console.queue

    @bindings.add("up", filter=is_queue)
    def _(event: KeyPressEvent) -> None:
        queue.move(-1)

    @bindings.add("down", filter=is_queue)
    def _(event: KeyPressEvent) -> None:
        queue.move(1)

    @bindings.add("escape", filter=is_queue)
    @bindings.add("c-c", filter=is_queue)
    def _(event: KeyPressEvent) -> None:
        queue.picked = None

    @bindings.add("backspace", filter=is_queue)
    def _(event: KeyPressEvent) -> None:
        queue.take(queue.picked or 0)

    @bindings.add("enter", filter=is_queue)
    def _(event: KeyPressEvent) -> None:
        console.draft = queue.take(queue.picked or 0)

    @bindings.add("tab", filter=is_queue)
    def _(event: KeyPressEvent) -> None:
        console.draft = queue.take(queue.picked or 0)
        actions.handle_enter()

    @bindings.add(Keys.Any, filter=is_queue)
    def _(event: KeyPressEvent) -> None:
        queue.picked = None
        console.type_text(event.data)


def _bind_input(bindings: KeyBindings, console: PromptConsole, actions: KeyActions, is_input: Filter) -> None:
    buffer, menu = console.buffer, console.menu

    def take_row() -> None:
        after = buffer.document.text_after_cursor
        text = menu.complete(buffer.document.text_before_cursor)
        console.draft = text + after
        buffer.cursor_position = len(text)

    @bindings.add("enter", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        if menu.is_open and menu.has_commands:
            console.draft = menu.rows[menu.picked].text
        elif menu.is_open and not menu.is_complete:
            take_row()
            return
        actions.handle_enter()

    @bindings.add("tab", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        if menu.is_open:
            take_row()
        elif buffer.text.strip():
            actions.handle_enter(is_after=True)

    @bindings.add("escape", "enter", filter=is_input)
    @bindings.add("c-j", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        buffer.insert_text("\n")

    @bindings.add("up", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        if menu.is_open:
            menu.move(-1)
        elif buffer.document.cursor_position_row > 0:
            buffer.cursor_up()
        elif not buffer.text and console.queue.kept:
            console.queue.move(-1)
        else:
            buffer.history_backward()
            menu.close()

    @bindings.add("down", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        if menu.is_open:
            menu.move(1)
        elif buffer.document.cursor_position_row < buffer.document.line_count - 1:
            buffer.cursor_down()
        else:
            buffer.history_forward()
            menu.close()


def _bind_actions(bindings: KeyBindings, console: PromptConsole, actions: KeyActions, is_input: Filter) -> None:
    is_empty = Condition(lambda: not console.buffer.text)

    @bindings.add("right", filter=is_input & is_empty)
    def _(event: KeyPressEvent) -> None:
        console.draft = console.ghost

    @bindings.add("escape", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        if console.menu.is_open:
            console.menu.close()
        else:
            actions.handle_escape()

    @bindings.add("c-c", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        actions.handle_ctrl_c()

    @bindings.add("s-tab", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        actions.handle_shift_tab()

    @bindings.add("?", filter=is_input & is_empty)
    def _(event: KeyPressEvent) -> None:
        actions.show_keys()

    @bindings.add("c-r", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        actions.search_history()

    @bindings.add("c-g", filter=is_input)
    @bindings.add("c-x", "c-e", filter=is_input)
    def _(event: KeyPressEvent) -> None:
        actions.edit_message()
