"""Waiting for the write lock of an SQLite file without blocking the event loop, and finding out who holds it.

Another process may hold the lock for long: it can be suspended in the middle of a write. Reads never need the lock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeVar

from treadle.errors import StoreBusy

DELAYS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.025, 0.025, 0.05, 0.05, 0.1)
"""The pauses between attempts, as SQLite itself makes them. The last one repeats."""
_WRITE_LOCK_BYTE = 120  # of the -shm file; fixed in the format of SQLite's write-ahead log
_logger = logging.getLogger("treadle")


Result = TypeVar("Result")


async def retry(
    attempt: Callable[[], CoroutineType[Any, Any, Result]], path: Path, seconds: float, *, forever: bool = False
) -> Result:
    """Repeat a write that found the lock held. After that many seconds it raises `StoreBusy`.

    With `forever` it waits on, and a cancelled task still waits that long: the owner of a session must not lose what it
    did, and nobody can take the session over without the lock.
    """
    deadline, cancelled = time.monotonic() + seconds, None
    for delay in chain(DELAYS, repeat(DELAYS[-1])):
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError as error:
            if not forever:
                raise
            if cancelled is None:
                cancelled, deadline = error, time.monotonic() + seconds
        try:
            result = await attempt()
        except StoreBusy as busy:
            if time.monotonic() < deadline:
                continue
            if cancelled is not None:
                raise cancelled from busy
            explained = describe_busy(path, seconds)
            if not forever:
                raise explained from busy
            _logger.warning("a run waits to record what it did: %s", explained)
            deadline = time.monotonic() + seconds * 6
        except Exception as error:
            if cancelled is not None:
                raise cancelled from error
            raise
        else:
            if cancelled is not None:
                raise cancelled
            return result
    raise AssertionError("the delays never end")


def describe_busy(path: Path, seconds: float) -> StoreBusy:
    """Build the error for a lock that was not released in time. It names the holder, if that is known."""
    pid, state = find_lock_holder(path), ""
    who, what = "other processes", "Try again, or find the process that holds it"
    if pid is not None:
        who, what = f"process {pid}", "Try again, or end that process"
        with suppress(OSError):  # it may have ended
            name, _, rest = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
            who, state = f"process {pid} ({name})", rest[1:2]
    if state in ("T", "t"):
        who, what = f"{who}, which is stopped", f"Let it go on (`kill -CONT {pid}`) or end it"
    return StoreBusy(f"{path} was held for more than {seconds:g} s by {who}; nothing was written. {what}")


def find_lock_holder(path: Path, locks: Path = Path("/proc/locks")) -> int | None:
    """Find the process that holds the write lock of the file. None when the system does not say."""
    try:
        inode = os.stat(f"{path}-shm").st_ino
        lines = locks.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for fields in (line.split() for line in lines):
        # 1: POSIX  ADVISORY  WRITE 4711 08:01:131073 120 120
        if len(fields) != 8 or fields[1] != "POSIX" or fields[3] != "WRITE" or fields[5].split(":")[-1] != str(inode):
            continue
        first, last = int(fields[6]), float("inf") if fields[7] == "EOF" else int(fields[7])
        if first <= _WRITE_LOCK_BYTE <= last and int(fields[4]) > 0:  # a process of another namespace has no number
            return int(fields[4])
    return None
