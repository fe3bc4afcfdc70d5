"""Names for the processes that claim sessions, and whether the process of a name is gone.

This only shortens the wait after a crash on the same machine. The epoch keeps two writers apart.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

_PROC = Path("/proc")


def make_owner_name() -> str:
    """Make a name for this process: host, kernel and pid namespace, pid, start time, and a random part."""
    pid = os.getpid()
    return f"{_get_host()}:{_read_namespace()}:{pid}:{_read_start_time(pid)}:{os.urandom(4).hex()}"


def make_node_name() -> str:
    """Make a name that people can read and type, for a process whose store other machines share."""
    return f"{_get_host()}:{os.getpid()}:{os.urandom(3).hex()}"


def is_gone(owner: str) -> bool:
    """Whether that process ran here and has certainly ended. False when in doubt."""
    parts = owner.split(":")
    if sys.platform == "win32" or len(parts) != 5 or not parts[2].isdigit():
        return False
    host, namespace, pid, start_time = parts[0], parts[1], int(parts[2]), parts[3]
    if host != _get_host() or namespace != _read_namespace() or pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists and belongs to another user
    found = _read_start_time(pid)
    return bool(start_time and found) and start_time != found


def _get_host() -> str:
    return socket.gethostname().replace(":", "-")


def _read_namespace() -> str:
    """Identify this boot of the kernel and this pid namespace. A pid means nothing outside of them."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _read_start_time(pid: int) -> str:
    """Read when a process started, in the kernel's ticks; "dead" for a zombie, empty when unknown."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    if len(fields) < 20:
        return ""
    return "dead" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
