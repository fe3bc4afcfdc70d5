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

from treadle.sandbox.guarded_paths import build_lock_name
from treadle.sandbox.runtime_folder import make_runtime_folder

Repositories = Mapping[str, str]
"""What git may take for a repository, by its path in the workspace, with its kind. That of a link has its target."""


class CommandGroup:
    """A command's membership. `known` are the repositories that were there before the first command of the group."""

    def __init__(self, workspace: Path, found: Repositories, clean_up: Callable[[Repositories], Repositories]) -> None:
        """Join the group of a workspace. `clean_up` is called with what killed commands had known."""
        self._path = make_runtime_folder() / f"git-{build_lock_name(workspace)}"
        while True:
            self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            is_first = self.is_last()
            if self._is_current():  # the last command of an earlier group removes the file
                break
            os.close(self._lock)
        if is_first:
            killed = self._read()
            self.known = found if killed is None else clean_up(killed)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, json.dumps(dict(self.known)).encode(), 0)  # names may be no text, which it writes
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        else:
            self.known = self._read() or {}

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

    def _read(self) -> Repositories | None:
        data = os.pread(self._lock, os.fstat(self._lock).st_size, 0)
        return msgspec.convert(json.loads(data), dict[str, str]) if data else None
