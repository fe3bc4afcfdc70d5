"""The program that opens a listening socket inside a sandbox's network and passes it to us.

It runs by its path in a bare interpreter, so it imports nothing of treadle. It is a process of its own because only a
process with a single thread may enter a user namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import sys

_NS_GET_USERNS = 0xB701
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_IP_FREEBIND = 15


def main() -> None:
    """Read the arguments: a process in the sandbox, the port, and the descriptor to send the socket through."""
    pid, port, channel = map(int, sys.argv[1:])
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _enter_namespace(fcntl.ioctl(network, _NS_GET_USERNS), _CLONE_NEWUSER)
    _enter_namespace(network, _CLONE_NEWNET)
    with socket.socket() as listener, socket.socket(fileno=channel) as sender:
        # The sandbox may not have enabled its loopback interface yet.
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        socket.send_fds(sender, [b"."], [listener.fileno()])


def _enter_namespace(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
