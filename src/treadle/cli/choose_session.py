"""Choose a session to continue from a list with a search line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.app.compose import open_store
from treadle.app.settings import Settings, data_folder
from treadle.cli.picker_rows import list_session_rows
from treadle.errors import BadInput
from treadle.log.base import Log

if TYPE_CHECKING:
    from treadle.cli.terminal.prompt_console import PromptConsole

NO_SESSION = "no other session, in this folder or elsewhere"


async def choose_session(settings: Settings) -> str:
    """Ask which session to continue, and return its id. Empty if there are none. Raise `BadInput` without a choice."""
    from treadle.cli.terminal.keys import KeyActions
    from treadle.cli.terminal.menu import Menu
    from treadle.cli.terminal.prompt_console import PromptConsole

    async with open_store(settings) as log:
        if not await list_session_rows(log):
            return ""
        console = PromptConsole(sys.stdout, data_folder() / "history", Menu(dict, settings.folder), KeyActions())
        with console.holder.hold():
            drawing = asyncio.create_task(console.run())
            picking = asyncio.create_task(pick_session(console, log, settings.folder))
            try:
                await asyncio.wait((drawing, picking), return_when=asyncio.FIRST_COMPLETED)
            finally:
                console.leave()
                picked = picking.result() if picking.done() else None
                picking.cancel()
                await asyncio.gather(drawing, picking, return_exceptions=True)
    if picked is None:
        raise BadInput("no session was chosen; nothing was started")
    return picked


async def pick_session(
    console: PromptConsole, log: Log, folder: Path, current: str = "", search: str = ""
) -> str | None:
    """Let the user pick a session of this folder, or of all folders. Return its id, or None."""
    from treadle.cli.terminal.picker import MORE

    title, rows = "Sessions", await list_session_rows(log, folder, current)
    if rows:
        picked = await console.pick("Sessions of this folder", rows, search, enter="open", more_key="all folders")
        if picked != MORE:
            return picked
    else:
        title = "Sessions of other folders"
    rows = await list_session_rows(log, None, current)
    return await console.pick(title if rows else "Sessions", rows, search, enter="open", empty=NO_SESSION)
