"""The small program that makes a listening socket in a sandbox's own network and hands it to us.

It runs by its path in a bare interpreter, so it stands alone. To enter a user's namespace a process may have only one
thread, which ours cannot promise.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import sys

_OWNER_OF = 0xB701  # NS_GET_USERNS
_USER, _NET = 0x10000000, 0x40000000
_FREE_BIND = 15


def main() -> None:
    """Arguments: a process in the sandbox, the port, and the descriptor of the socket to send it through."""
    pid, port, way = map(int, sys.argv[1:])
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _enter(fcntl.ioctl(network, _OWNER_OF), _USER)
    _enter(network, _NET)
    with socket.socket() as listener, socket.socket(fileno=way) as sender:
        # The sandbox may not have brought its loopback up yet.
        listener.setsockopt(socket.IPPROTO_IP, _FREE_BIND, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        socket.send_fds(sender, [b"."], [listener.fileno()])


def _enter(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
