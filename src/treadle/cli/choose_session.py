"""Choose a session to continue from a list of the last ones. The user answers with a number."""

from __future__ import annotations

import sys
from contextlib import aclosing

from treadle.app.compose import open_store
from treadle.app.settings import Settings
from treadle.cli.console import escape_controls, format_time_since, print_note, read_line, terminal_width, truncate_line
from treadle.errors import BadInput
from treadle.log.base import SessionInfo, SessionQuery

SHOWN_SESSIONS = 20


async def choose_session(settings: Settings) -> str:
    """Ask which session to continue, and return its id. Empty if there are none. Raise `BadInput` without a choice."""
    found: list[SessionInfo] = []
    async with open_store(settings) as log, aclosing(log.iterate_sessions(SessionQuery())) as sessions:
        async for info in sessions:
            if not info.is_helper:
                found.append(info)
                if len(found) == SHOWN_SESSIONS:
                    break
    if not found:
        return ""
    for number, info in enumerate(found, 1):
        line = f"{number:>3}  {format_time_since(info.updated_at):>4}  {info.name or info.id[:12]} · {info.workspace}"
        print_note(truncate_line(escape_controls(line), terminal_width() - 1))
    sys.stderr.write(f"which session? 1 to {len(found)}: ")
    sys.stderr.flush()
    answer = (await read_line()).strip()
    if not answer.isdecimal() or not 1 <= int(answer) <= len(found):
        raise BadInput(f"{answer!r} is not a number from 1 to {len(found)}; nothing was started")
    return found[int(answer) - 1].id
