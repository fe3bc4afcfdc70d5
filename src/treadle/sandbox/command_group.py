"""The commands that run in a workspace at the same time, in whichever process, and what git could run before them.

The last of them looks for new repositories, when nothing changes them any more. If all were killed, the first of the
next group does that.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.sandbox.guarded_paths import build_lock_name
from treadle.sandbox.runtime_folder import make_runtime_folder

Repositories = Mapping[str, str]
"""What git may take for a repository, by its path in the workspace, with its kind. That of a link has its target."""


class Move(Struct, frozen=True):
    """A new repository in the workspace, and the name beside it under which it waits while it is cleaned."""

    entry: str
    aside: str
    is_bare: bool


class CommandGroup:
    """A command's membership. `known` are the repositories that were there before the first command of the group.

    `moves` are what a killed process was cleaning.
    """

    def __init__(self, workspace: Path, found: Repositories, clean_up: Callable[[CommandGroup], Repositories]) -> None:
        """Join the group of a workspace. `clean_up` is called with the group of killed commands."""
        self._path = make_runtime_folder() / f"git-{build_lock_name(workspace)}"
        while True:
            self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            is_first = self.is_last()
            if self._is_current():  # the last command of an earlier group removes the file
                break
            os.close(self._lock)
        self.known: Repositories = found
        self.moves: list[Move] = []
        is_left = self._read()
        if is_first:
            self.known = clean_up(self) if is_left else found
            os.ftruncate(self._lock, 0)
            self._write(dict(self.known))
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def note_move(self, move: Move) -> None:
        """Note what is about to be done with a new repository, so that the next group can finish it."""
        self._write(msgspec.to_builtins(move))

    def is_last(self) -> bool:
        """Tell whether no other command runs in the workspace. If so, none can start until this one leaves."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # the attempt gives up a lock that was held
            return False
        return True

    def leave(self, *, is_clean: bool) -> None:
        """Leave the group. `is_clean` says that it was the last, and left no new repository."""
        if is_clean and self._is_current():
            self._path.unlink(missing_ok=True)
        os.close(self._lock)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path, follow_symlinks=False), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def _write(self, value: object) -> None:
        line = json.dumps(value).encode() + b"\n"  # names may be no text, which it writes
        os.pwrite(self._lock, line, os.fstat(self._lock).st_size)

    def _read(self) -> bool:
        """Read what the group knows, and say whether there is anything."""
        lines = os.pread(self._lock, os.fstat(self._lock).st_size, 0).splitlines()
        if lines:
            self.known = msgspec.convert(json.loads(lines[0]), dict[str, str])
            self.moves = [msgspec.convert(json.loads(line), Move) for line in lines[1:]]
        return bool(lines)
