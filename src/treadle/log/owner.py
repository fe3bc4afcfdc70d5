"""Who claims a session: a name for this process, and whether the process of a name is gone.

It only shortens the wait after a crash on the same machine. What keeps two writers apart is the epoch.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

_PROC = Path("/proc")


def make_owner_name() -> str:
    """A name for this process: host, kernel and pid namespace, pid, start time, and something random."""
    pid = os.getpid()
    return f"{_host()}:{_place()}:{pid}:{_started(pid)}:{os.urandom(4).hex()}"


def is_gone(owner: str) -> bool:
    """True only when that process ran here and surely runs no more; False whenever in doubt."""
    parts = owner.split(":")
    if sys.platform == "win32" or len(parts) != 5 or not parts[2].isdigit():
        return False
    host, place, pid, started = parts[0], parts[1], int(parts[2]), parts[3]
    if host != _host() or place != _place() or pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists and belongs to somebody else
    found = _started(pid)
    return bool(started and found) and started != found


def _host() -> str:
    return socket.gethostname().replace(":", "-")


def _place() -> str:
    """This kernel since its boot and this pid namespace; a pid means nothing outside of it."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When the process started, in the kernel's own ticks; "dead" for a zombie, empty when unknown."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    if len(fields) < 20:
        return ""
    return "dead" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
