"""The programs that the user names in variables such as `EDITOR` and `PAGER`, as words to start them with."""

from __future__ import annotations

import os
import shlex
import shutil

from treadle.errors import BadInput


def read_program(*names: str) -> list[str]:
    """Read a program and its arguments from the first of these variables that is set. Empty if none is."""
    for name in names:
        try:
            words = shlex.split(os.environ.get(name, ""))
        except ValueError as error:
            raise BadInput(f"{name} is {os.environ[name]!r}, which is no command: {error}. Correct {name}") from None
        if words:
            return words
    return []


def find_editor() -> list[str]:
    """Find the editor of the user: the one that `VISUAL` or `EDITOR` names, or a usual one."""
    if words := read_program("VISUAL", "EDITOR"):
        return words
    for name in ("editor", "nano", "vi", "emacs"):
        if shutil.which(name):
            return [name]
    raise BadInput("no editor was found: set VISUAL or EDITOR to the command of yours")
